//! The JSON of the queries as a page: read from the sources of the types, so that names, order and
//! words are theirs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;

use syn::{Attribute, Expr, Field, Fields, Item, ItemImpl, ItemStruct, Lit, Meta, Type};

/// The documents, in the order of the page: what they answer, and the type. Queries of the request
/// table have to be among them.
const DOCUMENTS: &[(&str, &str)] = &[
    ("meshport status --json, /status", "Status"),
    ("meshport routes --json, /routes", "ServiceStatus"),
    ("meshport stats --json, /stats", "StatsRow"),
    ("meshport explain --json, /explain", "Explanation"),
    ("meshport peers --json, /peers", "PeerRow"),
    ("meshport peers --seeds --json, /seeds", "SeedRow"),
    ("meshport credentials --json, /credentials", "CredentialRow"),
    ("/view", "View"),
];

/// What is known of the sources.
#[derive(Default)]
pub(crate) struct Sources {
    structs: BTreeMap<String, ItemStruct>,
    /// What the values of enums without data are called.
    enums: BTreeMap<String, Vec<String>>,
    /// Types of the answers of queries.
    replies: BTreeSet<String>,
}

/// Reads the modules of the admin interface.
pub(crate) fn sources(root: &Path) -> Sources {
    let folders = ["proxy/daemon/src/admin", "proxy/core/src"];
    let mut sources = Sources::default();
    for folder in folders {
        for entry in fs::read_dir(root.join(folder)).expect("a folder of sources") {
            let path = entry.expect("an entry").path();
            if path.extension().is_some_and(|it| it == "rs") {
                sources.take(&fs::read_to_string(&path).expect("a source"));
            }
        }
    }
    sources
}

impl Sources {
    fn take(&mut self, text: &str) {
        for item in syn::parse_file(text).expect("sources parse").items {
            match item {
                Item::Struct(it) if is_serialized(&it.attrs) => {
                    self.structs.insert(it.ident.to_string(), it);
                }
                Item::Enum(it) if is_serialized(&it.attrs) => {
                    let values = it.variants.iter().map(|it| kebab(&it.ident.to_string()));
                    self.enums.insert(it.ident.to_string(), values.collect());
                }
                Item::Impl(it) if is_query(&it) => self.replies.extend(reply(&it)),
                _ => {}
            }
        }
        // The requests without parameters are rows of a macro: `..., Query, Vec<Reply>;`.
        for line in text.lines() {
            if let Some((_, reply)) = line.trim().split_once("\", Query, ") {
                let reply = reply.trim_end_matches(';').trim_start_matches("Vec<");
                self.replies.insert(reply.trim_end_matches('>').to_owned());
            }
        }
    }
}

/// The page of all documents.
pub(crate) fn page(sources: &Sources) -> String {
    for reply in &sources.replies {
        assert!(DOCUMENTS.iter().any(|(_, name)| name == reply), "{reply} is on no page");
    }
    let mut text = String::from(
        "# JSON\n\nGenerated from the code: what queries answer with `--json` and over HTTP. \
         Fields are only ever\nadded, and units are in the names. A field marked *optional* may be \
         absent or null. Where a query\nlists several, the document is an array.\n",
    );
    let mut pending = Vec::new();
    for (title, name) in DOCUMENTS {
        table(
            &mut text,
            &format!("## {name}\n\n`{}`. ", title.replace(", ", "`, `")),
            name,
            sources,
            &mut pending,
        );
    }
    let mut written: BTreeSet<String> = DOCUMENTS.iter().map(|(_, it)| (*it).to_owned()).collect();
    text.push_str("\n## Parts\n");
    while !pending.is_empty() {
        for name in std::mem::take(&mut pending) {
            if written.insert(name.clone()) {
                table(&mut text, &format!("### {name}\n\n"), &name, sources, &mut pending);
            }
        }
    }
    text
}

/// One type as a table; the types of its fields are added to `pending`.
fn table(
    text: &mut String,
    heading: &str,
    name: &str,
    sources: &Sources,
    pending: &mut Vec<String>,
) {
    let it = sources.structs.get(name).unwrap_or_else(|| panic!("{name} is not serialized"));
    write!(
        text,
        "\n{heading}{}\n\n| field | type | meaning |\n| --- | --- | --- |\n",
        docs(&it.attrs)
    )
    .expect("writing to a String does not fail");
    rows(text, it, sources, pending);
}

