//! Which node has the address, as others see it: a station that sends requests for it to the LAN
//! continuously, and a capture of the nodes that answer the client's connections.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use meshport_core::vip::arp;
use meshport_core::vip::frame::{Hardware, Heard};

use crate::net::tun;
use crate::netns::Namespace;
use crate::process::Process;
use crate::wait;

/// Time from one request to the next, which is also the time to wait for its answers.
const ROUND: Duration = Duration::from_millis(100);
/// Rounds without another answer after which the address has one owner, if it answers in half of
/// them: on a busy machine some answers are late.
const STEADY: usize = 10;
const ASKER: Hardware = Hardware([2, 0, 0, 0, 0, 0xfe]);
/// Two nodes that answer a client alternately within this time own the address simultaneously.
const TURN_S: f64 = 1.0;
const MAX_FRAME: usize = 1514;

/// The stations that claimed the address in each round.
type Rounds<N> = Arc<Mutex<Vec<(Instant, BTreeSet<N>)>>>;

/// The id of a station.
pub trait Name: Copy + Ord + Send + 'static {}

impl<T: Copy + Ord + Send + 'static> Name for T {}

/// A LAN and its stations.
#[derive(Debug)]
pub struct Stations<'a, N> {
    /// The switch, whose bridge is `lan`.
    pub switch: &'a Namespace,
    /// A client, and its interface on the LAN.
    pub client: (&'a Namespace, &'a str),
    /// An unused address of the LAN, from which requests are sent.
    pub asker: Ipv4Addr,
    /// The station of each hardware address.
    pub names: BTreeMap<String, N>,
}

/// See the module's description.
#[derive(Debug)]
pub struct Witness<N> {
    stop: Arc<AtomicBool>,
    rounds: Rounds<N>,
    asker: Option<JoinHandle<()>>,
    capture: Process,
    names: BTreeMap<String, N>,
}

/// Observations since [`Witness::forget`].
#[derive(Debug, Clone, Copy)]
pub struct Ownership {
    /// Time in which two stations claimed the address on the LAN.
    pub two_on_wire: Duration,
    /// Time in which two of them answered the client alternately.
    pub two_for_client: Duration,
    /// Time in which no station answered on the LAN.
    pub none: Duration,
    /// The longest such period.
    pub longest_none: Duration,
}

impl fmt::Display for Ownership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { two_on_wire, two_for_client, none, longest_none } = self;
        let s = |it: &Duration| it.as_secs_f64();
        write!(
            f,
            "two owners {:.2} s on the wire, {:.2} s for the client; none {:.2} s, longest {:.2} s",
            s(two_on_wire),
            s(two_for_client),
            s(none),
            s(longest_none)
        )
    }
}

impl<N: Name> Witness<N> {
    /// Starts watching `address`.
    pub fn start(lan: Stations<'_, N>, address: Ipv4Addr, folder: &Path) -> Self {
        let Stations { switch, client: (client, interface), asker: own, names } = lan;
        let tap = switch.inside(|| tun::open_ethernet("asker").expect("a TAP device"));
        switch.ip(&["link", "set", "asker", "master", "lan", "up"]);
        let mut command = client.command("tcpdump");
        // Matches SYN-ACK segments.
        let wanted = format!("src host {address} and tcp[13] & 18 == 18");
        command.args(["-i", interface, "-n", "-e", "-l", "-tt", "--immediate-mode", &wanted]);
        let capture = Process::start("tcpdump", &mut command, &folder.join("capture.log"));
        wait::until("the capture has begun", Duration::from_secs(20), || {
            capture.output().contains("listening on").then_some(())
        });
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Rounds::default());
        let (stopping, seen, known) = (stop.clone(), rounds.clone(), names.clone());
        let asker = thread::spawn(move || ask_on(tap, [own, address], &stopping, &seen, &known));
        Self { stop, rounds, asker: Some(asker), capture, names }
    }

    /// The only node that has answered on the LAN for a while.
    pub fn holder(&self) -> Option<N> {
        let rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        let last = rounds.len().checked_sub(STEADY).map(|from| &rounds[from..])?;
        let owners: BTreeSet<_> = last.iter().flat_map(|(_, by)| by).collect();
        let answered = last.iter().filter(|(_, by)| !by.is_empty()).count();
        let has_one = owners.len() == 1 && answered >= STEADY / 2;
        owners.first().copied().copied().filter(|_| has_one)
    }

    /// Resets the counters.
    pub fn forget(&self) -> Mark {
        let rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        Mark { rounds: rounds.len(), answers: self.answers().len() }
    }

    /// The observations since then.
    pub fn since(&self, mark: Mark) -> Ownership {
        let (mut two, mut none, mut longest, mut row) = (0, 0, 0, 0);
        let rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        for (_, by) in rounds.iter().skip(mark.rounds) {
            two += u32::from(by.len() > 1);
            none += u32::from(by.is_empty());
            row = if by.is_empty() { row + 1 } else { 0 };
            longest = longest.max(row);
        }
        Ownership {
            two_on_wire: two * ROUND,
            two_for_client: in_turn(self.answers().get(mark.answers..).unwrap_or_default()),
            none: none * ROUND,
            longest_none: longest * ROUND,
        }
    }

    /// When the client got an answer, in seconds, and from which node.
    fn answers(&self) -> Vec<(f64, N)> {
        let one = |line: &str| {
            let (time, rest) = line.split_once(' ')?;
            let (from, _) = rest.split_once(' ')?;
            Some((time.parse().ok()?, *self.names.get(from)?))
        };
        self.capture.output().lines().filter_map(one).collect()
    }
}

