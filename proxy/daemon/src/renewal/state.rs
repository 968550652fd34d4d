//! State for renewing a node's own credential and, as an issuer, those of others. No socket, no
//! disk, no clock.

use std::time::{Duration, Instant};

use meshport_config::{Credential, Mandate, Revocations, UnixSeconds};
use meshport_core::renewal::{Issuer, Seeker};

use crate::clock;
use meshport_state::KnownRenewals;

/// How long the wall clock must be past the end of a turn before its key is erased, so that a
/// temporarily wrong clock erases nothing.
const MOST_DOUBT: Duration = Duration::from_secs(3600);

/// The next credential of this node, and those before it.
#[derive(Debug, Clone)]
pub(crate) struct RenewalWrite {
    pub(crate) next: Credential,
    /// The last one not signed by an issuer.
    pub(crate) base: Credential,
    pub(crate) former: Credential,
    /// The one on disk, which stays there: it has not begun, and expires after `next`.
    pub(crate) early: Option<Credential>,
}

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Renewals {
    pub(crate) seeker: Seeker,
    pub(crate) issuer: Option<Issuer>,
    /// The last credential that no issuer signed; absent if that is the current one.
    base: Option<Credential>,
    /// The credential before the current one.
    former: Option<Credential>,
    /// The one on disk, while the current one is the one before it and it is not valid yet.
    early: Option<Credential>,
    /// Whether a peer's clock too says that the current one has not begun.
    is_refused_early: bool,
    /// Since when the mandate's first turn has been over by the wall clock.
    over_since: Option<Instant>,
}

impl Renewals {
    pub(crate) fn new(known: KnownRenewals, own: &Credential) -> Self {
        let KnownRenewals { mandate, base, former, early } = known;
        let issuer = mandate.filter(|it| it.issuer() == own.node).map(Issuer::new);
        let seeker = Seeker::new(own, clock::now());
        Self { seeker, issuer, base, former, early, is_refused_early: false, over_since: None }
    }

    /// The encoded credential that an issuer gets in addition to `own`.
    pub(crate) fn base_bytes(&self, own: &Credential) -> Vec<u8> {
        let base = self.base.as_ref().filter(|_| own.is_renewal());
        base.map_or(Vec::new(), Credential::to_bytes)
    }

    /// The base, for a node that is its own issuer.
    pub(crate) fn base(&self) -> Option<&Credential> {
        self.base.as_ref()
    }

    /// The values to store when `next` is to follow `own`.
    pub(crate) fn write(&self, own: &Credential, next: Credential) -> RenewalWrite {
        let base = self.base.as_ref().filter(|_| own.is_renewal()).unwrap_or(own);
        let early = self.early.clone().filter(|it| it.expires_at > next.expires_at);
        RenewalWrite { next, base: base.clone(), former: own.clone(), early }
    }

    pub(crate) fn take_stored(&mut self, write: &RenewalWrite) {
        (self.base, self.former) = (Some(write.base.clone()), Some(write.former.clone()));
    }

    /// The credential on disk has not begun and is used later.
    pub(crate) fn keep_early(&mut self, early: Option<Credential>) {
        self.early = early;
    }

    /// Follows a change of the credential.
    pub(crate) fn follow(&mut self, own: &Credential, now: Instant) {
        self.seeker.follow(own, now);
        // Whatever it is, it is the later decision.
        self.early = None;
        self.is_refused_early = false;
    }

    /// Handles a peer's refusal of the credential, in the words of the peer's [`Error`].
    ///
    /// [`Error`]: meshport_config::Error::NotYetValid
    pub(crate) fn handle_refusal(&mut self, own: &Credential, reason: &str) {
        let early = format!("this node's credential: it is not valid before {}", own.issued_at);
        self.is_refused_early |= reason.contains(&early);
    }

    /// The credential on disk, once the clock has reached its start; `own` is then the one before
    /// it.
    pub(crate) fn take_early(&mut self, own: &Credential, wall: UnixSeconds) -> Option<Credential> {
        let next = self.early.take_if(|it| it.valid_from() <= wall)?;
        self.former = Some(own.clone());
        Some(next)
    }

