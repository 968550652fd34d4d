//! Writes [`Settings`] as text: the effective configuration, and the reference with explanations.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use super::expose::{ExposeRule, ExposeSettings, LISTENERS, RULES};
use super::schema::{Key, List};
use super::virtual_address::{ADDRESSES, VirtualAddressSettings};
use super::{ServiceSettings, Settings, events, tables, wayback};
use crate::ids::SiteName;
use crate::text::wrap;

/// The width of comments in the reference, in columns after "# ".
const COMMENT_COLUMNS: usize = 94;

/// How services other than the default one are configured; the end of the reference.
const MORE_SERVICES: &str = "\
# Each further service has its own table with the same keys; \"listen\" is then required:
#
# [service.registry]
# listen = [\"127.0.0.1:5000\"]
# origin = \"127.0.0.1:5001\"
#
# [service.registry.health]
# mode = \"http\"
# path = \"/v2/\"
";

/// How listeners for clients outside the mesh are configured; the list of their keys follows.
const EXPOSED: &str = "
# Listeners for clients that run no meshport; none by default. Each has a name and a table:
#
# [[expose]]
";

/// How virtual addresses are configured; the list of their keys follows.
const VIRTUAL: &str = "
# Addresses of a LAN that nodes of a group hold in turn; none by default. Each has a name and a
# table:
#
# [[virtual-address]]
";

/// The values of one table.
struct Section {
    /// Its parent tables and itself; none for the root.
    path: Vec<Step>,
    values: Vec<(&'static str, toml::Value)>,
}

/// A step from the root of a settings file to a table.
#[derive(Clone)]
enum Step {
    /// The table, or the list of tables, of this name.
    Table(String),
    /// The table in a list that has this name.
    Element(String),
}

impl Section {
    /// Its header in a file; empty for the root.
    fn header(&self) -> String {
        let tables = self.path.iter().filter_map(|step| match step {
            Step::Table(name) => Some(name.as_str()),
            Step::Element(_) => None,
        });
        let names = tables.collect::<Vec<_>>().join(".");
        match self.path.last() {
            None => String::new(),
            Some(Step::Table(_)) => format!("\n[{names}]\n"),
            Some(Step::Element(_)) => format!("\n[[{names}]]\n"),
        }
    }

    /// A key of it, with all tables.
    fn key(&self, name: &str) -> String {
        let steps = self.path.iter().map(|step| match step {
            Step::Table(name) | Step::Element(name) => name.as_str(),
        });
        steps.chain([name]).collect::<Vec<_>>().join(".")
    }
}

fn values<T>(keys: &[Key<T>], from: &T) -> Vec<(&'static str, toml::Value)> {
    keys.iter().filter_map(|key| Some((key.name, key.value(from)?))).collect()
}

/// Every table with its values, in the order of the file.
fn sections(settings: &Settings) -> Vec<Section> {
    let table = |name: &str| Step::Table(name.to_owned());
    let plain = |name: &str, values| Section { path: vec![table(name)], values };
    let mut sections = vec![
        Section { path: Vec::new(), values: values(tables::ROOT, settings) },
        plain("log", values(tables::LOG, &settings.log)),
        plain("mesh", values(tables::MESH, &settings.mesh)),
        plain("admin", values(tables::ADMIN, &settings.admin)),
        plain("discovery", values(tables::DISCOVERY, &settings.discovery)),
        plain("events", values(events::KEYS, &settings.events)),
        plain("egress", values(wayback::EGRESS, &settings.egress)),
        plain("kubelet", values(wayback::KUBELET, &settings.kubelet)),
    ];
    for (name, service) in &settings.services {
        let path = vec![table("service"), table(name.as_ref())];
        let health = [path.clone(), vec![table("health")]].concat();
        sections.push(Section { path, values: values(tables::SERVICE, service) });
        sections.push(Section { path: health, values: values(tables::HEALTH, &service.health) });
    }
    for (name, listener) in &settings.expose {
        let section = element(&[], &LISTENERS, name, listener);
        let path = section.path.clone();
        sections.push(section);
        let rules = listener.rules.iter();
        sections.extend(rules.map(|(service, rule)| element(&path, &RULES, service, rule)));
    }
    let addresses = settings.virtual_addresses.iter();
    sections.extend(addresses.map(|(name, it)| element(&[], &ADDRESSES, name, it)));
    sections
}

/// A table of a list.
fn element<N: ToString, T>(within: &[Step], list: &List<N, T>, name: &N, it: &T) -> Section {
    let step = [Step::Table(list.name.to_owned()), Step::Element(name.to_string())];
    let label = (list.label.name, name.to_string().into());
    let values = [vec![label], values(list.keys, it)].concat();
    Section { path: [within, &step].concat(), values }
}

pub(super) fn to_toml(settings: &Settings) -> String {
    let mut text = String::new();
    for section in sections(settings) {
        text.push_str(&section.header());
        for (name, value) in section.values {
            text.push_str(&format!("{name} = {value}\n"));
        }
    }
    text
}

/// A key whose value differs between two settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The key with its tables: `mesh.mtu`; for a service that only one of them has, its table.
    pub key: String,
    /// The old value, as in the file except for secrets; `None` if there was none.
    pub old: Option<String>,
    /// The new value.
    pub new: Option<String>,
}

