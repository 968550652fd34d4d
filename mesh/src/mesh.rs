//! The handle of a running mesh.

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
use super::carry::carry_all;
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

/// How long [`Mesh::close`] waits for peers to acknowledge it.
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);

/// A running mesh. Clones are handles to the same mesh, which ends with [`Mesh::close`] or when
/// the last handle is dropped.
#[derive(Debug, Clone)]
pub struct Mesh {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    local: SocketAddr,
    /// At least one. [`owner`] selects the shard of a peer.
    shards: Vec<Shard>,
}

/// A shard, with all state of its peers.
#[derive(Debug)]
struct Shard {
    link: Arc<Link>,
    streams: Arc<Streams>,
    endpoint: Endpoint,
    runtime: Handle,
    /// Its thread, if it has its own.
    _worker: Box<dyn Kept>,
}

/// A value to keep alive.
trait Kept: Send + Sync + std::fmt::Debug {}
impl<T: Send + Sync + std::fmt::Debug> Kept for T {}

/// Events, datagrams and streams from peers. All queues are bounded. If they are full, datagrams
/// are dropped and counted; streams wait, then are refused.
#[derive(Debug)]
pub struct Incoming {
    /// Events and datagrams from all shards.
    pub events: mpsc::Receiver<MeshEvent>,
    /// Streams opened by peers of the first shard: all peers if there is one shard.
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

/// The state of a shard, for operators.
#[derive(Debug, Clone, Copy)]
pub struct ShardStatus {
    /// Number of its peers.
    pub peers: usize,
    /// Its counters.
    pub counters: MeshCounters,
}

impl Shard {
    /// Starts `core` on `io`. Returns the shard and the queue of streams that its peers open.
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
        carry_all(&link);
        tokio::spawn(drive(link.clone(), streams.clone()));
        let flushed = link.clone();
        tokio::spawn(poll_fn(move |cx| flushed.poll_flush(cx)));
        tokio::spawn(streams.clone().accept(endpoint.clone(), stream_sender));
        drop(entered);
        let _worker = Box::new(io.keep());
        Ok((Self { link, streams, endpoint, runtime, _worker }, queue))
    }
}

