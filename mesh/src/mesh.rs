//! The handle.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use meshport_config::{Credential, Issued, MeshSecrets, NodeId, Revocations, UnixSeconds};
use quinn::{Endpoint, TokioRuntime, VarInt};
use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::bridge::{Bridge, Predecessors};
use super::driver::drive;
use super::inbox::Inboxes;
use super::link::{Link, WallClock, now};
use super::outer::OuterSocket;
use super::quic_config::{IDLE_TIMEOUT, PathHints, QuicSetup, overhead};
use super::quic_socket::QuicSocket;
use super::shards::{ShardIo, Shards};
use super::streams::{CODE_CLOSED, Delivery, Stream, Streams};
use super::windows::Pools;
use meshport_proto::calls::CallToken;
use meshport_proto::core::Core;
use meshport_proto::settings::{Identity, MeshConfig};
use meshport_proto::shard::{ShardIndex, owner};
use meshport_proto::{MeshCounters, MeshError, MeshEvent, NotBelieved, PeerStatus};

/// How long [`Mesh::close`] waits for peers to hear of it.
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);

/// A running mesh. Clones are handles to the same one; it ends with [`Mesh::close`] or when the
/// last handle is dropped.
#[derive(Debug, Clone)]
pub struct Mesh {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    local: SocketAddr,
    /// At least one. [`owner`] selects a peer's shard.
    shards: Vec<Shard>,
}

/// A shard: everything about its peers.
#[derive(Debug)]
struct Shard {
    link: Arc<Link>,
    streams: Arc<Streams>,
    endpoint: Endpoint,
    runtime: Handle,
    /// Its thread, if it has its own.
    _worker: Box<dyn Kept>,
}

/// A value that only has to be kept alive.
trait Kept: Send + Sync + std::fmt::Debug {}
impl<T: Send + Sync + std::fmt::Debug> Kept for T {}

/// Data and streams from peers. All queues are bounded: datagrams that are not taken are dropped
/// and counted, streams wait and are then refused.
#[derive(Debug)]
pub struct Incoming {
    /// Events and datagrams, of all shards.
    pub events: mpsc::Receiver<MeshEvent>,
    /// Streams opened by peers of the first shard, which are all peers when there is one.
    pub streams: mpsc::Receiver<(NodeId, Stream)>,
    /// Streams from peers of the other shards.
    pub others: Vec<ShardStreams>,
}

/// Streams opened by the peers of one shard.
#[derive(Debug)]
pub struct ShardStreams {
    /// The runtime of that shard: a task there uses these streams without waking another thread.
    pub runtime: Handle,
    /// The streams.
    pub streams: mpsc::Receiver<(NodeId, Stream)>,
}

/// State of a shard for an operator.
#[derive(Debug, Clone, Copy)]
pub struct ShardStatus {
    /// Peers that belong to it.
    pub peers: usize,
    /// Its counters.
    pub counters: MeshCounters,
}

impl Shard {
    /// Starts `core` on `io`. Answers the streams that its peers open as well.
    fn start(
        mut io: ShardIo,
        mut core: Core,
        config: &MeshConfig,
        seed: &[u8; 32],
        setup: QuicSetup,
        link: impl FnOnce(Core, Arc<dyn OuterSocket>, Predecessors) -> Link,
    ) -> Result<(Self, mpsc::Receiver<(NodeId, Stream)>), MeshError> {
        let failed = |error: std::io::Error| MeshError::Socket(error.to_string());
        let endpoint_config = setup.endpoint(core.key(), seed)?;
        let (stream_sender, queue) = mpsc::channel(config.max_waiting_streams.max(1));
        let runtime = io.runtime.clone();
        let predecessors = io.take_predecessors();
        core.set_continues(predecessors.are_running());
        let link = Arc::new(link(core, io.socket.clone(), predecessors));
        let quic_socket = QuicSocket::new(link.clone(), setup.max_datagram());
        let entered = runtime.enter();
        let endpoint = Endpoint::new_with_abstract_socket(
            endpoint_config,
            Some(setup.server(&PathHints::default(), None)),
            Arc::new(quic_socket),
            Arc::new(TokioRuntime),
        )
        .map_err(failed)?;
        let streams = Arc::new(Streams::new(link.clone(), runtime.clone(), setup, config));
        link.predecessors.serve(&link);
        tokio::spawn(drive(link.clone(), streams.clone()));
        let flushed = link.clone();
        tokio::spawn(poll_fn(move |cx| flushed.poll_flush(cx)));
        tokio::spawn(streams.clone().accept(endpoint.clone(), stream_sender));
        drop(entered);
        let _worker = Box::new(io.keep());
        Ok((Self { link, streams, endpoint, runtime, _worker }, queue))
    }
}

