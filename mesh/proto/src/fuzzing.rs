//! Bodies of the fuzz targets that need private parts; only with the feature `fuzzing`.
//!
//! Each takes arbitrary bytes and panics when a property does not hold.

use std::net::Ipv6Addr;

use meshport_config::fuzzing::Script;

use crate::admission::{Control, MAX_MESSAGE};
use crate::inner::{self, Flow, Packet};
use crate::ports;

pub use crate::core::fuzzing::outer;

/// An inner packet, compared with a second, simpler reading of the format; and a control message of
/// admission. What is read is written again and reads the same.
pub fn inner_packet(data: &[u8]) {
    let mut script = Script::new(data);
    match script.byte() % 4 {
        0 => control(script.all()),
        1 => any_packet(script.all()),
        // Valid headers around the bytes, and then one changed byte: tests the code behind the
        // checksums.
        kind => {
            let (at, with) = (script.below(usize::from(u16::MAX)), script.byte());
            let flow = Flow {
                source: address(script.byte()),
                destination: address(script.byte()),
                source_port: script.short(),
                destination_port: ports::GOSSIP,
            };
            let payload = script.all();
            let mut packet = match kind {
                2 => vec![0; inner::UDP_OVERHEAD + payload.len()],
                _ => inner::echo_request(&flow.source, &flow.destination, u32::from(with)),
            };
            if kind == 2 {
                inner::write_udp(&flow, payload, &mut packet);
                let Ok(Packet::Udp(udp)) = inner::parse(&packet) else { panic!("unreadable") };
                assert!(udp.checksum_ok() && udp.flow == flow && udp.payload == payload);
            }
            any_packet(&packet);
            let length = packet.len();
            packet[at % length] ^= with;
            any_packet(&packet);
        }
    }
}

fn address(last: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 1, 2, 3, 0, 0, 0, u16::from(last))
}

fn any_packet(packet: &[u8]) {
    let sums_up = plain_sum(packet);
    match inner::parse(packet) {
        Ok(Packet::Udp(udp)) => {
            let right = sums_up.expect("it has a body");
            let zero = packet[46..48] == [0, 0];
            // The checksum covers UDP's own length, which may be less.
            if usize::from(u16::from_be_bytes([packet[4], packet[5]])) == udp.payload.len() + 8 {
                assert_eq!(udp.checksum_ok(), right && !zero);
            }
            let mut again = vec![0; inner::UDP_OVERHEAD + udp.payload.len()];
            inner::write_udp(&udp.flow, udp.payload, &mut again);
            let Ok(Packet::Udp(read)) = inner::parse(&again) else { panic!("unreadable") };
            assert!(read.checksum_ok() && read.flow == udp.flow && read.payload == udp.payload);
        }
        Ok(Packet::EchoRequest(echo)) => {
            assert_eq!(sums_up, Some(true));
            let reply = echo.reply();
            let Ok(Packet::EchoReply(back)) = inner::parse(&reply) else { panic!("no reply") };
            assert_eq!(back.token(), echo.token());
            assert_eq!((back.source, back.destination), (echo.destination, echo.source));
        }
        Ok(Packet::EchoReply(_)) => assert_eq!(sums_up, Some(true)),
        Ok(Packet::Fragment(fragment)) => {
            let mut again = vec![0; packet.len()];
            let length = inner::write_fragment(&fragment, &mut again);
            assert_eq!(inner::parse(&again[..length]), Ok(Packet::Fragment(fragment)));
        }
        Err(_) => {}
    }
}

/// Whether the checksum of an IPv6 packet's body is right, byte pair by byte pair (RFC 1071);
/// none when the body is not whole.
fn plain_sum(packet: &[u8]) -> Option<bool> {
    let length = usize::from(u16::from_be_bytes([*packet.get(4)?, *packet.get(5)?]));
    let body = packet.get(40..40 + length)?;
    let (high, low) = (length >> 16, length & 0xffff);
    let pseudo = [high, low, usize::from(packet[6])];
    let pairs = packet[8..40].chunks(2).chain(body.chunks(2));
    let word =
        |pair: &[u8]| usize::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, usize::from);
    let mut sum = pseudo.into_iter().chain(pairs.map(word)).sum::<usize>();
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    Some(sum == 0xffff)
}

fn control(bytes: &[u8]) {
    let Some(message) = Control::decode(bytes) else { return };
    assert!(bytes.len() <= MAX_MESSAGE);
    let again = message.encode();
    assert_eq!(Control::decode(&again), Some(message));
}
