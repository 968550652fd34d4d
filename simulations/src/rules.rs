//! The rules: their names, their bounds, and the state needed to check them.
//! [`crate::level::Judge`] checks them; rules of a single level are checked there.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use meshport_config::NodeId;
use meshport_core::route::{PathView, Route};
use meshport_discovery::OriginState;

pub(crate) use meshport_core::route::Line;

pub(crate) const DEAD_ORIGIN: &str = "no session to a dead origin";
pub(crate) const NEVER_BACK: &str = "a directory never goes back";
pub(crate) const EVICTED: &str = "no living node stays evicted";
pub(crate) const QUEUES: &str = "queues are bounded";
pub(crate) const SESSIONS: &str = "sessions opened = closed + open";
pub(crate) const SHUT_OUT: &str = "revoked nodes are shut out";
pub(crate) const SERVED_NO_MORE: &str = "revoked nodes are served no more";
pub(crate) const AGREEMENT: &str = "after a quiet time all agree";
pub(crate) const GOOD_ROUTES: &str = "after a quiet time routes are good";
pub(crate) const NEAR_ROUTES: &str = "after a quiet time routes are near";
pub(crate) const ONE_RELAY: &str = "one relay at most";
pub(crate) const SLOWLY_HOME: &str = "sessions go home slowly";
pub(crate) const OTHER_KUBELET: &str = "a stream of the way back reaches the node it names";
pub(crate) const ANSWERED: &str = "every request is answered";

/// The names of all rules, as in violations.
pub(crate) const ALL: [&str; 14] = [
    DEAD_ORIGIN,
    NEVER_BACK,
    EVICTED,
    QUEUES,
    SESSIONS,
    SHUT_OUT,
    SERVED_NO_MORE,
    AGREEMENT,
    GOOD_ROUTES,
    NEAR_ROUTES,
    ONE_RELAY,
    SLOWLY_HOME,
    OTHER_KUBELET,
    ANSWERED,
];

/// How long a live node may be considered down: a refutation has propagated by then.
pub(crate) const MAX_EVICTION: Duration = Duration::from_secs(15);
/// Time without a disturbance after which all nodes agree: several comparisons of directories.
pub(crate) const QUIET: Duration = Duration::from_secs(60);
/// How long a node may be considered down or unknown after a start or a change of links.
pub(crate) const SETTLING: Duration = Duration::from_secs(30);
/// A node stopped for longer than this counts as down and may be considered down.
pub(crate) const LONG_STALL: Duration = Duration::from_secs(1);
/// Time by which all nodes within reach know a revocation: floods take a few round trips, and
/// comparisons of directories repair losses.
pub(crate) const MAX_NEWS: Duration = Duration::from_secs(15);
/// Violations at which a run ends.
pub(crate) const MAX_VIOLATIONS: usize = 5;
/// Nodes whose directories are followed record by record.
pub(crate) const MAX_FOLLOWED: usize = 12;
/// Seconds between checks of the directories.
pub(crate) const FOLLOW_EVERY_S: u64 = 5;
/// The first choice may be farther than the best origin by this...
const FARTHER: Duration = Duration::from_millis(6);
/// ...or by this share of the best, in percent: the hysteresis of a route plus some noise.
const FARTHER_PERCENT: u32 = 25;
/// ...and for this long by any amount, since a good path may look lossy by chance.
pub(crate) const LASTING: Duration = Duration::from_secs(30);

/// A node's view of an origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) origin: NodeId,
    pub(crate) state: OriginState,
    pub(crate) is_healthy: bool,
    /// The node knows that sessions to the origin fail.
    pub(crate) is_dead: bool,
}

/// The views of the origins by membership and paths, regardless of their order in the route.
pub(crate) fn views(route: &Route) -> impl Iterator<Item = View> {
    route.candidates.iter().filter_map(|candidate| {
        let dead_path = candidate.origin.path == PathView::Dead;
        let state = candidate.origin.state;
        let useless = matches!(state, OriginState::Hung | OriginState::Refusing);
        let proven = matches!(candidate.origin.path, PathView::Own | PathView::Up(_));
        let is_direct = matches!(candidate.origin.line, Line::Direct(_));
        Some(View {
            origin: candidate.origin.line.origin().filter(|_| is_direct)?,
            state,
            is_healthy: state == OriginState::Ready && proven && !candidate.origin.suspect,
            is_dead: dead_path || useless,
        })
    })
}

/// A healthy origin that a session should try before this dead one.
pub(crate) fn better_than_dead(route: &Route, first: NodeId) -> Option<NodeId> {
    let is_dead = views(route).any(|view| view.origin == first && view.is_dead);
    let better = || views(route).find(|view| view.is_healthy && view.origin != first);
    is_dead.then(better).flatten().map(|view| view.origin)
}

/// Whether a first choice is clearly farther than the nearest usable one.
pub(crate) fn is_far(own: Duration, least: Duration) -> bool {
    own > least + FARTHER.max(least * FARTHER_PERCENT / 100)
}