pub(super) fn differences(old: &Settings, new: &Settings) -> Vec<Difference> {
    let redacted = [old.redacted(), new.redacted()];
    let shown = (flat(&redacted[0], new), flat(&redacted[1], old));
    let (old, new) = (flat(old, new), flat(new, old));
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let difference = |key: &String| {
        let (was, is) = (shown.0.get(key).cloned(), shown.1.get(key).cloned());
        (old.get(key) != new.get(key)).then(|| Difference { key: key.clone(), old: was, new: is })
    };
    keys.into_iter().filter_map(difference).collect()
}

/// Every key with its value. A service, listener or address that `other` lacks is one key, with its
/// table's non-default values.
fn flat(settings: &Settings, other: &Settings) -> BTreeMap<String, String> {
    let (mut all, mut shared) = (BTreeMap::new(), settings.clone());
    take_missing(&mut all, "service", &mut shared.services, &other.services, |name, it| {
        let defaults = ServiceSettings::defaults(name);
        one_line(values(tables::SERVICE, it), &values(tables::SERVICE, &defaults))
    });
    take_missing(&mut all, "expose", &mut shared.expose, &other.expose, |_, it| {
        one_line(values(LISTENERS.keys, it), &defaults(&LISTENERS))
    });
    let (addresses, others) = (&mut shared.virtual_addresses, &other.virtual_addresses);
    take_missing(&mut all, "virtual-address", addresses, others, |name, it| {
        one_line(element(&[], &ADDRESSES, name, it).values, &defaults(&ADDRESSES))
    });
    for section in sections(&shared) {
        for (name, value) in &section.values {
            all.insert(section.key(name), value.to_string());
        }
    }
    all
}

/// Moves the tables that `other` lacks to `all`, each as one line.
fn take_missing<N: Ord + fmt::Display, T>(
    all: &mut BTreeMap<String, String>,
    kind: &str,
    tables: &mut BTreeMap<N, T>,
    other: &BTreeMap<N, T>,
    line: impl Fn(&N, &T) -> String,
) {
    tables.retain(|name, it| {
        let is_shared = other.contains_key(name);
        if !is_shared {
            all.insert(format!("{kind}.{name}"), line(name, it));
        }
        is_shared
    });
}

/// The values of absent keys.
fn defaults<N, T>(list: &List<N, T>) -> Vec<(&'static str, toml::Value)> {
    let mut values = values(list.keys, &(list.empty)());
    values.retain(|(name, _)| !list.required.contains(name));
    values
}

