//! The paths that a request tries, in which order, and when the next attempt starts.
//!
//! No data passes before an answer, so a second attempt costs only a dropped connection. The direct
//! path goes first unless it is known to be dead; up to three relays follow, those of the target's
//! site first, which most likely reach it. A refusal by the node itself ends the search; a failed
//! path starts the next one at once.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use meshport_config::NodeId;

use crate::route::{Line, PathView};

use super::refusal::Refusal;
use super::reply::Refused;

/// The maximum number of paths that one request tries.
pub const MAX_PATHS: usize = 4;
/// The maximum number of relayed paths to one node.
const MAX_RELAYS: usize = 3;
/// How long a path may be silent before the next is tried in parallel: a handshake and a round trip
/// on a 200 ms path, with some margin.
pub const HEDGE: Duration = Duration::from_millis(700);

/// A member that may relay, or dial services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prospect {
    /// The node.
    pub node: NodeId,
    /// Whether it is in the target's site; for services in this node's.
    pub is_near: bool,
    /// The measured path to it, if any.
    pub path: Option<PathView>,
}

/// The paths to one node.
pub fn to_node(node: NodeId, direct: Option<PathView>, mut relays: Vec<Prospect>) -> Vec<Line> {
    relays.retain(|relay| relay.node != node);
    relays.sort_by_key(|relay| (rank(relay.path), !relay.is_near, rtt(relay.path), relay.node));
    let relays = relays.into_iter().take(MAX_RELAYS);
    let mut paths: VecDeque<Line> =
        relays.map(|relay| Line::Relayed { origin: node, relay: relay.node }).collect();
    match direct {
        // It may have recovered.
        Some(PathView::Dead) => paths.push_back(Line::Direct(node)),
        _ => paths.push_front(Line::Direct(node)),
    }
    paths.into()
}

/// The paths to the nearest of several equivalent nodes: direct ones, then one through a relay.
pub fn to_any(mut nodes: Vec<Prospect>, relays: Vec<Prospect>) -> Vec<Line> {
    nodes.sort_by_key(|it| {
        let (is_dead, is_own) = (it.path == Some(PathView::Dead), it.path == Some(PathView::Own));
        (is_dead, !is_own, !it.is_near, rank(it.path), rtt(it.path), it.node)
    });
    let Some(first) = nodes.first().copied() else { return Vec::new() };
    let direct = nodes.iter().take(MAX_PATHS - 1).map(|it| Line::Direct(it.node));
    let relayed = to_node(first.node, None, relays).into_iter().skip(1).take(1);
    direct.chain(relayed).collect()
}

fn rank(path: Option<PathView>) -> u8 {
    match path {
        Some(PathView::Own) => 0,
        Some(PathView::Up(_)) => 1,
        Some(PathView::Unmeasured) | None => 2,
        Some(PathView::Dead) => 3,
    }
}

fn rtt(path: Option<PathView>) -> Duration {
    match path {
        Some(PathView::Up(rtt)) => rtt,
        _ => Duration::ZERO,
    }
}

/// The attempts of one request. Call [`Race::poll`] after every input, then sleep until
/// [`Race::poll_timeout`].
#[derive(Debug)]
pub struct Race {
    waiting: VecDeque<Line>,
    running: usize,
    next_at: Instant,
    until: Instant,
    worst: Option<Refused>,
}

impl Race {
    /// A race over these paths until this deadline.
    pub fn new(paths: Vec<Line>, now: Instant, until: Instant) -> Self {
        let waiting = paths.into_iter().take(MAX_PATHS).collect();
        Self { waiting, running: 0, next_at: now, until, worst: None }
    }

    /// A path to try now.
    pub fn poll(&mut self, now: Instant) -> Option<Line> {
        if now < self.next_at || now >= self.until {
            return None;
        }
        let line = self.waiting.pop_front()?;
        self.running += 1;
        self.next_at = now + HEDGE;
        Some(line)
    }

    /// Handles a failed attempt; returns whether the search is over.
    pub fn handle_failure(&mut self, refused: Refused, now: Instant) -> bool {
        self.running = self.running.saturating_sub(1);
        self.next_at = now;
        let is_final = !refused.why.is_of_the_path();
        // The node's own answer tells more than failures of its paths, and an earlier answer more
        // than a relay's.
        if is_final || self.worst.is_none() {
            self.worst = Some(refused);
        }
        is_final || (self.running == 0 && self.waiting.is_empty())
    }

