//! What the sources of the program tell of its JSON and its exit codes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::{
    Arm, Attribute, Expr, ExprLit, Fields, ImplItem, Item, ItemEnum, ItemImpl, ItemStruct, Lit,
    Meta, Pat, Stmt, Type,
};

/// Folders with types that are printed as JSON.
const FOLDERS: [&str; 3] = ["proxy/daemon/src/admin", "proxy/core/src", "proxy/src/cli"];
/// The same in folders that also have types of other formats.
const FILES: [&str; 2] = ["config/src/settings/problem.rs", "proxy/demo/src/table.rs"];
/// The errors with their exit codes.
const ERRORS: &str = "proxy/daemon/src/error.rs";
/// The file with the exit code that is not one of an error.
const OUTPUT: &str = "proxy/src/cli/output.rs";
/// The constant with that code.
const CLOSED_PIPE: &str = "CLOSED_PIPE";

/// What is known of the sources.
#[derive(Default)]
pub(crate) struct Sources {
    /// Types by name; several files may have one of the same name.
    structs: BTreeMap<String, Vec<Found<ItemStruct>>>,
    /// The same for enums that are one of several objects.
    unions: BTreeMap<String, Vec<Found<ItemEnum>>>,
    /// What the values of enums without data are called.
    words: BTreeMap<String, Vec<String>>,
    /// Types of the answers of queries.
    pub(crate) replies: BTreeSet<String>,
}

/// A type and its file, as a module: `delegate`.
pub(crate) struct Found<T> {
    pub(crate) module: String,
    pub(crate) item: T,
}

/// Reads the modules of the admin interface and of the command line.
pub(crate) fn sources(root: &Path) -> Sources {
    let mut files: Vec<PathBuf> = FILES.map(|file| root.join(file)).into();
    for folder in FOLDERS {
        rust_files(&root.join(folder), &mut files);
    }
    let mut sources = Sources::default();
    for file in files {
        let module = file.file_stem().expect("a file has a name").to_string_lossy();
        sources.take(&module, &fs::read_to_string(&file).expect("a source"));
    }
    sources
}

fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|it| it == "rs") {
            files.push(path);
        }
    }
}

