//! All metrics.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use meshport_config::ServiceName;
use meshport_discovery::Liveness;
use meshport_mesh::Mesh;
use serde::Serialize;

use crate::admin::api::{Sample, Status};
use crate::sessions::client::ClientId;
use meshport_core::node::NodeCore;
use meshport_core::wire::Answer;

use meshport_core::ledger::Side;

use super::Reporter;
use crate::sessions::totals::{OverShare, Totals};

/// Stands for all services that only other nodes name.
const UNKNOWN: &str = "(unknown)";

/// Collects samples under a running set of labels.
struct Page {
    samples: Vec<Sample>,
}

impl Page {
    fn put(&mut self, name: &'static str, help: &'static str, labels: Labels<'_>, value: f64) {
        self.push(name, help, false, labels, value);
    }

    #[expect(clippy::cast_precision_loss, reason = "2^53 events is out of reach")]
    fn count(&mut self, name: &'static str, help: &'static str, labels: Labels<'_>, value: u64) {
        self.push(name, help, true, labels, value as f64);
    }

    fn push(
        &mut self,
        name: &'static str,
        help: &'static str,
        counter: bool,
        labels: Labels<'_>,
        value: f64,
    ) {
        let labels = labels.iter().map(|(key, text)| (*key, (*text).to_owned())).collect();
        self.samples.push(Sample { name, help, counter, labels, value });
    }
}

type Labels<'a> = &'a [(&'static str, &'a str)];

impl Reporter {
    /// The metrics page, in a stable order.
    pub(crate) fn samples(&self, core: &NodeCore, mesh: &Mesh, now: Instant) -> Vec<Sample> {
        let mut page = Page { samples: Vec::new() };
        let status = self.status(core, mesh, now);
        node_page(&mut page, &status, core.discovery().leaves());
        page.put(
            "services_ignored",
            "Services announced by members whose credentials do not allow them.",
            &[],
            ignored_services(core),
        );
        for (outcome, count) in self.audit.counts() {
            let help = "Lines of the audit log: written, and suppressed by its rate limits.";
            page.count("audit_lines", help, &[("outcome", outcome)], count);
        }
        let help = "Nodes whose key two processes use at once, this one included.";
        page.put("duplicate_identities", help, &[], f64::from(self.duplicates.count(now)));
        for service in &status.services {
            let labels = [("service", service.name.as_ref())];
            let usable = f64::from(u8::from(service.chosen.is_some()));
            page.put("service_usable", "1 if an origin can be used.", &labels, usable);
            if let Some(health) = core.health(&service.name) {
                // Their names come from outside, so they are no label: `status` and log have them.
                let failing = u32::try_from(health.failing().count()).unwrap_or(u32::MAX);
                let help = "Checks of the local apiserver that fail, as its /readyz lists them.";
                page.put("instance_failing_checks", help, &labels, failing.into());
            }
            self.sessions_page(&mut page, &service.name, now);
        }
        origins_page(&mut page, &status);
        self.rosters_page(&mut page);
        served_page(&mut page, UNKNOWN, self.sessions.others());
        for (event, value) in rows(&mesh.counters()) {
            let help = "Events of the encrypted mesh, by kind.";
            page.count("mesh_events", help, &[("event", &event)], value);
        }
        shards_page(&mut page, mesh);
        for (event, value) in rows(core.discovery().counters()) {
            let help = "Events of membership and records, by kind.";
            page.count("discovery_events", help, &[("event", &event)], value);
        }
        page.samples
    }

