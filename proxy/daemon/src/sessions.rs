//! The sessions that are open now, and how many there were.
//!
//! An entry lives as long as its [`Guard`]. The map serves people (`status`) and limits; nothing
//! is decided by iterating it. Bounded by the services' `max-sessions` and [`MAX_SERVED`].

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use dashmap::DashMap;
use meshport_config::{NodeId, ServiceName};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::timeout;

use meshport_core::route::Line;
use meshport_core::wire::Answer;

use super::splice::Carried;
use super::who::Who;

use self::shares::Shares;

mod shares;

pub(super) use self::shares::{Crowded, Crowding, Holder};

/// Sessions of other nodes that this node serves at once, over all services: the ports of one local
/// address, from which their instances are dialled. What stopped readers hold is bounded by the
/// mesh's windows, per stream and per peer. Who may have how many of them: `shares`.
pub(super) const MAX_SERVED: u64 = 32_768;

/// Descriptors of a session with a client of this machine: the client's, and the own instance's.
const CLIENT_DESCRIPTORS: u64 = 2;

/// A session that carries nothing for this long is between two exchanges, as far as anyone can tell
/// who does not read them: the best moment to end it.
const QUIET: Duration = Duration::from_millis(200);
/// How long a session that is to move may stay busy before another one goes instead.
const MAX_UNREST: Duration = Duration::from_secs(10);

/// Which side of the mesh a session is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Side {
    /// A client of this node, going there.
    Client,
    /// The given node's client, served by this node's own instance.
    Served,
    /// A client of some node, carried on to the given origin.
    Relayed,
    /// The same session, under the node whose client it is.
    RelayedFor,
}

impl Side {
    const COUNT: usize = 4;

    /// Whether its sessions leave this node on the line they are counted under.
    fn goes_out(self) -> bool {
        matches!(self, Self::Client | Self::Relayed)
    }
}

type Key = (ServiceName, Side, Line);

/// Counters of one service since start, and the clients that are here.
#[derive(Debug, Default)]
pub(super) struct Totals {
    /// Clients that are served or searched for now.
    pub(super) clients: AtomicU64,
    /// Client connections accepted.
    pub(super) accepted: AtomicU64,
    /// Client connections that reached an origin.
    pub(super) connected: AtomicU64,
    /// Client connections for which no origin was found in time.
    pub(super) failed: AtomicU64,
    /// Client connections that ended by themselves before any origin answered.
    pub(super) abandoned: AtomicU64,
    /// Client connections refused because the service's `max-sessions` are open.
    pub(super) over_limit: AtomicU64,
    /// Client connections that had to wait, because their client gives up most of what it opens.
    pub(super) paced: AtomicU64,
    /// Client connections refused because too many of the same client wait.
    pub(super) over_pace: AtomicU64,
    /// The last client that had to wait, and when.
    pub(super) hasty: Mutex<Option<(Who, Instant)>>,
    /// Local addresses that another process has taken meanwhile.
    pub(super) lost: Mutex<BTreeSet<SocketAddr>>,
    /// Sessions reset because their path died or their instance hung.
    pub(super) cut: AtomicU64,
    /// Attempts that took the place of a failed one.
    pub(super) retried: AtomicU64,
    /// Attempts that were started beside a silent one.
    pub(super) hedged: AtomicU64,
    /// Attempts that were given up because another one was faster, or their line went down.
    pub(super) cancelled: AtomicU64,
    /// Streams carried on to other nodes.
    pub(super) relayed: AtomicU64,
    /// Sessions that were ended so that their client comes back to a better origin.
    pub(super) moved: AtomicU64,
    /// Bytes from clients.
    pub(super) up_bytes: AtomicU64,
    /// Bytes to clients.
    pub(super) down_bytes: AtomicU64,
    /// Answers given to other nodes, by kind.
    pub(super) answers: [AtomicU64; Answer::ALL.len()],
}

