//! The cost of every new session in pure code: its first bytes, its header on the wire, and the
//! order of origins. `cargo bench -p meshport --bench hot`; `splice.rs` is about the bytes that
//! follow.

use std::time::{Duration, Instant};

use divan::{Bencher, black_box};
use meshport_config::NodeId;
use meshport_core::route::{OriginView, PathView, Policy, Preference, choose};
use meshport_core::wire::Header;
use meshport_daemon::bench;
use meshport_discovery::OriginState;

fn main() {
    divan::main();
}

fn header() -> Header {
    let service = "kube-apiserver".parse().expect("a service name");
    Header::relayed(service, NodeId::from_bytes([7; 32]), Duration::from_secs(10))
}

#[divan::bench]
fn header_encode(bencher: Bencher<'_, '_>) {
    let header = header();
    bencher.bench(|| black_box(&header).encode());
}

#[divan::bench]
fn header_decode(bencher: Bencher<'_, '_>) {
    let bytes = header().encode();
    bencher.bench(|| Header::decode(black_box(&bytes)));
}

/// A client's first bytes as far as they may go to a candidate: a whole hello of so many bytes.
#[divan::bench(args = [517, 1800])]
fn opening(bencher: Bencher<'_, '_>, length: u16) {
    let hello = (length - 4).to_be_bytes();
    let header = [22, 3, 1, length.to_be_bytes()[0], length.to_be_bytes()[1]];
    let message = [1, 0, hello[0], hello[1]];
    let body = vec![9; usize::from(length) - message.len()];
    let first = [&header[..], &message, &body].concat();
    assert_eq!(bench::open(&first).as_deref(), Some(&first[..]));
    bencher.bench(|| bench::open(black_box(&first)));
}

fn origins(count: u8) -> Vec<OriginView> {
    let origin = |number: u8| {
        let site = "fra".parse().expect("a site");
        let node = NodeId::from_bytes([number; 32]);
        let view = OriginView::of_node(node, format!("cp-{number}"), site, OriginState::Ready);
        let path = PathView::Up(Duration::from_millis(u64::from(number) * 7 % 50 + 1));
        OriginView { path, ..view }
    };
    (1..=count).map(origin).collect()
}

/// The order of so many origins, after news about one.
#[divan::bench(args = [3, 9, 50])]
fn choose_route(bencher: Bencher<'_, '_>, count: u8) {
    #[expect(clippy::disallowed_methods, reason = "an origin for virtual time")]
    let now = Instant::now();
    let policy = Policy::Nearest { band: Duration::from_millis(1), band_percent: 15 };
    let (_, memory) = choose(origins(count), &policy, &Preference::default(), now);
    bencher
        .with_inputs(|| origins(count))
        .bench_values(|origins| choose(origins, &policy, &memory, now));
}

/// The question that a session asks of a route: which origins to try, in which order.
#[divan::bench(args = [3, 9, 50])]
fn attempt_order(bencher: Bencher<'_, '_>, count: u8) {
    #[expect(clippy::disallowed_methods, reason = "an origin for virtual time")]
    let now = Instant::now();
    let policy = Policy::Nearest { band: Duration::from_millis(1), band_percent: 15 };
    let (route, _) = choose(origins(count), &policy, &Preference::default(), now);
    bencher.bench(|| route.attempt_order(black_box(12_345), |_| 3).len());
}
