//! When to compare directories, and which records to fetch.
//!
//! A comparison is a chain of datagrams, each answered without state from the one before: digest of
//! everything, digests of buckets, lists of entries, requests, records. Only the side without the
//! records keeps a list, bounded by [`MAX_WANTS`], and requests a few at a time.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use meshport_config::NodeId;

use crate::dice::Dice;
use crate::wire::{MAX_WANTED, Short, Wanted};

/// Records waiting to be fetched; the next comparison finds the others again.
pub(crate) const MAX_WANTS: usize = 4096;
/// Records requested and not yet received: about sixty datagrams, which any link can take.
const MAX_IN_FLIGHT: usize = 96;
/// Timeout for an answer, and maximum number of requests per record.
const PATIENCE: Duration = Duration::from_secs(1);
const TRIES: u8 = 4;
/// The shortest time between two checks for overdue answers.
const LOOK: Duration = Duration::from_millis(100);
/// The shortest time between two comparisons, and the first pause after a large change.
const SOONEST: Duration = Duration::from_millis(500);

/// The entries to request from each member, in lists of at most [`MAX_WANTED`].
pub(crate) type Requests = BTreeMap<NodeId, Vec<Vec<Wanted>>>;

/// A node that got more records than this from one comparison was far behind, and may still be.
const BEHIND: usize = 16;

#[derive(Debug)]
struct Want {
    from: NodeId,
    with_credential: bool,
    asked: Option<Instant>,
    tries: u8,
}

/// The schedule of comparisons and the open requests.
#[derive(Debug)]
pub(crate) struct Sync {
    next: Instant,
    last: Option<Instant>,
    /// Grows from [`SOONEST`] to the routine interval.
    pause: Duration,
    /// The last comparison has not been answered.
    unanswered: bool,
    /// Records received since the last comparison.
    received: usize,
    wants: BTreeMap<Short, Want>,
    /// The records to request next, oldest first; some may have arrived already.
    queue: VecDeque<Short>,
    /// Number of records requested, and when to check for overdue answers.
    in_flight: usize,
    overdue: Option<Instant>,
}

impl Sync {
    pub(crate) fn new(first: Instant) -> Self {
        Self {
            next: first,
            last: None,
            pause: SOONEST,
            unanswered: false,
            received: 0,
            wants: BTreeMap::new(),
            queue: VecDeque::new(),
            in_flight: 0,
            overdue: None,
        }
    }

    /// Schedules a comparison soon.
    pub(crate) fn trigger(&mut self, now: Instant) {
        let soonest = self.last.map_or(now, |last| (last + SOONEST).max(now));
        self.next = self.next.min(soonest);
    }

    /// Much may have changed: compares soon and several times, with growing pauses.
    pub(crate) fn hasten(&mut self, now: Instant) {
        self.pause = SOONEST;
        self.trigger(now);
    }

    /// Whether a comparison is due. The next one is a pause away, which grows to `routine` unless
    /// the last one was not answered or brought much.
    pub(crate) fn take_due(&mut self, routine: Duration, dice: &mut Dice, now: Instant) -> bool {
        if self.next > now {
            return false;
        }
        self.last = Some(now);
        if self.unanswered || self.received > BEHIND {
            self.pause = self.pause.min(SOONEST * 2);
        }
        (self.unanswered, self.received) = (true, 0);
        self.next = now + dice.jitter(self.pause, 25);
        self.pause = (self.pause * 2).min(routine);
        true
    }

    /// A peer answered: it has the same directory, or sent the differences.
    pub(crate) fn answered(&mut self) {
        self.unanswered = false;
    }

    /// A peer has a record that this node lacks, and maybe the credential; false if too many are
    /// waiting already.
    pub(crate) fn want(&mut self, short: Short, with_credential: bool, from: NodeId) -> bool {
        if let Some(want) = self.wants.get_mut(&short) {
            want.with_credential |= with_credential;
            return true;
        }
        if self.wants.len() >= MAX_WANTS {
            return false;
        }
        self.wants.insert(short, Want { from, with_credential, asked: None, tries: 0 });
        self.queue.push_back(short);
        true
    }

    /// A record arrived, from any peer.
    pub(crate) fn got(&mut self, short: Short) {
        if let Some(want) = self.wants.remove(&short) {
            self.received += 1;
            self.in_flight -= usize::from(want.asked.is_some());
        }
        if self.wants.is_empty() {
            self.queue.clear();
            self.overdue = None;
        }
    }

    /// Whether there are records left to fetch.
    pub(crate) fn is_fetching(&self) -> bool {
        !self.wants.is_empty()
    }

    /// Whether it is time to check for overdue answers.
    pub(crate) fn is_overdue(&self, now: Instant) -> bool {
        self.overdue.is_some_and(|at| at <= now)
    }

