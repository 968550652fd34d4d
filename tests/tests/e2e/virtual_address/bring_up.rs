//! How a cluster with a virtual address comes up: the commands of docs/kubeadm.md, and every order
//! in which a kubelet, the daemon and the apiserver can start.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use meshport_tests::netns::Namespace;
use meshport_tests::process::{Process, meshport};
use meshport_tests::repository::root;
use meshport_tests::wait;

use super::client::Clients;
use super::faults::{Group, Part};
use super::wires::NODES;
use super::{Lan, SETTLE};

/// What the page has done by systemd: it runs what the unit would.
const SYSTEMCTL: &str = "#!/bin/sh
case \"$1\" in
daemon-reload) exit 0 ;;
enable) setsid meshport run >$LAB/daemon.log 2>&1 & ;;
esac
while ! meshport status >/dev/null 2>&1; do sleep 0.1; done
";
/// kubeadm as far as the endpoint is concerned: it has the kubelet start the apiserver, and waits
/// for it at the endpoint of its configuration.
const KUBEADM: &str = "#!/bin/sh
setsid meshport stand-in --name cp-1 --listen 127.0.0.1:6443 --pki $LAB/pki \\
  >$LAB/apiserver.log 2>&1 &
endpoint=$(sed -n 's/^controlPlaneEndpoint: \"\\(.*\\)\"/\\1/p' \"$4\")
while ! curl -sk --max-time 2 https://$endpoint/version; do sleep 0.1; done
echo \"kubeadm: $endpoint answers\"
";

/// The block of commands under a title of a page.
fn commands(page: &str, title: &str) -> String {
    let text = fs::read_to_string(root().join("docs").join(page)).expect("a page");
    let (_, section) = text.split_once(&format!("## {title}\n")).expect("a section");
    let (_, block) = section.split_once("```sh\n").expect("a block of commands");
    block.split_once("```").expect("its end").0.to_owned()
}

fn program(folder: &Path, name: &str, text: &str) {
    let path = folder.join(name);
    fs::write(&path, text).expect("the folder is there");
    fs::set_permissions(path, Permissions::from_mode(0o755)).expect("it is ours");
}

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
    let bin = lab.path().join("bin");
    fs::create_dir(&bin).expect("a folder");
    program(&bin, "systemctl", SYSTEMCTL);
    program(&bin, "kubeadm", KUBEADM);
    std::os::unix::fs::symlink(meshport(), bin.join("meshport")).expect("a link");
    // Nothing of it reaches this machine's own files.
    let mut script = "set -eu\n".to_owned();
    for place in ["/etc", "/var/lib", "/run"] {
        let own = lab.path().join(place.replace('/', "_"));
        for part in ["upper", "work"] {
            fs::create_dir_all(own.join(part)).expect("a folder");
        }
        let own = own.display();
        script += &format!(
            "mount -t overlay overlay -o \
             lowerdir={place},upperdir={own}/upper,workdir={own}/work {place}\n"
        );
    }
    script += &format!(
        "cd {}\n{}",
        lab.path().display(),
        commands("kubeadm.md", "With a virtual address")
    );
    script += "echo the page is done\nexec sleep infinity\n";
    let mut command = host.command("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", &script]);
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").expect("a path"));
    command.env("PATH", path).env("LAB", lab.path());
    let page = Process::start("page", &mut command, &lab.path().join("page.log"));
    wait::until("the commands have been executed", SETTLE, || {
        page.output().contains("the page is done").then_some(())
    });
    assert!(page.output().contains("kubeadm: api.example.com:7445 answers"));
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
                // It asks at the address from its start on, and goes on asking.
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
