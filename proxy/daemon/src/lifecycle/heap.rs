//! Returns memory to the kernel after a burst of sessions. The C library would keep it, since small
//! live allocations are scattered among the free ones. Once most sessions have ended, this module
//! makes it release whole pages. One of the few files with unsafe code: none of our crates wraps
//! the call.

use std::time::Duration;

use tokio::time::sleep;

use crate::node::Node;

/// Interval between checks of the number of sessions. Mesh connections outlast their last session
/// by one interval, so memory is released in steps within a minute after a burst.
const LOOK: Duration = Duration::from_secs(15);
/// Number of intervals after a burst in which memory is released.
const STEPS: u8 = 4;
/// The smallest burst worth releasing memory for; a session takes about 8 KiB.
const MIN_PEAK: u64 = 256;

/// The peak number of sessions, and whether the burst is over.
#[derive(Debug, Default)]
struct BurstWatch {
    peak: u64,
    /// Remaining intervals at which memory is released.
    left: u8,
}

impl BurstWatch {
    /// Whether to release memory now. `highest` is the peak since the last call, since a burst may
    /// be shorter than an interval; `open` is the current number of sessions.
    fn is_due(&mut self, highest: u64, open: u64) -> bool {
        self.peak = self.peak.max(highest);
        if self.peak >= MIN_PEAK && open <= self.peak / 2 {
            self.peak = open;
            self.left = STEPS;
        }
        let is_due = self.left > 0;
        self.left = self.left.saturating_sub(1);
        is_due
    }
}

/// Releases memory each time most sessions of a burst have ended. Never returns.
pub(crate) async fn give_back(node: &Node) {
    let mut bursts = BurstWatch::default();
    loop {
        sleep(LOOK).await;
        let (highest, open) = node.take_peak();
        if bursts.is_due(highest, open) {
            node.mesh().close_after_bursts();
            // The call takes several milliseconds and must not delay sessions.
            let _ = tokio::task::spawn_blocking(trim).await;
        }
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "a call into the C library")]
fn trim() {
    // SAFETY: the call takes no pointer, is thread-safe, and releases only pages that no allocation
    // uses.
    let released = unsafe { libc::malloc_trim(0) };
    tracing::debug!(released = released == 1, "returned free memory to the kernel");
}

/// Other C libraries release memory by themselves or not at all.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn trim() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_returned_in_steps_after_a_burst_and_only_then() {
        let mut bursts = BurstWatch::default();
        let given = |bursts: &mut BurstWatch, open: &[u64]| -> Vec<bool> {
            open.iter().map(|open| bursts.is_due(*open, *open)).collect()
        };
        assert_eq!(given(&mut bursts, &[0, 3, 200, 90, 0]), [false; 5], "too few to matter");
        let burst = [5_000, 10_000, 6_000, 4_000, 4_100, 4_000, 4_000, 4_000];
        let due = [false, false, false, true, true, true, true, false];
        assert_eq!(given(&mut bursts, &burst), due);
        assert_eq!(given(&mut bursts, &[10, 10, 10, 10, 10]), [true, true, true, true, false]);
        assert_eq!(given(&mut bursts, &[0, 0, 0]), [false; 3]);
        assert!(bursts.is_due(3_000, 0), "a burst between two checks");
        assert_eq!(given(&mut bursts, &[0, 0, 0, 0]), [true, true, true, false]);
    }

    /// Anonymous resident memory of this process in KiB.
    #[cfg(target_os = "linux")]
    fn resident() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").expect("readable");
        let line = status.lines().find(|line| line.starts_with("RssAnon:")).expect("a line");
        line.split_ascii_whitespace().nth(1).and_then(|it| it.parse().ok()).expect("a number")
    }

    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn free_memory_below_a_live_allocation_is_returned() {
        // Allocations of the size that sessions make. The last one stays alive.
        let mut pieces: Vec<Vec<u8>> = (0..40_000).map(|_| vec![1; 2_000]).collect();
        let before = resident();
        let last = pieces.pop();
        drop(pieces);
        trim();
        let after = resident();
        assert!(after + 40_000 < before, "from {before} KiB to {after} KiB");
        drop(last);
    }
}
