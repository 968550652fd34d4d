//! Warnings about the local addresses.

use std::sync::atomic::Ordering;
use std::time::Instant;

use meshport_config::ServiceName;

use crate::admin::api::ServiceStatus;
use meshport_core::node::NodeCore;
use meshport_core::route::Standing;

use super::Reporter;
use crate::sessions::totals::OverShare;

impl Reporter {
    /// The services that clients of this node use and that have no healthy origin.
    pub(crate) fn lacking(&self, core: &NodeCore) -> Vec<ServiceName> {
        let used = self.services.iter().filter(|(_, facts)| !facts.listen.is_empty());
        let lacks = |name: &ServiceName| {
            let first = core.route(name).and_then(|route| route.first());
            first.is_none_or(|first| first.standing != Standing::Healthy)
        };
        used.map(|(name, _)| name).filter(|name| lacks(name)).cloned().collect()
    }

    pub(super) fn listener_warnings(
        &self,
        services: &[ServiceStatus],
        now: Instant,
    ) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.is_leaving {
            warnings.push("this daemon is stopping; open sessions may continue for a while".into());
        }
        if !self.needs_restart.is_empty() {
            let all: Vec<String> = self.needs_restart.iter().map(ToString::to_string).collect();
            warnings.push(format!("after a restart: {}", all.join("; ")));
        }
        for service in services {
            let name = &service.name;
            for address in &service.lost {
                warnings.push(format!(
                    "{name}: another process listens on the local address {address} and gets this \
                     node's clients. Find it with `ss -tlnp` and stop it; this daemon then takes \
                     the address back"
                ));
            }
            let totals = self.sessions.totals(name);
            if let Some(who) = totals.addresses.paced(now) {
                warnings.push(format!(
                    "{name}: a client ({who}) resets most connections that it opens: its next \
                     ones are delayed, those of others are not. Find it with `ss -tnp`"
                ));
            }
            if let Some(OverShare { who, held }) = totals.addresses.over_share(now) {
                let turned_away = totals.clients.over_share.load(Ordering::Relaxed);
                warnings.push(format!(
                    "{name}: a client ({who}) has its share of max-sessions, {held} places and \
                     those it had before, so its next ones are reset ({turned_away} since the \
                     start); other clients are served. Find it with `ss -tnp`, or raise \
                     max-sessions"
                ));
            }
        }
        warnings
    }
}
