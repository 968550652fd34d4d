//! The generation: the number of this start, higher than all earlier ones. Other nodes order a
//! node's records by it.
//!
//! The file makes it grow if the clock goes back, the wall clock if the file is lost. So startup
//! needs only one of them.

use meshport_config::UnixSeconds;

use super::folder::Existing;
use super::{GENERATION, MAX_TEXT_BYTES, StateDir, damaged, seal};
use crate::Error;

const NOTHING_TO_DO: &str = "The next start rewrites it, above the wall clock";

/// The result of [`StateDir::next_generation`].
#[derive(Debug)]
pub struct Generation {
    /// The number of this start.
    pub number: u64,
    /// Why it could not be written: the wall clock alone keeps the next start above it.
    pub unkept: Option<Error>,
}

impl StateDir {
    /// A generation that no earlier start of this node used: one more than the stored one, and at
    /// least the wall clock, so that a folder restored from a backup is still ahead. A number that
    /// cannot be read counts as 0; [`StateDir::doubts`] reports it.
    pub fn next_generation(&self, wall: UnixSeconds) -> Generation {
        let number = self.generation().unwrap_or(0).saturating_add(1).max(wall.0);
        Generation { number, unkept: self.store_generation(number).err() }
    }

    /// Stores a generation that this node took while running, so that the next start takes a higher
    /// one. A lower one than stored changes nothing.
    pub fn keep_generation(&self, used: u64) -> Result<(), Error> {
        if self.generation().is_ok_and(|stored| used <= stored) {
            return Ok(());
        }
        self.store_generation(used)
    }

    fn store_generation(&self, generation: u64) -> Result<(), Error> {
        let content = seal::sealed(&format!("{generation}\n"));
        self.folder.write(GENERATION, content.as_bytes(), Existing::Replace)
    }

    pub(super) fn generation(&self) -> Result<u64, Error> {
        let text = self.read_text(GENERATION, MAX_TEXT_BYTES, NOTHING_TO_DO)?;
        let Some(text) = text else { return Ok(0) };
        let number = seal::generation(&text);
        number.ok_or_else(|| damaged(&self.file(GENERATION), &"not a number", NOTHING_TO_DO))
    }
}
