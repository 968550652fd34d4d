//! The task of one virtual address: feeds events to the contest and carries out its decisions.
//!
//! A turn reads all pending input before the clock, so the contest never gets input newer than its
//! time. It asks the contest for each frame right before sending it, so a process that was stopped
//! in between sends no outdated claim.
//!
//! Bounds: [`MAX_FRAMES`] frames per turn, and a turn at least every
//! [`REPEAT_INTERVAL`](meshport_core::vip::contest::REPEAT_INTERVAL).

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use meshport_config::{Credential, NodeId, VirtualAddressSettings, VirtualName};
use meshport_core::route::Route;
use meshport_core::vip::boot_time::BootTime;
use meshport_core::vip::claim::{Claim, Stance};
use meshport_core::vip::contest::{Contender, Contest, Event, Loss, Transmit};
use meshport_core::vip::frame::{Frame, Hardware, Heard};
use meshport_core::vip::group::Group;
use meshport_core::vip::lan;
use meshport_core::vip::message::{Message, PORT};
use meshport_mesh::Mesh;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

use super::board::{AddressCount, Side, may_hold};
use super::hooks::Teller;
use super::packet::{MAX_FRAME_BYTES, PacketSocket, interfaces};
use super::sockets::Opened;
use super::station::{self, ArpSettings, Obstacle};
use crate::expose::Exposures;
use crate::{Error, clock};

/// Interval between checks of the interface, which bounds the time to notice a lost carrier.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Frames read per turn: more than a socket's default queue holds.
const MAX_FRAMES: usize = 512;

/// The parts of the node that the task needs.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) mesh: Mesh,
    pub(super) credential: watch::Receiver<Arc<Credential>>,
    /// The route of the service behind the address.
    pub(super) route: watch::Receiver<Arc<Route>>,
    /// The connected clients of the address.
    pub(super) exposures: Exposures,
    pub(super) generation: u64,
    pub(super) stop: watch::Receiver<bool>,
}

/// See the module's description.
#[derive(Debug)]
pub(super) struct Task {
    name: VirtualName,
    settings: VirtualAddressSettings,
    socket: PacketSocket,
    arp: ArpSettings,
    hook: Option<Teller>,
    /// Whether the process that runs the commands has ended.
    is_unheard: bool,
    node: Node,
    side: Side,
    group: Group,
    /// Set once the interface exists.
    contest: Option<Contest>,
    hardware: Hardware,
    /// The obstacle found by the last check.
    obstacle: Option<Obstacle>,
    is_told_to_stop: bool,
}

impl Task {
    /// A task for an address whose sockets are open.
    pub(super) fn new(
        name: VirtualName,
        settings: VirtualAddressSettings,
        Opened { socket, arp, hook }: Opened,
        node: Node,
        side: Side,
    ) -> Result<Self, Error> {
        let socket = PacketSocket::new(socket, settings.address)
            .map_err(Error::io("watch a packet socket"))?;
        Ok(Self {
            name,
            settings,
            socket,
            arp,
            hook,
            is_unheard: false,
            node,
            side,
            group: Group::default(),
            contest: None,
            hardware: Hardware([0; 6]),
            obstacle: None,
            is_told_to_stop: false,
        })
    }

    /// Runs until the address is released after a stop, or the node has ended.
    pub(super) async fn run(mut self) {
        let mut looks = interval(LOOK_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.look();
        self.meet();
        loop {
            let mut waiting = Vec::new();
            let wake = self.wake();
            tokio::select! {
                heard = self.socket.readable() => if heard.is_err() { return },
                Some(claim) = self.side.claims.recv() => waiting.push(claim),
                changed = self.node.route.changed() => if changed.is_err() { return },
                changed = self.side.members.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    self.meet();
                }
                changed = self.node.stop.changed(), if !self.is_told_to_stop => {
                    if changed.is_err() {
                        return;
                    }
                }
                _ = looks.tick() => self.look(),
                () = clock::sleep_until(wake) => {}
            }
            self.turn(waiting);
            if self.is_told_to_stop && self.contest.as_ref().is_none_or(Contest::is_stopped) {
                return;
            }
        }
    }

