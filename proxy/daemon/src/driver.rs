//! The loop around the core: every event of a node passes through here, in one order.
//!
//! One task owns the [`NodeCore`]. It waits for the next input (a mesh event, a probe's outcome, a
//! query, a change of the busy origins, a timer), hands it to the core with the time read once, and
//! then carries out the core's output: datagrams, probes, peers, routes. Queues: mesh events are
//! bounded by the mesh, queries by [`MAX_QUESTIONS`], outcomes by [`MAX_OUTCOMES`], findings of
//! sessions by [`MAX_FINDINGS`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use meshport_config::{
    Credential, NodeId, NodeName, Revocation, Revocations, ServiceName, UnixSeconds,
};
use meshport_mesh::{Delivery, Mesh, MeshEvent, ports};
use tokio::sync::{broadcast, mpsc, watch};
use tokio::task::JoinSet;
use tracing::{info, warn};

use meshport_core::egress::Offers;
use meshport_core::health::Question as Probe;
use meshport_core::journal::Kind;
use meshport_core::ledger::Side;
use meshport_core::names;
use meshport_core::node::{Event, NodeCore};
use meshport_core::renewal::MAX_ISSUERS;
use meshport_core::route::{Line, Route};
use meshport_core::vip::message as vip;

use crate::clock;
use crate::driver::commands::Command;
use crate::driver::persistence::Persistence;
use crate::driver::renewal::FromIssuer;
use crate::driver::write_queue::{Snapshot, Write};
use crate::health::load::Load;
use crate::health::probe::{Answer, Prober};
use crate::identity::{Change, IdentityError};
use crate::inquiry::{self, Called};
use crate::log_budget::LogBudgets;
use crate::report::floods;
use crate::report::{LocalState, Reporter};
use crate::sessions::ingress::{Finding, MAX_FINDINGS};
use crate::sessions::registry::Sessions;

use self::answers::ProcessRequest;
use self::revoked::close_revoked_sessions;
use self::seeds::Seeds;

pub(crate) mod answers;
pub(crate) mod commands;
pub(crate) mod endpoints;
pub(crate) mod handle;
mod identity;
mod members;
mod offers;
mod persistence;
pub(crate) mod renewal;
pub(crate) mod revoked;
mod route_log;
pub(crate) mod seeds;
mod services;
mod sightings;
pub(crate) mod wayback;
pub(crate) mod write_queue;

/// Queries queued for the driver. It answers between network events, so a few suffice; other
/// callers wait.
const MAX_QUESTIONS: usize = 64;
/// Commands queued for the driver; they come from timers and operators.
const MAX_COMMANDS: usize = 16;
/// Requests to the process queued behind the current one.
const MAX_PROCESS_REQUESTS: usize = 4;
/// Suspicions queued for observers. One turn of the driver raises a few; an observer that lags
/// further gets the number it missed.
const MAX_SUSPICIONS: usize = 64;
/// Outcomes of probes queued for the driver. Each service has at most two running probes.
const MAX_OUTCOMES: usize = 2 * meshport_core::node::MAX_SERVICES;
/// Mesh events handled before the core's output is carried out: a burst is handled at once, yet
/// transmits never wait long.
const MAX_EVENTS_PER_TURN: usize = 64;

type OutcomeOf = (ServiceName, Probe, Answer);

/// A query from outside, which computes its own answer.
pub(crate) struct Question(pub(crate) Box<dyn FnOnce(&mut Driver) + Send>);

impl std::fmt::Debug for Question {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Question")
    }
}

/// The parts of a driver.
pub(crate) struct Components {
    pub(crate) core: NodeCore,
    pub(crate) mesh: Mesh,
    pub(crate) events: mpsc::Receiver<MeshEvent>,
    pub(crate) sessions: Sessions,
    pub(crate) state: LocalState,
    pub(crate) probers: BTreeMap<ServiceName, Prober>,
    /// The seeds that the settings list without an address.
    pub(crate) seed_names: Vec<NodeName>,
    /// Stores durable values and answers each [`Write`] with a command. Without a writer everything
    /// counts as stored at once.
    pub(crate) writer: Option<mpsc::Sender<Write>>,
    /// The revocations known before.
    pub(crate) revocations: Revocations,
}

/// The other ends of a driver's queues, and the values it publishes.
pub(crate) struct Channels {
    pub(crate) questions: mpsc::Sender<Question>,
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) findings: mpsc::Sender<Finding>,
    pub(crate) process: mpsc::Receiver<ProcessRequest>,
    /// Why a peer was refused last, by either side.
    pub(crate) refused: watch::Receiver<Option<String>>,
    pub(crate) revocations: watch::Receiver<Revocations>,
    /// This node's own credential.
    pub(crate) credential: watch::Receiver<Arc<Credential>>,
    /// The nodes that this node suspects.
    pub(crate) suspected: broadcast::Sender<NodeId>,
}

