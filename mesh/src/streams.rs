//! QUIC connections and streams, by node.
//!
//! Each side of a pair opens streams on its own connection. A peer has at most one outgoing
//! connection, opened on demand and shared by all concurrent callers, and at most one incoming
//! connection, which a newer one replaces. If a peer is removed or restarts, its connections are
//! closed at once instead of at their idle timeout. The side that opened a connection closes it
//! once it has been unused for [`UNUSED`]: an origin has thousands of connections, each with memory
//! and keepalives. The next stream opens a new one, which costs a round trip.
//!
//! When a peer is upgraded, its previous process keeps its connections until their streams have
//! ended. Here they are *retired*: open streams continue, new streams use a new connection.
//!
//! Bounds: [`MeshConfig`] limits streams per peer and incoming streams that wait to be accepted,
//! [`PINGS`] the pings in flight, [`retired::MAX_RETIRED`] the retired connections per peer.

mod figures;
mod halves;
mod retired;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use meshport_config::NodeId;
use quinn::{Connection, Endpoint, VarInt};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};

use super::backlog::Backlog;
use super::congestion::{self, Remote};
use super::link::Link;
use super::lock;
use super::quic_config::{PathHints, QuicSetup};
use super::windows::{Grants, Window};
pub use halves::{RecvHalf, SendHalf, Stream};
use meshport_proto::settings::FIRST_STREAMS;
use meshport_proto::{MeshConfig, MeshCount, MeshError, SharedMeshCounters, ports};
use retired::Retired;

/// Maximum number of unanswered echo requests.
const PINGS: usize = 256;
/// How long an incoming stream waits to be accepted before it is refused.
const ACCEPT_PATIENCE: Duration = Duration::from_secs(5);
/// Interval of the check that closes outgoing connections unused since the previous check.
pub(super) const UNUSED: Duration = Duration::from_secs(300);
/// Number of concurrent streams from which quinn keeps enough small objects to pin heap pages.
const BURST: usize = 256;
/// Close code: the mesh is closed.
pub(super) const CODE_CLOSED: u32 = 0;
/// Close code: the connection is cut, for the reason in its close frame.
const CODE_CUT: u32 = 1;
/// Close code: the peer has opened a newer connection.
const CODE_REPLACED: u32 = 2;
/// Stream code: the stream was not accepted in time.
const CODE_BUSY: u32 = 3;
/// Close code: the connection is unused.
const CODE_UNUSED: u32 = 5;

/// Value of [`Counted::doubted`] while the connection is not in doubt.
const TRUSTED: u64 = u64::MAX;

/// A live connection and its counters. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Live(Arc<Counted>);

#[derive(Debug)]
pub(super) struct Counted {
    connection: Connection,
    /// Number of open streams.
    streams: Arc<AtomicUsize>,
    /// Whether a caller asked for it since the last [`Streams::close_unused`].
    wanted: AtomicBool,
    /// Whether a caller asked for it since the last [`Streams::close_after_bursts`].
    wanted_lately: AtomicBool,
    /// The highest number of streams open at once.
    peak: AtomicUsize,
    /// Bytes acknowledged when the peer fell silent, or [`TRUSTED`].
    doubted: AtomicU64,
    backlog: Arc<Backlog>,
    window: Arc<Window>,
}

impl Deref for Live {
    type Target = Counted;

    fn deref(&self) -> &Counted {
        &self.0
    }
}

impl Live {
    fn new(connection: Connection, grants: Grants) -> Self {
        Self(Arc::new(Counted {
            backlog: congestion::backlog(&connection),
            window: Arc::new(Window::new(connection.clone(), grants)),
            connection,
            streams: Arc::default(),
            wanted: true.into(),
            wanted_lately: true.into(),
            peak: AtomicUsize::new(0),
            doubted: TRUSTED.into(),
        }))
    }

    fn is_open(&self) -> bool {
        self.connection.close_reason().is_none()
    }

