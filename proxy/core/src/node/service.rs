//! A service: its known state, and the consequences for its clients' sessions.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use meshport_config::{NodeId, ServiceName};
use meshport_discovery::OriginState;

use super::{Event, ServiceConfig};
use crate::changes::Changes;
use crate::damping::READY_AGAIN;
use crate::drift::{Drift, Leave};
use crate::evidence::{Attempted, Evidence, Verdict};
use crate::health::Health;
use crate::ledger::Cut;
use crate::policy::{self, Fate};
use crate::relay::Paths;
use crate::route::{Line, OriginView, PathView, Policy, Preference, Route, Standing, Weights};
use crate::timing::Timings;

/// How a service's sessions are spread over its origins.
#[derive(Debug)]
pub(super) struct Balance {
    pub(super) policy: Policy,
    pub(super) weights: Weights,
}

#[derive(Debug)]
pub(super) struct Service {
    pub(super) balance: Balance,
    pub(super) health: Option<Health>,
    pub(super) memory: Preference,
    pub route: Arc<Route>,
    /// The announced state of each origin's instance, and since when it is known here.
    pub(super) states: BTreeMap<NodeId, (OriginState, Instant)>,
    /// The known facts about each path to an instance, including paths that no route uses now.
    pub(super) views: Vec<OriginView>,
    /// The evidence of sessions about lines.
    pub(super) evidence: Evidence,
    /// How long their connections took, for lines without another measurement.
    pub(super) timings: Timings,
    /// The path chosen for each origin.
    pub(super) paths: Paths,
    /// Its addresses outside the mesh.
    pub(super) fallback: Vec<SocketAddr>,
    /// The recent first choices.
    pub(super) changes: Changes,
    pub(super) drift: Drift,
    /// Time since which the local instance is drained.
    pub(super) drained_since: Option<Instant>,
    /// Time at which sessions leave a stalled origin that waits for others to prove themselves.
    pub(super) stall_due: Option<Instant>,
    /// Lines whose sessions were reset and which have not recovered since, and whether their paths
    /// were dead.
    pub(super) doomed: BTreeMap<Line, bool>,
}

impl Service {
    /// A service without any known state.
    pub(super) fn new(config: ServiceConfig, now: Instant) -> Self {
        Self {
            balance: Balance { policy: config.policy, weights: config.weights },
            health: config.health.map(|config| Health::new(config, now)),
            memory: Preference::new(config.damping),
            route: Arc::default(),
            states: BTreeMap::new(),
            views: Vec::new(),
            evidence: Evidence::default(),
            timings: Timings::default(),
            paths: Paths::default(),
            fallback: Vec::new(),
            changes: Changes::default(),
            drift: Drift::new(config.drift),
            drained_since: None,
            stall_due: None,
            doomed: BTreeMap::new(),
        }
    }

    /// Sets the announced state of each origin's instance. When another one becomes ready or ceases
    /// to be, this node's own is asked.
    pub(super) fn set_states(
        &mut self,
        states: BTreeMap<NodeId, (OriginState, Instant)>,
        me: &NodeId,
        now: Instant,
    ) {
        let before = std::mem::replace(&mut self.states, states);
        let Some(health) = &mut self.health else { return };
        if has_readiness_of_another_changed(&before, &self.states, me) {
            let is_another_ready = |states: &BTreeMap<NodeId, (OriginState, Instant)>| {
                states.iter().any(|(node, state)| node != me && is_ready(state))
            };
            let is_first = is_another_ready(&self.states) && !is_another_ready(&before);
            health.handle_other(is_first, now);
        }
    }

    /// Handles what a session observed about a line; true if that may change the route.
    pub(super) fn handle_attempted(&mut self, attempted: Attempted, now: Instant) -> bool {
        let Verdict::Connected(took) = attempted.verdict else {
            return self.evidence.handle(attempted, now);
        };
        self.timings.add(attempted.line, took, now);
        true
    }

    /// Time at which a choice may change without new input.
    pub(super) fn poll_choice(&self) -> Option<Instant> {
        let due = [self.memory.poll_timeout(), self.paths.poll_timeout(), self.stall_due];
        due.into_iter().flatten().min()
    }

