//! The state of a shaper: nodes, links, cuts, and the datagrams in transit. The time is an
//! argument; it names sockets but never uses them.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UdpSocket;

use super::ShaperConfig;
use crate::wan::link::{DropReason, Link, Verdict};
use meshport_daemon::Error;

/// How many datagrams may be in transit at once: a second of 10 Gbit/s in full-size datagrams would
/// be 800,000, a tenth of it is more than userspace carries.
pub const MAX_IN_FLIGHT_DATAGRAMS: usize = 131_072;
/// How many payload bytes may be in transit at once: 1 Gbit/s over 300 ms needs 38 MiB.
pub const MAX_IN_FLIGHT_BYTES: usize = 256 << 20;
/// How many due datagrams are taken at once, so that receiving waits for the lock only briefly.
const DELIVERY_BATCH: usize = 128;

/// Something that stops carrying datagrams until it is healed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cut {
    /// Both directions between two sites (or inside one, if both are the same).
    Between(String, String),
    /// One direction between two sites.
    OneWay {
        /// The sending site.
        from: String,
        /// The receiving site.
        to: String,
    },
    /// Everything that enters or leaves a site; its inside continues.
    Site(String),
    /// Everything one node sends or would receive.
    Node(String),
}

impl Cut {
    fn applies(&self, from: &Node, to: &Node) -> bool {
        match self {
            Self::Between(a, b) => {
                (from.site == *a && to.site == *b) || (from.site == *b && to.site == *a)
            }
            Self::OneWay { from: source, to: target } => from.site == *source && to.site == *target,
            Self::Site(site) => (from.site == *site) != (to.site == *site),
            Self::Node(name) => from.name == *name || to.name == *name,
        }
    }
}

/// Counters of a shaper. `received` is the sum of everything dropped, in transit and delivered
/// without duplicates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ShaperCounters {
    /// Datagrams that reached a public address.
    pub received: u64,
    /// Their payload bytes.
    pub received_bytes: u64,
    /// Datagrams handed to a node, duplicates included.
    pub delivered: u64,
    /// Second copies sent.
    pub duplicated: u64,
    /// Dropped: the source is no node's real address.
    pub dropped_unknown_sender: u64,
    /// Dropped on arrival: the receiver has no real address yet.
    pub dropped_no_address: u64,
    /// Dropped: a [`Cut`] applies.
    pub dropped_cut: u64,
    /// Dropped: the link is down, by its settings.
    pub dropped_down: u64,
    /// Dropped: larger than the link's MTU.
    pub dropped_too_big: u64,
    /// Dropped: the queue before the link's bottleneck was full.
    pub dropped_queue_full: u64,
    /// Dropped: lost on the link.
    pub dropped_lost: u64,
    /// Dropped: a bound of the shaper itself was reached.
    pub dropped_overflow: u64,
    /// Dropped on arrival: the kernel did not take the datagram.
    pub dropped_send: u64,
    /// Receive calls that failed.
    pub receive_errors: u64,
    /// Datagrams in transit now.
    pub in_flight: u64,
}

pub(super) struct Node {
    pub(super) name: String,
    pub(super) site: String,
    pub(super) public: SocketAddr,
    pub(super) real: Option<SocketAddr>,
    pub(super) socket: Arc<UdpSocket>,
}

/// A datagram that has arrived.
pub(super) struct Due {
    pub(super) socket: Arc<UdpSocket>,
    pub(super) real: SocketAddr,
    pub(super) payload: Arc<[u8]>,
}

/// A datagram in transit.
struct Pending {
    at: Duration,
    /// Keeps equal arrivals in the order of sending.
    sequence: u64,
    from: usize,
    to: usize,
    payload: Arc<[u8]>,
}

impl PartialEq for Pending {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for Pending {}
impl PartialOrd for Pending {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Pending {
    /// The earliest is the greatest, because [`BinaryHeap`] yields the greatest first.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

pub(super) struct State {
    pub(super) config: ShaperConfig,
    pub(super) nodes: Vec<Node>,
    pub(super) by_real: BTreeMap<SocketAddr, usize>,
    /// By sending and receiving site.
    pub(super) links: BTreeMap<(String, String), Link>,
    pub(super) cuts: BTreeSet<Cut>,
    queue: BinaryHeap<Pending>,
    pub(super) queued_bytes: usize,
    sequence: u64,
    pub(super) counters: ShaperCounters,
    /// Nothing more is delivered.
    pub(super) stopped: bool,
}

impl State {
    pub(super) fn new(config: ShaperConfig) -> Self {
        Self {
            config,
            nodes: Vec::new(),
            by_real: BTreeMap::new(),
            links: BTreeMap::new(),
            cuts: BTreeSet::new(),
            queue: BinaryHeap::new(),
            queued_bytes: 0,
            sequence: 0,
            counters: ShaperCounters::default(),
            stopped: false,
        }
    }

