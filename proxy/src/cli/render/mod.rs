//! Answers as text for people.
//!
//! Pure functions from the admin types to a `String`: no clock, no terminal, plain ASCII of their
//! own. `width` is the columns of the terminal; `None` means that the text goes to a file or a pipe
//! and nothing is cut. Text that a peer could have written is shown without control characters.

mod credentials;
mod explain;
mod peers;
mod ping;
mod routes;
mod status;
mod table;
mod units;

pub(crate) use self::credentials::credentials;
pub(crate) use self::explain::explain;
pub(crate) use self::peers::peers;
pub(crate) use self::ping::{PingSummary, ping_header, ping_line, ping_summary};
pub(crate) use self::routes::routes;
pub(crate) use self::status::status;

#[cfg(test)]
pub(crate) mod tests;
