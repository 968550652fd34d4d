//! Whether a path takes packets as long as the smallest datagram that QUIC may rely on.
//!
//! A way whose MTU has dropped, as when it leads through another tunnel all of a sudden, lets small
//! probes and requests through and loses every answer of some length: nothing is silent, and
//! nothing works. So now and then a probe is as long as [`crate::wire::WIDE_DATAGRAM`], and its
//! echo too. As many of them lost in a row as it takes small ones to call a path dead say that
//! QUIC cannot use it: that is as good as dead, until a long one is answered.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use meshport_config::NodeId;

use super::{PathUse, Paths};

/// How often a path that carries sessions is tried; any other only when it comes up, and when it is
/// used. Each try costs 1,308 bytes both ways, a tenth of all probes; sessions that find a path
/// slow do not wait for the next one.
pub(super) const ACTIVE: Duration = Duration::from_secs(16);
/// Not more often than this, however many sessions find a path slow.
const LEAST: Duration = Duration::from_secs(2);
/// Tries remembered while unanswered: as many as it takes at most to judge.
const MAX_OUTSTANDING: usize = 16;

/// What is known of a path's width while it is up.
#[derive(Debug, Default)]
pub(super) struct Width {
    /// Whether it matters.
    tried: bool,
    /// When it is tried next; none before the path is up, and while nobody uses it.
    due: Option<Instant>,
    sent_at: Option<Instant>,
    /// When the first try after the last answer went out, and how many went since.
    silent: Option<(Instant, u32)>,
    outstanding: VecDeque<[u8; 8]>,
}

impl Width {
    /// Of a path that is not up yet; never `tried` where nothing but small packets goes.
    pub(super) fn new(tried: bool) -> Self {
        Self { tried, ..Self::default() }
    }

    /// The path is up from now on.
    pub(super) fn begin(&mut self, due: Option<Instant>) {
        self.end();
        self.due = due.filter(|_| self.tried);
    }

    /// The path is dead.
    pub(super) fn end(&mut self) {
        *self = Self { sent_at: self.sent_at, ..Self::new(self.tried) };
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// The path is used from now on.
    pub(super) fn used(&mut self, now: Instant) {
        self.hurry(ACTIVE, now);
    }

    /// Sessions find the path slow.
    pub(super) fn doubt(&mut self, now: Instant) {
        self.hurry(LEAST, now);
    }

    /// Tries it now, but not within `pause` of the last try.
    fn hurry(&mut self, pause: Duration, now: Instant) {
        let soonest = self.sent_at.map_or(now, |at| now.max(at + pause));
        let due = self.due.map_or(soonest, |due| due.min(soonest));
        self.due = self.tried.then_some(due);
    }

    /// A try goes out; the next one follows after `usual`, or while none is answered at the pace
    /// of a path that is silent.
    pub(super) fn sent(&mut self, nonce: [u8; 8], wait: Duration, now: Instant) {
        if self.outstanding.len() >= MAX_OUTSTANDING {
            self.outstanding.pop_front();
        }
        self.outstanding.push_back(nonce);
        self.sent_at = Some(now);
        let (since, tries) = self.silent.unwrap_or((now, 0));
        self.silent = Some((since, tries + 1));
        // The first answer may take its time; after that tries come as on a silent path, until
        // there are enough to judge by, if anything can be judged.
        let pause = match usize::try_from(tries) {
            Ok(0) => wait,
            Ok(tries) if tries < MAX_OUTSTANDING => wait / 3,
            Ok(_) | Err(_) => LEAST,
        };
        self.due = Some(now + pause);
    }

    /// An answer came; if it is to a try, the next one is `due`.
    pub(super) fn answered(&mut self, nonce: [u8; 8], due: Option<Instant>) {
        if self.outstanding.contains(&nonce) {
            self.begin(due);
        }
    }

    /// Whether so many tries in so long a time are without an answer, while a small probe was
    /// answered: where those are lost too, they tell how the path is.
    pub(super) fn is_lost(
        &self,
        (patience, enough): (Duration, u32),
        last_answer: Option<Instant>,
        now: Instant,
    ) -> bool {
        self.silent.is_some_and(|(since, tries)| {
            let waited = now.saturating_duration_since(since);
            tries >= enough && waited >= patience && last_answer.is_some_and(|at| at > since)
        })
    }

    /// Whether a small probe should go too, to tell a narrow path from a silent one.
    pub(super) fn wants_company(&self) -> bool {
        self.silent.is_some_and(|(_, tries)| tries == 2)
    }

    /// The process did not run for this long: silence in that time says nothing.
    pub(super) fn stalled(&mut self, by: Duration) {
        self.silent = None;
        self.outstanding.clear();
        self.due = self.due.map(|due| due + by);
    }
}

impl Paths {
    /// An answer to a long probe came, which is as long.
    pub(crate) fn handle_wide_echo(&mut self, node: NodeId, nonce: [u8; 8], now: Instant) {
        let Some(prober) = self.probers.get_mut(&node) else { return };
        if prober.path.narrow {
            return self.take_echo(node, nonce, now);
        }
        let due = match prober.usage {
            PathUse::Active => Some(now + self.dice.jitter(ACTIVE.max(self.active), 10)),
            PathUse::Idle => None,
        };
        prober.width.answered(nonce, due);
    }

    /// Sessions find the way to a peer slow: maybe it is too narrow for them.
    pub(crate) fn doubt(&mut self, node: NodeId, now: Instant) {
        let Some(prober) = self.probers.get_mut(&node) else { return };
        self.schedule.remove(&(prober.due, node));
        prober.width.doubt(now);
        prober.due = prober.or_width(prober.due);
        self.schedule.insert((prober.due, node));
    }
}