impl Totals {
    /// Connections for which an instance was dialled, here or elsewhere, since start.
    pub(super) fn dialled(&self) -> u64 {
        let all = self.answers.iter().chain([&self.accepted]);
        all.map(|count| count.load(Ordering::Relaxed)).sum()
    }
}

/// All sessions. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Sessions {
    inner: Arc<Inner>,
}

/// Open sessions, counted more than once so that no question has to add up: a node may serve
/// thousands. An entry ends with its last session, since peers name the services of what they want
/// relayed.
#[derive(Debug, Default)]
struct Open {
    by_line: BTreeMap<Key, Group>,
    by_side: BTreeMap<(ServiceName, Side), u64>,
    by_peer: BTreeMap<(Side, Line), u64>,
    all: [u64; Side::COUNT],
    shares: Shares,
    /// Nodes that have another key by now, while sessions from before are open: they stay under
    /// the line they began on, and are the successor's to everybody who asks.
    renamed: BTreeMap<NodeId, NodeId>,
}

impl Open {
    /// How many more sessions can be served: a session takes a port and a descriptor.
    fn free(&self, descriptors: u64) -> u64 {
        let [clients, served] = [Side::Client, Side::Served].map(|side| self.all[side as usize]);
        let used = served.saturating_add(clients.saturating_mul(CLIENT_DESCRIPTORS));
        MAX_SERVED.saturating_sub(served).min(descriptors.saturating_sub(used))
    }

    /// The line as it is called now.
    fn now(&self, line: Line) -> Line {
        if self.renamed.is_empty() {
            return line;
        }
        let mut line = line;
        // A bound for names that lead in a circle.
        for _ in 0..self.renamed.len() {
            let names = [line.origin(), line.first_hop()];
            let old = names.into_iter().flatten().find_map(|it| self.renamed.get_key_value(&it));
            let Some((former, node)) = old else { break };
            line = line.renamed(*former, *node);
        }
        line
    }

    /// The groups of a service on one side of a line, whatever it was called when they began.
    fn groups(
        &self,
        service: &ServiceName,
        side: Side,
        line: Line,
    ) -> impl Iterator<Item = &Group> {
        let own = self.by_line.get(&(service.clone(), side, line));
        let service = service.clone();
        let former = self.by_line.iter().filter(move |((of, at, on), _)| {
            *on != line && *at == side && *of == service && self.now(*on) == line
        });
        // There are none to look for as long as nobody has another key.
        let former = (!self.renamed.is_empty()).then_some(former);
        own.into_iter().chain(former.into_iter().flatten().map(|(_, group)| group))
    }
}

/// Takes one from a count that ends with zero.
fn take_one<K: Ord>(counts: &mut BTreeMap<K, u64>, key: K) {
    if let Entry::Occupied(mut count) = counts.entry(key) {
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}

/// The sessions of one service on one side with one node.
#[derive(Debug)]
struct Group {
    count: u64,
    /// Tells all of them that they are to be reset.
    cut: watch::Sender<Option<Cut>>,
    moves: Arc<Moves>,
}

/// How the sessions of a group are reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// Each at a moment of its own.
    Within {
        /// Not later than after this time.
        window: Duration,
        /// Whether whoever hears of its origin after that goes on.
        forgives: bool,
    },
    /// At once, those that are still being opened as well.
    ForGood,
}

/// Leave for sessions to move elsewhere, first come first served.
#[derive(Debug)]
struct Moves {
    permits: Semaphore,
    /// Whether those that are never quiet have to go as well.
    insist: AtomicBool,
    /// How often all leave was taken back.
    recalls: AtomicU64,
}

impl Default for Group {
    fn default() -> Self {
        let (insist, recalls) = (AtomicBool::new(false), AtomicU64::new(0));
        let moves = Moves { permits: Semaphore::new(0), insist, recalls };
        Self { count: 0, cut: watch::Sender::new(None), moves: Arc::new(moves) }
    }
}

