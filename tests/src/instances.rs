//! Instances of a service that start and stop, and a client that connects continuously.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::wait;

/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Deadline for the connections of one part of a test.
const PART: Duration = Duration::from_secs(60);

/// An instance, which echoes its input until the connection ends. Its port is closed with it.
#[derive(Debug)]
pub struct Instance {
    /// Its listening address.
    pub address: SocketAddr,
    stop: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Instance {
    /// Starts an instance at an address.
    pub fn start(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).expect("the address is free");
        let address = listener.local_addr().expect("bound");
        let (stop, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stopped, count) = (stop.clone(), served.clone());
        let task = thread::spawn(move || {
            let serve = |client| {
                let count = count.clone();
                thread::spawn(move || echo(client, &count));
            };
            for client in listener.incoming().flatten() {
                serve(client);
                if stopped.load(Ordering::SeqCst) {
                    break;
                }
            }
            // Connections that wait to be accepted would be reset, which no proxy can recover from.
            listener.set_nonblocking(true).expect("a socket");
            while let Ok((client, _)) = listener.accept() {
                client.set_nonblocking(false).expect("a socket");
                serve(client);
            }
        });
        Self { address, stop, served, task }
    }

    /// Number of connections that it has accepted.
    pub fn served(&self) -> usize {
        self.served.load(Ordering::SeqCst)
    }

    /// Closes its port; open connections continue. Call this on a host that reaches its address.
    pub fn end(self) {
        self.stop.store(true, Ordering::SeqCst);
        // It may have ended with another client's connection.
        let _ = TcpStream::connect(self.address);
        self.task.join().expect("it ends");
    }
}

fn echo(mut client: TcpStream, served: &AtomicUsize) {
    let mut byte = [0; 1];
    served.fetch_add(1, Ordering::SeqCst);
    while matches!(client.read(&mut byte), Ok(1)) && client.write_all(&byte).is_ok() {}
}

/// Sends a byte to an instance, and waits for it to come back.
pub fn ask(client: &mut TcpStream) -> io::Result<()> {
    client.write_all(b"?")?;
    client.read_exact(&mut [0; 1])
}

/// Opens a connection to an instance and waits for its answer.
///
/// # Errors
/// Those of the connection.
pub fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let mut client = TcpStream::connect_timeout(&address, PATIENCE)?;
    client.set_read_timeout(Some(PATIENCE))?;
    ask(&mut client)?;
    Ok(client)
}

/// New connections at a steady pace, regardless of how long each one takes.
#[derive(Debug)]
pub struct Load {
    counts: Arc<Counts>,
    task: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Counts {
    stop: AtomicBool,
    tried: AtomicUsize,
    failed: AtomicUsize,
}

impl Load {
    /// Starts a connection every `interval`, in the network of the calling thread.
    #[expect(clippy::print_stdout, reason = "a failure for the reader of a test run")]
    pub fn start(
        interval: Duration,
        connect: impl Fn() -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let (counts, connect) = (Arc::new(Counts::default()), Arc::new(connect));
        let shared = counts.clone();
        let task = thread::spawn(move || {
            let (mut clients, mut next) = (Vec::new(), wait::now());
            while !shared.stop.load(Ordering::SeqCst) {
                let (counts, connect) = (shared.clone(), connect.clone());
                clients.push(thread::spawn(move || {
                    if let Err(error) = connect() {
                        println!("a connection failed: {error}");
                        counts.failed.fetch_add(1, Ordering::SeqCst);
                    }
                    counts.tried.fetch_add(1, Ordering::SeqCst);
                }));
                wait::pace(&mut next, interval);
            }
            clients.into_iter().for_each(|client| client.join().expect("it ends"));
        });
        Self { counts, task }
    }

    /// Waits until that many more connections have ended.
    #[track_caller]
    pub fn goes_on(&self, what: &str, more: usize) {
        let tried = || self.counts.tried.load(Ordering::SeqCst);
        let from = tried();
        wait::until(what, PART, || (tried() >= from + more).then_some(()));
    }

    /// Ends it; returns the number of connections and how many failed.
    pub fn finish(self) -> (usize, usize) {
        self.counts.stop.store(true, Ordering::SeqCst);
        self.task.join().expect("it ends");
        let count = |it: &AtomicUsize| it.load(Ordering::SeqCst);
        (count(&self.counts.tried), count(&self.counts.failed))
    }
}
