//! Services of a running node: changes of their settings, services that a reload adds, and sessions
//! that may move.

use std::time::Instant;

use meshport_config::ServiceName;
use meshport_core::drift::Leave;
use tracing::info;

use crate::clock;
use crate::driver::Driver;
use crate::driver::commands::{Addition, Drained, Instance, ServiceChange};
use crate::findings;

impl Driver {
    /// Applies a change of a service's settings.
    pub(super) fn change_service(
        &mut self,
        service: ServiceName,
        change: ServiceChange,
        now: Instant,
    ) {
        let facts = self.state.services.get_mut(&service);
        match change {
            ServiceChange::Policy(policy, weights) => {
                if let Some(facts) = facts {
                    facts.policy = policy.clone();
                }
                self.core.set_policy(&service, policy, weights, now);
            }
            ServiceChange::Drift(config) => self.core.set_drift(&service, config, now),
            ServiceChange::Fallback(addresses) => {
                self.core.set_fallback(&service, addresses, now);
            }
            ServiceChange::Instance(Instance { address, health, prober }) => {
                if let Some(facts) = facts {
                    facts.origin = Some(address);
                }
                self.core.set_health(&service, health, now);
                self.probers.insert(service, prober);
            }
        }
    }

    /// Lets sessions move. Logged for a drain, at most once a second while it lasts: it ends
    /// sessions that are never idle too.
    pub(super) fn release(&self, service: &ServiceName, leave: Leave) {
        if leave.insist && leave.count > 0 {
            let (origin, sessions) = (self.reporter().line(&leave.line), leave.count);
            info!(%service, %origin, sessions, "the origin drains: sessions may end now");
        }
        self.sessions.release(service, leave);
    }

    /// Continues the drains of the process before; those of services that the settings no longer
    /// offer end.
    pub(crate) fn continue_drains(&mut self, drained: Drained) {
        for (service, since) in drained {
            self.core.set_drained(&service, Some(since), clock::now());
        }
    }

    /// Starts a service, at the start or when a reload adds it.
    pub(crate) fn add_service(&mut self, addition: Addition, now: Instant) {
        let Addition { name, config, facts, prober, route } = addition;
        if config.health.is_some() {
            findings::warn_of_missing_role(&name, &self.state.identity.credential);
        }
        self.state.services.insert(name.clone(), facts);
        prober.and_then(|prober| self.probers.insert(name.clone(), prober));
        self.core.add_service(name.clone(), config, now);
        route.send_replace(self.core.route(&name).cloned().unwrap_or_default());
        self.outputs.routes.insert(name, route);
    }
}