    #[expect(clippy::cast_precision_loss, reason = "a list is bounded")]
    fn rosters_page(&self, page: &mut Page) {
        for (service, roster) in &self.rosters {
            let labels = [("service", service.as_ref())];
            let help = "Apiservers on the cluster's own list, as last read.";
            page.put("cluster_apiservers", help, &labels, roster.listed() as f64);
            let help = "1 if the cluster's list and the mesh's origins differ.";
            let differs = f64::from(u8::from(roster.difference().is_some()));
            page.put("cluster_differs", help, &labels, differs);
            let help = "Attempts to read the cluster's list.";
            for (outcome, value) in [("read", roster.readings), ("failed", roster.failures)] {
                let labels = [("service", service.as_ref()), ("outcome", outcome)];
                page.count("cluster_readings", help, &labels, value);
            }
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "counts of sessions are far below 2^53")]
    fn sessions_page(&self, page: &mut Page, service: &ServiceName, now: Instant) {
        let name = service.as_ref();
        for (word, side) in
            [("client", Side::Client), ("served", Side::Served), ("relayed", Side::Relayed)]
        {
            let open = self.sessions.count_side(service, side) as f64;
            let help = "Sessions open now: of this node's clients, served for other nodes, and \
                        relayed between them.";
            page.put("sessions_open", help, &[("service", name), ("side", word)], open);
        }
        let totals = self.sessions.totals(service);
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let ends: [(&str, &AtomicU64); 8] = [
            ("accepted", &totals.clients.accepted),
            ("connected", &totals.clients.connected),
            ("failed", &totals.clients.failed),
            ("abandoned", &totals.clients.abandoned),
            ("over-limit", &totals.clients.over_limit),
            ("over-share", &totals.clients.over_share),
            ("paced", &totals.clients.paced),
            ("over-pace", &totals.clients.over_pace),
        ];
        for (event, counter) in ends {
            let help = "Client connections: accepted, and their outcomes.";
            page.count("sessions", help, &[("service", name), ("event", event)], read(counter));
        }
        // A value and no label, of which there would be one for each user that there ever was.
        let refused = totals.addresses.over_share(now);
        if let Some(OverShare { who: ClientId::User(uid), .. }) = refused {
            let help = "Number of the user who was lately refused for its share of max-sessions; \
                        absent without one.";
            page.put("sessions_over_share_uid", help, &[("service", name)], uid.into());
        }
        let help = "Sessions reset because their path died or their instance hung.";
        page.count("sessions_cut", help, &[("service", name)], read(&totals.sessions.cut));
        let help = "Sessions ended while idle so that their client reconnects to a better origin.";
        page.count("sessions_moved", help, &[("service", name)], read(&totals.sessions.moved));
        let help = "Attempts started after a failed one.";
        page.count("retries", help, &[("service", name)], read(&totals.attempts.retried));
        let help = "Attempts started in parallel to one that was slow to answer.";
        page.count("hedges", help, &[("service", name)], read(&totals.attempts.hedged));
        let help = "Attempts cancelled because another was faster or their path went down.";
        page.count(
            "attempts_cancelled",
            help,
            &[("service", name)],
            read(&totals.attempts.cancelled),
        );
        for (direction, counter) in
            [("up", &totals.sessions.up_bytes), ("down", &totals.sessions.down_bytes)]
        {
            let help = "Bytes of ended client sessions.";
            let labels = [("service", name), ("direction", direction)];
            page.count("session_bytes", help, &labels, read(counter));
        }
        served_page(page, name, &totals);
    }
}

/// How the work of the mesh is spread over its threads.
#[expect(clippy::cast_precision_loss, reason = "peers are bounded")]
fn shards_page(page: &mut Page, mesh: &Mesh) {
    for (index, shard) in mesh.shards().iter().enumerate() {
        let index = index.to_string();
        let help = "Nodes served by each thread of the mesh.";
        page.put("mesh_shard_peers", help, &[("shard", &index)], shard.peers as f64);
        let counters = shard.counters;
        let bytes = [("received", counters.bytes_received), ("sent", counters.bytes_sent)];
        for (direction, value) in bytes {
            let help = "Bytes of outer datagrams, by thread of the mesh.";
            let labels = [("shard", index.as_str()), ("direction", direction)];
            page.count("mesh_shard_bytes", help, &labels, value);
        }
    }
}

