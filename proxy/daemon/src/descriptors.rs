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

/// The most sessions of local clients that a service may have: `most`, but no more than its part of
/// what the descriptors suffice for, if all services together may have `all`.
pub(crate) fn part(most: u64, all: u64, host: &Host) -> u64 {
    part_of(for_sessions(host), most, all)
}

fn part_of(descriptors: u64, most: u64, all: u64) -> u64 {
    // Two for each, since a session may go to this node's own instance.
    let enough_for = descriptors / 2;
    if all <= enough_for {
        return most;
    }
    (most.saturating_mul(enough_for) / all).clamp(1, most)
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
    fn a_service_has_its_part_of_too_few_descriptors() {
        assert_eq!(part_of(20_000, 10_000, 10_000), 10_000);
        assert_eq!(part_of(u64::MAX, 1_000_000, 64_000_000), 1_000_000);
        assert_eq!(part_of(192, 10_000, 10_000), 96);
        assert_eq!(part_of(192, 10_000, 40_000), 24);
        assert_eq!((part_of(192, 10, 10_000), part_of(0, 10_000, 10_000)), (1, 1));
    }

    #[test]
    fn the_soft_limit_is_raised_to_the_hard_limit() {
        raise();
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        assert_eq!(current, maximum);
        assert_eq!(most_allowed(), maximum);
    }
}
