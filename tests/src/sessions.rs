//! Clients with long-lived sessions, and what they observe: watches over HTTP/1.1 and HTTP/2, each
//! on its own connection, plus new connections at a fixed rate.
//!
//! A watch is broken if it ends before the test ends it, misses a line, or is silent at the end.
//! Its client then opens another, as a Kubernetes client does.

use std::collections::BTreeMap;
use std::error::Error;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use serde::Serialize;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::clients::trusting;
use crate::wait;

/// How long a client waits for a connection and its first answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a watch may be silent at the end of a test; the stand-in sends a line a second.
const SILENCE: Duration = Duration::from_secs(5);
/// Interval between opening watches, so that the machine can keep up.
const STAGGER: Duration = Duration::from_millis(5);
/// Pauses before another watch: up to a second, as in clients that add jitter.
const PAUSES: usize = 20;
const PAUSE: Duration = Duration::from_millis(50);

/// Number of sessions of each kind.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Watches over HTTP/1.1.
    pub plain: usize,
    /// Watches over HTTP/2.
    pub h2: usize,
    /// New connections per second, with one request each; zero for none.
    pub per_second: u32,
}

/// The clients' observations.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SessionsSeen {
    /// Connections started, including those of watches.
    pub connections: usize,
    /// Connections that could not be made or did not answer, by reason.
    pub failed: BTreeMap<String, usize>,
    /// The longest time from the start of a new connection to its answer, in seconds.
    pub slowest: f64,
    /// The longest time from one answer of a new connection to the next, in seconds.
    pub gap: f64,
    /// Broken watches over HTTP/1.1, by reason.
    pub broken_plain: BTreeMap<String, usize>,
    /// Broken watches over HTTP/2, by reason.
    pub broken_h2: BTreeMap<String, usize>,
    /// The longest time between two lines of a client, over all its watches, in seconds.
    pub silence: f64,
}

impl SessionsSeen {
    /// Number of connections that failed.
    pub fn failures(&self) -> usize {
        self.failed.values().sum()
    }

    /// Number of watches that broke.
    pub fn broken(&self) -> usize {
        self.broken_plain.values().chain(self.broken_h2.values()).sum()
    }
}

/// Running clients; finishing or dropping them ends them.
#[derive(Debug)]
pub struct Sessions {
    load: Arc<Load>,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
    held: usize,
}

