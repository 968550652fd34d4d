//! A single fault fails no request, whatever it is, as long as one healthy origin stays within
//! reach: every kind of event, alone, in three sites with clients, at the wide and the full level.
//! Where that is impossible, the table has the reason. The program must be optimised: `./tests/run
//! sim` names one in `MESHPORT_SIM`.

#![expect(clippy::print_stdout, reason = "allowed failures are printed")]

use std::collections::BTreeSet;

use meshport_simulations::scenario::{Scenario, reference};
use serde_json::Value;

use crate::faults::{self, Allowed, CASES, Case, Level, Seen};

/// A site with an origin, one with another one and with nodes that join later, and one without any;
/// the first and the last have a relay.
const WORLD: &str = r#"
description = "One fault in three sites"
duration-s = 130
warmup-s = 20

[load]
sessions-per-s = 0.5
hold-s = 10
requests-per-s = 0.5

[[site]]
name = "fra"
nodes = 4
origins = 1
relays = 1

[[site]]
name = "ams"
nodes = 4
origins = 1
joining = 2

[[site]]
name = "vie"
nodes = 4
relays = 1

[[path]]
between = ["fra", "ams"]
rtt-ms = 9

[[path]]
between = ["fra", "vie"]
rtt-ms = 12

[[path]]
between = ["ams", "vie"]
rtt-ms = 20
"#;
/// A run with fewer requests would show nothing: without faults there are 4,300.
const LEAST_REQUESTS: u64 = 3000;
/// The same through a relay: there are 2,300.
const LEAST_RELAYED: u64 = 1500;
const SEEDS: [&str; 3] = ["1", "2", "3"];

/// Clients whose sessions go through a relay, since that is nearer than the direct path, and
/// another origin that is farther. Without a fault some 430 sessions are relayed.
const RELAYED: &str = r#"
description = "One fault on the way through a relay"
duration-s = 120
warmup-s = 30
load = { sessions-per-s = 1, hold-s = 10, requests-per-s = 0.5, on = "a" }
site = [
  { name = "a", nodes = 4 },
  { name = "r", nodes = 2, relays = 2 },
  { name = "b", nodes = 1, origins = 1 },
  { name = "c", nodes = 1, origins = 1 },
]
path = [
  { between = ["a", "b"], rtt-ms = 200 }, { between = ["a", "r"], rtt-ms = 10 },
  { between = ["r", "b"], rtt-ms = 10 }, { between = ["a", "c"], rtt-ms = 260 },
  { between = ["r", "c"], rtt-ms = 250 }, { between = ["b", "c"], rtt-ms = 250 },
]
"#;
/// Faults of either leg, of the relays or of the origin, for 25 s.
const ON_THE_WAY: [&str; 20] = [
    "cut = [\"r\", \"b\"]",
    "cut = [\"r\", \"b\"]\none-way = true",
    "cut = [\"b\", \"r\"]\none-way = true",
    "cut = [\"a\", \"r\"]",
    "isolate = \"r\"",
    "flap = [\"r\", \"b\"]\nperiod-s = 2",
    "flap = [\"r\", \"b\"]\nperiod-s = 0.5",
    "degrade = { between = [\"r\", \"b\"], loss-percent = 50 }",
    "degrade = { between = [\"r\", \"b\"], loss-percent = 100 }",
    "degrade = { between = [\"r\", \"b\"], mtu = 1280 }",
    "degrade = { between = [\"a\", \"r\"], mtu = 1280 }",
    "degrade = { between = [\"r\", \"b\"], rate-mbit = 0.1 }",
    "degrade = { between = [\"r\", \"b\"], rtt-ms = 800 }",
    "crash = \"r-1\"",
    "crash = \"r\"",
    "crash = \"b-1\"",
    "kill = \"b-1\"",
    "hang = \"b-1\"",
    "starve = \"r-1\"\nstall-ms = 5000",
    "starve = \"r\"\nstall-ms = 3000",
];

/// The world in which a case happens at 60 s.
fn text(case: &Case) -> String {
    format!("{WORLD}{}", case.events(60))
}

