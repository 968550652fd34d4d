//! Start, reload, sandbox and end of the process.

mod daemon;
pub mod dashboard;
mod draining;
mod heap;
pub mod leaf;
mod previous;
pub(crate) mod reload;
pub mod run;
mod sandbox;
pub mod starter;
mod stop;
pub mod suspend;
pub mod upgrade;

use std::time::Duration;

/// How long open sessions may continue after SIGTERM. Long-lived watches never end by themselves,
/// and clients reconnect elsewhere within a second.
const DRAIN_TIME: Duration = Duration::from_secs(10);
