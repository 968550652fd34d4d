//! No circles of modules: a reader of a module needs only the modules that it uses.
//!
//! The files of a crate use each other by paths: in `use` declarations, and in code if they begin
//! with `crate` or `super`. A name that a file re-exports belongs to the original file. A module
//! with all its submodules counts as one module, and so does each submodule among its siblings.
//! Strings and macros are not parsed, and tests are skipped.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;

use meshport_tests::repository::{TrackedFile, tracked_with_suffix};

/// A file of a crate, and the paths in it.
struct File<'a> {
    path: &'a str,
    paths: Vec<Vec<&'a str>>,
}

/// The files of one crate by the path of their module.
type Modules<'a> = BTreeMap<Vec<&'a str>, File<'a>>;
/// The modules that each module uses, and a file that uses each, by path.
type Graph<'a> = BTreeMap<String, BTreeMap<String, &'a str>>;

/// Limit on re-exports followed to the file that defines a name.
const MAX_STEPS: usize = 8;

/// The circles in each crate, one line per use.
fn circles(files: &[TrackedFile]) -> Vec<String> {
    let mut crates: BTreeMap<&str, Modules<'_>> = BTreeMap::new();
    for TrackedFile { path, text } in files {
        let Some((package, name)) = path.split_once("src/") else { continue };
        let name = name.trim_end_matches(".rs").trim_end_matches("/mod");
        let names = name.split('/').filter(|it| !["lib", "main"].contains(it));
        let module: Vec<&str> = names.collect();
        if !module.contains(&"tests") {
            let file = File { path, paths: paths(text) };
            crates.entry(package).or_default().insert(module, file);
        }
    }
    crates.iter().flat_map(|(package, modules)| circles_of(&graph(package, modules))).collect()
}

fn circles_of(graph: &Graph<'_>) -> Vec<String> {
    let mut lines = Vec::new();
    for (module, uses) in graph {
        for (used, file) in uses {
            if reached(graph, used).contains(module.as_str()) {
                lines.push(format!("{module} uses {used} in {file}"));
            }
        }
    }
    lines
}

/// The modules that `module` uses, directly or through others.
fn reached<'a>(graph: &'a Graph<'_>, module: &'a str) -> BTreeSet<&'a str> {
    let (mut seen, mut waiting) = (BTreeSet::new(), vec![module]);
    while let Some(next) = waiting.pop() {
        let used = graph.get(next).into_iter().flat_map(BTreeMap::keys);
        waiting.extend(used.map(String::as_str).filter(|it| seen.insert(*it)));
    }
    seen
}

/// For modules that use each other, the modules directly below their common parent.
fn graph<'a>(package: &str, modules: &Modules<'a>) -> Graph<'a> {
    let mut graph = Graph::new();
    for (module, file) in modules {
        for used in file.paths.iter().filter_map(|path| resolve(modules, module, path)) {
            let common = iter::zip(module, used).take_while(|(one, other)| one == other).count();
            if common < module.len().min(used.len()) {
                let [from, to] =
                    [module, used].map(|it| format!("{package}src/{}", it[..=common].join("/")));
                graph.entry(from).or_default().insert(to, file.path);
            }
        }
    }
    graph
}

