//! The network between the hosts of the arena: every IP packet, TCP or UDP, passes here and is
//! subject to the same distance, loss and cuts. (netem, the kernel's own emulator of such links, is
//! not available everywhere.)
//!
//! One thread per host reads the host's packets, a [`Link`] for each ordered pair of hosts decides
//! about them, and one thread delivers. Bounded by [`MAX_IN_FLIGHT`]; excess packets are dropped,
//! as by a full queue.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fs::File;
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::Port;
use crate::process::run;
use crate::wait;
use meshport_demo::wan::{Link, LinkConfig, Verdict};

/// Packets in flight at once: 12 ms of a million packets a second, or 190 ms of a gigabit.
const MAX_IN_FLIGHT: usize = 16_384;
/// The largest IP packet.
const MAX_PACKET: usize = 65_535;

struct Due {
    at: Duration,
    sequence: u64,
    to: Port,
    packet: Vec<u8>,
}

/// The order of delivery: by time, then in the order of sending.
impl Due {
    fn key(&self) -> (Duration, u64) {
        (self.at, self.sequence)
    }
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

struct State {
    links: BTreeMap<(Port, Port), Link>,
    on_the_way: BinaryHeap<Reverse<Due>>,
    sequence: u64,
    overflows: u64,
    stopped: bool,
}

struct Shared {
    epoch: Instant,
    hosts: Vec<(Ipv4Addr, File)>,
    state: Mutex<State>,
    earlier: Condvar,
    /// Its threads run before everything else on this machine, as far as the system permits.
    is_urgent: bool,
}

/// The running network. Dropping it stops the delivery; its readers end with their devices.
pub(crate) struct Router {
    shared: Arc<Shared>,
    deliverer: Option<thread::JoinHandle<()>>,
}

impl Router {
    /// Joins hosts, each with its address and the file of its device; every link is perfect.
    /// `is_urgent`: like a real line, a measured one must not wait for a busy machine.
    pub(crate) fn start(hosts: Vec<(Ipv4Addr, File)>, seed: u64, is_urgent: bool) -> Self {
        let count = hosts.len();
        let pairs = (0..count).flat_map(|a| (0..count).map(move |b| (a, b)));
        let link = |(from, to): (Port, Port)| {
            let own_seed = seed.wrapping_mul(1_000_003).wrapping_add((from * count + to) as u64);
            ((from, to), Link::new(LinkConfig::default(), own_seed))
        };
        let state = State {
            links: pairs.filter(|(a, b)| a != b).map(link).collect(),
            on_the_way: BinaryHeap::new(),
            sequence: 0,
            overflows: 0,
            stopped: false,
        };
        let shared = Arc::new(Shared {
            epoch: wait::now(),
            hosts,
            state: Mutex::new(state),
            earlier: Condvar::new(),
            is_urgent,
        });
        for from in 0..count {
            let shared = Arc::clone(&shared);
            thread::spawn(move || read_from(&shared, from));
        }
        let delivering = Arc::clone(&shared);
        let deliverer = thread::spawn(move || deliver(&delivering));
        Self { shared, deliverer: Some(deliverer) }
    }

    /// Packets dropped because too many were in flight.
    pub(crate) fn overflows(&self) -> u64 {
        self.shared.lock().overflows
    }

    /// Changes both directions between two hosts.
    pub(crate) fn change(&self, a: Port, b: Port, change: impl Fn(&mut LinkConfig)) {
        let mut state = self.shared.lock();
        for pair in [(a, b), (b, a)] {
            if let Some(link) = state.links.get_mut(&pair) {
                let mut config = link.config().clone();
                change(&mut config);
                link.set_config(config);
            }
        }
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.shared.lock().stopped = true;
        self.shared.earlier.notify_all();
        if let Some(thread) = self.deliverer.take() {
            // A panic there has been printed; there is nothing to add while ending.
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// The state is consistent between statements, so a panic elsewhere does not corrupt it.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        wait::now().saturating_duration_since(self.epoch)
    }
}

/// Gives the calling thread real-time priority where permitted.
fn hurry() {
    let thread = rustix::thread::gettid().as_raw_nonzero().to_string();
    let _ = run("chrt", &["--fifo", "--pid", "1", &thread]);
}

fn read_from(shared: &Shared, from: Port) {
    if shared.is_urgent {
        hurry();
    }
    let mut device = &shared.hosts[from].1;
    let mut buffer = vec![0; MAX_PACKET];
    // An error means that the device was removed with its host.
    while let Ok(length) = device.read(&mut buffer) {
        let packet = &buffer[..length];
        let Some(to) = destination(packet) else { continue };
        let Some(to) = shared.hosts.iter().position(|(address, _)| *address == to) else {
            continue;
        };
        let mut state = shared.lock();
        // Read inside the lock, so that no link sees time go backwards.
        let now = shared.now();
        if state.stopped {
            return;
        }
        if state.on_the_way.len() >= MAX_IN_FLIGHT {
            state.overflows += 1;
            continue;
        }
        let verdict = state.links.get_mut(&(from, to)).map(|link| link.send(now, length));
        if let Some(Verdict::Deliver(deliveries)) = verdict {
            state.sequence += 1;
            let sequence = state.sequence;
            let due = Due { at: deliveries.at, sequence, to, packet: packet.to_vec() };
            let first = state.on_the_way.peek().map(|Reverse(first)| first.at);
            let is_first = first.is_none_or(|first| due.at < first);
            state.on_the_way.push(Reverse(due));
            drop(state);
            if is_first {
                shared.earlier.notify_one();
            }
        }
    }
}

fn destination(packet: &[u8]) -> Option<Ipv4Addr> {
    (packet.first()? >> 4 == 4).then_some(())?;
    let bytes: [u8; 4] = packet.get(16..20)?.try_into().ok()?;
    Some(Ipv4Addr::from(bytes))
}

fn deliver(shared: &Shared) {
    if shared.is_urgent {
        hurry();
    }
    let mut state = shared.lock();
    while !state.stopped {
        let now = shared.now();
        match state.on_the_way.peek().map(|Reverse(due)| due.at) {
            Some(at) if at <= now => {
                let Some(Reverse(due)) = state.on_the_way.pop() else { continue };
                drop(state);
                // A host whose interface is down loses packets to it.
                let _ = (&shared.hosts[due.to].1).write(&due.packet);
                state = shared.lock();
            }
            Some(at) => {
                let woken = shared.earlier.wait_timeout(state, at - now);
                state = woken.unwrap_or_else(PoisonError::into_inner).0;
            }
            None => {
                state = shared.earlier.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

impl std::fmt::Debug for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Router").field("hosts", &self.shared.hosts.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_ipv4_packet_has_a_destination() {
        let mut packet = vec![0; 20];
        assert_eq!(destination(&packet), None);
        packet[0] = 0x45;
        packet[16..].copy_from_slice(&[10, 77, 0, 12]);
        assert_eq!(destination(&packet), Some(Ipv4Addr::new(10, 77, 0, 12)));
        assert_eq!(destination(&packet[..19]), None);
        assert_eq!(destination(&[]), None);
    }

    #[test]
    fn packets_leave_by_time_and_then_by_order() {
        let due = |millis, sequence| {
            Reverse(Due { at: Duration::from_millis(millis), sequence, to: 0, packet: Vec::new() })
        };
        let mut heap = BinaryHeap::from([due(2, 1), due(1, 3), due(1, 2)]);
        let order: Vec<u64> =
            std::iter::from_fn(|| heap.pop()).map(|Reverse(due)| due.sequence).collect();
        assert_eq!(order, [2, 3, 1]);
    }
}
