//! Who may have how many of the places that a service has for clients of its node.
//!
//! As long as few are taken, nobody is asked who he is. From `SCARCE` on each place counts for
//! its holder, who may have `SHARE` times as many of these as are free: alone he comes to
//! thirteen of sixteen places, two to somewhat less than all, and a place is left for others
//! whatever they do. What was taken earlier counts for nobody. A service with fewer than
//! [`MIN_SHARED`] places has none to share out.

use std::collections::BTreeMap;

/// Places are scarce from this part of all on: a quarter.
const SCARCE: u64 = 4;
/// How many times the free places a holder may have.
const SHARE: u64 = 3;
/// The least number of places that are shared out.
pub const MIN_SHARED: u64 = 16;

/// Why there is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoPlace<K> {
    /// All are taken.
    Full,
    /// This holder has so many already.
    Share(K, u64),
}

/// The places of one service, for holders `K`; bounded by the number of places.
#[derive(Debug)]
pub struct Places<K> {
    taken: u64,
    held: BTreeMap<K, u64>,
}

impl<K> Default for Places<K> {
    fn default() -> Self {
        Self { taken: 0, held: BTreeMap::new() }
    }
}

impl<K: Ord + Copy> Places<K> {
    /// How many are taken.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Whether the next place of `all` counts for its holder.
    pub fn are_scarce(&self, all: u64) -> bool {
        all >= MIN_SHARED && self.taken >= all / SCARCE
    }

    /// Takes one of `all` places, for a holder if it counts for one.
    ///
    /// # Errors
    /// [`NoPlace`] when there is none for him.
    pub fn take(&mut self, holder: Option<K>, all: u64) -> Result<(), NoPlace<K>> {
        let free = all.saturating_sub(self.taken);
        if free == 0 {
            return Err(NoPlace::Full);
        }
        if let Some(holder) = holder {
            let held = self.held.entry(holder).or_insert(0);
            if *held >= free.saturating_mul(SHARE) {
                return Err(NoPlace::Share(holder, *held));
            }
            *held += 1;
        }
        self.taken += 1;
        Ok(())
    }

    /// Gives back a place that was taken so.
    pub fn give_back(&mut self, holder: Option<K>) {
        self.taken = self.taken.saturating_sub(1);
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

    /// Takes places as the daemon does, for as long as there are some; how many he got.
    fn fill(places: &mut Places<u32>, who: u32, all: u64) -> u64 {
        (0..all).take_while(|_| take(places, who, all).is_ok()).count() as u64
    }

    fn take(places: &mut Places<u32>, who: u32, all: u64) -> Result<(), NoPlace<u32>> {
        let holder = places.are_scarce(all).then_some(who);
        places.take(holder, all)
    }

    #[test]
    fn one_holder_leaves_places_for_others_and_they_for_yet_others() {
        let mut places = Places::default();
        assert_eq!(fill(&mut places, 1001, 10_000), 8125);
        assert_eq!(take(&mut places, 1001, 10_000), Err(NoPlace::Share(1001, 5625)));
        assert_eq!(fill(&mut places, 1002, 10_000), 1407);
        assert!(fill(&mut places, 1003, 10_000) > 300);
        assert!(take(&mut places, 1004, 10_000).is_ok(), "a newcomer still gets in");
    }

    #[test]
    fn who_counts_for_nobody_may_have_all() {
        let mut places = Places::<u32>::default();
        for _ in 0..100 {
            places.take(None, 100).expect("there is room");
        }
        assert_eq!(places.take(None, 100), Err(NoPlace::Full));
        assert_eq!(places.take(Some(7), 100), Err(NoPlace::Full));
    }

    #[test]
    fn what_is_given_back_can_be_taken_again() {
        let mut places = Places::default();
        let got = fill(&mut places, 1001, 160);
        let counted = got - 160 / SCARCE;
        for _ in 0..counted {
            places.give_back(Some(1001));
        }
        assert!(places.held.is_empty(), "nothing is kept of who has none");
        assert_eq!(fill(&mut places, 1001, 160), counted);
        places.give_back(Some(4711));
        assert_eq!(places.taken(), got - 1);
    }

    #[test]
    fn few_places_are_for_the_first_to_come() {
        let mut places = Places::default();
        assert_eq!(fill(&mut places, 1001, MIN_SHARED - 1), MIN_SHARED - 1);
    }

    #[test]
    fn with_fewer_places_than_before_nobody_gets_one_until_some_are_free() {
        let mut places = Places::default();
        fill(&mut places, 1001, 1000);
        assert_eq!(places.take(Some(1002), 20), Err(NoPlace::Full));
    }
}
