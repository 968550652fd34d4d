//! Tests in real time, since the tunnel's clock is the machine's.

use std::net::SocketAddr;
use std::time::Duration;

use crate::common::*;
use meshport_mesh::{MeshConfig, MeshCount};

#[tokio::test]
#[ignore = "takes 200 s of real time"]
async fn sessions_in_use_are_renewed_and_idle_ones_end() {
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let config = MeshConfig::default();
    let (a, b) = udp_pair(address, &config);
    let (quiet, quiet_peer) = udp_pair(address, &config);
    quiet.mesh.ping(id(2), Duration::from_secs(1)).await.unwrap();

    let (b, _echo) = echo(b);
    let mut worst = Duration::ZERO;
    for _ in 0..1900 {
        let rtt = a.mesh.ping(id(2), Duration::from_secs(2)).await.expect("no echo is lost");
        worst = worst.max(rtt);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(worst < Duration::from_millis(500), "a stall of {worst:?}");
    let counters = a.mesh.counters();
    assert_eq!(counters[MeshCount::HandshakesCompleted], 2, "one renewal: {counters:?}");
    assert_eq!(counters[MeshCount::HandshakesAfterSilence], 0);
    assert_eq!(b.counters()[MeshCount::HandshakesCompleted], 0);

    assert!(!quiet.mesh.peers()[0].session, "an idle session ends");
    let counters = quiet.mesh.counters();
    assert_eq!(counters[MeshCount::InitiationsSent], 1, "and nobody renews it: {counters:?}");
    assert_eq!(quiet_peer.mesh.counters()[MeshCount::InitiationsSent], 0);
    quiet.mesh.ping(id(2), Duration::from_secs(2)).await.expect("it comes back");
}
