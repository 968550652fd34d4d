//! The running children, for a program that is about to end without dropping anything: a release
//! build aborts on a panic, and two hundred daemons would keep running after it.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::panic;
use std::process::Child;
use std::sync::Mutex;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Children by id, each with a handle that cannot refer to a later process with the same id.
#[derive(Debug)]
pub(super) struct Running(Mutex<BTreeMap<u32, OwnedFd>>);

/// The processes of this program.
pub(super) static RUNNING: Running = Running::new();

impl Running {
    const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    pub(super) fn add(&self, child: &Child) {
        // On a kernel without process handles only the owner of the child can end it.
        let Ok(handle) = pidfd_open(Pid::from_child(child), PidfdFlags::empty()) else { return };
        if let Ok(mut children) = self.0.lock() {
            children.insert(child.id(), handle);
        }
    }

    pub(super) fn remove(&self, id: u32) {
        if let Ok(mut children) = self.0.lock() {
            children.remove(&id);
        }
    }

    /// Ends all of them at once, unless the panicking thread holds the list.
    fn end(&self) {
        let Ok(children) = self.0.try_lock() else { return };
        for handle in children.values() {
            // Fails only if it has already ended, which is the goal.
            let _ = pidfd_send_signal(handle, Signal::KILL);
        }
    }
}

/// Makes a panic end all children of this program, even if it aborts the program. For tools; in a
/// test a panic unwinds, and ends only the children of that test.
pub fn end_children_on_panic() {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        usual(panic);
        RUNNING.end();
    }));
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    fn child() -> Child {
        Command::new("tail").args(["-f", "/dev/null"]).spawn().expect("tail is everywhere")
    }

    #[test]
    fn those_that_run_are_ended_and_no_others() {
        let running = Running::new();
        let (mut kept, mut ended) = (child(), child());
        for child in [&kept, &ended] {
            running.add(child);
        }
        running.remove(kept.id());
        running.end();
        assert_eq!(ended.wait().expect("it ends").signal(), Some(9));
        assert!(matches!(kept.try_wait(), Ok(None)));
        kept.kill().expect("it runs");
        kept.wait().expect("it ends");
    }
}