struct Inputs {
    events: mpsc::Receiver<MeshEvent>,
    questions: mpsc::Receiver<Question>,
    commands: mpsc::Receiver<Command>,
    findings: mpsc::Receiver<Finding>,
    renewals: mpsc::Receiver<FromIssuer>,
}

/// The values that others watch.
pub(crate) struct Outputs {
    pub(crate) routes: BTreeMap<ServiceName, watch::Sender<Arc<Route>>>,
    process: mpsc::Sender<ProcessRequest>,
    refused: watch::Sender<Option<String>>,
    /// That another process uses this node's key, with the remedy.
    pub(crate) own_duplicate: watch::Sender<Option<String>>,
    pub(crate) revoked: watch::Sender<Revocations>,
    pub(crate) credential: watch::Sender<Arc<Credential>>,
    /// The offers of a program on this machine.
    pub(crate) offered: watch::Sender<Arc<Offers>>,
    suspected: broadcast::Sender<NodeId>,
    called: broadcast::Sender<Called>,
    renewals: mpsc::Sender<FromIssuer>,
}

/// Everything the loop owns.
pub(crate) struct Driver {
    pub(crate) core: NodeCore,
    pub(crate) mesh: Mesh,
    pub(crate) sessions: Sessions,
    pub(crate) state: LocalState,
    pub(crate) outputs: Outputs,
    inputs: Inputs,
    probers: BTreeMap<ServiceName, Prober>,
    load: Load,
    seeds: Seeds,
    /// Data acknowledged so far on paths with overdue probes.
    deliveries: BTreeMap<NodeId, Delivery>,
    /// The peers whose narrow path is in the log.
    told_narrow: BTreeSet<NodeId>,
    budgets: LogBudgets,
    /// The values being stored.
    persistence: Persistence,
}

impl Driver {
    /// Creates a driver that is not running yet, and its queues.
    pub(crate) fn new(components: Components) -> (Self, Channels) {
        let (questions, asked) = mpsc::channel(MAX_QUESTIONS);
        let (commands, received) = mpsc::channel(MAX_COMMANDS);
        let (findings, found) = mpsc::channel(MAX_FINDINGS);
        let (process, process_requests) = mpsc::channel(MAX_PROCESS_REQUESTS);
        let (from_issuers, renewals) = mpsc::channel(MAX_ISSUERS);
        let identity = &components.state.identity;
        let outputs = Outputs {
            routes: BTreeMap::new(),
            process,
            refused: watch::Sender::new(None),
            own_duplicate: watch::Sender::new(None),
            revoked: watch::Sender::new(components.revocations.clone()),
            credential: watch::Sender::new(identity.credential.clone()),
            offered: watch::Sender::default(),
            suspected: broadcast::Sender::new(MAX_SUSPICIONS),
            called: broadcast::Sender::new(inquiry::MAX_CALLS),
            renewals: from_issuers,
        };
        let channels = Channels {
            questions,
            commands,
            findings,
            process: process_requests,
            refused: outputs.refused.subscribe(),
            revocations: outputs.revoked.subscribe(),
            credential: outputs.credential.subscribe(),
            suspected: outputs.suspected.clone(),
        };
        let persistence = Persistence::new(&identity.secrets, components.writer);
        let Components { mut core, mesh, events, .. } = components;
        mesh.set_revocations(&components.revocations);
        core.restore_revocations(components.revocations, clock::now());
        let driver = Self {
            core,
            mesh,
            sessions: components.sessions,
            state: components.state,
            outputs,
            inputs: Inputs {
                events,
                questions: asked,
                commands: received,
                findings: found,
                renewals,
            },
            probers: components.probers,
            load: Load::default(),
            seeds: Seeds { at: BTreeMap::new(), names: components.seed_names },
            deliveries: BTreeMap::new(),
            told_narrow: BTreeSet::new(),
            budgets: LogBudgets::new(clock::now()),
            persistence,
        };
        (driver, channels)
    }