#[derive(Debug)]
struct Inner {
    /// What this process may open for sessions.
    descriptors: u64,
    open: Mutex<Open>,
    totals: DashMap<ServiceName, Arc<Totals>>,
    /// For services that only a peer names: its words must not grow a table.
    others: Arc<Totals>,
    busy_changed: Notify,
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            descriptors: u64::MAX,
            open: Mutex::default(),
            totals: DashMap::default(),
            others: Arc::default(),
            busy_changed: Notify::default(),
        }
    }
}

/// A session that is served and counts for those who have it, until dropped.
#[derive(Debug)]
pub(super) struct Held {
    open: Guard,
    peer: NodeId,
    node: NodeId,
}

/// Counts one session as open until dropped.
#[derive(Debug)]
pub(super) struct Guard {
    sessions: Sessions,
    key: Key,
    cut: watch::Receiver<Option<Cut>>,
    moves: Arc<Moves>,
}

/// Why a session is to end now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Nothing can come through it any more.
    Cut,
    /// Its client is better served elsewhere.
    Moved {
        /// Whether nothing has been carried for a while, so that nothing is in flight as far as
        /// anyone can tell.
        quiet: bool,
    },
}

impl Sessions {
    /// Of a process that may open so many descriptors for them.
    pub(super) fn within(descriptors: u64) -> Self {
        Self { inner: Arc::new(Inner { descriptors, ..Inner::default() }) }
    }

    /// Opens an entry.
    pub(super) fn open(&self, service: &ServiceName, side: Side, line: Line) -> Guard {
        self.open_in(&mut self.lock(), service, side, line)
    }

    /// Opens an entry for a session that `peer` has opened, for a client of `node`, unless there is
    /// no place for it.
    pub(super) fn serve(
        &self,
        service: &ServiceName,
        peer: NodeId,
        node: NodeId,
    ) -> Result<Held, Crowded> {
        let mut open = self.lock();
        let free = open.free(self.inner.descriptors);
        open.shares.take(peer, node, free)?;
        let open = self.open_in(&mut open, service, Side::Served, Line::Direct(peer));
        Ok(Held { open, peer, node })
    }

    /// A stream found no place; whether it is time for a line about it.
    pub(super) fn turn_away(&self, now: Instant) -> bool {
        self.lock().shares.turn_away(now)
    }

    /// What is wrong, if a stream found no place lately.
    pub(super) fn crowding(&self, now: Instant) -> Option<Crowding> {
        self.lock().shares.crowding(now)
    }

    /// Whether this process may open too few descriptors for as many sessions as it could serve.
    pub(super) fn lacks_descriptors(&self) -> bool {
        self.inner.descriptors < MAX_SERVED
    }

    fn open_in(&self, open: &mut Open, service: &ServiceName, side: Side, line: Line) -> Guard {
        let key = (service.clone(), side, line);
        open.all[side as usize] += 1;
        *open.by_side.entry((service.clone(), side)).or_insert(0) += 1;
        *open.by_peer.entry((side, line)).or_insert(0) += 1;
        let group = open.by_line.entry(key.clone()).or_default();
        group.count += 1;
        let (cut, moves) = (group.cut.subscribe(), group.moves.clone());
        if group.count == 1 && side.goes_out() {
            self.inner.busy_changed.notify_one();
        }
        Guard { sessions: self.clone(), key, cut, moves }
    }

    /// Open sessions of one service on one side and line.
    pub(super) fn count_line(&self, service: &ServiceName, side: Side, line: Line) -> u64 {
        self.lock().groups(service, side, line).map(|group| group.count).sum()
    }

    /// The lines of one service that have open sessions on one side, with how many.
    pub(super) fn lines(&self, service: &ServiceName, side: Side) -> Vec<(Line, u64)> {
        let open = self.lock();
        let groups = open.by_line.iter().filter(|((of, at, _), _)| of == service && *at == side);
        let mut lines: BTreeMap<Line, u64> = BTreeMap::new();
        for ((_, _, line), group) in groups {
            *lines.entry(open.now(*line)).or_default() += group.count;
        }
        lines.into_iter().collect()
    }

