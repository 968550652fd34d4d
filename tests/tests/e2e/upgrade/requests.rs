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
/// A starved machine may miss the moment, which shows nothing.
const ATTEMPTS: u32 = 5;
const DRAIN: &str = r#"{"service":"kube-apiserver","draining":true}"#;

fn connect(node: &str, world: &World) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(world.at(node).socket())?;
    stream.set_read_timeout(Some(RENEW))?;
    Ok(stream)
}

/// Waits until the admin server of this node begins to end, which closes the connection of a client
/// that has an answer. Returns another connection, on which nothing was sent; none if the moment
/// was missed, as on a starved machine.
fn open_at_the_end(
    node: &str,
    world: &World,
    is_over: impl Fn() -> bool,
) -> io::Result<Option<UnixStream>> {
    while !is_over() {
        let unused = connect(node, world)?;
        let mut used = connect(node, world)?;
        used.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
        let mut answer = [0; 1024];
        if used.read(&mut answer)? > 0 && used.read(&mut answer).is_ok_and(|length| length == 0) {
            return Ok(Some(unused));
        }
    }
    Ok(None)
}

/// Upgrades a node, and does something once its admin server begins to end.
fn upgrade_and<T>(
    node: &str,
    world: &World,
    act: impl FnOnce(UnixStream) -> T,
) -> (Output, Option<T>) {
    thread::scope(|scope| {
        let upgraded = scope.spawn(|| upgrade(world, node));
        let opened = open_at_the_end(node, world, || upgraded.is_finished());
        let acted = opened.unwrap_or_default().map(act);
        (upgraded.join().expect("no panic"), acted)
    })
}

/// Posts a drain and reads the answer, which may not come.
fn drain(mut stream: UnixStream) -> io::Result<String> {
    let length = DRAIN.len();
    let head = format!("POST /drain HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}");
    write!(stream, "{head}\r\nConnection: close\r\n\r\n{DRAIN}")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map(|_| answer)
}

#[test]
fn a_drain_that_is_acknowledged_in_an_upgrade_stays() {
    for _ in 0..ATTEMPTS {
        let mut world = World::new();
        let origin = world.apiserver("cp");
        world.node(&NodePlan::new("cp", "b").origin(origin));
        let offers = || Some(world.at("cp").status()?["services"][0]["offering"]["state"].clone());
        let is = |state: &str| {
            wait::until(&format!("it is {state}"), SETTLE, || (offers()? == state).then_some(()));
        };
        is("ready");
        let (output, answer) = upgrade_and("cp", &world, drain);
        let _successor = succeeded(&output);
        match answer {
            Some(Ok(answer)) if answer.starts_with("HTTP/1.1 200") => return is("draining"),
            other => println!("not acknowledged: {other:?}"),
        }
    }
    panic!("each drain came too late to be acknowledged");
}

/// Otherwise any user of this machine could delay new clients with requests at the loopback port,
/// which ends with the socket.
#[test]
fn a_request_that_is_half_sent_delays_no_upgrade() {
    let mut shortest = Duration::MAX;
    for _ in 0..ATTEMPTS {
        let mut world = World::new();
        world.node(&NodePlan::new("worker", "a"));
        let (output, took) = upgrade_and("worker", &world, |mut stream| {
            let begun = wait::now();
            let _ = stream.write_all(b"GET /livez HTTP/1.1\r\n");
            let _ = stream.set_read_timeout(Some(SETTLE));
            // It is closed or reset.
            let _ = stream.read(&mut [0]);
            wait::now().saturating_duration_since(begun)
        });
        let _successor = succeeded(&output);
        shortest = shortest.min(took.unwrap_or(Duration::MAX));
        if shortest < ENDS {
            return;
        }
    }
    panic!("it was open for {shortest:?} at least");
}
