//! The cost in bytes and packets.

use std::time::Duration;

use super::net::{Net, ms, secs};
use crate::Count;
use crate::core::Event;
use crate::state::OriginState;

/// Bytes below a datagram: inner UDP and IPv6, WireGuard with padding, outer UDP and IPv4.
const HEADERS: f64 = 112.0;

/// Prints the bytes sent per node, by purpose, and some sums that explain them.
fn print_spent(net: &Net, when: &str) {
    let count = net.running().count() as u64;
    let sum = |of: Count| -> u64 { net.running().map(|it| net.get(it).counters()[of]).sum() };
    println!(
        "{when}: bytes per node: swim {} path {} news {} sync {}; published {} merged {} syncs {} \
         suspicions {} softened {} requests dropped {}",
        sum(Count::SentSwimBytes) / count,
        sum(Count::SentPathBytes) / count,
        sum(Count::SentNewsBytes) / count,
        sum(Count::SentSyncBytes) / count,
        sum(Count::Published),
        sum(Count::Merged),
        sum(Count::Syncs),
        sum(Count::Suspicions),
        sum(Count::SoftenedClaims),
        sum(Count::DroppedRequests),
    );
}

/// The times since `start` at which nodes reported something, as the first, the 99th percentile and
/// the last.
fn spread(net: &Net, start: Duration, is: impl Fn(&Event) -> bool) -> [Duration; 3] {
    let first = |it: usize| {
        let mut events = net.nodes[it].events.iter();
        events.find(|(at, event)| *at >= start && is(event)).map(|(at, _)| *at - start)
    };
    let mut times: Vec<Duration> = net.running().filter_map(first).collect();
    times.sort_unstable();
    [times[0], times[times.len() * 99 / 100], times[times.len() - 1]]
}

#[test]
fn two_hundred_nodes_stay_within_the_byte_budget() {
    let mut net = Net::with_nodes(31, 200, 5, 5);
    net.until(secs(20), "200 nodes joining at once", Net::agreed);
    print_spent(&net, "joined");
    // Two hundred records in about as many datagrams, and what membership needs. A node that keeps
    // requesting what its peer does not have needs thousands.
    let sent: u64 = net.running().map(|it| net.get(it).counters()[Count::SentPackets]).sum();
    assert!(sent / 200 < 1000, "{} datagrams of each node to join", sent / 200);
    net.run(secs(60));
    print_spent(&net, "a minute later");
    let (bytes, packets) = net.rate(secs(120));
    let with_headers = bytes + packets * HEADERS;
    println!("quiet: {bytes:.0} B/s, {packets:.1} packets/s, {with_headers:.0} B/s with headers");
    print_spent(&net, "three minutes later");
    assert!(bytes < 400.0, "{bytes}");
    assert!(with_headers < 2048.0, "{with_headers}");
    net.links.loss_percent = 1;
    net.set_service(2, OriginState::Unready);
    net.until(ms(1500), "news among 200", |net| {
        net.running().all(|it| net.sees_service(it, 2) == Some(OriginState::Unready))
    });
}

#[test]
#[ignore = "takes minutes: cargo test --release -p meshport-discovery -- --ignored a_thousand"]
fn a_thousand_nodes() {
    let mut net = Net::with_nodes(32, 1000, 5, 5);
    for second in 1..=30 {
        net.run(secs(1));
        let alive = |it: usize| net.get(it).directory().alive();
        let mut alive: Vec<usize> = net.running().map(alive).collect();
        alive.sort_unstable();
        println!("{second} s: {} to {} alive, median {}", alive[0], alive[999], alive[500]);
    }
    print_spent(&net, "joined");
    assert!(net.agreed());
    net.links.loss_percent = 1;
    net.run(secs(60));
    print_spent(&net, "a minute later");
    let (bytes, packets) = net.rate(secs(30));
    let with_headers = bytes + packets * HEADERS;
    println!("quiet: {bytes:.0} B/s, {packets:.1} packets/s, {with_headers:.0} B/s with headers");
    let start = net.now();
    net.set_service(2, OriginState::Unready);
    net.run(secs(5));
    let origin = net.id(2);
    let times = spread(&net, start, |event| *event == Event::StateChanged(origin));
    println!("news: first, p99, last {times:?}");
    assert!(times[1] <= ms(1500));
    for victim in [700, 3] {
        let start = net.now();
        net.crash(victim);
        net.run(secs(15));
        let dead = net.id(victim);
        let times = spread(&net, start, |event| *event == Event::MemberDown(dead));
        println!("death of {victim}: first, p99, last {times:?}");
        assert!(times[1] <= secs(8));
    }
    print_spent(&net, "after two deaths");
}
