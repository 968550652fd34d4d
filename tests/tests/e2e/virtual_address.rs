//! A virtual address of three nodes on one LAN, as a client sees it that knows nothing else: real
//! daemons in network namespaces.

mod beside;
mod bird;
mod bring_up;
mod exabgp;
mod faults;
mod random;
mod rival;
mod throughput;
mod wires;

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use meshport_tests::clients::Clients;
use meshport_tests::process::{Process, faketime, meshport, run, run_ok};
use meshport_tests::wait;
use serde_json::Value;
use tempfile::TempDir;

use self::faults::{Group, Part};
use self::wires::{NODES, Net, Wires};

const SETTLE: Duration = Duration::from_secs(40);
/// How long the address may be without an answer when its holder dies silently.
const MAX_GAP: Duration = Duration::from_secs(2);
const V4: &str = "10.77.0.10";
const V6: &str = "fd77::10";
/// Processes end before their namespaces do.
struct Lan {
    daemons: BTreeMap<&'static str, Process>,
    apiservers: BTreeMap<&'static str, Process>,
    folder: TempDir,
    wires: Wires,
    /// Each daemon has its own wall clock, and no sandbox.
    has_clocks: bool,
    /// Further settings of the daemons that start from now on.
    extra: String,
}

impl Lan {
    fn new() -> Self {
        Self::with(false)
    }

