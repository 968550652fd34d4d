//! Records whose credential is not valid by this machine's clock.
//!
//! A clock can be wrong and be corrected. So such a record leaves the directory, or does not enter
//! it at a restart, but is kept, and returns when the clock is within its validity. Bounded by
//! [`MAX_ENDED`]; with correct clocks these are only members that were not renewed in time.

use std::collections::BTreeMap;

use meshport_config::{NodeId, UnixSeconds};

use crate::directory::{MAX_MEMBERS, Record};

/// Records kept for a clock that is set back: a clock that is years ahead expires a whole
/// directory.
const MAX_ENDED: usize = MAX_MEMBERS;
/// Of those, records kept from a snapshot at a restart. A few members are enough to find all others
/// again, and those that never return must not fill the file.
const MAX_RESTORED: usize = 256;

/// Each of these nodes with its record.
#[derive(Debug, Default)]
pub(super) struct Ended {
    records: BTreeMap<NodeId, Record>,
    /// Time at which the first of those becomes valid that are not yet.
    begins_at: Option<UnixSeconds>,
}

impl Ended {
    /// Whether some may be valid now that the clock has gone from `before` to `wall`.
    pub(super) fn may_return(&self, before: UnixSeconds, wall: UnixSeconds) -> bool {
        let has_begun = self.begins_at.is_some_and(|it| it <= wall);
        !self.records.is_empty() && (wall < before || has_begun)
    }

    pub(super) fn records(&self) -> impl Iterator<Item = &Record> {
        self.records.values()
    }

    /// Keeps a record whose credential has expired.
    pub(super) fn keep(&mut self, record: Record) {
        if self.records.len() < MAX_ENDED {
            self.records.insert(record.credential.node, record);
        }
    }

    /// Keeps a record of a snapshot whose credential is not valid at `wall`.
    pub(super) fn keep_restored(&mut self, record: Record, wall: UnixSeconds) {
        if self.records.len() < MAX_RESTORED {
            self.records.insert(record.credential.node, record);
            self.begins_at = self.first_start(wall);
        }
    }

    /// Takes those whose credential is valid at `wall` after all.
    pub(super) fn take_valid(&mut self, wall: UnixSeconds) -> BTreeMap<NodeId, Record> {
        let is_valid = |it: &Record| it.credential.is_valid_at(wall);
        let valid = self.records.extract_if(.., |_, it| is_valid(it)).collect();
        self.begins_at = self.first_start(wall);
        valid
    }

    fn first_start(&self, wall: UnixSeconds) -> Option<UnixSeconds> {
        let starts = self.records.values().map(|it| it.credential.valid_from());
        starts.filter(|at| *at > wall).min()
    }
}
