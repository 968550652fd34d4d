//! Listeners for clients without meshport: access, service selection, limits, and what clients
//! notice when an apiserver dies.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use meshport_tests::echo::{self, SERVICE, answers};
use meshport_tests::process::{meshport, run_ok};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};
use serde_json::Value;
use tokio::net::TcpSocket;

const SETTLE: Duration = Duration::from_secs(40);
/// How soon a refused client must notice.
const AT_ONCE: Duration = Duration::from_secs(2);

/// Loopback addresses of clients: an allowed network, one next to it, a balancer.
const FRIEND: Ipv4Addr = Ipv4Addr::new(127, 10, 0, 7);
const OTHER_FRIEND: Ipv4Addr = Ipv4Addr::new(127, 10, 255, 255);
const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 11, 0, 0);
const BALANCER: Ipv4Addr = Ipv4Addr::new(127, 12, 0, 1);
const NETWORK: &str = "127.10.0.0/16";
/// The host of a URL for which clients send no server name.
const NAMELESS: &str = "127.0.0.1";

/// A connection from an address of this machine.
fn dial(from: impl Into<IpAddr>, to: SocketAddr) -> std::io::Result<TcpStream> {
    let from = from.into();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let stream = runtime.block_on(async {
        let socket = if from.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.bind(SocketAddr::from((from, 0)))?;
        socket.connect(to).await?.into_std()
    })?;
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(SETTLE))?;
    Ok(stream)
}

/// Whether a client of the echo is served.
fn is_served(from: Ipv4Addr, to: SocketAddr) -> bool {
    dial(from, to).is_ok_and(|mut client| answers(&mut client))
}

/// Whether a client that sends this is reset without an answer.
#[track_caller]
fn is_reset(from: impl Into<IpAddr>, to: SocketAddr, says: &[u8]) {
    let from = from.into();
    let begun = wait::now();
    let Ok(mut client) = dial(from, to) else { return };
    // The reset may come before it has sent anything, and is reported once.
    let told = client.write_all(says).and_then(|()| client.read(&mut [0]));
    match told {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        other => panic!("{from} is not reset: {other:?}"),
    }
    assert!(begun.elapsed() < AT_ONCE, "it was told after {:?}", begun.elapsed());
}

fn exposed(world: &World, node: &str, name: &str) -> Option<Value> {
    let status = world.at(node).status()?;
    let list = status["exposed"].as_array()?.clone();
    list.into_iter().find(|it| it["name"] == name)
}

/// The first address of a listener.
fn address(world: &World, node: &str, name: &str) -> SocketAddr {
    wait::until(&format!("{name} listens on {node}"), SETTLE, || {
        exposed(world, node, name)?["listen"][0].as_str()?.parse().ok()
    })
}

fn count(world: &World, node: &str, outcome: &str) -> f64 {
    let labels = format!("outcome=\"{outcome}\"");
    world.at(node).metrics().sum("meshport_exposed_connections_total", &labels)
}

/// Two nodes; one offers an echo, the other exposes it with these further settings.
fn echo_world(settings: &str) -> (World, SocketAddr) {
    echo_world_at("\"127.0.0.1:0\"", settings)
}

/// The same at these addresses.
fn echo_world_at(listen: &str, settings: &str) -> (World, SocketAddr) {
    let (mut world, (echo, _)) = (World::new(), echo::serve());
    let first = NodePlan::new("cp-1", "a").role(&format!("origin:{SERVICE}"));
    world.node(&first.settings(&echo::offer(echo)));
    let exposed = format!(
        "\n[service.{SERVICE}]\nlisten = []\n\n[[expose]]\nname = \"out\"\n\
         listen = [{listen}]\nservice = \"{SERVICE}\"\n{settings}\n\
         [log]\nformat = \"json\"\n"
    );
    world.node(&NodePlan::new("gate", "a").settings(&exposed));
    world.meet();
    let local = address(&world, "gate", "out");
    (world, local)
}

/// The fields of the audit log of a node, of one event.
fn audit(world: &mut World, node: &str, event: &str) -> Vec<Value> {
    let log = world.node_mut(node).process().output();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let audit = lines.filter(|line| line["target"] == "audit");
    audit.map(|line| line["fields"].clone()).filter(|it| it["event"] == event).collect()
}

