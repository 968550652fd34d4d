//! Reports a full directory and which invite fills it: a log line at the start and at the end, and
//! a warning in `status` in between.

use meshport_discovery::Crowding;
use tracing::{info, warn};

/// Whether it was told. Beginning and end are far from each other, so that each is worth a line.
#[derive(Debug, Default)]
pub(crate) struct CrowdingLog {
    is_told: bool,
}

impl CrowdingLog {
    /// Takes how full the directory is.
    pub(crate) fn look(&mut self, crowding: Option<Crowding>) {
        match crowding {
            Some(crowding) if !self.is_told => warn!("{}", warning(&crowding)),
            None if self.is_told => info!("the directory has space again"),
            _ => {}
        }
        self.is_told = crowding.is_some();
    }
}

/// For the status, while it lasts.
pub(super) fn warning(crowding: &Crowding) -> String {
    let Crowding { invite, entries, of } = crowding;
    let meaning = format!(
        "the directory is full. Nodes that connect here, origins and relays displace others, so \
         other nodes may be missing. Of {of} entries {entries}"
    );
    match invite {
        Some(key) => format!(
            "{meaning} joined with the invite {key}. Your own nodes that are gone are forgotten \
             after a day; nothing to do. If you do not know these nodes (`meshport peers`), \
             someone invents them: `meshport revoke invite:{key} --with-nodes` shuts out all that \
             joined with it, including yours"
        ),
        None => format!(
            "{meaning} have credentials that the authority itself signed. `meshport credentials` \
             lists them; nodes that are gone make room for others"
        ),
    }
}

#[cfg(test)]
mod tests {
    use meshport_config::{AuthorityKey, VerifyKey};

    use super::*;
    use crate::testing::logged;

    #[test]
    fn a_full_directory_is_told_once_with_the_invite_that_fills_it() {
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
        assert!(said.contains("WARN") && said.contains(&command), "{said}");
        assert!(said.contains("Of 12300 entries 12288 joined"), "{said}");
        let said = logged(|| (0..3).for_each(|_| log.look(None)));
        assert!(said.lines().count() == 1 && said.contains("INFO"), "{said}");
        let said = logged(|| log.look(Some(Crowding { invite: None, ..crowding })));
        assert!(said.contains("the authority itself"), "{said}");
    }
}
