//! A view of a made-up mesh, built from the daemon's own types, for the page's tests.

use std::collections::BTreeMap;
use std::time::Duration;

use meshport_config::{NodeId, Roles, ServiceName, SiteName, UnixSeconds};
use meshport_core::findings::{CREDENTIAL_ENDS, NO_ORIGIN_ANSWERS};
use meshport_core::history::SECONDS;
use meshport_daemon::admin::api::{FindingRow, MemberCounts, NodeRef, OriginRef};
use meshport_daemon::admin::credentials::Validity;
use meshport_daemon::admin::explain::Seen;
use meshport_daemon::admin::stats::{StatsKind, StatsRow};
use meshport_daemon::admin::view::{
    AddressRow, Choice, EventRow, FORMAT, FindingView, HistoryRows, NodeRow, Offer, OriginRow,
    PathRow, ServiceView, SessionCounts, SiteDistance, SiteRow, View, Viewer,
};

/// Seconds since the made-up daemon started.
const NOW_S: u64 = 1200;
/// A fixed time of day; the page computes ages from this clock only.
const STARTED_AT: u64 = 1_790_000_000;
/// Nodes of one site; the first of each of the first [`ORIGIN_SITES`] is an origin.
const SITE_NODES: usize = 40;
const ORIGIN_SITES: usize = 5;
/// Text that the page must show as plain text.
pub const HOSTILE: &str = "<img src=x onerror=alert(1)>\"'`</script>";

/// A mesh of up to 1000 nodes: every 50th node is silent, the path to one origin is relayed and
/// lossy, and one text is [`HOSTILE`].
pub fn view(nodes: usize) -> View {
    let sites = nodes.div_ceil(SITE_NODES).max(nodes.min(3));
    let rows: Vec<NodeRow> = (0..nodes).map(|at| node(at, sites)).collect();
    let origins: Vec<OriginRow> = rows
        .iter()
        .filter(|row| !row.offers.is_empty())
        .enumerate()
        .map(|(place, row)| origin(place, row))
        .collect();
    let count = |is: &str| rows.iter().filter(|row| row.liveness == is).count();
    let mut releases = BTreeMap::new();
    for row in rows.iter().filter(|row| row.liveness == "alive") {
        let release = row.version.as_deref().unwrap_or("unknown");
        *releases.entry(release.to_owned()).or_default() += 1;
    }
    let (alive, down) = (count("alive"), count("down"));
    let members = MemberCounts { alive, down, left: 0, releases };
    let chosen = origins.first().map(|origin| Choice {
        who: origin.who.clone(),
        why: "nearest ready".into(),
        since_at_s: 900,
    });
    View {
        format: FORMAT,
        node: Viewer {
            who: rows[0].who.clone(),
            version: "0.1.0".into(),
            roles: rows[0].roles.clone(),
            credential_expires_at: rows[0].credential_expires_at,
            started_at: UnixSeconds(STARTED_AT),
            mesh_listen: ([127, 0, 0, 1], 51_820).into(),
            behind_nat: false,
            members,
            is_leaving: false,
        },
        services: vec![ServiceView {
            name: ServiceName::kube_apiserver(),
            policy: "nearest".into(),
            listen: vec![([127, 0, 0, 1], 7445).into()],
            lost: Vec::new(),
            summary: "Sessions go to n001 in site-01, direct, 2.4 ms: nearest ready; shares new \
                      sessions with n002"
                .into(),
            chosen,
            origins,
            offering: None,
            lines: Vec::new(),
            sessions: SessionCounts { open: 12, total: 34_567, failed: 2 },
        }],
        distances: distances(sites),
        sites: (0..sites).map(|at| site_row(at, &rows)).collect(),
        nodes: rows,
        nodes_left_out: 0,
        findings: findings(),
        stats: stats(),
        addresses: vec![address()],
        history: history(),
        events: events(),
        now_s: NOW_S,
    }
}

/// An address that another node holds, whose name a member may choose.
fn address() -> AddressRow {
    AddressRow {
        name: "api".parse().expect("a name"),
        address: [192, 0, 2, 10].into(),
        group: "rack-1".parse().expect("a name"),
        service: ServiceName::kube_apiserver(),
        state: "standby".into(),
        holder: Some("n001".into()),
        since_at_s: NOW_S - 90,
        obstacle: None,
        others: vec!["n001".into(), "n002".into()],
    }
}

