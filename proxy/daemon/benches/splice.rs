//! How a session's bytes are carried, in one process: TCP of the kernel or of memory, and two nodes
//! on a network in memory in between. `cargo bench -p meshport --bench splice`; processor time of
//! two daemons with a cable between them is the business of `tests/bench`.

#![allow(clippy::unwrap_used, reason = "a measuring tool, not the product")]

use std::any::Any;
use std::net::SocketAddr;

use bytes::Bytes;
use divan::Bencher;
use divan::counter::BytesCount;
use meshport_config::{
    AuthorityKey, Credential, MeshSecret, NodeId, NodeKey, RecordKey, Subject, UnixSeconds,
};
use meshport_daemon::bench;
use meshport_daemon::tcp::{Host, Tcp, memory};
use meshport_mesh::testing::Switch;
use meshport_mesh::{Identity, Incoming, Mesh, MeshConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};

const WALL: UnixSeconds = UnixSeconds(1_800_000_000);
/// Bytes that one iteration moves.
const TRANSFER: usize = 4 << 20;
/// How much a client writes and reads at once.
const BLOCK: usize = 64 << 10;
/// Pieces of one write.
const CHUNKS: usize = 32;

fn main() {
    divan::main();
}

/// The kind of TCP connection that is measured.
#[derive(Clone, Copy, Debug)]
enum Tcps {
    Kernel,
    Memory,
}

/// Where bytes come from and go to.
#[derive(Clone, Copy, Debug)]
enum Direction {
    Up,
    Down,
}

const WAYS: [(Tcps, Direction); 4] = [
    (Tcps::Kernel, Direction::Up),
    (Tcps::Kernel, Direction::Down),
    (Tcps::Memory, Direction::Up),
    (Tcps::Memory, Direction::Down),
];

/// A client and a server with something in between that carries.
struct Pipe {
    runtime: Runtime,
    client: Tcp,
    server: Tcp,
    // Nodes end when they are dropped.
    _between: Box<dyn Any>,
}

async fn pair(tcps: Tcps) -> (Tcp, Tcp) {
    let host = match tcps {
        Tcps::Kernel => Host::Kernel,
        Tcps::Memory => Host::Memory(memory::Host::default()),
    };
    let listener = host.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (near, far) = tokio::join!(host.connect(&address), listener.accept());
    let ends = (near.unwrap(), far.unwrap());
    ends.0.set_nodelay();
    ends.1.set_nodelay();
    ends
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn key(number: u8) -> NodeKey {
    NodeKey::from_bytes([number; 32])
}

fn id(number: u8) -> NodeId {
    key(number).public()
}

fn at(number: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, number], 51820))
}

fn start(number: u8, switch: &Switch) -> (Mesh, Incoming) {
    let subject = Subject {
        node: id(number),
        record_key: RecordKey::from_bytes([7; 32]).public(),
        name: "bench".parse().unwrap(),
        site: "local".parse().unwrap(),
        roles: "node".parse().unwrap(),
        succession: None,
    };
    let authority = AuthorityKey::from_bytes([1; 32]);
    let until = UnixSeconds(WALL.0 + 3600);
    let issued = Credential::issue_by_authority(&authority, subject, WALL, until).unwrap();
    let credential = issued.countersign(&key(number)).unwrap();
    let secret = MeshSecret::from_bytes([1; 32]);
    let identity = Identity { key: key(number), credential, secret };
    let socket = switch.attach(at(number));
    Mesh::start(identity, MeshConfig::default(), socket, [number; 32], || WALL).unwrap()
}

impl Pipe {
    /// A client's connection, a stream from one node to another, and a connection to the server.
    fn through_nodes(tcps: Tcps) -> Self {
        let runtime = runtime();
        let (client, server, between) = runtime.block_on(async {
            let switch = Switch::new(1);
            let (near, near_incoming) = start(1, &switch);
            let (far, mut far_incoming) = start(2, &switch);
            near.set_peer(id(2), &[at(2)], None);
            far.set_peer(id(1), &[at(1)], None);
            let (client, accepted) = pair(tcps).await;
            let (dialled, server) = pair(tcps).await;
            let mut there = near.open_stream(id(2)).await.unwrap();
            there.send.write_chunk(Bytes::from_static(b"x")).await.unwrap();
            let (_, mut here) = far_incoming.streams.recv().await.unwrap();
            here.recv.read_chunks(&mut [Bytes::new()]).await.unwrap();
            tokio::spawn(bench::with_stream(accepted, there));
            tokio::spawn(bench::with_stream(dialled, here));
            (client, server, (near, near_incoming, far, far_incoming))
        });
        Self { runtime, client, server, _between: Box::new(between) }
    }

