//! The Unix socket on an apiserver's node: one CONNECT request per connection.
//!
//! Serves only processes of the users in `egress.uids` (checked with SO_PEERCRED); by default,
//! root's and the daemon's own user. Bounds: `egress.max-streams` connections, [`MAX_TURNED_AWAY`]
//! more that receive a refusal, [`HEAD_LIMIT`] for a request and [`ANSWER_LIMIT`] for its answer.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use meshport_config::{Credential, EgressSettings, Endpoint, Role, ServiceName};
use meshport_core::ledger::{End, Side};
use meshport_core::route::Line;
use meshport_core::wayback::head::{self, MAX_HEAD_BYTES};
use meshport_core::wayback::reply::CONNECTED;
use meshport_core::wayback::{ANSWER_LIMIT, HEAD_LIMIT, Refusal, Refused};
use rustix::process::geteuid;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use super::Egress;
use super::search::{Connection, Reached, Search};
use crate::audit::Audit;
use crate::clock;
use crate::driver::answers::Ask;
use crate::driver::handle::Handle;
use crate::driver::wayback::{FindTarget, IsAbsent};
use crate::sessions::ingress::Context;
use crate::sessions::splice::{self, Carried, Counted, Early, Ending};
use crate::sessions::totals::SessionCount;
use crate::tcp::{Tcp, UnixListener};
use crate::unix::SocketPath;
use crate::wayback::{At, WayBack};

/// Connections above the limit that receive a refusal; further ones are closed.
const MAX_TURNED_AWAY: usize = 64;
/// How long a refused client may keep sending before its connection is closed. A reset while it
/// sends could lose the answer.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);
/// Bytes read and discarded meanwhile.
const MAX_DRAINED: usize = 4 << 20;
/// The answer of a node that is stopping.
const STOPPING: &str = "meshport on this node is stopping";
/// Pause after a failed accept, usually for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Interval between attempts to create the socket.
const RETRY: Duration = Duration::from_secs(2);

/// The socket that the settings name.
pub(crate) fn socket_path(settings: &EgressSettings) -> Option<SocketPath<'_>> {
    let path = settings.socket.as_deref()?;
    Some(SocketPath { path, mode: settings.mode.bits(), setting: "egress.socket" })
}

/// State common to all requests.
#[derive(Debug, Clone)]
struct Requests {
    context: Context,
    back: WayBack,
    asked: Handle,
    audit: Audit,
    /// The credential of this node.
    credential: watch::Receiver<Arc<Credential>>,
    /// Whether this node is stopping and refuses new requests.
    leaving: watch::Receiver<bool>,
    /// Its open streams, which outlive the socket when this process drains.
    streams: OpenStreams,
}

/// The tasks of open streams. Bounded by the settings (`egress.max-streams`).
pub(crate) type OpenStreams = Arc<Mutex<JoinSet<()>>>;

/// Starts to serve the socket, if the settings name one. Returns its open streams.
pub(crate) fn start(egress: &Egress, tasks: &mut JoinSet<()>) -> OpenStreams {
    let Egress { context, back, asked, audit, credential, leaving, .. } = egress.clone();
    context.sessions.register(&ServiceName::way_back());
    warn_of_missing_role(&back.egress(), &credential.borrow());
    let streams = OpenStreams::default();
    let requests =
        Requests { context, back, asked, audit, credential, leaving, streams: streams.clone() };
    tasks.spawn(serve(requests));
    streams
}

/// Creates the socket and serves it forever. A failure is logged once and retried: this node's
/// clients need its daemon even if the way back does not work.
async fn serve(requests: Requests) {
    let back = requests.back.clone();
    // The path and mode of the socket do not change while the daemon runs.
    let egress = back.egress();
    let Some(at) = socket_path(&egress) else { return };
    let mut is_said = false;
    let listener = loop {
        match requests.context.host.listen_unix(at).await {
            Ok(listener) => break listener,
            Err(error) => {
                if !std::mem::replace(&mut is_said, true) {
                    let retry_s = RETRY.as_secs();
                    warn!(%error, retry_s, "apiservers cannot reach nodes until this is fixed");
                }
                sleep(RETRY).await;
            }
        }
    };
    info!(socket = %at.path.display(), "apiservers can reach nodes through the mesh");
    accept(listener, requests).await;
}

