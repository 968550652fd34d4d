//! The members that a leaf queries: a few that answered, and others as fallback.
//!
//! A leaf takes no part in gossip. It polls members for the origins of the services it uses. Those
//! that answer first are the nearest, and it keeps them until they fall silent. Bounded by
//! [`MAX_ATTACHED`] members in use and [`MAX_TRIED`] under trial.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use meshport_config::{NodeId, ServiceName};

/// Members that a leaf keeps: one may die and one may be cut off, and one remains.
pub const MAX_ATTACHED: usize = 3;
/// Members queried at once while there are fewer: all seeds of an invite.
const MAX_TRIED: usize = 8;
/// Interval of queries to an answering member. The origin itself sends urgent changes to a leaf at
/// once; this is for the rest.
const ASK_INTERVAL: Duration = Duration::from_secs(5);
/// Timeout for an answer, after which the query is repeated.
const PATIENCE: Duration = Duration::from_secs(1);
/// Unanswered queries after which a member is given up.
const TRIES: u8 = 3;
/// Pause between searches for more members.
const SEARCH_PAUSE: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, Default)]
struct Asked {
    attached: bool,
    due: Option<Instant>,
    unanswered: u8,
}

/// The members a leaf asks, and when.
#[derive(Debug)]
pub(crate) struct Attach {
    services: Vec<ServiceName>,
    asked: BTreeMap<NodeId, Asked>,
    search_at: Instant,
}

impl Attach {
    pub(crate) fn new(services: Vec<ServiceName>, now: Instant) -> Self {
        Self { services, asked: BTreeMap::new(), search_at: now }
    }

    /// The services whose origins are wanted.
    pub(crate) fn services(&self) -> &[ServiceName] {
        &self.services
    }

    /// The members in use.
    pub(crate) fn attached(&self) -> impl Iterator<Item = NodeId> {
        self.asked.iter().filter(|(_, asked)| asked.attached).map(|(node, _)| *node)
    }

    pub(crate) fn is_attached(&self, node: &NodeId) -> bool {
        self.asked.get(node).is_some_and(|asked| asked.attached)
    }

    /// Whether to look for more members at `now`.
    pub(crate) fn searches(&self, now: Instant) -> bool {
        self.search_at <= now && self.attached().count() < MAX_ATTACHED
    }

    /// Asks these as well, up to the limit; known ones stay unchanged.
    pub(crate) fn search(&mut self, candidates: impl IntoIterator<Item = NodeId>, now: Instant) {
        self.search_at = now + SEARCH_PAUSE;
        for node in candidates {
            let tried = self.asked.values().filter(|asked| !asked.attached).count();
            if tried >= MAX_TRIED {
                return;
            }
            self.asked.entry(node).or_insert(Asked { due: Some(now), ..Asked::default() });
        }
    }

    /// Looks for more members at once, because new ones are known.
    pub(crate) fn hasten(&mut self, now: Instant) {
        self.search_at = now;
    }

    /// A member answered; true if this put it into use.
    pub(crate) fn answered(&mut self, node: &NodeId, now: Instant) -> bool {
        let in_use = self.attached().count();
        let Some(asked) = self.asked.get_mut(node) else { return false };
        asked.unanswered = 0;
        asked.due = Some(now + ASK_INTERVAL);
        let taken = !asked.attached && in_use < MAX_ATTACHED;
        asked.attached |= taken;
        if in_use + usize::from(taken) >= MAX_ATTACHED {
            self.asked.retain(|_, asked| asked.attached);
        }
        taken
    }

    /// The members to ask now, and those that were in use and have been given up.
    pub(crate) fn take_due(&mut self, now: Instant) -> (Vec<NodeId>, Vec<NodeId>) {
        let (mut ask, mut lost) = (Vec::new(), Vec::new());
        self.asked.retain(|node, asked| {
            if asked.due.is_none_or(|due| due > now) {
                return true;
            }
            if asked.unanswered >= TRIES {
                lost.extend(asked.attached.then_some(*node));
                return false;
            }
            asked.unanswered += 1;
            asked.due = Some(now + PATIENCE);
            ask.push(*node);
            true
        });
        if !lost.is_empty() {
            // Its current value is from before all places were taken.
            self.search_at = now;
        }
        (ask, lost)
    }

    /// This machine was suspended or has moved: asks all members at once.
    pub(crate) fn wake(&mut self, now: Instant) {
        self.search_at = now;
        for asked in self.asked.values_mut() {
            *asked = Asked { due: Some(now), unanswered: 0, ..*asked };
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let search = (self.attached().count() < MAX_ATTACHED).then_some(self.search_at);
        self.asked.values().filter_map(|asked| asked.due).chain(search).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{base, node};

    fn asking(count: u8, now: Instant) -> Attach {
        let mut attach = Attach::new(Vec::new(), now);
        assert!(attach.searches(now));
        attach.search((0..count).map(node), now);
        attach
    }

    #[test]
    fn the_first_to_answer_are_kept_and_the_others_left_in_peace() {
        let now = base();
        let mut attach = asking(20, now);
        let (ask, _) = attach.take_due(now);
        assert_eq!(ask.len(), MAX_TRIED);
        let first: Vec<NodeId> = ask.into_iter().take(MAX_ATTACHED).collect();
        for node in &first {
            assert!(attach.answered(node, now));
            assert!(!attach.answered(node, now), "it is in use already");
        }
        assert_eq!(attach.attached().collect::<Vec<_>>(), first);
        assert!(!attach.answered(&node(7), now));
        assert_eq!(attach.poll_timeout(), Some(now + ASK_INTERVAL));
        assert!(!attach.searches(now + SEARCH_PAUSE));
    }

    #[test]
    fn a_silent_member_is_replaced() {
        let start = base();
        let mut attach = asking(1, start);
        attach.take_due(start);
        attach.answered(&node(0), start);
        let mut now = start + ASK_INTERVAL;
        for _ in 0..TRIES {
            assert_eq!(attach.take_due(now), (vec![node(0)], vec![]));
            now += PATIENCE;
        }
        assert_eq!(attach.take_due(now), (vec![], vec![node(0)]));
        assert!(attach.searches(now), "at once");
        assert_eq!(attach.poll_timeout(), Some(now), "and not long ago");
        attach.search([node(1)], now);
        assert_eq!(attach.take_due(now), (vec![node(1)], vec![]));
    }

    #[test]
    fn after_a_sleep_everybody_is_asked_at_once() {
        let now = base();
        let mut attach = asking(2, now);
        attach.take_due(now);
        attach.answered(&node(0), now);
        let later = now + Duration::from_millis(100);
        assert_eq!(attach.take_due(later).0, []);
        attach.wake(later);
        assert_eq!(attach.take_due(later).0, [node(0), node(1)]);
        assert!(attach.searches(later));
    }
}
