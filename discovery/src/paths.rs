//! Paths to the origins: distance and health, measured by this node's own probes.
//!
//! A path is direct and belongs to one peer. Membership may consider a node alive while this node
//! cannot reach it, and vice versa; routes follow paths. A path with sessions is probed often,
//! others rarely; silence makes probes faster, and after three silent intervals, adapted to the
//! round-trip time, the path is dead. Acknowledged data counts as an answer, so a path whose
//! transfer crowds out the probes does not look dead. A path that drops large packets is narrow if
//! they pass in fragments, and dead too if not (see `width`). Probing continues on a dead path,
//! which revives with the first answer. Bounded by [`MAX_PATHS`]; the rate of idle probes does not
//! grow with the number of origins beyond [`IDLE_PROBES_PER_S`].

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use meshport_config::NodeId;

use crate::config::DiscoveryConfig;
use crate::dice::Dice;
use crate::schedule::Schedule;

mod prober;
mod silence;
mod width;

use prober::{LONGEST_WAIT, LOSSY_PERCENT, Prober};

/// Paths measured at once.
pub const MAX_PATHS: usize = 1024;
/// Idle probes per second over all paths; with more origins each is probed less often.
pub const IDLE_PROBES_PER_S: u32 = 2;
/// Probe interval on a dead path: its recovery should be noticed at once.
const DEAD_PROBE: Duration = Duration::from_secs(1);
/// Probe interval on a lossy path, to notice its recovery within seconds.
const LOSSY_PROBE: Duration = Duration::from_millis(400);
/// Whether a path works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PathState {
    /// No answer yet, but the first one is not overdue.
    Unknown,
    /// The peer answers.
    Up,
    /// The peer is silent.
    Dead,
}

/// What a path is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathUse {
    /// It might be needed.
    Idle,
    /// It carries sessions.
    Active,
}

/// The measured path to one peer.
#[derive(Debug, Clone)]
pub struct Path {
    /// Whether it works.
    pub state: PathState,
    /// Smoothed round-trip time; the last known one on a dead path, none before the first answer.
    pub rtt: Option<Duration>,
    /// The round-trip time without the bursts of the last seconds, at most `rtt`; none before the
    /// first answer.
    pub usual_rtt: Option<Duration>,
    /// Mean deviation of round trips from `rtt`; zero before the first answer.
    pub deviation: Duration,
    /// Share of the last 16 probes without an answer, 0 to 100; if probes of the size that QUIC
    /// needs are lost more often than small ones, their share.
    pub loss_percent: u8,
    /// Time of the last change of `state`.
    pub since: Instant,
    /// Time of the peer's last answer.
    pub last_answer: Option<Instant>,
    /// Packets of the size that QUIC needs are lost, although small ones may pass. The mesh splits
    /// them; if that does not help either, or the peer runs an older release, the path is dead.
    pub narrow: bool,
}

/// The length of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Length {
    /// Any path carries it.
    Small,
    /// As long as QUIC needs, and never split.
    Wide,
    /// About as long, and split if the mesh splits.
    Split,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Probe {
    pub(crate) to: NodeId,
    pub(crate) nonce: [u8; 8],
    pub(crate) length: Length,
}

/// All measured paths.
#[derive(Debug)]
pub struct Paths {
    probers: BTreeMap<NodeId, Prober>,
    schedule: Schedule,
    pace: Pace,
    allowance: Duration,
    /// Whether the width of paths matters, that is, whether they may carry sessions.
    tries_width: bool,
    dice: Dice,
    sends: VecDeque<Probe>,
    changes: VecDeque<NodeId>,
    splits: VecDeque<NodeId>,
}

/// How often paths are probed.
#[derive(Debug)]
struct Pace {
    active: Duration,
    idle: Duration,
    idle_paths: u32,
}

impl Paths {
    pub(crate) fn new(config: &DiscoveryConfig, seed: [u8; 32], stream: u8) -> Self {
        Self {
            probers: BTreeMap::new(),
            schedule: Schedule::default(),
            pace: Pace {
                active: config.path_probe_active,
                idle: config.path_probe_idle,
                idle_paths: 0,
            },
            allowance: config.handshake_allowance,
            tries_width: false,
            dice: Dice::new(seed, stream),
            sends: VecDeque::new(),
            changes: VecDeque::new(),
            splits: VecDeque::new(),
        }
    }

    /// The same, but also probes paths with packets as long as those of sessions.
    pub(crate) fn with_width(self) -> Self {
        Self { tries_width: true, ..self }
    }

    /// The path to a peer, if it is measured.
    pub fn get(&self, node: &NodeId) -> Option<&Path> {
        self.probers.get(node).map(|prober| &prober.path)
    }

