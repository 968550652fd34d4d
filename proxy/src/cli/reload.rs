//! `meshport reload`: makes the running daemon reload its configuration, and reports the result.

use std::fmt::Write;

use super::output;
use super::query::QueryArgs;
use meshport_daemon::Error;
use meshport_daemon::admin::api::{ReloadReport, SettingChange};
use meshport_daemon::admin::queries::ReloadRequest;

pub(crate) fn run(args: &QueryArgs) -> Result<(), Error> {
    let report = args.daemon.ask(&ReloadRequest)?;
    output::either(args.json, &report, said)?;
    let refused = |why| Error::Refused(format!("the stored credential is not in use: {why}"));
    report.kept_credential.map_or(Ok(()), |why| Err(refused(why)))
}

/// A change of this setting ends open sessions at a restart, since they belong to shards.
const SHARDS: &str = "mesh.shards";

/// What becomes of open sessions at a restart.
const CONTINUE: &str = "open sessions continue, except through a virtual address";

/// A line per setting, with its old and new value, and how to apply the rest.
fn said(report: &ReloadReport) -> String {
    let ReloadReport { applied, needs_restart, overridden, .. } = report;
    let mut text = String::new();
    let mut put = |title: &str, changes: &[SettingChange]| {
        if !changes.is_empty() {
            writeln!(text, "{title}").expect("writing to a String does not fail");
        }
        for change in changes {
            writeln!(text, "  {change}").expect("writing to a String does not fail");
        }
    };
    put("applied now:", applied);
    put("without effect, set by MESHPORT_LOG:", overridden);
    put("waits for a restart of the daemon:", needs_restart);
    if !needs_restart.is_empty() {
        let ends = needs_restart.iter().any(|change| change.key == SHARDS);
        let sessions = if ends { "open sessions end (mesh.shards)" } else { CONTINUE };
        writeln!(
            text,
            "restart with `meshport upgrade` or `systemctl restart meshport`: {sessions}"
        )
        .expect("writing to a String does not fail");
    }
    if text.is_empty() { "no setting has changed\n".into() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_is_shown_with_both_values() {
        let change = |key: &str, old: Option<&str>, new: Option<&str>| SettingChange {
            key: key.into(),
            old: old.map(Into::into),
            new: new.map(Into::into),
        };
        let mut report = ReloadReport {
            applied: vec![change("log.level", Some("\"info\""), Some("\"debug\""))],
            needs_restart: vec![change("name", None, Some("\"cp-1\""))],
            overridden: Vec::new(),
            kept_credential: None,
        };
        let text = "applied now:\n  log.level: \"info\" -> \"debug\"\n\
                    waits for a restart of the daemon:\n  name: not set -> \"cp-1\"\n\
                    restart with `meshport upgrade` or `systemctl restart meshport`: open \
                    sessions continue, except through a virtual address\n";
        assert_eq!(said(&report), text);
        report.needs_restart.push(change("mesh.shards", Some("1"), Some("2")));
        assert!(said(&report).ends_with(": open sessions end (mesh.shards)\n"));
        let idle = ReloadReport { overridden: report.applied, ..ReloadReport::default() };
        let text = "without effect, set by MESHPORT_LOG:\n  log.level: \"info\" -> \"debug\"\n";
        assert_eq!(said(&idle), text);
        assert_eq!(said(&ReloadReport::default()), "no setting has changed\n");
    }
}
