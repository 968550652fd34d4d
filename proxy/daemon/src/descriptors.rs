//! File descriptors: a session needs two at its origin, and the usual soft limit is 1,024.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::info;

use crate::tcp::Host;

/// Descriptors for everything but sessions: sockets, files, the runtime.
const BESIDE_SESSIONS: u64 = 64;

/// Raises the soft limit to the hard limit, which needs no privileges. On failure, the limit stays
/// as it is.
pub(crate) fn raise() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        let raised = Rlimit { current: maximum, maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            info!(%error, "cannot raise the limit on open files");
        }
    }
}

/// The number of files that a daemon started from this process may open; `None` if unlimited.
pub fn most_allowed() -> Option<u64> {
    getrlimit(Resource::Nofile).maximum
}

/// The number of descriptors that a daemon needs for this many sessions.
pub(crate) fn needed(sessions: u64) -> u64 {
    sessions.saturating_mul(2).saturating_add(BESIDE_SESSIONS)
}

/// The most sessions of local clients that each service can have without taking descriptors from
/// the others, at least one. `limits` are the limits of all services: small ones keep theirs, and
/// the others share the rest equally (max-min fairness).
pub(crate) fn share(limits: Vec<u64>, host: &Host) -> u64 {
    share_of(for_sessions(host), limits)
}

fn share_of(descriptors: u64, mut limits: Vec<u64>) -> u64 {
    limits.sort_unstable();
    // Two for each, since a session may go to this node's own instance.
    let mut enough_for = descriptors / 2;
    for (sharing, limit) in (1..=limits.len() as u64).rev().zip(limits) {
        let share = enough_for / sharing;
        if limit > share {
            return share.max(1);
        }
        enough_for -= limit;
    }
    u64::MAX
}

/// The number of descriptors left for sessions under the current limit.
pub(crate) fn for_sessions(host: &Host) -> u64 {
    match (host, getrlimit(Resource::Nofile).current) {
        (Host::Kernel, Some(limit)) => limit.saturating_sub(BESIDE_SESSIONS),
        // In-memory connections use no descriptors.
        (Host::Kernel, None) | (Host::Memory(_), _) => u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_share_too_few_descriptors_and_small_ones_keep_their_limit() {
        assert_eq!(share_of(20_000, vec![10_000]), u64::MAX);
        assert_eq!(share_of(u64::MAX, vec![1_000_000; 64]), u64::MAX);
        assert_eq!(share_of(192, vec![10_000]), 96);
        assert_eq!(share_of(192, vec![10_000; 4]), 24);
        assert_eq!(share_of(192, vec![10_000, 10, 10_000]), 43);
        assert_eq!((share_of(0, vec![10_000]), share_of(0, Vec::new())), (1, u64::MAX));
    }

    #[test]
    fn the_soft_limit_is_raised_to_the_hard_limit() {
        raise();
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        assert_eq!(current, maximum);
        assert_eq!(most_allowed(), maximum);
    }
}