/// The problem with a run of a case, if any; prints allowed failures.
fn judge(case: &Case, level: Level, number: usize, seed: &str) -> Option<String> {
    let words = format!("{}, seed {seed}, {level:?}", case.words());
    let output = faults::play(&text(case), level, &format!("single-{number}"), seed);
    let Seen { total, failed, violated, errors, .. } = match Seen::of(&output) {
        Ok(seen) => seen,
        Err(errors) => return Some(format!("{words}: {errors}")),
    };
    let (most, why) = match if level == Level::Wide { case.wide } else { case.full } {
        Allowed::None => (0, ""),
        Allowed::Some(most, why) => (most, why),
    };
    let words = format!("{words}: {failed} of {total} failed");
    if failed > most || violated > 0 || total < LEAST_REQUESTS {
        return Some(format!("{words}, {violated} rules were violated\n{errors}"));
    }
    if failed > 0 {
        println!("{words}: {why}");
    }
    None
}

/// Requests of some 2,400 that may fail while half of the relay's forwarded packets are lost: a
/// request of which ten seconds of retransmissions are lost. At the wide level 13 of 155,616 did in
/// 60 runs, two at most in one; at the full level 77 of 148,112 in 60 runs of two builds.
fn most_at_half_loss(level: Level) -> u64 {
    match level {
        Level::Wide => 2,
        Level::Full => 12,
    }
}

/// The problem with a run through a relay, if any.
fn judge_relayed(level: Level, number: usize, fault: &str) -> Option<String> {
    let text = format!("{RELAYED}\n[[event]]\nat-s = 60\n{fault}\nfor-s = 25\n");
    let output = faults::play(&text, level, &format!("relayed-{number}"), "1");
    let words = format!("{}, {level:?}", fault.replace('\n', ", "));
    let is_half_lost = fault.contains("loss-percent = 50");
    let most = if is_half_lost { most_at_half_loss(level) } else { 0 };
    match Seen::of(&output) {
        Ok(Seen { total, failed, violated, .. })
            if failed <= most && violated == 0 && total > LEAST_RELAYED =>
        {
            if failed > 0 {
                println!("{words}: {failed} of {total} failed: half is lost behind the relay");
            }
            None
        }
        Ok(seen) => {
            Some(format!("{words}: {} of {} failed; {}", seen.failed, seen.total, seen.errors))
        }
        Err(errors) => Some(format!("{words}: {errors}")),
    }
}

/// Paths that lose long packets for a while, in a world, and the origin at their end. It is
/// unready, so it keeps its sessions and gets no new ones, whose searches would find out.
const HOLES: [(&str, &str, &str); 3] = [
    (WORLD, "fra-1", "[\"fra\", \"vie\"]"),
    (RELAYED, "b-1", "[\"r\", \"b\"]"),
    (RELAYED, "b-1", "[\"a\", \"r\"]"),
];
/// Whether only answers are lost, or requests too.
const REQUEST_BYTES: [u32; 2] = [500, 20_000];
/// How long a request may take if it or its answer is lost: until the sender has noticed it, its
/// mesh splits long packets, and it is sent again.
const MOST_INTO_A_HOLE_MS: f64 = 4000.0;

fn judge_hole(level: Level, number: usize, bytes: u32) -> Option<String> {
    let (world, origin, way) = HOLES[number];
    let load = format!("request-bytes = {bytes}");
    let world = match world.contains("[load]\n") {
        true => world.replace("[load]\n", &format!("[load]\n{load}\n")),
        false => world.replace("load = { ", &format!("load = {{ {load}, ")),
    };
    let text = format!(
        "{world}\n[[event]]\nat-s = 60\nunready = \"{origin}\"\nfor-s = 30\n\
         [[event]]\nat-s = 68\ndegrade = {{ between = {way}, mtu = 1280 }}\nfor-s = 22\n"
    );
    let words = format!("{way}, requests of {bytes} bytes, {level:?}");
    match Seen::of(&faults::play(&text, level, &format!("hole-{number}-{bytes}"), "1")) {
        Ok(Seen { total, failed: 0, violated: 0, slowest_ms, .. })
            if slowest_ms <= MOST_INTO_A_HOLE_MS && total > LEAST_RELAYED =>
        {
            println!("{words}: the slowest of {total} took {slowest_ms} ms");
            None
        }
        Ok(Seen { total, failed, slowest_ms, errors, .. }) => {
            Some(format!("{words}: {failed} of {total} failed, slowest {slowest_ms} ms; {errors}"))
        }
        Err(errors) => Some(format!("{words}: {errors}")),
    }
}

