//! Bytes through a virtual address: beside the holder's own address, and with the origin on another
//! node.

#![expect(clippy::print_stdout, reason = "figures for the reader of a test run")]

use std::net::SocketAddr;

use meshport_tests::transfer::{self, Direction};
use meshport_tests::wait;

use super::wires::{NODES, Wires};
use super::{Lan, SETTLE, V4};

const BYTES: u64 = 512 << 20;

/// Downloads from the LAN's client.
fn download(lan: &Lan, what: &str, to: SocketAddr) {
    let client = &lan.wires.client;
    wait::until("the service answers", SETTLE, || {
        client.inside(|| transfer::transfer(to, Direction::Down, 1)).ok()
    });
    let done =
        client.inside(|| transfer::transfer(to, Direction::Down, BYTES)).expect("it arrives whole");
    println!("{what}: {:.0} MB/s", done.rate() / 1e6);
}

#[test]
#[ignore = "needs root for network namespaces: ./tests/run virtual-address"]
fn bytes_through_the_address_come_as_fast_as_without_it() {
    let mut lan = Lan::new();
    let holder = lan.settled("v4", &NODES);
    let other = Lan::others(holder)[0];
    for origin in [holder, other] {
        let service = lan.wires.host(origin).inside(transfer::serve);
        for name in NODES {
            let number = Wires::number(name);
            let offer =
                if name == origin { format!("origin = \"{service}\"\n") } else { String::new() };
            lan.extra = format!(
                "[service.bulk]\nlisten = []\n{offer}[[expose]]\nname = \"bulk\"\n\
                 service = \"bulk\"\nlisten = [\"{V4}:7001\", \"10.77.0.{number}:7001\"]\n\
                 allow = [\"10.77.0.0/24\"]\n"
            );
            lan.daemons.remove(name);
            lan.start(name, "");
        }
        let now = lan.settled("v4", &NODES);
        let place = if now == origin { "beside the holder" } else { "on another node" };
        let own: SocketAddr = format!("10.77.0.{}:7001", Wires::number(now)).parse().expect("one");
        download(
            &lan,
            &format!("virtual address, origin {place}"),
            SocketAddr::new(V4.parse().expect("one"), 7001),
        );
        download(&lan, &format!("the holder's own address, origin {place}"), own);
    }
}
