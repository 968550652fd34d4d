//! This node's data about a service's origins and the paths to them: the basis for choosing routes
//! and relays.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use meshport_config::{NodeId, SiteName};
use meshport_discovery::OriginState;
use serde::{Deserialize, Serialize};

/// Loss that is usual on a good but busy path, in percent: one probe of the last sixteen.
const USUAL_LOSS_PERCENT: u8 = 7;
/// Cap on loss in the cost: beyond this the path is about to be declared dead.
const MOST_LOSS_PERCENT: u8 = 90;
/// With this much loss, in percent, a path is as bad as silent: an answer of a few packets costs
/// QUIC several timeouts, each twice the previous one, and soon takes longer than clients wait.
const BROKEN_LOSS_PERCENT: u8 = 50;
/// Below this loss, in percent, such a path is sound again: five fewer of sixteen probes, so that
/// loss around 50 % does not reset sessions again and again.
const SOUND_LOSS_PERCENT: u8 = 25;
/// The shortest retransmission timeout, including the receiver's acknowledgement delay.
const RETRANSMISSION: Duration = Duration::from_millis(100);

/// The target and the path of a session, which identify a candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Line {
    /// Directly to the instance of a node, which may be this one.
    Direct(NodeId),
    /// To the instance of a node, through another node.
    Relayed {
        /// The node of the instance.
        origin: NodeId,
        /// The relay to it.
        relay: NodeId,
    },
    /// To an address outside the mesh.
    Outside(SocketAddr),
}

impl Line {
    /// The node whose instance it leads to, if that is a node of the mesh.
    pub fn origin(&self) -> Option<NodeId> {
        match *self {
            Self::Direct(origin) | Self::Relayed { origin, .. } => Some(origin),
            Self::Outside(_) => None,
        }
    }

    /// The same line after a node on it has changed its id.
    #[must_use]
    pub fn renamed(self, former: NodeId, node: NodeId) -> Self {
        let now = |it: NodeId| if it == former { node } else { it };
        match self {
            Self::Direct(origin) => Self::Direct(now(origin)),
            Self::Relayed { origin, relay } => {
                Self::Relayed { origin: now(origin), relay: now(relay) }
            }
            Self::Outside(address) => Self::Outside(address),
        }
    }

    /// The node that this node's packets go to.
    pub fn first_hop(&self) -> Option<NodeId> {
        match *self {
            Self::Direct(node) | Self::Relayed { relay: node, .. } => Some(node),
            Self::Outside(_) => None,
        }
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct(node) => f.write_str(&node.short()),
            Self::Relayed { origin, relay } => {
                write!(f, "{} through {}", origin.short(), relay.short())
            }
            Self::Outside(address) => address.fmt(f),
        }
    }
}

/// The path of this node to an origin, as it was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathView {
    /// The origin is this node.
    Own,
    /// It answers probes, with this smoothed round-trip time; through a relay, of both legs.
    Up(Duration),
    /// Not measured yet.
    Unmeasured,
    /// It stopped answering probes.
    Dead,
}

/// The known facts about one origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OriginView {
    /// The origin, and the path to it.
    pub line: Line,
    /// Its name for people: the node's name, or the address outside the mesh.
    pub name: String,
    /// Its site, for a node of the mesh.
    pub site: Option<SiteName>,
    /// The announced state of its instance.
    pub state: OriginState,
    /// The path to it.
    pub path: PathView,
    /// Its round-trip time without recent bursts, if this node measures it.
    pub usual_rtt: Option<Duration>,
    /// Mean deviation of single round trips from the smoothed one.
    pub deviation: Duration,
    /// Share of recent probes without an answer, 0 to 100.
    pub loss_percent: u8,
    /// Whether its path has lost most packets and still loses many, although it is not silent.
    pub broken: bool,
    /// Whether membership considers it present.
    pub present: bool,
    /// Whether sessions have recently found it silent, whatever it announces (see `evidence`).
    pub suspect: bool,
    /// Whether it has recently denied this node access.
    pub denied: bool,
    /// Why it is reached through another node, if it is.
    pub relaying: Option<Relaying>,
    /// Its weight among origins that share sessions, at least 1.
    pub weight: u32,
}

/// Why an origin is reached through another node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Relaying {
    /// Whether there is more evidence than the relay's claim.
    pub trusted: bool,
    /// Whether the direct path is dead; else it is clearly slower.
    pub direct_dead: bool,
    /// Lower bound of a session's cost, the cost of the direct path, until sessions have timed the
    /// relayed one: a relay's claim may choose the path to an origin, but not the origin.
    pub least_cost: Duration,
}

