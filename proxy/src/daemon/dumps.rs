//! No copy of this process's memory, in which keys are, is written to disk or read by others.

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use tracing::warn;

/// Forbids core dumps, and reading of the memory by other processes of the same user. What the
/// system refuses is said and is no reason not to start.
pub(super) fn forbid() {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    let limited = setrlimit(Resource::Core, none);
    let hidden = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    if let Err(error) = limited.and(hidden) {
        warn!(%error, "a crash of this process may leave its keys in a core dump");
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{dumpable_behavior, getrlimit};

    use super::*;

    #[test]
    fn memory_is_neither_dumped_nor_shown() {
        forbid();
        assert_eq!(getrlimit(Resource::Core).current, Some(0));
        assert_eq!(dumpable_behavior().expect("Linux tells"), DumpableBehavior::NotDumpable);
    }
}
