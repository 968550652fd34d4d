//! Decides what a member with a mandate signs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use meshport_config::{
    Credential, Error, Issued, MAX_CLOCK_SKEW_S, Mandate, NodeId, Revocations, UnixSeconds,
};

use super::Refusal;

/// Maximum nodes whose last renewal is remembered, to send it again: about 700 bytes each. Beyond
/// that the oldest are forgotten, and those nodes get a later one.
pub const MAX_GIVEN: usize = 4096;
/// Maximum different credentials that a node gets from one issuer per lifetime.
const MOST_PER_LIFETIME: u64 = 12;

/// A requesting node. Everything is verified except `base`.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// Its credential, presented in the tunnel or by a relay.
    pub present: &'a Credential,
    /// If a relay presents it, the last one known here. An earlier one would count as another
    /// renewal of the node.
    pub known: Option<&'a Credential>,
    /// The last one that no issuer signed, as presented by the node; nothing is verified yet.
    pub base: Option<&'a Credential>,
}

/// See the module's description.
#[derive(Debug)]
pub struct Issuer {
    mandate: Mandate,
    given: BTreeMap<NodeId, Given>,
}

#[derive(Debug)]
struct Given {
    at: Instant,
    /// The credential that it follows.
    follows: [u8; 8],
    issued: Issued,
}

impl Issuer {
    /// With a verified mandate.
    pub fn new(mandate: Mandate) -> Self {
        Self { mandate, given: BTreeMap::new() }
    }

    /// The mandate.
    pub fn mandate(&self) -> &Mandate {
        &self.mandate
    }

    /// Replaces the mandate, by another one or by the same without expired turns.
    pub fn set_mandate(&mut self, mandate: Mandate) {
        self.mandate = mandate;
    }

    /// Signs the next credential of a requesting node, or returns why not. No request is too early:
    /// the node's clock may differ, and a credential that expires no later than the current one is
    /// refused anyway. A node that asks again gets the same one, since an answer may be lost,
    /// unless that is dated in the future because the clock here was ahead: no node would accept
    /// it.
    pub fn judge(
        &mut self,
        asked: Asked<'_>,
        revoked: &Revocations,
        now: Instant,
        wall: UnixSeconds,
    ) -> Result<Issued, Refusal> {
        let Asked { present, .. } = asked;
        check(asked, revoked, wall)?;
        let gap = Duration::from_secs((self.mandate.lifetime_s() / MOST_PER_LIFETIME).max(1));
        let follows = present.id();
        if let Some(given) = self.given.get(&present.node)
            && now.saturating_duration_since(given.at) < gap
            && revoked.covering(given.issued.content()).is_none()
            && given.issued.content().issued_at <= wall.saturating_add(MAX_CLOCK_SKEW_S)
        {
            let is_same = given.follows == follows;
            return if is_same { Ok(given.issued.clone()) } else { Err(Refusal::TooOften) };
        }
        let issued = self.mandate.renew(present, wall).map_err(|error| refusal(&error))?;
        if revoked.covering(issued.content()).is_some() {
            return Err(Refusal::MandateEnded);
        }
        if issued.content().expires_at <= present.expires_at {
            return Err(Refusal::NothingGained);
        }
        self.remember(present.node, Given { at: now, follows, issued: issued.clone() }, gap);
        Ok(issued)
    }

    fn remember(&mut self, node: NodeId, given: Given, gap: Duration) {
        let now = given.at;
        if self.given.len() >= MAX_GIVEN && !self.given.contains_key(&node) {
            self.given.retain(|_, it| now.saturating_duration_since(it.at) < gap);
            let oldest = self.given.iter().min_by_key(|(_, it)| it.at).map(|(node, _)| *node);
            if self.given.len() >= MAX_GIVEN
                && let Some(oldest) = oldest
            {
                self.given.remove(&oldest);
            }
        }
        self.given.insert(node, given);
    }
}

/// The checks that do not depend on the mandate.
fn check(asked: Asked<'_>, revoked: &Revocations, wall: UnixSeconds) -> Result<(), Refusal> {
    let Asked { present, known, base } = asked;
    if known.is_some_and(|known| known.issued_at > present.issued_at) {
        return Err(Refusal::Former);
    }
    if revoked.covering(present).is_some() {
        return Err(Refusal::Revoked);
    }
    if wall >= present.expires_at.saturating_add(MAX_CLOCK_SKEW_S) {
        return Err(Refusal::Ended);
    }
    if !present.is_renewal() {
        return Ok(());
    }
    let base = base.filter(|it| !it.is_renewal()).ok_or(Refusal::Base)?;
    let is_same = (&base.mesh, &base.node, &base.record_key, &base.name, &base.site)
        == (&present.mesh, &present.node, &present.record_key, &present.name, &present.site)
        && present.roles.is_subset(&base.roles);
    // It only identifies the node, so it may have expired long ago.
    if !is_same || base.verify(&present.mesh, base.issued_at).is_err() {
        return Err(Refusal::Base);
    }
    if revoked.covering(base).is_some() {
        return Err(Refusal::Revoked);
    }
    Ok(())
}

fn refusal(error: &Error) -> Refusal {
    match error {
        Error::MandateEnded { .. } | Error::NotYetValid { .. } => Refusal::MandateEnded,
        Error::IssuedAfterInvite { .. } | Error::IssuedBeforeInvite { .. } => Refusal::Clock,
        _ => Refusal::Outside,
    }
}
