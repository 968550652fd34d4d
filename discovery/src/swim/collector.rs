//! Collects the requests of the protocol during one call: packets, timers, notices.

use std::time::Duration;

use meshport_config::NodeId;

use super::format::Id;
use super::{IDS, Notification, Runtime, Timer, TimerToken, messages};
use crate::wire::Short;

/// A change of a member, or of this node.
#[derive(Debug, Clone, Copy)]
pub(super) enum Notice {
    Up,
    Down,
    Renamed,
    Renewed,
}

/// Collects it, to be taken over when the call is done.
#[derive(Debug, Default)]
pub(super) struct Collector {
    pub(super) sends: Vec<(Short, Vec<u8>)>,
    /// The receiver of one of them, known or not.
    pub(super) stranger: Option<NodeId>,
    pub(super) timers: Vec<(Timer<Id>, Duration)>,
    pub(super) notices: Vec<(Notice, Id)>,
    /// The token of the protocol's current timers.
    pub(super) token: Option<TimerToken>,
}

impl Collector {
    /// Removes gossip without any claim: the backlog ran out before the round did. A refutation has
    /// no claim either, since it is in the header, but it does not pass here.
    pub(super) fn drop_empty_gossip(&mut self) {
        self.sends.retain(|(_, bytes)| !messages::is_empty_gossip(bytes));
    }
}

impl Runtime<Id> for Collector {
    fn notify(&mut self, notification: Notification<'_, Id>) {
        self.notices.push(match notification {
            Notification::MemberUp(id) => (Notice::Up, *id),
            Notification::MemberDown(id) => (Notice::Down, *id),
            Notification::Rename(_, id) => (Notice::Renamed, *id),
            Notification::Rejoin(id) => (Notice::Renewed, *id),
            Notification::Active | Notification::Idle | Notification::Defunct => return,
        });
    }

    fn send_to(&mut self, to: Id, data: &[u8]) {
        self.sends.push((to.short, data[IDS..].to_vec()));
    }

    fn submit_after(&mut self, timer: Timer<Id>, after: Duration) {
        if let Timer::ProbeRandomMember(token) = &timer {
            self.token = Some(*token);
        }
        self.timers.push((timer, after));
    }
}
