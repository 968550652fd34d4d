//! The election of the node that answers for a virtual address, as one node sees it.
//!
//! A standby claims the address after [`SILENCE`] without any sign of a holder, on the LAN or over
//! the mesh, and after unanswered probes. The holder gives a sign every [`REPEAT_INTERVAL`] and
//! loses the address once [`LEASE`] has passed since its last announcement. `LEASE` is shorter than
//! `SILENCE`, so a suspended holder has lost the address before another node claims it, and a dead
//! one leaves nothing behind.
//!
//! Two holders (after a LAN partition has healed) hear each other's announcements. The one with the
//! lower hardware address stays: every frame shows both, so they agree without the mesh. Preference
//! (priority, then node) only decides which standby claims, and whether a holder hands over.
//!
//! A releasing holder chooses the moment: a standby that has probed reports that it is ready, and
//! the holder points the LAN at it between two short connections, since connections that are open
//! when the address moves are reset.
//!
//! That there is at most one holder assumes that messages arrive within `SILENCE -
//! REPEAT_INTERVAL`. Otherwise (LAN and mesh are both partitioned), each side has one.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use meshport_config::NodeId;

use super::boot_time::BootTime;
use super::claim::{Claim, Stance};
use super::frame::{Frame, Hardware, Heard};
use state::{Dispute, Given, Successor, Wire};
use times::{
    BUSY_LIMIT, BUSY_LOOK_INTERVAL, CONFLICT_QUIET, CONTEST_LIMIT, DEFENCE_INTERVAL, DEFERENCE,
    HANDOVER_INTERVAL, ISOLATION, ISOLATION_INTERVAL, LOOK_INTERVAL, MIN_WITNESSES, PROBE_SLACK,
    QUIET, READY_LIMIT, REFRESH_PERIOD, RELEASE_LIMIT, RELEASE_STALL, STALL,
};
pub use times::{LEASE, PROBE_INTERVAL, PROBES, REPEAT_INTERVAL, SETTLED, SILENCE};

/// Maximum other nodes of a group; more are ignored.
pub const MAX_PEERS: usize = 16;
/// Frames that wait to be sent. Further answers are dropped: clients ask again.
const MAX_FRAMES: usize = 64;
/// Events that wait to be read.
const MAX_EVENTS: usize = 16;

/// The constants of a contest.
#[derive(Debug, Clone, Copy)]
pub struct Contender {
    /// This node.
    pub node: NodeId,
    /// The daemon's start number; later starts have larger ones.
    pub incarnation: u64,
    /// The address of the interface that answers.
    pub hardware: Hardware,
    /// Larger numbers are preferred.
    pub priority: u8,
}

/// Why the address was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// Another station holds it: one with a lower hardware address, or one that does not yield.
    Contested(Hardware),
    /// Another holder, which keeps the address, announced itself over the mesh.
    Claimed(NodeId),
    /// No announcement was sent for too long.
    Stalled,
    /// No origin is usable from here.
    Unusable,
    /// The interface cannot send.
    Cut,
    /// A preferred node takes it.
    HandedOver,
    /// The others hear this node over the mesh, but none of them on the LAN.
    Isolated,
    /// The daemon stops.
    Stopped,
}

/// A change for this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// It now answers for the address.
    Gained,
    /// It no longer answers.
    Lost(Loss),
}

/// Something to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transmit {
    /// To the LAN.
    Frame(Frame),
    /// To the nodes of the group, over the mesh.
    Claim(Claim),
}

#[derive(Debug, Clone, Copy)]
enum State {
    Listening,
    Probing { sent: u8, due: BootTime },
    Holding { since: BootTime, announced: BootTime, due: BootTime },
    Ready { until: BootTime },
    Releasing { until: BootTime, why: Loss, successor: Option<Successor> },
    Stopped,
}

#[derive(Debug)]
struct Peer {
    claim: Claim,
    heard: BootTime,
    /// Time since which it has been usable and preferred to this node.
    preferred_since: Option<BootTime>,
    /// Since when it has heard no holder on the LAN.
    deaf_since: Option<BootTime>,
}