    fn with(has_clocks: bool) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let wires = Wires::new();
        for name in NODES {
            let host = wires.host(name);
            // What docs/virtual-addresses.md has an administrator do.
            host.ip(&["addr", "add", &format!("{V4}/32"), "dev", "lo"]);
            host.ip(&["addr", "add", &format!("{V6}/128"), "dev", "lo", "nodad"]);
            host.run("sysctl", &["-w", "net.ipv4.conf.all.arp_ignore=1"]);
            host.run("sysctl", &["-w", "net.ipv4.conf.all.arp_announce=2"]);
        }
        let (daemons, apiservers) = (BTreeMap::new(), BTreeMap::new());
        let mut lan = Self { daemons, apiservers, folder, wires, has_clocks, extra: String::new() };
        lan.join();
        lan
    }

    /// Makes all nodes and starts them, each with an apiserver.
    fn join(&mut self) {
        let binary = meshport().to_string_lossy();
        let roles = ["--role", "node,origin:kube-apiserver,origin:bulk,vip"].as_slice();
        let home = self.state(NODES[0]);
        for name in NODES {
            let state = self.state(name);
            if name == NODES[0] {
                let init = ["init", "--site", "x", "--name", name, "--state-dir", &state];
                run_ok(&binary, &[&init[..], roles].concat());
            } else {
                let invite = ["invite", "--site", "x", "--state-dir", &home];
                let invite = run_ok(&binary, &[&invite[..], roles].concat());
                run_ok(&binary, &["join", invite.trim(), "--name", name, "--state-dir", &state]);
            }
            self.start_apiserver(name);
            self.set_clock(name, "+0h");
            self.start(name, &self.hooks(name));
        }
    }

    fn state(&self, name: &str) -> String {
        self.folder.path().join(name).to_string_lossy().into_owned()
    }

    fn start_apiserver(&mut self, name: &'static str) {
        let path = |name: &str| self.folder.path().join(name);
        let file = path(&format!("{name}.port"));
        // Of the one before.
        let _ = fs::remove_file(&file);
        let mut command = self.wires.host(name).command(&meshport().to_string_lossy());
        command.args(["stand-in", "--name", name, "--listen", "127.0.0.1:6443", "--pki"]);
        command.arg(path("pki")).arg("--port-file").arg(path(&format!("{name}.port")));
        let process = Process::start(name, &mut command, &path(&format!("apiserver-{name}.log")));
        self.apiservers.insert(name, process);
        wait::until("the apiserver tells its port", SETTLE, || fs::read(&file).ok());
    }

    fn start(&mut self, name: &'static str, more: &str) {
        self.start_with(name, &self.settings(name, more));
    }

    fn settings(&self, name: &str, more: &str) -> String {
        let state = self.state(name);
        let number = Wires::number(name);
        format!(
            "sandbox = {}\nsite = \"x\"\nstate-dir = \"{state}\"\n[mesh]\n\
             listen = \"0.0.0.0:51820\"\nadvertise = [\"198.51.100.{number}:51820\"]\n\
             [admin]\nhttp = \"off\"\n\
             [service.kube-apiserver]\nlisten = []\norigin = \"127.0.0.1:6443\"\n\
             [[expose]]\nname = \"vip\"\nservice = \"kube-apiserver\"\n\
             listen = [\"{V4}:6443\", \"[{V6}]:6443\"]\n\
             allow = [\"10.77.0.0/24\", \"fd77::/64\"]\n\
             [[virtual-address]]\nname = \"v4\"\naddress = \"{V4}\"\ninterface = \"lan\"\n\
             group = \"rack\"\n{more}\
             [[virtual-address]]\nname = \"v6\"\naddress = \"{V6}\"\ninterface = \"lan\"\n\
             group = \"rack\"\n{more}{}",
            !self.has_clocks, self.extra
        )
    }

    fn start_with(&mut self, name: &'static str, text: &str) {
        let config = self.folder.path().join(format!("{name}.toml"));
        fs::write(&config, text).expect("the folder can be written");
        let mut command = self.wires.host(name).command(&meshport().to_string_lossy());
        command.arg("run").arg("--config").arg(&config);
        if self.has_clocks {
            let clock = self.folder.path().join(format!("{name}.clock"));
            command.env("LD_PRELOAD", faketime()).env("FAKETIME_TIMESTAMP_FILE", clock);
            command.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        let log = self.folder.path().join(format!("{name}.log"));
        self.daemons.insert(name, Process::start(name, &mut command, &log));
        wait::until("it answers", SETTLE, || self.status(name));
    }

    fn status(&self, name: &str) -> Option<Value> {
        let state = self.state(name);
        let arguments = ["status", "--json", "--state-dir", &state];
        let output = run(&meshport().to_string_lossy(), &arguments);
        output.status.success().then(|| serde_json::from_slice(&output.stdout).ok())?
    }

    /// The node's part in one address.
    fn part(&self, name: &str, address: &str) -> Option<Value> {
        let list = self.status(name)?["virtual_addresses"].as_array()?.clone();
        list.into_iter().find(|it| it["name"] == address)
    }

    /// The running nodes that answer for the address.
    fn holders(&self, address: &str) -> Vec<&'static str> {
        let holds = |name: &&'static str| {
            self.part(name, address).is_some_and(|part| part["state"] == "holding")
        };
        self.daemons.keys().copied().filter(holds).collect()
    }

    /// The one holder, once all others of `nodes` know it.
    fn settled(&self, address: &str, nodes: &[&'static str]) -> &'static str {
        wait::until("one node holds the address, and the others hear it", SETTLE, || {
            let [holder] = self.holders(address)[..] else { return None };
            let knows = |name: &&&str| {
                **name == holder
                    || self.part(name, address).is_some_and(|part| part["holder"] == holder)
            };
            nodes.iter().filter(knows).count().eq(&nodes.len()).then_some(holder)
        })
    }

    /// The node that holds the address in place of `former`.
    fn successor(&self, former: &str, address: &str) -> &'static str {
        wait::until("another node holds the address", SETTLE, || {
            let [holder] = self.holders(address)[..] else { return None };
            (holder != former).then_some(holder)
        })
    }

    /// All nodes but this one.
    fn others(out: &str) -> Vec<&'static str> {
        NODES.into_iter().filter(|name| *name != out).collect()
    }

    /// Clients of the address of that family, a new one each 50 ms.
    fn clients(&self, address: &str) -> Clients {
        let to = if address == "v4" { format!("{V4}:6443") } else { format!("[{V6}]:6443") };
        let to: SocketAddr = to.parse().expect("an address");
        let authority = self.folder.path().join("pki").join("ca.crt");
        self.wires.client.inside(|| Clients::start(to, &authority))
    }

    /// Commands that record the gains and losses of a node's addresses.
    fn hooks(&self, name: &str) -> String {
        let file = self.folder.path().join(format!("{name}.hooks"));
        let command = |word: &str| format!("echo {word} $ADDRESS >>{}", file.display());
        format!("on-gain = \"{}\"\non-loss = \"{}\"\n", command("gain"), command("loss"))
    }

    /// The last command that has run for the address on a node.
    fn last(&self, name: &str, address: &str) -> Option<String> {
        let said = fs::read_to_string(self.folder.path().join(format!("{name}.hooks"))).ok()?;
        let word = |line: &str| Some(line.strip_suffix(address)?.trim().to_owned());
        said.lines().filter_map(word).next_back()
    }

    fn until_last(&self, name: &str, word: &str) {
        wait::until(&format!("{name} runs the command for {word}"), SETTLE, || {
            (self.last(name, V4)? == word).then_some(())
        });
    }

    /// Which hardware address the client has for the address, if it has asked.
    fn neighbour(&self) -> String {
        self.wires.client.ip(&["neigh", "show", V4, "dev", "lan"])
    }
}

