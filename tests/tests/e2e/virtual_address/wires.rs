//! Hosts, a client and a switch in network namespaces: a bridge for the LAN and another for the
//! mesh, so that either can be cut alone.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use meshport_tests::netns::{self, Namespace};
use meshport_tests::process::run;
use meshport_tests::witness::Stations;

pub(super) const NODES: [&str; 3] = ["a", "b", "c"];

/// A network of the lab, by its place in [`Wires::plugs`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Net {
    Lan,
    Mesh,
}

impl Net {
    const fn bridge(self) -> &'static str {
        match self {
            Self::Lan => "lan",
            Self::Mesh => "mesh",
        }
    }
}

#[derive(Debug)]
pub(super) struct Wires {
    hosts: BTreeMap<&'static str, Namespace>,
    /// The switch's end of each cable: of the LAN and of the mesh.
    plugs: BTreeMap<&'static str, [String; 2]>,
    pub(super) client: Namespace,
    pub(super) switch: Namespace,
}

impl Wires {
    pub(super) fn new() -> Self {
        netns::remove_stale();
        let (switch, client) = (Namespace::new(), Namespace::new());
        for net in [Net::Lan, Net::Mesh] {
            // Without a querier a snooping bridge would withhold groups from hosts that have not
            // joined.
            let bridge = ["type", "bridge", "mcast_snooping", "0"];
            switch.ip(&[&["link", "add", net.bridge()][..], &bridge].concat());
            switch.ip(&["link", "set", net.bridge(), "up"]);
        }
        netns::plug(&client, "lan", &["10.77.0.100/24", "fd77::100/64"], &switch, "lan");
        let (mut hosts, mut plugs) = (BTreeMap::new(), BTreeMap::new());
        for (number, name) in (1..).zip(NODES) {
            let host = Namespace::new();
            let own = [format!("10.77.0.{number}/24"), format!("fd77::{number}/64")];
            let own = own.each_ref().map(String::as_str);
            let lan = netns::plug(&host, "lan", &own, &switch, "lan");
            let outer = format!("198.51.100.{number}/24");
            let mesh = netns::plug(&host, "mesh", &[&outer], &switch, "mesh");
            hosts.insert(name, host);
            plugs.insert(name, [lan, mesh]);
        }
        Self { hosts, plugs, client, switch }
    }

    pub(super) fn host(&self, name: &str) -> &Namespace {
        &self.hosts[name]
    }

    /// The number of a host in its addresses.
    pub(super) fn number(name: &str) -> usize {
        NODES.iter().position(|it| *it == name).expect("one of them") + 1
    }

    /// The LAN, with the hardware addresses on it and whose they are.
    pub(super) fn stations(&self) -> Stations<'_, &'static str> {
        let station = |(name, host): (&&'static str, &Namespace)| {
            let text = host.run("cat", &["/sys/class/net/lan/address"]);
            (text, *name)
        };
        Stations {
            switch: &self.switch,
            client: (&self.client, "lan"),
            asker: Ipv4Addr::new(10, 77, 0, 200),
            names: self.hosts.iter().map(station).collect(),
        }
    }

    /// Takes a node off a network, whose carrier it still sees.
    pub(super) fn cut(&self, name: &str, net: Net) {
        self.switch.ip(&["link", "set", &self.plugs[name][net as usize], "nomaster"]);
    }

    pub(super) fn heal(&self, name: &str, net: Net) {
        let plug = &self.plugs[name][net as usize];
        self.switch.ip(&["link", "set", plug, "master", net.bridge()]);
    }

    /// Takes the carrier from a node's cables, or gives it back.
    pub(super) fn carry(&self, name: &str, net: Net, carries: bool) {
        let state = if carries { "up" } else { "down" };
        self.switch.ip(&["link", "set", &self.plugs[name][net as usize], state]);
    }

    /// The processes on a host, or those of them that run one program.
    pub(super) fn processes(&self, name: &str, program: Option<&str>) -> Vec<String> {
        let runs = |id: &String| {
            program.is_none_or(|program| {
                let comm = std::fs::read_to_string(format!("/proc/{id}/comm"));
                comm.is_ok_and(|comm| comm.trim() == program)
            })
        };
        self.hosts[name].processes().into_iter().filter(runs).collect()
    }

    /// Sends a signal to processes, of which some may have ended; to all at once, so that none has
    /// the time to see another one's end.
    pub(super) fn signal(ids: &[String], signal: &str) {
        let ids = ids.iter().map(String::as_str).collect::<Vec<_>>();
        let _ = run("kill", &[&["-s", signal][..], &ids].concat());
    }
}