    /// Answers questions about this node as it is now.
    pub(crate) fn reporter(&self) -> Reporter<'_> {
        Reporter { core: &self.core, state: &self.state }
    }

    /// Runs until the mesh ends or all handles are dropped.
    pub(crate) async fn run(mut self) {
        let (outcome_sender, mut outcomes) = mpsc::channel::<OutcomeOf>(MAX_OUTCOMES);
        let mut probes = JoinSet::new();
        loop {
            self.carry_out(&outcome_sender, &mut probes);
            let history = Some(self.state.history.poll_timeout());
            let renewal = Some(self.state.renewals.seeker.poll_timeout(clock::now()));
            let persistence = self.persistence.poll_timeout();
            let wake = [self.core.poll_timeout(), persistence, history, renewal];
            let wake = wake.into_iter().flatten().min();
            tokio::select! {
                event = self.inputs.events.recv() => match event {
                    Some(event) => self.take_events(event),
                    None => return,
                },
                Some((service, probe, Answer { outcome, failing })) = outcomes.recv() => {
                    if probe == Probe::Ready {
                        self.core.handle_checks(&service, failing);
                    }
                    self.core.handle_outcome(&service, probe, outcome, clock::now());
                }
                Some(_) = probes.join_next(), if !probes.is_empty() => {}
                question = self.inputs.questions.recv() => match question {
                    Some(Question(ask)) => ask(&mut self),
                    None => return,
                },
                Some(command) = self.inputs.commands.recv() => self.execute(command),
                Some(heard) = self.inputs.renewals.recv() => self.take_issued(heard),
                Some(finding) = self.inputs.findings.recv() => match finding {
                    Finding::Verdicts(service, verdicts) => {
                        self.core.handle_verdicts(&service, verdicts, clock::now());
                    }
                    Finding::OwnRefused(service) => {
                        self.core.handle_refused(&service, clock::now());
                    }
                    Finding::Unknown { from, what } => self.note_unknown(from, what),
                },
                () = self.sessions.busy_changed() => {
                    self.core.handle_busy(self.sessions.busy(), clock::now());
                }
                () = clock::sleep_until(wake) => {
                    self.credit_deliveries();
                    self.note_load();
                    let (now, wall) = (clock::now(), clock::wall());
                    self.state.note_history(now);
                    self.core.handle_timeout(now, wall);
                    self.end_former(now, wall);
                }
            }
        }
    }

    /// Tells the core how many connections this node opens.
    fn note_load(&mut self) {
        let now = clock::now();
        for service in self.probers.keys() {
            let total = self.sessions.totals(service).dialled();
            self.core.handle_dials(service, self.load.look(service, total, now));
        }
    }

    /// Tells the core which paths with overdue probes still carry data.
    fn credit_deliveries(&mut self) {
        let overdue = self.core.overdue_paths();
        let found: Vec<_> =
            overdue.filter_map(|node| Some((node, self.mesh.delivery(&node)?))).collect();
        for (node, delivery) in &found {
            if self.deliveries.get(node).is_some_and(|earlier| earlier != delivery) {
                self.core.handle_delivery(*node);
            }
        }
        self.deliveries = found.into_iter().collect();
    }

    fn take_events(&mut self, first: MeshEvent) {
        self.take_event(first);
        for _ in 1..MAX_EVENTS_PER_TURN {
            let Ok(event) = self.inputs.events.try_recv() else { return };
            self.take_event(event);
        }
    }

    fn take_event(&mut self, event: MeshEvent) {
        let (now, wall) = (clock::now(), clock::wall());
        match event {
            MeshEvent::Datagram { from, port, payload, .. } => match port {
                ports::GOSSIP => {
                    self.introduce(&from, now, wall);
                    self.core.handle_datagram(from, &payload, now, wall);
                }
                vip::PORT => self.take_claim(from, &payload),
                _ => {}
            },
            MeshEvent::Admitted { credential } => {
                let (name, site) = (&credential.name, &credential.site);
                info!(%name, %site, node = %credential.node.short(), "peer admitted");
                self.state.audit.admitted(&credential);
                self.core.handle_credential(&credential, now, wall);
            }
            MeshEvent::SessionUp(node) => {
                // A peer's credential may be known from gossip already.
                if let Some(credential) = self.mesh.credential(&node) {
                    self.state.audit.admitted(&credential);
                    self.core.handle_credential(&credential, now, wall);
                }
                self.core.handle_session(node, true, now);
            }
            MeshEvent::SessionDown(node) => {
                self.state.audit.gone(&node);
                self.lose_session(node);
            }
            MeshEvent::Succeeded { former, credential } => self.follow(former, &credential),
            MeshEvent::Rotated { from, secrets } => self.offer_secrets(*secrets, Some(from)),
            MeshEvent::Knocked { node, why } => self.state.audit.knocked(&node, &why),
            MeshEvent::Unacknowledged(node) => self.core.handle_unacknowledged(node, now),
            MeshEvent::SeenAt { by, at } => self.take_sight(by, at),
            MeshEvent::Duplicate { node, at } => self.note_duplicate(node, at.to_vec(), None),
            MeshEvent::Called { token, from } => {
                // Without an inquiry there is no receiver.
                let _ = self.outputs.called.send(Called { token, from });
            }
            MeshEvent::OwnDuplicate { by, at } => {
                self.note_duplicate(self.state.identity.me.node, vec![at], Some(by));
            }
            MeshEvent::Unknown { from, what } => self.note_unknown(from, what),
            MeshEvent::NotYetValid(begins) => clock::note_start(begins),
            MeshEvent::Refused { node, reason } => {
                self.state.renewals.handle_refusal(&self.state.identity.credential, &reason);
                self.state.audit.refused_peer(&node, &reason);
                let name = self.reporter().name(&node);
                self.state.journal.note(Kind::Refused, name, &reason, now);
                self.outputs.refused.send_replace(Some(reason.clone()));
                // Anyone with the mesh secret can make up keys and be refused.
                if let Some(held_back) = self.budgets.refusals.take(now) {
                    warn!(node = %node.short(), %reason, held_back, "peer refused");
                }
            }
        }
    }

    /// The mesh admitted a node that discovery does not know: it was forgotten, or its credential
    /// had expired by a clock that has since been corrected.
    fn introduce(&mut self, from: &NodeId, now: Instant, wall: UnixSeconds) {
        if self.core.wants_credential(from, now)
            && let Some(credential) = self.mesh.credential(from)
        {
            self.core.handle_credential(&credential, now, wall);
        }
    }

    fn carry_out(&mut self, outcomes: &mpsc::Sender<OutcomeOf>, probes: &mut JoinSet<()>) {
        let now = clock::now();
        self.renew_in_time(now);
        self.hand_over(now);
        let sessions = &self.sessions;
        let open =
            |service: &ServiceName, line: &Line| sessions.count_line(service, Side::Client, *line);
        self.core.handle_counts(open, now);
        self.state.floods.look(now, || floods::held_off(&self.mesh.counters()));
        self.state.crowding.look(self.core.discovery().directory().crowding());
        while let Some(event) = self.core.poll_event() {
            self.take_decision(event);
        }
        self.hand_over(now);
        self.send_all();
        while let Some((service, probe)) = self.core.poll_probe(now) {
            let Some(prober) = self.probers.get(&service).cloned() else { continue };
            let outcomes = outcomes.clone();
            probes.spawn(async move {
                let answer = prober.ask(probe).await;
                let _ = outcomes.send((service, probe, answer)).await;
            });
        }
    }

    fn send_all(&mut self) {
        while let Some(transmit) = self.core.poll_transmit() {
            // A datagram that cannot be sent is lost like any other; the mesh counts it.
            let _ = self.mesh.send_datagram(transmit.to, ports::GOSSIP, &transmit.payload);
        }
    }

    /// Applies the credential in the state folder if it differs.
    fn use_stored(&mut self, stored: Credential) -> Result<(), IdentityError> {
        if self.state.identity.judge_renewal(&stored)? {
            self.change_identity(Change::Renewed(Box::new(stored)), None)?;
        }
        Ok(())
    }

    fn take_decision(&mut self, event: Event) {
        match event {
            Event::Route { service, route, change } => {
                if let Some(change) = change {
                    route_log::route(&service, &change, &route, |node| self.reporter().name(node));
                    let said = self.reporter().change(&change);
                    self.state.journal.note_service(Kind::Route, &service, &said, change.at);
                }
                if let Some(sender) = self.outputs.routes.get(&service) {
                    route_log::readiness(&service, &sender.borrow(), &route);
                    sender.send_replace(route);
                }
            }
            Event::Reset { service, line, how, served, why } => {
                let mut sessions = self.sessions.cut(&service, line, how);
                if served {
                    sessions += self.sessions.cut_served(&service, how);
                }
                if sessions > 0 {
                    let origin = self.reporter().line(&line);
                    warn!(%service, %origin, sessions, why, "sessions reset");
                    let said = format!("{sessions} to {origin}: {why}");
                    self.state.journal.note_service(Kind::Reset, &service, &said, clock::now());
                }
            }
            Event::Move { service, leave } => self.release(&service, leave),
            Event::Offered { offers, why } => self.publish_offers(offers, why),
            Event::Own { service, state, detail } => {
                let instance = names::local_instance(&service);
                info!(%service, %state, detail, "{instance} changed state");
                let said = format!("{instance} is {state}: {detail}");
                self.state.journal.note_service(Kind::Instance, &service, &said, clock::now());
            }
            Event::Peer { node, endpoints, credential } => {
                self.take_peer(node, &endpoints, &credential);
            }
            Event::Revoked(revocation) => self.take_revocation(&revocation),
            Event::Silent(node) => {
                self.tell_narrow(&node);
                self.mesh.expect_answer(&node);
                self.cut_way_back(&node);
            }
            Event::Revived(node) => self.mesh.renew_connection(&node),
            Event::Split { node, on } => {
                self.mesh.set_narrow(&node, on);
                self.tell_split(&node, on);
            }
            Event::Suspected(node) => self.tell_suspected(&node),
            // Seeds are never forgotten.
            Event::Forgotten(node) if self.seeds.at.contains_key(&node) => {}
            Event::Forgotten(node) => {
                self.state.process.board.forget_member(&node);
                self.mesh.release_peer(&node);
            }
            Event::Member { node, up } => self.tell_member(&node, up),
            Event::Ignored { node, reason } => self.tell_ignored(&node, &reason),
            Event::Unknown { from, what } => self.note_unknown(from, what),
            Event::Denied { service, origin } => self.tell_denied(&service, &origin),
        }
    }

    /// Applies revocations of the authority.
    fn take_revocation(&mut self, revocation: &Revocation) {
        // Revoked nodes get it too, while they are still reachable.
        self.send_all();
        let all = self.core.discovery().revocations().clone();
        let (what, at) = (&revocation.revoked, revocation.at);
        close_revoked_sessions(&all, &self.mesh, &self.sessions);
        self.fall_back();
        let own = all.covering(&self.state.identity.credential);
        if own.is_some_and(|it| it.successor().is_none()) {
            // No node serves this one any longer: end sessions now, so that clients need not wait
            // for timeouts.
            self.sessions.end(|_| true);
        }
        self.store_revocations(all.clone());
        self.outputs.revoked.send_replace(all);
        self.state.audit.revoked(revocation);
        if let (Some(node), Some(by)) = (what.node(), revocation.successor()) {
            self.sessions.rename(node, by);
            let seeds = std::mem::take(&mut self.seeds.at).into_iter().collect();
            self.set_seeds(seeds);
        } else if what.is_departure() {
            info!(%what, %at, "a node has left for good; closing its sessions");
            let (now, name) = (clock::now(), what.to_string());
            self.state.journal.note(Kind::Revoked, name, "by itself", now);
        } else {
            warn!(revoked = %what, %at, "revoked by the authority; closing its sessions");
            let (now, name) = (clock::now(), what.to_string());
            self.state.journal.note(Kind::Revoked, name, "by the authority", now);
        }
    }

    /// Carries out a command.
    pub(crate) fn execute(&mut self, command: Command) {
        let now = clock::now();
        match command {
            Command::Seeds(seeds) => self.set_seeds(seeds),
            Command::Endpoints(own) => self.set_own_endpoints(own),
            Command::Service(service, change) => self.change_service(service, change, now),
            Command::Listed(service, list) => {
                let me = self.state.identity.me.node;
                self.state.rosters.handle(&self.core, me, &service, list, now);
            }
            Command::StoreNodes(bytes) => self.offer(Write::Nodes(bytes)),
            Command::AddService(addition) => self.add_service(*addition, now),
            Command::Reloaded(outcome) => self.state.process.note_reload(outcome),
            Command::FailedUpgrade(why) => self.state.process.failed_upgrade = why,
            Command::Credential(stored, done) => {
                let used = stored.and_then(|it| self.use_stored(*it).map_err(|it| it.to_string()));
                self.state.process.kept_credential = used.err();
                let _ = done.send(self.state.process.kept_credential.clone());
            }
            Command::Stored(write) => {
                self.state.process.failed_write = None;
                self.take_stored(write);
            }
            Command::NotStored(write, error) => {
                self.state.process.failed_write = Some(error.clone());
                self.lose(&write, error);
            }
            Command::Wake(slept) => {
                self.mesh.wake(slept);
                self.core.wake(now);
            }
            Command::Probe => self.core.wake(now),
            Command::Leave(done) => {
                self.state.process.is_leaving = true;
                self.core.leave(now);
                self.send_all();
                let _ = done.send(());
            }
            Command::Retire(to) => {
                // The requests that wait fail.
                self.inputs.questions.close();
                while self.inputs.questions.try_recv().is_ok() {}
                let drained = self.core.drained().map(|(name, since)| (name.clone(), since));
                let _ = to.send(drained.collect());
            }
            Command::Snapshot(to) => {
                let discovery = self.core.discovery();
                let (directory, generation) = (discovery.snapshot(), discovery.generation());
                let _ = to.send(Snapshot { directory, generation });
            }
        }
    }
}
