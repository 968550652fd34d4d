//! Finds problems in this machine's files and limits, for the daemon and for `meshport doctor`
//! without one.

use std::path::Path;

use meshport_config::{Credential, MAX_CLOCK_SKEW_S, Role, ServiceName, Settings, UnixSeconds};
use meshport_core::believed::Jump;
use meshport_core::findings::{
    AUTHORITY_KEY_HERE, CREDENTIAL_ENDS, FEW_DESCRIPTORS, Finding, ROLE_MISSING, WRONG_CLOCK,
};
use tracing::warn;

use crate::admin::credentials::Validity;
use crate::descriptors;

pub use crate::descriptors::most_allowed;

const DAY_S: u64 = 24 * 60 * 60;

/// The finding about this node's credential: it expires soon, has expired, or is not valid yet, so
/// that the clock must be wrong.
pub fn of_credential(own: &Credential, now: UnixSeconds) -> Option<Finding> {
    let from = own.issued_at;
    if from > now.saturating_add(MAX_CLOCK_SKEW_S) {
        return Some(WRONG_CLOCK.found(format!(
            "this machine's clock is wrong: it shows {now}, but the node's credential is not \
             valid before {from}"
        )));
    }
    let left = days(own.expires_at.seconds_since(now));
    match Validity::of_node(own, now) {
        Validity::Ended => {
            let ended = "this node's credential has expired and other nodes refuse it";
            Some(CREDENTIAL_ENDS.broken(ended))
        }
        Validity::EndsSoon => {
            Some(CREDENTIAL_ENDS.found(format!("this node's credential expires in {left}")))
        }
        Validity::Valid | Validity::Revoked => None,
    }
}

/// The finding about a clock that jumped ahead, past the end of the credentials of all others if
/// they `have_ended`, or of this node's own. It is for a node to which no other member has shown a
/// valid credential since.
pub(crate) fn of_jump(
    jump: Jump,
    have_ended: bool,
    own: &Credential,
    now: UnixSeconds,
) -> Option<Finding> {
    let ended = match have_ended {
        true => "the credentials of all other members have expired",
        false if jump.at < own.expires_at && own.expires_at <= now => {
            "this node's credential has expired; no other member confirms that time"
        }
        false => return None,
    };
    Some(WRONG_CLOCK.found(format!(
        "this machine's clock jumped ahead by {} at {}; by it, {ended}",
        // To the hour.
        days(jump.by.as_secs() + 30 * 60),
        jump.at
    )))
}

fn days(seconds: u64) -> String {
    format!("{} d {} h", seconds / DAY_S, seconds % DAY_S / 3600)
}

/// This node's credential lacks the role for the origin it is configured to offer.
pub fn of_role(service: &ServiceName) -> Finding {
    ROLE_MISSING.found(format!(
        "this node's credential lacks the role origin:{service}, so other nodes ignore its origin"
    ))
}

/// Logs it if the role is missing: every other node ignores the service, and it can be fixed here.
pub(crate) fn warn_of_missing_role(service: &ServiceName, own: &Credential) {
    if !own.roles.contains(&Role::Origin(service.clone())) {
        warn!(%service, "{}", of_role(service));
    }
}

/// Whether the authority's key is in the state folder, whatever its file mode.
pub fn of_authority_key(key: &Path) -> Option<Finding> {
    // A symbolic link counts too, even a dangling one.
    key.symlink_metadata().ok()?;
    let text = format!("the authority's key is in this node's state folder, {}", key.display());
    Some(AUTHORITY_KEY_HERE.found(text))
}

/// Logs a warning if this process may open fewer files than the sessions of all services need.
pub(crate) fn warn_of_few_descriptors(settings: &Settings) {
    let sessions = settings.services.values().map(|it| u64::from(it.max_sessions)).sum();
    of_descriptors(sessions, most_allowed()).iter().for_each(|short| warn!("{short}"));
}

