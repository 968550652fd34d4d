//! Clients of a node that hold its local address: they say nothing, or a byte now and then. Others
//! are refused at once, other services do not notice, and nothing remains when they leave. And a
//! local address that another process has when the daemon starts, or that the machine does not have
//! yet.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use meshport_tests::doctor;
use meshport_tests::echo::{self, SERVICE, answers, session};
use meshport_tests::netns::{self, Namespace};
use meshport_tests::process::{Process, meshport, run};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};
use serde_json::Value;

const SETTLE: Duration = Duration::from_secs(40);
/// Places for clients of the apiserver service.
const PLACES: usize = 10;
/// How soon a client without a slot must notice; one that waits for a slot waits for 10 s.
const AT_ONCE: Duration = Duration::from_secs(5);
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
    world.origin("cp-c", "c");
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

/// The warnings in the worker's status.
fn warnings(world: &World) -> String {
    warnings_of(world, "worker")
}

fn warnings_of(world: &World, node: &str) -> String {
    let status = world.at(node).status().expect("it answers");
    status["warnings"].to_string()
}

/// The origin that new sessions of the apiserver service try first.
fn chosen(status: &Value) -> &Value {
    let services = status["services"].as_array().into_iter().flatten();
    let own = services.into_iter().find(|it| it["name"] == "kube-apiserver");
    &own.expect("the service is there")["chosen"]["name"]
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
        // A busy machine may give no status in time.
        answers(&mut other) && world.at("worker").status().is_none_or(|it| chosen(&it) == "cp-b")
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
    wait::until("the warning is gone", SETTLE, || {
        (!warnings(&world).contains("client sessions is reached")).then_some(())
    });
    let log = world.node_mut("worker").process().output()[before..].to_owned();
    assert!(!log.contains("to=cp-c"), "the route changed: {log}");
}

#[test]
fn a_local_address_that_is_taken_does_not_stop_the_node() {
    let mut world = World::new();
    let address = world.apiserver("cp-a");
    world.make(&NodePlan::new("cp-a", "a").origin(address));
    let local = world.at("cp-a").local;
    let thief = TcpListener::bind(local).expect("it is free before the start");
    world.start("cp-a");
    world.node(&NodePlan::new("worker", "b"));
    world.meet();
    world.chooses("worker", "cp-a", SETTLE);
    assert_eq!(world.get("worker", "/version").status, 200, "the apiserver is offered");
    let lost = format!("listens on the local address {local}");
    let warned = warnings_of(&world, "cp-a");
    assert!(warned.contains(&lost) && warned.contains("MP101"), "{warned}");
    let log = world.node_mut("cp-a").process().output();
    let said: Vec<&str> = log.lines().filter(|line| line.contains("MP101")).collect();
    let [line] = said[..] else { panic!("it is logged once: {said:?}") };
    assert!(line.contains("holder=\"user "), "{line}");

    drop(thief);
    wait::until("its own clients are served", AT_ONCE, || {
        world.curl().get(local, "/version").ok().filter(|answer| answer.status == 200)
    });
    wait::until("the warning is gone", SETTLE, || {
        (!warnings_of(&world, "cp-a").contains("MP101")).then_some(())
    });
}

#[test]
#[ignore = "needs root for a network namespace: ./tests/run e2e"]
fn a_local_address_that_the_machine_gets_later_is_served_then() {
    netns::remove_stale();
    let host = Namespace::new();
    let local: SocketAddr = "10.79.0.7:7000".parse().expect("an address");
    host.inside(|| {
        let (mut world, (echo, _)) = (World::new(), echo::serve());
        let origin = NodePlan::new("cp-1", "a").role(&format!("origin:{SERVICE}"));
        world.node(&origin.settings(&echo::offer(echo)));
        let listens =
            format!("\n[service.{SERVICE}]\nlisten = [\"{local}\"]\nallow-remote-clients = true\n");
        world.node(&NodePlan::new("worker", "a").settings(&listens));
        world.meet();
        let warned = warnings_of(&world, "worker");
        assert!(warned.contains(&local.to_string()) && warned.contains("MP101"), "{warned}");
        assert!(TcpStream::connect_timeout(&local, AT_ONCE).is_err(), "nobody has the address");

        host.ip(&["addr", "add", &format!("{}/32", local.ip()), "dev", "lo"]);
        wait::until("clients are served", SETTLE, || {
            let mut client = TcpStream::connect(local).ok()?;
            client.set_read_timeout(Some(AT_ONCE)).ok()?;
            answers(&mut client).then_some(())
        });
        wait::until("the warning is gone", SETTLE, || {
            (!warnings_of(&world, "worker").contains("MP101")).then_some(())
        });
    });
}

