use proptest::prelude::*;

use super::*;

#[test]
fn the_three_forms_parse() {
    let v4: Endpoint = "203.0.113.5:51820".parse().unwrap();
    assert_eq!(v4.socket_addr(), Some("203.0.113.5:51820".parse().unwrap()));
    let v6: Endpoint = "[2001:DB8::1]:51820".parse().unwrap();
    assert_eq!(v6.to_string(), "[2001:db8::1]:51820");
    let name: Endpoint = "Seed.Example.com:1".parse().unwrap();
    assert_eq!(name.host(), &Host::Name("seed.example.com".to_owned()));
    assert_eq!((name.port(), name.socket_addr()), (1, None));
}

#[test]
fn everything_else_is_refused() {
    let long = format!("{}:1", ["a"; 128].join("."));
    for text in [
        "",
        ":",
        "a",
        "a:",
        ":80",
        "a:0",
        "a:65536",
        "a:+80",
        "a:080000",
        "1.2.3.4",
        "1.2.3:80",
        "1.2.3.256:80",
        "::1:80",
        "[::1]",
        "[::1:80",
        "[fe80::1%eth0]:80",
        "a b:80",
        "-a.com:80",
        "a..b:80",
        &long,
    ] {
        let error = text.parse::<Endpoint>().unwrap_err();
        assert!(error.to_string().contains("203.0.113.5:51820"), "{text}: {error}");
    }
}

#[test]
fn construction_checks_as_parsing_does() {
    assert!(Endpoint::new(Host::Name("a b".to_owned()), 1).is_err());
    assert!(Endpoint::new(Host::Ip(Ipv6Addr::LOCALHOST.into()), 0).is_err());
    let endpoint = Endpoint::try_from(SocketAddr::from(([127, 0, 0, 1], 80))).unwrap();
    assert_eq!(endpoint.to_string(), "127.0.0.1:80");
}

proptest! {
    #[test]
    fn addresses_round_trip(ip: IpAddr, port in 1_u16..) {
        let endpoint = Endpoint::new(Host::Ip(ip), port).unwrap();
        prop_assert_eq!(endpoint.to_string().parse(), Ok(endpoint.clone()));
        let bytes = postcard::to_stdvec(&endpoint).unwrap();
        prop_assert_eq!(postcard::from_bytes::<Endpoint>(&bytes).unwrap(), endpoint);
    }

    #[test]
    fn what_parses_prints_as_itself(text in "[a-z0-9.:\\[\\]-]{0,40}") {
        if let Ok(endpoint) = text.parse::<Endpoint>() {
            prop_assert_eq!(endpoint.to_string().parse(), Ok(endpoint));
        }
    }
}