/// The nodes that others consider down, rightly or not, and since when; this may change later. At
/// most one entry per pair of nodes, removed when the holder's process ends.
#[derive(Debug, Default)]
pub(crate) struct Evictions(BTreeMap<(usize, usize), Duration>);

impl Evictions {
    /// Records that the first node considers the second one down; returns whether that is new.
    pub(crate) fn begin(&mut self, holder: usize, subject: usize, now: Duration) -> bool {
        let before = self.0.len();
        self.0.entry((holder, subject)).or_insert(now);
        self.0.len() > before
    }

    pub(crate) fn end(&mut self, holder: usize, subject: usize) {
        self.0.remove(&(holder, subject));
    }

    /// Forgets a holder whose process has ended.
    pub(crate) fn forget(&mut self, holder: usize) {
        self.0.retain(|(of, _), _| *of != holder);
    }

    /// Sets all nodes that the holder considers down; returns the new ones.
    pub(crate) fn set(
        &mut self,
        holder: usize,
        all: &BTreeSet<usize>,
        now: Duration,
    ) -> Vec<usize> {
        self.0.retain(|(of, subject), _| *of != holder || all.contains(subject));
        all.iter().copied().filter(|subject| self.begin(holder, *subject, now)).collect()
    }

    /// Nodes considered down for longer than justified. `settles` returns when two nodes must know
    /// each other; none while they need not.
    pub(crate) fn overdue(
        &self,
        now: Duration,
        settles: impl Fn(usize, usize) -> Option<Duration>,
    ) -> Vec<(usize, usize)> {
        let late = |since: Duration| now.saturating_sub(since) > MAX_EVICTION;
        let overdue = self.0.iter().filter(|((holder, subject), since)| {
            late(**since) && settles(*holder, *subject).is_some_and(late)
        });
        overdue.map(|(pair, _)| *pair).collect()
    }
}

/// The version of a record: the owner's generation, and the version within it.
pub(crate) type Key = (u64, u64);

/// For each followed node: its process, and the newest version it had of each owner's record.
#[derive(Debug, Default)]
pub(crate) struct Records(BTreeMap<usize, (u32, Vec<Key>)>);

/// A record older than one the node had before: the owner, the previous and the current version.
pub(crate) type Back = (usize, Key, Key);

impl Records {
    /// Records what a node's process has of each of `nodes` nodes; returns a record that went back
    /// since the last call.
    pub(crate) fn follow(
        &mut self,
        at: usize,
        boot: u32,
        nodes: usize,
        records: impl Iterator<Item = (usize, Key)>,
    ) -> Option<Back> {
        let (before_boot, mut before) = self.0.remove(&at).unwrap_or((boot, Vec::new()));
        before.resize(nodes, (0, 0));
        let mut back = None;
        for (owner, key) in records {
            if before_boot == boot && key < before[owner] {
                back = Some((owner, before[owner], key));
            }
            before[owner] = key;
        }
        self.0.insert(at, (boot, before));
        back
    }

    /// Forgets a node whose process has ended.
    pub(crate) fn forget(&mut self, at: usize) {
        self.0.remove(&at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn a_node_that_stays_evicted_without_an_excuse_is_found() {
        let mut evictions = Evictions::default();
        assert!(evictions.begin(1, 2, S));
        assert!(!evictions.begin(1, 2, 2 * S), "it is down already");
        assert_eq!(evictions.set(1, &BTreeSet::from([2, 3]), 10 * S), [3]);
        let overdue = |evictions: &Evictions, at: u32, settles: Option<Duration>| {
            evictions.overdue(at * S, |_, _| settles)
        };
        let bound = u32::try_from(MAX_EVICTION.as_secs()).expect("a short time");
        assert_eq!(overdue(&evictions, bound + 1, Some(S)), []);
        assert_eq!(overdue(&evictions, bound + 2, Some(S)), [(1, 2)]);
        // Not within reach, or not for long enough.
        assert_eq!(overdue(&evictions, bound + 2, None), []);
        assert_eq!(overdue(&evictions, bound + 2, Some(3 * S)), []);
        // Node 3 is back, and node 2 with a new process.
        assert!(evictions.set(1, &BTreeSet::from([2]), 20 * S).is_empty());
        assert_eq!(overdue(&evictions, 99, Some(S)), [(1, 2)]);
        evictions.forget(1);
        assert_eq!(overdue(&evictions, 99, Some(S)), []);
    }

    #[test]
    fn a_record_that_goes_back_is_found_within_a_process() {
        let mut records = Records::default();
        let mut follow = |boot, key| records.follow(0, boot, 2, std::iter::once((1, key)));
        assert_eq!(follow(1, (7, 3)), None);
        assert_eq!(follow(1, (7, 4)), None);
        assert_eq!(follow(1, (7, 3)), Some((1, (7, 4), (7, 3))));
        assert_eq!(follow(1, (6, 9)), Some((1, (7, 3), (6, 9))));
        // A process that starts from an older file knows only that.
        assert_eq!(follow(2, (5, 1)), None);
    }
}
