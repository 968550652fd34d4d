//! File access, by Landlock (Linux 5.13 and later):
//! <https://docs.kernel.org/userspace-api/landlock.html>.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, BitFlags, LandlockStatus, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, RulesetStatus, Scope, path_beneath_rules,
};

/// The version of the access rights to restrict: that of Linux 6.12. An older kernel restricts
/// those that it knows.
const NEWEST: ABI = ABI::V6;

/// What the C library and the runtime read: files for name resolution (whole folders, since files
/// like `resolv.conf` are replaced), NSS modules, the number of CPUs, and the process itself.
const SYSTEM: &[&str] = &[
    "/etc",
    "/lib",
    "/lib64",
    "/nix/store",
    "/proc/self",
    "/run/NetworkManager",
    "/run/resolvconf",
    "/run/systemd/resolve",
    "/sys/devices/system/cpu",
    "/usr/lib",
    "/usr/lib64",
    "/usr/share",
];

/// The folders that are readable regardless of the settings.
pub(super) fn system() -> impl Iterator<Item = &'static Path> {
    SYSTEM.iter().map(Path::new)
}

/// Writable devices: the runtime discards output there.
const DEVICES: &[&str] = &["/dev/null"];

/// How much of the restriction the kernel enforces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Enforced {
    /// All of it.
    Whole,
    /// File access is restricted, but the kernel is older than the newest rights.
    InPart,
    /// Nothing: Landlock is built into the kernel but disabled.
    SwitchedOff,
    /// Nothing: the kernel has no Landlock, or an outer filter hides it.
    Missing,
}

impl Enforced {
    /// Whether file access is restricted.
    pub(super) fn keeps_files(self) -> bool {
        matches!(self, Self::Whole | Self::InPart)
    }

    /// For the log.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Whole => "yes",
            Self::InPart => "in part: the kernel is older than 6.12",
            Self::SwitchedOff | Self::Missing => "no",
        }
    }
}

/// Lets this thread and those it starts read in `readable` and the system's folders, write in
/// `writable`, and execute nothing. Signals to other processes and their abstract sockets are
/// blocked as well. Missing paths are skipped. Returns how much the kernel enforces.
pub(super) fn restrict(
    readable: &[PathBuf],
    writable: &[PathBuf],
) -> Result<Enforced, RulesetError> {
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?
        .add_rules(path_beneath_rules(SYSTEM, reading()))?
        .add_rules(path_beneath_rules(readable, reading()))?
        .add_rules(path_beneath_rules(DEVICES, reading() | AccessFs::WriteFile))?
        .add_rules(path_beneath_rules(writable, writing()))?
        .restrict_self()?;
    Ok(match (status.ruleset, status.landlock) {
        (RulesetStatus::FullyEnforced, _) => Enforced::Whole,
        (RulesetStatus::PartiallyEnforced, _) => Enforced::InPart,
        (RulesetStatus::NotEnforced, LandlockStatus::NotEnabled) => Enforced::SwitchedOff,
        (RulesetStatus::NotEnforced, _) => Enforced::Missing,
    })
}

fn reading() -> BitFlags<AccessFs> {
    AccessFs::ReadFile | AccessFs::ReadDir
}

/// Files are written under another name and renamed; the admin socket is created and removed.
fn writing() -> BitFlags<AccessFs> {
    reading()
        | AccessFs::WriteFile
        | AccessFs::Truncate
        | AccessFs::MakeReg
        | AccessFs::MakeSock
        | AccessFs::RemoveFile
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::ErrorKind;
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
    use std::process::Command;
    use std::thread;

    use landlock::{CompatLevel, Compatible as _};

    use super::*;

    /// Runs a check in a separate thread, since a restriction cannot be removed.
    fn restricted(check: impl FnOnce(&Path) + Send) {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        for name in ["read", "write", "other"] {
            fs::create_dir(root.join(name)).expect("a folder");
            fs::write(root.join(name).join("file"), name).expect("a file");
        }
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                let enforced = restrict(&[root.join("read")], &[root.join("write")]);
                // Without Landlock in the kernel there is nothing to check.
                if enforced.expect("the rules are good").keeps_files() {
                    check(root);
                }
            });
            inside.join().expect("the checks hold");
        });
    }

    #[test]
    fn only_named_folders_can_be_read_and_only_state_written() {
        restricted(|root| {
            assert_eq!(fs::read(root.join("read/file")).expect("readable"), b"read");
            let denied = fs::write(root.join("read/file"), "x").expect_err("not writable");
            assert_eq!(denied.kind(), ErrorKind::PermissionDenied);
            let denied = fs::read(root.join("other/file")).expect_err("not readable");
            assert_eq!(denied.kind(), ErrorKind::PermissionDenied);

            let (new, file) = (root.join("write/new"), root.join("write/file"));
            fs::write(&new, "new").expect("writable");
            fs::rename(&new, &file).expect("a file can replace another");
            assert_eq!(fs::read(&file).expect("readable"), b"new");
            fs::File::open(root.join("write")).expect("open").sync_all().expect("fsync");
            drop(UnixListener::bind(root.join("write/socket")).expect("a socket can be made"));
            fs::remove_file(root.join("write/socket")).expect("and removed");
        });
    }

    #[test]
    fn no_program_can_be_run() {
        restricted(|_| {
            let denied = Command::new("/usr/bin/true").status().expect_err("nothing runs");
            assert_eq!(denied.kind(), ErrorKind::PermissionDenied);
        });
    }

    #[test]
    fn other_processes_cannot_be_signalled_or_reached_by_abstract_socket() {
        let asked = Ruleset::default()
            .set_compatibility(CompatLevel::HardRequirement)
            .scope(Scope::from_all(NEWEST));
        if asked.is_err() {
            eprintln!("not checked: this kernel is older than 6.12");
            return;
        }
        let name = format!("meshport-{}-sandbox", std::process::id());
        let address = SocketAddr::from_abstract_name(name).expect("a name");
        let _listener = UnixListener::bind_addr(&address).expect("the name is free");
        UnixStream::connect_addr(&address).expect("reachable so far");
        let parent = rustix::process::getppid().expect("a process started this");
        restricted(|_| {
            let denied = UnixStream::connect_addr(&address).expect_err("out of reach");
            assert_eq!(denied.kind(), ErrorKind::PermissionDenied);
            let denied = rustix::process::test_kill_process(parent).expect_err("out of reach");
            assert_eq!(denied.kind(), ErrorKind::PermissionDenied);
        });
    }
}
