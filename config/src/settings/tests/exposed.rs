//! `[[expose]]`.

use super::{good, only};
use crate::settings::{ExposeSettings, ProxyHeader, Settings, parse};

const PLAIN: &str = "[[expose]]\nname = \"ci\"\nlisten = [\"192.0.2.1:6443\"]\n\
                     service = \"kube-apiserver\"\n";
const TWO: &str = "[service.dev]\nlisten = []\n[service.prod]\nlisten = []\n\
                   [[expose]]\nname = \"all\"\nlisten = [\"0.0.0.0:443\", \"[::]:443\"]\n\
                   allow = [\"10.0.0.0/8\", \"::ffff:192.0.2.0/120\", \"2001:db8::/32\"]\n\
                   [[expose.rule]]\nservice = \"prod\"\nsni = [\"*.Prod.example.com\"]\n\
                   [[expose.rule]]\nservice = \"dev\"\nsni = [\"dev.example.com\"]\n";

fn listener<'a>(settings: &'a Settings, name: &str) -> &'a ExposeSettings {
    settings.expose.get(name).expect("it is there")
}

#[test]
fn a_listener_is_closed_until_it_names_clients() {
    let settings = good(PLAIN);
    let plain = listener(&settings, "ci");
    assert!(plain.allow.is_empty() && plain.doubt().is_some());
    assert_eq!(plain.idle_timeout, None);
    let open = good(&format!("{PLAIN}allow = [\"10.0.0.0/8\"]\nidle-timeout = \"5m\""));
    assert_eq!(listener(&open, "ci").doubt(), None);
    assert_eq!(listener(&open, "ci").idle_timeout.map(|time| time.as_secs()), Some(300));
}

#[test]
fn listeners_are_written_as_they_are_read() {
    let settings = good(&format!("{TWO}{PLAIN}send-proxy = \"off\"\n"));
    let names: Vec<String> =
        listener(&settings, "all").allow.iter().map(ToString::to_string).collect();
    assert_eq!(names, ["10.0.0.0/8", "192.0.2.0/24", "2001:db8::/32"]);
    assert_eq!(parse(&settings.to_toml()).as_ref(), Ok(&settings));
    let value = toml::Value::try_from(&settings).unwrap();
    assert_eq!(value["expose"][0]["rule"][1]["sni"][0].as_str(), Some("*.prod.example.com"));
    assert_eq!(value["expose"][1]["name"].as_str(), Some("ci"));
    assert_eq!(parse(&toml::to_string(&value).unwrap()), Ok(settings));
}

#[test]
fn contradictions_are_reported_at_their_key() {
    let key = |more: &str| only(more).key;
    assert_eq!(
        key("[[expose]]\nlisten = [\"192.0.2.1:1\"]\nservice = \"kube-apiserver\""),
        "expose.NAME.name"
    );
    assert_eq!(key("[[expose]]\nname = \"a\"\nservice = \"kube-apiserver\""), "expose.a.listen");
    assert_eq!(key("[[expose]]\nname = \"a\"\nlisten = [\"192.0.2.1:1\"]"), "expose.a.service");
    assert_eq!(
        key(&format!("{PLAIN}[[expose.rule]]\nservice = \"kube-apiserver\"")),
        "expose.ci.rule.kube-apiserver.sni"
    );
    assert_eq!(
        key(&format!("{PLAIN}[[expose.rule]]\nsni = [\"a.b\"]")),
        "expose.ci.rule.SERVICE.service"
    );
    assert_eq!(key(&PLAIN.replace("kube-apiserver", "other")), "expose.ci.service");
    assert_eq!(key(&format!("{PLAIN}send-proxy = \"v2\"")), "expose.ci.send-proxy");
    assert_eq!(
        key(&format!("{PLAIN}accept-proxy-from = [\"0.0.0.0/0\"]")),
        "expose.ci.accept-proxy-from"
    );
    assert_eq!(key(&format!("{PLAIN}allow = [\"10.0.0.1/8\"]")), "expose.ci.allow");
    assert_eq!(
        key(&format!("{PLAIN}{PLAIN}").replacen("2.1:6443", "2.2:6443", 1)),
        "expose.ci.name"
    );
    assert_eq!(key(&PLAIN.replace("192.0.2.1:6443", "127.0.0.1:7445")), "expose.ci.listen");
    assert_eq!(
        key(&TWO.replace("dev.example.com", "*.prod.example.com")),
        "expose.all.rule.prod.sni"
    );
    assert_eq!(key("expose = 5"), "expose");
    let sends = TWO.replace(
        "[[expose.rule]]\nservice = \"prod\"",
        "send-proxy = \"v1\"\n[[expose.rule]]\nservice = \"prod\"",
    );
    assert_eq!(listener(&good(&sends), "all").send_proxy, ProxyHeader::V1);
    let sends = format!("{sends}[service.prod.health]\nmode = \"kubernetes\"\n");
    assert_eq!(key(&sends), "expose.all.send-proxy");
}

#[test]
fn a_service_without_addresses_is_fine_when_a_listener_leads_to_it() {
    good(TWO);
    let alone = "[service.dev]\nlisten = []";
    assert_eq!(only(alone).key, "service.dev.listen");
}

#[test]
fn differences_name_listeners() {
    let keys = |old: &str, new: &str| -> Vec<String> {
        good(old).differences(&good(new)).into_iter().map(|it| it.key).collect()
    };
    assert_eq!(keys("", PLAIN), ["expose.ci"]);
    assert_eq!(keys(PLAIN, &format!("{PLAIN}allow = [\"10.0.0.0/8\"]")), ["expose.ci.allow"]);
    let other = TWO.replace("dev.example.com", "test.example.com");
    assert_eq!(keys(TWO, &other), ["expose.all.rule.dev.sni"]);
}

#[test]
fn the_reference_shows_a_listener_that_is_accepted() {
    let text = super::reference();
    let shown = text.split("is then required:\n").next().unwrap();
    let shown = shown.split("none by default. Each has a name and a table:\n").nth(1).unwrap();
    let is_toml =
        |line: &&str| line.contains(" = ") && !line.contains("Accepts") || line.contains("[[");
    let lines = shown.lines().filter_map(|line| line.strip_prefix("# ")).filter(is_toml);
    let text: String = lines.map(|line| format!("{line}\n")).collect();
    let settings = good(&format!("[service.prod]\nlisten = []\n{text}"));
    assert_eq!(listener(&settings, "ci").rules.len(), 1);
}