/// The seeds of the shards. One shard has that of the mesh.
fn seeds(seed: [u8; 32], shards: usize) -> Vec<[u8; 32]> {
    let mut random = StdRng::from_seed(seed);
    let mut next = || {
        let mut seed = [0; 32];
        random.fill_bytes(&mut seed);
        seed
    };
    if shards == 1 { vec![seed] } else { (0..shards).map(|_| next()).collect() }
}

impl Mesh {
    /// Starts a mesh of one shard on `socket`, inside a tokio runtime. `seed` must be new in every
    /// process: peers tell a restarted node by what is derived from it. `wall` gives the time by
    /// which credentials are judged.
    ///
    /// # Errors
    /// If the identity is not valid now, a limit is out of its bounds or the socket has no address.
    #[expect(clippy::needless_pass_by_value, reason = "made for the mesh that is started")]
    pub fn start(
        identity: Identity,
        config: MeshConfig,
        socket: Arc<dyn OuterSocket>,
        seed: [u8; 32],
        wall: impl Fn() -> UnixSeconds + Send + Sync + 'static,
    ) -> Result<(Mesh, Incoming), MeshError> {
        Self::start_on(Shards::one(socket), &identity, &config, seed, wall)
    }

    /// Like [`Mesh::start`], on several shards: each peer is served by the one that its `NodeId`
    /// selects.
    ///
    /// # Errors
    /// See [`Mesh::start`].
    pub fn start_on(
        shards: Shards,
        identity: &Identity,
        config: &MeshConfig,
        seed: [u8; 32],
        wall: impl Fn() -> UnixSeconds + Send + Sync + 'static,
    ) -> Result<(Mesh, Incoming), MeshError> {
        let wall: WallClock = Arc::new(wall);
        let failed = |error: std::io::Error| MeshError::Socket(error.to_string());
        let count = shards.count();
        let first = shards.0.first().ok_or(MeshError::Config("a mesh has at least one shard"))?;
        let local = first.socket.local_addr().map_err(failed)?;
        let mut config = config.clone();
        config.max_provisional = config.max_provisional.div_ceil(count);
        let (event_sender, events) = mpsc::channel(config.max_events.max(1));
        let seeds = seeds(seed, count);
        let mut cores: Vec<Core> = Vec::with_capacity(count);
        for (index, seed) in seeds.iter().enumerate() {
            let mut core = Core::new(identity.clone(), config.clone(), *seed, now(&wall))?;
            if count > 1 {
                core = core.join(ShardIndex::new(index, count), cores.first());
            }
            cores.push(core);
        }
        let (mut started, mut queues) = (Vec::new(), Vec::new());
        let pools = Pools::default();
        let parts = shards.0.into_iter().zip(cores).zip(seeds.iter().zip(Inboxes::new(count)));
        for ((io, core), (seed, inboxes)) in parts {
            let setup = QuicSetup::new(&config, seed, pools.clone(), io.predecessors.own());
            let (wall, events) = (wall.clone(), event_sender.clone());
            let link = |core, socket, predecessors| {
                Link::new(core, socket, wall, events, inboxes, predecessors)
            };
            let (shard, queue) = Shard::start(io, core, &config, seed, setup, link)?;
            queues.push(ShardStreams { runtime: shard.runtime.clone(), streams: queue });
            started.push(shard);
        }
        let others = queues.split_off(1);
        let streams = queues.swap_remove(0).streams;
        let inner = Inner { local, shards: started };
        Ok((Mesh { inner: Arc::new(inner) }, Incoming { events, streams, others }))
    }

    /// The shard a peer belongs to.
    fn shard(&self, node: &NodeId) -> &Shard {
        &self.inner.shards[owner(node, self.inner.shards.len())]
    }

    fn first(&self) -> &Shard {
        &self.inner.shards[0]
    }

    fn each(&self) -> impl Iterator<Item = &Shard> {
        self.inner.shards.iter()
    }

