//! Paths to the origins: distance and health, measured by this node's own probes.
//!
//! A path is direct and belongs to one peer. Membership may hold a node for alive while this node
//! cannot reach it, and vice versa; routes follow paths. A path with sessions is probed often,
//! others rarely; silence makes probes faster, and after three silent intervals, adapted to the
//! round-trip time, the path is dead. Acknowledged data counts as an answer, so a transfer that
//! crowds out the probes does not look like a dead path. A path that drops large packets is dead
//! too (see `width`). A dead path is probed further and revives with the first answer. Bounded by
//! [`MAX_PATHS`]; the rate of idle probes does not grow with the number of origins beyond
//! [`IDLE_PROBES_PER_S`].

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use meshport_config::NodeId;

use crate::config::DiscoveryConfig;
use crate::dice::Dice;
use crate::rtt::{Loss, Rtt};
use crate::schedule::Schedule;

mod silence;
mod width;

use silence::{Patience, Silence};
use width::Width;

/// Paths measured at once.
pub const MAX_PATHS: usize = 1024;
/// Idle probes per second over all paths; with more origins each is probed more rarely.
pub const IDLE_PROBES_PER_S: u32 = 2;
/// Silent intervals until a path is dead.
const SILENT_INTERVALS: u32 = 3;
/// Fewest and most silent probes until a path is dead: as many as it takes for a path with the loss
/// seen before to fall silent by chance less than once in [`CHANCE`] times.
const SILENT_PROBES: (u32, u32) = (7, 16);
const CHANCE: f64 = 10_000.0;
/// Probes remembered while unanswered, per path.
const MAX_OUTSTANDING: usize = 16;
/// Shortest and longest wait for one answer.
const SHORTEST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// How often a dead path is tried again: an origin that is back should be known to be back at once.
const DEAD_PROBE: Duration = Duration::from_secs(1);
/// Smallest change of the round-trip time that is reported.
const REPORTED_STEP: Duration = Duration::from_micros(500);
const REPORTED_LEAST: Duration = Duration::from_micros(50);
/// Smallest change of loss that is reported, in percent: one probe.
const REPORTED_LOSS_PERCENT: u8 = 6;
/// A path that loses more than this, in percent, is looked at closely...
const LOSSY_PERCENT: u8 = 7;
/// ...so that it is known within seconds when it is well again.
const LOSSY_PROBE: Duration = Duration::from_millis(400);
/// A path with sessions that loses so many small probes, in percent, may lose more of what these
/// send.
const DOUBTED_PERCENT: u8 = 25;

/// Whether a path works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PathState {
    /// No answer yet, and the first one may still come.
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
    /// How far single round trips are from `rtt` (mean deviation); zero before the first answer.
    pub deviation: Duration,
    /// Share of the last 16 probes without an answer, 0 to 100; where ones as long as QUIC needs
    /// are found to be lost more often than small ones, of these.
    pub loss_percent: u8,
    /// When `state` became what it is.
    pub since: Instant,
    /// When the peer answered last.
    pub last_answer: Option<Instant>,
    /// It is dead because packets as long as QUIC needs do not pass, though small ones may.
    pub narrow: bool,
}

/// A probe to send.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Probe {
    pub(crate) to: NodeId,
    pub(crate) nonce: [u8; 8],
    /// Whether it is as long as what QUIC needs.
    pub(crate) wide: bool,
}

/// All measured paths.
#[derive(Debug)]
pub struct Paths {
    probers: BTreeMap<NodeId, Prober>,
    schedule: Schedule,
    pace: Pace,
    allowance: Duration,
    /// Whether the width of paths matters: whether they may carry sessions.
    tries_width: bool,
    dice: Dice,
    sends: VecDeque<Probe>,
    changes: VecDeque<NodeId>,
}

/// How often paths are probed.
#[derive(Debug)]
struct Pace {
    active: Duration,
    idle: Duration,
    idle_paths: u32,
}

