//! From [`Settings`] to text: the effective configuration, and the reference with explanations.

use serde::{Serialize, Serializer};

use super::schema::Key;
use super::{Settings, tables};
use crate::ids::SiteName;

/// The width of comments in the reference, in columns.
const COMMENT_COLUMNS: usize = 96;

/// How services other than the default one are set up; the reference ends with it.
const MORE_SERVICES: &str = "\
# More services have a table each, with the same keys; \"listen\" is then required:
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
