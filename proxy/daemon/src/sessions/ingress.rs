//! A client connection, from accept to end.
//!
//! The pure [`Connect`] decides the search for an instance; this module reads the client's first
//! bytes, runs the attempts, and joins the client with the first that answers. A client without an
//! origin is reset.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use meshport_config::{NodeId, ServiceName};
use meshport_mesh::Mesh;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinError, JoinSet};
use tracing::debug;

use meshport_core::connect::{
    Action, Connect, ConnectConfig, SearchContext, Searches, is_lost_line,
};
use meshport_core::evidence::{Attempted, Verdict};
use meshport_core::ledger::{End, Side};
use meshport_core::opening::Opening;
use meshport_core::patience::Patience;
use meshport_core::quota::Quota;
use meshport_core::route::{Line, Route, client_number};
use meshport_core::wire::MAX_DEADLINE;

use crate::clock;
use crate::sessions::arrived::Arrived;
use crate::sessions::attempt::{self, Connection, Failure, Shared, Target, Upstream, attempt};
use crate::sessions::client::ClientId;
use crate::sessions::pacing::{LASTS, Pacing, Paid};
use crate::sessions::registry::{Guard, Sessions};
use crate::sessions::splice::{self, Carried, Counted, Early, Ending, Unfinished};
use crate::sessions::totals::{SessionCount, Totals};
use crate::tcp::{Host, Tcp};

/// Interval between trials of candidates that are down, while there is nothing better.
const TRIAL_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum candidates tried at once, best first: more than a working mesh needs.
const MAX_TRIALS: usize = 32;
/// Maximum findings of sessions queued for the driver. Beyond that, further ones add nothing new.
pub(crate) const MAX_FINDINGS: usize = 256;

/// A finding of a session.
#[derive(Debug)]
pub(crate) enum Finding {
    /// The results of a session's search for lines.
    Verdicts(ServiceName, Vec<Attempted>),
    /// This node's local instance refused a session.
    OwnRefused(ServiceName),
    /// A peer opened a stream with a header of a later version.
    Unknown {
        /// The peer.
        from: NodeId,
        /// The message that it sent.
        what: String,
    },
}

/// The limits of one service's sessions; replaced as a whole on reload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SessionLimits {
    /// Timeouts of the search for an instance.
    pub(crate) connect: ConnectConfig,
    /// Sessions open at once.
    pub(crate) max_sessions: u64,
    /// Address of the local instance, if this node hosts one.
    pub(crate) local_instance: Option<String>,
}

/// The rest of the daemon, as sessions use it.
#[derive(Debug, Clone)]
pub(crate) struct Context {
    pub(crate) mesh: Mesh,
    pub(crate) host: Host,
    pub(crate) sessions: Sessions,
    pub(crate) findings: mpsc::Sender<Finding>,
    /// Random: nodes that start together must not all draw the same.
    pub(crate) first_ticket: u64,
}

impl Context {
    /// The runtime that serves `line` without waking another thread; `None` if there is only one
    /// thread or the line bypasses the mesh.
    fn runtime_of(&self, line: Line) -> Option<Handle> {
        let peer = match line {
            Line::Direct(node) if !self.mesh.is_own(&node) => node,
            Line::Relayed { relay, .. } => relay,
            Line::Direct(_) | Line::Outside(_) => return None,
        };
        self.mesh.runtime_of(&peer).cloned()
    }
}

/// The result of a search.
struct Found {
    shared: Shared,
    upstream: Upstream,
    guard: Guard,
}

/// State that all sessions of a service share.
#[derive(Debug)]
pub(crate) struct Ingress {
    pub(crate) context: Context,
    pub(crate) service: ServiceName,
    route: watch::Receiver<Arc<Route>>,
    pub(crate) limits: watch::Receiver<Arc<SessionLimits>>,
    pub(crate) totals: Arc<Totals>,
    pub(crate) pacing: Arc<Pacing>,
    searches: Mutex<Searches>,
    /// Draws and turns. A Weyl sequence: each ticket is new, and all bits of its mix are used.
    tickets: AtomicU64,
    /// The shares of clients in `max-sessions`.
    pub(crate) quota: Mutex<Quota<ClientId>>,
}