#[test]
fn listed_nodes_are_served_and_nobody_else_learns_what_is_behind() {
    let (mut world, local) = echo_world(&format!("allow = [\"{NETWORK}\", \"::1\"]"));
    wait::until("a friend is served", SETTLE, || is_served(FRIEND, local).then_some(()));
    assert!(is_served(OTHER_FRIEND, local), "the last address of the network");
    for _ in 0..200 {
        is_reset(STRANGER, local, b"");
    }
    is_reset(Ipv4Addr::new(127, 9, 255, 255), local, b"?");
    is_reset(Ipv4Addr::LOCALHOST, local, b"?");
    assert!(count(&world, "gate", "not-allowed") >= 202.0);
    let status = exposed(&world, "gate", "out").expect("it is shown");
    assert!(status["refused"]["not-allowed"].as_u64() >= Some(202), "{status}");
    assert!(status["sessions_total"].as_u64() >= Some(2), "{status}");

    let friend = audit(&mut world, "gate", "client-session-started").remove(0);
    assert!(friend["client"].as_str().is_some_and(|it| it.starts_with("127.10.0.7:")), "{friend}");
    assert_eq!((&friend["listener"], &friend["service"]), (&"out".into(), &SERVICE.into()));
    let refused = audit(&mut world, "gate", "client-refused").remove(0);
    assert!(refused["client"].as_str().is_some_and(|it| it.starts_with("127.11.0.0:")));
    assert_eq!(refused["reason"], "not-allowed");
    let refusals = audit(&mut world, "gate", "client-refused").len();
    assert!(refusals < 150, "{refusals} lines: strangers fill the log");
    wait::until("its end is logged with its bytes", SETTLE, || {
        let ended = audit(&mut world, "gate", "client-session-ended");
        ended.iter().any(|it| it["received_bytes"] == 1 && it["sent_bytes"] == 1).then_some(())
    });
}

/// From the addresses next to the network, from sockets of either family, and from an address of
/// IPv6; three quarters of them with a lie.
#[test]
fn of_ten_thousand_connections_beside_the_edge_none_gets_through() {
    const EACH: u16 = 2_500;
    let settings = format!("allow = [\"{NETWORK}\"]\naccept-proxy-from = [\"{BALANCER}\"]");
    let (world, local) = echo_world_at("\"127.0.0.1:0\", \"[::1]:0\"", &settings);
    let shown = exposed(&world, "gate", "out").expect("it is shown");
    let v6: SocketAddr = shown["listen"][1].as_str().and_then(|it| it.parse().ok()).expect("two");
    // A connection of IPv4 by a socket of IPv6.
    let mapped = SocketAddr::from((Ipv4Addr::LOCALHOST.to_ipv6_mapped(), local.port()));
    wait::until("a friend is served", SETTLE, || is_served(FRIEND, local).then_some(()));
    let served = count(&world, "gate", "served");
    let lies: [&[u8]; 4] = [
        b"",
        b"PROXY TCP4 127.10.0.7 127.0.0.1 1 2\r\n?",
        b"PROXY TCP6 ::ffff:127.10.0.7 ::1 1 2\r\n?",
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\x7f\x0a\0\x07\x7f\0\0\x01\0\x01\0\x02?",
    ];
    let threads = lies.map(|lie| {
        thread::spawn(move || {
            for index in 0..EACH {
                let [high, low] = index.to_be_bytes();
                let below = Ipv4Addr::new(127, 9, 255 - high, 255 - low);
                let above = Ipv4Addr::new(127, 11, high, low);
                match index % 4 {
                    0 => is_reset(below, local, lie),
                    1 => is_reset(above.to_ipv6_mapped(), mapped, lie),
                    2 => is_reset(above, local, lie),
                    _ => is_reset(Ipv6Addr::LOCALHOST, v6, lie),
                }
            }
        })
    });
    threads.into_iter().for_each(|thread| thread.join().expect("all are reset"));
    assert_eq!(count(&world, "gate", "not-allowed"), f64::from(EACH) * 4.0);
    assert_eq!(count(&world, "gate", "served"), served);
    assert!(is_served(FRIEND, local), "friends are served as before");
}

