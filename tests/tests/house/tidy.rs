//! House rules that the compiler does not check: sizes, leftovers, machine-specific paths, links,
//! reasons.
//!
//! Each rule is a plain function from a file to its findings, tested on a bad sample below.
//! Forbidden words are assembled from parts here, so that this file passes its own rules.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use meshport_tests::repository::{TrackedFile, root, tracked_files, tracked_with_suffix};

/// Maximum lines in a source file; a longer file has more than one responsibility.
const MAX_FILE_LINES: usize = 600;
/// Maximum columns in a line of source.
const MAX_COLUMNS: usize = 100;
/// Maximum fields of a struct; a larger one is several things that only partly belong together.
const MAX_FIELDS: usize = 15;
/// Structs that mirror a file that people write, one field per key.
const MIRRORS_OF_FILES: [&str; 3] = ["Event", "Scenario", "ServiceSettings"];

/// Leftovers of unfinished work.
const LEFTOVERS: [&str; 4] =
    [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X"), concat!("db", "g!")];
/// Folders that exist only on one machine.
const MACHINE_FOLDERS: [&str; 3] =
    [concat!("/wo", "rk"), concat!("/ro", "ot"), concat!("/fa", "rm")];
/// A folder next to one checkout that clones do not have.
const BESIDE_THE_CLONE: &str = concat!("..", "/shared");
/// Hosts that serve packages; only the lock file may name where packages come from.
const PACKAGE_HOSTS: [&str; 6] = [
    concat!("crates", ".io"),
    concat!("registry.npm", "js.org"),
    concat!("py", "pi.org"),
    concat!("pythonho", "sted.org"),
    concat!("deb.de", "bian.org"),
    concat!("proxy.gol", "ang.org"),
];
/// The files that may contain `unsafe`; the compiler denies it elsewhere, and clippy requires a
/// SAFETY comment for each.
const UNSAFE_FILES: [&str; 7] = [
    "mesh/src/steer.rs",
    "proxy/daemon/src/lifecycle/heap.rs",
    "proxy/daemon/src/tcp/store.rs",
    "proxy/daemon/src/vip/packet.rs",
    "simulations/src/heap.rs",
    "simulations/src/interpose.rs",
    "tests/src/net/tun.rs",
];
/// Commands that a reader must be able to copy from the README.
const README_COMMANDS: [&str; 2] = ["cargo run --release -- demo", "./tests/run"];

fn too_large(file: &TrackedFile) -> Vec<String> {
    let lines = file.text.lines().count();
    let mut found = Vec::new();
    if lines > MAX_FILE_LINES {
        found.push(format!("{}: {lines} lines, more than {MAX_FILE_LINES}", file.path));
    }
    for (number, line) in numbered(&file.text) {
        let columns = line.chars().count();
        if columns > MAX_COLUMNS {
            found.push(format!("{}:{number}: {columns} columns", file.path));
        }
    }
    found
}

/// Structs with too many fields. The sources are formatted, so a field is a line four columns to
/// the right of its struct.
fn too_wide(file: &TrackedFile) -> Vec<String> {
    let mut found = Vec::new();
    let mut lines = numbered(&file.text);
    while let Some((number, line)) = lines.next() {
        let indent = line.len() - line.trim_start().len();
        let Some((before, rest)) = line.split_once("struct ") else { continue };
        let is_open = line.ends_with('{') && (before.trim().is_empty() || before.contains("pub"));
        let name = rest.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        if !is_open || MIRRORS_OF_FILES.contains(&name) {
            continue;
        }
        let inside = lines.by_ref().map(|(_, line)| line);
        let inside = inside.take_while(|line| *line != format!("{:indent$}}}", ""));
        let is_field = |line: &&str| {
            let field = line.get(indent + 4..).filter(|_| line[..indent + 4].trim().is_empty());
            let name = field.and_then(|it| it.split_once(": ")).map(|(name, _)| name);
            let name = name.and_then(|it| it.rsplit(' ').next()).unwrap_or_default();
            let is_word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            !name.is_empty() && name.chars().all(is_word) && !line.trim().starts_with("//")
        };
        let fields = inside.filter(is_field).count();
        if fields > MAX_FIELDS {
            let path = &file.path;
            found.push(format!("{path}:{number}: {fields} fields, more than {MAX_FIELDS}"));
        }
    }
    found
}

fn leftovers(file: &TrackedFile) -> Vec<String> {
    lines_with(file, |line| LEFTOVERS.into_iter().find(|word| stands_alone(line, word)))
}

fn machine_names(file: &TrackedFile) -> Vec<String> {
    lines_with(file, |line| {
        let mut folders = MACHINE_FOLDERS.into_iter();
        folders.find(|folder| begins_a_path(line, folder)).or_else(|| {
            let beside = line.contains(BESIDE_THE_CLONE).then_some(BESIDE_THE_CLONE);
            beside.or_else(|| PACKAGE_HOSTS.into_iter().find(|host| is_in_an_address(line, host)))
        })
    })
}

/// Whether `line` contains `word` with no letter, digit or underscore around it.
fn stands_alone(line: &str, word: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(is_word) && !line[at + word.len()..].starts_with(is_word)
    })
}

