//! All checks together, and their report.

use std::collections::BTreeMap;

use meshport_core::findings::{ADDRESS_TAKEN, ALL, CREDENTIAL_ENDS, SEED_NAME, SEED_SILENT};

use meshport_daemon::admin::api::FindingRow;

use super::report::{CheckStatus, Done, Outcome};
use super::*;

const TOOK: Duration = Duration::from_millis(1_500);

/// A node that never joined: every kind is checked once or reported as skipped, and the missing
/// identity is found.
#[test]
fn every_kind_has_one_check() {
    let folder = tempfile::tempdir().expect("a folder");
    let state_dir = Some(folder.path().to_owned());
    let args = DaemonArgs { socket: None, config: None, state_dir };
    let report = runtime().expect("a runtime").block_on(examine(&args)).expect("it runs");
    let mut rows: BTreeMap<&str, usize> = BTreeMap::new();
    report.checks.iter().for_each(|row| *rows.entry(&row.id).or_default() += 1);
    let expected: BTreeMap<&str, usize> = ALL.iter().map(|kind| (kind.id, 1)).collect();
    assert_eq!(rows, expected);
    let status = |id: &str| report.checks.iter().find(|row| row.id == id).map(|row| row.status);
    assert_eq!(status("MP109"), Some(CheckStatus::Error));
    assert_eq!(status("MP111"), Some(CheckStatus::Warning));
    assert_eq!(status("MP306"), Some(CheckStatus::Skipped));
    assert!(!report.success && !report.daemon);
}

fn report() -> DoctorReport {
    let done = |kinds: &[&'static _], outcome| Done { kinds: kinds.to_vec(), outcome, took: TOOK };
    let taken = ["nginx (pid 7) uses TCP 127.0.0.1:7445", "nginx (pid 7) uses TCP [::1]:7445"];
    let all = vec![
        done(&[&SEED_NAME], Outcome::Late(Duration::from_secs(2))),
        done(&[&SEED_SILENT], Outcome::Skipped("this node has no seeds".into())),
        done(&[&CREDENTIAL_ENDS], Outcome::Looked(Vec::new())),
        done(&[&ADDRESS_TAKEN], Outcome::Looked(taken.map(|it| ADDRESS_TAKEN.found(it)).into())),
    ];
    DoctorReport::new(all, None, TOOK)
}

#[test]
fn the_report_has_a_row_for_each_finding_and_for_the_rest() {
    let json = serde_json::to_value(report()).expect("it has JSON");
    assert_eq!((&json["version"], &json["success"]), (&1.into(), &false.into()));
    assert_eq!((&json["errors"], &json["warnings"]), (&2.into(), &1.into()));
    let rows = json["checks"].as_array().expect("rows");
    let ids: Vec<&str> = rows.iter().filter_map(|row| row["id"].as_str()).collect();
    assert_eq!(ids, ["MP101", "MP101", "MP201", "MP202", "MP203"]);
    assert_eq!(rows[0]["severity"], "error");
    assert_eq!(rows[0]["anchor"], "docs/troubleshoot.md#mp101");
    assert!(rows[0]["hint"].as_str().is_some_and(|hint| hint.contains("ss -lntup")));
    assert_eq!((&rows[2]["status"], &rows[3]["status"]), (&"late".into(), &"skipped".into()));
    assert_eq!(rows[4]["duration_ms"], 1_500);
}

#[test]
fn what_a_newer_daemon_reports_is_not_lost() {
    let row = |id: &str| FindingRow {
        id: id.into(),
        is_error: true,
        detail: "the sky falls".into(),
        remedy: "Wear a hat".into(),
    };
    // Known kinds come from the checks.
    let report = DoctorReport::new(Vec::new(), Some(&[row("MP999"), row("MP203")]), TOOK);
    let [only] = &report.checks[..] else { panic!("{:?}", report.checks) };
    assert!(only.id == "MP999" && only.status == CheckStatus::Error, "{only:?}");
    let text = render::doctor(&report, None);
    assert!(text.contains("error    MP999") && text.contains("-> Wear a hat."), "{text}");
}

#[test]
fn a_person_reads_what_is_wrong_what_it_means_and_what_to_do() {
    let text = render::doctor(&report(), Some(80));
    let begun = "\
This machine
  error    MP101 another process uses a local address of this node
             nginx (pid 7) uses TCP 127.0.0.1:7445
             The daemon does not start, or clients of this node reach the other
             process.
             -> Stop that process (`ss -lntup` lists it), or set another address
             in the configuration. A running daemon then takes the address back.
             see docs/troubleshoot.md#mp101
";
    assert!(text.starts_with(begun), "{text}");
    let end = "
Mesh
  late     MP201 the names of seeds resolve
             not finished within 2.0s
  ok       MP203 this node's credential does not expire soon
  skipped  MP202: this node has no seeds

Services and Kubernetes

2 errors, 1 warning; 1 ok, 1 skipped, in 1.5 s
";
    assert!(text.ends_with(end), "{text}");
    let short = render::doctor_short(&report(), None);
    assert_eq!(
        short,
        "error MP101 nginx (pid 7) uses TCP 127.0.0.1:7445\n\
         error MP101 nginx (pid 7) uses TCP [::1]:7445\n\
         late MP201 not finished within 2.0s\n\
         2 errors, 1 warning; 1 ok, 1 skipped, in 1.5 s\n"
    );
}

#[test]
fn an_entry_of_the_list_is_explained_by_its_id() {
    let text = render::explain_finding(&CREDENTIAL_ENDS, None);
    assert!(text.starts_with("MP203 (warning): this node's credential"), "{text}");
    assert!(text.ends_with("  see docs/troubleshoot.md#mp203\n"), "{text}");
    assert_eq!(unknown("MP999").exit_code(), 2);
}
