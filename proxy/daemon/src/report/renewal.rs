//! The renewal of this node's credential, and problems with it.

use meshport_config::{Credential, Mandate, Role, UnixSeconds};
use meshport_core::findings::{Finding, MANDATE_ENDS, RENEWAL_FAILS};
use meshport_core::renewal::{Issuer, Refusal, Seeker, Setback};
use meshport_discovery::Liveness;

use crate::admin::credentials::RenewalStatus;
use crate::findings;

use super::Reporter;

/// Rounds without a renewal before it is reported: an issuer may just be restarting.
const MOST_QUIET_ROUNDS: u32 = 2;
const DAY_S: u64 = 86_400;
/// A mandate with less validity left causes a warning.
const MANDATE_ENDS_SOON_S: u64 = 60 * DAY_S;

impl Reporter<'_> {
    pub(super) fn renewal(&self) -> RenewalStatus {
        let renewals = &self.state.renewals;
        let failing = renewals.seeker.failing();
        let mandate = renewals.issuer.as_ref().map(|it| it.mandate().until());
        let issuers = self.issuers();
        RenewalStatus {
            issuers,
            due_at: (issuers > 0).then(|| renewals.seeker.due_at()),
            failed_rounds: failing.map_or(0, |(rounds, _)| rounds),
            problem: failing.map(|(_, setback)| setback.to_string()),
            mandate_ends_at: mandate,
        }
    }

    /// Members that are up and may renew this node, itself included.
    fn issuers(&self) -> usize {
        let me = self.state.identity.me.node;
        let is_one = |it: &Credential| it.roles.contains(&Role::Issuer);
        let others = self.core.discovery().directory().iter().filter(|(node, entry)| {
            **node != me && entry.liveness == Liveness::Alive && is_one(&entry.credential)
        });
        others.count() + usize::from(self.state.renewals.issuer.is_some())
    }

    pub(super) fn renewal_findings(&self, now: UnixSeconds) -> Vec<Finding> {
        let own = &*self.state.identity.credential;
        let renewals = &self.state.renewals;
        let fails = setback(own, &renewals.seeker, now).map(|(rounds, setback)| {
            RENEWAL_FAILS.found(format!(
                "this node's credential is due for renewal, but no issuer has renewed it in \
                 {rounds} rounds: {setback}"
            ))
        });
        let mandate = mandate(own, renewals.issuer.as_ref().map(Issuer::mandate), now);
        findings::of_credential(own, now).into_iter().chain(fails).chain(mandate).collect()
    }
}

/// Why no issuer renews this node although a renewal is due; `None` if the mesh has no issuer and
/// none made the credential.
fn setback<'a>(
    own: &Credential,
    seeker: &'a Seeker,
    now: UnixSeconds,
) -> Option<(u32, &'a Setback)> {
    let (rounds, setback) = seeker.failing()?;
    let is_harmless = match setback {
        Setback::NoIssuer => !own.is_renewal(),
        Setback::Refused(Refusal::NothingGained) => true,
        _ => false,
    };
    (rounds > MOST_QUIET_ROUNDS && !is_harmless && now >= seeker.due_at())
        .then_some((rounds, setback))
}

