//! State that the searches of one service on a node share.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::evidence::MAX_LINES;
use crate::route::Line;

/// Concurrent searches of one service that do not slow its instances; a reconnecting client dials
/// once per watch, and a controller manager 60 times.
pub const MAX_CALM_SEARCHES: u64 = 16;

/// All running searches of a service, the hedges they may start, and the lines that have recently
/// answered any of them.
///
/// Hedges are limited to a burst and a share of all searches, so that general slowness is not
/// answered with more load (the retry budget of Finagle and gRPC). Lines: at most [`MAX_LINES`].
#[derive(Debug)]
pub struct Searches {
    under_way: u64,
    /// Hedges left, in tenths.
    tenths: u32,
    /// Time of each line's last answer.
    answered: BTreeMap<Line, Instant>,
}

impl Searches {
    /// Hedges that may be started at once, without credit from searches.
    pub(super) const MAX_BURST: u32 = 32;
    /// The credit that each search adds, in tenths of a hedge.
    const PER_SEARCH: u32 = 2;

    /// Notes that a search begins.
    pub fn begin(&mut self) {
        self.under_way += 1;
        self.tenths = (self.tenths + Self::PER_SEARCH).min(Self::MAX_BURST * 10);
    }

    /// Notes that a search has ended.
    pub fn end(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
    }

    /// Number of running searches.
    pub fn under_way(&self) -> u64 {
        self.under_way
    }

    /// Notes that a search has an answer.
    pub fn note_answer(&mut self, line: Line, now: Instant) {
        if self.answered.len() < MAX_LINES || self.answered.contains_key(&line) {
            self.answered.insert(line, now);
        }
    }

    /// Whether there are so many searches that they slow each other down.
    pub fn is_crowded(&self) -> bool {
        self.under_way > MAX_CALM_SEARCHES
    }

    /// Whether a line is slow because of the other searches: there are many, and it has answered
    /// one of them within the last `delay`.
    pub(super) fn is_busy(&self, line: &Line, delay: Duration, now: Instant) -> bool {
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) < delay;
        self.is_crowded() && self.answered.get(line).is_some_and(is_recent)
    }

    /// Takes a hedge, if one is left.
    pub(super) fn take_hedge(&mut self) -> bool {
        let left = self.tenths.checked_sub(10);
        self.tenths = left.unwrap_or(self.tenths);
        left.is_some()
    }
}

impl Default for Searches {
    fn default() -> Self {
        Self { under_way: 0, tenths: Self::MAX_BURST * 10, answered: BTreeMap::new() }
    }
}
