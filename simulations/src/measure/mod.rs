//! The measures of a run, from outside the nodes.
//!
//! Everything is bounded: distributions have a fixed size, the timeline one entry a second, faults
//! and news at most [`MAX_FAULTS`].

use std::collections::BTreeMap;
use std::time::Duration;

use meshport_discovery::OriginState;
use serde::Serialize;

mod cut;
mod fault;
mod histogram;
mod roles;

pub use cut::Cut;
pub use fault::{Fault, Pair};
pub(crate) use fault::{Notice, Users, begin};
pub use histogram::{Histogram, Quantiles};
pub use roles::{Rates, Role, Roles, Sum};

/// Faults, and pieces of news, that are followed; later ones are not.
pub const MAX_FAULTS: usize = 1000;
/// How long a fault, or a piece of news, is followed.
pub(crate) const FOLLOWED_FOR: Duration = Duration::from_secs(60);
/// A request that takes longer than this is slow.
pub const SLOW: Duration = Duration::from_secs(1);

/// Everything that was measured.
#[derive(Debug, Default)]
pub struct Measures {
    /// Requests of clients.
    pub requests: Requests,
    /// Sessions of clients.
    pub sessions: Sessions,
    /// How long clients waited.
    pub latency: Latency,
    /// The nodes' choices of origins.
    pub choices: Choices,
    /// The faults, and the reactions of the nodes.
    pub faults: Vec<Fault>,
    /// Announcements of origins, and when nodes knew.
    pub news: Vec<News>,
    /// The nodes' view of each other after the start-up; none if it is not observable.
    pub suspicions: Option<Suspicions>,
    /// Times a node considered another one down that was running and within reach.
    pub false_evictions: u64,
    /// The traffic that was sent.
    pub traffic: Traffic,
    /// The costs of a node, by role; at the wide level only.
    pub roles: Roles,
    /// Each second.
    pub timeline: Vec<Second>,
    /// Openings and requests that each relay has forwarded.
    pub carried: BTreeMap<usize, u64>,
    /// The way back; none if unused.
    pub way_back: Option<Box<WayBack>>,
    /// Times a liar did something that an honest node would not have done.
    pub lies: u64,
    /// Time of the last fault or recovery.
    pub(crate) disturbed: Option<Duration>,
}

/// How long clients waited, in microseconds.
#[derive(Debug, Default)]
pub struct Latency {
    /// Time from a client's connection to the first byte of its answer.
    pub connect: Histogram,
    /// Time from a request to its answer.
    pub request: Histogram,
}

/// Streams from apiservers to kubelets, as their callers see them.
#[derive(Debug, Default)]
pub struct WayBack {
    /// Requests of the callers.
    pub requests: Requests,
    /// Streams.
    pub sessions: Sessions,
    /// How long callers waited.
    pub latency: Latency,
    /// Calls that meshport refused, by the status of its answer.
    pub refused: BTreeMap<u16, u64>,
}

/// Quality of the origins that nodes chose.
#[derive(Debug, Default)]
pub struct Choices {
    /// Round trip of the chosen origin over that of the best possible one, in thousandths.
    pub stretch: Histogram,
    /// The same while no fault was younger than half a minute.
    pub stretch_quiet: Histogram,
    /// Sessions that went to the nearest healthy origin.
    pub nearest: u64,
    /// Sessions that were compared with it.
    pub compared: u64,
    /// Changes of nodes' first choices.
    pub changed: u64,
}

/// Requests of clients; opening a session is one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Requests {
    /// Requests that ended.
    pub total: u64,
    /// The node whose client got no answer.
    pub failed: u64,
    /// Requests repeated in another session because theirs broke.
    pub retried: u64,
    /// Requests that took more than [`SLOW`].
    pub slow: u64,
}

/// Sessions of clients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Sessions {
    /// Begun by clients.
    pub begun: u64,
    /// Sessions that reached an origin.
    pub opened: u64,
    /// Sessions that were opened and ended.
    pub closed: u64,
    /// Sessions that broke while open.
    pub broken: u64,
    /// Sessions that reached their origin through a relay.
    pub relayed: u64,
    /// Sessions to a fallback outside the mesh.
    pub outside: u64,
    /// Attempts after the first of a session failed.
    pub attempts: u64,
    /// Attempts raced against a silent one.
    pub hedged: u64,
    /// Sessions ended at a quiet moment so that the client reconnects elsewhere.
    pub moved: u64,
}

/// The nodes' view of each other, after the start-up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Suspicions {
    /// Times a node found a member silent, and reported to the others that it suspects it.
    pub raised: u64,
    /// How often the member was running and within reach then.
    pub wrong: u64,
    /// Times a node considered a member down that had not left.
    pub evictions: u64,
}

