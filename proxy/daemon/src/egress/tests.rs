use meshport_config::{
    Allow, AuthorityKey, Delegation, DelegationKey, Grant, NodeKey, RecordKey, Revocation, Revoked,
    Subject, UnixSeconds,
};
use meshport_mesh::{Incoming, MeshError};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use meshport_core::egress::Offer;
use meshport_core::ledger::{Crowding, Holder, RELAYED_SHARE, Side};
use meshport_core::route::Line;
use meshport_core::wire::Hops;

use super::*;
use crate::sessions::registry::Sessions;
use crate::testing::{Node, credential, pair, pair_with, revocations, service, three, three_with};

mod calls;
mod earlier;
mod shares;
mod views;

/// Sessions that the relays of these tests carry at once.
const MAX_RELAYED: u64 = 8;

/// Sessions that the origins of these tests serve at once.
const LIMIT: u64 = 12;

/// Serves `far`, which offers the default service at `address` to everyone.
fn serve(far: Node, roles: &str, address: &str) -> Sessions {
    let everyone: Vec<String> = Allow::everyone().iter().map(ToString::to_string).collect();
    let everyone: Vec<&str> = everyone.iter().map(String::as_str).collect();
    serve_for(far, roles, offer(address, &everyone)).0
}

/// The default service, for the nodes that `allow` matches.
fn offer(address: &str, allow: &[&str]) -> Arc<Offers> {
    let allow = allow.iter().map(|it| it.parse().expect("whom to allow")).collect();
    Arc::new(Offers::from([(service(), Offer { addresses: vec![address.to_owned()], allow })]))
}

/// Serves `far` with these offers, which can be changed.
fn serve_for(
    far: Node,
    roles: &str,
    offers: Arc<Offers>,
) -> (Sessions, watch::Sender<Arc<Offers>>) {
    let (change, offers) = watch::channel(offers);
    let Node { mesh, incoming: Incoming { streams, .. } } = far;
    let egress = egress(mesh, roles, offers, watch::channel(Revocations::default()).1);
    let sessions = egress.context.sessions.clone();
    tokio::spawn(egress.run(streams));
    (sessions, change)
}

/// The part that serves streams on a node with these roles.
fn egress(
    mesh: Mesh,
    roles: &str,
    offers: watch::Receiver<Arc<Offers>>,
    revoked: watch::Receiver<Revocations>,
) -> Egress {
    let sessions = Sessions::within(LIMIT);
    sessions.register(&service());
    let (_, leaving) = watch::channel(false);
    let (findings, _) = mpsc::channel(1);
    Egress {
        // Members' queries get no answer.
        asked: Handle::new(mpsc::channel(1).0),
        context: Context { mesh, host: Host::Kernel, sessions, findings, first_ticket: 0 },
        credential: watch::channel(Arc::new(credential(2, roles))).1,
        audit: Audit::default(),
        offers,
        offered: watch::channel(Arc::default()).1,
        turn: Arc::default(),
        revoked,
        max_relayed: MAX_RELAYED,
        leaving,
        back: WayBack::default(),
    }
}

/// The first byte `far` sends in answer to `bytes`.
async fn answer(near: &Node, far: NodeId, bytes: Vec<u8>) -> Option<Answer> {
    let mut stream = near.mesh.open_stream(far).await.expect("reachable");
    stream.send.write_chunk(bytes.into()).await.expect("open");
    let mut chunk = [Bytes::new()];
    stream.recv.read_chunks(&mut chunk).await.expect("an answer");
    Answer::from_code(chunk[0][0])
}

fn count(sessions: &Sessions, answer: Answer) -> u64 {
    let totals = [&*sessions.totals(&service()), sessions.others()];
    totals.iter().map(|totals| totals.answers.get(answer)).sum()
}

