//! Renders answers as text.
//!
//! Pure functions from the admin types to a `String`: no clock, no terminal, and plain ASCII except
//! the colours of a [`Style`]. Control characters are removed from text that comes from peers.

mod credentials;
mod explain;
mod peers;
mod ping;
mod routes;
mod stats;
mod status;
mod style;
mod table;
mod way;

pub(crate) use self::credentials::credentials;
pub(crate) use self::explain::explain;
pub(crate) use self::peers::peers;
pub(crate) use self::ping::{PingSummary, ping_header, ping_line, ping_summary};
pub(crate) use self::routes::routes;
pub(crate) use self::stats::{stats, stats_csv};
pub(crate) use self::status::{WARNINGS, status};
pub(crate) use self::style::{Style, Tone};
pub(crate) use self::table::{toned, wrapped};
pub(crate) use self::way::way;
pub(crate) use meshport_core::units::{age, counted};

#[cfg(test)]
pub(crate) mod tests;
