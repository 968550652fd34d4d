//! Faults in random combinations from a seed.

use std::env;
use std::time::Duration;

use meshport_tests::clients::Clients;
use meshport_tests::wait;
use meshport_tests::witness::Witness;

use super::beside::MAX_TWO;
use super::faults::{Fault, Group};
use super::wires::{NODES, Net};
use super::{Lan, MAX_GAP, SETTLE, V4};

const COMBINATIONS: u32 = 100;
/// The shortest and the longest time that a combination lasts, in milliseconds: some end before
/// another node has taken the address.
const LASTING_MS: std::ops::Range<u64> = 200..3_500;

/// Splitmix64.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::try_from(self.roll(of.len() as u64)).expect("it is below the length")]
    }
}

fn setting<T: std::str::FromStr>(name: &str) -> Option<T> {
    env::var(name).ok()?.parse().ok()
}

/// One combination: a fault of the holder or of another, often with a second one elsewhere.
fn plan(dice: &mut Dice, holder: &'static str) -> Vec<(Fault, &'static str)> {
    let first = if dice.roll(3) == 0 { dice.one(&NODES) } else { holder };
    let mut faults = vec![(dice.one(&Fault::ALL), first)];
    let others: Vec<_> = NODES.into_iter().filter(|name| *name != first).collect();
    if dice.roll(2) == 0 {
        faults.push((dice.one(&Fault::ALL), dice.one(&others)));
    }
    if dice.roll(4) == 0 {
        // Faults of the same node that can be combined with any other.
        faults.push((dice.one(&[Fault::Clock, Fault::Cut(Net::Mesh)]), first));
    }
    faults
}

/// Whether what it costs is bounded: the holder is silent, and nothing keeps the others from taking
/// the address at once.
fn is_bounded(faults: &[(Fault, &str)], holder: &str) -> bool {
    let silences = |(fault, of): &(Fault, &str)| *of == holder && fault.ends_the_holder();
    let is_cut = |(fault, _): &(Fault, &str)| matches!(fault, Fault::Cut(_) | Fault::PowerOff);
    faults.iter().any(silences) && !faults.iter().any(|it| !silences(it) && is_cut(it))
}

#[test]
#[ignore = "needs root, tcpdump and faketime: ./tests/run virtual-address"]
fn a_hundred_random_combinations_of_faults() {
    let seed = setting("MESHPORT_VIP_SEED").unwrap_or_else(wait::unix_now);
    println!("seed {seed}: MESHPORT_VIP_SEED={seed} plays it again");
    let mut dice = Dice(seed);
    let mut lan = Lan::with(true);
    let witness =
        Witness::start(lan.wires.stations(), V4.parse().expect("an address"), lan.folder.path());
    let mut wrong = Vec::new();
    for number in 1..=setting("MESHPORT_VIP_COMBINATIONS").unwrap_or(COMBINATIONS) {
        let holder = wait::until("one node has the address", SETTLE, || witness.holder());
        let faults = plan(&mut dice, holder);
        let (to, authority) = (lan.target(), lan.authority());
        let clients = lan.wires.client.inside(|| Clients::start(to, &authority));
        clients.go_on();
        let mark = witness.forget();
        for (fault, name) in &faults {
            clients.between_two(|| fault.strike(&mut lan, name));
        }
        let lasting = LASTING_MS.start + dice.roll(LASTING_MS.end - LASTING_MS.start);
        wait::moment(wait::now() + Duration::from_millis(lasting));
        for (fault, name) in faults.iter().rev() {
            fault.mend(&mut lan, name);
        }
        clients.go_on();
        let (seen, ownership) = (clients.finish(), witness.since(mark));
        let what: Vec<_> = faults.iter().map(|(fault, of)| format!("{of}: {fault}")).collect();
        let line = format!(
            "{number} ({holder} holds it) {} for {lasting} ms: {seen}; {ownership}",
            what.join(", ")
        );
        println!("{line}");
        let is_long = is_bounded(&faults, holder) && seen.gap > MAX_GAP;
        if is_long || ownership.two_for_client > Duration::ZERO || ownership.two_on_wire > MAX_TWO {
            wrong.push(line);
        }
    }
    assert!(wrong.is_empty(), "seed {seed}:\n{}", wrong.join("\n"));
}