/// This node's part in the contest for one address.
///
/// All methods take the time, and first handle a late call.
#[derive(Debug)]
pub struct Contest {
    own: Contender,
    state: State,
    usable: bool,
    /// When short connections were last open.
    busy: BootTime,
    peers: BTreeMap<NodeId, Peer>,
    /// The latest time passed in.
    seen: BootTime,
    /// Time from which the address counts as free of a holder.
    clear: BootTime,
    /// Time before which this node may not probe in any case.
    quiet: BootTime,
    /// Time of the next check of a node that waits for another.
    look: BootTime,
    wire: Wire,
    given: Given,
    claim_due: BootTime,
    sequence: u64,
    frames: VecDeque<Frame>,
    events: VecDeque<Event>,
}

impl Contest {
    /// A new standby, which waits for [`SILENCE`].
    pub fn new(own: Contender, now: BootTime) -> Self {
        Self {
            own,
            state: State::Listening,
            usable: false,
            busy: now,
            peers: BTreeMap::new(),
            seen: now,
            clear: now + SILENCE,
            quiet: now,
            look: now,
            wire: Wire::default(),
            given: Given { handover: now, isolation: now },
            claim_due: now,
            sequence: 0,
            frames: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Whether clients are answered at `now`. A holder that has not run for [`LEASE`] is no longer
    /// one.
    pub fn answers(&self, now: BootTime) -> bool {
        match self.state {
            State::Holding { announced, .. } => now.since(announced) < LEASE,
            State::Releasing { until, .. } => now < until && now.since(self.seen) < RELEASE_STALL,
            _ => false,
        }
    }

    /// This node's role, as it announces it.
    pub fn stance(&self) -> Stance {
        match self.state {
            State::Holding { .. } => Stance::Holding,
            State::Releasing { .. } => Stance::Releasing,
            State::Ready { .. } => Stance::Ready,
            State::Listening | State::Probing { .. } | State::Stopped => Stance::Standby,
        }
    }

    /// The other node that claims over the mesh to hold the address.
    pub fn holder(&self, now: BootTime) -> Option<NodeId> {
        let holds = |peer: &Peer| peer.claim.stance == Stance::Holding && peer.is_fresh(now);
        self.peers.iter().find(|(_, peer)| holds(peer)).map(|(node, _)| *node)
    }

    /// The other nodes of the group that are heard over the mesh.
    pub fn others(&self, now: BootTime) -> impl Iterator<Item = NodeId> {
        self.peers.iter().filter(move |(_, peer)| peer.is_fresh(now)).map(|(node, _)| *node)
    }

    /// Handles a change of the interface's hardware address. A holder announces it at once.
    pub fn handle_hardware(&mut self, hardware: Hardware, now: BootTime) {
        self.observe(now);
        if self.own.hardware == hardware {
            return;
        }
        self.own.hardware = hardware;
        self.claim_due = now;
        if matches!(self.state, State::Holding { .. }) {
            self.announce(true);
        }
    }

    /// Whether a clean stop is complete.
    pub fn is_stopped(&self) -> bool {
        matches!(self.state, State::Stopped)
    }

    /// Handles whether an origin is usable from here and the interface can send.
    pub fn handle_usable(&mut self, usable: bool, now: BootTime) {
        self.observe(now);
        if self.usable == usable {
            return;
        }
        self.usable = usable;
        self.claim_due = now;
        match self.state {
            State::Holding { .. } if !usable => self.release(Loss::Unusable, now),
            State::Probing { .. } | State::Ready { .. } if !usable => {
                self.state = State::Listening;
            }
            _ => {}
        }
    }

    /// Handles that the interface cannot send. Nothing can point the LAN at a successor then, so a
    /// holder yields to the first that is ready.
    pub fn handle_cut(&mut self, now: BootTime) {
        self.observe(now);
        match &mut self.state {
            State::Holding { .. } => self.release(Loss::Cut, now),
            State::Releasing { why: why @ Loss::Unusable, .. } => *why = Loss::Cut,
            _ => {}
        }
        self.handle_usable(false, now);
    }

    /// Handles whether short connections to the address are open.
    pub fn handle_busy(&mut self, busy: bool, now: BootTime) {
        self.observe(now);
        if busy {
            self.busy = now;
        }
    }

    /// Handles a claim of `from`, which the mesh has authenticated as a member of the group.
    pub fn handle_claim(&mut self, from: NodeId, claim: Claim, now: BootTime) {
        self.observe(now);
        if from == self.own.node || !self.remember(from, claim, now) {
            return;
        }
        match (claim.stance, self.state) {
            (Stance::Holding, State::Holding { .. }) => {
                let stays = (self.own.hardware, self.own.node) < (claim.hardware, from);
                if !stays {
                    self.lose(Loss::Claimed(from), QUIET, now);
                }
            }
            (Stance::Holding, State::Releasing { why, .. }) => self.lose(why, QUIET, now),
            (Stance::Holding, State::Probing { .. } | State::Ready { .. }) => {
                self.state = State::Listening;
            }
            // This node cannot announce its location on the LAN.
            (Stance::Ready, State::Releasing { why: why @ (Loss::Isolated | Loss::Cut), .. }) => {
                self.lose(why, QUIET, now);
            }
            (Stance::Ready, State::Releasing { until, why, successor: None }) => {
                let hardware = claim.hardware;
                let successor = Some(Successor { hardware, since: now, is_named: false });
                self.state = State::Releasing { until, why, successor };
            }
            // The holder is gone.
            (Stance::Standby, State::Ready { .. }) if !self.is_released(now) => self.gain(now),
            _ => {}
        }
        match claim.stance {
            Stance::Holding => {
                self.clear = now + SILENCE;
                self.wire.note_claim(claim.hardware, now);
            }
            // The holder itself announces that the address is free. Claims of its predecessor may
            // arrive after its own announcement.
            Stance::Releasing if !self.answers(now) && self.wire.may_hold(claim.hardware) => {
                self.clear = self.clear.min(now);
            }
            Stance::Releasing | Stance::Standby | Stance::Ready => {}
        }
    }

    /// Handles a received frame about the address.
    pub fn handle_frame(&mut self, heard: Heard, now: BootTime) {
        self.observe(now);
        match heard {
            Heard::Claimed(hardware) if hardware != self.own.hardware => {
                self.handle_other(hardware, now);
            }
            Heard::Probed(hardware) if hardware != self.own.hardware => match self.state {
                State::Holding { .. } => self.defend(now),
                State::Probing { .. } if hardware < self.own.hardware => {
                    self.state = State::Listening;
                    self.clear = now + SILENCE;
                }
                _ => {}
            },
            // The holder announces it.
            Heard::Claimed(_) if matches!(self.state, State::Ready { .. }) => self.gain(now),
            Heard::Asked { hardware, ip } if self.answers(now) => {
                if self.frames.len() < MAX_FRAMES {
                    self.frames.push_back(
                        self.named().map_or(Frame::Answer { hardware, ip }, Frame::Cede),
                    );
                }
            }
            Heard::Claimed(_) | Heard::Probed(_) | Heard::Asked { .. } => {}
        }
    }

    /// Releases the address and stops taking part; complete at [`Contest::is_stopped`].
    pub fn handle_stop(&mut self, now: BootTime) {
        self.observe(now);
        self.usable = false;
        self.claim_due = now;
        match &mut self.state {
            State::Holding { .. } => self.release(Loss::Stopped, now),
            State::Releasing { why, .. } => *why = Loss::Stopped,
            state => *state = State::Stopped,
        }
    }

    /// Advances time.
    pub fn handle_timeout(&mut self, now: BootTime) {
        self.observe(now);
        match self.state {
            State::Releasing { successor: Some(it), .. } if !it.is_named => {
                self.look = now + BUSY_LOOK_INTERVAL;
            }
            State::Releasing { .. } => self.look = now + LOOK_INTERVAL,
            _ if now >= self.clear => self.look = now + LOOK_INTERVAL,
            _ => {}
        }
        match self.state {
            State::Listening if self.may_probe(now) => {
                self.frames.clear();
                self.frames.push_back(Frame::Probe);
                self.state = State::Probing { sent: 1, due: now + PROBE_INTERVAL };
            }
            State::Probing { sent, due } if now >= due && sent < PROBES => {
                self.frames.push_back(Frame::Probe);
                self.state = State::Probing { sent: sent + 1, due: now + PROBE_INTERVAL };
            }
            State::Probing { due, .. } if now >= due && self.is_released(now) => {
                self.state = State::Ready { until: now + READY_LIMIT };
                self.claim_due = now;
            }
            State::Probing { due, .. } if now >= due => self.gain(now),
            State::Ready { until } if now >= until => self.gain(now),
            State::Releasing { until, why, successor: Some(it) }
                if !it.is_named && self.may_move(it.since, now) =>
            {
                self.frames.push_back(Frame::Cede(it.hardware));
                let successor = Some(Successor { is_named: true, ..it });
                self.state = State::Releasing { until, why, successor };
            }
            State::Holding { since, announced, due } if now >= due => {
                self.announce(now.since(since) < REFRESH_PERIOD);
                self.state = State::Holding { since, announced, due: now + REPEAT_INTERVAL };
                let settled = |peer: &Peer| {
                    let since = peer.preferred_since.filter(|_| peer.is_fresh(now));
                    since.is_some_and(|since| now.since(since) >= SETTLED)
                };
                if now >= self.given.isolation && self.is_isolated(since, now) {
                    self.given.isolation = now + ISOLATION_INTERVAL;
                    self.release(Loss::Isolated, now);
                } else if now >= self.given.handover && self.peers.values().any(settled) {
                    self.given.handover = now + HANDOVER_INTERVAL;
                    self.release(Loss::HandedOver, now);
                }
            }
            _ => {}
        }
    }

    /// The next message to send. Outdated messages are dropped.
    pub fn poll_transmit(&mut self, now: BootTime) -> Option<Transmit> {
        self.observe(now);
        if let Some(frame) = self.frames.pop_front() {
            if let (Frame::Announce, State::Holding { announced, .. }) = (frame, &mut self.state) {
                *announced = now;
            }
            return Some(Transmit::Frame(frame));
        }
        if now < self.claim_due {
            return None;
        }
        self.claim_due = now + REPEAT_INTERVAL;
        self.sequence += 1;
        Some(Transmit::Claim(self.claim(now)))
    }

    /// The next change for this node.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Time at which [`Contest::handle_timeout`] and [`Contest::poll_transmit`] are due: within
    /// [`REPEAT_INTERVAL`] in any case.
    pub fn poll_timeout(&self) -> BootTime {
        let due = match self.state {
            State::Listening if self.usable => self.clear.max(self.quiet).max(self.look),
            State::Probing { due, .. } | State::Holding { due, .. } => due,
            State::Ready { until } => until,
            State::Releasing { until, .. } => until.min(self.look),
            State::Listening | State::Stopped => self.claim_due,
        };
        due.min(self.claim_due)
    }

    /// Handles the time before any other input.
    fn observe(&mut self, now: BootTime) {
        let late = now.since(self.seen);
        self.seen = self.seen.max(now);
        match self.state {
            State::Holding { announced, .. } if now.since(announced) >= LEASE => {
                self.lose(Loss::Stalled, QUIET, now);
            }
            State::Releasing { until, why, .. } if late >= RELEASE_STALL || now >= until => {
                self.lose(why, QUIET, now);
            }
            State::Probing { due, .. } | State::Ready { until: due }
                if now.since(due) > PROBE_SLACK =>
            {
                self.state = State::Listening;
                self.clear = now + SILENCE;
            }
            State::Listening if late >= STALL => self.clear = self.clear.max(now + SILENCE),
            _ => {}
        }
    }

    /// Stores a peer's claim; returns whether it is new.
    fn remember(&mut self, from: NodeId, claim: Claim, now: BootTime) -> bool {
        let known = self.peers.get(&from);
        if known.is_some_and(|peer| !claim.is_newer_than(&peer.claim)) {
            return false;
        }
        let before = known.filter(|peer| peer.is_fresh(now));
        let preferred = before.and_then(|peer| peer.preferred_since);
        let deaf = before.and_then(|peer| peer.deaf_since);
        if known.is_none() && self.peers.len() >= MAX_PEERS {
            self.peers.retain(|_, peer| peer.is_fresh(now));
            if self.peers.len() >= MAX_PEERS {
                return false;
            }
        }
        let is_preferred = claim.usable && claim.priority > self.own.priority;
        let preferred_since = is_preferred.then(|| preferred.unwrap_or(now));
        let deaf_since = (!claim.hears).then(|| deaf.unwrap_or(now));
        self.peers.insert(from, Peer { claim, heard: now, preferred_since, deaf_since });
        true
    }

    /// Handles another station's announcement that it has the address.
    fn handle_other(&mut self, hardware: Hardware, now: BootTime) {
        self.clear = now + SILENCE;
        self.wire.note_frame(hardware, now);
        match self.state {
            State::Probing { .. } | State::Ready { .. } => self.state = State::Listening,
            State::Releasing { why, .. } => self.lose(why, QUIET, now),
            State::Holding { .. } if hardware < self.own.hardware => {
                self.lose(Loss::Contested(hardware), QUIET, now);
            }
            State::Holding { .. } => {
                let kept = self.wire.dispute.filter(|dispute| now.since(dispute.last) < SILENCE);
                let since = kept.map_or(now, |dispute| dispute.since);
                self.wire.dispute = Some(Dispute { since, last: now });
                if now.since(since) >= CONTEST_LIMIT {
                    self.lose(Loss::Contested(hardware), CONFLICT_QUIET, now);
                } else {
                    self.defend(now);
                }
            }
            State::Listening | State::Stopped => {}
        }
    }

    fn defend(&mut self, now: BootTime) {
        if self.wire.defended.is_none_or(|last| now.since(last) >= DEFENCE_INTERVAL) {
            self.wire.defended = Some(now);
            self.announce(false);
        }
    }

    fn gain(&mut self, now: BootTime) {
        self.state = State::Holding { since: now, announced: now, due: now + REPEAT_INTERVAL };
        self.wire.dispute = None;
        self.claim_due = now;
        self.announce(true);
        self.tell(Event::Gained);
    }

    /// Stops defending the address, but keeps answering until another node does.
    fn release(&mut self, why: Loss, now: BootTime) {
        self.frames.clear();
        self.state = State::Releasing { until: now + RELEASE_LIMIT, why, successor: None };
        self.look = now + LOOK_INTERVAL;
        self.claim_due = now;
    }

    fn lose(&mut self, why: Loss, quiet: Duration, now: BootTime) {
        self.frames.clear();
        self.state = if why == Loss::Stopped { State::Stopped } else { State::Listening };
        self.clear = now + SILENCE;
        self.quiet = now + quiet;
        self.claim_due = now;
        self.tell(Event::Lost(why));
    }

    fn may_probe(&self, now: BootTime) -> bool {
        if !self.usable || now < self.quiet || now < self.clear {
            return false;
        }
        let is_preferred = |(node, peer): (&NodeId, &Peer)| {
            let theirs = (peer.claim.priority, std::cmp::Reverse(*node));
            let own = (self.own.priority, std::cmp::Reverse(self.own.node));
            peer.is_fresh(now) && peer.claim.usable && theirs > own
        };
        !self.peers.iter().any(is_preferred) || now.since(self.clear) >= DEFERENCE
    }

    /// Whether all others report that they have not heard this holder on the LAN since `gained`.
    fn is_isolated(&self, gained: BootTime, now: BootTime) -> bool {
        let mut fresh = self.peers.values().filter(|peer| peer.is_fresh(now));
        let is_deaf = |peer: &Peer| {
            peer.deaf_since.is_some_and(|since| now.since(since.max(gained)) >= ISOLATION)
        };
        fresh.clone().count() >= MIN_WITNESSES && fresh.all(is_deaf)
    }

    /// Whether a holder announces that it releases the address.
    fn is_released(&self, now: BootTime) -> bool {
        let releases = |peer: &Peer| peer.claim.stance == Stance::Releasing && peer.is_fresh(now);
        self.peers.values().any(releases)
    }

    /// Whether no short connection has been open since a standby became ready; the previous check
    /// covers connections that the kernel had accepted but this process had not.
    fn may_move(&self, ready: BootTime, now: BootTime) -> bool {
        let is_quiet = now.since(self.busy.max(ready)) >= BUSY_LOOK_INTERVAL;
        is_quiet || now.since(ready) >= BUSY_LIMIT
    }

    /// The station to which this node has pointed the LAN while it releases the address.
    fn named(&self) -> Option<Hardware> {
        let State::Releasing { successor, .. } = self.state else { return None };
        successor.filter(|it| it.is_named).map(|it| it.hardware)
    }

    fn claim(&self, now: BootTime) -> Claim {
        let hears = self.wire.heard.is_some_and(|heard| now.since(heard) < SILENCE);
        let stance = self.stance();
        let Contender { incarnation, hardware, priority, .. } = self.own;
        let (sequence, usable) = (self.sequence, self.usable);
        Claim { incarnation, sequence, usable, priority, stance, hardware, hears }
    }

    /// Announces before sending anything else, since the lease depends on it.
    fn announce(&mut self, with_refresh: bool) {
        self.frames.retain(|frame| matches!(frame, Frame::Answer { .. }));
        if with_refresh {
            self.frames.push_front(Frame::Refresh);
        }
        self.frames.push_front(Frame::Announce);
    }

    fn tell(&mut self, event: Event) {
        if self.events.len() >= MAX_EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }
}

impl Peer {
    fn is_fresh(&self, now: BootTime) -> bool {
        now.since(self.heard) < SILENCE
    }
}

#[cfg(test)]
mod schedules;
mod state;
#[cfg(test)]
mod tests;
mod times;