impl Ingress {
    pub(crate) fn new(
        context: Context,
        service: ServiceName,
        route: watch::Receiver<Arc<Route>>,
        limits: watch::Receiver<Arc<SessionLimits>>,
    ) -> Self {
        let totals = context.sessions.totals(&service);
        Self {
            pacing: Pacing::new(context.sessions.clone()),
            tickets: AtomicU64::new(context.first_ticket),
            context,
            service,
            route,
            limits,
            totals,
            searches: Mutex::default(),
            quota: Mutex::default(),
        }
    }

    /// Counts an accepted client.
    pub(crate) fn note_accepted(&self) {
        self.totals.counts.bump(SessionCount::Accepted);
    }

    /// The runtime that is probably best for the next session, if it is not this one.
    pub(crate) fn better_shard(&self) -> Option<Handle> {
        let line = self.route.borrow().candidates.first()?.origin.line;
        self.context.runtime_of(line).filter(is_elsewhere)
    }

    /// Serves one client to its end.
    pub(crate) async fn serve(self: &Arc<Self>, client: Tcp, arrived: Arrived) {
        let Arrived { mut paid, preface, said, client: who, tally } = arrived;
        let (began, unfinished) = (clock::now(), Unfinished::new(&client));
        // Boxed: the memory of the search is freed when the session begins, which may be long.
        match Box::pin(self.find(&client, who, preface, said)).await {
            Ok(found) => {
                let upstream = &found.upstream;
                self.totals.counts.bump(SessionCount::Connected);
                let took = clock::now().saturating_duration_since(began);
                self.totals.connects.note(took);
                let origin = self.totals.origins.of(&upstream.line());
                origin.note_connected(took);
                tally.iter().for_each(|tally| tally.note_connected(took));
                let counted = Counted { totals: self.totals.clone(), origin, tally };
                unfinished.done();
                if !upstream.first.is_empty() {
                    paid.repay();
                }
                let shard = self.context.runtime_of(upstream.line()).filter(is_elsewhere);
                let (ingress, moves) = (self.clone(), shard.is_some());
                let carried = Box::pin(async move {
                    let Ok(client) = client.move_here_if(moves) else { return };
                    let carried = Carried::of_client(found.upstream.sent as u64, counted);
                    ingress.carry(client, found, carried, &mut paid).await;
                });
                match shard {
                    Some(context) => run_on(&context, carried).await,
                    None => carried.await,
                }
            }
            Err(Failure::Client) => {
                self.totals.counts.bump(SessionCount::Abandoned);
                paid.repay_if_lasted();
                unfinished.done();
            }
            Err(failure) => {
                paid.repay();
                self.totals.counts.bump(SessionCount::Failed);
                tally.iter().for_each(|tally| tally.note_failed());
                debug!(service = %self.service, %failure, "no origin for a client");
            }
        }
    }

    async fn find(
        &self,
        client: &Tcp,
        who: Option<ClientId>,
        preface: Bytes,
        said: Bytes,
    ) -> Result<Found, Failure> {
        let mut search = Search::new(self, || client_number(&who_is(client, who).to_string()));
        if !preface.is_empty() {
            search.shared.opening(|opening| opening.set_preface(&preface));
        }
        if !said.is_empty() {
            search.take_bytes(Ok(Some(said)))?;
        }
        let found = search.run(client).await;
        let mut verdicts = search.connect.take_verdicts();
        verdicts.extend(found.iter().filter_map(|(upstream, _)| upstream.timing(clock::now())));
        self.tell(verdicts);
        let shared = search.shared.clone();
        found.map(|(upstream, guard)| Found { shared, upstream, guard })
    }

    /// Reports a search's results to the driver.
    fn tell(&self, verdicts: Vec<Attempted>) {
        if verdicts.is_empty() {
            return;
        }
        // If the queue is full, later evidence replaces this.
        let own_refused = verdicts.iter().any(|it| {
            let is_own = it.line.origin().is_some_and(|origin| self.context.mesh.is_own(&origin));
            is_own && it.verdict == Verdict::Refused
        });
        let verdicts = Finding::Verdicts(self.service.clone(), verdicts);
        let _ = self.context.findings.try_send(verdicts);
        if own_refused {
            let _ = self.context.findings.try_send(Finding::OwnRefused(self.service.clone()));
        }
    }

