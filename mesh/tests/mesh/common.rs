//! Nodes of one mesh for tests, on a network in memory or on loopback UDP.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use meshport_config::{
    AuthorityKey, Credential, MeshSecret, NodeId, NodeKey, RecordKey, Subject, UnixSeconds,
};
use meshport_mesh::testing::Switch;
use meshport_mesh::{
    Identity, Incoming, Mesh, MeshConfig, MeshEvent, OuterSocket, RecvHalf, SendHalf, Stream,
    UdpOuter,
};
use tokio::sync::mpsc;

/// The wall clock of all tests.
pub(crate) const WALL: UnixSeconds = UnixSeconds(1_800_000_000);

/// An authority and its secret.
pub(crate) struct World {
    pub(crate) authority: AuthorityKey,
    pub(crate) secret: MeshSecret,
}

impl World {
    pub(crate) fn new(seed: u8) -> Self {
        Self {
            authority: AuthorityKey::from_bytes([seed; 32]),
            secret: MeshSecret::from_bytes([seed; 32]),
        }
    }

    /// A credential of this world for `key`, valid for a day.
    pub(crate) fn credential(&self, key: &NodeKey, name: &str) -> Credential {
        self.credential_until(key, name, UnixSeconds(WALL.0 + 86_400))
    }

    pub(crate) fn credential_until(
        &self,
        key: &NodeKey,
        name: &str,
        until: UnixSeconds,
    ) -> Credential {
        let subject = Subject {
            node: key.public(),
            record_key: RecordKey::from_bytes([7; 32]).public(),
            name: name.parse().unwrap(),
            site: "fra".parse().unwrap(),
            roles: "node".parse().unwrap(),
            succession: None,
        };
        let issued = UnixSeconds(until.0.min(WALL.0) - 3600);
        let made = Credential::issue_by_authority(&self.authority, subject, issued, until);
        made.unwrap().countersign(key).unwrap()
    }

    pub(crate) fn identity(&self, number: u8) -> Identity {
        let key = key(number);
        let credential = self.credential(&key, &format!("node-{number}"));
        Identity { key, credential, secret: self.secret.clone() }
    }
}

pub(crate) fn key(number: u8) -> NodeKey {
    NodeKey::from_bytes([number; 32])
}

pub(crate) fn id(number: u8) -> NodeId {
    key(number).public()
}

/// The outer address of node `number` on a switch.
pub(crate) fn at(number: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, number], 51820))
}

pub(crate) struct Node {
    pub(crate) mesh: Mesh,
    pub(crate) incoming: Incoming,
}

pub(crate) fn start(identity: Identity, socket: Arc<dyn OuterSocket>, seed: u8) -> Node {
    start_with(identity, socket, seed, MeshConfig::default())
}

pub(crate) fn start_with(
    identity: Identity,
    socket: Arc<dyn OuterSocket>,
    seed: u8,
    config: MeshConfig,
) -> Node {
    let (mesh, incoming) = Mesh::start(identity, config, socket, [seed; 32], || WALL).unwrap();
    Node { mesh, incoming }
}

/// Nodes 1..=count on a switch; each knows all others' addresses but no credential.
pub(crate) fn nodes(world: &World, switch: &Switch, count: u8) -> Vec<Node> {
    let nodes: Vec<Node> =
        (1..=count).map(|n| start(world.identity(n), switch.attach(at(n)), n)).collect();
    for node in &nodes {
        for other in 1..=count {
            node.mesh.set_peer(id(other), &[at(other)], None);
        }
    }
    nodes
}

pub(crate) fn pair(switch: &Switch) -> (Node, Node) {
    let mut nodes = nodes(&World::new(1), switch, 2).into_iter();
    (nodes.next().unwrap(), nodes.next().unwrap())
}

