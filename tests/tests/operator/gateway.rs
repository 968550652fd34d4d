//! The page on the gateway, done as it says.

mod cluster;
mod stand_in;

use std::fs;

use meshport_tests::manual;
use meshport_tests::process::{gateway, run, run_ok};
use meshport_tests::repository::root;
use serde_json::Value;

use crate::pages::{checked, settings};
use crate::verbs::unknown_to_kubectl;

const PAGE: &str = "gateway.md";
/// The unit of the packages.
const UNIT: &str = "proxy/package/gateway/meshport-gateway.service";

fn cli(arguments: &[&str]) -> String {
    run_ok(&gateway().to_string_lossy(), arguments)
}

#[test]
#[ignore = "needs the program: ./tests/run operator"]
fn the_page_names_options_that_exist_and_all_of_them() {
    let help = cli(&["--help"]);
    let page = fs::read_to_string(root().join("docs").join(PAGE)).expect("a page");
    let options = |text: &str| {
        let words = text.split(|it: char| !(it.is_ascii_alphanumeric() || it == '-'));
        let options = words.filter(|it| it.starts_with("--") && it.len() > 2);
        let mut options: Vec<String> = options.map(str::to_owned).collect();
        options.sort_unstable();
        options.dedup();
        options
    };
    let usual = ["--help", "--version", "--log-level", "--socket", "--n"];
    let missing: Vec<String> = options(&help)
        .into_iter()
        .filter(|it| !usual.contains(&it.as_str()) && !page.contains(it.as_str()))
        .collect();
    assert!(missing.is_empty(), "{missing:?} is not in docs/{PAGE}");
    for block in manual::blocks(PAGE).iter().filter(|it| it.language == "sh") {
        let lines = block.text.lines().filter(|it| it.starts_with("meshport-gateway"));
        for option in lines.flat_map(|line| options(line.split('|').next().unwrap_or_default())) {
            assert!(help.contains(&option), "there is no {option}");
        }
    }
    assert!(help.lines().all(|it| it.chars().count() <= 80), "{help}");
}

#[test]
#[ignore = "needs the program: ./tests/run operator"]
fn its_settings_have_no_problem_and_its_objects_are_whole() {
    let all = settings(PAGE);
    assert_eq!(all.len(), 2, "{all:?}");
    for settings in all {
        let folder = tempfile::tempdir().expect("a folder");
        let report = checked(folder.path(), &settings);
        assert!(report["ok"] == true, "{report:#}\n{settings}");
    }
    let kinds = |text: &str| -> Vec<String> {
        let parse = |one| yaml_serde::from_str::<Value>(one).expect("YAML");
        let kind = |it: Value| it["kind"].as_str().expect("a kind").to_owned();
        text.split("\n---\n").map(parse).map(kind).collect()
    };
    assert_eq!(kinds(&cli(&["--rbac"])), ["ServiceAccount", "ClusterRole", "ClusterRoleBinding"]);
    let service = manual::under(PAGE, "Annotate a Service", "yaml").concat();
    assert_eq!(kinds(&service), ["Service"]);
}

#[test]
#[ignore = "needs kubectl; ./tests/run operator"]
fn kubectl_knows_every_field_of_its_pods_and_the_account_is_theirs() {
    let pods = manual::under(PAGE, "As a pod", "yaml").concat();
    assert_eq!(unknown_to_kubectl(&pods), None, "kubectl does not know this field");
    let pods: Value = yaml_serde::from_str(&pods).expect("YAML");
    let rights = cli(&["--rbac"]);
    let account = rights.split("\n---\n").next().expect("a ServiceAccount");
    let account: Value = yaml_serde::from_str(account).expect("YAML");
    assert_eq!(pods["spec"]["template"]["spec"]["serviceAccountName"], account["metadata"]["name"]);
    assert_eq!(pods["metadata"]["namespace"], account["metadata"]["namespace"]);
}

#[test]
#[ignore = "needs systemd-analyze; ./tests/run operator"]
fn its_unit_is_valid_and_confined() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("meshport-gateway.service");
    let unit = manual::under(PAGE, "systemd", "ini").concat();
    let packaged = fs::read_to_string(root().join(UNIT)).expect("a unit");
    assert_eq!(unit, packaged, "docs/{PAGE} shows {UNIT}");
    let program = "/usr/bin/meshport-gateway";
    assert!(unit.contains(program), "{unit}");
    fs::write(&file, unit.replace(program, &gateway().to_string_lossy())).expect("a unit");
    let file = file.to_string_lossy();
    let verified = run("systemd-analyze", &["verify", &file]);
    let said = String::from_utf8_lossy(&verified.stderr).into_owned();
    // The daemon's unit is not on this machine.
    let said: Vec<&str> = said.lines().filter(|it| it.contains("meshport-gateway")).collect();
    assert!(verified.status.success() && said.is_empty(), "{said:?}");
    let rated = run_ok("systemd-analyze", &["security", "--offline=true", &file]);
    let last = rated.lines().last().expect("a verdict");
    let exposure = last.split_whitespace().find_map(|it| it.parse::<f64>().ok());
    assert!(exposure.expect("a number") < 3.0, "{last}");
}
