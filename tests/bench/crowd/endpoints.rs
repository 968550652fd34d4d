//! A share of the crowd: mesh endpoints in one process, each with its own key, credential, socket
//! and address. They do what nodes do with an origin they do not use: probe the path.
//!
//! Commands on standard input: `connect` makes each endpoint open a QUIC connection and keep it,
//! `again` resets the count of answers. Standard output reports how many endpoints had an answer
//! and how many are connected.

use std::io::{self, BufRead};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use meshport_config::{Invite, Join, NodeId, NodeKey, RecordKey, UnixSeconds};
use meshport_mesh::{Identity, Incoming, Mesh, MeshConfig, UdpOuter};
use meshport_tests::wait;
use rand_core::{OsRng, RngCore};

use crate::print_line;

/// Interval between probes of an idle path, as in nodes.
const IDLE_INTERVAL: Duration = Duration::from_secs(5);
/// How long an answer may take; then the next question is asked.
const PATIENCE: Duration = Duration::from_secs(1);
/// Unanswered probes after which a node considers the path dead, and notifies the mesh.
const SILENT: u32 = 3;
/// Pause after a probe without an answer, since some fail at once.
const PAUSE: Duration = Duration::from_millis(100);
/// How often the counts are reported.
const TELL_INTERVAL: Duration = Duration::from_millis(50);
/// Descriptors of one endpoint, and some for the process.
const DESCRIPTORS: (u64, u64) = (2, 64);

/// The endpoints to run, and the origin.
#[derive(Debug, clap::Args)]
pub(crate) struct Endpoints {
    #[arg(long)]
    invite: PathBuf,
    #[arg(long)]
    origin: NodeId,
    #[arg(long)]
    at: SocketAddr,
    #[arg(long)]
    first: u16,
    #[arg(long)]
    count: u16,
    #[arg(long)]
    mtu: u16,
}

/// State that all endpoints of the process share.
#[derive(Debug, Default)]
struct Shared {
    /// Counts the commands "again", from one on.
    round: AtomicUsize,
    connect: AtomicBool,
    answered: AtomicUsize,
    connected: AtomicUsize,
}

/// Runs until standard input ends.
///
/// # Errors
/// If the invite cannot be read, or an endpoint has no address.
pub(crate) fn run(endpoints: &Endpoints) -> io::Result<()> {
    raise_descriptors(u64::from(endpoints.count));
    let text = std::fs::read_to_string(&endpoints.invite)?;
    let invite = Invite::parse(text.trim()).map_err(io::Error::other)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let shared = Arc::new(Shared::default());
    shared.round.store(1, Ordering::Relaxed);
    let heard = shared.clone();
    thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            match &*line {
                "connect" => heard.connect.store(true, Ordering::Relaxed),
                _ => {
                    heard.answered.store(0, Ordering::Relaxed);
                    heard.round.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        std::process::exit(0);
    });
    runtime.block_on(async {
        for index in 0..endpoints.count {
            let (mesh, mut incoming) = start(&invite, endpoints.first + index, endpoints.mtu)?;
            mesh.set_peer(endpoints.origin, &[endpoints.at], None);
            tokio::spawn(async move { while incoming.events.recv().await.is_some() {} });
            tokio::spawn(live(mesh, endpoints.origin, shared.clone()));
        }
        loop {
            let count = |count: &AtomicUsize| count.load(Ordering::Relaxed);
            print_line(&format!("{} {}", count(&shared.answered), count(&shared.connected)));
            wait::between_turns(TELL_INTERVAL).await;
        }
    })
}

fn raise_descriptors(endpoints: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    let current = Some(endpoints * DESCRIPTORS.0 + DESCRIPTORS.1);
    // An endpoint reports an error if they do not suffice.
    let _ = setrlimit(Resource::Nofile, Rlimit { current, maximum });
}

fn start(invite: &Invite, number: u16, mtu: u16) -> io::Result<(Mesh, Incoming)> {
    let (key, record) = (NodeKey::generate(&mut OsRng), RecordKey::generate(&mut OsRng));
    let name = format!("peer-{number}").parse().map_err(io::Error::other)?;
    let join = Join { name: Some(name), ..Join::default() };
    let credential = invite.accept(&key, &record, join, wall()).map_err(io::Error::other)?;
    let secret = invite.mesh_secret.clone();
    // No two of a machine share an address, as no two nodes do.
    let [high, low] = number.to_be_bytes();
    let socket = UdpOuter::bind(SocketAddr::from((Ipv4Addr::new(127, 200, high, low), 0)))?;
    let mut seed = [0; 32];
    OsRng.fill_bytes(&mut seed);
    let identity = Identity { key, credential, secret };
    let config = MeshConfig { mtu, ..MeshConfig::default() };
    let started = Mesh::start(identity, config, Arc::new(socket), seed, wall);
    started.map_err(io::Error::other)
}

#[expect(clippy::disallowed_methods, reason = "credentials have wall time")]
fn wall() -> UnixSeconds {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    UnixSeconds(since.unwrap_or_default().as_secs())
}

/// Runs one endpoint; never returns.
async fn live(mesh: Mesh, origin: NodeId, shared: Arc<Shared>) {
    // Not all at once: nodes begin at different times.
    let share = f64::from(OsRng.next_u32()) / f64::from(u32::MAX);
    wait::between_turns(IDLE_INTERVAL.mul_f64(share)).await;
    let (mut answered_in, mut connected, mut unanswered) = (0, false, 0);
    loop {
        let round = shared.round.load(Ordering::Relaxed);
        let answered = mesh.ping(origin, PATIENCE).await.is_ok();
        unanswered = if answered { 0 } else { unanswered + 1 };
        if unanswered == SILENT {
            mesh.expect_answer(&origin);
        }
        if answered && answered_in != round && shared.round.load(Ordering::Relaxed) == round {
            answered_in = round;
            shared.answered.fetch_add(1, Ordering::Relaxed);
        }
        if answered && !connected && shared.connect.load(Ordering::Relaxed) {
            // The stream ends with the statement, the connection does not.
            connected = mesh.open_stream(origin).await.is_ok();
            shared.connected.fetch_add(usize::from(connected), Ordering::Relaxed);
        }
        wait::between_turns(if answered { IDLE_INTERVAL } else { PAUSE }).await;
    }
}