/// Two nodes on real UDP sockets bound to `address`.
pub(crate) fn udp_pair(address: SocketAddr, config: &MeshConfig) -> (Node, Node) {
    let world = World::new(1);
    let mut nodes = (1..=2).map(|n| {
        let socket = Arc::new(UdpOuter::bind(address).unwrap());
        start_with(world.identity(n), socket, n, config.clone())
    });
    let (a, b) = (nodes.next().unwrap(), nodes.next().unwrap());
    a.mesh.set_peer(id(2), &[b.mesh.local_addr()], None);
    b.mesh.set_peer(id(1), &[a.mesh.local_addr()], None);
    (a, b)
}

/// The next event that is not a datagram.
pub(crate) async fn state_event(node: &mut Node) -> MeshEvent {
    loop {
        match node.incoming.events.recv().await.expect("the mesh runs") {
            MeshEvent::Datagram { .. } => {}
            event => return event,
        }
    }
}

/// The next datagram.
pub(crate) async fn datagram(node: &mut Node) -> (NodeId, u16, Bytes) {
    loop {
        let event = node.incoming.events.recv().await.expect("the mesh runs");
        if let MeshEvent::Datagram { from, port, payload, .. } = event {
            return (from, port, payload);
        }
    }
}

pub(crate) async fn read_to_end(recv: &mut RecvHalf) -> Result<Vec<u8>, meshport_mesh::MeshError> {
    let mut all = Vec::new();
    let mut chunks: [Bytes; 16] = std::array::from_fn(|_| Bytes::new());
    while let Some(count) = recv.read_chunks(&mut chunks).await? {
        for chunk in &chunks[..count] {
            all.extend_from_slice(chunk);
        }
    }
    Ok(all)
}

/// Reads exactly one chunk.
pub(crate) async fn read_some(
    recv: &mut RecvHalf,
) -> Result<Option<Bytes>, meshport_mesh::MeshError> {
    let mut chunks = [Bytes::new()];
    Ok(recv.read_chunks(&mut chunks).await?.map(|_| chunks[0].clone()))
}

pub(crate) async fn write(send: &mut SendHalf, bytes: &[u8]) {
    send.write_chunk(Bytes::copy_from_slice(bytes)).await.unwrap();
}

/// Answers every incoming stream with its own bytes, until the mesh ends.
pub(crate) fn echo(mut node: Node) -> (Mesh, tokio::task::JoinHandle<()>) {
    let mesh = node.mesh.clone();
    let task = tokio::spawn(async move {
        let events = async { while node.incoming.events.recv().await.is_some() {} };
        for others in node.incoming.others {
            others.runtime.spawn(echo_streams(others.streams));
        }
        let streams = echo_streams(node.incoming.streams);
        tokio::join!(events, streams);
    });
    (mesh, task)
}

async fn echo_streams(mut streams: mpsc::Receiver<(NodeId, Stream)>) {
    while let Some((_, stream)) = streams.recv().await {
        tokio::spawn(echo_stream(stream));
    }
}

async fn echo_stream(mut stream: Stream) {
    while let Ok(Some(chunk)) = read_some(&mut stream.recv).await {
        if stream.send.write_chunk(chunk).await.is_err() {
            return;
        }
    }
    let _ = stream.send.finish();
    let _ = stream.send.stopped().await;
}

/// Opens a stream to `node`, sends `bytes` and checks that they come back.
pub(crate) async fn round_trip(
    mesh: &Mesh,
    node: NodeId,
    bytes: &[u8],
) -> Result<(), meshport_mesh::MeshError> {
    let Stream { mut send, mut recv } = mesh.open_stream(node).await?;
    // Both at once: an echo that is not read fills both windows.
    let write = async {
        send.write_chunk(Bytes::copy_from_slice(bytes)).await?;
        send.finish()
    };
    let ((), answer) = tokio::try_join!(write, read_to_end(&mut recv))?;
    assert!(answer == bytes, "the echo differs");
    Ok(())
}

/// Fails loudly instead of hanging.
pub(crate) async fn within<T>(limit: Duration, what: impl Future<Output = T>) -> T {
    tokio::time::timeout(limit, what).await.expect("in time")
}

/// Waits until `condition` holds, checked every 10 ms of tokio's time.
pub(crate) async fn eventually(mut condition: impl FnMut() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait).await.expect("eventually");
}