impl Suspicions {
    /// A description in words.
    pub fn words(&self) -> String {
        format!("{}, {} of them by mistake", self.raised, self.wrong)
    }
}

/// Bytes and datagrams by purpose. Bytes are those of IPv4 packets, with all headers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Traffic {
    /// Datagrams of discovery.
    pub gossip_packets: u64,
    /// Their payloads.
    pub gossip_payload_bytes: u64,
    /// With all headers.
    pub gossip_bytes: u64,
    /// Handshakes and keepalives of tunnels, with all headers.
    pub tunnel_bytes: u64,
    /// Datagrams of tunnels.
    pub tunnel_packets: u64,
    /// Answers to handshakes, each of which is a session unless it is lost.
    pub handshakes: u64,
    /// Clients' sessions, with all headers.
    pub session_bytes: u64,
}

/// An origin's announcement about its instance.
#[derive(Debug, Clone)]
pub struct News {
    /// The origin.
    pub origin: usize,
    /// The announced state.
    pub state: OriginState,
    /// Time.
    pub at: Duration,
    /// The time after which other nodes knew.
    pub known: BTreeMap<usize, Duration>,
    /// Other nodes that ran at that time.
    pub audience: usize,
    /// It has been replaced by a newer announcement.
    pub superseded: bool,
}

/// The events of one second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Second {
    /// Requests that were answered.
    pub answered: u32,
    /// Requests that failed.
    pub failed: u32,
    /// Requests that took more than [`SLOW`].
    pub slow: u32,
    /// Sessions that broke.
    pub broken: u32,
    /// Nodes that changed their first choice.
    pub moved: u32,
    /// Times a member was considered down.
    pub downs: u32,
    /// Bytes of discovery, with all headers.
    pub gossip_bytes: u64,
    /// Datagrams of discovery.
    pub gossip_packets: u64,
    /// The bytes by purpose: membership, comparison, news, paths.
    pub families: [u64; 4],
    /// Bytes of tunnels, with all headers.
    pub tunnel_bytes: u64,
    /// Nodes that run.
    pub running: u32,
}

impl Measures {
    pub(crate) fn second(&mut self, now: Duration) -> &mut Second {
        let index = usize::try_from(now.as_secs()).expect("a run is shorter than that");
        if self.timeline.len() <= index {
            self.timeline.resize(index + 1, Second::default());
        }
        &mut self.timeline[index]
    }

    /// Whether nothing failed or recovered within half a minute.
    pub(crate) fn is_quiet(&self, now: Duration) -> bool {
        let rest = Duration::from_secs(30);
        self.disturbed.is_none_or(|at| now.saturating_sub(at) > rest)
    }

    /// A node's process has ended: it will not notice anything any more.
    pub(crate) fn gone(&mut self, node: usize) {
        for fault in &mut self.faults {
            fault.gone(node);
        }
    }

    /// A request that was sent at `since` has ended; whether it was slow.
    pub(crate) fn request(&mut self, since: Duration, now: Duration, answered: bool) -> bool {
        let took = now.saturating_sub(since);
        let slow = answered && took > SLOW;
        self.requests.total += 1;
        self.requests.failed += u64::from(!answered);
        self.requests.slow += u64::from(slow);
        let second = self.second(now);
        second.answered += u32::from(answered);
        second.failed += u32::from(!answered);
        second.slow += u32::from(slow);
        if answered {
            self.latency.request.add(micros(took));
        }
        slow
    }

    /// Faults that are still followed.
    pub(crate) fn followed(&mut self, now: Duration) -> impl Iterator<Item = &mut Fault> {
        self.faults.iter_mut().filter(move |fault| fault.followed_until() > now)
    }
}

/// The value that a share of times does not exceed; none if too few of `of` exist.
pub(crate) fn quantile<K>(
    times: &BTreeMap<K, Duration>,
    of: usize,
    share: f64,
) -> Option<Duration> {
    let mut sorted: Vec<Duration> = times.values().copied().collect();
    sorted.sort_unstable();
    #[expect(clippy::cast_precision_loss, reason = "at most MAX_NODES")]
    let wanted = (share * of as f64).ceil();
    #[expect(clippy::cast_possible_truncation, reason = "at most MAX_NODES")]
    #[expect(clippy::cast_sign_loss, reason = "a share of a count")]
    let index = (wanted as usize).max(1) - 1;
    sorted.get(index).copied()
}

/// A time in microseconds.
pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The share of `part` in `whole`; 0 if there is nothing.
pub(crate) fn share(part: u64, whole: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
    let (part, whole) = (part as f64, whole as f64);
    if whole == 0.0 { 0.0 } else { part / whole }
}