    /// All measured paths, ascending by peer.
    pub fn iter(&self) -> impl Iterator<Item = (&NodeId, &Path)> {
        self.probers.iter().map(|(node, prober)| (node, &prober.path))
    }

    /// How many paths are measured.
    pub fn len(&self) -> usize {
        self.probers.len()
    }

    /// Whether no path is measured.
    pub fn is_empty(&self) -> bool {
        self.probers.is_empty()
    }

    /// Starts, changes or ends measuring. The first probe goes at once, and so does the next one
    /// when a path becomes active. False if there are too many paths.
    pub(crate) fn set(
        &mut self,
        node: NodeId,
        usage: Option<PathUse>,
        session: bool,
        now: Instant,
    ) -> bool {
        let Some(usage) = usage else {
            if let Some(prober) = self.probers.remove(&node) {
                self.schedule.remove(prober.due, node);
                self.pace.idle_paths -= u32::from(prober.usage == PathUse::Idle);
                if prober.width.is_split() {
                    self.splits.push_back(node);
                }
            }
            return true;
        };
        if let Some(prober) = self.probers.get_mut(&node) {
            if prober.usage != usage {
                prober.usage = usage;
                match usage {
                    PathUse::Active => {
                        self.pace.idle_paths -= 1;
                        prober.width.used(now);
                        prober.send_now(node, &mut self.schedule, now);
                    }
                    PathUse::Idle => self.pace.idle_paths += 1,
                }
            }
            return true;
        }
        if self.probers.len() >= MAX_PATHS {
            return false;
        }
        self.pace.idle_paths += u32::from(usage == PathUse::Idle);
        self.schedule.insert(now, node);
        self.probers.insert(node, Prober::new(usage, session, self.tries_width, now));
        true
    }

    /// A WireGuard session exists or has ended. With a new one a path that is not up or not
    /// measured is probed at once.
    pub(crate) fn handle_session(&mut self, node: NodeId, up: bool, now: Instant) {
        let Some(prober) = self.probers.get_mut(&node) else { return };
        if up && prober.width.is_split() {
            // The mesh may have forgotten the peer meanwhile.
            self.splits.push_back(node);
        }
        prober.session_since = up.then(|| prober.session_since.unwrap_or(now));
        if up && (prober.path.state != PathState::Up || prober.path.rtt.is_none()) {
            prober.send_now(node, &mut self.schedule, now);
        }
    }

    /// An answer arrived.
    pub(crate) fn handle_echo(&mut self, node: NodeId, nonce: [u8; 8], now: Instant) {
        if !self.probers.get(&node).is_some_and(Prober::needs_long_answer) {
            self.take_echo(node, nonce, false, now);
        }
    }

    /// `narrow` is what the path is if this answer revives it.
    fn take_echo(&mut self, node: NodeId, nonce: [u8; 8], narrow: bool, now: Instant) {
        let Some(prober) = self.probers.get_mut(&node) else { return };
        if !prober.answered(nonce, narrow, now) {
            return;
        }
        // Silence may have made probes more frequent; they slow down again.
        let interval = self.pace.interval(prober);
        prober.send_at = (prober.sent_at + self.dice.jitter(interval, 10)).max(now);
        // The answer that revives a path does not measure it, and routes wait for a measurement.
        if prober.path.rtt.is_none() && prober.session_since.is_some() {
            prober.send_at = now;
        }
        prober.move_to(prober.or_width(prober.send_at), node, &mut self.schedule);
        self.report(node, false);
    }

    /// The active paths with overdue answers that are not dead yet.
    pub(crate) fn overdue(&self) -> impl Iterator<Item = NodeId> {
        let overdue = |prober: &Prober| {
            let is_up = prober.path.state == PathState::Up;
            is_up && prober.usage == PathUse::Active && prober.is_silent()
        };
        self.probers.iter().filter(move |(_, it)| overdue(it)).map(|(node, _)| *node)
    }

    /// Data from this node arrived and was acknowledged: the path works both ways, even if probes
    /// are lost. A queue full of data drops probes.
    pub(crate) fn handle_delivery(&mut self, node: NodeId) {
        if let Some(prober) = self.probers.get_mut(&node) {
            prober.silence = None;
        }
    }

    /// The peer probes, so it is up: if two nodes watch each other, one probes and both know. A
    /// probe that waits for an answer continues to wait, since the fault may be in that direction.
    pub(crate) fn handle_probe(&mut self, node: NodeId, now: Instant) {
        let Some(prober) = self.probers.get_mut(&node) else { return };
        let interval = self.pace.interval(prober);
        // Its probe measures nothing here: two new peers must both probe.
        if prober.path.state != PathState::Up || prober.silence.is_some() || prober.rtt.is_young() {
            return;
        }
        prober.send_at = now + self.dice.jitter(interval, 10);
        prober.move_to(prober.or_width(prober.send_at), node, &mut self.schedule);
    }

