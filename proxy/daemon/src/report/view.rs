//! The document of `/view`, as [`crate::admin::view`].

use std::collections::BTreeMap;
use std::time::Instant;

use meshport_config::{NodeId, ServiceName};
use meshport_core::findings::{Finding, Severity};
use meshport_core::health::Health;
use meshport_core::history::SECONDS;
use meshport_core::journal::{Event, Kind};
use meshport_core::route::{Candidate, PathView};
use meshport_mesh::Mesh;

use crate::admin::api::{FindingRow, ServiceStatus};
use crate::admin::credentials::SecretStatus;
use crate::admin::view::{
    Choice, EventRow, FORMAT, FindingView, HistoryRows, OfferingRow, OriginRow, PathRow,
    ServiceView, SessionCounts, View, Viewer, shared_with,
};

use super::{Reporter, in_ms};
use nodes::Peer;

pub(crate) mod nodes;
mod sites;

/// Times of the last packet are rounded to this many seconds; otherwise each packet would change
/// the view.
const HEARD_STEP_S: u64 = 10;

impl Reporter<'_> {
    /// Everything that is shown of this node. Costs time in proportion to the nodes known.
    pub(crate) fn view(&self, mesh: &Mesh, now: Instant) -> View {
        self.view_beside(&nodes::peers(mesh, self.core), &self.secret(mesh), now)
    }

    /// The same of a node with these peers.
    pub(crate) fn view_beside(
        &self,
        peers: &BTreeMap<NodeId, Peer>,
        secret: &SecretStatus,
        now: Instant,
    ) -> View {
        let services = self.services(now);
        let mut found = self.findings(&services, secret, now);
        found.sort_by_key(|finding| finding.severity != Severity::Error);
        let finding = |it: &Finding| FindingView {
            row: FindingRow::from(it),
            title: it.kind.title.into(),
            meaning: it.kind.meaning.into(),
            anchor: it.kind.anchor(),
        };
        let (nodes, nodes_left_out) = self.node_rows(peers, now);
        View {
            format: FORMAT,
            node: self.viewer(),
            services: services.into_iter().map(|it| self.service_view(it, now)).collect(),
            sites: self.site_rows(),
            distances: self.distances(),
            nodes,
            nodes_left_out,
            findings: found.iter().map(finding).collect(),
            stats: self.stats(),
            addresses: self.address_rows(),
            history: self.history_rows(),
            events: self.events(),
            now_s: self.at_s(now),
        }
    }

    /// A time as whole seconds since the daemon's start.
    pub(super) fn at_s(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.state.process.started).as_secs()
    }

    fn viewer(&self) -> Viewer {
        Viewer {
            who: self.state.identity.me.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            roles: self.state.identity.credential.roles.clone(),
            credential_expires_at: self.state.identity.credential.expires_at,
            started_at: self.state.process.started_at,
            mesh_listen: self.state.process.mesh_listen,
            behind_nat: self.core.discovery().is_behind_nat(),
            members: self.members(),
            is_leaving: self.state.process.is_leaving,
        }
    }

    fn service_view(&self, status: ServiceStatus, now: Instant) -> ServiceView {
        let name = status.name.clone();
        let route = self.core.route(&name).cloned().unwrap_or_default();
        let rows = route.candidates.iter().enumerate();
        let place = |(at, it): (usize, &Candidate)| OriginRow {
            chosen: status.origins[at].chosen,
            shares: status.origins[at].shares,
            ..self.origin_row(&name, it, now)
        };
        let origins: Vec<OriginRow> = rows.map(place).collect();
        let chosen = status.chosen.map(|chosen| Choice {
            who: chosen.who,
            why: chosen.why,
            since_at_s: self.core.preferred_since(&name).map_or(0, |since| self.at_s(since)),
        });
        let offering = status.offering.map(|it| OfferingRow {
            address: it.address,
            state: it.state,
            since_at_s: self.core.health(&name).map_or(0, |health| self.at_s(health.since())),
            detail: it.detail,
            sessions: it.sessions,
        });
        ServiceView {
            summary: summary(chosen.as_ref(), &status.policy, &origins),
            policy: status.policy,
            listen: status.listen,
            lost: status.lost,
            chosen,
            origins,
            offering,
            lines: self.lines(&name),
            sessions: SessionCounts {
                open: status.sessions_open,
                total: status.sessions_total,
                failed: status.sessions_failed,
            },
            name,
        }
    }

    fn origin_row(&self, service: &ServiceName, candidate: &Candidate, now: Instant) -> OriginRow {
        let status = self.origin(service, candidate, now);
        let origin = &candidate.origin;
        let hop = origin.line.first_hop();
        let measured = hop.and_then(|hop| self.core.discovery().paths().get(&hop));
        let state_at = match origin.path {
            PathView::Own => self.core.health(service).map(Health::since),
            _ => origin.line.origin().and_then(|node| self.core.state_since(service, &node)),
        };
        let kind = match status.path.as_str() {
            "relayed" => "relay",
            other => other,
        };
        let is_up = matches!(origin.path, PathView::Up(_) | PathView::Own);
        let path = PathRow {
            kind: kind.into(),
            relay: status.who.relay.clone(),
            rtt_ms: status.rtt_ms.map(rounded),
            loss_percent: status.loss_percent,
            since_at_s: measured.map(|path| self.at_s(path.since)),
            heard_at_s: measured
                .filter(|_| !is_up)
                .and_then(|path| path.last_answer)
                .map(|at| self.heard_at_s(at)),
        };
        let facts = self.relays(service, candidate, now).into_iter();
        OriginRow {
            seen: origin.line.origin().map(|node| self.seen(&node)),
            relays: facts.collect(),
            who: status.who,
            state: status.state,
            state_at_s: state_at.map_or(0, |at| self.at_s(at)),
            path,
            standing: candidate.standing.word().into(),
            cost_ms: rounded(in_ms(candidate.cost)),
            sessions: status.sessions,
            usable: status.usable,
            chosen: false,
            shares: false,
            lacks: status.lacks,
        }
    }

    fn heard_at_s(&self, at: Instant) -> u64 {
        self.at_s(at) / HEARD_STEP_S * HEARD_STEP_S
    }

    fn history_rows(&self) -> HistoryRows {
        let mut rows = HistoryRows { seconds: SECONDS as u64, ..HistoryRows::default() };
        for (at_s, second) in self.state.history.iter() {
            rows.at_s.push(at_s.into());
            rows.open.push(second.open);
            rows.connected.push(second.connected);
            rows.failed.push(second.failed);
            rows.up_bytes.push(second.up_bytes);
            rows.down_bytes.push(second.down_bytes);
            rows.connect_us.push(second.connect_us);
            rows.slowest_us.push(second.slowest_us);
        }
        rows
    }

    fn events(&self) -> Vec<EventRow> {
        let mut events: Vec<_> = self.state.journal.iter().collect();
        events.sort_by_key(|(_, event)| std::cmp::Reverse(event.at));
        let row = |(kind, event): &(Kind, &Event)| EventRow {
            at_s: self.at_s(event.at),
            kind: kind.word().into(),
            names: event.names.clone(),
            others: event.others,
            service: event.service.clone(),
            detail: event.detail.clone(),
        };
        events.iter().map(row).collect()
    }
}