#[derive(Debug)]
struct Prober {
    path: Path,
    usage: PathUse,
    /// Since when a session exists.
    session_since: Option<Instant>,
    /// When the path came back from the dead: probes that were sent before waited, not travelled.
    revived_at: Option<Instant>,
    due: Instant,
    send_at: Instant,
    sent_at: Instant,
    rtt: Rtt,
    loss: Loss,
    outstanding: VecDeque<([u8; 8], Instant)>,
    /// None while every probe is answered.
    silence: Option<Silence>,
    width: Width,
    reported: Option<Duration>,
    reported_loss: u8,
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
        }
    }

    /// The same, and the paths are tried with packets as long as those of sessions.
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
    /// when a path becomes active. False when there are too many paths.
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

    /// A WireGuard session exists or is gone. With a new one a path that is not up or not measured
    /// is probed at once.
    pub(crate) fn handle_session(&mut self, node: NodeId, up: bool, now: Instant) {
        let Some(prober) = self.probers.get_mut(&node) else { return };
        prober.session_since = up.then(|| prober.session_since.unwrap_or(now));
        if up && (prober.path.state != PathState::Up || prober.path.rtt.is_none()) {
            prober.send_now(node, &mut self.schedule, now);
        }
    }

    /// An answer came.
    pub(crate) fn handle_echo(&mut self, node: NodeId, nonce: [u8; 8], now: Instant) {
        if !self.probers.get(&node).is_some_and(|prober| prober.path.narrow) {
            self.take_echo(node, nonce, now);
        }
    }

    fn take_echo(&mut self, node: NodeId, nonce: [u8; 8], now: Instant) {
        let Some(prober) = self.probers.get_mut(&node) else { return };
        if !prober.answered(nonce, now) {
            return;
        }
        // Silence may have made probes frequent; they slow down again.
        let interval = self.pace.interval(prober);
        prober.send_at = (prober.sent_at + self.dice.jitter(interval, 10)).max(now);
        // The answer that revives a path does not measure it, and routes wait for a measure.
        if prober.path.rtt.is_none() && prober.session_since.is_some() {
            prober.send_at = now;
        }
        prober.move_to(prober.or_width(prober.send_at), node, &mut self.schedule);
        self.report(node, false);
    }

    /// The active paths on which answers to probes are overdue, but which are not dead yet.
    pub(crate) fn overdue(&self) -> impl Iterator<Item = NodeId> {
        let overdue = |prober: &Prober| {
            let is_up = prober.path.state == PathState::Up;
            is_up && prober.usage == PathUse::Active && prober.is_silent()
        };
        self.probers.iter().filter(move |(_, it)| overdue(it)).map(|(node, _)| *node)
    }

    /// Something this node sent arrived there, and word of it came back: the path works both ways,
    /// however silent its probes are. A queue that is full of data loses probes first.
    pub(crate) fn handle_delivery(&mut self, node: NodeId) {
        if let Some(prober) = self.probers.get_mut(&node) {
            prober.silence = None;
        }
    }

    /// The peer asks, so it is there: of two that watch each other one asks and both know. Whoever
    /// waits for an answer goes on waiting, since that may be the way that is broken.
    pub(crate) fn handle_probe(&mut self, node: NodeId, now: Instant) {
        let Some(prober) = self.probers.get_mut(&node) else { return };
        let interval = self.pace.interval(prober);
        // Its question measures nothing here: two that are new to each other both have to ask.
        if prober.path.state != PathState::Up || prober.silence.is_some() || prober.rtt.is_young() {
            return;
        }
        prober.send_at = now + self.dice.jitter(interval, 10);
        prober.move_to(prober.or_width(prober.send_at), node, &mut self.schedule);
    }

    /// Asks a peer at once that somebody else misses.
    pub(crate) fn hurry(&mut self, node: NodeId, now: Instant) {
        let Some(prober) = self.probers.get_mut(&node) else { return };
        if prober.path.state == PathState::Up && prober.silence.is_none() {
            prober.send_now(node, &mut self.schedule, now);
        }
    }

    /// Sends what is due and judges silence.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        while let Some(node) = self.schedule.take_due(now) {
            let Some(prober) = self.probers.get_mut(&node) else { continue };
            let died = prober.judge(now, self.allowance);
            if now >= prober.send_at {
                let nonce = self.dice.bytes();
                prober.sent(nonce, now);
                self.sends.push_back(Probe { to: node, nonce, wide: prober.path.narrow });
                let interval = self.pace.interval(prober);
                prober.send_at = now + self.dice.jitter(interval, 10);
            }
            if prober.width_due().is_some_and(|due| due <= now) {
                let nonce = self.dice.bytes();
                let lossy = prober.loss.percent() > LOSSY_PERCENT;
                prober.width.sent(nonce, prober.wait(), lossy, now);
                self.sends.push_back(Probe { to: node, nonce, wide: true });
                if prober.width.wants_company() {
                    prober.send_at = now;
                }
            }
            prober.due = prober.next_due(now);
            self.schedule.insert(prober.due, node);
            if died {
                self.report(node, true);
            }
        }
    }

    /// The process did not run for this long: silence in that time says nothing.
    pub(crate) fn stalled(&mut self, by: Duration) {
        for (node, prober) in &mut self.probers {
            prober.send_at += by;
            // Answers that waited unread would look slow.
            prober.outstanding.clear();
            prober.silence = None;
            prober.width.stalled(by);
            prober.move_to(prober.due + by, *node, &mut self.schedule);
        }
    }

    /// This machine has slept or moved: probes everything at once. Silence so far says nothing.
    pub(crate) fn wake(&mut self, now: Instant) {
        self.schedule.clear();
        for (node, prober) in &mut self.probers {
            prober.outstanding.clear();
            prober.silence = None;
            prober.width.stalled(Duration::ZERO);
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

    fn report(&mut self, node: NodeId, always: bool) {
        let Some(prober) = self.probers.get_mut(&node) else { return };
        let moved = match (prober.reported, prober.path.rtt) {
            (Some(before), Some(rtt)) => {
                let step = before.abs_diff(rtt);
                step > REPORTED_STEP || (step > REPORTED_LEAST && step > before / 20)
            }
            (before, rtt) => before != rtt,
        };
        let lossy = prober.path.loss_percent.abs_diff(prober.reported_loss)
            >= REPORTED_LOSS_PERCENT
            || (prober.path.loss_percent == 0 && prober.reported_loss > 0);
        let fresh = prober.path.since == prober.path.last_answer.unwrap_or(prober.path.since);
        if always || moved || lossy || fresh {
            prober.reported = prober.path.rtt;
            prober.reported_loss = prober.path.loss_percent;
            self.changes.push_back(node);
        }
    }
}

impl Pace {
    /// How long until the next probe of this path.
    fn interval(&self, prober: &Prober) -> Duration {
        let fair = Duration::from_secs(1) * self.idle_paths / IDLE_PROBES_PER_S;
        let usual = match prober.usage {
            PathUse::Active => self.active,
            PathUse::Idle => self.idle.max(fair),
        };
        match prober.path.state {
            PathState::Dead if prober.usage == PathUse::Active => usual.max(DEAD_PROBE),
            PathState::Dead => usual.min(DEAD_PROBE.max(fair)),
            PathState::Up if prober.is_silent() => usual.min(prober.wait() / 3),
            // A choice should not rest on one sample for long.
            PathState::Up if prober.rtt.is_young() => usual.min(LONGEST_WAIT / 2),
            PathState::Up if prober.path.loss_percent > LOSSY_PERCENT => usual.min(LOSSY_PROBE),
            PathState::Up => usual,
            PathState::Unknown => usual.min(LONGEST_WAIT / 2),
        }
    }
}

impl Prober {
    fn new(usage: PathUse, session: bool, tries_width: bool, now: Instant) -> Self {
        Self {
            path: Path {
                state: PathState::Unknown,
                rtt: None,
                deviation: Duration::ZERO,
                loss_percent: 0,
                since: now,
                last_answer: None,
                narrow: false,
            },
            usage,
            session_since: session.then_some(now),
            revived_at: None,
            due: now,
            send_at: now,
            sent_at: now,
            rtt: Rtt::default(),
            loss: Loss::default(),
            outstanding: VecDeque::new(),
            silence: None,
            width: Width::new(tries_width),
            reported: None,
            reported_loss: 0,
        }
    }

    /// It is probed at once.
    fn send_now(&mut self, node: NodeId, schedule: &mut Schedule, now: Instant) {
        self.send_at = now;
        self.move_to(now, node, schedule);
    }

    /// It is looked at next when `due`, and not when it would have been.
    fn move_to(&mut self, due: Instant, node: NodeId, schedule: &mut Schedule) {
        schedule.remove(self.due, node);
        self.due = due;
        schedule.insert(due, node);
    }

    /// How long an answer may take.
    fn wait(&self) -> Duration {
        let usual = self.path.rtt.map(|rtt| rtt * 2 + Duration::from_millis(50));
        usual.unwrap_or(LONGEST_WAIT).clamp(SHORTEST_WAIT, LONGEST_WAIT)
    }

    /// Whether an answer is overdue: more than one probe has gone out since the last one.
    fn is_silent(&self) -> bool {
        self.silence.is_some_and(|silence| silence.probes > 1)
    }

    fn sent(&mut self, nonce: [u8; 8], now: Instant) {
        if self.outstanding.len() >= MAX_OUTSTANDING {
            self.outstanding.pop_front();
            self.note_fate(false);
        }
        self.outstanding.push_back((nonce, now));
        self.sent_at = now;
        self.silence = Some(Silence::grown(self.silence, now));
    }

    fn answered(&mut self, nonce: [u8; 8], now: Instant) -> bool {
        let Some(mut at) = self.outstanding.iter().position(|(sent, _)| *sent == nonce) else {
            return false;
        };
        if self.path.state == PathState::Dead {
            self.revived_at = Some(now);
            // What was sent into the void says nothing about the path there is now.
            self.outstanding.drain(..at);
            self.loss = Loss::default();
            at = 0;
        }
        // What is older than the answered probe and still open is most likely lost.
        for passed in 0..=at {
            let Some((_, sent)) = self.outstanding.pop_front() else { break };
            // What waited for a handshake, or for a stopped peer, says nothing about the path.
            let travelled = self.session_since.is_some_and(|since| sent >= since)
                && self.revived_at.is_none_or(|revived| sent >= revived);
            if passed == at && travelled {
                self.rtt.add(now.saturating_duration_since(sent), now);
            }
            self.loss.add(passed == at);
        }
        if self.usage == PathUse::Active && self.loss.percent() >= DOUBTED_PERCENT {
            self.width.doubt(now);
        }
        self.path.rtt = self.rtt.get();
        self.path.deviation = self.rtt.deviation();
        self.path.last_answer = Some(now);
        self.silence = None;
        if self.path.state != PathState::Up {
            self.path.state = PathState::Up;
            self.path.since = now;
            self.path.narrow = false;
            self.width.revive(now);
        }
        self.weigh_loss();
        true
    }

    /// Declares the path dead if the peer has been silent for long enough; true if it just died.
    fn judge(&mut self, now: Instant, allowance: Duration) -> bool {
        let wait = self.wait();
        let enough = match self.loss.percent() > LOSSY_PERCENT {
            true => SILENT_PROBES.1,
            false => self.silent_probes(),
        };
        let patience = Patience { time: wait * SILENT_INTERVALS, probes: enough };
        if self.width.is_lost(patience, self.path.last_answer, now) {
            // Answers to small ones that are under way say nothing any more.
            self.outstanding.clear();
            self.silence = None;
            self.path.narrow = true;
            self.die(now);
            self.width.end_as_useless();
            return true;
        }
        let Some(silence) = self.silence else { return false };
        if self.path.state == PathState::Up && silence.probes == 1 && silence.lasted(now) >= wait {
            // The first answer is overdue: do not wait for the next turn.
            self.send_at = now;
        }
        let allowance = match self.path.state {
            PathState::Unknown if self.session_since.is_none() => allowance,
            PathState::Unknown | PathState::Up | PathState::Dead => Duration::ZERO,
        };
        let time = wait * SILENT_INTERVALS + allowance;
        let patience = Patience { time, probes: self.silent_probes() };
        if self.path.state == PathState::Dead || !silence.exceeds(patience, now) {
            return false;
        }
        while self.outstanding.len() > 2 {
            self.outstanding.pop_front();
            self.note_fate(false);
        }
        self.die(now);
        true
    }

    fn die(&mut self, now: Instant) {
        self.path.state = PathState::Dead;
        self.path.since = now;
        // The way may be another one when the peer is back; old samples would hide that.
        self.rtt.reset();
        self.loss = Loss::default();
        self.width.end();
    }

    /// When the width is tried next: not while small probes are silent, which says enough.
    fn width_due(&self) -> Option<Instant> {
        self.width.due().filter(|_| self.path.state == PathState::Up && !self.is_silent())
    }

    fn or_width(&self, due: Instant) -> Instant {
        self.width_due().map_or(due, |width| width.min(due))
    }

    /// How many silent probes in a row say that nothing comes through, and not just little.
    fn silent_probes(&self) -> u32 {
        let (least, most) = SILENT_PROBES;
        // While the path is silent nothing is added to the loss, so this is how it was before.
        let loss = f64::from(self.loss.percent()) / 100.0;
        if loss <= 0.0 {
            return least;
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
        let probes = (CHANCE.ln() / -loss.min(0.99).ln()).ceil() as u32;
        probes.clamp(least, most)
    }

    /// When to look at this path again: to send, or to notice that an answer is overdue.
    fn next_due(&self, now: Instant) -> Instant {
        let overdue = match (self.path.state, self.silence) {
            (PathState::Up, Some(Silence { since, probes: 1 })) => Some(since + self.wait()),
            (PathState::Up | PathState::Unknown, Some(Silence { since, .. })) => {
                Some(since + self.wait() * SILENT_INTERVALS)
            }
            _ => None,
        };
        let overdue = overdue.filter(|at| *at > now);
        self.or_width(overdue.map_or(self.send_at, |at| at.min(self.send_at)))
    }

    fn note_fate(&mut self, answered: bool) {
        self.loss.add(answered);
        self.weigh_loss();
    }
}

#[cfg(test)]
mod tests;
