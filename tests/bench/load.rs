//! The clients: a separate process on the client's host, controlled by its command line, so that
//! its processor time can be separated. It prints its results as one line of JSON.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use meshport_tests::wait;
use serde::{Deserialize, Serialize};

use crate::wire::{BLOCK_BYTES, Purpose, TLS_RECORD};

/// The size of a small request and of its answer, in bytes.
const SMALL: usize = 64;
/// How long any single step of a client may take.
const LIMIT: Duration = Duration::from_secs(30);
/// Clients that connect at the same time in the workload of new connections.
const CONNECTORS: usize = 8;

/// The workload of the clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Work {
    /// Bulk streams from the client to the server.
    Upload,
    /// Bulk streams from the server to the client.
    Download,
    /// Small requests, one at a time, on each open connection.
    Request,
    /// The same on one connection during saturating downloads.
    RequestBesideBulk,
    /// New connections one after another that begin as TLS does: time from the connect to the first
    /// byte of an answer.
    FirstByte,
    /// The same, beginning with a byte of no known protocol.
    FirstBytePlain,
    /// New connections that begin as TLS does, as fast as eight clients open them.
    Connect,
    /// Answers of a given length, each on a new connection, one after another.
    List,
    /// Connections that have answered once and then wait until the process is ended.
    Idle,
}

/// The work to do, and for how long.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Job {
    /// The balancer's address
    #[arg(long)]
    pub(crate) at: SocketAddr,
    #[arg(long)]
    pub(crate) work: Work,
    #[arg(long)]
    pub(crate) connections: usize,
    #[arg(long)]
    pub(crate) millis: u64,
    /// Bytes of each answer; for lists only
    #[arg(long, default_value_t = 0)]
    pub(crate) bytes: u64,
}

/// Results of the clients.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Seen {
    /// Bytes that arrived; for bulk only.
    pub(crate) bytes: u64,
    /// Time from the first byte to the last.
    pub(crate) seconds: f64,
    /// Bytes of the slowest stream divided by those of the fastest.
    pub(crate) fairness: Option<f64>,
    /// Microseconds of each small exchange, or of each new connection; sorted.
    pub(crate) micros: Vec<u64>,
    /// New connections that were made.
    pub(crate) connected: u64,
    /// Number of failures.
    pub(crate) failed: u64,
}

/// Does it.
///
/// # Errors
/// If a required connection fails.
pub(crate) fn run(job: Job) -> io::Result<Seen> {
    match job.work {
        Work::Upload => bulk(job, Purpose::Upload),
        Work::Download => bulk(job, Purpose::Download),
        Work::Request => requests(job),
        Work::RequestBesideBulk => requests_beside_bulk(job),
        Work::FirstByte => Ok(new_ones(job, 1, &TLS_RECORD)),
        Work::FirstBytePlain => Ok(new_ones(job, 1, &[])),
        Work::Connect => Ok(new_ones(job, CONNECTORS, &TLS_RECORD)),
        Work::List => lists(job),
        Work::Idle => idle(job),
    }
}

fn open(at: SocketAddr, purpose: Purpose) -> io::Result<TcpStream> {
    connect(at, &[purpose.byte()])
}

/// A connection that has sent this much.
fn connect(at: SocketAddr, first: &[u8]) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(at)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    stream.write_all(first)?;
    Ok(stream)
}

/// A small request and its answer.
fn exchange(stream: &mut TcpStream) -> io::Result<()> {
    let mut answer = [0; SMALL];
    stream.write_all(&[0x21; SMALL])?;
    stream.read_exact(&mut answer)
}

fn since(begun: Instant) -> u64 {
    u64::try_from(wait::now().saturating_duration_since(begun).as_micros()).unwrap_or(u64::MAX)
}

/// Running bulk streams, until they are stopped.
struct Bulk {
    stop: Arc<AtomicBool>,
    streams: Vec<JoinHandle<io::Result<u64>>>,
}

impl Bulk {
    fn start(at: SocketAddr, purpose: Purpose, connections: usize) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        // All connect before the first one sends.
        let all: Vec<TcpStream> =
            (0..connections).map(|_| open(at, purpose)).collect::<io::Result<_>>()?;
        let begin = Arc::new(Barrier::new(connections));
        let streams = all.into_iter().map(|stream| {
            let (stop, begin) = (stop.clone(), begin.clone());
            thread::spawn(move || {
                begin.wait();
                match purpose {
                    Purpose::Upload => upload(stream, &stop),
                    Purpose::Download | Purpose::Echo => download(stream, &stop),
                }
            })
        });
        let streams = streams.collect();
        Ok(Self { stop, streams })
    }

    /// The bytes of each stream.
    fn finish(self) -> io::Result<Vec<u64>> {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.streams.into_iter().map(|it| it.join().expect("no client panics"));
        ended.collect()
    }
}

fn upload(mut stream: TcpStream, stop: &AtomicBool) -> io::Result<u64> {
    let block = vec![0x5a; BLOCK_BYTES];
    while !stop.load(Ordering::Relaxed) {
        stream.write_all(&block)?;
    }
    stream.shutdown(Shutdown::Write)?;
    let mut count = [0; 8];
    stream.read_exact(&mut count)?;
    Ok(u64::from_be_bytes(count))
}