    /// Resolves once no origin has been usable for the service's hold time and none answers a trial
    /// connection.
    pub(crate) async fn hopeless(&self) {
        loop {
            self.until_usable(false).await;
            let hold = self.limits.borrow().connect.hold;
            let given_up = async {
                tokio::time::sleep(hold).await;
                while self.any_answers().await {
                    tokio::time::sleep(TRIAL_INTERVAL).await;
                }
            };
            // Trials of silent origins take seconds; the route may become usable meanwhile.
            tokio::select! {
                () = self.until_usable(true) => {}
                () = given_up => return,
            }
        }
    }

    /// Resolves once an origin is usable or answers a trial connection: gossip may be wrong.
    pub(crate) async fn hopeful(&self) {
        let answered = async {
            tokio::time::sleep(TRIAL_INTERVAL).await;
            while !self.any_answers().await {
                tokio::time::sleep(TRIAL_INTERVAL).await;
            }
        };
        tokio::select! {
            () = self.until_usable(true) => {}
            () = answered => {}
        }
    }

    /// Whether an origin is usable now, as far as this node knows.
    pub(crate) fn is_usable(&self) -> bool {
        self.route.borrow().is_usable()
    }

    async fn until_usable(&self, usable: bool) {
        let mut routes = self.route.clone();
        let reached = routes.wait_for(|route| route.is_usable() == usable).await.is_ok();
        if !reached {
            // The driver has stopped, and the daemon is stopping.
            std::future::pending::<()>().await;
        }
    }

    /// Whether any candidate's instance accepts a connection now. All are tried at once: each
    /// silent one takes its full timeout, and clients wait for the result.
    async fn any_answers(&self) -> bool {
        let route = self.route.borrow().clone();
        let began = clock::now();
        let shows = |line, verdict| self.tell(vec![Attempted { line, verdict, began }]);
        let mut trials = JoinSet::new();
        for candidate in route.candidates.iter().take(MAX_TRIALS) {
            let line = candidate.origin.line;
            let (target, patience) = (self.target(line, MAX_DEADLINE), Patience::new(candidate, 0));
            trials.spawn(async move { (line, attempt::answers(target, patience).await) });
        }
        while let Some(ended) = trials.join_next().await {
            match ended {
                Ok((_, Ok(()))) => return true,
                // Nothing else reports this failure, and the line would recover with time.
                Ok((line @ Line::Outside(_), Err(_))) => shows(line, Verdict::Silent),
                Ok((line, Err(Some(Verdict::Denied)))) => shows(line, Verdict::Denied),
                Ok((_, Err(_))) | Err(_) => {}
            }
        }
        false
    }

    fn target(&self, line: Line, left: Duration) -> Target {
        Target {
            mesh: self.context.mesh.clone(),
            host: self.context.host.clone(),
            service: self.service.clone(),
            line,
            local_instance: self.limits.borrow().local_instance.clone(),
            left,
        }
    }

    async fn carry(&self, client: Tcp, found: Found, carried: Carried, paid: &mut Paid) {
        let began = clock::now();
        let Found { shared, upstream, guard } = found;
        let late = shared.look(|opening| opening.after(upstream.sent));
        let early = Early { up: late, down: upstream.first.clone() };
        // An instance without an answer does not count as alive while there are reports against it:
        // they may be right.
        let shows =
            !upstream.first.is_empty() || !is_lost_line(upstream.line(), &self.route.borrow());
        let end = async {
            match guard.carry(&carried, shows).await {
                End::Cut => {
                    self.totals.counts.bump(SessionCount::Cut);
                    Ending::Reset
                }
                End::Moved { quiet } => {
                    self.totals.counts.bump(SessionCount::Moved);
                    if quiet { Ending::Farewell } else { Ending::Reset }
                }
            }
        };
        let mut joined = std::pin::pin!(async {
            match upstream.into_connection() {
                Connection::Mesh(stream) => {
                    splice::with_stream(client, stream, early, &carried, end).await
                }
                Connection::Plain(tcp) => splice::with_tcp(client, tcp, early, &carried, end).await,
            }
        });
        let ended = match tokio::time::timeout(LASTS, joined.as_mut()).await {
            Ok(ended) => ended,
            Err(_lasts) => {
                paid.repay();
                joined.await
            }
        };
        if let Err(error) = ended {
            debug!(service = %self.service, %error, "session broke");
        }
        if carried.down.load(Ordering::Relaxed) > 0 {
            paid.repay();
        }
        self.totals.sessions.note(clock::now().saturating_duration_since(began));
    }

