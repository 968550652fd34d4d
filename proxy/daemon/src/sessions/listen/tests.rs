use std::io::ErrorKind;
use std::net::TcpListener as Plain;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;

use super::*;
use crate::sessions::client::ClientId;
use crate::sessions::ingress::Context;
use crate::sessions::pacing::LASTS;
use crate::sessions::quota::Slot;
use crate::sessions::registry::Sessions;
use crate::sessions::totals::{OverShare, SessionCount};
use crate::tcp::memory;
use crate::testing::{self, ingress, route, until};
use meshport_core::ledger::Crowded;
use meshport_core::pace::MAX_HOLDERS;
use meshport_core::route::PathView;
use std::sync::atomic::Ordering;

const SOON: Duration = Duration::from_secs(20);
/// How long a client waits for an answer before it resets.
const SHORT: Duration = Duration::from_millis(5);
const LOCAL: &str = "127.0.0.1:0";

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

fn bind(addresses: &[SocketAddr]) -> Result<Vec<Claim>, Error> {
    bind_all(&Host::Kernel, addresses, IfTaken::Fail)
}

#[tokio::test]
async fn an_ipv6_address_this_machine_lacks_is_left_out_beside_an_ipv4_one() {
    // The documentation prefix (RFC 3849) belongs to no machine.
    let missing = address("[2001:db8::1]:0");
    let bound = bind(&[address("127.0.0.1:0"), missing]).expect("one is left");
    assert_eq!(bound.len(), 1);
    let error = bind(&[missing]).expect_err("none is left").to_string();
    assert!(error.contains("2001:db8::1"), "{error}");
}

#[tokio::test]
async fn a_taken_address_is_named() {
    let first = bind(&[address("127.0.0.1:0")]).expect("free");
    let taken = first[0].address().expect("bound");
    let error = bind(&[taken]).expect_err("taken").to_string();
    assert!(error.contains(&taken.to_string()), "{error}");
}

#[tokio::test]
async fn an_address_that_is_taken_at_a_start_is_served_once_it_is_free() {
    let (near, _far) = testing::pair();
    let (own, _count) = instance();
    let (ingress, _routes) = ingress(&near, Host::Kernel, &own);
    let thief = Plain::bind(LOCAL).expect("free");
    let local = thief.local_addr().expect("bound");
    let claims = bind_all(&Host::Kernel, &[local], IfTaken::Wait).expect("it may wait");
    let [claim] = <[Claim; 1]>::try_from(claims).expect("one address");
    assert!(matches!(claim, Claim::Taken(address) if address == local), "{claim:?}");
    tokio::spawn(serve(claim, ingress.clone()));
    until("it is lost", async || ingress.totals.addresses.lost() == [(local, Loss::InUse)].into())
        .await;
    drop(thief);
    until("it is served", async || ingress.totals.addresses.lost().is_empty()).await;
    let mut client = TcpStream::connect(local).await.expect("it is open");
    client.write_all(b"x").await.expect("it is there");
    let answer = timeout(SOON, client.read_u8()).await.expect("in time").expect("an answer");
    assert_eq!(answer, b'x');
}

#[tokio::test]
async fn an_address_that_this_machine_does_not_have_yet_is_waited_for_at_a_start_only() {
    let (near, _far) = testing::pair();
    let (own, _count) = instance();
    let (ingress, _routes) = ingress(&near, Host::Kernel, &own);
    // The documentation prefix (RFC 5737) belongs to no machine.
    let missing = address("192.0.2.1:7445");
    let error = bind(&[missing]).expect_err("it is not here");
    assert!(error.to_string().contains("192.0.2.1"), "{error}");
    let both = [address(LOCAL), missing];
    let claims = bind_all(&Host::Kernel, &both, IfTaken::Wait).expect("it may wait");
    let [here, late] = <[Claim; 2]>::try_from(claims).expect("two addresses");
    assert!(matches!(here, Claim::Bound(_)), "{here:?}");
    assert_eq!(late.address(), Some(missing));
    tokio::spawn(serve(late, ingress.clone()));
    until("it is lost", async || {
        ingress.totals.addresses.lost() == [(missing, Loss::Absent)].into()
    })
    .await;
}

