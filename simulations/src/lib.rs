//! Many nodes in many datacenters, in virtual time, from one seed.
//!
//! Every simulated node runs the daemon's own decision code ([`meshport_core::node::NodeCore`]).
//! The world around it is simulated: links ([`meshport_demo::wan::link`]), tunnels, instances,
//! clients and the clock. One event queue orders everything, so a scenario and a seed determine the
//! run to the last byte, as [`trace::TraceHash`] shows.
//!
//! * [`scenario`] describes a run: a strictly parsed TOML file.
//! * [`world`] has the event queue, its handlers, and the rules that must hold.
//! * `level` has what the wide level, [`full`] and [`lab`] share: rules, measures, clients.
//! * [`measure`] defines the measures, [`report`] the output of a run.
//! * [`storm`] generates random small worlds to find bugs.
//! * `serve` runs a world in real time, with the daemon's page.
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
