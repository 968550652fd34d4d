//! How much freed memory this process keeps at hand. The other file with unsafe code that the
//! daemon runs: the C library takes this setting from a call or from its environment only.

/// Freed memory at the end of the heap beyond which it goes back to the system, in bytes. A batch
/// of 32 jumbo frames takes 290 kB and is freed as a whole: with the usual 128 KiB that memory went
/// back and was asked for again with each batch, a page fault for every 4 KiB of data.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const KEPT: i32 = 512 * 1024;

/// Keeps as much at hand as a batch of datagrams takes. To be called before there are threads.
pub(super) fn keep_a_batch() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    set_trim_threshold(KEPT);
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "a setting of the C library's allocator")]
fn set_trim_threshold(bytes: i32) {
    // SAFETY: takes two numbers and stores one of them in the allocator, under its own lock. It can
    // fail only for settings that do not exist, and then nothing has changed.
    let stored = unsafe { libc::mallopt(libc::M_TRIM_THRESHOLD, bytes) };
    debug_assert_eq!(stored, 1, "the C library does not know this setting");
}
