//! Renews this node's credential through an issuer and, as an issuer, signs those of others.
//! [`meshport_core::renewal`] decides.

use std::sync::Arc;
use std::time::{Duration, Instant};

use meshport_config::{Credential, Issued, Mandate, NodeId, Role, UnixSeconds};
use meshport_core::node::NodeCore;
use meshport_core::renewal::{
    Asked, MAX_ISSUERS, MAX_RELAYS, Refusal, Reply, Request, Setback, check_issued, check_relayed,
};
use meshport_discovery::{Entry, Liveness, PathState};
use tracing::{debug, info, warn};

use crate::Error;
use crate::admin::credentials::{MandateReport, MandateRequest};
use crate::clock;
use crate::driver::Driver;
use crate::driver::answers::{Answer, Asker};
use crate::driver::write_queue::Write;
use crate::identity::Change;
use crate::renewal;
use crate::renewal::state::RenewalWrite;

/// An issuer's answer, or why there is none.
pub(crate) type FromIssuer = (NodeId, Result<Vec<u8>, Setback>);

/// A member asks for its next credential.
#[derive(Debug)]
pub(crate) struct Judge {
    /// Its current one: presented in its tunnel, or shown by a relay.
    pub(crate) present: Arc<Credential>,
    pub(crate) relay: Option<NodeId>,
    pub(crate) request: Request,
}

impl Answer for Judge {
    type Reply = Reply;

    fn answer(self, driver: &mut Driver, to: Asker<Reply>) {
        let judged = driver.judge(&self);
        let _ = to.send(Ok(Reply(judged.map(|issued| issued.to_bytes()))));
    }
}

impl Answer for MandateRequest {
    type Reply = MandateReport;

    fn answer(self, driver: &mut Driver, to: Asker<MandateReport>) {
        match Mandate::from_text(&self.mandate) {
            Ok(mandate) => driver.install(mandate, to),
            Err(error) => {
                let _ = to.send(Err(Error::Trust(error)));
            }
        }
    }
}

impl Driver {
    /// Asks an issuer when a renewal is due, and erases expired keys of this node's own mandate.
    pub(crate) fn renew_in_time(&mut self, now: Instant) {
        let wall = clock::wall();
        if let Some(left) = self.state.renewals.without_ended(now, wall) {
            self.offer(Write::Unexpired(Box::new(left)));
        }
        self.follow_clock(wall);
        let own = self.state.identity.credential.clone();
        let (core, renewals) = (&self.core, &mut self.state.renewals);
        let is_issuer = renewals.issuer.is_some();
        let Some(who) = renewals.seeker.poll(|| issuers(core, &own, is_issuer), now, wall) else {
            return;
        };
        if who == own.node {
            let base = self.state.renewals.base().cloned();
            let issued = self.sign(Asked { present: &own, known: None, base: base.as_ref() }, None);
            let issued = issued.map(|it| it.to_bytes()).map_err(Setback::from);
            return self.take_issued((who, issued));
        }
        debug!(issuer = %who.short(), "asking for a renewal");
        let request = Request::new(self.state.renewals.base_bytes(&own));
        let relays = relays(&self.core, own.node, who);
        let (mesh, to) = (self.mesh.clone(), self.outputs.renewals.clone());
        tokio::spawn(async move {
            let fits = |bytes: &[u8]| {
                let issued = Issued::from_bytes(bytes);
                let issued = issued.map_err(|error| Setback::Unfit(error.to_string()))?;
                check_relayed(&own, &issued, clock::wall())
            };
            let heard = renewal::ask(&mesh, who, &relays, &request, fits).await;
            // A stopped driver renews nothing.
            let _ = to.send((who, heard)).await;
        });
    }

