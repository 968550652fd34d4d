//! Capabilities (capabilities(7)): a daemon that starts as root, or with some capabilities, keeps
//! only those that it may need later.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use rustix::io;
use rustix::process::geteuid;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

/// The mode bits that let anyone read a file.
const READ_BY_ALL: u32 = 0o004;

/// The remaining capabilities.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeptCapabilities(CapabilitySet);

impl fmt::Display for KeptCapabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        for (at, (name, _)) in self.0.iter_names().enumerate() {
            write!(f, "{}{name}", if at == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

/// Drops the capabilities of this thread and of those it starts, and prevents gaining any by
/// running a program. Keeps the right to bind ports below 1024, since listeners are closed and
/// reopened, and, for root, access to those of `files` that belong to other users.
pub(super) fn give_up(files: &[PathBuf]) -> io::Result<KeptCapabilities> {
    set_no_new_privs(true)?;
    let before = capabilities(None)?;
    let mut wanted = CapabilitySet::NET_BIND_SERVICE;
    if geteuid().is_root() && files.iter().any(belongs_to_another) {
        wanted |= CapabilitySet::DAC_OVERRIDE | CapabilitySet::CHOWN | CapabilitySet::FOWNER;
    }
    if before.permitted.contains(CapabilitySet::SETPCAP) {
        for other in (CapabilitySet::all() - wanted).iter() {
            // Fails for a capability that the kernel does not know and so cannot grant.
            let _ = remove_capability_from_bounding_set(other);
        }
    }
    clear_ambient_capability_set()?;
    let kept = before.permitted & wanted;
    let none = CapabilitySet::empty();
    let after = CapabilitySets { effective: kept, permitted: kept, inheritable: none };
    // An outer sandbox, such as systemd's, may refuse the call to a process without capabilities.
    if after != before {
        set_capabilities(None, after)?;
    }
    Ok(KeptCapabilities(kept))
}

/// Whether root needs a capability to read the file.
fn belongs_to_another(file: &PathBuf) -> bool {
    let Ok(metadata) = std::fs::metadata(file) else { return false };
    let private = metadata.is_dir() || metadata.mode() & READ_BY_ALL == 0;
    metadata.uid() != geteuid().as_raw() && private
}

#[cfg(test)]
mod tests {
    use std::thread;

    use rustix::thread::{capability_is_in_bounding_set, no_new_privs};

    use super::*;

    #[test]
    fn only_binding_low_ports_is_kept() {
        // Capabilities are per thread.
        let checks = thread::spawn(|| {
            let kept = give_up(&[]).expect("dropping needs no privileges");
            assert!((kept.0 - CapabilitySet::NET_BIND_SERVICE).is_empty(), "{kept}");
            let now = capabilities(None).expect("readable");
            assert_eq!((now.effective, now.permitted), (kept.0, kept.0));
            assert!(now.inheritable.is_empty());
            assert!(no_new_privs().expect("readable"));
            if geteuid().is_root() {
                let admin = capability_is_in_bounding_set(CapabilitySet::SYS_ADMIN);
                assert!(!admin.expect("readable"));
            }
            give_up(&[]).expect("again");
        });
        checks.join().expect("the checks hold");
    }

    #[test]
    fn capabilities_are_listed_by_name() {
        assert_eq!(KeptCapabilities(CapabilitySet::empty()).to_string(), "none");
        let two = CapabilitySet::CHOWN | CapabilitySet::NET_BIND_SERVICE;
        assert_eq!(KeptCapabilities(two).to_string(), "CHOWN, NET_BIND_SERVICE");
    }
}
