//! Whether a path carries QUIC's smallest permitted datagram.
//!
//! A path whose MTU has dropped, for example because it now runs through another tunnel, passes
//! small probes and requests but drops every long answer. So some probes and their echoes are as
//! long as [`crate::wire::WIDE_DATAGRAM`]. If as many of these are lost in a row as make a silent
//! path dead, QUIC cannot use the path as it is. If long session packets are not acknowledged,
//! their sender and the peer, whose clients may be waiting, probe the path at once.
//!
//! A path with very little bandwidth drops most long probes and few small ones, since its queue has
//! room for small ones more often. So a lost long probe on a path that also loses small ones, or
//! two in a row on any path, starts an examination: long probes follow each other until they get
//! through again or suffice to measure loss, which then counts as the path's loss.
//!
//! If whole probes stay unanswered, the mesh splits long packets, and *split* probes show whether
//! that helps. If so the path is narrow: it stays up, split probes count from then on, and some
//! whole ones that are answered in a row end it. If not it is dead until a long one of either kind
//! is answered.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use meshport_config::NodeId;

use super::silence::{Patience, Silence};
use super::{Pace, PathUse, Paths};
use crate::dice::Dice;
use crate::rtt::{LOSS_WINDOW, Loss};

/// Interval of long probes on a path with sessions; any other path that is not narrow gets one
/// only when it comes up and when sessions start to use it. Each costs 1,308 bytes both ways, on a
/// narrow path about twice that: a tenth of all probes. Sessions that find a path slow do not wait
/// for the next one.
pub(super) const ACTIVE: Duration = Duration::from_secs(16);
/// The same on a narrow path without sessions, to notice that it is wide again. Less than a peer
/// splits after the last demand, unless there are many such paths.
const NARROW_IDLE: Duration = Duration::from_secs(30);
/// Minimum interval, regardless of how many sessions find a path slow.
const LEAST: Duration = Duration::from_secs(2);
/// Whole probes without an answer after which split ones are sent too: more than are lost by chance
/// where loss is low, and few enough that sessions continue before their clients give up.
const TRIAL: u32 = 4;
/// Answered split probes that make a path narrow instead of dead: a full queue may have had room
/// for one.
const PASSES: u32 = 2;
/// Whole probes answered in a row that make a narrow path wide: one may pass by chance where most
/// are lost.
const WHOLES: u32 = 3;
/// Unanswered whole probes that end such a series.
const MAX_OPEN_WHOLES: usize = 3;
/// Unanswered long probes remembered: the maximum that a verdict needs.
const MAX_OUTSTANDING: usize = 16;
/// Loss of long packets, in percent, from which a path should not be used; it is examined further,
/// to detect its recovery.
const USELESS_PERCENT: u8 = 50;
/// How often a useless path gets a long probe.
const USELESS: Duration = Duration::from_millis(500);
/// An examination ends once, of this many long probes in a row, ...
const WELL: u32 = 8;
/// ...no more than this were lost, as happens by chance where loss is low. Where most are lost it
/// happens in a hundredth of all cases.
const WELL_LOST: u32 = 1;

/// The state of a path's width.
#[derive(Debug, Default)]
pub(super) struct Width {
    /// Whether the width matters.
    tried: bool,
    /// Time of the next long probe; `None` while the path is not up or is unused.
    due: Option<Instant>,
    sent_at: Option<Instant>,
    /// `None` while every long probe is answered.
    silence: Option<Silence>,
    outstanding: VecDeque<[u8; 8]>,
    look: Option<Look>,
    /// The last long probe.
    last: Option<[u8; 8]>,
    /// Split probes that were answered since the last whole one was.
    passes: u32,
    /// The last whole probes, as far as they are unanswered.
    open_wholes: VecDeque<[u8; 8]>,
    /// Whole probes of a narrow path that were answered in a row.
    wholes: u32,
    /// What the mesh was told.
    told: Splitting,
}

/// Whether the mesh splits long packets for the peer, and why.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Splitting {
    #[default]
    Off,
    /// To find out whether fragments pass.
    OnTrial,
    /// Nothing else passes.
    Narrow,
}

/// A path under examination.
#[derive(Debug, Default)]
struct Look {
    fates: Loss,
    tries: u32,
    useless: bool,
}

impl Look {
    /// A path on which no long packet has passed for a while.
    fn useless() -> Self {
        let mut look = Self::default();
        (0..LOSS_WINDOW).for_each(|_| look.add(false));
        look
    }

    fn add(&mut self, answered: bool) {
        self.fates.add(answered);
        self.tries = self.tries.saturating_add(1);
        self.useless |= self.fates.percent() >= USELESS_PERCENT;
    }

    /// Whether there are enough probes for a verdict.
    fn is_over(&self) -> bool {
        let well = self.tries >= WELL && self.fates.lost_of_last(WELL) <= WELL_LOST;
        well || (self.tries >= LOSS_WINDOW && !self.useless)
    }
}

