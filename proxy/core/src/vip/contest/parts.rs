//! The state of a contest: the successor, disputes, and the last frames on the LAN.

use super::super::boot_time::BootTime;
use super::super::frame::Hardware;

/// The standby that is ready to take the address.
#[derive(Debug, Clone, Copy)]
pub(super) struct Successor {
    pub(super) hardware: Hardware,
    pub(super) since: BootTime,
    /// The LAN has been told that the address is there.
    pub(super) is_named: bool,
}

/// A station that says it has the address while this node holds it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dispute {
    pub(super) since: BootTime,
    pub(super) last: BootTime,
}

/// What was last heard and said on the LAN about who has the address.
#[derive(Debug, Default)]
pub(super) struct Wire {
    pub(super) dispute: Option<Dispute>,
    pub(super) defended: Option<BootTime>,
    /// When a station was last heard that has the address.
    pub(super) heard: Option<BootTime>,
}

/// From when on the address may be given away again without need.
#[derive(Debug)]
pub(super) struct Given {
    /// To a preferred node.
    pub(super) handover: BootTime,
    /// Because nobody hears this one.
    pub(super) isolation: BootTime,
}