    /// When the contest needs its next turn.
    fn wake(&self) -> Option<Instant> {
        let due = self.contest.as_ref()?.poll_timeout();
        Some(clock::now() + due.since(clock::boot()))
    }

    /// Checks this machine's ability to hold the address.
    fn look(&mut self) {
        let VirtualAddressSettings { address, interface, .. } = &self.settings;
        let looked = station::look(interface, *address, &self.arp, interfaces());
        let bound = looked.and_then(|station| match self.socket.bind(station.index) {
            Ok(()) => Ok(station),
            Err(error) => Err(self.broken(&error)),
        });
        self.obstacle = match bound {
            Ok(station) => {
                self.take_hardware(station.hardware);
                None
            }
            Err(obstacle) => Some(obstacle),
        };
    }

    fn broken(&self, error: &std::io::Error) -> Obstacle {
        let interface = self.settings.interface.clone();
        Obstacle::Broken { interface, reason: error.to_string() }
    }

    fn take_hardware(&mut self, hardware: Hardware) {
        let now = clock::boot();
        self.hardware = hardware;
        match &mut self.contest {
            Some(contest) => contest.handle_hardware(hardware, now),
            None => {
                let own = Contender {
                    node: self.node.mesh.node_id(),
                    incarnation: self.node.generation,
                    hardware,
                    priority: self.settings.priority,
                };
                self.contest = Some(Contest::new(own, now));
            }
        }
    }

    /// Updates the set of nodes that may hold virtual addresses.
    fn meet(&mut self) {
        let own = self.node.mesh.node_id();
        let members = self.side.members.borrow_and_update().clone();
        self.group.set_candidates(members.into_iter().filter(|node| *node != own), clock::boot());
    }

    fn turn(&mut self, mut claims: Vec<(NodeId, Claim)>) {
        let heard = self.receive();
        while let Ok(claim) = self.side.claims.try_recv() {
            claims.push(claim);
        }
        let stops = !self.is_told_to_stop && *self.node.stop.borrow_and_update();
        self.is_told_to_stop |= stops;
        let obstacle = self.judge();
        // After all input is read and before anything is sent.
        let now = clock::boot();
        for (from, _) in &claims {
            self.group.handle_claim(*from, now);
        }
        if let Some(contest) = &mut self.contest {
            heard.into_iter().for_each(|frame| contest.handle_frame(frame, now));
            claims.into_iter().for_each(|(from, claim)| contest.handle_claim(from, claim, now));
            if self.obstacle.is_some() {
                contest.handle_cut(now);
            }
            contest.handle_usable(obstacle.is_none(), now);
            let is_busy = contest.stance() == Stance::Releasing
                && self.node.exposures.is_busy(self.settings.address);
            contest.handle_busy(is_busy, now);
            if stops {
                contest.handle_stop(now);
            }
            contest.handle_timeout(now);
        }
        self.send();
        while let Some(event) = self.contest.as_mut().and_then(Contest::poll_event) {
            self.tell(event);
        }
        self.publish(obstacle.or_else(|| self.obstacle.clone()), now);
    }