    /// Probes a peer at once that another member reports as silent.
    pub(crate) fn hurry(&mut self, node: NodeId, now: Instant) {
        let Some(prober) = self.probers.get_mut(&node) else { return };
        if prober.path.state == PathState::Up && prober.silence.is_none() {
            prober.send_now(node, &mut self.schedule, now);
        }
    }

    /// Sends due probes and evaluates silence.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        while let Some(node) = self.schedule.take_due(now) {
            let Some(prober) = self.probers.get_mut(&node) else { continue };
            let changed = prober.judge(now, self.allowance);
            let mut send = |nonce, lengths: &[Length]| {
                self.sends.extend(lengths.iter().map(|it| Probe { to: node, nonce, length: *it }));
            };
            if now >= prober.send_at {
                let nonce = self.dice.bytes();
                prober.sent(nonce, now);
                send(nonce, prober.lengths());
                let interval = self.pace.interval(prober);
                prober.send_at = now + self.dice.jitter(interval, 10);
            }
            if prober.width_due().is_some_and(|due| due <= now) {
                let nonce = self.dice.bytes();
                let lossy = prober.loss.percent() > LOSSY_PERCENT;
                prober.width.sent(nonce, prober.wait(), lossy, now);
                send(nonce, prober.long_lengths());
                if prober.width.wants_company() {
                    prober.send_at = now;
                }
            }
            prober.due = prober.next_due(now);
            self.schedule.insert(prober.due, node);
            if changed {
                self.report(node, true);
            }
            self.tell_split(node);
        }
    }

    /// The process did not run for this long: silence in that time is ignored.
    pub(crate) fn stalled(&mut self, by: Duration) {
        for (node, prober) in &mut self.probers {
            prober.send_at += by;
            prober.excuse(by);
            prober.move_to(prober.due + by, *node, &mut self.schedule);
        }
    }

    /// This machine was suspended or has moved: probes everything at once and ignores earlier
    /// silence.
    pub(crate) fn wake(&mut self, now: Instant) {
        self.schedule.clear();
        for (node, prober) in &mut self.probers {
            prober.excuse(Duration::ZERO);
            prober.send_at = now;
            prober.due = now;
            self.schedule.insert(now, *node);
        }
    }

    pub(crate) fn poll_send(&mut self) -> Option<Probe> {
        self.sends.pop_front()
    }

    /// A path whose state or round-trip time changed.
    pub(crate) fn poll_change(&mut self) -> Option<NodeId> {
        self.changes.pop_front()
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.schedule.next()
    }

    /// A peer for which the mesh has to start or stop splitting, or goes on for another reason.
    pub(crate) fn poll_split(&mut self) -> Option<NodeId> {
        self.splits.pop_front()
    }

    /// Whether the mesh has to split long packets for a peer.
    pub(crate) fn is_split(&self, node: &NodeId) -> bool {
        self.probers.get(node).is_some_and(|prober| prober.width.is_split())
    }

    fn report(&mut self, node: NodeId, always: bool) {
        self.tell_split(node);
        if self.probers.get_mut(&node).is_some_and(|prober| prober.is_news(always)) {
            self.changes.push_back(node);
        }
    }
}

impl Pace {
    /// The shortest interval at which all idle paths together get no more probes than they may.
    fn fair(&self) -> Duration {
        Duration::from_secs(1) * self.idle_paths / IDLE_PROBES_PER_S
    }

    /// How long until the next probe of this path.
    fn interval(&self, prober: &Prober) -> Duration {
        let fair = self.fair();
        let usual = match prober.usage {
            PathUse::Active => self.active,
            PathUse::Idle => self.idle.max(fair),
        };
        match prober.path.state {
            PathState::Dead if prober.usage == PathUse::Active => usual.max(DEAD_PROBE),
            PathState::Dead => usual.min(DEAD_PROBE.max(fair)),
            PathState::Up if prober.is_silent() => usual.min(prober.wait() / 3),
            // A choice should not depend on a single sample for long.
            PathState::Up if prober.rtt.is_young() => usual.min(LONGEST_WAIT / 2),
            PathState::Up if prober.path.loss_percent > LOSSY_PERCENT => usual.min(LOSSY_PROBE),
            PathState::Up => usual,
            PathState::Unknown => usual.min(LONGEST_WAIT / 2),
        }
    }
}

#[cfg(test)]
mod tests;
