//! The clients of all balancers: for each one a new TLS connection with one request every
//! [`INTERVAL`], and [`HELD`] connections that are held open.
//!
//! All clients run on one thread that has entered the client's host. New connections may overlap,
//! so that a slow one does not hide later ones; at most [`PATIENCE`] / [`INTERVAL`] are open. Held
//! connections are reopened when they end, like a watch. Their clients never give up, because the
//! question is whether the contender cuts a dead connection.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use meshport_demo::apiserver::authority::roots;
use meshport_tests::wait;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, interval_at, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::record::{Attempt, Failure, Held, Record};

/// Interval between new connections.
pub(crate) const INTERVAL: Duration = Duration::from_millis(200);
/// Timeout of a request.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
/// Held connections per balancer.
pub(crate) const HELD: usize = 12;
/// The pause of a client before it retries a held connection that it could not open.
const AGAIN: Duration = Duration::from_millis(200);
/// The most bytes of an answer that are kept to identify its origin.
const MAX_ANSWER: usize = 4096;

/// A balancer's name and where it listens.
pub(crate) type Target = (String, SocketAddr);

/// The running clients.
pub(crate) struct Clients {
    records: BTreeMap<String, Arc<Mutex<Record>>>,
    stop: watch::Sender<bool>,
    thread: thread::JoinHandle<()>,
}

/// State shared by all client tasks.
#[derive(Clone)]
struct Common {
    target: SocketAddr,
    /// After the start of the run: balancers take turns within an interval, so that their clients
    /// do not wait for each other's handshakes.
    turn: Duration,
    tls: TlsConnector,
    epoch: Instant,
    record: Arc<Mutex<Record>>,
    stopped: watch::Receiver<bool>,
}

impl Common {
    /// Records are whole between statements, so a panic elsewhere does not spoil them.
    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        wait::now().saturating_duration_since(self.epoch)
    }
}

impl Clients {
    /// Starts clients of all targets on the host of this namespace; times count from `epoch`.
    pub(crate) fn start(host: &Path, authority: &str, targets: &[Target], epoch: Instant) -> Self {
        let tls = connector(authority);
        let (stop, stopped) = watch::channel(false);
        let mut records = BTreeMap::new();
        let mut all = Vec::new();
        let count = u32::try_from(targets.len()).unwrap_or(u32::MAX).max(1);
        for (number, (name, target)) in (0..).zip(targets) {
            let turn = INTERVAL * number / count;
            let record = Arc::<Mutex<Record>>::default();
            records.insert(name.clone(), Arc::clone(&record));
            let (tls, stopped) = (tls.clone(), stopped.clone());
            all.push(Common { target: *target, turn, tls, epoch, record, stopped });
        }
        let host = File::open(host).expect("the client's host is there");
        let thread = thread::spawn(move || {
            move_into_link_name_space(host.as_fd(), Some(LinkNameSpaceType::Network))
                .expect("root may enter a namespace");
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime for the clients").block_on(run(all));
        });
        Self { records, stop, thread }
    }

    /// Starts no further connections, lets open requests end, and returns the observations.
    pub(crate) fn finish(self) -> BTreeMap<String, Record> {
        // The receivers are gone only if the clients are.
        let _ = self.stop.send(true);
        self.thread.join().expect("clients do not panic");
        let take = |record: &Mutex<Record>| {
            std::mem::take(&mut *record.lock().unwrap_or_else(PoisonError::into_inner))
        };
        self.records.iter().map(|(name, record)| (name.clone(), take(record))).collect()
    }
}

/// Trusts the authority of the upstreams; each handshake is a whole one.
fn connector(authority: &str) -> TlsConnector {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider knows the default versions")
        .with_root_certificates(roots(authority).expect("the upstreams have an authority"))
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    TlsConnector::from(Arc::new(config))
}

async fn run(all: Vec<Common>) {
    let mut tasks = JoinSet::new();
    let mut requests = Vec::new();
    for common in all {
        for slot in 0..HELD {
            tasks.spawn(hold(common.clone(), slot));
        }
        requests.push(tokio::spawn(request_forever(common)));
    }
    for request in requests {
        request.await.expect("clients do not panic");
    }
    // Held connections are cut with their tasks: the run has ended.
    tasks.shutdown().await;
}