#[tokio::test]
async fn an_address_that_refuses_clients_cannot_be_taken() {
    let (near, _far) = testing::pair();
    let nobody = Plain::bind(LOCAL).expect("free").local_addr().expect("bound");
    let (ingress, routes) = ingress(&near, Host::Kernel, &nobody.to_string());
    let listener = Host::Kernel.listen(address(LOCAL)).expect("free");
    let local = listener.local_addr().expect("bound");
    tokio::spawn(serve(Claim::Bound(listener), ingress));
    TcpStream::connect(local).await.expect("open at first");
    routes.send_replace(route(near.mesh.node_id(), PathView::Dead));
    let refused = async || {
        let error = TcpStream::connect(local).await.err();
        error.is_some_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    };
    until("clients are refused", refused).await;
    // With SO_REUSEADDR, as any program of any user may.
    let error = Plain::bind(local).expect_err("it is still ours");
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
    routes.send_replace(route(near.mesh.node_id(), PathView::Own));
    until("clients are accepted", async || TcpStream::connect(local).await.is_ok()).await;
}

#[tokio::test]
async fn an_address_that_another_process_has_is_said_to_be_lost() {
    let (near, _far) = testing::pair();
    let machine = memory::Host::default();
    let host = Host::Memory(machine.clone());
    let (ingress, routes) = ingress(&near, host.clone(), "127.0.0.1:1");
    let local = address("127.0.0.1:7445");
    let bound = Claim::Bound(host.listen(local).expect("free"));
    tokio::spawn(serve(bound, ingress.clone()));
    routes.send_replace(route(near.mesh.node_id(), PathView::Dead));
    until("it is closed", async || host.connect("127.0.0.1:7445").await.is_err()).await;
    let thief = host.listen(local).expect("in memory everybody may");
    routes.send_replace(route(near.mesh.node_id(), PathView::Own));
    let lost = || ingress.totals.addresses.lost() == [(local, Loss::InUse)].into();
    until("it is lost", async || lost()).await;
    drop(thief);
    until("it is back", async || !lost()).await;
}

/// How many connections an instance has accepted.
fn instance() -> (String, watch::Receiver<u32>) {
    let listener = Plain::bind(LOCAL).expect("free");
    let own = listener.local_addr().expect("bound").to_string();
    listener.set_nonblocking(true).expect("a socket");
    let (counter, count) = watch::channel(0);
    tokio::spawn(async move {
        let listener = TcpListener::from_std(listener).expect("a runtime");
        while let Ok((mut stream, _)) = listener.accept().await {
            counter.send_modify(|count| *count += 1);
            tokio::spawn(async move {
                let mut word = [0; 1];
                while stream.read_exact(&mut word).await.is_ok() {
                    let _ = stream.write_all(&word).await;
                }
            });
        }
    });
    (own, count)
}

/// Dials, lets the daemon dial on, and resets. The daemon may be first: it resets clients that are
/// beyond its queue, some of them before this end knows that it is connected.
async fn open_and_reset(local: SocketAddr) {
    let Ok(client) = TcpStream::connect(local).await else { return };
    let _told = timeout(SHORT, client.readable()).await;
    socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).expect("a socket");
}

#[tokio::test]
async fn a_client_that_resets_all_it_opens_reaches_the_instance_with_few() {
    /// When this test was written, all of them reached it without the limit.
    const FLOOD: u32 = 4000;
    /// The initial amount, with that of a minute, which is longer than this takes.
    const MOST: u32 = 128 + 512;

    let (near, _far) = testing::pair();
    let (own, count) = instance();
    let (ingress, _routes) = ingress(&near, Host::Kernel, &own);
    let listener = Host::Kernel.listen(address(LOCAL)).expect("free");
    let local = listener.local_addr().expect("bound");
    tokio::spawn(serve(Claim::Bound(listener), ingress.clone()));
    let begun = clock::now();
    let mut lasted = 0;
    for _ in 0..FLOOD / 100 {
        let batch = clock::now();
        let all: JoinSet<()> = (0..100).map(|_| open_and_reset(local)).collect();
        all.join_all().await;
        // On a busy machine sessions may last for so long that they count as useful.
        lasted += if batch.elapsed() >= LASTS { 100 } else { 0 };
    }
    let seconds = u32::try_from(begun.elapsed().as_millis() / 1000).expect("short");
    let given = seconds * 150 + 150 + lasted;
    let reached = *count.borrow();
    assert!(reached <= MOST + given, "{reached} of {FLOOD} reached it in {:?}", begun.elapsed());
    assert!(reached >= MOST / 2, "only {reached} were served");
    let totals = &ingress.totals;
    assert!(totals.counts.get(SessionCount::Paced) > 0);
    let who = totals.addresses.paced(clock::now()).expect("it is known");
    assert!(matches!(who, ClientId::User(_) | ClientId::Unknown), "{who}");

    // Also those that left while they waited.
    let counted = || {
        let all = [SessionCount::Connected, SessionCount::Failed, SessionCount::Abandoned];
        let all = all.into_iter().chain([SessionCount::OverPace, SessionCount::OverLimit]);
        all.map(|count| totals.counts.get(count)).sum::<u64>()
    };
    let is_counted = async || counted() == totals.counts.get(SessionCount::Accepted);
    until("each is counted once", is_counted).await;

    // A client that uses its connections is soon served, although it belongs to the same user.
    let mut client = TcpStream::connect(local).await.expect("it is open");
    client.write_all(b"x").await.expect("it is there");
    let answer = timeout(SOON, client.read_u8()).await.expect("in time").expect("an answer");
    assert_eq!(answer, b'x');
}

