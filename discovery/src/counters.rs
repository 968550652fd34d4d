//! Counters of discovery's actions and drops since its start.

use meshport_config::counters;
use meshport_config::counters::Counter;

/// Totals since start.
pub type Counters = counters::Counters<Count, { Count::ALL.len() }>;

counters! {
    /// The counters of discovery. Bytes and datagrams are its own, without the headers below them.
    pub enum Count {
        "meshport_discovery_datagrams_total" by "direction" {
            /// Datagrams handed out for sending.
            SentPackets = "sent",
            /// Datagrams received.
            ReceivedPackets = "received",
        }
        "meshport_discovery_bytes_total" by "direction" {
            /// Bytes of datagrams sent.
            SentBytes = "sent",
            /// Bytes of datagrams received.
            ReceivedBytes = "received",
        }
        "meshport_discovery_sent_bytes_total" by "kind" {
            /// Sent bytes of membership.
            SentSwimBytes = "membership",
            /// Sent bytes of path probes and echoes.
            SentPathBytes = "paths",
            /// Sent bytes of news and rumours.
            SentNewsBytes = "news",
            /// Sent bytes of directory comparison and records.
            SentSyncBytes = "sync",
        }
        "meshport_discovery_dropped_total" by "reason" {
            /// Datagrams from nodes without a known credential.
            DroppedUnknownSender = "unknown-sender",
            /// Datagrams not sent because their receiver is unknown here: invented by a liar, or
            /// forgotten since.
            DroppedUnknownReceiver = "unknown-receiver",
            /// Forbidden messages of leaves, messages of members about leaves, and leaves beyond
            /// the limit.
            DroppedLeaf = "leaf",
            /// Datagrams of another version of the format.
            DroppedVersion = "version",
            /// Datagrams of a kind unknown to this version.
            DroppedUnknownKind = "unknown-kind",
            /// Datagrams that do not parse or are too large.
            DroppedMalformed = "malformed",
            /// Membership datagrams that do not parse.
            DroppedSwim = "swim",
            /// Membership claims about nodes without a known credential.
            DroppedClaimsUnknown = "claims-unknown",
            /// Membership claims about a life of a node not signed by the node itself.
            DroppedClaimsUnsigned = "claims-unsigned",
            /// Records ignored because their sender sent too many.
            DroppedFlood = "flood",
            /// Records refused because the directory has no room for their nodes.
            DroppedDirectoryFull = "directory-full",
            /// Records of nodes that were forgotten.
            DroppedForgotten = "forgotten",
            /// Datagrams not sent because the queue was full.
            DroppedTransmits = "transmits",
            /// Events not reported because the queue was full.
            DroppedEvents = "events",
            /// Timers not set because the queue was full.
            DroppedTimers = "timers",
            /// Requests for records given up because too many were open.
            DroppedWants = "wants",
            /// Requests not answered because the sender requested too much.
            DroppedRequests = "requests",
            /// Rumours not spread because too many were in progress.
            DroppedRumours = "rumours",
            /// Origins not probed because too many are known.
            DroppedPaths = "paths",
            /// Own services, endpoints or seeds ignored because there are too many or the role is
            /// missing.
            DroppedOwn = "own",
            /// Revocations ignored because there are too many.
            DroppedRevocations = "revocations",
        }
        "meshport_discovery_events_total" by "event" {
            /// Claims that a node is down, treated only as suspicions because the node was just
            /// heard.
            SoftenedClaims = "softened-claims",
            /// Credentials that were refused.
            RejectedCredentials = "rejected-credentials",
            /// Revocations not signed by the authority.
            RejectedRevocations = "rejected-revocations",
            /// Records with a wrong signature or format, or for a node without credential.
            RejectedStates = "rejected-states",
            /// Announced services not allowed by the credential.
            IgnoredServices = "ignored-services",
            /// Entries evicted from a full directory for a stronger newcomer.
            Displaced = "displaced",
            /// News given up after the last try without an acknowledgement.
            UnacknowledgedNews = "unacknowledged-news",
            /// Own records published.
            Published = "published",
            /// New records of others added to the directory.
            Merged = "merged",
            /// Revocations accepted.
            Revocations = "revocations",
            /// Members that came up.
            MembersUp = "members-up",
            /// Members that were declared down.
            MembersDown = "members-down",
            /// Suspicions this node raised.
            Suspicions = "suspicions",
            /// Times this node refuted a suspicion about itself.
            Refutations = "refutations",
            /// Times this node found itself declared down and returned in a new life.
            Renewals = "renewals",
            /// Times this node raised its generation above one found in the mesh.
            GenerationRaised = "generation-raised",
            /// Records restored when the wall clock was set back.
            TakenBack = "taken-back",
            /// Stalls of the process, detected by late timers.
            Stalls = "stalls",
            /// Answered queries of leaves.
            LeafQuestions = "leaf-questions",
            /// Directory comparisons started.
            Syncs = "syncs",
        }
    }
}
