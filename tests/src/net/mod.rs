//! Hosts in network namespaces of their own, and the network between them.
//!
//! Needs root and `/dev/net/tun`. The arena and the Kubernetes tests are played on it.

use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::netns::Namespace;
use meshport::wan::Loss;

mod router;
mod tun;

use router::Router;

/// A host's place in the network: its index in [`Network::hosts`].
pub type Port = usize;

/// Packets that may wait in a host's interface before it is read: the bursts of all balancers.
const QUEUE_PACKETS: &str = "5000";

/// One host of the network.
#[derive(Debug)]
pub struct Host {
    namespace: Namespace,
    /// Its address.
    pub address: Ipv4Addr,
}

impl Host {
    /// A command that runs on this host and does not outlive the caller.
    pub fn command(&self, program: &str) -> Command {
        let mut command = self.namespace.command("setpriv");
        command.args(["--pdeathsig", "KILL", program]);
        command
    }

    /// Its network namespace.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The file of its network namespace.
    pub fn namespace_file(&self) -> std::path::PathBuf {
        self.namespace.file()
    }
}

/// All hosts with their links.
#[derive(Debug)]
pub struct Network {
    // Dropped first: a namespace takes its device along, which ends the router's readers.
    /// The hosts, in the order of the addresses that were given.
    pub hosts: Vec<Host>,
    router: Router,
}

impl Network {
    /// Hosts at these addresses of 10.77.0.0/24, joined by perfect links.
    ///
    /// # Panics
    /// When the system does not allow it.
    pub fn new(addresses: &[Ipv4Addr], seed: u64) -> Self {
        /// Distinguishes the devices of one process.
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let mut hosts = Vec::new();
        let mut devices = Vec::new();
        for address in addresses {
            let number = COUNT.fetch_add(1, Ordering::Relaxed);
            let device = format!("mpt{}.{number}", std::process::id() % 1_000_000);
            let file = tun::open(&device).unwrap_or_else(|error| panic!("no TUN device: {error}"));
            let namespace = Namespace::new();
            namespace.take(&device);
            namespace.ip(&["addr", "add", &format!("{address}/24"), "dev", &device]);
            namespace.ip(&["link", "set", &device, "txqueuelen", QUEUE_PACKETS, "up"]);
            hosts.push(Host { namespace, address: *address });
            devices.push((*address, file));
        }
        Self { hosts, router: Router::start(devices, seed) }
    }

    /// Sets the round-trip time between two hosts.
    pub fn distance(&self, a: Port, b: Port, round_trip: Duration) {
        self.router.change(a, b, |link| link.latency = round_trip / 2);
    }

    /// Cuts two hosts off from each other, silently, or joins them again.
    pub fn cut(&self, a: Port, b: Port, cut: bool) {
        self.router.change(a, b, |link| link.up = !cut);
    }

    /// Cuts a host off from all others, or joins it again.
    pub fn isolate(&self, host: Port, cut: bool) {
        for other in (0..self.hosts.len()).filter(|other| *other != host) {
            self.cut(host, other, cut);
        }
    }

    /// Loses this share of packets in each direction between a host and all others.
    pub fn lose(&self, host: Port, share: f64) {
        for other in (0..self.hosts.len()).filter(|other| *other != host) {
            self.router.change(host, other, |link| link.loss = Loss::independent(share));
        }
    }
}
