//! All samples of the metrics page.

use std::time::Instant;

use meshport_config::counters::{Counter, Counters};
use meshport_config::{ServiceName, UnixSeconds};
use meshport_core::findings::Severity;
use meshport_core::ledger::Side;
use meshport_core::node::NodeCore;
use meshport_core::outbox::Outbox;
use meshport_core::wire::Answer;
use meshport_discovery::Liveness;
use meshport_mesh::Mesh;

use super::{Reporter, ServiceFacts};
use crate::admin::api::{FindingRow, Status};
use crate::admin::metrics::{self, Distribution, Metric, Sample, Value};
use crate::expose::ExposedCounts;
use crate::sessions::client::ClientId;
use crate::sessions::totals::{OverShare, Totals};
use crate::vip::board::Shown;

/// Label of all services that only other nodes name.
const UNKNOWN: &str = "(unknown)";

/// Collects samples.
#[derive(Default)]
struct Page {
    samples: Vec<Sample>,
}

impl Page {
    fn put(&mut self, metric: &'static Metric, labels: &[&str], value: f64) {
        self.push(metric, labels, Value::Number(value));
    }

    fn flag(&mut self, metric: &'static Metric, labels: &[&str], is_so: bool) {
        self.put(metric, labels, f64::from(u8::from(is_so)));
    }

    #[expect(clippy::cast_precision_loss, reason = "2^53 of anything is out of reach")]
    fn count(&mut self, metric: &'static Metric, labels: &[&str], value: u64) {
        self.put(metric, labels, value as f64);
    }

    fn time(&mut self, metric: &'static Metric, UnixSeconds(value): UnixSeconds) {
        self.count(metric, &[], value);
    }

    fn spread(&mut self, metric: &'static Metric, labels: &[&str], value: Distribution) {
        self.push(metric, labels, Value::Distribution(value));
    }

    /// The counters of the metrics that have exactly these labels before the counter's own.
    fn counters<C: Counter, const N: usize>(
        &mut self,
        counters: &Counters<C, N>,
        before: &[(&str, &str)],
    ) {
        for (counter, value) in counters.iter() {
            let row = counter.row();
            let Some(metric) = metrics::by_name(row.metric) else { continue };
            let own = Some((row.label, row.value)).filter(|(label, _)| !label.is_empty());
            let labels = || before.iter().copied().chain(own);
            if labels().map(|(label, _)| label).eq(metric.labels.iter().copied()) {
                let values: Vec<&str> = labels().map(|(_, value)| value).collect();
                self.count(metric, &values, value);
            }
        }
    }

    fn push(&mut self, metric: &'static Metric, labels: &[&str], value: Value) {
        let labels = labels.iter().map(|text| (*text).to_owned()).collect();
        self.samples.push(Sample { metric, labels, value });
    }
}