    /// Reads all pending frames.
    fn receive(&mut self) -> Vec<Heard> {
        let (mut heard, mut buffer) = (Vec::new(), [0; MAX_FRAME_BYTES]);
        for _ in 0..MAX_FRAMES {
            match self.socket.receive(&mut buffer) {
                Ok(length) => {
                    heard.extend(lan::decode(&buffer[..length], self.settings.address));
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // The interface went down, which the kernel reports once.
                Err(error) => {
                    self.obstacle = Some(self.broken(&error));
                    break;
                }
            }
        }
        heard
    }

    /// Why this node cannot hold the address now, if so.
    fn judge(&self) -> Option<Obstacle> {
        if self.is_told_to_stop {
            Some(Obstacle::Leaving)
        } else if !may_hold(&self.node.credential.borrow()) {
            Some(Obstacle::NoRole)
        } else if self.is_unheard {
            Some(Obstacle::NoHooks)
        } else if self.obstacle.is_some() {
            self.obstacle.clone()
        } else if !self.node.route.borrow().is_usable() {
            Some(Obstacle::NoOrigin(self.settings.service.to_string()))
        } else {
            None
        }
    }

    fn send(&mut self) {
        loop {
            let now = clock::boot();
            let Some(contest) = &mut self.contest else { return };
            match contest.poll_transmit(now) {
                None => return,
                Some(Transmit::Claim(claim)) => self.spread(claim, now),
                Some(Transmit::Frame(frame)) => {
                    if let Err(error) = self.put(frame) {
                        // Until the next check.
                        self.obstacle = Some(self.broken(&error));
                        if let Some(contest) = &mut self.contest {
                            contest.handle_cut(clock::boot());
                        }
                    }
                }
            }
        }
    }

    fn put(&self, frame: Frame) -> std::io::Result<()> {
        let bytes = lan::encode(frame, self.settings.address, self.hardware);
        bytes.map_or(Ok(()), |bytes| self.socket.send(&bytes))
    }

    /// Announces this node's claim to the group and to the process for commands.
    fn spread(&mut self, claim: Claim, now: BootTime) {
        let is_held = claim.stance.answers();
        self.is_unheard |= self.hook.as_ref().is_some_and(|hook| hook.tell(is_held).is_err());
        let VirtualAddressSettings { group, address, .. } = &self.settings;
        let message = Message { group: group.clone(), address: *address, claim };
        let bytes = message.encode();
        for to in self.group.recipients(now) {
            // A claim that cannot be sent is a lost datagram, which the mesh counts.
            let _ = self.node.mesh.send_datagram(to, PORT, &bytes);
        }
    }

    fn tell(&self, event: Event) {
        let (name, address) = (&self.name, self.settings.address);
        match event {
            Event::Gained => {
                self.side.counts.add(AddressCount::Gained, 1);
                info!(%name, %address, "this node answers for the virtual address");
            }
            Event::Lost(why) => {
                self.side.counts.add(AddressCount::Lost, 1);
                let why = reason(why);
                warn!(%name, %address, why, "this node has lost the virtual address");
            }
        }
    }

    /// Publishes the state, and logs a new obstacle.
    fn publish(&self, obstacle: Option<Obstacle>, now: BootTime) {
        let contest = self.contest.as_ref();
        let stance = contest.map_or(Stance::Standby, Contest::stance);
        let holder = contest.and_then(|contest| contest.holder(now));
        let others = contest.into_iter().flat_map(|contest| contest.others(now)).collect();
        self.side.state.send_if_modified(|state| {
            if state.obstacle != obstacle
                && let Some(obstacle) = &obstacle
                && *obstacle != Obstacle::Leaving
            {
                let name = &self.name;
                warn!(%name, %obstacle, "this node cannot hold the virtual address");
            }
            let since = if state.stance == stance { state.since } else { clock::now() };
            let is_same = state.holder == holder;
            let holder_since = if is_same { state.holder_since } else { clock::now() };
            let next =
                super::board::State { stance, obstacle, holder, others, since, holder_since };
            let changed = *state != next;
            *state = next;
            changed
        });
    }
}

/// Why an address was lost, for the log.
fn reason(why: Loss) -> String {
    match why {
        Loss::Contested(hardware) => format!("the station {hardware} answers for it"),
        Loss::Claimed(node) => format!("the node {} holds it", node.short()),
        Loss::Stalled => "this process was suspended, or could not announce it".to_owned(),
        Loss::Unusable => "this node can no longer hold it".to_owned(),
        Loss::Cut => "the interface cannot send".to_owned(),
        Loss::HandedOver => "a node of higher priority takes it".to_owned(),
        Loss::Isolated => "no other node of the group hears this one on the LAN".to_owned(),
        Loss::Stopped => "this node is leaving".to_owned(),
    }
}