    fn is(&self, other: &Live) -> bool {
        self.connection.stable_id() == other.connection.stable_id()
    }
}

/// How much of the data sent on streams to a peer it has acknowledged. If two values differ, data
/// has reached the peer in between and its acknowledgement has come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    connection: usize,
    acknowledged: u64,
}

/// The outcome of a connection attempt; `None` until it is over.
type Outcome = watch::Receiver<Option<Result<Live, MeshError>>>;

/// The outgoing connection to one peer.
#[derive(Debug)]
enum Outgoing {
    Connecting(u64, Outcome),
    Ready(Live),
}

/// See the module's description.
#[derive(Debug)]
pub(super) struct Streams {
    link: Arc<Link>,
    /// The runtime that all connections run on, regardless of the calling task's runtime.
    runtime: Handle,
    setup: QuicSetup,
    connect_timeout: Duration,
    max_streams: u32,
    outgoing: Mutex<BTreeMap<NodeId, Outgoing>>,
    incoming: Mutex<BTreeMap<NodeId, Live>>,
    retired: Retired,
    attempts: AtomicU64,
    pings: Mutex<BTreeMap<(NodeId, u32), oneshot::Sender<()>>>,
    /// Counters of connections and streams.
    pub(super) counters: SharedMeshCounters,
}

impl Streams {
    pub(super) fn new(
        link: Arc<Link>,
        runtime: Handle,
        setup: QuicSetup,
        config: &MeshConfig,
    ) -> Self {
        Self {
            link,
            runtime,
            setup,
            connect_timeout: config.connect_timeout,
            max_streams: config.max_streams_per_peer,
            outgoing: Mutex::default(),
            incoming: Mutex::default(),
            retired: Retired::default(),
            attempts: AtomicU64::new(0),
            pings: Mutex::default(),
            counters: SharedMeshCounters::default(),
        }
    }

    /// Opens a stream. Makes a session and a connection first if there is none.
    pub(super) async fn open(
        self: &Arc<Self>,
        endpoint: &Endpoint,
        node: NodeId,
    ) -> Result<Stream, MeshError> {
        let opening = self.open_now(endpoint, node);
        match tokio::time::timeout(self.connect_timeout, opening).await {
            Ok(result) => result,
            Err(_) => Err(MeshError::Unreachable(node)),
        }
    }

    async fn open_now(
        self: &Arc<Self>,
        endpoint: &Endpoint,
        node: NodeId,
    ) -> Result<Stream, MeshError> {
        let address = self.link.look(|core| core.address_of(&node))?;
        loop {
            let live = match self.link.bridge() {
                Some(_) => self.made(&node).ok_or(MeshError::Closed)?,
                None => self.connection(endpoint, node).await?,
            };
            self.link.turn(|core, _| core.expect_answer(&address));
            match live.connection.open_bi().await {
                Ok((send, recv)) => {
                    self.counters.bump(MeshCount::StreamsOpened);
                    live.peak.fetch_max(live.streams.load(Ordering::Relaxed), Ordering::Relaxed);
                    let link = self.link.clone();
                    return Ok(Stream::new(node, send, recv, &live, link, address));
                }
                // The cached connection has died; the next round opens a new one.
                Err(error) => {
                    tracing::debug!(%node, %error, "cached connection is dead");
                    self.forget(&node, &live);
                }
            }
        }
    }

    /// The outgoing connection, if it is open. Never opens one.
    fn made(&self, node: &NodeId) -> Option<Live> {
        match lock(&self.outgoing).get(node) {
            Some(Outgoing::Ready(live)) if live.is_open() => Some(live.clone()),
            _ => None,
        }
    }

