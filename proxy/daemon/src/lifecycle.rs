//! Start, reload, sandbox and end of the process.

pub mod dashboard;
pub(crate) mod descriptors;
mod heap;
pub mod leaf;
pub(crate) mod reload;
pub mod run;
mod sandbox;
pub mod starter;
pub mod suspend;
pub mod upgrade;