/// Its first bytes can still be read, but the kernel no longer says who it was.
#[tokio::test]
async fn a_client_that_was_reset_before_it_was_accepted_reaches_no_instance() {
    const FLOOD: u64 = 300;
    let (near, _far) = testing::pair();
    let (own, count) = instance();
    let (ingress, _routes) = ingress(&near, Host::Kernel, &own);
    let listener = Host::Kernel.listen(address(LOCAL)).expect("free");
    let local = listener.local_addr().expect("bound");
    for _ in 0..FLOOD {
        let mut client = std::net::TcpStream::connect(local).expect("it is open");
        io::Write::write_all(&mut client, &[22, 3, 1, 2, 0, 1]).expect("it is open");
        socket2::SockRef::from(&client).set_linger(Some(Duration::ZERO)).expect("a socket");
    }
    tokio::spawn(serve(Claim::Bound(listener), ingress.clone()));
    let counted = |count| ingress.totals.counts.get(count);
    until("all were accepted", async || counted(SessionCount::Accepted) == FLOOD).await;
    until("all are over", async || counted(SessionCount::Abandoned) == FLOOD).await;
    assert_eq!(*count.borrow(), 0);
}

#[tokio::test]
async fn a_user_with_its_full_share_is_refused_and_others_are_served() {
    const ALL: u64 = 160;

    let (near, _far) = testing::pair();
    let (ingress, _routes) = ingress(&near, Host::Memory(memory::Host::default()), "127.0.0.1:1");
    let user = |uid| ingress.slot_for(Some(ClientId::User(uid)), ALL);
    let mut held: Vec<Slot> = (0..ALL).map_while(|_| user(1001).ok()).collect();
    let got = held.len() as u64;
    assert!((ALL / 2..ALL).contains(&got), "{got}");
    assert_eq!(user(1001).err(), Some(OverQuota::Share(ClientId::User(1001), got)));
    let totals = &ingress.totals;
    assert_eq!(totals.counts.get(SessionCount::OverShare), 2);
    assert_eq!(totals.open.load(Ordering::Relaxed), got);
    let refused = totals.addresses.over_share(clock::now()).expect("a line is due");
    assert_eq!(refused, OverShare { who: ClientId::User(1001), held: got });
    held.push(user(1002).expect("another user is served"));
    while let Ok(slot) = user(0) {
        held.push(slot);
    }
    assert_eq!(held.len() as u64, ALL, "root may have all that is left");
    held.clear();
    assert_eq!(totals.open.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_client_without_a_place_is_logged_with_a_limit_that_is_low() {
    let (near, _far) = testing::pair();
    let (mut ingress, _routes) =
        ingress(&near, Host::Memory(memory::Host::default()), "127.0.0.1:1");
    Arc::get_mut(&mut ingress).expect("the only one").context.sessions = Sessions::within(7);
    for why in [OverQuota::Full, OverQuota::Share(ClientId::User(1001), 3)] {
        let logged = testing::logged(|| say_no_place(&ingress, why, &mut LastLogged::default()));
        let is_said = logged.contains("few_descriptors=true") && logged.contains("LimitNOFILE");
        assert!(is_said, "{logged}");
    }
}

#[tokio::test]
async fn clients_with_a_slot_those_that_wait_and_served_sessions_share_the_descriptors() {
    /// What one client may open at once.
    const OWN: usize = 512;

    let (near, far) = testing::pair();
    let memory = || Host::Memory(memory::Host::default());
    let (ample, routes) = ingress(&near, memory(), "127.0.0.1:1");
    let sessions = Sessions::within(7);
    let context = Context { sessions: sessions.clone(), ..ample.context.clone() };
    let (service, limits) = (testing::service(), ample.limits.clone());
    let ingress = Arc::new(Ingress::new(context, service.clone(), routes.subscribe(), limits));
    let (peer, root) = (far.mesh.node_id(), ClientId::User(0));
    let serve = || sessions.serve(&service, peer, peer);
    let _served = [(); 2].map(|()| serve().expect("there is room"));
    let slots = [(); 2].map(|()| ingress.slot_of(root).expect("there is room"));
    assert_eq!(ingress.slot_of(root).err(), Some(OverQuota::Full), "one descriptor is left");
    let arrive = || {
        let (client, end) = memory::pair();
        (ingress.pacing.admit_of(root, Tcp::Memory(client), clock::now()), end)
    };
    let first: Vec<_> = (0..OWN).map(|_| arrive().0).collect();
    assert!(first.iter().all(|it| matches!(it, Admission::Serve(..))));
    assert!(matches!(arrive().0, Admission::Waits(_)), "it takes the last one");
    assert!(matches!(arrive().0, Admission::TurnedAway(..)));
    assert_eq!(serve().err(), Some(Crowded::Full));
    drop((ingress.pacing.take_waiting(), slots));
    assert!(sessions.hold(5).is_some() && sessions.hold(6).is_none());
}

#[tokio::test]
async fn a_herd_that_uses_what_it_opens_never_waits() {
    const HERD: u32 = 1500;

    let (near, _far) = testing::pair();
    let (own, _count) = instance();
    let (ingress, _routes) = ingress(&near, Host::Kernel, &own);
    let listener = Host::Kernel.listen(address(LOCAL)).expect("free");
    let local = listener.local_addr().expect("bound");
    tokio::spawn(serve(Claim::Bound(listener), ingress.clone()));
    let one = |_| async move {
        let mut client = TcpStream::connect(local).await.expect("it is open");
        client.write_all(b"x").await.expect("it is there");
        client.read_u8().await.expect("an answer");
    };
    for _ in 0..HERD / 300 {
        let all: JoinSet<()> = (0..300).map(one).collect();
        all.join_all().await;
    }
    assert_eq!(ingress.totals.counts.get(SessionCount::Paced), 0);
    assert_eq!(ingress.totals.counts.get(SessionCount::OverPace), 0);
}

#[tokio::test]
async fn clients_that_may_not_wait_any_longer_are_reset_and_counted() {
    /// What one client may open at once, and what waits.
    const OWN: u32 = 512;
    const WAITING: u64 = 3;

    let (near, _far) = testing::pair();
    let (ingress, _routes) = ingress(&near, Host::Memory(memory::Host::default()), "127.0.0.1:1");
    let (mut sessions, mut logged) = (JoinSet::new(), LastLogged::default());
    let now = clock::now();
    let mut arrive = |host: u32, now: Instant| {
        let (client, end) = memory::pair();
        let who = ClientId::Address(std::net::Ipv4Addr::from_bits(host).into());
        let admission = ingress.pacing.admit_of(who, Tcp::Memory(client), now);
        meet(admission, &ingress, &mut sessions, &mut logged);
        Tcp::Memory(end)
    };
    let waiting: Vec<Tcp> = (0..u64::from(OWN) + WAITING).map(|_| arrive(0, now)).collect();
    assert_eq!(ingress.totals.counts.get(SessionCount::Paced), WAITING);
    let later = now + Duration::from_nanos(1);
    let _others: Vec<Tcp> = (1..=MAX_HOLDERS as u32).map(|host| arrive(host, later)).collect();
    let refused = || ingress.totals.counts.get(SessionCount::OverPace);
    assert_eq!(refused(), WAITING, "another client has their account");
    let is_reset = |it: &&Tcp| it.is_gone();
    assert_eq!(waiting.iter().rev().take_while(is_reset).count() as u64, WAITING);
}
