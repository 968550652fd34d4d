//! What happened on the wire, as one number.
//!
//! Each datagram contributes when it was sent, from whom, to whom, its port and its size, and
//! whether it was delivered. Contents are left out: they follow from the same state.

use std::fmt;
use std::time::Duration;

use sha2::{Digest, Sha256};

/// Feeds a hash with datagrams.
#[derive(Debug, Clone, Default)]
pub struct Trace {
    hash: Sha256,
    datagrams: u64,
}

/// The hash of a whole run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceHash([u8; 32]);

impl Trace {
    pub(crate) fn datagram(
        &mut self,
        at: Duration,
        from: usize,
        to: usize,
        size: usize,
        lost: bool,
    ) {
        self.datagrams += 1;
        self.hash.update(at.as_nanos().to_le_bytes());
        for number in [from, to, size, usize::from(lost)] {
            self.hash.update((number as u64).to_le_bytes());
        }
    }

    pub(crate) fn note(&mut self, at: Duration, words: &str) {
        self.hash.update(at.as_nanos().to_le_bytes());
        self.hash.update((words.len() as u64).to_le_bytes());
        self.hash.update(words);
    }

    /// Datagrams so far, lost ones included.
    pub fn datagrams(&self) -> u64 {
        self.datagrams
    }

    /// The hash so far.
    pub fn hash(&self) -> TraceHash {
        TraceHash(self.hash.clone().finalize().into())
    }
}

impl fmt::Display for TraceHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().take(16).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
