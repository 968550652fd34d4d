//! How much freed memory the C library keeps at hand.

use std::hint::black_box;

/// More than a batch of frames and datagrams takes; see [`settle`].
const AT_HAND: usize = 256 * 1024;

/// Lets the allocator keep about twice [`AT_HAND`] of freed memory at the top of its heap.
///
/// A batch of jumbo frames takes more than glibc keeps by default, so that after each one memory
/// goes back to the kernel, and the next takes it again a page fault at a time. What glibc keeps
/// grows when a large piece is given back (`mallopt(3)`, `M_MMAP_THRESHOLD`: the dynamic
/// threshold), and nobody touches this one, so it costs no memory. Other allocators do not care.
pub(super) fn settle() {
    drop(black_box(Vec::<u8>::with_capacity(AT_HAND)));
}