    /// The credential to return to if the current one was revoked with its issuer, or has not
    /// begun: the clock was ahead when an issuer signed it. This node's clock alone is no evidence
    /// of that: it may just be behind, and the former one may have ended.
    pub(crate) fn former(
        &self,
        own: &Credential,
        revoked: &Revocations,
        now: UnixSeconds,
    ) -> Option<&Credential> {
        let is_early = self.is_refused_early && now < own.valid_from();
        let is_unusable = is_early || revoked.covering(own).is_some();
        let is_lost = own.is_renewal() && is_unusable && !revoked.has_node(&own.node);
        let former = self.former.as_ref().filter(|it| is_lost && it.node == own.node)?;
        (former.is_valid_at(now) && revoked.covering(former).is_none()).then_some(former)
    }

    /// The mandate without turns that have certainly ended, if any have: it must be stored, so that
    /// their keys are erased from disk, and then used. Returned again after a while if it is not.
    pub(crate) fn without_ended(&mut self, now: Instant, wall: UnixSeconds) -> Option<Mandate> {
        let issuer = self.issuer.as_ref()?;
        let is_over = issuer.mandate().turns().next().is_some_and(|first| first.until < wall);
        if !is_over || issuer.mandate().len() == 1 {
            self.over_since = None;
            return None;
        }
        let doubt = Duration::from_secs(issuer.mandate().lifetime_s() / 4).min(MOST_DOUBT);
        let since = *self.over_since.get_or_insert(now);
        if now.saturating_duration_since(since) < doubt {
            return None;
        }
        self.over_since = None;
        issuer.mandate().without_ended(wall)
    }
}

#[cfg(test)]
mod tests {
    use meshport_config::{AuthorityKey, NodeKey, Terms};
    use meshport_core::testing::{WALL, credential};
    use rand_core::OsRng;

    use super::*;

    const DAY_S: u64 = 86_400;

    fn renewals() -> Renewals {
        let own = credential(3, "node");
        let terms = Terms {
            issuer: own.node,
            roles: own.roles.clone(),
            site: None,
            lifetime_s: 30 * DAY_S,
            from: WALL,
            until: WALL.saturating_add(90 * DAY_S),
        };
        let authority = AuthorityKey::from_bytes([9; 32]);
        let mandate = Some(Mandate::create(&authority, &terms, &mut OsRng).expect("good"));
        Renewals::new(KnownRenewals { mandate, ..KnownRenewals::default() }, &own)
    }

    #[test]
    fn keys_of_turns_that_are_over_are_erased_and_a_wrong_clock_erases_none() {
        let (mut renewals, now) = (renewals(), clock::now());
        let turns = |it: &Renewals| it.issuer.as_ref().expect("it has one").mandate().len();
        let (all, ahead) = (turns(&renewals), WALL.saturating_add(400 * DAY_S));
        assert!(renewals.without_ended(now, ahead).is_none());
        assert!(renewals.without_ended(now + MOST_DOUBT / 2, WALL).is_none());
        assert!(renewals.without_ended(now + MOST_DOUBT, ahead).is_none());
        assert_eq!(turns(&renewals), all);
        let later = WALL.saturating_add(20 * DAY_S);
        assert!(renewals.without_ended(now + MOST_DOUBT, later).is_none());
        let left = renewals.without_ended(now + 2 * MOST_DOUBT, later).expect("it is beyond doubt");
        assert_eq!((left.len(), turns(&renewals)), (all - 2, all));
        let again = now + 3 * MOST_DOUBT;
        assert!(renewals.without_ended(again, later).is_none());
        let again = renewals.without_ended(again + MOST_DOUBT, later);
        assert_eq!(again.map(|it| it.len()), Some(all - 2), "it was not stored");
    }

    #[test]
    fn a_stored_credential_is_taken_when_it_has_begun_and_not_twice() {
        let stored = credential(3, "node");
        let known = KnownRenewals { early: Some(stored.clone()), ..KnownRenewals::default() };
        let mut renewals = Renewals::new(known, &stored);
        let begins = stored.valid_from();
        assert_eq!(renewals.take_early(&stored, UnixSeconds(begins.0 - 1)), None);
        assert_eq!(renewals.take_early(&stored, begins), Some(stored.clone()));
        assert_eq!(renewals.take_early(&stored, begins), None);
    }

