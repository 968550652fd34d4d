//! Invented views, in the form that the daemon sends.

use meshport_config::NodeId;
use meshport_core::findings::VIRTUAL_ADDRESS_OBSTACLE;
use meshport_daemon::admin::view::{NodeRow, View};
use serde_json::{Value, json};

/// Text that a member or an apiserver could have written.
pub(super) const HOSTILE: &str = "\u{1b}[2J\u{1b}]0;owned\u{7}a\nb\u{9b}31m\u{202e}dne";

fn id(at: u8) -> String {
    NodeId::from_bytes([at; 32]).to_string()
}

fn path(kind: &str, rtt: Option<f64>, loss: Option<u8>) -> Value {
    json!({ "kind": kind, "rtt_ms": rtt, "loss_percent": loss, "since_at_s": 3,
        "heard_at_s": null })
}

fn relayed(by: &str, rtt: f64) -> Value {
    let mut path = path("relay", Some(rtt), None);
    path["relay"] = by.into();
    path
}

fn node(
    at: u8,
    name: &str,
    site: &str,
    roles: &[&str],
    path: &Value,
    state: Option<&str>,
) -> Value {
    let offers = state.map(|state| json!({ "service": "kube-apiserver", "state": state }));
    json!({
        "node": id(at), "name": name, "site": site, "roles": roles,
        "liveness": if at == 5 { "down" } else { "alive" },
        "since_at_s": if at == 5 { 580 } else { 2 },
        "version": if at == 1 { Some("0.1.0") } else { None },
        "credential_issued_at": 1_000, "credential_expires_at": 9_000_000 - u64::from(at) * 86_400,
        "credential_validity": if at == 4 { "ends-soon" } else { "valid" },
        "behind_nat": false, "offers": offers.into_iter().collect::<Vec<_>>(), "told_at_s": 590,
        "path": path,
    })
}

fn origin(at: u8, name: &str, site: &str, state: &str, path: &Value, lacks: &str) -> Value {
    json!({
        "node": id(at), "name": name, "site": site, "relay": path["relay"], "state": state,
        "state_at_s": 540, "path": path,
        "standing": if lacks.is_empty() { "healthy" } else { "down" },
        "cost_ms": path["rtt_ms"].as_f64().unwrap_or(0.0), "sessions": if at == 3 { 3 } else { 0 },
        "usable": lacks.is_empty(), "chosen": at == 3, "lacks": lacks, "relays": [],
        "seen": { "nodes": 2, "unreachable": 0, "unreachable_sites": [], "least_ms": 1.0,
            "most_ms": 9.0, "words": "reachable from both other nodes that measure it" },
    })
}

