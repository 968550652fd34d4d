//! Clients of an address: a new TLS connection with a request every 50 ms, regardless of earlier
//! ones.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::wait;

mod held;

pub use held::{Held, HeldSeen};

const INTERVAL: Duration = Duration::from_millis(50);
/// How long a client waits for a connection: the kernel connects at once, or retries after a
/// second.
const CONNECT_PATIENCE: Duration = Duration::from_secs(1);
/// How long it waits for an answer, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(5);
const REQUEST: &str = "GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
/// Number of answers to wait for before and after a fault.
const SOME: usize = 30;
const SETTLE: Duration = Duration::from_secs(40);

/// The result of a connection.
#[derive(Debug)]
struct Outcome {
    begun: Instant,
    result: io::Result<()>,
    took: Duration,
}

/// A running series of clients.
#[derive(Debug)]
pub struct Clients {
    stop: Arc<AtomicBool>,
    outcomes: Arc<Mutex<Vec<Outcome>>>,
    /// Held by each connection from start to end.
    under_way: Arc<RwLock<()>>,
    thread: JoinHandle<()>,
}

/// The results of all clients.
#[derive(Debug)]
pub struct Seen {
    /// How many have ended.
    pub connections: usize,
    /// Failed connections, with time and reason.
    pub failed: Vec<String>,
    /// Time from the start of the first failed connection in a row to the start of the next
    /// successful one.
    pub gap: Duration,
    /// Duration of the slowest successful connection.
    pub slowest: Duration,
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { connections, failed, gap, slowest } = self;
        write!(
            f,
            "{connections} connections, {} failed, gap {} ms, slowest {} ms",
            failed.len(),
            gap.as_millis(),
            slowest.as_millis()
        )?;
        failed.iter().take(3).try_for_each(|why| write!(f, "; {why}"))
    }
}

impl Clients {
    /// Starts, on the calling thread's host.
    pub fn start(to: SocketAddr, authority: &Path) -> Self {
        let config = trusting(authority);
        let stop = Arc::new(AtomicBool::new(false));
        let outcomes = Arc::new(Mutex::new(Vec::new()));
        let under_way = Arc::new(RwLock::new(()));
        let (stopping, all, lock) = (stop.clone(), outcomes.clone(), under_way.clone());
        let thread = thread::spawn(move || {
            let mut next = wait::now();
            thread::scope(|scope| {
                while !stopping.load(Ordering::Relaxed) {
                    wait::pace(&mut next, INTERVAL);
                    scope.spawn(|| {
                        let _open = lock.read();
                        let begun = wait::now();
                        let result = ask(to, config.clone());
                        let outcome = Outcome { begun, result, took: begun.elapsed() };
                        all.lock().unwrap_or_else(PoisonError::into_inner).push(outcome);
                    });
                }
            });
        });
        Self { stop, outcomes, under_way, thread }
    }

    /// Runs a function while no connection is open.
    pub fn between_two(&self, work: impl FnOnce()) {
        let _none = self.under_way.write();
        work();
    }

    /// Waits until some more connections have been answered.
    #[track_caller]
    pub fn go_on(&self) {
        let answered = || {
            let all = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
            all.iter().filter(|it| it.result.is_ok()).count()
        };
        let goal = answered() + SOME;
        wait::until("clients are answered", SETTLE, || (answered() >= goal).then_some(()));
    }

    /// Ends them; returns their observations.
    pub fn finish(self) -> Seen {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("clients do not panic");
        let mut all = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
        all.sort_by_key(|it| it.begun);
        let (mut gap, mut since) = (Duration::ZERO, None);
        for Outcome { begun, result, .. } in all.iter() {
            match result {
                Ok(()) => since = None,
                Err(_) => {
                    let first = *since.get_or_insert(*begun);
                    gap = gap.max(*begun - first + INTERVAL);
                }
            }
        }
        let begin = all.first().map(|it| it.begun);
        let failed = all.iter().filter_map(|it| {
            let error = it.result.as_ref().err()?;
            let at = it.begun - begin?;
            Some(format!("at {at:.2?} after {:.0?}: {error}", it.took))
        });
        let answered = all.iter().filter(|it| it.result.is_ok()).map(|it| it.took);
        let slowest = answered.max().unwrap_or_default();
        Seen { connections: all.len(), failed: failed.collect(), gap, slowest }
    }
}

/// TLS settings that trust the apiservers.
pub fn trusting(authority: &Path) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(authority).expect("a file") {
        roots.add(certificate.expect("a certificate")).expect("an authority");
    }
    Arc::new(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth())
}

/// A connection whose handshake is still to come.
fn connect(
    to: SocketAddr,
    config: Arc<ClientConfig>,
) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
    let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
    let connection = ClientConnection::new(config, name).map_err(io::Error::other)?;
    let tcp = TcpStream::connect_timeout(&to, CONNECT_PATIENCE)?;
    tcp.set_read_timeout(Some(PATIENCE))?;
    Ok(StreamOwned::new(connection, tcp))
}

/// One connection with one request, until the end of the answer.
///
/// # Errors
/// Why no good answer arrived.
pub fn ask(to: SocketAddr, config: Arc<ClientConfig>) -> io::Result<()> {
    let mut tls = connect(to, config)?;
    tls.write_all(REQUEST.as_bytes())?;
    let mut answer = Vec::new();
    tls.read_to_end(&mut answer)?;
    if answer.starts_with(b"HTTP/1.1 200") {
        Ok(())
    } else {
        Err(io::Error::other(format!("answer {:?}", String::from_utf8_lossy(&answer))))
    }
}