    /// The runtime of the shard of `node`: a task there uses streams with it without waking another
    /// thread. None if there is one shard.
    pub fn runtime_of(&self, node: &NodeId) -> Option<&Handle> {
        (self.inner.shards.len() > 1).then(|| &self.shard(node).runtime)
    }

    /// Every shard, the first one first.
    pub fn shards(&self) -> Vec<ShardStatus> {
        let status = |shard: &Shard| ShardStatus {
            peers: shard.link.look(Core::peer_count),
            counters: shard.counters(),
        };
        self.each().map(status).collect()
    }

    /// This node; another one after [`Mesh::succeed`].
    pub fn node_id(&self) -> NodeId {
        self.first().link.look(Core::node)
    }

    /// Whether this is this node, as it is or, until [`Mesh::retire`], was.
    pub fn is_own(&self, node: &NodeId) -> bool {
        self.first().link.look(|core| core.is_me(node))
    }

    /// The outer address of the socket.
    pub fn local_addr(&self) -> SocketAddr {
        self.inner.local
    }

    /// Names a peer, where it may live (the first four addresses are used) and its credential if
    /// known. Idempotent. An address proven by the peer's own packets wins over these. A peer
    /// whose credential is valid is admitted as soon as its session exists.
    pub fn set_peer(
        &self,
        node: NodeId,
        endpoints: &[SocketAddr],
        credential: Option<&Arc<Credential>>,
    ) {
        let link = &self.shard(&node).link;
        link.turn(|core, now| core.set_peer(now, node, endpoints, credential));
    }

    /// Forgets a peer and cuts its session and streams. It may reconnect with a valid credential.
    pub fn remove_peer(&self, node: &NodeId) {
        self.shard(node).link.turn(|core, _| core.remove_peer(node));
    }

    /// The caller knows a peer no more: its place is free as soon as it has no session.
    pub fn release_peer(&self, node: &NodeId) {
        self.shard(node).link.turn(|core, _| core.release_peer(node));
    }

    /// The path to a peer was dead and is back: ends the connection that this node's streams to it
    /// go through, if nothing has arrived on it since [`Mesh::expect_answer`]; the next stream
    /// makes a new one. The old one waits longer and longer before it tries again (RFC 9002,
    /// section 6.2), seconds after some of silence, and holds new streams back until then. One
    /// that was made meanwhile, or that has got through, carries sessions and goes on.
    pub fn renew_connection(&self, node: &NodeId) {
        self.shard(node).streams.renew(node, "its path was dead");
    }

    /// The next packets to a peer are answered within a round trip, if it has the session: without
    /// any answer for a second a new one is made, instead of after WireGuard's 15 s. For when its
    /// silence is known already; [`Mesh::renew_connection`] ends what has had no answer since.
    pub fn expect_answer(&self, node: &NodeId) {
        self.shard(node).streams.doubt(node);
        self.shard(node).link.turn(|core, _| core.expect_answer_of(node));
    }

    /// How far a peer has acknowledged what the streams opened by this node have sent to it; none
    /// without a connection. Compare it with an earlier one.
    pub fn delivery(&self, to: &NodeId) -> Option<Delivery> {
        self.shard(to).streams.delivery(to)
    }

    /// From now on identities covered by these are rejected; replaces the earlier ones. Sessions
    /// and streams of covered peers end, and their handshakes are not answered.
    pub fn set_revocations(&self, revocations: &Revocations) {
        for shard in self.each() {
            shard.link.turn(|core, now| core.set_revocations(revocations.clone(), now));
        }
    }

    /// Holds these secrets of the mesh from now on, which the caller has kept; tells the peers that
    /// have an older one. No session ends: each is agreed under the newest secret that both sides
    /// have when its time comes.
    pub fn set_secrets(&self, secrets: &MeshSecrets) {
        for shard in self.each() {
            shard.link.turn(|core, now| core.set_secrets(secrets.clone(), now));
        }
    }

    /// Starts a handshake now if there is no session. Nothing happens for unknown peers.
    pub fn connect(&self, node: &NodeId) {
        if let Err(error) = self.shard(node).link.turn(|core, now| core.connect(now, node)) {
            tracing::debug!(%node, %error, "cannot connect");
        }
    }