impl Sessions {
    /// Starts on the caller's host. New connections start once all watches are open.
    pub fn start(to: SocketAddr, authority: &Path, plan: Plan) -> Self {
        let plain = trusting(authority);
        let mut h2 = ClientConfig::clone(&plain);
        h2.alpn_protocols = vec![b"h2".to_vec()];
        let (plain, h2) = (plain.into(), TlsConnector::from(Arc::new(h2)));
        let (seen, open) = (Mutex::default(), watch::Sender::new(0));
        let load = Arc::new(Load { to, plain, h2, open, seen, last_answer: Mutex::default() });
        let stop = watch::Sender::new(false);
        let (running, stopping) = (Arc::clone(&load), stop.subscribe());
        let thread = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(run(running, plan, stopping));
        });
        Self { load, stop, thread: Some(thread), held: plan.plain + plan.h2 }
    }

    /// Waits until each watch has received its first line.
    ///
    /// # Panics
    /// If that takes longer than `limit`.
    #[track_caller]
    pub fn all_open(&self, limit: Duration) {
        let is_open = || (*self.load.open.borrow() == self.held).then_some(());
        wait::until("all watches are open", limit, is_open);
    }

    /// Their observations so far.
    pub fn seen(&self) -> SessionsSeen {
        self.load.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Ends them, each watch after one more line; returns what they have observed.
    pub fn finish(mut self) -> SessionsSeen {
        self.stop.send_replace(true);
        let thread = self.thread.take().expect("they are finished once");
        thread.join().expect("clients do not panic");
        self.seen()
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

/// State that all clients share.
struct Load {
    to: SocketAddr,
    plain: TlsConnector,
    h2: TlsConnector,
    /// How many clients have received a first line.
    open: watch::Sender<usize>,
    seen: Mutex<SessionsSeen>,
    last_answer: Mutex<Option<Instant>>,
}

impl std::fmt::Debug for Load {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Load").field("to", &self.to).finish_non_exhaustive()
    }
}

async fn run(load: Arc<Load>, plan: Plan, mut stop: watch::Receiver<bool>) {
    let held = plan.plain + plan.h2;
    let mut tasks = JoinSet::new();
    for index in 0..held {
        let client = Client { load: Arc::clone(&load), index, is_h2: index < plan.h2, last: None };
        tasks.spawn(client.hold(stop.clone()));
    }
    let mut open = load.open.subscribe();
    tokio::select! {
        _ = open.wait_for(|open| *open == held) => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
    if plan.per_second > 0 {
        let mut turn = tokio::time::interval(Duration::from_secs(1) / plan.per_second);
        while !*stop.borrow() {
            tokio::select! {
                _ = turn.tick() => drop(tasks.spawn(Arc::clone(&load).ask())),
                _ = stop.changed() => {}
            }
        }
    }
    while let Some(ended) = tasks.join_next().await {
        ended.expect("clients do not panic");
    }
}

impl Load {
    fn note(&self, change: impl FnOnce(&mut SessionsSeen)) {
        change(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// A new connection with one request.
    async fn ask(self: Arc<Self>) {
        let begun = wait::now();
        let answer = timeout(PATIENCE, async {
            let answer = self.get("/version", false).await?;
            answer.into_body().collect().await.map_err(reason)
        });
        let answer = answer.await.unwrap_or_else(|_| Err("no answer in time".to_owned()));
        self.note(|seen| seen.connections += 1);
        match answer {
            Ok(_) => self.answered(begun),
            Err(why) => self.note(|seen| *seen.failed.entry(why).or_default() += 1),
        }
    }

    fn answered(&self, begun: Instant) {
        let now = wait::now();
        let mut last = self.last_answer.lock().unwrap_or_else(PoisonError::into_inner);
        let gap = now - last.replace(now).unwrap_or(now);
        self.note(|seen| {
            seen.slowest = seen.slowest.max((now - begun).as_secs_f64());
            seen.gap = seen.gap.max(gap.as_secs_f64());
        });
    }

    /// A request on a new connection, whose response head must have status 200.
    async fn get(&self, path: &str, is_h2: bool) -> Result<Response<Incoming>, String> {
        let tcp = TcpStream::connect(self.to).await.map_err(reason)?;
        let name = ServerName::try_from("localhost").map_err(reason)?;
        let tls = if is_h2 { &self.h2 } else { &self.plain };
        let tls = TokioIo::new(tls.connect(name, tcp).await.map_err(reason)?);
        let uri = format!("https://localhost:{}{path}", self.to.port());
        let request = Request::get(if is_h2 { uri.as_str() } else { path });
        let request = request.header("Host", "localhost").body(Empty::<Bytes>::new());
        let request = request.map_err(reason)?;
        // Each connection ends with its single request.
        let answer = if is_h2 {
            let handshake = http2::handshake(TokioExecutor::new(), tls).await;
            let (mut sender, connection) = handshake.map_err(reason)?;
            tokio::spawn(connection);
            sender.send_request(request).await
        } else {
            let (mut sender, connection) = http1::handshake(tls).await.map_err(reason)?;
            tokio::spawn(connection);
            sender.send_request(request).await
        };
        let answer = answer.map_err(reason)?;
        match answer.status() {
            StatusCode::OK => Ok(answer),
            status => Err(format!("status {status}")),
        }
    }
}

/// A client that holds a watch.
struct Client {
    load: Arc<Load>,
    index: usize,
    is_h2: bool,
    /// When it received its last line, from any of its watches.
    last: Option<Instant>,
}

impl Client {
    async fn hold(mut self, mut stop: watch::Receiver<bool>) {
        wait::between_turns(STAGGER * u32::try_from(self.index).unwrap_or(u32::MAX)).await;
        loop {
            let load = Arc::clone(&self.load);
            load.note(|seen| seen.connections += 1);
            let answer = timeout(PATIENCE, load.get("/watch", self.is_h2)).await;
            let answer = answer.unwrap_or_else(|_| Err("no answer in time".to_owned()));
            match answer {
                Err(why) => {
                    let why = format!("watch: {why}");
                    load.note(|seen| *seen.failed.entry(why).or_default() += 1);
                }
                Ok(answer) => match self.follow(answer.into_body(), &mut stop).await {
                    Ok(()) => return,
                    Err(why) => load.note(|seen| {
                        let broken =
                            if self.is_h2 { &mut seen.broken_h2 } else { &mut seen.broken_plain };
                        *broken.entry(why).or_default() += 1;
                    }),
                },
            }
            if *stop.borrow() {
                return;
            }
            wait::between_turns(PAUSE * u32::try_from(self.index % PAUSES).unwrap_or(0)).await;
        }
    }

    /// Reads a watch until the test ends it, which is no error.
    async fn follow(
        &mut self,
        body: Incoming,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<(), String> {
        let mut lines = Lines { body, read: Vec::new() };
        let mut expected = 0;
        loop {
            let is_ending = *stop.borrow_and_update();
            let line = if is_ending {
                timeout(SILENCE, lines.next()).await.map_err(|_| "silent at the end")?
            } else {
                tokio::select! {
                    line = lines.next() => line,
                    _ = stop.changed() => continue,
                }
            };
            let line: Value = serde_json::from_slice(&line?).map_err(reason)?;
            if line["sequence"] != expected {
                return Err(format!("line {} instead of {expected}", line["sequence"]));
            }
            expected += 1;
            self.heard();
            if is_ending {
                return Ok(());
            }
        }
    }

    fn heard(&mut self) {
        let now = wait::now();
        match self.last.replace(now) {
            None => self.load.open.send_modify(|open| *open += 1),
            Some(last) => {
                let silence = (now - last).as_secs_f64();
                self.load.note(|seen| seen.silence = seen.silence.max(silence));
            }
        }
    }
}

/// The lines of a body.
struct Lines {
    body: Incoming,
    read: Vec<u8>,
}

impl Lines {
    /// The next line; nothing is lost if the caller stops waiting.
    async fn next(&mut self) -> Result<Vec<u8>, String> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                return Ok(self.read.drain(..=end).collect());
            }
            match self.body.frame().await {
                None => return Err("ended".to_owned()),
                Some(Err(error)) => return Err(reason(error)),
                Some(Ok(frame)) => {
                    self.read.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
                }
            }
        }
    }
}

/// An error with its causes.
fn reason(error: impl Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use meshport_demo::apiserver::{Authority, StandIn, StandInConfig};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    /// Runs a stand-in until it is told to stop; returns its address.
    fn serve(authority: &Authority, mut kill: watch::Receiver<bool>) -> SocketAddr {
        let leaf = authority.issue_server("cp").expect("a certificate");
        let config = StandInConfig {
            watch_interval: Duration::from_millis(100),
            ..StandInConfig::new(leaf)
        };
        let (told, address) = std::sync::mpsc::sync_channel(1);
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async {
                let server = StandIn::start(config).expect("it starts");
                told.send(server.addr()).expect("the test waits");
                kill.wait_for(|kill| *kill).await.expect("the test kills it");
                server.kill().await;
            });
        });
        address.recv().expect("it starts")
    }

    #[test]
    fn a_dead_server_breaks_each_watch_and_fails_new_connections() {
        let authority = Authority::generate().expect("an authority");
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("ca.crt");
        std::fs::write(&file, authority.certificate_pem()).expect("a file");
        let kill = watch::Sender::new(false);
        let address = serve(&authority, kill.subscribe());
        let plan = Plan { plain: 3, h2: 2, per_second: 50 };

        let sessions = Sessions::start(address, &file, plan);
        sessions.all_open(LIMIT);
        let is_answered = || (sessions.seen().gap > 0.0).then_some(());
        wait::until("new connections are answered", LIMIT, is_answered);
        let seen = sessions.finish();
        assert_eq!((seen.failures(), seen.broken()), (0, 0), "{seen:?}");
        assert!(seen.connections > 6 && seen.silence >= 0.05, "{seen:?}");

        let sessions = Sessions::start(address, &file, plan);
        sessions.all_open(LIMIT);
        kill.send_replace(true);
        let have_failed = || (sessions.seen().failures() > 5).then_some(());
        wait::until("connections fail", LIMIT, have_failed);
        let seen = sessions.finish();
        assert_eq!(seen.broken_plain.values().sum::<usize>(), 3, "{seen:?}");
        assert_eq!(seen.broken_h2.values().sum::<usize>(), 2, "{seen:?}");
    }
}