/// An exposed listener with a hostile name, a service and one origin of it.
fn stats() -> Vec<StatsRow> {
    let row = |kind, name: &str, sessions_total, errors| StatsRow {
        kind,
        name: name.into(),
        service: None,
        site: None,
        sessions_open: 3,
        sessions_total,
        errors,
        bytes_up: 1_234_567,
        bytes_down: 9_876_543_210,
        connect_mean_ms: Some(2.9),
        connect_p95_ms: Some(5.0),
    };
    let origin = StatsRow {
        service: Some(ServiceName::kube_apiserver()),
        site: Some(site(1)),
        connect_mean_ms: None,
        connect_p95_ms: None,
        ..row(StatsKind::Origin, "n001", 0, 0)
    };
    vec![
        row(StatsKind::Listener, HOSTILE, 120, 7),
        row(StatsKind::Service, ServiceName::KUBE_APISERVER, 34_567, 2),
        origin,
    ]
}

fn site(at: usize) -> SiteName {
    format!("site-{at:02}").parse().expect("a name")
}

fn id(at: usize) -> NodeId {
    let mut bytes = [7; 32];
    bytes[..8].copy_from_slice(&(at as u64).to_be_bytes());
    NodeId::from_bytes(bytes)
}

/// This node is the first, and offers nothing; the origins come next.
fn is_origin(at: usize, sites: usize) -> bool {
    (1..=ORIGIN_SITES.min(sites)).contains(&at)
}

fn path(at: usize, sites: usize) -> PathRow {
    let measured = |kind: &str, ms: f64, loss: u8, relay: Option<&str>| PathRow {
        kind: kind.into(),
        relay: relay.map(Into::into),
        rtt_ms: Some(ms),
        loss_percent: Some(loss),
        since_at_s: Some(3),
        heard_at_s: None,
    };
    let none = |kind: &str| PathRow {
        rtt_ms: None,
        loss_percent: None,
        since_at_s: None,
        ..measured(kind, 0.0, 0, None)
    };
    match at {
        0 => none("own"),
        2 => measured("relay", 48.0, 12, Some("n001")),
        3 => PathRow { heard_at_s: Some(1100), ..none("dead") },
        at if is_origin(at, sites) => measured("direct", 2.4 * at as f64, 0, None),
        _ => none("none"),
    }
}

fn node(at: usize, sites: usize) -> NodeRow {
    let offers = is_origin(at, sites);
    let roles = if offers { "node,origin:kube-apiserver" } else { "node" };
    let state = if at == 3 { "refusing" } else { "ready" };
    let offer = Offer { service: ServiceName::kube_apiserver(), state: state.into() };
    let is_silent = at > 0 && at.is_multiple_of(50);
    NodeRow {
        who: NodeRef {
            node: id(at),
            name: format!("n{at:03}").parse().expect("a name"),
            site: site(at % sites),
        },
        roles: roles.parse::<Roles>().expect("roles"),
        liveness: if is_silent { "down" } else { "alive" }.into(),
        since_at_s: if is_silent { 700 } else { 2 },
        // One in ten is not upgraded yet, and one runs a release that does not announce its
        // version.
        version: (at != 3).then(|| if at % 10 == 9 { "0.0.9" } else { "0.1.0" }.into()),
        credential_issued_at: UnixSeconds(STARTED_AT - 86_400),
        credential_expires_at: UnixSeconds(STARTED_AT + 90 * 86_400),
        credential_validity: Some(if at == 5 { Validity::EndsSoon } else { Validity::Valid }),
        behind_nat: at == 4,
        offers: offers.then_some(offer).into_iter().collect(),
        told_at_s: Some(NOW_S - 9),
        path: path(at, sites),
    }
}