#[tokio::test]
async fn what_this_nodes_credential_does_not_allow_is_not_dialled() {
    let (near, far) = pair();
    let node = far.mesh.node_id();
    let instance = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let address = instance.local_addr().expect("bound").to_string();
    let sessions = serve(far, "node,origin:other", &address);
    let header = Header::direct(service(), HEADER_TIMEOUT).encode();
    assert_eq!(answer(&near, node, header).await, Some(Answer::NoSuchService));
    assert_eq!(count(&sessions, Answer::NoSuchService), 1);
}

#[tokio::test]
async fn a_bad_header_is_counted() {
    let (near, far) = pair();
    let node = far.mesh.node_id();
    let sessions = serve(far, "node,origin:kube-apiserver", "127.0.0.1:9");
    assert_eq!(answer(&near, node, vec![9; 8]).await, Some(Answer::BadRequest));
    assert_eq!(count(&sessions, Answer::BadRequest), 1);
}

#[tokio::test]
async fn a_header_of_a_later_version_is_refused_counted_and_reported() {
    let (near, far) = pair();
    let (own, node) = (near.mesh.node_id(), far.mesh.node_id());
    let Node { mesh, incoming: Incoming { streams, .. } } = far;
    let none = watch::channel(Arc::default()).1;
    let mut egress = egress(mesh, "node", none, watch::channel(Revocations::default()).1);
    let (findings, mut found) = mpsc::channel(1);
    egress.context.findings = findings;
    let sessions = egress.context.sessions.clone();
    tokio::spawn(egress.run(streams));
    assert_eq!(answer(&near, node, vec![9; 8]).await, Some(Answer::BadRequest));
    assert_eq!(count(&sessions, Answer::BadRequest), 1);
    let Some(Finding::Unknown { from, what }) = found.recv().await else { panic!("nothing") };
    assert_eq!((from, what.as_str()), (own, "streams of version 9"));
}

/// Streams of one peer that stay silent or send half a header or garbage. Meanwhile another peer is
/// served, and each stream gets an answer at its timeout.
#[tokio::test]
async fn a_flood_of_streams_leaves_room_for_others() {
    /// Four times the streams that a connection has room for at first.
    const FLOOD: usize = 1024;
    let (origin, flooder, other) = three();
    let node = origin.mesh.node_id();
    let sessions = serve(origin, "node,origin:kube-apiserver", &greeter().await);
    let mut half = Header::carried(service(), credential(3, "node"), HEADER_TIMEOUT).encode();
    half.pop();
    let mut held = Vec::new();
    for number in 0..FLOOD {
        let mut stream = flooder.mesh.open_stream(node).await.expect("reachable");
        let said = [half.clone(), vec![1], vec![9; 2000]][number % 3].clone();
        stream.send.write_chunk(said.into()).await.expect("open");
        held.push(stream);
    }
    let header = Header::direct(service(), HEADER_TIMEOUT).encode();
    // Before the first ones are given up.
    let served = timeout(HEADER_TIMEOUT * 9 / 10, answer(&other, node, header)).await;
    assert_eq!(served.expect("another peer waits"), Some(Answer::Connected));
    for mut stream in held {
        let mut chunk = [Bytes::new()];
        let told = timeout(2 * HEADER_TIMEOUT, stream.recv.read_chunks(&mut chunk)).await;
        told.expect("nobody is held for longer").expect("an answer");
        assert_eq!(Answer::from_code(chunk[0][0]), Some(Answer::BadRequest));
    }
    assert_eq!(count(&sessions, Answer::BadRequest), FLOOD as u64);
}