impl Group for Lan {
    fn wires(&self) -> &Wires {
        &self.wires
    }

    fn target(&self) -> SocketAddr {
        SocketAddr::new(V4.parse().expect("an address"), 6443)
    }

    fn authority(&self) -> PathBuf {
        self.folder.path().join("pki").join("ca.crt")
    }

    fn processes(&self, name: &str, part: Part) -> Vec<String> {
        let all = if part == Part::Daemon { &self.daemons } else { &self.apiservers };
        vec![all[name].id().to_string()]
    }

    fn start(&mut self, name: &'static str, part: Part) {
        match part {
            Part::Daemon => Self::start(self, name, ""),
            Part::Apiserver => self.start_apiserver(name),
        }
    }

    fn set_clock(&mut self, name: &str, offset: &str) -> bool {
        let clock = self.folder.path().join(format!("{name}.clock"));
        fs::write(clock, offset).expect("the folder can be written");
        self.has_clocks
    }
}

#[test]
#[ignore = "needs root for network namespaces: ./tests/run virtual-address"]
fn an_address_survives_its_holder_for_both_families() {
    let mut lan = Lan::new();
    for address in ["v4", "v6"] {
        let holder = lan.settled(address, &NODES);
        let clients = lan.clients(address);
        clients.go_on();
        lan.daemons.remove(holder).expect("it runs").kill();
        let left = Lan::others(holder);
        let next = lan.settled(address, &left);
        clients.go_on();
        let seen = clients.finish();
        if address == "v4" {
            lan.until_last(next, "gain");
            // Run by a helper process that outlives its daemon.
            lan.until_last(holder, "loss");
        }
        println!("{address}: killed: {seen}");
        assert_ne!(next, holder);
        assert!(seen.gap <= MAX_GAP, "{seen}");
        lan.start(holder, &lan.hooks(holder));
        assert_eq!(lan.settled(address, &NODES), next, "the one that comes back takes nothing");
    }
}

#[test]
#[ignore = "needs root for network namespaces: ./tests/run virtual-address"]
fn a_clean_stop_refuses_no_client_and_a_dead_apiserver_costs_none() {
    let mut lan = Lan::new();
    let holder = lan.settled("v4", &NODES);
    let clients = lan.clients("v4");
    clients.go_on();
    // The holder carries its clients to another apiserver. No balancer can save an answer that the
    // killed apiserver was sending.
    clients.between_two(|| lan.apiservers.remove(holder).expect("it runs").kill());
    clients.go_on();
    let seen = clients.finish();
    println!("its apiserver killed: {seen}");
    assert_eq!(seen.failed, Vec::<String>::new());
    assert_eq!(lan.settled("v4", &NODES), holder, "there was no need to move");
    lan.start_apiserver(holder);

    let clients = lan.clients("v4");
    clients.go_on();
    let mut process = lan.daemons.remove(holder).expect("it runs");
    process.signal("TERM");
    lan.successor(holder, "v4");
    clients.go_on();
    process.ended(SETTLE);
    lan.until_last(holder, "loss");
    clients.go_on();
    let seen = clients.finish();
    println!("stopped: {seen}");
    assert_eq!(seen.failed, Vec::<String>::new());
}

#[test]
#[ignore = "needs root for network namespaces: ./tests/run virtual-address"]
fn a_holder_that_was_stopped_comes_back_as_one_that_has_lost() {
    let lan = Lan::new();
    let holder = lan.settled("v4", &NODES);
    let clients = lan.clients("v4");
    clients.go_on();
    lan.daemons[holder].signal("STOP");
    let awake = Lan::others(holder);
    let next = wait::until("another node holds the address", SETTLE, || {
        let holds =
            |name: &&&str| lan.part(name, "v4").is_some_and(|part| part["state"] == "holding");
        awake.iter().find(holds).copied()
    });
    clients.go_on();
    lan.until_last(holder, "loss");
    lan.daemons[holder].signal("CONT");
    assert_eq!(lan.settled("v4", &NODES), next);
    clients.go_on();
    let seen = clients.finish();
    println!("stopped and continued: {seen}");
    assert!(seen.gap <= MAX_GAP, "{seen}");
}

