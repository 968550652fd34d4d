//! A path whose MTU drops below what QUIC needs, while data is under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::*;
use meshport_mesh::testing::{Bottleneck, Switch};
use meshport_mesh::{Mesh, MeshCount};

/// UDP and IPv4 headers, which the switch does not see.
const HEADERS: usize = 28;
const LIMIT: Duration = Duration::from_secs(180);
const MTU: usize = 1280;

/// Two nodes that echo, on a path of some MTU, which starts at 1500.
fn path() -> (Mesh, Mesh, Arc<AtomicUsize>) {
    let switch = Switch::new(1);
    switch.set_delay(Duration::from_millis(5));
    switch.set_bottleneck(Some(Bottleneck { rate: 10_000_000, queue: Duration::from_millis(50) }));
    let passes = Arc::new(AtomicUsize::new(1500));
    let most = passes.clone();
    switch.set_filter(move |it| it.bytes.len() + HEADERS <= most.load(Ordering::Relaxed));
    let (a, b) = pair(&switch);
    let (b, _) = echo(b);
    let (a, _) = echo(a);
    (a, b, passes)
}

fn drops(mesh: &Mesh) -> u64 {
    let counters = mesh.counters();
    [MeshCount::DroppedUnauthentic, MeshCount::DroppedMalformed, MeshCount::DroppedInnerMalformed]
        .map(|it| counters[it])
        .iter()
        .sum()
}

#[tokio::test(start_paused = true)]
async fn a_transfer_continues_when_its_path_becomes_narrow_and_wide_again() {
    let (a, b, passes) = path();
    within(LIMIT, round_trip(&a, id(2), &vec![1; 1_000_000])).await.unwrap();
    let transfer = tokio::spawn({
        let a = a.clone();
        async move { round_trip(&a, id(2), &vec![1; 20_000_000]).await }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    passes.store(MTU, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(500)).await;
    a.set_narrow(&id(2), true);
    // One side knows; its packets tell the other one.
    let joined = |mesh: &Mesh| mesh.counters()[MeshCount::PacketsJoined];
    within(LIMIT, eventually(|| joined(&a) > 1000 && joined(&b) > 1000)).await;
    passes.store(1500, Ordering::Relaxed);
    a.set_narrow(&id(2), false);
    within(LIMIT, transfer).await.unwrap().unwrap();
    assert_eq!((drops(&a), drops(&b)), (0, 0));
    // A connection that is opened over a narrow path.
    passes.store(MTU, Ordering::Relaxed);
    let sent = joined(&a);
    b.set_narrow(&id(1), true);
    within(Duration::from_secs(5), round_trip(&b, id(1), &vec![1; 100_000])).await.unwrap();
    assert!(joined(&a) > sent + 50);
}
