//! Neighbour discovery of IPv6 on Ethernet (RFC 4861, RFC 4862).

use std::net::{IpAddr, Ipv6Addr};

use super::frame::{Frame, Hardware, Heard};

/// Headers of Ethernet and IPv6, in bytes.
const HEADERS_BYTES: usize = 14 + 40;
/// A solicitation or advertisement without options, in bytes.
const MESSAGE_BYTES: usize = 24;
/// The option with a hardware address, in bytes.
const OPTION_BYTES: usize = 8;
const ETHER_TYPE: [u8; 2] = [0x86, 0xdd];
/// The next header of `ICMPv6`.
const ICMP: u8 = 58;
/// Packets with another value were routed (RFC 4861, 7.1).
const HOP_LIMIT: u8 = 255;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const SOURCE_OPTION: u8 = 1;
const TARGET_OPTION: u8 = 2;
/// Flags of an advertisement.
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// The solicited-node multicast address of `address` (RFC 4291, 2.7.1).
pub fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let group = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0).to_bits();
    Ipv6Addr::from_bits(group | (address.to_bits() & 0xff_ffff))
}

/// The hardware address of a group (RFC 2464, 7).
pub fn group_hardware(group: Ipv6Addr) -> Hardware {
    let [.., a, b, c, d] = group.octets();
    Hardware([0x33, 0x33, a, b, c, d])
}

