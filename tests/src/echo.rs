//! A service that sends back what it gets, and sessions with it through nodes of a world.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::wait;
use crate::world::World;

/// The name of the service.
pub const SERVICE: &str = "echo";
/// How long a session may take to come about, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(40);

/// Starts the service; its address, and how many connections are open.
///
/// # Panics
/// When loopback has no port.
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

/// The settings of a node that uses it.
pub fn usage() -> String {
    format!("\n[service.{SERVICE}]\nlisten = [\"127.0.0.1:0\"]\n")
}

/// An open session of a node's client.
///
/// # Panics
/// When none comes about in time.
#[track_caller]
pub fn session(world: &World, node: &str) -> TcpStream {
    let local = wait::until("it listens", PATIENCE, || world.at(node).service(SERVICE));
    wait::until(&format!("a session from {node}"), PATIENCE, || {
        let mut session = TcpStream::connect(local).ok()?;
        session.set_read_timeout(Some(PATIENCE)).expect("a socket");
        answers(&mut session).then_some(session)
    })
}

/// Whether a session carries a byte there and back.
pub fn answers(session: &mut TcpStream) -> bool {
    session.write_all(b"?").is_ok() && session.read_exact(&mut [0]).is_ok()
}
