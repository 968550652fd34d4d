//! The JSON of commands and queries as a page: read from the sources of the types, so that names,
//! order and words are theirs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use clap::Command;
use syn::{Field, Fields, Type};

use super::sources::{Case, Found, Sources, cases, docs, has_flag, other_name, shape};

/// The documents, in the order of the page: what they answer, and the type, for several of one
/// name with its module. Queries of the request table and commands with `--json` have to be among
/// them.
const DOCUMENTS: &[(&str, &str)] = &[
    ("meshport status --json, /status", "Status"),
    ("meshport routes --json, /routes", "ServiceStatus"),
    ("meshport stats --json, /stats", "StatsRow"),
    ("meshport explain --json, /explain", "Explanation"),
    ("meshport explain --node NODE --json", "WayReport"),
    ("meshport peers --json, /peers", "PeerRow"),
    ("meshport peers --seeds --json, /seeds", "SeedRow"),
    ("meshport credentials --json, /credentials", "CredentialRow"),
    ("/view", "View"),
    ("meshport ping --json", "PingReport"),
    ("meshport wait --json", "OriginStatus"),
    ("meshport drain --json, meshport undrain --json", "DrainReport"),
    ("meshport reload --json", "ReloadReport"),
    ("meshport upgrade --json", "Upgraded"),
    ("meshport doctor --json", "DoctorReport"),
    ("meshport support-bundle --json", "BundleReport"),
    ("meshport check --json", "CheckReport"),
    ("meshport version --json", "Versions"),
    ("meshport init --json", "InitReport"),
    ("meshport invite --json", "InviteReport"),
    ("meshport join --json", "JoinReport"),
    ("meshport renew --json", "RenewOutcome"),
    ("meshport delegate --json", "delegate::Outcome"),
    ("meshport authority --json", "Shown"),
    ("meshport rotate-secret --json", "rotate_secret::Outcome"),
    ("meshport rotate-key --json", "rotate_key::Outcome"),
    ("meshport revoke --json", "RevokeReport"),
    ("meshport revoke --print --json", "Printed"),
    ("meshport leave --json", "Left"),
    ("meshport reset --json", "Erased"),
    ("meshport demo --json", "Summary"),
];

/// The page of all documents.
pub(crate) fn page(sources: &Sources, command: &Command) -> String {
    for reply in &sources.replies {
        assert!(DOCUMENTS.iter().any(|(_, name)| name == reply), "{reply} is on no page");
    }
    for verb in with_json(command) {
        let of_verb = format!("meshport {verb} ");
        let has_it = DOCUMENTS.iter().any(|(title, _)| title.contains(&of_verb));
        assert!(has_it, "the JSON of meshport {verb} is on no page");
    }
    let mut page = Page { sources, text: String::from(HEAD), pending: Vec::new() };
    let mut written = BTreeSet::new();
    for (title, path) in DOCUMENTS {
        let (module, name) = path.rsplit_once("::").unwrap_or(("", path));
        let title = title.replace(", ", "`, `");
        page.table(&format!("## {}\n\n`{title}`. ", heading(path)), page.find(name, module));
        written.insert((*name).to_owned());
    }
    page.text.push_str("\n## Parts\n");
    while !page.pending.is_empty() {
        for it in std::mem::take(&mut page.pending) {
            let name = it.item.ident.to_string();
            if written.insert(name.clone()) {
                page.table(&format!("### {}\n\n", heading(&name)), it);
            }
        }
    }
    page.text
}

/// The heading of a type, with its module where several have its name: the only command that prints
/// it, else its name, which others see over HTTP.
fn heading(path: &str) -> &str {
    let document = DOCUMENTS.iter().find(|(_, document)| *document == path);
    let command = document.filter(|(title, _)| !title.contains(", /"));
    command.and_then(|(title, _)| Some(title.split_once(" --json")?.0)).unwrap_or(path)
}

fn anchor(heading: &str) -> String {
    heading.to_lowercase().replace(' ', "-")
}

const HEAD: &str = "\
# JSON

Generated from the code: what commands answer with `--json`, and queries also over HTTP. Fields are
only ever added, and units are in the names. A field marked *optional* may be absent or null. Where
a command lists several, the document is an array.
";

/// The commands with the option `--json`.
fn with_json(command: &Command) -> impl Iterator<Item = &str> {
    let visible = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    let has_it = |verb: &&Command| verb.get_arguments().any(|it| it.get_long() == Some("json"));
    visible.filter(has_it).map(Command::get_name)
}

