//! Quota of a service's sessions: no client of this node may take them all.
//!
//! While few sessions are open, holders are not counted. Once a part of the limit (`SCARCE`) is
//! used, each new session counts for its holder, which may have `SHARE` times as many of these as
//! are free: one holder alone gets thirteen of sixteen, two get almost all, and one is always left
//! for others. Earlier sessions do not count. A limit below [`MIN_SHARED`] is not divided.

use std::collections::BTreeMap;

/// Slots are scarce once this part of the limit is used: a quarter.
const SCARCE: u64 = 4;
/// A holder may have this many times the free sessions.
const SHARE: u64 = 3;
/// The lowest limit that is divided among holders.
pub const MIN_SHARED: u64 = 16;

/// Why a session is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OverQuota<K> {
    /// The limit is reached.
    Full,
    /// This holder has this many already.
    Share(K, u64),
}

/// Open sessions of one service by holder `K`; bounded by the limit.
#[derive(Debug)]
pub struct Quota<K> {
    used: u64,
    held: BTreeMap<K, u64>,
}

impl<K> Default for Quota<K> {
    fn default() -> Self {
        Self { used: 0, held: BTreeMap::new() }
    }
}

impl<K: Ord + Copy> Quota<K> {
    /// Open sessions.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Whether the next session counts for its holder, with this limit.
    pub fn is_scarce(&self, all: u64) -> bool {
        all >= MIN_SHARED && self.used >= all / SCARCE
    }

    /// Opens a session within the limit `all`, for a holder if it counts for one.
    ///
    /// # Errors
    /// [`OverQuota`] when the limit or the holder's share is reached.
    pub fn take(&mut self, holder: Option<K>, all: u64) -> Result<(), OverQuota<K>> {
        let free = all.saturating_sub(self.used);
        if free == 0 {
            return Err(OverQuota::Full);
        }
        if let Some(holder) = holder {
            let held = self.held.entry(holder).or_insert(0);
            if *held >= free.saturating_mul(SHARE) {
                return Err(OverQuota::Share(holder, *held));
            }
            *held += 1;
        }
        self.used += 1;
        Ok(())
    }

    /// Ends a session that was opened with this holder.
    pub fn release(&mut self, holder: Option<K>) {
        self.used = self.used.saturating_sub(1);
        let Some(holder) = holder else { return };
        let left = self.held.get(&holder).map_or(0, |held| held.saturating_sub(1));
        match left {
            0 => self.held.remove(&holder),
            left => self.held.insert(holder, left),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes slots as the daemon does, as long as there are any; returns how many.
    fn fill(quota: &mut Quota<u32>, who: u32, all: u64) -> u64 {
        (0..all).take_while(|_| take(quota, who, all).is_ok()).count() as u64
    }

    fn take(quota: &mut Quota<u32>, who: u32, all: u64) -> Result<(), OverQuota<u32>> {
        let holder = quota.is_scarce(all).then_some(who);
        quota.take(holder, all)
    }

    #[test]
    fn one_holder_leaves_places_for_others_and_they_for_yet_others() {
        let mut quota = Quota::default();
        assert_eq!(fill(&mut quota, 1001, 10_000), 8125);
        assert_eq!(take(&mut quota, 1001, 10_000), Err(OverQuota::Share(1001, 5625)));
        assert_eq!(fill(&mut quota, 1002, 10_000), 1407);
        assert!(fill(&mut quota, 1003, 10_000) > 300);
        assert!(take(&mut quota, 1004, 10_000).is_ok(), "a newcomer still gets in");
    }

    #[test]
    fn an_uncounted_holder_may_have_all() {
        let mut quota = Quota::<u32>::default();
        for _ in 0..100 {
            quota.take(None, 100).expect("there is room");
        }
        assert_eq!(quota.take(None, 100), Err(OverQuota::Full));
        assert_eq!(quota.take(Some(7), 100), Err(OverQuota::Full));
    }

    #[test]
    fn what_is_given_back_can_be_taken_again() {
        let mut quota = Quota::default();
        let got = fill(&mut quota, 1001, 160);
        let counted = got - 160 / SCARCE;
        for _ in 0..counted {
            quota.release(Some(1001));
        }
        assert!(quota.held.is_empty(), "nothing is kept of who has none");
        assert_eq!(fill(&mut quota, 1001, 160), counted);
        quota.release(Some(4711));
        assert_eq!(quota.used(), got - 1);
    }

    #[test]
    fn few_places_are_for_the_first_to_come() {
        let mut quota = Quota::default();
        assert_eq!(fill(&mut quota, 1001, MIN_SHARED - 1), MIN_SHARED - 1);
    }

    #[test]
    fn with_fewer_places_than_before_nobody_gets_one_until_some_are_free() {
        let mut quota = Quota::default();
        fill(&mut quota, 1001, 1000);
        assert_eq!(quota.take(Some(1002), 20), Err(OverQuota::Full));
    }
}
