//! What a node knows of itself beside its core (`LocalState`), and the answers of
//! [`crate::admin::api`] from both (`Reporter`).

use std::time::{Duration, Instant};

use meshport_config::{NodeId, ServiceName};
use meshport_discovery::{Entry, Liveness, OriginState};
use meshport_mesh::Mesh;

use crate::Error;
use crate::admin::api::{
    Chosen, EdgeStatus, FindingRow, NodeRef, Offering, OriginRef, OriginStatus, PeerRow,
    ProcessStatus, ServiceStatus, Status,
};
use crate::admin::credentials::SecretStatus;
use meshport_core::findings::{
    BOTH_BEHIND_NAT as APART_BY_NAT, Finding, NARROW_PATH, NO_ORIGIN, NO_ORIGIN_ANSWERS,
    PROBE_REFUSED, SEED_SILENT,
};
use meshport_core::health::Health;
use meshport_core::journal::Kind;
use meshport_core::names;
use meshport_core::node::NodeCore;
use meshport_core::reach::{BOTH_BEHIND_NAT, BOTH_BEHIND_NAT_REMEDY};
use meshport_core::route::{Candidate, Line, OriginView, PathView, Standing};

use crate::clock;
use crate::findings;
use crate::health::certificates::Origins;
use crate::sessions::totals::SessionCount;
use meshport_core::ledger::Side;

pub(crate) mod access;
mod addresses;
mod admin;
mod credentials;
mod crowding;
mod explain;
pub(crate) mod floods;
mod isolation;
mod listeners;
mod members;
mod offered;
pub mod onlooker;
mod readiness;
mod renewal;
mod rosters;
mod samples;
mod secret;
mod seeds;
mod state;
mod stats;
mod view;
mod wayback;

pub(crate) use admin::{AdminCount, AdminFacts, AdminHttp};
pub(crate) use explain::change;
pub(crate) use state::{LocalState, ServiceFacts};
pub(crate) use view::nodes::Peer;

/// Maximum narrow paths reported, one sentence each: those of a site have one cause.
const MAX_NARROW: usize = 3;

/// Answers questions about this node. Reads only; builds nothing unless it is asked.
#[derive(Debug)]
pub(crate) struct Reporter<'a> {
    pub(crate) core: &'a NodeCore,
    pub(crate) state: &'a LocalState,
}

