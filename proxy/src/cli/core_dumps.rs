//! Keeps this process's memory, which holds keys, out of core dumps and away from other processes.

use rustix::process::{
    DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit,
};

use super::output;

/// Whether the limit also applies to programs that this one starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Children {
    /// The process starts only its own helpers.
    Limited,
    /// The process starts programs that the user names, which may raise the limit for their own
    /// dumps.
    MayRaise,
}

/// Forbids core dumps, and reading of the memory by other processes of the same user. If the system
/// refuses, a warning is printed and the program continues.
pub(super) fn forbid(children: Children) {
    let maximum = match children {
        Children::Limited => Some(0),
        Children::MayRaise => getrlimit(Resource::Core).maximum,
    };
    let limited = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum });
    let hidden = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    if let Err(error) = limited.and(hidden) {
        output::advice(&format!(
            "meshport: a crash of this process may leave its keys in a core dump: {error}"
        ));
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::dumpable_behavior;

    use super::*;

    #[test]
    fn memory_is_neither_dumped_nor_shown() {
        let before = getrlimit(Resource::Core).maximum;
        forbid(Children::MayRaise);
        assert_eq!(getrlimit(Resource::Core), Rlimit { current: Some(0), maximum: before });
        assert_eq!(dumpable_behavior().expect("Linux tells"), DumpableBehavior::NotDumpable);
        forbid(Children::Limited);
        assert_eq!(getrlimit(Resource::Core), Rlimit { current: Some(0), maximum: Some(0) });
    }
}
