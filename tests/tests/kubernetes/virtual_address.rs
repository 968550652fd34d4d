//! A virtual address in front of real apiservers: three control-plane hosts on one bridge hold it
//! in turn, and a client on the bridge knows nothing else.

#![expect(clippy::print_stdout, reason = "figures for the reader of a test run")]

mod bring_up;

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use meshport_tests::clients::{Clients, Held, HeldSeen, Seen, trusting};
use meshport_tests::kubernetes::{
    Beat, Cluster, Plan, SETTLE_LIMIT, WORKER, Watchers, origin, rounds,
};
use meshport_tests::netns::{self, Namespace};
use meshport_tests::wait;

const ADDRESS: &str = "192.0.2.10";
const PORT: u16 = 7445;
/// What it is called.
const NAME: &str = "api.example.com";
/// How long a fault lasts, and how long its mending is looked at.
const LASTING: Duration = Duration::from_secs(8);
const AFTERWARDS: Duration = Duration::from_secs(5);
/// How long the address may be without an answer when its holder dies without a word.
const MAX_GAP: Duration = Duration::from_secs(2);
/// Watches of the Python client, which has no timeout and never asks on an open connection, and how
/// long they may be without an event; one comes every quarter of a second.
const WATCHES: usize = 20;
const MAX_SILENCE: Duration = Duration::from_secs(4);
/// Holds the address and listens on it, as in docs/kubeadm.md.
const SETTINGS: &str = "
[[expose]]
name = \"vip\"
listen = [\"192.0.2.10:7445\"]
service = \"kube-apiserver\"
allow = [\"192.0.2.0/24\"]

[[virtual-address]]
name = \"api\"
address = \"192.0.2.10\"
interface = \"eth0\"
group = \"rack-1\"
";

/// The cluster and, beside the network of its daemons and of etcd, a bridge with its control-plane
/// hosts and a client.
struct Lan {
    // Its processes end before the hosts do.
    cluster: Cluster,
    _switch: Namespace,
    client: Namespace,
}

impl Lan {
    /// The hosts, the worker as well, and etcd.
    fn hosts() -> Self {
        let cluster = Cluster::hosts(Plan {
            distances: vec![Duration::ZERO; 3],
            sites: vec!["fra".to_owned(); 3],
            names: vec![ADDRESS.to_owned(), NAME.to_owned()],
            origin_roles: "node,origin:kube-apiserver,vip",
            ..Plan::default()
        });
        let (switch, client) = (Namespace::new(), Namespace::new());
        // Without a querier a bridge that snoops would keep groups from who has not joined.
        switch.ip(&["link", "add", "lan", "type", "bridge", "mcast_snooping", "0"]);
        switch.ip(&["link", "set", "lan", "up"]);
        netns::plug(&client, "eth0", &["192.0.2.100/24"], &switch, "lan");
        for at in 0..=cluster.origins() {
            let host = cluster.host(at).namespace();
            let own =
                if at == WORKER { "192.0.2.50/24".to_owned() } else { format!("192.0.2.{at}/24") };
            netns::plug(host, "eth0", &[&own], &switch, "lan");
        }
        Self { cluster, _switch: switch, client }
    }

    /// With an apiserver and a daemon on each control-plane host.
    fn running() -> Self {
        let mut lan = Self::hosts();
        let numbers = 1..=lan.cluster.origins();
        for number in numbers.clone() {
            lan.cluster.spawn_apiserver(number, &[]);
            // What docs/virtual-addresses.md has an administrator do.
            let host = lan.cluster.host(number).namespace();
            host.ip(&["addr", "add", &format!("{ADDRESS}/32"), "dev", "lo"]);
            host.run("sysctl", &["-w", "net.ipv4.conf.all.arp_ignore=1"]);
            host.run("sysctl", &["-w", "net.ipv4.conf.all.arp_announce=2"]);
        }
        for number in numbers {
            lan.cluster.apiserver_is_ready(number);
            lan.cluster.make_node(number);
            lan.cluster.add_settings(number, SETTINGS);
            lan.cluster.start_node(number);
        }
        lan
    }

    /// The host that holds the address, once the others know it, each knows every apiserver, and
    /// the holder sends clients to its own.
    fn settled(&self) -> usize {
        let count = self.cluster.origins();
        wait::until("one node holds the address, and all know all", SETTLE_LIMIT, || {
            let parts: Option<Vec<_>> = (1..=count)
                .map(|number| Some(self.cluster.status(number)?["virtual_addresses"][0].clone()))
                .collect();
            let parts = parts?;
            let holds = |number: &usize| parts[number - 1]["state"] == "holding";
            let holders: Vec<usize> = (1..=count).filter(holds).collect();
            let [holder] = holders[..] else { return None };
            let name = origin(holder);
            let knows = |number: usize| {
                (number == holder || parts[number - 1]["holder"] == *name)
                    && self.cluster.ready(number).len() == count
            };
            let chosen = self.cluster.chosen(holder)?;
            ((1..=count).all(knows) && chosen == name).then_some(holder)
        })
    }

    /// New connections each 50 ms, and held ones.
    fn clients(&self) -> (Clients, Held) {
        let authority = self.cluster.pki.path("ca.crt");
        let to = SocketAddr::new(ADDRESS.parse().expect("an address"), PORT);
        let trusting = trusting(&authority);
        self.client.inside(|| (Clients::start(to, &authority), Held::start(to, &trusting)))
    }
}

/// What happens to the holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    ApiserverKilled,
    ApiserverHangs,
    DaemonKilled,
    DaemonHangs,
    DaemonStops,
}

impl Fault {
    const ALL: [Self; 5] = [
        Self::ApiserverKilled,
        Self::ApiserverHangs,
        Self::DaemonKilled,
        Self::DaemonHangs,
        Self::DaemonStops,
    ];

    /// Whether the holder is silent from then on.
    fn ends_the_holder(self) -> bool {
        matches!(self, Self::DaemonKilled | Self::DaemonHangs)
    }

    fn strike(self, cluster: &mut Cluster, number: usize) {
        match self {
            Self::ApiserverKilled => cluster.kill_apiserver(number),
            Self::ApiserverHangs => cluster.apiserver(number).signal("STOP"),
            Self::DaemonKilled => cluster.kill(&origin(number)),
            Self::DaemonHangs => cluster.process(&origin(number)).signal("STOP"),
            Self::DaemonStops => cluster.process(&origin(number)).signal("TERM"),
        }
    }

    fn mend(self, cluster: &mut Cluster, number: usize) {
        match self {
            Self::ApiserverKilled => cluster.start_apiserver(number, &[]),
            Self::ApiserverHangs => cluster.apiserver(number).signal("CONT"),
            Self::DaemonHangs => cluster.process(&origin(number)).signal("CONT"),
            Self::DaemonKilled => cluster.start_node(number),
            Self::DaemonStops => {
                cluster.process(&origin(number)).ended(SETTLE_LIMIT);
                cluster.start_node(number);
            }
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ApiserverKilled => "kill -9 of its apiserver",
            Self::ApiserverHangs => "SIGSTOP of its apiserver",
            Self::DaemonKilled => "kill -9 of the daemon",
            Self::DaemonHangs => "SIGSTOP of the daemon",
            Self::DaemonStops => "SIGTERM to the daemon",
        })
    }
}

