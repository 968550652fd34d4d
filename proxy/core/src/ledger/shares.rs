//! Shares: how many sessions of other nodes each may have here.
//!
//! A node may have as many as there are free slots, and so may a relay: one greedy node gets half,
//! two get a third each, and the same amount always stays free. An honest node never reaches the
//! limit: alone it has the 16,384 streams that the mesh lets a peer open. What a relay carries for
//! one node is limited too, so that others behind that relay get slots, and counted separately from
//! that node's direct sessions, since the client's node is only the relay's claim. A node with a
//! new key has a new share, but a new key takes an issuer, which could as well admit another node.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use meshport_config::NodeId;

use super::take_one;

/// Divides the free slots for one node behind a relay. With 2 that node alone gets a third of all,
/// and leaves its relay another third.
const CARRIED_SHARE: u64 = 2;

/// How long `status` reports the shortage after the last refused stream. Also the interval of log
/// lines, since thousands may be refused.
const LASTS: Duration = Duration::from_secs(60);

/// Holders that are named, those with most sessions first.
const MAX_NAMED: usize = 3;

/// A holder that sessions count for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holder {
    /// A node, with the streams of its own clients.
    Node(NodeId),
    /// A relay, with all it carries here.
    Relay(NodeId),
    /// A node, with what a relay carries here for it.
    Behind {
        /// The relay.
        relay: NodeId,
        /// The node.
        node: NodeId,
    },
}

impl Holder {
    /// The holders of a session that a peer opened for a client of `node`.
    fn all_of(peer: NodeId, node: NodeId) -> impl Iterator<Item = Self> {
        let all = match node == peer {
            true => [Some(Self::Node(node)), None],
            false => [Some(Self::Behind { relay: peer, node }), Some(Self::Relay(peer))],
        };
        all.into_iter().flatten()
    }

    /// The share while this many slots are free.
    fn share(self, free: u64) -> u64 {
        match self {
            Self::Node(_) | Self::Relay(_) => free,
            Self::Behind { .. } => free.div_ceil(CARRIED_SHARE),
        }
    }
}

/// Why no slot is left for a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crowded {
    /// All slots are taken.
    Full,
    /// A holder with this many sessions may have no more while others need them.
    Share(Holder, u64),
}

/// Facts about refused streams of other nodes, for the operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crowding {
    /// Streams refused for lack of a slot, since the start.
    pub turned_away: u64,
    /// The holders with the most sessions.
    pub most: Vec<(Holder, u64)>,
}

/// Streams refused for lack of a slot.
#[derive(Debug, Default)]
struct TurnedAway {
    count: u64,
    last: Option<Instant>,
    said: Option<Instant>,
}

/// Sessions by holder, none of them zero: at most two holders for each session.
#[derive(Debug, Default)]
pub(super) struct Shares {
    held: BTreeMap<Holder, u64>,
    turned_away: TurnedAway,
}

impl Shares {
    /// Counts a session if its holders may have one more.
    pub(super) fn take(&mut self, peer: NodeId, node: NodeId, free: u64) -> Result<(), Crowded> {
        if free == 0 {
            return Err(Crowded::Full);
        }
        for holder in Holder::all_of(peer, node) {
            let held = self.held.get(&holder).copied().unwrap_or(0);
            if held >= holder.share(free) {
                return Err(Crowded::Share(holder, held));
            }
        }
        Holder::all_of(peer, node).for_each(|holder| *self.held.entry(holder).or_insert(0) += 1);
        Ok(())
    }

    /// Notes that a counted session has ended.
    pub(super) fn give_back(&mut self, peer: NodeId, node: NodeId) {
        Holder::all_of(peer, node).for_each(|holder| take_one(&mut self.held, holder));
    }

    /// Records a stream refused for lack of a slot; returns whether to log it.
    pub(super) fn turn_away(&mut self, now: Instant) -> bool {
        let TurnedAway { count, last, said } = &mut self.turned_away;
        *count += 1;
        *last = Some(now);
        let is_due = said.is_none_or(|at| now.saturating_duration_since(at) >= LASTS);
        if is_due {
            *said = Some(now);
        }
        is_due
    }