    pub(super) fn counters(&self) -> ShaperCounters {
        ShaperCounters { in_flight: self.queue.len() as u64, ..self.counters }
    }

    pub(super) fn learn(&mut self, index: usize, real: Option<SocketAddr>) -> Result<(), Error> {
        let Some(real) = real else { return Ok(()) };
        if self.by_real.get(&real).is_some_and(|owner| *owner != index) {
            return Err(Error::Usage(format!("{real} is already another node's real address")));
        }
        self.by_real.retain(|_, owner| *owner != index);
        self.by_real.insert(real, index);
        Ok(())
    }

    pub(super) fn link(&mut self, from: &str, to: &str) -> &mut Link {
        let config = &self.config;
        self.links.entry((from.to_owned(), to.to_owned())).or_insert_with(|| {
            Link::new(config.default_link.clone(), config.seed ^ hash_names(from, to))
        })
    }

    /// Judges one datagram. True if the earliest arrival moved forward.
    pub(super) fn judge(
        &mut self,
        to: usize,
        source: SocketAddr,
        payload: &[u8],
        now: Duration,
    ) -> bool {
        self.counters.received += 1;
        self.counters.received_bytes += payload.len() as u64;
        let known = self.by_real.get(&source).copied();
        let Some(from) = known.or(self.config.strangers.then_some(to)) else {
            self.counters.dropped_unknown_sender += 1;
            return false;
        };
        if self.cuts.iter().any(|cut| cut.applies(&self.nodes[from], &self.nodes[to])) {
            self.counters.dropped_cut += 1;
            return false;
        }
        let sites = (self.nodes[from].site.clone(), self.nodes[to].site.clone());
        let headers = if source.is_ipv4() { 20 + 8 } else { 40 + 8 };
        let deliveries = match self.link(&sites.0, &sites.1).send(now, payload.len() + headers) {
            Verdict::Deliver(deliveries) => deliveries,
            Verdict::Drop(reason) => {
                *self.drop_counter(reason) += 1;
                return false;
            }
        };
        let before = self.queue.peek().map(|pending| pending.at);
        let payload: Arc<[u8]> = payload.into();
        self.enqueue(deliveries.at, from, to, &payload);
        if let Some(at) = deliveries.duplicate_at {
            self.counters.duplicated += 1;
            self.enqueue(at, from, to, &payload);
        }
        before.is_none_or(|before| deliveries.at < before)
    }

    fn drop_counter(&mut self, reason: DropReason) -> &mut u64 {
        match reason {
            DropReason::Down => &mut self.counters.dropped_down,
            DropReason::TooBig => &mut self.counters.dropped_too_big,
            DropReason::QueueFull => &mut self.counters.dropped_queue_full,
            DropReason::Lost => &mut self.counters.dropped_lost,
        }
    }

    pub(super) fn enqueue(&mut self, at: Duration, from: usize, to: usize, payload: &Arc<[u8]>) {
        if self.queue.len() >= MAX_IN_FLIGHT_DATAGRAMS
            || self.queued_bytes + payload.len() > MAX_IN_FLIGHT_BYTES
        {
            self.counters.dropped_overflow += 1;
            return;
        }
        self.queued_bytes += payload.len();
        self.sequence += 1;
        let payload = Arc::clone(payload);
        self.queue.push(Pending { at, sequence: self.sequence, from, to, payload });
    }

    /// Moves at most [`DELIVERY_BATCH`] due datagrams to `due`; returns when the next one is due.
    pub(super) fn take_due(&mut self, now: Duration, due: &mut Vec<Due>) -> Option<Duration> {
        for _ in 0..DELIVERY_BATCH {
            if self.queue.peek()?.at > now {
                break;
            }
            let Pending { from, to, payload, .. } = self.queue.pop()?;
            self.queued_bytes -= payload.len();
            // From the sender's public socket, so that the receiver sees that address.
            let socket = Arc::clone(&self.nodes[from].socket);
            match self.nodes[to].real {
                Some(real) => due.push(Due { socket, real, payload }),
                None => self.counters.dropped_no_address += 1,
            }
        }
        self.queue.peek().map(|pending| pending.at)
    }
}

/// FNV-1a over both names, with a separator: distinct, stable seeds for the links.
fn hash_names(from: &str, to: &str) -> u64 {
    from.bytes().chain([0]).chain(to.bytes()).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
