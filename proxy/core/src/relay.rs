//! Whether sessions reach an origin directly or through one relay: pure functions.
//!
//! The direct path is used unless it is dead or a relay is clearly faster. A relay is a member with
//! that role that answers probes from here and whose record reports that it reaches the origin. A
//! relay's distances are claims, bounded by what this node measures:
//!
//! - The path to the relay is measured here, and relaying has a penalty (`PENALTY`): a false claim
//!   attracts only sessions to origins that are farther than the liar by that much.
//! - Sessions time their connections. Then the larger of claim and measurement counts. Until then a
//!   claim may choose the path to an origin, but not the origin, whose cost stays that of the
//!   direct path.
//! - A relay that refuses, is silent or loses a race becomes suspect like any other line.
//! - When the direct path dies, the origin may have died too, and the relay's record may be old:
//!   the path through it ranks behind everything healthy until a session was connected, or the
//!   origin is still a member after `TRUST_AFTER`.
//!
//! A relayed stream leaves the relay with no hop left, so there is never a second relay, whatever
//! records say. Changes have hysteresis like those between origins. Bounds: one choice per origin;
//! [`MAX_WATCHED`] paths are measured only for relaying.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use meshport_config::NodeId;
use meshport_config::planted::{Bug, is_planted};
use meshport_discovery::Distance;

use super::damping::{Damping, GAIN_LASTING};
use super::evidence::Evidence;
use super::timing::Timings;
use super::view::{BrokenLines, Line, OriginView, PathView, Relaying, cost};
use crate::wire::Hops;

/// Cost of a relayed path beyond its round trips: it uses another node's resources and can fail at
/// two places...
const PENALTY: Duration = Duration::from_millis(5);
/// ...or this share of its round-trip time, in percent, whichever is more.
const PENALTY_PERCENT: u32 = 10;
/// A recovered direct path is used again after this time: long enough to ignore a flapping one, and
/// within 20 s of healing including detection.
const HOMECOMING: Duration = Duration::from_secs(5);
/// A dead node has been declared down by then, so one that is still a member is alive and only the
/// direct path is dead.
const TRUST_AFTER: Duration = Duration::from_secs(10);
/// Paths measured so that a relay is known before it is needed. Origins are measured anyway and may
/// relay too; idle probes share one budget, so extra paths cost tunnels rather than packets.
pub const MAX_WATCHED: usize = 4;
/// Maximum of these in this node's own site while others exist: a fault that cuts a site off from
/// an origin cuts off its relays too.
const MAX_WATCHED_NEAR: usize = 2;

/// A member that may relay, as seen from here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Near {
    /// The relay.
    pub relay: NodeId,
    /// The measured round-trip time to it.
    pub rtt: Duration,
    /// How much single round trips deviate from that.
    pub deviation: Duration,
    /// Share of recent probes without an answer, 0 to 100.
    pub loss_percent: u8,
    /// The distances to the origins in its record.
    pub onward: Vec<Distance>,
}

/// A path to one origin through one relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// The relay.
    pub relay: NodeId,
    /// The round-trip time of both legs, or what sessions measured if that is more.
    pub rtt: Duration,
    /// How much single round trips deviate from that.
    pub deviation: Duration,
    /// Share of packets lost on either leg, 0 to 100.
    pub loss_percent: u8,
    /// Whether most were lost, and many still are.
    pub broken: bool,
    /// Whether sessions recently found it silent or refusing.
    pub suspect: bool,
    /// Whether a session was recently connected through it.
    pub proven: bool,
    /// Whether sessions have timed it, so that it is more than a claim.
    pub timed: bool,
}

impl Offer {
    /// The path to `origin` through `near`; `None` if `near` is that origin or does not report that
    /// it reaches it.
    pub(crate) fn of(
        near: &Near,
        origin: NodeId,
        broken: &BrokenLines,
        evidence: &Evidence,
        timings: &Timings,
        now: Instant,
    ) -> Option<Self> {
        let relay = near.relay;
        if relay == origin {
            return None;
        }
        let onward = near.onward.iter().find(|distance| distance.origin == origin)?;
        let claimed = near.rtt + Duration::from_micros(u64::from(onward.rtt_us?));
        let line = Line::Relayed { origin, relay };
        let timed = timings.judged(&line, now);
        let loss_percent = either(near.loss_percent, onward.loss_percent);
        Some(Self {
            relay,
            rtt: claimed.max(timed.unwrap_or_default()),
            // The deviation of the second leg is not known; it is assumed to be that of the first.
            deviation: near.deviation * 2,
            loss_percent,
            broken: broken.spoil(relay, loss_percent),
            suspect: evidence.is_suspect(&line),
            proven: timings.is_proven(&line, now),
            timed: timed.is_some(),
        })
    }

