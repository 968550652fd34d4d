//! Reads a TOML document into [`Settings`], with the position of each key and all problems.

use std::collections::BTreeMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::expose::{LISTENERS, RULES};
use super::problem::{ProblemKind, Problems, nearest};
use super::schema::{Key, List, describe};
use super::virtual_address::ADDRESSES;
use super::{Defaults, MAX_SERVICES, ServiceSettings, Settings, events, tables, wayback};
use crate::ids::{ServiceName, SiteName};

/// The position of a key in the text.
#[derive(Debug, Clone)]
pub(super) struct Position {
    /// The value, or the header of a table.
    pub(super) span: Range<usize>,
    /// The elements, if it is a list.
    pub(super) elements: Vec<Range<usize>>,
    /// Whether the value was accepted. Rules on refused values are not checked.
    pub(super) is_good: bool,
}

/// The keys in the text, with their tables, as in `mesh.mtu`.
pub(super) type Positions = BTreeMap<String, Position>;

type Item<'a> = (&'a Spanned<std::borrow::Cow<'a, str>>, &'a Spanned<DeValue<'a>>);

pub(super) struct Reader<'t> {
    pub(super) problems: Problems<'t>,
    pub(super) positions: Positions,
}

impl Reader<'_> {
    pub(super) fn settings(&mut self, document: &DeTable<'_>, defaults: &Defaults) -> Settings {
        // A placeholder until the text sets the site; a text without it is refused.
        let unnamed: SiteName = "unnamed".parse().expect("a valid label");
        let mut settings = Settings::with_defaults(unnamed, defaults);
        let more = ["service", "expose", "virtual-address"];
        let all: Vec<&str> = tables::TABLES.iter().copied().chain(more).collect();
        self.table("", document, tables::ROOT, [&[], &all], &mut settings);
        if !self.positions.contains_key("site") && !self.problems.suggest("site") {
            let expected = tables::ROOT[0].expected();
            self.missing(&(0..0), "site", expected);
        }
        settings.admin.socket = defaults.socket_in(&settings.state_dir);
        self.section(document, "log", tables::LOG, &mut settings.log);
        self.section(document, "mesh", tables::MESH, &mut settings.mesh);
        self.section(document, "admin", tables::ADMIN, &mut settings.admin);
        self.section(document, "discovery", tables::DISCOVERY, &mut settings.discovery);
        self.section(document, "events", events::KEYS, &mut settings.events);
        self.section(document, "egress", wayback::EGRESS, &mut settings.egress);
        self.section(document, "kubelet", wayback::KUBELET, &mut settings.kubelet);
        if let Some(services) = self.subtable(document, "", "service") {
            self.services(services, &mut settings.services);
        }
        let (listeners, addresses) = (&mut settings.expose, &mut settings.virtual_addresses);
        self.list(document, "", &LISTENERS, listeners, |reader, table, path, it| {
            reader.list(table, path, &RULES, &mut it.rules, |_, _, _, _| ());
        });
        self.list(document, "", &ADDRESSES, addresses, |_, _, _, _| ());
        settings
    }

    fn section<T>(&mut self, within: &DeTable<'_>, name: &str, keys: &[Key<T>], into: &mut T) {
        if let Some(table) = self.subtable(within, "", name) {
            self.table(name, table, keys, [&[]; 2], into);
        }
    }

    fn services(
        &mut self,
        table: &DeTable<'_>,
        services: &mut BTreeMap<ServiceName, ServiceSettings>,
    ) {
        for (key, value) in table {
            let path = join("service", key.get_ref());
            let Ok(name) = key.get_ref().parse::<ServiceName>() else {
                let expected = "a service name: 1 to 63 of a-z, 0-9 and '-', no '-' at either end";
                let found = describe(&DeValue::String(key.get_ref().clone()));
                self.problems.add(ProblemKind::Value, &key.span(), "service", found, expected);
                continue;
            };
            let Some(table) = self.as_table((key, value), &path) else { continue };
            if name.as_str() == ServiceName::WAY_BACK {
                let expected = "another name: this one is reserved for the way back";
                self.problems.add(ProblemKind::Value, &key.span(), &path, "this name", expected);
                continue;
            }
            let mut service = ServiceSettings::defaults(&name);
            self.table(&path, table, tables::SERVICE, [&[], &["health"]], &mut service);
            if let Some(health) = self.subtable(table, &path, "health") {
                let path = join(&path, "health");
                self.table(&path, health, tables::HEALTH, [&[]; 2], &mut service.health);
            }
            if services.len() == MAX_SERVICES && !services.contains_key(&name) {
                let expected = format!("at most {MAX_SERVICES} services");
                self.problems.add(ProblemKind::Value, &key.span(), &path, "one more", expected);
                continue;
            }
            services.insert(name, service);
        }
    }

    /// Reads a list of named tables; `more` reads the tables within one of them.
    fn list<N: Ord, T>(
        &mut self,
        within: &DeTable<'_>,
        path: &str,
        list: &List<N, T>,
        into: &mut BTreeMap<N, T>,
        more: impl Fn(&mut Self, &DeTable<'_>, &str, &mut T),
    ) {
        let label = &list.label;
        for (table, span) in self.elements(within, path, list.name, list.max) {
            let named = table.get(label.name);
            let text = named.and_then(|name| name.get_ref().as_str()).map(str::to_owned);
            let text = text.unwrap_or_else(|| label.name.to_uppercase());
            let path = join(&join(path, list.name), &text);
            let (mut name, mut read) = (None, (list.empty)());
            match named {
                Some(value) => self.value(&path, label, value, &mut name),
                None => self.missing(&span, &join(&path, label.name), "a name"),
            }
            self.table(&path, table, list.keys, [&[label.name], list.tables], &mut read);
            more(self, table, &path, &mut read);
            let mut is_whole = true;
            for key in list.keys.iter().filter(|key| list.required.contains(&key.name)) {
                let place = join(&path, key.name);
                if !table.contains_key(key.name) {
                    self.missing(&span, &place, key.expected());
                    is_whole = false;
                }
                is_whole &= self.positions.get(&place).is_some_and(|position| position.is_good);
            }
            let Some(name) = name.filter(|_| is_whole) else { continue };
            let header = Position { span: span.clone(), elements: Vec::new(), is_good: true };
            self.positions.insert(path.clone(), header);
            if into.insert(name, read).is_some() {
                let key = join(&path, label.name);
                self.problems.add(ProblemKind::Conflict, &span, &key, "there twice", list.differs);
            }
        }
    }

    fn missing(&mut self, table: &Range<usize>, key: &str, expected: impl Into<String>) {
        self.problems.add(ProblemKind::Missing, table, key, "nothing", expected);
    }

    /// The tables of a list, as in `[[expose]]`.
    fn elements<'a>(
        &mut self,
        within: &'a DeTable<'a>,
        path: &str,
        name: &str,
        max: usize,
    ) -> Vec<(&'a DeTable<'a>, Range<usize>)> {
        let Some(value) = within.get(name) else { return Vec::new() };
        let path = join(path, name);
        let list = value.get_ref().as_array().filter(|list| list.len() <= max);
        let Some(list) = list else {
            let expected = format!("at most {max} tables, as in [[{path}]]");
            let found = describe(value.get_ref());
            self.problems.add(ProblemKind::Value, &value.span(), &path, found, expected);
            return Vec::new();
        };
        let mut tables = Vec::new();
        for element in list {
            match element.get_ref().as_table() {
                Some(table) => tables.push((table, element.span())),
                None => {
                    let expected = format!("a table, as in [[{path}]]");
                    let found = describe(element.get_ref());
                    self.problems.add(ProblemKind::Value, &element.span(), &path, found, expected);
                }
            }
        }
        tables
    }

    /// Reads the keys of one table. Others may be in it, which the caller reads: keys that belong
    /// before these, and tables that belong after them.
    fn table<T>(
        &mut self,
        path: &str,
        table: &DeTable<'_>,
        keys: &[Key<T>],
        [before, after]: [&[&str]; 2],
        into: &mut T,
    ) {
        for (name, value) in table {
            let text = name.get_ref().as_ref();
            if before.contains(&text) || after.contains(&text) {
                continue;
            }
            match keys.iter().find(|key| key.name == text) {
                Some(key) => self.value(path, key, value, into),
                None => {
                    let keys: Vec<&str> = keys.iter().map(|key| key.name).collect();
                    self.unknown(path, name, &[before, &keys, after].concat());
                }
            }
        }
    }

    /// Reads the value of one key of a table.
    fn value<T>(&mut self, path: &str, key: &Key<T>, value: &Spanned<DeValue<'_>>, into: &mut T) {
        let full = join(path, key.name);
        let refused = key.read(value, into);
        let elements = value.get_ref().as_array();
        let elements = elements.map(|list| list.iter().map(Spanned::span).collect());
        let position = Position {
            span: value.span(),
            elements: elements.unwrap_or_default(),
            is_good: refused.is_empty(),
        };
        for one in refused {
            let (found, expected) = (one.found, one.expected);
            let problem = self.problems.add(ProblemKind::Value, &one.span, &full, found, expected);
            problem.nearest = one.nearest;
        }
        self.positions.insert(full, position);
    }

    fn unknown(&mut self, path: &str, name: &Spanned<std::borrow::Cow<'_, str>>, valid: &[&str]) {
        let found = name.get_ref().as_ref();
        let near = nearest(found, valid.iter().copied()).map(|near| join(path, near));
        let near = near.or_else(|| elsewhere(path, found));
        let expected = format!("one of {}", valid.join(", "));
        let full: String = join(path, found).chars().filter(|c| !c.is_control()).collect();
        let problem = self.problems.add(
            ProblemKind::UnknownKey,
            &name.span(),
            &full,
            "an unknown key",
            expected,
        );
        problem.nearest = near;
    }

    fn subtable<'a>(
        &mut self,
        within: &'a DeTable<'a>,
        path: &str,
        name: &str,
    ) -> Option<&'a DeTable<'a>> {
        let item = within.iter().find(|(key, _)| key.get_ref() == name)?;
        self.as_table(item, &join(path, name))
    }

    fn as_table<'a>(&mut self, (key, value): Item<'a>, path: &str) -> Option<&'a DeTable<'a>> {
        let table = value.get_ref().as_table();
        if table.is_none() {
            let expected = format!("a table, as in [{path}]");
            let found = describe(value.get_ref());
            self.problems.add(ProblemKind::Value, &value.span(), path, found, expected);
        }
        let position =
            Position { span: key.span(), elements: Vec::new(), is_good: table.is_some() };
        self.positions.insert(path.to_owned(), position);
        table
    }
}

