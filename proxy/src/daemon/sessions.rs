//! The sessions that are open now, and how many there were.
//!
//! An entry lives as long as its [`Guard`]. The map serves people (`status`) and limits; nothing
//! is decided by iterating it. Bounded by the services' `max-sessions` and [`MAX_SERVED`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use dashmap::DashMap;
use meshport_config::{NodeId, ServiceName};
use tokio::sync::Notify;

use crate::wire::Answer;

/// Sessions of other nodes that this node serves at once, over all services: with 64 KiB of
/// windows in use each they stay below 2 GiB even when every reader stops.
pub(super) const MAX_SERVED: u64 = 32_768;

/// Which side of the mesh a session is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Side {
    /// A client of this node, going to the given origin.
    Client,
    /// The given node's client, served by this node's own instance.
    Served,
}

type Key = (ServiceName, Side, NodeId);

/// Counters of one service since start.
#[derive(Debug, Default)]
pub(super) struct Totals {
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
    /// Attempts beyond the first of a session.
    pub(super) retried: AtomicU64,
    /// Bytes from clients.
    pub(super) up_bytes: AtomicU64,
    /// Bytes to clients.
    pub(super) down_bytes: AtomicU64,
    /// Answers given to other nodes, by kind.
    pub(super) answers: [AtomicU64; Answer::ALL.len()],
}

/// All sessions. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Sessions {
    inner: Arc<Inner>,
}

/// Open sessions, counted twice so that no question has to add up: a node may serve thousands.
#[derive(Debug, Default)]
struct Open {
    by_node: BTreeMap<Key, u64>,
    by_side: BTreeMap<(ServiceName, Side), u64>,
}

#[derive(Debug, Default)]
struct Inner {
    open: Mutex<Open>,
    totals: DashMap<ServiceName, Arc<Totals>>,
    /// For services that only a peer names: its words must not grow a table.
    others: Arc<Totals>,
    busy_changed: Notify,
}

/// Counts one session as open until dropped.
#[derive(Debug)]
pub(super) struct Guard {
    sessions: Sessions,
    key: Key,
}

impl Sessions {
    /// Opens an entry.
    pub(super) fn open(&self, service: &ServiceName, side: Side, node: NodeId) -> Guard {
        let key = (service.clone(), side, node);
        let mut open = self.lock();
        *open.by_side.entry((service.clone(), side)).or_insert(0) += 1;
        let count = open.by_node.entry(key.clone()).or_insert(0);
        *count += 1;
        if *count == 1 && side == Side::Client {
            self.inner.busy_changed.notify_one();
        }
        Guard { sessions: self.clone(), key }
    }

    /// Open sessions of one service on one side with one node.
    pub(super) fn count(&self, service: &ServiceName, side: Side, node: NodeId) -> u64 {
        self.lock().by_node.get(&(service.clone(), side, node)).copied().unwrap_or(0)
    }

    /// Open sessions of one service on one side.
    pub(super) fn count_side(&self, service: &ServiceName, side: Side) -> u64 {
        self.lock().by_side.get(&(service.clone(), side)).copied().unwrap_or(0)
    }

    /// Open sessions on one side over all services.
    pub(super) fn count_all(&self, side: Side) -> u64 {
        self.lock().by_side.iter().filter(|((_, at), _)| *at == side).map(|(_, count)| count).sum()
    }

    /// The origins that carry sessions of this node's clients.
    pub(super) fn busy(&self) -> BTreeSet<NodeId> {
        let open = self.lock();
        let keys = open.by_node.keys();
        keys.filter(|(_, side, _)| *side == Side::Client).map(|(_, _, node)| *node).collect()
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

impl Drop for Guard {
    fn drop(&mut self) {
        let mut open = self.sessions.lock();
        let (service, side, _) = &self.key;
        if let Some(count) = open.by_side.get_mut(&(service.clone(), *side)) {
            *count -= 1;
        }
        let Some(count) = open.by_node.get_mut(&self.key) else { return };
        *count -= 1;
        if *count == 0 {
            open.by_node.remove(&self.key);
            if self.key.1 == Side::Client {
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
mod tests {
    use super::*;

    #[tokio::test]
    async fn counts_follow_guards_and_tell_of_busy_origins() {
        let sessions = Sessions::default();
        let service: ServiceName = "kube-apiserver".parse().expect("a valid name");
        let node = NodeId::from_bytes([1; 32]);
        let one = sessions.open(&service, Side::Client, node);
        sessions.busy_changed().await;
        let two = sessions.open(&service, Side::Client, node);
        let served = sessions.open(&service, Side::Served, node);
        assert_eq!(sessions.count(&service, Side::Client, node), 2);
        assert_eq!(sessions.count_side(&service, Side::Served), 1);
        assert_eq!(sessions.busy(), BTreeSet::from([node]));
        drop((one, two));
        sessions.busy_changed().await;
        assert!(sessions.busy().is_empty());
        drop(served);
        assert_eq!(sessions.count_all(Side::Served), 0);
    }
}