impl Reporter<'_> {
    /// The metrics page, in a stable order.
    pub(crate) fn samples(&self, mesh: &Mesh, now: Instant) -> Vec<Sample> {
        let mut page = Page::default();
        let status = self.status(mesh, now);
        self.node_page(&mut page, &status, now);
        for service in &status.services {
            let (name, labels) = (&service.name, [service.name.as_ref()]);
            page.flag(&metrics::SERVICE_USABLE, &labels, service.chosen.is_some());
            for (cause, count) in self.core.change_counts(name) {
                page.count(&metrics::ROUTE_CHANGES, &[name.as_ref(), cause], count);
            }
            if let Some(health) = self.core.health(name) {
                // Their names come from outside, so they are not a label; `status` and the log show
                // them.
                let failing = health.failing().count() as u64;
                page.count(&metrics::FAILING_CHECKS, &labels, failing);
            }
            self.sessions_page(&mut page, name, now);
        }
        origins_page(&mut page, &status);
        self.exposed_page(&mut page);
        self.addresses_page(&mut page);
        self.rosters_page(&mut page);
        self.way_back_page(&mut page, mesh, now);
        served_page(&mut page, UNKNOWN, self.state.sessions.others());
        mesh_page(&mut page, mesh);
        page.counters(self.core.discovery().counters(), &[]);
        page.samples
    }

    /// The metrics of the node as a whole.
    fn node_page(&self, page: &mut Page, status: &Status, now: Instant) {
        page.count(&metrics::BUILD_INFO, &[&status.process.version], 1);
        page.time(&metrics::START_TIME, self.state.process.started_at);
        for finding in &status.findings {
            let severity = if finding.is_error { Severity::Error } else { Severity::Warning };
            let same = |it: &&FindingRow| (&it.id, it.is_error) == (&finding.id, finding.is_error);
            let count = status.findings.iter().filter(same).count();
            page.count(&metrics::FINDINGS, &[&finding.id, severity.word()], count as u64);
        }
        page.time(&metrics::CREDENTIAL_EXPIRY, status.credential_expires_at);
        page.count(&metrics::SECRET_NUMBER, &[], status.secret.number);
        page.count(&metrics::SECRET_LAGGING, &[], status.secret.lagging as u64);
        if let Some(ends_at) = status.secret.former_ends_at {
            page.time(&metrics::FORMER_SECRET_EXPIRY, ends_at);
        }
        if let Some(former) = &status.former_key {
            page.time(&metrics::FORMER_KEY_EXPIRY, former.ends_at);
        }
        let members = &status.members;
        let counts = [("alive", members.alive), ("down", members.down), ("left", members.left)];
        for (liveness, count) in counts {
            page.count(&metrics::MEMBERS, &[liveness], count as u64);
        }
        page.count(&metrics::LEAVES, &[], self.core.discovery().leaves() as u64);
        page.count(&metrics::SERVICES_IGNORED, &[], ignored_services(self.core));
        let duplicates = self.state.duplicates.findings(self.state.identity.me.node, now);
        page.count(&metrics::DUPLICATES, &[], duplicates.count() as u64);
        for (outcome, count) in self.state.audit.counts() {
            page.count(&metrics::AUDIT_LINES, &[outcome], count);
        }
        let outboxes = || self.state.outboxes.values().map(Outbox::counts);
        let (posted, dropped) =
            (outboxes().map(|it| it.posted).sum(), outboxes().map(|it| it.dropped).sum());
        for (outcome, count) in [("posted", posted), ("dropped", dropped)] {
            page.count(&metrics::EVENTS, &[outcome], count);
        }
        page.count(&metrics::EVENT_FAILURES, &[], outboxes().map(|it| it.failed).sum());
        if let Some(admin) = &self.state.process.admin {
            page.counters(&admin.refused(), &[]);
        }
    }

    fn exposed_page(&self, page: &mut Page) {
        for ExposedCounts { name, open, limit, totals } in self.state.process.exposures.counts() {
            let name = name.as_ref();
            page.count(&metrics::EXPOSED_OPEN, &[name], open);
            page.count(&metrics::EXPOSED_LIMIT, &[name], limit);
            page.counters(&totals.counts.read(), &[("listener", name)]);
        }
    }

    fn addresses_page(&self, page: &mut Page) {
        let shown = self.state.process.board.shown();
        for Shown { name, state, .. } in &shown {
            let name = [name.as_ref()];
            page.flag(&metrics::VIRTUAL_ADDRESS_HELD, &name, state.stance.answers());
            page.flag(&metrics::VIRTUAL_ADDRESS_FIT, &name, state.obstacle.is_none());
            page.count(&metrics::VIRTUAL_ADDRESS_OTHERS, &name, state.others.len() as u64);
        }
        if !shown.is_empty() {
            page.counters(&self.state.process.board.counts(), &[]);
        }
    }

    fn rosters_page(&self, page: &mut Page) {
        for (service, roster) in self.state.rosters.iter() {
            let service = service.as_ref();
            page.count(&metrics::CLUSTER_APISERVERS, &[service], roster.listed() as u64);
            page.flag(&metrics::CLUSTER_DIFFERS, &[service], roster.difference().is_some());
            for (outcome, value) in [("read", roster.readings), ("failed", roster.failures)] {
                page.count(&metrics::CLUSTER_READINGS, &[service, outcome], value);
            }
        }
    }

    fn way_back_page(&self, page: &mut Page, mesh: &Mesh, now: Instant) {
        let back = &self.state.process.way_back;
        page.count(&metrics::WAYBACK_ACCEPTED, &[], back.accepted());
        page.counters(&back.counts(), &[]);
        for (at, refused) in back.refusals() {
            page.counters(&refused, &[("at", at)]);
        }
        if back.egress().socket.is_some() {
            for (state, count) in self.kubelets(mesh) {
                page.count(&metrics::WAYBACK_NODES, &[state], count);
            }
        }
        self.sessions_page(page, &ServiceName::way_back(), now);
    }

    fn sessions_page(&self, page: &mut Page, service: &ServiceName, now: Instant) {
        let name = service.as_ref();
        let sides =
            [("client", Side::Client), ("served", Side::Served), ("relayed", Side::Relayed)];
        for (word, side) in sides {
            let open = self.state.sessions.count_side(service, side);
            page.count(&metrics::SESSIONS_OPEN, &[name, word], open);
        }
        if let Some(most) = self.state.services.get(service).and_then(ServiceFacts::max_sessions) {
            page.count(&metrics::SESSIONS_LIMIT, &[name], most);
        }
        let totals = self.state.sessions.totals(service);
        page.counters(&totals.counts.read(), &[("service", name)]);
        page.spread(&metrics::CONNECT_DURATION, &[name], totals.connects.read());
        page.spread(&metrics::SESSION_DURATION, &[name], totals.sessions.read());
        // One value without a label, which would add a series for each user ever refused.
        let refused = totals.addresses.over_share(now);
        if let Some(OverShare { who: ClientId::User(uid), .. }) = refused {
            page.count(&metrics::OVER_SHARE_UID, &[name], uid.into());
        }
        served_page(page, name, &totals);
    }
}

