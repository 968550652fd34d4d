//! The daemon: every edge of the product in one process, on a thread for each shard of the mesh.
//!
//! [`run()`] is the process around one [`Node`], which joins the parts. Data flows one way: clients
//! are accepted in `listen`, find an origin in `session` and `attempt`, and are carried by
//! `splice`; streams of other nodes come in through `egress`; decisions are made by the core,
//! which only `driver` touches; `report` and `handle` answer questions. Sessions are carried on the
//! thread of the peer they go to or come from; everything else is on the main one.

pub mod admin;
mod attempt;
mod audit;
#[doc(hidden)]
pub mod bench;
pub mod certificate;
pub mod certificates;
pub mod clock;
mod code;
mod descriptors;
mod driver;
mod egress;
mod endpoints;
mod error;
mod fallback;
mod floods;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod handle;
pub mod handshake;
mod heap;
pub mod leaf;
mod listen;
mod load;
mod log_budget;
mod node;
mod pacing;
mod parts;
mod ping;
mod probe;
mod reload;
mod report;
mod roster;
mod rotation;
mod run;
mod sandbox;
mod seats;
mod seeds;
mod services;
mod session;
mod sessions;
mod sightings;
mod splice;
pub mod state;
pub mod succession;
pub mod tcp;
mod tell;
#[cfg(test)]
pub(crate) mod testing;
mod told;
mod totals;
pub mod vigil;
pub mod who;

pub use driver::Snapshot;
pub use error::Error;
pub use handle::Handle;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use handle::Question;
pub use leaf::Leaf;
pub use node::{Ground, Node};
pub use run::{Options, Source, run};
pub use state::{Identity, StateDir};
