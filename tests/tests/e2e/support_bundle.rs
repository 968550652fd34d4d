//! `meshport support-bundle` on a real node, with its daemon and without: its content, its owner,
//! and that it contains no secret of the state folder, not even one that was logged.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use data_encoding::{BASE64, BASE64URL_NOPAD, HEXLOWER};
use meshport_config::{Mandate, NodeKey};
use meshport_tests::process::{meshport, run_ok};
use meshport_tests::world::{NodePlan, World};
use serde_json::Value;

use crate::secrets::{Secret, search};

const SETTLE: Duration = Duration::from_secs(40);
/// Answers of a running daemon.
const ANSWERS: [&str; 7] = [
    "status.json",
    "explain.json",
    "routes.json",
    "peers.json",
    "seeds.json",
    "credentials.json",
    "metrics.txt",
];
/// Files that are included even without a daemon.
const ALWAYS: [&str; 9] = [
    "README.txt",
    "version.json",
    "doctor.json",
    "doctor.txt",
    "configuration.toml",
    "check.json",
    "state-folder.txt",
    "process/limits.txt",
    "sockets/udp.txt",
];

fn make(world: &World, node: &str, output: &Path, path: &str) -> Output {
    let mut command = Command::new(meshport());
    command.args(["support-bundle", "--json", "--output"]).arg(output);
    command.arg("--config").arg(world.path(&format!("{node}.toml")));
    command.env("PATH", path).env("HOME", world.path("home")).env("KUBECONFIG", world.path("none"));
    command.output().expect("it runs")
}

/// A `journalctl` that prints a file.
fn journal(world: &World, text: &str) -> String {
    let folder = world.path("bin");
    fs::create_dir_all(&folder).expect("a folder");
    fs::write(folder.join("log"), text).expect("written");
    let script = format!("#!/bin/sh\nexec cat '{}'\n", folder.join("log").display());
    fs::write(folder.join("journalctl"), script).expect("written");
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(folder.join("journalctl"), mode).expect("it is ours");
    format!("{}:/usr/bin:/bin", folder.display())
}

/// Its files by name.
fn unpack(bundle: &Path, to: &Path) -> (PathBuf, BTreeSet<String>) {
    fs::create_dir(to).expect("a new folder");
    let (bundle, to) = (bundle.to_string_lossy(), to.to_string_lossy());
    let listed = run_ok("tar", &["-tzf", &bundle]);
    run_ok("tar", &["-xzf", &bundle, "-C", &to]);
    let names: Vec<(&str, &str)> = listed.lines().filter_map(|it| it.split_once('/')).collect();
    let folder = Path::new(&*to).join(names[0].0);
    (folder, names.into_iter().map(|(_, name)| name.to_owned()).collect())
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path());
    let below = entries.flat_map(|it| if it.is_dir() { files_below(&it) } else { vec![it] });
    below.collect()
}

fn missing(report: &Value, part: &str) -> Option<String> {
    let all = report["missing"].as_array().expect("a list");
    let it = all.iter().find(|it| it["part"] == part)?;
    it["why"].as_str().map(str::to_owned)
}

#[track_caller]
fn holds_none(folder: &Path, secrets: &[Secret]) {
    let finds = search(secrets);
    for file in files_below(folder) {
        let found = finds(&fs::read(&file).expect("it is there"));
        assert!(found.is_empty(), "{}: {found:?}", file.display());
    }
}