/// The non-default values of a table in one line.
fn one_line(
    values: Vec<(&'static str, toml::Value)>,
    defaults: &[(&'static str, toml::Value)],
) -> String {
    let said = values.into_iter().filter(|value| !defaults.contains(value));
    let each: Vec<String> = said.map(|(key, value)| format!("{key} = {value}")).collect();
    format!("{{ {} }}", each.join(", "))
}

/// The tables and keys of the file with every default; unset keys without a default are omitted.
impl Serialize for Settings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut root = toml::Table::new();
        for section in sections(self) {
            let mut steps = section.path.iter().peekable();
            let mut table = &mut root;
            while let Some(step) = steps.next() {
                let Step::Table(name) = step else { continue };
                let is_list = matches!(steps.peek(), Some(Step::Element(_)));
                // A table of a list comes before the tables in it.
                let is_new = is_list && steps.clone().count() == 1;
                table = table_in(table, name, is_list, is_new);
            }
            table.extend(section.values.into_iter().map(|(name, value)| (name.to_owned(), value)));
        }
        root.serialize(serializer)
    }
}

/// The table of this name, or the last one of the list of this name, to which `is_new` adds one.
fn table_in<'a>(
    within: &'a mut toml::Table,
    name: &str,
    is_list: bool,
    is_new: bool,
) -> &'a mut toml::Table {
    let empty = || toml::Value::from(toml::Table::new());
    let none = if is_list { toml::Value::Array(Vec::new()) } else { empty() };
    let entry = within.entry(name.to_owned()).or_insert(none);
    let table = match entry {
        toml::Value::Array(list) => {
            if is_new || list.is_empty() {
                list.push(empty());
            }
            list.last_mut()
        }
        table => Some(table),
    };
    table.and_then(toml::Value::as_table_mut).expect("no key has the name of a table")
}

/// A settings file that sets only the site and explains every key: meaning, form, bounds, default.
/// Lines that begin with `#` and no space are keys with their defaults.
pub fn reference() -> String {
    let site: SiteName = "fra".parse().expect("a valid label");
    let settings = Settings::defaults(site);
    let mut text = String::from("# Settings of a meshport node. Only \"site\" is required.\n");
    explain(&mut text, "", tables::ROOT, &settings);
    explain(&mut text, "log", tables::LOG, &settings.log);
    explain(&mut text, "mesh", tables::MESH, &settings.mesh);
    explain(&mut text, "admin", tables::ADMIN, &settings.admin);
    explain(&mut text, "discovery", tables::DISCOVERY, &settings.discovery);
    explain(&mut text, "events", events::KEYS, &settings.events);
    explain(&mut text, "egress", wayback::EGRESS, &settings.egress);
    explain(&mut text, "kubelet", wayback::KUBELET, &settings.kubelet);
    for (name, service) in &settings.services {
        explain(&mut text, &format!("service.{name}"), tables::SERVICE, service);
        explain(&mut text, &format!("service.{name}.health"), tables::HEALTH, &service.health);
    }
    explain_exposed(&mut text);
    text.push('\n');
    text.push_str(MORE_SERVICES);
    text
}

/// The keys of a listener and of a virtual address, each with an example value: by default there
/// are none.
fn explain_exposed(text: &mut String) {
    fn one<T>(text: &mut String, key: &Key<T>, example: &T) {
        text.push_str("#\n");
        comment(text, key.about);
        comment(text, &format!("Accepts {}.", key.expected()));
        if let Some(value) = key.value(example) {
            text.push_str(&format!("# {} = {value}\n", key.name));
        }
    }

    fn each<N: FromStr, T>(text: &mut String, list: &List<N, T>, name: &str, example: &T) {
        one(text, &list.label, &name.parse().ok());
        list.keys.iter().for_each(|key| one(text, key, example));
    }

    text.push_str(EXPOSED);
    each(text, &LISTENERS, "ci", &ExposeSettings::example());
    text.push_str("#\n# A listener can serve several services, selected by TLS server name:\n");
    text.push_str("#\n# [[expose.rule]]\n");
    let sni = vec!["*.prod.example.com".parse().expect("a name")];
    each(text, &RULES, "prod", &ExposeRule { sni });
    text.push_str(VIRTUAL);
    each(text, &ADDRESSES, "api", &VirtualAddressSettings::example());
}