    /// Whether neither sessions nor probes show heavy loss.
    fn is_sound(&self) -> bool {
        !self.suspect && !self.broken
    }

    /// The cost of a session through it.
    pub fn cost(&self) -> Duration {
        cost(self.rtt, self.loss_percent) + penalty(self.rtt)
    }

    /// The path as a view, made from that of the direct path to `origin`.
    pub(crate) fn view(&self, origin: NodeId, direct: &OriginView) -> OriginView {
        OriginView {
            line: Line::Relayed { origin, relay: self.relay },
            path: PathView::Up(self.rtt),
            usual_rtt: None,
            deviation: self.deviation,
            loss_percent: self.loss_percent,
            broken: self.broken,
            present: true,
            suspect: self.suspect,
            ..direct.clone()
        }
    }
}

/// The cost of a relayed path in addition to its round trips.
pub(super) fn penalty(rtt: Duration) -> Duration {
    PENALTY.max(rtt * PENALTY_PERCENT / 100)
}

/// The share of packets lost on either of two legs, in percent.
fn either(one: u8, other: u8) -> u8 {
    let kept = u32::from(100 - one.min(100)) * u32::from(100 - other.min(100)) / 100;
    u8::try_from(100 - kept).unwrap_or(100)
}

/// The memory of one origin's path from one decision to the next.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct PathMemory {
    /// The relay; `None` for the direct path.
    relay: Option<NodeId>,
    /// Since when another path has been better without a break, and whether that is the direct one.
    gain: Option<(bool, Instant)>,
    /// Time since which the direct path has been dead.
    dead_since: Option<Instant>,
    /// Time at which a decision may change without new input.
    due: Option<Instant>,
}

/// The next step after a decision.
enum Step {
    Stay,
    Now(Option<NodeId>),
    /// Once it has been better for this long.
    After(Option<NodeId>, Duration),
}

/// The paths to all origins of a service. See the module's description.
#[derive(Debug, Clone, Default)]
pub struct Paths {
    by_origin: BTreeMap<NodeId, PathMemory>,
}

impl Paths {
    /// The path to one origin: a view that replaces `direct`, or `None` for the direct path.
    pub fn choose(
        &mut self,
        direct: &OriginView,
        offers: &[Offer],
        now: Instant,
    ) -> Option<OriginView> {
        let Line::Direct(origin) = direct.line else { return None };
        let memory = self.by_origin.remove(&origin).unwrap_or_default();
        // A node that is no longer a member is unreachable for all, unless sessions show otherwise.
        let usable = offers.iter().filter(|offer| offer.proven || direct.present);
        let usable: Vec<&Offer> = usable.collect();
        let mut choice = decide(direct, &usable, memory, now);
        let offer = usable.iter().find(|offer| Some(offer.relay) == choice.relay);
        let view = offer.map(|offer| {
            let trusted_at = choice.dead_since.map(|since| since + TRUST_AFTER);
            let trusted = offer.proven || trusted_at.is_none_or(|at| at <= now);
            choice.due = choice.due.into_iter().chain(trusted_at.filter(|_| !trusted)).min();
            let direct_dead = choice.dead_since.is_some();
            let least_cost = direct_cost(direct).filter(|_| !offer.timed).unwrap_or_default();
            let relaying = Some(Relaying { trusted, direct_dead, least_cost });
            OriginView { relaying, ..offer.view(origin, direct) }
        });
        if choice != PathMemory::default() {
            self.by_origin.insert(origin, choice);
        }
        view
    }

    /// Removes origins that no longer exist.
    pub fn retain(&mut self, is_origin: impl Fn(&NodeId) -> bool) {
        self.by_origin.retain(|origin, _| is_origin(origin));
    }

    /// Time at which [`Paths::choose`] may decide differently without new input.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.by_origin.values().filter_map(|choice| choice.due).min()
    }
}

fn decide(direct: &OriginView, offers: &[&Offer], memory: PathMemory, now: Instant) -> PathMemory {
    if direct.path == PathView::Own {
        return PathMemory::default();
    }
    let dead = direct.path == PathView::Dead;
    let dead_since = dead.then(|| memory.dead_since.unwrap_or(now));
    let present = memory.relay.and_then(|relay| offers.iter().find(|it| it.relay == relay));
    let stay = PathMemory { relay: present.map(|it| it.relay), gain: None, dead_since, due: None };
    match step(direct, offers, present.copied()) {
        Step::Stay => stay,
        Step::Now(relay) => PathMemory { relay, ..stay },
        Step::After(relay, time) => {
            let same = memory.gain.filter(|(direct, _)| *direct == relay.is_none());
            let since = same.map_or(now, |(_, since)| since);
            if now.saturating_duration_since(since) >= time {
                PathMemory { relay, ..stay }
            } else {
                PathMemory { gain: Some((relay.is_none(), since)), due: Some(since + time), ..stay }
            }
        }
    }
}

