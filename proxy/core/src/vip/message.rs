//! A claim on its way between two nodes of a group.
//!
//! A datagram on the inner port [`PORT`]: version (1 byte, [`VERSION`]), body (postcard). Bytes
//! after the known fields are ignored, so that a later version may add fields at the end of
//! [`Claim`]; nothing else of a version ever changes, the order of fields included. A version
//! without claims drops the datagram.

use std::net::IpAddr;

use meshport_config::GroupName;
use serde::{Deserialize, Serialize};

use super::claim::Claim;

/// The UDP port inside the tunnel.
pub const PORT: u16 = 7403;
/// Begins a datagram.
pub const VERSION: u8 = 1;
/// The longest datagram accepted, in bytes: a group's name, an address and a claim take 128 at
/// most; the rest is for later versions.
pub const MAX_BYTES: usize = 512;

/// A claim and its address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The group that it is for.
    pub group: GroupName,
    /// The address.
    pub address: IpAddr,
    /// The claim.
    pub claim: Claim,
}

/// Why bytes are not a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadMessage {
    /// Of an unknown version.
    #[error("claim of version {0}")]
    Version(u8),
    /// Not a claim of any known version.
    #[error("malformed claim")]
    Malformed,
}

impl Message {
    /// The bytes on the wire.
    pub fn encode(&self) -> Vec<u8> {
        let body = postcard::to_allocvec(self).expect("plain data serialises");
        [&[VERSION][..], &body].concat()
    }

    /// Reads a datagram.
    ///
    /// # Errors
    /// [`BadMessage`] for everything that is not a claim of this version.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadMessage> {
        let (&version, body) = bytes.split_first().ok_or(BadMessage::Malformed)?;
        if version != VERSION {
            return Err(BadMessage::Version(version));
        }
        if bytes.len() > MAX_BYTES {
            return Err(BadMessage::Malformed);
        }
        let (message, _later) =
            postcard::take_from_bytes::<Self>(body).map_err(|_| BadMessage::Malformed)?;
        // Numbers have only the form in which they are written.
        if !message.claim.hardware.is_station() || !bytes.starts_with(&message.encode()) {
            return Err(BadMessage::Malformed);
        }
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::claim::Stance;
    use super::super::frame::Hardware;
    use super::*;

    fn sample(stance: Stance) -> Message {
        let claim = Claim {
            incarnation: u64::MAX,
            sequence: u64::MAX,
            usable: true,
            priority: 255,
            stance,
            hardware: Hardware([2, 0, 0, 0, 0, 1]),
            hears: true,
        };
        let group = "g".repeat(63).parse().expect("a name");
        Message { group, address: "2001:db8::10".parse().expect("an address"), claim }
    }

    #[test]
    fn claims_are_read_as_they_are_written() {
        for stance in [Stance::Standby, Stance::Holding, Stance::Releasing, Stance::Ready] {
            let bytes = sample(stance).encode();
            assert!(bytes.len() <= 128, "{}", bytes.len());
            assert_eq!(Message::decode(&bytes), Ok(sample(stance)));
            for cut in 0..bytes.len() {
                assert_eq!(Message::decode(&bytes[..cut]), Err(BadMessage::Malformed), "{cut}");
            }
        }
    }

    /// What releases before this one send.
    #[test]
    fn the_bytes_on_the_wire_stay_as_they_are() {
        let claim = Claim {
            incarnation: 300,
            sequence: 7,
            usable: true,
            priority: 200,
            stance: Stance::Ready,
            hardware: Hardware([2, 0, 0, 0, 0, 0xff]),
            hears: false,
        };
        let (group, address) = ("vip".parse().expect("a name"), [192, 0, 2, 10].into());
        let message = Message { group, address, claim };
        let bytes = b"\x01\x03vip\x00\xc0\0\x02\x0a\xac\x02\x07\x01\xc8\x03\x02\0\0\0\0\xff\0";
        assert_eq!(message.encode(), bytes);
        let address = "2001:db8::1".parse().expect("an address");
        let claim = Claim { stance: Stance::Standby, usable: false, hears: true, ..claim };
        let message = Message { address, claim, ..message };
        let address = b"\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01";
        let rest = b"\xac\x02\x07\0\xc8\0\x02\0\0\0\0\xff\x01";
        assert_eq!(message.encode(), [b"\x01\x03vip\x01", &address[..], rest].concat());
    }

    #[test]
    fn a_number_has_one_form() {
        let bytes = sample(Stance::Ready).encode();
        let at = bytes.len() - 8;
        assert_eq!(bytes[at], 3);
        let longer = [&bytes[..at], &[0x83, 0], &bytes[at + 1..]].concat();
        assert_eq!(Message::decode(&longer), Err(BadMessage::Malformed));
    }

    #[test]
    fn a_later_version_may_add_fields_and_is_named_when_it_is_another() {
        let mut bytes = sample(Stance::Holding).encode();
        bytes.extend([9; 40]);
        assert_eq!(Message::decode(&bytes), Ok(sample(Stance::Holding)));
        bytes[0] = 2;
        assert_eq!(Message::decode(&bytes), Err(BadMessage::Version(2)));
        bytes[0] = VERSION;
        bytes.resize(MAX_BYTES + 1, 0);
        assert_eq!(Message::decode(&bytes), Err(BadMessage::Malformed));
    }

    #[test]
    fn the_hardware_address_is_that_of_a_station() {
        let mut message = sample(Stance::Holding);
        message.claim.hardware = Hardware::BROADCAST;
        assert_eq!(Message::decode(&message.encode()), Err(BadMessage::Malformed));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_value(bytes in proptest::collection::vec(any::<u8>(), 0..160)) {
            let _ = Message::decode(&bytes);
            let _ = Message::decode(&[&[VERSION], &bytes[..]].concat());
        }
    }
}
