//! Every event that may affect users has a row with the nodes' reaction, however many nodes it
//! hits, and mutual suspicions are counted.

use meshport_simulations::measure::Fault;
use meshport_simulations::report::Run;
use meshport_simulations::scenario::Scenario;
use meshport_simulations::world::{Options, World};

/// Two sites: one with two instances and one with one.
const HEAD: &str = "
description = \"Two sites\"
duration-s = 110
warmup-s = 30
load = { sessions-per-s = 0.3, hold-s = 20 }
path = [{ between = [\"fra\", \"ams\"], rtt-ms = 8 }]

[[site]]
name = \"fra\"
nodes = 6
origins = 2
joining = 2

[[site]]
name = \"ams\"
nodes = 4
origins = 1
";

fn run(events: &str) -> Run {
    let scenario = Scenario::parse(&format!("{HEAD}{events}")).expect("a good scenario");
    let run = World::new(scenario, 3, Options::default()).expect("a possible world").run();
    assert!(run.violations.is_empty(), "{:#?}", run.violations);
    run
}

fn event(what: &str) -> String {
    format!("[[event]]\nat-s = 50\n{what}\n")
}

fn only(run: &Run) -> &Fault {
    assert_eq!(run.measures.faults.len(), 1, "{:#?}", run.measures.faults);
    &run.measures.faults[0]
}

/// Four workers of Frankfurt, and both of its control-plane nodes for each other, use one of the
/// two; nine nodes consider each of them healthy.
#[test]
fn all_victims_of_an_event_and_all_their_users_are_followed() {
    let run = run(&event("kill = \"fra origins\""));
    let fault = only(&run);
    assert_eq!((fault.what.as_str(), fault.kind), ("kill: fra-1 and 1 more", "kill"));
    let followed = run.followed(fault);
    assert_eq!((followed.nodes, followed.noticed, followed.concerned), (2, 18, 18));
    assert_eq!((followed.left, followed.users), (4, 4), "{fault:#?}");
    assert_eq!(run.route_of("fra-5"), Some("ams-1"));
    // A change from one to the other is not a departure: no node did that before a round trip.
    assert!(fault.moved.values().all(|after| after.as_secs_f64() < 2.0), "{fault:#?}");
}

#[test]
fn two_crashed_nodes_are_both_missed_by_all_others() {
    let run = run(&event("crash = \"fra workers any 2\"\nfor-s = 30"));
    let followed = run.followed(only(&run));
    assert_eq!((followed.nodes, followed.noticed, followed.concerned), (2, 16, 16));
    let seen = run.measures.suspicions.expect("the wide level sees them");
    assert!(seen.raised > 0 && seen.wrong == 0, "{seen:?}");
    assert!(seen.evictions >= 16, "{seen:?}");
}

/// A node that is away for three seconds is left by its users, each time.
#[test]
fn a_rolling_restart_is_one_row_with_the_times_of_each_node() {
    let run = run(&event("rolling-restart = \"fra origins\"\ngap-s = 20\ndown-s = 3"));
    let fault = only(&run);
    let followed = run.followed(fault);
    assert_eq!((followed.nodes, fault.what.as_str()), (2, "rolling-restart: fra-1 and 1 more"));
    let over = fault.over.expect("both are back").as_secs_f64();
    assert!((over - 73.0).abs() < 1e-6, "{over}");
    assert!(followed.users >= 4 && followed.left == followed.users, "{fault:#?}");
    assert!(followed.failover_p99.expect("all left").as_secs_f64() < 3.0, "{followed:?}");
    assert_eq!((followed.noticed, followed.concerned), (18, 18));
}

#[test]
fn every_event_that_may_disturb_somebody_has_a_row() {
    let spread = "settings = { service = { kube-apiserver = { policy = \"spread\" } } }";
    let worse = "degrade = { between = [\"fra\", \"ams\"], rtt-ms = 90 }";
    for (kind, more, nodes) in [
        ("leave = \"fra workers any 2\"", "", 2),
        ("starve = \"fra-1\"", "for-s = 20", 1),
        ("rolling-restart = \"ams\"", "", 4),
        // Two of them do not run yet.
        ("configure = \"all\"", spread, 12),
        ("lie = \"ams-3\"", "how = \"garbage\"\nfor-s = 20", 1),
        ("join = \"fra-7\"", "", 1),
        ("clock-step = \"fra-4\"", "by-s = 40", 1),
        ("roam = \"ams-4\"", "to = \"fra\"", 1),
        ("rebind = \"ams-4\"", "", 1),
        (worse, "", 0),
    ] {
        let run = run(&event(&format!("{kind}\n{more}")));
        let fault = only(&run);
        let followed = run.followed(fault);
        assert!(kind.starts_with(fault.kind), "{kind}: {}", fault.kind);
        println!("{}: {followed:?}", fault.what);
        assert_eq!(followed.nodes, nodes, "{kind}");
        assert_eq!((followed.failed, run.measures.requests.failed), (0, 0), "{kind}");
    }
}

#[test]
fn a_node_that_joins_is_known_and_finds_an_origin() {
    let run = run(&event("join = \"fra-7\""));
    let followed = run.followed(only(&run));
    assert_eq!((followed.noticed, followed.concerned), (10, 10));
    assert_eq!((followed.left, followed.users), (1, 1));
    assert!(followed.failover_p99.expect("it has an origin").as_secs_f64() < 5.0, "{followed:?}");
}

#[test]
fn a_new_policy_shows_which_nodes_switch() {
    let spread = "settings = { service = { kube-apiserver = { policy = \"spread\" } } }";
    let run = run(&event(&format!("configure = \"ams\"\n{spread}")));
    let fault = only(&run);
    let followed = run.followed(fault);
    assert!(!fault.must_leave() && followed.users == 4, "{followed:?}");
    assert_eq!(followed.failover_p99.is_some(), followed.left > 0);
}

/// A client that waits for a hung apiserver waits within its own fault, not a later one's.
#[test]
fn slow_requests_count_for_what_happened_when_they_ended() {
    let hang = "hang = \"all origins\"\nfor-s = 6";
    let later = "[[event]]\nat-s = 90\nclock-step = \"fra-4\"\nby-s = 40\n";
    let run = run(&(event(hang) + later));
    let of = |place: usize| run.followed(&run.measures.faults[place]);
    let all = run.measures.requests;
    assert!(all.slow > 0, "{all:?}");
    let early: u64 = run.measures.timeline[..50].iter().map(|it| u64::from(it.slow)).sum();
    assert_eq!((of(0).slow, of(0).failed), (all.slow - early, all.failed));
    assert_eq!((of(1).slow, of(1).failed), (0, 0));
}

#[test]
fn a_suspect_that_answers_is_suspected_by_mistake() {
    let quiet = run("");
    let seen = quiet.measures.suspicions.expect("the wide level sees them");
    assert_eq!((seen.raised, seen.wrong, seen.evictions), (0, 0, 0));
    let lossy = HEAD.replace("rtt-ms = 8", "rtt-ms = 8, loss-percent = 60");
    let scenario = Scenario::parse(&lossy).expect("a good scenario");
    let run = World::new(scenario, 3, Options::default()).expect("a possible world").run();
    let seen = run.measures.suspicions.expect("the wide level sees them");
    println!("{seen:?}, {} false evictions", run.measures.false_evictions);
    assert!(seen.wrong > 0 && seen.wrong <= seen.raised, "{seen:?}");
    assert!(run.measures.false_evictions <= seen.evictions, "{seen:?}");
}

/// Finding each other takes more datagrams than everything that follows.
#[test]
fn datagrams_are_counted_from_the_same_time_on_as_bytes() {
    let run = run("");
    let ((packets, payload), (bytes, _)) = (run.packets(), run.rates());
    assert!(packets > 0.0 && payload > 0.0 && payload < bytes, "{packets} {payload} {bytes}");
    let each = (bytes - payload) / packets;
    assert!((100.0..=120.0).contains(&each), "{each} bytes of headers");
    let sum: u64 = run.measures.timeline.iter().map(|second| u64::from(second.running)).sum();
    let whole = f64::from(u32::try_from(run.measures.traffic.gossip_packets).expect("few"))
        / f64::from(u32::try_from(sum).expect("few"));
    assert!(whole > packets * 1.05, "with the start-up {whole}, without {packets}");
}
