//! `meshport top`: one node's view of the mesh on a terminal, kept up to date.
//!
//! [`Model`] is pure: views and keys go in, the content of the screen comes out. [`draw()`] puts it
//! into a buffer of characters and knows no terminal. [`run()`] is the only part with I/O: it asks
//! the daemon for `/view`, reads keys and draws what has changed.
//!
//! Every text that others could have written passes [`meshport_core::units::clean`] in `grid` or
//! [`look`], so it cannot reach the terminal as a command.
//!
//! Bounds: one view at a time, which the daemon bounds; [`model::MAX_SEARCH`] characters of a
//! search; [`run::MAX_WAITING`] answers that wait to be shown.

pub mod draw;
mod grid;
pub mod look;
pub mod model;
mod nodes;
pub mod run;
mod series;
mod sites;

pub use self::draw::draw;
pub use self::look::Look;
pub use self::model::{Key, Model};
pub use self::run::{Options, run};

#[cfg(test)]
mod tests;