fn download(mut stream: TcpStream, stop: &AtomicBool) -> io::Result<u64> {
    let mut block = vec![0; BLOCK_BYTES];
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        match stream.read(&mut block)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => count += read as u64,
        }
    }
    Ok(count)
}

fn bulk(job: Job, purpose: Purpose) -> io::Result<Seen> {
    let bulk = Bulk::start(job.at, purpose, job.connections)?;
    let begun = wait::now();
    wait::moment(begun + Duration::from_millis(job.millis));
    let bytes = bulk.finish()?;
    let seconds = wait::now().saturating_duration_since(begun).as_secs_f64();
    let fairness = bytes.iter().min().zip(bytes.iter().max());
    let fairness =
        fairness.filter(|(_, most)| **most > 0).map(|(least, most)| share(*least, *most));
    Ok(Seen { bytes: bytes.iter().sum(), seconds, fairness, ..Seen::default() })
}

#[expect(clippy::cast_precision_loss, reason = "a ratio of byte counts, shown with two places")]
fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

/// As many lists as there are connections, within the time.
fn lists(job: Job) -> io::Result<Seen> {
    let begun = wait::now();
    let until = begun + Duration::from_millis(job.millis);
    let mut block = vec![0; BLOCK_BYTES];
    let mut seen = Seen::default();
    for _ in 0..job.connections {
        let begun = wait::now();
        let mut stream = open(job.at, Purpose::Download)?;
        let mut left = job.bytes;
        while left > 0 && wait::now() < until {
            let most = block.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            match stream.read(&mut block[..most])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => left -= read as u64,
            }
        }
        seen.bytes += job.bytes - left;
        if left > 0 {
            break;
        }
        seen.micros.push(since(begun));
    }
    seen.seconds = wait::now().saturating_duration_since(begun).as_secs_f64();
    Ok(seen)
}

fn requests(job: Job) -> io::Result<Seen> {
    let begun = wait::now();
    let until = begun + Duration::from_millis(job.millis);
    let mut clients = Vec::new();
    for _ in 0..job.connections {
        let mut stream = open(job.at, Purpose::Echo)?;
        exchange(&mut stream)?;
        clients.push(thread::spawn(move || {
            let mut micros = Vec::new();
            while wait::now() < until {
                let begun = wait::now();
                exchange(&mut stream)?;
                micros.push(since(begun));
            }
            Ok(micros)
        }));
    }
    let mut micros = Vec::new();
    for client in clients {
        let seen: io::Result<Vec<u64>> = client.join().expect("no client panics");
        micros.extend(seen?);
    }
    micros.sort_unstable();
    let seconds = wait::now().saturating_duration_since(begun).as_secs_f64();
    Ok(Seen { seconds, micros, ..Seen::default() })
}

fn requests_beside_bulk(job: Job) -> io::Result<Seen> {
    let bulk = Bulk::start(job.at, Purpose::Download, job.connections)?;
    let seen = requests(Job { connections: 1, ..job });
    let bytes = bulk.finish()?.iter().sum();
    Ok(Seen { bytes, ..seen? })
}

/// New connections, each used once, from this many clients at once; `header` is sent first.
fn new_ones(job: Job, clients: usize, header: &'static [u8]) -> Seen {
    let first = [header, &[Purpose::Echo.byte(), 1]].concat();
    let begun = wait::now();
    let until = begun + Duration::from_millis(job.millis);
    let one = move |first: Vec<u8>| {
        let (mut micros, mut failed) = (Vec::new(), 0);
        while wait::now() < until {
            let begun = wait::now();
            let answered = connect(job.at, &first).and_then(|mut it| it.read_exact(&mut [0]));
            match answered {
                Ok(()) => micros.push(since(begun)),
                Err(_) => failed += 1,
            }
        }
        (micros, failed)
    };
    let clients: Vec<_> = (0..clients)
        .map(|_| {
            let first = first.clone();
            thread::spawn(move || one(first))
        })
        .collect();
    let mut seen = Seen::default();
    for client in clients {
        let (micros, failed) = client.join().expect("no client panics");
        seen.micros.extend(micros);
        seen.failed += failed;
    }
    seen.micros.sort_unstable();
    seen.connected = seen.micros.len() as u64;
    seen.seconds = wait::now().saturating_duration_since(begun).as_secs_f64();
    seen
}

fn idle(job: Job) -> io::Result<Seen> {
    let begun = wait::now();
    let mut held = Vec::with_capacity(job.connections);
    for _ in 0..job.connections {
        let mut stream = open(job.at, Purpose::Echo)?;
        exchange(&mut stream)?;
        held.push(stream);
    }
    let seconds = wait::now().saturating_duration_since(begun).as_secs_f64();
    let seen = Seen { seconds, connected: held.len() as u64, ..Seen::default() };
    crate::print_line(&serde_json::to_string(&seen).expect("plain values"));
    wait::moment(wait::now() + Duration::from_millis(job.millis));
    Ok(seen)
}
