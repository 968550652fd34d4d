//! How much of the main thread's time connections and requests of one user may take.
//!
//! Any local user can send requests to the loopback port, and every answer takes time from the
//! thread that serves sessions. A user's requests are answered one after another; one that took a
//! millisecond uses up ten of the user's time. Requests beyond it wait, and none is refused. Health
//! checks have time of their own and do not wait for answers to anything else, and each user has
//! its own time, so no flood delays the probes of another user.
//!
//! New connections have time of their own too, and those beyond it are reset: all users share the
//! queue of the listener, so nobody may hold it up.
//!
//! Bounds: [`MAX_ACCOUNTS`]; `slots.rs` limits how many requests wait.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex as Lock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::clock;
use crate::sessions::client::ClientId;

/// Accounts at once. Users beyond them share one.
const MAX_ACCOUNTS: usize = 256;
/// A user gets one part in so many of the thread's time.
const PARTS: u32 = 10;
/// The least work of a request, reading it and writing its answer, and that of a new connection.
const LEAST: Duration = Duration::from_millis(1);
/// The most that counts: what takes longer waited for something else.
const MOST: Duration = Duration::from_millis(100);
/// Time that a user who has sent nothing for a while has saved: 200 connections and 200 small
/// requests at once.
const SAVED: Duration = Duration::from_secs(2);

/// What a user's time is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Purpose {
    /// Opening a connection.
    Connect,
    /// Asking whether the daemon is alive or ready.
    Health,
    /// Asking for anything else.
    View,
}

/// Until when a user's time is used up.
type Account = Arc<Mutex<Instant>>;

/// The accounts of a listener. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pace(Arc<Lock<BTreeMap<(ClientId, Purpose), Account>>>);

/// A request whose turn it is; what it took is charged on drop.
#[derive(Debug)]
pub(crate) struct Turn {
    account: OwnedMutexGuard<Instant>,
    since: Instant,
}

impl Pace {
    /// Whether a new connection may be served, which charges it.
    pub(crate) fn admits(&self, who: ClientId) -> bool {
        let now = clock::now();
        let account = self.account((who, Purpose::Connect), now);
        // Nothing holds this kind of account for longer than this function.
        let Ok(mut used) = account.try_lock() else { return false };
        let has_time = *used < now + SAVED;
        if has_time {
            *used = (*used).max(now) + LEAST * PARTS;
        }
        has_time
    }

    /// Waits until it is this request's turn.
    pub(crate) async fn turn(&self, who: ClientId, purpose: Purpose) -> Turn {
        // First come, first served.
        let account = self.account((who, purpose), clock::now()).lock_owned().await;
        clock::sleep_until(account.checked_sub(SAVED)).await;
        Turn { account, since: clock::now() }
    }

    fn account(&self, mut key: (ClientId, Purpose), now: Instant) -> Account {
        let mut accounts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !accounts.contains_key(&key) && accounts.len() >= MAX_ACCOUNTS {
            accounts.retain(|_, it| {
                Arc::strong_count(it) > 1 || it.try_lock().is_ok_and(|used| *used > now)
            });
            if accounts.len() >= MAX_ACCOUNTS {
                key.0 = ClientId::Unknown;
            }
        }
        accounts.entry(key).or_insert_with(|| Arc::new(Mutex::new(now))).clone()
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let now = clock::now();
        let took = now.saturating_duration_since(self.since).clamp(LEAST, MOST);
        *self.account = self.account.max(now) + took * PARTS;
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, timeout};

    use super::*;

    const LOUD: ClientId = ClientId::User(1001);

    #[tokio::test(start_paused = true)]
    async fn a_user_has_a_part_of_the_time_and_others_do_not_wait_for_it() {
        let (pace, begin) = (Pace::default(), clock::now());
        let work = Duration::from_millis(5);
        for _ in 0..1000 {
            let turn = pace.turn(LOUD, Purpose::View).await;
            advance(work).await;
            drop(turn);
        }
        let all = 1000 * work * PARTS;
        let took = clock::now() - begin;
        assert!((all - SAVED - work * PARTS..=all).contains(&took), "{took:?}");
        let busy = pace.turn(LOUD, Purpose::View).await;
        let now = clock::now();
        let others = [(LOUD, Purpose::Health), (ClientId::User(0), Purpose::View)];
        for (who, purpose) in others {
            drop(timeout(LEAST, pace.turn(who, purpose)).await.expect("at once"));
        }
        assert_eq!(clock::now(), now);
        drop(busy);
    }

    #[tokio::test(start_paused = true)]
    async fn a_user_opens_200_connections_at_once_and_100_a_second() {
        let pace = Pace::default();
        let opened = |tries: u32| (0..tries).filter(|_| pace.admits(LOUD)).count();
        assert_eq!(opened(5000), 200);
        advance(Duration::from_secs(1)).await;
        assert_eq!(opened(5000), 100);
        assert!(pace.admits(ClientId::User(0)), "another user's are not counted");
        let health = timeout(LEAST, pace.turn(LOUD, Purpose::Health)).await;
        drop(health.expect("requests are not either"));
    }

    #[tokio::test(start_paused = true)]
    async fn accounts_are_bounded_and_full_ones_make_room() {
        let pace = Pace::default();
        let count = || pace.0.lock().expect("no panic").len();
        for user in 0..MAX_ACCOUNTS as u32 + 100 {
            drop(pace.turn(ClientId::User(user), Purpose::View).await);
        }
        assert_eq!(count(), MAX_ACCOUNTS + 1, "the rest share one");
        advance(SAVED).await;
        drop(pace.turn(ClientId::User(u32::MAX), Purpose::View).await);
        assert_eq!(count(), 1);
    }
}
