//! What a node can tell of the data it has sent, on a network in memory, in stopped time.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use common::*;
use meshport_mesh::testing::Switch;
use meshport_mesh::{Delivery, Mesh};

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
    // The echoes of what arrived before go on coming, and are repeated.
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
