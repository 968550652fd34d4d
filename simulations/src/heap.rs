//! Counts the memory that the allocator has given out.

/// Bytes in use on the heap, with the allocator's overhead; none if the C library does not report
/// them. Off by the few chunks that each thread caches.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(crate) fn in_use() -> Option<u64> {
    #[expect(unsafe_code, reason = "the C library's interface")]
    // SAFETY: it takes no arguments and reads the allocator's own counters under the allocator's
    // locks.
    let books = unsafe { libc::mallinfo2() };
    u64::try_from(books.uordblks + books.hblkhd).ok()
}

/// Bytes in use on the heap: the C library does not report them.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(crate) fn in_use() -> Option<u64> {
    None
}
