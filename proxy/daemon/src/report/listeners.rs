//! Problems with local addresses.

use std::net::SocketAddr;
use std::time::Instant;

use meshport_config::ServiceName;

use crate::admin::api::ServiceStatus;
use meshport_core::findings::{
    CLIENT_IDLES, CLIENT_OVER_SHARE, Finding, NEEDS_RESTART, NO_IDENTITY, STOPPING,
    UNFIT_CONFIGURATION,
};
use meshport_core::route::Standing;

use super::{AdminHttp, Reporter};
use crate::sessions::claim::Loss;
use crate::sessions::totals::{OverShare, SessionCount};

impl Reporter<'_> {
    /// The services that clients of this node use and that have no healthy origin.
    pub(crate) fn lacking(&self) -> Vec<ServiceName> {
        let exposed = self.state.process.exposures.services();
        let is_used =
            |name: &ServiceName, listen: &[_]| !listen.is_empty() || exposed.contains(name);
        let used = self.state.services.iter().filter(|(name, facts)| is_used(name, &facts.listen));
        let lacks = |name: &ServiceName| {
            let first = self.core.route(name).and_then(|route| route.first());
            first.is_none_or(|first| first.standing != Standing::Healthy)
        };
        used.map(|(name, _)| name).filter(|name| lacks(name)).cloned().collect()
    }

    pub(super) fn listener_findings(
        &self,
        services: &[ServiceStatus],
        now: Instant,
    ) -> Vec<Finding> {
        let mut found = Vec::new();
        if self.state.process.is_leaving {
            found.push(STOPPING.found(STOPPING.title));
        }
        if !self.state.process.needs_restart.is_empty() {
            let all: Vec<String> =
                self.state.process.needs_restart.iter().map(ToString::to_string).collect();
            found.push(NEEDS_RESTART.found(format!("after a restart: {}", all.join("; "))));
        }
        if let Some(why) = &self.state.process.kept_credential {
            found.push(NO_IDENTITY.found(format!("the stored credential is not in use: {why}")));
        }
        if let Some(why) = &self.state.process.refused_reload {
            found.push(UNFIT_CONFIGURATION.found(format!("the last reload was refused ({why})")));
        }
        for service in services {
            let name = &service.name;
            let totals = self.state.sessions.totals(name);
            for (address, loss) in totals.addresses.lost() {
                found.push(lost(name.as_str(), "local", address, loss));
            }
            if let Some(who) = totals.addresses.paced(now) {
                found.push(CLIENT_IDLES.found(format!(
                    "{name}: a client ({who}) does not use most of the connections it opens"
                )));
            }
            if let Some(OverShare { who, held }) = totals.addresses.over_share(now) {
                let turned_away = totals.counts.get(SessionCount::OverShare);
                found.push(CLIENT_OVER_SHARE.found(format!(
                    "{name}: a client ({who}) has used up its share of max-sessions with {held} \
                     open sessions and earlier ones, so its new connections are reset \
                     ({turned_away} since the start){}",
                    self.low_limit()
                )));
            }
        }
        for (listener, address, loss) in self.state.process.exposures.lost() {
            found.push(lost(listener.as_str(), "exposed", address, loss));
        }
        if let Some(admin) = &self.state.process.admin {
            if let AdminHttp::Lost(address, loss) = admin.http() {
                found.push(lost("admin.http", "loopback", address, loss));
            }
            found.extend(admin.lost_socket());
        }
        found
    }
}

fn lost(whose: &str, kind: &str, address: SocketAddr, loss: Loss) -> Finding {
    let found = loss.finding(&format!("the {kind} address {address}"), address.port());
    Finding { detail: format!("{whose}: {}", found.detail), ..found }
}
