//! No circles of files: a reader of a file needs only the files that it uses.
//!
//! The files of a crate use each other by paths: in `use` declarations, and in code if they begin
//! with `crate` or `super`. A file and the files of its submodules may use each other; together
//! they are one module. Strings and macros are not understood, and tests are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;

use meshport_tests::repository::{TrackedFile, tracked_with_suffix};

/// The files of one crate by the path of their module.
type Modules<'a> = BTreeMap<Vec<&'a str>, &'a TrackedFile>;
/// The files that each file uses, by their paths.
type Graph<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// The circles in each crate: the paths of the files that use each other.
fn circles(files: &[TrackedFile]) -> Vec<String> {
    let mut crates: BTreeMap<&str, Modules<'_>> = BTreeMap::new();
    for file in files {
        let Some((package, path)) = file.path.split_once("src/") else { continue };
        let path = path.trim_end_matches(".rs").trim_end_matches("/mod");
        let names = path.split('/').filter(|it| !["lib", "main"].contains(it));
        let module: Vec<&str> = names.collect();
        if !module.contains(&"tests") {
            crates.entry(package).or_default().insert(module, file);
        }
    }
    crates.values().flat_map(|modules| circles_of(&graph(modules))).collect()
}

fn circles_of(graph: &Graph<'_>) -> BTreeSet<String> {
    let reached: Graph<'_> = graph.keys().map(|file| (*file, reached(graph, file))).collect();
    let in_circles = reached.iter().filter(|(file, others)| others.contains(*file));
    let circles = in_circles.map(|(file, others)| {
        let circle = others.iter().filter(|it| reached[**it].contains(file)).copied();
        circle.collect::<Vec<_>>().join(" ")
    });
    circles.collect()
}

/// The files that `file` uses, directly or through others.
fn reached<'a>(graph: &Graph<'a>, file: &'a str) -> BTreeSet<&'a str> {
    let (mut seen, mut waiting) = (BTreeSet::new(), vec![file]);
    while let Some(next) = waiting.pop() {
        waiting.extend(graph[next].iter().filter(|used| seen.insert(**used)));
    }
    seen
}

fn graph<'a>(modules: &Modules<'a>) -> Graph<'a> {
    let edges = modules.iter().map(|(module, file)| {
        let paths = paths(&file.text);
        let used = paths.iter().filter_map(|path| resolve(modules, module, path));
        (file.path.as_str(), used.collect())
    });
    edges.collect()
}

/// The file that a path leads to from the file of `module`. None for the files of `module` and of
/// those around it, and for other crates.
fn resolve<'a>(modules: &Modules<'a>, module: &[&str], path: &[&str]) -> Option<&'a str> {
    let ups = path.iter().take_while(|it| **it == "super").count();
    let from_root = match path[0] {
        "crate" => path[1..].to_vec(),
        "self" => [module, &path[1..]].concat(),
        "super" => [&module[..module.len().checked_sub(ups)?], &path[ups..]].concat(),
        name if modules.contains_key(&[module, &[name]].concat()) => [module, path].concat(),
        _ => return None,
    };
    let mut prefixes = (0..=from_root.len()).rev().map(|length| &from_root[..length]);
    let used = prefixes.find(|it| modules.contains_key(*it))?;
    (!module.starts_with(used)).then(|| modules[used].path.as_str())
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

/// The words and marks of a line without its comment.
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
fn files_do_not_use_each_other_in_a_circle() {
    let found = circles(&tracked_with_suffix(".rs"));
    assert!(found.is_empty(), "files that use each other:\n{}", found.join("\n"));
}

#[test]
fn a_planted_circle_is_seen() {
    let circles_in = |texts: [&str; 4]| {
        let paths = ["p/src/lib.rs", "p/src/a.rs", "p/src/a/part.rs", "p/src/b.rs"];
        let files = paths.into_iter().zip(texts).map(|(path, text)| {
            let (path, text) = (path.to_owned(), text.to_owned());
            TrackedFile { path, text }
        });
        circles(&files.collect::<Vec<_>>())
    };
    let a = "mod part;\nuse part::{C as D};\nuse crate::b::{self, A};";
    let tests = "// use super::a;\n#[cfg(test)]\nmod tests {\n    use crate::a::B;\n}";
    assert_eq!(circles_in(["mod a;\nuse a::X;", a, "use super::*;", tests]), [""; 0]);
    for b in ["use super::{lib, a::{x::Y, B},};", "fn f() -> crate::a::B {}", "use crate::{a};"] {
        assert_eq!(circles_in(["", a, "", b]), ["p/src/a.rs p/src/b.rs"], "{b}");
    }
    let part = "use super::super::b::A;";
    let all = ["p/src/a.rs p/src/a/part.rs p/src/b.rs"];
    assert_eq!(circles_in(["", "use part::C;", part, "use super::a;"]), all);
}