    /// Returns the outgoing connection. Waits for an attempt in progress or starts one.
    async fn connection(
        self: &Arc<Self>,
        endpoint: &Endpoint,
        node: NodeId,
    ) -> Result<Live, MeshError> {
        self.link.check_open()?;
        let mut outcome = match self.cached(endpoint, node) {
            Ok(live) => return Ok(live),
            Err(outcome) => outcome,
        };
        let done = outcome.wait_for(Option::is_some).await;
        match done.as_deref() {
            Ok(Some(result)) => result.clone(),
            // The attempt's task was dropped: the runtime is shutting down.
            _ => Err(MeshError::Closed),
        }
    }

    fn cached(self: &Arc<Self>, endpoint: &Endpoint, node: NodeId) -> Result<Live, Outcome> {
        let mut outgoing = lock(&self.outgoing);
        match outgoing.get(&node) {
            Some(Outgoing::Ready(live)) if live.is_open() => {
                live.wanted.store(true, Ordering::Relaxed);
                live.wanted_lately.store(true, Ordering::Relaxed);
                return Ok(live.clone());
            }
            Some(Outgoing::Connecting(_, outcome)) => return Err(outcome.clone()),
            _ => {}
        }
        let (done, outcome) = watch::channel(None);
        let attempt = self.attempts.fetch_add(1, Ordering::Relaxed);
        outgoing.insert(node, Outgoing::Connecting(attempt, outcome.clone()));
        let (streams, endpoint) = (self.clone(), endpoint.clone());
        self.runtime.spawn(async move {
            let result = streams.connect(&endpoint, node).await;
            streams.settle(node, attempt, &result);
            // The callers may have given up.
            let _ = done.send(Some(result));
        });
        Err(outcome)
    }

    async fn connect(&self, endpoint: &Endpoint, node: NodeId) -> Result<Live, MeshError> {
        let attempt = async {
            self.session(node).await?;
            let address = self.link.look(|core| core.address_of(&node))?;
            let remote = Remote { link: self.link.clone(), address };
            let address = SocketAddr::new(IpAddr::V6(address), ports::STREAMS);
            let lost = |reason: String| MeshError::ConnectionLost { node, reason };
            let path = self.path_to(&node);
            let (config, grants) = (self.setup.client(&path, remote), self.setup.grants(&path));
            let connecting = endpoint
                .connect_with(config, address, "mesh")
                .map_err(|error| lost(error.to_string()))?;
            self.link.turn(|core, _| core.expect_answer_of(&node));
            let connected = connecting.await.map(|connection| Live::new(connection, grants));
            connected.map_err(|error| match error {
                quinn::ConnectionError::TimedOut => MeshError::Unreachable(node),
                error => lost(error.to_string()),
            })
        };
        match tokio::time::timeout(self.connect_timeout, attempt).await {
            Ok(result) => result,
            Err(_) => Err(MeshError::Unreachable(node)),
        }
    }

    /// The known properties of the path to a peer.
    fn path_to(&self, node: &NodeId) -> PathHints {
        let (remote, rtt) = self.link.look(|core| (core.endpoint(node), core.handshake_rtt(node)));
        let mtu = remote.and_then(|remote| self.link.socket.mtu_towards(remote));
        PathHints { remote, rtt, mtu }
    }

    /// Starts the handshake if needed and waits until a connection to `node` may be opened.
    async fn session(&self, node: NodeId) -> Result<(), MeshError> {
        loop {
            self.link.check_open()?;
            let ready = self.link.ready.notified();
            tokio::pin!(ready);
            ready.as_mut().enable();
            let up = self
                .link
                .turn(|core, now| core.connect(now, &node).map(|()| core.may_connect(&node)))?;
            if up {
                return Ok(());
            }
            ready.await;
        }
    }