    fn ticket(&self, route: &Route, client: impl FnOnce() -> u64) -> u64 {
        let turn = self.tickets.fetch_add(1, Ordering::Relaxed);
        route.draw().ticket(turn, client)
    }

    fn searches<T>(&self, look: impl FnOnce(&mut Searches) -> T) -> T {
        look(&mut self.searches.lock().expect("no holder of this lock can panic"))
    }
}

/// Identifies the client of a connection, if unknown.
fn who_is(client: &Tcp, known: Option<ClientId>) -> ClientId {
    let asked = || client.ends().map(|(peer, local)| ClientId::behind(peer, local));
    known.or_else(asked).unwrap_or(ClientId::Unknown)
}

/// Whether a runtime is not the current task's own.
fn is_elsewhere(runtime: &Handle) -> bool {
    runtime.id() != Handle::current().id()
}

/// Runs `work` on that runtime; it ends with the caller.
async fn run_on(runtime: &Handle, work: Pin<Box<dyn Future<Output = ()> + Send>>) {
    let mut running = JoinSet::new();
    running.spawn_on(work, runtime);
    // Fails only if the runtime is shutting down.
    let _ = running.join_next().await;
}

/// A client's search for an instance that answers, under way.
struct Search<'a> {
    ingress: &'a Ingress,
    connect: Connect,
    routes: watch::Receiver<Arc<Route>>,
    shared: Shared,
    attempts: JoinSet<(u32, Result<Upstream, Failure>)>,
    /// Each guard is taken before its attempt: pending connections count as load, and their path is
    /// probed closely from the start.
    running: BTreeMap<u32, Running>,
    last: Failure,
}

/// A running attempt.
struct Running {
    attempt: AbortHandle,
    guard: Guard,
    line: Line,
}

struct OtherSearches<'a>(&'a Ingress);

impl SearchContext for OtherSearches<'_> {
    fn open(&self, line: &Line) -> u64 {
        self.0.context.sessions.count_line(&self.0.service, Side::Client, *line)
    }

    fn searches<T>(&mut self, look: impl FnOnce(&mut Searches) -> T) -> T {
        self.0.searches(look)
    }
}

impl Drop for Search<'_> {
    fn drop(&mut self) {
        self.ingress.searches(Searches::end);
    }
}

impl<'a> Search<'a> {
    fn new(ingress: &'a Ingress, client: impl FnOnce() -> u64) -> Self {
        ingress.searches(Searches::begin);
        let mut routes = ingress.route.clone();
        let route = routes.borrow_and_update().clone();
        let config = ingress.limits.borrow().connect.clone();
        let ticket = ingress.ticket(&route, client);
        Self {
            ingress,
            connect: Connect::new(config, route, ticket, clock::now()),
            routes,
            shared: Shared::default(),
            attempts: JoinSet::new(),
            running: BTreeMap::new(),
            last: Failure::Path("no origin is known".into()),
        }
    }

    async fn run(&mut self, client: &Tcp) -> Result<(Upstream, Guard), Failure> {
        let mut states = self.shared.subscribe();
        // Most clients have sent something by now, which can go with the header.
        if let Some(bytes) = splice::at_once(splice::read(client)).await {
            self.take_bytes(bytes)?;
        }
        loop {
            // An attempt that has ended is not overdue.
            while let Some(done) = self.attempts.try_join_next() {
                if let Some(found) = self.take_end(done)? {
                    return Ok(found);
                }
            }
            while let Some(action) =
                self.connect.poll(clock::now(), &mut OtherSearches(self.ingress))
            {
                if !self.carry_out(action) {
                    return Err(std::mem::replace(&mut self.last, Failure::Client));
                }
            }
            let reads =
                self.shared.look(|opening| !opening.ended && opening.remaining_capacity() > 0);
            let due = self.connect.poll_timeout();
            tokio::select! {
                Some(done) = self.attempts.join_next(), if !self.attempts.is_empty() => {
                    if let Some(found) = self.take_end(done)? {
                        return Ok(found);
                    }
                }
                bytes = splice::read(client), if reads => self.take_bytes(bytes)?,
                changed = states.changed() => {
                    changed.map_err(|_| Failure::Client)?;
                    let connected = states.borrow_and_update().connected().to_vec();
                    let now = clock::now();
                    connected.into_iter().for_each(|id| self.connect.handle_connected(id, now));
                }
                Ok(()) = self.routes.changed() => self.take_route(),
                () = clock::sleep_until(due) => {}
            }
        }
    }

