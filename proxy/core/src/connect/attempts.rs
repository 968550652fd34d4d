//! The running attempts of one search, and what they have shown about their lines.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use meshport_discovery::OriginState;

use super::{ConnectConfig, Kind, MAX_RACING};
use crate::evidence::{Attempted, Verdict};
use crate::patience::Patience;
use crate::route::{Candidate, Line};

/// A timer that fires this late shows that this process is starved: the answer may be waiting
/// unread.
pub(super) const LAG: Duration = Duration::from_millis(50);

/// An attempt.
#[derive(Debug)]
pub(super) struct Attempt {
    id: u32,
    pub(super) candidate: Candidate,
    /// Whether its session could not begin or would soon be reset, as far as known at the start.
    lost: bool,
    connected: bool,
    patience: Patience,
    began: Instant,
    /// Start of its current wait.
    since: Instant,
    /// Whether it was checked too late once, and got more time.
    spared: bool,
    /// Time at which another candidate is tried in parallel.
    pub(super) hedge_at: Option<Instant>,
    /// Whether another candidate was tried because this one was silent.
    slow: bool,
    /// Whether this machine is to blame: it was late itself, or opens too many connections at once.
    excused: bool,
}

impl Attempt {
    /// Notes that another candidate is raced against it.
    pub(super) fn note_hedge(&mut self, is_crowded: bool, now: Instant) {
        let due = self.hedge_at.take().unwrap_or(now);
        self.slow = true;
        self.excused = is_crowded || now.saturating_duration_since(due) > LAG;
    }

    fn shows(&self, verdict: Verdict) -> Attempted {
        Attempted { line: self.candidate.origin.line, verdict, began: self.began }
    }

    /// When it times out. An instance that got no request yet may wait as long as its client does.
    fn overdue_at(&self, kind: Kind) -> Option<Instant> {
        match (self.connected, kind) {
            (false, _) => Some(self.since + self.patience.open),
            (true, Kind::Open) => None,
            (true, Kind::Tls | Kind::Other) => Some(self.since + self.patience.answer),
        }
    }
}

/// All attempts of a search.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    running: Vec<Attempt>,
    next_id: u32,
    /// Whether an attempt has failed and the next should replace it.
    vacancy: bool,
    /// Cancelled attempts that the caller must still end.
    cancels: VecDeque<u32>,
    verdicts: Vec<Attempted>,
}

