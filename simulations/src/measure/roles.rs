//! The costs of a node after the start-up, separately for nodes that offer an origin and those that
//! do not.

use std::time::Duration;

use serde::Serialize;

use super::share;

/// The counts of both.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Roles {
    /// Nodes that host an instance.
    pub origin: Role,
    /// All other nodes.
    pub other: Role,
}

/// Counts for the nodes of one role. Traffic is that of discovery and tunnels, without clients'
/// sessions, and bytes include all headers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Role {
    /// Seconds that they ran.
    pub node_s: u64,
    /// The traffic that they sent.
    pub sent: Sum,
    /// The traffic that reached them.
    pub received: Sum,
    /// Seconds that the nodes with timed decisions ran.
    pub timed_s: u64,
    /// Processor time of those nodes' decisions.
    pub busy: Duration,
    /// Nodes whose state was measured at the end.
    pub weighed: u64,
    /// Bytes of their state, with the allocator's overhead.
    pub state_bytes: u64,
}

/// Datagrams and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sum {
    /// How many.
    pub packets: u64,
    /// Total bytes.
    pub bytes: u64,
}

/// The costs of a node of a role.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Rates {
    /// Total seconds that nodes of this role ran.
    pub node_s: u64,
    /// Datagrams that one of them sends per second.
    pub sent_packets_per_s: f64,
    /// Bytes sent per second.
    pub sent_bytes_per_s: f64,
    /// Datagrams that reach one of them per second.
    pub received_packets_per_s: f64,
    /// Bytes received per second.
    pub received_bytes_per_s: f64,
    /// Processor time of its decisions, in microseconds per second; none if it was not measured.
    pub cpu_us_per_s: Option<f64>,
    /// Bytes of its state at the end; none if they were not measured.
    pub state_bytes: Option<f64>,
}

impl Roles {
    pub(crate) fn of(&mut self, is_origin: bool) -> &mut Role {
        if is_origin { &mut self.origin } else { &mut self.other }
    }
}

impl Sum {
    pub(crate) fn add(&mut self, size: usize) {
        self.packets += 1;
        self.bytes += size as u64;
    }
}

impl Role {
    /// The costs of one of them; none if none ran.
    pub fn rates(&self) -> Option<Rates> {
        let micros = u64::try_from(self.busy.as_micros()).unwrap_or(u64::MAX);
        let rate = |count| share(count, self.node_s);
        (self.node_s > 0).then(|| Rates {
            node_s: self.node_s,
            sent_packets_per_s: rate(self.sent.packets),
            sent_bytes_per_s: rate(self.sent.bytes),
            received_packets_per_s: rate(self.received.packets),
            received_bytes_per_s: rate(self.received.bytes),
            cpu_us_per_s: (self.timed_s > 0).then(|| share(micros, self.timed_s)),
            state_bytes: (self.weighed > 0).then(|| share(self.state_bytes, self.weighed)),
        })
    }
}
