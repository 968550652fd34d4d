//! Returns memory to the kernel after a burst of sessions. The C library would keep it, since small
//! live allocations lie between the free ones; it is asked to release whole pages once most of the
//! sessions are gone. One of the few files with unsafe code: no crate in the tree offers the call
//! safely.

use std::time::Duration;

use tokio::time::sleep;

use crate::node::Node;

/// From one look at the number of sessions to the next: what a burst left is given back within a
/// minute, in steps, since connections outlast their last session by one look.
const LOOK: Duration = Duration::from_secs(15);
/// Looks after a burst at which memory is given back.
const STEPS: u8 = 4;
/// Sessions that leave something to speak of, at some 8 KiB each.
const MIN_PEAK: u64 = 256;

/// The most sessions there were, and whether they are gone.
#[derive(Debug, Default)]
struct BurstWatch {
    peak: u64,
    /// Looks left at which memory is given back.
    left: u8,
}

impl BurstWatch {
    /// Whether memory is to be given back, with so many sessions open now and that many at once
    /// since the last look: a burst may be shorter than the time between two looks.
    fn look(&mut self, highest: u64, open: u64) -> bool {
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

/// Gives memory back whenever most of many sessions have ended. Never returns.
pub(crate) async fn give_back(node: &Node) {
    let mut bursts = BurstWatch::default();
    loop {
        sleep(LOOK).await;
        let (highest, open) = node.take_peak();
        if bursts.look(highest, open) {
            node.mesh().close_after_bursts();
            // It takes some milliseconds, and sessions need not wait for it.
            let _ = tokio::task::spawn_blocking(trim).await;
        }
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "a call into the C library")]
fn trim() {
    // SAFETY: the call takes no pointer, may be made from any thread at any time, and releases only
    // pages that no allocation uses.
    let gave = unsafe { libc::malloc_trim(0) };
    tracing::debug!(gave = gave == 1, "free memory is given back to the kernel");
}

/// Other C libraries give it back by themselves, or have no way to.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn trim() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_given_back_in_steps_after_each_burst_and_never_else() {
        let mut bursts = BurstWatch::default();
        let given = |bursts: &mut BurstWatch, open: &[u64]| -> Vec<bool> {
            open.iter().map(|open| bursts.look(*open, *open)).collect()
        };
        assert_eq!(given(&mut bursts, &[0, 3, 200, 90, 0]), [false; 5], "too few to matter");
        let burst = [5_000, 10_000, 6_000, 4_000, 4_100, 4_000, 4_000, 4_000];
        let due = [false, false, false, true, true, true, true, false];
        assert_eq!(given(&mut bursts, &burst), due);
        assert_eq!(given(&mut bursts, &[10, 10, 10, 10, 10]), [true, true, true, true, false]);
        assert_eq!(given(&mut bursts, &[0, 0, 0]), [false; 3]);
        assert!(bursts.look(3_000, 0), "over between two looks");
        assert_eq!(given(&mut bursts, &[0, 0, 0, 0]), [true, true, true, false]);
    }

    /// KiB of this process's memory that are not of a file.
    #[cfg(target_os = "linux")]
    fn resident() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").expect("the kernel tells");
        let line = status.lines().find(|line| line.starts_with("RssAnon:")).expect("it is told");
        line.split_ascii_whitespace().nth(1).and_then(|it| it.parse().ok()).expect("a number")
    }

    #[test]
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    fn what_is_free_between_pieces_in_use_is_given_back() {
        // Pieces of the size that sessions have, of which the last stays.
        let mut pieces: Vec<Vec<u8>> = (0..40_000).map(|_| vec![1; 2_000]).collect();
        let before = resident();
        let last = pieces.pop();
        drop(pieces);
        trim();
        let after = resident();
        assert!(after + 40_000 < before, "{before} KiB stay {after} KiB");
        drop(last);
    }
}
