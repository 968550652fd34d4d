//! Writes [`Settings`] as text: the effective configuration, and the reference with explanations.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Serialize, Serializer};

use super::expose::{ExposeSettings, Named, Ruled};
use super::schema::Key;
use super::virtual_address::{self, Draft};
use super::{ServiceSettings, Settings, events, expose, tables, wayback};
use crate::ids::{ListenerName, SiteName};

/// The width of comments in the reference, in columns.
const COMMENT_COLUMNS: usize = 96;

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
    settings.expose.iter().for_each(|(name, it)| exposed(&mut sections, name, it));
    for (name, it) in &settings.virtual_addresses {
        let path = vec![table("virtual-address"), Step::Element(name.to_string())];
        let values = values(virtual_address::KEYS, &Draft::of(name, it));
        sections.push(Section { path, values });
    }
    sections
}

/// The tables of one listener.
fn exposed(sections: &mut Vec<Section>, name: &ListenerName, settings: &ExposeSettings) {
    let path = vec![Step::Table("expose".to_owned()), Step::Element(name.to_string())];
    let named = Named { name: Some(name.clone()), settings: settings.clone() };
    sections.push(Section { path: path.clone(), values: values(expose::KEYS, &named) });
    for (service, rule) in &settings.rules {
        let rule_path = [Step::Table("rule".to_owned()), Step::Element(service.to_string())];
        let path = [&path[..], &rule_path].concat();
        let ruled = Ruled { service: Some(service.clone()), rule: rule.clone() };
        sections.push(Section { path, values: values(expose::RULE_KEYS, &ruled) });
    }
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
    /// The old value, as in the file; `None` if there was none.
    pub old: Option<String>,
    /// The new value.
    pub new: Option<String>,
}

pub(super) fn differences(old: &Settings, new: &Settings) -> Vec<Difference> {
    let (old, new) = (flat(old, new), flat(new, old));
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let difference = |key: &String| {
        let (old, new) = (old.get(key).cloned(), new.get(key).cloned());
        (old != new).then(|| Difference { key: key.clone(), old, new })
    };
    keys.into_iter().filter_map(difference).collect()
}

/// Every key with its value. A service, listener or address that `other` lacks is one key, with its
/// table's non-default values.
fn flat(settings: &Settings, other: &Settings) -> BTreeMap<String, String> {
    let (mut all, mut shared) = (BTreeMap::new(), settings.clone());
    shared.services.retain(|name, it| {
        let is_shared = other.services.contains_key(name);
        if !is_shared {
            let line = one_line(tables::SERVICE, it, &ServiceSettings::defaults(name));
            all.insert(format!("service.{name}"), line);
        }
        is_shared
    });
    shared.expose.retain(|name, it| {
        let is_shared = other.expose.contains_key(name);
        if !is_shared {
            let unnamed = |settings| Named { name: None, settings };
            let (it, defaults) = (unnamed(it.clone()), unnamed(ExposeSettings::default()));
            all.insert(format!("expose.{name}"), one_line(expose::KEYS, &it, &defaults));
        }
        is_shared
    });
    shared.virtual_addresses.retain(|name, it| {
        let is_shared = other.virtual_addresses.contains_key(name);
        if !is_shared {
            let line = one_line(virtual_address::KEYS, &Draft::of(name, it), &Draft::new());
            all.insert(format!("virtual-address.{name}"), line);
        }
        is_shared
    });
    for section in sections(&shared) {
        for (name, value) in &section.values {
            all.insert(section.key(name), value.to_string());
        }
    }
    all
}

/// The non-default values of a table in one line.
fn one_line<T>(keys: &[Key<T>], from: &T, defaults: &T) -> String {
    let defaults = values(keys, defaults);
    let said = values(keys, from).into_iter().filter(|value| !defaults.contains(value));
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
    fn each<T>(text: &mut String, keys: &[Key<T>], example: &T) {
        for key in keys {
            text.push_str("#\n");
            comment(text, key.about);
            comment(text, &format!("Accepts {}.", key.expected()));
            if let Some(value) = key.value(example) {
                text.push_str(&format!("# {} = {value}\n", key.name));
            }
        }
    }

    text.push_str(EXPOSED);
    let name = Some("ci".parse().expect("a name"));
    each(text, expose::KEYS, &Named { name, settings: ExposeSettings::example() });
    text.push_str("#\n# A listener can serve several services, selected by TLS server name:\n");
    text.push_str("#\n# [[expose.rule]]\n");
    let sni = vec!["*.prod.example.com".parse().expect("a name")];
    let service = Some("prod".parse().expect("a name"));
    each(text, expose::RULE_KEYS, &Ruled { service, rule: expose::ExposeRule { sni } });
    text.push_str(VIRTUAL);
    each(text, virtual_address::KEYS, &Draft::example());
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

/// Adds comment lines of at most [`COMMENT_COLUMNS`].
fn comment(text: &mut String, words: &str) {
    let mut line = String::from("#");
    for word in words.split_whitespace() {
        if line.len() + 1 + word.len() > COMMENT_COLUMNS {
            text.push_str(&line);
            text.push('\n');
            line.truncate(1);
        }
        line.push(' ');
        line.push_str(word);
    }
    text.push_str(&line);
    text.push('\n');
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
}