/// Whether an absolute path in `line` begins with `folder`.
fn begins_a_path(line: &str, folder: &str) -> bool {
    let continues = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
    let joins = |c: char| continues(c) || matches!(c, '/' | '}' | ')' | ']' | '*' | '$');
    line.match_indices(folder).any(|(at, _)| {
        !line[..at].ends_with(joins) && !line[at + folder.len()..].starts_with(continues)
    })
}

/// Whether `host` is the host of an address in `line`, or the end of it.
fn is_in_an_address(line: &str, host: &str) -> bool {
    line.split("://").skip(1).any(|rest| {
        let end = rest.find(|c: char| !(c.is_alphanumeric() || matches!(c, '.' | '-')));
        rest[..end.unwrap_or(rest.len())].ends_with(host)
    })
}

/// Broken relative links of a Markdown file. `others` holds every tracked Markdown file.
fn dead_links(
    file: &TrackedFile,
    others: &BTreeMap<String, String>,
    files: &BTreeSet<String>,
) -> Vec<String> {
    let mut found = Vec::new();
    for (number, target) in links(&file.text) {
        let (path, anchor) = target.split_once('#').unwrap_or((&target, ""));
        let resolved = if path.is_empty() { file.path.clone() } else { resolve(&file.path, path) };
        let folder = format!("{}/", resolved.trim_end_matches('/'));
        let is_there = files.contains(&resolved) || files.iter().any(|it| it.starts_with(&folder));
        if !is_there {
            found.push(format!("{}:{number}: {target} leads nowhere", file.path));
            continue;
        }
        let Some(text) = others.get(&resolved).filter(|_| !anchor.is_empty()) else { continue };
        if !anchors(text).contains(anchor) {
            found.push(format!("{}:{number}: {resolved} has no heading #{anchor}", file.path));
        }
    }
    found
}

/// The relative targets of `[text](target)` outside code blocks, with their line.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose_lines(text) {
        for (at, _) in line.match_indices("](") {
            let rest = &line[at + 2..];
            let target = &rest[..rest.find([')', ' ']).unwrap_or(rest.len())];
            if !target.contains("://") && !target.starts_with("mailto:") {
                found.push((number, target.to_owned()));
            }
        }
    }
    found
}

/// The anchors of a Markdown text's headings: lower case, spaces as dashes, punctuation removed.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose_lines(text).into_iter().filter(|(_, line)| line.starts_with('#'));
    let slug = |line: &str| -> String {
        let kept = line.trim_start_matches('#').trim().to_lowercase();
        let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(|(_, line)| slug(line)).collect()
}

fn prose_lines(text: &str) -> Vec<(usize, &str)> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for (number, line) in numbered(text) {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            lines.push((number, line));
        }
    }
    lines
}

fn resolve(from: &str, target: &str) -> String {
    let joined = Path::new(from).parent().unwrap_or(Path::new("")).join(target);
    let mut resolved = PathBuf::new();
    for part in joined.components() {
        match part {
            Component::ParentDir => _ = resolved.pop(),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
            Component::Normal(name) => resolved.push(name),
        }
    }
    resolved.to_string_lossy().into_owned()
}

fn missing_commands(readme: &str) -> Vec<String> {
    let missing = README_COMMANDS.iter().filter(|command| !readme.contains(**command));
    missing.map(|command| format!("README.md does not name the command {command}")).collect()
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(index, line)| (index + 1, line))
}

fn lines_with(file: &TrackedFile, rule: impl Fn(&str) -> Option<&'static str>) -> Vec<String> {
    let found = numbered(&file.text).filter_map(|(number, line)| Some((number, rule(line)?)));
    found.map(|(number, what)| format!("{}:{number}: {what}", file.path)).collect()
}