#[tokio::test]
async fn a_dial_counts_as_open_and_ends_with_its_opener() {
    let (near, far) = pair();
    let node = far.mesh.node_id();
    // A listener whose queue is full answers nobody.
    let full = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).expect("a socket");
    let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    full.bind(&any.into()).expect("loopback");
    full.listen(0).expect("listens");
    let address = full.local_addr().expect("bound").as_socket().expect("IP").to_string();
    let mut queued = Vec::new();
    let fills = Duration::from_millis(200);
    while let Ok(Ok(tcp)) = timeout(fills, TcpStream::connect(&address)).await {
        queued.push(tcp);
    }
    let sessions = serve(far, "node,origin:kube-apiserver", &address);
    let mut stream = near.mesh.open_stream(node).await.expect("reachable");
    let header = Header::direct(service(), Duration::from_secs(60)).encode();
    stream.send.write_chunk(header.into()).await.expect("open");
    let until = async |open| {
        while sessions.count_all(Side::Served) != open {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(HEADER_TIMEOUT, until(1)).await.expect("counted while it is dialled");
    stream.recv.stop(ABORTED);
    timeout(HEADER_TIMEOUT, until(0)).await.expect("given up with its opener");
}

/// The address of an instance that greets each client and then echoes its data.
async fn greeter() -> String {
    let instance = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let address = instance.local_addr().expect("bound").to_string();
    tokio::spawn(async move {
        while let Ok((mut tcp, _)) = instance.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = tcp.split();
                write.write_all(b"hello ").await?;
                tokio::io::copy(&mut read, &mut write).await?;
                write.write_all(b" bye").await?;
                write.shutdown().await
            });
        }
    });
    address
}

/// The opener learns that the instance was dialled, even if the instance stays silent or closes.
#[tokio::test]
async fn a_node_that_asks_at_once_hears_of_an_instance_that_says_nothing() {
    let instance = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let address = instance.local_addr().expect("bound").to_string();
    let (near, far) = pair();
    let node = far.mesh.node_id();
    serve(far, "node,origin:kube-apiserver", &address);
    let asked = [&Header::direct(service(), HEADER_TIMEOUT).encode()[..], b"question"].concat();
    let word = [Answer::Connected.code()];
    for ends in [false, true] {
        let mut stream = near.mesh.open_stream(node).await.expect("reachable");
        stream.send.write_chunk(asked.clone().into()).await.expect("open");
        let (mut tcp, _) = instance.accept().await.expect("dialled");
        let mut question = [0; 8];
        tcp.read_exact(&mut question).await.expect("asked");
        assert_eq!(&question, b"question");
        if ends {
            tcp.shutdown().await.expect("half-closes");
            assert_eq!(read(&mut stream, usize::MAX).await, word);
        } else {
            assert_eq!(read(&mut stream, 1).await, word);
            tcp.write_all(b"late").await.expect("open");
            assert_eq!(read(&mut stream, 4).await, b"late");
        }
    }
}

/// A node, a relay with these roles, and an origin with a greeter.
async fn relayed(roles: &str) -> (Node, NodeId, NodeId, Sessions) {
    let (relay, near, origin) = three();
    let (relay_id, origin_id) = (relay.mesh.node_id(), origin.mesh.node_id());
    serve(origin, "node,origin:kube-apiserver", &greeter().await);
    let sessions = serve(relay, roles, "127.0.0.1:9");
    (near, relay_id, origin_id, sessions)
}

fn through(target: NodeId) -> Header {
    Header::relayed(service(), target, HEADER_TIMEOUT)
}

/// Reads until there are `count` bytes or the end.
async fn read(stream: &mut Stream, count: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut chunk = [Bytes::new()];
    while bytes.len() < count {
        match timeout(HEADER_TIMEOUT, stream.recv.read_chunks(&mut chunk)).await {
            Ok(Ok(Some(_))) => bytes.extend_from_slice(&chunk[0]),
            Ok(Ok(None)) => break,
            other => panic!("{other:?} after {bytes:?}"),
        }
    }
    bytes
}

