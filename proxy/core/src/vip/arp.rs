//! ARP on Ethernet (RFC 826, RFC 5227).

use std::net::{IpAddr, Ipv4Addr};

use super::frame::{Frame, Hardware, Heard};

/// An Ethernet header and an ARP packet for IPv4, in bytes.
pub const FRAME_BYTES: usize = 42;
/// `EtherType` ARP; hardware type Ethernet, protocol IPv4, their address lengths.
const ETHER_TYPE: [u8; 2] = [0x08, 0x06];
const FORMAT: [u8; 6] = [0, 1, 0x08, 0x00, 6, 4];
/// Operations.
const REQUEST: [u8; 2] = [0, 1];
const REPLY: [u8; 2] = [0, 2];

/// Encodes `frame` about `address`, sent by `own`; `None` for an answer to a station of the other
/// family.
pub fn encode(frame: Frame, address: Ipv4Addr, own: Hardware) -> Option<[u8; FRAME_BYTES]> {
    let nowhere = Hardware([0; 6]);
    let (to, operation, sender, target_hardware, target) = match frame {
        Frame::Probe => (Hardware::BROADCAST, REQUEST, Ipv4Addr::UNSPECIFIED, nowhere, address),
        Frame::Announce | Frame::Cede(_) => {
            (Hardware::BROADCAST, REQUEST, address, nowhere, address)
        }
        Frame::Refresh => (Hardware::BROADCAST, REPLY, address, Hardware::BROADCAST, address),
        Frame::Answer { hardware, ip: IpAddr::V4(ip) } => (hardware, REPLY, address, hardware, ip),
        Frame::Answer { .. } => return None,
    };
    let subject = if let Frame::Cede(other) = frame { other } else { own };
    let mut bytes = [0; FRAME_BYTES];
    bytes[..6].copy_from_slice(&to.0);
    bytes[6..12].copy_from_slice(&own.0);
    bytes[12..14].copy_from_slice(&ETHER_TYPE);
    bytes[14..20].copy_from_slice(&FORMAT);
    bytes[20..22].copy_from_slice(&operation);
    bytes[22..28].copy_from_slice(&subject.0);
    bytes[28..32].copy_from_slice(&sender.octets());
    bytes[32..38].copy_from_slice(&target_hardware.0);
    bytes[38..].copy_from_slice(&target.octets());
    Some(bytes)
}

/// Parses a received frame about `address`; `None` if it is about something else or malformed.
pub fn decode(bytes: &[u8], address: Ipv4Addr) -> Option<Heard> {
    // Frames are padded to Ethernet's minimum length.
    let bytes = bytes.first_chunk::<FRAME_BYTES>()?;
    if bytes[12..14] != ETHER_TYPE || bytes[14..20] != FORMAT {
        return None;
    }
    let operation = [bytes[20], bytes[21]];
    if operation != REQUEST && operation != REPLY {
        return None;
    }
    let hardware = Hardware(*bytes[22..].first_chunk()?);
    let sender = Ipv4Addr::from(*bytes[28..].first_chunk::<4>()?);
    let target = Ipv4Addr::from(*bytes[38..].first_chunk::<4>()?);
    if !hardware.is_station() {
        return None;
    }
    if sender == address {
        return Some(Heard::Claimed(hardware));
    }
    if operation != REQUEST || target != address {
        return None;
    }
    Some(match sender {
        Ipv4Addr::UNSPECIFIED => Heard::Probed(hardware),
        ip => Heard::Asked { hardware, ip: ip.into() },
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 10);
    const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 77);
    const OWN: Hardware = Hardware([2, 0, 0, 0, 0, 1]);
    const OTHER: Hardware = Hardware([2, 0, 0, 0, 0, 2]);

    /// A request of `CLIENT` in the bytes of RFC 826.
    fn question() -> Vec<u8> {
        let mut bytes = vec![0xff; 6];
        bytes.extend([2, 0, 0, 0, 0, 2, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 2]);
        bytes.extend([192, 0, 2, 77, 0, 0, 0, 0, 0, 0, 192, 0, 2, 10]);
        bytes
    }

    #[test]
    fn a_question_is_read_padded_or_not() {
        let asked = Some(Heard::Asked { hardware: OTHER, ip: CLIENT.into() });
        let mut bytes = question();
        assert_eq!(decode(&bytes, ADDRESS), asked);
        bytes.resize(60, 0);
        assert_eq!(decode(&bytes, ADDRESS), asked);
        assert_eq!(decode(&bytes, CLIENT), Some(Heard::Claimed(OTHER)));
        assert_eq!(decode(&bytes, Ipv4Addr::new(192, 0, 2, 11)), None);
    }

    #[test]
    fn an_answer_has_the_bytes_of_the_rfc() {
        let bytes = encode(Frame::Answer { hardware: OTHER, ip: CLIENT.into() }, ADDRESS, OWN)
            .expect("bytes");
        let mut expected = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 6];
        expected.extend([0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 0, 1, 192, 0, 2, 10]);
        expected.extend([2, 0, 0, 0, 0, 2, 192, 0, 2, 77]);
        assert_eq!(bytes.as_slice(), expected);
    }

    #[test]
    fn frames_are_read_as_what_they_are() {
        let read = |frame| decode(&encode(frame, ADDRESS, OWN)?, ADDRESS);
        assert_eq!(read(Frame::Probe), Some(Heard::Probed(OWN)));
        assert_eq!(read(Frame::Announce), Some(Heard::Claimed(OWN)));
        assert_eq!(read(Frame::Refresh), Some(Heard::Claimed(OWN)));
        let answer = Frame::Answer { hardware: OTHER, ip: CLIENT.into() };
        assert_eq!(read(answer), Some(Heard::Claimed(OWN)));
        assert_eq!(read(Frame::Cede(OTHER)), Some(Heard::Claimed(OTHER)));
        // A switch learns this station's port from the header.
        assert_eq!(encode(Frame::Cede(OTHER), ADDRESS, OWN).expect("bytes")[6..12], OWN.0);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..80),
        ) {
            let _ = decode(&bytes, ADDRESS);
        }

        #[test]
        fn one_wrong_byte_never_gives_a_group_as_a_station(at in 0..FRAME_BYTES, byte: u8) {
            let mut bytes = question();
            bytes[at] = byte;
            if let Some(Heard::Asked { hardware, .. } | Heard::Probed(hardware)
                | Heard::Claimed(hardware)) = decode(&bytes, ADDRESS)
            {
                prop_assert!(hardware.is_station());
                prop_assert_eq!(&bytes[12..20], &question()[12..20]);
            }
        }

        #[test]
        fn less_than_a_frame_is_nothing(length in 0..FRAME_BYTES) {
            prop_assert_eq!(decode(&question()[..length], ADDRESS), None);
        }
    }
}
