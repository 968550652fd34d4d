//! meshport: the nearest healthy apiserver behind one local address, on every node.
//!
//! The crate is the product around the pure parts of `config`, `mesh` and `discovery`:
//!
//! * [`core`] decides. It is pure: membership, origin health and routes behind one verb set
//!   (`handle_*`, `poll_transmit`, `poll_event`, `poll_timeout`). The daemon and the simulator
//!   drive the very same code.
//! * [`wire`] is the header at the start of every proxied stream, and the answer to it.
//! * [`daemon`] holds the edges: sockets, sessions, the state folder, signals, the clock.
//! * [`admin`] answers questions about a running daemon over a socket and loopback HTTP.
//! * [`cli`] turns a command line into one of the above.

pub mod admin;
pub mod cli;

mod certificate;
pub mod daemon;
pub mod demo;
mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub mod wan;

pub use error::Error;