    /// Handles an issuer's answer.
    pub(crate) fn take_issued(&mut self, (from, heard): FromIssuer) {
        let outcome = heard.and_then(|bytes| {
            let next = self.accept(&bytes)?;
            let own = &self.state.identity.credential;
            let write = self.state.renewals.write(own, next);
            self.offer(Write::Renewal(Box::new(write)));
            Ok(())
        });
        let name = self.reporter().name(&from);
        match &outcome {
            Err(Setback::Refused(Refusal::NothingGained)) | Ok(()) => {}
            Err(error) => {
                warn!(issuer = %name, %error, "an issuer did not renew this node's credential");
            }
        }
        self.state.renewals.seeker.handle_answer(from, outcome, clock::now());
    }

    /// Adds this node's own signature to the credential that an issuer signed.
    fn accept(&self, bytes: &[u8]) -> Result<Credential, Setback> {
        let unfit = |error: meshport_config::Error| Setback::Unfit(error.to_string());
        let issued = Issued::from_bytes(bytes).map_err(unfit)?;
        check_issued(&self.state.identity.credential, &issued)?;
        let next = self.mesh.countersign(issued).map_err(unfit)?;
        let believed = self.mesh.check_credential(&next);
        believed.map(|()| next).map_err(|error| Setback::Unfit(error.to_string()))
    }

    /// A value was stored and takes effect.
    pub(crate) fn take_renewal(&mut self, write: &RenewalWrite) {
        let own = &self.state.identity.credential;
        // An operator may have supplied a later one meanwhile.
        if own.issued_at >= write.next.issued_at || own.node != write.next.node {
            return;
        }
        self.state.renewals.take_stored(write);
        match self.change_identity(Change::Renewed(Box::new(write.next.clone())), None) {
            Ok(()) => self.state.renewals.keep_early(write.early.clone()),
            Err(error) => self.lose_renewal(error.to_string()),
        }
    }

    /// A renewal could not be stored and is not used.
    pub(crate) fn lose_renewal(&mut self, error: String) {
        warn!(%error, "cannot use a renewed credential");
        self.state.renewals.seeker.handle_lost(error, clock::now());
    }

    /// Uses the credential on disk once it has begun, and the one before it while peers too find
    /// that it has not.
    fn follow_clock(&mut self, wall: UnixSeconds) {
        let own = self.state.identity.credential.clone();
        if let Some(next) = self.state.renewals.take_early(&own, wall) {
            if let Err(error) = self.change_identity(Change::Renewed(Box::new(next)), None) {
                warn!(%error, "the stored credential is unusable");
            }
        } else if wall < own.valid_from() {
            self.fall_back();
        }
    }

    /// Returns to the previous credential if the current one was revoked with its issuer, while the
    /// node itself is not, or has not begun by this clock and a peer's.
    pub(crate) fn fall_back(&mut self) {
        let (own, wall) = (self.state.identity.credential.clone(), clock::wall());
        let revoked = self.core.discovery().revocations();
        let is_revoked = revoked.covering(&own).is_some();
        let former = self.state.renewals.former(&own, revoked, wall);
        let Some(former) = former.cloned() else { return };
        let until = former.expires_at;
        if let Err(error) = self.change_identity(Change::Returned(Box::new(former)), None) {
            return warn!(%error, "the previous credential is unusable");
        }
        if is_revoked {
            self.state.renewals.seeker.hurry(clock::now());
            warn!(
                %until,
                "the issuer of this node's credential is revoked; using the previous credential \
                 until another issuer renews it"
            );
        } else {
            self.state.renewals.keep_early(Some((*own).clone()));
            warn!(
                %until, valid_from = %own.issued_at, clock = %wall,
                "the current credential is not valid yet by this machine's clock and a \
                 member's; using the previous one until it is, or an issuer renews it"
            );
        }
    }

    /// Signs the next credential of a member that asks.
    fn judge(&mut self, asker: &Judge) -> Result<Issued, Refusal> {
        let Judge { present, relay, request } = asker;
        let known = relay.and_then(|_| self.mesh.known_credential(&present.node));
        let base = match request.base.as_slice() {
            [] => None,
            bytes => Some(Credential::from_bytes(bytes).map_err(|_| Refusal::Base)?),
        };
        self.sign(Asked { present, known: known.as_deref(), base: base.as_ref() }, *relay)
    }