    /// Open sessions on one side and line over all services.
    pub(super) fn count_peer(&self, side: Side, line: Line) -> u64 {
        let open = self.lock();
        let of = open.by_peer.iter().filter(|((at, on), _)| *at == side && open.now(*on) == line);
        match open.renamed.is_empty() {
            true => open.by_peer.get(&(side, line)).copied().unwrap_or(0),
            false => of.map(|(_, count)| count).sum(),
        }
    }

    /// Open sessions of one service on one side.
    pub(super) fn count_side(&self, service: &ServiceName, side: Side) -> u64 {
        self.lock().by_side.get(&(service.clone(), side)).copied().unwrap_or(0)
    }

    /// All open sessions.
    pub(super) fn count(&self) -> u64 {
        [Side::Client, Side::Served, Side::Relayed].map(|side| self.count_all(side)).iter().sum()
    }

    /// Open sessions on one side over all services.
    pub(super) fn count_all(&self, side: Side) -> u64 {
        self.lock().all[side as usize]
    }

    /// The lines that carry sessions from here: of this node's clients, or relayed ones.
    pub(super) fn busy(&self) -> BTreeSet<Line> {
        let open = self.lock();
        let keys = open.by_line.keys();
        keys.filter(|(_, side, _)| side.goes_out()).map(|(_, _, line)| open.now(*line)).collect()
    }

    /// A node goes on under another key: its sessions are the successor's from now on.
    pub(super) fn rename(&self, former: NodeId, node: NodeId) {
        let mut open = self.lock();
        let Open { by_line, renamed, .. } = &mut *open;
        // Names that nothing is open under any more; a chain is kept as a whole.
        let is_used = |name: &NodeId| {
            by_line.keys().any(|(_, _, line)| match line {
                Line::Direct(node) => node == name,
                Line::Relayed { origin, relay } => origin == name || relay == name,
                Line::Outside(_) => false,
            })
        };
        if !renamed.keys().any(is_used) {
            renamed.clear();
        }
        renamed.insert(former, node);
        drop(open);
        self.inner.busy_changed.notify_one();
    }

    /// Tells the sessions from here that go on a line to reset themselves. Returns how many they
    /// are.
    pub(super) fn cut(&self, service: &ServiceName, line: Line, how: Cut) -> u64 {
        let open = self.lock();
        let sides = [Side::Client, Side::Relayed];
        let groups = sides.into_iter().flat_map(|side| open.groups(service, side, line));
        groups
            .map(|group| {
                group.cut.send_if_modified(|cut| {
                    let is_open = *cut != Some(Cut::ForGood);
                    if is_open {
                        *cut = Some(how);
                    }
                    is_open
                });
                group.count
            })
            .sum()
    }

    /// Ends the sessions from here that lead to a node, or through one, of which `is_over` holds,
    /// and those that are being opened. Returns how many they are.
    pub(super) fn end(&self, is_over: impl Fn(&NodeId) -> bool) -> u64 {
        let open = self.lock();
        let leads_there = |line: &Line| {
            let line = open.now(*line);
            [line.origin(), line.first_hop()].iter().flatten().any(&is_over)
        };
        let groups = open.by_line.iter();
        let ended = groups.filter(|((_, side, line), _)| side.goes_out() && leads_there(line));
        ended
            .map(|(_, group)| {
                group.cut.send_replace(Some(Cut::ForGood));
                group.count
            })
            .sum()
    }

    /// Lets `count` sessions of this node's clients on a line end, the longest open ones first, as
    /// soon as each is quiet, or after a while anyway when `insist`. What an earlier call granted
    /// and nobody took is void; with a `count` of 0 also what was taken by sessions still there.
    pub(super) fn release(&self, service: &ServiceName, line: Line, count: u64, insist: bool) {
        let open = self.lock();
        let mut left = count;
        for group in open.groups(service, Side::Client, line) {
            let (moves, these) = (&group.moves, left.min(group.count));
            left -= these;
            moves.insist.store(insist, Ordering::Relaxed);
            moves.recalls.fetch_add(u64::from(count == 0), Ordering::Relaxed);
            moves.permits.forget_permits(moves.permits.available_permits());
            moves.permits.add_permits(usize::try_from(these).unwrap_or(usize::MAX));
        }
    }

