//! Who has the address, as others see it: a station that asks the LAN for it all the time, and a
//! capture of who answers the client's connections.

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
use meshport_tests::net::tun;
use meshport_tests::process::Process;
use meshport_tests::wait;

use super::wires::{NODES, Wires};

/// From one question to the next, and how long its answers are waited for.
const ROUND: Duration = Duration::from_millis(100);
/// Rounds without another answer after which the address has one owner, if it answers in half of
/// them: on a busy machine some answers are late.
const STEADY: usize = 10;
const ASKER: Hardware = Hardware([2, 0, 0, 0, 0, 0xfe]);
const ASKER_IP: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 200);
/// Two owners that answer a client in turn within this have the address at one time.
const TURN_S: f64 = 1.0;
const MAX_FRAME: usize = 1514;

/// Who claimed the address in each round.
type Rounds = Arc<Mutex<Vec<(Instant, BTreeSet<&'static str>)>>>;

#[derive(Debug)]
pub(super) struct Witness {
    stop: Arc<AtomicBool>,
    rounds: Rounds,
    asker: Option<JoinHandle<()>>,
    capture: Process,
    stations: BTreeMap<String, &'static str>,
}

/// What was seen since [`Witness::forget`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Ownership {
    /// Time in which two stations said on the LAN that they have the address.
    pub(super) two_on_wire: Duration,
    /// Time in which two of them answered the client in turn.
    pub(super) two_for_client: Duration,
    /// Time in which the LAN had no answer.
    pub(super) none: Duration,
    /// The longest part of that.
    pub(super) longest_none: Duration,
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

impl Witness {
    /// Begins to watch `address`.
    pub(super) fn start(wires: &Wires, address: Ipv4Addr, folder: &Path) -> Self {
        let tap = wires.switch.inside(|| tun::open_ethernet("asker").expect("a TAP device"));
        wires.switch.ip(&["link", "set", "asker", "master", "lan", "up"]);
        let mut command = wires.client.command("tcpdump");
        // Of TCP, what begins a connection, and acknowledges it.
        let wanted = format!("src host {address} and tcp[13] & 18 == 18");
        command.args(["-i", "lan", "-n", "-e", "-l", "-tt", "--immediate-mode", &wanted]);
        let capture = Process::start("tcpdump", &mut command, &folder.join("capture.log"));
        wait::until("the capture has begun", Duration::from_secs(20), || {
            capture.output().contains("listening on").then_some(())
        });
        let stations = wires.stations();
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Rounds::default());
        let (stopping, seen, known) = (stop.clone(), rounds.clone(), stations.clone());
        let asker = thread::spawn(move || ask_on(tap, address, &stopping, &seen, &known));
        Self { stop, rounds, asker: Some(asker), capture, stations }
    }

    /// The one node that the LAN has had for a while.
    pub(super) fn holder(&self) -> Option<&'static str> {
        let rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        let last = rounds.len().checked_sub(STEADY).map(|from| &rounds[from..])?;
        let owners: BTreeSet<_> = last.iter().flat_map(|(_, by)| by).collect();
        let answered = last.iter().filter(|(_, by)| !by.is_empty()).count();
        let has_one = owners.len() == 1 && answered >= STEADY / 2;
        owners.first().filter(|_| has_one).map(|owner| **owner)
    }

    /// Begins to count anew.
    pub(super) fn forget(&self) -> Mark {
        let rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        Mark { rounds: rounds.len(), answers: self.answers().len() }
    }

    /// What was seen since.
    pub(super) fn since(&self, mark: Mark) -> Ownership {
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

    /// When the client was answered, in seconds, and by which node.
    fn answers(&self) -> Vec<(f64, &'static str)> {
        let one = |line: &str| {
            let (time, rest) = line.split_once(' ')?;
            let (from, _) = rest.split_once(' ')?;
            Some((time.parse().ok()?, *self.stations.get(from)?))
        };
        self.capture.output().lines().filter_map(one).collect()
    }
}

/// From where it is counted.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mark {
    rounds: usize,
    answers: usize,
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Its panic would be told by what it has not seen.
        let _ = self.asker.take().map(JoinHandle::join);
    }
}

/// Asks once a round, and notes who claims the address meanwhile.
fn ask_on(
    mut tap: File,
    address: Ipv4Addr,
    stop: &AtomicBool,
    rounds: &Rounds,
    stations: &BTreeMap<String, &'static str>,
) {
    let (mut next, question) = (wait::now() + ROUND, question(address));
    while !stop.load(Ordering::Relaxed) {
        let begun = wait::now();
        // The bridge takes every frame.
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
fn question(address: Ipv4Addr) -> Vec<u8> {
    let mut bytes =
        [&Hardware::BROADCAST.0[..], &ASKER.0, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
    bytes.extend(ASKER.0);
    bytes.extend(ASKER_IP.octets());
    bytes.extend([0; 6]);
    bytes.extend(address.octets());
    bytes
}

/// How long answers came from more than one node in turn: from an answer of one, over those of
/// others, to the next of the same one, if that was soon.
fn in_turn(answers: &[(f64, &'static str)]) -> Duration {
    let mut last: BTreeMap<&str, f64> = BTreeMap::new();
    let (mut total, mut counted) = (0.0, f64::MIN);
    for (index, (at, by)) in answers.iter().enumerate() {
        let is_other = index > 0 && answers[index - 1].1 != *by;
        if let Some(before) = last.insert(by, *at).filter(|before| is_other && at - before < TURN_S)
        {
            total += at - before.max(counted);
            counted = *at;
        }
    }
    Duration::from_secs_f64(total)
}

#[test]
fn answers_in_turn_are_two_owners_and_a_move_is_not() {
    let [a, b, _] = NODES;
    let moved = [(0.0, a), (0.1, a), (0.2, b), (0.3, b)];
    assert_eq!(in_turn(&moved), Duration::ZERO);
    let there_and_back_later = [(0.0, a), (0.1, b), (2.0, b), (2.1, a)];
    assert_eq!(in_turn(&there_and_back_later), Duration::ZERO);
    let in_two_places = [(0.0, a), (0.25, b), (0.5, a), (0.75, b)];
    assert_eq!(in_turn(&in_two_places), Duration::from_millis(750));
}
