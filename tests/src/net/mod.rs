//! Hosts in separate network namespaces, and the network between them.
//!
//! Needs root and `/dev/net/tun`. The arena and the Kubernetes tests run on it.

use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::netns::{self, Namespace};
use meshport_demo::wan::{LinkConfig, Loss};

mod router;
pub mod tun;

use router::Router;

/// A host's place in the network: its index in [`Network::hosts`].
pub type Port = usize;

/// Packets that may wait in a host's interface before it is read: the bursts of all balancers.
const QUEUE_PACKETS: &str = "5000";

/// The address of a host behind a NAT, and its router's address on that side.
const INSIDE: Ipv4Addr = Ipv4Addr::new(192, 168, 7, 2);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(192, 168, 7, 1);

/// A host of the network.
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

    /// The same with the machine's own mounts: `ip netns exec` hides its cgroups behind a new /sys.
    pub fn command_with_cgroups(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.namespace_file().display()));
        command.args(["setpriv", "--pdeathsig", "KILL", program]);
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

/// A long-distance line between two of the caller's hosts: every IP packet passes its link. Dropped
/// before them.
#[derive(Debug)]
pub struct Line {
    router: Router,
}

impl Line {
    /// Creates it; each end has its address in one network of 256.
    pub fn new(ends: [(&Namespace, Ipv4Addr); 2], link: &LinkConfig, seed: u64) -> Self {
        let devices = ends.map(|(host, address)| (address, end(host, address)));
        let router = Router::start(devices.into(), seed, true);
        router.change(0, 1, |config| *config = link.clone());
        Self { router }
    }

    /// How many packets were dropped because too many were in flight for this machine.
    pub fn overflows(&self) -> u64 {
        self.router.overflows()
    }
}

/// Creates an interface of a host whose other end is a file of this process.
fn end(host: &Namespace, address: Ipv4Addr) -> std::fs::File {
    /// Distinguishes the devices of one process.
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let device = format!("mpt{}.{number}", std::process::id() % 1_000_000);
    let file = tun::open(&device).unwrap_or_else(|error| panic!("no TUN device: {error}"));
    host.take(&device);
    host.ip(&["addr", "add", &format!("{address}/24"), "dev", &device]);
    host.ip(&["link", "set", &device, "txqueuelen", QUEUE_PACKETS, "up"]);
    file
}

/// All hosts and their links.
#[derive(Debug)]
pub struct Network {
    // Dropped first: removing a namespace removes its device, which ends the router's readers.
    /// The hosts, in the order of the given addresses.
    pub hosts: Vec<Host>,
    /// Routers that masquerade for one host each.
    nats: Vec<Namespace>,
    router: Router,
}

impl Network {
    /// Hosts at these addresses of 10.77.0.0/24, joined by perfect links.
    pub fn new(addresses: &[Ipv4Addr], seed: u64) -> Self {
        let mut hosts = Vec::new();
        let mut devices = Vec::new();
        for address in addresses {
            let namespace = Namespace::new();
            devices.push((*address, end(&namespace, *address)));
            hosts.push(Host { namespace, address: *address });
        }
        Self { hosts, nats: Vec::new(), router: Router::start(devices, seed, false) }
    }

    /// Puts a host behind a router that masquerades. The router takes the host's link and address;
    /// the host continues with an address that the others have no route to. Nothing runs on it yet.
    pub fn put_behind_nat(&mut self, host: Port) {
        let inside = Host { namespace: Namespace::new(), address: INSIDE };
        let router = std::mem::replace(&mut self.hosts[host], inside).namespace;
        let inner = self.hosts[host].namespace();
        let ends = [format!("{INSIDE}/24"), format!("{GATEWAY}/24")];
        let [_, lan] = netns::cable(inner, &ends[0], &router, &ends[1]);
        inner.ip(&["route", "add", "default", "via", &GATEWAY.to_string()]);
        router.run("sh", &["-ec", "echo 1 >/proc/sys/net/ipv4/ip_forward"]);
        let rules = format!(
            "add table ip nat; \
             add chain ip nat out {{ type nat hook postrouting priority srcnat; }}; \
             add rule ip nat out oifname != \"{lan}\" masquerade"
        );
        router.run("nft", &[&rules]);
        self.nats.push(router);
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