struct Page<'a> {
    sources: &'a Sources,
    text: String,
    /// Types of fields that may not be on the page yet.
    pending: Vec<&'a Found<syn::ItemStruct>>,
}

/// A row of a table, without its name.
struct Row {
    kind: String,
    meaning: String,
}

impl<'a> Page<'a> {
    fn find(&self, name: &str, module: &str) -> &'a Found<syn::ItemStruct> {
        let found = self.sources.find(name, module);
        found.unwrap_or_else(|| panic!("{name} is not serialized"))
    }

    /// One type as a table; the types of its fields are added to those that are pending.
    fn table(&mut self, heading: &str, it: &'a Found<syn::ItemStruct>) {
        let meaning = docs(&it.item.attrs);
        let head = format!("{heading}{meaning}");
        let head = head.trim_end();
        let rows = self.rows(&it.item.fields, &it.module);
        write!(self.text, "\n{head}\n\n| field | type | meaning |\n| --- | --- | --- |\n")
            .expect("writing to a String does not fail");
        for (name, Row { kind, meaning }) in rows {
            assert!(!meaning.is_empty(), "{}::{}.{name} has no doc", it.module, it.item.ident);
            writeln!(self.text, "| `{name}` | {kind} | {meaning} |")
                .expect("writing to a String does not fail");
        }
    }

    /// The rows of an object, in the order of its fields.
    fn rows(&mut self, fields: &'a Fields, module: &str) -> Vec<(String, Row)> {
        let Fields::Named(fields) = fields else { return Vec::new() };
        let printed = fields.named.iter().filter(|field| !has_flag(&field.attrs, "skip"));
        printed.flat_map(|field| self.rows_of_field(field, module)).collect()
    }

    fn rows_of_field(&mut self, field: &'a Field, module: &str) -> Vec<(String, Row)> {
        if has_flag(&field.attrs, "flatten") {
            return self.rows_of_type(&field.ty, module);
        }
        let (kind, inner) = shape(&field.ty);
        let kind = match inner {
            None => kind,
            Some(name) => match (self.sources.words(&name), self.sources.find(&name, module)) {
                (Some(values), _) => kind.replace(&name, &format!("`{}`", values.join("`, `"))),
                (None, Some(part)) => {
                    self.pending.push(part);
                    kind.replace(&name, &format!("[{name}](#{})", anchor(heading(&name))))
                }
                (None, None) => panic!("the page does not know how {name} is printed"),
            },
        };
        let own = || field.ident.as_ref().expect("a named field").to_string();
        let name = other_name(&field.attrs).unwrap_or_else(own);
        vec![(name, Row { kind, meaning: docs(&field.attrs) })]
    }

    /// The rows of an object that is part of another one.
    fn rows_of_type(&mut self, ty: &Type, module: &str) -> Vec<(String, Row)> {
        let (kind, name) = shape(ty);
        let name = name.expect("what is flattened is an object");
        let rows = match self.sources.union(&name, module) {
            Some(union) => self.rows_of_cases(&cases(&union.item), &union.module),
            None => {
                let part = self.find(&name, module);
                self.rows(&part.item.fields, &part.module)
            }
        };
        let is_optional = kind.ends_with(OPTIONAL);
        rows.into_iter()
            .map(|(name, row)| (name, if is_optional { row.optional() } else { row }))
            .collect()
    }

    /// The rows of one of several objects: fields that not all of them have are optional.
    fn rows_of_cases(&mut self, cases: &[Case<'a>], module: &str) -> Vec<(String, Row)> {
        let mut all: Vec<(String, Row)> = Vec::new();
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for case in cases {
            let rows = match case {
                Case::Of(ty) => self.rows_of_type(ty, module),
                Case::Fields(fields) => self.rows(fields, module),
            };
            for (name, row) in rows {
                *counts.entry(name.clone()).or_default() += 1;
                if all.iter().all(|(known, _)| *known != name) {
                    all.push((name, row));
                }
            }
        }
        let is_in_all = |name: &str| counts.get(name) == Some(&cases.len());
        all.into_iter()
            .map(|(name, row)| match is_in_all(&name) {
                true => (name, row),
                false => (name, row.optional()),
            })
            .collect()
    }
}

/// Ends the type of a field that may be absent.
const OPTIONAL: &str = ", optional";

impl Row {
    fn optional(self) -> Self {
        let is_so = self.kind.ends_with(OPTIONAL);
        Self { kind: if is_so { self.kind } else { self.kind + OPTIONAL }, ..self }
    }
}
