//! The keys of a result: the meaning of each, and the levels at which it is unknown. There it is
//! null, because a 0 would look like a measurement.
//!
//! The table in REFERENCE.md is generated from this one, and [`super::json`] follows it.

use std::fmt::Write;

use serde_json::Value;

use crate::scenario;

/// The level of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// Real decisions in a simulated world.
    Wide,
    /// Everything real above the socket, in virtual time.
    Full,
    /// Daemons as processes in real time.
    Lab,
}

/// A key of a result.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// Path of the key: `requests.failed`, and `faults[].at_s` for each item of a list. A path that
    /// ends in `.*` stands for everything below.
    pub path: &'static str,
    /// Meaning of the key.
    pub about: &'static str,
    /// The levels at which it is null, and why.
    pub unknown: &'static [Unknown],
}

/// Levels at which something cannot be known, and why.
pub type Unknown = (&'static [Level], &'static str);

const LAB: &[Level] = &[Level::Lab];
const DAEMONS: &[Level] = &[Level::Full, Level::Lab];

const ENCRYPTED: Unknown = (DAEMONS, "what is in a datagram is encrypted");
const UNSEEN: Unknown = (LAB, "daemons are asked for their members at the end only");
const NO_DISTANCES: Unknown = (LAB, "distances are compared at the end only, for a rule");
const OF_DAEMONS: Unknown = (DAEMONS, "clients cannot see how their daemon finds an origin");
const UNNOTICED: Unknown = (LAB, "a daemon does not say when it notices");
const ROLES: Unknown = (DAEMONS, "traffic is counted of all nodes together");
const PROCESSES: Unknown = (LAB, "the daemons are processes of their own");

const fn key(path: &'static str, about: &'static str) -> Key {
    Key { path, about, unknown: &[] }
}

const fn but(path: &'static str, about: &'static str, unknown: &'static [Unknown]) -> Key {
    Key { path, about, unknown }
}

/// All keys, in the order of the table.
pub const KEYS: &[Key] = &[
    key("scenario", "The file's name without its extension; in a sweep, the values."),
    key("description", "The description in the scenario."),
    key("command", "The command for the same run."),
    key("level", "`wide`, `full` or `lab`."),
    key("seed", "The seed of all randomness."),
    key("nodes", "Nodes of the scenario, including those that join later."),
    key("sites", "Sites of the scenario."),
    key("virtual_s", "Virtual duration."),
    key("wall_s", "Wall time of the run."),
    but("cpu_s", "CPU time of the run.", &[PROCESSES]),
    but(
        "cpu_us_per_node_s",
        "CPU time per node and virtual second, in microseconds.",
        &[PROCESSES],
    ),
    but("memory_bytes_per_node", "Peak memory of the run per node.", &[PROCESSES]),
    but("trace_hash", "Hash of everything that happened.", &[(LAB, "no second run repeats one")]),
    key("datagrams", "Datagrams on the wire, including lost ones."),
    key("violations[].at_s", "Time of the violation."),
    key("violations[].rule", "The rule that was violated."),
    key("violations[].node", "The node concerned; null if there is none."),
    key("violations[].what", "What was observed."),
    key("violations[].last", "The last events of that node."),
    key("violations[].again", "The command that repeats it."),
    key("requests.total", "Finished client requests; opening a session is one."),
    key("requests.failed", "Requests without an answer."),
    key("requests.retried", "Requests sent again because their session broke."),
    key("requests.slow", "Requests that took longer than a second."),
    key("sessions.begun", "Sessions started by a client."),
    key("sessions.opened", "Sessions that reached an origin."),
    key("sessions.closed", "Sessions that were opened and ended."),
    key("sessions.broken", "Sessions that broke while open."),
    but("sessions.relayed", "Sessions that reached their origin through a relay.", &[OF_DAEMONS]),
    but("sessions.outside", "Sessions that went to a fallback outside the mesh.", &[OF_DAEMONS]),
    but("sessions.attempts", "Attempts beyond the first, after a failure.", &[OF_DAEMONS]),
    but("sessions.hedged", "Attempts that were raced against a silent one.", &[OF_DAEMONS]),
    but("sessions.moved", "Sessions that were moved to another origin.", &[OF_DAEMONS]),
    but(
        "connect_ms.*",
        "Time from a client's connect to its instance, after the start-up.",
        &[(LAB, "the first request is the first that a client sees")],
    ),
    key("latency_ms.*", "Time from a request to its answer."),
    but(
        "stretch.*",
        "Round trip to the chosen origin divided by the one to the best.",
        &[NO_DISTANCES],
    ),
    but("stretch_quiet.*", "The same in quiet times.", &[NO_DISTANCES]),
    but("nearest_share", "Share of sessions at the nearest origin, 0 to 1.", &[NO_DISTANCES]),
    but(
        "nearest_share_at_end",
        "Share of nodes that use the nearest origin at the end, 0 to \
                                 1.",
        &[NO_DISTANCES],
    ),
    key(
        "way_back.*",
        "Streams from apiservers to kubelets: `requests` as of clients, `opened`, `broken`, \
         `refused` by HTTP status, `connect_ms` from the CONNECT to the kubelet's greeting, \
         `latency_ms` from a request to its answer; null without `[way-back]`.",
    ),
    key("faults[].kind", "The kind of event."),
    key("faults[].what", "The event in words."),
    key("faults[].at_s", "Start time."),
    key("faults[].over_s", "End time; null if it did not end."),
    key("faults[].nodes", "Nodes that were hit; 0 for a path event."),
    but("faults[].concerned", "Nodes that should have noticed the fault.", &[UNNOTICED]),
    but("faults[].noticed", "How many of them noticed it.", &[UNNOTICED]),
    but(
        "faults[].detected_p50_s",
        "Time until half of them had noticed it; null if fewer did.",
        &[UNNOTICED],
    ),
    but("faults[].detected_p99_s", "Time until 99 % of them had, likewise.", &[UNNOTICED]),
    but("faults[].detected_same_site_p99_s", "The same in the victim's site.", &[UNNOTICED]),
    key("faults[].users", "Nodes whose first origin was hit."),
    key("faults[].left", "How many of them changed to another origin."),
    key("faults[].must_leave", "Whether all of them had to change."),
    key(
        "faults[].failover_p99_s",
        "Time until 99 % had changed; null if fewer did, or there were none.",
    ),
    key("faults[].failed", "Requests of all clients that failed, until ten seconds after its end."),
    key("faults[].slow", "Slow requests, likewise."),
    but(
        "news_p99_s",
        "Time until 99 % of the nodes knew the slowest update of an origin; null without one, or \
         if an update was known by fewer within a minute.",
        &[ENCRYPTED],
    ),
    but(
        "news_unheard",
        "Updates that fewer than 99 % of the nodes knew within a \
                         minute.",
        &[ENCRYPTED],
    ),
    but("suspicions", "Times a node suspected a silent member.", &[UNSEEN]),
    but("false_suspicions", "Of those, times the member ran and was reachable.", &[UNSEEN]),
    but("evictions", "Times a node considered another down that had not left.", &[UNSEEN]),
    but("false_evictions", "Of those, times that node ran and was reachable.", &[UNSEEN]),
    key("route_changes", "Changes of nodes' first origins."),
    but("bytes_per_node_per_s", "Discovery, sent, with all headers.", &[ENCRYPTED]),
    but("packets_per_node_per_s", "Discovery datagrams.", &[ENCRYPTED]),
    but("gossip_payload_bytes_per_node_per_s", "Discovery bytes without headers.", &[ENCRYPTED]),
    but(
        "tunnel_bytes_per_node_per_s",
        "Handshakes and keepalives of tunnels, with all headers; at the full level everything \
         sent.",
        &[(LAB, "the shaper counts from the start on")],
    ),
    but(
        "handshakes",
        "Answers to handshakes.",
        &[(LAB, "the shaper does not tell datagrams apart")],
    ),
    key("lies", "Times a liar acted differently from an honest node."),
    but(
        "roles.origin.*",
        "Cost of a node with an instance; null without one. CPU time and memory are null without \
         `--costs`.",
        &[ROLES],
    ),
    but("roles.other.*", "The same for all other nodes.", &[ROLES]),
];