/// Encodes `frame` about `address`, sent by `own`; `None` for an answer to a station of the other
/// family.
pub fn encode(frame: Frame, address: Ipv6Addr, own: Hardware) -> Option<Vec<u8>> {
    let (hardware, source, destination, flags) = match frame {
        Frame::Probe => {
            let group = solicited_node(address);
            (group_hardware(group), Ipv6Addr::UNSPECIFIED, group, None)
        }
        Frame::Announce | Frame::Refresh | Frame::Cede(_) => {
            (group_hardware(ALL_NODES), address, ALL_NODES, Some(OVERRIDE))
        }
        Frame::Answer { hardware, ip: IpAddr::V6(ip) } => {
            (hardware, address, ip, Some(SOLICITED | OVERRIDE))
        }
        Frame::Answer { .. } => return None,
    };
    let kind = if flags.is_some() { ADVERTISEMENT } else { SOLICITATION };
    let mut message = vec![kind, 0, 0, 0, flags.unwrap_or(0), 0, 0, 0];
    message.extend(address.octets());
    // A solicitation from no address must not have the option (RFC 4861, 4.3).
    if flags.is_some() {
        message.extend([TARGET_OPTION, 1]);
        message.extend(if let Frame::Cede(other) = frame { other.0 } else { own.0 });
    }
    let sum = !sum(source, destination, &message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let length = u16::try_from(message.len()).expect("it is shorter than its two parts");
    let mut bytes = Vec::with_capacity(HEADERS_BYTES + message.len());
    bytes.extend(hardware.0);
    bytes.extend(own.0);
    bytes.extend(ETHER_TYPE);
    bytes.extend([0x60, 0, 0, 0]);
    bytes.extend(length.to_be_bytes());
    bytes.extend([ICMP, HOP_LIMIT]);
    bytes.extend(source.octets());
    bytes.extend(destination.octets());
    bytes.extend(message);
    Some(bytes)
}

/// Parses a received frame about `address`; `None` if it is about something else or malformed.
pub fn decode(bytes: &[u8], address: Ipv6Addr) -> Option<Heard> {
    let (headers, rest) = bytes.split_first_chunk::<HEADERS_BYTES>()?;
    if headers[12..14] != ETHER_TYPE
        || headers[14] >> 4 != 6
        || headers[20..22] != [ICMP, HOP_LIMIT]
    {
        return None;
    }
    let length = usize::from(u16::from_be_bytes([headers[18], headers[19]]));
    let message = rest.get(..length)?;
    let source = Ipv6Addr::from(*headers[22..].first_chunk::<16>()?);
    let destination = Ipv6Addr::from(*headers[38..].first_chunk::<16>()?);
    let (fixed, options) = message.split_first_chunk::<MESSAGE_BYTES>()?;
    let target = Ipv6Addr::from(*fixed[8..].first_chunk::<16>()?);
    if target != address || fixed[1] != 0 || sum(source, destination, message) != 0xffff {
        return None;
    }
    let sender = Hardware(*headers[6..].first_chunk()?);
    let hardware = |kind| option(options, kind).map(|found| found.unwrap_or(sender));
    let (hardware, heard): (_, fn(Hardware, Ipv6Addr) -> _) = match fixed[0] {
        ADVERTISEMENT => (hardware(TARGET_OPTION)?, |hardware, _| Heard::Claimed(hardware)),
        SOLICITATION if source.is_unspecified() => (sender, |hardware, _| Heard::Probed(hardware)),
        SOLICITATION if source == address => (sender, |hardware, _| Heard::Claimed(hardware)),
        SOLICITATION if !source.is_multicast() => {
            (hardware(SOURCE_OPTION)?, |hardware, ip| Heard::Asked { hardware, ip: ip.into() })
        }
        _ => return None,
    };
    hardware.is_station().then(|| heard(hardware, source))
}

/// The hardware address in the options; the outer `None` if they are malformed.
fn option(mut options: &[u8], kind: u8) -> Option<Option<Hardware>> {
    while !options.is_empty() {
        let length = usize::from(*options.get(1)?) * OPTION_BYTES;
        let (found, rest) = options.split_at_checked(length).filter(|_| length > 0)?;
        if found[0] == kind {
            return Some(Some(Hardware(*found[2..].first_chunk()?)));
        }
        options = rest;
    }
    Some(None)
}

/// The sum of RFC 1071 over the pseudo header and the message: all ones if its checksum is right.
fn sum(source: Ipv6Addr, destination: Ipv6Addr, message: &[u8]) -> u16 {
    let words = |bytes: &[u8]| -> u64 {
        let word = |pair: &[u8]| {
            u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]))
        };
        bytes.chunks(2).map(word).sum()
    };
    let addresses = words(&source.octets()) + words(&destination.octets());
    let mut sum = addresses + message.len() as u64 + u64::from(ICMP) + words(message);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::try_from(sum).expect("it was folded to sixteen bits")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ADDRESS: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0x12, 0x3456);
    const CLIENT: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 7);
    const OWN: Hardware = Hardware([2, 0, 0, 0, 0, 1]);
    const OTHER: Hardware = Hardware([2, 0, 0, 0, 0, 2]);

    /// A solicitation of `CLIENT` with the option.
    fn question() -> Vec<u8> {
        let mut message = vec![SOLICITATION, 0, 0, 0, 0, 0, 0, 0];
        message.extend(ADDRESS.octets());
        message.extend([SOURCE_OPTION, 1, 2, 0, 0, 0, 0, 2]);
        let group = solicited_node(ADDRESS);
        let check = !sum(CLIENT, group, &message);
        message[2..4].copy_from_slice(&check.to_be_bytes());
        let mut bytes = vec![0x33, 0x33, 0xff, 0x12, 0x34, 0x56, 2, 0, 0, 0, 0, 2, 0x86, 0xdd];
        bytes.extend([0x60, 0, 0, 0, 0, 32, ICMP, HOP_LIMIT]);
        bytes.extend(CLIENT.octets());
        bytes.extend(group.octets());
        bytes.extend(message);
        bytes
    }

    #[test]
    fn the_sum_is_that_of_the_rfc() {
        // RFC 1071, 3: these words sum up to ddf2; the pseudo header adds the length and 58.
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        let none = Ipv6Addr::UNSPECIFIED;
        assert_eq!(sum(none, none, &bytes), 0xddf2 + 8 + 58);
    }

    #[test]
    fn the_group_has_the_last_three_bytes() {
        let group = solicited_node(ADDRESS);
        assert_eq!(group.to_string(), "ff02::1:ff12:3456");
        assert_eq!(group_hardware(group).to_string(), "33:33:ff:12:34:56");
    }

    #[test]
    fn frames_are_read_as_what_they_are() {
        let read = |frame| decode(&encode(frame, ADDRESS, OWN)?, ADDRESS);
        assert_eq!(read(Frame::Probe), Some(Heard::Probed(OWN)));
        assert_eq!(read(Frame::Announce), Some(Heard::Claimed(OWN)));
        let answer = Frame::Answer { hardware: OTHER, ip: CLIENT.into() };
        assert_eq!(read(answer), Some(Heard::Claimed(OWN)));
        assert_eq!(read(Frame::Cede(OTHER)), Some(Heard::Claimed(OTHER)));
        assert_eq!(encode(Frame::Cede(OTHER), ADDRESS, OWN).expect("bytes")[6..12], OWN.0);
        let asked = Some(Heard::Asked { hardware: OTHER, ip: CLIENT.into() });
        assert_eq!(decode(&question(), ADDRESS), asked);
        assert_eq!(decode(&question(), CLIENT), None);
    }

    #[test]
    fn what_was_routed_here_is_not_believed() {
        let mut bytes = question();
        bytes[21] = 254;
        assert_eq!(decode(&bytes, ADDRESS), None);
    }

    #[test]
    fn an_option_without_length_ends_the_reading() {
        assert_eq!(option(&[SOURCE_OPTION, 0, 0, 0, 0, 0, 0, 0], TARGET_OPTION), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..120),
            options in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            let _ = decode(&bytes, ADDRESS);
            let _ = option(&options, TARGET_OPTION);
        }

        #[test]
        fn a_wrong_byte_of_the_message_is_noticed(at in HEADERS_BYTES..86, by in 1..=255_u8) {
            let mut bytes = question();
            bytes[at] ^= by;
            prop_assert_eq!(decode(&bytes, ADDRESS), None);
        }

        #[test]
        fn less_than_a_frame_is_nothing(length in 0..86_usize) {
            prop_assert_eq!(decode(&question()[..length], ADDRESS), None);
        }
    }
}
