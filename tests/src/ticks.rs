//! A service that sends continuously, and a client that records when it received something: a model
//! of an open watch.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::wait;

/// Interval between the messages of the service: short compared with the measured times.
const INTERVAL: Duration = Duration::from_millis(20);
/// A word of the service: the time it was sent, in microseconds since [`begun`], big-endian.
const WORD: usize = 8;
/// The pause before a client that lost its connection reconnects.
const RECONNECT: Duration = Duration::from_millis(50);
/// How often a waiting client checks whether it should end.
const LOOK: Duration = Duration::from_millis(100);
/// The first bytes of a client.
const WATCH: &[u8] = b"watch\n";

/// Starts a service on loopback that runs as long as the process: it sends a message every few
/// milliseconds to each client that requests it.
pub fn serve() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = listener.local_addr().expect("a bound socket has an address");
    thread::spawn(move || serve_on(&listener));
    address
}

/// Serves clients of a listener; never returns.
pub fn serve_on(listener: &TcpListener) {
    for client in listener.incoming().flatten() {
        thread::spawn(move || talk(client));
    }
}

/// Origin of the times of service and clients.
fn begun() -> Instant {
    static BEGUN: OnceLock<Instant> = OnceLock::new();
    *BEGUN.get_or_init(wait::now)
}

fn talk(mut client: TcpStream) {
    let mut wanted = [0; WATCH.len()];
    if client.set_nodelay(true).is_err() || client.read_exact(&mut wanted).is_err() {
        return;
    }
    let mut next = wait::now();
    let word = || u64::try_from(begun().elapsed().as_micros()).unwrap_or(u64::MAX).to_be_bytes();
    while client.write_all(&word()).is_ok() {
        wait::pace(&mut next, INTERVAL);
    }
}

/// A received word.
#[derive(Debug, Clone, Copy)]
struct Word {
    said: Instant,
    heard: Instant,
}

/// A client of such a service that reconnects whenever it is cut off.
#[derive(Debug)]
pub struct Watch {
    stop: Arc<AtomicBool>,
    heard: Arc<Mutex<Vec<Word>>>,
    connections: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Watches the service behind `address`.
    pub fn start(address: SocketAddr) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let heard = Arc::new(Mutex::new(Vec::new()));
        let connections = Arc::new(AtomicU64::new(0));
        let (stopping, hearing, counting) = (stop.clone(), heard.clone(), connections.clone());
        let thread = thread::spawn(move || {
            while !stopping.load(Ordering::Relaxed) {
                if let Ok(stream) = TcpStream::connect(address) {
                    counting.fetch_add(1, Ordering::Relaxed);
                    listen(stream, &hearing, &stopping);
                }
                wait::moment(wait::now() + RECONNECT);
            }
        });
        Self { stop, heard, connections, thread: Some(thread) }
    }

    /// Number of connections it has made.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// Time at which it first received a message sent at or after `moment`.
    pub fn heard_after(&self, moment: Instant) -> Option<Instant> {
        let heard = self.heard.lock().expect("no holder of this lock panics");
        heard.iter().find(|word| word.said >= moment).map(|word| word.heard)
    }

    /// The longest time since `moment` without a message, including the time up to now.
    pub fn longest_gap(&self, moment: Instant) -> Duration {
        let heard = self.heard.lock().expect("no holder of this lock panics");
        let (mut last, mut longest) = (moment, Duration::ZERO);
        let since = heard.iter().map(|word| word.heard).filter(|at| *at >= moment);
        for at in since.chain([wait::now()]) {
            longest = longest.max(at.saturating_duration_since(last));
            last = at;
        }
        longest
    }

    /// Waits until it receives a message sent after `moment`; returns how long after.
    ///
    /// # Panics
    /// If that takes longer than `limit`.
    #[track_caller]
    pub fn silent_after(&self, moment: Instant, limit: Duration) -> Duration {
        let at = wait::until("the watch hears again", limit, || self.heard_after(moment));
        at.duration_since(moment)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Its panic has been printed.
            let _ = thread.join();
        }
    }
}

fn listen(mut stream: TcpStream, heard: &Mutex<Vec<Word>>, stop: &AtomicBool) {
    let ready = stream.set_read_timeout(Some(LOOK)).is_ok() && stream.write_all(WATCH).is_ok();
    let (mut buffer, mut pending) = ([0; 4096], Vec::new());
    while ready && !stop.load(Ordering::Relaxed) {
        match stream.read(&mut buffer) {
            Ok(0) => return,
            Ok(length) => {
                pending.extend_from_slice(&buffer[..length]);
                let whole = pending.len() / WORD * WORD;
                let words = pending.drain(..whole).collect::<Vec<u8>>();
                let words = words.chunks_exact(WORD).filter_map(|word| word.try_into().ok());
                let said = |word| begun() + Duration::from_micros(u64::from_be_bytes(word));
                let words = words.map(|word| Word { said: said(word), heard: wait::now() });
                heard.lock().expect("no holder of this lock panics").extend(words);
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_gap_is_found_wherever_it_is() {
        let now = wait::now();
        let before = |ms: u64| now - Duration::from_millis(ms);
        let watch = |heard: &[u64]| Watch {
            stop: Arc::default(),
            heard: Arc::new(Mutex::new(
                heard.iter().map(|ms| Word { said: before(*ms), heard: before(*ms) }).collect(),
            )),
            connections: Arc::default(),
            thread: None,
        };
        let gap_ms = |heard: &[u64]| watch(heard).longest_gap(before(10_000)).as_millis();
        // Up to the first word, between two words, and after the last one: all the silent time.
        for (heard, gap) in [
            (&[20_000, 4_000, 3_000, 1_000][..], 6_000),
            (&[9_000, 8_000, 2_000, 1_000], 6_000),
            (&[9_000, 8_000, 7_000, 6_000], 6_000),
            (&[], 10_000),
        ] {
            assert!((gap..gap + 900).contains(&gap_ms(heard)), "{heard:?}: {}", gap_ms(heard));
        }
    }

    #[test]
    fn a_watch_hears_and_comes_back() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let watch = Watch::start(listener.local_addr().expect("bound"));
        let (first, _) = listener.accept().expect("it connects");
        drop(first);
        let (second, _) = listener.accept().expect("it comes back");
        let at = wait::now();
        thread::spawn(move || talk(second));
        watch.silent_after(at, Duration::from_secs(10));
        assert_eq!(watch.connections(), 2);
    }
}