fn rows(text: &mut String, it: &ItemStruct, sources: &Sources, pending: &mut Vec<String>) {
    let Fields::Named(fields) = &it.fields else { return };
    for field in &fields.named {
        let (kind, inner) = shape(&field.ty);
        if has_flag(&field.attrs, "flatten") {
            let part = inner.as_deref().and_then(|name| sources.structs.get(name));
            rows(text, part.expect("what is flattened is serialized"), sources, pending);
            continue;
        }
        let kind = match inner.as_ref().and_then(|name| Some((name, sources.enums.get(name)?))) {
            Some((name, values)) => kind.replace(name, &format!("`{}`", values.join("`, `"))),
            None => kind,
        };
        let known = inner.filter(|name| sources.structs.contains_key(name));
        let kind = match &known {
            Some(name) => kind.replace(name, &format!("[{name}](#{})", name.to_lowercase())),
            None => kind,
        };
        pending.extend(known);
        writeln!(text, "| `{}` | {kind} | {} |", json_name(field), docs(&field.attrs))
            .expect("writing to a String does not fail");
    }
}

/// How a type is shown, and the innermost type in it.
fn shape(ty: &Type) -> (String, Option<String>) {
    let Type::Path(path) = ty else { return ("array".to_owned(), None) };
    let last = path.path.segments.last().expect("a type has a name");
    let inner = match &last.arguments {
        syn::PathArguments::AngleBracketed(it) => it
            .args
            .iter()
            .filter_map(|it| match it {
                syn::GenericArgument::Type(ty) => Some(shape(ty)),
                _ => None,
            })
            .next_back(),
        _ => None,
    };
    let name = last.ident.to_string();
    match (name.as_str(), inner) {
        ("Option", Some((kind, name))) => (format!("{kind}, optional"), name),
        ("Vec", Some((kind, name))) => (format!("array of {kind}"), name),
        ("BTreeMap", Some((kind, name))) => (format!("object of {kind}"), name),
        ("Arc" | "Box" | "Cow", Some(inner)) => inner,
        ("bool", _) => ("true or false".to_owned(), None),
        ("u8" | "u16" | "u32" | "u64" | "usize" | "i64" | "UnixSeconds", _) => {
            ("integer".to_owned(), None)
        }
        ("f64", _) => ("number".to_owned(), None),
        ("Roles", _) => ("array of string".to_owned(), None),
        (_, _) if KNOWN_TEXTS.contains(&name.as_str()) => ("string".to_owned(), None),
        _ => (name.clone(), Some(name)),
    }
}

/// Types that are a string in JSON.
const KNOWN_TEXTS: &[&str] = &[
    "String",
    "NodeId",
    "NodeName",
    "SiteName",
    "ServiceName",
    "SocketAddr",
    "VerifyKey",
    "Seed",
    "str",
];

fn json_name(field: &Field) -> String {
    field.ident.as_ref().expect("a named field").to_string()
}

/// `EndsSoon` as `ends-soon`.
fn kebab(name: &str) -> String {
    let mut text = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !text.is_empty() {
            text.push('-');
        }
        text.push(c.to_ascii_lowercase());
    }
    text
}

/// The documentation of an item as one line.
fn docs(attrs: &[Attribute]) -> String {
    let lines = attrs.iter().filter_map(|attr| match &attr.meta {
        Meta::NameValue(it) if it.path.is_ident("doc") => match &it.value {
            Expr::Lit(text) => match &text.lit {
                Lit::Str(text) => Some(text.value().trim().to_owned()),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    });
    let text = lines.collect::<Vec<_>>().join(" ");
    plain_links(text.trim()).replace('|', "\\|")
}

/// Without the links of rustdoc: `[text]` and `[text](path)` become `text`.
fn plain_links(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('[') {
        plain.push_str(before);
        let Some((label, behind)) = after.split_once(']') else {
            plain.push('[');
            rest = after;
            continue;
        };
        plain.push_str(label);
        rest = match behind.strip_prefix('(').and_then(|it| it.split_once(')')) {
            Some((_, behind)) => behind,
            None => behind,
        };
    }
    plain + rest
}

fn is_serialized(attrs: &[Attribute]) -> bool {
    attrs.iter().any(|attr| match &attr.meta {
        Meta::List(it) if it.path.is_ident("derive") => {
            it.tokens.to_string().split(',').any(|name| name.trim() == "Serialize")
        }
        _ => false,
    })
}

fn has_flag(attrs: &[Attribute], flag: &str) -> bool {
    attrs.iter().any(|attr| match &attr.meta {
        Meta::List(it) if it.path.is_ident("serde") => {
            it.tokens.to_string().split(',').any(|name| name.trim() == flag)
        }
        _ => false,
    })
}

fn is_query(it: &ItemImpl) -> bool {
    let of_request = it.trait_.as_ref().is_some_and(|(_, path, _)| path.is_ident("Request"));
    of_request
        && it.items.iter().any(|item| match item {
            syn::ImplItem::Const(it) if it.ident == "KIND" => match &it.expr {
                Expr::Path(path) => path.path.segments.last().is_some_and(|it| it.ident == "Query"),
                _ => false,
            },
            _ => false,
        })
}

fn reply(it: &ItemImpl) -> Option<String> {
    it.items.iter().find_map(|item| match item {
        syn::ImplItem::Type(it) if it.ident == "Reply" => shape(&it.ty).1,
        _ => None,
    })
}
