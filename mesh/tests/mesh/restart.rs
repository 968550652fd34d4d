//! Peers that go away and come back, on a network in memory, in stopped time.

use std::time::Duration;

use crate::common::*;
use meshport_mesh::testing::Switch;
use meshport_mesh::{Mesh, MeshConfig, MeshCount, MeshError};
use tokio::time::Instant;

/// Like a caller: opens and uses streams until one works.
async fn until_it_works(mesh: &Mesh, node: u8) -> Duration {
    #[expect(clippy::disallowed_methods, reason = "a test measures how long something takes")]
    let start = Instant::now();
    let mut tries = 0;
    loop {
        tries += 1;
        let once = round_trip(mesh, id(node), b"are you there?");
        // An impatient caller hedges; a patient one would wait for the stream's error.
        match tokio::time::timeout(Duration::from_secs(5), once).await {
            Ok(Ok(())) => return start.elapsed(),
            Ok(Err(error)) => assert!(tries < 50, "still failing: {error}"),
            Err(_) => panic!("a stream hangs"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A network on which node 1 has an open connection to node 2, and how to start node 2 again.
async fn connected(switch: &Switch) -> (Node, tokio::task::JoinHandle<()>, Mesh) {
    switch.set_delay(Duration::from_millis(20));
    let (a, b) = pair(switch);
    let (b, task) = echo(b);
    round_trip(&a.mesh, id(2), b"first").await.unwrap();
    (a, task, b)
}

/// Node 2 dies silently.
fn kill(switch: &Switch, node: Mesh, task: &tokio::task::JoinHandle<()>) {
    switch.attach(at(2));
    task.abort();
    drop(node);
}

#[tokio::test(start_paused = true)]
async fn a_restarted_peer_that_knows_us_serves_within_a_round_trip_or_two() {
    let switch = Switch::new(1);
    let (a, task, b) = connected(&switch).await;
    let mut stuck = a.mesh.open_stream(id(2)).await.unwrap();
    write(&mut stuck.send, b"x").await;
    kill(&switch, b, &task);
    let again = start(World::new(1).identity(2), switch.attach(at(2)), 99);
    again.mesh.set_peer(id(1), &[at(1)], None);
    let (_again, _task) = echo(again);
    let took = until_it_works(&a.mesh, 2).await;
    assert!(took < Duration::from_secs(1), "{took:?}");
    let end = within(Duration::from_secs(1), read_to_end(&mut stuck.recv)).await;
    assert!(matches!(end, Err(MeshError::ConnectionLost { .. })), "old streams end: {end:?}");
    assert_eq!(a.mesh.counters()[MeshCount::ConnectionsCut], 1);
}

#[tokio::test(start_paused = true)]
async fn a_restarted_peer_that_knows_nobody_serves_within_three_seconds() {
    let switch = Switch::new(1);
    let (a, task, b) = connected(&switch).await;
    kill(&switch, b, &task);
    let (_again, _task) = echo(start(World::new(1).identity(2), switch.attach(at(2)), 99));
    let took = until_it_works(&a.mesh, 2).await;
    assert!(took < Duration::from_secs(3), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_restarted_peer_that_speaks_first_is_recognised() {
    let switch = Switch::new(1);
    let (a, task, b) = connected(&switch).await;
    kill(&switch, b, &task);
    let again = start(World::new(1).identity(2), switch.attach(at(2)), 99);
    again.mesh.set_peer(id(1), &[at(1)], None);
    again.mesh.connect(&id(1));
    let (_again, _task) = echo(again);
    eventually(|| a.mesh.counters()[MeshCount::RestartsSeen] == 1).await;
    // Nothing is left of the old connection: the first try works.
    let limit = Duration::from_secs(1);
    within(limit, round_trip(&a.mesh, id(2), b"now")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn our_own_restart_replaces_the_incoming_connection() {
    let switch = Switch::new(1);
    let (a, b) = pair(&switch);
    let (b, _task) = echo(b);
    round_trip(&a.mesh, id(2), b"first").await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let Node { mesh, incoming } = a;
    switch.attach(at(1));
    drop((mesh, incoming));
    let a = start(World::new(1).identity(1), switch.attach(at(1)), 77);
    a.mesh.set_peer(id(2), &[at(2)], None);
    let limit = Duration::from_secs(1);
    within(limit, round_trip(&a.mesh, id(2), b"again")).await.unwrap();
    assert_eq!(b.counters()[MeshCount::RestartsSeen], 1);
    assert_eq!(b.counters()[MeshCount::ConnectionsAccepted], 2);
}

#[tokio::test(start_paused = true)]
async fn a_polite_end_is_seen_at_once() {
    let switch = Switch::new(1);
    let (a, task, b) = connected(&switch).await;
    let mut stream = a.mesh.open_stream(id(2)).await.unwrap();
    write(&mut stream.send, b"x").await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    b.close().await;
    let end = within(Duration::from_millis(200), read_to_end(&mut stream.recv)).await;
    assert!(matches!(end, Err(MeshError::ConnectionLost { .. })), "{end:?}");
    task.abort();
    drop(b);
    let (_again, _task) = echo(start(World::new(1).identity(2), switch.attach(at(2)), 99));
    let took = until_it_works(&a.mesh, 2).await;
    assert!(took < Duration::from_secs(3), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_closed_mesh_refuses_work() {
    let switch = Switch::new(1);
    let (a, _b) = pair(&switch);
    a.mesh.close().await;
    assert_eq!(a.mesh.open_stream(id(2)).await.unwrap_err(), MeshError::Closed);
    let error = a.mesh.send_datagram(id(2), 7402, b"x").unwrap_err();
    assert_eq!(error, MeshError::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_path_that_breaks_and_heals_needs_no_new_connection() {
    let switch = Switch::new(1);
    let (a, _task, _b) = connected(&switch).await;
    switch.set_loss(1.0);
    let mut stream = a.mesh.open_stream(id(2)).await.unwrap();
    write(&mut stream.send, b"held").await;
    tokio::time::sleep(Duration::from_secs(8)).await;
    switch.set_loss(0.0);
    stream.send.finish().unwrap();
    let answer = within(Duration::from_secs(8), read_to_end(&mut stream.recv)).await;
    assert_eq!(answer.unwrap(), b"held");
    assert_eq!(a.mesh.counters()[MeshCount::ConnectionsOpened], 1);
}

#[tokio::test(start_paused = true)]
async fn callers_share_one_connection_attempt_and_may_leave() {
    let switch = Switch::new(1);
    switch.set_delay(Duration::from_millis(50));
    let (a, b) = pair(&switch);
    let (_b, _task) = echo(b);
    let first = a.mesh.clone();
    let impatient = tokio::spawn(async move { first.open_stream(id(2)).await });
    let others: Vec<_> = (0..10)
        .map(|_| {
            let mesh = a.mesh.clone();
            tokio::spawn(async move { round_trip(&mesh, id(2), b"shared").await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(60)).await;
    impatient.abort();
    for other in others {
        within(Duration::from_secs(2), other).await.unwrap().unwrap();
    }
    let counters = a.mesh.counters();
    assert_eq!(
        (counters[MeshCount::ConnectionsOpened], counters[MeshCount::InitiationsSent]),
        (1, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn loss_delays_but_does_not_break() {
    let switch = Switch::new(7);
    switch.set_delay(Duration::from_millis(10));
    switch.set_loss(0.05);
    let (a, b) = pair(&switch);
    let (_b, _task) = echo(b);
    for _ in 0..5 {
        let bytes = vec![3; 200_000];
        within(Duration::from_secs(30), round_trip(&a.mesh, id(2), &bytes)).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn streams_nobody_takes_are_refused() {
    let switch = Switch::new(1);
    let world = World::new(1);
    let config = MeshConfig { max_waiting_streams: 2, ..MeshConfig::default() };
    let a = start(world.identity(1), switch.attach(at(1)), 1);
    let b = start_with(world.identity(2), switch.attach(at(2)), 2, config);
    a.mesh.set_peer(id(2), &[at(2)], None);
    let mut streams = Vec::new();
    for _ in 0..4 {
        let mut stream = a.mesh.open_stream(id(2)).await.unwrap();
        write(&mut stream.send, b"x").await;
        streams.push(stream);
    }
    let refused = async {
        for stream in &mut streams[2..] {
            assert!(matches!(read_some(&mut stream.recv).await, Err(MeshError::Reset(_))));
        }
    };
    within(Duration::from_secs(12), refused).await;
    assert_eq!(b.mesh.counters()[MeshCount::StreamsRefused], 2);
}

#[tokio::test(start_paused = true)]
async fn removing_a_peer_cuts_its_streams() {
    let switch = Switch::new(1);
    let (a, _task, _b) = connected(&switch).await;
    let mut stream = a.mesh.open_stream(id(2)).await.unwrap();
    write(&mut stream.send, b"x").await;
    a.mesh.remove_peer(&id(2));
    let end = within(Duration::from_secs(1), read_to_end(&mut stream.recv)).await;
    assert!(matches!(end, Err(MeshError::ConnectionLost { .. })), "{end:?}");
    let error = a.mesh.open_stream(id(2)).await.unwrap_err();
    assert_eq!(error, MeshError::UnknownPeer(id(2)));
}

#[tokio::test(start_paused = true)]
async fn an_idle_mesh_uses_no_timers_but_its_keepalives() {
    let switch = Switch::new(1);
    let (a, _task, b) = connected(&switch).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let before =
        (a.mesh.counters()[MeshCount::DatagramsSent], b.counters()[MeshCount::DatagramsSent]);
    tokio::time::sleep(Duration::from_secs(100)).await;
    let after =
        (a.mesh.counters()[MeshCount::DatagramsSent], b.counters()[MeshCount::DatagramsSent]);
    // A ping each 30 s and its acknowledgement.
    assert!(after.0 - before.0 <= 6, "{}", after.0 - before.0);
    assert!(after.1 - before.1 <= 6, "{}", after.1 - before.1);
    round_trip(&a.mesh, id(2), b"still there").await.unwrap();
    assert_eq!(a.mesh.counters()[MeshCount::ConnectionsOpened], 1);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_nobody_uses_is_closed_and_made_again() {
    let switch = Switch::new(1);
    let (a, _task, b) = connected(&switch).await;
    let idle = |mesh: &Mesh| mesh.peers()[0].quic_rtt.is_none();
    // Between the last use and the end there are two checks, and at most three.
    tokio::time::sleep(Duration::from_secs(299)).await;
    assert!(!idle(&a.mesh), "it was used a moment ago");
    tokio::time::sleep(Duration::from_secs(302)).await;
    assert!(idle(&a.mesh) && idle(&b), "both sides have given it up");
    let counters = a.mesh.counters();
    assert_eq!(
        (counters[MeshCount::ConnectionsUnused], counters[MeshCount::ConnectionsCut]),
        (1, 0)
    );

    let mut held = a.mesh.open_stream(id(2)).await.unwrap();
    write(&mut held.send, b"x").await;
    tokio::time::sleep(Duration::from_secs(2000)).await;
    write(&mut held.send, b"y").await;
    for sent in [b"x", b"y"] {
        // A stream that is silent for long keeps its connection.
        assert_eq!(read_some(&mut held.recv).await.unwrap().as_deref(), Some(&sent[..]));
    }
    let counters = a.mesh.counters();
    assert_eq!(
        (counters[MeshCount::ConnectionsOpened], counters[MeshCount::ConnectionsUnused]),
        (2, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_had_a_burst_is_closed_once_it_is_unused() {
    let switch = Switch::new(1);
    let (a, _task, b) = connected(&switch).await;
    let is_there = |mesh: &Mesh| mesh.peers()[0].quic_rtt.is_some();
    let mut held = Vec::new();
    for _ in 0..300 {
        let mut stream = a.mesh.open_stream(id(2)).await.unwrap();
        // The peer permits more streams as these arrive.
        write(&mut stream.send, b"x").await;
        held.push(stream);
    }
    (0..3).for_each(|_| a.mesh.close_after_bursts());
    assert!(is_there(&a.mesh), "streams are open");
    drop(held);
    tokio::time::sleep(Duration::from_secs(15)).await;
    drop(a.mesh.open_stream(id(2)).await.unwrap());
    tokio::time::sleep(Duration::from_secs(1)).await;
    a.mesh.close_after_bursts();
    assert!(is_there(&a.mesh), "it was used a moment ago");
    tokio::time::sleep(Duration::from_secs(15)).await;
    a.mesh.close_after_bursts();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!is_there(&a.mesh) && !is_there(&b), "both sides have given it up");
    round_trip(&a.mesh, id(2), b"again").await.unwrap();
    (0..2).for_each(|_| a.mesh.close_after_bursts());
    assert!(is_there(&a.mesh), "one without a burst stays");
}

/// How long the first new stream takes after `silence` in which a stream was written to.
async fn after_silence(silence: Duration, renews: bool) -> Duration {
    let switch = Switch::new(1);
    let (a, _task, _b) = connected(&switch).await;
    let mut stuck = a.mesh.open_stream(id(2)).await.unwrap();
    write(&mut stuck.send, b"x").await;
    switch.set_filter(|_| false);
    a.mesh.expect_answer(&id(2));
    for _ in 0..8 {
        // Like sessions without an answer, one after another. They use up the window.
        let mut stream = a.mesh.open_stream(id(2)).await.unwrap();
        write(&mut stream.send, &[7; 6000]).await;
        tokio::time::sleep(silence / 8).await;
    }
    switch.clear_filter();
    if renews {
        a.mesh.renew_connection(&id(2));
    }
    #[expect(clippy::disallowed_methods, reason = "a test measures how long something takes")]
    let start = Instant::now();
    round_trip(&a.mesh, id(2), b"back").await.unwrap();
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn a_renewed_connection_does_not_wait_for_the_old_ones_timers() {
    let silence = Duration::from_secs(20);
    let waits = after_silence(silence, false).await;
    let renewed = after_silence(silence, true).await;
    // Otherwise there is no reason to renew anything.
    assert!(waits > Duration::from_millis(500), "{waits:?}");
    assert!(renewed < Duration::from_millis(200), "{renewed:?}, a round trip is 40 ms");
}

/// A restarted peer has sessions before its path counts as up again.
#[tokio::test(start_paused = true)]
async fn a_connection_that_got_through_is_not_renewed() {
    let switch = Switch::new(1);
    let (a, _task, _b) = connected(&switch).await;
    a.mesh.expect_answer(&id(2));
    round_trip(&a.mesh, id(2), b"it got through").await.unwrap();
    a.mesh.renew_connection(&id(2));
    assert_eq!(a.mesh.counters()[MeshCount::ConnectionsCut], 0);

    // Nor one that was made since.
    a.mesh.expect_answer(&id(2));
    a.mesh.renew_connection(&id(2));
    assert_eq!(a.mesh.counters()[MeshCount::ConnectionsCut], 1, "nothing came through that one");
    a.mesh.expect_answer(&id(2));
    let mut held = a.mesh.open_stream(id(2)).await.unwrap();
    write(&mut held.send, b"x").await;
    a.mesh.renew_connection(&id(2));
    assert_eq!(read_some(&mut held.recv).await.unwrap().as_deref(), Some(&b"x"[..]));
    assert_eq!(a.mesh.counters()[MeshCount::ConnectionsCut], 1);
}