impl Reporter<'_> {
    pub(crate) fn status(&self, mesh: &Mesh, now: Instant) -> Status {
        let services = self.services(now);
        let secret = self.secret(mesh);
        let found = self.findings(&services, &secret, now);
        Status {
            process: ProcessStatus {
                version: env!("CARGO_PKG_VERSION").into(),
                uptime_s: age_s(self.state.process.started, now),
                mesh_listen: self.state.process.mesh_listen,
                admin_http: match self.state.process.admin.as_ref().map(|it| it.http()) {
                    Some(AdminHttp::Open(address)) => Some(address),
                    Some(AdminHttp::Off | AdminHttp::Lost(..)) | None => None,
                },
                needs_restart: self.state.process.needs_restart.clone(),
                failed_upgrade: self.state.process.failed_upgrade.clone(),
                is_leaving: self.state.process.is_leaving,
                now_s: Some(clock::wall().0),
            },
            me: self.state.identity.me.clone(),
            roles: self.state.identity.credential.roles.clone(),
            credential_expires_at: self.state.identity.credential.expires_at,
            members: self.members(),
            absent: self.absent(now),
            warnings: found.iter().map(ToString::to_string).collect(),
            findings: found.iter().map(FindingRow::from).collect(),
            secret,
            former_key: self.state.identity.former_key.clone(),
            renewal: self.renewal(),
            reach: Some(members::reach(self.core)),
            way_back: self.way_back(mesh),
            services,
            edge: EdgeStatus {
                exposed: self.state.process.exposures.status(),
                virtual_addresses: self.virtual_addresses(now),
                offered: offered::offered(self.core, now),
            },
        }
    }

    pub(crate) fn services(&self, now: Instant) -> Vec<ServiceStatus> {
        self.core.services().map(|name| self.service(name, now)).collect()
    }

    pub(crate) fn peers(&self, mesh: &Mesh) -> Vec<PeerRow> {
        let directory = self.core.discovery().directory();
        let row = |peer: meshport_mesh::PeerStatus| {
            let entry = directory.get(&peer.node);
            // A leaf is in no directory; only its tunnel reveals it.
            let leaf = self.core.discovery().is_leaf(&peer.node);
            let shown = leaf.then(|| mesh.credential(&peer.node)).flatten();
            let credential = entry.map(|entry| &entry.credential).or(shown.as_ref());
            let unknown = if leaf { "leaf" } else { "unknown" };
            let rtt = self.core.discovery().paths().get(&peer.node).and_then(|path| path.rtt);
            PeerRow {
                lacks: if peer.session { None } else { self.apart(&peer.node) },
                way_back: credential.and_then(|it| self.way_back_to(it)),
                node: peer.node,
                name: credential.map(|credential| credential.name.clone()),
                site: credential.map(|credential| credential.site.clone()),
                roles: credential.map(|credential| credential.roles.clone()),
                invite: credential.and_then(|it| Some(it.delegation.as_ref()?.key)),
                authority: credential.and_then(|it| it.chain().keys().last()),
                liveness: entry.map_or(unknown.into(), |entry| entry.liveness.to_string()),
                endpoint: peer.endpoint,
                handshake_age_s: peer.last_handshake.map(|age| age.as_secs()),
                rtt_ms: rtt.or(peer.quic_rtt).map(in_ms),
                rx_bytes: peer.rx_bytes,
                tx_bytes: peer.tx_bytes,
            }
        };
        mesh.peers().into_iter().map(row).collect()
    }

    /// A node by its name, its NodeId or the short form of that.
    ///
    /// # Errors
    /// [`Error::Usage`] when the target is this node, several nodes, or none.
    pub(crate) fn find(&self, target: &str) -> Result<NodeRef, Error> {
        let matches = |who: &NodeRef| explain::is_meant(who, target);
        let entries = self.core.discovery().directory().iter();
        let mut found = entries.map(|(_, entry)| node_ref(entry)).filter(matches);
        match (found.next(), found.next()) {
            _ if matches(&self.state.identity.me) => {
                Err(Error::Usage("that is this node itself".into()))
            }
            (Some(who), None) => Ok(who),
            (Some(_), Some(_)) => Err(Error::Usage(format!(
                "{target} matches several nodes; use a NodeId from `meshport peers`"
            ))),
            (None, _) => {
                let entries = self.core.discovery().directory().iter();
                let names = entries.map(|(_, entry)| entry.credential.name.as_ref());
                Err(Error::Usage(names::unknown(target, names)))
            }
        }
    }

    /// All origins of a service with their paths, and the address of the local instance.
    ///
    /// # Errors
    /// [`Error::Refused`] when this node has no such service.
    pub(crate) fn to_ask(&self, service: &ServiceName) -> Result<Origins, Error> {
        let unknown = || Error::Refused(format!("there is no service {service}"));
        let route = self.core.route(service).ok_or_else(unknown)?;
        let named = |it: &Candidate| (self.origin_ref(it), it.clone());
        let local_instance =
            self.state.services.get(service).and_then(|facts| facts.origin.clone());
        Ok(Origins { origins: route.candidates.iter().map(named).collect(), local_instance })
    }

    /// A node's name, or the short form of its id while the name is unknown.
    pub(crate) fn name(&self, node: &NodeId) -> String {
        name(self.core, node)
    }

    /// Why there is no direct path to a node, if known.
    pub(crate) fn apart(&self, node: &NodeId) -> Option<String> {
        if let Some(relay) = self.relay_to(node) {
            return Some(format!("no direct path: sessions go through {}", self.name(&relay)));
        }
        let is_apart = self.core.discovery().both_behind_nat(node);
        is_apart.then(|| BOTH_BEHIND_NAT_REMEDY.into())
    }

    /// The relay that carries sessions to a node, if its direct path is dead.
    fn relay_to(&self, node: &NodeId) -> Option<NodeId> {
        let routes = self.core.services().filter_map(|name| self.core.route(name));
        let mut candidates = routes.flat_map(|route| &route.candidates);
        candidates.find_map(|candidate| match candidate.origin.line {
            Line::Relayed { origin, relay } if origin == *node => {
                let is_used = candidate.standing < Standing::Down
                    && candidate.origin.relaying.is_some_and(|it| it.direct_dead);
                is_used.then_some(relay)
            }
            _ => None,
        })
    }

    /// A line as described in logs.
    pub(crate) fn line(&self, it: &Line) -> String {
        line(self.core, it)
    }

    fn origin_ref(&self, candidate: &Candidate) -> OriginRef {
        let OriginView { line, name, site, .. } = &candidate.origin;
        let relay = match line {
            Line::Relayed { relay, .. } => Some(self.name(relay)),
            Line::Direct(_) | Line::Outside(_) => None,
        };
        OriginRef { node: line.origin(), name: name.clone(), site: site.clone(), relay }
    }

    fn service(&self, name: &ServiceName, now: Instant) -> ServiceStatus {
        let facts = self.state.services.get(name);
        let route = self.core.route(name).cloned().unwrap_or_default();
        let totals = self.state.sessions.totals(name);
        let first = route.choice();
        let chosen = first.map(|first| Chosen {
            who: self.origin_ref(first),
            why: route.why.clone(),
            since_s: self.core.preferred_since(name).map_or(0, |since| age_s(since, now)),
        });
        let sharing = if chosen.is_some() { route.home().len() } else { 0 };
        let place = |(at, candidate): (usize, &Candidate)| OriginStatus {
            chosen: at == 0 && chosen.is_some(),
            shares: sharing > 1 && at < sharing,
            ..self.origin(name, candidate, now)
        };
        ServiceStatus {
            name: name.clone(),
            listen: facts.map(|facts| facts.listen.clone()).unwrap_or_default(),
            lost: totals.addresses.lost().into_keys().collect(),
            policy: facts.map_or("nearest", |facts| facts.policy.word()).into(),
            origins: route.candidates.iter().enumerate().map(place).collect(),
            offering: self.offering(name, now),
            sessions_open: self.state.sessions.count_side(name, Side::Client),
            sessions_total: totals.counts.get(SessionCount::Accepted),
            sessions_failed: totals.counts.get(SessionCount::Failed),
            chosen,
        }
    }

    fn origin(&self, service: &ServiceName, candidate: &Candidate, now: Instant) -> OriginStatus {
        let origin = &candidate.origin;
        let hop = origin.line.first_hop();
        let path = hop.and_then(|hop| self.core.discovery().paths().get(&hop));
        let state_since = match origin.path {
            PathView::Own => self.core.health(service).map(Health::since),
            _ => origin.line.origin().and_then(|node| self.core.state_since(service, &node)),
        };
        let (word, rtt) = match (origin.path, origin.line) {
            (PathView::Own, _) => ("own", None),
            (PathView::Dead, _) => ("dead", None),
            (PathView::Up(rtt), Line::Direct(_)) => ("direct", Some(rtt)),
            (PathView::Up(rtt), Line::Relayed { .. }) => ("relayed", Some(rtt)),
            (PathView::Up(rtt), Line::Outside(_)) => ("outside", Some(rtt)),
            (PathView::Unmeasured, Line::Outside(_)) => ("outside", None),
            (PathView::Unmeasured, _) => ("unmeasured", None),
        };
        OriginStatus {
            who: self.origin_ref(candidate),
            state: origin.state.to_string(),
            state_since_s: state_since.map_or(0, |since| age_s(since, now)),
            path: word.into(),
            rtt_ms: rtt.map(in_ms),
            loss_percent: rtt.and(origin.line.origin()).map(|_| origin.loss_percent),
            sessions: self.state.sessions.count_line(service, Side::Client, origin.line),
            usable: candidate.standing < Standing::Down,
            chosen: false,
            shares: false,
            lacks: self.lacks(service, candidate, path.map(|path| age_s(path.since, now))),
        }
    }

    /// Describes what an origin lacks.
    fn lacks(
        &self,
        service: &ServiceName,
        candidate: &Candidate,
        path_age_s: Option<u64>,
    ) -> String {
        let OriginView { line, path, state, .. } = candidate.origin;
        let is_apart = matches!(path, PathView::Dead | PathView::Unmeasured);
        let is_drained = state == OriginState::Draining;
        let own = &self.state.identity.credential;
        match (path, line) {
            // A node knows the result of its local instance's last probe.
            (PathView::Own, _) if candidate.standing >= Standing::Doubtful && !is_drained => {
                self.core.health(service).map_or_else(String::new, Health::detail)
            }
            (_, Line::Direct(node)) if is_apart && self.core.discovery().both_behind_nat(&node) => {
                BOTH_BEHIND_NAT.into()
            }
            _ if candidate.origin.denied && access::has_ended(own, clock::wall()) => {
                "this node's credential has expired".into()
            }
            _ => lacks(candidate, path_age_s),
        }
    }

    fn offering(&self, name: &ServiceName, now: Instant) -> Option<Offering> {
        let health = self.core.health(name)?;
        let state = self.core.own_state(name)?;
        let drained = self.core.drained_since(name);
        let announced = drained.filter(|_| state == OriginState::Draining);
        let detail = health.detail();
        Some(Offering {
            address: self.state.services.get(name)?.origin.clone()?,
            state: state.to_string(),
            since_s: age_s(announced.unwrap_or(health.since()), now),
            detail: match drained {
                Some(_) => format!("{}; {detail}", unhealthy(OriginState::Draining)),
                None => detail,
            },
            sessions: self.state.sessions.count_side(name, Side::Served),
        })
    }

    fn findings(
        &self,
        services: &[ServiceStatus],
        secret: &SecretStatus,
        now: Instant,
    ) -> Vec<Finding> {
        let mut found = Vec::new();
        let (alone, wrong_clock) = (self.is_alone(), self.wrong_clock());
        if alone && wrong_clock.is_none() {
            found
                .push(SEED_SILENT.broken("no other node has answered yet: normal until one joins"));
        }
        found.extend(self.isolation());
        found.extend(self.address_findings());
        let paths = self.core.discovery().paths().iter();
        let narrow = paths.filter(|(_, path)| path.narrow).take(MAX_NARROW);
        found.extend(narrow.map(|(node, _)| {
            let name = self.name(node);
            NARROW_PATH.found(format!("the path to {name} drops large packets"))
        }));
        for service in services {
            let name = &service.name;
            if service.origins.is_empty() && alone {
                continue;
            }
            if service.origins.is_empty() {
                let gone = self.absent_origin(name).map_or_else(String::new, |who| {
                    format!("; {who}, which may be one, is not running")
                });
                let unknown = NO_ORIGIN.found(format!("{name}: no origin is known{gone}"));
                found.push(unknown.naming("origin:NAME", &format!("origin:{name}")));
            } else if service.chosen.is_none() {
                let said = format!("{name}: none of its origins answers, so clients are refused");
                found.push(NO_ORIGIN_ANSWERS.found(said));
            }
            found.extend(self.core.route(name).and_then(|route| readiness::finding(name, route)));
            let apart = service.origins.iter().filter(|origin| origin.lacks == BOTH_BEHIND_NAT);
            found.extend(apart.map(|origin| {
                let who = &origin.who.name;
                let nat =
                    self.core.reach().nat().map_or_else(String::new, |nat| format!("; {nat}"));
                APART_BY_NAT.found(format!("{name}: {who} and this node are both behind NAT{nat}"))
            }));
            if let Some(status) = self.core.health(name).and_then(Health::lasting_denial) {
                let who = names::local_instance(name);
                let refused = PROBE_REFUSED
                    .found(format!("{name}: {who} answers {status}, so readiness is unknown"));
                found.push(refused.naming("service.NAME", &format!("service.{name}")));
            }
        }
        found.extend(self.state.duplicates.findings(self.state.identity.me.node, now));
        found.extend(self.state.unknown.finding(|node| self.name(node), now));
        found.extend(self.full(services));
        found.extend(self.listener_findings(services, now));
        found.extend(self.crowding(now));
        found.extend(self.state.floods.finding(now));
        found.extend(self.core.discovery().directory().crowding().as_ref().map(crowding::finding));
        found.extend(self.denials());
        found.extend(self.unoffered());
        found.extend(access::misfits(self.core));
        found.extend(self.state.rosters.findings());
        found.extend(self.state.unstored());
        found.extend(self.state.unposted());
        found.extend(self.unused_way_back(now));
        found.extend(self.same_names());
        found.extend(secret::finding(secret));
        match wrong_clock {
            // By the right clock, they may all be wrong.
            Some(wrong) => found.push(wrong),
            None => found.extend(self.renewal_findings(clock::wall())),
        }
        found.extend(
            self.state.process.authority_key.as_deref().and_then(findings::of_authority_key),
        );
        found
    }
}

