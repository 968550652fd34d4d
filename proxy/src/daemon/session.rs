//! One client connection, from accept to end.
//!
//! A session walks the candidates of its service's route until one answers, round after round,
//! within the service's connect timeout. While nothing is usable it is held, for at most the
//! service's hold time, and goes on the moment the route changes. A client that finds nobody gets
//! a reset.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use meshport_config::{NodeId, ServiceName};
use meshport_mesh::Mesh;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::debug;

use crate::core::route::{Candidate, Route};
use crate::wire::{Header, MAX_DEADLINE};

use super::attempt::{self, Failure, Patience, Target, Upstream, Way, attempt};
use super::clock;
use super::opening::{Kind, Opening};
use super::sessions::{Guard, Sessions, Side, Totals, bump};
use super::splice::{self, Carried, Unfinished};

/// The pause before all candidates are tried again, when none was slow about failing.
const ROUND_PAUSE: Duration = Duration::from_millis(100);

/// How often candidates that are said to be down are tried while there is nothing better.
const TRIAL_INTERVAL: Duration = Duration::from_secs(1);

/// What sessions of one service may do; replaced as a whole on reload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SessionLimits {
    /// From accept to the first byte of an answer.
    pub(super) connect_timeout: Duration,
    /// How long a connection waits while no candidate is usable.
    pub(super) hold: Duration,
    /// Sessions open at once.
    pub(super) max_sessions: u64,
    /// Where the own instance is dialled, if this node hosts one.
    pub(super) own: Option<String>,
}

/// What every session of a service shares.
#[derive(Debug)]
pub(super) struct Ingress {
    pub(super) me: NodeId,
    pub(super) service: ServiceName,
    pub(super) mesh: Mesh,
    pub(super) route: watch::Receiver<Arc<Route>>,
    pub(super) limits: watch::Receiver<Arc<SessionLimits>>,
    pub(super) sessions: Sessions,
    pub(super) totals: Arc<Totals>,
    /// Draws for two random choices, and turns for `spread`. A Weyl sequence: each ticket is new,
    /// and all bits of its mix are used.
    tickets: AtomicU64,
    /// Draws for the places of sessions in a window of resets.
    places: AtomicU64,
}

impl Ingress {
    pub(super) fn new(
        (me, service): (NodeId, ServiceName),
        mesh: Mesh,
        route: watch::Receiver<Arc<Route>>,
        limits: watch::Receiver<Arc<SessionLimits>>,
        sessions: Sessions,
    ) -> Self {
        let totals = sessions.totals(&service);
        let (tickets, places) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { me, service, mesh, route, limits, sessions, totals, tickets, places }
    }

    /// Serves one client to its end.
    pub(super) async fn serve(&self, client: TcpStream) {
        let limits = self.limits.borrow().clone();
        let mut opening = Opening::default();
        let unfinished = Unfinished::new(&client);
        let found = self.find(&client, &mut opening, &limits).await;
        match found {
            Ok((upstream, mut guard)) => {
                bump(&self.totals.connected);
                unfinished.done();
                self.carry(client, &opening, upstream, &mut guard).await;
            }
            Err(Failure::Client) => {
                bump(&self.totals.abandoned);
                unfinished.done();
            }
            Err(failure) => {
                bump(&self.totals.failed);
                debug!(service = %self.service, %failure, "no origin for a client");
            }
        }
    }

    /// Resolves once no origin has been usable for the service's hold time and none answers a
    /// trial.
    pub(super) async fn hopeless(&self) {
        loop {
            self.until_usable(false).await;
            let hold = self.limits.borrow().hold;
            let given_up = async {
                tokio::time::sleep(hold).await;
                while self.any_answers().await {
                    tokio::time::sleep(TRIAL_INTERVAL).await;
                }
            };
            // Trials of silent origins take seconds, in which the route may become usable.
            tokio::select! {
                () = self.until_usable(true) => {}
                () = given_up => return,
            }
        }
    }

