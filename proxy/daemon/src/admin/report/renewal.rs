//! The renewal of this node's credential, and problems with it.

use meshport_config::{Credential, Mandate, Role, UnixSeconds};
use meshport_core::findings::{CREDENTIAL_ENDS, Finding, MANDATE_ENDS, RENEWAL_FAILS, Severity};
use meshport_core::node::NodeCore;
use meshport_core::renewal::{Issuer, Refusal, Setback, warning_s};
use meshport_discovery::Liveness;

use crate::admin::credentials::RenewalStatus;
use crate::findings;

use super::Reporter;

/// Rounds without a renewal before it is reported: an issuer may just be restarting.
const MOST_QUIET_ROUNDS: u32 = 2;
const DAY_S: u64 = 86_400;
/// Longest remaining validity of a mandate that causes a warning.
const MANDATE_ENDS_SOON_S: u64 = 60 * DAY_S;

impl Reporter {
    pub(super) fn renewal(&self, core: &NodeCore) -> RenewalStatus {
        let renewals = &self.renewals;
        let failing = renewals.seeker.failing();
        let mandate = renewals.issuer.as_ref().map(|it| it.mandate().until());
        let issuers = self.issuers(core);
        RenewalStatus {
            issuers,
            due_at: (issuers > 0).then(|| renewals.seeker.due_at()),
            failed_rounds: failing.map_or(0, |(rounds, _)| rounds),
            problem: failing.map(|(_, setback)| setback.to_string()),
            mandate_ends_at: mandate,
        }
    }

    /// Members that are up and may renew this node, itself included.
    fn issuers(&self, core: &NodeCore) -> usize {
        let me = self.identity.me.node;
        let is_one = |it: &Credential| it.roles.contains(&Role::Issuer);
        let others = core.discovery().directory().iter().filter(|(node, entry)| {
            **node != me && entry.liveness == Liveness::Alive && is_one(&entry.credential)
        });
        others.count() + usize::from(self.renewals.issuer.is_some())
    }

    pub(super) fn renewal_findings(&self, core: &NodeCore, now: UnixSeconds) -> Vec<Finding> {
        let own = &*self.identity.credential;
        let left_s = own.expires_at.seconds_since(now);
        let setback = self.setback(now);
        // While issuers renew it in time, the expiry of a short-lived credential is not reported.
        let is_in_hand =
            self.issuers(core) > 0 && setback.is_none() && left_s >= warning_s(own) && left_s > 0;
        let ends = findings::of_credential(own, now);
        let mut found: Vec<Finding> = ends
            .filter(|it| {
                let is_end = *it.kind == CREDENTIAL_ENDS && it.severity == Severity::Warning;
                !(is_end && is_in_hand)
            })
            .into_iter()
            .collect();
        found.extend(setback.map(|(rounds, setback)| {
            RENEWAL_FAILS.found(format!(
                "this node's credential is due for renewal, and no issuer has renewed it in \
                 {rounds} rounds: {setback}"
            ))
        }));
        found.extend(mandate(own, self.renewals.issuer.as_ref().map(Issuer::mandate), now));
        found
    }

    /// Why no issuer renews this node although it is time; nothing where the mesh has none and the
    /// credential was not made by one.
    fn setback(&self, now: UnixSeconds) -> Option<(u32, &Setback)> {
        let (seeker, own) = (&self.renewals.seeker, &self.identity.credential);
        let (rounds, setback) = seeker.failing()?;
        let is_harmless = match setback {
            Setback::NoIssuer => !own.is_renewal(),
            Setback::Refused(Refusal::NothingGained) => true,
            _ => false,
        };
        (rounds > MOST_QUIET_ROUNDS && !is_harmless && now >= seeker.due_at())
            .then_some((rounds, setback))
    }
}

/// Findings about an issuer's mandate.
fn mandate(own: &Credential, mandate: Option<&Mandate>, now: UnixSeconds) -> Option<Finding> {
    let has_role = own.roles.contains(&Role::Issuer);
    let Some(mandate) = mandate else {
        let text = "this node has the role issuer and holds no mandate, so it cannot renew others";
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
