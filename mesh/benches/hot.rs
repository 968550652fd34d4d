//! The data path without a kernel: two nodes on a network in memory, QUIC, seal, open and packing
//! included. `cargo bench -p meshport-mesh`; processor time of real sockets is the business of
//! `tests/bench`.

#![allow(clippy::unwrap_used, reason = "a measuring tool, not the product")]

use std::cell::RefCell;
use std::net::SocketAddr;
use std::time::Instant;

use bytes::Bytes;
use divan::Bencher;
use divan::counter::BytesCount;
use meshport_config::{
    AuthorityKey, Credential, MeshSecret, NodeId, NodeKey, RecordKey, Revocation, Revocations,
    Revoked, Subject, UnixSeconds,
};
use meshport_mesh::testing::{Datagram, Packets, Switch};
use meshport_mesh::{Identity, Incoming, MAX_DATAGRAM, Mesh, MeshConfig, MeshCount, MeshEvent};
use tokio::runtime::{Builder, Runtime};

const WALL: UnixSeconds = UnixSeconds(1_800_000_000);
/// Bytes that an iteration of a transfer moves.
const TRANSFER: usize = 4 << 20;
/// How much is written at once, as by the splice.
const CHUNK: usize = 64 << 10;

fn main() {
    divan::main();
}

fn id(number: u8) -> NodeId {
    NodeKey::from_bytes([number; 32]).public()
}

fn at(number: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, number], 51820))
}

fn start(number: u8, switch: &Switch) -> (Mesh, Incoming) {
    start_as(NodeKey::from_bytes([number; 32]), number, switch)
}

fn identity(key: NodeKey) -> Identity {
    let subject = Subject {
        node: key.public(),
        record_key: RecordKey::from_bytes([7; 32]).public(),
        name: "bench".parse().unwrap(),
        site: "local".parse().unwrap(),
        roles: "node".parse().unwrap(),
        succession: None,
    };
    let authority = AuthorityKey::from_bytes([1; 32]);
    let until = UnixSeconds(WALL.0 + 3600);
    let issued = Credential::issue_by_authority(&authority, subject, WALL, until).unwrap();
    let credential = issued.countersign(&key).unwrap();
    Identity { key, credential, secret: MeshSecret::from_bytes([1; 32]) }
}

fn start_as(key: NodeKey, number: u8, switch: &Switch) -> (Mesh, Incoming) {
    let socket = switch.attach(at(number));
    // No cookies: the rest is measured.
    let config = MeshConfig { handshakes_per_second: u32::MAX, ..MeshConfig::default() };
    Mesh::start(identity(key), config, socket, [number; 32], || WALL).unwrap()
}

/// Two nodes that know each other; the second sends back what comes on streams and datagrams.
struct Pair {
    runtime: Runtime,
    near: Mesh,
    incoming: Incoming,
}

impl Pair {
    fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let (near, incoming) = runtime.block_on(async {
            let switch = Switch::new(1);
            let (near, incoming) = start(1, &switch);
            let (far, far_incoming) = start(2, &switch);
            near.set_peer(id(2), &[at(2)], None);
            far.set_peer(id(1), &[at(1)], None);
            tokio::spawn(serve(far, far_incoming));
            drop(near.open_stream(id(2)).await.unwrap());
            (near, incoming)
        });
        Self { runtime, near, incoming }
    }
}

async fn serve(mesh: Mesh, incoming: Incoming) {
    let Incoming { mut events, mut streams, .. } = incoming;
    let datagrams = async {
        while let Some(event) = events.recv().await {
            if let MeshEvent::Datagram { from, port, payload, .. } = event {
                mesh.send_datagram(from, port, &payload).unwrap();
            }
        }
    };
    let streams = async {
        while let Some((_, mut stream)) = streams.recv().await {
            tokio::spawn(async move {
                let mut chunks: [Bytes; 64] = std::array::from_fn(|_| Bytes::new());
                while let Ok(Some(_)) = stream.recv.read_chunks(&mut chunks).await {}
                // The bench may be over by now.
                let _ = stream.send.finish();
            });
        }
    };
    tokio::join!(datagrams, streams);
}

/// Bulk data over this many concurrent streams.
#[divan::bench(args = [1, 8, 64])]
fn transfer(bencher: Bencher<'_, '_>, streams: usize) {
    let pair = Pair::new();
    let data = Bytes::from(vec![7; CHUNK]);
    bencher.counter(BytesCount::new(TRANSFER)).bench_local(|| {
        pair.runtime.block_on(async {
            let sends = (0..streams).map(|_| {
                let (mesh, data) = (pair.near.clone(), data.clone());
                tokio::spawn(async move {
                    let mut stream = mesh.open_stream(id(2)).await.unwrap();
                    for _ in 0..TRANSFER / CHUNK / streams {
                        stream.send.write_chunk(data.clone()).await.unwrap();
                    }
                    stream.send.finish().unwrap();
                    let mut rest = [Bytes::new()];
                    while let Ok(Some(_)) = stream.recv.read_chunks(&mut rest).await {}
                })
            });
            for send in sends.collect::<Vec<_>>() {
                send.await.unwrap();
            }
        });
    });
}

/// A session, and datagrams that fill packets of an MTU.
struct Sealing {
    packets: RefCell<Packets>,
    segment: usize,
    batch: Vec<u8>,
}

/// Datagrams at an MTU: one, and as many as quinn puts into a batch.
const BATCHES: [(usize, usize); 4] = [(1500, 1), (1500, 10), (8950, 1), (8950, 10)];

