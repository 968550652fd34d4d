//! Two nodes of one mesh on loopback, and helpers for tests of streams.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use meshport_config::{
    AuthorityKey, MeshSecret, NodeId, NodeKey, Revocation, Revocations, Revoked, ServiceName,
};
use meshport_discovery::OriginState;
use meshport_mesh::{Identity, Incoming, MAX_SHARDS, Mesh, MeshConfig, Shards, UdpOuter};
use rustls::pki_types::PrivateKeyDer;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use meshport_core::connect::ConnectConfig;
use meshport_core::route::{
    Candidate, OriginView, PathView, Policy, Preference, Route, Standing, choose,
};
use meshport_core::testing::WALL;
pub(crate) use meshport_core::testing::credential;

use crate::clock;
use crate::sessions::ingress::{Context, Ingress, SessionLimits};
use crate::sessions::registry::Sessions;
use crate::tcp::{Host, Tcp};

/// Timeout for anything on this machine.
const SOON: Duration = Duration::from_secs(20);
/// Interval at which conditions are polled.
const LOOK: Duration = Duration::from_millis(5);
const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A node of the mesh that all nodes of a test share.
pub(crate) struct Node {
    pub(crate) mesh: Mesh,
    pub(crate) incoming: Incoming,
}

/// The default roles of a node in these tests.
const ROLES: &str = "node,origin:kube-apiserver,relay";

/// Two nodes that know each other.
pub(crate) fn pair() -> (Node, Node) {
    pair_with([ROLES; 2])
}

/// Two nodes with these roles that know each other.
pub(crate) fn pair_with([one, other]: [&str; 2]) -> (Node, Node) {
    let (one, other) = (node(1, one), node(2, other));
    for (from, to) in [(&one, &other), (&other, &one)] {
        from.mesh.set_peer(to.mesh.node_id(), &[to.mesh.local_addr()], None);
    }
    (one, other)
}

/// A node that knows two others; these do not know each other.
pub(crate) fn three() -> (Node, Node, Node) {
    three_with([ROLES; 3])
}

/// As [`three`], with these roles.
pub(crate) fn three_with([one, other, third]: [&str; 3]) -> (Node, Node, Node) {
    let (one, other) = pair_with([one, other]);
    let third = node(3, third);
    one.mesh.set_peer(third.mesh.node_id(), &[third.mesh.local_addr()], None);
    third.mesh.set_peer(one.mesh.node_id(), &[one.mesh.local_addr()], None);
    (one, other, third)
}

/// The revocation of a node by that authority.
pub(crate) fn revocations(node: NodeId) -> Revocations {
    let mut all = Revocations::default();
    let authority = AuthorityKey::from_bytes([9; 32]);
    all.add(Revocation::issue(&authority, Revoked::Node(node), WALL));
    all
}

/// Nodes of four shards that know each other, with these numbers.
pub(crate) fn sharded_pair([one, other]: [u8; 2]) -> (Node, Node) {
    let shards = || Shards::bind(LOOPBACK, 9200, MAX_SHARDS).unwrap();
    let (one, other) = (node_on(shards(), one, ROLES), node_on(shards(), other, ROLES));
    for (from, to) in [(&one, &other), (&other, &one)] {
        from.mesh.set_peer(to.mesh.node_id(), &[to.mesh.local_addr()], None);
    }
    (one, other)
}

fn node(number: u8, roles: &str) -> Node {
    let socket = UdpOuter::bind(LOOPBACK).unwrap();
    node_on(Shards::one(Arc::new(socket)), number, roles)
}

fn node_on(shards: Shards, number: u8, roles: &str) -> Node {
    let (key, credential) = (NodeKey::from_bytes([number; 32]), credential(number, roles));
    let identity = Identity { key, credential, secret: MeshSecret::from_bytes([8; 32]) };
    let config = MeshConfig::default();
    let (mesh, incoming) =
        Mesh::start_on(shards, &identity, &config, [number; 32], || WALL).unwrap();
    Node { mesh, incoming }
}

/// A node as a route shows it, healthy and a millisecond away.
pub(crate) fn candidate(node: NodeId) -> Candidate {
    let cost = Duration::from_millis(1);
    let site = "fra".parse().unwrap();
    let view = OriginView::of_node(node, "cp-1".into(), site, OriginState::Ready);
    let origin = OriginView { path: PathView::Up(cost), ..view };
    Candidate { origin, standing: Standing::Healthy, cost }
}

/// A route to one node, whose path is dead or alive.
pub(crate) fn route(node: NodeId, path: PathView) -> Arc<Route> {
    let origin = OriginView { path, ..candidate(node).origin };
    Arc::new(choose(vec![origin], &Policy::Spread, &Preference::default(), clock::now()).0)
}

/// The ingress of a node to its local instance, and the sender that changes the route.
pub(crate) fn ingress(
    near: &Node,
    host: Host,
    own: &str,
) -> (Arc<Ingress>, watch::Sender<Arc<Route>>) {
    let (sender, routes) = watch::channel(route(near.mesh.node_id(), PathView::Own));
    let connect = ConnectConfig { connect_timeout: SOON, hold: Duration::ZERO, hedge: None };
    let limits =
        SessionLimits { connect, max_sessions: 10_000, local_instance: Some(own.to_owned()) };
    let (mesh, findings) = (near.mesh.clone(), mpsc::channel(1).0);
    let context = Context { mesh, host, sessions: Sessions::default(), findings, first_ticket: 0 };
    let limits = watch::channel(Arc::new(limits)).1;
    (Arc::new(Ingress::new(context, service(), routes, limits)), sender)
}

/// Waits until something holds.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let found = timeout(SOON, async {
        while !holds().await {
            sleep(LOOK).await;
        }
    });
    found.await.unwrap_or_else(|_| panic!("not in time: {what}"));
}

/// The default service.
pub(crate) fn service() -> ServiceName {
    "kube-apiserver".parse().unwrap()
}

/// Both ends of a TCP connection: a client's, and the daemon's.
pub(crate) async fn tcp_pair() -> (TcpStream, Tcp) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
    (near.unwrap(), Tcp::Kernel(far.unwrap().0))
}

/// A TLS server for localhost, and its certificate as PEM.
pub(crate) fn tls_server() -> (TlsAcceptor, String) {
    let key = rcgen::KeyPair::generate().expect("a key");
    let params = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("a name");
    let certificate = params.self_signed(&key).expect("signed");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("it has them")
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::try_from(key.serialize_der()).expect("of a known form"),
        )
        .expect("it fits its key");
    (TlsAcceptor::from(Arc::new(tls)), certificate.pem())
}

/// Keeps what is logged.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("not poisoned").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("not poisoned").clone()).expect("text")
    }
}

/// The lines that this thread logs in `what`.
pub(crate) fn logged(what: impl FnOnce()) -> String {
    let kept = Lines::default();
    let writer = kept.clone();
    let log = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
    tracing::subscriber::with_default(log.finish(), what);
    kept.text()
}
