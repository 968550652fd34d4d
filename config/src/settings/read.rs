//! Reads a TOML document into [`Settings`], with the position of each key and all problems.

use std::collections::BTreeMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::expose::{ExposeRule, ExposeSettings, MAX_EXPOSED, MAX_RULES, Named, Ruled};
use super::problem::{ProblemKind, Problems, nearest};
use super::schema::{Key, describe};
use super::{
    Defaults, MAX_SERVICES, MAX_VIRTUAL_ADDRESSES, ServiceSettings, Settings,
    VirtualAddressSettings, events, expose, tables, virtual_address, wayback,
};
use crate::ids::{ListenerName, ServiceName, SiteName, VirtualName};

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
        self.table("", document, tables::ROOT, &all, &mut settings);
        if !self.positions.contains_key("site") && !self.problems.suggest("site") {
            let expected = tables::ROOT[0].expected();
            self.problems.add(ProblemKind::Missing, &(0..0), "site", "nothing", expected);
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
        self.exposed(document, &mut settings.expose);
        self.virtual_addresses(document, &mut settings.virtual_addresses);
        settings
    }

    fn section<T>(&mut self, within: &DeTable<'_>, name: &str, keys: &[Key<T>], into: &mut T) {
        if let Some(table) = self.subtable(within, "", name) {
            self.table(name, table, keys, &[], into);
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
            self.table(&path, table, tables::SERVICE, &["health"], &mut service);
            if let Some(health) = self.subtable(table, &path, "health") {
                let path = join(&path, "health");
                self.table(&path, health, tables::HEALTH, &[], &mut service.health);
            }
            if services.len() == MAX_SERVICES && !services.contains_key(&name) {
                let expected = format!("at most {MAX_SERVICES} services");
                self.problems.add(ProblemKind::Value, &key.span(), &path, "one more", expected);
                continue;
            }
            services.insert(name, service);
        }
    }

    fn exposed(
        &mut self,
        document: &DeTable<'_>,
        into: &mut BTreeMap<ListenerName, ExposeSettings>,
    ) {
        for (table, span) in self.elements(document, "", "expose", MAX_EXPOSED) {
            let text = text_of(table, "name");
            let path = join("expose", text.unwrap_or("NAME"));
            let mut read = Named { name: None, settings: ExposeSettings::default() };
            self.table(&path, table, expose::KEYS, &["rule"], &mut read);
            self.rules(&path, table, &mut read.settings.rules);
            let Some(name) = self.named(&path, &span, "name", text, read.name) else { continue };
            self.positions.insert(path.clone(), header(span.clone()));
            if into.insert(name, read.settings).is_some() {
                let key = join(&path, "name");
                let expected = "a name that no other [[expose]] has";
                self.problems.add(ProblemKind::Conflict, &span, &key, "there twice", expected);
            }
        }
    }

    fn virtual_addresses(
        &mut self,
        document: &DeTable<'_>,
        into: &mut BTreeMap<VirtualName, VirtualAddressSettings>,
    ) {
        let list = "virtual-address";
        for (table, span) in self.elements(document, "", list, MAX_VIRTUAL_ADDRESSES) {
            let text = text_of(table, "name");
            let path = join(list, text.unwrap_or("NAME"));
            let mut read = virtual_address::Draft::new();
            self.table(&path, table, virtual_address::KEYS, &[], &mut read);
            self.named(&path, &span, "name", text, read.name.as_ref());
            for key in virtual_address::KEYS {
                let place = join(&path, key.name);
                if virtual_address::REQUIRED.contains(&key.name)
                    && !self.positions.contains_key(&place)
                {
                    let expected = key.expected();
                    self.problems.add(ProblemKind::Missing, &span, &place, "nothing", expected);
                }
            }
            self.positions.insert(path.clone(), header(span.clone()));
            let Some((name, settings)) = read.finish() else { continue };
            if into.insert(name, settings).is_some() {
                let key = join(&path, "name");
                let expected = "a name that no other [[virtual-address]] has";
                self.problems.add(ProblemKind::Conflict, &span, &key, "there twice", expected);
            }
        }
    }

    fn rules(
        &mut self,
        path: &str,
        table: &DeTable<'_>,
        into: &mut BTreeMap<ServiceName, ExposeRule>,
    ) {
        for (table, span) in self.elements(table, path, "rule", MAX_RULES) {
            let text = text_of(table, "service");
            let path = join(&join(path, "rule"), text.unwrap_or("SERVICE"));
            let mut read = Ruled { service: None, rule: ExposeRule::default() };
            self.table(&path, table, expose::RULE_KEYS, &[], &mut read);
            let Some(name) = self.named(&path, &span, "service", text, read.service) else {
                continue;
            };
            self.positions.insert(path.clone(), header(span.clone()));
            if into.insert(name, read.rule).is_some() {
                let key = join(&path, "service");
                let expected = "one rule for each service of a listener";
                self.problems.add(ProblemKind::Conflict, &span, &key, "there twice", expected);
            }
        }
    }

    /// The name of an element of a list of tables; adds a problem if it has none. A malformed name
    /// already has its problem.
    fn named<N>(
        &mut self,
        path: &str,
        span: &Range<usize>,
        key: &str,
        text: Option<&str>,
        name: Option<N>,
    ) -> Option<N> {
        if name.is_none() && text.is_none() && !self.positions.contains_key(&join(path, key)) {
            let expected = "a name";
            self.problems.add(ProblemKind::Missing, span, &join(path, key), "nothing", expected);
        }
        name
    }

    /// The tables of a list, as in `[[expose]]`.
    fn elements<'a>(
        &mut self,
        within: &'a DeTable<'a>,
        path: &str,
        name: &str,
        max: usize,
    ) -> Vec<(&'a DeTable<'a>, Range<usize>)> {
        let item = within.iter().find(|(key, _)| key.get_ref() == name);
        let Some((_, value)) = item else { return Vec::new() };
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

    /// Reads the keys of one table; `tables` are the names of tables it may also hold.
    fn table<T>(
        &mut self,
        path: &str,
        table: &DeTable<'_>,
        keys: &[Key<T>],
        tables: &[&str],
        into: &mut T,
    ) {
        for (name, value) in table {
            if tables.contains(&name.get_ref().as_ref()) {
                continue;
            }
            let Some(key) = keys.iter().find(|key| key.name == name.get_ref().as_ref()) else {
                let names: Vec<&str> =
                    keys.iter().map(|key| key.name).chain(tables.iter().copied()).collect();
                self.unknown(path, name, &names);
                continue;
            };
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
                let problem = self.problems.add(
                    ProblemKind::Value,
                    &one.span,
                    &full,
                    one.found,
                    one.expected,
                );
                problem.nearest = one.nearest;
            }
            self.positions.insert(full, position);
        }
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

/// The text of a key, if it is one.
fn text_of<'a>(table: &'a DeTable<'a>, key: &str) -> Option<&'a str> {
    table.iter().find(|(name, _)| name.get_ref() == key)?.1.get_ref().as_str()
}

/// The position of a valid table's header.
fn header(span: Range<usize>) -> Position {
    Position { span, elements: Vec::new(), is_good: true }
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
        ("expose.NAME", has(expose::KEYS, name) && !is_listed),
    ];
    let found = tables.into_iter().find(|(table, has_it)| *has_it && *table != path);
    found.map(|(table, _)| join(table, name))
}

/// A key with its table.
pub(super) fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}
