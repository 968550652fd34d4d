//! The crate's only source of randomness: seeded by the caller, never by the system.
//!
//! It spreads timers and picks peers. Nothing secret depends on it. Two machines with the same seed
//! and the same inputs draw the same numbers, which makes a simulated run repeatable.

use std::time::Duration;

use meshport_config::NodeId;
use rand_for_foca::rngs::Xoshiro256PlusPlus;
use rand_for_foca::{Rng, RngExt, SeedableRng};

/// A seeded generator with the few draws this crate needs.
#[derive(Debug, Clone)]
pub(crate) struct Dice(Xoshiro256PlusPlus);

impl Dice {
    /// A generator for one purpose: the same seed gives unrelated numbers for each `stream`.
    pub(crate) fn new(mut seed: [u8; 32], stream: u8) -> Self {
        seed[0] ^= stream;
        // Seeds that differ in one bit start close together; a few draws drive them apart.
        let mut generator = Xoshiro256PlusPlus::from_seed(seed);
        let reseed = generator.next_u64() ^ u64::from(stream).rotate_left(32);
        for _ in 0..16 {
            let _ = generator.next_u64();
        }
        let mut spread = Xoshiro256PlusPlus::seed_from_u64(reseed ^ generator.next_u64());
        let mut bytes = [0; 32];
        spread.fill_bytes(&mut bytes);
        Self(Xoshiro256PlusPlus::from_seed(bytes))
    }

    /// The generator itself, for a library that wants to own one.
    pub(crate) fn into_generator(self) -> Xoshiro256PlusPlus {
        self.0
    }

    /// A number in `0..bound`; 0 when the bound is 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        if bound == 0 { 0 } else { self.0.random_range(0..bound) }
    }

    /// A number, uniform over the full range.
    pub(crate) fn draw(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Eight random bytes.
    pub(crate) fn bytes(&mut self) -> [u8; 8] {
        self.draw().to_le_bytes()
    }

    /// A random id as the start of an iteration over all.
    pub(crate) fn id(&mut self) -> NodeId {
        let mut id = [0; 32];
        id[..8].copy_from_slice(&self.bytes());
        NodeId::from_bytes(id)
    }

    /// A duration in `0..=longest`, uniform, in steps of a microsecond.
    pub(crate) fn up_to(&mut self, longest: Duration) -> Duration {
        let micros = u64::try_from(longest.as_micros()).unwrap_or(u64::MAX - 1);
        Duration::from_micros(self.0.random_range(0..=micros))
    }

    /// `around` moved by at most `percent` of itself in either direction.
    pub(crate) fn jitter(&mut self, around: Duration, percent: u32) -> Duration {
        let spread = around * percent / 100;
        around.saturating_sub(spread) + self.up_to(spread * 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers_and_streams_differ() {
        let draw = |seed: u8, stream| Dice::new([seed; 32], stream).bytes();
        assert_eq!(draw(1, 1), draw(1, 1));
        assert_ne!(draw(1, 1), draw(1, 2));
        assert_ne!(draw(1, 1), draw(2, 1));
    }

    #[test]
    fn draws_stay_in_their_range() {
        let mut dice = Dice::new([7; 32], 0);
        assert_eq!(dice.below(0), 0);
        for _ in 0..1000 {
            assert!(dice.below(3) < 3);
            let drawn = dice.jitter(Duration::from_secs(1), 25);
            assert!((Duration::from_millis(750)..=Duration::from_millis(1250)).contains(&drawn));
        }
    }
}