    fn sign(&mut self, asked: Asked<'_>, relay: Option<NodeId>) -> Result<Issued, Refusal> {
        let issuer = self.state.renewals.issuer.as_mut().ok_or(Refusal::NoMandate)?;
        let revoked = self.core.discovery().revocations();
        let judged = issuer.judge(asked, revoked, clock::now(), clock::wall());
        let Asked { present, base, .. } = asked;
        let (name, node) = (&present.name, present.node.short());
        match &judged {
            Ok(issued) => {
                info!(%name, node, until = %issued.content().expires_at, "renewed a credential");
                self.state.audit.issued(issued, base.unwrap_or(present), relay);
            }
            Err(reason) => debug!(%name, node, %reason, "refused to renew a credential"),
        }
        judged
    }

    /// Whether this node may use that mandate.
    pub(super) fn judge_mandate(&self, mandate: &Mandate) -> Result<(), meshport_config::Error> {
        let own = &self.state.identity.credential;
        mandate.verify(&own.mesh)?;
        let (expected, found) = (own.node, mandate.issuer());
        if expected != found {
            return Err(meshport_config::Error::ForeignMandate { expected, found });
        }
        Ok(())
    }

    /// Uses a mandate from an operator, which is stored.
    pub(super) fn take_mandate(&mut self, mandate: Mandate) -> MandateReport {
        let until = mandate.until();
        let renewals = &mut self.state.renewals;
        let is_new = renewals.issuer.as_ref().is_none_or(|it| *it.mandate() != mandate);
        match &mut renewals.issuer {
            Some(issuer) => issuer.set_mandate(mandate),
            None => renewals.issuer = Some(meshport_core::renewal::Issuer::new(mandate)),
        }
        info!(%until, is_new, "this node has a mandate to renew credentials");
        MandateReport { until, is_new, is_stored: true }
    }
}

/// The issuers to ask, nearest first, and this node last if it is an issuer itself. A leaf has no
/// disk for a renewal, so it asks none.
fn issuers(core: &NodeCore, own: &Credential, is_issuer: bool) -> Vec<NodeId> {
    if own.roles.is_leaf() {
        return Vec::new();
    }
    let (directory, paths) = (core.discovery().directory(), core.discovery().paths());
    let others = directory.iter().filter(|(node, entry)| {
        **node != own.node
            && entry.liveness == Liveness::Alive
            && entry.credential.roles.contains(&Role::Issuer)
    });
    let rtt = |node: &NodeId| paths.get(node).and_then(|it| it.rtt).unwrap_or(Duration::MAX);
    let mut found: Vec<NodeId> = others.map(|(node, _)| *node).collect();
    found.sort_by_key(rtt);
    // This node itself comes last in a round.
    found.truncate(MAX_ISSUERS - usize::from(is_issuer));
    found.extend(is_issuer.then_some(own.node));
    found
}

/// The relays that may reach an issuer that does not answer directly: first those that measure a
/// path to it, which only origins have, then the nearest. Releases before 0.1, whose records name
/// no release, do not know such requests.
fn relays(core: &NodeCore, own: NodeId, issuer: NodeId) -> Vec<NodeId> {
    let (directory, paths) = (core.discovery().directory(), core.discovery().paths());
    let knows = |entry: &Entry| entry.node_state().is_some_and(|state| state.release.is_some());
    if !directory.get(&issuer).is_some_and(knows) {
        return Vec::new();
    }
    let found = directory.iter().filter_map(|(node, entry)| {
        let may = ![own, issuer].contains(node)
            && entry.liveness == Liveness::Alive
            && entry.credential.roles.contains(&Role::Relay)
            && knows(entry);
        let path = paths.get(node).filter(|path| may && path.state == PathState::Up)?;
        let mut distances = entry.node_state().into_iter().flat_map(|state| &state.distances);
        let reaches = distances.any(|it| it.origin == issuer && it.rtt_us.is_some());
        Some((!reaches, path.rtt?, *node))
    });
    let mut found: Vec<_> = found.collect();
    found.sort_unstable();
    found.into_iter().take(MAX_RELAYS).map(|(.., node)| node).collect()
}
