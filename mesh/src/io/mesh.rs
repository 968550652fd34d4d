//! The handle.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use meshport_config::{Credential, MeshSecrets, NodeId, Revocations, UnixSeconds};
use quinn::{Endpoint, TokioRuntime, VarInt};
use tokio::sync::mpsc;

use super::driver::drive;
use super::link::{Link, WallClock, now};
use super::outer::OuterSocket;
use super::quic_config::{IDLE_TIMEOUT, PathHints, QuicSetup};
use super::quic_socket::QuicSocket;
use super::streams::{CODE_CLOSED, Delivery, Stream, Streams};
use crate::core::Core;
use crate::settings::{Identity, MeshConfig};
use crate::{MeshCounters, MeshError, MeshEvent, PeerStatus};

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
    node: NodeId,
    local: SocketAddr,
    link: Arc<Link>,
    streams: Arc<Streams>,
    endpoint: Endpoint,
}

/// What comes from peers. Both queues are bounded: datagrams nobody takes are dropped and counted,
/// streams wait and are then refused.
#[derive(Debug)]
pub struct Incoming {
    /// Events and datagrams.
    pub events: mpsc::Receiver<MeshEvent>,
    /// Streams opened by peers.
    pub streams: mpsc::Receiver<(NodeId, Stream)>,
}

impl Mesh {
    /// Starts a mesh on `socket`, inside a tokio runtime. `seed` must be new in every process:
    /// peers tell a restarted node by what is derived from it. `wall` gives the time by which
    /// credentials are judged.
    ///
    /// # Errors
    /// When the identity is not valid now, a limit is out of its bounds or the socket has no
    /// address.
    pub fn start(
        identity: Identity,
        config: MeshConfig,
        socket: Arc<dyn OuterSocket>,
        seed: [u8; 32],
        wall: impl Fn() -> UnixSeconds + Send + Sync + 'static,
    ) -> Result<(Mesh, Incoming), MeshError> {
        let wall: WallClock = Arc::new(wall);
        let failed = |error: std::io::Error| MeshError::Socket(error.to_string());
        let local = socket.local_addr().map_err(failed)?;
        let setup = QuicSetup::new(&config, &seed);
        let endpoint_config = setup.endpoint(&identity.key, &seed)?;
        let (event_sender, events) = mpsc::channel(config.max_events.max(1));
        let (stream_sender, streams_queue) = mpsc::channel(config.max_waiting_streams.max(1));
        let (patience, max_streams) = (config.connect_timeout, config.max_streams_per_peer);
        let core = Core::new(identity, config, seed, now(&wall))?;
        let node = core.node();
        let link = Arc::new(Link::new(core, socket, wall, event_sender));
        let quic_socket = QuicSocket::new(link.clone(), setup.max_datagram());
        let endpoint = Endpoint::new_with_abstract_socket(
            endpoint_config,
            Some(setup.server(&PathHints::default())),
            Arc::new(quic_socket),
            Arc::new(TokioRuntime),
        )
        .map_err(failed)?;
        let streams = Arc::new(Streams::new(link.clone(), setup, patience, max_streams));
        tokio::spawn(drive(link.clone(), streams.clone()));
        let flushed = link.clone();
        tokio::spawn(poll_fn(move |cx| flushed.poll_flush(cx)));
        tokio::spawn(streams.clone().accept(endpoint.clone(), stream_sender));
        let inner = Arc::new(Inner { node, local, link, streams, endpoint });
        Ok((Mesh { inner }, Incoming { events, streams: streams_queue }))
    }

    /// This node.
    pub fn node_id(&self) -> NodeId {
        self.inner.node
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
        credential: Option<&Credential>,
    ) {
        self.inner.link.turn(|core, now| core.set_peer(now, node, endpoints, credential));
    }

    /// Forgets a peer and cuts its session and streams. It may come back by itself with a valid
    /// credential.
    pub fn remove_peer(&self, node: &NodeId) {
        self.inner.link.turn(|core, _| core.remove_peer(node));
    }

    /// Ends the connection that this node's streams to a peer go through; the next stream makes a
    /// new one. For when the path to the peer was dead and is back: the old connection waits longer
    /// and longer before it tries again (RFC 9002, section 6.2), seconds after some of silence, and
    /// holds new streams back until then.
    pub fn renew_connection(&self, node: &NodeId) {
        self.inner.streams.renew(node, "its path was dead");
    }

    /// How far a peer has acknowledged what the streams opened by this node have sent to it; none
    /// without a connection. Compare it with an earlier one.
    pub fn delivery(&self, to: &NodeId) -> Option<Delivery> {
        self.inner.streams.delivery(to)
    }

    /// From now on nobody covered by these is believed; replaces the earlier ones. Sessions and
    /// streams of peers that are covered end, and their handshakes are not answered.
    pub fn set_revocations(&self, revocations: Revocations) {
        self.inner.link.turn(|core, now| core.set_revocations(revocations, now));
    }