impl Attempts {
    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.running.len() >= MAX_RACING
    }

    pub(super) fn is_running(&self, id: u32) -> bool {
        self.running.iter().any(|it| it.id == id)
    }

    pub(super) fn is_any_connected(&self) -> bool {
        self.running.iter().any(|it| it.connected)
    }

    /// Whether one of them is at an origin that announces such a state.
    pub(super) fn is_any_at(&self, is_such: impl Fn(OriginState) -> bool) -> bool {
        self.running.iter().any(|it| is_such(it.candidate.origin.state))
    }

    /// Starts one, which may be lost from the start for lack of better ones; returns its id.
    pub(super) fn start(
        &mut self,
        candidate: &Candidate,
        lost: bool,
        round: u32,
        hedge_at: Option<Instant>,
        now: Instant,
    ) -> u32 {
        let id = self.next_id;
        self.next_id += 1;
        self.running.push(Attempt {
            id,
            candidate: candidate.clone(),
            lost,
            connected: false,
            patience: Patience::new(candidate, round),
            began: now,
            since: now,
            spared: false,
            hedge_at,
            slow: false,
            excused: false,
        });
        id
    }

    /// Gives up those whose line is lost now, and was not when they began.
    pub(super) fn cancel_lost(&mut self, is_lost: impl Fn(Line) -> bool) {
        let lost = self.running.extract_if(.., |it| !it.lost && is_lost(it.candidate.origin.line));
        let lost: Vec<Attempt> = lost.collect();
        self.vacancy |= !lost.is_empty();
        self.cancels.extend(lost.iter().map(|it| it.id));
    }

    /// Handles the kind of the client's bytes; `is_first` if nothing was known before.
    pub(super) fn handle_kind(
        &mut self,
        kind: Kind,
        is_first: bool,
        config: &ConnectConfig,
        now: Instant,
    ) {
        for running in &mut self.running {
            if running.connected && is_first {
                running.since = now;
            }
            running.hedge_at = match kind {
                Kind::Tls if running.slow => None,
                // The instance has the request from now on.
                Kind::Tls => config.hedge_delay(&running.candidate).map(|delay| now + delay),
                Kind::Open | Kind::Other if running.connected => None,
                Kind::Open | Kind::Other => running.hedge_at,
            };
        }
    }

    /// Handles that the instance of one is connected. Unless the client speaks TLS, all others are
    /// cancelled.
    pub(super) fn handle_connected(&mut self, id: u32, kind: Kind, now: Instant) {
        let Some(running) = self.running.iter_mut().find(|it| it.id == id) else { return };
        if !std::mem::replace(&mut running.connected, true) {
            running.since = now;
        }
        if kind != Kind::Tls {
            (running.hedge_at, running.slow) = (None, false);
            let others = self.running.extract_if(.., |it| it.id != id);
            self.cancels.extend(others.map(|it| it.id));
        }
    }

    /// Handles a failed attempt. `verdict` is `None` if that is no evidence about its line.
    pub(super) fn handle_failure(&mut self, id: u32, verdict: Option<Verdict>) {
        let Some(at) = self.running.iter().position(|it| it.id == id) else { return };
        let failed = self.running.remove(at);
        self.verdicts.extend(verdict.map(|verdict| failed.shows(verdict)));
        self.vacancy = true;
    }

    /// Handles an answer of an attempt, which ends all others.
    pub(super) fn handle_answer(&mut self, id: u32) {
        for running in self.running.drain(..) {
            if running.id == id {
                self.verdicts.push(running.shows(Verdict::Answered));
            } else if running.slow && !running.excused {
                self.verdicts.push(running.shows(Verdict::Outrun));
            }
        }
    }

    /// Handles that the search has timed out.
    pub(super) fn give_up(&mut self) {
        let silent = self.running.drain(..).filter(|it| it.slow);
        self.verdicts.extend(silent.map(|it| it.shows(Verdict::Silent)));
    }

    /// The next attempt that the caller must cancel.
    pub(super) fn next_cancelled(&mut self) -> Option<u32> {
        self.cancels.pop_front()
    }

    /// Whether one has failed since the last call.
    pub(super) fn take_vacancy(&mut self) -> bool {
        std::mem::take(&mut self.vacancy)
    }

    /// The results of attempts about their lines since the last call.
    pub(super) fn take_verdicts(&mut self) -> Vec<Attempted> {
        std::mem::take(&mut self.verdicts)
    }

    /// The first attempt that is due for a hedge.
    pub(super) fn due_for_hedge(&mut self, now: Instant) -> Option<&mut Attempt> {
        self.running.iter_mut().find(|it| it.hedge_at.is_some_and(|at| at <= now))
    }

    /// Time of the next hedge.
    pub(super) fn hedge_at(&self) -> Option<Instant> {
        self.running.iter().filter_map(|it| it.hedge_at).min()
    }

    /// When the next attempt times out.
    pub(super) fn overdue_at(&self, kind: Kind) -> Option<Instant> {
        self.running.iter().filter_map(|it| it.overdue_at(kind)).min()
    }

    /// Ends an attempt that timed out. One that is checked too late is spared once: its answer may
    /// be waiting unread.
    pub(super) fn take_overdue(&mut self, kind: Kind, now: Instant) -> Option<u32> {
        let lateness = |it: &Attempt| now.checked_duration_since(it.overdue_at(kind)?);
        loop {
            let at = self.running.iter().position(|it| lateness(it).is_some())?;
            let running = &mut self.running[at];
            let is_lag = lateness(running).is_some_and(|late| late > LAG);
            if !is_lag || std::mem::replace(&mut running.spared, true) {
                let overdue = self.running.remove(at);
                self.verdicts.push(overdue.shows(Verdict::Silent));
                self.vacancy = true;
                return Some(overdue.id);
            }
            let patience =
                if running.connected { running.patience.answer } else { running.patience.open };
            running.since = now + LAG - patience;
        }
    }
}
