//! `[[virtual-address]]`.

use super::{good, only};
use crate::settings::{MAX_VIRTUAL_ADDRESSES, parse};

const PLAIN: &str = "[[virtual-address]]\nname = \"api\"\naddress = \"192.0.2.10\"\n\
                     interface = \"eth0\"\ngroup = \"rack-1\"\n";

#[test]
fn one_is_written_as_it_is_read() {
    let settings = good(&format!("{PLAIN}priority = 7\non-gain = \"a 'b'\"\n"));
    let address = &settings.virtual_addresses["api"];
    assert_eq!(address.address.to_string(), "192.0.2.10");
    assert_eq!((address.interface.as_str(), address.group.as_str()), ("eth0", "rack-1"));
    assert_eq!((address.service.as_str(), address.priority), ("kube-apiserver", 7));
    assert_eq!((address.on_gain.as_deref(), &address.on_loss), (Some("a 'b'"), &None));
    assert_eq!(parse(&settings.to_toml()).as_ref(), Ok(&settings));
    let value = toml::Value::try_from(&settings).unwrap();
    assert_eq!(value["virtual-address"][0]["group"].as_str(), Some("rack-1"));
}

#[test]
fn missing_or_wrong_values_are_reported_at_their_key() {
    for line in PLAIN.lines().skip(1) {
        let key = line.split(' ').next().unwrap();
        let path = if key == "name" { "NAME" } else { "api" };
        let without = PLAIN.replace(&format!("{line}\n"), "");
        assert_eq!(only(&without).key, format!("virtual-address.{path}.{key}"), "{without}");
        if key != "name" {
            let second = format!("{PLAIN}{without}");
            assert_eq!(only(&second).key, format!("virtual-address.api.{key}"), "{second}");
        }
    }
    let wrong = [
        ("192.0.2.10\"", "192.0.2.10/32\"", "address"),
        ("192.0.2.10", "127.0.0.9", "address"),
        ("192.0.2.10", "224.0.0.1", "address"),
        ("192.0.2.10", "fe80::1", "address"),
        ("192.0.2.10", "::ffff:192.0.2.10", "address"),
        ("eth0", "eth/0", "interface"),
        ("eth0", "an-interface-name", "interface"),
        ("rack-1", "Rack 1", "group"),
    ];
    for (good, bad, key) in wrong {
        let text = PLAIN.replace(good, bad);
        assert_eq!(only(&text).key, format!("virtual-address.api.{key}"), "{bad}");
    }
    let key = |more: &str| only(&format!("{PLAIN}{more}")).key;
    assert_eq!(key("service = \"other\""), "virtual-address.api.service");
    assert_eq!(key("on-gain = \" \""), "virtual-address.api.on-gain");
    assert_eq!(key("on-loss = \"a\\nb\""), "virtual-address.api.on-loss");
    assert_eq!(key("priority = 256"), "virtual-address.api.priority");
    assert_eq!(key("priorty = 25"), "virtual-address.api.priorty");
    let twice = PLAIN.replace("\"api\"", "\"web\"");
    assert_eq!(key(&twice), "virtual-address.web.address");
    assert_eq!(key(&PLAIN.replace("2.10", "2.11")), "virtual-address.api.name");
    let many: String = (0..=MAX_VIRTUAL_ADDRESSES)
        .map(|at| {
            PLAIN.replace("\"api\"", &format!("\"a{at}\"")).replace("2.10", &format!("2.{at}"))
        })
        .collect();
    assert_eq!(only(&many).key, "virtual-address");
}

#[test]
fn differences_name_it() {
    let keys = |old: &str, new: &str| -> Vec<String> {
        good(old).differences(&good(new)).into_iter().map(|it| it.key).collect()
    };
    assert_eq!(keys("", PLAIN), ["virtual-address.api"]);
    assert_eq!(keys(PLAIN, &format!("{PLAIN}priority = 9")), ["virtual-address.api.priority"]);
}