impl Sources {
    fn take(&mut self, module: &str, text: &str) {
        for item in syn::parse_file(text).expect("sources parse").items {
            let module = module.to_owned();
            match item {
                Item::Struct(item) if is_serialized(&item.attrs) => {
                    let all = self.structs.entry(item.ident.to_string()).or_default();
                    all.push(Found { module, item });
                }
                Item::Enum(item) if has_flag(&item.attrs, "untagged") => {
                    let all = self.unions.entry(item.ident.to_string()).or_default();
                    all.push(Found { module, item });
                }
                Item::Enum(it) if is_serialized(&it.attrs) => {
                    let values = it.variants.iter().map(|it| kebab(&it.ident.to_string()));
                    self.words.insert(it.ident.to_string(), values.collect());
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

    /// The type that a module means by a name: its own, or the only one.
    pub(crate) fn find(&self, name: &str, module: &str) -> Option<&Found<ItemStruct>> {
        choose(self.structs.get(name)?, name, module)
    }

    /// The same for one of several objects.
    pub(crate) fn union(&self, name: &str, module: &str) -> Option<&Found<ItemEnum>> {
        choose(self.unions.get(name)?, name, module)
    }

    /// The values of an enum without data.
    pub(crate) fn words(&self, name: &str) -> Option<&[String]> {
        self.words.get(name).map(Vec::as_slice)
    }
}

fn choose<'a, T>(all: &'a [Found<T>], name: &str, module: &str) -> Option<&'a Found<T>> {
    let own = all.iter().find(|it| it.module == module);
    own.or_else(|| {
        assert!(all.len() == 1, "several types are called {name}, none of them in {module}");
        all.first()
    })
}

/// The exit codes, each with the meanings of what ends with it.
pub(crate) fn exit_codes(root: &Path) -> BTreeMap<u8, Vec<String>> {
    let mut meanings: BTreeMap<String, String> = BTreeMap::new();
    let mut arms: Vec<Arm> = Vec::new();
    for item in items(&root.join(ERRORS)) {
        match item {
            Item::Enum(it) if it.ident == "Error" => {
                let meaning = |it: &syn::Variant| (it.ident.to_string(), docs(&it.attrs));
                meanings = it.variants.iter().map(meaning).collect();
            }
            Item::Impl(it) if it.trait_.is_none() => arms.extend(arms_of(&it, "exit_code")),
            _ => {}
        }
    }
    let done = "Done, or the answer is yes.".to_owned();
    let mut codes: BTreeMap<u8, Vec<String>> = BTreeMap::from([(0, vec![done])]);
    for arm in arms {
        let of_arm = variants(&arm.pat).into_iter().map(|variant| {
            meanings.remove(&variant).unwrap_or_else(|| panic!("{variant} has two exit codes"))
        });
        codes.entry(number(&arm.body)).or_default().extend(of_arm);
    }
    assert!(meanings.is_empty(), "errors without an exit code: {meanings:?}");
    let constant = items(&root.join(OUTPUT)).into_iter().find_map(|item| match item {
        Item::Const(it) if it.ident == CLOSED_PIPE => Some((number(&it.expr), docs(&it.attrs))),
        _ => None,
    });
    let (code, meaning) = constant.expect("the code for a closed output");
    codes.entry(code).or_default().push(meaning);
    codes
}

fn items(file: &Path) -> Vec<Item> {
    let text = fs::read_to_string(file).expect("a source");
    syn::parse_file(&text).expect("sources parse").items
}

fn number(it: &Expr) -> u8 {
    match it {
        Expr::Lit(ExprLit { lit: Lit::Int(it), .. }) => {
            it.base10_parse().expect("an exit code is small")
        }
        _ => panic!("an exit code is a number"),
    }
}

/// The arms of the `match` that a method consists of.
fn arms_of(it: &ItemImpl, method: &str) -> Vec<Arm> {
    it.items
        .iter()
        .find_map(|item| match item {
            ImplItem::Fn(it) if it.sig.ident == method => match &it.block.stmts[..] {
                [Stmt::Expr(Expr::Match(it), None)] => Some(it.arms.clone()),
                _ => panic!("{method} is not one match"),
            },
            _ => None,
        })
        .unwrap_or_default()
}

/// The names of the variants in a pattern.
fn variants(pattern: &Pat) -> Vec<String> {
    let path = match pattern {
        Pat::Or(it) => return it.cases.iter().flat_map(variants).collect(),
        Pat::TupleStruct(it) => &it.path,
        Pat::Struct(it) => &it.path,
        Pat::Path(it) => &it.path,
        _ => panic!("a pattern of another kind"),
    };
    vec![path.segments.last().expect("a path has a name").ident.to_string()]
}

/// How a type is shown, and the innermost type in it.
pub(crate) fn shape(ty: &Type) -> (String, Option<String>) {
    let path = match ty {
        Type::Path(path) => path,
        Type::Reference(it) => return shape(&it.elem),
        _ => return ("array".to_owned(), None),
    };
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
        ("Settings", _) => ("object".to_owned(), None),
        (_, _) if KNOWN_TEXTS.contains(&name.as_str()) => ("string".to_owned(), None),
        _ => (name.clone(), Some(name)),
    }
}

/// Types that are a string in JSON.
const KNOWN_TEXTS: &[&str] = &[
    "String",
    "MeshId",
    "NodeId",
    "NodeName",
    "SiteName",
    "ServiceName",
    "ListenerName",
    "GroupName",
    "VirtualName",
    "PathBuf",
    "SocketAddr",
    "IpAddr",
    "VerifyKey",
    "Seed",
    "str",
];

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
pub(crate) fn docs(attrs: &[Attribute]) -> String {
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

/// What serde is told of an item: `flatten`, `rename = "ways"`.
fn flags(attrs: &[Attribute]) -> impl Iterator<Item = String> {
    attrs.iter().flat_map(|attr| match &attr.meta {
        Meta::List(it) if it.path.is_ident("serde") => {
            it.tokens.to_string().split(',').map(|flag| flag.trim().to_owned()).collect()
        }
        _ => Vec::new(),
    })
}

pub(crate) fn has_flag(attrs: &[Attribute], flag: &str) -> bool {
    flags(attrs).any(|it| it == flag)
}

/// The name that replaces that of a field.
pub(crate) fn other_name(attrs: &[Attribute]) -> Option<String> {
    flags(attrs).find_map(|flag| {
        let name = flag.strip_prefix("rename = \"")?;
        Some(name.trim_end_matches('"').to_owned())
    })
}

fn is_query(it: &ItemImpl) -> bool {
    let of_request = it.trait_.as_ref().is_some_and(|(_, path, _)| path.is_ident("Request"));
    of_request
        && it.items.iter().any(|item| match item {
            ImplItem::Const(it) if it.ident == "KIND" => match &it.expr {
                Expr::Path(path) => path.path.segments.last().is_some_and(|it| it.ident == "Query"),
                _ => false,
            },
            _ => false,
        })
}

fn reply(it: &ItemImpl) -> Option<String> {
    it.items.iter().find_map(|item| match item {
        ImplItem::Type(it) if it.ident == "Reply" => shape(&it.ty).1,
        _ => None,
    })
}

/// One of several objects.
pub(crate) enum Case<'a> {
    /// The fields of this type.
    Of(&'a Type),
    /// These.
    Fields(&'a Fields),
}

/// The objects that a union may be.
pub(crate) fn cases(it: &ItemEnum) -> Vec<Case<'_>> {
    it.variants
        .iter()
        .map(|variant| match &variant.fields {
            Fields::Unnamed(fields) => Case::Of(&fields.unnamed[0].ty),
            fields => Case::Fields(fields),
        })
        .collect()
}