#[tokio::test]
async fn a_relay_passes_first_bytes_answers_and_half_closes() {
    let (near, relay, origin, sessions) = relayed("node,relay").await;
    let mut stream = near.mesh.open_stream(relay).await.expect("reachable");
    // The client's first bytes come in the header's own packet.
    let opening = [&through(origin).encode()[..], b"one "].concat();
    stream.send.write_chunk(opening.into()).await.expect("open");
    let begun = read(&mut stream, 11).await;
    assert_eq!(begun, [&[Answer::Connected.code()], &b"hello one "[..]].concat());
    let counts = || {
        let onward = Line::Direct(origin);
        let from = Line::Direct(near.mesh.node_id());
        let of = |side, line| sessions.count_line(&service(), side, line);
        (of(Side::Relayed, onward), of(Side::RelayedFor, from), sessions.count())
    };
    assert_eq!(counts(), (1, 1, 1), "it is one session");
    assert_eq!(sessions.busy().into_iter().collect::<Vec<_>>(), [Line::Direct(origin)]);
    stream.send.write_chunk(Bytes::from_static(b"two")).await.expect("open");
    stream.send.finish().expect("open");
    // The instance answers after its client's end.
    assert_eq!(read(&mut stream, usize::MAX).await, b"two bye");
    assert_eq!(sessions.totals(&service()).counts.get(SessionCount::Relayed), 1);
    let over = async {
        while counts() != (0, 0, 0) {
            tokio::task::yield_now().await;
        }
    };
    timeout(HEADER_TIMEOUT, over).await.expect("both entries are closed");
}

#[tokio::test]
async fn a_node_that_may_not_relay_refuses() {
    let (near, relay, origin, sessions) = relayed("node").await;
    assert_eq!(answer(&near, relay, through(origin).encode()).await, Some(Answer::NoPath));
    assert_eq!(count(&sessions, Answer::NoPath), 1);
}

#[tokio::test]
async fn no_second_hop_no_way_back_and_no_unknown_target() {
    let (near, relay, origin, sessions) = relayed("node,relay").await;
    let mut spent = through(origin);
    spent.hops = Hops::None;
    let back = through(near.mesh.node_id());
    let unknown = through(NodeId::from_bytes([77; 32]));
    for (number, header) in (1..).zip([spent, back, unknown]) {
        assert_eq!(answer(&near, relay, header.encode()).await, Some(Answer::NoPath));
        assert_eq!(count(&sessions, Answer::NoPath), number);
    }
    // Addressed to the relay itself: it serves, or answers that it has nothing to serve.
    let own = answer(&near, relay, through(relay).encode()).await;
    assert_eq!(own, Some(Answer::NoSuchService));
    assert_eq!(sessions.count_all(Side::Relayed), 0);
}

