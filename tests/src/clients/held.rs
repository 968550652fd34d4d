//! Held connections: each sends a request at intervals and is replaced when it ends.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustls::{ClientConfig, ClientConnection, StreamOwned};

use super::{PATIENCE, REQUEST, connect};
use crate::wait;

const COUNT: usize = 20;
const INTERVAL: Duration = Duration::from_millis(250);
/// More bytes than the head and the body of an answer.
const MAX_ANSWER: usize = 4096;

type Stream = StreamOwned<ClientConnection, TcpStream>;

/// Twenty clients that hold a connection each.
#[derive(Debug)]
pub struct Held {
    stop: Arc<AtomicBool>,
    all: Vec<Arc<Mutex<HeldSeen>>>,
    threads: Vec<JoinHandle<()>>,
}

/// Observations of clients that hold a connection.
#[derive(Clone, Debug, Default)]
pub struct HeldSeen {
    /// Requests that were answered.
    pub answered: usize,
    /// Connections that ended, with or without a request in progress.
    pub ended: usize,
    /// Requests in progress when their connection ended, after earlier ones on it.
    pub lost: usize,
    /// The largest number of those for one client.
    pub most_lost: usize,
    /// The longest time from one answer of a client to its next.
    pub silence: Duration,
    /// New connections that failed or did not answer, with time and reason.
    pub failed: Vec<String>,
}

impl HeldSeen {
    fn add(&mut self, own: &Self) {
        self.answered += own.answered;
        self.ended += own.ended;
        self.lost += own.lost;
        self.most_lost = self.most_lost.max(own.lost);
        self.silence = self.silence.max(own.silence);
        self.failed.extend(own.failed.iter().cloned());
    }
}

impl fmt::Display for HeldSeen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { answered, ended, lost, most_lost, silence, failed } = self;
        write!(
            f,
            "held: {answered} answers, {ended} connections ended, {lost} requests lost with them \
             (at most {most_lost} of one client), {} failed, longest silence {} ms",
            failed.len(),
            silence.as_millis()
        )?;
        failed.iter().take(3).try_for_each(|why| write!(f, "; {why}"))
    }
}

impl Held {
    /// Starts, on the calling thread's host.
    pub fn start(to: SocketAddr, config: &Arc<ClientConfig>) -> Self {
        let (stop, begin) = (Arc::new(AtomicBool::new(false)), wait::now());
        let all: Vec<_> = (0..COUNT).map(|_| Arc::default()).collect();
        let one = |own: &Arc<Mutex<HeldSeen>>| {
            let (stop, config) = (Arc::clone(&stop), Arc::clone(config));
            let client = Client { to, config, stop, begin, seen: Arc::clone(own) };
            thread::spawn(move || client.go_on())
        };
        let threads = all.iter().map(one).collect();
        Self { stop, all, threads }
    }

    /// Ends them; returns their observations.
    pub fn finish(self) -> HeldSeen {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().expect("they do not panic"));
        let mut sum = HeldSeen::default();
        for own in &self.all {
            sum.add(&own.lock().unwrap_or_else(PoisonError::into_inner));
        }
        sum
    }
}

/// One client.
struct Client {
    to: SocketAddr,
    config: Arc<ClientConfig>,
    stop: Arc<AtomicBool>,
    begin: Instant,
    seen: Arc<Mutex<HeldSeen>>,
}

impl Client {
    fn go_on(&self) {
        let (mut next, mut last) = (wait::now(), wait::now());
        while !self.is_stopped() {
            let at = self.begin.elapsed();
            match self.open() {
                Ok(stream) => {
                    self.answered(&mut last);
                    self.hold(stream, &mut last);
                }
                Err(error) => self.note(|seen| seen.failed.push(format!("at {at:.2?}: {error}"))),
            }
            wait::pace(&mut next, INTERVAL);
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn note(&self, change: impl FnOnce(&mut HeldSeen)) {
        change(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Records an answer, and the time since the previous one.
    fn answered(&self, last: &mut Instant) {
        let before = std::mem::replace(last, wait::now());
        self.note(|seen| {
            seen.answered += 1;
            seen.silence = seen.silence.max(*last - before);
        });
    }

    /// A connection that has answered once.
    fn open(&self) -> io::Result<Stream> {
        let mut stream = connect(self.to, Arc::clone(&self.config))?;
        exchange(&mut stream)?;
        Ok(stream)
    }

    /// Sends requests until the connection ends.
    fn hold(&self, mut stream: Stream, last: &mut Instant) {
        let mut next = wait::now() + INTERVAL;
        loop {
            wait::pace(&mut next, INTERVAL);
            if self.is_stopped() {
                return;
            }
            if has_ended(&stream.sock) {
                return self.note(|seen| seen.ended += 1);
            }
            match exchange(&mut stream) {
                Ok(()) => self.answered(last),
                Err(_) => {
                    return self.note(|seen| {
                        seen.ended += 1;
                        seen.lost += 1;
                    });
                }
            }
        }
    }
}

/// Whether the other end has closed an idle connection, or is about to.
fn has_ended(tcp: &TcpStream) -> bool {
    let look = || {
        tcp.set_nonblocking(true)?;
        let seen = tcp.peek(&mut [0]);
        tcp.set_nonblocking(false)?;
        seen
    };
    !look().is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

/// One request and its answer.
fn exchange(stream: &mut Stream) -> io::Result<()> {
    debug_assert!(stream.sock.read_timeout()? == Some(PATIENCE));
    stream.write_all(REQUEST.replace("close", "keep-alive").as_bytes())?;
    let (mut answer, mut buffer) = (Vec::new(), [0; MAX_ANSWER]);
    loop {
        match stream.read(&mut buffer)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            length => answer.extend_from_slice(&buffer[..length]),
        }
        if is_whole(&answer) {
            return Ok(());
        }
    }
}

fn is_whole(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer).to_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    length.and_then(|length| length.parse::<usize>().ok()).is_some_and(|it| body.len() >= it)
}