    /// The finding, if a stream was recently refused for lack of a slot.
    pub(super) fn crowding(&self, now: Instant) -> Option<Crowding> {
        let TurnedAway { count, last, .. } = self.turned_away;
        last.filter(|at| now.saturating_duration_since(*at) < LASTS)?;
        let mut most: Vec<(Holder, u64)> = Vec::with_capacity(MAX_NAMED + 1);
        for (who, held) in &self.held {
            let place = most.partition_point(|(_, more)| more >= held);
            if place < MAX_NAMED {
                most.insert(place, (*who, *held));
                most.truncate(MAX_NAMED);
            }
        }
        Some(Crowding { turned_away: count, most })
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "an origin for virtual time")]
mod tests {
    use super::*;

    const PLACES: u64 = 1000;

    fn node(number: u8) -> NodeId {
        NodeId::from_bytes([number; 32])
    }

    /// Takes sessions in turn until none is granted: the final counts.
    fn greedy<const N: usize>(shares: &mut Shares, all: [(NodeId, NodeId); N]) -> [u64; N] {
        let mut got = [0; N];
        loop {
            let before = got;
            for (at, (peer, node)) in all.into_iter().enumerate() {
                let free = PLACES - got.iter().sum::<u64>();
                got[at] += u64::from(shares.take(peer, node, free).is_ok());
            }
            if got == before {
                return got;
            }
        }
    }

    #[test]
    fn the_greedy_leave_as_much_as_each_has() {
        let own = |number| (node(number), node(number));
        assert_eq!(greedy(&mut Shares::default(), [own(1)]), [500]);
        let two = greedy(&mut Shares::default(), [own(1), own(2)]);
        assert_eq!(two, [334, 333]);
        let many = greedy(&mut Shares::default(), [1, 2, 3, 4, 5, 6, 7, 8, 9].map(own));
        assert!(many.iter().all(|got| *got == 100), "{many:?}");
    }

    #[test]
    fn a_node_behind_a_relay_leaves_room_for_others_behind_it_and_for_the_relay() {
        let mut shares = Shares::default();
        let (relay, loud, quiet) = (node(1), node(2), node(3));
        let [taken] = greedy(&mut shares, [(relay, loud)]);
        assert_eq!(taken, 334);
        let free = PLACES - taken;
        let why = shares.take(relay, loud, free);
        assert_eq!(why, Err(Crowded::Share(Holder::Behind { relay, node: loud }, taken)));
        // Others through the same relay, the relay's own clients, and the node itself that the
        // relay names.
        for (peer, node) in [(relay, quiet), (relay, relay), (loud, loud)] {
            assert_eq!(shares.take(peer, node, free), Ok(()));
            shares.give_back(peer, node);
        }
        // However many nodes it names, a relay has one share.
        let names = [10, 11, 12, 13, 14, 15, 16, 17].map(|number| (relay, node(number)));
        let mut shares = Shares::default();
        let got: u64 = greedy(&mut shares, names).iter().sum();
        assert_eq!(got, 500);
        let why = shares.take(relay, quiet, PLACES - got);
        assert_eq!(why, Err(Crowded::Share(Holder::Relay(relay), got)));
    }

    #[test]
    fn the_largest_holder_is_named_for_a_minute_with_one_log_line() {
        let (mut shares, now) = (Shares::default(), Instant::now());
        for (who, sessions) in [(1, 2), (2, 5), (3, 1), (4, 4)] {
            for _ in 0..sessions {
                assert_eq!(shares.take(node(who), node(who), PLACES), Ok(()));
            }
        }
        assert_eq!(shares.crowding(now), None);
        assert!(shares.turn_away(now) && !shares.turn_away(now));
        let most = [(2, 5), (4, 4), (1, 2)].map(|(who, count)| (Holder::Node(node(who)), count));
        let most = most.to_vec();
        assert_eq!(shares.crowding(now), Some(Crowding { turned_away: 2, most }));
        assert_eq!(shares.crowding(now + LASTS), None);
        assert!(shares.turn_away(now + LASTS));
    }

    #[test]
    fn counts_end_with_the_last_session() {
        let mut shares = Shares::default();
        for (peer, node) in [(node(1), node(1)), (node(1), node(2))] {
            assert_eq!(shares.take(peer, node, 1), Ok(()));
            shares.give_back(peer, node);
        }
        assert!(shares.held.is_empty(), "{shares:?}");
        assert_eq!(shares.take(node(1), node(1), 0), Err(Crowded::Full));
    }
}
