//! The pages' commands, each on the machine that they are for: three on one LAN.

use std::fs;
use std::path::Path;
use std::time::Duration;

use meshport_tests::machine::Machine;
use meshport_tests::manual;
use meshport_tests::netns::{self, Namespace};
use serde_json::Value;
use tempfile::TempDir;

use super::{CLUSTER_API, K0S, KUBEADM, NAME, at, command, written, yaml};

/// How long the commands of one machine may take.
const LIMIT: Duration = Duration::from_secs(60);
/// kubeadm as far as the endpoint is concerned: it has the kubelet start the apiserver, and waits
/// for it at the endpoint of its configuration.
const KUBEADM_PROGRAM: &str = "case $1 in
token) echo 'kubeadm join ENDPOINT --token TOKEN'; exit ;;
init) start-apiserver ;;
esac
eval \"file=\\${$#}\"
endpoint=$(sed -n 's/^ *\\(controlPlane\\|apiServer\\)Endpoint: \"\\(.*\\)\"/\\2/p' \"$file\")
while ! curl -sk --max-time 2 \"https://$endpoint/version\"; do sleep 0.1; done
echo \"kubeadm $1: $endpoint answers\"
";
/// A worker of k0s needs the apiserver and konnectivity at the name of its token.
const K0S_PROGRAM: &str = "[ \"$1\" = install ] || exit 0
for port in 6443 8132; do
  while ! curl -sk --max-time 2 \"https://api.example.com:$port/version\"; do sleep 0.1; done
  echo \"k0s: $port answers\"
done
";
/// Stand-ins for an apiserver, and for konnectivity, which is asked in the same way here.
const APISERVER: &str = "own=\"--name $(hostname) --listen 127.0.0.1:${1:-6443}\"
setsid meshport stand-in $own --pki $LAB/pki >>$LAB/apiserver.log 2>&1 &
";
/// A cluster in which one makes Secrets.
const KUBECTL: &str = "[ \"$1 $2 $3 $5\" = 'create secret generic --from-file=line=/dev/stdin' ]
cat >\"$LAB/$4\"
";

/// Machines on one LAN, by their number. The first has the address that the pages
/// give to a control-plane node.
struct Machines {
    // They end before their hosts do.
    all: Vec<Machine>,
    _hosts: Vec<Namespace>,
    _folder: TempDir,
}

impl Machines {
    fn boot() -> Self {
        netns::remove_stale();
        let folder = tempfile::tempdir().expect("a folder");
        let switch = Namespace::new();
        switch.ip(&["link", "add", "lan", "type", "bridge", "mcast_snooping", "0"]);
        switch.ip(&["link", "set", "lan", "up"]);
        let (mut all, mut hosts) = (Vec::new(), Vec::new());
        for number in 0..3 {
            let (host, name) = (Namespace::new(), format!("machine-{number}"));
            let address = format!("203.0.113.{}/24", 5 + number);
            netns::plug(&host, "eth0", &[&address], &switch, "lan");
            // By it a daemon knows its own address.
            host.ip(&["route", "add", "default", "dev", "eth0"]);
            let machine = Machine::boot(&name, &host, &folder.path().join(&name));
            machine.put("kubeadm", KUBEADM_PROGRAM);
            machine.put("k0s", K0S_PROGRAM);
            machine.put("kubectl", KUBECTL);
            machine.put("start-apiserver", APISERVER);
            all.push(machine);
            hosts.push(host);
        }
        hosts.push(switch);
        Self { all, _hosts: hosts, _folder: folder }
    }

    fn run(&self, machine: usize, commands: &str) -> String {
        self.all[machine].run(commands, LIMIT)
    }

    /// Carries a file from one machine to another.
    fn carry(&self, file: &str, from: usize, to: usize) {
        let file = |machine: usize| self.all[machine].path(file);
        fs::copy(file(from), file(to)).expect("it was written");
    }
}

/// Writes a file, with its folder.
fn file(path: &str, text: &str) -> String {
    let folder = Path::new(path).parent().expect("it is in a folder");
    format!("mkdir -p {}\ncat >{path} <<'END'\n{text}\nEND\n", folder.display())
}

/// The one block under a title.
fn block(page: &str, title: &str, language: &str) -> String {
    manual::under(page, title, language).remove(0)
}

#[test]
#[ignore = "needs root for namespaces: ./tests/run operator"]
fn kubeadm_finds_its_endpoint_on_every_node() {
    let machines = Machines::boot();
    let said = machines.run(0, &block(KUBEADM, "The first control-plane node", "sh"));
    assert!(said.contains("kubeadm init: 127.0.0.1:7445 answers"), "{said}");
    let others = block(KUBEADM, "Other nodes", "sh");
    machines.run(0, &manual::on("the first node", &others));
    machines.carry("worker.invite", 0, 1);
    let said = machines.run(1, &manual::on("the new node", &others));
    assert!(said.contains("kubeadm join: 127.0.0.1:7445 answers"), "{said}");
    // As a control-plane node, by the other invite.
    machines.carry("control-plane.invite", 0, 2);
    let joins =
        manual::on("the new node", &others).replace("worker.invite", "control-plane.invite");
    let said = machines.run(2, &joins);
    assert!(said.contains("kubeadm join: 127.0.0.1:7445 answers"), "{said}");
}

#[test]
#[ignore = "needs root for namespaces: ./tests/run operator"]
fn a_worker_of_k0s_finds_both_ports_at_the_name() {
    let machines = Machines::boot();
    let settings = "/etc/meshport/meshport.toml";
    machines.run(0, &file(settings, &block(K0S, "Controllers", "toml")));
    let roles = "node,origin:kube-apiserver,origin:konnectivity";
    machines.run(0, &format!("meshport init --site fra --name controller --role {roles}"));
    machines.run(0, "systemctl enable --now meshport; start-apiserver; start-apiserver 8132");
    machines.run(0, "meshport invite --site fra --role node >worker.invite");
    machines.carry("worker.invite", 0, 1);
    machines.run(1, &file(settings, &block(K0S, "Workers", "toml")));
    let said = machines.run(1, &block(K0S, "Workers", "sh"));
    for port in [6443, 8132] {
        assert!(said.contains(&format!("k0s: {port} answers")), "{said}");
    }
}

/// What Cluster API does with a machine before kubeadm, and after it.
fn hooks(spec: &Value, secrets: &Path) -> [String; 2] {
    let mut before = String::new();
    for each in at(spec, "/files").as_array().expect("a list") {
        let text = each["content"].as_str().map_or_else(
            || {
                let secret = at(each, "/contentFrom/secret/name").as_str().expect("a name");
                assert_eq!(at(each, "/contentFrom/secret/key"), "line");
                fs::read_to_string(secrets.join(secret)).expect("the page made the Secret")
            },
            str::to_owned,
        );
        before += &file(at(each, "/path").as_str().expect("a path"), &text);
    }
    let commands = |list: &str| {
        let all = at(spec, list).as_array().expect("a list").iter();
        all.map(|it| format!("{}\n", it.as_str().expect("a command"))).collect::<String>()
    };
    [before + &commands("/preKubeadmCommands"), commands("/postKubeadmCommands")]
}

#[test]
#[ignore = "needs root for namespaces: ./tests/run operator"]
fn cluster_api_makes_a_control_plane_and_a_worker() {
    let machines = Machines::boot();
    // The member that the mesh needs before its first machine, where invites are made.
    machines.run(2, "meshport init --site fra --name management --role node");
    machines.run(2, "systemctl enable --now meshport");
    machines.run(2, &block(CLUSTER_API, "Invites", "sh"));
    let secrets = machines.all[2].path("");
    let generated = yaml(&written("meshport generate clusterapi --name api.example.com"));
    let [control_plane, workers] = &generated[..] else { panic!("two documents") };
    for (number, verb, spec) in [
        (0, "init", at(control_plane, "/spec/kubeadmConfigSpec")),
        (1, "join", at(workers, "/spec/template/spec")),
    ] {
        let [before, after] = hooks(spec, &secrets);
        machines.run(number, &before);
        let endpoint = format!("controlPlaneEndpoint: \"{NAME}:7445\"");
        machines.run(number, &file("/run/kubeadm/kubeadm.yaml", &endpoint));
        let said =
            machines.run(number, &format!("kubeadm {verb} --config /run/kubeadm/kubeadm.yaml"));
        assert!(said.contains(&format!("kubeadm {verb}: {NAME}:7445 answers")), "{said}");
        machines.run(number, &after);
        machines.run(number, "[ ! -e /etc/meshport/invite ]");
    }
}

/// Merges the page's settings of a virtual address into the fields of a control plane, on the LAN
/// of these machines.
fn with_address(spec: &Value) -> Value {
    let fragment = block(CLUSTER_API, "With a virtual address", "yaml");
    let fragment = yaml(&fragment.replace("192.0.2.", "203.0.113.")).remove(0);
    let mut merged = spec.clone();
    for own in merged["files"].as_array_mut().expect("a list") {
        let more = at(&fragment, "/files").as_array().expect("a list").iter();
        if let Some(other) = more.clone().find(|it| it["path"] == own["path"]) {
            *own = other.clone();
        }
    }
    let list = |of: &Value| at(of, "/preKubeadmCommands").as_array().expect("a list").clone();
    merged["preKubeadmCommands"] = [list(&fragment), list(spec)].concat().into();
    merged
}

#[test]
#[ignore = "needs root for namespaces: ./tests/run operator"]
fn cluster_api_has_its_endpoint_at_a_virtual_address_from_the_first_machine_on() {
    let machines = Machines::boot();
    machines.run(2, "meshport init --site fra --name management --role node");
    machines.run(2, "systemctl enable --now meshport");
    let origin = "--role origin:kube-apiserver";
    let invites = block(CLUSTER_API, "Invites", "sh");
    machines.run(2, &invites.replace(origin, &format!("{origin} --role vip")));
    let secrets = machines.all[2].path("");
    let generated = yaml(&written("meshport generate clusterapi --name api.example.com"));
    let spec = with_address(at(&generated[0], "/spec/kubeadmConfigSpec"));
    let [before, after] = hooks(&spec, &secrets);
    machines.run(0, &before);
    machines.run(
        0,
        &file("/run/kubeadm/kubeadm.yaml", &format!("controlPlaneEndpoint: \"{NAME}:7445\"")),
    );
    let said = machines.run(0, "kubeadm init --config /run/kubeadm/kubeadm.yaml");
    assert!(said.contains(&format!("{NAME}:7445 answers")), "{said}");
    machines.run(0, &after);
    // The management cluster knows the address alone.
    let ask = "until curl -sk --max-time 2 https://203.0.113.10:7445/version; do sleep 0.1; done";
    machines.run(2, ask);
}

/// A pipe continues on the next line.
#[test]
fn commands_are_taken_from_a_page_with_their_further_lines() {
    let found = command(KUBEADM, "With a virtual address", "meshport generate kubeadm-init");
    assert_eq!(found.lines().count(), 2, "{found}");
}