    /// This machine has slept for that long, or moved to another network: makes new sessions with
    /// all peers at once instead of waiting for their silence. Connections that no peer can have
    /// kept for so long are cut, so that their users do not wait either.
    pub fn wake(&self, slept: Duration) {
        for shard in self.each() {
            shard.link.turn(Core::wake);
            if slept >= IDLE_TIMEOUT {
                shard.streams.cut_all("this machine has slept");
            }
        }
    }

    /// Tells of call-backs with these tokens, as [`MeshEvent::Called`], and of no others from now
    /// on.
    pub fn expect_calls(&self, tokens: &[CallToken]) {
        // Such a datagram does not name its shard, so the kernel gives it to any.
        self.each().for_each(|shard| shard.link.turn(|core, _| core.expect_calls(tokens)));
    }

    /// The source of a peer's authenticated packets.
    pub fn endpoint(&self, node: &NodeId) -> Option<SocketAddr> {
        self.shard(node).link.look(|core| core.endpoint(node))
    }

    /// Length in bytes of the largest IP packet known to reach a peer; none without a connection. A
    /// new connection starts low and probes for larger ones.
    pub fn path_mtu(&self, to: &NodeId) -> Option<u16> {
        let shard = self.shard(to);
        let remote = shard.link.look(|core| core.endpoint(to))?;
        Some(shard.streams.datagram_to(to)?.saturating_add(overhead(remote)))
    }

    /// Closes connections that had many streams at once and have been unused since the last call,
    /// so that their memory can be given back; the next stream makes a new one.
    pub fn close_after_bursts(&self) {
        self.each().for_each(|shard| shard.streams.close_after_bursts());
    }

    /// The verified credential of an admitted peer.
    pub fn credential(&self, node: &NodeId) -> Option<Arc<Credential>> {
        self.shard(node).link.look(|core| core.credential(node))
    }

    /// The verified credential of a peer, also of one without a session: what it has shown or
    /// [`Mesh::set_peer`] was given, whichever is newer. It may have ended since.
    pub fn known_credential(&self, node: &NodeId) -> Option<Arc<Credential>> {
        self.shard(node).link.look(|core| core.known_credential(node))
    }

    /// Shows another credential of this node to all peers from now on; no session ends.
    ///
    /// # Errors
    /// [`MeshError::Identity`] when it is for another node or not valid now.
    pub fn set_credential(&self, credential: &Credential) -> Result<(), MeshError> {
        // All decide alike: if one refuses, the first does.
        self.each().try_for_each(|shard| {
            shard.link.turn(|core, now| core.set_credential(credential.clone(), now))
        })
    }

    /// Continues as `identity`, whose credential says that it succeeds this node. Open sessions and
    /// streams stay: each peer is shown the credential and makes a new session with the new key.
    /// Until [`Mesh::retire`] the former key answers peers that do not know of it.
    ///
    /// # Errors
    /// [`MeshError::Identity`] if it succeeds no node or another one, if its credential is not
    /// valid now, or if an earlier succession is not over.
    pub fn succeed(&self, identity: &Identity) -> Result<(), MeshError> {
        let gate = self.first().link.look(|core| core.gate_for(identity));
        self.each().try_for_each(|shard| {
            let (identity, gate) = (identity.clone(), gate.clone());
            shard.link.turn(|core, now| core.succeed(identity, gate, now))
        })
    }

    /// Erases the former key. Sessions that were not renewed with the present one end.
    pub fn retire(&self) {
        self.each().for_each(|shard| shard.link.turn(Core::retire));
    }

    /// Puts this node's signature under what an issuer has signed for it, which the caller has
    /// looked at. The key stays here.
    ///
    /// # Errors
    /// [`meshport_config::Error::WrongNodeKey`].
    pub fn countersign(&self, issued: Issued) -> Result<Credential, meshport_config::Error> {
        self.first().link.look(|core| issued.countersign(core.key()))
    }

    /// Whether this node believes a credential now that came in another way than from its holder:
    /// its signatures, its time, and that it is not revoked.
    ///
    /// # Errors
    /// Why not.
    pub fn check_credential(&self, credential: &Credential) -> Result<(), NotBelieved> {
        let link = &self.first().link;
        let now = link.now();
        link.look(|core| core.check_credential(credential, now))
    }