impl Level {
    /// The name in a result.
    pub fn name(self) -> &'static str {
        match self {
            Self::Wide => "wide",
            Self::Full => "full",
            Self::Lab => "lab",
        }
    }

    /// Whether a key of the table can be known at this level.
    pub fn knows(self, path: &str) -> bool {
        let unknown = KEYS.iter().filter(|key| key.path == path).flat_map(|key| key.unknown);
        !unknown.flat_map(|(levels, _)| *levels).any(|level| *level == self)
    }
}

impl From<scenario::Level> for Level {
    fn from(level: scenario::Level) -> Self {
        match level {
            scenario::Level::Wide => Self::Wide,
            scenario::Level::Full => Self::Full,
        }
    }
}

/// Sets values that this level cannot know to null.
pub(super) fn hide(object: &mut Value, level: Level) {
    for key in KEYS.iter().filter(|key| !level.knows(key.path)) {
        clear(object, key.path.strip_suffix(".*").unwrap_or(key.path));
    }
}

fn clear(value: &mut Value, path: &str) {
    let (first, rest) = path.split_once('.').unwrap_or((path, ""));
    if let Some(list) = first.strip_suffix("[]") {
        let items = value[list].as_array_mut();
        items.into_iter().flatten().for_each(|item| clear(item, rest));
    } else if rest.is_empty() {
        value[first] = Value::Null;
    } else {
        clear(&mut value[first], rest);
    }
}

/// The table, as Markdown.
pub fn markdown() -> String {
    let mut text = String::from("| key | meaning | null |\n| --- | --- | --- |");
    for key in KEYS {
        let unknown = key.unknown.iter().map(|(levels, why)| {
            let levels: Vec<&str> = levels.iter().map(|level| level.name()).collect();
            format!("{}: {why}", levels.join(", "))
        });
        let unknown: Vec<String> = unknown.collect();
        let _ = write!(text, "\n| `{}` | {} | {} |", key.path, key.about, unknown.join("; "));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_the_lab_cannot_know_is_null_in_lists_and_tables_too() {
        let mut object = json!({
            "requests": { "total": 3 },
            "sessions": { "opened": 2, "moved": 0 },
            "stretch": { "p50": 1.0 },
            "false_evictions": 0,
            "faults": [{ "users": 1, "noticed": 0 }, { "users": 2, "noticed": 0 }],
            "roles": { "origin": { "node_s": 1 }, "other": null },
        });
        hide(&mut object, Level::Lab);
        assert_eq!(object["requests"]["total"], 3);
        assert_eq!(object["sessions"]["opened"], 2);
        assert!(object["sessions"]["moved"].is_null());
        assert!(object["stretch"].is_null() && object["false_evictions"].is_null());
        assert_eq!(object["faults"][1]["users"], 2);
        assert!(object["faults"][1]["noticed"].is_null());
        assert!(object["roles"]["origin"].is_null());
    }
}
