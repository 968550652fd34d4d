//! Open sessions, shared by all threads of the daemon.
//!
//! The pure [`Ledger`] decides which of them must end. It is behind one lock, held for one
//! operation at a time; each session is woken when it must act.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use dashmap::DashMap;
use meshport_config::{NodeId, ServiceName};
use meshport_core::drift::Leave;
use meshport_core::ledger::{
    Crowded, Crowding, Cut, End, Entry, Ledger, MAX_SERVED, SessionId, Side,
};
use meshport_core::route::Line;
use tokio::sync::Notify;

use crate::clock;
use crate::sessions::splice::Carried;
use crate::sessions::totals::Totals;

/// All sessions. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sessions {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Number of descriptors that this process may open for sessions.
    descriptors: u64,
    ledger: Mutex<Ledger>,
    /// Wakers of the tasks that carry sessions: at most as many as the ledger has entries.
    wakers: DashMap<SessionId, Arc<Notify>>,
    totals: DashMap<ServiceName, Arc<Totals>>,
    /// Shared by services that only peers name, since their requests must not grow a table.
    others: Arc<Totals>,
    busy_changed: Notify,
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            descriptors: u64::MAX,
            ledger: Mutex::default(),
            wakers: DashMap::default(),
            totals: DashMap::default(),
            others: Arc::default(),
            busy_changed: Notify::default(),
        }
    }
}

/// Descriptors reserved for a client of this machine until dropped.
#[derive(Debug)]
pub(crate) struct Hold {
    sessions: Sessions,
    count: u64,
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.sessions.change(|ledger| ledger.let_go(self.count));
    }
}

/// Counts one session as open until dropped.
#[derive(Debug)]
pub(crate) struct Guard {
    sessions: Sessions,
    id: SessionId,
}

impl Sessions {
    /// An empty registry for a process that may open this many descriptors for sessions.
    pub(crate) fn within(descriptors: u64) -> Self {
        Self { inner: Arc::new(Inner { descriptors, ..Inner::default() }) }
    }

    /// Adds a session.
    pub(crate) fn open(&self, service: &ServiceName, side: Side, line: Line) -> Guard {
        let id = self.change(|ledger| ledger.open(service, side, line));
        Guard { sessions: self.clone(), id }
    }

    /// Adds a session that `peer` opened for a client of `node`, unless all slots are taken.
    pub(crate) fn serve(
        &self,
        service: &ServiceName,
        peer: NodeId,
        node: NodeId,
    ) -> Result<Guard, Crowded> {
        let descriptors = self.inner.descriptors;
        let id = self.change(|ledger| ledger.serve(service, peer, node, descriptors))?;
        Ok(Guard { sessions: self.clone(), id })
    }

    /// Reserves descriptors for a client of this machine; none if too few are left beside the other
    /// clients and the sessions served for other nodes.
    pub(crate) fn hold(&self, count: u64) -> Option<Hold> {
        let is_room = self.change(|ledger| ledger.hold(count, self.inner.descriptors));
        is_room.then(|| Hold { sessions: self.clone(), count })
    }

    /// Adds a relayed session, see [`Ledger::relay`].
    pub(crate) fn relay(
        &self,
        service: &ServiceName,
        peer: NodeId,
        target: NodeId,
        most: u64,
    ) -> Option<[Guard; 2]> {
        let ids = self.change(|ledger| ledger.relay(service, peer, target, most))?;
        Some(ids.map(|id| Guard { sessions: self.clone(), id }))
    }

    /// Adds a session that another process of this node carries, see [`Ledger::adopt`].
    pub(crate) fn adopt(&self, entry: &Entry) -> Guard {
        let id = self.change(|ledger| ledger.adopt(entry));
        Guard { sessions: self.clone(), id }
    }