/// The module that a path refers to from `module`. `None` for other crates.
fn resolve<'m, 'a>(
    modules: &'m Modules<'a>,
    module: &[&'a str],
    path: &[&'a str],
) -> Option<&'m [&'a str]> {
    let (mut used, mut name) = step(modules, module, path)?;
    for _ in 0..MAX_STEPS {
        let Some(known) = name.filter(|it| !["*", "self"].contains(it)) else { break };
        let mut taken = modules[used].paths.iter().filter(|it| it.last() == Some(&known));
        let next = taken.find_map(|it| step(modules, used, it).filter(|(at, _)| *at != used));
        let Some(next) = next else { break };
        (used, name) = next;
    }
    Some(used)
}

/// The module whose file a path names, and the name in it.
fn step<'m, 'a>(
    modules: &'m Modules<'a>,
    module: &[&'a str],
    path: &[&'a str],
) -> Option<(&'m [&'a str], Option<&'a str>)> {
    let ups = path.iter().take_while(|it| **it == "super").count();
    let from_root = match path[0] {
        "crate" => path[1..].to_vec(),
        "self" => [module, &path[1..]].concat(),
        "super" => [&module[..module.len().checked_sub(ups)?], &path[ups..]].concat(),
        name if modules.contains_key(&[module, &[name]].concat()) => [module, path].concat(),
        _ => return None,
    };
    let mut prefixes = (0..=from_root.len()).rev().map(|length| &from_root[..length]);
    let (used, _) = prefixes.find_map(|it| modules.get_key_value(it))?;
    Some((used, from_root.get(used.len()).copied()))
}

/// The paths in a file: of each name that `use` declares, and those in code.
fn paths(text: &str) -> Vec<Vec<&str>> {
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let tokens: Vec<&str> = code.lines().flat_map(tokens).collect();
    let (mut found, mut at) = (Vec::new(), 0);
    while at + 1 < tokens.len() {
        let begins = ["crate", "super"].contains(&tokens[at]) && tokens[at + 1] == "::";
        at = match tokens[at] {
            "use" => add_tree(&tokens, at + 1, &[], &mut found),
            _ if begins => add_tree(&tokens, at, &[], &mut found),
            _ => at + 1,
        };
    }
    found
}

/// The words and punctuation of a line without its comment.
fn tokens(line: &str) -> impl Iterator<Item = &str> {
    let mut rest = line.split("//").next().unwrap_or_default();
    iter::from_fn(move || {
        rest = rest.trim_start();
        let word = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let mark = if rest.starts_with("::") { 2 } else { rest.chars().next()?.len_utf8() };
        let (token, after) = rest.split_at(if word > 0 { word } else { mark });
        rest = after;
        Some(token)
    })
}

/// Adds the paths of the tree that begins at `at`, each after `head`. Returns where the tree ends.
fn add_tree<'a>(
    tokens: &[&'a str],
    mut at: usize,
    head: &[&'a str],
    found: &mut Vec<Vec<&'a str>>,
) -> usize {
    let mut path = head.to_vec();
    while let Some(token) = tokens.get(at).filter(|it| **it != "{") {
        path.push(*token);
        at += 1;
        if tokens.get(at) != Some(&"::") {
            found.push(path);
            return if tokens.get(at) == Some(&"as") { at + 2 } else { at };
        }
        at += 1;
    }
    while tokens.get(at).is_some_and(|it| *it != "}") {
        at += 1;
        // The last name may have a comma after it.
        if tokens.get(at) != Some(&"}") {
            at = add_tree(tokens, at, &path, found);
        }
    }
    at + 1
}

#[test]
fn modules_do_not_use_each_other_in_a_circle() {
    let found = circles(&tracked_with_suffix(".rs"));
    assert!(found.is_empty(), "modules that use each other:\n{}", found.join("\n"));
}

#[test]
fn a_planted_circle_is_seen() {
    let circles_in = |texts: [&str; 5]| {
        let paths =
            ["p/src/lib.rs", "p/src/a.rs", "p/src/a/part.rs", "p/src/a/other.rs", "p/src/b.rs"];
        let files = paths.into_iter().zip(texts).map(|(path, text)| {
            let (path, text) = (path.to_owned(), text.to_owned());
            TrackedFile { path, text }
        });
        circles(&files.collect::<Vec<_>>())
    };
    let a = "mod part;\nuse part::{C as D};\nuse crate::b::{self, A};";
    let tests = "// use super::a;\n#[cfg(test)]\nmod tests {\n    use crate::a::B;\n}";
    assert_eq!(circles_in(["mod a;\nuse a::X;", a, "use super::*;", "", tests]), [""; 0]);
    let both = ["p/src/a uses p/src/b in p/src/a.rs", "p/src/b uses p/src/a in p/src/b.rs"];
    for b in ["use super::{lib, a::{x::Y, B},};", "fn f() -> crate::a::B {}", "use crate::{a};"] {
        assert_eq!(circles_in(["", a, "", "", b]), both, "{b}");
    }
    // The name belongs to `a`, whatever else the root has.
    let root = "mod a;\nmod b;\npub use a::{Y, X};\nfn f() -> crate::X {}";
    assert_eq!(circles_in([root, a, "", "", "use crate::X;"]), both);
    // No file here uses itself through others, but each of the modules does.
    let folders = ["p/src/a uses p/src/b in p/src/a/part.rs", both[1]];
    assert_eq!(circles_in(["", "", "use crate::b::A;", "", "use crate::a::other::B;"]), folders);
    // Inside a module.
    let siblings = ["part", "other"].map(|it| format!("p/src/a/{it}"));
    let [part, other] = &siblings;
    let within = [(other, part), (part, other)]
        .map(|(user, used)| format!("{user} uses {used} in {user}.rs"));
    assert_eq!(circles_in(["", "", "use super::other::A;", "use super::part;", ""]), within);
}
