//! From [`Settings`] to text: the effective configuration, and the reference with explanations.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Serialize, Serializer};

use super::schema::Key;
use super::{ServiceSettings, Settings, tables};
use crate::ids::SiteName;

/// The width of comments in the reference, in columns.
const COMMENT_COLUMNS: usize = 96;

/// How services other than the default one are set up; the reference ends with it.
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

/// The values of one table.
struct Section {
    /// The names of the tables it is in; none for the root.
    path: Vec<String>,
    values: Vec<(&'static str, toml::Value)>,
}

fn values<T>(keys: &[Key<T>], from: &T) -> Vec<(&'static str, toml::Value)> {
    keys.iter().filter_map(|key| Some((key.name, key.value(from)?))).collect()
}

/// Every table with its values, in the order of the file.
fn sections(settings: &Settings) -> Vec<Section> {
    let plain = |name: &str, values| Section { path: vec![name.to_owned()], values };
    let mut sections = vec![
        Section { path: Vec::new(), values: values(tables::ROOT, settings) },
        plain("log", values(tables::LOG, &settings.log)),
        plain("mesh", values(tables::MESH, &settings.mesh)),
        plain("admin", values(tables::ADMIN, &settings.admin)),
        plain("discovery", values(tables::DISCOVERY, &settings.discovery)),
    ];
    for (name, service) in &settings.services {
        let path = vec!["service".to_owned(), name.to_string()];
        let health = [path.clone(), vec!["health".to_owned()]].concat();
        sections.push(Section { path, values: values(tables::SERVICE, service) });
        sections.push(Section { path: health, values: values(tables::HEALTH, &service.health) });
    }
    sections
}

pub(super) fn to_toml(settings: &Settings) -> String {
    let mut text = String::new();
    for section in sections(settings) {
        if !section.path.is_empty() {
            text.push_str(&format!("\n[{}]\n", section.path.join(".")));
        }
        for (name, value) in section.values {
            text.push_str(&format!("{name} = {value}\n"));
        }
    }
    text
}

/// One key whose value differs between two settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The key with its tables: `mesh.mtu`; for a service that only one of them has, its table.
    pub key: String,
    /// Its value before, as in the file; none where it has none.
    pub old: Option<String>,
    /// Its value after.
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

/// Every key with its value. A service that the other one lacks is one key, with what its table
/// says beyond the defaults.
fn flat(settings: &Settings, other: &Settings) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let (added, shared): (BTreeMap<_, _>, BTreeMap<_, _>) =
        settings.services.clone().into_iter().partition(|it| !other.services.contains_key(&it.0));
    for (name, service) in added {
        let defaults = values(tables::SERVICE, &ServiceSettings::defaults(&name));
        let mut said = values(tables::SERVICE, &service);
        said.retain(|value| !defaults.contains(value));
        let said: Vec<String> =
            said.into_iter().map(|(key, value)| format!("{key} = {value}")).collect();
        all.insert(format!("service.{name}"), format!("{{ {} }}", said.join(", ")));
    }
    for Section { path, values } in sections(&Settings { services: shared, ..settings.clone() }) {
        for (name, value) in values {
            let key = [&path[..], &[name.to_owned()]].concat().join(".");
            all.insert(key, value.to_string());
        }
    }
    all
}

/// The same tables and keys as in the file, every default filled in; keys that are not set and have
/// no default are left out.
impl Serialize for Settings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut root = toml::Table::new();
        for section in sections(self) {
            let mut table = &mut root;
            for name in &section.path {
                table = table
                    .entry(name.clone())
                    .or_insert_with(|| toml::Table::new().into())
                    .as_table_mut()
                    .expect("no key has the name of a table");
            }
            table.extend(section.values.into_iter().map(|(name, value)| (name.to_owned(), value)));
        }
        root.serialize(serializer)
    }
}

/// A settings file that sets nothing but the site and explains every key: meaning, form, bounds,
/// default. Lines that begin with `#` and no space are keys with their defaults.
pub fn reference() -> String {
    let site: SiteName = "fra".parse().expect("a valid label");
    let settings = Settings::defaults(site);
    let mut text = String::from("# Settings of a meshport node. Only \"site\" is required.\n");
    explain(&mut text, tables::ROOT, &settings);
    text.push_str("\n[log]\n");
    explain(&mut text, tables::LOG, &settings.log);
    text.push_str("\n[mesh]\n");
    explain(&mut text, tables::MESH, &settings.mesh);
    text.push_str("\n[admin]\n");
    explain(&mut text, tables::ADMIN, &settings.admin);
    text.push_str("\n[discovery]\n");
    explain(&mut text, tables::DISCOVERY, &settings.discovery);
    for (name, service) in &settings.services {
        text.push_str(&format!("\n[service.{name}]\n"));
        explain(&mut text, tables::SERVICE, service);
        text.push_str(&format!("\n[service.{name}.health]\n"));
        explain(&mut text, tables::HEALTH, &service.health);
    }
    text.push('\n');
    text.push_str(MORE_SERVICES);
    text
}

fn explain<T>(text: &mut String, keys: &[Key<T>], defaults: &T) {
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