fn explain<T>(text: &mut String, table: &str, keys: &[Key<T>], defaults: &T) {
    if !table.is_empty() {
        text.push_str(&format!("\n[{table}]\n"));
    }
    for key in keys {
        text.push('\n');
        comment(text, key.about);
        comment(text, &format!("Accepts {}.", key.expected()));
        let name = key.name;
        let line = match (key.value(defaults), key.example) {
            (Some(value), Some(_)) => format!("{name} = {value}\n"),
            (Some(value), None) => format!("#{name} = {value}\n"),
            (None, example) => {
                format!("# No default; for example: {name} = {}\n", example.unwrap_or("..."))
            }
        };
        text.push_str(&line);
    }
}

/// Adds comment lines.
fn comment(text: &mut String, words: &str) {
    wrap(words, COMMENT_COLUMNS).iter().for_each(|line| text.push_str(&format!("# {line}\n")));
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    fn shown(old: &str, new: &str) -> Vec<String> {
        let [old, new] = [old, new].map(|text| parse(text).expect("good settings"));
        let text = |value: Option<String>| value.unwrap_or_else(|| "-".into());
        differences(&old, &new)
            .into_iter()
            .map(|it| format!("{}: {} > {}", it.key, text(it.old), text(it.new)))
            .collect()
    }

    #[test]
    fn each_key_that_differs_is_named_with_both_values() {
        let old = "site = \"fra\"\n[service.kube-apiserver]\norigin = \"127.0.0.1:6443\"\n";
        assert_eq!(shown(old, old), Vec::<String>::new());
        let new = "site = \"fra\"\n[mesh]\nmtu = 1400\n[log]\nlevel = \"debug\"\n\
                   [service.kube-apiserver]\nhold = \"1s\"\n\
                   [service.kube-apiserver.health]\nfall = 3\n\
                   [service.registry]\nlisten = [\"127.0.0.1:5000\"]\n";
        let expected = [
            "log.level: \"info\" > \"debug\"",
            "mesh.mtu: 9200 > 1400",
            "service.kube-apiserver.health.fall: 2 > 3",
            "service.kube-apiserver.hold: \"3s\" > \"1s\"",
            "service.kube-apiserver.origin: \"127.0.0.1:6443\" > -",
            "service.registry: - > { listen = [\"127.0.0.1:5000\"] }",
        ];
        assert_eq!(shown(old, new), expected);
    }

    #[test]
    fn the_token_of_a_receiver_is_not_shown() {
        let with = |token: &str| {
            format!("site = \"fra\"\n[events]\nurl = \"https://a.example/x?token={token}\"\n")
        };
        let expected = "events.url: \"https://a.example:443/REDACTED\" > \
                        \"https://a.example:443/REDACTED\"";
        assert_eq!(shown(&with("one"), &with("two")), [expected]);
        // Malformed: with a user, without a scheme, not a string.
        let url = "\"https://a.example/x?token=t0ken\"";
        for wrong in ["\"https://me:t0ken@a.example/\"", "\"a.example/x?token=t0ken\"", "1234"] {
            let problems = parse(&with("t0ken").replace(url, wrong)).expect_err("it is malformed");
            let said = problems.iter().map(ToString::to_string).collect::<String>();
            assert!(said.contains("events.url is \"REDACTED\";"), "{said}");
        }
        // Only there.
        let origin =
            "site = \"fra\"\n[service.kube-apiserver]\norigin = \"https://10.0.0.1:6443\"\n";
        let problems = parse(origin).expect_err("no scheme");
        let said = problems.iter().map(ToString::to_string).collect::<String>();
        assert!(said.contains(".origin is \"https://10.0.0.1:6443\";"), "{said}");
    }
}
