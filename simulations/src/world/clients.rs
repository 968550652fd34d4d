//! The clients of one node: their sessions, and how many go to which origin.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rand_chacha::ChaCha8Rng;

use meshport_config::ServiceName;

use crate::brain::{Connect, Ledger, Line, SearchContext, Searches, SessionId, Side, Traffic};
use crate::flight::{SessionRef, StreamPath};
use crate::level::clients::MAX_SESSIONS;
use crate::scenario::service;

/// Counters of a node's clients since its process began.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tally {
    pub(super) total: u64,
    pub(super) connected: u64,
    pub(super) failed: u64,
    pub(super) connect_us: u64,
    pub(super) slowest_us: u64,
}

impl Tally {
    pub(super) fn connected(&mut self, after: Duration) {
        let us = u64::try_from(after.as_micros()).unwrap_or(u64::MAX);
        self.connected += 1;
        self.connect_us = self.connect_us.saturating_add(us);
        self.slowest_us = self.slowest_us.max(us);
    }
}

#[derive(Debug)]
pub(super) struct Session {
    /// Distinguishes it from earlier ones in the same slot.
    pub(super) number: u64,
    /// The search for an origin; none once there is one.
    pub(super) search: Option<Box<Connect>>,
    /// Time of the next call of the search.
    pub(super) asked_at: Option<Duration>,
    /// Time of the next check whether it should end.
    pub(super) look_at: Option<Instant>,
    /// Attempts in progress, or the successful one.
    pub(super) attempts: Vec<Attempt>,
    /// Time at which its client connected.
    pub(super) since: Duration,
    /// Counts the requests of the open session.
    pub(super) step: u32,
    /// The request that has no answer yet.
    pub(super) request: Option<Request>,
    /// Time at which its client ends it.
    pub(super) until: Duration,
}

/// An attempt of a search.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attempt {
    pub(super) id: u32,
    /// Its entry among the node's sessions.
    pub(super) entry: SessionId,
    pub(super) line: Line,
    /// The path of its flights; none outside the mesh.
    pub(super) way: Option<StreamPath>,
    /// Start time.
    pub(super) since: Duration,
}

impl Session {
    pub(super) fn is_open(&self) -> bool {
        self.search.is_none()
    }

    /// Its traffic: requests and answers instead of bytes.
    pub(super) fn traffic(&self) -> Traffic {
        let waits = self.request.is_some();
        let bytes = u64::from(self.step) * 2 + u64::from(!waits);
        Traffic { bytes, waits, holds: false }
    }

    /// The origin it goes to.
    pub(super) fn target(&self) -> Option<&Attempt> {
        self.attempts.first().filter(|_| self.is_open())
    }
}

/// The session that an entry belongs to.
#[derive(Debug, Clone, Copy)]
pub(super) enum Owner {
    /// A session of its own clients, in this slot.
    Own(u32),
    /// A session of another node that it relays or serves.
    Carried(SessionRef),
}

/// The facts about a node's other sessions that a search needs.
pub(super) struct OtherSearches<'a> {
    pub(super) ledger: &'a Ledger,
    pub(super) service: &'a ServiceName,
    pub(super) searches: &'a mut Searches,
}

impl SearchContext for OtherSearches<'_> {
    fn open(&self, line: &Line) -> u64 {
        self.ledger.count_line(self.service, Side::Client, *line)
    }

    fn searches<T>(&mut self, look: impl FnOnce(&mut Searches) -> T) -> T {
        look(self.searches)
    }
}

/// A request without an answer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub(super) since: Duration,
    pub(super) repeated: bool,
}

#[derive(Debug)]
pub(super) struct Clients {
    pub(super) rng: ChaCha8Rng,
    pub(super) sessions: Vec<Option<Session>>,
    free: Vec<u32>,
    numbers: u64,
    /// The daemon's own ledger: sessions and attempts of its clients, and those it relays and
    /// serves for others.
    pub(super) ledger: Ledger,
    pub(super) service: ServiceName,
    /// The sessions that the entries belong to.
    owners: BTreeMap<SessionId, Owner>,
    /// The entries of other nodes' sessions that this one relays or serves.
    carried: BTreeMap<SessionRef, SessionId>,
    /// The maximum on each line since the process began.
    peaks: BTreeMap<Line, u64>,
    pub(super) tickets: u64,
    pub(super) searches: Searches,
    /// Settings changed by this event of the scenario.
    pub(super) configured: Option<usize>,
    /// Sessions that were opened, and those of them that have ended.
    pub(super) opened: u64,
    pub(super) closed: u64,
}

