//! Sessions that are opened at the very moment of a partition: their hello is on its way to an
//! origin that nobody reaches any more, and others are within reach.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use meshport_demo::wan::Cut;
use meshport_tests::clients::{ask, trusting};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};
use rustls::ClientConfig;

/// How long routes may take to settle after something came or went, on a busy machine.
const SETTLE: Duration = Duration::from_secs(40);
/// Round trips to the nearest origin, and to the one behind it.
const NEAR: Duration = Duration::from_millis(60);
const FAR: Duration = Duration::from_millis(80);
/// As many sessions as had one that failed, and the time between two.
const SESSIONS: u32 = 72;
const INTERVAL: Duration = Duration::from_millis(4);
/// So many of them are opened before the partition.
const BEFORE: u32 = 18;
/// Rounds that count, and how many may be played for them: on a busy machine the partition may be
/// late, when the last session before it has its answer.
const ROUNDS: usize = 3;
const MAX_ROUNDS: usize = 6;
/// So many of ten sessions that may have had an answer may break: in twelve runs at most 20 of 32
/// did, none in each first round.
const MOST_BROKEN: usize = 7;

/// A session: when it was begun, and its result.
struct Outcome {
    begun: Instant,
    failure: Option<String>,
}

/// Opens the sessions one after another; each asks once.
fn open_all(from: Instant, to: SocketAddr, config: &Arc<ClientConfig>) -> Vec<Outcome> {
    let one = |number: u32| {
        let config = Arc::clone(config);
        thread::spawn(move || {
            wait::moment(from + INTERVAL * number);
            let begun = wait::now();
            let failure = ask(to, config).err();
            let failure = failure.map(|error| format!("{error} after {:?}", begun.elapsed()));
            Outcome { begun, failure }
        })
    };
    let all: Vec<_> = (0..SESSIONS).map(one).collect();
    all.into_iter().map(|it| it.join().expect("a client does not panic")).collect()
}

#[test]
fn no_session_fails_that_is_opened_at_the_moment_of_a_partition() {
    let mut world = World::new();
    for (one, other, distance) in [("a", "b", NEAR), ("a", "c", FAR), ("b", "c", NEAR)] {
        world.distance(one, other, distance);
    }
    for (origin, site) in [("cp-b", "b"), ("cp-c", "c")] {
        world.origin(origin, site);
    }
    world.node(&NodePlan::new("worker-a", "a"));
    world.meet();
    let config = trusting(&world.path("pki").join("ca.crt"));
    let local = world.at("worker-a").local;
    let partition = Cut::Between("a".to_owned(), "b".to_owned());
    let (mut judged, mut failed) = (0, Vec::new());
    let (mut set_aside, mut all_broken) = (0, 0);
    let mut rounds = 0;
    for round in 1..=MAX_ROUNDS {
        world.chooses("worker-a", "cp-b", SETTLE);
        let first = wait::now() + INTERVAL;
        let (cut, outcomes) = thread::scope(|scope| {
            let sessions = scope.spawn(|| open_all(first, local, &config));
            wait::moment(first + INTERVAL * BEFORE);
            world.shaper().set_down(partition.clone(), true);
            (wait::now(), sessions.join().expect("clients do not panic"))
        });
        world.chooses("worker-a", "cp-c", SETTLE);
        world.shaper().set_down(partition.clone(), false);
        // An answer that was sent before the partition still arrives, and what follows it does not:
        // such a session breaks halfway. All others have not been answered by anybody.
        let (unanswered, answered): (Vec<Outcome>, Vec<Outcome>) =
            outcomes.into_iter().partition(|it| it.begun + NEAR / 2 > cut);
        let broken = answered.iter().filter(|it| it.failure.is_some()).count();
        println!("{broken} of {} broke that may have had an answer", answered.len());
        (set_aside, all_broken) = (set_aside + answered.len(), all_broken + broken);
        let early = unanswered.iter().filter(|it| it.begun < cut).count();
        rounds += usize::from(early > 0);
        judged += unanswered.len();
        failed.extend(unanswered.into_iter().filter_map(|it| {
            let after = it.begun.saturating_duration_since(cut);
            let before = cut.saturating_duration_since(it.begun);
            Some(format!("round {round}: +{after:?} -{before:?}: {}", it.failure?))
        }));
        if rounds == ROUNDS {
            break;
        }
    }
    println!("{judged} sessions were opened, {} failed", failed.len());
    assert!(failed.is_empty(), "of {judged}:\n{}", failed.join("\n"));
    let most = set_aside * MOST_BROKEN / 10;
    assert!(all_broken <= most, "{all_broken} of {set_aside} broke that may have had an answer");
    assert_eq!(rounds, ROUNDS, "too few sessions were opened right before a partition");
}