/// Findings about an issuer's mandate.
fn mandate(own: &Credential, mandate: Option<&Mandate>, now: UnixSeconds) -> Option<Finding> {
    let has_role = own.roles.contains(&Role::Issuer);
    let Some(mandate) = mandate else {
        let text = "this node has the role issuer but no mandate, so it cannot renew others";
        return has_role.then(|| MANDATE_ENDS.found(text));
    };
    if !has_role {
        let text = "this node has a mandate, but lacks the role issuer, so no node asks it";
        return Some(MANDATE_ENDS.found(text));
    }
    let left_s = mandate.until().seconds_since(now);
    let soon_s = mandate.lifetime_s().saturating_mul(2).min(MANDATE_ENDS_SOON_S);
    let (days, hours) = (left_s / DAY_S, left_s % DAY_S / 3600);
    match left_s {
        0 => Some(MANDATE_ENDS.broken("this node's mandate has expired: it cannot renew others")),
        left_s if left_s < soon_s => Some(
            MANDATE_ENDS
                .found(format!("this node's mandate to renew expires in {days} d {hours} h")),
        ),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use meshport_config::{AuthorityKey, NodeKey, Terms};
    use meshport_core::findings::Severity;
    use meshport_core::testing::{WALL, credential};
    use rand_core::OsRng;

    use crate::clock;

    use super::*;

    const NUMBER: u8 = 3;
    const ISSUER: &str = "node,issuer";

    /// A year from [`WALL`] on.
    fn year(lifetime_days: u64) -> Mandate {
        let own = credential(NUMBER, ISSUER);
        let terms = Terms {
            issuer: own.node,
            roles: own.roles,
            site: None,
            lifetime_s: lifetime_days * DAY_S,
            from: WALL,
            until: WALL.saturating_add(365 * DAY_S),
        };
        Mandate::create(&AuthorityKey::from_bytes([9; 32]), &terms, &mut OsRng).expect("good")
    }

    #[test]
    fn a_mandate_is_reported_two_lifetimes_and_at_most_sixty_days_before_its_end() {
        let own = credential(NUMBER, ISSUER);
        for (lifetime_days, soon_days) in [(30, 60), (90, 60), (10, 20)] {
            let held = year(lifetime_days);
            let before = |days: u64| UnixSeconds(held.until().0 - days * DAY_S);
            let found = |days: u64| mandate(&own, Some(&held), before(days));
            assert_eq!(found(soon_days + 1), None, "of {lifetime_days} d");
            assert_eq!(found(soon_days), None, "of {lifetime_days} d");
            let soon = found(soon_days - 1).expect("it expires soon");
            let said = format!("expires in {} d 0 h", soon_days - 1);
            assert!(soon.severity == Severity::Warning && soon.detail.ends_with(&said), "{soon}");
            for since in [0, DAY_S] {
                let over = mandate(&own, Some(&held), held.until().saturating_add(since));
                let over = over.expect("it has expired");
                assert!(over.severity == Severity::Error && over.detail.contains("has expired"));
                assert_eq!(over.kind.id, "MP215");
            }
        }
    }

    #[test]
    fn role_and_mandate_belong_together() {
        let (issuer, node) = (credential(NUMBER, ISSUER), credential(NUMBER, "node"));
        let held = year(30);
        assert_eq!(mandate(&node, None, WALL), None);
        assert_eq!(mandate(&issuer, Some(&held), WALL), None);
        let none = mandate(&issuer, None, WALL).expect("it cannot renew");
        assert!(none.detail.contains("no mandate"), "{none}");
        let idle = mandate(&node, Some(&held), WALL).expect("no node asks it");
        assert!(idle.detail.contains("lacks the role issuer"), "{idle}");
        assert!([&none, &idle].iter().all(|it| it.severity == Severity::Warning));
        assert!([&none, &idle].iter().all(|it| it.kind.id == "MP215"));
    }

    /// Nine days before its end, a month after its start; from the authority, or from an issuer.
    fn own(is_renewed: bool) -> Credential {
        let mut own = credential(NUMBER, "node");
        own.issued_at = UnixSeconds(WALL.0 - 21 * DAY_S);
        own.expires_at = WALL.saturating_add(9 * DAY_S);
        if !is_renewed {
            return own;
        }
        let issued = year(30).renew(&own, WALL).expect("it renews");
        issued.countersign(&NodeKey::from_bytes([NUMBER; 32])).expect("its key")
    }

    /// After so many rounds in which every issuer said this; `None` for no issuer.
    fn seeker(own: &Credential, rounds: u32, said: Option<&Setback>, wall: UnixSeconds) -> Seeker {
        let mut now = clock::now();
        let mut seeker = Seeker::new(own, now);
        let issuer = credential(NUMBER + 1, ISSUER).node;
        while seeker.failing().map_or(0, |(rounds, _)| rounds) < rounds {
            now = now.max(seeker.poll_timeout(now));
            let issuers = || said.map(|_| issuer).into_iter().collect();
            if let (Some(who), Some(said)) = (seeker.poll(issuers, now, wall), said) {
                seeker.handle_answer(who, Err(said.clone()), now);
            }
        }
        seeker
    }

    #[test]
    fn renewals_that_fail_are_reported_after_some_rounds() {
        let own = own(false);
        let refused = Setback::Refused(Refusal::NoMandate);
        let after = |rounds, said| {
            let seeker = seeker(&own, rounds, Some(said), WALL);
            let found = setback(&own, &seeker, WALL);
            found.map(|(rounds, setback)| (rounds, setback.clone()))
        };
        assert_eq!(after(0, &refused), None);
        assert_eq!(after(MOST_QUIET_ROUNDS, &refused), None);
        let rounds = MOST_QUIET_ROUNDS + 1;
        assert_eq!(after(rounds, &refused), Some((rounds, refused.clone())));
        let silent = Setback::Silent("no answer".into());
        assert_eq!(after(rounds, &silent), Some((rounds, silent.clone())));
        // The present credential ends later than what the issuer would sign.
        assert_eq!(after(rounds, &Setback::Refused(Refusal::NothingGained)), None);
    }

    #[test]
    fn a_mesh_without_issuers_is_reported_where_one_has_renewed_the_credential() {
        let rounds = MOST_QUIET_ROUNDS + 1;
        for is_renewed in [false, true] {
            let own = own(is_renewed);
            let late = UnixSeconds(own.expires_at.0 - DAY_S);
            let seeker = seeker(&own, rounds, None, late);
            assert_eq!(setback(&own, &seeker, late).is_some(), is_renewed);
            // A clock that was set back shows that it was not due.
            assert_eq!(setback(&own, &seeker, own.issued_at), None);
        }
    }
}
