//! The way back: an apiserver's CONNECT on the socket of its node reaches the kubelet it names and
//! nothing else, also through a relay, and is answered in a sentence when it does not.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use meshport_demo::wan::Cut;
use meshport_discovery::Count;
use meshport_tests::kubelet::{self, ask, connect, of, whoami};
use meshport_tests::process::{meshport, raise_descriptors, run, run_ok};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};
use serde_json::Value;

mod reload;
mod targets;

/// How long something may take to be noticed on a busy machine.
const SETTLE: Duration = Duration::from_secs(40);
/// Every answer comes within 5 s; the rest is the machine's.
const ANSWER: Duration = Duration::from_secs(10);

/// How long a worker may keep connections that it dialled for an unreachable node, on a busy
/// machine.
const SERVED_END: Duration = Duration::from_secs(30);

/// Between sites that are near.
const NEAR: Duration = Duration::from_millis(4);

/// A control plane in one site and workers with a kubelet each in another, near each other.
fn world(workers: &[&str], more: &[NodePlan]) -> (World, PathBuf) {
    world_at(NEAR, workers, more)
}

/// The same with this round trip between any two sites.
fn world_at(round_trip: Duration, workers: &[&str], more: &[NodePlan]) -> (World, PathBuf) {
    let mut world = World::new();
    for (one, other) in [("a", "b"), ("a", "c"), ("b", "c")] {
        world.distance(one, other, round_trip);
    }
    let socket = world.path("egress").join("egress.sock");
    let address = world.apiserver("cp-a");
    let own = kubelet::settings(kubelet::start("cp-a"));
    let egress = format!(
        "\n[egress]\nsocket = {socket:?}\nnodes = [\"worker-b=10.0.0.7\", \"lost=10.0.0.9\"]\n\
         service-cidrs = [\"10.96.0.0/12\"]\n"
    );
    world.node(&NodePlan::new("cp-a", "a").origin(address).settings(&(own + &egress)));
    for plan in more {
        world.node(plan);
    }
    for worker in workers {
        let own = kubelet::settings(kubelet::start(worker));
        world.node(&NodePlan::new(worker, "b").settings(&own));
    }
    world.meet();
    (world, socket)
}

/// How often something was refused at a node.
fn refused(world: &World, node: &str, at: &str, reason: &str) -> f64 {
    let labels = format!("at=\"{at}\",reason=\"{reason}\"");
    world.at(node).metrics().sum("meshport_wayback_refused_total", &labels)
}

/// The column of `meshport peers`, as JSON.
fn peers_show_the_paths(world: &World) {
    let ways = |node: &str| -> BTreeMap<String, String> {
        let rows: Value = serde_json::from_str(&world.at(node).ask("peers", &["--json"]))
            .expect("peers are JSON");
        let rows = rows.as_array().expect("rows").iter();
        let way = |row: &Value| {
            Some((row["name"].as_str()?.to_owned(), row["way_back"].as_str()?.to_owned()))
        };
        rows.filter_map(way).collect()
    };
    let of_origin = ways("cp-a");
    assert_eq!(of_origin["worker-b"], "direct", "{of_origin:?}");
    assert!(!of_origin.contains_key("shut-b"), "it serves no kubelet: {of_origin:?}");
    assert_eq!(ways("worker-b"), BTreeMap::new(), "it has no socket");
}

/// With the nodes whose names are similar.
fn an_unknown_node_is_misuse(world: &World) {
    let state = world.at("cp-a").state().to_string_lossy().into_owned();
    let words = ["explain", "--node", "worker", "--state-dir", &state];
    let unknown = run(&meshport().to_string_lossy(), &words);
    let said = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert_eq!(unknown.status.code(), Some(2), "{said}");
    assert!(said.contains("called worker; did you mean worker-b, worker-c?"), "{said}");
}