    /// Requeues records with overdue answers for one of the `others`, since their peer may be
    /// overloaded; gives up those requested too often.
    pub(crate) fn requeue(&mut self, others: &[NodeId], now: Instant) {
        let late = |want: &Want| want.asked.is_some_and(|at| at + PATIENCE <= now);
        self.wants.retain(|_, want| want.tries < TRIES || !late(want));
        self.queue.retain(|short| self.wants.contains_key(short));
        for (index, (short, want)) in self.wants.iter_mut().enumerate() {
            if late(want) {
                want.asked = None;
                want.from = others.get(index % others.len().max(1)).copied().unwrap_or(want.from);
                self.queue.push_back(*short);
            }
        }
        let asked = || self.wants.values().filter_map(|want| want.asked);
        self.in_flight = asked().count();
        self.overdue = asked().min().map(|at| (at + PATIENCE).max(now + LOOK));
    }

    /// The requests to send now, by member.
    pub(crate) fn take_requests(&mut self, now: Instant) -> Requests {
        let mut requests = Requests::new();
        // In bursts: a request for each record that arrives would double the number of datagrams.
        if self.in_flight > MAX_IN_FLIGHT / 2 {
            return requests;
        }
        while self.in_flight < MAX_IN_FLIGHT
            && let Some(short) = self.queue.pop_front()
        {
            let Some(want) = self.wants.get_mut(&short).filter(|want| want.asked.is_none()) else {
                continue;
            };
            want.asked = Some(now);
            want.tries += 1;
            self.in_flight += 1;
            self.overdue = self.overdue.or(Some(now + PATIENCE));
            let wanted = Wanted { short, with_credential: want.with_credential };
            let lists = requests.entry(want.from).or_default();
            match lists.last_mut() {
                Some(list) if list.len() < MAX_WANTED => list.push(wanted),
                _ => lists.push(vec![wanted]),
            }
        }
        requests
    }

    /// When a comparison or a request is due.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        Some(self.overdue.map_or(self.next, |at| at.min(self.next)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::base;

    fn short(number: usize) -> Short {
        Short((number as u64).to_be_bytes())
    }

    fn count(requests: &Requests) -> usize {
        requests.values().flatten().map(Vec::len).sum()
    }

    #[test]
    fn requests_are_bounded_and_given_up() {
        let (start, peer) = (base(), NodeId::from_bytes([1; 32]));
        let mut sync = Sync::new(start);
        for number in 0..MAX_WANTS {
            assert!(sync.want(short(number), true, peer));
        }
        assert!(!sync.want(short(MAX_WANTS), true, peer));
        let first = sync.take_requests(start);
        assert_eq!(count(&first), MAX_IN_FLIGHT);
        assert!(first[&peer].iter().all(|list| list.len() <= MAX_WANTED));
        assert_eq!(count(&sync.take_requests(start)), 0);
        sync.got(short(0));
        assert_eq!(count(&sync.take_requests(start)), 0, "not for each arrival");
        (1..MAX_IN_FLIGHT / 2).for_each(|number| sync.got(short(number)));
        assert_eq!(count(&sync.take_requests(start)), MAX_IN_FLIGHT / 2, "arrivals make room");
        let mut now = start;
        for _ in 0..1000 {
            now += PATIENCE;
            sync.requeue(&[], now);
            sync.take_requests(now);
        }
        assert!(!sync.is_fetching(), "a silent peer is not asked forever");
        assert_eq!((sync.in_flight, sync.overdue), (0, None));
    }

    #[test]
    fn what_one_peer_does_not_answer_is_asked_of_another() {
        let (start, silent) = (base(), NodeId::from_bytes([1; 32]));
        let other = NodeId::from_bytes([2; 32]);
        let mut sync = Sync::new(start);
        sync.want(short(1), false, silent);
        assert!(sync.take_requests(start).contains_key(&silent));
        assert!(!sync.is_overdue(start));
        let later = start + PATIENCE;
        assert!(sync.is_overdue(later));
        sync.requeue(&[other], later);
        assert_eq!(
            sync.take_requests(later)[&other],
            [[Wanted { short: short(1), with_credential: false }]]
        );
        sync.got(short(1));
        assert!(!sync.is_fetching() && !sync.is_overdue(later + PATIENCE));
    }

    #[test]
    fn comparisons_are_rate_limited_and_calm_down() {
        let (start, routine) = (base(), Duration::from_secs(10));
        let (mut sync, mut dice) = (Sync::new(start), Dice::new([1; 32], 0));
        assert!(sync.take_due(routine, &mut dice, start));
        sync.hasten(start);
        assert!(!sync.take_due(routine, &mut dice, start));
        let (mut count, mut now) = (0, start);
        while now < start + Duration::from_secs(60) {
            now = sync.poll_timeout().expect("there is always a next one");
            assert!(sync.take_due(routine, &mut dice, now));
            sync.answered();
            count += 1;
        }
        assert!((7..=12).contains(&count), "{count}");
        // Without answers the pauses stay short.
        let silent = now;
        for _ in 0..4 {
            now = sync.poll_timeout().expect("there is always a next one");
            assert!(sync.take_due(routine, &mut dice, now));
        }
        assert!(now - silent < Duration::from_secs(20), "{:?}", now - silent);
    }
}
