//! The rounds of one search, which try each candidate once, and their order.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use super::SearchContext;
use crate::route::{Candidate, Line, Route};

/// The pause before all candidates are tried again, if all failed quickly.
pub(super) const ROUND_PAUSE: Duration = Duration::from_millis(100);

/// The current round, or the pause before the next.
#[derive(Debug)]
pub(super) struct Rounds {
    ticket: u64,
    number: u32,
    /// The candidates that this round still has to try; `None` before its order is drawn.
    queue: Option<VecDeque<Candidate>>,
    tried: BTreeSet<Line>,
    /// Start of the next round; `None` within a round.
    resume_at: Option<Instant>,
}

impl Rounds {
    pub(super) fn new(ticket: u64) -> Self {
        Self { ticket, number: 0, queue: None, tried: BTreeSet::new(), resume_at: None }
    }

    /// Rounds that have ended.
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// End of the pause, if there is one.
    pub(super) fn resume_at(&self) -> Option<Instant> {
        self.resume_at
    }

    /// Handles a new route: it has another order, and ends a pause.
    pub(super) fn handle_route(&mut self, now: Instant) {
        self.resume_at = self.resume_at.map(|_| now);
        self.queue = None;
    }

    /// Whether there is a pause now. The end of a pause starts a round.
    pub(super) fn is_pause(&mut self, now: Instant) -> bool {
        if self.resume_at.is_some_and(|at| at > now) {
            return true;
        }
        if self.resume_at.take().is_some() {
            self.number += u32::from(!self.tried.is_empty());
            self.tried.clear();
            self.queue = None;
        }
        false
    }

    /// Draws the order of the candidates that this round has not tried, unless it is drawn.
    pub(super) fn draw_order(&mut self, route: &Route, context: &impl SearchContext) {
        if self.queue.is_none() {
            let order = route.attempt_order(self.ticket, |line| context.open(line));
            let untried = order.into_iter().filter(|it| !self.tried.contains(&it.origin.line));
            self.queue = Some(untried.cloned().collect());
        }
    }

    /// Whether every candidate of this round has been tried.
    pub(super) fn is_exhausted(&self) -> bool {
        self.queue.as_ref().is_some_and(VecDeque::is_empty)
    }

    /// Begins the pause; without candidates, which only a new route can bring, it lasts for all the
    /// remaining time.
    pub(super) fn pause(&mut self, now: Instant, left: Duration) {
        let wait = if self.tried.is_empty() { left } else { ROUND_PAUSE };
        self.resume_at = Some(now + wait);
    }

    /// The first of the untried candidates, in order, that `may` be tried, and its place.
    pub(super) fn first(&self, may: impl Fn(&Candidate) -> bool) -> Option<(usize, &Candidate)> {
        self.queue.as_ref()?.iter().enumerate().find(|(_, it)| may(it))
    }

    /// Takes the one in this place, which counts as tried.
    pub(super) fn take(&mut self, place: usize) -> Option<Candidate> {
        let candidate = self.queue.as_mut()?.remove(place)?;
        self.tried.insert(candidate.origin.line);
        Some(candidate)
    }
}