/// A node's name, also if it was revoked or has left, or the short form of its id while the name is
/// unknown.
pub(crate) fn name(core: &NodeCore, node: &NodeId) -> String {
    let discovery = core.discovery();
    let entry = discovery.directory().get(node).map(|entry| &entry.credential.name);
    let name = entry.or_else(|| discovery.revocations().name_of(node));
    name.map_or_else(|| node.short(), ToString::to_string)
}

/// A line as described in logs.
pub(crate) fn line(core: &NodeCore, line: &Line) -> String {
    match line {
        Line::Direct(node) => name(core, node),
        Line::Relayed { origin, relay } => {
            format!("{} through {}", name(core, origin), name(core, relay))
        }
        Line::Outside(address) => address.to_string(),
    }
}

/// The event of a member joining or leaving.
pub(crate) fn member(core: &NodeCore, node: &NodeId, up: bool) -> (Kind, &'static str) {
    let entry = core.discovery().directory().get(node);
    let has_left = entry.is_some_and(|entry| entry.liveness == Liveness::Left);
    match (up, has_left) {
        (true, _) => (Kind::Came, "answers"),
        (false, true) => (Kind::Left, "said goodbye"),
        (false, false) => (Kind::Went, "does not answer"),
    }
}

fn lacks(candidate: &Candidate, path_age_s: Option<u64>) -> String {
    match (candidate.origin.path, candidate.standing) {
        _ if candidate.origin.denied => "this node may not use it (`allow` there)".into(),
        (PathView::Dead, _) => match path_age_s {
            Some(age_s) => format!("path lost {age_s} s ago"),
            None => "no path to it".into(),
        },
        (PathView::Unmeasured, _) if !candidate.origin.present => "its node does not answer".into(),
        (_, Standing::Healthy) => String::new(),
        (PathView::Unmeasured, Standing::Unproven) => "path not measured yet".into(),
        (_, Standing::Unproven) => "no session through its relay yet".into(),
        (_, Standing::Suspect) if candidate.origin.broken => "its path loses most packets".into(),
        (_, Standing::Suspect) => "slow to answer recently".into(),
        (_, Standing::Fallback) => "outside the mesh".into(),
        (_, Standing::Down) if matches!(candidate.origin.line, Line::Outside(_)) => {
            "did not answer recently".into()
        }
        (_, Standing::Draining | Standing::Doubtful | Standing::Down) => {
            unhealthy(candidate.origin.state).into()
        }
    }
}