    /// Caches the result of an attempt, unless a newer entry has replaced the attempt.
    fn settle(&self, node: NodeId, attempt: u64, result: &Result<Live, MeshError>) {
        let counter = match result.is_ok() {
            true => MeshCount::ConnectionsOpened,
            false => MeshCount::ConnectionsFailed,
        };
        self.counters.bump(counter);
        let mut outgoing = lock(&self.outgoing);
        let ours = |entry: &Outgoing| matches!(entry, Outgoing::Connecting(a, _) if *a == attempt);
        if outgoing.get(&node).is_some_and(ours) {
            match result {
                Ok(live) => outgoing.insert(node, Outgoing::Ready(live.clone())),
                Err(_) => outgoing.remove(&node),
            };
        }
    }

    fn forget(&self, node: &NodeId, dead: &Live) {
        let mut outgoing = lock(&self.outgoing);
        let same = |entry: &Outgoing| matches!(entry, Outgoing::Ready(live) if live.is(dead));
        if outgoing.get(node).is_some_and(same) {
            outgoing.remove(node);
        }
    }

    /// Closes all connections with a peer.
    pub(super) fn cut(&self, node: &NodeId, reason: &str) {
        let incoming = lock(&self.incoming).remove(node);
        let retired = self.retired.take(node);
        for live in self.take_outgoing(node).into_iter().chain(incoming).chain(retired) {
            self.close(&live, reason);
        }
    }

    /// The peer was upgraded: retires the connections with its previous process. Their streams
    /// continue, and the next stream opens a new connection.
    pub(super) fn retire(&self, node: &NodeId) {
        let incoming = lock(&self.incoming).remove(node);
        for live in self.take_outgoing(node).into_iter().chain(incoming) {
            if let Some(least) = self.retired.add(*node, live) {
                self.close(&least, "the peer has been upgraded too often");
            }
        }
    }

    /// The peer is known to be silent: puts the outgoing connection in doubt until the peer
    /// acknowledges more data.
    pub(super) fn doubt(&self, node: &NodeId) {
        if let Some(Outgoing::Ready(live)) = lock(&self.outgoing).get(node) {
            live.doubted.store(congestion::acknowledged(&live.connection), Ordering::Relaxed);
        }
    }

    /// Closes the outgoing connection if the peer has acknowledged nothing since
    /// [`Streams::doubt`], so that the next stream opens a new one.
    pub(super) fn renew(&self, node: &NodeId, reason: &str) {
        let is_stuck = match lock(&self.outgoing).get(node) {
            Some(Outgoing::Ready(live)) => {
                let doubted = live.doubted.swap(TRUSTED, Ordering::Relaxed);
                doubted == congestion::acknowledged(&live.connection)
            }
            _ => false,
        };
        if is_stuck && let Some(live) = self.take_outgoing(node) {
            self.close(&live, reason);
        }
    }

    /// Removes the outgoing connection from the cache. An attempt in progress continues: it
    /// retransmits until a process of the peer answers.
    fn take_outgoing(&self, node: &NodeId) -> Option<Live> {
        let mut outgoing = lock(&self.outgoing);
        let Some(Outgoing::Ready(live)) = outgoing.get(node) else { return None };
        let live = live.clone();
        outgoing.remove(node);
        Some(live)
    }

    /// Closes the connections that were not used since the last call: outgoing and retired ones.
    pub(super) fn close_unused(&self) {
        lock(&self.outgoing).retain(|_, entry| {
            let Outgoing::Ready(live) = entry else { return true };
            // An open stream needs its connection even if no caller has asked for it.
            let is_used = live.streams.load(Ordering::Relaxed) > 0;
            live.wanted.swap(is_used, Ordering::Relaxed) || is_used || self.close_as_unused(live)
        });
        for live in self.retired.take_unused() {
            self.close_as_unused(&live);
        }
    }

    /// Closes the outgoing connections that had a [`BURST`] and were not used since the last call.
    pub(super) fn close_after_bursts(&self) {
        lock(&self.outgoing).retain(|_, entry| {
            let Outgoing::Ready(live) = entry else { return true };
            let is_used = live.streams.load(Ordering::Relaxed) > 0;
            let had_burst = live.peak.load(Ordering::Relaxed) >= BURST;
            let is_used = live.wanted_lately.swap(is_used, Ordering::Relaxed) || is_used;
            is_used || !had_burst || self.close_as_unused(live)
        });
    }