fn origins_page(page: &mut Page, status: &Status) {
    for service in &status.services {
        for origin in &service.origins {
            let labels = [
                ("service", service.name.as_ref()),
                ("origin", origin.who.name.as_ref()),
                ("site", origin.who.place()),
            ];
            let flag = |on: bool| f64::from(u8::from(on));
            let ready = flag(origin.state == "ready");
            page.put("origin_ready", "1 if the origin reports that it is ready.", &labels, ready);
            page.put(
                "origin_usable",
                "1 if sessions may go to the origin.",
                &labels,
                flag(origin.usable),
            );
            page.put(
                "origin_chosen",
                "1 if the origin is tried first.",
                &labels,
                flag(origin.chosen),
            );
            if let Some(rtt) = origin.rtt_ms {
                page.put(
                    "origin_rtt_seconds",
                    "Smoothed round-trip time to the origin.",
                    &labels,
                    rtt / 1e3,
                );
            }
            if let Some(loss) = origin.loss_percent {
                let ratio = f64::from(loss) / 100.0;
                page.put(
                    "origin_loss_ratio",
                    "Share of recent probes that were lost.",
                    &labels,
                    ratio,
                );
            }
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "records and their services are bounded")]
fn ignored_services(core: &NodeCore) -> f64 {
    let entries = core.discovery().directory().iter().map(|(_, entry)| entry);
    let here = entries.filter(|entry| entry.liveness == Liveness::Alive);
    here.map(|entry| entry.ignored_services().count()).sum::<usize>() as f64
}

/// The fields of a struct of counters, by name.
fn rows(counters: &impl Serialize) -> Vec<(String, u64)> {
    let fields = match serde_json::to_value(counters) {
        Ok(serde_json::Value::Object(fields)) => fields,
        Ok(_) | Err(_) => return Vec::new(),
    };
    fields.into_iter().filter_map(|(name, value)| Some((name, value.as_u64()?))).collect()
}

/// What concerns the node as a whole.
#[expect(clippy::cast_precision_loss, reason = "ages and counts are far below 2^53")]
fn node_page(page: &mut Page, status: &Status, leaves: usize) {
    let help = "Seconds since the daemon started.";
    page.put("uptime_seconds", help, &[], status.uptime_s as f64);
    let expires = status.credential_expires_at.0 as f64;
    page.put("credential_expires_seconds", "When the credential ends, Unix time.", &[], expires);
    let secret = &status.secret;
    let help = "Number of the current mesh secret; grows with every rotation.";
    page.put("mesh_secret_number", help, &[], secret.number as f64);
    let help = "Members not known to have the current mesh secret, while the former one works too.";
    page.put("mesh_secret_lagging", help, &[], secret.lagging as f64);
    if let Some(ends) = secret.former_ends_at {
        let help = "When the former mesh secret ends, Unix time; absent without one.";
        page.put("mesh_secret_former_ends_seconds", help, &[], ends.0 as f64);
    }
    if let Some(former) = &status.former_key {
        let help = "When the former key of this node ends, Unix time; absent without one.";
        page.put("former_key_ends_seconds", help, &[], former.ends_at.0 as f64);
    }
    let members = &status.members;
    for (state, count) in [("alive", members.alive), ("down", members.down), ("left", members.left)]
    {
        let help = "Members by liveness, this node included.";
        page.put("members", help, &[("liveness", state)], count as f64);
    }
    let help = "Operators' machines attached to this node (meshport forward).";
    page.put("leaves", help, &[], leaves as f64);
}

fn served_page(page: &mut Page, service: &str, totals: &Totals) {
    for answer in Answer::ALL {
        let help = "Streams of other nodes, by answer.";
        let labels = [("service", service), ("answer", answer.word())];
        page.count("served_streams", help, &labels, totals.streams.answers(answer));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use meshport_discovery::Counters;
    use meshport_mesh::MeshCounters;

    use super::*;

    #[test]
    fn the_reference_has_every_metric() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference.md");
        let page = std::fs::read_to_string(page).expect("the page");
        let source = include_str!("samples.rs");
        let mut named = 0;
        for (call, end) in [(concat!("page.", "put("), ""), (concat!("page.", "count("), "_total")]
        {
            let calls = source.split(call).skip(1).map(str::trim_start);
            for name in calls.filter_map(|rest| rest.strip_prefix('"')?.split('"').next()) {
                assert!(page.contains(&format!("`{name}{end}`")), "{name}{end}");
                named += 1;
            }
        }
        assert!(named >= 30, "{named}");
    }

    #[test]
    fn the_events_that_the_security_page_names_are_counted() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/security.md");
        let page = std::fs::read_to_string(page).expect("the page");
        let of_mesh: BTreeSet<String> =
            rows(&MeshCounters::default()).into_iter().map(|(name, _)| name).collect();
        let of_discovery: BTreeSet<String> =
            rows(&Counters::default()).into_iter().map(|(name, _)| name).collect();
        let mut named = 0;
        for row in page.lines().filter(|line| line.starts_with("| ")) {
            let known = if row.contains("discovery: `event") { &of_discovery } else { &of_mesh };
            for list in row.split("event=").skip(1) {
                let list = list.trim_start_matches('~').split('"').nth(1).expect("a text");
                for name in list.split("\\|").filter(|name| *name != "over-limit") {
                    assert!(known.contains(name), "{name} is no event");
                    named += 1;
                }
            }
        }
        assert!(named >= 15, "{named}");
    }
}