/// Five nodes in three sites, ten minutes up; the nearest apiserver has been refusing for a minute.
pub(super) fn view() -> View {
    let (own, near) = (path("own", None, None), path("direct", Some(2.1), Some(0)));
    let (mid, far) = (path("direct", Some(37.0), Some(3)), relayed("ams-cp", 123.0));
    let (cp, worker) = (["node", "origin:kube-apiserver"], ["node"]);
    let kind = &VIRTUAL_ADDRESS_OBSTACLE;
    let document = json!({
        "format": 1,
        "node": { "node": id(1), "name": "mad-worker", "site": "mad", "version": "0.1.0",
            "roles": worker, "credential_expires_at": 9_000_000, "started_at": 1_000_000,
            "mesh_listen": "127.0.0.1:51820", "behind_nat": false,
            "members": { "alive": 4, "down": 1, "left": 0 }, "is_leaving": false },
        "services": [{
            "name": "kube-apiserver", "policy": "nearest", "listen": ["127.0.0.1:7445"], "lost": [],
            "summary": "Sessions go to ams-cp in ams, direct, 37 ms: nearest ready",
            "chosen": { "node": id(3), "name": "ams-cp", "site": "ams", "why": "nearest ready",
                "since_at_s": 540 },
            "origins": [origin(3, "ams-cp", "ams", "ready", &mid, ""),
                origin(4, "bru-cp", "bru", "ready", &far, ""),
                origin(2, "mad-cp", "mad", "refusing", &near, "connection refused")],
            "offering": null,
            "lines": [{ "node": id(3), "name": "ams-cp", "site": "ams", "open": 3 }],
            "sessions": { "open": 3, "total": 1234, "failed": 2 },
        }],
        "sites": [site("ams", 1, 1, 1, 1, false), site("bru", 2, 1, 1, 1, false),
            site("mad", 2, 2, 1, 0, true)],
        "distances": [distance("mad", "ams", Some(37.0), 3), distance("mad", "bru", Some(123.0), 0),
            distance("ams", "bru", None, 0)],
        "nodes": [node(1, "mad-worker", "mad", &worker, &own, None),
            node(2, "mad-cp", "mad", &cp, &near, Some("refusing")),
            node(3, "ams-cp", "ams", &[cp[0], cp[1], "relay"], &mid, Some("ready")),
            node(4, "bru-cp", "bru", &cp, &far, Some("ready")),
            node(5, "bru-worker", "bru", &worker, &path("none", None, None), None)],
        "nodes_left_out": 0,
        "findings": [{ "id": kind.id, "is_error": true,
            "detail": "the virtual address api6: interface eth1 does not exist",
            "remedy": kind.remedy, "title": kind.title, "meaning": kind.meaning,
            "anchor": kind.anchor() }],
        "stats": [{ "kind": "listener", "name": "public", "service": null, "site": null,
            "sessions_open": 2, "sessions_total": 120, "errors": 7, "bytes_up": 40_000,
            "bytes_down": 9_000_000, "connect_mean_ms": 2.9, "connect_p95_ms": 5.0 }],
        "addresses": [
            { "name": "api", "address": "192.0.2.10", "group": "rack-1",
                "service": "kube-apiserver", "state": "standby", "holder": "mad-cp",
                "since_at_s": 540, "obstacle": null, "others": ["mad-cp"] },
            { "name": "api6", "address": "2001:db8::10", "group": "rack-1",
                "service": "kube-apiserver", "state": "standby", "holder": null,
                "since_at_s": 580, "obstacle": "interface eth1 does not exist", "others": [] }],
        "history": history(),
        "events": [event(540, "route", &[], "mad-cp to ams-cp: refusing"),
            event(580, "went", &["bru-worker"], "does not answer"),
            event(300, "refused", &["mallory"], HOSTILE)],
        "now_s": 600,
    });
    serde_json::from_value(document).expect("it is a view")
}

fn site(name: &str, nodes: u8, alive: u8, origins: u8, ready: u8, own: bool) -> Value {
    json!({ "name": name, "nodes": nodes, "alive": alive, "origins": origins, "ready": ready,
        "relays": u8::from(name == "ams"), "own": own })
}

fn distance(from: &str, to: &str, rtt: Option<f64>, loss: u8) -> Value {
    json!({ "from": from, "to": to, "rtt_ms": rtt, "loss_percent": loss, "pairs": 2,
        "unreachable": if rtt.is_none() { 2 } else { 0 }, "told_at_s": 595 })
}

fn event(at_s: u64, kind: &str, names: &[&str], detail: &str) -> Value {
    json!({ "at_s": at_s, "kind": kind, "names": names, "detail": detail,
        "service": if names.is_empty() { Some("kube-apiserver") } else { None } })
}

/// Twenty connections a second, slower since the change of the route, two of them failed.
fn history() -> Value {
    json!({ "seconds": 600, "at_s": [1, 540, 541], "open": [1, 0, 3], "connected": [20, 3, 20],
        "failed": [0, 2, 0], "up_bytes": [4_000, 500, 4_000], "down_bytes": [30_000, 900, 30_000],
        "connect_us": [2_100, 40_000, 37_000], "slowest_us": [2_500, 90_000, 41_000] })
}

pub(super) fn many(nodes: usize) -> View {
    let mut view = view();
    let row = view.nodes[1].clone();
    let more = (view.nodes.len()..nodes).map(|at| {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&(at as u64).to_be_bytes());
        let mut row: NodeRow = row.clone();
        row.who.node = NodeId::from_bytes(bytes);
        row.who.name = format!("node-{at:03}").parse().expect("a name");
        row
    });
    let more: Vec<NodeRow> = more.collect();
    view.nodes.extend(more);
    view
}
