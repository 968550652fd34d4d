//! Pacing of clients that open sessions without using them.
//!
//! A new session costs a credit and returns it once it is useful: its origin has answered, or it
//! has lasted. So clients that use their sessions are never slowed down, however many there are and
//! however far the origin is. One that opens connections and resets them uses up its credits; its
//! next ones then wait for new credits, those of others do not. While few sessions are new, all
//! share one account, so clients need not be identified.
//!
//! Bounds: [`MAX_HOLDERS`] accounts, [`MAX_WAITING`] clients that wait in each. The clients of an
//! account that makes room are refused: [`Pace::take_evicted`] returns them.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use crate::credit::{Credit, Rate};

/// Maximum accounts. The least recently used one makes room.
pub const MAX_HOLDERS: usize = 1024;
/// Waiting clients of one holder. More are refused.
pub const MAX_WAITING: usize = 256;

/// Limit on new, not yet useful sessions of all holders before holders are distinguished.
const COMMON: Rate = Rate { most: 128, each: Duration::from_millis(10) };
/// The same for one holder. A controller manager that has lost its connection dials 60 times in 30
/// ms, and a node has a handful of such clients.
const OWN: Rate = Rate { most: 512, each: Duration::from_millis(20) };

#[derive(Debug)]
struct Holder<T> {
    credit: Credit,
    used: Instant,
    waiting: VecDeque<T>,
}

/// The account that has paid for a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payer<K> {
    /// The account of all holders together.
    Common,
    /// This holder.
    Holder(K),
}

/// The decision about a client whose holder is known.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival<T> {
    /// It is served, and charged to its holder.
    Serve(T),
    /// It waits until [`Pace::poll`] returns it.
    Waits,
    /// Too many wait before it.
    Full(T),
}

/// The accounts of one service, for holders `K` and waiting clients `T`.
#[derive(Debug)]
pub struct Pace<K, T> {
    common: Credit,
    holders: BTreeMap<K, Holder<T>>,
    /// The holder whose client was served last.
    last: Option<K>,
    /// Clients that waited for an account that has made room, with its holder.
    evicted: Vec<(K, T)>,
}

impl<K: Ord + Copy, T> Pace<K, T> {
    /// Full accounts.
    pub fn new(now: Instant) -> Self {
        Self {
            common: Credit::full(COMMON, now),
            holders: BTreeMap::new(),
            last: None,
            evicted: Vec::new(),
        }
    }

    /// Whether a new session may be served without identifying its holder.
    pub fn take_common(&mut self, now: Instant) -> bool {
        self.common.take(now)
    }

    /// Handles a client of `holder`.
    pub fn arrive(&mut self, holder: K, client: T, now: Instant) -> Arrival<T> {
        if !self.holders.contains_key(&holder) {
            self.make_room(now);
        }
        let it = self.holders.entry(holder).or_insert_with(|| Holder {
            credit: Credit::full(OWN, now),
            used: now,
            waiting: VecDeque::new(),
        });
        it.used = now;
        if it.waiting.is_empty() && it.credit.take(now) {
            return Arrival::Serve(client);
        }
        if it.waiting.len() >= MAX_WAITING {
            return Arrival::Full(client);
        }
        it.waiting.push_back(client);
        Arrival::Waits
    }

    /// The next client that waited long enough, of each holder in turn; its holder has paid.
    pub fn poll(&mut self, now: Instant) -> Option<(K, T)> {
        self.holders.values_mut().for_each(|holder| holder.credit.pass(now));
        let is_due = |it: &Holder<T>| !it.waiting.is_empty() && it.credit.left() > 0;
        let mut due = self.holders.iter().filter(|(_, it)| is_due(it)).map(|(key, _)| *key);
        let first = due.clone().next()?;
        let next = due.find(|key| self.last.is_some_and(|last| *key > last)).unwrap_or(first);
        self.last = Some(next);
        let holder = self.holders.get_mut(&next)?;
        holder.credit.take(now);
        Some((next, holder.waiting.pop_front()?))
    }

    /// Removes and returns all waiting clients.
    pub fn take_waiting(&mut self) -> Vec<T> {
        self.holders.values_mut().flat_map(|it| std::mem::take(&mut it.waiting)).collect()
    }

    /// Removes and returns the clients whose account has made room for that of the last arrival,
    /// with their holder.
    pub fn take_evicted(&mut self) -> Vec<(K, T)> {
        std::mem::take(&mut self.evicted)
    }

    /// A session was useful. Whether a client waits for the credit that it returns.
    pub fn repay(&mut self, payer: Payer<K>) -> bool {
        match payer {
            Payer::Common => self.common.give(),
            Payer::Holder(holder) => {
                let Some(holder) = self.holders.get_mut(&holder) else { return false };
                holder.credit.give();
                return !holder.waiting.is_empty();
            }
        }
        false
    }

