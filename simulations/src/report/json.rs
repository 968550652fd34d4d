//! A run as one JSON object.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Effort, Run, Violation, keys};

/// The object. All times are in seconds unless a key says otherwise; values unknown at the level of
/// the run are null ([`keys`]).
pub fn object(run: &Run, scenario: &str, effort: Effort) -> Value {
    let (outcome, measures) = (&run.outcome, &run.measures);
    let (gossip, tunnel) = run.rates();
    let (packets, payload) = run.packets();
    let seen = measures.suspicions;
    let mut object = json!({
        "scenario": scenario,
        "description": outcome.description,
        "level": outcome.level.name(),
        "seed": outcome.seed,
        "nodes": outcome.nodes.len(),
        "sites": outcome.sites.len(),
        "virtual_s": outcome.virtual_time.as_secs_f64(),
        "wall_s": effort.wall.as_secs_f64(),
        "cpu_s": effort.processor.as_secs_f64(),
        "cpu_us_per_node_s": run.cost(effort),
        "memory_bytes_per_node": run.weight(effort),
        "trace_hash": outcome.trace_hash.to_string(),
        "datagrams": outcome.datagrams,
        "violations": run.violations.iter().map(violation).collect::<Vec<_>>(),
        "requests": measures.requests,
        "sessions": measures.sessions,
        "connect_ms": measures.latency.connect.quantiles(1e3),
        "latency_ms": measures.latency.request.quantiles(1e3),
        "stretch": measures.choices.stretch.quantiles(1e3),
        "stretch_quiet": measures.choices.stretch_quiet.quantiles(1e3),
        "nearest_share": run.nearest_sessions().unwrap_or_else(|| run.nearest_share()),
        "nearest_share_at_end": run.nearest_share(),
        "way_back": measures.way_back.as_ref().map(|it| json!({
            "requests": it.requests,
            "opened": it.sessions.opened,
            "broken": it.sessions.broken,
            "refused": it.refused,
            "connect_ms": it.latency.connect.quantiles(1e3),
            "latency_ms": it.latency.request.quantiles(1e3),
        })),
        "faults": measures.faults.iter().map(|it| fault(run, it)).collect::<Vec<_>>(),
        "news_p99_s": run.news_p99().map(seconds),
        "news_unheard": run.news_unheard(),
        "suspicions": seen.map(|it| it.raised),
        "false_suspicions": seen.map(|it| it.wrong),
        "evictions": seen.map(|it| it.evictions),
        "false_evictions": measures.false_evictions,
        "route_changes": measures.choices.changed,
        "bytes_per_node_per_s": gossip,
        "tunnel_bytes_per_node_per_s": tunnel,
        "handshakes": measures.traffic.handshakes,
        "lies": measures.lies,
        "gossip_payload_bytes_per_node_per_s": payload,
        "packets_per_node_per_s": packets,
        "roles": {
            "origin": measures.roles.origin.rates(),
            "other": measures.roles.other.rates(),
        },
    });
    keys::hide(&mut object, outcome.level);
    object
}

/// Adds the commands that repeat the run and reproduce each violation.
pub fn add_commands(
    object: &mut Value,
    command: &str,
    violations: &[Violation],
    again: &dyn Fn(&Violation) -> String,
) {
    object["command"] = command.into();
    for (index, violation) in violations.iter().enumerate() {
        object["violations"][index]["again"] = again(violation).into();
    }
}

fn fault(run: &Run, fault: &crate::measure::Fault) -> Value {
    let followed = run.followed(fault);
    json!({
        "kind": fault.kind,
        "what": fault.what,
        "at_s": seconds(fault.at),
        "over_s": fault.over.map(seconds),
        "nodes": followed.nodes,
        "concerned": followed.concerned,
        "noticed": followed.noticed,
        "detected_p50_s": followed.detected_p50.map(seconds),
        "detected_p99_s": followed.detected_p99.map(seconds),
        "detected_same_site_p99_s": followed.same_site_p99.map(seconds),
        "users": followed.users,
        "left": followed.left,
        "must_leave": fault.must_leave(),
        "failover_p99_s": followed.failover_p99.map(seconds),
        "failed": followed.failed,
        "slow": followed.slow,
    })
}

fn violation(violation: &Violation) -> Value {
    json!({
        "at_s": seconds(violation.at),
        "rule": violation.rule,
        "node": violation.node,
        "what": violation.what,
        "last": violation.last,
    })
}

fn seconds(time: Duration) -> f64 {
    time.as_secs_f64()
}