    /// False if it was cancelled.
    fn carry_out(&mut self, action: Action) -> bool {
        let ingress = self.ingress;
        match action {
            Action::Start { id, candidate, left, hedge } => {
                if hedge {
                    ingress.totals.counts.bump(SessionCount::Hedged);
                } else if id > 0 {
                    ingress.totals.counts.bump(SessionCount::Retried);
                }
                let line = candidate.origin.line;
                let guard = ingress.context.sessions.open(&ingress.service, Side::Client, line);
                let target = ingress.target(line, left);
                let shared = self.shared.clone();
                let attempt =
                    self.attempts.spawn(async move { (id, attempt(shared, id, target).await) });
                self.running.insert(id, Running { attempt, guard, line });
            }
            Action::Cancel { id, overdue } => {
                let Some(running) = self.running.remove(&id) else { return true };
                running.attempt.abort();
                if !overdue {
                    ingress.totals.counts.bump(SessionCount::Cancelled);
                } else if !self.fail(id, running.line, Failure::Path("timed out".into())) {
                    return false;
                }
                self.shared.release(id);
            }
            Action::GiveUp => return false,
        }
        true
    }

    fn take_end(
        &mut self,
        ended: Result<(u32, Result<Upstream, Failure>), JoinError>,
    ) -> Result<Option<(Upstream, Guard)>, Failure> {
        // Fails only for a cancelled attempt.
        let Ok((id, result)) = ended else { return Ok(None) };
        if self.routes.has_changed().is_ok_and(|changed| changed) {
            self.take_route();
        }
        // An attempt that was cancelled just as it ended does not count.
        let Some(Running { guard, line, .. }) = self.running.remove(&id) else { return Ok(None) };
        match result {
            Ok(_) if self.connect.is_futile(id, line) => {
                self.ingress.totals.counts.bump(SessionCount::Cancelled);
                self.shared.release(id);
                Ok(None)
            }
            Ok(upstream) => {
                self.connect.handle_answer(id);
                let line = upstream.line();
                self.ingress.searches(|all| all.note_answer(line, clock::now()));
                let losers = self.running.len() as u64;
                self.ingress.totals.counts.add(SessionCount::Cancelled, losers);
                Ok(Some((upstream, guard)))
            }
            Err(failure) => {
                self.connect.handle_failure(id, failure.verdict());
                if !self.fail(id, line, failure) {
                    return Err(std::mem::replace(&mut self.last, Failure::Client));
                }
                self.shared.release(id);
                Ok(None)
            }
        }
    }

    /// Handles a failed attempt. False if the client's bytes were sent and must not be replayed.
    fn fail(&mut self, id: u32, line: Line, failure: Failure) -> bool {
        self.ingress.totals.origins.of(&line).note_failed();
        debug!(service = %self.ingress.service, %failure, "next candidate");
        self.last = failure;
        self.ingress.tell(self.connect.take_verdicts());
        !self.shared.is_spent_by(id)
    }

    fn take_route(&mut self) {
        let route = self.routes.borrow_and_update().clone();
        // Once bytes that must not be replayed were sent, there is no choice left.
        if self.shared.look(Opening::may_retry) {
            self.connect.handle_route(route, clock::now());
        }
    }

    fn take_bytes(&mut self, bytes: std::io::Result<Option<Bytes>>) -> Result<(), Failure> {
        let kind = self.shared.opening(|opening| {
            match bytes {
                Ok(Some(bytes)) => opening.push(&bytes),
                // A client that ends its side after a TLS hello, or before any byte, wants no
                // answer.
                Ok(None) if !opening.is_empty() && !opening.begins_tls() => {
                    opening.ended = true;
                }
                Ok(None) | Err(_) => return Err(Failure::Client),
            }
            Ok(opening.kind())
        });
        self.connect.handle_kind(kind?, clock::now());
        Ok(())
    }
}

#[cfg(test)]
mod tests;
