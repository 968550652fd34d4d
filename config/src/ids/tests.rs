use proptest::prelude::*;

use super::*;

#[test]
fn key_text_is_that_of_wg() {
    let node = NodeId::from_bytes([7; 32]);
    let text = node.to_string();
    assert_eq!(text, "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=");
    assert_eq!(text.parse(), Ok(node));
    assert_eq!(node.short(), "BwcHBwcH");
    assert_eq!(format!("{node:?}"), "NodeId(BwcHBwcH)");
}

#[test]
fn wrong_key_texts_are_refused_and_quoted() {
    let not_canonical = "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwd=";
    let short = "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBw==";
    for text in ["", "abc", not_canonical, short, &"A".repeat(44), &"=".repeat(44)] {
        let error = text.parse::<NodeId>().unwrap_err();
        assert!(matches!(error, TextError::Form { what: "a node id", .. }), "{text}: {error}");
    }
    let error = "a\u{1b}[31m".repeat(50).parse::<MeshId>().unwrap_err().to_string();
    assert!(!error.contains('\u{1b}') && error.contains("..."), "{error}");
}

#[test]
fn names_follow_their_rules() {
    for name in ["a", "fra", "fra-1", "0", &"x".repeat(63)] {
        assert_eq!(name.parse::<SiteName>().unwrap().as_str(), name);
        assert_eq!(name.parse::<ServiceName>().unwrap().to_string(), name);
    }
    for name in ["", "-a", "a-", "A", "a.b", "a_b", "ä", "a b", &"x".repeat(64)] {
        assert!(name.parse::<SiteName>().is_err(), "{name}");
        assert!(name.parse::<ServiceName>().is_err(), "{name}");
    }
    assert!("worker-7.fra".parse::<NodeName>().is_ok());
    let too_long = format!("{}.{}", "x".repeat(40), "y".repeat(23));
    for name in ["", ".", "a.", ".a", "a..b", "a.-b", "Worker", &too_long] {
        assert!(name.parse::<NodeName>().is_err(), "{name}");
    }
}

#[test]
fn a_misspelt_service_differs_from_another_name() {
    let misspelt = |text: &str| text.parse::<ServiceName>().expect("a name").misspelt();
    for text in ["kube-api-server", "kubeapiserver", "kube-apisrever", "kube-apiservre"] {
        assert_eq!(misspelt(text), Some("kube-apiserver"), "{text}");
    }
    assert_eq!(misspelt("konectivity"), Some("konnectivity"));
    for text in ["kube-apiserver", "kube-apiserver-2", "b-kube-apiserver", "registry", "etcd"] {
        assert_eq!(misspelt(text), None, "{text}");
    }
}

#[test]
fn names_are_checked_when_deserialised() {
    assert!(serde_error::<SiteName>("\"Fra\""));
    assert!(serde_error::<NodeName>("\"a..b\""));
    let bytes = postcard::to_stdvec("UPPER").unwrap();
    assert!(postcard::from_bytes::<ServiceName>(&bytes).is_err());
}

fn serde_error<T: serde::de::DeserializeOwned>(text: &str) -> bool {
    let value: toml::Value =
        toml::from_str::<toml::Table>(&format!("v = {text}")).unwrap()["v"].clone();
    value.try_into::<T>().is_err()
}

#[test]
fn roles_parse_and_print() {
    let roles: Roles = "operator, node,origin:kube-apiserver,node".parse().unwrap();
    assert_eq!(roles.to_string(), "node,origin:kube-apiserver,operator");
    assert!(roles.contains(&Role::Operator) && !roles.contains(&Role::Relay));
    assert!(roles.may_offer(&ServiceName::kube_apiserver()));
    assert!(!Roles::from(Role::Node).may_offer(&ServiceName::kube_apiserver()));
    assert!(Roles::from(Role::Node).is_subset(&roles) && !roles.is_subset(&Role::Node.into()));
    for text in ["", "nodes", "origin:", "origin:A", "node,,relay"] {
        assert!(text.parse::<Roles>().is_err(), "{text}");
    }
}

/// A role of a later version is read, kept and written unchanged, and permits nothing; in text from
/// a user it is an error.
#[test]
fn a_role_of_a_later_version_is_kept() {
    let other = |name: &str| Role::Other(name.parse().unwrap());
    let roles = Roles::new([other("tailor"), Role::Operator, other("baker:web"), Role::Node]);
    let roles = roles.unwrap();
    assert_eq!(roles.to_string(), "node,operator,baker:web,tailor");
    assert!(!roles.is_leaf() && !roles.may_offer(&"web".parse().unwrap()));
    let bytes = postcard::to_stdvec(&roles).unwrap();
    // Two roles by their numbers, then two by the number of named ones, a length and the name.
    assert_eq!(bytes, b"\x04\x00\x03\x04\x09baker:web\x04\x06tailor");
    assert_eq!(postcard::from_bytes::<Roles>(&bytes).unwrap(), roles);
    let text = toml::Value::try_from(&roles).unwrap();
    assert_eq!(text.try_into::<Roles>().unwrap(), roles);
    assert!("node,tailor".parse::<Roles>().is_err());
    assert!(Role::read("Tailor").is_err() && Role::read("origin:A").is_err());
}