    /// Time at which [`Pace::poll`] next returns a client, unless credit is returned before.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let waiting = self.holders.values().filter(|it| !it.waiting.is_empty());
        waiting.map(|it| it.credit.due()).min()
    }

    /// Removes holders whose accounts are full, and another one if necessary.
    fn make_room(&mut self, now: Instant) {
        if self.holders.len() < MAX_HOLDERS {
            return;
        }
        self.holders.retain(|_, it| !it.credit.is_full(now) || !it.waiting.is_empty());
        if self.holders.len() >= MAX_HOLDERS {
            let oldest = self.holders.iter().min_by_key(|(_, it)| it.used).map(|(key, _)| *key);
            let Some((key, oldest)) = oldest.and_then(|key| self.holders.remove_entry(&key)) else {
                return;
            };
            self.evicted.extend(oldest.waiting.into_iter().map(|client| (key, client)));
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests begin somewhere in time")]
mod tests {
    use super::*;

    const LOUD: u32 = 1001;
    const QUIET: u32 = 0;

    fn used_up(now: Instant) -> Pace<u32, u32> {
        let mut pace = Pace::new(now);
        for _ in 0..COMMON.most {
            assert!(pace.take_common(now));
        }
        assert!(!pace.take_common(now));
        pace
    }

    /// How many of this many useless clients per second are served within a time.
    fn flood(pace: &mut Pace<u32, u32>, rate: u32, seconds: u32, from: Instant) -> u32 {
        let mut served = 0;
        for at in 0..rate * seconds {
            let now = from + Duration::from_secs(1) / rate * at;
            served += u32::from(pace.take_common(now));
            match pace.arrive(LOUD, at, now) {
                Arrival::Serve(_) => served += 1,
                Arrival::Waits | Arrival::Full(_) => {}
            }
            while pace.poll(now).is_some() {
                served += 1;
            }
        }
        served
    }

    #[test]
    fn a_client_that_resets_its_connections_is_slowed_down_and_others_are_not() {
        let now = Instant::now();
        let mut pace = Pace::new(now);
        let served = flood(&mut pace, 10_000, 10, now);
        // The initial amount, and that of ten seconds.
        let most = COMMON.most + OWN.most + 10 * (100 + 50);
        assert!((most - 20..=most).contains(&served), "{served} of 100,000, at most {most}");
        let end = now + Duration::from_secs(10);
        assert!(matches!(pace.arrive(LOUD, 1, end), Arrival::Full(1) | Arrival::Waits));
        for client in 0..OWN.most {
            assert_eq!(pace.arrive(QUIET, client, end), Arrival::Serve(client));
        }
    }

    #[test]
    fn a_client_that_uses_its_connections_is_never_slowed_down() {
        let now = Instant::now();
        let mut pace = used_up(now);
        for client in 0..100_000 {
            assert_eq!(pace.arrive(QUIET, client, now), Arrival::Serve(client));
            assert!(!pace.repay(Payer::Holder(QUIET)));
        }
        pace.repay(Payer::Common);
        assert!(pace.take_common(now) && !pace.take_common(now));
    }

    #[test]
    fn waiting_clients_go_in_turn_and_when_credit_is_returned() {
        let now = Instant::now();
        let mut pace = used_up(now);
        for holder in [1, 2] {
            for client in 0..OWN.most {
                assert_eq!(pace.arrive(holder, client, now), Arrival::Serve(client));
            }
            for client in [10, 11] {
                assert_eq!(pace.arrive(holder, holder * 100 + client, now), Arrival::Waits);
            }
        }
        assert_eq!((pace.poll(now), pace.poll_timeout()), (None, Some(now + OWN.each)));
        assert!(pace.repay(Payer::Holder(2)));
        assert_eq!(pace.poll(now), Some((2, 210)));
        let later = now + 2 * OWN.each;
        let order: Vec<_> = std::iter::from_fn(|| pace.poll(later)).collect();
        assert_eq!(order, [(1, 110), (2, 211), (1, 111)]);
        assert_eq!(pace.poll_timeout(), None);
    }

    #[test]
    fn neither_accounts_nor_waiting_clients_grow_without_bound() {
        let now = Instant::now();
        let mut pace = used_up(now);
        for holder in 0..3 * MAX_HOLDERS as u32 {
            pace.arrive(holder, 0, now + Duration::from_nanos(holder.into()));
        }
        assert_eq!(pace.holders.len(), MAX_HOLDERS);
        assert!(pace.take_evicted().is_empty(), "none of them had to wait");
        let full = (0..OWN.most + 2 * MAX_WAITING as u32)
            .filter(|client| matches!(pace.arrive(u32::MAX, *client, now), Arrival::Full(_)));
        assert_eq!(full.count(), MAX_WAITING);
    }

    #[test]
    fn clients_of_an_account_that_makes_room_are_returned() {
        let now = Instant::now();
        let mut pace = used_up(now);
        for client in 0..OWN.most + 3 {
            pace.arrive(0, client, now);
        }
        let later = now + Duration::from_nanos(1);
        for holder in 1..MAX_HOLDERS as u32 {
            assert_eq!(pace.arrive(holder, 0, later), Arrival::Serve(0));
        }
        assert!(pace.take_evicted().is_empty(), "there is room for it");
        assert_eq!(pace.arrive(u32::MAX, 0, later), Arrival::Serve(0));
        assert_eq!(pace.take_evicted(), [0, 1, 2].map(|client| (0, OWN.most + client)));
        assert!(pace.take_evicted().is_empty());
    }
}