    /// Closes an unused connection. Returns false, so that `retain` drops it.
    fn close_as_unused(&self, live: &Live) -> bool {
        if live.is_open() {
            self.counters.bump(MeshCount::ConnectionsUnused);
            live.connection.close(VarInt::from_u32(CODE_UNUSED), b"it is unused");
        }
        false
    }

    /// A peer has a new NodeId: its connections stay open under it. An attempt in progress serves
    /// only the callers already waiting for it.
    pub(super) fn rename(&self, previous: &NodeId, node: NodeId) {
        let mut outgoing = lock(&self.outgoing);
        if let Some(Outgoing::Ready(live)) = outgoing.remove(previous) {
            outgoing.entry(node).or_insert(Outgoing::Ready(live));
        }
        let mut incoming = lock(&self.incoming);
        if let Some(live) = incoming.remove(previous) {
            incoming.entry(node).or_insert(live);
        }
        self.retired.rename(previous, node);
    }

    /// The current NodeId of the peer of a connection that was opened by `node`.
    fn holder(&self, live: &Live, node: NodeId) -> NodeId {
        match live.connection.remote_address().ip() {
            IpAddr::V6(address) => self.link.look(|core| core.node_at(&address)).unwrap_or(node),
            IpAddr::V4(_) => node,
        }
    }

    fn close(&self, live: &Live, reason: &str) {
        if live.is_open() {
            self.counters.bump(MeshCount::ConnectionsCut);
            live.connection.close(VarInt::from_u32(CODE_CUT), reason.as_bytes());
        }
    }

    /// Closes all connections with all peers.
    pub(super) fn cut_all(&self, reason: &str) {
        let mut nodes: BTreeSet<NodeId> = lock(&self.outgoing).keys().copied().collect();
        nodes.extend(lock(&self.incoming).keys());
        nodes.extend(self.retired.nodes());
        nodes.iter().for_each(|node| self.cut(node, reason));
    }

    /// Accepts connections from peers until the endpoint is closed.
    pub(super) async fn accept(
        self: Arc<Self>,
        endpoint: Endpoint,
        streams: mpsc::Sender<(NodeId, Stream)>,
    ) {
        while let Some(incoming) = endpoint.accept().await {
            let known = match incoming.remote_address().ip() {
                IpAddr::V6(address) => {
                    self.link.look(|core| Some((core.node_at(&address)?, address)))
                }
                IpAddr::V4(_) => None,
            };
            // New connections belong to the successor, if there is one.
            let known = known.filter(|_| self.link.bridge().is_none());
            let Some((node, address)) = known else {
                self.counters.bump(MeshCount::ConnectionsRefused);
                incoming.ignore();
                continue;
            };
            let (path, link) = (self.path_to(&node), self.link.clone());
            let config = self.setup.server(&path, Some(Remote { link, address }));
            let grants = self.setup.grants(&path);
            match incoming.accept_with(Arc::new(config)) {
                Ok(connecting) => {
                    let serve = self.clone().serve(node, connecting, grants, streams.clone());
                    self.runtime.spawn(serve);
                }
                Err(error) => {
                    self.counters.bump(MeshCount::ConnectionsRefused);
                    tracing::debug!(%node, %error, "incoming connection is not usable");
                }
            }
        }
    }

