//! A path, its unanswered probes, and the conclusions from them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use meshport_config::NodeId;

use super::silence::{Patience, Silence};
use super::width::Width;
use super::{Length, Path, PathState, PathUse};
use crate::rtt::{Loss, Rtt};
use crate::schedule::Schedule;

/// Silent intervals until a path is dead.
const SILENT_INTERVALS: u32 = 3;
/// Minimum and maximum of unanswered probes until a path is dead: enough that a path with the
/// previous loss falls silent by chance less than once in [`CHANCE`] times.
const SILENT_PROBES: (u32, u32) = (7, 16);
const CHANCE: f64 = 10_000.0;
/// Unanswered probes remembered per path.
const MAX_OUTSTANDING: usize = 16;
/// Shortest and longest wait for one answer.
const SHORTEST_WAIT: Duration = Duration::from_millis(200);
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// Smallest change of the round-trip time that is reported.
const REPORTED_STEP: Duration = Duration::from_micros(500);
const REPORTED_LEAST: Duration = Duration::from_micros(50);
/// Smallest change of loss that is reported, in percent: one probe.
const REPORTED_LOSS_PERCENT: u8 = 6;
/// A path that loses more than this, in percent, is probed more often.
pub(super) const LOSSY_PERCENT: u8 = 7;
/// A path with sessions that loses this share of small probes, in percent, may lose more of the
/// sessions' packets.
const DOUBTED_PERCENT: u8 = 25;

/// A path and its probes.
#[derive(Debug)]
pub(super) struct Prober {
    pub(super) path: Path,
    pub(super) usage: PathUse,
    /// Time since which a session exists.
    pub(super) session_since: Option<Instant>,
    /// When the path recovered: probes sent before that had been queued.
    revived_at: Option<Instant>,
    pub(super) due: Instant,
    pub(super) send_at: Instant,
    pub(super) sent_at: Instant,
    pub(super) rtt: Rtt,
    pub(super) loss: Loss,
    outstanding: VecDeque<([u8; 8], Instant)>,
    /// `None` while every probe is answered.
    pub(super) silence: Option<Silence>,
    pub(super) width: Width,
    reported: Option<Duration>,
    reported_usual: Option<Duration>,
    reported_loss: u8,
}

impl Prober {
    pub(super) fn new(usage: PathUse, session: bool, tries_width: bool, now: Instant) -> Self {
        Self {
            path: Path {
                state: PathState::Unknown,
                rtt: None,
                usual_rtt: None,
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
            reported_usual: None,
            reported_loss: 0,
        }
    }

    /// Probes it at once.
    pub(super) fn send_now(&mut self, node: NodeId, schedule: &mut Schedule, now: Instant) {
        self.send_at = now;
        self.move_to(now, node, schedule);
    }

    /// Moves the next check to `due`.
    pub(super) fn move_to(&mut self, due: Instant, node: NodeId, schedule: &mut Schedule) {
        schedule.remove(self.due, node);
        self.due = due;
        schedule.insert(due, node);
    }

    /// How long an answer may take.
    pub(super) fn wait(&self) -> Duration {
        let usual = self.path.rtt.map(|rtt| rtt * 2 + Duration::from_millis(50));
        usual.unwrap_or(LONGEST_WAIT).clamp(SHORTEST_WAIT, LONGEST_WAIT)
    }

    /// Whether an answer is overdue: more than one probe has gone out since the last one.
    pub(super) fn is_silent(&self) -> bool {
        self.silence.is_some_and(|silence| silence.probes > 1)
    }

    pub(super) fn sent(&mut self, nonce: [u8; 8], now: Instant) {
        if self.needs_long_answer() {
            self.width.sent_as_useless(nonce);
        }
        if self.outstanding.len() >= MAX_OUTSTANDING {
            self.outstanding.pop_front();
            self.note_fate(false);
        }
        self.outstanding.push_back((nonce, now));
        self.sent_at = now;
        self.silence = Some(Silence::grown(self.silence, now));
    }

    /// An answer arrived; `narrow` is what the path is if it revives it. False if it is to no
    /// probe.
    pub(super) fn answered(&mut self, nonce: [u8; 8], narrow: bool, now: Instant) -> bool {
        let Some(mut at) = self.outstanding.iter().position(|(sent, _)| *sent == nonce) else {
            return false;
        };
        if self.path.state == PathState::Dead {
            self.revived_at = Some(now);
            // Probes sent without a path are irrelevant to the current one.
            self.outstanding.drain(..at);
            self.loss = Loss::default();
            at = 0;
        }
        // An open probe older than the answered one is most likely lost.
        for passed in 0..=at {
            let Some((_, sent)) = self.outstanding.pop_front() else { break };
            // A probe that waited for a handshake, or for a stopped peer, does not measure the
            // path.
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
        self.path.usual_rtt = self.rtt.usual();
        self.path.deviation = self.rtt.deviation();
        self.path.last_answer = Some(now);
        self.silence = None;
        if self.path.state != PathState::Up {
            self.path.state = PathState::Up;
            self.path.since = now;
            self.path.narrow = narrow;
            self.width.revive(now);
        }
        self.weigh_loss();
        true
    }

    /// Whether the path is dead because long probes are lost, so that small answers prove nothing.
    pub(super) fn needs_long_answer(&self) -> bool {
        self.path.narrow && self.path.state == PathState::Dead
    }

    /// The lengths of a regular probe.
    pub(super) fn lengths(&self) -> &'static [Length] {
        if self.needs_long_answer() { &[Length::Wide, Length::Split] } else { &[Length::Small] }
    }

    /// The lengths of a probe of the path's width.
    pub(super) fn long_lengths(&self) -> &'static [Length] {
        let tries_split = self.path.narrow || self.width.is_on_trial();
        if tries_split { &[Length::Wide, Length::Split] } else { &[Length::Wide] }
    }

