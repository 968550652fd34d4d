//! Bad input: each kind leaves the daemons serving and is counted.

#![expect(clippy::print_stdout, reason = "figures for the reader of a test run")]

use std::fs;
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::thread;
use std::time::Duration;

use meshport_mesh::MeshCount;
use meshport_tests::identity::Identity;
use meshport_tests::process::{Process, meshport, run_ok};
use meshport_tests::tap::Tap;
use meshport_tests::transfer::{self, Open};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};

const SETTLE: Duration = Duration::from_secs(40);
/// A peer without a valid credential is dropped 30 s after its last handshake.
const FORGOTTEN: Duration = Duration::from_secs(60);
/// Datagrams of each kind; few enough to fit any socket buffer, many enough to be no accident.
const DATAGRAMS: usize = 100;
/// Clients that send nothing.
const SILENT: usize = 20;
/// Sessions that nobody reads.
const UNREAD: usize = 4;
/// Size of the answer that each of their clients requests.
const UNREAD_BYTES: u64 = 1 << 30;
/// A stream's window follows the round trip that the handshake measures, which a busy machine makes
/// longer; from 108 ms on it is 16 MiB and no more.
const FAR: Duration = Duration::from_millis(110);
/// Those windows: what the receiving daemon keeps.
const WINDOWS_KIB: u64 = (UNREAD as u64) * (16 << 10);
/// How much a daemon may grow by: half as much again for data being received and for the allocator.
const MAX_GROWTH_KIB: u64 = WINDOWS_KIB * 3 / 2;
/// Limit for the time until much is unread, which a busy machine needs.
const FILLED: Duration = Duration::from_secs(120);
/// How long memory is watched once much is unread.
const WATCHED: Duration = Duration::from_secs(8);

/// WireGuard's message types and their sizes; a data message is at least a header and a tag.
const TYPES: [(u8, usize); 4] = [(1, 148), (2, 92), (3, 64), (4, 32)];
const DATA: u8 = 4;
const INITIATION: u8 = 1;

struct Stage {
    world: World,
    tap: Tap,
}

impl Stage {
    fn new() -> Self {
        Self::of(World::new())
    }

    /// Two sites whose streams have the largest window.
    fn far() -> Self {
        let world = World::new();
        world.distance("a", "b", FAR);
        Self::of(world)
    }

    /// An origin whose datagrams from others come through a tap, and a node that uses it.
    fn of(mut world: World) -> Self {
        let address = world.apiserver("cp-a");
        let service = transfer::serve();
        let offer = |name: &str, instance: SocketAddr| {
            format!("\n[service.{name}]\nlisten = []\norigin = \"{instance}\"\n")
        };
        let offers = offer("blob", service) + &offer("deaf", deaf());
        let origin = NodePlan::new("cp-a", "a").origin(address);
        let origin = origin.role("origin:blob").role("origin:deaf");
        world.make(&origin.settings(&offers));
        let node = world.at("cp-a").udp;
        let tap = Tap::start(node.ip(), node).expect("a free port");
        world.shaper().set_real("cp-a", tap.public()).expect("the node is there");
        world.start("cp-a");
        let listen = |name: &str| format!("\n[service.{name}]\nlisten = [\"127.0.0.1:0\"]\n");
        let listens = listen("blob") + &listen("deaf");
        world.node(&NodePlan::new("worker-b", "b").settings(&listens));
        world.meet();
        world.chooses("worker-b", "cp-a", SETTLE);
        Self { world, tap }
    }

    fn counted(&self, counter: MeshCount) -> f64 {
        self.world.at("cp-a").metrics().count(counter)
    }

    /// Plays `attack` and waits until one of `events` has grown; then everything is still served.
    #[track_caller]
    fn counts(&self, events: &[MeshCount], attack: impl FnOnce()) {
        let before: Vec<f64> = events.iter().map(|event| self.counted(*event)).collect();
        attack();
        for (event, before) in events.iter().zip(before) {
            wait::until(&format!("{event:?} grows beyond {before}"), SETTLE, || {
                (self.counted(*event) > before).then_some(())
            });
        }
        self.serves();
    }

    #[track_caller]
    fn serves(&self) {
        for node in ["worker-b", "cp-a"] {
            let answer = self.world.get(node, "/version");
            assert_eq!(answer.status, 200, "through {node}");
        }
    }

    /// Resident KiB of the origin and of the client's node.
    fn resident(&mut self) -> [u64; 2] {
        ["cp-a", "worker-b"].map(|node| self.world.node_mut(node).process().resident_kib())
    }