    /// Decides which sessions end on each line; returns those to reset since the last call. A
    /// line's sessions are reset once per failure, the death of a lossy path being another one:
    /// sessions that succeed on it later have proved that they work. A node that has `left` also
    /// resets the sessions it serves on its own line: their clients read nothing more from it, and
    /// would wait for answers until its drain ends.
    pub(super) fn judge(
        &mut self,
        name: &ServiceName,
        busy: &BTreeSet<Line>,
        left: Option<Line>,
        now: Instant,
    ) -> Vec<Event> {
        let mut events = Vec::new();
        let mut moves = Vec::new();
        let before = std::mem::take(&mut self.doomed);
        self.stall_due = None;
        let views = std::mem::take(&mut self.views);
        for view in &views {
            let line = view.line;
            match policy::fate(view, &self.route) {
                Fate::Stay => {}
                Fate::Move(cause) if busy.contains(&line) => moves.push((line, cause)),
                Fate::Move(_) => {}
                Fate::Reset { .. } if self.keeps_stalled(view, now) => {}
                Fate::Reset { spread_percent, forgives, why } => {
                    let is_dead = view.path == PathView::Dead;
                    self.doomed.insert(line, is_dead);
                    // Sessions that began on a lossy path before it died hang on it too.
                    if before.get(&line).is_none_or(|was_dead| is_dead && !was_dead) {
                        let window = self.drift.config().cut_window * spread_percent / 100;
                        let (service, how) = (name.clone(), Cut::Within { window, forgives });
                        let served = left == Some(line);
                        events.push(Event::Reset { service, line, how, served, why });
                    }
                }
            }
        }
        self.views = views;
        for line in self.drift.set(moves, now) {
            let leave = Leave { line, count: 0, insist: false };
            events.push(Event::Move { service: name.clone(), leave });
        }
        events
    }

    /// Whether sessions stay on a stalled origin for now. While new sessions go there, those that
    /// were cut would return to it. If no healthy origin has been ready for long, the others may
    /// have stalled too, and have recovered a moment earlier than this one.
    fn keeps_stalled(&mut self, view: &OriginView, now: Instant) -> bool {
        if view.state != OriginState::Stalled {
            return false;
        }
        if self.route.first().is_some_and(|first| first.origin.line == view.line) {
            return true;
        }
        let others = self.route.candidates.iter().filter(|other| {
            matches!(other.standing, Standing::Healthy | Standing::Draining)
                && other.origin.line.origin() != view.line.origin()
        });
        let ready =
            others.filter_map(|other| Some(self.states.get(&other.origin.line.origin()?)?.1));
        let due = ready.min().map(|ready| ready + READY_AGAIN).filter(|due| *due > now);
        self.stall_due = self.stall_due.into_iter().chain(due).min();
        due.is_some()
    }

    /// The announced state of the local instance, if any.
    pub(super) fn own_state(&self) -> Option<OriginState> {
        let state = self.health.as_ref()?.state();
        let drains = match state {
            OriginState::Refusing | OriginState::Hung | OriginState::Stalled => false,
            // Others take a draining instance for one that serves. So this state is only for
            // sessions to leave, which they do while another origin is healthy.
            OriginState::Unready => {
                self.route.candidates.iter().any(|it| it.standing == Standing::Healthy)
            }
            OriginState::Ready | OriginState::Draining | OriginState::Unknown => true,
        };
        Some(if self.drained_since.is_some() && drains { OriginState::Draining } else { state })
    }
}

/// Whether another node's instance has become ready or ceased to be, by that node's announcement.
fn has_readiness_of_another_changed(
    before: &BTreeMap<NodeId, (OriginState, Instant)>,
    now: &BTreeMap<NodeId, (OriginState, Instant)>,
    me: &NodeId,
) -> bool {
    let mut others = before.iter().filter(|(node, _)| *node != me);
    others.any(|(node, was)| now.get(node).is_some_and(|is| is_ready(is) != is_ready(was)))
}

fn is_ready((state, _): &(OriginState, Instant)) -> bool {
    *state == OriginState::Ready
}
