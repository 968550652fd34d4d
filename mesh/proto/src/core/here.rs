//! Messages in every session about the sender's process and the receiver's address as the sender
//! sees it.
//!
//! The first distinguishes a restart from a second process with the same key (see
//! [`Processes`](crate::processes::Processes)); the second shows a node behind NAT its outside
//! address. Both are accepted from admitted peers only, and the second only as a hint.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::{Core, Source, canonical};
use crate::MeshCount;
use crate::admission::Control;
use crate::event::{MeshEvent, Now, Route};
use crate::peers::Slot;
use crate::ports;
use crate::processes::{Duplicate, Found};

/// Minimum interval between these messages to a peer whose address keeps changing within a session.
const HERE_GAP: Duration = Duration::from_secs(1);
/// Minimum interval between accepted reports of a peer about a second process with this node's key.
const DUPLICATE_GAP: Duration = Duration::from_secs(5);
/// Interval between attempts to reach the other of two processes: a handshake and the exchange of
/// credentials with each fit in between.
const SEEK_GAP: Duration = Duration::from_millis(700);
/// Attempts after the first: the two processes take turns, so each is reached several times in 10
/// s.
const MAX_SEEKS: u8 = 12;

impl Core {
    /// Sends a peer this node's instance and the peer's address, once for each session and address.
    pub(super) fn say_here(&mut self, slot: Slot, now: Now) {
        let instance = self.local.instance;
        let Some(peer) = self.peers.get_mut(slot) else { return };
        let (endpoint, admitted) = (peer.endpoint, peer.admission.admitted);
        let here = peer.here();
        let (Some(route), Some(session), true) = (endpoint, here.newest, admitted) else { return };
        let is_recent = |at: Instant| now.instant.saturating_duration_since(at) < HERE_GAP;
        if here.said.is_some_and(|(said, you, at)| {
            said == session && (you == route.remote || is_recent(at))
        }) {
            return;
        }
        here.said = Some((session, route.remote, now.instant));
        let here = Control::Here { instance, you: route.remote };
        self.send_control(slot, now, ports::CONTROL, &here);
    }

    pub(super) fn take_here(&mut self, source: Source, now: Now, instance: u64, you: SocketAddr) {
        let Some(peer) = self.peers.get_mut(source.slot).filter(|peer| peer.admission.admitted)
        else {
            return;
        };
        let you = canonical(&you);
        if peer.here().sees_me_at.replace(you) != Some(you) {
            let by = peer.node;
            self.out.tell(MeshEvent::SeenAt { by, at: you });
        }
        self.note_process(source, now, instance);
    }

    /// Handles a process's instance number in a session.
    pub(super) fn note_process(&mut self, source: Source, now: Now, instance: u64) {
        let Source { slot, session } = source;
        let Some(peer) = self.peers.get_mut(slot) else { return };
        let (Some(route), Some(agreed)) = (peer.endpoint, peer.schedule.session_since()) else {
            return;
        };
        let node = peer.node;
        // Only the newest message shows the current process.
        let here = peer.here();
        if here.newest != Some(session) {
            return;
        }
        let found = here.processes.note(instance, route.remote, agreed, now.instant);
        match found {
            Found::Same => {}
            // If it still runs there, it answers and identifies itself.
            Found::Another { before } if before != route.remote => {
                self.seek(slot, now, Route::from(before));
            }
            Found::Another { .. } => {}
            Found::Duplicate(Duplicate { at, tell, seek, report }) => {
                self.out.counters[MeshCount::DuplicatesSeen] += 1;
                let [_, other] = at;
                if report {
                    self.out.tell(MeshEvent::Duplicate { node, at });
                }
                if seek {
                    here.seeking = Some((now.instant + SEEK_GAP, MAX_SEEKS));
                }
                if tell {
                    let duplicate = Control::Duplicate { at: other };
                    self.send_control(slot, now, ports::CONTROL, &duplicate);
                }
                if seek {
                    self.seek(slot, now, Route::from(other));
                    self.arm(slot);
                }
            }
        }
    }

    /// Makes a handshake with the process that is not in the tunnel. Each displaces the other
    /// there, and accepts nothing before this node has presented its credential, so messages to it
    /// may be lost.
    pub(super) fn seek_other(&mut self, slot: Slot, now: Now) {
        let Some(peer) = self.peers.get_mut(slot) else { return };
        let here = peer.here();
        let left = here.seeking.map_or(0, |(_, left)| left.saturating_sub(1));
        here.seeking = (left > 0).then_some((now.instant + SEEK_GAP, left));
        if let Some(other) = here.processes.other() {
            self.seek(slot, now, Route::from(other));
        }
    }

    /// Handles a peer's report of two processes with this node's key.
    pub(super) fn take_duplicate(&mut self, slot: Slot, now: Now, at: SocketAddr) {
        let Some(peer) = self.peers.get_mut(slot).filter(|peer| peer.admission.admitted) else {
            return;
        };
        let is_recent = |at: Instant| now.instant.saturating_duration_since(at) < DUPLICATE_GAP;
        self.out.counters[MeshCount::DuplicatesTold] += 1;
        let here = peer.here();
        if !here.duplicate_told.is_some_and(is_recent) {
            here.duplicate_told = Some(now.instant);
            let by = peer.node;
            self.out.tell(MeshEvent::OwnDuplicate { by, at: canonical(&at) });
        }
    }
}