/// Each role has exactly one encoding, or a set would have several.
#[test]
fn a_role_with_a_number_does_not_go_by_its_name() {
    for name in ["node", "relay", "operator", "origin:web"] {
        let bytes = postcard::to_stdvec(&(4_u8, name)).unwrap();
        assert!(postcard::from_bytes::<Role>(&bytes).is_err(), "{name}");
    }
    for wrong in ["", "a:b:c", "A", "a b", "x:"] {
        let bytes = postcard::to_stdvec(&(4_u8, wrong)).unwrap();
        assert!(postcard::from_bytes::<Role>(&bytes).is_err(), "{wrong}");
    }
}

#[test]
fn roles_are_bounded() {
    let role = |n: usize| Role::Origin(format!("s{n}").parse().unwrap());
    assert!(Roles::new((0..MAX_ROLES).map(role)).is_ok());
    let error = Roles::new((0..=MAX_ROLES).map(role)).unwrap_err();
    assert_eq!(error, TextError::TooMany { what: "roles", found: 17, max: 16 });
    let many: Vec<Role> = (0..=MAX_ROLES).map(role).collect();
    assert!(postcard::from_bytes::<Roles>(&postcard::to_stdvec(&many).unwrap()).is_err());
    assert!(postcard::from_bytes::<Roles>(&[0]).is_err());
    assert_eq!(Roles::new([]), Err(TextError::Empty { what: "roles" }));
}

#[test]
fn wall_time_prints_as_utc() {
    for (seconds, text) in [
        (0, "1970-01-01T00:00:00Z"),
        (951_782_399, "2000-02-28T23:59:59Z"),
        (951_782_400, "2000-02-29T00:00:00Z"),
        (1_709_251_199, "2024-02-29T23:59:59Z"),
        (1_795_249_547, "2026-11-21T08:25:47Z"),
        (4_107_542_400, "2100-03-01T00:00:00Z"),
    ] {
        assert_eq!(UnixSeconds(seconds).to_string(), text);
    }
    assert!(!UnixSeconds(u64::MAX).to_string().is_empty());
}

#[test]
fn inner_addresses_are_unique_local_and_share_the_mesh_prefix() {
    let (mesh, other) = (MeshId::from_bytes([1; 32]), MeshId::from_bytes([2; 32]));
    let a = InnerAddr::derive(&mesh, &NodeId::from_bytes([3; 32]));
    let b = InnerAddr::derive(&mesh, &NodeId::from_bytes([4; 32]));
    let elsewhere = InnerAddr::derive(&other, &NodeId::from_bytes([3; 32]));
    assert_eq!(a.ip().octets()[0], 0xfd);
    assert_eq!(a.ip().octets()[..6], b.ip().octets()[..6]);
    assert_ne!(a.ip().octets()[6..], b.ip().octets()[6..]);
    assert_ne!(a.ip().octets()[..6], elsewhere.ip().octets()[..6]);
    assert_ne!(a.ip().octets()[6..], elsewhere.ip().octets()[6..]);
    // Every version has to compute the same address, or nodes cannot speak to each other.
    assert_eq!(a.to_string(), "fd2c:1cd6:2b13:d7e5:e3fa:6b23:6e46:1adb");
}

fn role() -> impl Strategy<Value = Role> {
    prop_oneof![
        Just(Role::Node),
        Just(Role::Relay),
        Just(Role::Operator),
        "[a-z0-9]{1,63}".prop_map(|name| Role::Origin(name.parse().unwrap())),
        "z[a-z0-9]{0,15}(:[a-z]{1,15})?".prop_map(|name| Role::Other(name.parse().unwrap())),
    ]
}

proptest! {
    #[test]
    fn keys_round_trip(bytes: [u8; 32]) {
        let (node, mesh) = (NodeId::from_bytes(bytes), MeshId::from_bytes(bytes));
        prop_assert_eq!(node.to_string().parse(), Ok(node));
        prop_assert_eq!(mesh.to_string().parse(), Ok(mesh));
        let encoded = postcard::to_stdvec(&node).unwrap();
        prop_assert_eq!(encoded.len(), 32);
        prop_assert_eq!(postcard::from_bytes::<NodeId>(&encoded).unwrap(), node);
    }

    #[test]
    fn roles_round_trip(list in proptest::collection::vec(role(), 1..=MAX_ROLES)) {
        let roles = Roles::new(list).unwrap();
        for role in &roles {
            prop_assert_eq!(&Role::read(&role.to_string()).unwrap(), role);
        }
        let encoded = postcard::to_stdvec(&roles).unwrap();
        prop_assert_eq!(postcard::from_bytes::<Roles>(&encoded).unwrap(), roles);
    }

    /// Versions that know different roles order a set in the same way.
    #[test]
    fn the_order_is_that_of_the_byte_form(list in proptest::collection::vec(role(), 2..6)) {
        let mut by_order = list.clone();
        by_order.sort();
        let number = |role: &Role| postcard::to_stdvec(role).unwrap()[0];
        prop_assert!(by_order.is_sorted_by_key(|it| (number(it), it.to_string())));
    }

    #[test]
    fn any_text_is_a_value_or_an_error(text in ".{0,80}") {
        if let Ok(name) = text.parse::<NodeName>() {
            prop_assert_eq!(name.as_str(), &text);
        }
        if let Ok(role) = text.parse::<Role>() {
            prop_assert_eq!(role.to_string(), text.clone());
        }
        if let Ok(node) = text.parse::<NodeId>() {
            prop_assert_eq!(node.to_string(), text);
        }
    }
}
