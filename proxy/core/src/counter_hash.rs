//! Pseudorandom numbers from a counter, the same in every run.

/// The finaliser of SplitMix64 (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number
/// Generators"): spreads a counter over all 64 bits.
pub fn mix(counter: u64) -> u64 {
    let mut z = counter.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A number from 0 to 1.
pub fn fraction(counter: u64) -> f64 {
    let half = u32::try_from(mix(counter) >> 32).expect("half of the bits");
    f64::from(half) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_turn_has_its_own_index() {
        let mut places: Vec<f64> = (0..100).map(fraction).collect();
        places.sort_by(f64::total_cmp);
        assert!(places[0] < 0.1 && places[99] > 0.9, "{places:?}");
        places.dedup();
        assert_eq!(places.len(), 100);
    }
}