    /// Time of the next poll, or to give up.
    pub fn poll_timeout(&self) -> Instant {
        if self.waiting.is_empty() { self.until } else { self.next_at.min(self.until) }
    }

    /// Whether the time has expired.
    pub fn is_late(&self, now: Instant) -> bool {
        now >= self.until
    }

    /// Why the search failed.
    pub fn into_refused(self) -> Refused {
        let silent = || Refused::new(Refusal::Silent, "no answer");
        self.worst.filter(|it| self.running == 0 || !it.why.is_of_the_path()).unwrap_or_else(silent)
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests need some first instant")]
mod tests {
    use super::*;

    fn node(number: u8) -> NodeId {
        NodeId::from_bytes([number; 32])
    }

    fn relay(number: u8, is_near: bool, path: Option<PathView>) -> Prospect {
        Prospect { node: node(number), is_near, path }
    }

    fn up(ms: u64) -> Option<PathView> {
        Some(PathView::Up(Duration::from_millis(ms)))
    }

    fn through(relay: u8) -> Line {
        Line::Relayed { origin: node(7), relay: node(relay) }
    }

    #[test]
    fn the_direct_way_goes_first_unless_it_is_dead() {
        let relays = || {
            vec![
                relay(1, false, up(5)),
                relay(2, true, up(50)),
                relay(3, true, Some(PathView::Dead)),
                relay(4, false, None),
                relay(7, true, up(1)),
            ]
        };
        let direct = Line::Direct(node(7));
        let relayed = [through(2), through(1), through(4)];
        let paths = to_node(node(7), None, relays());
        assert_eq!(paths, [&[direct][..], &relayed].concat());
        let paths = to_node(node(7), Some(PathView::Dead), relays());
        assert_eq!(paths, [&relayed[..], &[direct]].concat());
        assert_eq!(paths.len(), MAX_PATHS);
    }

    #[test]
    fn of_several_the_nearest_goes_first() {
        let nodes = || {
            vec![
                relay(1, false, up(20)),
                relay(7, true, None),
                relay(3, true, Some(PathView::Dead)),
                relay(4, false, up(3)),
            ]
        };
        let direct = |order: [u8; 3]| order.map(|number| Line::Direct(node(number)));
        let paths = to_any(nodes(), vec![relay(9, true, up(1))]);
        assert_eq!(paths, [&direct([7, 4, 1])[..], &[through(9)]].concat());
        let own = relay(5, true, Some(PathView::Own));
        let paths = to_any([nodes(), vec![own]].concat(), Vec::new());
        assert_eq!(paths, direct([5, 7, 4]));
        assert_eq!(to_any(Vec::new(), Vec::new()), []);
    }

    #[test]
    fn a_silent_way_gets_company_and_a_refusal_of_the_node_ends_it() {
        let start = Instant::now();
        let paths = vec![Line::Direct(node(7)), through(1), through(2)];
        let mut race = Race::new(paths, start, start + Duration::from_secs(4));
        assert_eq!(race.poll(start), Some(Line::Direct(node(7))));
        assert_eq!(race.poll(start), None);
        assert_eq!(race.poll_timeout(), start + HEDGE);
        assert_eq!(race.poll(start + HEDGE), Some(through(1)));
        // A failure of a path starts the next one at once.
        assert!(!race.handle_failure(Refused::new(Refusal::NoPath, "no"), start + HEDGE));
        assert_eq!(race.poll(start + HEDGE), Some(through(2)));
        assert_eq!(race.poll_timeout(), start + Duration::from_secs(4));
        assert!(race.handle_failure(Refused::new(Refusal::Off, "off"), start + HEDGE));
        assert_eq!(race.into_refused().why, Refusal::Off);
    }

    #[test]
    fn the_search_ends_with_the_last_way_or_the_time() {
        let start = Instant::now();
        let mut race = Race::new(vec![through(1)], start, start + Duration::from_secs(1));
        assert!(race.poll(start).is_some());
        assert!(race.is_late(start + Duration::from_secs(1)));
        assert!(race.handle_failure(Refused::new(Refusal::NoPath, "no"), start));
        assert_eq!(race.into_refused().why, Refusal::NoPath);
        let mut race = Race::new(vec![through(1)], start, start + Duration::from_secs(1));
        assert!(race.poll(start).is_some());
        assert_eq!(race.into_refused().why, Refusal::Silent);
    }
}
