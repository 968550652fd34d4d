//! Records whose credential has expired by this machine's clock.
//!
//! A clock can be wrong and be corrected. So such a record leaves the directory but is kept, and
//! returns when the clock goes back before its expiry, as after a restart. Bounded by
//! [`MAX_ENDED`]; with correct clocks these are only members that were not renewed in time.

use std::collections::BTreeMap;

use meshport_config::{NodeId, UnixSeconds};

use crate::directory::{MAX_MEMBERS, Record};

/// Records kept for a clock that is set back: a clock that is years ahead expires a whole
/// directory.
const MAX_ENDED: usize = MAX_MEMBERS;

/// Each of these nodes with its record.
#[derive(Debug, Default)]
pub(super) struct Ended(BTreeMap<NodeId, Record>);

impl Ended {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn records(&self) -> impl Iterator<Item = &Record> {
        self.0.values()
    }

    pub(super) fn keep(&mut self, record: Record) {
        if self.0.len() < MAX_ENDED {
            self.0.insert(record.credential.node, record);
        }
    }

    /// Takes those whose credential has not expired at `wall` after all.
    pub(super) fn take_valid(&mut self, wall: UnixSeconds) -> BTreeMap<NodeId, Record> {
        let is_valid = |it: &Record| wall < it.credential.expires_at;
        let (valid, ended) =
            std::mem::take(&mut self.0).into_iter().partition(|(_, it)| is_valid(it));
        self.0 = ended;
        valid
    }
}