    /// Long packets pass whole again.
    pub(super) fn widen(&mut self, due: Option<Instant>, now: Instant) {
        self.path.narrow = false;
        self.width.change_length(due, now);
        self.weigh_loss();
    }

    /// Declares the path dead if the peer has been silent for long enough, or narrow if long probes
    /// pass only in fragments; true if it just became so.
    pub(super) fn judge(&mut self, now: Instant, allowance: Duration) -> bool {
        let wait = self.wait();
        let enough = match self.loss.percent() > LOSSY_PERCENT {
            true => SILENT_PROBES.1,
            false => self.silent_probes(),
        };
        let patience = Patience { time: wait * SILENT_INTERVALS, probes: enough };
        if self.width.is_lost(patience, self.path.last_answer, now) {
            if self.width.passes_split() && !self.path.narrow {
                self.path.narrow = true;
                self.width.change_length(Some(now), now);
                self.weigh_loss();
                return true;
            }
            // Answers to small probes in flight no longer count.
            self.outstanding.clear();
            self.silence = None;
            self.path.narrow = true;
            self.die(now);
            self.width.end_as_useless();
            self.weigh_loss();
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
        self.path.narrow = false;
        self.die(now);
        true
    }

    fn die(&mut self, now: Instant) {
        self.path.state = PathState::Dead;
        self.path.since = now;
        // The route may have changed when the peer is back; old samples would hide that.
        self.rtt.reset();
        self.loss = Loss::default();
        self.width.end();
        self.weigh_loss();
    }

    /// Time of the next width probe; none while small probes are unanswered, which shows enough.
    pub(super) fn width_due(&self) -> Option<Instant> {
        self.width.due().filter(|_| self.path.state == PathState::Up && !self.is_silent())
    }

    pub(super) fn or_width(&self, due: Instant) -> Instant {
        self.width_due().map_or(due, |width| width.min(due))
    }

    /// Number of consecutive unanswered probes that prove total loss, not just high loss.
    fn silent_probes(&self) -> u32 {
        let (least, most) = SILENT_PROBES;
        // While the path is silent no loss is recorded, so this is the loss before.
        let loss = f64::from(self.loss.percent()) / 100.0;
        if loss <= 0.0 {
            return least;
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped")]
        let probes = (CHANCE.ln() / -loss.min(0.99).ln()).ceil() as u32;
        probes.clamp(least, most)
    }

    /// Time of the next check of this path: to send, or to notice that an answer is overdue.
    pub(super) fn next_due(&self, now: Instant) -> Instant {
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

    /// Whether the changes since the last report justify another one, or `always`.
    pub(super) fn is_news(&mut self, always: bool) -> bool {
        let has_moved = |before, now| match (before, now) {
            (Some(before), Some(now)) => {
                let step = Duration::abs_diff(before, now);
                step > REPORTED_STEP || (step > REPORTED_LEAST && step > before / 20)
            }
            (before, now) => before != now,
        };
        let moved = has_moved(self.reported, self.path.rtt)
            || has_moved(self.reported_usual, self.path.usual_rtt);
        let loss = self.path.loss_percent;
        let lossy = loss.abs_diff(self.reported_loss) >= REPORTED_LOSS_PERCENT
            || (loss == 0 && self.reported_loss > 0);
        let fresh = self.path.since == self.path.last_answer.unwrap_or(self.path.since);
        let is_news = always || moved || lossy || fresh;
        if is_news {
            (self.reported, self.reported_loss) = (self.path.rtt, loss);
            self.reported_usual = self.path.usual_rtt;
        }
        is_news
    }

    /// Ignores earlier silence: this machine was suspended or had moved for this long.
    pub(super) fn excuse(&mut self, by: Duration) {
        // Answers that waited unread would look slow.
        self.outstanding.clear();
        self.silence = None;
        self.width.stalled(by);
    }

    /// The loss of the path is that of small or of long packets, whichever is higher: sessions send
    /// both.
    pub(super) fn weigh_loss(&mut self) {
        self.path.loss_percent = self.loss.percent().max(self.width.loss_percent());
    }
}