impl Width {
    /// A path that is not up yet; `tried` is never set where only small packets get through.
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
        let Self { sent_at, last, told, .. } = *self;
        *self = Self { sent_at, last, told, ..Self::new(self.tried) };
    }

    /// Probes of the other length count from now on. A path that loses most of its long packets by
    /// chance does so at either length.
    pub(super) fn change_length(&mut self, due: Option<Instant>, now: Instant) {
        let look = self.look.take().filter(|look| look.useless);
        self.begin(due);
        if look.is_some() {
            (self.look, self.due) = (look, Some(now + USELESS));
        }
    }

    /// The path is dead because no long probe gets through. The single answer that revives it does
    /// not prove that it works well.
    pub(super) fn end_as_useless(&mut self) {
        self.end();
        self.look = Some(Look::useless());
    }

    /// The path is up again.
    pub(super) fn revive(&mut self, now: Instant) {
        match &mut self.look {
            Some(look) => {
                look.add(true);
                self.due = Some(now + USELESS);
            }
            None => self.begin(Some(now)),
        }
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

    /// Sends a long probe now, but not within `pause` of the last one.
    fn hurry(&mut self, pause: Duration, now: Instant) {
        let soonest = self.sent_at.map_or(now, |at| now.max(at + pause));
        let due = self.due.map_or(soonest, |due| due.min(soonest));
        self.due = self.tried.then_some(due);
    }

    /// Loss of long packets in percent, if the path is under examination.
    pub(super) fn loss_percent(&self) -> u8 {
        self.look.as_ref().map_or(0, |look| look.fates.percent())
    }

    /// A long probe is sent on a path where an answer may take `wait`, and which may or may not
    /// lose small probes. While none is answered, the next one follows at the rate of a silent
    /// path.
    pub(super) fn sent(&mut self, nonce: [u8; 8], wait: Duration, lossy: bool, now: Instant) {
        let tries = self.silence.map_or(0, |silence| silence.probes);
        self.silence = Some(Silence::grown(self.silence, now));
        if self.look.is_none() && (tries >= 2 || (tries == 1 && lossy)) {
            self.look = Some(Look::default());
        }
        if self.outstanding.len() >= MAX_OUTSTANDING {
            self.outstanding.pop_front();
            if let Some(look) = &mut self.look {
                look.add(false);
            }
        }
        self.outstanding.push_back(nonce);
        self.last = Some(nonce);
        self.sent_at = Some(now);
        if self.open_wholes.len() >= MAX_OPEN_WHOLES {
            self.open_wholes.pop_front();
            self.wholes = 0;
        }
        self.open_wholes.push_back(nonce);
        // The first answer may take long; after that, probes follow as on a silent path, until
        // there are enough for a verdict, if one is possible.
        let pause = match usize::try_from(tries) {
            _ if self.look.as_ref().is_some_and(|look| look.useless) => USELESS.max(wait),
            Ok(0) => wait,
            Ok(tries) if tries < MAX_OUTSTANDING => wait / 3,
            Ok(_) | Err(_) => LEAST,
        };
        self.due = Some(now + pause);
    }

    /// An answer arrived. If it is to a long probe, the next one is `due`, or after `wait` during
    /// an examination. True if that changes the known loss.
    pub(super) fn answered(
        &mut self,
        nonce: [u8; 8],
        due: Option<Instant>,
        wait: Duration,
        now: Instant,
    ) -> bool {
        let Some(at) = self.outstanding.iter().position(|sent| *sent == nonce) else {
            return false;
        };
        (self.silence, self.passes) = (None, 0);
        // The next one follows soon while whole ones are answered too.
        let due = if self.wholes > 0 { Some(now + wait) } else { due };
        let Some(look) = &mut self.look else {
            self.settle(due);
            return false;
        };
        for passed in 0..=at {
            look.add(passed == at);
        }
        self.outstanding.drain(..=at);
        if look.is_over() {
            self.settle(due);
        } else {
            self.due = Some(now + if look.useless { USELESS.max(wait) } else { wait });
        }
        true
    }

    /// The last probe of the length that counts was answered, and nothing is under examination.
    fn settle(&mut self, due: Option<Instant>) {
        let (open, wholes) = (std::mem::take(&mut self.open_wholes), self.wholes);
        self.begin(due);
        (self.open_wholes, self.wholes) = (open, wholes);
    }

    /// A whole probe of a narrow path was answered; the next one is sent within `wait`. True if
    /// enough were in a row.
    pub(super) fn passed_whole(&mut self, nonce: [u8; 8], wait: Duration, now: Instant) -> bool {
        let Some(at) = self.open_wholes.iter().position(|sent| *sent == nonce) else {
            return false;
        };
        // An open one older than this is most likely lost.
        self.open_wholes.drain(..=at);
        self.wholes = if at == 0 { self.wholes + 1 } else { 1 };
        self.due = self.due.map(|due| due.min(now + wait));
        self.wholes >= WHOLES
    }

    /// A probe of a path that is dead because of its width is sent.
    pub(super) fn sent_as_useless(&mut self, nonce: [u8; 8]) {
        self.last = Some(nonce);
    }

    /// Whether this is the last long probe, or one that waits for an answer.
    fn knows(&self, nonce: [u8; 8]) -> bool {
        self.last == Some(nonce) || self.outstanding.contains(&nonce)
    }

    /// Whether so many whole probes are unanswered that it is worth trying fragments.
    pub(super) fn is_on_trial(&self) -> bool {
        self.silence.is_some_and(|silence| silence.probes >= TRIAL)
    }

    /// Whether long packets pass in fragments, and only so.
    pub(super) fn passes_split(&self) -> bool {
        self.passes >= PASSES
    }

    /// Whether the mesh was told to split.
    pub(super) fn is_split(&self) -> bool {
        self.told != Splitting::Off
    }

    /// Whether long probes have been unanswered for too long, while a small one was answered: if
    /// small ones are lost too, they show the path's state.
    pub(super) fn is_lost(
        &self,
        patience: Patience,
        last_answer: Option<Instant>,
        now: Instant,
    ) -> bool {
        self.silence.is_some_and(|silence| {
            silence.exceeds(patience, now) && last_answer.is_some_and(|at| at > silence.since)
        })
    }

    /// Whether to send a small probe too, to distinguish a narrow path from a silent one.
    pub(super) fn wants_company(&self) -> bool {
        self.silence.is_some_and(|silence| silence.probes == 2)
    }

    /// The process did not run for this long: silence in that time is ignored.
    pub(super) fn stalled(&mut self, by: Duration) {
        (self.silence, self.passes) = (None, 0);
        self.outstanding.clear();
        self.look = self.look.take().filter(|look| look.useless);
        self.due = self.due.map(|due| due + by);
    }
}