    /// Sends a datagram of at most [`MAX_DATAGRAM`](meshport_proto::MAX_DATAGRAM) bytes to an inner
    /// port of a peer. Without a session a handshake is started and the datagram waits in a bounded
    /// queue. Delivery is not guaranteed.
    ///
    /// # Errors
    /// [`MeshError::UnknownPeer`], [`MeshError::NoEndpoint`], [`MeshError::TooLarge`],
    /// [`MeshError::QueueFull`], [`MeshError::OwnNode`] or [`MeshError::Closed`].
    pub fn send_datagram(&self, to: NodeId, port: u16, payload: &[u8]) -> Result<(), MeshError> {
        let link = &self.shard(&to).link;
        link.check_open()?;
        link.turn(|core, now| core.send_datagram(now, to, port, payload))
    }

    /// Opens a stream. Handshakes are made as needed; all callers for one peer share them. Ends
    /// within [`MeshConfig::connect_timeout`]. Dropping the future is fine at any time.
    ///
    /// # Errors
    /// [`MeshError::Unreachable`] when nothing answers in time, [`MeshError::UnknownPeer`],
    /// [`MeshError::NoEndpoint`], [`MeshError::OwnNode`], [`MeshError::ConnectionLost`] or
    /// [`MeshError::Closed`].
    pub async fn open_stream(&self, to: NodeId) -> Result<Stream, MeshError> {
        if self.is_own(&to) {
            return Err(MeshError::OwnNode(to));
        }
        let shard = self.shard(&to);
        shard.streams.open(&shard.endpoint, to).await
    }

    /// Round-trip time of one ICMPv6 echo through the tunnel, handshake included when there is no
    /// session. Any admitted WireGuard peer answers it.
    ///
    /// # Errors
    /// [`MeshError::Unreachable`] after `timeout`, and as [`Mesh::send_datagram`].
    pub async fn ping(&self, to: NodeId, timeout: Duration) -> Result<Duration, MeshError> {
        let shard = self.shard(&to);
        shard.link.check_open()?;
        shard.streams.ping(to, timeout).await
    }

    /// All peers, ordered by node.
    pub fn peers(&self) -> Vec<PeerStatus> {
        let mut all = Vec::new();
        for Shard { link, streams, .. } in self.each() {
            let now = link.now().instant;
            let mut peers = link.look(|core| core.status(now));
            peers.iter_mut().for_each(|status| streams.complete(status));
            all.append(&mut peers);
        }
        all.sort_by_key(|status| status.node);
        all
    }

    /// Everything counted since start, over all shards.
    pub fn counters(&self) -> MeshCounters {
        let mut total = MeshCounters::default();
        self.each().for_each(|shard| total += shard.counters());
        total
    }

    /// Leaves the sockets and the tunnels to a successor, which is another process or another mesh
    /// of this one: see [`Shards::continuing`] for what it does with the sockets, one for each
    /// shard. Nothing is sent or received here any more, but connections and their streams go on
    /// through the successor, as long as that runs and until [`Mesh::close`]. New streams open on
    /// the connections that are there, and no new connection is made.
    ///
    /// # Errors
    /// No descriptors are left. Nothing has changed then.
    pub fn detach(&self) -> std::io::Result<Vec<OwnedFd>> {
        let pairs = self.each().map(|shard| {
            let _entered = shard.runtime.enter();
            Bridge::pair(&shard.link.look(Core::moved))
        });
        let pairs: Vec<(Bridge, OwnedFd)> = pairs.collect::<std::io::Result<_>>()?;
        let sockets = self.each().zip(pairs).map(|(shard, (bridge, socket))| {
            shard.link.detach(bridge);
            socket
        });
        Ok(sockets.collect())
    }

    /// Closes all connections, tells the peers and ends the mesh. Waits at most a second.
    pub async fn close(&self) {
        for shard in self.each() {
            shard.endpoint.close(VarInt::from_u32(CODE_CLOSED), b"closed");
        }
        let idle = async {
            for shard in self.each() {
                shard.endpoint.wait_idle().await;
            }
        };
        // Peers that do not answer will time out.
        let _ = tokio::time::timeout(CLOSE_PATIENCE, idle).await;
        self.each().for_each(|shard| shard.link.close());
    }
}

impl Shard {
    fn counters(&self) -> MeshCounters {
        let mut total = self.link.counters();
        total += self.streams.counters.read();
        total
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        for Shard { endpoint, link, .. } in &self.shards {
            endpoint.close(VarInt::from_u32(CODE_CLOSED), b"dropped");
            link.close();
        }
    }
}
