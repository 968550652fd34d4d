//! Many nodes in many datacenters, in virtual time, from one seed.
//!
//! Every simulated node is the daemon's own decision code ([`meshport_core::node::NodeCore`]); what
//! is simulated is the world around it: links ([`meshport_demo::wan::link`]), tunnels, instances,
//! clients and the clock. One event queue orders everything, so a scenario and a seed determine the
//! run to the last byte, which [`trace::TraceHash`] shows.
//!
//! * [`scenario`] is what a run is made from: a TOML file, strictly read.
//! * [`world`] is the event queue and what it acts on, and the rules that must hold.
//! * `level` is what the wide level, [`full`] and [`lab`] share: rules, measures, clients.
//! * [`measure`] is what is measured, [`report`] is what a run says.
//! * [`storm`] makes random small worlds, for hunting.
//! * `serve` lets a world go on in real time, with the daemon's page on it.
//! * [`cli`] is the tool `meshport-sim`.

mod brain;
pub mod cli;
mod error;
mod flight;
pub mod full;
mod heap;
mod identity;
mod instance;
pub mod lab;
mod level;
pub mod measure;
mod network;
mod queue;
pub mod report;
mod rules;
pub mod scenario;
mod serve;
pub mod storm;
pub mod trace;
mod tunnel;
pub mod world;

pub use error::Error;
