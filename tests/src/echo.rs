//! An echo service, and sessions to it through nodes of a world.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::wait;
use crate::world::World;

/// The name of the service.
pub const SERVICE: &str = "echo";
/// Interval between two bytes of a flow.
const FLOW_INTERVAL: Duration = Duration::from_millis(10);
/// Deadline for opening a session on a busy machine.
const PATIENCE: Duration = Duration::from_secs(40);

/// Starts the service; returns its address and the number of open connections.
pub fn serve() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = listener.local_addr().expect("bound");
    let open = Arc::new(AtomicUsize::new(0));
    let count = open.clone();
    thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let count = count.clone();
            thread::spawn(move || {
                count.fetch_add(1, Ordering::SeqCst);
                let mut byte = [0; 1];
                while matches!(client.read(&mut byte), Ok(1)) && client.write_all(&byte).is_ok() {}
                count.fetch_sub(1, Ordering::SeqCst);
            });
        }
    });
    (address, open)
}

/// The settings of a node that offers the service at `address`.
pub fn offer(address: SocketAddr) -> String {
    format!("\n[service.{SERVICE}]\nlisten = []\norigin = \"{address}\"\n")
}

/// The settings of a node that uses the service.
pub fn usage() -> String {
    format!("\n[service.{SERVICE}]\nlisten = [\"127.0.0.1:0\"]\n")
}

/// An open session of a node's client.
#[track_caller]
pub fn session(world: &World, node: &str) -> TcpStream {
    let local = wait::until("it listens", PATIENCE, || world.at(node).service(SERVICE));
    wait::until(&format!("a session from {node}"), PATIENCE, || {
        let mut session = TcpStream::connect(local).ok()?;
        session.set_read_timeout(Some(PATIENCE)).expect("a socket");
        answers(&mut session).then_some(session)
    })
}

/// Whether a session echoes a byte.
pub fn answers(session: &mut TcpStream) -> bool {
    session.write_all(b"?").is_ok() && session.read_exact(&mut [0]).is_ok()
}

/// A session on which bytes are echoed until it is ended.
#[derive(Debug)]
pub struct Flow {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<u64, u64>>,
}

impl Flow {
    /// Starts on an open session.
    pub fn start(session: TcpStream) -> Self {
        Self::every(FLOW_INTERVAL, session)
    }

    /// Starts on an open session, with one byte per interval.
    pub fn every(interval: Duration, mut session: TcpStream) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            let (mut count, mut next) = (0, wait::now());
            while !stopped.load(Ordering::Relaxed) {
                if !answers(&mut session) {
                    return Err(count);
                }
                count += 1;
                wait::pace(&mut next, interval);
            }
            Ok(count)
        });
        Self { stop, thread }
    }

    /// Whether it is still open.
    pub fn goes_on(&self) -> bool {
        !self.thread.is_finished()
    }

    /// Ends it; returns the number of echoed bytes.
    #[track_caller]
    pub fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("it does not panic").expect("the session ended by itself")
    }
}
