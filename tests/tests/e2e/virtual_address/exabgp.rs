//! Every node that can serve announces the address: ExaBGP with its health check, as the page has
//! it, and a router that speaks BGP with all nodes.

#![expect(clippy::print_stdout, reason = "figures for the reader of a test run")]

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use meshport_tests::manual;
use meshport_tests::process::Process;
use meshport_tests::wait;

use super::bird::{ROUTER, router};
use super::wires::{NODES, Net, Wires};
use super::{Lan, SETTLE, V4};

/// Processes end before their hosts do.
struct Anycast {
    speakers: BTreeMap<&'static str, Process>,
    router: Process,
    lan: Lan,
}

impl Anycast {
    fn new() -> Self {
        let mut lan = Lan::new();
        // Nothing elects a holder.
        lan.daemons.clear();
        NODES.into_iter().for_each(|name| start_daemon(&mut lan, name));
        let [config, socket] =
            ["router.conf", "router.ctl"].map(|name| lan.folder.path().join(name));
        fs::write(&config, router()).expect("the folder can be written");
        let mut bird = lan.wires.client.command("bird");
        bird.arg("-f").arg("-c").arg(config).arg("-s").arg(socket);
        let router = Process::start("bird", &mut bird, &lan.folder.path().join("router.log"));
        let mut anycast = Self { speakers: BTreeMap::new(), router, lan };
        NODES.into_iter().for_each(|name| anycast.start_speaker(name));
        anycast
    }

    fn path(&self, name: &str) -> PathBuf {
        self.lan.folder.path().join(name)
    }

    /// ExaBGP with the page's configuration, in the lab's addresses.
    fn start_speaker(&mut self, name: &'static str) {
        let blocks = manual::under("virtual-addresses.md", "Routed networks", "text");
        let block = blocks.into_iter().find(|it| it.contains("healthcheck")).expect("a block");
        let own = format!("10.77.0.{}", Wires::number(name));
        let changes = [
            ["192.0.2.21", &own],
            ["192.0.2.10 ", &format!("{V4} ")],
            ["192.0.2.1 ", &format!("{ROUTER} ")],
        ];
        let text = changes.iter().fold(block, |text, [from, to]| {
            assert!(text.contains(from), "{from} is not in\n{text}");
            text.replace(from, to)
        });
        let config = self.path(&format!("{name}.exabgp"));
        fs::write(&config, text).expect("the folder can be written");
        let mut command = self.lan.wires.host(name).command("exabgp");
        // Else it runs as nobody, who cannot read the folder.
        command.env("exabgp_daemon_user", "root").arg(&config);
        let log = self.path(&format!("{name}.exabgp.log"));
        self.speakers.insert(name, Process::start("exabgp", &mut command, &log));
    }

    /// The nodes whose route the router has.
    fn announcing(&self) -> Vec<&'static str> {
        let socket = self.path("router.ctl").to_string_lossy().into_owned();
        let shown = |name: &&str| {
            let asked = ["-s", &socket, "show", "route", "protocol", name];
            self.lan.wires.client.succeeds("birdc", &asked)
                && self.lan.wires.client.run("birdc", &asked).contains(&format!("{V4}/32"))
        };
        NODES.into_iter().filter(shown).collect()
    }

    #[track_caller]
    fn until_announced_by(&self, nodes: &[&str], when: &str) {
        let begun = wait::now();
        let is_so = wait::within(SETTLE, || (self.announcing() == nodes).then_some(()));
        let said = self.router.output();
        assert!(is_so.is_some(), "{when}: {:?}, not {nodes:?}; {said}", self.announcing());
        println!("{when}: announced by {nodes:?} after {} ms", begun.elapsed().as_millis());
    }

    /// Whether who comes over the router's kernel is answered at the address.
    fn answers(&self) -> bool {
        let url = format!("https://{V4}:6443/version");
        self.lan.wires.client.succeeds("curl", &["-sk", "--max-time", "2", &url])
    }
}

/// A daemon with the listener, its admin port, and no `[[virtual-address]]`.
fn start_daemon(lan: &mut Lan, name: &'static str) {
    let settings = lan.settings(name, "");
    let (own, _) = settings.split_once("[[virtual-address]]").expect("it is there");
    let off = "http = \"off\"\n";
    assert!(own.contains(off), "{own}");
    lan.start_with(name, &own.replace(off, ""));
}

#[test]
#[ignore = "needs root, exabgp and BIRD: ./tests/run virtual-address"]
fn every_node_that_can_serve_announces_the_address_by_exabgp() {
    let mut anycast = Anycast::new();
    let [first, second, third] = NODES;
    anycast.until_announced_by(&NODES, "all can serve");
    wait::until("a client behind the router is answered", SETTLE, || {
        anycast.answers().then_some(())
    });

    // It reaches the others' apiservers, until it reaches nobody.
    anycast.lan.apiservers.remove(first).expect("it runs").kill();
    wait::until("its daemon knows", SETTLE, || {
        let status = anycast.lan.status(first)?;
        (status["services"][0]["chosen"]["name"] != first).then_some(())
    });
    anycast.until_announced_by(&NODES, "its own apiserver is dead");
    anycast.lan.wires.cut(first, Net::Mesh);
    anycast.until_announced_by(&[second, third], "it has no usable apiserver");
    assert!(anycast.answers());
    anycast.lan.wires.heal(first, Net::Mesh);
    anycast.until_announced_by(&NODES, "it reaches the others again");

    // Whatever becomes of the daemon.
    anycast.lan.daemons[second].signal("STOP");
    anycast.until_announced_by(&[first, third], "a daemon hangs");
    anycast.lan.daemons[second].signal("CONT");
    anycast.until_announced_by(&NODES, "it goes on");
    anycast.lan.daemons.remove(second).expect("it runs").kill();
    anycast.until_announced_by(&[first, third], "a daemon is killed");
    start_daemon(&mut anycast.lan, second);
    anycast.until_announced_by(&NODES, "it is started again");
}
