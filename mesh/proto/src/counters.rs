//! Counters of everything the mesh handles and drops.

use serde::Serialize;

/// A struct of counters, and how those of several shards add up.
macro_rules! counters {
    ($(#[$about:meta])* pub struct $name:ident { $($(#[$doc:meta])* pub $field:ident: u64,)* }) => {
        $(#[$about])*
        pub struct $name { $($(#[$doc])* pub $field: u64,)* }

        impl std::ops::AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                $(self.$field += other.$field;)*
            }
        }
    };
}

counters! {
/// Totals since start. Every reason for dropping something has its own field.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct MeshCounters {
    /// Outer datagrams received, whatever they were.
    pub datagrams_received: u64,
    /// Outer bytes received.
    pub bytes_received: u64,
    /// Outer datagrams handed to the socket.
    pub datagrams_sent: u64,
    /// Outer bytes handed to the socket.
    pub bytes_sent: u64,

    /// Handshake initiations sent, retries included.
    pub initiations_sent: u64,
    /// Handshake initiations accepted and answered.
    pub initiations_accepted: u64,
    /// Handshakes completed as initiator.
    pub handshakes_completed: u64,
    /// Handshake attempts given up after 90 s without an answer.
    pub handshakes_abandoned: u64,
    /// Handshakes started because sent data got no answer.
    pub handshakes_after_silence: u64,
    /// Handshakes started because a peer's initiation was older than its last one, as after its
    /// clock was set back.
    pub handshakes_for_old_clocks: u64,
    /// Cookie replies sent because of load.
    pub cookies_sent: u64,
    /// Cookie replies received and accepted.
    pub cookies_received: u64,
    /// Peers whose authenticated packets came from a new address.
    pub roams: u64,
    /// Peers admitted by their credential.
    pub admissions: u64,
    /// Peers whose sessions ended because the authority revoked them.
    pub peers_revoked: u64,
    /// Peers that have gone on under another key.
    pub peers_succeeded: u64,
    /// Peers found to have been restarted.
    pub restarts_seen: u64,
    /// Times two processes were found to run with one peer's key.
    pub duplicates_seen: u64,
    /// Times a peer said that another process runs with this node's key.
    pub duplicates_told: u64,
    /// Handshake initiations sent under the other of two secrets, since one had no answer.
    pub initiations_other_secret: u64,
    /// Times the mesh's secret was handed to a peer that lacked it.
    pub secrets_handed: u64,
    /// Dropped: a secret of the mesh that the authority has not signed.
    pub dropped_bad_secret: u64,
    /// Dropped: a newer secret from a peer that knows more revocations; it is sent again.
    pub dropped_early_secret: u64,
    /// ICMPv6 echo requests answered.
    pub echoes_answered: u64,

    /// Dropped: not a WireGuard message.
    pub dropped_malformed: u64,
    /// Dropped: an initiation with a wrong MAC (not meant for this node, or noise).
    pub dropped_bad_mac: u64,
    /// Dropped: an initiation that does not decrypt.
    pub dropped_bad_initiation: u64,
    /// Dropped: an initiation that is not newer than the last one, so probably replayed.
    pub dropped_replayed_initiation: u64,
    /// Dropped: an initiation too soon after the previous one of the same peer.
    pub dropped_frequent_initiation: u64,
    /// Dropped under load: an initiation too many of its source, of all sources or of strangers.
    pub dropped_over_share: u64,
    /// Dropped: a handshake response or cookie nobody waits for, or that does not decrypt.
    pub dropped_bad_response: u64,
    /// Dropped: data for a session that does not exist.
    pub dropped_unknown_session: u64,
    /// Dropped: data that does not authenticate.
    pub dropped_unauthentic: u64,
    /// Dropped: data that was received before or is too old.
    pub dropped_replayed: u64,
    /// Dropped: an initiation of a node that the authority has revoked.
    pub dropped_revoked: u64,
    /// Dropped: an initiation of an unknown node while the table of peers was full.
    pub dropped_no_room: u64,
    /// Unknown nodes pushed out by newer ones before they showed a credential.
    pub provisional_evicted: u64,
    /// Unknown nodes that showed no valid credential in time.
    pub provisional_expired: u64,

    /// Dropped: an inner packet that is not IPv6 UDP or ICMPv6 echo.
    pub dropped_inner_malformed: u64,
    /// Dropped: an inner packet whose source is not the address of the peer that sent it.
    pub dropped_inner_source: u64,
    /// Dropped: an inner packet for another address than this node's.
    pub dropped_inner_destination: u64,
    /// Dropped: an inner packet with a wrong checksum.
    pub dropped_inner_checksum: u64,
    /// Dropped: an inner packet of a peer that is not admitted.
    pub dropped_not_admitted: u64,
    /// Dropped: a control message that cannot be decoded.
    pub dropped_control: u64,
    /// Credentials refused: tampered, foreign, expired or of another node.
    pub credentials_refused: u64,
    /// Dropped: a credential too soon after another one of the same peer.
    pub dropped_frequent_credential: u64,
    /// Messages of peers that refused this node's credential.
    pub refused_by_peer: u64,

    /// Dropped: packets over the bound while a peer's handshake runs.
    pub dropped_queue_full: u64,
    /// Dropped: queued packets whose peer went away or never answered.
    pub dropped_queue_abandoned: u64,
    /// Dropped: packets to an address no peer has, or to a peer without an endpoint.
    pub dropped_no_route: u64,
    /// Dropped: outgoing control packets over their bound.
    pub dropped_transmit_full: u64,
    /// Dropped: events the consumer was too slow for.
    pub dropped_events: u64,
    /// Peers named by the caller while the table was full.
    pub peers_refused: u64,

    /// Dropped: outer datagrams the socket refused for a reason other than being full.
    pub dropped_send_error: u64,
    /// Dropped: outer datagrams larger than the path allows (probes of MTU discovery).
    pub dropped_send_too_large: u64,
    /// Dropped: sealed batches over the bound while the socket was full.
    pub dropped_send_backlog: u64,
    /// Times the socket was full; the batch was kept and sent later.
    pub socket_full: u64,

    /// Datagrams that arrived at another shard than their peer's and were handed over.
    pub handed_over: u64,
    /// Dropped: such datagrams over the bound of what may wait for a shard.
    pub dropped_hand_over: u64,

    /// QUIC connections opened by this node.
    pub connections_opened: u64,
    /// QUIC connections accepted from peers.
    pub connections_accepted: u64,
    /// QUIC connections cut because the peer was removed, restarted or came back.
    pub connections_cut: u64,
    /// QUIC connections closed because this node had used them for minutes no more.
    pub connections_unused: u64,
    /// QUIC connection attempts that failed.
    pub connections_failed: u64,
    /// QUIC connection attempts of peers refused because of a bound.
    pub connections_refused: u64,
    /// Streams opened by this node.
    pub streams_opened: u64,
    /// Streams accepted from peers.
    pub streams_accepted: u64,
    /// Streams of peers refused because nobody took them in time.
    pub streams_refused: u64,
}
}
