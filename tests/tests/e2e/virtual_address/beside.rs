//! The same faults for meshport and for keepalived with haproxy: a table.

#![expect(clippy::print_stdout, reason = "figures for the reader of a test run")]

use std::time::Duration;

use meshport_tests::clients::{Clients, Held, HeldSeen, Seen, trusting};
use meshport_tests::wait;
use meshport_tests::witness::{Ownership, Witness};

use super::faults::{Fault, Group, Part};
use super::rival::Rival;
use super::wires::Net;
use super::{Lan, MAX_GAP, SETTLE, V4};

/// How long a fault lasts, and the time after it: longer than the guide's keepalived needs.
const LASTING: Duration = Duration::from_secs(12);
const AFTERWARDS: Duration = Duration::from_secs(8);
/// How long two may say on the LAN that they have the address.
pub(super) const MAX_TWO: Duration = Duration::from_secs(1);

const FAULTS: [Fault; 6] = [
    Fault::Killed(Part::Daemon),
    Fault::Killed(Part::Apiserver),
    Fault::Stopped(Part::Daemon),
    Fault::Stopped(Part::Apiserver),
    Fault::PowerOff,
    Fault::Cut(Net::Lan),
];

/// What a fault of the holder costs, and its mending.
struct Cost {
    seen: Seen,
    held: HeldSeen,
    ownership: Ownership,
}

fn play(group: &mut dyn Group, witness: &Witness<&'static str>, fault: Fault) -> Cost {
    let holder = wait::until("one node has the address", SETTLE, || witness.holder());
    let (to, authority) = (group.target(), group.authority());
    let (clients, held) = group
        .wires()
        .client
        .inside(|| (Clients::start(to, &authority), Held::start(to, &trusting(&authority))));
    clients.go_on();
    let mark = witness.forget();
    clients.between_two(|| fault.strike(group, holder));
    wait::moment(wait::now() + LASTING);
    fault.mend(group, holder);
    wait::moment(wait::now() + AFTERWARDS);
    let (held, seen) = (held.finish(), clients.finish());
    Cost { seen, held, ownership: witness.since(mark) }
}

fn play_all(
    of: &str,
    group: &mut dyn Group,
    witness: &Witness<&'static str>,
) -> Vec<(Fault, Cost)> {
    let one = |fault: Fault| {
        let cost = play(group, witness, fault);
        let Cost { seen, held, ownership } = &cost;
        let Ownership { two_on_wire, two_for_client, none, .. } = ownership;
        println!(
            "| {fault} | {of} | {} | {} | {:.1} s | {:.2} s | {:.2} s | {:.1} s | {} |",
            seen.connections,
            seen.failed.len(),
            seen.gap.as_secs_f64(),
            two_for_client.as_secs_f64(),
            two_on_wire.as_secs_f64(),
            none.as_secs_f64(),
            held.ended
        );
        (fault, cost)
    };
    FAULTS.into_iter().map(one).collect()
}

#[test]
#[ignore = "needs root, and tcpdump: ./tests/run virtual-address"]
fn faults_of_the_holder_cost_what_the_bars_allow() {
    let mut lan = Lan::new();
    let witness =
        Witness::start(lan.wires.stations(), V4.parse().expect("an address"), lan.folder.path());
    for (fault, Cost { seen, ownership, .. }) in play_all("meshport", &mut lan, &witness) {
        assert_eq!(ownership.two_for_client, Duration::ZERO, "{fault}: {ownership}");
        assert!(ownership.two_on_wire <= MAX_TWO, "{fault}: {ownership}");
        if fault.ends_the_holder() {
            assert!(seen.gap <= MAX_GAP, "{fault}: {seen}");
        } else if matches!(fault, Fault::Killed(_) | Fault::Stopped(_)) {
            assert_eq!(seen.failed, Vec::<String>::new(), "{fault}");
        }
    }
}

#[test]
#[ignore = "needs root, keepalived and haproxy: ./tests/run virtual-address"]
fn keepalived_and_haproxy_through_the_same_faults() {
    let mut rival = Rival::new();
    let folder = rival.folder().to_owned();
    let witness =
        Witness::start(rival.wires().stations(), V4.parse().expect("an address"), &folder);
    // It is what it is: the figures are for docs/measurements/virtual-addresses.md.
    assert_eq!(play_all("keepalived and haproxy", &mut rival, &witness).len(), FAULTS.len());
}