    /// Two connections and no mesh: what an origin's own clients get.
    fn local(tcps: Tcps) -> Self {
        let runtime = runtime();
        let (client, server) = runtime.block_on(async {
            let ((client, accepted), (dialled, server)) = (pair(tcps).await, pair(tcps).await);
            tokio::spawn(bench::with_tcp(accepted, dialled));
            (client, server)
        });
        Self { runtime, client, server, _between: Box::new(()) }
    }

    fn carry(&mut self, way: Direction) {
        let Self { runtime, client, server, .. } = self;
        let (from, to) = match way {
            Direction::Up => (client, server),
            Direction::Down => (server, client),
        };
        runtime.block_on(async { tokio::join!(say(from), hear(to)) });
    }
}

async fn say(tcp: &mut Tcp) {
    let block = [7; BLOCK];
    for _ in 0..TRANSFER / BLOCK {
        tcp.write_all(&block).await.unwrap();
    }
}

async fn hear(tcp: &mut Tcp) {
    let (mut heard, mut block) = (0, vec![0; BLOCK]);
    while heard < TRANSFER {
        let read = tcp.read(&mut block).await.unwrap();
        assert_ne!(read, 0, "nothing ends it");
        heard += read;
    }
    assert_eq!(heard, TRANSFER);
}

/// Bulk data of one session through two nodes.
#[divan::bench(args = WAYS)]
fn session(bencher: Bencher<'_, '_>, (tcps, way): (Tcps, Direction)) {
    let mut pipe = Pipe::through_nodes(tcps);
    bencher.counter(BytesCount::new(TRANSFER)).bench_local(|| pipe.carry(way));
}

/// Bulk data of a session on the origin's own host.
#[divan::bench(args = WAYS)]
fn local_session(bencher: Bencher<'_, '_>, (tcps, way): (Tcps, Direction)) {
    let mut pipe = Pipe::local(tcps);
    bencher.counter(BytesCount::new(TRANSFER)).bench_local(|| pipe.carry(way));
}

/// One byte there and back through two nodes, as a small request goes.
#[divan::bench]
fn exchange(bencher: Bencher<'_, '_>) {
    let mut pipe = Pipe::through_nodes(Tcps::Kernel);
    bencher.bench_local(|| {
        let Pipe { runtime, client, server, .. } = &mut pipe;
        runtime.block_on(async {
            client.write_all(b"?").await.unwrap();
            assert_eq!(server.read_u8().await.unwrap(), b'?');
            server.write_all(b"!").await.unwrap();
            assert_eq!(client.read_u8().await.unwrap(), b'!');
        });
    });
}

/// Reads of a full socket.
#[divan::bench]
fn read(bencher: Bencher<'_, '_>) {
    let runtime = runtime();
    let (mut from, to) = runtime.block_on(pair(Tcps::Kernel));
    bencher.counter(BytesCount::new(TRANSFER)).bench_local(|| {
        runtime.block_on(async {
            let hear = async {
                let mut heard = 0;
                while heard < TRANSFER {
                    heard += bench::read(&to).await.unwrap().unwrap().len();
                }
                assert_eq!(heard, TRANSFER);
            };
            tokio::join!(say(&mut from), hear)
        });
    });
}

/// Vectored writes of pieces as they come out of packets of MTU 1500 and 8950, and of whole blocks.
#[divan::bench(args = [1392, 8842, BLOCK])]
fn write(bencher: Bencher<'_, '_>, piece: usize) {
    let runtime = runtime();
    let (from, mut to) = runtime.block_on(pair(Tcps::Kernel));
    let bytes = Bytes::from(vec![7; piece]);
    bencher.counter(BytesCount::new(piece * CHUNKS)).bench_local(|| {
        let mut chunks = vec![bytes.clone(); CHUNKS];
        runtime.block_on(async {
            let mut heard = vec![0; piece * CHUNKS];
            let (written, read) =
                tokio::join!(bench::write(&from, &mut chunks), to.read_exact(&mut heard));
            written.unwrap();
            read.unwrap();
        });
    });
}