/// What a fault of the holder costs, and its mending.
struct Cost {
    fault: Fault,
    seen: Seen,
    held: HeldSeen,
    moved: bool,
    /// The longest time without an event of a watch, where there is the client.
    silence: Option<Duration>,
}

impl Cost {
    fn print(&self) {
        let Self { fault, seen, held, moved, silence } = self;
        let moved = if *moved { "the address moved" } else { "the address stayed" };
        let silence = silence.map_or("none".to_owned(), |it| format!("{} ms", it.as_millis()));
        println!("{fault}: {seen}; {held}; watches: longest silence {silence}; {moved}");
    }

    fn assert(&self) {
        let Self { fault, seen, held, moved, silence } = self;
        let is_of_an_apiserver = matches!(fault, Fault::ApiserverKilled | Fault::ApiserverHangs);
        assert_eq!(*moved, !is_of_an_apiserver, "{fault}");
        // A holder that hangs ends no connection, and who only listens does not meet the next one.
        let hangs = if *fault == Fault::DaemonHangs { LASTING } else { Duration::ZERO };
        assert!(silence.unwrap_or_default() <= hangs + MAX_SILENCE, "{fault}: {silence:?}");
        if fault.ends_the_holder() {
            assert!(seen.gap <= MAX_GAP, "{fault}: {seen}");
        } else {
            assert_eq!(seen.failed, Vec::<String>::new(), "{fault}");
            assert_eq!(held.failed, Vec::<String>::new(), "{fault}");
            assert!(held.most_lost <= 1, "{fault}: {held}");
        }
    }
}

fn play(lan: &mut Lan, fault: Fault) -> Cost {
    let holder = lan.settled();
    let _beat = Beat::start(&lan.cluster, holder % lan.cluster.origins() + 1);
    let server = format!("https://{ADDRESS}:{PORT}");
    let watchers = Watchers::start(&lan.cluster, WORKER, &server, WATCHES);
    let (clients, held) = lan.clients();
    clients.go_on();
    let begun = wait::now();
    // An answer that an apiserver was sending when it was killed is lost, whatever the proxy does:
    // that is counted for the connections that are held.
    clients.between_two(|| fault.strike(&mut lan.cluster, holder));
    wait::moment(wait::now() + LASTING);
    fault.mend(&mut lan.cluster, holder);
    wait::moment(wait::now() + AFTERWARDS);
    clients.go_on();
    let (held, seen, ended) = (held.finish(), clients.finish(), wait::now());
    let silences = |it: &Watchers| {
        let all = it.arrivals().into_iter().map(|own| own.longest_gap(begun, ended));
        all.max().unwrap_or_default()
    };
    let silence = watchers.as_ref().map(silences);
    let cost = Cost { fault, seen, held, moved: lan.settled() != holder, silence };
    cost.print();
    cost
}

#[test]
#[ignore = "needs root and tests/kubernetes/build; ./tests/run kubernetes"]
fn clients_of_the_address_get_over_every_fault_of_its_holder() {
    let mut lan = Lan::running();
    let faults = Fault::ALL.repeat(rounds());
    let all: Vec<Cost> = faults.into_iter().map(|fault| play(&mut lan, fault)).collect();
    all.iter().for_each(Cost::assert);
}
