//! The services that a program on this machine offers.

use std::time::Instant;

use meshport_core::node::NodeCore;

use crate::admin::api::OfferedStatus;

/// Each offered service as the status shows it.
pub(super) fn offered(core: &NodeCore, now: Instant) -> Vec<OfferedStatus> {
    let ends = core.offered_until().map(|ends| ends.saturating_duration_since(now));
    let rows = core.offered().iter().map(|(name, offer)| OfferedStatus {
        name: name.clone(),
        instances: offer.addresses.clone(),
        allow: offer.allow.iter().map(ToString::to_string).collect(),
        ends_in_s: ends.unwrap_or_default().as_secs(),
    });
    rows.collect()
}
