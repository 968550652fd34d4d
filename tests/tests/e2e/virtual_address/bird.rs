//! The address as a route: the settings of the page for BIRD, and a router that speaks BGP with it.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use meshport_tests::manual;
use meshport_tests::netns::Namespace;
use meshport_tests::process::{Process, meshport};
use meshport_tests::wait;

use super::wires::{NODES, Wires};
use super::{Lan, SETTLE, V4};

pub(super) const ROUTER: &str = "10.77.0.100";

/// The router's configuration: it peers with all nodes and installs their routes in its kernel.
pub(super) fn router() -> String {
    let mut text = format!(
        "router id {ROUTER};\n\
         protocol device {{}}\n\
         protocol kernel {{ ipv4 {{ import none; export all; }}; }}\n"
    );
    for name in NODES {
        let number = Wires::number(name);
        text += &format!(
            "protocol bgp {name} {{\n\
             local {ROUTER} as 64513; neighbor 10.77.0.{number} as 64512;\n\
             ipv4 {{ import all; export none; }};\n}}\n"
        );
    }
    text
}

/// Processes end before their hosts do.
struct Routed {
    birds: BTreeMap<&'static str, Process>,
    /// What listens at the address itself: meshport only says where it is.
    servers: Vec<Process>,
    lan: Lan,
}

impl Routed {
    fn new() -> Self {
        let mut routed = Self { birds: BTreeMap::new(), servers: Vec::new(), lan: Lan::new() };
        // Its daemons serve the address themselves.
        routed.lan.daemons.clear();
        for name in NODES {
            let number = Wires::number(name);
            let text = of_page(
                "text",
                &[
                    ["192.0.2.21", &format!("10.77.0.{number}")],
                    ["192.0.2.10/", &format!("{V4}/")],
                    ["192.0.2.1 ", &format!("{ROUTER} ")],
                ],
            );
            routed.start_bird(name, &text);
            routed.serve(name);
        }
        routed.start_bird("router", &router());
        NODES.into_iter().for_each(|name| routed.start_daemon(name));
        routed
    }

    fn path(&self, name: &str) -> PathBuf {
        self.lan.folder.path().join(name)
    }

    fn host(&self, name: &str) -> &Namespace {
        if name == "router" { &self.lan.wires.client } else { self.lan.wires.host(name) }
    }

    fn start_bird(&mut self, name: &'static str, text: &str) {
        let [config, socket] =
            [self.path(&format!("{name}.bird")), self.path(&format!("{name}.ctl"))];
        fs::write(&config, text).expect("the folder can be written");
        let mut command = self.host(name).command("bird");
        command.arg("-f").arg("-c").arg(&config).arg("-s").arg(&socket);
        let log = self.path(&format!("{name}.bird.log"));
        self.birds.insert(name, Process::start("bird", &mut command, &log));
        let ask = ["-s", &socket.to_string_lossy(), "show", "status"];
        wait::until("BIRD has read its settings", SETTLE, || {
            self.host(name).succeeds("birdc", &ask).then_some(())
        });
    }

    /// A server of the node's name at the address.
    fn serve(&mut self, name: &str) {
        let mut command = self.host(name).command(&meshport().to_string_lossy());
        command.args(["stand-in", "--name", name, "--listen", &format!("{V4}:6443"), "--pki"]);
        command.arg(self.path("pki"));
        let log = self.path(&format!("server-{name}.log"));
        self.servers.push(Process::start(name, &mut command, &log));
    }

    /// Starts the daemon with the address and the commands of the page, and without `[[expose]]`.
    fn start_daemon(&mut self, name: &'static str) {
        let settings = self.lan.settings(name, "");
        let (own, _) = settings.split_once("[[expose]]").expect("a listener");
        let birdc = format!("birdc -s {} ", self.path(&format!("{name}.ctl")).display());
        let address = of_page(
            "toml",
            &[
                ["site = \"fra\"\n", ""],
                ["192.0.2.10", V4],
                ["\"eth0\"", "\"lan\""],
                ["birdc ", &birdc],
            ],
        );
        self.lan.start_with(name, &format!("{own}{address}"));
    }

    /// The node that the router sends packets for the address to.
    fn next_hop(&self) -> Option<&'static str> {
        let route = self.lan.wires.client.ip(&["route", "show", &format!("{V4}/32")]);
        let to = |name: &&str| route.contains(&format!("via 10.77.0.{} ", Wires::number(name)));
        NODES.into_iter().find(to)
    }

    /// The node that answers a client behind the router.
    fn who(&self) -> Option<String> {
        let to = SocketAddr::new(V4.parse::<IpAddr>().expect("an address"), 6443);
        let url = format!("https://{to}/whoami");
        let asked = ["-sk", "--max-time", "2", &url];
        self.lan
            .wires
            .client
            .succeeds("curl", &asked)
            .then(|| self.lan.wires.client.run("curl", &asked))
    }

    fn leads_to(&self, name: &str) {
        wait::until(&format!("the route leads to {name}"), SETTLE, || {
            (self.next_hop()? == name && self.who()?.contains(name)).then_some(())
        });
    }
}

/// The page's block of this language about BIRD, with addresses of the lab.
fn of_page(language: &str, changes: &[[&str; 2]]) -> String {
    let blocks = manual::under("virtual-addresses.md", "Routed networks", language);
    let block = blocks.into_iter().find(|it| it.contains("vip")).expect("it is there");
    changes.iter().fold(block, |text, [from, to]| {
        assert!(text.contains(from), "{from} is not in\n{text}");
        text.replace(from, to)
    })
}

#[test]
#[ignore = "needs root for network namespaces: ./tests/run virtual-address"]
fn a_route_of_bird_follows_the_address_that_no_listener_of_meshport_serves() {
    let mut routed = Routed::new();
    let holder = routed.lan.settled("api", &NODES);
    routed.leads_to(holder);

    // A daemon that is killed leaves no route behind.
    routed.lan.daemons.remove(holder).expect("it runs").kill();
    let left = Lan::others(holder);
    let next = routed.lan.settled("api", &left);
    assert_ne!(next, holder);
    routed.leads_to(next);

    // Nor does one that hangs, nor one that stops.
    routed.start_daemon(holder);
    routed.lan.settled("api", &NODES);
    routed.lan.daemons[next].signal("STOP");
    let third = wait::until("the route leads elsewhere", SETTLE, || {
        routed.next_hop().filter(|name| *name != next)
    });
    routed.leads_to(third);
    routed.lan.daemons[next].signal("CONT");
    assert_eq!(routed.lan.settled("api", &NODES), third);
    routed.leads_to(third);
    routed.lan.daemons.clear();
    wait::until("no route is left", SETTLE, || routed.next_hop().is_none().then_some(()));
}