/// The mesh, and how its work is spread over its threads.
fn mesh_page(page: &mut Page, mesh: &Mesh) {
    let peers = mesh.peers();
    let up = peers.iter().filter(|peer| peer.session).count();
    for (session, count) in [("up", up), ("none", peers.len() - up)] {
        page.count(&metrics::PEERS, &[session], count as u64);
    }
    for (index, shard) in mesh.shards().iter().enumerate() {
        let index = index.to_string();
        page.count(&metrics::MESH_SHARD_PEERS, &[&index], shard.peers as u64);
        page.counters(&shard.counters, &[("shard", &index)]);
    }
    page.counters(&mesh.counters(), &[]);
}

fn origins_page(page: &mut Page, status: &Status) {
    for service in &status.services {
        for origin in &service.origins {
            let labels =
                [service.name.as_ref(), origin.who.name.as_ref(), origin.who.site_or_dash()];
            page.flag(&metrics::ORIGIN_READY, &labels, origin.state == "ready");
            page.flag(&metrics::ORIGIN_USABLE, &labels, origin.usable);
            page.flag(&metrics::ORIGIN_CHOSEN, &labels, origin.chosen);
            page.flag(&metrics::ORIGIN_RELAYED, &labels, origin.path == "relayed");
            if let Some(rtt) = origin.rtt_ms {
                page.put(&metrics::ORIGIN_RTT, &labels, rtt / 1e3);
            }
            if let Some(loss) = origin.loss_percent {
                page.put(&metrics::ORIGIN_LOSS, &labels, f64::from(loss) / 100.0);
            }
        }
    }
}

fn ignored_services(core: &NodeCore) -> u64 {
    let entries = core.discovery().directory().iter().map(|(_, entry)| entry);
    let here = entries.filter(|entry| entry.liveness == Liveness::Alive);
    here.map(|entry| entry.ignored_services().count() as u64).sum()
}

fn served_page(page: &mut Page, service: &str, totals: &Totals) {
    for answer in Answer::ALL {
        let labels = [service, answer.word()];
        page.count(&metrics::SERVED_STREAMS, &labels, totals.answers.get(answer));
    }
}