#[test]
#[ignore = "needs root for network namespaces: ./tests/run virtual-address"]
fn a_cut_of_the_mesh_moves_nothing_and_after_a_cut_of_all_one_is_left() {
    let lan = Lan::new();
    let holder = lan.settled("v4", &NODES);
    let clients = lan.clients("v4");
    clients.go_on();
    lan.wires.cut(holder, Net::Mesh);
    wait::until("the others hear no claim of the holder", SETTLE, || {
        let hears = |name: &&str| lan.part(name, "v4").is_some_and(|it| !it["holder"].is_null());
        (!Lan::others(holder).iter().any(hears)).then_some(())
    });
    clients.go_on();
    assert_eq!(lan.holders("v4"), [holder]);
    let seen = clients.finish();
    println!("the mesh cut: {seen}");
    assert_eq!(seen.failed, Vec::<String>::new());

    lan.wires.cut(holder, Net::Lan);
    wait::until("each side has a holder", SETTLE, || (lan.holders("v4").len() == 2).then_some(()));
    let clients = lan.clients("v4");
    clients.go_on();
    lan.wires.heal(holder, Net::Lan);
    wait::until("one yields", SETTLE, || (lan.holders("v4").len() == 1).then_some(()));
    lan.wires.heal(holder, Net::Mesh);
    let left = lan.settled("v4", &NODES);
    clients.go_on();
    let seen = clients.finish();
    println!("healed: {seen}, {left} holds it, the client sees {}", lan.neighbour());
    assert!(seen.gap <= MAX_GAP, "{seen}");
}

#[test]
#[ignore = "needs root for network namespaces: ./tests/run virtual-address"]
fn a_holder_without_carrier_gives_the_address_away() {
    let lan = Lan::new();
    let holder = lan.settled("v4", &NODES);
    let clients = lan.clients("v4");
    clients.go_on();
    lan.wires.carry(holder, Net::Lan, false);
    lan.successor(holder, "v4");
    clients.go_on();
    let seen = clients.finish();
    println!("carrier gone: {seen}");
    assert!(seen.gap <= MAX_GAP, "{seen}");
    let part = lan.part(holder, "v4").expect("it answers");
    let obstacle = part["obstacle"].as_str().expect("there is one");
    assert!(obstacle.contains("carrier"), "{obstacle}");
}

#[test]
#[ignore = "needs root to give a capability up: ./tests/run virtual-address"]
fn a_daemon_without_the_capability_serves_the_rest_and_says_what_its_unit_lacks() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (state, config) = (folder.path().join("state"), folder.path().join("a.toml"));
    let (state, file) = (state.to_string_lossy(), config.to_string_lossy());
    let binary = meshport().to_string_lossy();
    run_ok(&binary, &["init", "--site", "x", "--name", "a", "--state-dir", &state]);
    let text = format!(
        "site = \"x\"\nstate-dir = \"{state}\"\n[mesh]\nlisten = \"127.0.0.1:0\"\n\
         [admin]\nhttp = \"off\"\n[service.kube-apiserver]\nlisten = [\"127.0.0.1:0\"]\n\
         [[virtual-address]]\nname = \"v4\"\naddress = \"{V4}\"\ninterface = \"eth0\"\n\
         group = \"rack\"\n"
    );
    fs::write(&config, text).expect("the folder can be written");
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-net_raw", "--inh-caps=-net_raw"]);
    command.arg(meshport()).args(["run", "--config", &file]);
    let daemon = Process::start("a", &mut command, &folder.path().join("a.log"));
    let status = wait::until("it cannot hold the address", SETTLE, || {
        let output = run(&binary, &["status", "--config", &file, "--json"]);
        let status: Value = serde_json::from_slice(&output.stdout).ok()?;
        status["virtual_addresses"][0]["obstacle"].is_string().then_some(status)
    });
    let obstacle = status["virtual_addresses"][0]["obstacle"].to_string();
    let warnings = status["warnings"].to_string();
    let log = daemon.output();
    let logged = log.lines().find(|line| line.contains("WARN") && line.contains("name=v4"));
    for said in [&*obstacle, &*warnings, logged.unwrap_or_default()] {
        for part in ["CAP_NET_RAW", "AmbientCapabilities=CAP_NET_RAW"] {
            assert!(said.contains(part), "{said}: {log}");
        }
    }
    assert!(
        warnings.contains("the virtual address v4") && warnings.contains("MP121"),
        "{warnings}"
    );
}
