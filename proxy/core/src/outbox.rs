//! Outgoing events: which are new, when to post them, and the outcome.
//!
//! All events come from the [`Journal`]. Combined events are taken once they have stopped growing,
//! so that a lost site is one event. Posts are spaced to respect the limit per minute; a failed one
//! is retried with backoff, with the same events first. If an answer is lost, its events arrive
//! twice.
//!
//! Bounds: [`MAX_WAITING`] events wait, the oldest are dropped and counted; [`MAX_BATCH`] in a
//! post.

use std::collections::{BTreeMap, VecDeque};
use std::error::Error;
use std::fmt;
use std::time::{Duration, Instant};

use crate::journal::{Event, Journal, Kind, TOGETHER};

/// Events that wait to be posted: as many as the journal holds.
pub const MAX_WAITING: usize = 192;
/// Events in one post.
pub const MAX_BATCH: usize = 32;
/// Delay from a failed post to the next attempt; doubled by each further failure.
const RETRY: Duration = Duration::from_secs(5);
/// The longest pause between attempts.
const MAX_RETRY: Duration = Duration::from_secs(300);
/// Consecutive failures that cause a finding: more than a restart of the receiver.
const MANY_FAILURES: u32 = 4;

/// A receiver of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Receiver {
    /// The address in the settings.
    Url,
    /// The Kubernetes cluster, as Events of this node's Node object.
    Kubernetes,
}

impl fmt::Display for Receiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Url => "to the address in events.url",
            Self::Kubernetes => "to Kubernetes",
        })
    }
}

/// Why a post was not accepted.
pub type Refusal = Box<dyn Error + Send + Sync>;

/// The results of posts and events.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OutboxCounts {
    /// Events that the receiver accepted.
    pub posted: u64,
    /// Posts that failed.
    pub failed: u64,
    /// Events dropped because the queue was full.
    pub dropped: u64,
}

/// See the module's doc.
#[derive(Debug)]
pub struct Outbox {
    /// Whether its receiver wants this kind.
    takes: fn(Kind) -> bool,
    spacing: Duration,
    waiting: VecDeque<(Kind, Event)>,
    /// The time up to which events of each kind were taken.
    taken: BTreeMap<Kind, Instant>,
    /// How many of the first waiting events are being posted.
    under_way: usize,
    /// No post before this.
    not_before: Instant,
    failures: u32,
    /// Why the last post failed, if it did.
    refusal: Option<Refusal>,
    counts: OutboxCounts,
}

impl Outbox {
    /// An empty outbox, with this many posts per minute, at least 1.
    pub fn new(per_minute: u32, now: Instant) -> Self {
        Self {
            takes: |_| true,
            spacing: Duration::from_secs(60) / per_minute.max(1),
            waiting: VecDeque::new(),
            taken: BTreeMap::new(),
            under_way: 0,
            not_before: now,
            failures: 0,
            refusal: None,
            counts: OutboxCounts::default(),
        }
    }

    /// Restricts the outbox to these kinds.
    #[must_use]
    pub fn of(self, takes: fn(Kind) -> bool) -> Self {
        Self { takes, ..self }
    }

    /// Takes new events from the journal.
    pub fn handle_journal(&mut self, journal: &Journal, now: Instant) {
        let mut news: Vec<(Kind, &Event)> = journal
            .iter()
            .filter(|(kind, event)| {
                let is_new = self.taken.get(kind).is_none_or(|taken| event.at > *taken);
                let age = now.saturating_duration_since(event.at);
                (self.takes)(*kind) && is_new && (!kind.gathers() || age >= TOGETHER)
            })
            .collect();
        news.sort_by_key(|(_, event)| event.at);
        for (kind, event) in news {
            self.taken.insert(kind, event.at);
            if self.waiting.len() == MAX_WAITING {
                // Events being posted have reached the receiver, or will be retried.
                self.waiting.remove(self.under_way);
                self.counts.dropped += 1;
            }
            self.waiting.push_back((kind, event.clone()));
        }
    }