/// The cost of a direct session, if the path is measured and works.
fn direct_cost(direct: &OriginView) -> Option<Duration> {
    match direct.path {
        PathView::Up(rtt) => Some(cost(rtt, direct.loss_percent)),
        PathView::Own | PathView::Unmeasured | PathView::Dead => None,
    }
}

fn step(direct: &OriginView, offers: &[&Offer], present: Option<&Offer>) -> Step {
    let best = offers.iter().min_by_key(|offer| (!offer.is_sound(), offer.cost(), offer.relay));
    let sound = best.filter(|offer| offer.is_sound());
    let direct_cost = direct_cost(direct);
    let better_than = |cost: Duration| {
        let better = sound.filter(|offer| Damping::default().is_clear(cost, offer.cost()));
        better.map_or(Step::Stay, |offer| Step::After(Some(offer.relay), GAIN_LASTING))
    };
    match (present, direct_cost) {
        (None, Some(cost)) => better_than(direct.usual_cost().unwrap_or(cost)),
        (None, None) if direct.path == PathView::Dead => Step::Now(best.map(|it| it.relay)),
        (None, None) => Step::Stay,
        (Some(relay), Some(_)) if !relay.is_sound() => Step::Now(None),
        (Some(relay), Some(direct)) if direct <= relay.cost() => Step::After(None, HOMECOMING),
        (Some(relay), None) if !relay.is_sound() && sound.is_some() => {
            Step::Now(sound.map(|it| it.relay))
        }
        (Some(relay), _) => better_than(relay.cost()),
    }
}

/// The decision of a node about a stream that a peer has opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receive {
    /// It is for the local instance.
    Serve,
    /// Relay it to this node, with no hop left.
    Carry(NodeId),
    /// It is addressed to another node, to which this one does not relay.
    Refuse,
}

/// Decides about a stream from `peer` for `target` (`None` is any receiver) at `me`. Only a stream
/// with a hop left is relayed, which uses up the hop; never back to its sender.
pub fn receive(
    me: NodeId,
    peer: NodeId,
    target: Option<NodeId>,
    hops: Hops,
    may_relay: bool,
) -> Receive {
    let may_go_on = hops == Hops::One || is_planted(Bug::RelayLoop);
    match target {
        None => Receive::Serve,
        Some(target) if target == me => Receive::Serve,
        Some(target) if may_go_on && may_relay && target != peer => Receive::Carry(target),
        Some(_) => Receive::Refuse,
    }
}

/// A member that has the role to relay, for [`watched`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayCandidate {
    /// The member.
    pub node: NodeId,
    /// Whether it is in this node's site.
    pub near: bool,
    /// The path to it, if it is measured.
    pub path: Option<PathView>,
    /// Whether it reports reaching an origin whose direct path is dead.
    pub rescues: bool,
    /// The shortest path to any origin in its record, in microseconds.
    pub closest_us: Option<u32>,
    /// Differs from node to node, so that not all choose the same.
    pub draw: u64,
}

/// The members whose paths to measure, so that a relay is known when needed: first members of this
/// node's site, then the nearest known, then those close to an origin. One that answers stays.
pub fn watched(mut prospects: Vec<RelayCandidate>) -> BTreeSet<NodeId> {
    prospects.sort_by_key(|it| {
        let known = match it.path {
            Some(PathView::Up(rtt)) => (0, rtt),
            Some(PathView::Own | PathView::Unmeasured) => (1, Duration::ZERO),
            None => (2, Duration::ZERO),
            Some(PathView::Dead) => (3, Duration::ZERO),
        };
        (!it.rescues, known, it.closest_us.unwrap_or(u32::MAX), it.draw, it.node)
    });
    let alive = |it: &&RelayCandidate| it.path != Some(PathView::Dead);
    let near = prospects.iter().filter(|it| it.near).filter(alive).take(MAX_WATCHED_NEAR);
    let far = prospects.iter().filter(|it| !it.near).filter(alive);
    let mut chosen = BTreeSet::new();
    for it in near.chain(far).chain(&prospects) {
        if chosen.len() < MAX_WATCHED {
            chosen.insert(it.node);
        }
    }
    chosen
}

#[cfg(test)]
mod tests;