fn origin(place: usize, row: &NodeRow) -> OriginRow {
    let is_dead = row.path.kind == "dead";
    OriginRow {
        who: OriginRef {
            node: Some(row.who.node),
            name: row.who.name.to_string(),
            site: Some(row.who.site.clone()),
            relay: row.path.relay.clone(),
        },
        state: row.offers[0].state.clone(),
        state_at_s: 40,
        path: row.path.clone(),
        standing: if is_dead { "down" } else { "healthy" }.into(),
        cost_ms: row.path.rtt_ms.unwrap_or_default(),
        sessions: if place == 0 { 12 } else { 0 },
        usable: !is_dead,
        chosen: place == 0,
        shares: place < 2,
        lacks: if is_dead { "path lost 100 s ago" } else { "" }.into(),
        seen: Some(Seen {
            nodes: 4,
            unreachable: 0,
            unreachable_sites: Vec::new(),
            least_ms: Some(1.0),
            most_ms: Some(120.0),
            words: "reachable from all 4 other nodes that measure it".into(),
        }),
        relays: Vec::new(),
    }
}

fn site_row(at: usize, rows: &[NodeRow]) -> SiteRow {
    let name = site(at);
    let here = || rows.iter().filter(|row| row.who.site == name);
    let ready = |row: &&NodeRow| row.offers.iter().any(|offer| offer.state == "ready");
    SiteRow {
        nodes: here().count(),
        alive: here().filter(|row| row.liveness == "alive").count(),
        origins: here().filter(|row| !row.offers.is_empty()).count(),
        ready: here().filter(ready).count(),
        relays: 0,
        own: at == 0,
        name,
    }
}

fn distances(sites: usize) -> Vec<SiteDistance> {
    let of = |from: usize| {
        (0..sites.min(ORIGIN_SITES)).map(move |to| SiteDistance {
            from: site(from),
            to: site(to),
            rtt_ms: (from + to != 4).then_some(0.3 + 12.0 * from.abs_diff(to) as f64),
            loss_percent: if from == 2 { 12 } else { 0 },
            pairs: 9,
            unreachable: usize::from(from + to == 4) * 9,
            told_at_s: NOW_S - 9,
        })
    };
    (0..sites).flat_map(of).collect()
}

fn findings() -> Vec<FindingView> {
    let hostile = format!("kube-apiserver: {HOSTILE} does not answer");
    let found = [NO_ORIGIN_ANSWERS.broken(hostile), CREDENTIAL_ENDS.found("it ends in 9 d")];
    let view = |it: &meshport_core::findings::Finding| FindingView {
        row: FindingRow::from(it),
        title: it.kind.title.into(),
        meaning: it.kind.meaning.into(),
        anchor: it.kind.anchor(),
    };
    found.iter().map(view).collect()
}

fn history() -> HistoryRows {
    let mut rows = HistoryRows { seconds: SECONDS as u64, ..HistoryRows::default() };
    for at_s in NOW_S - SECONDS as u64 + 1..=NOW_S {
        let wave = at_s % 7;
        let slow = Duration::from_millis(if at_s > 900 { 40 } else { 2 });
        let slow_us = u32::try_from(slow.as_micros()).expect("it is short");
        rows.at_s.push(at_s);
        rows.open.push(9 + wave);
        rows.connected.push(20);
        rows.failed.push(u32::from(at_s == 900) * 2);
        rows.up_bytes.push(4000 + 100 * wave);
        rows.down_bytes.push(52_000 + 900 * wave);
        rows.connect_us.push(slow_us);
        rows.slowest_us.push(slow_us * 2);
    }
    rows
}

fn events() -> Vec<EventRow> {
    let event = |at_s, kind: &str, names: &[&str], detail: &str| EventRow {
        at_s,
        kind: kind.into(),
        names: names.iter().map(|name| (*name).into()).collect(),
        others: 0,
        service: names.is_empty().then(ServiceName::kube_apiserver),
        detail: detail.into(),
    };
    vec![
        event(1190, "refused", &[HOSTILE], HOSTILE),
        event(900, "route", &[], "n003 to n001: path dead"),
        event(700, "went", &["n050"], "does not answer"),
        event(5, "came", &["n001", "n002"], "answers"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The document of 500 nodes is small enough for a browser to fetch every two seconds.
    #[test]
    fn a_view_survives_its_json_and_is_bounded() {
        let text = serde_json::to_string(&view(500)).expect("it has a form");
        let read: View = serde_json::from_str(&text).expect("it is a view");
        assert_eq!(serde_json::to_string(&read).expect("it has a form"), text);
        assert_eq!(read.nodes.len(), 500);
        assert!(text.len() < 300_000, "{} bytes", text.len());
        assert!(text.ends_with(",\"now_s\":1200}"), "the time is the last field");
    }
}
