//! The local node and its record: content, time and urgency of publication.
//!
//! A change of a service, a leave or a new generation is urgent and published at once, except the
//! first version, which waits for the endpoints. New endpoints follow within the publish interval.
//! Distances are published only on relevant changes, after a random pause, and less often in larger
//! meshes, because every version reaches every node: the whole mesh publishes at most about one
//! every two seconds, regardless of its size.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use meshport_config::{Credential, NodeId, RecordKey, Role, ServiceName};

use crate::dice::Dice;
use crate::directory::Record;
use crate::state::{
    Distance, Life, MAX_DISTANCES, MAX_ENDPOINTS, MAX_SERVICES, NodeState, OriginState, SignedState,
};

/// The shortest time between two urgent versions; changes in between go out together.
const URGENT_INTERVAL: Duration = Duration::from_millis(100);
/// How long the first version waits for the endpoints, which are known at once if there are any:
/// every version reaches every node, and a version without endpoints is useless.
const FIRST_WAIT: Duration = Duration::from_millis(200);
/// Time between two versions with nothing but new distances, per member.
const DISTANCE_INTERVAL_PER_MEMBER: Duration = Duration::from_secs(2);
/// Longest random pause before one of these versions, per member, so that members do not all send
/// at once after an event that all of them see.
const DISTANCE_PAUSE_PER_MEMBER: Duration = Duration::from_millis(100);
/// A round-trip time is published again when it has changed by a quarter and by this much.
const RTT_STEP_US: u32 = 1000;
/// A distance is published again when its loss differs by this much from the published one: four of
/// the last sixteen probes. A node that chooses a relay, or another origin, has no other figure for
/// that loss.
const LOSS_STEP_PERCENT: u8 = 25;

/// How fast a version must spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Urgency {
    /// Found by the next comparison of directories.
    Quiet,
    /// Spread by rumour.
    Rumour,
    /// Sent to every connected peer, and spread by rumour.
    News,
}

/// This node's identity.
#[derive(Debug)]
pub struct LocalNode {
    /// The node's own credential; its mesh is the mesh.
    pub credential: Credential,
    /// Signs the node's record; its public half is in the credential.
    pub record_key: RecordKey,
}

/// The record of the local node and its timing.
#[derive(Debug)]
pub(crate) struct LocalRecord {
    credential: Arc<Credential>,
    key: RecordKey,
    life: Life,
    version: u64,
    endpoints: Vec<SocketAddr>,
    services: BTreeMap<ServiceName, OriginState>,
    distances: BTreeMap<NodeId, Distance>,
    left: bool,
    behind_nat: bool,
    release: Option<Box<str>>,
    /// Until when the first version waits; `None` once the endpoints are known or it is published.
    waits_until: Option<Instant>,
    /// The record waiting to be published, and its earliest time.
    pending: Option<Pending>,
    published_at: Option<Instant>,
    /// Time of the last version with new distances.
    distances_at: Option<Instant>,
    interval: Duration,
}

/// A version that waits to be published.
#[derive(Debug, Clone, Copy)]
struct Pending {
    urgency: Urgency,
    due: Instant,
}

impl LocalRecord {
    pub(crate) fn new(me: LocalNode, generation: u64, interval: Duration, now: Instant) -> Self {
        Self {
            credential: Arc::new(me.credential),
            key: me.record_key,
            life: Life { generation, renewal: 0 },
            version: 0,
            endpoints: Vec::new(),
            services: BTreeMap::new(),
            distances: BTreeMap::new(),
            left: false,
            behind_nat: false,
            release: None,
            waits_until: Some(now + FIRST_WAIT),
            pending: None,
            published_at: None,
            distances_at: None,
            interval,
        }
    }

    pub(crate) fn credential(&self) -> &Arc<Credential> {
        &self.credential
    }

    /// The credential, for the directory.
    pub(crate) fn record(&self) -> Record {
        Record { credential: Arc::clone(&self.credential), state: None }
    }

    pub(crate) fn set_credential(&mut self, credential: Credential) {
        self.credential = Arc::new(credential);
    }

    /// Whether this node's distances to origins are useful: relays are chosen by them, and between
    /// origins they show what a client cannot measure. If a thousand other nodes published theirs,
    /// the whole mesh would fetch records that nobody uses.
    pub(crate) fn tells_distances(&self) -> bool {
        self.credential.roles.iter().any(|role| matches!(role, Role::Relay | Role::Origin(_)))
    }

    pub(crate) fn generation(&self) -> u64 {
        self.life.generation
    }

    pub(crate) fn has_left(&self) -> bool {
        self.left
    }

    /// False if there are more than [`MAX_ENDPOINTS`]; then the first ones are used.
    pub(crate) fn set_endpoints(&mut self, mut endpoints: Vec<SocketAddr>, now: Instant) -> bool {
        let fit = endpoints.len() <= MAX_ENDPOINTS;
        endpoints.truncate(MAX_ENDPOINTS);
        let are_first = self.waits_until.take().is_some();
        if are_first || endpoints != self.endpoints {
            self.endpoints = endpoints;
            self.want(Urgency::Rumour, Duration::ZERO, now);
        }
        fit
    }

    pub(crate) fn set_behind_nat(&mut self, behind_nat: bool, now: Instant) {
        if self.behind_nat != behind_nat {
            self.behind_nat = behind_nat;
            self.want(Urgency::Rumour, Duration::ZERO, now);
        }
    }

