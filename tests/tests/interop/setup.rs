//! The daemon in one network namespace, and wireguard-go with the key of a node in another.

#![expect(clippy::print_stdout, reason = "figures for the reader of a test run")]

use data_encoding::HEXLOWER;
use meshport_config::counters::Counter;
use meshport_mesh::MeshCount;
use meshport_tests::flood;
use meshport_tests::identity::Identity;
use meshport_tests::metrics::Metrics;
use meshport_tests::netns::{Namespace, cable};
use meshport_tests::process::{Process, meshport, run, run_ok};
use meshport_tests::{wait, wireguard};
use std::fs;
use std::io::Write;
use std::net::{Ipv6Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The port for control messages inside the mesh; the credential is the first of them.
const CONTROL_PORT: u16 = 7400;
/// The hello's first bytes, version and kind, and those of the answer that accepts it.
const HELLO: [u8; 2] = [1, 1];
pub(super) const ACKNOWLEDGED: [u8; 2] = [1, 2];
/// Names this "process" of the peer; copied into the acknowledgement.
const INSTANCE: u64 = 0x1122_3344_5566_7788;
pub(super) const OUTER: [&str; 2] = ["10.77.0.1", "10.77.0.2"];
const OUTER_PORT: u16 = 51820;
/// The daemon's address after its move.
pub(super) const MOVED: &str = "10.77.0.3";
pub(super) const MOVED_PORT: u16 = 40009;
const PEER_PORT: u16 = 40001;
pub(super) const SETTLE: Duration = Duration::from_secs(20);
/// Bytes in an echo request, and in one that takes two packets at the smallest MTU of IPv6.
const ECHO: usize = 56;
const TALK_EVERY: Duration = Duration::from_secs(1);
/// Destination of wireguard-go's traffic then: the daemon does not answer there.
pub(super) const ONE_WAY_PORT: u16 = 9;
/// A peer that gets no answer starts a handshake after 15 s, and wireguard-go retries its own after
/// 5 s.
pub(super) const SHAKES_HANDS: Duration = Duration::from_secs(40);
/// How long the probe listens for further answers.
const SILENCE_MS: u64 = 1500;
/// Distinguishes the interfaces of one process: their control sockets share one folder.
static INTERFACES: AtomicU32 = AtomicU32::new(0);

pub(super) struct Setup {
    // Processes first: they end before the namespaces they live in.
    pub(super) daemon: Process,
    pub(super) wireguard: Process,
    pub(super) folder: TempDir,
    pub(super) site: Namespace,
    pub(super) guest: Namespace,
    pub(super) interface: String,
    /// The endpoint at which wireguard-go reaches the daemon.
    pub(super) way: String,
    pub(super) node: Identity,
    pub(super) peer: Identity,
}

impl Setup {
    pub(super) fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("mp").tempdir().expect("a temporary folder");
        let path = |name: &str| folder.path().join(name);
        let (site, guest) = (Namespace::new(), Namespace::new());
        cable(&site, &format!("{}/24", OUTER[0]), &guest, &format!("{}/24", OUTER[1]));

        let (node_state, peer_state) = (path("node"), path("peer"));
        verb(&["init", "--site", "a", "--name", "node"], &node_state);
        let endpoint = format!("{}:{OUTER_PORT}", OUTER[0]);
        let about = ["invite", "--site", "a", "--role", "node", "--ttl", "1h", "--endpoint"];
        let invite = verb(&[&about[..], &[&endpoint]].concat(), &node_state);
        verb(&["join", &invite, "--name", "peer"], &peer_state);

        let config = path("node.toml");
        let text = format!(
            "site = \"a\"\nstate-dir = \"{}\"\n[mesh]\nlisten = \"{endpoint}\"\n\
             [admin]\nhttp = \"off\"\n",
            node_state.display()
        );
        fs::write(&config, text).expect("the folder can be written");
        let mut command = site.command(&meshport().to_string_lossy());
        command.arg("run").arg("--config").arg(&config);
        let daemon = Process::start("daemon", &mut command, &path("node.log"));
        let socket = node_state.join("meshport.sock");
        wait::until("the daemon answers", SETTLE, || metrics(&socket));

        let (node, peer) = (Identity::read(&node_state), Identity::read(&peer_state));
        let number = INTERFACES.fetch_add(1, Ordering::Relaxed);
        let interface = format!("mpwg{}-{number}", std::process::id());
        wireguard::forget_socket(&interface);
        let mut command = wireguard::wireguard_go(&guest, &interface);
        command.env("LOG_LEVEL", "verbose");
        let wireguard = Process::start("wireguard-go", &mut command, &path("wireguard.log"));
        let way = endpoint;
        let setup = Self { daemon, wireguard, folder, site, guest, interface, way, node, peer };
        setup.configure_wireguard();
        setup
    }

    /// Uses only `wg` and `ip`, as for any WireGuard peer.
    pub(super) fn configure_wireguard(&self) {
        let interface = &*self.interface;
        wait::until("wireguard-go makes its interface", SETTLE, || {
            self.guest.succeeds("wg", &["show", interface]).then_some(())
        });
        let private = self.secret_file("private", &self.peer.key.to_text());
        let (private, port) = (private.to_string_lossy(), PEER_PORT.to_string());
        self.guest.run("wg", &["set", interface, "listen-port", &port, "private-key", &private]);
        self.set_peer(&self.peer.preshared_key(&self.node.node()));
        let there = format!("{}/128", self.node.inner().ip());
        let here = format!("{}/128", self.peer.inner().ip());
        self.guest.ip(&["-6", "addr", "add", &here, "dev", interface]);
        self.guest.ip(&["link", "set", interface, "up"]);
        self.guest.ip(&["-6", "route", "add", &there, "dev", interface]);
    }

    pub(super) fn set_peer(&self, shared: &str) {
        let shared = self.secret_file("shared", shared);
        let there = format!("{}/128", self.node.inner().ip());
        let node = self.node.node().to_string();
        let shared = shared.to_string_lossy();
        let peer = ["set", &self.interface, "peer", &node, "preshared-key", &shared];
        let way = ["endpoint", &self.way, "allowed-ips", &there];
        self.guest.run("wg", &[&peer[..], &way].concat());
    }

    pub(super) fn secret_file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, text).expect("the folder can be written");
        path
    }

    pub(super) fn counted(&self, counter: impl Counter) -> f64 {
        let socket = self.folder.path().join("node").join("meshport.sock");
        metrics(&socket).expect("the daemon answers").count(counter)
    }

    /// Sends one datagram through the tunnel and returns the answers to its port.
    pub(super) fn send(&self, port: u16, payload: &[u8]) -> Vec<Vec<u8>> {
        let address = |ip: Ipv6Addr| format!("[{ip}]:{port}");
        let mut probe = self.guest.command(env!("CARGO_BIN_EXE_meshport-probe"));
        probe.arg(address(self.peer.inner().ip())).arg(address(self.node.inner().ip()));
        probe.arg(SILENCE_MS.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut probe = probe.spawn().expect("the probe starts");
        let mut input = probe.stdin.take().expect("its input is ours");
        input.write_all(HEXLOWER.encode(payload).as_bytes()).expect("it reads");
        drop(input);
        let output = probe.wait_with_output().expect("it ends");
        let text = String::from_utf8(output.stdout).expect("it prints hexadecimal");
        let decode = |line: &str| HEXLOWER.decode(line.as_bytes()).expect("it prints hexadecimal");
        text.lines().map(decode).collect()
    }

    pub(super) fn show(&self, credential: &[u8]) -> Vec<Vec<u8>> {
        let length = u16::try_from(credential.len()).expect("a credential is short");
        let mut hello = HELLO.to_vec();
        hello.extend(INSTANCE.to_be_bytes());
        hello.push(0);
        hello.extend(length.to_be_bytes());
        hello.extend(credential);
        self.send(CONTROL_PORT, &hello)
    }

    /// Whether `count` echo requests, one per second, are all answered.
    pub(super) fn pings(&self, count: u32) -> bool {
        self.pings_with(count, ECHO)
    }

    /// The same, with this many bytes in each.
    pub(super) fn pings_with(&self, count: u32, bytes: usize) -> bool {
        let there = self.node.inner().ip().to_string();
        let output = self
            .guest
            .command("ping")
            .args(["-6", "-n", "-i", "1", "-W", "3", "-c", &count.to_string()])
            .args(["-s", &bytes.to_string()])
            .arg(there)
            .output()
            .expect("ping runs");
        let text = String::from_utf8_lossy(&output.stdout);
        println!("{}", text.lines().rev().take(3).collect::<Vec<_>>().join("; "));
        text.contains(" 0% packet loss")
    }

    /// Unix time of the last handshake that wireguard-go completed.
    pub(super) fn handshake_at(&self) -> u64 {
        wireguard::latest_handshake(&self.guest, &self.interface)
    }

    /// Waits until the daemon has completed a handshake that it started itself.
    pub(super) fn daemon_shakes_hands(&self, what: &str, limit: Duration) {
        let before = self.counted(MeshCount::HandshakesCompleted);
        wait::until(what, limit, || {
            (self.counted(MeshCount::HandshakesCompleted) > before).then_some(())
        });
    }

    /// The endpoint at which wireguard-go sees the daemon.
    pub(super) fn daemon_seen_at(&self) -> String {
        let shown = self.guest.run("wg", &["show", &self.interface, "endpoints"]);
        shown.split_whitespace().nth(1).expect("wg shows the endpoint").to_owned()
    }

    /// From now on the daemon's packets come from another address and port, as if a NAT in front of
    /// it had lost its mappings; the previous address and port still reach it.
    pub(super) fn move_daemon(&self) {
        let rules = format!(
            "table ip moved {{\n\
             chain out {{\ntype filter hook postrouting priority 100;\n\
             udp sport {OUTER_PORT} udp sport set {MOVED_PORT} ip saddr set {MOVED}\n}}\n\
             chain in {{\ntype filter hook prerouting priority -300;\n\
             udp dport {MOVED_PORT} udp dport set {OUTER_PORT} ip daddr set {here}\n}}\n\
             }}\n",
            here = OUTER[0],
        );
        let file = self.secret_file("moved.nft", &rules);
        self.site.ip(&["addr", "add", &format!("{MOVED}/32"), "dev", "lo"]);
        self.site.run("nft", &["-f", &file.to_string_lossy()]);
    }

    /// Blocks traffic to the daemon's previous address.
    pub(super) fn leave_former_address(&self) {
        let drop = format!("insert rule ip moved in udp dport {OUTER_PORT} drop");
        self.site.run("nft", &[&drop]);
    }

    /// From now on wireguard-go and the daemon reach each other through a path on which either can
    /// be flooded; the daemon is its first end.
    pub(super) fn leads_by_a_path(&mut self) -> flood::Path {
        let end = |ip: &str, port: u16, whose: &Identity, process: &Process| flood::End {
            at: format!("{ip}:{port}").parse().expect("an address"),
            key: whose.node(),
            process: process.id(),
        };
        let daemon = end(OUTER[0], OUTER_PORT, &self.node, &self.daemon);
        let wireguard = end(OUTER[1], PEER_PORT, &self.peer, &self.wireguard);
        let socket = |_| UdpSocket::bind((OUTER[1], 0)).expect("a free port");
        let [there, here, crowd] = self.guest.inside(|| [0; 3].map(socket));
        let path = flood::Path::start([daemon, wireguard], [there, here], crowd);
        self.way = path.for_end(1).to_string();
        path
    }

    /// Makes wireguard-go forget its sessions, and gives it another pre-shared key.
    pub(super) fn anew(&self, shared: &str) {
        let node = self.node.node().to_string();
        self.guest.run("wg", &["set", &self.interface, "peer", &node, "remove"]);
        self.set_peer(shared);
    }

    /// Makes wireguard-go start a new handshake; returns its log from then on.
    pub(super) fn shakes_hands_anew(&self, what: &str, shared: &str) -> String {
        self.anew(shared);
        let before = self.wireguard.output().len();
        wait::until(what, SHAKES_HANDS, || {
            self.pings(1);
            (self.handshake_at() > 0).then_some(())
        });
        self.wireguard.output().split_off(before)
    }

    /// Makes the daemon, which knows the peer, initiate the session.
    pub(super) fn daemon_begins(&self) {
        let answers = self.show(&self.peer.credential.to_bytes());
        assert!(begins_with(&answers, ACKNOWLEDGED), "the credential got no answer: {answers:?}");
        // wireguard-go forgets its session, so the daemon receives nothing more over it.
        self.anew(&self.peer.preshared_key(&self.node.node()));
        self.daemon_shakes_hands("the daemon begins a handshake", SHAKES_HANDS);
    }

    /// The daemon sends something every second and gets no answer.
    pub(super) fn daemon_talks(&self, until: Instant) {
        let config = self.folder.path().join("node.toml");
        let mut next = wait::now();
        let config = config.to_string_lossy();
        let arguments = ["ping", "peer", "--count", "1", "--config", &*config];
        while wait::now() < until {
            // It fails because no answer comes.
            let _ = run(&meshport().to_string_lossy(), &arguments);
            wait::pace(&mut next, TALK_EVERY);
        }
    }

    /// The peer sends something every second and gets no answer.
    pub(super) fn peer_talks(&self, until: Instant) {
        let from = (self.peer.inner().ip(), ONE_WAY_PORT);
        let to = (self.node.inner().ip(), ONE_WAY_PORT);
        let socket =
            self.guest.inside(|| UdpSocket::bind(from).expect("the tunnel has this address"));
        let mut next = wait::now();
        while wait::now() < until {
            socket.send_to(&[1; 100], to).expect("the tunnel takes it");
            wait::pace(&mut next, TALK_EVERY);
        }
    }

    /// The endpoint at which the daemon sees the peer.
    pub(super) fn seen_at(&self) -> Option<String> {
        let state = self.folder.path().join("node.toml");
        let state = state.to_string_lossy();
        let arguments = ["peers", "--json", "--config", &*state];
        let peers = run_ok(&meshport().to_string_lossy(), &arguments);
        let peers: serde_json::Value = serde_json::from_str(&peers).expect("peers are JSON");
        let own = self.peer.node().to_string();
        let row = peers.as_array()?.iter().find(|row| row["node"] == own)?.clone();
        row["endpoint"].as_str().map(str::to_owned)
    }
}

pub(super) fn verb(arguments: &[&str], state: &Path) -> String {
    let state = state.to_string_lossy();
    run_ok(&meshport().to_string_lossy(), &[arguments, &["--state-dir", &state]].concat())
}

pub(super) fn metrics(socket: &Path) -> Option<Metrics> {
    let mut curl = Command::new("curl");
    curl.args(["-sSf", "--unix-socket"]).arg(socket).arg("http://meshport/metrics");
    let output = curl.output().expect("curl runs");
    output.status.success().then(|| Metrics::parse(&String::from_utf8_lossy(&output.stdout)))
}

pub(super) fn begins_with(answers: &[Vec<u8>], first: [u8; 2]) -> bool {
    answers.iter().any(|answer| answer.starts_with(&first))
}