impl Clients {
    pub(super) fn new(rng: ChaCha8Rng) -> Self {
        Self {
            rng,
            sessions: Vec::new(),
            free: Vec::new(),
            numbers: 0,
            ledger: Ledger::default(),
            service: service(),
            owners: BTreeMap::new(),
            carried: BTreeMap::new(),
            peaks: BTreeMap::new(),
            tickets: 0,
            searches: Searches::default(),
            configured: None,
            opened: 0,
            closed: 0,
        }
    }

    /// The slot of a new session; none if there are too many.
    pub(super) fn add(
        &mut self,
        search: Connect,
        request: Request,
        since: Duration,
        until: Duration,
    ) -> Option<(u32, u64)> {
        self.numbers += 1;
        let session = Session {
            number: self.numbers,
            search: Some(Box::new(search)),
            asked_at: None,
            look_at: None,
            attempts: Vec::new(),
            since,
            step: 0,
            request: Some(request),
            until,
        };
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.sessions.len() >= MAX_SESSIONS => return None,
            None => {
                self.sessions.push(None);
                u32::try_from(self.sessions.len() - 1).ok()?
            }
        };
        self.searches.begin();
        self.sessions[slot as usize] = Some(session);
        Some((slot, self.numbers))
    }

    /// The session in a slot, if it still has that number.
    pub(super) fn get(&mut self, session: SessionRef) -> Option<&mut Session> {
        let found = self.sessions.get_mut(session.slot as usize)?;
        found.as_mut().filter(|it| it.number == session.number)
    }

    pub(super) fn remove(&mut self, slot: u32) -> Option<Session> {
        let session = self.sessions.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        if !session.is_open() {
            self.searches.end();
        }
        self.closed += u64::from(session.is_open());
        Some(session)
    }

    /// Adds a session that is relayed or served.
    pub(super) fn carry(&mut self, side: Side, line: Line, session: SessionRef) {
        let entry = self.ledger.open(&self.service, side, line);
        self.carried.insert(session, entry);
        self.owners.insert(entry, Owner::Carried(session));
    }

    /// Removes one; no effect if this process does not carry it.
    pub(super) fn carry_no_more(&mut self, session: SessionRef) {
        if let Some(entry) = self.carried.remove(&session) {
            self.quit(entry);
        }
    }

    /// The entry of one.
    pub(super) fn carried(&self, session: SessionRef) -> Option<SessionId> {
        self.carried.get(&session).copied()
    }

    /// Adds a session or attempt in a slot, on this line.
    pub(super) fn enter(&mut self, line: Line, slot: u32) -> SessionId {
        let entry = self.ledger.open(&self.service, Side::Client, line);
        self.owners.insert(entry, Owner::Own(slot));
        let count = self.count(line);
        let peak = self.peaks.entry(line).or_default();
        *peak = (*peak).max(count);
        entry
    }

    pub(super) fn quit(&mut self, entry: SessionId) {
        self.owners.remove(&entry);
        self.ledger.close(entry);
    }

    /// The session that an entry belongs to.
    pub(super) fn owner(&self, entry: SessionId) -> Option<Owner> {
        self.owners.get(&entry).copied()
    }

    /// Sessions and attempts on a line.
    pub(super) fn count(&self, line: Line) -> u64 {
        self.ledger.count_line(&self.service, Side::Client, line)
    }

    /// The maximum of sessions and attempts on a line since the process began.
    pub(super) fn peak(&self, line: &Line) -> u64 {
        self.peaks.get(line).copied().unwrap_or(0)
    }

    /// The open sessions of this node and their targets.
    pub(super) fn targets(&self, node: usize) -> Vec<(SessionRef, Attempt)> {
        let sessions = (0..).zip(&self.sessions);
        let open = sessions.filter_map(|(slot, session)| {
            let session = session.as_ref()?;
            Some((SessionRef { node, slot, number: session.number }, *session.target()?))
        });
        open.collect()
    }

    pub(super) fn open(&self) -> u64 {
        self.sessions.iter().flatten().filter(|it| it.is_open()).count() as u64
    }

    /// Forgets everything, since the node's process has ended with its sessions.
    pub(super) fn clear(&mut self) -> u64 {
        let open = self.open();
        self.closed += open;
        self.sessions.clear();
        self.free.clear();
        self.ledger = Ledger::default();
        self.owners.clear();
        self.carried.clear();
        self.peaks.clear();
        self.searches = Searches::default();
        open
    }
}
