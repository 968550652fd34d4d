//! Prevents core dumps and reading of this process's memory, which holds keys.

use rustix::process::{
    DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit,
};

use super::output;

/// Whether the limit also applies to programs that this one starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Children {
    /// It starts only its own.
    Limited,
    /// Programs that the user names, which may need their dumps: the limit can be raised again.
    MayRaise,
}

/// Forbids core dumps, and reading of the memory by other processes of the same user. A refusal by
/// the system is printed, but does not stop the program.
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