    /// Waits until half of the windows are full, then watches both nodes, doing `meanwhile` again
    /// and again.
    #[track_caller]
    fn memory_stays_bounded(&mut self, before: [u64; 2], mut meanwhile: impl FnMut()) {
        let mut grown = || {
            meanwhile();
            let growth = self.resident().into_iter().zip(before);
            growth.map(|(now, before)| now.saturating_sub(before)).max().unwrap_or(0)
        };
        wait::until("the windows fill", FILLED, || (grown() > WINDOWS_KIB / 2).then_some(()));
        let mut most = 0;
        wait::throughout("memory stays bounded", WATCHED, || {
            most = most.max(grown());
            most <= MAX_GROWTH_KIB
        });
        println!("a daemon grew by {most} KiB with {WINDOWS_KIB} KiB of windows");
    }

    fn blob(&self) -> SocketAddr {
        wait::until("worker-b listens for the transfer service", SETTLE, || {
            let local = self.world.at("worker-b").service("blob")?;
            transfer::transfer(local, transfer::Direction::Down, 0).ok().map(|_| local)
        })
    }

    /// Copies of the tap's packets of one WireGuard message type.
    fn seen(&self, kind: u8) -> Vec<Vec<u8>> {
        let of_kind = |datagram: &Vec<u8>| datagram.first() == Some(&kind);
        let seen: Vec<_> = self.tap.kept().into_iter().filter(of_kind).take(DATAGRAMS).collect();
        assert!(!seen.is_empty(), "no message of type {kind} passed the tap");
        seen
    }
}

/// An instance that takes every connection and never reads, as long as the test's process lives.
fn deaf() -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let address = listener.local_addr().expect("bound");
    thread::spawn(move || listener.incoming().flatten().collect::<Vec<_>>());
    address
}

/// Random bytes, the same each time (xorshift32, Marsaglia 2003).
fn noise(seed: usize, length: usize) -> Vec<u8> {
    let mut state = u32::try_from(seed).unwrap_or(1) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_be_bytes()[0]
    };
    (0..length).map(|_| next()).collect()
}

#[test]
fn datagrams_that_make_no_sense() {
    let stage = Stage::new();
    let node = stage.world.at("cp-a").udp;
    let send = |datagrams: Vec<Vec<u8>>| {
        let socket = UdpSocket::bind((node.ip(), 0)).expect("a free port");
        for datagram in datagrams {
            socket.send_to(&datagram, node).expect("loopback carries it");
        }
    };
    stage.counts(&[MeshCount::DroppedMalformed], || {
        send((0..DATAGRAMS).map(|each| noise(each + 1, each * 14)).collect());
    });
    let events = [
        MeshCount::DroppedBadMac,
        MeshCount::DroppedBadResponse,
        MeshCount::DroppedBadResponse,
        MeshCount::DroppedUnknownSession,
    ];
    for ((kind, size), event) in TYPES.into_iter().zip(events) {
        stage.counts(&[event], || {
            let noisy = |each| {
                let mut datagram = noise(each + 1, size);
                datagram[..4].copy_from_slice(&[kind, 0, 0, 0]);
                datagram
            };
            send((0..DATAGRAMS).map(noisy).collect());
        });
    }
    let largest = (0..10).map(|each| noise(each + 1, 65_507)).collect();
    stage.counts(&[MeshCount::DroppedMalformed], || send(largest));
}

#[test]
fn truncated_changed_and_replayed_packets() {
    let stage = Stage::new();
    let data = stage.seen(DATA);
    let inject = |datagrams: &[Vec<u8>]| stage.tap.inject(datagrams).expect("loopback carries it");
    stage.counts(&[MeshCount::DroppedReplayed], || inject(&data));
    stage.counts(&[MeshCount::DroppedReplayedInitiation], || inject(&stage.seen(INITIATION)));
    // The counter of a data message is in bytes 8 to 15: a new one, so that it is no replay.
    let renumbered = |datagram: &Vec<u8>| {
        let mut datagram = datagram.clone();
        datagram[12] ^= 1;
        datagram
    };
    stage.counts(&[MeshCount::DroppedUnauthentic], || {
        inject(&data.iter().map(renumbered).collect::<Vec<_>>());
    });
    stage.counts(&[MeshCount::DroppedMalformed], || {
        let cut = |(each, datagram): (usize, &Vec<u8>)| datagram[..each % 32].to_vec();
        inject(&data.iter().enumerate().map(cut).collect::<Vec<_>>());
    });
}