#[test]
fn a_connect_reaches_the_kubelet_it_names_and_nothing_else() {
    let shut = NodePlan::new("shut-b", "b").role("no-kubelet");
    let off = NodePlan::new("off-b", "b").settings("\n[kubelet]\nserve = false\n");
    let (world, socket) = world(&["worker-b", "worker-c"], &[shut, off]);
    let mode = fs::metadata(&socket).expect("the socket is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o660, "of the socket");

    for name in ["worker-b", "worker-c", "cp-a"] {
        assert_eq!(whoami(&socket, &of(name)), Ok(name.to_owned()));
    }
    // By the address in the settings.
    assert_eq!(whoami(&socket, "10.0.0.7:10250"), Ok("worker-b".to_owned()));

    let said = world.at("cp-a").explain(&["--node", "worker-b"]);
    assert!(said.contains("member     worker-b in b\n"), "{said}");
    assert!(said.contains("paths      direct"), "{said}");
    an_unknown_node_is_misuse(&world);
    peers_show_the_paths(&world);
    let status = world.at("cp-a").status().expect("it answers");
    assert_eq!(status["way_back"]["socket"], socket.to_string_lossy().as_ref(), "{status}");

    // Each direction ends separately.
    let mut stream = connect(&socket, &of("worker-b")).expect("connected");
    let sent = vec![9_u8; 3 << 20];
    let mut writer = stream.try_clone().expect("another handle");
    let whole = sent.clone();
    let writing = std::thread::spawn(move || {
        writer.write_all(b"echo\n").and_then(|()| writer.write_all(&whole)).expect("written");
        writer.shutdown(Shutdown::Write).expect("half-closed");
    });
    let mut back = Vec::new();
    stream.read_to_end(&mut back).expect("all of it");
    writing.join().expect("written");
    assert!(back == sent, "{} of {} bytes came back", back.len(), sent.len());

    for (target, status, reason, said) in [
        ("worker-b:22", "502", "port", "not the kubelet of worker-b"),
        ("10.0.0.7:6443", "502", "port", "port 10250"),
        ("nobody:10250", "502", "unknown", "nobody"),
        ("10.9.9.9:10250", "502", "unknown", "10.9.9.9"),
        ("127.0.0.1:10250", "502", "loopback", "127.0.0.1"),
        ("localhost:7445", "502", "loopback", "localhost"),
        ("[::1]:7446", "502", "loopback", "::1"),
        ("10.0.0.9:10250", "502", "no-member", "lost is in the cluster"),
        ("10.96.0.10:443", "503", "no-egress", "role egress"),
        ("off-b:10250", "502", "off", "kubelet.serve"),
    ] {
        let before = refused(&world, "cp-a", "socket", reason);
        let answer = connect(&socket, target).expect_err(target);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{target}: {answer}");
        assert!(answer.contains(said), "{target}: {answer}");
        assert_eq!(refused(&world, "cp-a", "socket", reason), before + 1.0, "{target}");
    }
    let shut = connect(&socket, &of("shut-b")).expect_err("it has no way back");
    assert!(shut.starts_with("HTTP/1.1 502 "), "{shut}");
    assert_eq!(refused(&world, "off-b", "stream", "off"), 1.0);

    let long = [&b"CONNECT a:1 HTTP/1.1\r\nX: "[..], &vec![b'x'; 1 << 20]].concat();
    for (bytes, status, reason) in [
        (&b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"[..], "405", "method"),
        (b"\x16\x03\x01\x00", "400", "malformed"),
        (b"CONNECT worker-b HTTP/1.1\r\n\r\n", "400", "malformed"),
        (&long, "400", "too-long"),
    ] {
        let before = refused(&world, "cp-a", "socket", reason);
        let (_, answer) = ask(&socket, bytes).expect("an answer");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{reason}: {answer}");
        assert_eq!(refused(&world, "cp-a", "socket", reason), before + 1.0, "{reason}");
    }
    assert!(world.at("cp-a").metrics().sum("meshport_wayback_accepted_total", "") >= 20.0);
    let connected = |node: &str| {
        world.at(node).metrics().sum("meshport_wayback_connected_total", "target=\"kubelet\"")
    };
    assert_eq!((connected("worker-b"), connected("worker-c")), (3.0, 1.0));
    assert_eq!(connected("cp-a"), 5.0);
}

#[test]
fn a_node_that_is_no_origin_reaches_no_kubelet() {
    let (mut world, _) = world(&["worker-b"], &[]);
    // A worker that was taken over, with its own socket.
    let socket = world.path("thief").join("egress.sock");
    let plan = NodePlan::new("thief", "b");
    world.node(&plan.settings(&format!("\n[egress]\nsocket = {socket:?}\n")));
    world.meet();
    for target in ["worker-b", "cp-a"] {
        let answer = connect(&socket, &of(target)).expect_err("it is refused");
        assert!(answer.contains("lacks the role origin:kube-apiserver"), "{answer}");
        assert_eq!(refused(&world, target, "stream", "not-origin"), 1.0);
        let log = world.node_mut(target).process().output();
        let audited = |line: &&str| line.contains("stream-refused") && line.contains("not-origin");
        assert!(log.lines().any(|line| audited(&line)), "{log}");
    }
    let log = world.node_mut("thief").process().output();
    assert!(log.contains("lacks the role origin:kube-apiserver"), "{log}");
}

/// A copy of a worker's state folder acts as that worker until it is revoked.
#[test]
fn a_stolen_worker_reaches_no_other_and_nobody_once_it_is_revoked() {
    let (mut world, socket) = world(&["worker-b", "worker-c"], &[]);
    let stolen = world.path("stolen").join("egress.sock");
    world.kill("worker-c");
    let config = world.at("worker-c").config().to_owned();
    let text = fs::read_to_string(&config).expect("the node has settings");
    let with_socket = format!("{text}\n[egress]\nsocket = {stolen:?}\n");
    fs::write(&config, with_socket).expect("the world's folder can be written");
    world.start("worker-c");
    world.meet();
    let answer = connect(&stolen, &of("worker-b")).expect_err("it is refused");
    assert!(answer.contains("lacks the role origin:kube-apiserver"), "{answer}");
    assert_eq!(refused(&world, "worker-b", "stream", "not-origin"), 1.0);
    let log = world.node_mut("worker-b").process().output();
    let audited = |line: &str| {
        ["stream-refused", "worker-c", "not-origin"].iter().all(|word| line.contains(word))
    };
    assert!(log.lines().any(audited), "{log}");
    let mut open = open_stream(&socket, &of("worker-c"));

    let state = world.at("cp-a").state().to_string_lossy().into_owned();
    let revoke = ["revoke", "worker-c", "--state-dir", &state];
    run_ok(&meshport().to_string_lossy(), &revoke);
    open.set_read_timeout(Some(SETTLE)).expect("a timeout");
    assert_eq!(open.read(&mut [0; 16]).expect("its end"), 0);
    connect(&socket, &of("worker-c")).expect_err("it was revoked");
    connect(&stolen, &of("worker-b")).expect_err("it was revoked");
    let reached = world.at("worker-b").metrics().sum("meshport_wayback_connected_total", "");
    assert_eq!(reached, 0.0);
}

#[track_caller]
fn relay_is_known(world: &World) {
    wait::until("the asking node has a way to the relay, which tells its own", SETTLE, || {
        let peers: Value =
            serde_json::from_str(&world.at("cp-a").ask("peers", &["--json"])).ok()?;
        let relay = peers.as_array()?.iter().find(|it| it["name"] == "relay-c")?;
        let told = world.at("relay-c").metrics().count(Count::Published);
        (relay["rtt_ms"].is_number() && told >= 2.0).then_some(())
    });
}

#[test]
fn a_relay_leads_around_a_path_that_is_cut() {
    let relay = NodePlan::new("relay-c", "c").role("relay");
    let (world, socket) = world(&["worker-b"], &[relay]);
    assert_eq!(whoami(&socket, &of("worker-b")), Ok("worker-b".to_owned()));
    relay_is_known(&world);
    let partition = Cut::Between("a".to_owned(), "b".to_owned());
    world.shaper().set_down(partition.clone(), true);
    let begun = wait::now();
    assert_eq!(whoami(&socket, &of("worker-b")), Ok("worker-b".to_owned()));
    println!("through the relay after {:?}", begun.elapsed());
    assert!(begun.elapsed() < ANSWER);
    let relayed = |node: &str| world.at(node).metrics().sum("meshport_wayback_relayed_total", "");
    assert!(relayed("cp-a") >= 1.0 && relayed("worker-b") >= 1.0);
    world.shaper().set_down(partition, false);
    wait::until("the direct path is used again", SETTLE, || {
        let before = relayed("worker-b");
        whoami(&socket, &of("worker-b")).ok()?;
        (relayed("worker-b") == before).then_some(())
    });
}

/// A stream through which kubelet and asker have spoken.
fn open_stream(socket: &Path, target: &str) -> UnixStream {
    let mut stream = connect(socket, target).expect("connected");
    let mut back = [0; 4];
    let spoken = stream.write_all(b"echo\nping").and_then(|()| stream.read_exact(&mut back));
    spoken.expect("the kubelet answers");
    assert_eq!(&back, b"ping");
    stream
}

/// The worker's own probes find a dead path; the mesh drops a silent connection only after 90 s.
#[test]
fn a_dead_path_ends_what_the_worker_has_dialled() {
    let (world, socket) = world(&["worker-b"], &[]);
    let _silent = open_stream(&socket, &of("worker-b"));
    // Nobody reads it, so that the worker waits for room all the while.
    let mut full = connect(&socket, &of("worker-b")).expect("connected");
    full.write_all(b"pour\n").expect("written");
    wait::until("both are open", SETTLE, || (kubelet::open() == 2).then_some(()));
    world.shaper().set_down(Cut::Between("a".to_owned(), "b".to_owned()), true);
    let begun = wait::now();
    wait::until("the kubelet has no connection left", SERVED_END, || {
        (kubelet::open() == 0).then_some(())
    });
    println!("the worker ended them {:?} after the cut", begun.elapsed());
    let open = world
        .at("worker-b")
        .metrics()
        .sum("meshport_sessions_open", "service=\"way-back\",side=\"served\"");
    assert_eq!(open, 0.0);
}

/// The path behind the relay is none of the asking node's: the relay ends the stream.
#[test]
fn a_stream_ends_when_the_path_behind_its_relay_dies() {
    let relay = NodePlan::new("relay-c", "c").role("relay");
    let (world, socket) = world(&["worker-b"], &[relay]);
    relay_is_known(&world);
    world.shaper().set_down(Cut::Between("a".to_owned(), "b".to_owned()), true);
    let mut stream = open_stream(&socket, &of("worker-b"));
    world.shaper().set_down(Cut::Between("b".to_owned(), "c".to_owned()), true);
    let begun = wait::now();
    stream.set_read_timeout(Some(SERVED_END)).expect("a timeout");
    assert_eq!(stream.read(&mut [0; 16]).expect("its end"), 0);
    println!("the relay ended it {:?} after the cut", begun.elapsed());
}

#[test]
fn a_node_that_was_killed_is_named_and_open_streams_end() {
    let (mut world, socket) = world(&["worker-b"], &[]);
    let mut open = connect(&socket, &of("worker-b")).expect("connected");
    world.kill("worker-b");
    let begun = wait::now();
    let answer = connect(&socket, &of("worker-b")).expect_err("it is gone");
    println!("after {:?}: {answer}", begun.elapsed());
    assert!(begun.elapsed() < ANSWER, "{:?}", begun.elapsed());
    assert!(answer.starts_with("HTTP/1.1 503 worker-b in b "), "{answer}");
    wait::until("it is said to be down", SETTLE, || {
        let answer = connect(&socket, &of("worker-b")).expect_err("it is gone");
        answer.contains("worker-b in b has been down for ").then_some(())
    });
    open.set_read_timeout(Some(SETTLE)).expect("a timeout");
    assert_eq!(open.read(&mut [0; 16]).expect("its end"), 0);
    world.start("worker-b");
    wait::until("it is reached again", SETTLE, || whoami(&socket, &of("worker-b")).ok());
}

/// A stream's window follows the round trip that a handshake measures, which a busy machine makes
/// longer; from 108 ms on it is 16 MiB and no more. So this path is that long, and the unread bytes
/// do not depend on the machine.
#[test]
fn a_reader_that_stands_still_slows_nobody() {
    const FAR: Duration = Duration::from_millis(110);
    /// Three quarters of what the node has shares for, 256 MiB in all.
    const STALLED: usize = 12;
    /// Half more than the connection's window without shares (64 MiB), for the sockets' buffers.
    const UNREAD: u64 = 96 << 20;
    let (world, socket) = world_at(FAR, &["worker-b"], &[]);
    let ask = || {
        let begun = wait::now();
        assert_eq!(whoami(&socket, &of("worker-b")), Ok("worker-b".to_owned()));
        begun.elapsed()
    };
    let alone = (0..5).map(|_| ask()).max().unwrap_or_default();
    let stalled: Vec<_> = (0..STALLED)
        .map(|_| {
            let mut stream = connect(&socket, &of("worker-b")).expect("connected");
            stream.write_all(b"pour\n").expect("written");
            stream
        })
        .collect();
    wait::until("the readers have left much unread", SETTLE, || {
        (kubelet::poured() > UNREAD).then_some(())
    });
    let slowest = (0..5).map(|_| ask()).max().unwrap_or_default();
    // A stream that waits for another's window never gets on, and its request fails. The time of
    // one next to them depends on the machine.
    println!("slowest of 5: alone {alone:?}, beside {STALLED} that stand still {slowest:?}");
    // And one that carries much.
    let mut stream = connect(&socket, &of("worker-b")).expect("connected");
    stream.write_all(b"pour\n").expect("written");
    let mut rest = vec![0; 64 << 20];
    let begun = wait::now();
    stream.read_exact(&mut rest).expect("64 MiB");
    println!("64 MiB beside them in {:?}", begun.elapsed());
    drop(stalled);
    drop(stream);
    wait::until("all streams are over", SETTLE, || {
        let metrics = world.at("cp-a").metrics();
        let open = metrics.sum("meshport_sessions_open", "service=\"way-back\",side=\"client\"");
        (open == 0.0).then_some(())
    });
}

/// Sends a number and reads it back.
fn comes_back(stream: &mut (impl Read + Write), number: usize) -> io::Result<()> {
    let said = format!("{number:08}");
    stream.write_all(said.as_bytes())?;
    let mut back = [0; 8];
    stream.read_exact(&mut back)?;
    assert_eq!(back, said.as_bytes());
    Ok(())
}

#[test]
fn two_thousand_streams_to_several_nodes_and_none_left_behind() {
    const STREAMS: usize = 2_000;
    raise_descriptors();
    let workers = ["worker-b", "worker-c", "worker-d", "worker-e"];
    let (mut world, socket) = world(&workers, &[]);
    for worker in workers {
        assert_eq!(whoami(&socket, &of(worker)), Ok(worker.to_owned()));
    }
    let descriptors = |world: &mut World| {
        ["cp-a", "worker-b"].map(|node| world.node_mut(node).process().descriptors())
    };
    let before = descriptors(&mut world);
    let mut stalled = connect(&socket, &of("worker-b")).expect("connected");
    stalled.write_all(b"pour\n").expect("written");

    let begun = wait::now();
    let echo = |number: usize| {
        let mut stream = connect(&socket, &of(workers[number % workers.len()])).ok()?;
        stream.write_all(b"echo\n").ok().map(|()| stream)
    };
    let mut open: Vec<_> = (0..STREAMS).map(|number| echo(number).expect("connected")).collect();
    println!("{STREAMS} streams opened in {:?}", begun.elapsed());
    let begun = wait::now();
    let mut reset = 0;
    for (number, stream) in open.iter_mut().enumerate() {
        if comes_back(stream, number).is_err() {
            reset += 1;
            *stream = wait::until("a stream is opened again", SETTLE, || echo(number));
            comes_back(stream, number).expect("it comes back");
        }
    }
    println!("a round trip on each in {:?}; {reset} were reset", begun.elapsed());
    // Where the machine has no time to spare, one path may look dead, which resets its streams.
    assert!(reset <= STREAMS / workers.len(), "{reset} streams were reset");
    let opened = |world: &World| {
        let metrics = world.at("cp-a").metrics();
        metrics.sum("meshport_sessions_open", "service=\"way-back\",side=\"client\"")
    };
    assert!(opened(&world) >= STREAMS as f64);
    drop((open, stalled));
    wait::until("all are over", SETTLE, || (opened(&world) == 0.0).then_some(()));

    let begun = wait::now();
    for number in 0..STREAMS {
        let worker = workers[number % workers.len()];
        assert_eq!(whoami(&socket, &of(worker)), Ok(worker.to_owned()));
    }
    println!("{STREAMS} opened and closed one after the other in {:?}", begun.elapsed());
    wait::until("no descriptor is left behind", SETTLE, || {
        let now = descriptors(&mut world);
        now.iter().zip(before).all(|(now, before)| *now <= before + 4).then_some(())
    });
}
