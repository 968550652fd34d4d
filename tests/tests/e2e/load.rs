//! Much at once: two large transfers that share the path fairly, and two hundred sessions.

#![expect(clippy::print_stdout, reason = "figures for the reader of a test run")]

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use meshport_tests::transfer::{self, Direction, Open, Transfer};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};

/// The size of each large transfer.
const LARGE: u64 = 1 << 28;
/// The slower of two transfers gets at least this share of the faster one's rate.
const FAIR_SHARE: f64 = 0.6;
const SESSIONS: usize = 200;
/// Bytes that each of the many sessions moves.
const SMALL: u64 = 100_000;
const SETTLE: Duration = Duration::from_secs(40);

/// Two nodes, of which one offers the transfer service; the other's local address of it.
fn two_nodes() -> (World, SocketAddr) {
    let service = transfer::serve();
    let mut world = World::new();
    let offer = format!("\n[service.blob]\nlisten = []\norigin = \"{service}\"\n");
    let apiserver = world.apiserver("cp-a");
    let plan = NodePlan::new("cp-a", "a").origin(apiserver).role("origin:blob").settings(&offer);
    world.node(&plan);
    let listen = "\n[service.blob]\nlisten = [\"127.0.0.1:0\"]\n";
    world.node(&NodePlan::new("worker-b", "b").settings(listen));
    world.meet();
    world.chooses("worker-b", "cp-a", SETTLE);
    let local = wait::until("worker-b listens for the transfer service", SETTLE, || {
        let local = world.at("worker-b").service("blob")?;
        // It is up once an empty transfer succeeds.
        transfer::transfer(local, Direction::Down, 0).ok().map(|_| local)
    });
    (world, local)
}

fn both_at_once(local: SocketAddr, ways: [Direction; 2]) -> [Transfer; 2] {
    let running = ways.map(|way| thread::spawn(move || transfer::transfer(local, way, LARGE)));
    running.map(|one| {
        let ended = one.join().expect("a transfer does not panic");
        ended.unwrap_or_else(|error| panic!("a transfer failed: {error}"))
    })
}

fn assert_fair(transfers: [Transfer; 2]) {
    let rates = transfers.map(|done| done.rate());
    for (done, rate) in transfers.iter().zip(rates) {
        println!("{:?}: {} MiB at {:.0} MiB/s", done.way, done.bytes >> 20, rate / 1_048_576.0);
    }
    let share = rates[0].min(rates[1]) / rates[0].max(rates[1]);
    assert!(share >= FAIR_SHARE, "the slower got {:.0} % of the faster's rate", share * 100.0);
}

#[test]
fn two_large_transfers_share_the_path() {
    let (_world, local) = two_nodes();
    assert_fair(both_at_once(local, [Direction::Up, Direction::Down]));
    assert_fair(both_at_once(local, [Direction::Down, Direction::Down]));
}

#[test]
fn two_hundred_sessions_at_once_all_succeed() {
    let (world, local) = two_nodes();
    let opened: Vec<_> =
        (0..SESSIONS).map(|_| thread::spawn(move || Open::download(local, SMALL))).collect();
    let opened: Vec<Open> = opened
        .into_iter()
        .map(|one| one.join().expect("no panic").expect("a session opens"))
        .collect();
    wait::until("all sessions are open at once", SETTLE, || {
        let status = world.at("worker-b").status()?;
        let services = status["services"].as_array()?.clone();
        let blob = services.into_iter().find(|service| service["name"] == "blob")?;
        (blob["sessions_open"].as_u64()? >= SESSIONS as u64).then_some(())
    });
    let reading: Vec<_> = opened.into_iter().map(|one| thread::spawn(move || one.read())).collect();
    for one in reading {
        one.join().expect("no panic").expect("a session carries its bytes");
    }

    let statuses = world.curl().get_at_once(world.at("worker-b").local, "/version", SESSIONS);
    let statuses = statuses.expect("every request is answered");
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), SESSIONS);
}