impl OriginView {
    /// An address outside the mesh about which nothing is known.
    pub fn outside(address: SocketAddr) -> Self {
        Self {
            line: Line::Outside(address),
            name: address.to_string(),
            site: None,
            state: OriginState::Unknown,
            path: PathView::Unmeasured,
            usual_rtt: None,
            deviation: Duration::ZERO,
            loss_percent: 0,
            broken: false,
            present: true,
            suspect: false,
            denied: false,
            relaying: None,
            weight: 1,
        }
    }

    /// The usual cost of a session on a working path, if known: a burst of load here raises
    /// measurements of the path in use, but hardly those of others.
    pub(crate) fn usual_cost(&self) -> Option<Duration> {
        let rtt = self.usual_rtt.filter(|_| matches!(self.path, PathView::Up(_)))?;
        Some(cost(rtt, self.loss_percent))
    }

    /// A node of the mesh of which only the announcement is known.
    pub fn of_node(node: NodeId, name: String, site: SiteName, state: OriginState) -> Self {
        Self {
            line: Line::Direct(node),
            name,
            site: Some(site),
            state,
            path: PathView::Unmeasured,
            usual_rtt: None,
            deviation: Duration::ZERO,
            loss_percent: 0,
            broken: false,
            present: true,
            suspect: false,
            denied: false,
            relaying: None,
            weight: 1,
        }
    }
}

/// The direct lines whose paths answer, but lose most packets: from [`BROKEN_LOSS_PERCENT`] on,
/// until they lose less than [`SOUND_LOSS_PERCENT`].
#[derive(Debug, Default)]
pub(crate) struct BrokenLines(BTreeSet<Line>);

impl BrokenLines {
    /// Takes the loss, in percent, of all direct lines whose paths answer.
    pub(crate) fn judge(&mut self, losses: impl Iterator<Item = (Line, u8)>) {
        let is_broken = |(line, loss_percent): &(Line, u8)| {
            let least = if self.contains(line) { SOUND_LOSS_PERCENT } else { BROKEN_LOSS_PERCENT };
            *loss_percent >= least
        };
        self.0 = losses.filter(is_broken).map(|(line, _)| line).collect();
    }

    /// Whether this line is one of them.
    pub(crate) fn contains(&self, line: &Line) -> bool {
        self.0.contains(line)
    }

    /// Whether a path through a relay loses most packets, with the loss of both its legs. The
    /// second one needs no memory: a relay publishes its loss in large steps.
    pub(crate) fn spoil(&self, relay: NodeId, loss_percent: u8) -> bool {
        self.contains(&Line::Direct(relay)) || loss_percent >= BROKEN_LOSS_PERCENT
    }
}

/// The cost of a path: its round-trip time, and the time that lost packets add.
pub(crate) fn cost(rtt: Duration, loss_percent: u8) -> Duration {
    rtt + price_of_loss(rtt, loss_percent)
}

/// The average delay that lost packets add to an exchange: each costs one more timeout of about
/// three round trips, and never below [`RETRANSMISSION`].
fn price_of_loss(rtt: Duration, loss_percent: u8) -> Duration {
    if loss_percent <= USUAL_LOSS_PERCENT {
        return Duration::ZERO;
    }
    let lost = f64::from(loss_percent.min(MOST_LOSS_PERCENT)) / 100.0;
    (rtt * 3).max(RETRANSMISSION).mul_f64(lost / (1.0 - lost))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_broken_from_half_on_and_sound_below_a_quarter() {
        let line = Line::Direct(NodeId::from_bytes([1; 32]));
        let mut broken = BrokenLines::default();
        for (loss, expected) in [(49, false), (50, true), (25, true), (24, false), (49, false)] {
            broken.judge([(line, loss)].into_iter());
            assert_eq!(broken.contains(&line), expected, "{loss} %");
        }
        broken.judge([(line, 90)].into_iter());
        broken.judge(std::iter::empty());
        assert!(!broken.contains(&line), "a path that does not answer is none of them");
        let relay = NodeId::from_bytes([1; 32]);
        assert!(!broken.spoil(relay, 49) && broken.spoil(relay, 50));
        broken.judge([(line, 50)].into_iter());
        assert!(broken.spoil(relay, 0), "the first leg is lossy");
    }
}