/// Where sessions go and why.
fn summary(chosen: Option<&Choice>, policy: &str, origins: &[OriginRow]) -> String {
    let Some(choice) = chosen else {
        return match origins.len() {
            0 => "No origin is known, so clients are refused".into(),
            1 => "The only known origin does not answer, so clients are refused".into(),
            all => format!("None of {all} known origins answers, so clients are refused"),
        };
    };
    let path = origins.first().map_or_else(String::new, |origin| {
        let PathRow { kind, relay, rtt_ms, .. } = &origin.path;
        let kind = match (kind.as_str(), relay) {
            ("own", _) => return " on this node".into(),
            (_, Some(relay)) => format!("through {relay}"),
            ("outside", None) => "outside the mesh".into(),
            (kind, None) => kind.into(),
        };
        let site = origin.who.site.as_ref().map_or_else(String::new, |it| format!(" in {it}"));
        let rtt = rtt_ms.map_or_else(String::new, |ms| format!(", {ms} ms"));
        format!("{site}, {kind}{rtt}")
    });
    let others = origins.iter().filter(|it| it.shares && !it.chosen);
    let shared = shared_with(policy, others.map(|it| it.who.name.as_str()));
    format!("Sessions go to {}{path}: {}{shared}", choice.who.name, choice.why)
}

/// Two significant digits: less is jitter.
fn rounded(ms: f64) -> f64 {
    if ms <= 0.0 {
        return 0.0;
    }
    let digits = 1 - ms.log10().floor() as i32;
    let factor = 10_f64.powi(digits.clamp(0, 3));
    (ms * factor).round() / factor
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::api::OriginRef;

    #[test]
    fn round_trips_have_two_digits_and_whole_milliseconds_all_of_theirs() {
        for (ms, shown) in [
            (0.0, 0.0),
            (0.0004, 0.0),
            (0.2134, 0.21),
            (0.2199, 0.22),
            (4.449, 4.4),
            (34.51, 35.0),
            (120.6, 121.0),
        ] {
            assert_eq!(rounded(ms), shown, "{ms}");
        }
    }

    /// An origin 2 ms away that shares new sessions.
    fn shares(name: &str, chosen: bool) -> OriginRow {
        let path = PathRow {
            kind: "direct".into(),
            relay: None,
            rtt_ms: Some(2.0),
            loss_percent: Some(0),
            since_at_s: None,
            heard_at_s: None,
        };
        OriginRow {
            who: OriginRef { node: None, name: name.into(), site: None, relay: None },
            state: "ready".into(),
            state_at_s: 0,
            path,
            standing: "healthy".into(),
            cost_ms: 2.0,
            sessions: 0,
            usable: true,
            chosen,
            shares: true,
            lacks: String::new(),
            seen: None,
            relays: Vec::new(),
        }
    }

    #[test]
    fn the_summary_names_the_origins_that_share_new_sessions() {
        let origins = [shares("cp-1", true), shares("cp-2", false)];
        let (who, why) = (origins[0].who.clone(), "nearest ready".into());
        let choice = Choice { who, why, since_at_s: 0 };
        assert_eq!(
            summary(Some(&choice), "nearest", &origins),
            "Sessions go to cp-1, direct, 2 ms: nearest ready; shares new sessions with cp-2"
        );
        assert!(!summary(Some(&choice), "spread", &origins).contains("shares"));
    }

    #[test]
    fn without_an_origin_the_summary_says_what_follows() {
        assert_eq!(summary(None, "nearest", &[]), "No origin is known, so clients are refused");
    }
}
