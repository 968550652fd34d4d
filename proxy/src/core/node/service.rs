//! What a node knows of one service, and what follows for the sessions of its clients.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use meshport_config::{NodeId, ServiceName};
use meshport_discovery::OriginState;

use super::{Event, ServiceConfig};
use crate::core::drift::Drift;
use crate::core::evidence::Evidence;
use crate::core::health::Health;
use crate::core::policy::{self, Fate};
use crate::core::route::{Line, OriginView, Policy, Preference, Route};

#[derive(Debug)]
pub(super) struct Service {
    pub(super) policy: Policy,
    pub(super) health: Option<Health>,
    pub(super) memory: Preference,
    pub(super) route: Arc<Route>,
    /// What each origin says of its instance, and since when it was known here.
    pub(super) states: BTreeMap<NodeId, (OriginState, Instant)>,
    /// What is known of each way to an instance, also of those that no route uses now.
    pub(super) views: Vec<OriginView>,
    /// What sessions have found out about the lines.
    pub(super) evidence: Evidence,
    pub(super) drift: Drift,
    /// The operator wants the own instance left.
    pub(super) draining: bool,
    /// Lines whose sessions were reset and which have not recovered since.
    pub(super) doomed: BTreeSet<Line>,
}

impl Service {
    /// A service of which nothing is known.
    pub(super) fn new(config: ServiceConfig, now: Instant) -> Self {
        Self {
            policy: config.policy,
            health: config.health.map(|config| Health::new(config, now)),
            memory: Preference::default(),
            route: Arc::default(),
            states: BTreeMap::new(),
            views: Vec::new(),
            evidence: Evidence::default(),
            drift: Drift::new(config.drift),
            draining: false,
            doomed: BTreeSet::new(),
        }
    }

    /// Decides what becomes of the sessions on each line; returns those to be reset since the last
    /// call. One reset each time a line goes bad: sessions that succeed on it afterwards have shown
    /// that they work.
    pub(super) fn judge(
        &mut self,
        name: &ServiceName,
        busy: &BTreeSet<Line>,
        now: Instant,
    ) -> Vec<Event> {
        let mut events = Vec::new();
        let mut moves = Vec::new();
        let before = std::mem::take(&mut self.doomed);
        for view in &self.views {
            let line = view.line;
            match policy::fate(view, &self.route) {
                Fate::Stay => {}
                Fate::Move(cause) if busy.contains(&line) => moves.push((line, cause)),
                Fate::Move(_) => {}
                Fate::Reset { spread_percent, why } => {
                    self.doomed.insert(line);
                    if !before.contains(&line) {
                        events.push(Event::Reset {
                            service: name.clone(),
                            line,
                            spread_percent,
                            why,
                        });
                    }
                }
            }
        }
        self.drift.set(moves, now);
        events
    }

    /// The state of the own instance as others are told, if there is one.
    pub(super) fn own_state(&self) -> Option<OriginState> {
        let state = self.health.as_ref()?.state();
        let serves = !matches!(state, OriginState::Refusing | OriginState::Hung);
        Some(if self.draining && serves { OriginState::Draining } else { state })
    }
}
