//! Settings of the way back that change in a running daemon.

use std::io::Read;
use std::path::Path;

use meshport_tests::wait;
use meshport_tests::world::World;

use super::kubelet::{connect, of, whoami};
use super::{SETTLE, refused, world};

/// Adds lines to a node's last table, and waits until its daemon says that `key` has changed.
fn add(world: &mut World, node: &str, lines: &str, key: &str) {
    world.reconfigure(node, |text| format!("{text}{lines}"));
    wait::until("the setting has changed", SETTLE, || {
        let log = world.node_mut(node).process().output();
        let is_told = |line: &str| line.contains("setting changed") && line.contains(key);
        log.lines().any(is_told).then_some(())
    });
}

#[track_caller]
fn is_refused(socket: &Path, target: &str, status: &str, said: &str) {
    let answer = connect(socket, target).expect_err(target);
    assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    assert!(answer.contains(said), "{answer}");
}

#[test]
fn a_reload_changes_what_is_reached_and_ends_what_is_forbidden() {
    let (mut world, socket) = world(&["worker-b", "worker-c"], &[]);
    let mut open = connect(&socket, &of("worker-b")).expect("connected");
    let mut other = connect(&socket, &of("worker-c")).expect("connected");

    // At the node: no streams from now on, and the open one ends.
    add(&mut world, "worker-b", "serve = false\n", "kubelet.serve");
    is_refused(&socket, &of("worker-b"), "502", "kubelet.serve is false there");
    assert_eq!(refused(&world, "worker-b", "stream", "off"), 1.0);
    open.set_read_timeout(Some(SETTLE)).expect("a timeout");
    assert_eq!(open.read(&mut [0; 16]).expect("its end"), 0);
    world.reconfigure("worker-b", |text| text.replace("serve = false\n", ""));
    wait::until("it is reached again", SETTLE, || whoami(&socket, &of("worker-b")).ok());

    // At the control plane: other addresses, and fewer streams.
    assert_eq!(whoami(&socket, "10.0.0.7:10250"), Ok("worker-b".to_owned()));
    world.reconfigure("cp-a", |text| text.replace("worker-b=10.0.0.7", "worker-b=10.0.0.8"));
    wait::until("the new address is known", SETTLE, || whoami(&socket, "10.0.0.8:10250").ok());
    is_refused(&socket, "10.0.0.7:10250", "502", "10.0.0.7");
    // The stream to the other worker is open all the while.
    add(&mut world, "cp-a", "max-streams = 1\n", "egress.max-streams");
    is_refused(&socket, &of("worker-c"), "503", "egress.max-streams");
    other.set_nonblocking(true).expect("a socket");
    let silent = other.read(&mut [0; 16]).expect_err("it is open");
    assert_eq!(silent.kind(), std::io::ErrorKind::WouldBlock);
}
