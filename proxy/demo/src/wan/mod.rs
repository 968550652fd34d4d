//! An emulated wide-area network, for the demo, the tests and the simulator.
//!
//! * [`link`] decides what one direction of one path does to a datagram. It is pure and seeded:
//!   no clock, no socket, no runtime.
//! * [`shaper`] carries real UDP datagrams between real processes on one machine and lets a link
//!   decide about each of them.

pub mod link;
pub mod shaper;

pub use link::{Deliveries, DropReason, Jitter, Link, LinkConfig, Loss, Rate, Verdict};
pub use shaper::{Cut, Shaper, ShaperConfig, ShaperCounters};