/// The seeds of the shards. A single shard uses the seed of the mesh.
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
    /// Starts a mesh with one shard on `socket`, inside a tokio runtime. `seed` must differ in
    /// every process: peers detect a restart by values derived from it. `wall` is the clock for the
    /// validity of credentials.
    ///
    /// # Errors
    /// If the identity is not valid now, a limit is out of bounds or the socket has no address.
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

    /// Like [`Mesh::start`], with several shards. A peer's `NodeId` selects its shard.
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

    /// The shard of a peer.
    fn shard(&self, node: &NodeId) -> &Shard {
        &self.inner.shards[owner(node, self.inner.shards.len())]
    }

    fn first(&self) -> &Shard {
        &self.inner.shards[0]
    }

    fn each(&self) -> impl Iterator<Item = &Shard> {
        self.inner.shards.iter()
    }

    /// The runtime of a peer's shard: a task there uses the peer's streams without waking another
    /// thread. `None` if there is one shard.
    pub fn runtime_of(&self, node: &NodeId) -> Option<&Handle> {
        (self.inner.shards.len() > 1).then(|| &self.shard(node).runtime)
    }

    /// The state of each shard, in order.
    pub fn shards(&self) -> Vec<ShardStatus> {
        let status = |shard: &Shard| ShardStatus {
            peers: shard.link.look(Core::peer_count),
            counters: shard.counters(),
        };
        self.each().map(status).collect()
    }

    /// The id of this node; it changes with [`Mesh::succeed`].
    pub fn node_id(&self) -> NodeId {
        self.first().link.look(Core::node)
    }

    /// Whether `node` is the id of this node: the current or, until [`Mesh::retire`], the previous
    /// one.
    pub fn is_own(&self, node: &NodeId) -> bool {
        self.first().link.look(|core| core.is_me(node))
    }

    /// The outer address of the socket.
    pub fn local_addr(&self) -> SocketAddr {
        self.inner.local
    }

    /// Adds or updates a peer: its possible addresses (only the first four are used) and its
    /// credential if known. Idempotent. An address that authenticated packets of the peer come from
    /// takes precedence. A peer with a valid credential is admitted as soon as it has a session.
    pub fn set_peer(
        &self,
        node: NodeId,
        endpoints: &[SocketAddr],
        credential: Option<&Arc<Credential>>,
    ) {
        let link = &self.shard(&node).link;
        link.turn(|core, now| core.set_peer(now, node, endpoints, credential));
    }

    /// Removes a peer and ends its session and streams. The peer may reconnect with a valid
    /// credential.
    pub fn remove_peer(&self, node: &NodeId) {
        self.shard(node).link.turn(|core, _| core.remove_peer(node));
    }

    /// Allows a peer to be removed as soon as it has no session.
    pub fn release_peer(&self, node: &NodeId) {
        self.shard(node).link.turn(|core, _| core.release_peer(node));
    }

    /// Call this when a dead path to a peer works again. Closes the connection for this node's
    /// streams to the peer if nothing was acknowledged on it since [`Mesh::expect_answer`]; the
    /// next stream opens a new one. The old connection backs off exponentially (RFC 9002, section
    /// 6.2), so new streams on it could wait for seconds. A newer connection, or one with progress,
    /// stays open.
    pub fn renew_connection(&self, node: &NodeId) {
        self.shard(node).streams.renew(node, "its path was dead");
    }

    /// Call this when a peer is known to be silent. If it does not answer the next packets within a
    /// second, a new session is made, instead of after WireGuard's 15 s.
    /// [`Mesh::renew_connection`] then closes a connection that has had no answer since.
    pub fn expect_answer(&self, node: &NodeId) {
        self.shard(node).streams.doubt(node);
        self.shard(node).link.turn(|core, _| core.expect_answer_of(node));
    }

    /// How much of the data on streams opened by this node the peer has acknowledged, to compare
    /// with an earlier value. `None` without a connection.
    pub fn delivery(&self, to: &NodeId) -> Option<Delivery> {
        self.shard(to).streams.delivery(to)
    }

    /// Replaces the revocations. Sessions and streams of revoked peers end, and their handshakes
    /// are not answered.
    pub fn set_revocations(&self, revocations: &Revocations) {
        for shard in self.each() {
            shard.link.turn(|core, now| core.set_revocations(revocations.clone(), now));
        }
    }

    /// Replaces the mesh secrets, which the caller has stored, and tells peers that have an older
    /// one. No session ends: each rekeys under the newest secret that both sides have.
    pub fn set_secrets(&self, secrets: &MeshSecrets) {
        for shard in self.each() {
            shard.link.turn(|core, now| core.set_secrets(secrets.clone(), now));
        }
    }

    /// Starts a handshake now if there is no session. Does nothing for an unknown peer.
    pub fn connect(&self, node: &NodeId) {
        if let Err(error) = self.shard(node).link.turn(|core, now| core.connect(now, node)) {
            tracing::debug!(%node, %error, "cannot connect");
        }
    }

    /// Call this when the machine has slept for `slept` or changed its network. Makes new sessions
    /// with all peers at once instead of waiting for timeouts. After a sleep of at least the idle
    /// timeout, closes all connections too: peers have dropped them.
    pub fn wake(&self, slept: Duration) {
        for shard in self.each() {
            shard.link.turn(Core::wake);
            if slept >= IDLE_TIMEOUT {
                shard.streams.cut_all("this machine was suspended");
            }
        }
    }

    /// Replaces the tokens of expected call-backs, which are reported as [`MeshEvent::Called`].
    pub fn expect_calls(&self, tokens: &[CallToken]) {
        // A call-back does not name a shard, so the kernel may give it to any.
        self.each().for_each(|shard| shard.link.turn(|core, _| core.expect_calls(tokens)));
    }

    /// The address that a peer's authenticated packets come from.
    pub fn endpoint(&self, node: &NodeId) -> Option<SocketAddr> {
        self.shard(node).link.look(|core| core.endpoint(node))
    }

    /// Length in bytes of the largest IP packet known to reach a peer; `None` without a connection,
    /// and while fragments carry what is longer than the path allows. A new connection starts low
    /// and probes for more.
    pub fn path_mtu(&self, to: &NodeId) -> Option<u16> {
        let shard = self.shard(to);
        let remote = shard.link.turn(|core, now| match core.is_split(to, now.instant) {
            true => None,
            false => core.endpoint(to),
        })?;
        Some(shard.streams.datagram_to(to)?.saturating_add(overhead(remote)))
    }

    /// Closes connections that had many streams at once and were unused since the last call, so
    /// that their memory can be returned. The next stream opens a new one.
    pub fn close_after_bursts(&self) {
        self.each().for_each(|shard| shard.streams.close_after_bursts());
    }

    /// The verified credential of an admitted peer.
    pub fn credential(&self, node: &NodeId) -> Option<Arc<Credential>> {
        self.shard(node).link.look(|core| core.credential(node))
    }

    /// The verified credential of a peer, with or without a session: the newer of what it presented
    /// and what [`Mesh::set_peer`] was given. It may have expired.
    pub fn known_credential(&self, node: &NodeId) -> Option<Arc<Credential>> {
        self.shard(node).link.look(|core| core.known_credential(node))
    }

    /// Replaces this node's credential and presents it to all peers. No session ends.
    ///
    /// # Errors
    /// [`MeshError::Identity`] if it is for another node or not valid now.
    pub fn set_credential(&self, credential: &Credential) -> Result<(), MeshError> {
        // All shards decide alike: either all accept it or the first refuses it.
        self.each().try_for_each(|shard| {
            shard.link.turn(|core, now| core.set_credential(credential.clone(), now))
        })
    }

    /// Continues as `identity`, whose credential says that it succeeds this node. Streams stay
    /// open: each peer is shown the credential and makes a new session with the new key. Until
    /// [`Mesh::retire`], the previous key still answers peers that do not know the new one.
    ///
    /// # Errors
    /// [`MeshError::Identity`] if the credential does not succeed this node or is not valid now, or
    /// if the previous succession is not over.
    pub fn succeed(&self, identity: &Identity) -> Result<(), MeshError> {
        let gate = self.first().link.look(|core| core.gate_for(identity));
        self.each().try_for_each(|shard| {
            let (identity, gate) = (identity.clone(), gate.clone());
            shard.link.turn(|core, now| core.succeed(identity, gate, now))
        })
    }

    /// Erases the previous key. Sessions that still use it end.
    pub fn retire(&self) {
        self.each().for_each(|shard| shard.link.turn(Core::retire));
    }

    /// Countersigns a credential that an issuer signed for this node and the caller has checked.
    /// The key is not exposed.
    pub fn countersign(&self, issued: Issued) -> Result<Credential, meshport_config::Error> {
        self.first().link.look(|core| issued.countersign(core.key()))
    }

    /// Checks a credential that did not come from its holder: signatures, validity and revocation.
    pub fn check_credential(&self, credential: &Credential) -> Result<(), NotBelieved> {
        let link = &self.shard(&credential.node).link;
        let now = link.now();
        link.look(|core| core.check_credential(credential, now))
    }

    /// Sends a datagram of at most [`MAX_DATAGRAM`](meshport_proto::MAX_DATAGRAM) bytes to an inner
    /// port of a peer. Without a session, starts a handshake and keeps the datagram in a bounded
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

    /// Call this when a path to a peer turns out to be too narrow for QUIC's smallest datagram, or
    /// wide enough again. Longer packets are split then, if the peer's release joins them; a
    /// datagram of exactly [`MAX_DATAGRAM`](meshport_proto::MAX_DATAGRAM) bytes, which tests the
    /// path, is not.
    pub fn set_narrow(&self, node: &NodeId, is_narrow: bool) {
        self.shard(node).link.turn(|core, _| core.set_narrow(node, is_narrow));
    }

    /// Opens a stream. Makes handshakes as needed; all callers for one peer share them. Returns
    /// within [`MeshConfig::connect_timeout`]. The future may be dropped at any time.
    ///
    /// # Errors
    /// [`MeshError::Unreachable`] if nothing answers in time, [`MeshError::UnknownPeer`],
    /// [`MeshError::NoEndpoint`], [`MeshError::OwnNode`], [`MeshError::ConnectionLost`] or
    /// [`MeshError::Closed`].
    pub async fn open_stream(&self, to: NodeId) -> Result<Stream, MeshError> {
        if self.is_own(&to) {
            return Err(MeshError::OwnNode(to));
        }
        let shard = self.shard(&to);
        shard.streams.open(&shard.endpoint, to).await
    }

    /// Measures the round-trip time of one ICMPv6 echo through the tunnel, including the handshake
    /// if there is no session. Any admitted WireGuard peer answers it.
    ///
    /// # Errors
    /// [`MeshError::Unreachable`] after `timeout`, or an error of [`Mesh::send_datagram`].
    pub async fn ping(&self, to: NodeId, timeout: Duration) -> Result<Duration, MeshError> {
        let shard = self.shard(&to);
        shard.link.check_open()?;
        shard.streams.ping(to, timeout).await
    }

    /// All peers, sorted by NodeId.
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

    /// The counters since the start, summed over all shards.
    pub fn counters(&self) -> MeshCounters {
        let mut total = MeshCounters::default();
        self.each().for_each(|shard| total += shard.counters());
        total
    }

    /// Hands the UDP sockets and the tunnels over to a successor: another process, or another mesh
    /// in this one. Returns one socket per shard, which the successor passes to
    /// [`Shards::continuing`]. This mesh no longer sends or receives itself: its connections and
    /// streams continue through the successor, while that runs and until [`Mesh::close`]. New
    /// streams use existing connections, and no new connection is opened.
    ///
    /// # Errors
    /// If the process is out of descriptors. Then nothing has changed.
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

    /// Closes all connections, tells the peers and ends the mesh. Takes at most a second.
    pub async fn close(&self) {
        for shard in self.each() {
            shard.endpoint.close(VarInt::from_u32(CODE_CLOSED), b"closed");
        }
        let idle = async {
            for shard in self.each() {
                shard.endpoint.wait_idle().await;
            }
        };
        // Peers that do not answer time out by themselves.
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