/// Plays each case with one of the seeds, or with all in suite hunt; fails with all problems.
fn play(level: Level, is_played: impl Fn(&Case) -> bool) {
    let all = crate::plays_all();
    let cases = CASES.iter().enumerate().filter(|(_, case)| is_played(case));
    let runs = cases.flat_map(|(number, case)| {
        let seeds = SEEDS.into_iter().enumerate();
        let seeds = seeds.filter(move |(at, _)| all || *at == number % SEEDS.len());
        seeds.map(move |(_, seed)| (number, case, seed))
    });
    let runs: Vec<_> = runs.collect();
    let wrong = faults::all(&runs, |(number, case, seed)| judge(case, level, *number, seed));
    let wrong: Vec<String> = wrong.into_iter().flatten().collect();
    println!("{} runs, {level:?}", runs.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Every kind of event is tried, and each lie.
#[test]
fn every_kind_of_event_is_in_the_table() {
    let schema: Value = serde_json::from_str(&reference::schema()).expect("JSON");
    let titles = |list: &Value, key: &str| -> BTreeSet<String> {
        let all = list.as_array().expect("a list").iter();
        all.map(|it| it[key].as_str().expect("a name").to_owned()).collect()
    };
    let mut untried = titles(&schema["$defs"]["Event"]["oneOf"], "title");
    let mut untold = titles(&schema["$defs"]["Lie"]["oneOf"], "const");
    assert!(untried.len() >= 22 && untold.len() >= 7, "{untried:?} {untold:?}");
    for case in CASES {
        let scenario = Scenario::parse(&text(case));
        scenario.unwrap_or_else(|error| panic!("{}: {error}", case.words()));
        untried.retain(|kind| {
            [case.fault, case.undone].iter().all(|it| !it.starts_with(&format!("{kind} =")))
        });
        untold.retain(|lie| !case.fault.contains(&format!("how = \"{lie}\"")));
    }
    assert!(untried.is_empty() && untold.is_empty(), "{untried:?} {untold:?}");
}

#[test]
#[ignore = "some hundred runs, optimised: ./tests/run sim"]
fn one_fault_costs_no_request_while_a_healthy_origin_is_within_reach() {
    play(Level::Wide, |_| true);
}

#[test]
#[ignore = "some hundred runs of real nodes, optimised: ./tests/run sim"]
fn one_fault_costs_real_nodes_no_request_while_a_healthy_origin_is_within_reach() {
    play(Level::Full, |case| !case.is_refused());
}

/// A relay that loses the onward path resets the sessions it carries there, so that clients
/// reconnect.
#[test]
#[ignore = "some dozen runs, optimised: ./tests/run sim"]
fn one_fault_on_the_way_through_a_relay_costs_no_request() {
    let runs = [Level::Wide, Level::Full].map(|level| {
        ON_THE_WAY.iter().enumerate().map(move |(number, fault)| (level, number, *fault))
    });
    let runs: Vec<_> = runs.into_iter().flatten().collect();
    let wrong = faults::all(&runs, |(level, number, fault)| judge_relayed(*level, *number, fault));
    let wrong: Vec<String> = wrong.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Only the sender of long packets can detect that they are lost: the origin, a relay, or the node
/// of the client.
#[test]
#[ignore = "a dozen runs, optimised: ./tests/run sim"]
fn sessions_into_a_hole_in_the_mtu_continue_before_a_client_gives_up() {
    let holes = (0..HOLES.len()).flat_map(|hole| REQUEST_BYTES.map(|bytes| (hole, bytes)));
    let holes: Vec<_> = holes.collect();
    let runs = [Level::Wide, Level::Full];
    let runs: Vec<_> =
        runs.iter().flat_map(|level| holes.iter().map(move |it| (*level, *it))).collect();
    let wrong = faults::all(&runs, |(level, hole)| judge_hole(*level, hole.0, hole.1));
    let wrong: Vec<String> = wrong.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The smallest MTU of IPv6, which QUIC cannot use without fragments.
#[test]
#[ignore = "two runs, optimised: ./tests/run sim"]
fn a_mesh_whose_paths_all_have_a_small_mtu_loses_no_request() {
    let world = WORLD.replace("rtt-ms", "mtu = 1280\nrtt-ms");
    for level in [Level::Wide, Level::Full] {
        match Seen::of(&faults::play(&world, level, "small-mtu", "1")) {
            Ok(Seen { total, failed: 0, violated: 0, slowest_ms, .. })
                if total > LEAST_REQUESTS =>
            {
                println!("{level:?}: the slowest of {total} took {slowest_ms} ms");
            }
            Ok(Seen { total, failed, errors, .. }) => {
                panic!("{level:?}: {failed} of {total} failed; {errors}");
            }
            Err(errors) => panic!("{level:?}: {errors}"),
        }
    }
}

/// Clients that ask often, in sessions that are opened often.
const BUSY: [(&str, &str); 4] = [
    ("duration-s = 130", "duration-s = 80"),
    ("sessions-per-s = 0.5", "sessions-per-s = 2"),
    ("hold-s = 10", "hold-s = 8"),
    ("requests-per-s = 0.5", "requests-per-s = 2"),
];
/// Moments between two probes of a path, in hundredths of a second.
const MOMENTS: u32 = 100;
/// Between two of these moments, likewise.
const MOMENT_STEP: usize = 4;
/// How long a request may take that a partition leaves without an answer: until the path is dead,
/// and the rest of a tenth of the window of resets.
const MOST_AT_A_PARTITION_MS: f64 = 1500.0;

/// Sessions that a partition leaves without an answer are reset before those that are idle. Those
/// that were opened at that very moment are among them: their client has seen the server's hello.
#[test]
#[ignore = "some dozen runs, optimised: ./tests/run sim"]
fn a_partition_at_any_moment_lets_no_client_wait() {
    let busy = BUSY.iter().fold(WORLD.to_owned(), |text, (from, to)| text.replace(from, to));
    let moments: Vec<u32> = (0..MOMENTS).step_by(MOMENT_STEP).collect();
    let seen = faults::all(&moments, |moment| {
        let cut = "cut = [\"fra\", \"vie\"]\nfor-s = 10";
        let text = format!("{busy}\n[[event]]\nat-s = 60.{moment:02}\n{cut}\n");
        let seen = Seen::of(&faults::play(&text, Level::Wide, &format!("moment-{moment}"), "1"));
        (*moment, seen.expect("a run"))
    });
    let slowest = seen.iter().map(|(_, seen)| seen.slowest_ms).fold(0.0, f64::max);
    println!("{} moments, slowest {slowest} ms", seen.len());
    for (moment, seen) in seen {
        assert!(seen.failed == 0 && seen.violated == 0, "{moment}: {}", seen.errors);
        let slowest_ms = seen.slowest_ms;
        assert!(slowest_ms <= MOST_AT_A_PARTITION_MS, "60.{moment:02} s: {slowest_ms} ms");
    }
}

/// Cases are left out at the full level only because it does not support them.
#[test]
fn what_is_not_played_at_the_full_level_is_refused_there() {
    let refused = CASES.iter().enumerate().filter(|(_, case)| case.is_refused());
    let mut count = 0;
    for (number, case) in refused {
        let output = faults::play(&text(case), Level::Full, &format!("single-{number}"), "1");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{}: {errors}", case.words());
        assert!(errors.contains("the full level does not support these"), "{errors}");
        count += 1;
    }
    assert_eq!(count, 16);
}