#[tokio::test]
async fn one_peer_has_a_quarter_and_all_together_the_limit() {
    let (near, relay, origin, sessions) = relayed("node,relay").await;
    let mut open = Vec::new();
    for _ in 0..MAX_RELAYED / RELAYED_SHARE {
        let mut stream = near.mesh.open_stream(relay).await.expect("reachable");
        stream.send.write_chunk(through(origin).encode().into()).await.expect("open");
        assert_eq!(read(&mut stream, 1).await[0], Answer::Connected.code());
        open.push(stream);
    }
    let other = Header::relayed("other".parse().expect("a name"), origin, HEADER_TIMEOUT);
    for header in [through(origin), other] {
        assert_eq!(answer(&near, relay, header.encode()).await, Some(Answer::Overloaded));
    }
    drop(open);
    // Others hold all slots.
    let others = || sessions.open(&service(), Side::Relayed, Line::Direct(origin));
    let taken: Vec<Guard> = (0..MAX_RELAYED).map(|_| others()).collect();
    assert_eq!(answer(&near, relay, through(origin).encode()).await, Some(Answer::Overloaded));
    drop(taken);
    let until = async {
        while sessions.count_all(Side::Relayed) > 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(HEADER_TIMEOUT, until).await.expect("all are closed");
    assert_eq!(answer(&near, relay, through(origin).encode()).await, Some(Answer::Connected));
}

/// The answer of an origin with this list to `node-1` with these roles.
async fn answer_to(roles: &str, allow: &[&str]) -> Option<Answer> {
    let (near, far) = pair_with([roles, "node,origin:kube-apiserver"]);
    let node = far.mesh.node_id();
    let (sessions, _change) =
        serve_for(far, "origin:kube-apiserver", offer(&greeter().await, allow));
    let said = answer(&near, node, Header::direct(service(), HEADER_TIMEOUT).encode()).await;
    assert_eq!(count(&sessions, said.expect("an answer")), 1);
    said
}

#[tokio::test]
async fn a_list_admits_its_entries_and_nobody_else() {
    let everyone = ["role:node", "role:operator"];
    assert_eq!(answer_to("node", &everyone).await, Some(Answer::Connected));
    assert_eq!(answer_to("operator", &everyone).await, Some(Answer::Connected));
    assert_eq!(answer_to("relay", &everyone).await, Some(Answer::NotAllowed));
    assert_eq!(answer_to("relay", &["role:relay"]).await, Some(Answer::NotAllowed));
    assert_eq!(answer_to("node", &["node:node-1"]).await, Some(Answer::Connected));
    assert_eq!(answer_to("node", &["site:ber", "node:node-9"]).await, Some(Answer::NotAllowed));
    assert_eq!(answer_to("node", &[]).await, Some(Answer::NotAllowed));
}

#[tokio::test]
async fn a_session_ends_when_a_new_list_shuts_its_node_out() {
    let (near, far) = pair();
    let node = far.mesh.node_id();
    let address = greeter().await;
    let (sessions, change) =
        serve_for(far, "origin:kube-apiserver", offer(&address, &["site:fra"]));
    let mut stream = near.mesh.open_stream(node).await.expect("reachable");
    let header = Header::direct(service(), HEADER_TIMEOUT).encode();
    stream.send.write_chunk(header.into()).await.expect("open");
    assert_eq!(read(&mut stream, 7).await[0], Answer::Connected.code());
    // Another list that admits it, and one that does not.
    change.send_replace(offer(&address, &["node:node-1"]));
    stream.send.write_chunk(Bytes::from_static(b"still here")).await.expect("open");
    assert_eq!(read(&mut stream, 10).await, b"still here");
    change.send_replace(offer(&address, &["node:node-9"]));
    let mut chunk = [Bytes::new()];
    let end = timeout(HEADER_TIMEOUT, stream.recv.read_chunks(&mut chunk)).await;
    assert!(matches!(end, Ok(Err(MeshError::Reset(_)))), "{end:?}");
    timeout(HEADER_TIMEOUT, async {
        while sessions.count_all(Side::Served) > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("its entry is closed");
}

#[tokio::test]
async fn the_origin_judges_the_node_that_a_relay_carries_for() {
    for (allow, said) in [
        ("node:node-2", Answer::Connected),
        ("node:node-1", Answer::NotAllowed),
        ("role:relay", Answer::NotAllowed),
    ] {
        let (relay, near, origin) = three_with(["relay", "node", "node,origin:kube-apiserver"]);
        let (relay_id, origin_id) = (relay.mesh.node_id(), origin.mesh.node_id());
        let offers = offer(&greeter().await, &[allow]);
        let (_sessions, _change) = serve_for(origin, "origin:kube-apiserver", offers);
        serve(relay, "relay", "127.0.0.1:9");
        let heard = answer(&near, relay_id, through(origin_id).encode()).await;
        assert_eq!(heard, Some(said), "{allow}");
    }
}

#[tokio::test]
async fn only_a_relay_speaks_for_others_and_only_for_valid_ones() {
    let carried = |client| Header::carried(service(), client, HEADER_TIMEOUT).encode();
    let good = credential(9, "node");
    let mut forged = good.clone();
    forged.roles = "node,operator".parse().expect("roles");
    for (roles, client, said) in [
        ("node", good.clone(), Answer::NotAllowed),
        ("relay", good.clone(), Answer::Connected),
        ("relay", forged, Answer::NotAllowed),
        ("relay", credential(9, "relay"), Answer::NotAllowed),
        ("relay", credential(8, "node"), Answer::NotAllowed),
    ] {
        let (near, far) = pair_with([roles, "node,origin:kube-apiserver"]);
        let node = far.mesh.node_id();
        far.mesh.set_revocations(&revocations(credential(8, "node").node));
        serve(far, "origin:kube-apiserver", &greeter().await);
        let heard = answer(&near, node, carried(client.clone())).await;
        assert_eq!(heard, Some(said), "{roles}: {client:?}");
    }
}

#[tokio::test]
async fn a_relay_carries_only_for_users_and_only_to_origins() {
    for (roles, to) in [("relay", "node,origin:kube-apiserver"), ("node", "node,origin:other")] {
        let (relay, near, origin) = three_with(["relay", roles, to]);
        let (relay_id, origin_id) = (relay.mesh.node_id(), origin.mesh.node_id());
        serve(origin, "origin:kube-apiserver", &greeter().await);
        let sessions = serve(relay, "relay", "127.0.0.1:9");
        let heard = answer(&near, relay_id, through(origin_id).encode()).await;
        assert_eq!(heard, Some(Answer::NotAllowed), "{roles} to {to}");
        assert_eq!(sessions.count_all(Side::Relayed), 0);
    }
}

/// The key of the authority of all these tests.
fn authority() -> AuthorityKey {
    AuthorityKey::from_bytes([9; 32])
}

/// A credential that a node of this number made with an invite, with this validity.
fn joined(number: u8, invite: u8, from: UnixSeconds, until: UnixSeconds) -> Credential {
    let signer = DelegationKey::from_bytes([invite; 32]);
    let grant = Grant {
        roles: "node".parse().expect("roles"),
        site: None,
        name: None,
        not_before: UnixSeconds(0),
        join_until: UnixSeconds(u64::from(u32::MAX)),
        credential_ttl_s: u64::from(u32::MAX),
    };
    let invite = Delegation::issue(&authority(), signer.public(), grant).expect("an invite");
    let key = NodeKey::from_bytes([number; 32]);
    let subject = Subject {
        node: key.public(),
        record_key: RecordKey::from_bytes([7; 32]).public(),
        name: format!("node-{number}").parse().expect("a name"),
        site: "fra".parse().expect("a site"),
        roles: "node".parse().expect("roles"),
        succession: None,
    };
    let issued = Credential::issue_by_delegation(&invite, &signer, subject, from, until);
    issued.and_then(|issued| issued.countersign(&key)).expect("a credential")
}

fn revoking(revoked: Revoked) -> Revocations {
    let mut all = Revocations::default();
    all.add(Revocation::issue(&authority(), revoked, UnixSeconds(1)));
    all
}

/// Only the origin knows of it: the relay continues as if nothing had happened.
#[tokio::test]
async fn a_carried_session_ends_when_its_node_is_revoked_at_the_origin_alone() {
    let origin = "node,origin:kube-apiserver";
    let (relay, near, origin) = three_with(["relay", "node", origin]);
    let (relay_id, origin_id) = (relay.mesh.node_id(), origin.mesh.node_id());
    let (know, revoked) = watch::channel(Revocations::default());
    let (_change, offers) = watch::channel(offer(&greeter().await, &["role:node"]));
    let Node { mesh, incoming: Incoming { streams, .. } } = origin;
    let at_origin = mesh.clone();
    let egress = egress(mesh, "origin:kube-apiserver", offers, revoked);
    let sessions = egress.context.sessions.clone();
    tokio::spawn(egress.run(streams));
    serve(relay, "relay", "127.0.0.1:9");
    let mut stream = near.mesh.open_stream(relay_id).await.expect("reachable");
    stream.send.write_chunk(through(origin_id).encode().into()).await.expect("open");
    assert_eq!(read(&mut stream, 7).await[0], Answer::Connected.code());

    // Changes of another node have no effect.
    know.send_replace(revocations(credential(8, "node").node));
    stream.send.write_chunk(Bytes::from_static(b"still here")).await.expect("open");
    assert_eq!(read(&mut stream, 10).await, b"still here");
    let all = revocations(near.mesh.node_id());
    at_origin.set_revocations(&all);
    know.send_replace(all);
    let mut chunk = [Bytes::new()];
    let within = Duration::from_secs(20);
    let end = timeout(within, stream.recv.read_chunks(&mut chunk)).await;
    assert!(matches!(end, Ok(Err(MeshError::Reset(_)))), "{end:?}");
    timeout(within, async {
        while sessions.count_all(Side::Served) > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("its entry is closed");
}

/// How long a session that must stay is observed.
const STAYS: Duration = Duration::from_millis(200);

#[tokio::test]
async fn a_session_ends_with_the_invite_that_let_its_node_in_and_not_with_another() {
    let (far, _other) = pair();
    let now = clock::wall();
    let holder = Arc::new(joined(5, 50, now, now.saturating_add(3600)));
    let (know, revoked) = watch::channel(Revocations::default());
    let (_change, offers) = watch::channel(offer("127.0.0.1:9", &["role:node"]));
    let egress = egress(far.mesh.clone(), "origin:kube-apiserver", offers, revoked);
    let name = service();
    let mut end = std::pin::pin!(egress.access_ends(&name, &holder));
    let invite = |number: u8| Revoked::Invite(DelegationKey::from_bytes([number; 32]).public());
    know.send_replace(revoking(invite(51)));
    assert!(timeout(STAYS, &mut end).await.is_err(), "another invite");
    know.send_replace(revoking(invite(50)));
    timeout(HEADER_TIMEOUT, end).await.expect("its own");
}

/// The session follows its node to another key, and ends when that key is revoked.
#[tokio::test]
async fn a_session_continues_with_the_successor_of_its_node() {
    let (far, _other) = pair();
    let holder = Arc::new(credential(5, "node"));
    let (node, by) = (holder.node, credential(6, "node").node);
    let (know, revoked) = watch::channel(Revocations::default());
    let (_change, offers) = watch::channel(offer("127.0.0.1:9", &["role:node"]));
    let egress = egress(far.mesh.clone(), "origin:kube-apiserver", offers, revoked);
    let name = service();
    let mut end = std::pin::pin!(egress.access_ends(&name, &holder));
    let mut all = revoking(Revoked::Succeeded { node, by });
    know.send_replace(all.clone());
    assert!(timeout(STAYS, &mut end).await.is_err(), "it has another key");
    all.add(Revocation::issue(&authority(), Revoked::Node(by), UnixSeconds(1)));
    know.send_replace(all);
    timeout(HEADER_TIMEOUT, end).await.expect("the successor is revoked");
}

/// The mesh checks again when it renews a tunnel, every few minutes, but that is only the relay's
/// tunnel.
#[tokio::test]
async fn a_session_ends_with_the_credential_of_its_node_unless_that_was_renewed() {
    let (far, _other) = pair();
    let now = clock::wall();
    let [ends, is_renewed] = [5, 6].map(|number| {
        let until = now.saturating_add(1);
        Arc::new(joined(number, 50, UnixSeconds(1), until))
    });
    let renewed = credential(6, "node");
    far.mesh.set_peer(renewed.node, &[], Some(&Arc::new(renewed.clone())));
    let (_know, revoked) = watch::channel(Revocations::default());
    let (_change, offers) = watch::channel(offer("127.0.0.1:9", &["role:node"]));
    let egress = egress(far.mesh.clone(), "origin:kube-apiserver", offers, revoked);
    let name = service();
    let stays = timeout(Duration::from_secs(3), egress.access_ends(&name, &is_renewed));
    let end = timeout(Duration::from_secs(3), egress.access_ends(&name, &ends));
    let (stays, end) = tokio::join!(stays, end);
    assert!(end.is_ok(), "its credential has ended");
    assert!(stays.is_err(), "it has another one");
}
