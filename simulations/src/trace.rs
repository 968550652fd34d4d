//! The trace of a run: as a hash, and as lines for a reader.
//!
//! Each datagram contributes its time, sender, receiver, size and fate, as soon as these are known;
//! each decision and each event contributes its text. Contents are left out: they follow from the
//! same state. The last events of every node, [`MAX_KEPT`] each, are kept for the report of a
//! violation.

use std::collections::VecDeque;
use std::fmt;
use std::io::Write;
use std::time::Duration;

use sha2::{Digest, Sha256};

/// Events kept per node.
pub const MAX_KEPT: usize = 24;

/// Receives one line per event.
pub(crate) type TraceFile = Box<dyn Write + Send>;

/// Feeds a hash, a file, and the recent events of each node.
pub(crate) struct Trace {
    hash: Sha256,
    datagrams: u64,
    file: Option<TraceFile>,
    /// The nodes' names, for the file.
    names: Vec<String>,
    /// The last events of each node.
    kept: Vec<VecDeque<(Duration, Box<str>)>>,
}

/// The hash of a whole run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceHash([u8; 32]);

/// A sent datagram, as the trace records it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    pub(crate) at: Duration,
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) size: usize,
    pub(crate) kind: &'static str,
    pub(crate) lost: Option<&'static str>,
}

impl Trace {
    /// A trace for nodes with these names.
    pub(crate) fn new(names: Vec<String>, file: Option<TraceFile>) -> Self {
        let kept = vec![VecDeque::new(); names.len()];
        Self { hash: Sha256::default(), datagrams: 0, file, names, kept }
    }

    pub(crate) fn datagram(&mut self, sent: Sent) {
        self.datagrams += 1;
        let mut bytes = [0; 40];
        let nanos = u64::try_from(sent.at.as_nanos()).unwrap_or(u64::MAX);
        let numbers = [
            nanos,
            sent.from as u64,
            sent.to as u64,
            sent.size as u64,
            u64::from(sent.lost.is_some()),
        ];
        for (slot, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            slot.copy_from_slice(&number.to_le_bytes());
        }
        self.hash.update(bytes);
        if let Some(file) = &mut self.file {
            let Sent { size, kind, .. } = sent;
            let (from, to) = (&self.names[sent.from], &self.names[sent.to]);
            let fate = sent.lost.unwrap_or("sent");
            // A full disk ends the file, not the run.
            let _ = writeln!(file, "{} {kind} {from} {to} {size} {fate}", Stamp(sent.at));
        }
    }

    /// Records an event at a node.
    pub(crate) fn node(&mut self, at: Duration, node: usize, words: String) {
        self.words(at, &words);
        if let Some(file) = &mut self.file {
            let _ = writeln!(file, "{} node {} {words}", Stamp(at), self.names[node]);
        }
        let kept = &mut self.kept[node];
        if kept.len() >= MAX_KEPT {
            kept.pop_front();
        }
        kept.push_back((at, words.into_boxed_str()));
    }

    /// Records an event of the world.
    pub(crate) fn world(&mut self, at: Duration, words: &str) {
        self.words(at, words);
        if let Some(file) = &mut self.file {
            let _ = writeln!(file, "{} world {words}", Stamp(at));
        }
    }

    fn words(&mut self, at: Duration, words: &str) {
        let nanos = u64::try_from(at.as_nanos()).unwrap_or(u64::MAX);
        self.hash.update(nanos.to_le_bytes());
        self.hash.update((words.len() as u64).to_le_bytes());
        self.hash.update(words);
    }

    /// The last events of a node, oldest first.
    pub(crate) fn last(&self, node: usize) -> Vec<String> {
        self.kept[node].iter().map(|(at, words)| format!("{} {words}", Stamp(*at))).collect()
    }

    /// Number of datagrams so far, including lost ones.
    pub(crate) fn datagrams(&self) -> u64 {
        self.datagrams
    }

    /// The hash so far.
    pub(crate) fn hash(&self) -> TraceHash {
        TraceHash(self.hash.clone().finalize().into())
    }
}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trace").field("datagrams", &self.datagrams).finish_non_exhaustive()
    }
}

impl TraceHash {
    /// The hash of a run in real time, which cannot be repeated.
    pub const NONE: Self = Self([0; 32]);
}

impl fmt::Display for TraceHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NONE {
            return f.write_str("none");
        }
        self.0.iter().take(16).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Virtual time in seconds with microseconds.
struct Stamp(Duration);

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}", self.0.as_secs(), self.0.subsec_micros())
    }
}
