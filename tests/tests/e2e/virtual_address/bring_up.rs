//! How a cluster with a virtual address comes up: the commands of docs/kubeadm.md, and every order
//! in which a kubelet, the daemon and the apiserver can start.

use meshport_tests::clients::Clients;
use meshport_tests::machine::Machine;
use meshport_tests::manual;
use meshport_tests::netns::Namespace;
use meshport_tests::wait;

use super::faults::{Group, Part};
use super::wires::NODES;
use super::{Lan, SETTLE};

/// kubeadm as far as the endpoint is concerned: it has the kubelet start the apiserver, and waits
/// for it at the endpoint of its configuration.
const KUBEADM: &str =
    "setsid meshport stand-in --name cp-1 --listen 127.0.0.1:6443 --pki $LAB/pki \\
  >$LAB/apiserver.log 2>&1 &
endpoint=$(sed -n 's/^controlPlaneEndpoint: \"\\(.*\\)\"/\\1/p' \"$4\")
while ! curl -sk --max-time 2 https://$endpoint/version; do sleep 0.1; done
echo \"kubeadm: $endpoint answers\"
";

#[test]
#[ignore = "needs root for namespaces: ./tests/run virtual-address"]
fn the_commands_of_the_page_bring_up_a_first_node() {
    let lab = tempfile::tempdir().expect("a temporary folder");
    let (host, client) = (Namespace::new(), Namespace::new());
    let [there, here] =
        meshport_tests::netns::cable(&host, "192.0.2.1/24", &client, "192.0.2.9/24");
    host.ip(&["link", "set", &there, "down"]);
    host.ip(&["link", "set", &there, "name", "eth0"]);
    host.ip(&["link", "set", "eth0", "up"]);
    let machine = Machine::boot("cp-1", &host, lab.path());
    machine.put("kubeadm", KUBEADM);
    let [commands, ..] = &manual::under("kubeadm.md", "With a virtual address", "sh")[..] else {
        panic!("there is a block");
    };
    let said = machine.run(commands, SETTLE);
    assert!(said.contains("kubeadm: api.example.com:7445 answers"), "{said}");
    // A client that knows the address alone.
    let at = ["-sk", "--max-time", "2", "https://192.0.2.10:7445/version"];
    wait::until("the address answers", SETTLE, || client.succeeds("curl", &at).then_some(()));
    let neighbour = client.ip(&["neigh", "show", "192.0.2.10", "dev", &here]);
    assert!(neighbour.contains("lladdr"), "{neighbour}");
}

/// What a machine starts, each before or after the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    Kubelet,
    Daemon,
    Apiserver,
}

#[test]
#[ignore = "needs root for network namespaces: ./tests/run virtual-address"]
fn every_order_of_start_ends_with_an_answer() {
    use Start::{Apiserver, Daemon, Kubelet};
    let mut lan = Lan::new();
    let first = NODES[0];
    for order in [
        [Kubelet, Daemon, Apiserver],
        [Kubelet, Apiserver, Daemon],
        [Daemon, Kubelet, Apiserver],
        [Daemon, Apiserver, Kubelet],
        [Apiserver, Kubelet, Daemon],
        [Apiserver, Daemon, Kubelet],
    ] {
        lan.daemons.clear();
        lan.apiservers.clear();
        let mut clients = None;
        for start in order {
            match start {
                // It sends requests to the address from its start on.
                Kubelet => {
                    let (to, authority) = (lan.target(), lan.authority());
                    let started = lan.wires.client.inside(|| Clients::start(to, &authority));
                    clients = Some(started);
                }
                Daemon => Group::start(&mut lan, first, Part::Daemon),
                Apiserver => Group::start(&mut lan, first, Part::Apiserver),
            }
        }
        let clients = clients.expect("each order has it");
        clients.go_on();
        let seen = clients.finish();
        println!("{order:?}: {seen}");
        assert_eq!(lan.holders("v4"), [first]);
    }
    // Without an apiserver anywhere nobody holds the address, and a daemon alone breaks nothing.
    lan.apiservers.clear();
    wait::until("the address is given up", SETTLE, || lan.holders("v4").is_empty().then_some(()));
}
