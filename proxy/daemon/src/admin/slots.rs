//! Connection slots of one listener: how many a client may have, and which one is replaced.
//!
//! Connections do not wait for a slot. One beyond its client's share, or beyond all slots, replaces
//! an idle one: the same client's first, otherwise one of the client with the most. So silent
//! connections last only until another needs their slot, and no client can take all of them. A
//! connection is never closed while its request is being answered.
//!
//! Bounds: [`MAX_CONNECTIONS`] in total, [`MAX_OF_ONE`] per client.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::oneshot;

use crate::sessions::client::ClientId;

/// Connections of one listener at once: a handful of scrapers, probes and people.
pub(crate) const MAX_CONNECTIONS: usize = 64;
/// Connections per client; leaves slots for three others.
pub(crate) const MAX_OF_ONE: usize = 16;

/// All connections of a listener. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Slots(Arc<Mutex<Held>>);

#[derive(Debug, Default)]
struct Held {
    /// The number of the last event of a connection; events are numbered in order.
    last: u64,
    connections: BTreeMap<u64, Connection>,
}

#[derive(Debug)]
struct Connection {
    who: ClientId,
    /// The number of its last event while it waits for a request; `None` while one is answered.
    waits: Option<u64>,
    /// Dropping it signals the connection that its slot was taken.
    _keeps: oneshot::Sender<()>,
}

impl Held {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Makes room for one more of `who`; whether there is some.
    fn make_room(&mut self, who: ClientId) -> bool {
        let mut counts: BTreeMap<ClientId, usize> = BTreeMap::new();
        self.connections.values().for_each(|it| *counts.entry(it.who).or_insert(0) += 1);
        let own = counts.get(&who).copied().unwrap_or(0);
        let is_full = self.connections.len() >= MAX_CONNECTIONS;
        if own < MAX_OF_ONE && !is_full {
            return true;
        }
        let may_go = |it: &Connection| own < MAX_OF_ONE || it.who == who;
        let waiting = self.connections.iter().filter(|(_, it)| may_go(it));
        let waiting =
            waiting.filter_map(|(id, it)| Some((Reverse(counts[&it.who]), it.waits?, *id)));
        let goes = waiting.min().map(|(_, _, id)| id);
        goes.and_then(|id| self.connections.remove(&id)).is_some()
    }
}

/// A connection's slot, until dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    slots: Slots,
    id: u64,
    taken: oneshot::Receiver<()>,
}

impl Slots {
    /// A slot for a connection that waits for its first request; `None` if every connection that
    /// could make room is being answered.
    pub(crate) fn take(&self, who: ClientId) -> Option<Slot> {
        let mut held = self.lock();
        if !held.make_room(who) {
            return None;
        }
        let id = held.next();
        let (keeps, taken) = oneshot::channel();
        held.connections.insert(id, Connection { who, waits: Some(id), _keeps: keeps });
        Some(Slot { slots: self.clone(), id, taken })
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.0.lock().expect("no holder of this lock can panic")
    }

    fn mark(&self, id: u64, is_waiting: bool) {
        let mut held = self.lock();
        let now = held.next();
        if let Some(connection) = held.connections.get_mut(&id) {
            connection.waits = is_waiting.then_some(now);
        }
    }
}

impl Slot {
    /// A marker for the answering of requests.
    pub(crate) fn marker(&self) -> Marker {
        Marker { slots: self.slots.clone(), id: self.id }
    }

    /// Resolves when another connection takes this slot.
    pub(crate) async fn taken(&mut self) {
        // Nothing is ever sent.
        let _ = (&mut self.taken).await;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.lock().connections.remove(&self.id);
    }
}

/// Marks a connection as one whose request is being answered.
#[derive(Debug, Clone)]
pub(crate) struct Marker {
    slots: Slots,
    id: u64,
}

impl Marker {
    /// A request counts as being answered until the result is dropped.
    pub(crate) fn answering(&self) -> Answering {
        self.slots.mark(self.id, false);
        Answering(self.clone())
    }
}

/// See [`Marker::answering`].
#[derive(Debug)]
pub(crate) struct Answering(Marker);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.slots.mark(self.0.id, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROBE: ClientId = ClientId::User(0);
    const LOUD: ClientId = ClientId::User(1001);

    /// The slots of this list that still are.
    fn left(slots: &mut [Slot]) -> Vec<usize> {
        let is_there =
            |slot: &mut Slot| slot.taken.try_recv() == Err(oneshot::error::TryRecvError::Empty);
        (0..slots.len()).filter(|at| is_there(&mut slots[*at])).collect()
    }

    #[test]
    fn one_client_replaces_its_own_silent_connections_and_no_others() {
        let slots = Slots::default();
        let mut probe = [slots.take(PROBE).expect("room")];
        let mut loud: Vec<Slot> = (0..200).map(|_| slots.take(LOUD).expect("room")).collect();
        assert_eq!(left(&mut loud), (200 - MAX_OF_ONE..200).collect::<Vec<_>>());
        assert_eq!(left(&mut probe), [0]);
    }

    #[test]
    fn what_is_answered_stays_and_what_was_answered_last_stays_longest() {
        let slots = Slots::default();
        let mut all: Vec<Slot> = (0..MAX_OF_ONE).map(|_| slots.take(LOUD).expect("room")).collect();
        let answering = all[0].marker().answering();
        drop(all[1].marker().answering());
        all.push(slots.take(LOUD).expect("the third makes room"));
        assert!(!left(&mut all).contains(&2));
        for _ in 0..MAX_OF_ONE - 2 {
            all.push(slots.take(LOUD).expect("room"));
        }
        let still = left(&mut all);
        assert!(still.contains(&0) && !still.contains(&1), "{still:?}");
        let busy: Vec<_> = still.iter().map(|at| all[*at].marker().answering()).collect();
        assert!(slots.take(LOUD).is_none() && slots.take(PROBE).is_some());
        drop((busy, answering));
        assert!(slots.take(LOUD).is_some());
    }

    #[test]
    fn many_clients_get_room_from_the_one_with_most() {
        let slots = Slots::default();
        let mut probe = [slots.take(PROBE).expect("room")];
        let mut most: Vec<Slot> =
            (0..MAX_OF_ONE).map(|_| slots.take(LOUD).expect("room")).collect();
        let others: Vec<Slot> = (2000..2000 + (MAX_CONNECTIONS - MAX_OF_ONE) as u32)
            .map(|user| slots.take(ClientId::User(user)).expect("room"))
            .collect();
        assert_eq!((left(&mut probe).len(), left(&mut most).len()), (1, MAX_OF_ONE - 1));
        assert_eq!(slots.lock().connections.len(), MAX_CONNECTIONS);
        drop((others, most, probe));
        assert!(slots.lock().connections.is_empty());
    }
}