    pub(crate) fn is_behind_nat(&self) -> bool {
        self.behind_nat
    }

    /// Published with the next version, but does not trigger one.
    pub(crate) fn set_release(&mut self, release: &str) {
        self.release = Some(release.into());
    }

    /// False when there are too many services.
    pub(crate) fn set_service(
        &mut self,
        name: ServiceName,
        state: Option<OriginState>,
        now: Instant,
    ) -> bool {
        let room = self.services.len() < MAX_SERVICES || self.services.contains_key(&name);
        let before = match state {
            Some(state) if room => self.services.insert(name, state),
            Some(_) => return false,
            None => self.services.remove(&name),
        };
        if before != state {
            self.want(Urgency::News, Duration::ZERO, now);
        }
        true
    }

    /// Updates the distances; publishes them later if the change is relevant.
    pub(crate) fn set_distances(
        &mut self,
        mut distances: Vec<Distance>,
        members: usize,
        dice: &mut Dice,
        now: Instant,
    ) {
        distances.sort_by_key(|it| (it.rtt_us.unwrap_or(u32::MAX), it.origin));
        distances.truncate(MAX_DISTANCES);
        let matters = distances.iter().any(|it| differs(self.distances.get(&it.origin), it));
        if !matters {
            return;
        }
        let members = u32::try_from(members).unwrap_or(u32::MAX);
        let pause = (DISTANCE_PAUSE_PER_MEMBER * members).max(Duration::from_millis(200));
        let pause = pause / 2 + dice.up_to(pause / 2);
        let rest = DISTANCE_INTERVAL_PER_MEMBER * members;
        let rested = self.distances_at.map_or(now, |at| at + rest).saturating_duration_since(now);
        if self.pending.is_none() {
            self.want(Urgency::Quiet, pause.max(rested), now);
        }
    }

    /// Continues as another node, which signs with another key.
    pub(crate) fn succeed(&mut self, me: LocalNode, now: Instant) {
        (self.credential, self.key) = (Arc::new(me.credential), me.record_key);
        self.want(Urgency::News, Duration::ZERO, now);
    }

    /// Continues in a later life.
    pub(crate) fn set_life(&mut self, life: Life, now: Instant) {
        if life > self.life {
            if life.generation > self.life.generation {
                self.version = 0;
            }
            self.life = life;
            self.want(Urgency::News, Duration::ZERO, now);
        }
    }

    /// Marks this node as gone, in the last version of this generation, published at once.
    pub(crate) fn leave(&mut self, now: Instant) {
        self.left = true;
        self.published_at = None;
        self.pending = Some(Pending { urgency: Urgency::News, due: now });
    }

    /// Requests a version no later than `after`, unless an earlier or more urgent one is pending.
    pub(crate) fn want(&mut self, urgency: Urgency, after: Duration, now: Instant) {
        if self.left {
            return;
        }
        let rest = if urgency == Urgency::News { URGENT_INTERVAL } else { self.interval };
        let rested = self.published_at.map_or(now, |at| (at + rest).max(now));
        let due = rested.max(now + after).max(self.waits_until.unwrap_or(now));
        self.pending = Some(match self.pending {
            Some(waiting) => {
                Pending { urgency: waiting.urgency.max(urgency), due: waiting.due.min(due) }
            }
            None => Pending { urgency, due },
        });
    }

    /// The next version, if one is due. `distances` returns the current ones; called only if they
    /// are published.
    pub(crate) fn publish(
        &mut self,
        distances: impl FnOnce() -> Vec<Distance>,
        now: Instant,
    ) -> Option<(Urgency, Arc<SignedState>)> {
        let Pending { urgency, .. } = self.pending.take_if(|pending| pending.due <= now)?;
        self.waits_until = None;
        self.published_at = Some(now);
        self.version += 1;
        let mut nearest = if self.tells_distances() { distances() } else { Vec::new() };
        nearest.sort_by_key(|it| (it.rtt_us.unwrap_or(u32::MAX), it.origin));
        nearest.truncate(MAX_DISTANCES);
        if nearest.iter().any(|it| differs(self.distances.get(&it.origin), it)) {
            self.distances_at = Some(now);
        }
        self.distances = nearest.into_iter().map(|it| (it.origin, it)).collect();
        let state = NodeState {
            node: self.credential.node,
            generation: self.life.generation,
            renewal: self.life.renewal,
            version: self.version,
            endpoints: self.endpoints.clone(),
            services: self.services.iter().map(|(name, state)| (name.clone(), *state)).collect(),
            distances: self.distances.values().cloned().collect(),
            left: self.left,
            behind_nat: self.behind_nat,
            release: self.release.clone(),
        };
        Some((urgency, Arc::new(SignedState::sign(state, &self.credential.mesh, &self.key))))
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.pending.map(|pending| pending.due)
    }
}

/// Whether a distance has changed enough to publish it.
fn differs(before: Option<&Distance>, now: &Distance) -> bool {
    let loses_otherwise =
        before.is_some_and(|it| it.loss_percent.abs_diff(now.loss_percent) >= LOSS_STEP_PERCENT);
    match (before.map(|it| it.rtt_us), now.rtt_us) {
        (Some(Some(before)), Some(rtt)) => {
            let step = before.abs_diff(rtt);
            loses_otherwise || (step > RTT_STEP_US && step > before / 4)
        }
        (Some(before), rtt) => before.is_some() != rtt.is_some(),
        (None, _) => true,
    }
}

#[cfg(test)]
mod tests;
