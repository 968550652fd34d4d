//! What discovery has done and dropped since it started.

/// Plain counters; all only grow. Bytes and packets are those of discovery's own datagrams, without
/// the headers below them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counters {
    /// Datagrams handed out for sending.
    pub sent_packets: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Datagrams taken in.
    pub received_packets: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Sent bytes of membership.
    pub sent_swim_bytes: u64,
    /// Sent bytes of path probes and echoes.
    pub sent_path_bytes: u64,
    /// Sent bytes of news and rumours.
    pub sent_news_bytes: u64,
    /// Sent bytes of directory comparison and records.
    pub sent_sync_bytes: u64,

    /// Datagrams from nodes without a known credential.
    pub dropped_unknown_sender: u64,
    /// What a leaf said that it may not, or somebody about one; leaves beyond the bound.
    pub dropped_leaf: u64,
    /// Datagrams of another version of the format.
    pub dropped_version: u64,
    /// Datagrams that do not parse or are too large.
    pub dropped_malformed: u64,
    /// Membership datagrams that do not parse.
    pub dropped_swim: u64,
    /// Membership claims about nodes without a known credential.
    pub dropped_claims_unknown: u64,
    /// Membership claims about a life of a node that the node itself has not signed.
    pub dropped_claims_unsigned: u64,
    /// Claims that a node is down which were only taken as suspicion, because it was heard just
    /// now.
    pub softened_claims: u64,
    /// Credentials that were refused.
    pub rejected_credentials: u64,
    /// Revocations that the authority has not signed.
    pub rejected_revocations: u64,
    /// Records with a wrong signature or format, or for a node without credential.
    pub rejected_states: u64,
    /// Announced services that the credential does not allow.
    pub ignored_services: u64,
    /// Records not looked at because their sender sent too many.
    pub dropped_flood: u64,
    /// Records not taken because the directory has no place for their nodes.
    pub dropped_directory_full: u64,
    /// Entries that went because a stronger newcomer found no free place.
    pub displaced: u64,
    /// Records of nodes that were forgotten.
    pub dropped_forgotten: u64,
    /// Datagrams not sent because the queue was full.
    pub dropped_transmits: u64,
    /// Events not reported because the queue was full.
    pub dropped_events: u64,
    /// Timers not set because the queue was full.
    pub dropped_timers: u64,
    /// Requests for records given up because too many were open.
    pub dropped_wants: u64,
    /// Requests not answered because the sender asked too much.
    pub dropped_requests: u64,
    /// Rumours not passed on because too many were under way.
    pub dropped_rumours: u64,
    /// Origins not probed because too many are known.
    pub dropped_paths: u64,
    /// Own services, endpoints or seeds not taken because there are too many or the role is
    /// missing.
    pub dropped_own: u64,
    /// Revocations not taken because there are too many.
    pub dropped_revocations: u64,
    /// News given up after the last try without an acknowledgement.
    pub unacknowledged_news: u64,

    /// Own records published.
    pub published: u64,
    /// New records of others taken into the directory.
    pub merged: u64,
    /// Revocations taken in.
    pub revocations: u64,
    /// Members that were seen to come up.
    pub members_up: u64,
    /// Members that were declared down.
    pub members_down: u64,
    /// Suspicions this node raised.
    pub suspicions: u64,
    /// Times this node refuted a suspicion about itself.
    pub refutations: u64,
    /// Times this node found itself declared down and came back in a new life.
    pub renewals: u64,
    /// Times the own generation had to be raised above one found in the mesh.
    pub generation_raised: u64,
    /// Records that returned when the wall clock was put back.
    pub taken_back: u64,
    /// Stalls of the process, seen by timers that came late.
    pub stalls: u64,
    /// Questions of leaves that were answered.
    pub leaf_questions: u64,
    /// Directory comparisons started.
    pub syncs: u64,
}
