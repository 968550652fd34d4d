//! All checks together, and their report.

use std::collections::BTreeMap;

use meshport_core::findings::{
    ADDRESS_TAKEN, ALL, CREDENTIAL_ENDS, FEW_DESCRIPTORS, KUBECONFIG_PAST_US, Kind,
    NAME_NOT_IN_CERTIFICATE, NEEDS_RESTART, NO_ORIGIN_ANSWERS, SEED_NAME, SEED_SILENT, UDP_IN,
};

use meshport_daemon::admin::api::{FindingRow, ReachStatus};

use super::report::{CheckStatus, Done, Outcome};
use super::*;
use crate::cli::render::Style;

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
    let text = text::full(&report, None);
    assert!(text.contains("error    MP999") && text.contains("-> Wear a hat."), "{text}");
}

/// A node with several problems, one of each status.
fn troubled() -> DoctorReport {
    let found: [(&'static Kind, Outcome); 7] = [
        (
            &FEW_DESCRIPTORS,
            Outcome::Looked(vec![FEW_DESCRIPTORS.found(
                "the limit on open files is 1000; max-sessions of all services can need 16448",
            )]),
        ),
        (
            &NEEDS_RESTART,
            Outcome::Looked(vec![
                NEEDS_RESTART.found("after a restart: mesh.mtu: not set -> 1400"),
            ]),
        ),
        (&SEED_NAME, Outcome::Late(Duration::from_secs(2))),
        (&NAME_NOT_IN_CERTIFICATE, Outcome::Skipped("no kubeconfig was found here".into())),
        (
            &KUBECONFIG_PAST_US,
            Outcome::Looked(vec![
                KUBECONFIG_PAST_US
                    .found(
                        "/etc/kubernetes/kubelet.conf: the context default uses \
                         https://10.77.0.11:6443, not the local address 127.0.0.1:7445",
                    )
                    .naming("FILE", "/etc/kubernetes/kubelet.conf"),
            ]),
        ),
        (
            &NO_ORIGIN_ANSWERS,
            Outcome::Looked(vec![
                NO_ORIGIN_ANSWERS
                    .found("kube-apiserver: none of its origins answers, so clients are refused"),
            ]),
        ),
        (
            &UDP_IN,
            Outcome::Skipped("members called back a moment ago; ask again in a few seconds".into()),
        ),
    ];
    let is_other = |kind: &&&'static Kind| found.iter().all(|(it, _)| it != *kind);
    let rest: Vec<&'static Kind> = ALL.iter().filter(is_other).copied().collect();
    let mut done = vec![Done { kinds: rest, outcome: Outcome::Looked(Vec::new()), took: TOOK }];
    done.extend(found.into_iter().map(|(kind, outcome)| Done {
        kinds: vec![kind],
        outcome,
        took: TOOK,
    }));
    let reach = ReachStatus {
        nat: "endpoint-independent".into(),
        seen_at: vec!["203.0.113.7:41000".parse().expect("an address")],
    };
    DoctorReport::new(done, None, TOOK).with(Some(&reach), &[])
}

/// With `MESHPORT_WRITE_REFERENCE=1` this writes the texts instead, for a person to look at.
#[test]
fn a_person_reads_what_is_wrong_what_it_means_and_what_to_do() {
    let report = troubled();
    for width in [80, 200] {
        let plain = text::full(&report, Some(width));
        assert!(plain.lines().all(|line| line.chars().count() <= width), "{plain}");
        let file = format!("{}/src/cli/doctor/looks/{width}.txt", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("MESHPORT_WRITE_REFERENCE").is_some() {
            std::fs::write(&file, &plain).expect("it can be written");
        }
        assert_eq!(plain, std::fs::read_to_string(&file).expect("it is there"), "{file}");
        let coloured = text::full(&report, Style { width: Some(width), colour: true });
        let (red, yellow, end) = ("\x1b[31m", "\x1b[33m", "\x1b[0m");
        let words = |colour| {
            let after = coloured.split(colour).skip(1);
            after.filter_map(|rest| Some(rest.split_once(end)?.0)).collect::<Vec<_>>()
        };
        assert_eq!(words(red), ["error", "1 error (MP307), 4 warnings (MP108 MP112 MP201 MP304)"]);
        assert_eq!(words(yellow), ["warning", "warning", "late", "warning"]);
        let without = [red, yellow, end].iter().fold(coloured.clone(), |it, c| it.replace(c, ""));
        assert_eq!(without, plain, "colours change nothing else");
    }
}

#[test]
fn a_script_reads_a_line_for_each_finding() {
    assert_eq!(
        text::short(&report(), None),
        "error MP101 nginx (pid 7) uses TCP 127.0.0.1:7445\n\
         error MP101 nginx (pid 7) uses TCP [::1]:7445\n\
         late MP201 not finished within 2.0 s\n\
         2 errors (MP101), 1 warning (MP201)\n1 ok, 1 skipped, in 1.5 s\n"
    );
}

#[test]
fn every_kind_of_nat_is_a_sentence() {
    let line = |nat: &str, seen_at: &[&str]| {
        let seen_at = seen_at.iter().map(|it| it.parse().expect("an address")).collect();
        let report = DoctorReport::new(Vec::new(), None, TOOK)
            .with(Some(&ReachStatus { nat: nat.into(), seen_at }), &[]);
        let text = text::full(&report, None);
        text.lines().find_map(|line| line.strip_prefix("  NAT      ")).expect("a line").to_owned()
    };
    let (one, two) = (&["203.0.113.7:1"], &["203.0.113.7:1", "203.0.113.7:2"]);
    assert_eq!(line("none", one), "none: members see this machine's own address 203.0.113.7:1");
    assert_eq!(
        line("endpoint-dependent", two),
        "endpoint-dependent: each member sees another address (203.0.113.7:1, 203.0.113.7:2)"
    );
    assert!(line("one-report", one).ends_with("only one member sees this node, at 203.0.113.7:1"));
    assert!(line("advertised", &[]).ends_with("members see no address"));
    assert!(line("unknown", &[]).starts_with("unknown: no member has reported"));
    assert_eq!(line("of-tomorrow", one), "of-tomorrow: members see 203.0.113.7:1");
    let none = DoctorReport::new(Vec::new(), None, TOOK);
    assert!(!text::full(&none, None).contains("NAT"));
}

#[test]
fn an_entry_of_the_list_is_explained_by_its_id() {
    let text = text::explained(&CREDENTIAL_ENDS, None);
    assert!(text.starts_with("MP203 (warning): this node's credential"), "{text}");
    assert!(text.ends_with("  see docs/troubleshoot.md#mp203\n"), "{text}");
    assert_eq!(unknown("MP999").exit_code(), 2);
}