/// A daemon of another mesh comes to the origin, perhaps with the secret of the origin's mesh:
/// `event` is counted, and in the end it is forgotten.
fn a_stranger_is_given_up(knows_the_secret: bool, event: MeshCount) {
    let stage = Stage::new();
    let node = stage.world.at("cp-a");
    let state = stage.world.path("foreign");
    let (folder, config) = (state.to_string_lossy().into_owned(), stage.world.path("foreign.toml"));
    let init = ["init", "--state-dir", &folder, "--site", "a", "--name", "stranger"];
    run_ok(&meshport().to_string_lossy(), &init);
    if knows_the_secret {
        let secret = "mesh.secret";
        fs::copy(node.state().join(secret), state.join(secret)).expect("a file can be copied");
    }
    let seed = format!("{}@{}", Identity::read(node.state()).node(), node.udp);
    fs::write(
        &config,
        format!(
            "site = \"a\"\nstate-dir = \"{folder}\"\n[mesh]\nlisten = \"127.0.0.1:0\"\n\
             seeds = [\"{seed}\"]\n[admin]\nhttp = \"off\"\n\
             [service.kube-apiserver]\nlisten = [\"127.0.0.1:0\"]\n"
        ),
    )
    .expect("the folder can be written");
    let before = node.alive();
    stage.counts(&[MeshCount::InitiationsAccepted, event, MeshCount::ProvisionalExpired], || {
        let mut command = Command::new(meshport());
        command.arg("run").arg("--config").arg(&config);
        let stranger = Process::start("stranger", &mut command, &stage.world.path("foreign.log"));
        wait::until("the stranger is given up", FORGOTTEN, || {
            (stage.counted(MeshCount::ProvisionalExpired) > 0.0).then_some(())
        });
        stranger.kill();
    });
    assert_eq!(node.alive(), before, "the stranger became a member");
}

#[test]
fn a_daemon_of_another_mesh() {
    // Without the secret its handshake is never completed.
    a_stranger_is_given_up(false, MeshCount::ProvisionalExpired);
}

#[test]
fn a_daemon_of_another_mesh_with_a_stolen_secret() {
    // It gets a session, but none of its packets counts.
    a_stranger_is_given_up(true, MeshCount::DroppedInnerSource);
}

#[test]
fn clients_that_send_nothing_and_clients_that_never_read() {
    let mut stage = Stage::far();
    let accepted = |stage: &Stage| {
        let metrics = stage.world.at("worker-b").metrics();
        metrics.sum("meshport_sessions_accepted_total", "")
    };
    let before = accepted(&stage);
    let local = stage.world.at("worker-b").local;
    let connect = |_| TcpStream::connect(local).expect("the local address is open");
    let silent: Vec<TcpStream> = (0..SILENT).map(connect).collect();
    wait::until("silent clients are counted", SETTLE, || {
        (accepted(&stage) >= before + SILENT as f64).then_some(())
    });
    stage.serves();
    drop(silent);

    let blob = stage.blob();
    let before = stage.resident();
    let ask = |_| Open::download(blob, UNREAD_BYTES).expect("a session opens");
    let unread: Vec<Open> = (0..UNREAD).map(ask).collect();
    stage.memory_stays_bounded(before, || {});
    stage.serves();
    let open = stage.world.at("worker-b").metrics();
    assert!(open.sum("meshport_sessions_open", "service=\"blob\"") >= UNREAD as f64);
    drop(unread);
}

#[test]
fn uploads_to_an_instance_that_never_reads() {
    let mut stage = Stage::far();
    let deaf =
        wait::until("worker-b listens", SETTLE, || stage.world.at("worker-b").service("deaf"));
    let before = stage.resident();
    let connect = |_| {
        let client = TcpStream::connect(deaf).expect("the local address is open");
        client.set_nonblocking(true).expect("it can be");
        client
    };
    let mut clients: Vec<TcpStream> = (0..UNREAD).map(connect).collect();
    let (block, mut taken) = (vec![0x5a; 1 << 20], 0);
    stage.memory_stays_bounded(before, || {
        for client in &mut clients {
            // The error says that there is no room: earlier bytes are still in transit.
            while let Ok(bytes) = client.write(&block) {
                taken += bytes;
            }
        }
    });
    println!("{taken} bytes were taken of {UNREAD} clients");
    stage.serves();
    let open = stage.world.at("worker-b").metrics();
    assert!(open.sum("meshport_sessions_open", "service=\"deaf\"") >= UNREAD as f64);
}
