//! Fast dissemination: this node's urgent news to every connected peer, and rumours of others'
//! news.
//!
//! News is the node's newest record. It is sent to each peer with a session, acknowledged, and
//! tried three times. A node that accepts a record from news or a rumour passes it on to a few
//! random members for a few rounds, and stops early once others send it back: the feedback variant
//! of rumour mongering in Demers et al., "Epidemic algorithms for replicated database maintenance"
//! (1987). Comparison of directories repairs what this misses.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use meshport_config::NodeId;

use crate::schedule::Schedule;

/// Maximum number of peers informed directly: a random choice if there are more.
pub(crate) const MAX_TOLD: usize = 512;
/// Times a peer is sent the news until it acknowledges.
const TRIES: u8 = 3;
/// Minimum wait for an acknowledgement, and the estimate while the round-trip time is unknown.
const SHORTEST_WAIT: Duration = Duration::from_millis(100);
const USUAL_WAIT: Duration = Duration::from_millis(300);
/// Nodes whose records are spread at the same time; comparison delivers the others.
pub(crate) const MAX_RUMOURS: usize = 64;
/// Number of rounds of a rumour, and number of returns that end it.
const ROUNDS: u8 = 4;
const HEARD_ENOUGH: u8 = 3;
/// How long a rumour may wait for its rounds if there are many; by then comparison has spread it.
const LIFETIME: Duration = Duration::from_secs(3);

/// The newest own record while it is sent to the connected peers.
#[derive(Debug, Default)]
pub(crate) struct News {
    waiting: BTreeMap<NodeId, Waiting>,
    due: Schedule,
}

#[derive(Debug)]
struct Waiting {
    tries: u8,
    wait: Duration,
    due: Instant,
}

/// What to do for a due peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Telling {
    /// Send it, or send it again.
    Tell(NodeId),
    /// The peer did not acknowledge the last try.
    GivenUp,
}

impl News {
    /// Starts over with these peers and their round-trip times, if known.
    pub(crate) fn start(
        &mut self,
        peers: impl IntoIterator<Item = (NodeId, Option<Duration>)>,
        now: Instant,
    ) {
        self.waiting.clear();
        self.due.clear();
        for (peer, rtt) in peers {
            let wait = rtt.map_or(USUAL_WAIT, |rtt| (rtt * 2).max(SHORTEST_WAIT));
            self.waiting.insert(peer, Waiting { tries: 0, wait, due: now });
            self.due.insert(now, peer);
        }
    }

    /// A peer has the news.
    pub(crate) fn acknowledged(&mut self, peer: &NodeId) {
        if let Some(waiting) = self.waiting.remove(peer) {
            self.due.remove(waiting.due, *peer);
        }
    }

    /// The next peer that is due.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<Telling> {
        let peer = self.due.take_due(now)?;
        let waiting = self.waiting.get_mut(&peer)?;
        if waiting.tries >= TRIES {
            self.waiting.remove(&peer);
            return Some(Telling::GivenUp);
        }
        waiting.tries += 1;
        waiting.due = now + waiting.wait;
        self.due.insert(waiting.due, peer);
        Some(Telling::Tell(peer))
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.due.next()
    }
}

/// A node whose newest record is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) node: NodeId,
    pub(crate) with_credential: bool,
}

impl Offer {
    /// With the credential.
    pub(crate) fn whole(node: NodeId) -> Self {
        Self { node, with_credential: true }
    }

    /// Without the credential, for a receiver that has it.
    pub(crate) fn record(node: NodeId) -> Self {
        Self { node, with_credential: false }
    }
}

/// Records of other nodes, or of this one, being spread.
#[derive(Debug, Default)]
pub(crate) struct Rumours {
    spreading: BTreeMap<NodeId, Rumour>,
    next: Option<Instant>,
}

#[derive(Debug)]
struct Rumour {
    /// Whether receivers may need the credential as well.
    with_credential: bool,
    rounds: u8,
    heard: u8,
    until: Instant,
}

