//! Reports a full directory and which invite fills it: a log line at the start and at the end, and
//! a warning in `status` in between.

use meshport_core::findings::{DIRECTORY_FULL, Finding};
use meshport_discovery::Crowding;
use tracing::{info, warn};

/// Whether it was logged. Start and end are far apart, so each gets a line.
#[derive(Debug, Default)]
pub(crate) struct CrowdingLog {
    is_told: bool,
}

impl CrowdingLog {
    /// Handles how full the directory is.
    pub(crate) fn look(&mut self, crowding: Option<Crowding>) {
        match crowding {
            Some(crowding) if !self.is_told => warn!("{}", finding(&crowding)),
            None if self.is_told => info!("the directory is no longer full"),
            _ => {}
        }
        self.is_told = crowding.is_some();
    }
}

/// For the status, while it lasts.
pub(super) fn finding(crowding: &Crowding) -> Finding {
    let Crowding { invite, entries, of } = crowding;
    let who = match invite {
        Some(key) => format!("joined with the invite {key}"),
        None => "have credentials that the authority itself signed".into(),
    };
    let said = format!("the directory is full: of {of} entries {entries} {who}");
    let found = DIRECTORY_FULL.found(said);
    match invite {
        Some(key) => found.naming("invite:KEY", &format!("invite:{key}")),
        None => found,
    }
}

#[cfg(test)]
mod tests {
    use meshport_config::{AuthorityKey, VerifyKey};

    use super::*;
    use crate::testing::logged;

    #[test]
    fn a_full_directory_is_logged_once_with_the_invite_that_fills_it() {
        let invite: VerifyKey = AuthorityKey::from_bytes([3; 32]).public().verify_key();
        let crowding = Crowding { invite: Some(invite), entries: 12_288, of: 12_300 };
        let mut log = CrowdingLog::default();
        let said = logged(|| {
            log.look(None);
            log.look(Some(crowding));
            log.look(Some(Crowding { entries: 12_287, ..crowding }));
        });
        assert_eq!(said.lines().count(), 1, "{said}");
        let command = format!("meshport revoke invite:{invite} --with-nodes");
        assert!(said.contains(&command), "{said}");
        let who = format!("of 12300 entries 12288 joined with the invite {invite}. ");
        assert!(said.contains("WARN") && said.contains(&who), "{said}");
        let said = logged(|| (0..3).for_each(|_| log.look(None)));
        assert!(said.lines().count() == 1 && said.contains("INFO"), "{said}");
        let said = logged(|| log.look(Some(Crowding { invite: None, ..crowding })));
        assert!(said.contains("the authority itself"), "{said}");
    }
}
