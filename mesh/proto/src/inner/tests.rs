use super::*;
use proptest::prelude::*;

const A: Ipv6Addr = Ipv6Addr::new(0xfd00, 1, 2, 3, 4, 5, 6, 7);
const B: Ipv6Addr = Ipv6Addr::new(0xfd00, 1, 2, 8, 9, 10, 11, 12);

fn flow() -> Flow {
    Flow { source: A, destination: B, source_port: 7400, destination_port: 7401 }
}

fn udp(payload: &[u8]) -> Vec<u8> {
    let mut out = vec![0xaa; payload.len() + UDP_OVERHEAD];
    let length = write_udp(&flow(), payload, &mut out);
    assert_eq!(length, out.len());
    out
}

/// An echo request built by hand, with the checksum computed the textbook way.
fn echo(data: &[u8]) -> Vec<u8> {
    let mut message = vec![ECHO_REQUEST, 0, 0, 0, 0x12, 0x34, 0, 7];
    message.extend_from_slice(data);
    let sum = textbook(PROTOCOL_ICMPV6, &message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut packet = vec![0; IPV6_HEADER];
    write_ipv6(&mut packet, PROTOCOL_ICMPV6, message.len(), &A, &B);
    packet.extend_from_slice(&message);
    packet
}

/// RFC 1071 in its plainest form: big-endian 16-bit words, end-around carry.
fn textbook(protocol: u8, segment: &[u8]) -> u16 {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&A.octets());
    bytes.extend_from_slice(&B.octets());
    bytes.extend_from_slice(&u32::try_from(segment.len()).unwrap().to_be_bytes());
    bytes.extend_from_slice(&[0, 0, 0, protocol]);
    bytes.extend_from_slice(segment);
    if bytes.len() % 2 == 1 {
        bytes.push(0);
    }
    let mut sum = 0u32;
    for word in bytes.chunks(2) {
        sum += u32::from(u16::from_be_bytes([word[0], word[1]]));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap()
}

#[test]
fn udp_known_bytes() {
    let packet = udp(b"hi");
    assert_eq!(packet[..8], [0x60, 0, 0, 0, 0, 10, 17, 64]);
    assert_eq!(packet[8..24], A.octets());
    assert_eq!(packet[24..40], B.octets());
    assert_eq!(packet[40..46], [0x1c, 0xe8, 0x1c, 0xe9, 0, 10]);
    let mut zeroed = packet[40..].to_vec();
    zeroed[6..8].fill(0);
    assert_eq!(packet[46..48], textbook(PROTOCOL_UDP, &zeroed).to_be_bytes());
}

#[test]
fn echo_is_answered_with_addresses_exchanged() {
    let request = echo(b"abcdefg");
    let Packet::EchoRequest(parsed) = parse(&request).unwrap() else { panic!("not an echo") };
    let reply = parsed.reply();
    assert_eq!(reply[8..24], B.octets());
    assert_eq!(reply[24..40], A.octets());
    assert_eq!(reply[40], ECHO_REPLY);
    assert_eq!(reply[44..], request[44..]);
    assert_eq!(checksum(&B, &A, PROTOCOL_ICMPV6, &reply[40..]), 0);
    let Packet::EchoReply(answer) = parse(&reply).unwrap() else { panic!("not a reply") };
    assert_eq!(answer.token(), 0x1234_0007);
}

#[test]
fn an_own_request_is_like_any_other() {
    let request = echo_request(&A, &B, 0x1234_0007);
    assert_eq!(request, echo(b""));
    let mut other = request.clone();
    other[40] = 1;
    assert_eq!(parse(&other), Err(InnerError::Unsupported));
    assert_eq!(parse(&request[..44]), Err(InnerError::Malformed));
}

#[test]
fn wrong_checksums_are_noticed() {
    let mut request = echo(b"x");
    request[47] ^= 1;
    assert_eq!(parse(&request), Err(InnerError::Checksum));
    let mut packet = udp(b"payload");
    packet[50] ^= 0x40;
    let Packet::Udp(parsed) = parse(&packet).unwrap() else { panic!("not UDP") };
    assert!(!parsed.checksum_ok());
    let mut zero = udp(b"payload");
    zero[46..48].fill(0);
    let Packet::Udp(parsed) = parse(&zero).unwrap() else { panic!("not UDP") };
    assert!(!parsed.checksum_ok());
}

#[test]
fn other_protocols_and_versions_are_refused() {
    let mut packet = udp(b"payload");
    packet[6] = 6;
    assert_eq!(parse(&packet), Err(InnerError::Unsupported));
    packet[0] = 0x45;
    assert_eq!(parse(&packet), Err(InnerError::Malformed));
    assert_eq!(parse(&[]), Err(InnerError::Malformed));
}

#[test]
fn padding_after_the_packet_is_ignored() {
    let mut packet = udp(b"payload");
    packet.extend_from_slice(&[0; 15]);
    let Packet::Udp(parsed) = parse(&packet).unwrap() else { panic!("not UDP") };
    assert_eq!(parsed.payload, b"payload");
    assert!(parsed.checksum_ok());
}

proptest! {
    #[test]
    fn any_payload_comes_back(payload in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let packet = udp(&payload);
        let Packet::Udp(parsed) = parse(&packet).unwrap() else { panic!("not UDP") };
        prop_assert_eq!(parsed.flow, flow());
        prop_assert_eq!(parsed.payload, &payload[..]);
        prop_assert!(parsed.checksum_ok());
        let mut zeroed = packet[40..].to_vec();
        zeroed[6..8].fill(0);
        let expected = match textbook(PROTOCOL_UDP, &zeroed) { 0 => u16::MAX, sum => sum };
        prop_assert_eq!(&packet[46..48], &expected.to_be_bytes()[..]);
    }

    #[test]
    fn any_cut_is_refused(
        payload in proptest::collection::vec(any::<u8>(), 0..300), cut in 0usize..348,
    ) {
        let packet = udp(&payload);
        prop_assume!(cut < packet.len());
        prop_assert_eq!(parse(&packet[..cut]), Err(InnerError::Malformed));
    }
}
