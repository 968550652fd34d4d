//! Listeners for clients that run no meshport (`[[expose]]`).
//!
//! A connection is checked at accept, before any byte is read ([`meshport_core::expose::gate`]).
//! Then the PROXY header is read if the peer is a configured load balancer, and the TLS ClientHello
//! if the service depends on the server name. After that it is an ordinary session of the service.
//!
//! Bounds: a connection is admitted within [`OPENING_LIMIT`] and has sent at most [`MAX_SAID`]
//! bytes by then; sessions, sources and rates are bounded by the listener's settings.

mod arrival;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod hello;
mod listener;
mod listeners;

use std::time::Duration;

pub(crate) use self::listeners::{ExposeOwner, ExposedCounts, Exposures};

/// Limit for a client or its load balancer to send header and hello. Clients time out after about
/// ten seconds.
pub(crate) const OPENING_LIMIT: Duration = Duration::from_secs(5);
/// Maximum bytes read to find the client's address and the service: a header and a ClientHello with
/// post-quantum keys and a ticket take less than half.
pub(crate) const MAX_SAID: usize = 16 << 10;