#[test]
fn a_bundle_has_all_that_support_needs_and_no_secret() {
    let mut world = World::new();
    world.origin("cp", "a");
    world.node(&NodePlan::new("worker", "a"));
    world.meet();
    world.chooses("worker", "cp", SETTLE);
    let state = world.at("worker").state().to_owned();
    let key = fs::read_to_string(state.join("node.key")).expect("a key");
    let bytes = BASE64.decode(key.trim().as_bytes()).expect("base64");
    assert!(key.trim().parse::<NodeKey>().is_ok());
    let invite = world.invites()[0].clone();
    let log = format!(
        "a calm line\nkey {}\nkey {}\nkey {}\njoin {invite}\nanother calm line\n",
        key.trim(),
        HEXLOWER.encode(&bytes),
        BASE64URL_NOPAD.encode(&bytes),
    );
    let path = journal(&world, &log);

    let bundle = world.path("one.tar.gz");
    let output = make(&world, "worker", &bundle, &path);
    let said = String::from_utf8_lossy(&output.stderr);
    let report: Value = serde_json::from_slice(&output.stdout).expect(&said);
    assert_eq!(fs::metadata(&bundle).expect("it is there").mode() & 0o7777, 0o600);
    let (folder, names) = unpack(&bundle, &world.path("one"));
    for wanted in ANSWERS.iter().chain(&ALWAYS).chain(&["log.txt"]) {
        assert!(names.contains(*wanted), "{wanted} is missing: {:#}", report["missing"]);
    }
    let read = |name: &str| fs::read_to_string(folder.join(name)).expect("it is there");
    assert!(read("status.json").contains("\"worker\"") && read("metrics.txt").contains("# HELP"));
    assert!(read("configuration.toml").contains("site = \"a\""));
    assert!(read("state-folder.txt").contains(" node.key\n"));
    let kept = read("log.txt");
    assert!(kept.starts_with("a calm line\n[") && kept.ends_with("]\nanother calm line\n"));
    assert!(missing(&report, "log.txt").is_some_and(|it| it.contains(" 4 lines ")));

    let secrets = Secret::in_folder(&state);
    assert!(search(&secrets)(log.as_bytes()).len() >= 3, "the log has the key in several forms");
    holds_none(&folder, &secrets);
    let again = make(&world, "worker", &bundle, &path);
    assert_eq!(again.status.code(), Some(2), "an archive is never replaced");

    world.kill("worker");
    let bundle = world.path("two.tar.gz");
    let output = make(&world, "worker", &bundle, "/nowhere");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).expect("a report");
    let (_, names) = unpack(&bundle, &world.path("two"));
    for wanted in ALWAYS {
        assert!(names.contains(wanted), "{wanted} is missing: {:#}", report["missing"]);
    }
    assert!(missing(&report, "status.json").is_some_and(|it| it.contains("no daemon answers")));
    assert!(missing(&report, "log.txt").is_some_and(|it| it.contains("journalctl")));
}

/// The first node of a mesh has the most to hide: the authority's key and a mandate, here also in
/// its log.
#[test]
fn a_bundle_of_an_issuer_with_the_authoritys_key_has_neither() {
    let mut world = World::new();
    world.node(&NodePlan::new("cp", "a").role("issuer"));
    let state = world.at("cp").state().to_owned();
    let text = state.to_string_lossy();
    let program = meshport().to_string_lossy();
    let line = run_ok(&program, &["delegate", "cp", "--state-dir", &text]);
    fs::write(world.path("line"), &line).expect("written");
    let file = world.path("line").display().to_string();
    run_ok(&program, &["delegate", "--install", &file, "--state-dir", &text]);
    let mandate: Mandate = line.parse().expect("a mandate");
    let authority = fs::read_to_string(state.join("authority.key")).expect("a key");
    let mut log = format!("mandate {line}\nkey {}\n", authority.trim());
    for key in mandate.keys() {
        let key = key.to_text();
        let (_, tail) = key.rsplit_once('.').expect("a tag and a payload");
        let bytes = BASE64URL_NOPAD.decode(tail.as_bytes()).expect("base64url");
        log.push_str(&format!("turn {}\n", HEXLOWER.encode(&bytes)));
    }
    log.push_str("a calm line\n");
    let path = journal(&world, &log);

    let bundle = world.path("issuer.tar.gz");
    let output = make(&world, "cp", &bundle, &path);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (folder, names) = unpack(&bundle, &world.path("issuer"));
    let listed = fs::read_to_string(folder.join("state-folder.txt")).expect("it is there");
    for name in ["authority.key", "mandate", "mandates"] {
        assert!(listed.contains(&format!(" {name}\n")) && !names.contains(name), "{listed}");
    }
    let secrets = Secret::in_folder(&state);
    let found = search(&secrets)(log.as_bytes());
    assert!(
        ["authority.key", "mandate"]
            .iter()
            .all(|home| { found.iter().any(|it| it.starts_with(&format!("{home} as "))) })
    );
    holds_none(&folder, &secrets);
    let kept = fs::read_to_string(folder.join("log.txt")).expect("it is there");
    assert_eq!(kept.lines().filter(|line| line.starts_with("turn ")).count(), 0, "{kept}");
    assert!(kept.ends_with("a calm line\n"), "{kept}");
}