    #[test]
    fn a_stored_credential_is_not_taken_once_another_is_in_use() {
        let stored = credential(3, "node");
        let known = KnownRenewals { early: Some(stored.clone()), ..KnownRenewals::default() };
        let mut renewals = Renewals::new(known, &stored);
        renewals.follow(&stored, clock::now());
        assert_eq!(renewals.take_early(&stored, stored.valid_from()), None);
    }

    /// As the issuer signs it for itself.
    fn renewed(renewals: &Renewals, own: &Credential, wall: UnixSeconds) -> Credential {
        let mandate = renewals.issuer.as_ref().expect("it has one").mandate();
        let issued = mandate.renew(own, wall).expect("it is in force");
        issued.countersign(&NodeKey::from_bytes([3; 32])).expect("its own key")
    }

    /// A peer whose clock is right refuses a credential from the future.
    fn refusal(own: &Credential) -> String {
        let refused = own.verify(&own.mesh, UnixSeconds(own.valid_from().0 - 1));
        let refused = refused.expect_err("it has not begun");
        format!("the peer refuses this node's credential: {refused}")
    }

    #[test]
    fn a_clock_that_is_set_back_alone_leaves_the_current_credential_in_use() {
        let (mut renewals, own, none) = (renewals(), credential(3, "node"), Revocations::default());
        let next = renewed(&renewals, &own, WALL.saturating_add(5 * DAY_S));
        renewals.take_stored(&renewals.write(&own, next.clone()));
        renewals.follow(&next, clock::now());
        let back = WALL.saturating_add(DAY_S);
        assert_eq!(renewals.former(&next, &none, back), None);
        // Refusals for another reason, and of another credential, tell nothing of the clock.
        renewals.handle_refusal(&next, "the peer refuses this node's credential: it has expired");
        renewals.handle_refusal(&next, &refusal(&own));
        assert_eq!(renewals.former(&next, &none, back), None);
        renewals.handle_refusal(&next, &refusal(&next));
        assert_eq!(renewals.former(&next, &none, back), Some(&own));
        assert_eq!(renewals.former(&next, &none, next.valid_from()), None, "it has begun");
        renewals.follow(&next, clock::now());
        assert_eq!(renewals.former(&next, &none, back), None, "a refusal is of one credential");
    }

    #[test]
    fn a_credential_from_the_future_waits_behind_the_one_before_it_and_its_renewals() {
        let (mut renewals, own, none) = (renewals(), credential(3, "node"), Revocations::default());
        let future = renewed(&renewals, &own, WALL.saturating_add(60 * DAY_S));
        renewals.take_stored(&renewals.write(&own, future.clone()));
        assert_eq!(renewals.former(&future, &none, future.valid_from()), None);
        let before = UnixSeconds(future.valid_from().0 - 1);
        renewals.handle_refusal(&future, &refusal(&future));
        assert_eq!(renewals.former(&future, &none, before), Some(&own));
        assert_eq!(renewals.former(&own, &none, UnixSeconds(own.valid_from().0 - 1)), None);
        renewals.keep_early(Some(future.clone()));

        // The issuer signs for itself again.
        let next = renewed(&renewals, &own, WALL);
        let write = renewals.write(&own, next.clone());
        assert_eq!(write.early, Some(future.clone()));
        renewals.take_stored(&write);
        renewals.follow(&next, clock::now());
        renewals.keep_early(write.early);
        let taken = renewals.take_early(&next, future.valid_from());
        assert_eq!(taken.as_ref(), Some(&future));
        renewals.handle_refusal(&future, &refusal(&future));
        assert_eq!(renewals.former(&future, &none, before), None, "it has expired");
        assert_eq!(renewals.former(&future, &none, WALL), Some(&next));
    }

    #[test]
    fn a_stored_credential_that_ends_first_is_replaced() {
        let (mut renewals, own) = (renewals(), credential(3, "node"));
        let stored = renewed(&renewals, &own, WALL);
        renewals.keep_early(Some(stored));
        let next = renewed(&renewals, &own, WALL.saturating_add(1));
        assert_eq!(renewals.write(&own, next).early, None);
    }

    #[test]
    fn a_mandate_of_another_node_is_none() {
        let mandate = renewals().issuer.map(|it| it.mandate().clone());
        let known = KnownRenewals { mandate, ..KnownRenewals::default() };
        assert!(Renewals::new(known, &credential(4, "node")).issuer.is_none());
    }
}
