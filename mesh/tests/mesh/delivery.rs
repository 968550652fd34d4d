//! What a node knows about the data it has sent, on a network in memory, in virtual time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::*;
use meshport_mesh::testing::Switch;
use meshport_mesh::{Delivery, Mesh, MeshEvent, Stream, ports};

/// Both sides write all the time; returns whether the delivery moved in each of ten half-seconds.
async fn moves(mesh: &Mesh) -> Vec<bool> {
    let mut last: Option<Delivery> = None;
    let mut moves = Vec::new();
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = mesh.delivery(&id(2));
        moves.push(now != last);
        last = now;
    }
    moves
}

/// Writes a little on a new stream every 20 ms for as long as the task lives.
fn talk(mesh: Mesh, to: u8) {
    tokio::spawn(async move {
        let mut stream = mesh.open_stream(id(to)).await.unwrap();
        loop {
            write(&mut stream.send, &[7; 1000]).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
}

#[tokio::test(start_paused = true)]
async fn delivery_moves_while_data_is_acknowledged_and_not_while_only_the_peer_is_heard() {
    let switch = Switch::new(1);
    switch.set_delay(Duration::from_millis(20));
    let (a, b) = pair(&switch);
    assert!(a.mesh.delivery(&id(2)).is_none(), "nothing has been sent");
    let (b, _task) = echo(b);
    talk(a.mesh.clone(), 2);
    assert_eq!(moves(&a.mesh).await, [true; 10]);
    // The echoes of earlier data keep arriving, and are repeated.
    let heard = Arc::new(AtomicUsize::new(0));
    let counter = heard.clone();
    switch.set_filter(move |datagram| {
        counter.fetch_add(usize::from(datagram.to == at(1)), Ordering::Relaxed);
        datagram.to != at(2)
    });
    assert_eq!(moves(&a.mesh).await[2..], [false; 8], "what was under way arrives at first");
    assert!(heard.load(Ordering::Relaxed) > 3, "the peer repeats itself");
    switch.clear_filter();
    assert!(moves(&a.mesh).await.contains(&true));
    drop(b);
}

/// How long a path is watched, and how soon it must be reported.
const WATCHED: Duration = Duration::from_secs(20);
const TOLD: Duration = Duration::from_secs(2);

/// The times from now on at which a node gets the report that its peer does not acknowledge long
/// packets.
#[expect(clippy::disallowed_methods, reason = "tokio's clock, which is stopped")]
async fn told(node: &mut Node) -> Vec<Duration> {
    let begun = tokio::time::Instant::now();
    let mut told = Vec::new();
    let watched = async {
        loop {
            if let MeshEvent::Unacknowledged(peer) = state_event(node).await {
                assert!([id(1), id(2)].contains(&peer));
                told.push(begun.elapsed());
            }
        }
    };
    let _ = tokio::time::timeout(WATCHED, watched).await;
    told
}

/// Two nodes, the first of which has a stream to the second; only datagrams up to these lengths
/// reach the second, and the first.
async fn joined(widest: [usize; 2]) -> ((Node, Stream), (Node, Stream)) {
    let switch = Switch::new(1);
    switch.set_delay(Duration::from_millis(20));
    let (a, mut b) = pair(&switch);
    let mut one = a.mesh.open_stream(id(2)).await.unwrap();
    write(&mut one.send, &[7; 10]).await;
    let (_, mut other) = b.incoming.streams.recv().await.unwrap();
    read_some(&mut other.recv).await.unwrap();
    switch.set_filter(move |datagram| {
        datagram.bytes.len() <= widest[usize::from(datagram.to == at(1))]
    });
    ((a, one), (b, other))
}

/// Sends something short every 100 ms for as long as the task lives.
fn chat(mesh: &Mesh, to: u8) {
    let mesh = mesh.clone();
    tokio::spawn(async move {
        loop {
            let _ = mesh.send_datagram(id(to), ports::GOSSIP, b"still here");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
}

#[tokio::test(start_paused = true)]
async fn only_the_sender_learns_of_a_path_that_loses_long_packets() {
    // An MTU of 1280 bytes leaves 1252 for WireGuard, and QUIC's smallest packet needs 1280.
    for widest in [[1500, 1252], [1252, 1252], [1252, 1500]] {
        // Less and more than the first window of a connection.
        for length in [3_000, 14_000, 20_000, 60_000] {
            let (at_a, at_b) = told_of_holes(widest, length).await;
            let is_early = |told: &[Duration]| told.first().is_some_and(|first| *first < TOLD);
            let words = format!("{widest:?}, {length}: {at_a:?} {at_b:?}");
            match widest.map(|it| it < 1280) {
                [true, false] => assert!(is_early(&at_a) && at_b.is_empty(), "{words}"),
                [false, true] => assert!(is_early(&at_b) && at_a.is_empty(), "{words}"),
                // Acknowledgements travel in long packets too, so one side may retransmit a short
                // packet for ever. The other one tells it.
                _ => assert!(is_early(&at_a) || is_early(&at_b), "{words}"),
            }
            for told in [at_a, at_b] {
                assert!(told.len() < 40, "not more often than there is patience: {told:?}");
            }
        }
    }
}

/// The reports that both nodes get of a path on which long packets are lost, each with this much
/// to send where its own are.
async fn told_of_holes(widest: [usize; 2], length: usize) -> (Vec<Duration>, Vec<Duration>) {
    let ((mut a, mut one), (mut b, mut other)) = joined(widest).await;
    chat(&a.mesh, 2);
    chat(&b.mesh, 1);
    if widest[1] < 1280 {
        write(&mut other.send, &vec![7; length]).await;
    }
    if widest[0] < 1280 {
        write(&mut one.send, &vec![7; length]).await;
    }
    tokio::join!(told(&mut a), told(&mut b))
}

#[tokio::test(start_paused = true)]
async fn paths_that_are_good_or_dead_or_lose_a_little_are_not_reported() {
    for widest in [1500, 0] {
        let ((mut a, _one), (mut b, mut other)) = joined([widest; 2]).await;
        write(&mut other.send, &[7; 20_000]).await;
        let (at_a, at_b) = tokio::join!(told(&mut a), told(&mut b));
        assert!(at_a.is_empty(), "{at_a:?}");
        // A peer that has just fallen silent counts as heard for two seconds.
        let most = if widest == 0 { 3 } else { 0 };
        assert!(at_b.len() <= most, "{widest}: {at_b:?}");
    }
    let switch = Switch::new(1);
    switch.set_delay(Duration::from_millis(20));
    switch.set_loss(0.05);
    let (mut a, mut b) = pair(&switch);
    talk(b.mesh.clone(), 1);
    let (at_b, at_a) = tokio::join!(told(&mut b), told(&mut a));
    assert!(at_a.is_empty() && at_b.len() <= 1, "{at_a:?} {at_b:?}");
}
