//! Counters of everything the mesh handles and drops.

use meshport_config::counters;
use meshport_config::counters::{Counter, Counters, SharedCounters};

/// The number of counters.
const COUNTERS: usize = MeshCount::ALL.len();

/// Totals since start.
pub type MeshCounters = Counters<MeshCount, COUNTERS>;

/// The same for several threads.
pub type SharedMeshCounters = SharedCounters<MeshCount, COUNTERS>;

counters! {
    /// The counters of the mesh. Every reason for dropping something has its own row.
    pub enum MeshCount {
        "meshport_mesh_datagrams_total" by "direction" {
            /// Outer datagrams received, of any kind.
            DatagramsReceived = "received",
            /// Outer datagrams handed to the socket.
            DatagramsSent = "sent",
        }
        "meshport_mesh_bytes_total" by "direction" {
            /// Outer bytes received.
            BytesReceived = "received",
            /// Outer bytes handed to the socket.
            BytesSent = "sent",
        }
        "meshport_mesh_events_total" by "event" {
            /// Handshake initiations sent, retries included.
            InitiationsSent = "initiations-sent",
            /// Handshake initiations accepted and answered.
            InitiationsAccepted = "initiations-accepted",
            /// Handshakes completed as initiator.
            HandshakesCompleted = "handshakes-completed",
            /// Handshake attempts given up after 90 s without an answer.
            HandshakesAbandoned = "handshakes-abandoned",
            /// Handshakes started because sent data got no answer.
            HandshakesAfterSilence = "handshakes-after-silence",
            /// Handshakes started because a peer's initiation was older than its last one, for
            /// example after its clock was set back.
            HandshakesForOldClocks = "handshakes-for-old-clocks",
            /// Cookie replies sent because of load.
            CookiesSent = "cookies-sent",
            /// Cookie replies received and accepted.
            CookiesReceived = "cookies-received",
            /// Peers whose authenticated packets came from a new address.
            Roams = "roams",
            /// Peers admitted by their credential.
            Admissions = "admissions",
            /// Peers whose sessions ended because the authority revoked them.
            PeersRevoked = "peers-revoked",
            /// Peers that have continued with another key.
            PeersSucceeded = "peers-succeeded",
            /// Restarts of peers detected.
            RestartsSeen = "restarts-seen",
            /// Times two processes with one peer's key were detected.
            DuplicatesSeen = "duplicates-seen",
            /// Times a peer reported another process with this node's key.
            DuplicatesTold = "duplicates-told",
            /// Handshake initiations repeated under the other of two secrets, since one got no
            /// answer.
            InitiationsOtherSecret = "initiations-other-secret",
            /// Times the mesh secret was sent to a peer that lacked it.
            SecretsHanded = "secrets-handed",
            /// ICMPv6 echo requests answered.
            EchoesAnswered = "echoes-answered",
            /// Unknown nodes displaced by newer ones before they presented a credential.
            ProvisionalEvicted = "provisional-evicted",
            /// Unknown nodes that presented no valid credential in time.
            ProvisionalExpired = "provisional-expired",
            /// Credentials refused: tampered, foreign, expired or of another node.
            CredentialsRefused = "credentials-refused",
            /// Messages of peers that refused this node's credential.
            RefusedByPeer = "refused-by-peer",
            /// Peers named by the caller while the table was full.
            PeersRefused = "peers-refused",
            /// Times the socket was full; the batch was kept and sent later.
            SocketFull = "socket-full",
            /// Datagrams that arrived at the wrong shard and were handed over.
            HandedOver = "handed-over",
            /// Packets sent in fragments, on paths that are too narrow for them.
            PacketsSplit = "packets-split",
            /// Packets received in fragments and joined.
            PacketsJoined = "packets-joined",
            /// QUIC connections opened by this node.
            ConnectionsOpened = "connections-opened",
            /// QUIC connections accepted from peers.
            ConnectionsAccepted = "connections-accepted",
            /// QUIC connections cut because the peer was removed, restarted or returned.
            ConnectionsCut = "connections-cut",
            /// QUIC connections closed because this node had not used them for minutes.
            ConnectionsUnused = "connections-unused",
            /// QUIC connection attempts that failed.
            ConnectionsFailed = "connections-failed",
            /// QUIC connection attempts of peers refused because of a limit.
            ConnectionsRefused = "connections-refused",
            /// Streams opened by this node.
            StreamsOpened = "streams-opened",
            /// Streams accepted from peers.
            StreamsAccepted = "streams-accepted",
            /// Streams of peers refused because they were not accepted in time.
            StreamsRefused = "streams-refused",
        }
        "meshport_mesh_dropped_total" by "reason" {
            /// A mesh secret that the authority has not signed.
            DroppedBadSecret = "bad-secret",
            /// A newer secret from a peer that knows more revocations; it will be sent again.
            DroppedEarlySecret = "early-secret",
            /// Not a WireGuard message.
            DroppedMalformed = "malformed",
            /// An initiation with a wrong MAC (not meant for this node, or noise).
            DroppedBadMac = "bad-mac",
            /// An initiation that does not decrypt.
            DroppedBadInitiation = "bad-initiation",
            /// An initiation that is not newer than the last one, so probably replayed.
            DroppedReplayedInitiation = "replayed-initiation",
            /// An initiation too soon after the previous one of the same peer.
            DroppedFrequentInitiation = "frequent-initiation",
            /// An initiation beyond the limit of its source, of all sources or of strangers, under
            /// load.
            DroppedOverShare = "over-share",
            /// A handshake response or cookie that was not expected or does not decrypt.
            DroppedBadResponse = "bad-response",
            /// Data for a session that does not exist.
            DroppedUnknownSession = "unknown-session",
            /// Data that fails authentication.
            DroppedUnauthentic = "unauthentic",
            /// Data that was received before or is too old.
            DroppedReplayed = "replayed",
            /// An initiation of a node that the authority has revoked.
            DroppedRevoked = "revoked",
            /// An initiation of an unknown node while the table of peers was full.
            DroppedNoRoom = "no-room",
            /// An inner packet that is not IPv6 UDP or ICMPv6 echo.
            DroppedInnerMalformed = "inner-malformed",
            /// An inner packet whose source is not the address of the peer that sent it.
            DroppedInnerSource = "inner-source",
            /// An inner packet for another address than this node's.
            DroppedInnerDestination = "inner-destination",
            /// An inner packet with a wrong checksum.
            DroppedInnerChecksum = "inner-checksum",
            /// A fragment of an inner packet that does not fit the others, or a packet of which
            /// fragments are missing.
            DroppedFragments = "fragments",
            /// An inner packet of a peer that is not admitted.
            DroppedNotAdmitted = "not-admitted",
            /// A control message that cannot be decoded.
            DroppedControl = "control",
            /// A control message of an unknown kind or version.
            DroppedUnknownControl = "unknown-control",
            /// A credential too soon after another one of the same peer.
            DroppedFrequentCredential = "frequent-credential",
            /// Packets beyond the limit while a peer's handshake runs.
            DroppedQueueFull = "queue-full",
            /// Queued packets whose peer went away or never answered.
            DroppedQueueAbandoned = "queue-abandoned",
            /// Packets to an address of no peer, or to a peer without an endpoint.
            DroppedNoRoute = "no-route",
            /// Outgoing control packets beyond their limit.
            DroppedTransmitFull = "transmit-full",
            /// Events the consumer was too slow for.
            DroppedEvents = "events",
            /// Outer datagrams the socket refused for a reason other than being full.
            DroppedSendError = "send-error",
            /// Outer datagrams larger than the path allows (probes of MTU discovery).
            DroppedSendTooLarge = "send-too-large",
            /// Sealed batches beyond the limit while the socket was full.
            DroppedSendBacklog = "send-backlog",
            /// Datagrams for another shard beyond the limit of its queue.
            DroppedHandOver = "hand-over",
        }
    }
}