    /// Holds these secrets of the mesh from now on, which the caller has kept; tells the peers that
    /// have an older one. No session ends: each is agreed under the newest secret that both sides
    /// have when its time comes.
    pub fn set_secrets(&self, secrets: &MeshSecrets) {
        self.inner.link.turn(|core, now| core.set_secrets(secrets.clone(), now));
    }

    /// Starts a handshake now if there is no session. Nothing happens for unknown peers.
    pub fn connect(&self, node: &NodeId) {
        if let Err(error) = self.inner.link.turn(|core, now| core.connect(now, node)) {
            tracing::debug!(%node, %error, "cannot connect");
        }
    }

    /// This machine has slept for that long, or moved to another network: makes new sessions with
    /// all peers at once instead of waiting for their silence. Connections that no peer can have
    /// kept for so long are cut, so that whoever uses them does not wait either.
    pub fn wake(&self, slept: Duration) {
        self.inner.link.turn(Core::wake);
        if slept >= IDLE_TIMEOUT {
            self.inner.streams.cut_all("this machine has slept");
        }
    }

    /// The verified credential of an admitted peer.
    pub fn credential(&self, node: &NodeId) -> Option<Arc<Credential>> {
        self.inner.link.look(|core| core.credential(node))
    }

    /// Shows another credential of this node to all peers from now on; no session ends.
    ///
    /// # Errors
    /// [`MeshError::Identity`] when it is for another node or not valid now.
    pub fn set_credential(&self, credential: &Credential) -> Result<(), MeshError> {
        self.inner.link.turn(|core, now| core.set_credential(credential.clone(), now))
    }

    /// Whether this node believes a credential now that came in another way than from its holder:
    /// its signatures, its time, and that it is not revoked.
    ///
    /// # Errors
    /// Why not, in words.
    pub fn check_credential(&self, credential: &Credential) -> Result<(), String> {
        let now = self.inner.link.now();
        self.inner.link.look(|core| core.check_credential(credential, now))
    }

    /// Sends a datagram of at most [`MAX_DATAGRAM`](crate::MAX_DATAGRAM) bytes to an inner port of
    /// a peer. Without a session a handshake is started and the datagram waits in a bounded queue.
    /// Delivery is not guaranteed.
    ///
    /// # Errors
    /// [`MeshError::UnknownPeer`], [`MeshError::NoEndpoint`], [`MeshError::TooLarge`],
    /// [`MeshError::QueueFull`], [`MeshError::OwnNode`] or [`MeshError::Closed`].
    pub fn send_datagram(&self, to: NodeId, port: u16, payload: &[u8]) -> Result<(), MeshError> {
        self.inner.link.check_open()?;
        self.inner.link.turn(|core, now| core.send_datagram(now, to, port, payload))
    }

    /// Opens a stream. Handshakes are made as needed; all callers for one peer share them. Ends
    /// within [`MeshConfig::connect_timeout`]. Dropping the future is fine at any time.
    ///
    /// # Errors
    /// [`MeshError::Unreachable`] when nothing answers in time, [`MeshError::UnknownPeer`],
    /// [`MeshError::NoEndpoint`], [`MeshError::OwnNode`], [`MeshError::ConnectionLost`] or
    /// [`MeshError::Closed`].
    pub async fn open_stream(&self, to: NodeId) -> Result<Stream, MeshError> {
        if to == self.inner.node {
            return Err(MeshError::OwnNode(to));
        }
        self.inner.streams.open(&self.inner.endpoint, to).await
    }

    /// Round-trip time of one ICMPv6 echo through the tunnel, handshake included when there is no
    /// session. Any admitted WireGuard peer answers it.
    ///
    /// # Errors
    /// [`MeshError::Unreachable`] after `timeout`, and as [`Mesh::send_datagram`].
    pub async fn ping(&self, to: NodeId, timeout: Duration) -> Result<Duration, MeshError> {
        self.inner.link.check_open()?;
        self.inner.streams.ping(to, timeout).await
    }

    /// All peers, in order of their node.
    pub fn peers(&self) -> Vec<PeerStatus> {
        let now = self.inner.link.now().instant;
        let mut peers = self.inner.link.look(|core| core.status(now));
        for status in &mut peers {
            self.inner.streams.complete(status);
        }
        peers
    }

    /// Everything counted since start.
    pub fn counters(&self) -> MeshCounters {
        let mut total = self.inner.link.counters();
        self.inner.streams.count_into(&mut total);
        total
    }

    /// Closes all connections, tells the peers and ends the mesh. Waits at most a second.
    pub async fn close(&self) {
        self.inner.endpoint.close(VarInt::from_u32(CODE_CLOSED), b"closed");
        // Peers that do not answer find out by themselves.
        let _ = tokio::time::timeout(CLOSE_PATIENCE, self.inner.endpoint.wait_idle()).await;
        self.inner.link.close();
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.endpoint.close(VarInt::from_u32(CODE_CLOSED), b"dropped");
        self.link.close();
    }
}