/// The table that a key of exactly this name belongs to, if it is in the wrong one.
fn elsewhere(path: &str, name: &str) -> Option<String> {
    fn has<T>(keys: &[Key<T>], name: &str) -> bool {
        keys.iter().any(|key| key.name == name)
    }

    let service = path.strip_prefix("service.").and_then(|rest| rest.split('.').next());
    let service = join("service", service.unwrap_or("NAME"));
    let health = join(&service, "health");
    let is_listed = path.starts_with("expose") || path.starts_with("virtual-address");
    let tables: [(&str, bool); 11] = [
        ("", has(tables::ROOT, name)),
        ("log", has(tables::LOG, name)),
        ("mesh", has(tables::MESH, name)),
        ("admin", has(tables::ADMIN, name)),
        ("discovery", has(tables::DISCOVERY, name)),
        ("events", has(events::KEYS, name)),
        ("egress", has(wayback::EGRESS, name)),
        ("kubelet", has(wayback::KUBELET, name)),
        (&service, has(tables::SERVICE, name)),
        (&health, has(tables::HEALTH, name)),
        ("expose.NAME", has(LISTENERS.keys, name) && !is_listed),
    ];
    let found = tables.into_iter().find(|(table, has_it)| *has_it && *table != path);
    found.map(|(table, _)| join(table, name))
}

/// A key with its table.
pub(super) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}
