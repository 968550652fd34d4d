//! The keys of a result are those of the table in REFERENCE.md, and null where the table requires
//! it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use meshport_simulations::report::keys::{self, KEYS, Level};
use serde_json::Value;

const REFERENCE: &str = include_str!("../../REFERENCE.md");
/// Two sites between which nothing passes any more, though no path is down, which is a violation.
const SILENT: &str = "
description = \"Two sites that do not hear each other\"
duration-s = 120
site = [{ name = \"fra\", nodes = 2, origins = 1 }, { name = \"ams\", nodes = 2 }]
event = [{ at-s = 40, degrade = { between = [\"fra\", \"ams\"], loss-percent = 100 } }]
";

/// The keys of a result, and those of them that are null somewhere.
#[derive(Debug, Default)]
struct Found {
    all: BTreeSet<String>,
    null: BTreeSet<String>,
}

impl Found {
    fn add(&mut self, path: &str, value: &Value) {
        match value {
            Value::Object(table) => {
                for (key, value) in table {
                    let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                    self.add(&path, value);
                }
            }
            Value::Array(list) if list.iter().all(Value::is_object) => {
                list.iter().for_each(|value| self.add(&format!("{path}[]"), value));
            }
            _ => {
                let in_table = KEYS.iter().find(|key| is(key.path, path));
                let path = in_table.map_or(path, |key| key.path).to_owned();
                if value.is_null() {
                    self.null.insert(path.clone());
                }
                self.all.insert(path);
            }
        }
    }
}

/// Whether a key of the table covers this path of a result.
fn is(key: &str, path: &str) -> bool {
    let prefix = key.strip_suffix(".*");
    let is_below = |prefix: &str| {
        path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    prefix.map_or(key == path, is_below)
}

fn found(file: &Path, arguments: &[&str]) -> Found {
    let mut command = Command::new(crate::program());
    command.arg("run").arg(file).args(arguments).args(["--seed", "7", "--json", "-"]);
    let output = command.stdin(Stdio::null()).output().expect("the program starts");
    let result: Value = serde_json::from_slice(&output.stdout).expect("a result");
    let mut found = Found::default();
    found.add("", &result);
    found
}

fn kill() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compared/kill.toml")
}

#[test]
fn the_table_of_keys_has_those_that_a_result_has() {
    let silent = Path::new(env!("CARGO_TARGET_TMPDIR")).join("keys-silent.toml");
    fs::write(&silent, SILENT).expect("a file");
    let mut there = found(&kill(), &["--costs"]).all;
    there.extend(found(&silent, &[]).all);
    let told: BTreeSet<String> = KEYS.iter().map(|key| key.path.to_owned()).collect();
    assert_eq!(told, there);
}

#[test]
fn what_the_full_level_cannot_know_is_null_and_nothing_else() {
    // Quiet times before the fault.
    let sets = ["--set", "scenario.event.0.at-s=50", "--set", "scenario.duration-s=70"];
    let null = |level: &str| found(&kill(), &[&sets[..], &[level]].concat()).null;
    let (wide, full) = (null("--costs"), null("--full"));
    let unknown = KEYS.iter().filter(|key| !Level::Full.knows(key.path));
    let unknown: BTreeSet<String> = unknown.map(|key| key.path.to_owned()).collect();
    assert!(unknown.contains("news_p99_s") && !unknown.contains("false_suspicions"));
    assert_eq!(full.difference(&wide).cloned().collect::<BTreeSet<_>>(), unknown);
    assert!(KEYS.iter().all(|key| Level::Wide.knows(key.path)));
}

#[test]
fn the_table_of_keys_in_the_reference_is_that_of_the_code() {
    let (_, rest) = REFERENCE.split_once("<!-- result: begin -->\n").expect("a begin");
    let (kept, _) = rest.split_once("\n<!-- result: end -->").expect("an end");
    assert!(
        kept.trim() == keys::markdown().trim(),
        "simulations/REFERENCE.md is outdated: put the output of `meshport-sim reference \
         --result` between the markers"
    );
}