impl Paths {
    /// An answer to a long probe, which is just as long, arrived.
    pub(crate) fn handle_wide_echo(&mut self, node: NodeId, nonce: [u8; 8], now: Instant) {
        let Some(prober) = self.probers.get_mut(&node) else { return };
        if prober.needs_long_answer() {
            return self.take_echo(node, nonce, false, now);
        }
        if !prober.path.narrow {
            return self.take_long_echo(node, nonce, now);
        }
        let wait = prober.wait();
        let is_wide = prober.width.passed_whole(nonce, wait, now);
        if is_wide {
            let due = self.pace.next_long(prober.usage, false, &mut self.dice, now);
            prober.widen(due, now);
        }
        prober.move_to(prober.next_due(now), node, &mut self.schedule);
        if is_wide {
            self.report(node, true);
        }
    }

    /// An answer to a split probe, which is just as long, arrived.
    pub(crate) fn handle_split_echo(&mut self, node: NodeId, nonce: [u8; 8], now: Instant) {
        let Some(prober) = self.probers.get_mut(&node) else { return };
        if prober.needs_long_answer() {
            self.take_echo(node, nonce, true, now);
        } else if prober.path.narrow {
            self.take_long_echo(node, nonce, now);
        } else if prober.width.silence.is_some() && prober.width.knows(nonce) {
            prober.width.passes += 1;
        }
    }

    /// An answer to a probe of the length that counts on this path.
    fn take_long_echo(&mut self, node: NodeId, nonce: [u8; 8], now: Instant) {
        let Some(prober) = self.probers.get_mut(&node) else { return };
        let narrow = prober.path.narrow;
        let due = self.pace.next_long(prober.usage, narrow, &mut self.dice, now);
        let wait = prober.wait();
        if prober.width.answered(nonce, due, wait, now) {
            prober.weigh_loss();
            prober.move_to(prober.next_due(now), node, &mut self.schedule);
            self.report(node, false);
        }
        self.tell_split(node);
    }

    /// Tells the mesh if a path has to be treated in another way.
    pub(super) fn tell_split(&mut self, node: NodeId) {
        let Some(prober) = self.probers.get_mut(&node) else { return };
        let now = match prober.path.narrow {
            true => Splitting::Narrow,
            false if prober.width.is_on_trial() => Splitting::OnTrial,
            false => Splitting::Off,
        };
        if std::mem::replace(&mut prober.width.told, now) != now {
            self.splits.push_back(node);
        }
    }

    /// Sessions find the path to a peer slow, or long packets are lost on it: it may be too narrow.
    pub(crate) fn doubt(&mut self, node: NodeId, now: Instant) {
        let Some(prober) = self.probers.get_mut(&node) else { return };
        prober.width.doubt(now);
        prober.move_to(prober.or_width(prober.due), node, &mut self.schedule);
    }
}

impl Pace {
    /// Time of the next long probe on a path whose last one was answered.
    fn next_long(
        &self,
        usage: PathUse,
        narrow: bool,
        dice: &mut Dice,
        now: Instant,
    ) -> Option<Instant> {
        let interval = match usage {
            PathUse::Active => ACTIVE.max(self.active),
            PathUse::Idle if narrow => NARROW_IDLE.max(self.fair()),
            PathUse::Idle => return None,
        };
        Some(now + dice.jitter(interval, 10))
    }
}