impl Sealing {
    fn new(mtu: usize, datagrams: usize) -> Self {
        #[expect(clippy::disallowed_methods, reason = "an origin for time that stands still")]
        let start = Instant::now();
        let [near, far] = [1, 2].map(|number| identity(NodeKey::from_bytes([number; 32])));
        let segment = Packets::segment(mtu);
        let packets = RefCell::new(Packets::new(near, far, start));
        Self { packets, segment, batch: vec![7; segment * datagrams] }
    }
}

/// From QUIC's datagrams to the bytes on the wire.
#[divan::bench(args = BATCHES)]
fn seal(bencher: Bencher<'_, '_>, (mtu, datagrams): (usize, usize)) {
    let Sealing { packets, segment, batch } = Sealing::new(mtu, datagrams);
    let length = packets.borrow_mut().seal(&batch, segment).len();
    assert!(length > batch.len() && length <= mtu * datagrams);
    bencher
        .counter(BytesCount::new(batch.len()))
        .bench_local(|| packets.borrow_mut().seal(&batch, segment).len());
}

/// From the bytes on the wire to QUIC's datagrams.
#[divan::bench(args = BATCHES)]
fn open(bencher: Bencher<'_, '_>, (mtu, datagrams): (usize, usize)) {
    let Sealing { packets, segment, batch } = Sealing::new(mtu, datagrams);
    bencher
        .counter(BytesCount::new(batch.len()))
        // Each packet can be opened only once.
        .with_inputs(|| packets.borrow_mut().seal(&batch, segment).to_vec())
        .bench_local_values(|sealed| {
            assert_eq!(packets.borrow_mut().open(&sealed, segment), batch.len());
        });
}

/// A new stream, a byte there, the end back.
#[divan::bench]
fn open_stream(bencher: Bencher<'_, '_>) {
    let pair = Pair::new();
    bencher.bench_local(|| {
        pair.runtime.block_on(async {
            let mut stream = pair.near.open_stream(id(2)).await.unwrap();
            stream.send.write_chunk(Bytes::from_static(b"x")).await.unwrap();
            stream.send.finish().unwrap();
            let mut rest = [Bytes::new()];
            while let Ok(Some(_)) = stream.recv.read_chunks(&mut rest).await {}
        });
    });
}

/// A datagram there and back.
#[divan::bench(args = [64, MAX_DATAGRAM])]
fn datagram(bencher: Bencher<'_, '_>, length: usize) {
    let mut pair = Pair::new();
    let payload = vec![7; length];
    bencher.bench_local(|| {
        let Pair { runtime, near, incoming } = &mut pair;
        runtime.block_on(async {
            near.send_datagram(id(2), 9000, &payload).unwrap();
            while let Some(event) = incoming.events.recv().await {
                if matches!(event, MeshEvent::Datagram { .. }) {
                    break;
                }
            }
        });
    });
}

/// A node that has shut node 2 out, and what reaches it.
struct Door {
    runtime: Runtime,
    switch: Switch,
    mesh: Mesh,
    // Its events may wait here.
    _incoming: Incoming,
}

impl Door {
    fn new() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let switch = Switch::new(1);
        let (mesh, incoming) = runtime.block_on(async { start(1, &switch) });
        let mut revocations = Revocations::default();
        let authority = AuthorityKey::from_bytes([1; 32]);
        revocations.add(Revocation::issue(&authority, Revoked::Node(id(2)), WALL));
        mesh.set_revocations(&revocations);
        Self { runtime, switch, mesh, _incoming: incoming }
    }

    /// The first message of the node with this key.
    fn initiation_of(&self, key: NodeKey) -> Vec<u8> {
        let elsewhere = Switch::new(1);
        elsewhere.capture();
        self.runtime.block_on(async {
            let (mesh, _incoming) = start_as(key, 2, &elsewhere);
            mesh.set_peer(id(1), &[at(1)], None);
            mesh.connect(&id(1));
            loop {
                if let Some(said) = elsewhere.captured().pop() {
                    return said.bytes;
                }
                tokio::task::yield_now().await;
            }
        })
    }

    /// Delivers a datagram and waits until it is counted.
    fn take(&self, bytes: Vec<u8>, count: MeshCount) {
        let before = self.mesh.counters()[count];
        self.runtime.block_on(async {
            self.switch.inject(&Datagram { from: at(2), to: at(1), bytes });
            while self.mesh.counters()[count] == before {
                tokio::task::yield_now().await;
            }
        });
    }
}

/// A datagram that is nothing: what the way to the node costs in all of these.
#[divan::bench]
fn shut_out_nothing(bencher: Bencher<'_, '_>) {
    let door = Door::new();
    bencher.bench_local(|| door.take(vec![9; 148], MeshCount::DroppedMalformed));
}

/// Data of a session that a revoked node had.
#[divan::bench]
fn shut_out_data(bencher: Bencher<'_, '_>) {
    let door = Door::new();
    let data = [&[4, 0, 0, 0][..], &[7; 144]].concat();
    bencher.bench_local(|| door.take(data.clone(), MeshCount::DroppedUnknownSession));
}

/// The initiation of a revoked node.
#[divan::bench]
fn shut_out_initiation(bencher: Bencher<'_, '_>) {
    let door = Door::new();
    let first = door.initiation_of(NodeKey::from_bytes([2; 32]));
    bencher.bench_local(|| door.take(first.clone(), MeshCount::DroppedRevoked));
}

/// The initiation of an unknown node: a fresh handshake.
#[divan::bench]
fn taken_in_initiation(bencher: Bencher<'_, '_>) {
    let door = Door::new();
    let mut number = 0_u64;
    let strangers = || {
        number += 1;
        let mut key = [3; 32];
        key[8..16].copy_from_slice(&number.to_le_bytes());
        door.initiation_of(NodeKey::from_bytes(key))
    };
    bencher
        .with_inputs(strangers)
        .bench_local_values(|first| door.take(first, MeshCount::InitiationsAccepted));
}
