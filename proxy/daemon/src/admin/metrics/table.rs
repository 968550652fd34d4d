//! A row for each metric, in the order of the page.

use super::Kind::{Counter, Gauge, Histogram};
use super::Metric;
use super::Stability::{Alpha, Stable};

macro_rules! metrics {
    ($($row:ident: $name:literal $unit:literal $kind:ident $stability:ident
        [$($label:literal),*] $help:literal;)*) => {
        $(
            pub(crate) static $row: Metric = Metric {
                name: $name,
                kind: $kind,
                unit: $unit,
                stability: $stability,
                labels: &[$($label),*],
                help: $help,
            };
        )*

        /// Every metric, in the order of the page.
        pub(crate) static ALL: &[&Metric] = &[$(&$row),*];
    };
}

metrics! {
    BUILD_INFO: "meshport_build_info" "" Gauge Stable ["version"]
        "Always 1; the label is the version of the daemon.";
    START_TIME: "process_start_time_seconds" "seconds" Gauge Stable []
        "When the daemon started, Unix time.";
    FINDINGS: "meshport_findings" "" Gauge Stable ["id", "severity"]
        "Findings of `meshport status` now, by the id that docs/troubleshoot.md explains.";
    CREDENTIAL_EXPIRY: "meshport_credential_expiry_timestamp_seconds" "seconds" Gauge Stable []
        "When this node's credential expires, Unix time.";
    SECRET_NUMBER: "meshport_mesh_secret_number" "" Gauge Alpha []
        "Number of the mesh secret in use; grows with every rotation.";
    SECRET_LAGGING: "meshport_mesh_secret_lagging_members" "" Gauge Alpha []
        "Members not known to have the new mesh secret, while the previous one works too.";
    FORMER_SECRET_EXPIRY: "meshport_mesh_former_secret_expiry_timestamp_seconds" "seconds" Gauge
        Alpha [] "When the previous mesh secret expires, Unix time; absent without one.";
    FORMER_KEY_EXPIRY: "meshport_former_key_expiry_timestamp_seconds" "seconds" Gauge Alpha []
        "When this node's previous key expires, Unix time; absent without one.";
    MEMBERS: "meshport_members" "" Gauge Stable ["liveness"]
        "Nodes of the mesh, this one included: alive, down or left.";
    PEERS: "meshport_peers" "" Gauge Stable ["session"]
        "Nodes that this one talks to, by whether it has a WireGuard session with them now.";
    LEAVES: "meshport_leaves" "" Gauge Stable []
        "Operators' machines attached to this node (`meshport forward`).";
    SERVICES_IGNORED: "meshport_services_ignored" "" Gauge Alpha []
        "Services announced by members whose credentials do not allow them.";
    DUPLICATES: "meshport_duplicate_identities" "" Gauge Stable []
        "Nodes whose key is used by two processes at once, including this node.";
    AUDIT_LINES: "meshport_audit_lines_total" "" Counter Stable ["outcome"]
        "Lines of the audit log: written, and suppressed by its rate limits.";
    EVENTS: "meshport_events_total" "" Counter Alpha ["outcome"]
        "Events for the address in `[events]`: posted, or dropped because the queue was full.";
    EVENT_FAILURES: "meshport_event_posts_failed_total" "" Counter Alpha []
        "Posts of events that failed; each is retried.";
    ADMIN_REFUSED: "meshport_admin_refused_total" "" Counter Alpha ["reason"]
        "Connections to the loopback port and the admin socket that were refused.";

    SERVICE_USABLE: "meshport_service_usable" "" Gauge Stable ["service"]
        "1 if new sessions have a usable origin.";
    ORIGIN_READY: "meshport_origin_ready" "" Gauge Stable ["service", "origin", "site"]
        "1 if the origin reports that it is ready.";
    ORIGIN_USABLE: "meshport_origin_usable" "" Gauge Stable ["service", "origin", "site"]
        "1 if new sessions may go to the origin.";
    ORIGIN_CHOSEN: "meshport_origin_chosen" "" Gauge Stable ["service", "origin", "site"]
        "1 if the origin is tried first.";
    ORIGIN_RELAYED: "meshport_origin_relayed" "" Gauge Stable ["service", "origin", "site"]
        "1 if sessions reach the origin through a relay.";
    ORIGIN_RTT: "meshport_origin_rtt_seconds" "seconds" Gauge Stable ["service", "origin", "site"]
        "Smoothed round-trip time to the origin; absent until it is measured.";
    ORIGIN_LOSS: "meshport_origin_loss_ratio" "ratio" Gauge Stable ["service", "origin", "site"]
        "Share of recent probes to the origin that were lost.";
    ROUTE_CHANGES: "meshport_route_changes_total" "" Counter Alpha ["service", "cause"]
        "Changes of the origin that is tried first, by cause.";
    FAILING_CHECKS: "meshport_instance_failing_checks" "" Gauge Alpha ["service"]
        "Checks of the local apiserver that fail, as its /readyz lists them; absent without one.";
    CLUSTER_APISERVERS: "meshport_cluster_apiservers" "" Gauge Alpha ["service"]
        "Apiservers on the cluster's own list, as last read.";
    CLUSTER_DIFFERS: "meshport_cluster_differs" "" Gauge Stable ["service"]
        "1 if the cluster's list and the mesh's origins differ.";
    CLUSTER_READINGS: "meshport_cluster_readings_total" "" Counter Alpha ["service", "outcome"]
        "Attempts to read the cluster's list: read or failed.";

    SESSIONS_OPEN: "meshport_sessions_open" "" Gauge Stable ["service", "side"]
        "Sessions open now: of this node's clients, served for other nodes, relayed between them.";
    SESSIONS_LIMIT: "meshport_sessions_limit" "" Gauge Stable ["service"]
        "Sessions of clients that may be open at once (`max-sessions`).";
    SESSIONS_ACCEPTED: "meshport_sessions_accepted_total" "" Counter Stable ["service"]
        "Connections accepted from clients.";
    SESSIONS: "meshport_sessions_total" "" Counter Stable ["service", "outcome"]
        "Client connections by outcome.";
    SESSIONS_PACED: "meshport_sessions_paced_total" "" Counter Alpha ["service"]
        "Connections that were delayed because their client does not use most that it opens.";
    OVER_SHARE_UID: "meshport_sessions_over_share_uid" "" Gauge Alpha ["service"]
        "User id last refused for its share of `max-sessions`; absent after a minute.";
    SESSIONS_CUT: "meshport_sessions_cut_total" "" Counter Stable ["service"]
        "Sessions reset because their path died or their apiserver hung.";
    SESSIONS_MOVED: "meshport_sessions_moved_total" "" Counter Stable ["service"]
        "Sessions ended while idle so that their client reconnects to a better origin.";
    CONNECT_DURATION: "meshport_connect_duration_seconds" "seconds" Histogram Stable ["service"]
        "Time until an origin answered, for clients that were connected.";
    SESSION_DURATION: "meshport_session_duration_seconds" "seconds" Histogram Stable ["service"]
        "Duration of ended client sessions.";
    SESSION_BYTES: "meshport_session_bytes_total" "bytes" Counter Stable ["service", "direction"]
        "Bytes of sessions of clients, counted as they pass: up is to the origin.";
    ATTEMPTS_RETRIED: "meshport_attempts_retried_total" "" Counter Alpha ["service"]
        "Attempts to reach an origin that followed a failed one.";
    ATTEMPTS_HEDGED: "meshport_attempts_hedged_total" "" Counter Alpha ["service"]
        "Attempts started in parallel to one that was slow to answer.";
    ATTEMPTS_CANCELLED: "meshport_attempts_cancelled_total" "" Counter Alpha ["service"]
        "Attempts cancelled because another was faster or their path went down.";
    SERVED_STREAMS: "meshport_served_streams_total" "" Counter Stable ["service", "answer"]
        "Streams of other nodes that this one served or refused, by its answer.";
    RELAYED_STREAMS: "meshport_relayed_streams_total" "" Counter Stable ["service"]
        "Streams of other nodes that this one carried on to an origin.";

    WAYBACK_ACCEPTED: "meshport_wayback_accepted_total" "" Counter Alpha []
        "Connections of apiservers accepted on `egress.socket`.";
    WAYBACK_CONNECTED: "meshport_wayback_connected_total" "" Counter Alpha ["target"]
        "Apiserver connections that reached a target, counted on both nodes.";
    WAYBACK_RELAYED: "meshport_wayback_relayed_total" "" Counter Alpha []
        "Apiserver connections that arrived through a relay.";
    WAYBACK_REFUSED: "meshport_wayback_refused_total" "" Counter Alpha ["at", "reason"]
        "Apiserver connections refused: on the socket, or as a node's stream.";
    WAYBACK_NODES: "meshport_wayback_nodes" "" Gauge Alpha ["state"]
        "Nodes of the cluster, with `egress.socket`: there, down, or missing in the mesh.";

    EXPOSED_OPEN: "meshport_exposed_connections_open" "" Gauge Stable ["listener"]
        "Connections of exposed listeners open now.";
    EXPOSED_LIMIT: "meshport_exposed_connections_limit" "" Gauge Stable ["listener"]
        "Connections of the listener that may be open at once (`max-sessions`).";
    EXPOSED_CONNECTIONS: "meshport_exposed_connections_total" "" Counter Stable
        ["listener", "outcome"]
        "Connections to exposed listeners by outcome: served, or why they were refused.";
    EXPOSED_ENDED: "meshport_exposed_ended_total" "" Counter Alpha ["listener", "reason"]
        "Sessions of exposed listeners that this node ended: idle, or withdrawn by a reload.";
    EXPOSED_BYTES: "meshport_exposed_bytes_total" "bytes" Counter Stable ["listener", "direction"]
        "Bytes of sessions of exposed listeners, counted as they pass: up is to the origin.";

    VIRTUAL_ADDRESS_HELD: "meshport_virtual_address_held" "" Gauge Stable ["name"]
        "1 while this node answers for the virtual address.";
    VIRTUAL_ADDRESS_FIT: "meshport_virtual_address_fit" "" Gauge Stable ["name"]
        "1 while this node is eligible to hold the virtual address.";
    VIRTUAL_ADDRESS_OTHERS: "meshport_virtual_address_others" "" Gauge Alpha ["name"]
        "Other nodes of the address's group that are reachable over the mesh.";
    VIRTUAL_ADDRESS_CHANGES: "meshport_virtual_address_changes_total" "" Counter Stable ["change"]
        "How often this node gained and lost a virtual address.";
    VIRTUAL_ADDRESS_CLAIMS: "meshport_virtual_address_claims_total" "" Counter Alpha ["outcome"]
        "Claims of other nodes by outcome.";

    MESH_SHARD_PEERS: "meshport_mesh_shard_peers" "" Gauge Alpha ["shard"]
        "Nodes served by each thread of the mesh.";
    MESH_DATAGRAMS: "meshport_mesh_datagrams_total" "" Counter Stable ["shard", "direction"]
        "Datagrams on the UDP port, by thread of the mesh.";
    MESH_BYTES: "meshport_mesh_bytes_total" "bytes" Counter Stable ["shard", "direction"]
        "Bytes on the UDP port without the headers of IP and UDP, by thread of the mesh.";
    MESH_DROPPED: "meshport_mesh_dropped_total" "" Counter Alpha ["reason"]
        "Datagrams, packets and messages that the mesh dropped.";
    MESH_EVENTS: "meshport_mesh_events_total" "" Counter Alpha ["event"]
        "Events of the encrypted mesh.";
    DISCOVERY_DATAGRAMS: "meshport_discovery_datagrams_total" "" Counter Alpha ["direction"]
        "Datagrams of membership, records and path probes.";
    DISCOVERY_BYTES: "meshport_discovery_bytes_total" "bytes" Counter Alpha ["direction"]
        "Bytes of membership, records and path probes, without the headers below.";
    DISCOVERY_SENT_BYTES: "meshport_discovery_sent_bytes_total" "bytes" Counter Alpha ["kind"]
        "Bytes sent by discovery, by purpose.";
    DISCOVERY_DROPPED: "meshport_discovery_dropped_total" "" Counter Alpha ["reason"]
        "Messages and claims that discovery dropped.";
    DISCOVERY_EVENTS: "meshport_discovery_events_total" "" Counter Alpha ["event"]
        "Events of membership and records.";
}
