//! An origin and a worker, each behind a NAT of its own that gives every destination another port:
//! neither can start a handshake with the other, so a relay carries the sessions between them.

use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};

use meshport_core::reach::{BOTH_BEHIND_NAT, BOTH_BEHIND_NAT_REMEDY};
use meshport_tests::netns::{self, Namespace};
use meshport_tests::wait;

use super::{Daemons, SETTLE, masquerade, speaks};

const HUB: &str = "198.51.100.1";
const RELAY: &str = "198.51.100.2";
const SERVER: &str = "127.0.0.1:7000";
const WORD: &str = "the server inside";

/// Two hosts on the internet, and two behind routers of their own. Processes end before their
/// namespaces do.
struct TwoNats {
    daemons: Daemons,
    hub: Namespace,
    relay: Namespace,
    origin: Namespace,
    worker: Namespace,
    _between: [Namespace; 3],
}

impl TwoNats {
    fn new() -> Self {
        let daemons = Daemons::new();
        let internet = Namespace::new();
        internet.ip(&["link", "add", "wan", "type", "bridge", "mcast_snooping", "0"]);
        internet.ip(&["link", "set", "wan", "up"]);
        let public = |address: &str| {
            let host = Namespace::new();
            netns::plug(&host, "wan", &[&format!("{address}/24")], &internet, "wan");
            host
        };
        let behind = |router: &str, subnet: &str| {
            let (router, inside) = (public(router), Namespace::new());
            let gateway = format!("{subnet}.1");
            let ends = [format!("{subnet}.2/24"), format!("{gateway}/24")];
            netns::cable(&inside, &ends[0], &router, &ends[1]);
            inside.ip(&["route", "add", "default", "via", &gateway]);
            masquerade(&daemons, &router, "wan", "", "random");
            (router, inside)
        };
        let (hub, relay) = (public(HUB), public(RELAY));
        let (router, origin) = behind("198.51.100.7", "192.168.7");
        let (other, worker) = behind("198.51.100.8", "192.168.8");
        let between = [internet, router, other];
        Self { daemons, hub, relay, origin, worker, _between: between }
    }

    /// Everything that a command of the worker prints, whether it succeeds or not.
    fn words(&self, verb: &[&str]) -> String {
        let output = self.daemons.run("worker", verb);
        let both =
            [output.stdout, output.stderr].map(|it| String::from_utf8_lossy(&it).into_owned());
        both.concat()
    }

    /// Waits until a command of the worker says something about the origin.
    fn says(&self, verb: &[&str], words: &str) {
        let line = |text: String| {
            let mut lines = text.lines().filter(|line| line.contains("origin"));
            lines.any(|line| line.contains(words)).then_some(())
        };
        let what = format!("meshport {} says: {words}", verb.join(" "));
        wait::until(&what, SETTLE, || line(self.words(verb)));
    }

    /// What a client on the worker gets from the server behind the other NAT.
    fn answer(&self) -> Option<String> {
        let status = self.daemons.ask("worker", &["status"])?;
        let local: SocketAddr = status["services"][0]["listen"][0].as_str()?.parse().ok()?;
        let mut answer = String::new();
        let mut client = self.worker.inside(|| TcpStream::connect(local)).ok()?;
        client.set_read_timeout(Some(SETTLE)).ok()?;
        client.read_to_string(&mut answer).ok()?;
        Some(answer).filter(|it| !it.is_empty())
    }
}

#[test]
#[ignore = "needs root for network namespaces, and nft: ./tests/run e2e"]
fn two_nodes_behind_two_nats_say_why_they_do_not_meet_and_a_relay_carries_their_sessions() {
    let mut nats = TwoNats::new();
    let server = nats.origin.inside(|| TcpListener::bind(SERVER));
    speaks(server.expect("the port is free inside"), WORD);
    nats.daemons.join("hub", "hub", &["node"]);
    let service = "[service.echo]\nlisten = ";
    let public = |at: &str| format!("advertise = [\"{at}:51820\"]\n{service}[\"127.0.0.1:0\"]\n");
    nats.daemons.start("hub", &nats.hub, &public(HUB));
    nats.daemons.join("origin", "hub", &["node", "origin:echo"]);
    nats.daemons.join("worker", "hub", &["node"]);
    let offer = format!("{service}[]\norigin = \"{SERVER}\"\n");
    nats.daemons.start("origin", &nats.origin, &offer);
    nats.daemons.start("worker", &nats.worker, &format!("{service}[\"127.0.0.1:0\"]\n"));

    nats.says(&["status"], BOTH_BEHIND_NAT);
    nats.says(&["status"], "echo: origin and this node are both behind NAT");
    nats.says(&["peers"], BOTH_BEHIND_NAT_REMEDY);
    nats.says(&["explain"], BOTH_BEHIND_NAT_REMEDY);
    nats.says(&["ping", "origin", "--count", "1"], BOTH_BEHIND_NAT_REMEDY);
    assert!(!nats.daemons.is_reached("worker", "origin"), "there is a direct path");
    assert_eq!(nats.answer(), None, "there is a way");

    nats.daemons.join("relay", "hub", &["node", "relay"]);
    nats.daemons.start("relay", &nats.relay, &public(RELAY));
    wait::until("sessions go through the relay", SETTLE, || {
        let status = nats.daemons.ask("worker", &["status"])?;
        let chosen = &status["services"][0]["chosen"];
        (chosen["name"] == "origin" && chosen["relay"] == "relay").then_some(())
    });
    let answer = wait::until("the server answers", SETTLE, || nats.answer());
    assert_eq!(answer, WORD);
    nats.says(&["status"], "through relay");
    // There is no direct path, but nothing to do about it.
    for verb in [&["peers"][..], &["ping", "origin", "--count", "1"]] {
        nats.says(verb, "no direct path: sessions go through relay");
    }
}