    /// All open sessions.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.look(|ledger| ledger.entries().collect())
    }

    /// Resets one session.
    pub(crate) fn end_one(&self, id: SessionId) {
        self.change(|ledger| ledger.end_one(id, clock::now()));
    }

    /// Runs a query on the ledger.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Ledger) -> T) -> T {
        look(&self.lock())
    }

    /// Changes the ledger, and wakes the affected sessions.
    fn change<T>(&self, change: impl FnOnce(&mut Ledger) -> T) -> T {
        let mut ledger = self.lock();
        let result = change(&mut ledger);
        let changed: Vec<SessionId> = std::iter::from_fn(|| ledger.poll_changed()).collect();
        let is_busy_changed = ledger.take_busy_changed();
        drop(ledger);
        for id in changed {
            if let Some(wake) = self.inner.wakers.get(&id) {
                wake.notify_one();
            }
        }
        if is_busy_changed {
            self.inner.busy_changed.notify_one();
        }
        result
    }

    /// Records a stream refused for lack of a slot; returns whether to log it.
    pub(crate) fn turn_away(&self, now: Instant) -> bool {
        self.change(|ledger| ledger.turn_away(now))
    }

    /// The finding, if a stream was refused recently for lack of a slot.
    pub(crate) fn crowding(&self, now: Instant) -> Option<Crowding> {
        self.look(|ledger| ledger.crowding(now))
    }

    /// Whether the limit on descriptors is too low for the maximum number of sessions.
    pub(crate) fn lacks_descriptors(&self) -> bool {
        self.inner.descriptors < MAX_SERVED
    }

    /// The number of open sessions.
    pub(crate) fn count(&self) -> u64 {
        self.look(Ledger::count)
    }

    /// The peak number of open sessions since the last call, and the current number.
    pub(crate) fn take_peak(&self) -> (u64, u64) {
        self.change(|ledger| (ledger.take_peak(), ledger.count()))
    }

    /// The lines of one service with open sessions on one side, and how many.
    pub(crate) fn lines(&self, service: &ServiceName, side: Side) -> Vec<(Line, u64)> {
        self.look(|ledger| ledger.lines(service, side))
    }

    /// Open sessions of one service on one side and line.
    pub(crate) fn count_line(&self, service: &ServiceName, side: Side, line: Line) -> u64 {
        self.look(|ledger| ledger.count_line(service, side, line))
    }

    /// Open sessions of one service on one side.
    pub(crate) fn count_side(&self, service: &ServiceName, side: Side) -> u64 {
        self.look(|ledger| ledger.count_side(service, side))
    }

    /// Open sessions on one side over all services.
    #[cfg(test)]
    pub(crate) fn count_all(&self, side: Side) -> u64 {
        self.look(|ledger| ledger.count_all(side))
    }

    /// The lines that carry sessions from here: of this node's clients, or relayed ones.
    pub(crate) fn busy(&self) -> BTreeSet<Line> {
        self.look(Ledger::busy)
    }

    /// Waits until [`Sessions::busy`] may have changed.
    pub(crate) async fn busy_changed(&self) {
        self.inner.busy_changed.notified().await;
    }

    /// Moves the sessions of a node to its successor.
    pub(crate) fn rename(&self, former: NodeId, node: NodeId) {
        self.change(|ledger| ledger.rename(former, node));
    }

    /// Resets the sessions from here on a line. Returns their number.
    pub(crate) fn cut(&self, service: &ServiceName, line: Line, how: Cut) -> u64 {
        self.change(|ledger| ledger.cut(service, line, how, clock::now()))
    }

    /// Resets the sessions of other nodes' clients with the local instance. Returns their number.
    pub(crate) fn cut_served(&self, service: &ServiceName, how: Cut) -> u64 {
        self.change(|ledger| ledger.cut_served(service, how, clock::now()))
    }

    /// Ends the sessions from here, open or being opened, that lead to or through a node for which
    /// `is_over` holds. Returns their number.
    pub(crate) fn end(&self, is_over: impl Fn(&NodeId) -> bool) -> u64 {
        self.change(|ledger| ledger.end(is_over, clock::now()))
    }

    /// Ends the sessions of a service that come from a node or go from here to it. Returns their
    /// number.
    pub(crate) fn sever(&self, service: &ServiceName, node: &NodeId) -> u64 {
        self.change(|ledger| ledger.sever(service, node, clock::now()))
    }

    /// Lets sessions of this node's clients on a line move, see [`Ledger::release`].
    pub(crate) fn release(&self, service: &ServiceName, leave: Leave) {
        let Leave { line, count, insist } = leave;
        self.change(|ledger| ledger.release(service, line, count, insist, clock::now()));
    }

    /// Gives a configured service its own counters.
    pub(crate) fn register(&self, service: &ServiceName) -> Arc<Totals> {
        self.inner.totals.entry(service.clone()).or_default().clone()
    }

    /// A service's counters; those of all unknown services together for any other name.
    pub(crate) fn totals(&self, service: &ServiceName) -> Arc<Totals> {
        let known = self.inner.totals.get(service).map(|totals| totals.clone());
        known.unwrap_or_else(|| self.inner.others.clone())
    }

    /// The counters of all services that are not in the configuration.
    pub(crate) fn others(&self) -> &Totals {
        &self.inner.others
    }

    fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.inner.ledger.lock().expect("no holder of this lock can panic")
    }
}

impl Guard {
    /// Waits until the session of a client whose origin has answered must end. `shows`: the answer
    /// proves that the instance is alive. `carried` shows whether the session is idle.
    pub(crate) async fn carry(&self, carried: &Carried, shows: bool) -> End {
        self.end(carried, |ledger| ledger.handle_carried(self.id, shows, clock::now())).await
    }

    /// Like [`Self::carry`], for a session relayed or served here for another node.
    pub(crate) async fn relay(&self, carried: &Carried) -> End {
        self.end(carried, |_| {}).await
    }

    async fn end(&self, carried: &Carried, begin: impl FnOnce(&mut Ledger)) -> End {
        // Registered first, so that no change before the first wait is missed.
        let wake = Arc::new(Notify::new());
        self.sessions.inner.wakers.insert(self.id, wake.clone());
        let mut begin = Some(begin);
        loop {
            let (end, due) = self.sessions.change(|ledger| {
                if let Some(begin) = begin.take() {
                    begin(ledger);
                }
                let end = ledger.poll(self.id, carried.traffic(), clock::now());
                (end, ledger.poll_timeout(self.id))
            });
            if let Some(end) = end {
                return end;
            }
            tokio::select! {
                () = wake.notified() => {}
                () = clock::sleep_until(due) => {}
            }
            // Let pending data through first, so that it counts: after a stall, an answer may
            // arrive when the time is already over.
            tokio::task::yield_now().await;
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.sessions.inner.wakers.remove(&self.id);
        self.sessions.change(|ledger| ledger.close(self.id));
    }
}

#[cfg(test)]
mod tests;
