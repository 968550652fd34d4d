use proptest::prelude::*;

use super::*;

fn at(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn ends(client: &str, local: &str) -> Ends {
    Ends { client: at(client), local: at(local) }
}

fn binary(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(rest.len()).expect("short").to_be_bytes();
    [&SIGNATURE[..], &[command, family, length[0], length[1]], rest].concat()
}

#[track_caller]
fn whole(bytes: &[u8]) -> Header {
    match read(bytes) {
        Reading::Whole(header) => header,
        other => panic!("{other:?}"),
    }
}

#[test]
fn lines_are_read() {
    let line = b"PROXY TCP4 192.0.2.1 198.51.100.7 56324 443\r\n\x16\x03\x01";
    let expected = ends("192.0.2.1:56324", "198.51.100.7:443");
    assert_eq!(whole(line), Header { bytes: line.len() - 3, ends: Some(expected) });
    let line = b"PROXY TCP6 2001:db8::1 ::1 1 65535\r\n";
    assert_eq!(whole(line).ends, Some(ends("[2001:db8::1]:1", "[::1]:65535")));
    let mapped = b"PROXY TCP6 ::ffff:10.0.0.1 ::ffff:10.0.0.2 1 2\r\n";
    assert_eq!(whole(mapped).ends, Some(ends("10.0.0.1:1", "10.0.0.2:2")));
    for line in [&b"PROXY UNKNOWN\r\n"[..], b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n"] {
        assert_eq!(whole(line), Header { bytes: line.len(), ends: None });
    }
}

#[test]
fn other_lines_are_wrong() {
    for line in [
        &b"PROXY TCP4 ::1 ::1 1 2\r\n"[..],
        b"PROXY TCP6 10.0.0.1 10.0.0.2 1 2\r\n",
        b"PROXY TCP4 10.0.0.1 10.0.0.2 1\r\n",
        b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2 3\r\n",
        b"PROXY TCP4 10.0.0.1 10.0.0.2 1 65536\r\n",
        b"PROXY TCP4 10.0.0.1 10.0.0.2 +1 2\r\n",
        b"PROXY TCP4 10.0.0.1 10.0.0.2  1\r\n",
        b"PROXY TCP4  10.0.0.1 10.0.0.2 1 2\r\n",
        b"PROXY \r\n",
        b"PROXY UNKNOWNX\r\n",
        b"PROXY UDP4 10.0.0.1 10.0.0.2 1 2\r\n",
        b"PROXY TCP4 10.0.0.1 10.0.0.2 1 \xff\r\n",
        b"proxy TCP4 10.0.0.1 10.0.0.2 1 2\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02",
        b"PROXX",
    ] {
        assert!(matches!(read(line), Reading::Wrong(_)), "{}", line.escape_ascii());
    }
    let endless = [&b"PROXY UNKNOWN "[..], &[b'a'; 200]].concat();
    assert_eq!(read(&endless[..MAX_LINE_BYTES - 1]), Reading::Partial);
    assert!(matches!(read(&endless[..MAX_LINE_BYTES]), Reading::Wrong(_)));
}

#[test]
fn binary_headers_are_read() {
    let addresses = [192, 0, 2, 1, 198, 51, 100, 7, 0xdc, 4, 1, 0xbb];
    let expected = Some(ends("192.0.2.1:56324", "198.51.100.7:443"));
    let plain = binary(0x21, 0x11, &addresses);
    assert_eq!(whole(&plain), Header { bytes: 28, ends: expected });
    let with_more = binary(0x21, 0x11, &[&addresses[..], &[4, 0, 2, 9, 9]].concat());
    assert_eq!(whole(&with_more), Header { bytes: 33, ends: expected });
    // The balancer's own health check, and families without an IP address.
    for none in [binary(0x20, 0x11, &addresses), binary(0x20, 0, &[]), binary(0x21, 0, &[1, 2])] {
        assert_eq!(whole(&none), Header { bytes: none.len(), ends: None });
    }
    assert_eq!(whole(&binary(0x21, 0x31, &[0; 216])).ends, None);
}

#[test]
fn other_binary_headers_are_wrong() {
    for wrong in [
        binary(0x11, 0x11, &[0; 12]),
        binary(0x31, 0x11, &[0; 12]),
        binary(0x22, 0x11, &[0; 12]),
        binary(0x21, 0x11, &[0; 11]),
        binary(0x21, 0x21, &[0; 35]),
        binary(0x21, 0x13, &[0; 36]),
        binary(0x21, 0x41, &[0; 36]),
        binary(0x21, 0x11, &[0; MAX_HEADER_BYTES]),
    ] {
        assert!(matches!(read(&wrong), Reading::Wrong(_)), "{wrong:?}");
    }
    // Its length alone decides.
    let long = [&SIGNATURE[..], &[0x21, 0x11, 0xff, 0xff]].concat();
    assert!(matches!(read(&long), Reading::Wrong(_)));
}

#[test]
fn ends_of_two_families_have_no_header_of_either() {
    let mixed = ends("192.0.2.1:1", "[2001:db8::1]:2");
    for version in [ProxyHeader::V1, ProxyHeader::V2] {
        assert_eq!(whole(&write(version, mixed)).ends, None);
        assert!(write(ProxyHeader::Off, mixed).is_empty());
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read_and_no_beginning_of_it_is_whole(
        client in any::<SocketAddr>(), local in any::<SocketAddr>(), rest in any::<[u8; 8]>(),
    ) {
        let canonical = |addr: SocketAddr| SocketAddr::new(addr.ip().to_canonical(), addr.port());
        let ends = Ends { client: canonical(client), local: canonical(local) };
        let same = ends.client.is_ipv4() == ends.local.is_ipv4();
        for version in [ProxyHeader::V1, ProxyHeader::V2] {
            let bytes = write(version, Ends { client, local });
            let header = Header { bytes: bytes.len(), ends: same.then_some(ends) };
            prop_assert_eq!(read(&[&bytes[..], &rest].concat()), Reading::Whole(header));
            for end in 0..bytes.len() {
                prop_assert_eq!(read(&bytes[..end]), Reading::Partial);
            }
        }
    }

    /// More bytes never change what a header was, and a wrong beginning stays wrong.
    #[test]
    fn any_bytes_have_one_reading(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        for begin in [&b""[..], WORD, b"PROXY TCP4 1", &SIGNATURE] {
            let all = [begin, &bytes].concat();
            let mut last = Reading::Partial;
            for end in 0..=all.len() {
                let reading = read(&all[..end]);
                prop_assert!(last == Reading::Partial || last == reading);
                if let Reading::Whole(header) = reading {
                    prop_assert!(header.bytes <= end);
                }
                last = reading;
            }
        }
    }
}