impl Rumours {
    /// Spreads the newest record of a node, starting with the next round; false if there are too
    /// many.
    pub(crate) fn add(&mut self, node: NodeId, with_credential: bool, now: Instant) -> bool {
        if self.spreading.len() >= MAX_RUMOURS && !self.spreading.contains_key(&node) {
            return false;
        }
        let rumour = Rumour { with_credential, rounds: ROUNDS, heard: 0, until: now + LIFETIME };
        if self.spreading.is_empty() {
            self.next = Some(now);
        }
        self.spreading.insert(node, rumour);
        true
    }

    /// A record that is already known arrived again.
    pub(crate) fn heard(&mut self, node: &NodeId) {
        if let Some(rumour) = self.spreading.get_mut(node) {
            rumour.heard += 1;
            if rumour.heard >= HEARD_ENOUGH {
                self.spreading.remove(node);
            }
        }
    }

    /// Whether a round is due; the next one is an interval away.
    pub(crate) fn take_due(&mut self, interval: Duration, now: Instant) -> bool {
        if self.spreading.is_empty() || self.next.is_none_or(|next| next > now) {
            return false;
        }
        self.spreading.retain(|_, rumour| rumour.until > now);
        self.next = Some(now + interval);
        true
    }

    /// The news being spread, the least sent first.
    pub(crate) fn freshest(&self) -> Vec<Offer> {
        let mut all: Vec<_> = self.spreading.iter().collect();
        all.sort_by_key(|(_, rumour)| std::cmp::Reverse(rumour.rounds));
        let offer = |(node, rumour): (&NodeId, &Rumour)| Offer {
            node: *node,
            with_credential: rumour.with_credential,
        };
        all.into_iter().map(offer).collect()
    }

    /// A rumour was spread in this round.
    pub(crate) fn told(&mut self, node: &NodeId) {
        if let Some(rumour) = self.spreading.get_mut(node) {
            rumour.rounds -= 1;
            if rumour.rounds == 0 {
                self.spreading.remove(node);
            }
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.next.filter(|_| !self.spreading.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{base, ms, node};

    #[test]
    fn a_silent_peer_is_sent_news_three_times_and_then_given_up() {
        let (mut news, start) = (News::default(), base());
        news.start([(node(1), Some(ms(80))), (node(2), None)], start);
        assert_eq!(news.take_due(start), Some(Telling::Tell(node(1))));
        assert_eq!(news.take_due(start), Some(Telling::Tell(node(2))));
        assert_eq!(news.take_due(start), None);
        news.acknowledged(&node(2));
        assert_eq!(news.poll_timeout(), Some(start + ms(160)));
        assert_eq!(news.take_due(start + ms(160)), Some(Telling::Tell(node(1))));
        assert_eq!(news.take_due(start + ms(320)), Some(Telling::Tell(node(1))));
        assert_eq!(news.take_due(start + ms(480)), Some(Telling::GivenUp));
        assert_eq!(news.poll_timeout(), None);
    }

    #[test]
    fn a_rumour_ends_after_its_rounds_or_when_it_comes_back() {
        let (mut rumours, start) = (Rumours::default(), base());
        assert!(rumours.add(node(1), true, start));
        assert!(rumours.add(node(2), false, start));
        assert!(rumours.take_due(ms(200), start));
        assert_eq!(rumours.freshest(), [Offer::whole(node(1)), Offer::record(node(2))]);
        rumours.told(&node(1));
        assert_eq!(rumours.freshest()[0], Offer::record(node(2)), "the least told comes first");
        rumours.told(&node(2));
        assert!(!rumours.take_due(ms(200), start), "one round per interval");
        for _ in 0..HEARD_ENOUGH {
            rumours.heard(&node(1));
        }
        let mut rounds = 1;
        while let Some(next) = rumours.poll_timeout() {
            assert!(rumours.take_due(ms(200), next));
            assert_eq!(rumours.freshest(), [Offer::record(node(2))]);
            rumours.told(&node(2));
            rounds += 1;
        }
        assert_eq!(rounds, ROUNDS);
    }

    #[test]
    fn too_many_rumours_are_refused() {
        let (mut rumours, start) = (Rumours::default(), base());
        for number in 0..MAX_RUMOURS {
            assert!(rumours.add(node(u8::try_from(number).unwrap()), false, start));
        }
        assert!(!rumours.add(node(255), false, start));
        assert!(rumours.add(node(0), false, start), "a known one is refreshed");
    }
}