/// Whether a limit of `limit` open files (`None`: unlimited) is too low for `sessions` client
/// sessions.
pub fn of_descriptors(sessions: u64, limit: Option<u64>) -> Option<Finding> {
    let needed = descriptors::needed(sessions);
    let limit = limit.filter(|limit| *limit < needed)?;
    Some(FEW_DESCRIPTORS.found(format!(
        "the limit on open files is {limit}; max-sessions of all services can need {needed}"
    )))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use meshport_core::findings::Severity;
    use meshport_core::testing::credential;

    use super::*;

    /// The same in the status, the table and the log.
    #[test]
    fn the_end_is_reported_a_quarter_of_the_life_before_and_at_most_thirty_days() {
        let mut own = credential(4, "node");
        let ends = own.expires_at.0;
        for (life_days, soon_days) in [(1, 0.25), (30, 7.5), (120, 30.0), (365, 30.0)] {
            own.issued_at = UnixSeconds(ends - life_days * DAY_S);
            let soon_s = (soon_days * DAY_S as f64) as u64;
            let before = |seconds: u64| of_credential(&own, UnixSeconds(ends - seconds));
            assert_eq!(before(soon_s), None, "of {life_days} d");
            assert!(before(soon_s - 1).is_some(), "of {life_days} d");
        }
        let before = |seconds: u64| of_credential(&own, UnixSeconds(ends - seconds));
        let soon = before(30 * DAY_S - 1).expect("it is time");
        assert_eq!(soon.detail, "this node's credential expires in 29 d 23 h");
        assert_eq!((soon.kind.id, soon.severity), ("MP203", Severity::Warning));
        let ended = before(0).expect("it has ended");
        assert_eq!((ended.kind.id, ended.severity), ("MP203", Severity::Error));
    }

    #[test]
    fn a_credential_of_the_future_accuses_the_clock() {
        let own = credential(4, "node");
        let at = |skew: u64| of_credential(&own, UnixSeconds(own.issued_at.0 - skew));
        assert_eq!(at(MAX_CLOCK_SKEW_S), None);
        assert_eq!(at(MAX_CLOCK_SKEW_S + 1).expect("too early").kind.id, "MP103");
    }

    #[test]
    fn a_jump_is_blamed_for_the_end_of_all_others_or_of_a_node_alone() {
        let own = credential(4, "node");
        let end = own.expires_at;
        let at = |before_s: u64| Jump {
            by: std::time::Duration::from_secs(400 * DAY_S),
            at: UnixSeconds(end.0 - before_s),
        };
        let said = |jump, have_ended, now| of_jump(jump, have_ended, &own, now).map(|it| it.detail);
        let others = said(at(60), true, UnixSeconds(end.0 - 1)).expect("they have ended");
        assert!(others.ends_with("the credentials of all other members have expired"), "{others}");
        let alone = said(at(60), false, end).expect("it has ended");
        assert!(
            alone.ends_with("credential has expired; no other member confirms that time"),
            "{alone}"
        );
        assert_eq!(said(at(60), false, UnixSeconds(end.0 - 1)), None, "it is valid");
        assert_eq!(said(at(0), false, end), None, "it had ended before");
    }

    #[test]
    fn the_key_is_reported_as_long_as_it_is_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let key = folder.path().join("authority.key");
        assert_eq!(of_authority_key(&key), None);
        fs::write(&key, "anything").expect("written");
        let said = of_authority_key(&key).expect("it is there");
        assert!(said.kind.id == "MP204" && said.detail.contains("authority.key"), "{said}");
        fs::remove_file(&key).expect("removed");
        assert_eq!(of_authority_key(&key), None);
    }

    #[test]
    fn a_limit_that_suffices_is_not_reported() {
        assert_eq!(of_descriptors(10_000, None), None);
        assert_eq!(of_descriptors(10_000, Some(20_064)), None);
        let short = of_descriptors(10_000, Some(1_024)).expect("it is too low");
        assert!(short.kind.id == "MP108" && short.detail.contains("20064"), "{short}");
    }
}
