//! State of direct contacts: sessions, when each peer was last heard, and its remaining request
//! budget. Peers without a session are forgotten after some seconds of silence, so the table grows
//! with traffic and not with the mesh.

use std::time::{Duration, Instant};

use meshport_config::NodeId;

use crate::table::{Named, Table};

/// Peers remembered at once: as many as the mesh has.
pub(crate) const MAX_CONTACTS: usize = 20_736;
/// How long a silent peer without a session is remembered.
const REMEMBER: Duration = Duration::from_secs(10);
/// Burst of records accepted from a peer, and its refill per second: a joining node fetches
/// thousands of records from a few peers.
const RECORDS_BURST: f64 = 2048.0;
const RECORDS_PER_S: f64 = 512.0;
/// The same for datagrams of directory comparison that a peer may cause.
const REPLIES_BURST: f64 = 256.0;
const REPLIES_PER_S: f64 = 128.0;
/// The same for all peers together, so that a seed is not overwhelmed when a thousand nodes join
/// through it. They get the rest from each other.
const TOTAL_BURST: f64 = 4096.0;
const TOTAL_PER_S: f64 = 2048.0;
/// Events about rejected messages of a peer: a few at once, then one in ten seconds.
const REPORTS_BURST: f64 = 4.0;
const REPORTS_PER_S: f64 = 0.1;
/// The shortest time between two reminders to one peer of its outdated data.
const NUDGE: Duration = Duration::from_millis(500);
/// The shortest time between two checks of the credential of an unknown peer, each of which
/// verifies up to four signatures.
const INTRODUCTION: Duration = Duration::from_secs(2);

/// Contacts examined to find one with a session.
const LOOKS: usize = 64;

#[derive(Debug)]
struct Contact {
    node: NodeId,
    session: bool,
    heard: Option<Instant>,
    nudged: Option<Instant>,
    introduced: Option<Instant>,
    records: f64,
    replies: f64,
    reports: f64,
    filled: Instant,
}

impl Named for Contact {
    fn node(&self) -> &NodeId {
        &self.node
    }
}

/// All peers that this node communicates with.
#[derive(Debug, Default)]
pub(crate) struct Contacts {
    peers: Table<Contact>,
    /// How many of them have a session.
    sessions: usize,
    /// The allowance left for answers to requests of all peers, and the time of that value.
    total: Option<(f64, Instant)>,
}

impl Contacts {
    pub(crate) fn heard(&mut self, peer: NodeId, now: Instant) {
        // Called for each datagram, so it does not update allowances; that can wait until they are
        // needed.
        if let Some(contact) = self.peers.get_mut(&peer) {
            contact.heard = Some(now);
        } else if let Some(contact) = self.contact(peer, now) {
            contact.heard = Some(now);
        }
    }

    pub(crate) fn set_session(&mut self, peer: NodeId, up: bool, now: Instant) {
        if let Some(contact) = self.contact(peer, now) {
            let before = std::mem::replace(&mut contact.session, up);
            self.sessions += usize::from(up);
            self.sessions -= usize::from(before);
        }
    }

    /// When the peer was last heard, if recently.
    pub(crate) fn last_heard(&self, peer: &NodeId) -> Option<Instant> {
        self.peers.get(peer).and_then(|contact| contact.heard)
    }

    pub(crate) fn session(&self, peer: &NodeId) -> bool {
        self.peers.get(peer).is_some_and(|contact| contact.session)
    }

    /// Peers with a session, ascending by id.
    pub(crate) fn connected(&self) -> impl Iterator<Item = NodeId> {
        self.peers.iter().filter(|contact| contact.session).map(|contact| contact.node)
    }

    /// Peers with a session, from a random one on, among a bounded number of contacts.
    pub(crate) fn connected_from(&self, draw: u64) -> impl Iterator<Item = NodeId> {
        let near = self.peers.drawn(draw).take(LOOKS);
        near.filter(|contact| contact.session).map(|contact| contact.node)
    }

    pub(crate) fn sessions(&self) -> usize {
        self.sessions
    }

    /// Whether the peer may send another record.
    pub(crate) fn allow_record(&mut self, peer: NodeId, now: Instant) -> bool {
        self.contact(peer, now).is_some_and(|contact| take(&mut contact.records))
    }

    /// Whether the peer may get another answer.
    pub(crate) fn allow_reply(&mut self, peer: NodeId, now: Instant) -> bool {
        let (before, at) = self.total.unwrap_or((TOTAL_BURST, now));
        let passed = now.saturating_duration_since(at).as_secs_f64();
        let mut total = (before + passed * TOTAL_PER_S).min(TOTAL_BURST);
        let allowed = total >= 1.0
            && self.contact(peer, now).is_some_and(|contact| take(&mut contact.replies));
        if allowed {
            total -= 1.0;
        }
        self.total = Some((total, now));
        allowed
    }

    /// Whether another unrequested datagram may be sent to a newcomer. It does not count against
    /// the limit for all peers together: a seed that is busy answering comparisons still sends each
    /// newcomer the origins.
    pub(crate) fn allow_welcome(&mut self, newcomer: NodeId, now: Instant) -> bool {
        self.contact(newcomer, now).is_some_and(|contact| take(&mut contact.replies))
    }

    /// Whether another event about the peer may be reported.
    pub(crate) fn allow_report(&mut self, peer: NodeId, now: Instant) -> bool {
        self.contact(peer, now).is_some_and(|contact| take(&mut contact.reports))
    }

    /// Whether the peer may be reminded now.
    pub(crate) fn allow_nudge(&mut self, peer: NodeId, now: Instant) -> bool {
        self.contact(peer, now).is_some_and(|it| take_turn(&mut it.nudged, NUDGE, now))
    }

    /// Whether the credential of an unknown peer may be checked now.
    pub(crate) fn allow_introduction(&mut self, peer: NodeId, now: Instant) -> bool {
        self.contact(peer, now).is_some_and(|it| take_turn(&mut it.introduced, INTRODUCTION, now))
    }

    /// Removes peers without a session that have been silent.
    pub(crate) fn prune(&mut self, now: Instant) {
        self.peers.retain(|contact| {
            contact.session
                || now.saturating_duration_since(contact.heard.unwrap_or(contact.filled)) < REMEMBER
        });
    }

    fn contact(&mut self, peer: NodeId, now: Instant) -> Option<&mut Contact> {
        if !self.peers.contains(&peer) {
            if self.peers.len() >= MAX_CONTACTS {
                return None;
            }
            self.peers.insert(Contact {
                node: peer,
                session: false,
                heard: None,
                nudged: None,
                introduced: None,
                records: RECORDS_BURST,
                replies: REPLIES_BURST,
                reports: REPORTS_BURST,
                filled: now,
            });
        }
        let contact = self.peers.get_mut(&peer)?;
        let passed = now.saturating_duration_since(contact.filled).as_secs_f64();
        contact.records = (contact.records + passed * RECORDS_PER_S).min(RECORDS_BURST);
        contact.replies = (contact.replies + passed * REPLIES_PER_S).min(REPLIES_BURST);
        contact.reports = (contact.reports + passed * REPORTS_PER_S).min(REPORTS_BURST);
        contact.filled = now;
        Some(contact)
    }
}

fn take_turn(last: &mut Option<Instant>, gap: Duration, now: Instant) -> bool {
    let rested = last.is_none_or(|at| now.saturating_duration_since(at) >= gap);
    if rested {
        *last = Some(now);
    }
    rested
}

fn take(tokens: &mut f64) -> bool {
    let enough = *tokens >= 1.0;
    if enough {
        *tokens -= 1.0;
    }
    enough
}
