//! A claim on its way between two nodes of a group.
//!
//! A datagram on the inner port [`PORT`]: version (1 byte, [`VERSION`]), body (postcard). Bytes
//! after the known fields are ignored, so that a later version may add fields at the end; nothing
//! else of a version ever changes. A version without claims drops the datagram.

use std::net::IpAddr;

use meshport_config::GroupName;
use serde::{Deserialize, Serialize};

use super::claim::{Claim, Stance};
use super::frame::Hardware;

/// The UDP port inside the tunnel.
pub const PORT: u16 = 7403;
/// Begins a datagram.
pub const VERSION: u8 = 1;
/// The longest datagram accepted, in bytes: a group's name, an address and a claim take 128 at
/// most; the rest is for later versions.
pub const MAX_BYTES: usize = 512;

/// A claim and its address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The group that it is for.
    pub group: GroupName,
    /// The address.
    pub address: IpAddr,
    /// The claim.
    pub claim: Claim,
}

/// The wire format of a [`Message`], in order of the fields.
#[derive(Serialize, Deserialize)]
struct Body {
    group: GroupName,
    address: IpAddr,
    incarnation: u64,
    sequence: u64,
    usable: bool,
    priority: u8,
    stance: u8,
    hardware: [u8; 6],
    hears: bool,
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
        let Self { group, address, claim } = self;
        let Claim { incarnation, sequence, usable, priority, stance, hardware, hears } = *claim;
        let stance = match stance {
            Stance::Standby => 0,
            Stance::Holding => 1,
            Stance::Releasing => 2,
            Stance::Ready => 3,
        };
        let body = Body {
            group: group.clone(),
            address: *address,
            incarnation,
            sequence,
            usable,
            priority,
            stance,
            hardware: hardware.0,
            hears,
        };
        let body = postcard::to_allocvec(&body).expect("plain data serialises");
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
        let (body, _later) =
            postcard::take_from_bytes::<Body>(body).map_err(|_| BadMessage::Malformed)?;
        let Body {
            group,
            address,
            incarnation,
            sequence,
            usable,
            priority,
            stance,
            hardware,
            hears,
        } = body;
        let stance = match stance {
            0 => Stance::Standby,
            1 => Stance::Holding,
            2 => Stance::Releasing,
            3 => Stance::Ready,
            _ => return Err(BadMessage::Malformed),
        };
        let hardware = Hardware(hardware);
        if !hardware.is_station() {
            return Err(BadMessage::Malformed);
        }
        let claim = Claim { incarnation, sequence, usable, priority, stance, hardware, hears };
        Ok(Self { group, address, claim })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