#[test]
fn a_proxy_header_is_believed_from_the_balancer_alone() {
    let settings = format!("allow = [\"{NETWORK}\"]\naccept-proxy-from = [\"{BALANCER}\"]");
    let (mut world, local) = echo_world(&settings);
    let header = |client: &str| format!("PROXY TCP4 {client} 192.0.2.1 1234 443\r\n");
    let through = |client: &str| {
        let mut balancer = dial(BALANCER, local).ok()?;
        balancer.write_all(header(client).as_bytes()).ok()?;
        answers(&mut balancer).then_some(balancer)
    };
    wait::until("a friend behind the balancer is served", SETTLE, || through("127.10.0.9"));
    let started = audit(&mut world, "gate", "client-session-started");
    let client = started.iter().find(|it| it["client"] == "127.10.0.9:1234").expect("it is logged");
    assert_eq!(client["balancer"], BALANCER.to_string());
    // A stranger behind it, none behind it, no header, and one that is too long.
    is_reset(BALANCER, local, header("127.11.0.9").as_bytes());
    is_reset(BALANCER, local, b"PROXY UNKNOWN\r\n");
    is_reset(BALANCER, local, b"hello, hello, hello");
    is_reset(BALANCER, local, &[b"PROXY UNKNOWN "[..].to_vec(), vec![b'x'; 300]].concat());
    let binary =
        [b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c", &[127, 11, 0, 1, 1, 2, 3, 4, 0, 1, 0, 2][..]];
    is_reset(BALANCER, local, &binary.concat());
    assert_eq!(
        (count(&world, "gate", "bad-header"), count(&world, "gate", "not-allowed")),
        (2.0, 3.0)
    );
    // As IPv4-mapped addresses they are the same.
    is_reset(BALANCER, local, b"PROXY TCP6 ::ffff:127.11.0.9 ::1 1234 443\r\n");
    assert_eq!(count(&world, "gate", "not-allowed"), 4.0);
    let mut mapped = dial(BALANCER, local).expect("it is open");
    mapped.write_all(b"PROXY TCP6 ::ffff:127.10.0.9 ::1 1234 443\r\n").expect("it is read");
    assert!(answers(&mut mapped), "a friend in the form of IPv6");
    // A sender that is not allowed: its header is not even read.
    for _ in 0..100 {
        is_reset(STRANGER, local, header("127.10.0.9").as_bytes());
    }
    assert_eq!(count(&world, "gate", "not-allowed"), 104.0);
    // From a sender that is allowed as a client, the header is ordinary data for the service.
    let mut friend = dial(FRIEND, local).expect("it may");
    let lie = header("127.10.99.99");
    friend.write_all(lie.as_bytes()).expect("it is served");
    let mut back = vec![0; lie.len()];
    friend.read_exact(&mut back).expect("an echo");
    assert_eq!(back, lie.as_bytes());
    let lies = audit(&mut world, "gate", "client-session-started");
    assert!(lies.iter().all(|it| !it["client"].to_string().contains("99.99")), "it was believed");
}

#[test]
fn an_instance_gets_the_clients_address_if_configured() {
    for version in ["v1", "v2"] {
        let (_world, local) =
            echo_world(&format!("allow = [\"{NETWORK}\"]\nsend-proxy = \"{version}\""));
        let said = wait::until("the instance answers", SETTLE, || {
            let mut client = dial(FRIEND, local).ok()?;
            client.write_all(b"hello").ok()?;
            let (mut said, mut piece) = (Vec::new(), [0; 256]);
            while !said.ends_with(b"hello") {
                let read = client.read(&mut piece).ok().filter(|read| *read > 0)?;
                said.extend_from_slice(&piece[..read]);
            }
            Some((said, client.local_addr().ok()?))
        });
        let (said, from) = said;
        match version {
            "v1" => {
                let line = format!(
                    "PROXY TCP4 {} 127.0.0.1 {} {}\r\nhello",
                    from.ip(),
                    from.port(),
                    local.port()
                );
                assert_eq!(String::from_utf8_lossy(&said), line);
            }
            _ => {
                assert_eq!(said[..16], *b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c");
                assert_eq!(said[16..20], FRIEND.octets());
                assert_eq!(said[28..], *b"hello");
            }
        }
    }
}

#[test]
fn limits_hold_for_each_source_and_for_all() {
    let limits = "max-sessions = 6\nmax-sessions-per-source = 4\nmax-rate-per-source = 1000";
    let (world, local) = echo_world(&format!("allow = [\"{NETWORK}\"]\n{limits}"));
    let hold = |from| {
        let mut client = dial(from, local).ok()?;
        answers(&mut client).then_some(client)
    };
    wait::until("a friend is served", SETTLE, || hold(FRIEND));
    wait::until("it has left", SETTLE, || {
        (exposed(&world, "gate", "out")?["sessions_open"] == 0).then_some(())
    });
    let mut held: Vec<TcpStream> = (0..4).filter_map(|_| hold(FRIEND)).collect();
    assert_eq!(held.len(), 4);
    is_reset(FRIEND, local, b"?");
    assert_eq!(count(&world, "gate", "over-share"), 1.0);
    held.extend((0..2).filter_map(|_| hold(OTHER_FRIEND)));
    assert_eq!(held.len(), 6, "another source has places");
    is_reset(OTHER_FRIEND, local, b"?");
    assert_eq!(count(&world, "gate", "over-limit"), 1.0);
    assert!(held.iter_mut().all(answers), "those inside do not notice");
    held.truncate(5);
    wait::until("a place is free again", SETTLE, || hold(OTHER_FRIEND));
}

#[test]
fn a_source_that_connects_too_often_is_refused_and_others_are_not() {
    let (world, local) = echo_world(&format!("allow = [\"{NETWORK}\"]\nmax-rate-per-source = 5"));
    wait::until("a friend is served", SETTLE, || is_served(OTHER_FRIEND, local).then_some(()));
    for _ in 0..40 {
        drop(dial(FRIEND, local));
    }
    wait::until("most of it is refused", SETTLE, || {
        (count(&world, "gate", "over-rate") >= 20.0).then_some(())
    });
    wait::until("others are served", SETTLE, || is_served(OTHER_FRIEND, local).then_some(()));
}

#[test]
fn a_silent_session_ends_only_where_the_settings_say_so() {
    let (mut world, local) = echo_world(&format!("allow = [\"{NETWORK}\"]"));
    let mut session = wait::until("a session", SETTLE, || {
        let mut client = dial(FRIEND, local).ok()?;
        answers(&mut client).then_some(client)
    });
    wait::throughout("it lasts", Duration::from_secs(3), || {
        exposed(&world, "gate", "out").is_some_and(|it| it["sessions_open"] == 1)
    });
    assert!(answers(&mut session));
    drop(session);
    world.reconfigure("gate", |text| {
        text.replace("name = \"out\"\n", "name = \"out\"\nidle-timeout = \"1s\"\n")
    });
    wait::until("a silent session ends", SETTLE, || {
        let mut client = dial(FRIEND, local).ok()?;
        answers(&mut client).then_some(())?;
        client.read(&mut [0]).is_err().then_some(())
    });
    let ended = world.at("gate").metrics().sum("meshport_exposed_ended_total", "reason=\"idle\"");
    assert!(ended >= 1.0);
}

/// Nodes of two clusters in one mesh, and one that exposes both.
fn two_clusters(other: &str) -> (World, SocketAddr) {
    let mut world = World::new();
    let (dev, prod) = (world.apiserver("dev-cp"), world.apiserver("prod-cp"));
    let offer = |name: &str, address: SocketAddr| {
        format!(
            "\n[service.{name}]\nlisten = []\norigin = \"{address}\"\n\
             [service.{name}.health]\nmode = \"kubernetes\"\n"
        )
    };
    for (name, address) in [("dev", dev), ("prod", prod)] {
        let plan = NodePlan::new(&format!("{name}-cp"), "a").role(&format!("origin:{name}"));
        world.node(&plan.settings(&offer(name, address)));
    }
    let exposed = format!(
        "\n[service.dev]\nlisten = []\n[service.prod]\nlisten = []\n\n[[expose]]\n\
         name = \"clusters\"\nlisten = [\"127.0.0.1:0\"]\nallow = [\"{NETWORK}\"]\n{other}\
         [[expose.rule]]\nservice = \"prod\"\nsni = [\"*.prod.example.com\"]\n\
         [[expose.rule]]\nservice = \"dev\"\nsni = [\"*.dev.example.com\", \"dev.example.com\"]\n"
    );
    world.node(&NodePlan::new("gate", "a").settings(&exposed));
    world.meet();
    let local = address(&world, "gate", "clusters");
    (world, local)
}

/// The apiserver that answers a client with this server name.
fn who(world: &World, local: SocketAddr, name: &str) -> Result<String, String> {
    let curl = world.curl().from(FRIEND.into()).named(name);
    curl.get(local, "/whoami").map(|answer| answer.body)
}

#[test]
fn two_clusters_behind_one_address_are_kept_apart_by_name() {
    let (world, local) = two_clusters("");
    for (name, cluster) in [("api.prod.example.com", "prod-cp"), ("dev.example.com", "dev-cp")] {
        wait::until(&format!("{cluster} answers"), SETTLE, || {
            who(&world, local, name).ok()?.contains(cluster).then_some(())
        });
    }
    for turn in 0..20 {
        let (name, cluster) = match turn % 2 {
            0 => (format!("a{turn}.prod.example.com"), "prod-cp"),
            _ => (format!("a{turn}.DEV.example.com"), "dev-cp"),
        };
        let body = who(&world, local, &name).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(body.contains(cluster), "{name} led to {body}");
    }
    for name in ["prod.example.com", "a.b.prod.example.com", "localhost", "a.test.example.com"] {
        let refused = who(&world, local, name).expect_err("no cluster has this name");
        assert!(refused.contains("unrecognized name"), "{name}: {refused}");
    }
    assert_eq!(count(&world, "gate", "unknown-name"), 4.0);
    // A client of an address sends no name, and one of no TLS has none: they are for neither.
    let refused = who(&world, local, NAMELESS).expect_err("refused without a name");
    assert!(refused.contains("unrecognized name"), "{refused}");
    is_reset(FRIEND, local, b"GET / HTTP/1.1\r\n\r\n");
    assert_eq!(count(&world, "gate", "unknown-name"), 6.0);
}

#[test]
fn names_without_a_rule_go_to_the_default_if_there_is_one() {
    let (world, local) = two_clusters("service = \"dev\"\n");
    let default = "dev-cp";
    for (name, cluster) in
        [("api.prod.example.com", "prod-cp"), ("elsewhere.org", default), (NAMELESS, default)]
    {
        wait::until(&format!("{cluster} answers"), SETTLE, || {
            who(&world, local, name).ok()?.contains(cluster).then_some(())
        });
    }
    // When one cluster is gone, the other does not replace it.
    let address = IpAddr::from(FRIEND);
    assert!(world.curl().from(address).named("x.prod.example.com").get(local, "/version").is_ok());
}

#[test]
fn no_new_connection_fails_when_the_apiserver_in_use_is_killed() {
    let mut world = World::new();
    let (near, far) = (world.apiserver("cp-near"), world.apiserver("cp-far"));
    world.distance("a", "b", Duration::from_millis(40));
    world.node(&NodePlan::new("cp-near", "a").origin(near));
    world.node(&NodePlan::new("cp-far", "b").origin(far));
    let exposed = format!(
        "\n[[expose]]\nname = \"out\"\nlisten = [\"127.0.0.1:0\"]\n\
         service = \"kube-apiserver\"\nallow = [\"{NETWORK}\"]\n"
    );
    world.node(&NodePlan::new("gate", "a").settings(&exposed));
    world.meet();
    world.chooses("gate", "cp-near", SETTLE);
    let local = address(&world, "gate", "out");
    let curl = world.curl().from(FRIEND.into());
    wait::until("it serves", SETTLE, || curl.get(local, "/version").ok());

    const CLIENTS: usize = 120;
    let mut next = wait::now();
    let mut clients: Vec<thread::JoinHandle<_>> = Vec::new();
    for index in 0..CLIENTS {
        wait::pace(&mut next, Duration::from_millis(50));
        if index == CLIENTS / 3 {
            // A request that it has begun to answer dies with it, with or without meshport.
            let done = || clients.iter().all(thread::JoinHandle::is_finished).then_some(());
            wait::until("those before it have their answers", SETTLE, done);
            world.kill_apiserver("cp-near");
        }
        let curl = curl.clone();
        clients.push(thread::spawn(move || {
            let begun = wait::now();
            (curl.get(local, "/version").map(|answer| answer.status), begun.elapsed())
        }));
    }
    let ended: Vec<_> =
        clients.into_iter().map(|client| client.join().expect("it does not panic")).collect();
    let failed: Vec<_> = ended.iter().filter(|(outcome, _)| *outcome != Ok(200)).collect();
    let slowest = ended.iter().map(|(_, took)| *took).max().unwrap_or_default();
    println!("{CLIENTS} connections, one each 50 ms: {} failed, slowest {slowest:?}", failed.len());
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn listeners_come_change_and_go_without_a_restart() {
    let (mut world, local) = echo_world(&format!("allow = [\"{NETWORK}\"]"));
    let mut session = wait::until("a session", SETTLE, || {
        let mut client = dial(FRIEND, local).ok()?;
        answers(&mut client).then_some(client)
    });
    // A second listener; the first one admits other clients.
    let more = format!(
        "\n[[expose]]\nname = \"more\"\nlisten = [\"127.0.0.1:0\"]\nservice = \"{SERVICE}\"\n\
         allow = [\"{STRANGER}\"]\n"
    );
    let both = format!("allow = [\"{NETWORK}\", \"127.11.0.0/16\"]");
    let list = format!("allow = [\"{NETWORK}\"]");
    world.reconfigure("gate", |text| format!("{}{more}", text.replace(&list, &both)));
    let other = address(&world, "gate", "more");
    wait::until("strangers are let in by both", SETTLE, || {
        (is_served(STRANGER, local) && is_served(STRANGER, other)).then_some(())
    });
    is_reset(FRIEND, other, b"?");
    assert!(answers(&mut session), "a session that stays allowed does not notice");
    assert_eq!(address(&world, "gate", "out"), local, "the address stays bound");

    // Sessions that the list no longer allows end; an invalid file changes nothing.
    world.reconfigure("gate", |text| text.replace(&both, "allow = [\"127.11.0.0/15\"]"));
    // Two signals at once are one reload, of the last file.
    let refusals = |world: &mut World| {
        world.node_mut("gate").process().output().matches("configuration not reloaded").count()
    };
    wait::until("it is refused", SETTLE, || (refusals(&mut world) == 1).then_some(()));
    assert!(answers(&mut session));
    world.reconfigure("gate", |text| {
        text.replace("allow = [\"127.11.0.0/15\"]", "allow = [\"127.11.0.0/16\"]")
    });
    wait::until("the session is cut", SETTLE, || (!answers(&mut session)).then_some(()));
    is_reset(FRIEND, local, b"?");
    let mut stranger = dial(STRANGER, other).expect("it may");
    assert!(answers(&mut stranger));

    // A listener that is gone refuses, and its sessions end.
    world.reconfigure("gate", |text| text.replace(&more, ""));
    wait::until("it is gone", SETTLE, || {
        (exposed(&world, "gate", "more").is_none() && dial(STRANGER, other).is_err()).then_some(())
    });
    wait::until("so is its session", SETTLE, || (!answers(&mut stranger)).then_some(()));
    assert!(is_served(STRANGER, local));
    assert_eq!(refusals(&mut world), 1, "the list with bits behind its prefix");
}

#[test]
fn an_address_that_is_taken_fails_the_reload_and_nothing_changes() {
    let (mut world, local) = echo_world(&format!("allow = [\"{NETWORK}\"]"));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
    let taken = taken.local_addr().map(|address| (taken, address)).expect("bound");
    let address = taken.1;
    let more = format!(
        "\n[[expose]]\nname = \"more\"\nlisten = [\"{address}\"]\nservice = \"{SERVICE}\"\n\
         allow = [\"{NETWORK}\"]\n"
    );
    wait::until("it serves", SETTLE, || is_served(FRIEND, local).then_some(()));
    world.reconfigure("gate", |text| format!("{}{more}", text.replace(NETWORK, "127.11.0.0/16")));
    wait::until("the reload is refused", SETTLE, || {
        let log = world.node_mut("gate").process().output();
        log.contains("expose.more.listen").then_some(())
    });
    assert!(is_served(FRIEND, local), "the list is as before");
    drop(taken);
    let file = world.path("gate.toml");
    assert!(fs::read_to_string(file).is_ok_and(|text| text.contains("more")));
    world.reconfigure("gate", str::to_owned);
    wait::until("it is taken up now", SETTLE, || is_served(STRANGER, local).then_some(()));
}

/// Three apiservers, and a node that exposes them.
fn three_origins(balance: &str) -> (World, SocketAddr) {
    let mut world = World::new();
    for name in ["cp-1", "cp-2", "cp-3"] {
        world.origin(name, "a");
    }
    let exposed = format!(
        "{balance}\n\n[[expose]]\nname = \"out\"\nlisten = [\"127.0.0.1:0\"]\n\
         service = \"kube-apiserver\"\nallow = [\"{NETWORK}\"]\n"
    );
    world.node(&NodePlan::new("gate", "a").settings(&exposed));
    world.meet();
    let local = address(&world, "gate", "out");
    wait::until("all three are usable", SETTLE, || {
        let status = world.at("gate").status()?;
        let origins = status["services"][0]["origins"].as_array()?.clone();
        let ready = origins.iter().filter(|it| it["usable"] == true && it["state"] == "ready");
        (ready.count() == 3).then_some(())
    });
    (world, local)
}

#[test]
fn a_client_stays_with_its_apiserver_until_that_dies_and_others_stay_with_theirs() {
    let (mut world, local) = three_origins("policy = \"source\"\nhedge = false\n");
    let clients: Vec<Ipv4Addr> = (1..=12).map(|host| Ipv4Addr::new(127, 10, 1, host)).collect();
    let all = |world: &World| -> Vec<String> {
        let one = |client: &Ipv4Addr| {
            let answer = world.curl().from((*client).into()).get(local, "/whoami");
            answer.unwrap_or_else(|error| panic!("{client}: {error}")).body
        };
        clients.iter().map(one).collect()
    };
    let first = all(&world);
    assert_eq!(all(&world), first);
    let gone = first[0].clone();
    assert!(first.iter().any(|it| *it != gone), "twelve clients are at one of three");
    let name = ["cp-1", "cp-2", "cp-3"].into_iter().find(|name| gone.contains(name));
    world.kill_apiserver(name.expect("one of them"));
    let later = all(&world);
    for (before, after) in first.iter().zip(&later) {
        assert_eq!(before != after, *before == gone, "{before} became {after}");
    }
}

#[test]
fn statistics_are_a_table_csv_and_json_of_the_same() {
    let (world, local) = three_origins("policy = \"least-sessions\"\n");
    for _ in 0..9 {
        world.curl().from(FRIEND.into()).get(local, "/version").expect("an answer");
    }
    is_reset(STRANGER, local, b"");
    let config = world.path("gate.toml");
    let verb = |form: &[&str]| {
        let config = config.to_string_lossy();
        run_ok(&meshport().to_string_lossy(), &[&["stats", "--config", &*config], form].concat())
    };
    let rows = wait::until("all are counted", SETTLE, || {
        let rows: Value = serde_json::from_str(&verb(&["--json"])).ok()?;
        let rows = rows.as_array()?.clone();
        (rows[0]["sessions_open"] == 0 && rows[0]["sessions_total"] == 9).then_some(rows)
    });
    assert_eq!((&rows[0]["kind"], &rows[0]["name"]), (&"listener".into(), &"out".into()));
    assert_eq!(rows[0]["errors"], 1, "the stranger");
    let services: Vec<&Value> = rows.iter().filter(|row| row["kind"] == "service").collect();
    assert_eq!((services.len(), &services[0]["sessions_total"]), (1, &9.into()), "{services:?}");
    assert_eq!(services[0]["name"], "kube-apiserver");
    let origins: Vec<&Value> = rows.iter().filter(|row| row["kind"] == "origin").collect();
    let sum = |key: &str| origins.iter().filter_map(|row| row[key].as_u64()).sum::<u64>();
    assert_eq!(sum("sessions_total"), 9);
    for key in ["bytes_up", "bytes_down"] {
        assert_eq!(rows[0][key].as_u64(), Some(sum(key)), "{key}");
        assert!(sum(key) > 0);
    }
    let is_timed = |row: &&Value| row["connect_mean_ms"].as_f64() > Some(0.0);
    assert!(origins.iter().chain(&services).all(is_timed) && is_timed(&&rows[0]), "{rows:?}");
    let csv = verb(&["--csv"]);
    assert_eq!(csv.lines().count(), rows.len() + 1, "{csv}");
    assert!(csv.starts_with("kind,name,service,site,sessions_open,"), "{csv}");
    assert!(csv.lines().nth(1).is_some_and(|line| line.starts_with("listener,out,,,0,9,1,")));
    let table = verb(&[]);
    assert!(table.contains("listener") && table.contains("cp-1"), "{table}");
}