    /// Waits until [`Sessions::busy`] may have changed.
    pub(super) async fn busy_changed(&self) {
        self.inner.busy_changed.notified().await;
    }

    /// Gives a service of the configuration counters of its own.
    pub(super) fn register(&self, service: &ServiceName) -> Arc<Totals> {
        self.inner.totals.entry(service.clone()).or_default().clone()
    }

    /// A service's counters; those of all unknown services together for any other name.
    pub(super) fn totals(&self, service: &ServiceName) -> Arc<Totals> {
        let known = self.inner.totals.get(service).map(|totals| totals.clone());
        known.unwrap_or_else(|| self.inner.others.clone())
    }

    /// The counters of all services that are not in the configuration.
    pub(super) fn others(&self) -> &Totals {
        &self.inner.others
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.inner.open.lock().expect("no holder of this lock can panic")
    }
}

impl Guard {
    /// The origin has just answered: what was said before that does not concern this session,
    /// unless its line is over for good or an answer shows nothing.
    pub(super) fn forgive(&mut self) {
        let stands = matches!(*self.cut.borrow(), Some(Cut::Within { forgives: false, .. }));
        if !stands {
            self.cut.mark_unchanged();
        }
    }

    /// Resolves when this session is to end. `share` is this session's place in a window of
    /// resets, from 0 to 1; `carried` tells whether it is quiet.
    pub(super) async fn end(&mut self, share: f64, carried: &Carried) -> End {
        let moves = self.moves.clone();
        tokio::select! {
            () = self.cut(share) => End::Cut,
            quiet = moved(&moves, carried) => End::Moved { quiet },
        }
    }

    /// Resolves when this session is to be reset.
    pub(super) async fn cut(&mut self, share: f64) {
        let is_over = *self.cut.borrow() == Some(Cut::ForGood);
        // The sender lives as long as any guard of the group does, so this ends by a cut only.
        if !is_over && self.cut.changed().await.is_err() {
            return std::future::pending().await;
        }
        let cut = *self.cut.borrow_and_update();
        if let Some(Cut::Within { window, .. }) = cut {
            tokio::time::sleep(window.mul_f64(share.clamp(0.0, 1.0))).await;
        }
    }
}

/// Resolves when a session has leave to move and is quiet, and says whether it is: one that is
/// never quiet loses its leave after a while and waits for the next, unless all have to go.
async fn moved(moves: &Moves, carried: &Carried) -> bool {
    loop {
        let permit = moves.permits.acquire().await;
        let Ok(permit) = permit else { return std::future::pending().await };
        permit.forget();
        let recalls = moves.recalls.load(Ordering::Relaxed);
        let is_quiet = timeout(MAX_UNREST, quiet(carried)).await.is_ok();
        let holds = moves.recalls.load(Ordering::Relaxed) == recalls;
        if holds && (is_quiet || moves.insist.load(Ordering::Relaxed)) {
            return is_quiet;
        }
    }
}

/// Resolves once nothing has been carried for [`QUIET`].
async fn quiet(carried: &Carried) {
    let mut before = carried.total();
    loop {
        tokio::time::sleep(QUIET).await;
        let now = carried.total();
        if std::mem::replace(&mut before, now) == now {
            return;
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.open.sessions.lock().shares.give_back(self.peer, self.node);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut open = self.sessions.lock();
        let (service, side, line) = &self.key;
        open.all[*side as usize] -= 1;
        take_one(&mut open.by_side, (service.clone(), *side));
        take_one(&mut open.by_peer, (*side, *line));
        let Some(group) = open.by_line.get_mut(&self.key) else { return };
        group.count -= 1;
        if group.count == 0 {
            open.by_line.remove(&self.key);
            if self.key.1.goes_out() {
                self.sessions.inner.busy_changed.notify_one();
            }
        }
    }
}

/// Adds one to a counter that nobody orders by.
pub(super) fn bump(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests;
