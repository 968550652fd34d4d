//! The daemon: every edge of the product in one process, one thread.

mod handle;

pub use handle::Handle;