fn assert_clean(files: &[TrackedFile], rule: impl Fn(&TrackedFile) -> Vec<String>) {
    let found: Vec<String> = files.iter().flat_map(rule).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn sources_are_small() {
    assert_clean(&tracked_with_suffix(".rs"), too_large);
}

#[test]
fn types_are_small() {
    assert_clean(&tracked_with_suffix(".rs"), too_wide);
}

#[test]
fn nothing_is_left_over() {
    assert_clean(&tracked_files(), leftovers);
}

#[test]
fn nothing_names_one_machine_or_a_package_host() {
    let files: Vec<_> = tracked_files().into_iter().filter(|it| it.path != "Cargo.lock").collect();
    assert_clean(&files, machine_names);
}

#[test]
fn unsafe_code_is_where_it_is_expected() {
    let lifted = concat!("expect(unsafe", "_code");
    let files = tracked_with_suffix(".rs").into_iter().filter(|it| it.text.contains(lifted));
    let files: Vec<String> = files.map(|it| it.path).collect();
    assert_eq!(files, UNSAFE_FILES);
}

#[test]
fn links_lead_somewhere() {
    let files = tracked_files();
    let names: BTreeSet<String> = files.iter().map(|file| file.path.clone()).collect();
    let pages: Vec<TrackedFile> =
        files.into_iter().filter(|file| file.path.ends_with(".md")).collect();
    let texts = pages.iter().map(|page| (page.path.clone(), page.text.clone())).collect();
    assert_clean(&pages, |page| dead_links(page, &texts, &names));
}

#[test]
fn the_readme_names_the_two_commands() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap_or_default();
    let missing = missing_commands(&readme);
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

mod bad_samples {
    use super::*;

    fn sample(text: &str) -> TrackedFile {
        TrackedFile { path: "docs/sample.md".into(), text: text.into() }
    }

    #[test]
    fn long_files_and_lines_are_seen() {
        assert_eq!(too_large(&sample(&"x\n".repeat(MAX_FILE_LINES))), Vec::<String>::new());
        assert_eq!(too_large(&sample(&"x\n".repeat(MAX_FILE_LINES + 1))).len(), 1);
        assert_eq!(too_large(&sample(&"ä".repeat(MAX_COLUMNS))), Vec::<String>::new());
        assert_eq!(too_large(&sample(&"x".repeat(MAX_COLUMNS + 1))).len(), 1);
    }

    #[test]
    fn wide_structs_are_seen() {
        let of = |name: &str, fields: usize| {
            let fields: String = (0..fields)
                .map(|at| format!("    /// Of two: words.\n    pub(crate) field_{at}: u8,\n"))
                .collect();
            sample(&format!("#[derive(Debug)]\npub struct {name} {{\n{fields}}}\n"))
        };
        assert_eq!(too_wide(&of("Wide", MAX_FIELDS)), [] as [&str; 0]);
        assert_eq!(too_wide(&of("Wide", MAX_FIELDS + 1)).len(), 1);
        assert_eq!(too_wide(&of("Scenario", MAX_FIELDS + 1)), [] as [&str; 0]);
        let inner = of("Wide", MAX_FIELDS + 1).text.replace("\n", "\n    ");
        assert_eq!(too_wide(&sample(&format!("fn a() {{\n    {inner}"))).len(), 1);
    }

    #[test]
    fn each_leftover_is_seen() {
        for word in LEFTOVERS {
            assert_eq!(leftovers(&sample(&format!("// {word}: later"))).len(), 1, "{word}");
        }
        let template = format!("mktemp {}{}", LEFTOVERS[2], LEFTOVERS[2]);
        assert_eq!(leftovers(&sample(&template)), Vec::<String>::new());
    }

    #[test]
    fn each_machine_name_is_seen() {
        for folder in MACHINE_FOLDERS {
            for line in [format!("\"{folder}/x\""), format!("cd {folder}"), format!("`{folder}`")] {
                assert_eq!(machine_names(&sample(&line)).len(), 1, "{line}");
            }
            let harmless = format!("{folder}space a{folder} $DIR{folder}/x");
            assert_eq!(machine_names(&sample(&harmless)), Vec::<String>::new());
        }
        assert_eq!(machine_names(&sample(&format!("see {BESIDE_THE_CLONE}/X.md"))).len(), 1);
        for host in PACKAGE_HOSTS {
            assert_eq!(machine_names(&sample(&format!("https://mirror.{host}/x"))).len(), 1);
            assert_eq!(machine_names(&sample(&format!("only {host}"))), Vec::<String>::new());
        }
    }

    #[test]
    fn dead_links_and_anchors_are_seen() {
        let page = "# One Two!\n[a](../README.md) [b](#one-two) [c](https://example.com/x)\n\
                    ```\n[in code](nowhere.md)\n```\n[dead](nowhere.md) [gone](#three) \
                    [dir](../docs)";
        let file = sample(page);
        let names = ["README.md", "docs/sample.md"].map(str::to_owned).into_iter().collect();
        let texts = BTreeMap::from([(file.path.clone(), page.to_owned())]);
        let found = dead_links(&file, &texts, &names);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("nowhere.md") && found[1].contains("#three"));
    }

    #[test]
    fn a_readme_without_the_commands_is_seen() {
        assert_eq!(missing_commands("run ./tests/run").len(), 1);
    }
}
