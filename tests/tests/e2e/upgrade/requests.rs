//! Requests to a daemon that is being upgraded.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Output;
use std::thread;
use std::time::Duration;

use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};

use super::{SETTLE, succeeded, upgrade};

/// How long a connection without a request is used: less than the 5 s that the daemon allows.
const RENEW: Duration = Duration::from_secs(1);
/// How long the admin server may take to end: less than the 1 s that it has in a stop.
const ENDS: Duration = Duration::from_millis(800);
const DRAIN: &str = r#"{"service":"kube-apiserver","draining":true}"#;

fn connect(node: &str, world: &World) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(world.at(node).socket())?;
    stream.set_read_timeout(Some(RENEW))?;
    Ok(stream)
}

/// Waits until the admin server of this node begins to end, which closes the connection of a client
/// that has an answer. Returns another connection, on which nothing was sent.
fn open_at_the_end(node: &str, world: &World) -> UnixStream {
    loop {
        let unused = connect(node, world).expect("the daemon serves");
        let mut used = connect(node, world).expect("the daemon serves");
        used.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it is open");
        let mut answer = [0; 1024];
        let length = used.read(&mut answer).expect("an answer");
        assert!(answer[..length].starts_with(b"HTTP/1.1 200"), "{answer:?}");
        if used.read(&mut answer).is_ok_and(|length| length == 0) {
            return unused;
        }
    }
}

/// Upgrades a node, and does something once its admin server begins to end.
fn upgrade_and<T>(node: &str, world: &World, act: impl FnOnce(UnixStream) -> T) -> (Output, T) {
    thread::scope(|scope| {
        let upgraded = scope.spawn(|| upgrade(world, node));
        let acted = act(open_at_the_end(node, world));
        (upgraded.join().expect("no panic"), acted)
    })
}

#[test]
fn a_drain_that_is_acknowledged_in_an_upgrade_stays() {
    let mut world = World::new();
    let origin = world.apiserver("cp");
    world.node(&NodePlan::new("cp", "b").origin(origin));
    let offers = || Some(world.at("cp").status()?["services"][0]["offering"]["state"].clone());
    let is = |state: &str| {
        wait::until(&format!("it is {state}"), SETTLE, || (offers()? == state).then_some(()));
    };
    is("ready");
    let (output, answer) = upgrade_and("cp", &world, |mut stream| {
        let length = DRAIN.len();
        let head = format!("POST /drain HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}");
        write!(stream, "{head}\r\nConnection: close\r\n\r\n{DRAIN}").expect("it is open");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map(|_| answer).expect("an answer")
    });
    let _successor = succeeded(&output);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    is("draining");
}

/// Otherwise any user of this machine could delay new clients with requests at the loopback port,
/// which ends with the socket.
#[test]
fn a_request_that_is_half_sent_delays_no_upgrade() {
    let mut world = World::new();
    world.node(&NodePlan::new("worker", "a"));
    let (output, took) = upgrade_and("worker", &world, |mut stream| {
        let begun = wait::now();
        stream.write_all(b"GET /livez HTTP/1.1\r\n").expect("it is open");
        stream.set_read_timeout(Some(SETTLE)).expect("a limit");
        // It is closed or reset.
        let _ = stream.read(&mut [0]);
        wait::now().saturating_duration_since(begun)
    });
    let _successor = succeeded(&output);
    assert!(took < ENDS, "it was open for {took:?}");
}
