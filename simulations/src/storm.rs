//! Random small worlds in which everything happens, for hunting.
//!
//! A world is a scenario's text, made from its seed alone: what fails can be kept, read, run again
//! and made smaller.

use std::fmt::Write;

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// How long a world is left alone at its end, so that all must agree, in virtual seconds.
const QUIET_S: u32 = 75;
/// Of so many seeds one gives a world that needs its relays.
const RELAYED_EVERY: u64 = 4;

/// Of so many seeds one has a revocation.
const REVOKED_EVERY: u64 = 4;

/// The scenario of a seed.
pub fn scenario(seed: u64) -> String {
    if seed.is_multiple_of(RELAYED_EVERY) { relayed(seed) } else { usual(seed) }
}

/// Origins everywhere, so that nearly everybody reaches one straight.
fn usual(seed: u64) -> String {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x0073_746f_726d);
    let sites: u32 = rng.random_range(2..=5);
    let happens_s = rng.random_range(60..=150);
    let mut text = format!(
        "description = \"A random world of the hunt, seed {seed}\"\nduration-s = {}\n\
         loss-percent = {}\nwarmup-s = 30\n\n[load]\nsessions-per-s = 0.3\nhold-s = 20\n\
         requests-per-s = 0.2\n",
        happens_s + QUIET_S + 30,
        [0.0, 0.1, 1.0, 2.0].choose(&mut rng).expect("not empty"),
    );
    let mut nodes = Vec::new();
    for site in 0..sites {
        let count = rng.random_range(2..=9);
        let _ = writeln!(
            text,
            "\n[[site]]\nname = \"s{site}\"\nnodes = {count}\norigins = {}\nrelays = {}\n\
             at = [{:.1}, {:.1}]",
            rng.random_range(1..=2),
            rng.random_range(0..=2),
            rng.random_range(-50.0..60.0),
            rng.random_range(-120.0..140.0),
        );
        nodes.push(count);
    }
    let count = rng.random_range(1..=7);
    for _ in 0..count {
        let at = rng.random_range(40.0..f64::from(happens_s) - 15.0);
        let _ = writeln!(text, "\n[[event]]\nat-s = {at:.1}\n{}", event(&mut rng, sites));
    }
    if seed % REVOKED_EVERY == 1 {
        let at = rng.random_range(40.0..f64::from(happens_s) - 15.0);
        let _ = writeln!(text, "\n[[event]]\nat-s = {at:.1}\nrevoke = \"all any\"");
    }
    text
}

/// Origins in the last site alone, and the way there from the first is cut: whoever is there needs
/// a relay of the sites between. Some relays lie, and some lose their own way while they are used.
fn relayed(seed: u64) -> String {
    let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x7265_6c61_7973);
    let sites: u32 = rng.random_range(3..=4);
    let last = sites - 1;
    let happens_s = rng.random_range(120..=160);
    let mut text = format!(
        "description = \"A random world of the hunt that needs its relays, seed {seed}\"\n\
         duration-s = {}\nloss-percent = {}\nwarmup-s = 30\n\n[load]\nsessions-per-s = 0.5\n\
         hold-s = 20\nrequests-per-s = 0.2\n",
        happens_s + QUIET_S + 30,
        [0.0, 0.1, 1.0].choose(&mut rng).expect("not empty"),
    );
    for site in 0..sites {
        let between = site > 0 && site < last;
        let (origins, relays) = match between {
            true => (0, rng.random_range(if sites == 3 { 2..=3 } else { 1..=3 })),
            false if site == last => (rng.random_range(1..=2), 0),
            false => (0, rng.random_range(0..=1)),
        };
        let _ = writeln!(
            text,
            "\n[[site]]\nname = \"s{site}\"\nnodes = {}\norigins = {origins}\nrelays = {relays}\n\
             at = [{:.1}, {:.1}]",
            rng.random_range(3..=5),
            rng.random_range(-50.0..60.0),
            rng.random_range(-120.0..140.0),
        );
    }
    let at: f64 = rng.random_range(40.0..55.0);
    let way = if rng.random_ratio(1, 3) { "one-way = true\n" } else { "" };
    let _ = writeln!(
        text,
        "\n[[event]]\nat-s = {at:.1}\ncut = [\"s0\", \"s{last}\"]\n{way}for-s = {:.1}",
        rng.random_range(40.0..60.0),
    );
    for _ in 0..rng.random_range(1..=3) {
        let at = at + rng.random_range(5.0..25.0);
        let event = relay_event(&mut rng, last);
        let _ = writeln!(text, "\n[[event]]\nat-s = {at:.1}\n{event}");
    }
    for _ in 0..rng.random_range(0..=2) {
        let at = rng.random_range(40.0..f64::from(happens_s) - 15.0);
        let _ = writeln!(text, "\n[[event]]\nat-s = {at:.1}\n{}", event(&mut rng, sites));
    }
    text
}

/// What may happen to relays in use.
fn relay_event(rng: &mut ChaCha8Rng, last: u32) -> String {
    let between = rng.random_range(1..last);
    let long = rng.random_range(8.0..25.0);
    match rng.random_range(0..5) {
        0 | 1 => format!("lie = \"all relays any\"\nhow = \"relay\"\nfor-s = {long:.1}"),
        2 => format!("cut = [\"s{between}\", \"s{last}\"]\nfor-s = {long:.1}"),
        3 => format!("cut = [\"s{between}\", \"s{last}\"]\none-way = true\nfor-s = {long:.1}"),
        _ => format!("crash = \"all relays any\"\nfor-s = {long:.1}"),
    }
}

fn event(rng: &mut ChaCha8Rng, sites: u32) -> String {
    let site = |rng: &mut ChaCha8Rng| format!("s{}", rng.random_range(0..sites));
    let (a, mut b) = (site(rng), site(rng));
    while a == b {
        b = site(rng);
    }
    let long = rng.random_range(5.0..25.0);
    match rng.random_range(0..13) {
        0 => format!("kill = \"all origins any\"\nfor-s = {long:.1}"),
        1 => format!("hang = \"all origins any\"\nfor-s = {long:.1}"),
        2 => format!("unready = \"all origins any\"\nfor-s = {long:.1}"),
        3 => format!("crash = \"all any\"\nfor-s = {long:.1}"),
        4 => format!("crash = \"all any 2\"\nfor-s = {long:.1}\nwithout-state = true"),
        5 => format!("cut = [\"{a}\", \"{b}\"]\nfor-s = {long:.1}"),
        6 => format!("cut = [\"{a}\", \"{b}\"]\none-way = true\nfor-s = {long:.1}"),
        7 => format!("isolate = \"{a}\"\nfor-s = {long:.1}"),
        8 => format!("flap = [\"{a}\", \"{b}\"]\nperiod-s = 2\nfor-s = {long:.1}"),
        9 => format!("starve = \"{a}\"\nfor-s = {long:.1}"),
        11 => format!("lie = \"{a} any\"\nhow = \"relay\"\nfor-s = {long:.1}"),
        10 => format!("rolling-restart = \"{a}\"\ngap-s = 3"),
        _ => format!(
            "degrade = {{ between = [\"{a}\", \"{b}\"], loss-percent = 20, loss-burst = 4 }}\n\
             for-s = {long:.1}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;

    #[test]
    fn every_world_is_a_good_scenario() {
        for seed in 0..200 {
            let text = scenario(seed);
            if let Err(error) = Scenario::parse(&text) {
                panic!("seed {seed}: {error}\n{text}");
            }
        }
    }
}
