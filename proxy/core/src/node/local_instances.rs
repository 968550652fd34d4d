//! A node's local instances: their health and its announcement.

use std::time::Instant;

use meshport_config::ServiceName;
use meshport_discovery::OriginState;

use super::{Event, NodeCore, Service};
use crate::health::{FailingChecks, Health, HealthConfig, Outcome, Question};

impl NodeCore {
    /// Changes how the local instance of a service is probed; ignored for a service that this node
    /// does not offer.
    pub fn set_health(&mut self, name: &ServiceName, config: HealthConfig, now: Instant) {
        self.change_own(name, now, |service| {
            service.health.as_mut().and_then(|health| health.set_config(config, now));
        });
    }

    /// Handles the outcome of a probe from [`NodeCore::poll_probe`].
    pub fn handle_outcome(
        &mut self,
        name: &ServiceName,
        question: Question,
        outcome: Outcome,
        now: Instant,
    ) {
        self.change_own(name, now, |service| {
            let health = service.health.as_mut();
            health.and_then(|health| health.handle_outcome(question, outcome, now));
        });
    }

    /// Handles the names of failing checks in a readiness answer, before its outcome.
    pub fn handle_checks(&mut self, name: &ServiceName, failing: FailingChecks) {
        let health = self.services.get_mut(name).and_then(|service| service.health.as_mut());
        if let Some(health) = health {
            health.handle_checks(failing);
        }
    }

    /// Handles that a service's local instance has refused a session.
    pub fn handle_refused(&mut self, name: &ServiceName, now: Instant) {
        self.change_own(name, now, |service| {
            service.health.as_mut().and_then(|health| health.handle_refused(now));
        });
    }

    /// Handles how many connections this node opened for a service in the last second, for its own
    /// and other clients: a reconnect storm slows the local instance without making it unhealthy.
    pub fn handle_dials(&mut self, name: &ServiceName, dials: u64) {
        let health = self.services.get_mut(name).and_then(|service| service.health.as_mut());
        health.into_iter().for_each(|health| health.handle_dials(dials));
    }

    /// An overdue answer counts before it arrives.
    pub(super) fn let_instances_be_late(&mut self, now: Instant) {
        let hosted = self.services.iter().filter(|(_, service)| service.health.is_some());
        let hosted: Vec<ServiceName> = hosted.map(|(name, _)| name.clone()).collect();
        for name in hosted {
            self.change_own(&name, now, |service| {
                service.health.as_mut().and_then(|health| health.handle_timeout(now));
            });
        }
    }

    /// The next probe of a local instance that is due.
    pub fn poll_probe(&mut self, now: Instant) -> Option<(ServiceName, Question)> {
        self.services.iter_mut().find_map(|(name, service)| {
            let question = service.health.as_mut()?.poll_probe(now)?;
            Some((name.clone(), question))
        })
    }

    /// Drains the local instance of a service for all nodes, or ends the drain. Returns whether
    /// that is a change; `None` without an instance. A drain lasts until changed or until this
    /// core ends; the next one can continue it with its `since`.
    pub fn set_drained(
        &mut self,
        name: &ServiceName,
        since: Option<Instant>,
        now: Instant,
    ) -> Option<bool> {
        self.own_state(name)?;
        let is_change = since.is_some() != self.drained_since(name).is_some();
        if is_change {
            self.change_own(name, now, |service| service.drained_since = since);
        }
        Some(is_change)
    }

    /// The services whose local instance is drained, and since when.
    pub fn drained(&self) -> impl Iterator<Item = (&ServiceName, Instant)> {
        self.services.iter().filter_map(|(name, service)| Some((name, service.drained_since?)))
    }

    /// Time since which the local instance of a service is drained.
    pub fn drained_since(&self, name: &ServiceName) -> Option<Instant> {
        self.services.get(name)?.drained_since
    }

    /// The state of a service's local instance as announced to others.
    pub fn own_state(&self, service: &ServiceName) -> Option<OriginState> {
        self.services.get(service)?.own_state()
    }

    /// The health of the local instance of a service.
    pub fn health(&self, service: &ServiceName) -> Option<&Health> {
        self.services.get(service)?.health.as_ref()
    }

    /// Updates the local instance's health.
    fn change_own(&mut self, name: &ServiceName, now: Instant, change: impl FnOnce(&mut Service)) {
        let Some(service) = self.services.get_mut(name) else { return };
        let before = service.own_state();
        change(service);
        self.announce_change(name, before, now);
    }

    /// Announces the state of the local instance to the mesh if it differs from the one before.
    pub(super) fn announce_change(
        &mut self,
        name: &ServiceName,
        before: Option<OriginState>,
        now: Instant,
    ) {
        let after = self.own_state(name).filter(|after| Some(*after) != before);
        let Some(state) = after else { return };
        let detail = match state {
            OriginState::Draining => Some("drained by its operator".to_owned()),
            _ => self.health(name).map(Health::detail),
        };
        self.discovery.set_service(name.clone(), state, now);
        let (service, detail) = (name.clone(), detail.unwrap_or_default());
        self.events.push_back(Event::Own { service, state, detail });
        self.stale = true;
        self.settle(now);
    }
}