#[test]
#[ignore = "needs root for a network namespace: ./tests/run e2e"]
fn addresses_that_the_daemon_may_not_use_do_not_stop_the_node() {
    netns::remove_stale();
    let host = Namespace::new();
    let low: [SocketAddr; 2] =
        ["127.0.0.1:81", "127.0.0.1:82"].map(|it| it.parse().expect("an address"));
    host.inside(|| {
        let (mut world, (echo, _)) = (World::new(), echo::serve());
        let origin = NodePlan::new("cp-1", "a").role(&format!("origin:{SERVICE}"));
        world.node(&origin.settings(&echo::offer(echo)));
        let [local, exposed] = low;
        world.make(&NodePlan::new("gate", "a").settings(&format!(
            "\n[service.{SERVICE}]\nlisten = [\"{local}\"]\n\n[[expose]]\nname = \"out\"\n\
             listen = [\"{exposed}\"]\nservice = \"{SERVICE}\"\nallow = [\"127.0.0.0/8\"]\n"
        )));
        let config = world.at("gate").config().to_string_lossy().into_owned();
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set=-net_bind_service", "--inh-caps=-net_bind_service"]);
        command.arg(meshport()).args(["run", "--config", &config]);
        let daemon = Process::start("gate", &mut command, &world.path("gate.log"));
        // One of them is in use as well, which is not why the daemon fails.
        let also = TcpListener::bind(exposed).expect("root may");
        let [local, exposed] = [("local", local), ("exposed", exposed)]
            .map(|(kind, at)| format!("the daemon may not listen on the {kind} address {at}"));
        wait::until("both are reported", SETTLE, || {
            let warned = world.at("gate").status()?["warnings"].to_string();
            let has = |it: &String| warned.contains(&format!("{it}. A port below 1024 needs"));
            (has(&local) && has(&exposed)).then_some(())
        });
        let log = daemon.output();
        let said = log.lines().filter(|it| it.contains("WARN") && it.contains("MP101"));
        let denied = |it: &str| it.contains("os error 13") && it.contains("CAP_NET_BIND_SERVICE");
        assert_eq!(said.filter(|it| denied(it)).count(), 2, "{log}");
        let doctor = ["doctor", "--short", "--config", &config];
        let doctor = run(&meshport().to_string_lossy(), &doctor);
        let doctor = String::from_utf8_lossy(&doctor.stdout).into_owned();
        assert!(doctor.contains(&format!("error MP101 out: {exposed}\n")), "{doctor}");
        drop(also);

        host.run("sysctl", &["-qw", "net.ipv4.ip_unprivileged_port_start=81"]);
        for address in low {
            wait::until("clients are served", SETTLE, || {
                let mut client = TcpStream::connect(address).ok()?;
                client.set_read_timeout(Some(AT_ONCE)).ok()?;
                answers(&mut client).then_some(())
            });
        }
        wait::until("the warnings are gone", SETTLE, || {
            (!warnings_of(&world, "gate").contains("MP101")).then_some(())
        });
    });
}

#[test]
fn an_exposed_address_that_is_taken_is_reported_and_served_once_it_is_free() {
    let thief = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let taken = thief.local_addr().expect("bound");
    let (mut world, (echo, _)) = (World::new(), echo::serve());
    let origin = NodePlan::new("cp-1", "a").role(&format!("origin:{SERVICE}"));
    world.node(&origin.settings(&echo::offer(echo)));
    let exposed = format!(
        "\n[service.{SERVICE}]\nlisten = []\n\n[[expose]]\nname = \"out\"\n\
         listen = [\"{taken}\"]\nservice = \"{SERVICE}\"\nallow = [\"127.0.0.0/8\"]\n"
    );
    world.node(&NodePlan::new("gate", "a").settings(&exposed));
    world.meet();
    let lost = |world: &World| world.at("gate").status().expect("it answers")["exposed"].clone();
    assert_eq!(lost(&world)[0]["lost"][0].as_str(), Some(&*taken.to_string()));
    let said = format!("out: another process listens on the exposed address {taken}");
    let warned = warnings_of(&world, "gate");
    assert!(warned.contains(&said) && warned.contains("MP101"), "{warned}");
    let config = world.at("gate").config().to_string_lossy().into_owned();
    let doctor = run(&meshport().to_string_lossy(), &["doctor", "--short", "--config", &config]);
    let doctor = String::from_utf8_lossy(&doctor.stdout).into_owned();
    let holder = format!("(pid {}) listens on the exposed address {taken}", std::process::id());
    assert!(doctor.contains("error MP101") && doctor.contains(&holder), "{doctor}");

    drop(thief);
    wait::until("clients are served", SETTLE, || {
        let mut client = TcpStream::connect(taken).ok()?;
        client.set_read_timeout(Some(AT_ONCE)).ok()?;
        answers(&mut client).then_some(())
    });
    assert_eq!(lost(&world)[0]["lost"].as_array().map(Vec::len), Some(0));
}

#[test]
fn an_admin_address_that_is_taken_is_reported_and_shown_once_it_is_taken_back() {
    let thief = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let taken = thief.local_addr().expect("bound");
    let mut world = World::new();
    world.make(&NodePlan::new("worker", "a").http());
    let config = world.at("worker").config().to_owned();
    let text = fs::read_to_string(&config).expect("its settings");
    let text = text.replace("http = \"127.0.0.1:0\"", &format!("http = \"{taken}\""));
    fs::write(&config, text).expect("ours");
    world.start("worker");
    let said = format!("admin.http: another process listens on the loopback address {taken}");
    let warned = warnings(&world);
    assert!(warned.contains(&said) && warned.contains("MP101"), "{warned}");
    assert_eq!(world.at("worker").http(), None);
    let lost =
        |world: &World| world.at("worker").metrics().sum("meshport_findings", "id=\"MP101\"");
    assert!(lost(&world) > 0.0, "an alert needs it");
    let examined = doctor::examine(meshport(), &world, "worker");
    let holder = format!("(pid {}) listens on the loopback address {taken}", std::process::id());
    assert!(examined.detail("MP101").contains(&holder), "{:#}", examined.report);

    drop(thief);
    wait::until("it is shown", SETTLE, || world.at("worker").http().filter(|it| *it == taken));
    let warned = warnings(&world);
    assert!(!warned.contains("MP101") && lost(&world) < 1.0, "{warned}");
}
