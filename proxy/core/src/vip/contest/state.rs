//! The state of a contest: the successor, disputes, and the last frames on the LAN.

use super::super::boot_time::BootTime;
use super::super::frame::Hardware;
use super::times::REPEAT_INTERVAL;

/// The standby that is ready to take the address.
#[derive(Debug, Clone, Copy)]
pub(super) struct Successor {
    pub(super) hardware: Hardware,
    pub(super) since: BootTime,
    /// Whether the LAN was pointed at that station.
    pub(super) is_named: bool,
}

/// A station that announces the address while this node holds it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dispute {
    pub(super) since: BootTime,
    pub(super) last: BootTime,
}

/// What was last heard and sent about the holder of the address.
#[derive(Debug, Default)]
pub(super) struct Wire {
    pub(super) dispute: Option<Dispute>,
    pub(super) defended: Option<BootTime>,
    /// When a station with the address was last heard.
    pub(super) heard: Option<BootTime>,
    /// The station that last announced the address, here or over the mesh.
    pub(super) holder: Option<Hardware>,
}

impl Wire {
    /// A station announces the address on the LAN.
    pub(super) fn note_frame(&mut self, hardware: Hardware, now: BootTime) {
        (self.heard, self.holder) = (Some(now), Some(hardware));
    }

    /// A station claims over the mesh to hold the address. The LAN is faster, so what was just
    /// heard there is newer.
    pub(super) fn note_claim(&mut self, hardware: Hardware, now: BootTime) {
        if self.heard.is_none_or(|heard| now.since(heard) >= REPEAT_INTERVAL) {
            self.holder = Some(hardware);
        }
    }

    /// Whether `hardware` was the last to announce the address, as far as this node has heard.
    pub(super) fn may_hold(&self, hardware: Hardware) -> bool {
        self.holder.is_none_or(|holder| holder == hardware)
    }
}

/// The earliest times of the next voluntary handovers.
#[derive(Debug)]
pub(super) struct Given {
    /// To a preferred node.
    pub(super) handover: BootTime,
    /// Because no other node hears this one.
    pub(super) isolation: BootTime,
}
