//! Maintenance as an operator does it: an origin is drained, its sessions leave one by one without
//! a failed request, and return once it is offered again.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use meshport_tests::process::{meshport, run_ok};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};

const SETTLE: Duration = Duration::from_secs(40);
/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The drain window of the worker here, and its share of sessions that drift per ten seconds.
const WINDOW: Duration = Duration::from_secs(6);
const DRIFT_PERCENT: u64 = 100;
const SESSIONS: usize = 12;
const SERVICE: &str = "names";

/// A service that answers each byte with its own name and a newline.
fn named(name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("bound");
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            thread::spawn(move || answer(client, name));
        }
    });
    address
}

fn answer(mut client: TcpStream, name: &str) {
    while matches!(client.read(&mut [0; 1]), Ok(1)) {
        if client.write_all(format!("{name}\n").as_bytes()).is_err() {
            return;
        }
    }
}

/// An open session.
struct Session(TcpStream);

impl Session {
    fn open(local: SocketAddr) -> Self {
        let tcp = TcpStream::connect_timeout(&local, PATIENCE).expect("the address is open");
        tcp.set_read_timeout(Some(PATIENCE)).expect("a socket");
        Self(tcp)
    }

    /// The origin that answers; none once the session has ended.
    fn ask(&mut self) -> Option<String> {
        self.0.write_all(b"?").ok()?;
        let (mut name, mut byte) = (String::new(), [0; 1]);
        loop {
            match self.0.read(&mut byte) {
                Ok(1) if byte[0] == b'\n' => return Some(name),
                Ok(1) => name.push(char::from(byte[0])),
                Ok(_) | Err(_) => return None,
            }
        }
    }

    /// Whether it has ended, without sending anything to it.
    fn has_ended(&mut self) -> bool {
        self.0.set_read_timeout(Some(Duration::from_millis(1))).expect("a socket");
        let read = self.0.read(&mut [0; 1]);
        self.0.set_read_timeout(Some(PATIENCE)).expect("a socket");
        match read {
            Ok(count) => count == 0,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

/// Two origins, one nearer than the other, and a worker; its local address of the service.
fn world() -> (World, SocketAddr) {
    let mut world = World::new();
    world.distance("near", "far", Duration::from_millis(30));
    for (name, site) in [("cp-near", "near"), ("cp-far", "far")] {
        let service = named(name);
        let offer = format!("\n[service.{SERVICE}]\nlisten = []\norigin = \"{service}\"\n");
        let role = format!("origin:{SERVICE}");
        world.node(&NodePlan::new(name, site).role(&role).settings(&offer));
    }
    let listen = format!(
        "\n[service.{SERVICE}]\nlisten = [\"127.0.0.1:0\"]\ndrain-window = \"{}s\"\n\
         drift-percent = {DRIFT_PERCENT}\n",
        WINDOW.as_secs()
    );
    world.node(&NodePlan::new("worker", "near").settings(&listen));
    world.meet();
    let local = wait::until("the worker listens", SETTLE, || world.at("worker").service(SERVICE));
    (world, local)
}

fn everything_new_goes_to(name: &str, local: SocketAddr) {
    wait::until(&format!("new sessions go to {name}"), SETTLE, || {
        let answer = Session::open(local).ask();
        assert!(answer.is_some(), "a new session failed");
        (answer.as_deref() == Some(name)).then_some(())
    });
}

/// Sessions that are all with this origin; one that another has won is opened again.
fn all_at(name: &str, local: SocketAddr) -> Vec<Session> {
    let one = |_| {
        wait::until(&format!("a session is with {name}"), SETTLE, || {
            let mut session = Session::open(local);
            (session.ask().as_deref() == Some(name)).then_some(session)
        })
    };
    (0..SESSIONS).map(one).collect()
}

/// The moments, from now on, at which the sessions have ended; meanwhile each new one succeeds.
fn ends(sessions: &mut Vec<Session>, local: SocketAddr) -> Vec<Duration> {
    let begun = wait::now();
    let mut moments = Vec::new();
    wait::until("all sessions have moved", SETTLE, || {
        assert!(Session::open(local).ask().is_some(), "a new session failed");
        let before = sessions.len();
        sessions.retain_mut(|session| !session.has_ended());
        moments.extend(vec![begun.elapsed(); before - sessions.len()]);
        sessions.is_empty().then_some(())
    });
    moments
}

fn meshport_at(world: &World, node: &str, verb: &[&str]) -> String {
    let state = world.at(node).state().to_string_lossy().into_owned();
    let socket = format!("{state}/meshport.sock");
    let arguments: Vec<&str> =
        verb.iter().copied().chain(["--service", SERVICE, "--socket", &socket]).collect();
    run_ok(&meshport().to_string_lossy(), &arguments)
}

#[test]
fn a_drained_origin_is_left_one_by_one_and_taken_up_again() {
    let (mut world, local) = world();
    everything_new_goes_to("cp-near", local);
    let mut sessions = all_at("cp-near", local);

    let said = meshport_at(&world, "cp-near", &["drain"]);
    println!("{}", said.trim_end());
    assert!(said.contains("draining"), "{said}");
    let moments = ends(&mut sessions, local);
    println!("{SESSIONS} sessions left the draining origin after {moments:?}");
    assert!(moments[0] < WINDOW && moments[SESSIONS - 1] > WINDOW / 2, "not spread: {moments:?}");
    assert!(moments[SESSIONS - 1] < WINDOW * 2, "not within the window: {moments:?}");
    let log = world.node_mut("worker").process().output();
    assert!(log.contains("the origin drains: sessions may end now"), "{log}");
    everything_new_goes_to("cp-far", local);
    let empty = meshport_at(&world, "cp-near", &["drain", "--wait", "20s"]);
    assert!(empty.contains("no session"), "{empty}");

    let mut away = all_at("cp-far", local);
    meshport_at(&world, "cp-near", &["undrain"]);
    everything_new_goes_to("cp-near", local);
    let moments = ends(&mut away, local);
    println!("{SESSIONS} sessions drifted home after {moments:?}");
    assert!(moments[SESSIONS - 1] - moments[0] > Duration::from_secs(4), "a storm: {moments:?}");
}
