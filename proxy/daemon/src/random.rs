//! Seeds of all randomness.

use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};

use crate::Error;

/// From the operating system.
pub(crate) fn seed() -> Result<[u8; 32], Error> {
    let mut seed = [0; 32];
    rand_core::RngCore::try_fill_bytes(&mut rand_core::OsRng, &mut seed).map_err(|error| {
        let source = std::io::Error::other(error.to_string());
        Error::Io { what: "read random bytes".into(), source }
    })?;
    Ok(seed)
}

/// A number from a seed.
pub(crate) fn number(seed: [u8; 32]) -> u64 {
    StdRng::from_seed(seed).next_u64()
}

/// Independent seeds from one.
pub(crate) fn seeds<const COUNT: usize>(seed: [u8; 32]) -> [[u8; 32]; COUNT] {
    let mut random = StdRng::from_seed(seed);
    [(); COUNT].map(|()| {
        let mut seed = [0; 32];
        random.fill_bytes(&mut seed);
        seed
    })
}