async fn request_forever(mut common: Common) {
    let mut ticks = interval_at((common.epoch + common.turn).into(), INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut open = JoinSet::new();
    loop {
        let due = tokio::select! {
            due = ticks.tick() => due.into_std(),
            _ = common.stopped.wait_for(|stopped| *stopped) => break,
        };
        let late = wait::now().saturating_duration_since(due);
        {
            let mut record = common.record();
            record.worst_late = record.worst_late.max(late);
        }
        open.spawn(request(common.clone()));
        while open.try_join_next().is_some() {}
    }
    while open.join_next().await.is_some() {}
}

async fn request(common: Common) {
    let begun = common.now();
    let (outcome, took) = match timeout(PATIENCE, ask(&common)).await {
        Ok(Ok((origin, first_byte))) => (Ok(origin), first_byte - begun),
        Ok(Err(error)) => {
            let refused = error.kind() == io::ErrorKind::ConnectionRefused;
            let failure = if refused { Failure::Refused } else { Failure::Broken };
            (Err(failure), common.now() - begun)
        }
        Err(_) => (Err(Failure::TimedOut), common.now() - begun),
    };
    common.record().attempt(Attempt { begun, took, outcome });
}

/// The origin that answers one request, and when the answer began.
async fn ask(common: &Common) -> io::Result<(String, Duration)> {
    let mut stream = connect(common, "/whoami").await?;
    let mut answer = vec![0; MAX_ANSWER];
    let mut length = stream.read(&mut answer).await?;
    let first_byte = common.now();
    loop {
        if let Some(origin) = origin_in(&answer[..length]) {
            return Ok((origin, first_byte));
        }
        if length == 0 || length == MAX_ANSWER {
            return Err(io::ErrorKind::InvalidData.into());
        }
        match stream.read(&mut answer[length..]).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            more => length += more,
        }
    }
}

async fn connect(common: &Common, path: &str) -> io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(common.target).await?;
    stream.set_nodelay(true)?;
    // The same name as in a kubeconfig with the local address, even without a balancer.
    let name = ServerName::IpAddress(IpAddr::from(Ipv4Addr::LOCALHOST).into());
    let mut stream = common.tls.connect(name, stream).await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: kubernetes\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    stream.flush().await?;
    Ok(stream)
}

/// The value of `"origin"` in an answer.
fn origin_in(answer: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(answer);
    let (_, rest) = text.split_once("\"origin\":\"")?;
    let (origin, _) = rest.split_once('"')?;
    Some(origin.to_owned())
}

async fn hold(common: Common, slot: usize) {
    loop {
        match timeout(PATIENCE, open(&common)).await {
            Ok(Ok((stream, origin))) => watch_until_it_ends(&common, slot, stream, origin).await,
            Ok(Err(_)) | Err(_) => {
                let mut pause = interval(AGAIN);
                pause.tick().await;
                pause.tick().await;
            }
        }
    }
}

async fn open(common: &Common) -> io::Result<(TlsStream<TcpStream>, String)> {
    let mut stream = connect(common, "/watch").await?;
    let mut answer = Vec::with_capacity(MAX_ANSWER);
    while answer.len() < MAX_ANSWER {
        if stream.read_buf(&mut answer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Some(origin) = origin_in(&answer) {
            return Ok((stream, origin));
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

async fn watch_until_it_ends(
    common: &Common,
    slot: usize,
    mut stream: TlsStream<TcpStream>,
    origin: String,
) {
    let opened = common.now();
    let held = Held { slot, opened, origin, last_line: opened, ended: None };
    let Some(place) = common.record().hold(held) else { return };
    let mut buffer = vec![0; MAX_ANSWER];
    while let Ok(length) = stream.read(&mut buffer).await
        && length > 0
    {
        let now = common.now();
        common.record().held[place].last_line = now;
    }
    let now = common.now();
    common.record().held[place].ended = Some(now);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_names_its_origin() {
        let answer = b"HTTP/1.1 200 OK\r\n\r\n{\"origin\":\"near\",\"sequence\":0}\n";
        assert_eq!(origin_in(answer).as_deref(), Some("near"));
        assert_eq!(origin_in(&answer[..answer.len() - 20]), None);
    }
}
