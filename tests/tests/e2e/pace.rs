//! A client that opens connections and resets them gets sessions at a bounded rate; others do not
//! notice.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use meshport_tests::echo::{self, SERVICE, session};
use meshport_tests::process::run_ok;
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};
use rustix::net::sockopt;

const SETTLE: Duration = Duration::from_secs(40);
/// Connections of a flood: many times as many as one user may open without using them.
const FLOOD: usize = 10_000;
/// Requests of another user during a flood.
const OTHERS: usize = 50;

/// A service that sends back a byte and closes; how many have connected.
fn one_byte_each() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("bound");
    let connected = Arc::new(AtomicUsize::new(0));
    let count = connected.clone();
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            count.fetch_add(1, Ordering::SeqCst);
            thread::spawn(move || {
                let mut byte = [0; 1];
                client.read_exact(&mut byte).and_then(|()| client.write_all(&byte))
            });
        }
    });
    (address, connected)
}

/// Opens connections and resets them until it is stopped, and counts them.
fn open_and_reset(at: SocketAddr, opened: &AtomicUsize, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        // One that is refused costs nobody anything.
        if let Ok(stream) = TcpStream::connect(at) {
            opened.fetch_add(1, Ordering::Relaxed);
            // What is closed with this has no end but a reset.
            let _ = sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
        }
    }
}

#[test]
#[ignore = "needs root to be another user: ./tests/run e2e"]
fn a_user_that_opens_and_resets_connections_slows_down_itself_alone() {
    let (address, connected) = one_byte_each();
    let mut world = World::new();
    let origin = NodePlan::new("cp-a", "a").role(&format!("origin:{SERVICE}"));
    world.node(&origin.settings(&echo::offer(address)));
    world.node(&NodePlan::new("worker-b", "b").settings(&echo::usage()));
    world.meet();
    let local = wait::until("it listens", SETTLE, || world.at("worker-b").service(SERVICE));
    drop(session(&world, "worker-b"));
    let (before, begun) = (connected.load(Ordering::SeqCst), wait::now());
    let stop = Arc::new(AtomicBool::new(false));
    let opened = Arc::new(AtomicUsize::new(0));
    let floods = [(); 2].map(|()| {
        let (opened, stop) = (opened.clone(), stop.clone());
        thread::spawn(move || open_and_reset(local, &opened, &stop))
    });
    wait::until("it is a flood", SETTLE, || (opened.load(Ordering::Relaxed) > FLOOD).then_some(()));
    let script = format!(
        "for i in $(seq {OTHERS}); do exec 3<>/dev/tcp/{}/{}; printf x >&3; head -c 1 <&3; done",
        local.ip(),
        local.port()
    );
    let other = ["--reuid", "65534", "--regid", "65534", "--clear-groups", "bash", "-c", &script];
    let answers = run_ok("setpriv", &other);
    stop.store(true, Ordering::Relaxed);
    floods.into_iter().for_each(|it| it.join().expect("it does not panic"));
    let opened = opened.load(Ordering::Relaxed);
    let seconds = begun.elapsed().as_secs_f64();
    let reached = connected.load(Ordering::SeqCst) - before;
    println!("{opened} opened in {seconds:.1} s, {reached} reached the service");
    assert_eq!(answers, "x".repeat(OTHERS), "another user is served meanwhile");
    // The limits of all and of one user, with the credit gained in that time.
    let most = 128.0 + 512.0 + (100.0 + 50.0) * seconds + OTHERS as f64;
    assert!(reached as f64 <= most, "{reached} of {opened} reached the service in {seconds} s");
}
