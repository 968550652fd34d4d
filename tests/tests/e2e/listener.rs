//! Clients of a node that hold its local address: they say nothing, or a byte now and then. Others
//! are refused at once, other services do not notice, and nothing remains when they leave.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use meshport_tests::echo::{self, SERVICE, answers, session};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};

const SETTLE: Duration = Duration::from_secs(40);
/// Places for clients of the apiserver service.
const PLACES: usize = 10;
/// How soon a client without a slot must notice.
const AT_ONCE: Duration = Duration::from_secs(1);
/// How long the slots are held: longer than `connect-timeout`, in which a client must get an
/// answer.
const HELD: Duration = Duration::from_secs(15);
/// The first bytes of a TLS client: the start of a handshake record of 512 bytes.
const HELLO: [u8; 9] = [22, 3, 1, 2, 0, 1, 0, 1, 252];

/// Two origins, the nearer of which also offers an echo, and a node with few places.
fn world() -> World {
    let mut world = World::new();
    world.distance("a", "b", Duration::from_millis(2));
    world.distance("a", "c", Duration::from_millis(40));
    world.distance("b", "c", Duration::from_millis(40));
    let (address, (echo, _)) = (world.apiserver("cp-b"), echo::serve());
    let near = NodePlan::new("cp-b", "b").origin(address).role(&format!("origin:{SERVICE}"));
    world.node(&near.settings(&echo::offer(echo)));
    let address = world.apiserver("cp-c");
    world.node(&NodePlan::new("cp-c", "c").origin(address));
    let places = format!("max-sessions = {PLACES}\n{}", echo::usage());
    world.node(&NodePlan::new("worker", "a").settings(&places));
    world.meet();
    world.chooses("worker", "cp-b", SETTLE);
    world
}

fn accepted(world: &World) -> f64 {
    let labels = "service=\"kube-apiserver\"";
    world.at("worker").metrics().sum("meshport_sessions_accepted_total", labels)
}

fn over_limit(world: &World) -> f64 {
    let labels = "service=\"kube-apiserver\",outcome=\"over-limit\"";
    world.at("worker").metrics().sum("meshport_sessions_total", labels)
}

/// The warnings in the node's status.
fn warnings(world: &World) -> String {
    let status = world.at("worker").status().expect("it answers");
    status["warnings"].to_string()
}

/// How soon a client without a slot is refused, and how.
#[track_caller]
fn is_turned_away(local: SocketAddr) {
    let begun = wait::now();
    let mut client = TcpStream::connect(local).expect("the address stays open");
    client.set_read_timeout(Some(SETTLE)).expect("a socket");
    // A reset, so that it is no answer that ended well.
    let told = client.read(&mut [0]).expect_err("there is no place").kind();
    assert_eq!(told, ErrorKind::ConnectionReset);
    assert!(begun.elapsed() < AT_ONCE, "it was told after {:?}", begun.elapsed());
}

#[test]
fn clients_that_send_nothing_or_drip_hold_their_slots_and_no_more() {
    let mut world = world();
    let local = world.at("worker").local;
    let mut other = session(&world, "worker");
    let before = world.node_mut("worker").process().output().len();
    let first = accepted(&world);
    let connect = |_| TcpStream::connect(local).expect("the address is open");
    let mut holders: Vec<TcpStream> = (0..PLACES).map(connect).collect();
    wait::until("they are taken", SETTLE, || {
        (accepted(&world) >= first + PLACES as f64).then_some(())
    });
    assert_eq!(over_limit(&world), 0.0);
    for turned_away in 1..=3 {
        is_turned_away(local);
        assert_eq!(over_limit(&world), f64::from(turned_away));
    }

    let full = format!("kube-apiserver: the limit of {PLACES} client sessions is reached");
    assert!(warnings(&world).contains(&full), "{}", warnings(&world));
    let said = world.node_mut("worker").process().output()[before..].to_owned();
    let reached = |line: &&str| line.contains("client sessions is reached");
    let said: Vec<&str> = said.lines().filter(reached).collect();
    assert!(matches!(said[..], [line] if line.contains("WARN")), "once, and not thrice: {said:?}");

    // Half of them drip, and begin again when they are cut.
    let (mut said, mut cut) = ([0; PLACES], 0);
    wait::throughout("others do not notice", HELD, || {
        for (holder, said) in holders.iter_mut().zip(&mut said).skip(PLACES / 2) {
            let drip = HELLO.get(*said).copied().unwrap_or_default();
            *said += 1;
            if holder.write_all(&[drip]).is_err() {
                (*holder, *said) = (connect(0), 0);
                cut += 1;
            }
        }
        answers(&mut other) && world.at("worker").chosen().as_deref() == Some("cp-b")
    });
    println!("dripping clients were cut {cut} times in {HELD:?}");
    drop(holders);
    let back = wait::now();
    wait::until("clients are served again", SETTLE, || {
        world.curl().get(local, "/version").ok().filter(|answer| answer.status == 200)
    });
    println!("served again {:?} after they went", back.elapsed());
    wait::until("no place is held", SETTLE, || {
        let page = world.at("worker").metrics();
        let labels = "service=\"kube-apiserver\",side=\"client\"";
        (page.sum("meshport_sessions_open", labels) == 0.0).then_some(())
    });
    assert!(!warnings(&world).contains("client sessions is reached"), "{}", warnings(&world));
    let log = world.node_mut("worker").process().output()[before..].to_owned();
    assert!(!log.contains("to=cp-c"), "the route changed: {log}");
}
