//! A standard WireGuard peer, Debian's wireguard-go configured with `wg`, against a node: proves
//! that the traffic between nodes is WireGuard and nothing else.
//!
//! Two network namespaces with a cable between them: the daemon in one, wireguard-go in the other
//! with the key of a node that joined but never ran meshport. The test itself presents the
//! credential, byte by byte in the wire format.

#![expect(clippy::print_stdout, reason = "figures for the reader of a test run")]

use std::fs;
use std::io::Write;
use std::net::{Ipv6Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use data_encoding::{BASE64, HEXLOWER};
use meshport_config::counters::Counter;
use meshport_discovery::Count;
use meshport_mesh::MeshCount;
use meshport_tests::flood;
use meshport_tests::identity::Identity;
use meshport_tests::metrics::Metrics;
use meshport_tests::netns::{Namespace, cable};
use meshport_tests::process::{Process, meshport, run, run_ok};
use meshport_tests::{wait, wireguard};
use tempfile::TempDir;

/// The port for control messages inside the mesh; the credential is the first of them.
const CONTROL_PORT: u16 = 7400;
const GOSSIP_PORT: u16 = 7402;
/// Counters of handshakes that the daemon started, that it answered, and that it started early
/// because the peer was silent.
const HANDSHAKES: [MeshCount; 3] = [
    MeshCount::HandshakesCompleted,
    MeshCount::InitiationsAccepted,
    MeshCount::HandshakesAfterSilence,
];
/// The hello's first bytes, version and kind, and those of the answer that accepts it.
const HELLO: [u8; 2] = [1, 1];
const ACKNOWLEDGED: [u8; 2] = [1, 2];
const REFUSED: [u8; 2] = [1, 3];
/// Names this "process" of the peer; copied into the acknowledgement.
const INSTANCE: u64 = 0x1122_3344_5566_7788;

const OUTER: [&str; 2] = ["10.77.0.1", "10.77.0.2"];
const OUTER_PORT: u16 = 51820;
/// The daemon's address after its move.
const MOVED: &str = "10.77.0.3";
const MOVED_PORT: u16 = 40009;
const PEER_PORT: u16 = 40001;
const SETTLE: Duration = Duration::from_secs(20);
/// How long a peer pings to outlast WireGuard's rekey after 120 s.
const REKEY_PINGS: u32 = 140;
/// Bytes in an echo request, and in one that takes two packets at the smallest MTU of IPv6.
const ECHO: usize = 56;
const LONG_ECHO: usize = 1300;
const LEAST_MTU: &str = "1280";
/// A packet right behind a burst may pass without a cookie: the daemon accepts it after a pause of
/// 5 ms, and wireguard-go must allocate buffers for the first burst, so that it does not pile up.
/// So the test repeats it until this many cookies were requested, with this limit on tries.
const ASKED: usize = 2;
const TRIES: usize = 8;
/// How long only one side sends, to outlast that rekey, and how often it sends.
const REKEY_TALK: Duration = Duration::from_secs(130);
const TALK_EVERY: Duration = Duration::from_secs(1);
/// Between these times the daemon requests nothing from a peer that it has never heard as a member;
/// with a new session it presents its credential again.
const ONE_WAY: [Duration; 2] = [Duration::from_secs(65), Duration::from_secs(105)];
/// Destination of wireguard-go's traffic then: the daemon does not answer there.
const ONE_WAY_PORT: u16 = 9;
/// Minimum bytes per second of sending, as WireGuard counts them: a ping waits for its answer for
/// some seconds...
const LEAST_WORD: u64 = 16;
/// ...and an empty packet of 32 bytes every ten seconds amounts to less than this.
const ONLY_EMPTY: u64 = 256;
/// A peer that gets no answer starts a handshake after 15 s, and wireguard-go retries its own after
/// 5 s.
const SHAKES_HANDS: Duration = Duration::from_secs(40);
/// How long the previous secret still opens tunnels: long enough for three handshakes.
const OVERLAP: &str = "60s";
const OVERLAP_ENDS: Duration = Duration::from_secs(90);
/// Lines of the file of secrets during an overlap: both, the statement, the end.
const TWO_SECRETS: usize = 4;
/// How long the probe listens for further answers.
const SILENCE_MS: u64 = 1500;

/// Distinguishes the interfaces of one process: their control sockets share one folder.
static INTERFACES: AtomicU32 = AtomicU32::new(0);

struct Setup {
    // Processes first: they end before the namespaces they live in.
    daemon: Process,
    wireguard: Process,
    folder: TempDir,
    site: Namespace,
    guest: Namespace,
    interface: String,
    /// The endpoint at which wireguard-go reaches the daemon.
    way: String,
    node: Identity,
    peer: Identity,
}

impl Setup {
    fn new() -> Self {
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
    fn configure_wireguard(&self) {
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

    fn set_peer(&self, shared: &str) {
        let shared = self.secret_file("shared", shared);
        let there = format!("{}/128", self.node.inner().ip());
        let node = self.node.node().to_string();
        let shared = shared.to_string_lossy();
        let peer = ["set", &self.interface, "peer", &node, "preshared-key", &shared];
        let way = ["endpoint", &self.way, "allowed-ips", &there];
        self.guest.run("wg", &[&peer[..], &way].concat());
    }

    fn secret_file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, text).expect("the folder can be written");
        path
    }

    fn counted(&self, counter: impl Counter) -> f64 {
        let socket = self.folder.path().join("node").join("meshport.sock");
        metrics(&socket).expect("the daemon answers").count(counter)
    }

    /// Sends one datagram through the tunnel and returns the answers to its port.
    fn send(&self, port: u16, payload: &[u8]) -> Vec<Vec<u8>> {
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

    fn show(&self, credential: &[u8]) -> Vec<Vec<u8>> {
        let length = u16::try_from(credential.len()).expect("a credential is short");
        let mut hello = HELLO.to_vec();
        hello.extend(INSTANCE.to_be_bytes());
        hello.push(0);
        hello.extend(length.to_be_bytes());
        hello.extend(credential);
        self.send(CONTROL_PORT, &hello)
    }

    /// Whether `count` echo requests, one per second, are all answered.
    fn pings(&self, count: u32) -> bool {
        self.pings_with(count, ECHO)
    }

    /// The same, with this many bytes in each.
    fn pings_with(&self, count: u32, bytes: usize) -> bool {
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
    fn handshake_at(&self) -> u64 {
        wireguard::latest_handshake(&self.guest, &self.interface)
    }

    /// Waits until the daemon has completed a handshake that it started itself.
    fn daemon_shakes_hands(&self, what: &str, limit: Duration) {
        let before = self.counted(MeshCount::HandshakesCompleted);
        wait::until(what, limit, || {
            (self.counted(MeshCount::HandshakesCompleted) > before).then_some(())
        });
    }

    /// The endpoint at which wireguard-go sees the daemon.
    fn daemon_seen_at(&self) -> String {
        let shown = self.guest.run("wg", &["show", &self.interface, "endpoints"]);
        shown.split_whitespace().nth(1).expect("wg shows the endpoint").to_owned()
    }

    /// From now on the daemon's packets come from another address and port, as if a NAT in front of
    /// it had lost its mappings; the previous address and port still reach it.
    fn move_daemon(&self) {
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
    fn leave_former_address(&self) {
        let drop = format!("insert rule ip moved in udp dport {OUTER_PORT} drop");
        self.site.run("nft", &[&drop]);
    }

    /// From now on wireguard-go and the daemon reach each other through a path on which either can
    /// be flooded; the daemon is its first end.
    fn leads_by_a_path(&mut self) -> flood::Path {
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
    fn anew(&self, shared: &str) {
        let node = self.node.node().to_string();
        self.guest.run("wg", &["set", &self.interface, "peer", &node, "remove"]);
        self.set_peer(shared);
    }

    /// Makes wireguard-go start a new handshake; returns its log from then on.
    fn shakes_hands_anew(&self, what: &str, shared: &str) -> String {
        self.anew(shared);
        let before = self.wireguard.output().len();
        wait::until(what, SHAKES_HANDS, || {
            self.pings(1);
            (self.handshake_at() > 0).then_some(())
        });
        self.wireguard.output().split_off(before)
    }

    /// Makes the daemon, which knows the peer, initiate the session.
    fn daemon_begins(&self) {
        let answers = self.show(&self.peer.credential.to_bytes());
        assert!(begins_with(&answers, ACKNOWLEDGED), "the credential got no answer: {answers:?}");
        // wireguard-go forgets its session, so the daemon receives nothing more over it.
        self.anew(&self.peer.preshared_key(&self.node.node()));
        self.daemon_shakes_hands("the daemon begins a handshake", SHAKES_HANDS);
    }

    /// The daemon sends something every second and gets no answer.
    fn daemon_talks(&self, until: Instant) {
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
    fn peer_talks(&self, until: Instant) {
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
    fn seen_at(&self) -> Option<String> {
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

fn verb(arguments: &[&str], state: &Path) -> String {
    let state = state.to_string_lossy();
    run_ok(&meshport().to_string_lossy(), &[arguments, &["--state-dir", &state]].concat())
}

fn metrics(socket: &Path) -> Option<Metrics> {
    let mut curl = Command::new("curl");
    curl.args(["-sSf", "--unix-socket"]).arg(socket).arg("http://meshport/metrics");
    let output = curl.output().expect("curl runs");
    output.status.success().then(|| Metrics::parse(&String::from_utf8_lossy(&output.stdout)))
}

fn begins_with(answers: &[Vec<u8>], first: [u8; 2]) -> bool {
    answers.iter().any(|answer| answer.starts_with(&first))
}

/// Each side starts the session in one of two worlds; in two more worlds only one of them has data
/// to send. All outlast the rekey after two minutes, so they run in parallel.
#[test]
#[ignore = "needs root, wireguard-go and network namespaces, takes 3 minutes: ./tests/run interop"]
fn wireguard_go_shakes_hands_rekeys_and_roams() {
    thread::scope(|scope| {
        scope.spawn(the_daemon_begins_renews_and_moves);
        scope.spawn(|| the_daemon_renews(Talks::Daemon));
        scope.spawn(|| the_daemon_renews(Talks::Peer));
        wireguard_go_begins_renews_and_moves();
    });
}

/// The side that sends data in a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Talks {
    Daemon,
    Peer,
}

/// The daemon renews a session that it started even if only one side has data for it and the other
/// answers only with empty packets.
fn the_daemon_renews(talks: Talks) {
    let setup = Setup::new();
    setup.daemon_begins();
    // From then on wireguard-go sends only its own messages or those of this test.
    wireguard::silence(&setup.guest, &setup.interface, ONE_WAY_PORT, setup.folder.path());
    let before = HANDSHAKES.map(|counter| setup.counted(counter));
    let (first, begun) = (setup.handshake_at(), wait::now());
    let talk = |until: Duration| match talks {
        Talks::Daemon => setup.daemon_talks(begun + until),
        Talks::Peer => setup.peer_talks(begun + until),
    };
    let transferred = || wireguard::transferred(&setup.guest, &setup.interface);
    talk(ONE_WAY[0]);
    let quiet = transferred();
    talk(ONE_WAY[1]);
    let [received, sent] = {
        let now = transferred();
        [0, 1].map(|at| now[at] - quiet[at])
    };
    assert_eq!(setup.handshake_at(), first, "{talks:?}: renewed too early");
    talk(REKEY_TALK);
    let after = HANDSHAKES.map(|counter| setup.counted(counter));
    assert_eq!(after[0] - before[0], 1.0, "{talks:?}: the daemon renews the session that it began");
    assert_eq!(after[1..], before[1..], "{talks:?}: wireguard-go began, or nothing was heard");
    assert!(setup.handshake_at() >= first + 100, "{talks:?}: no renewal of two minutes");
    println!("{talks:?} talks: wireguard-go received {received} bytes and sent {sent}");
    let (said, answered) = match talks {
        Talks::Daemon => (received, sent),
        Talks::Peer => (sent, received),
    };
    let seconds = (ONE_WAY[1] - ONE_WAY[0]).as_secs();
    assert!(said > seconds * LEAST_WORD, "{talks:?}: only {said} bytes were said");
    assert!(answered < ONLY_EMPTY, "{talks:?}: {answered} bytes in answer are not empty packets");
}

/// After presenting its credential, the peer sends only answers until the daemon has initiated a
/// session itself. Only the initiator of a session renews it.
fn the_daemon_begins_renews_and_moves() {
    let setup = Setup::new();
    let own = setup.peer.preshared_key(&setup.node.node());
    let answers = setup.show(&setup.peer.credential.to_bytes());
    assert!(begins_with(&answers, ACKNOWLEDGED), "the credential got no answer: {answers:02x?}");
    assert_eq!(setup.counted(MeshCount::HandshakesCompleted), 0.0, "the daemon has begun already");

    // wireguard-go forgets its session and gets another pre-shared key: it answers the daemon's
    // initiations, and the daemon rejects every answer.
    setup.anew(&BASE64.encode(&[7; 32]));
    wait::until("the daemon refuses the answer under another key", SHAKES_HANDS, || {
        (setup.counted(MeshCount::DroppedBadResponse) > 0.0).then_some(())
    });
    assert_eq!(setup.counted(MeshCount::HandshakesCompleted), 0.0, "a session with two keys");
    assert_eq!(setup.handshake_at(), 0, "wireguard-go has a session with two keys");

    setup.anew(&own);
    setup.daemon_shakes_hands("the daemon begins a handshake with the right key", SHAKES_HANDS);
    wait::until("wireguard-go has the session", SETTLE, || {
        (setup.handshake_at() > 0).then_some(())
    });
    let before = HANDSHAKES.map(|counter| setup.counted(counter));
    let first = setup.handshake_at();
    assert!(setup.pings(REKEY_PINGS), "echoes were lost while the daemon renewed its session");
    let after = HANDSHAKES.map(|counter| setup.counted(counter));
    assert_eq!(after[0] - before[0], 1.0, "the daemon renews the session that it began");
    assert_eq!(after[1..], before[1..], "wireguard-go began, or something was not answered");
    assert!(setup.handshake_at() >= first + 100, "no renewal of two minutes");
    assert_eq!(setup.counted(MeshCount::CookiesReceived), 0.0, "the link was not quiet");

    let moved = format!("{MOVED}:{MOVED_PORT}");
    assert_ne!(setup.daemon_seen_at(), moved);
    setup.move_daemon();
    assert!(setup.pings(3), "echoes are lost while the daemon moves");
    assert_eq!(setup.daemon_seen_at(), moved, "wireguard-go does not follow the daemon");
    setup.leave_former_address();
    assert!(setup.pings(3), "echoes are lost after the daemon's roam");
}

fn wireguard_go_begins_renews_and_moves() {
    let setup = Setup::new();

    // A session alone grants nothing: neither echo nor gossip is answered.
    assert!(!setup.pings(2), "an echo was answered before any credential was shown");
    assert!(setup.handshake_at() > 0, "WireGuard's own handshake did not complete");
    assert!(setup.counted(MeshCount::DroppedNotAdmitted) > 0.0);

    let own = setup.peer.credential.to_bytes();
    let mut tampered = own.clone();
    *tampered.last_mut().expect("a credential has bytes") ^= 1;
    let foreign = {
        let state = setup.folder.path().join("foreign");
        verb(&["init", "--site", "a", "--name", "peer"], &state);
        Identity::read(&state).credential.to_bytes()
    };
    let of_another = setup.node.credential.to_bytes();
    // Its issuer omitted the node's own signature.
    let unsigned = ("one-sided", &own[..own.len() - 64].to_vec());
    for (what, credential) in
        [("tampered", &tampered), ("foreign", &foreign), ("another's", &of_another), unsigned]
    {
        let before = setup.counted(MeshCount::CredentialsRefused);
        let answers = setup.show(credential);
        assert!(!begins_with(&answers, ACKNOWLEDGED), "a {what} credential was accepted");
        assert!(begins_with(&answers, REFUSED), "a {what} credential was not refused: {answers:?}");
        assert!(setup.counted(MeshCount::CredentialsRefused) > before, "{what}: not counted");
    }

    let answers = setup.show(&own);
    assert!(begins_with(&answers, ACKNOWLEDGED), "the credential got no answer: {answers:02x?}");
    assert!(setup.pings(3), "inner echo is not answered");

    // Larger than any gossip message, yet it fits the tunnel.
    let before = setup.counted(Count::DroppedMalformed);
    setup.send(GOSSIP_PORT, &[1; 1300]);
    assert!(setup.counted(Count::DroppedMalformed) > before, "oversized gossip is not counted");
    assert!(setup.pings(2), "the daemon does not serve after oversized gossip");

    // The peer's kernel sends long packets in fragments.
    let before = setup.counted(MeshCount::PacketsJoined);
    setup.guest.ip(&["link", "set", &setup.interface, "mtu", LEAST_MTU]);
    assert!(setup.pings_with(3, LONG_ECHO), "echoes that are sent in fragments are not answered");
    assert_eq!(setup.counted(MeshCount::PacketsJoined), before + 3.0);

    let first = setup.handshake_at();
    assert!(setup.pings(REKEY_PINGS), "echoes were lost while the session was rekeyed");
    assert!(setup.handshake_at() >= first + 100, "no rekey happened in {REKEY_PINGS} s");

    setup.guest.run("wg", &["set", &setup.interface, "listen-port", "40002"]);
    assert!(setup.pings(3), "echoes are lost after a roam");
    let roamed = format!("{}:40002", OUTER[1]);
    wait::until("the daemon sees the new port", SETTLE, || {
        (setup.seen_at()? == roamed).then_some(())
    });
}

#[test]
#[ignore = "needs root, wireguard-go and network namespaces: ./tests/run interop"]
fn wireguard_go_under_load_and_with_another_secret() {
    let mut setup = Setup::new();
    let path = setup.leads_by_a_path();
    let own = setup.peer.preshared_key(&setup.node.node());

    // With another pre-shared key wireguard-go cannot decrypt our answer, and has no session.
    setup.anew(&BASE64.encode(&[7; 32]));
    assert!(!setup.pings(2));
    assert_eq!(setup.handshake_at(), 0, "a session with two pre-shared keys");
    assert!(setup.counted(MeshCount::InitiationsAccepted) > 0.0, "no handshake was tried");
    assert_eq!(setup.counted(MeshCount::DroppedNotAdmitted), 0.0, "data came through");
    assert_eq!(setup.counted(MeshCount::CookiesSent), 0.0, "the daemon was under load");

    // The daemon is under load: wireguard-go must present a cookie, and does.
    path.crowd(Some(0));
    let answered = "Received handshake response";
    let asked = format!("Receiving cookie response from {}\n", setup.way);
    let tries = (0..TRIES).map(|_| {
        let log = setup.shakes_hands_anew("wireguard-go shakes hands with a cookie", &own);
        assert!(!log.contains("invalid cookie"), "wireguard-go cannot read a cookie:\n{log}");
        wireguard::count_before(&log, answered, &asked)
    });
    let cookies: Vec<usize> = tries.filter(|cookies| *cookies > 0).take(ASKED).collect();
    println!("{} initiations, {} cookies", path.sent(), setup.counted(MeshCount::CookiesSent));
    // A second request means that the first cookie was rejected.
    assert_eq!(cookies, [1; ASKED], "cookies until a handshake was answered");
    path.crowd(None);
    let answers = setup.show(&setup.peer.credential.to_bytes());
    assert!(begins_with(&answers, ACKNOWLEDGED), "the credential got no answer: {answers:02x?}");

    // wireguard-go is under load and has lost its session: the daemon must present a cookie.
    assert_eq!(setup.counted(MeshCount::CookiesReceived), 0.0, "wireguard-go was under load");
    let before = path.sent();
    path.crowd(Some(1));
    let asked = format!("denied handshake message for {}\n", setup.way);
    let mut tries = (0..TRIES).map(|_| {
        setup.anew(&own);
        let logged = setup.wireguard.output().len();
        setup.daemon_shakes_hands("the daemon shakes hands with a cookie", SHAKES_HANDS);
        let log = setup.wireguard.output().split_off(logged);
        wireguard::count_before(&log, "Received handshake initiation", &asked)
    });
    let cookies = tries.find(|cookies| *cookies > 0);
    println!("{} initiations to wireguard-go", path.sent() - before);
    assert_eq!(cookies, Some(1), "cookies until a handshake was answered");
    assert!(setup.counted(MeshCount::CookiesReceived) > 0.0, "the daemon cannot read a cookie");
    path.crowd(None);
    assert!(setup.pings(3), "echoes are lost afterwards");
}

#[test]
#[ignore = "needs root, wireguard-go and network namespaces: ./tests/run interop"]
fn wireguard_go_while_the_mesh_has_two_secrets() {
    let setup = Setup::new();
    let shakes_hands = |what: &str, shared: &str| {
        setup.anew(shared);
        wait::until(what, SHAKES_HANDS, || {
            setup.pings(1);
            (setup.handshake_at() > 0).then_some(())
        });
        let answers = setup.show(&setup.peer.credential.to_bytes());
        assert!(begins_with(&answers, ACKNOWLEDGED), "{what}: no answer: {answers:02x?}");
        assert!(setup.pings(2), "{what}: echoes are lost");
    };
    let former = setup.peer.preshared_key(&setup.node.node());
    shakes_hands("the only secret opens a tunnel", &former);

    // A peer with one fixed pre-shared key is served with either of the two.
    let state = setup.folder.path().join("node");
    verb(&["rotate-secret", "--overlap", OVERLAP], &state);
    let file = fs::read_to_string(state.join("mesh.secret")).expect("a node has it");
    assert_eq!(file.lines().count(), TWO_SECRETS);
    let rotated = Identity::read(&state).preshared_key(&setup.peer.node());
    assert_ne!(rotated, former);
    shakes_hands("the former secret opens a tunnel", &former);
    shakes_hands("the new secret opens a tunnel", &rotated);

    wait::until("the former secret is erased", OVERLAP_ENDS, || {
        let file = fs::read_to_string(state.join("mesh.secret")).expect("a node has it");
        (file.lines().count() < TWO_SECRETS).then_some(())
    });
    setup.anew(&former);
    assert!(!setup.pings(2));
    assert_eq!(setup.handshake_at(), 0, "the former secret opens nothing any more");
    shakes_hands("the new secret still opens a tunnel", &rotated);
}