async fn accept(listener: UnixListener, requests: Requests) {
    // One reference per connection being served.
    let served = Arc::new(());
    let turned_away = Arc::new(Semaphore::new(MAX_TURNED_AWAY));
    loop {
        let accepted = listener.accept().await;
        let streams = || requests.streams.lock().unwrap_or_else(PoisonError::into_inner);
        while streams().try_join_next().is_some() {}
        let client = match accepted {
            Ok(client) => client,
            Err(error) => {
                debug!(%error, "connection of the way back not accepted");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        requests.back.note_accepted();
        let served_by = requests.clone();
        let most = usize::try_from(requests.back.egress().max_streams).unwrap_or(usize::MAX);
        if Arc::strong_count(&served) <= most {
            let permit = served.clone();
            streams().spawn(async move {
                served_by.serve(client).await;
                drop(permit);
            });
            continue;
        }
        let said = format!("{most} streams of the way back are open here (egress.max-streams)");
        let refused = Refused::new(Refusal::Crowded, said);
        requests.note(&refused, None);
        if let Ok(permit) = turned_away.clone().try_acquire_owned() {
            streams().spawn(async move {
                refuse(client, &refused).await;
                drop(permit);
            });
        }
    }
}

impl Requests {
    async fn serve(&self, mut client: Tcp) {
        let target = match self.admit(&mut client).await {
            Ok(Some(target)) => target,
            // The client left, or only checked whether the socket is served.
            Ok(None) => return,
            Err(refused) => {
                self.note(&refused, None);
                return refuse(client, &refused).await;
            }
        };
        let began = clock::now();
        match self.reach(&target, &client).await {
            Ok(Some(reached)) => {
                let took = clock::now().saturating_duration_since(began);
                let totals = self.context.sessions.totals(&ServiceName::way_back());
                totals.counts.bump(SessionCount::Connected);
                totals.connects.note(took);
                if let Err(error) = self.carry(client, reached).await {
                    debug!(%target, %error, "stream of the way back broke");
                }
            }
            Ok(None) => {}
            Err(refused) => {
                self.note(&refused, Some(&target));
                refuse(client, &refused).await;
            }
        }
    }

    /// Authorises the client and reads its request.
    async fn admit(&self, client: &mut Tcp) -> Result<Option<Endpoint>, Refused> {
        let own = geteuid().as_raw();
        let egress = self.back.egress();
        let uids = &egress.uids;
        let is_known = |uid: u32| match uids.is_empty() {
            true => uid == 0 || uid == own,
            false => uids.contains(&uid),
        };
        if !client.peer_user().is_some_and(is_known) {
            let said = "this user may not use the way back (egress.uids)";
            return Err(Refused::new(Refusal::User, said));
        }
        if *self.leaving.borrow() {
            return Err(Refused::new(Refusal::Leaving, STOPPING));
        }
        timeout(HEAD_LIMIT, read_head(client)).await.unwrap_or_else(|_| {
            let said = format!("timed out reading the request ({} s)", HEAD_LIMIT.as_secs());
            Err(Refused::new(Refusal::Late, said))
        })
    }

    /// Connects to the target over some path; `None` if the client left meanwhile.
    async fn reach(&self, target: &Endpoint, client: &Tcp) -> Result<Option<Reached>, Refused> {
        let until = clock::now() + ANSWER_LIMIT;
        let look = async {
            if self.back.egress().outside.contains(target) {
                return self.dial_outside(target, until).await;
            }
            let stopping = |_| Refused::new(Refusal::Leaving, STOPPING);
            let found = self.asked.ask(FindTarget(target.clone())).await.map_err(stopping)??;
            let Self { context, back, credential, .. } = self.clone();
            let search = Search { context, back, credential };
            let refused = match search.run(&found, until).await {
                Ok(reached) => {
                    let is_relayed = matches!(reached.line, Line::Relayed { .. });
                    self.back.note_connected(&found.want, is_relayed);
                    return Ok(reached);
                }
                Err(refused) => refused,
            };
            // "Node is down" is a better reason than "no answer".
            let node = found.paths.first().and_then(Line::origin);
            match node.filter(|_| refused.why.is_of_the_path()) {
                Some(node) => Err(match self.asked.ask(IsAbsent(node)).await {
                    Ok(Some(said)) => Refused::new(Refusal::Down, said),
                    Ok(None) | Err(_) => refused,
                }),
                None => Err(refused),
            }
        };
        tokio::select! {
            reached = look => reached.map(Some),
            () = gone(client) => Ok(None),
        }
    }

    /// Dials a target listed in the settings directly, as the apiserver would.
    async fn dial_outside(&self, target: &Endpoint, until: Instant) -> Result<Reached, Refused> {
        let left = until.saturating_duration_since(clock::now());
        let dialled = timeout(left, self.context.host.connect(&target.to_string())).await;
        let refused = |why, said: &str| Refused::new(why, format!("{target} {said}"));
        let tcp = match dialled {
            Ok(Ok(tcp)) => tcp,
            Ok(Err(error)) => {
                return Err(refused(Refusal::Failed, &format!("cannot be dialled: {error}")));
            }
            Err(_elapsed) => return Err(refused(Refusal::Timeout, "does not answer")),
        };
        tcp.set_nodelay();
        self.back.note_outside();
        let line = Line::Direct(self.context.mesh.node_id());
        let guard = self.context.sessions.open(&ServiceName::way_back(), Side::Client, line);
        Ok(Reached { connection: Connection::Local(tcp), line, guard })
    }

    async fn carry(&self, mut client: Tcp, reached: Reached) -> std::io::Result<()> {
        client.write_all(CONNECTED).await?;
        let Reached { connection, guard, .. } = reached;
        let totals = self.context.sessions.totals(&ServiceName::way_back());
        // Counted per service only: the number of nodes has no bound.
        let origin = Arc::default();
        let counted = Counted { totals: totals.clone(), origin, tally: None };
        let carried = Carried::of_client(0, counted);
        let end = Box::pin(async {
            match guard.carry(&carried, true).await {
                End::Cut => totals.counts.bump(SessionCount::Cut),
                End::Moved { .. } => totals.counts.bump(SessionCount::Moved),
            }
            Ending::Reset
        });
        match connection {
            Connection::Mesh(stream, rest) => {
                let early = Early { up: Bytes::new(), down: vec![rest] };
                splice::with_stream(client, stream, early, &carried, end).await
            }
            Connection::Local(tcp) => {
                splice::with_tcp(client, tcp, Early::default(), &carried, end).await
            }
        }
    }

    fn note(&self, refused: &Refused, target: Option<&Endpoint>) {
        let Refused { why, said } = refused;
        self.back.note_refused(At::Socket, *why);
        let totals = self.context.sessions.totals(&ServiceName::way_back());
        totals.counts.bump(SessionCount::Failed);
        self.audit.refused_target(target, why.word(), said);
        debug!(target = target.map(tracing::field::display), %why, said, "request refused");
    }
}

/// Reads the request head; `None` if the client left without sending one.
async fn read_head(client: &mut Tcp) -> Result<Option<Endpoint>, Refused> {
    let mut buffer = Vec::with_capacity(1024);
    loop {
        if let Some(target) = head::read(&buffer)? {
            return Ok(Some(target));
        }
        let room = (MAX_HEAD_BYTES + 1 - buffer.len()) as u64;
        let read = (&mut *client).take(room).read_buf(&mut buffer).await;
        match read {
            Ok(0) | Err(_) if buffer.is_empty() => return Ok(None),
            Ok(0) | Err(_) => {
                return Err(Refused::new(Refusal::Malformed, "the request is truncated"));
            }
            Ok(_) => {}
        }
    }
}

/// Resolves when the client has closed the connection; pending data from the client does not
/// resolve it.
async fn gone(client: &Tcp) {
    let _ = client.readable().await;
    if !client.is_gone() {
        std::future::pending::<()>().await;
    }
}

/// Answers and waits until the client has read it.
async fn refuse(mut client: Tcp, refused: &Refused) {
    let answer = async {
        client.write_all(&refused.answer()).await?;
        client.shutdown().await?;
        let mut rest = (&mut client).take(MAX_DRAINED as u64);
        tokio::io::copy(&mut rest, &mut tokio::io::sink()).await
    };
    // Do not wait longer for a client that does not read its answer.
    let _ = timeout(DRAIN_LIMIT, answer).await;
}

/// Warns about a socket on a node without the required role: no node would serve its requests.
fn warn_of_missing_role(settings: &EgressSettings, credential: &Credential) {
    let role = Role::Origin(ServiceName::kube_apiserver());
    if settings.socket.is_some() && !credential.roles.contains(&role) {
        warn!(
            "egress.socket is set, but this node lacks the role {role}, so every node refuses its \
             requests; rejoin with an invite that has the role"
        );
    }
}
