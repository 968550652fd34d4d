use meshport_config::{
    AuthorityKey, Credential, Delegation, DelegationKey, Grant, NodeId, NodeKey, RecordKey,
    Revocation, Revocations, Revoked, Subject, UnixSeconds,
};
use meshport_mesh::{Incoming, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::*;
use crate::driver::revoked::close_revoked_sessions;
use crate::sessions::pacing::Admission;
use crate::testing::{self, Node, pair, service, three};
use meshport_core::ledger::Cut;
use meshport_core::route::{OriginView, PathView, Policy, Preference, choose};
use meshport_core::wire::{Answer, Header};

/// Limit for what takes milliseconds: suite `unit` runs at the lowest priority.
const SOON: Duration = Duration::from_secs(20);
const UP: PathView = PathView::Up(Duration::from_millis(1));

/// A route to one node, whose path is dead or alive.
fn route(node: NodeId, path: PathView) -> Arc<Route> {
    let origin = OriginView { path, ..testing::candidate(node).origin };
    let memory = Preference::default();
    Arc::new(choose(vec![origin], &Policy::Spread, &memory, clock::now()).0)
}

/// The ingress of `near` to `far`, whose path is reported as dead, and the sender that changes
/// this.
fn ingress(near: &Node, far: NodeId) -> (Ingress, watch::Sender<Arc<Route>>) {
    let (sender, routes) = watch::channel(route(far, PathView::Dead));
    let connect = ConnectConfig {
        connect_timeout: Duration::from_secs(10),
        hold: Duration::ZERO,
        hedge: Some((Duration::from_millis(100), Duration::from_millis(500))),
    };
    let limits = SessionLimits { connect, max_sessions: 10, local_instance: None };
    let (_, limits) = watch::channel(Arc::new(limits));
    let mesh = near.mesh.clone();
    let (findings, _) = mpsc::channel(1);
    let (host, sessions) = (Host::Kernel, Sessions::default());
    let context = Context { mesh, host, sessions, findings, first_ticket: 0 };
    (Ingress::new(context, service(), routes, limits), sender)
}

/// Accepts one stream of `far` and reads its header; also returns the bytes after it.
async fn take(far: &mut Node) -> (Stream, Vec<u8>) {
    let (_, mut stream) = far.incoming.streams.recv().await.expect("a stream");
    let mut bytes = Vec::new();
    loop {
        if let Some((_, used)) = Header::decode(&bytes).expect("a header") {
            return (stream, bytes.split_off(used));
        }
        read_more(&mut stream, &mut bytes).await;
    }
}

async fn read_more(stream: &mut Stream, bytes: &mut Vec<u8>) {
    let mut chunk = [Bytes::new()];
    stream.recv.read_chunks(&mut chunk).await.expect("open").expect("not at its end");
    bytes.extend_from_slice(&chunk[0]);
}

/// The origin's "connected" and its instance's first bytes.
async fn say(stream: &mut Stream, words: &[u8]) {
    let answer = [&[Answer::Connected.code()], words].concat();
    stream.send.write_chunk(answer.into()).await.expect("open");
}

/// An ingress whose route leads to `nodes` in that order. They are far, so that a starved machine
/// has seconds to answer.
fn ingress_to(near: &Node, nodes: &[NodeId]) -> Arc<Ingress> {
    let (ingress, routes) = ingress(near, nodes[0]);
    let pins = nodes.iter().map(ToString::to_string).collect();
    let path = PathView::Up(Duration::from_secs(1));
    let far = |node: &NodeId| OriginView { path, ..testing::candidate(*node).origin };
    let origins = nodes.iter().map(far).collect();
    let memory = Preference::default();
    let route = choose(origins, &Policy::Pinned(pins), &memory, clock::now()).0;
    routes.send_replace(Arc::new(route));
    Arc::new(ingress)
}

/// A client that has sent something, served by `ingress`.
async fn client(ingress: &Arc<Ingress>, said: &[u8]) -> TcpStream {
    let (mut client, accepted) = testing::tcp_pair().await;
    client.write_all(said).await.expect("writes");
    let ingress = ingress.clone();
    let Admission::Serve(accepted, paid) = ingress.pacing.admit(accepted) else { panic!("first") };
    tokio::spawn(async move { ingress.serve(accepted, Arrived::unread(paid)).await });
    client
}

const HELLO: &[u8] = &[22, 3, 1, 0, 1, 0];

#[tokio::test]
async fn a_greeting_that_comes_with_the_answer_loses_nothing_of_the_client() {
    let (near, mut far) = pair();
    let mut client = client(&ingress_to(&near, &[far.mesh.node_id()]), b"hello server").await;
    let (mut stream, mut said) = take(&mut far).await;
    say(&mut stream, b"hello client").await;
    while said.len() < 12 {
        read_more(&mut stream, &mut said).await;
    }
    assert_eq!(said, b"hello server");
    let mut answer = [0; 12];
    timeout(SOON, client.read_exact(&mut answer)).await.expect("in time").expect("an answer");
    assert_eq!(&answer, b"hello client");
}

#[tokio::test]
async fn a_held_client_that_has_said_all_it_has_to_say_is_still_served() {
    let (near, mut far) = pair();
    let node = far.mesh.node_id();
    let (mut ingress, routes) = ingress(&near, node);
    let (limit, limits) = watch::channel(ingress.limits.borrow().clone());
    limit.send_modify(|limits| Arc::make_mut(limits).connect.hold = SOON);
    ingress.limits = limits;
    routes.send_replace(Arc::default());
    let mut client = client(&Arc::new(ingress), b"all").await;
    client.shutdown().await.expect("half-closes");
    routes.send_replace(route(node, UP));
    let (mut stream, mut said) = take(&mut far).await;
    say(&mut stream, b"").await;
    while said.len() < 3 {
        read_more(&mut stream, &mut said).await;
    }
    assert_eq!(said, b"all");
    let mut chunk = [Bytes::new()];
    let end = timeout(SOON, stream.recv.read_chunks(&mut chunk)).await.expect("in time");
    assert!(end.expect("open").is_none(), "the client's end comes through");
}

#[tokio::test]
async fn a_silent_instance_is_raced_and_the_loser_is_cancelled() {
    let (near, mut one, mut two) = three();
    let ingress = ingress_to(&near, &[one.mesh.node_id(), two.mesh.node_id()]);
    let mut client = client(&ingress, HELLO).await;
    let (silent, said) = take(&mut one).await;
    assert_eq!(said, HELLO, "in the same flight");
    let (mut quick, said) = timeout(SOON, take(&mut two)).await.expect("raced");
    assert_eq!(said, HELLO, "a handshake may go out twice");
    say(&mut quick, b"server hello").await;
    let mut answer = [0; 12];
    timeout(SOON, client.read_exact(&mut answer)).await.expect("in time").expect("an answer");
    let stopped = timeout(SOON, silent.send.stopped()).await;
    assert!(stopped.is_ok(), "the loser is stopped");
    assert_eq!(ingress.totals.counts.get(SessionCount::Hedged), 1);
    // On a starved machine it has timed out before the other one answered.
    let failed = ingress.totals.origins.of(&Line::Direct(one.mesh.node_id())).failed();
    let cancelled = ingress.totals.counts.get(SessionCount::Cancelled);
    assert_eq!(failed + cancelled, 1, "counted once");
}

#[tokio::test]
async fn what_is_not_tls_reaches_one_instance_only() {
    let (near, mut one, mut two) = three();
    let ingress = ingress_to(&near, &[one.mesh.node_id(), two.mesh.node_id()]);
    let mut client = client(&ingress, b"POST / HTTP/1.1\r\n").await;
    let (mut late, said) = take(&mut one).await;
    assert!(said.is_empty(), "nothing before it is connected");
    let (mut quick, said) = timeout(SOON, take(&mut two)).await.expect("raced");
    assert!(said.is_empty());
    // Both report that they are connected, one after the other.
    say(&mut quick, b"").await;
    let mut said = Vec::new();
    read_more(&mut quick, &mut said).await;
    assert_eq!(said, b"POST / HTTP/1.1\r\n");
    let _ = late.send.write_chunk(vec![Answer::Connected.code()].into()).await;
    client.write_all(b"\r\n").await.expect("open");
    while said.len() < 19 {
        read_more(&mut quick, &mut said).await;
    }
    let mut chunk = [Bytes::new()];
    let more = timeout(SOON, late.recv.read_chunks(&mut chunk)).await.expect("it is ended");
    assert!(more.is_err(), "reset without a byte: {more:?}");
}

#[tokio::test]
async fn a_usable_route_is_hope_while_a_trial_is_under_way() {
    let (near, mut far) = pair();
    let node = far.mesh.node_id();
    let (ingress, routes) = ingress(&near, node);
    let hope = tokio::spawn(async move { ingress.hopeful().await });
    let _silent = far.incoming.streams.recv().await.expect("a trial");
    routes.send_replace(route(node, UP));
    timeout(SOON, hope).await.expect("at once").expect("no panic");
}

#[tokio::test]
async fn a_failed_trial_is_not_the_end_once_the_route_is_usable() {
    let (near, mut far) = pair();
    let node = far.mesh.node_id();
    let (ingress, routes) = ingress(&near, node);
    let mut end = tokio::spawn(async move { ingress.hopeless().await });
    let trial = far.incoming.streams.recv().await.expect("a trial");
    routes.send_replace(route(node, UP));
    drop(trial);
    assert!(
        timeout(Duration::from_millis(250), &mut end).await.is_err(),
        "given up in spite of a route"
    );
    routes.send_replace(route(node, PathView::Dead));
    drop(far.incoming.streams.recv().await.expect("another trial"));
    timeout(SOON, end).await.expect("nobody answers").expect("no panic");
}

/// Nodes that start together must not all send their first sessions to one origin.
#[tokio::test]
async fn the_first_draw_of_a_node_is_random() {
    let (near, far) = pair();
    let (ingress, _routes) = ingress(&near, far.mesh.node_id());
    let first = |first_ticket| {
        let context = Context { first_ticket, ..ingress.context.clone() };
        let (route, limits) = (ingress.route.clone(), ingress.limits.clone());
        let node = Ingress::new(context, service(), route, limits);
        node.ticket(&ingress.route.borrow(), || 0)
    };
    assert_eq!([first(1), first(7)], [1, 7]);
}

#[tokio::test]
async fn clients_that_close_early_say_nothing_about_the_origin() {
    let (near, mut far) = pair();
    let (ingress, routes) = ingress(&near, far.mesh.node_id());
    routes.send_replace(route(far.mesh.node_id(), UP));
    let (findings, mut found) = mpsc::channel(MAX_FINDINGS);
    let context = Context { findings, ..ingress.context.clone() };
    let Ingress { service, route, limits, .. } = ingress;
    let ingress = Arc::new(Ingress::new(context, service, route, limits));
    // A controller that lost its connection dials sixty times and closes nearly all of them.
    for _ in 0..60 {
        drop(client(&ingress, HELLO).await);
    }
    let abandoned = async {
        while ingress.totals.counts.get(SessionCount::Abandoned) < 60 {
            let _ = timeout(Duration::from_millis(10), far.incoming.streams.recv()).await;
        }
    };
    timeout(SOON, abandoned).await.expect("all are noticed");
    assert!(found.try_recv().is_err(), "they counted against it");
}

#[tokio::test]
async fn a_client_that_is_silent_for_long_has_its_instance_all_the_same() {
    let (near, mut far) = pair();
    let (mut ingress, routes) = ingress(&near, far.mesh.node_id());
    routes.send_replace(route(far.mesh.node_id(), UP));
    let connect_timeout = Duration::from_secs(2);
    let (limit, limits) = watch::channel(ingress.limits.borrow().clone());
    limit.send_modify(|limits| Arc::make_mut(limits).connect.connect_timeout = connect_timeout);
    ingress.limits = limits;
    let mut client = client(&Arc::new(ingress), b"").await;
    let (mut stream, _) = take(&mut far).await;
    say(&mut stream, b"").await;
    let early = timeout(connect_timeout * 5 / 4, client.read_u8()).await;
    assert!(early.is_err(), "it was told that nobody answers: {early:?}");
    stream.send.write_chunk(b"welcome"[..].into()).await.expect("open");
    let mut welcome = [0; 7];
    timeout(SOON, client.read_exact(&mut welcome)).await.expect("in time").expect("an answer");
    assert_eq!(&welcome, b"welcome");
}

#[tokio::test]
async fn what_is_out_stays_out_when_its_line_goes_down() {
    let (near, mut one, two) = three();
    let nodes = [one.mesh.node_id(), two.mesh.node_id()];
    let (ingress, routes) = ingress(&near, nodes[0]);
    routes.send_replace(route(nodes[0], UP));
    let (_client, accepted) = testing::tcp_pair().await;
    let mut search = Search::new(&ingress, || 0);
    search.take_bytes(Ok(Some(Bytes::from_static(b"POST")))).expect("kept");
    let start =
        search.connect.poll(clock::now(), &mut OtherSearches(&ingress)).expect("the only one");
    assert!(search.carry_out(start));
    let (mut stream, mut said) = take(&mut one).await;
    say(&mut stream, b"").await;
    read_more(&mut stream, &mut said).await;
    assert_eq!(said, b"POST");
    // The attempt was not checked since.
    routes.send_replace(route(nodes[1], UP));
    search.take_route();
    let found = timeout(SOON, search.run(&accepted)).await.expect("in time");
    let (upstream, _) = found.expect("the one that has the bytes");
    assert_eq!((upstream.sent, ingress.totals.counts.get(SessionCount::Retried)), (4, 0));
}

/// Its session would be reset at once, and its client would have tried twice.
#[tokio::test]
async fn an_answer_to_an_attempt_that_was_given_up_does_not_count() {
    let (near, mut one, mut two) = three();
    let nodes = [one.mesh.node_id(), two.mesh.node_id()];
    let (ingress, routes) = ingress(&near, nodes[0]);
    routes.send_replace(route(nodes[0], UP));
    let (_client, accepted) = testing::tcp_pair().await;
    let mut search = Search::new(&ingress, || 0);
    search.take_bytes(Ok(Some(Bytes::from_static(HELLO)))).expect("kept");
    let start =
        search.connect.poll(clock::now(), &mut OtherSearches(&ingress)).expect("the only one");
    assert!(search.carry_out(start));
    let (mut stream, _) = take(&mut one).await;
    say(&mut stream, b"hello").await;
    let answered = async {
        while !search.running[&0].attempt.is_finished() {
            tokio::task::yield_now().await;
        }
    };
    timeout(SOON, answered).await.expect("in time");
    // The search has not read the answer yet.
    routes.send_replace(route(nodes[1], UP));
    let other = async {
        let (mut stream, _) = take(&mut two).await;
        say(&mut stream, b"hello").await;
        std::future::pending::<()>().await;
    };
    let found = tokio::select! {
        found = timeout(SOON, search.run(&accepted)) => found.expect("in time"),
        () = other => unreachable!("it does not end"),
    };
    assert_eq!(found.expect("the other one").0.line(), Line::Direct(nodes[1]));
    assert_eq!(ingress.totals.counts.get(SessionCount::Cancelled), 1);
}

#[tokio::test]
async fn a_cut_holds_for_a_session_without_an_answer_while_its_line_is_down() {
    for lasts in [true, false] {
        let (near, mut far) = pair();
        let node = far.mesh.node_id();
        let (mut ingress, routes) = ingress(&near, node);
        let (limit, limits) = watch::channel(ingress.limits.borrow().clone());
        limit.send_modify(|limits| Arc::make_mut(limits).connect.hold = SOON);
        ingress.limits = limits;
        routes.send_replace(route(node, UP));
        let sessions = ingress.context.sessions.clone();
        let mut client = client(&Arc::new(ingress), b"").await;
        let (mut stream, mut said) = take(&mut far).await;
        let how = Cut::Within { window: Duration::ZERO, forgives: true };
        assert_eq!(sessions.cut(&service(), Line::Direct(node), how), 1);
        routes.send_replace(route(node, if lasts { PathView::Dead } else { UP }));
        say(&mut stream, b"").await;
        client.write_all(b"POST").await.expect("open");
        if lasts {
            let end = timeout(SOON, client.read_u8()).await.expect("it is not left to wait");
            assert_eq!(end.expect_err("a reset").kind(), std::io::ErrorKind::ConnectionReset);
            continue;
        }
        while said.len() < 4 {
            read_more(&mut stream, &mut said).await;
        }
        stream.send.write_chunk(b"done"[..].into()).await.expect("open");
        let mut answer = [0; 4];
        timeout(SOON, client.read_exact(&mut answer)).await.expect("in time").expect("an answer");
        assert_eq!(&answer, b"done");
    }
}

#[tokio::test]
async fn a_failed_trial_of_an_address_outside_counts_against_it() {
    let (near, _far) = pair();
    let (mut ingress, routes) = ingress(&near, near.mesh.node_id());
    let (findings, mut found) = mpsc::channel(MAX_FINDINGS);
    ingress.context.findings = findings;
    // A port that was free a moment ago.
    let closed = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let address = closed.local_addr().expect("bound");
    drop(closed);
    let outside = OriginView { suspect: true, ..OriginView::outside(address) };
    let memory = Preference::default();
    let (route, _) = choose(vec![outside], &Policy::Spread, &memory, clock::now());
    assert!(!route.is_usable());
    routes.send_replace(Arc::new(route));
    let hope = tokio::spawn(async move { ingress.hopeful().await });
    let finding = timeout(TRIAL_INTERVAL * 10, found.recv()).await.expect("in time");
    let Some(Finding::Verdicts(_, verdicts)) = finding else { panic!("{finding:?}") };
    let [shown] = verdicts[..] else { panic!("{verdicts:?}") };
    assert_eq!((shown.line, shown.verdict), (Line::Outside(address), Verdict::Silent));
    hope.abort();
}

/// The first stream that arrives at any shard of `node`, served there as an echo.
fn echo_once(node: Node) {
    let Incoming { streams, others, .. } = node.incoming;
    let answer = |mut streams: mpsc::Receiver<(NodeId, Stream)>| async move {
        let Some((_, mut stream)) = streams.recv().await else { return };
        let mut bytes = Vec::new();
        let used = loop {
            if let Some((_, used)) = Header::decode(&bytes).expect("a header") {
                break used;
            }
            read_more(&mut stream, &mut bytes).await;
        };
        // Only then may the client's bytes arrive: a request without TLS must not be sent twice.
        say(&mut stream, b"").await;
        while bytes.len() < used + 5 {
            read_more(&mut stream, &mut bytes).await;
        }
        stream.send.write_chunk(bytes.split_off(used).into()).await.expect("open");
        stream.send.finish().expect("open");
        let _ = stream.send.stopped().await;
    };
    for other in others {
        other.runtime.spawn(answer(other.streams));
    }
    tokio::spawn(answer(streams));
}

#[tokio::test]
async fn a_session_is_carried_on_the_thread_of_its_peer() {
    let here = Handle::current().id();
    let (mut at_home, mut elsewhere) = (0, 0);
    for number in 2..=7 {
        let (near, far) = testing::sharded_pair([1, number]);
        let (origin, mesh) = (far.mesh.node_id(), far.mesh.clone());
        echo_once(far);
        let ingress = ingress_to(&near, &[origin]);
        let shard = ingress.better_shard();
        assert!(shard.as_ref().is_none_or(|shard| shard.id() != here));
        *(if shard.is_some() { &mut elsewhere } else { &mut at_home }) += 1;
        // Begun here: the search finds out where the session belongs, and it moves there.
        let mut client = client(&ingress, b"hello").await;
        let mut answer = Vec::new();
        client.shutdown().await.expect("open");
        timeout(SOON, client.read_to_end(&mut answer)).await.expect("soon").expect("whole");
        assert_eq!(answer, b"hello");
        drop(mesh);
    }
    assert!(at_home > 0 && elsewhere > 0, "{at_home} and {elsewhere}");
}

/// A credential that node 3 made with this invite.
fn joined(invite: &DelegationKey) -> Credential {
    let authority = AuthorityKey::from_bytes([9; 32]);
    let grant = Grant {
        roles: "node".parse().expect("roles"),
        site: None,
        name: None,
        not_before: UnixSeconds(0),
        join_until: UnixSeconds(u64::from(u32::MAX)),
        credential_ttl_s: u64::from(u32::MAX),
    };
    let delegation = Delegation::issue(&authority, invite.public(), grant).expect("an invite");
    let key = NodeKey::from_bytes([3; 32]);
    let subject = Subject {
        node: key.public(),
        record_key: RecordKey::from_bytes([7; 32]).public(),
        name: "node-3".parse().expect("a name"),
        site: "fra".parse().expect("a site"),
        roles: "node".parse().expect("roles"),
        succession: None,
    };
    let (from, until) = (UnixSeconds(1), UnixSeconds(u64::from(u32::MAX)));
    let made = Credential::issue_by_delegation(&delegation, invite, subject, from, until);
    made.and_then(|issued| issued.countersign(&key)).expect("a credential")
}

/// Revocations by the authority.
fn revocations(all: &[Revoked]) -> Revocations {
    let authority = AuthorityKey::from_bytes([9; 32]);
    let mut revocations = Revocations::default();
    for revoked in all {
        revocations.add(Revocation::issue(&authority, *revoked, UnixSeconds(1)));
    }
    revocations
}

/// Only this node knows of it: the relay continues, whether the session is open or still being
/// opened.
#[tokio::test]
async fn a_carried_session_ends_when_its_origin_is_revoked_here() {
    let invite = DelegationKey::from_bytes([50; 32]);
    let credential = joined(&invite);
    let origin = credential.node;
    let (by_node, by_invite) = (Revoked::Node(origin), Revoked::Invite(invite.public()));
    let other = Revoked::Node(NodeId::from_bytes([77; 32]));
    // Everything from one datagram is in place with the first event.
    let (alone, together) = ([by_node].to_vec(), [other, by_invite].to_vec());
    let cases = [(alone.clone(), true), (alone, false), (together, true)];
    for (revoked, is_open) in cases {
        let (near, mut relay) = pair();
        near.mesh.set_peer(origin, &[], Some(&Arc::new(credential.clone())));
        let line = Line::Relayed { origin, relay: relay.mesh.node_id() };
        let (ingress, routes) = ingress(&near, origin);
        let origin = OriginView { line, path: UP, ..testing::candidate(origin).origin };
        let memory = Preference::default();
        let route = choose(vec![origin], &Policy::Spread, &memory, clock::now()).0;
        routes.send_replace(Arc::new(route));
        let ingress = Arc::new(ingress);
        let mut client = client(&ingress, HELLO).await;
        let (mut stream, _) = take(&mut relay).await;
        let mut answer = [0; 12];
        if is_open {
            say(&mut stream, b"server hello").await;
            timeout(SOON, client.read_exact(&mut answer)).await.expect("in time").expect("open");
        }
        let sessions = &ingress.context.sessions;
        let end = |all: &[Revoked]| close_revoked_sessions(&revocations(all), &near.mesh, sessions);
        assert_eq!(end(&[other]), 0, "nobody of these");
        assert_eq!(end(&revoked), 1, "{revoked:?}");
        assert!(near.mesh.known_credential(&credential.node).is_none(), "the mesh knows it");
        if !is_open {
            say(&mut stream, b"server hello").await;
        }
        // Bytes sent before it may still arrive.
        let end = timeout(SOON, client.read_to_end(&mut Vec::new())).await.expect("in time");
        assert!(end.is_err(), "reset and not ended: {end:?}");
        assert_eq!(ingress.totals.counts.get(SessionCount::Cut), 1, "{revoked:?}, open: {is_open}");
    }
}