/// Describes the cause of an instance's state.
fn unhealthy(state: OriginState) -> &'static str {
    match state {
        OriginState::Ready => "",
        OriginState::Unready => "answers, but is not ready",
        OriginState::Draining => "drained by its operator",
        OriginState::Unknown => "not probed yet",
        OriginState::Refusing => "connection refused",
        OriginState::Hung => "accepts but does not answer",
        OriginState::Stalled => "answers, but is neither ready nor live",
    }
}

fn node_ref(entry: &Entry) -> NodeRef {
    let credential = &entry.credential;
    NodeRef { node: credential.node, name: credential.name.clone(), site: credential.site.clone() }
}

fn age_s(since: Instant, now: Instant) -> u64 {
    now.saturating_duration_since(since).as_secs()
}

fn in_ms(time: Duration) -> f64 {
    // Three decimals: a microsecond is precise enough for any path.
    (time.as_secs_f64() * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::testing::candidate;

    /// Every text of the column PROBLEM about another node or an address outside the mesh.
    fn problems() -> BTreeSet<String> {
        let near = candidate(NodeId::from_bytes([1; 32]));
        let outside = OriginView::outside(([192, 0, 2, 1], 6443).into());
        let mut views = vec![outside];
        for state in OriginState::ALL {
            for path in [near.origin.path, PathView::Unmeasured, PathView::Dead] {
                let view = OriginView { state, path, ..near.origin.clone() };
                views.push(OriginView { broken: true, ..view.clone() });
                views.push(OriginView { present: false, ..view.clone() });
                views.push(OriginView { denied: true, ..view.clone() });
                views.push(view);
            }
        }
        let every = views.into_iter().flat_map(|origin| {
            Standing::ALL.map(|standing| Candidate { origin: origin.clone(), standing, ..near })
        });
        let texts = every.flat_map(|it| [lacks(&it, None), lacks(&it, Some(3))]);
        texts.chain([BOTH_BEHIND_NAT.to_owned()]).filter(|text| !text.is_empty()).collect()
    }

    /// MP307 refers to it.
    #[test]
    fn the_first_table_of_the_page_has_every_problem() {
        let page = include_str!("../../../docs/troubleshoot.md");
        let table = page.lines().skip_while(|line| !line.starts_with("| PROBLEM |"));
        let rows = table.take_while(|line| line.starts_with('|'));
        let known: Vec<&str> = rows.filter_map(|row| row.split('|').nth(1)).collect();
        for problem in problems() {
            let text = problem.split(" 3 s ago").next().unwrap_or_default();
            assert!(known.iter().any(|it| it.contains(text)), "no row for {problem:?}");
        }
    }
}