    /// Resolves once an origin is usable or answers a trial: what gossip says may be wrong.
    pub(super) async fn hopeful(&self) {
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

    async fn until_usable(&self, usable: bool) {
        let mut routes = self.route.clone();
        let reached = routes.wait_for(|route| route.is_usable() == usable).await.is_ok();
        if !reached {
            // The driver has ended, and the daemon is about to.
            std::future::pending::<()>().await;
        }
    }

    /// Whether any candidate's instance accepts a connection now, in the order of the route.
    async fn any_answers(&self) -> bool {
        let route = self.route.borrow().clone();
        let own = self.limits.borrow().own.clone();
        for candidate in &route.candidates {
            let left = MAX_DEADLINE;
            let patience = Patience::new(candidate, 0, left);
            let header = Header::direct(self.service.clone(), left);
            let own = (candidate.origin.node == self.me).then_some(own.as_deref()).flatten();
            let target = Target { mesh: &self.mesh, header: &header, candidate, own, patience };
            if attempt::answers(target).await {
                return true;
            }
        }
        false
    }

    async fn find(
        &self,
        client: &TcpStream,
        opening: &mut Opening,
        limits: &SessionLimits,
    ) -> Result<(Upstream, Guard), Failure> {
        let started: Instant = clock::now().into();
        let mut routes = self.route.clone();
        let mut last = Failure::Path("no origin is known".into());
        let mut attempts = 0;
        for round in 0.. {
            let route = routes.borrow_and_update().clone();
            let patient = if route.is_usable() { limits.connect_timeout } else { limits.hold };
            for candidate in route.attempt_order(self.ticket(&route), |node| self.open(node)) {
                let left = patient.saturating_sub(Instant::from_std(clock::now()) - started);
                if left.is_zero() {
                    return Err(last);
                }
                attempts += 1;
                if attempts > 1 {
                    bump(&self.totals.retried);
                }
                match self.attempt(client, opening, limits, (candidate, round, left)).await {
                    Ok(found) => return Ok(found),
                    Err(failure) if matches!(failure, Failure::Client) || !opening.may_retry() => {
                        return Err(failure);
                    }
                    Err(failure) => {
                        let name = &candidate.origin.name;
                        debug!(service = %self.service, origin = %name, %failure, "next candidate");
                        last = failure;
                    }
                }
            }
            let deadline = started + patient;
            if Instant::from_std(clock::now()) >= deadline {
                return Err(last);
            }
            self.pause(client, opening, &mut routes, deadline, !route.candidates.is_empty())
                .await?;
        }
        Err(last)
    }

    /// Waits for a change of the route; after failed attempts also just for a moment. A client
    /// that leaves meanwhile ends the wait.
    async fn pause(
        &self,
        client: &TcpStream,
        opening: &mut Opening,
        routes: &mut watch::Receiver<Arc<Route>>,
        deadline: Instant,
        has_candidates: bool,
    ) -> Result<(), Failure> {
        let soon = Instant::from_std(clock::now()) + ROUND_PAUSE;
        let until = if has_candidates { soon.min(deadline) } else { deadline };
        let until = tokio::time::sleep_until(until);
        tokio::pin!(until);
        loop {
            let reads = !opening.ended && opening.room() > 0;
            tokio::select! {
                _ = routes.changed() => return Ok(()),
                () = &mut until => return Ok(()),
                bytes = splice::read(client), if reads => match bytes {
                    Ok(Some(bytes)) => opening.push(&bytes),
                    // Nobody ends after a TLS hello who still wants an answer.
                    Ok(None) if !opening.is_empty() && opening.kind() != Kind::Tls => {
                        opening.ended = true;
                    }
                    Ok(None) | Err(_) => return Err(Failure::Client),
                },
            }
        }
    }

    async fn attempt(
        &self,
        client: &TcpStream,
        opening: &mut Opening,
        limits: &SessionLimits,
        (candidate, round, left): (&Candidate, u32, Duration),
    ) -> Result<(Upstream, Guard), Failure> {
        let node = candidate.origin.node;
        // The guard is taken before the attempt: connections under way weigh in the comparison of
        // loads, and their path is watched closely from the start.
        let guard = self.sessions.open(&self.service, Side::Client, node);
        let patience = Patience::new(candidate, round, left);
        let header = Header::direct(self.service.clone(), left);
        let own = (node == self.me).then_some(limits.own.as_deref()).flatten();
        let target = Target { mesh: &self.mesh, header: &header, candidate, own, patience };
        attempt(client, opening, target).await.map(|upstream| (upstream, guard))
    }

    async fn carry(
        &self,
        client: TcpStream,
        opening: &Opening,
        upstream: Upstream,
        guard: &mut Guard,
    ) {
        let Upstream { way, first } = upstream;
        guard.forgive();
        let cut = async {
            guard.cut(self.share()).await;
            bump(&self.totals.cut);
        };
        let mut carried = Carried { up: opening.len() as u64, down: 0 };
        let ended = match way {
            Way::Mesh(stream) => {
                splice::with_stream(client, stream, first, &mut carried, cut).await
            }
            Way::Own(tcp) => splice::with_tcp(client, tcp, first, &mut carried, cut).await,
        };
        if let Err(error) = ended {
            debug!(service = %self.service, %error, "session broke");
        }
        self.totals.up_bytes.fetch_add(carried.up, Ordering::Relaxed);
        self.totals.down_bytes.fetch_add(carried.down, Ordering::Relaxed);
    }

    fn open(&self, node: &NodeId) -> u64 {
        self.sessions.count(&self.service, Side::Client, *node)
    }

    /// A place between 0 and 1, another one for each session.
    fn share(&self) -> f64 {
        let place = mix(self.places.fetch_add(1, Ordering::Relaxed));
        f64::from(u32::try_from(place >> 32).expect("half of the bits")) / f64::from(u32::MAX)
    }

    fn ticket(&self, route: &Route) -> u64 {
        let turn = self.tickets.fetch_add(1, Ordering::Relaxed);
        if route.takes_turns() { turn } else { mix(turn) }
    }
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number
/// Generators"): spreads a counter over all 64 bits.
fn mix(counter: u64) -> u64 {
    let mut z = counter.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::time::timeout;

    use super::super::testing::{self, Node, pair, service};
    use super::*;
    use crate::core::route::{OriginView, PathView, Policy, Preference, choose};

    const SOON: Duration = Duration::from_secs(1);
    const UP: PathView = PathView::Up(Duration::from_millis(1));

    /// A route to one node, whose path is dead or fine.
    fn route(node: NodeId, path: PathView) -> Arc<Route> {
        let origin = OriginView { path, ..testing::candidate(node).origin };
        let memory = Preference::default();
        Arc::new(choose(vec![origin], &Policy::Spread, &memory, clock::now()).0)
    }

    /// The ingress of `near` to `far`, whose path is said to be dead, and the way to say otherwise.
    fn ingress(near: &Node, far: NodeId) -> (Ingress, watch::Sender<Arc<Route>>) {
        let (sender, routes) = watch::channel(route(far, PathView::Dead));
        let limits = SessionLimits {
            connect_timeout: Duration::from_secs(10),
            hold: Duration::ZERO,
            max_sessions: 10,
            own: None,
        };
        let (_, limits) = watch::channel(Arc::new(limits));
        let (me, mesh) = (near.mesh.node_id(), near.mesh.clone());
        let ingress = Ingress::new((me, service()), mesh, routes, limits, Sessions::default());
        (ingress, sender)
    }

    #[tokio::test]
    async fn each_session_has_a_place_of_its_own() {
        let (near, far) = pair();
        let (ingress, _routes) = ingress(&near, far.mesh.node_id());
        let mut places: Vec<f64> = (0..100).map(|_| ingress.share()).collect();
        places.sort_by(f64::total_cmp);
        assert!(places[0] < 0.1 && places[99] > 0.9, "{places:?}");
        places.dedup();
        assert_eq!(places.len(), 100);
    }

    #[tokio::test]
    async fn a_held_client_that_has_said_all_it_has_to_say_is_still_served() {
        let (near, far) = pair();
        let (ingress, routes) = ingress(&near, far.mesh.node_id());
        let (mut client, accepted) = testing::tcp_pair().await;
        client.write_all(b"all").await.expect("writes");
        client.shutdown().await.expect("half-closes");
        let mut opening = Opening::default();
        let mut changes = routes.subscribe();
        let deadline = Instant::from_std(clock::now()) + SOON / 4;
        let paused = ingress.pause(&accepted, &mut opening, &mut changes, deadline, false).await;
        assert!(paused.is_ok(), "it did not leave");
        assert!(opening.ended && opening.len() == 3);
    }

    #[tokio::test]
    async fn a_usable_route_is_hope_while_a_trial_is_under_way() {
        let (near, mut far) = pair();
        let node = far.mesh.node_id();
        let (ingress, routes) = ingress(&near, node);
        let hope = tokio::spawn(async move { ingress.hopeful().await });
        let _silent = far.incoming.streams.recv().await.expect("a trial");
        routes.send_replace(route(node, UP));
        timeout(SOON, hope).await.expect("at once").expect("no panic");
    }

    #[tokio::test]
    async fn a_failed_trial_is_not_the_end_once_the_route_is_usable() {
        let (near, mut far) = pair();
        let node = far.mesh.node_id();
        let (ingress, routes) = ingress(&near, node);
        let mut end = tokio::spawn(async move { ingress.hopeless().await });
        let trial = far.incoming.streams.recv().await.expect("a trial");
        routes.send_replace(route(node, UP));
        drop(trial);
        assert!(timeout(SOON / 4, &mut end).await.is_err(), "given up in spite of a route");
        routes.send_replace(route(node, PathView::Dead));
        drop(far.incoming.streams.recv().await.expect("another trial"));
        timeout(SOON, end).await.expect("nobody answers").expect("no panic");
    }
}