    /// The events of the next post, oldest first, if it is time for one. Nothing else is returned
    /// until its outcome is reported.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Vec<(Kind, Event)>> {
        if self.under_way > 0 || self.waiting.is_empty() || now < self.not_before {
            return None;
        }
        self.under_way = self.waiting.len().min(MAX_BATCH);
        self.not_before = now + self.spacing;
        Some(self.waiting.iter().take(self.under_way).cloned().collect())
    }

    /// Takes the outcome of the current post.
    pub fn handle_outcome(&mut self, outcome: Result<(), Refusal>, now: Instant) {
        let sent = std::mem::take(&mut self.under_way);
        match outcome {
            Ok(()) => {
                self.waiting.drain(..sent);
                self.counts.posted += sent as u64;
                self.failures = 0;
                self.refusal = None;
            }
            Err(refusal) => {
                self.counts.failed += 1;
                let pause = RETRY.saturating_mul(1 << self.failures.min(6)).min(MAX_RETRY);
                self.failures = self.failures.saturating_add(1);
                self.not_before = self.not_before.max(now + pause);
                self.refusal = Some(refusal);
            }
        }
    }

    /// The results of all posts.
    pub fn counts(&self) -> OutboxCounts {
        self.counts
    }

    /// The number of consecutive failures and the last reason, once there are many.
    pub fn trouble(&self) -> Option<(u32, &Refusal)> {
        let refusal = self.refusal.as_ref().filter(|_| self.failures >= MANY_FAILURES);
        refusal.map(|refusal| (self.failures, refusal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "an origin for made-up time")]
    fn start() -> Instant {
        Instant::now()
    }

    fn after(start: Instant, ms: u64) -> Instant {
        start + Duration::from_millis(ms)
    }

    fn service() -> meshport_config::ServiceName {
        meshport_config::ServiceName::kube_apiserver()
    }

    #[test]
    fn a_route_change_goes_at_once_and_a_site_that_is_lost_as_one_event() {
        let (start, mut journal) = (start(), Journal::default());
        let mut outbox = Outbox::new(60, start);
        journal.note_service(Kind::Route, &service(), "a to b", after(start, 10));
        for (at, name) in [(20, "n1"), (900, "n2"), (3_000, "n3")] {
            journal.note(Kind::Went, name.into(), "does not answer", after(start, at));
        }
        outbox.handle_journal(&journal, after(start, 3_000));
        let first = outbox.poll_transmit(after(start, 3_000)).expect("the route");
        assert_eq!(first.len(), 1);
        assert_eq!(outbox.poll_transmit(after(start, 3_000)), None, "one at a time");
        outbox.handle_outcome(Ok(()), after(start, 3_100));
        outbox.handle_journal(&journal, after(start, 7_999));
        assert_eq!(outbox.poll_transmit(after(start, 7_999)), None);
        outbox.handle_journal(&journal, after(start, 8_000));
        let second = outbox.poll_transmit(after(start, 8_000)).expect("those who went");
        assert_eq!(second[0].1.names, ["n1", "n2", "n3"]);
        outbox.handle_outcome(Ok(()), after(start, 8_100));
        outbox.handle_journal(&journal, after(start, 60_000));
        assert_eq!(outbox.poll_transmit(after(start, 60_000)), None, "nothing comes twice");
        assert_eq!(outbox.counts(), OutboxCounts { posted: 2, failed: 0, dropped: 0 });
    }

    #[test]
    fn posts_are_spaced_and_failures_come_later_and_later() {
        let (start, mut journal) = (start(), Journal::default());
        let mut outbox = Outbox::new(12, start);
        let mut tries = Vec::new();
        journal.note_service(Kind::Reset, &service(), "two", start);
        for second in 0..400 {
            let now = after(start, second * 1000);
            outbox.handle_journal(&journal, now);
            if outbox.poll_transmit(now).is_some() {
                tries.push(second);
                outbox.handle_outcome(Err("refused".into()), now);
            }
        }
        assert_eq!(tries, [0, 5, 15, 35, 75, 155, 315]);
        let trouble = outbox.trouble().expect("seven failures");
        assert_eq!((trouble.0, trouble.1.to_string().as_str()), (7, "refused"));
        let now = after(start, 700_000);
        assert!(outbox.poll_transmit(now).is_some());
        outbox.handle_outcome(Ok(()), now);
        assert!(outbox.trouble().is_none());
        journal.note_service(Kind::Reset, &service(), "three", after(start, 700_001));
        outbox.handle_journal(&journal, after(start, 700_002));
        assert_eq!(outbox.poll_transmit(after(start, 704_999)), None, "twelve in a minute");
        assert!(outbox.poll_transmit(after(start, 705_000)).is_some());
    }

    #[test]
    fn with_a_receiver_that_is_gone_the_oldest_are_dropped_and_counted() {
        let (start, mut journal) = (start(), Journal::default());
        let mut outbox = Outbox::new(60, start);
        for at in 0..1000 {
            let now = after(start, at);
            journal.note_service(Kind::Reset, &service(), &format!("number {at}"), now);
            outbox.handle_journal(&journal, now);
        }
        assert_eq!(outbox.counts().dropped, 1000 - MAX_WAITING as u64);
        let batch = outbox.poll_transmit(after(start, 2_000)).expect("some wait");
        assert_eq!(batch.len(), MAX_BATCH);
        assert_eq!(batch[0].1.detail, format!("number {}", 1000 - MAX_WAITING));
    }
}
