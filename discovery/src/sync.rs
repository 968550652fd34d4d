//! When to compare directories, and which records are still to be fetched.
//!
//! A comparison is a chain of datagrams, each answered without memory of the one before: digest of
//! everything, digests of buckets, lists of what is there, requests, records. Only the side that lacks
//! something keeps a list of it, bounded by [`MAX_WANTS`], and asks for a few records at a time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use meshport_config::NodeId;

use crate::dice::Dice;
use crate::wire::{MAX_WANTED, Short};

/// Records waiting to be fetched; more are found again by the next comparison.
pub(crate) const MAX_WANTS: usize = 4096;
/// Records asked for and not yet arrived: about sixty datagrams, which any link can take.
const MAX_IN_FLIGHT: usize = 96;
/// How long an answer may take, and how often a record is asked for.
const PATIENCE: Duration = Duration::from_secs(1);
const TRIES: u8 = 4;
/// The shortest time between two comparisons, and the first pause after something big happened.
const SOONEST: Duration = Duration::from_millis(500);

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
    wants: BTreeMap<Short, Want>,
    /// When an answer is overdue.
    fetch: Option<Instant>,
}

impl Sync {
    pub(crate) fn new(first: Instant) -> Self {
        Self { next: first, last: None, pause: SOONEST, wants: BTreeMap::new(), fetch: None }
    }

    /// Asks for a comparison soon.
    pub(crate) fn trigger(&mut self, now: Instant) {
        let soonest = self.last.map_or(now, |last| (last + SOONEST).max(now));
        self.next = self.next.min(soonest);
    }

    /// Much may have changed: compares soon and several times, with growing pauses.
    pub(crate) fn hasten(&mut self, now: Instant) {
        self.pause = SOONEST;
        self.trigger(now);
    }

    /// Whether a comparison is due. The next one is a pause away, which grows to `routine`.
    pub(crate) fn take_due(&mut self, routine: Duration, dice: &mut Dice, now: Instant) -> bool {
        if self.next > now {
            return false;
        }
        self.last = Some(now);
        self.next = now + dice.jitter(self.pause, 25);
        self.pause = (self.pause * 2).min(routine);
        true
    }

    /// A peer has a record this node lacks, and maybe the credential; false when too many are waiting
    /// already.
    pub(crate) fn want(&mut self, short: Short, with_credential: bool, from: NodeId) -> bool {
        if self.wants.len() >= MAX_WANTS && !self.wants.contains_key(&short) {
            return false;
        }
        let new = Want { from, with_credential, asked: None, tries: 0 };
        self.wants.entry(short).or_insert(new).with_credential |= with_credential;
        true
    }

    /// A record arrived, from whomever.
    pub(crate) fn got(&mut self, short: Short) {
        self.wants.remove(&short);
        if self.wants.is_empty() {
            self.fetch = None;
        }
    }

    /// Whether records are still to be fetched.
    pub(crate) fn is_fetching(&self) -> bool {
        !self.wants.is_empty()
    }

    /// Whether some answer is overdue.
    pub(crate) fn is_overdue(&self, now: Instant) -> bool {
        self.fetch.is_some_and(|at| at <= now)
    }

    /// What to ask whom for now. What a peer did not answer is asked of one of the `others`, since it
    /// may be overwhelmed.
    pub(crate) fn take_requests(
        &mut self,
        others: &[NodeId],
        now: Instant,
    ) -> BTreeMap<NodeId, Vec<Vec<(Short, bool)>>> {
        let overdue = |want: &Want| want.asked.is_some_and(|at| at + PATIENCE <= now);
        self.wants.retain(|_, want| want.tries < TRIES || !overdue(want));
        let under_way = |want: &&Want| want.asked.is_some() && !overdue(want);
        let mut room = MAX_IN_FLIGHT.saturating_sub(self.wants.values().filter(under_way).count());
        let mut requests: BTreeMap<NodeId, Vec<Vec<(Short, bool)>>> = BTreeMap::new();
        for (short, want) in &mut self.wants {
            if room == 0 {
                break;
            }
            if want.asked.is_some() && !overdue(want) {
                continue;
            }
            if want.asked.is_some() && !others.is_empty() {
                want.from = others[room % others.len()];
            }
            want.asked = Some(now);
            want.tries += 1;
            room -= 1;
            let wanted = (*short, want.with_credential);
            let lists = requests.entry(want.from).or_default();
            match lists.last_mut() {
                Some(list) if list.len() < MAX_WANTED => list.push(wanted),
                _ => lists.push(vec![wanted]),
            }
        }
        // Those overdue already wait for room, which the next answer or silence makes.
        let under_way = self.wants.values().filter_map(|want| want.asked.map(|at| at + PATIENCE));
        self.fetch = under_way.filter(|at| *at > now).min();
        requests
    }

    /// When a comparison or a request is due.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        Some(self.fetch.map_or(self.next, |at| at.min(self.next)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::base;

    fn short(number: usize) -> Short {
        Short((number as u64).to_be_bytes())
    }

    fn count(requests: &BTreeMap<NodeId, Vec<Vec<(Short, bool)>>>) -> usize {
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
        let first = sync.take_requests(&[], start);
        assert_eq!(count(&first), MAX_IN_FLIGHT);
        assert!(first[&peer].iter().all(|list| list.len() <= MAX_WANTED));
        assert_eq!(count(&sync.take_requests(&[], start)), 0);
        sync.got(short(0));
        assert_eq!(count(&sync.take_requests(&[], start)), 1, "an arrival makes room");
        let mut now = start;
        for _ in 0..1000 {
            now += PATIENCE;
            sync.take_requests(&[], now);
        }
        assert!(!sync.is_fetching(), "a silent peer is not asked for ever");
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
            count += 1;
        }
        assert!((7..=12).contains(&count), "{count}");
    }
}