    async fn serve(
        self: Arc<Self>,
        node: NodeId,
        connecting: quinn::Connecting,
        grants: Grants,
        streams: mpsc::Sender<(NodeId, Stream)>,
    ) {
        let connection = match tokio::time::timeout(self.connect_timeout, connecting).await {
            Ok(Ok(connection)) => connection,
            _ => return self.counters.bump(MeshCount::ConnectionsRefused),
        };
        if self.link.bridge().is_some() {
            // The peer already knows the successor and retires no further connection: its new
            // streams would arrive here and be refused.
            self.counters.bump(MeshCount::ConnectionsRefused);
            return connection.close(VarInt::from_u32(CODE_CLOSED), b"closed");
        }
        self.counters.bump(MeshCount::ConnectionsAccepted);
        let live = Live::new(connection, grants);
        let old = lock(&self.incoming).insert(node, live.clone());
        if let Some(old) = old.filter(Live::is_open) {
            self.counters.bump(MeshCount::ConnectionsCut);
            old.connection.close(VarInt::from_u32(CODE_REPLACED), b"replaced by a newer one");
        }
        self.take_streams(node, &live, &streams).await;
        let node = self.holder(&live, node);
        let mut incoming = lock(&self.incoming);
        if incoming.get(&node).is_some_and(|current| current.is(&live)) {
            incoming.remove(&node);
        }
    }

    /// Passes the peer's streams to the caller until the connection ends.
    async fn take_streams(
        &self,
        node: NodeId,
        live: &Live,
        streams: &mpsc::Sender<(NodeId, Stream)>,
    ) {
        let Ok(address) = self.link.look(|core| core.address_of(&node)) else { return };
        let mut permitted = FIRST_STREAMS;
        while let Ok((mut send, mut recv)) = live.connection.accept_bi().await {
            let slot = tokio::time::timeout(ACCEPT_PATIENCE, streams.reserve()).await;
            let Ok(Ok(slot)) = slot else {
                self.counters.bump(MeshCount::StreamsRefused);
                // Both fail only if the stream is already closed.
                let _ = send.reset(VarInt::from_u32(CODE_BUSY));
                let _ = recv.stop(VarInt::from_u32(CODE_BUSY));
                continue;
            };
            self.counters.bump(MeshCount::StreamsAccepted);
            let (link, node) = (self.link.clone(), self.holder(live, node));
            slot.send((node, Stream::new(node, send, recv, live, link, address)));
            // Every permitted stream costs memory, even if unused, so the limit grows with use.
            let open = live.streams.load(Ordering::Relaxed);
            if open * 2 > permitted as usize && permitted < self.max_streams {
                permitted = permitted.saturating_mul(2).min(self.max_streams);
                live.connection.set_max_concurrent_bi_streams(VarInt::from_u32(permitted));
            }
        }
    }

    /// Measures the round-trip time of an echo request through the tunnel.
    pub(super) async fn ping(&self, node: NodeId, limit: Duration) -> Result<Duration, MeshError> {
        let token = u32::try_from(self.attempts.fetch_add(1, Ordering::Relaxed) & 0xffff_ffff);
        let key = (node, token.unwrap_or_default());
        let (done, answered) = oneshot::channel();
        {
            let mut pings = lock(&self.pings);
            // Callers that stopped waiting do not count.
            pings.retain(|_, waiting| !waiting.is_closed());
            if pings.len() >= PINGS {
                return Err(MeshError::QueueFull(node));
            }
            pings.insert(key, done);
        }
        let sent = self.link.now().instant;
        let result = match self.link.turn(|core, now| core.send_echo(now, node, key.1)) {
            Ok(()) => match tokio::time::timeout(limit, answered).await {
                Ok(Ok(())) => Ok(self.link.now().instant.saturating_duration_since(sent)),
                _ => Err(MeshError::Unreachable(node)),
            },
            Err(error) => Err(error),
        };
        lock(&self.pings).remove(&key);
        result
    }

    /// Handles the answer to an echo request.
    pub(super) fn pong(&self, node: &NodeId, token: u32) {
        let waiting = lock(&self.pings).remove(&(*node, token));
        if let Some(waiting) = waiting {
            // The caller may have given up.
            let _ = waiting.send(());
        }
    }
}
