//! Clients of an address: a new TLS connection with a request every 50 ms, whatever happened to
//! earlier ones.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use meshport_tests::wait;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, Stream};

const INTERVAL: Duration = Duration::from_millis(50);
/// After this a connection counts as failed.
const PATIENCE: Duration = Duration::from_secs(1);
/// Answers that are waited for before and after a fault.
const SOME: usize = 30;
const SETTLE: Duration = Duration::from_secs(40);

/// The result of a connection.
#[derive(Debug)]
struct Outcome {
    begun: Instant,
    result: io::Result<()>,
    took: Duration,
}

#[derive(Debug)]
pub(super) struct Clients {
    stop: Arc<AtomicBool>,
    outcomes: Arc<Mutex<Vec<Outcome>>>,
    thread: JoinHandle<()>,
}

/// The results of all clients.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) connections: usize,
    /// Failed connections, with time and reason.
    pub(super) failed: Vec<String>,
    /// Those of them that were reset: open at a node that was no longer the holder.
    pub(super) resets: usize,
    /// Time from the start of the first of several failures in a row to the start of the next
    /// success.
    pub(super) gap: Duration,
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { connections, failed, gap, .. } = self;
        write!(
            f,
            "{connections} connections, {} failed, gap {} ms",
            failed.len(),
            gap.as_millis()
        )?;
        failed.iter().take(3).try_for_each(|why| write!(f, "; {why}"))
    }
}

impl Clients {
    /// Begins, on the host that this is called on.
    pub(super) fn start(to: SocketAddr, authority: &Path) -> Self {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(authority).expect("a file") {
            roots.add(certificate.expect("a certificate")).expect("an authority");
        }
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let (config, stop) = (Arc::new(config), Arc::new(AtomicBool::new(false)));
        let outcomes = Arc::new(Mutex::new(Vec::new()));
        let (stopping, all) = (stop.clone(), outcomes.clone());
        let thread = thread::spawn(move || {
            let mut next = wait::now();
            thread::scope(|scope| {
                while !stopping.load(Ordering::Relaxed) {
                    wait::pace(&mut next, INTERVAL);
                    scope.spawn(|| {
                        let begun = wait::now();
                        let result = ask(to, config.clone());
                        let outcome = Outcome { begun, result, took: begun.elapsed() };
                        all.lock().unwrap_or_else(PoisonError::into_inner).push(outcome);
                    });
                }
            });
        });
        Self { stop, outcomes, thread }
    }

    /// Waits until some more have been answered.
    pub(super) fn go_on(&self) {
        let answered = || {
            let all = self.outcomes.lock().unwrap_or_else(PoisonError::into_inner);
            all.iter().filter(|it| it.result.is_ok()).count()
        };
        let goal = answered() + SOME;
        wait::until("clients are answered", SETTLE, || (answered() >= goal).then_some(()));
    }

    /// Ends them; what they have seen.
    pub(super) fn finish(self) -> Seen {
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
        let is_reset = |it: &&Outcome| {
            it.result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset)
        };
        let resets = all.iter().filter(is_reset).count();
        Seen { connections: all.len(), failed: failed.collect(), resets, gap }
    }
}

/// A connection with one request.
fn ask(to: SocketAddr, config: Arc<ClientConfig>) -> io::Result<()> {
    let name = ServerName::try_from("localhost").map_err(io::Error::other)?;
    let mut connection = ClientConnection::new(config, name).map_err(io::Error::other)?;
    let mut tcp = TcpStream::connect_timeout(&to, PATIENCE)?;
    tcp.set_read_timeout(Some(PATIENCE))?;
    let mut tls = Stream::new(&mut connection, &mut tcp);
    tls.write_all(b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut status = [0; 12];
    tls.read_exact(&mut status)?;
    if &status == b"HTTP/1.1 200" { Ok(()) } else { Err(io::Error::other("another status")) }
}