/// The start of counting.
#[derive(Debug, Clone, Copy)]
pub struct Mark {
    rounds: usize,
    answers: usize,
}

impl<N> Drop for Witness<N> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Missing observations would reveal its panic.
        let _ = self.asker.take().map(JoinHandle::join);
    }
}

/// Sends one request per round, and records which stations claim the address meanwhile.
fn ask_on<N: Name>(
    mut tap: File,
    [own, address]: [Ipv4Addr; 2],
    stop: &AtomicBool,
    rounds: &Rounds<N>,
    stations: &BTreeMap<String, N>,
) {
    let (mut next, question) = (wait::now() + ROUND, question(own, address));
    while !stop.load(Ordering::Relaxed) {
        let begun = wait::now();
        // The bridge accepts every frame.
        let _ = tap.write(&question);
        wait::pace(&mut next, ROUND);
        let (mut by, mut frame) = (BTreeSet::new(), [0; MAX_FRAME]);
        while let Ok(length) = tap.read(&mut frame) {
            if let Some(Heard::Claimed(hardware)) = arp::decode(&frame[..length], address)
                && let Some(name) = stations.get(&hardware.to_string())
            {
                by.insert(*name);
            }
        }
        rounds.lock().unwrap_or_else(PoisonError::into_inner).push((begun, by));
    }
}

/// A request of RFC 826.
fn question(own: Ipv4Addr, address: Ipv4Addr) -> Vec<u8> {
    let mut bytes =
        [&Hardware::BROADCAST.0[..], &ASKER.0, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
    bytes.extend(ASKER.0);
    bytes.extend(own.octets());
    bytes.extend([0; 6]);
    bytes.extend(address.octets());
    bytes
}

/// How long answers alternated between nodes: from one node's answer, past answers of others, to
/// the next answer of the same node, if that came soon.
fn in_turn<N: Name>(answers: &[(f64, N)]) -> Duration {
    let mut last: BTreeMap<N, f64> = BTreeMap::new();
    let (mut total, mut counted) = (0.0, f64::MIN);
    for (index, (at, by)) in answers.iter().enumerate() {
        let is_other = index > 0 && answers[index - 1].1 != *by;
        if let Some(before) =
            last.insert(*by, *at).filter(|before| is_other && at - before < TURN_S)
        {
            total += at - before.max(counted);
            counted = *at;
        }
    }
    Duration::from_secs_f64(total)
}

#[test]
fn answers_in_turn_are_two_owners_and_a_move_is_not() {
    let [a, b] = ["a", "b"];
    let moved = [(0.0, a), (0.1, a), (0.2, b), (0.3, b)];
    assert_eq!(in_turn(&moved), Duration::ZERO);
    let there_and_back_later = [(0.0, a), (0.1, b), (2.0, b), (2.1, a)];
    assert_eq!(in_turn(&there_and_back_later), Duration::ZERO);
    let in_two_places = [(0.0, a), (0.25, b), (0.5, a), (0.75, b)];
    assert_eq!(in_turn(&in_two_places), Duration::from_millis(750));
}
