//! Membership: the SWIM protocol by `foca`, used only in this file and driven without a clock.
//!
//! Added around it: timers are kept here and grow with the local health score; a peer without a
//! WireGuard session gets the time of a handshake; a suspect is notified directly, so it can refute
//! at once; it is not declared down while it is heard; news of a death is sent without waiting for
//! the next round. Node ids of sender and receiver are not sent, because the mesh has proven both;
//! other members are sent as short ids. The caller, which knows what is signed, decides which
//! claims to accept.
//!
//! Memory is bounded by the members admitted by the caller, by [`MAX_TIMERS`] and [`MAX_NEWS`].

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

use foca::{
    Codec, Config, Foca, Header, Identity, Member, Message as Protocol, NoCustomBroadcast,
    Notification, PeriodicParams, Runtime, State, Timer, TimerToken,
};
use meshport_config::NodeId;
use meshport_config::planted::{Bug, is_planted};
use rand_for_foca::rngs::Xoshiro256PlusPlus;

use crate::config::DiscoveryConfig;
use crate::dice::Dice;
use crate::queue;
use crate::state::Life;
use crate::timers::Timers;
use crate::wire::{Claim, Message, Short, Standing};
use collector::{Collector, Notice};
use format::{Format, Id};
use messages::{RawHeader, RawMessage};
use probing::Probing;
use repeating::{MANY_NEWS, MAX_NEWCOMERS, MAX_NEWS, MORE_OFTEN, protocol_config, repetitions};

mod collector;
mod format;
mod interface;
mod messages;
mod probing;
mod repeating;

use interface::MAX_SUSPECTED;
pub(crate) use interface::{Incoming, Output, Seen, Tally, View};
pub(crate) use messages::{BadSwim, read_claims};

/// Pending timers: a few, and one per suspicion.
pub(crate) const MAX_TIMERS: usize = 4096;
/// Bytes of the two short ids that are not sent, and of the datagram's own header.
const IDS: usize = 16;
const ENVELOPE: usize = 4;
/// How often a suspect is notified, spread over its time to refute.
const TELLINGS: u8 = 4;
/// The shortest time between two new lives of this node. A node that keeps reporting it down makes
/// it inform all members at most once in this time.
const RENEWAL: Duration = Duration::from_secs(1);
/// The shortest time between two rounds of gossip out of turn: as many as regular rounds,
/// regardless of how many members die at once.
const HASTE: Duration = Duration::from_millis(200);
/// Members first sent to a node that announces itself. It learns the rest when it compares
/// directories. After a partition, many nodes announce themselves that already know all others.
const MAX_FEED: usize = 8;
/// From this many sessions on, news follows sessions.
pub(crate) const MIN_CONNECTED: usize = 32;

#[derive(Debug)]
enum Tick {
    Protocol { timer: Timer<Id>, set: Instant },
    Tell(Accusation),
}

/// A suspect that is notified a few times.
#[derive(Debug, Clone, Copy)]
struct Accusation {
    id: Id,
    incarnation: u16,
    /// Remaining notices.
    left: u8,
}

/// The state machine of membership.
pub(crate) struct Swim {
    me: NodeId,
    foca: Foca<Id, Format, Xoshiro256PlusPlus, NoCustomBroadcast>,
    collector: Collector,
    timers: Timers<Tick>,
    probing: Probing,
    config: DiscoveryConfig,
    dice: Dice,
    incarnation: u16,
    size: usize,
    hurry: bool,
    hurried: Option<Instant>,
    renewed: Option<Instant>,
    /// The gossip timer while there is nothing to send, so that an idle node does not wake up.
    resting: Option<Timer<Id>>,
    output: VecDeque<Output>,
    pub(crate) tally: Tally,
}

impl fmt::Debug for Swim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Swim")
            .field("life", &self.life())
            .field("members", &self.foca.num_members())
            .field("score", &self.probing.awareness.score())
            .finish_non_exhaustive()
    }
}

impl Swim {
    pub(crate) fn new(config: &DiscoveryConfig, me: NodeId, life: Life, seed: [u8; 32]) -> Self {
        let generator = Dice::new(seed, b'f').into_generator();
        let id = Id::new(&me, life);
        Self {
            me,
            foca: Foca::new(id, protocol_config(config, repetitions(1)), generator, Format),
            collector: Collector::default(),
            timers: Timers::new(MAX_TIMERS),
            probing: Probing::default(),
            config: config.clone(),
            dice: Dice::new(seed, b's'),
            incarnation: 0,
            size: 1,
            hurry: false,
            hurried: None,
            renewed: None,
            resting: None,
            output: VecDeque::new(),
            tally: Tally::default(),
        }
    }

    /// Takes a datagram.
    ///
    /// # Errors
    ///
    /// [`BadSwim`] when it does not parse; nothing has changed then.
    pub(crate) fn handle_datagram(
        &mut self,
        Incoming { from, over, bytes }: Incoming<'_>,
        view: &impl View,
        now: Instant,
    ) -> Result<Seen, BadSwim> {
        let (header, rest) = postcard::take_from_bytes::<RawHeader>(bytes).map_err(|_| BadSwim)?;
        let claims = read_claims(rest)?;
        let me = self.foca.identity().life;
        let announces = header.message == RawMessage::Announce;
        let stale = header.to != me && !announces;
        let again = header.message == RawMessage::TurnUndead && !self.may_renew(now);
        if stale || again || from == self.me || Some(header.from) <= over {
            return Ok(Seen { claims: Vec::new(), stale, announces: false, sender: None });
        }
        let sender =
            Claim { life: header.from, incarnation: header.incarnation, standing: Standing::Alive };
        // The protocol would search all members for what it already knows.
        if header.message == RawMessage::Gossip && view.knows(&from, &sender) {
            return Ok(Seen { claims, stale, announces, sender: None });
        }
        let answered = self.probing.answered(from, &header.message);
        let own_part = &bytes[..bytes.len() - rest.len()];
        let data = [&Short::of(&from).0[..], &Short::of(&self.me).0, own_part].concat();
        // Without the claims the protocol only learns that the sender is present.
        let taken = match header.incarnation {
            0 => self.foca.handle_data(&data, &mut self.collector),
            _ => self.emphatically(|it| it.foca.handle_data(&data, &mut it.collector)),
        };
        if answered {
            self.skip_indirect();
        }
        self.settle(view, now);
        let sender = Some(sender);
        taken.map(|()| Seen { claims, stale, announces, sender }).map_err(|_| BadSwim)
    }

    /// The probe was answered: others need not be asked, and the timer for that is handled now so
    /// that it does not wake this node.
    fn skip_indirect(&mut self) {
        let is_it = |tick: &Tick| {
            matches!(tick, Tick::Protocol { timer: Timer::SendIndirectProbe { .. }, .. })
        };
        if let Some(Tick::Protocol { timer, .. }) = self.timers.take(is_it) {
            let _ = self.foca.handle_timer(timer, &mut self.collector);
        }
    }

    /// Applies accepted claims.
    pub(crate) fn apply(
        &mut self,
        claims: impl IntoIterator<Item = (NodeId, Claim)>,
        spread: bool,
        view: &impl View,
        now: Instant,
    ) {
        let life = self.life();
        let mut members = Vec::new();
        for (node, claim) in claims {
            let about_me = node == self.me && claim.life == life;
            if about_me && self.ends_life(&claim) && !self.may_renew(now) {
                continue;
            }
            if about_me
                && claim.standing == Standing::Suspect
                && claim.incarnation >= self.incarnation
            {
                self.tally.refutations += 1;
                self.incarnation = claim.incarnation.saturating_add(1);
            }
            let state = match claim.standing {
                Standing::Alive => State::Alive,
                Standing::Suspect => State::Suspect,
                Standing::Down => State::Down,
            };
            members.push(Member::new(Id::new(&node, claim.life), claim.incarnation, state));
        }
        let is_new = |it: &Member<Id>| it.state() == State::Alive && it.incarnation() == 0;
        let (newcomers, others): (Vec<_>, Vec<_>) = members.into_iter().partition(is_new);
        // An error is one of encoding, which cannot happen: members are far smaller than a packet.
        let waiting = self.foca.updates_backlog();
        let (newcomers, others) = (newcomers.into_iter(), others.into_iter());
        let passed_on = spread && waiting < MAX_NEWCOMERS;
        let _ = self.foca.apply_many(newcomers, passed_on, &mut self.collector);
        let passed_on = spread && waiting < MAX_NEWS;
        let _ = self.emphatically(|it| it.foca.apply_many(others, passed_on, &mut it.collector));
        self.settle(view, now);
    }

    /// Does everything that is due.
    pub(crate) fn handle_timeout(&mut self, view: &impl View, now: Instant) {
        while let Some(tick) = self.timers.take_due(now) {
            match tick {
                Tick::Protocol { timer: Timer::ChangeSuspectToDown { member_id, .. }, set }
                    if view
                        .resolve(member_id.short)
                        .and_then(|node| view.heard(&node))
                        .is_some_and(|heard| heard > set) => {}
                Tick::Protocol { timer: timer @ Timer::PeriodicGossip(_), .. }
                    if self.foca.updates_backlog() == 0 =>
                {
                    self.resting = Some(timer);
                }
                Tick::Protocol { timer: timer @ Timer::ProbeRandomMember(_), .. }
                    if self.probing.may_wait() =>
                {
                    self.ask_again(timer, view, now);
                }
                Tick::Protocol { timer, .. } => {
                    let is_gossip = matches!(timer, Timer::PeriodicGossip(_));
                    // Errors concern incomplete probes, from which the protocol recovers.
                    let _ = self.emphatically(|it| it.foca.handle_timer(timer, &mut it.collector));
                    if is_gossip {
                        self.collector.drop_empty_gossip();
                    }
                }
                Tick::Tell(accusation) => self.tell(accusation, view, now),
            }
            self.settle(view, now);
        }
    }

    /// The probe in progress was not answered in time: asks once more before suspecting the member,
    /// since a suspicion costs every member some datagrams. A peer without a session gets time for
    /// another handshake.
    fn ask_again(&mut self, timer: Timer<Id>, view: &impl View, now: Instant) {
        let pause = if self.probing.is_unconnected() {
            self.config.handshake_allowance
        } else {
            self.config.probe_timeout
        };
        if let Some((target, ping)) = self.probing.wait_once_more()
            && view.session(&target)
        {
            self.output.push_back(Output::Send(target, ping));
        }
        self.add(now + self.probing.awareness.stretch(pause), Tick::Protocol { timer, set: now });
    }

    /// The process did not run for this long: silence in that time raises no suspicion.
    pub(crate) fn stalled(&mut self, by: Duration) {
        self.probing.awareness.late();
        self.timers.shift(by);
    }

    /// Asks a node to admit this one, whatever is known about it.
    pub(crate) fn announce(&mut self, to: NodeId, view: &impl View, now: Instant) {
        let _ = self.foca.announce(Id::new(&to, Life::default()), &mut self.collector);
        self.collector.stranger = Some(to);
        self.settle(view, now);
    }

    /// Suspects a member found silent by something other than a probe of the protocol. If it is
    /// already suspected, it has been notified and its time to refute is running: it gets half of
    /// that time from now, since it was just asked again.
    pub(crate) fn suspect(&mut self, node: NodeId, life: Life, view: &impl View, now: Instant) {
        let id = Id::new(&node, life);
        let is_it = |member: &Member<Id>| *member.id() == id && member.state() == State::Suspect;
        let joins = self.foca.iter_members().any(is_it);
        let patience = if joins { self.config.suspicion / 2 } else { self.config.suspicion };
        self.accuse(id, patience, view, now);
    }

    /// Suspects a member for a shorter time, because it was reported down; if others must notify
    /// it, it gets the full time.
    pub(crate) fn verify(&mut self, node: NodeId, life: Life, view: &impl View, now: Instant) {
        let before = self.tally.suspected.len();
        let patience =
            if is_told(&node, view) { self.config.suspicion / 4 } else { self.config.suspicion };
        self.accuse(Id::new(&node, life), patience, view, now);
        self.tally.suspected.truncate(before);
    }

    fn accuse(&mut self, id: Id, patience: Duration, view: &impl View, now: Instant) {
        let known = self.foca.iter_members().find(|member| *member.id() == id);
        let (Some(incarnation), Some(token)) =
            (known.map(Member::incarnation), self.collector.token)
        else {
            return;
        };
        let suspect = Member::new(id, incarnation, State::Suspect);
        let suspect = std::iter::once(suspect);
        let _ = self.emphatically(|it| it.foca.apply_many(suspect, true, &mut it.collector));
        let timer = Timer::ChangeSuspectToDown { member_id: id, incarnation, token };
        self.collector.submit_after(timer, patience);
        self.settle(view, now);
    }

    /// Declares this node's life over and stops taking part.
    pub(crate) fn leave(&mut self, view: &impl View, now: Instant) {
        let _ = self.emphatically(|it| it.foca.leave_cluster(&mut it.collector));
        self.settle(view, now);
        self.timers.clear();
    }

    /// Continues as another node, in the same life.
    pub(crate) fn succeed(&mut self, node: NodeId, view: &impl View, now: Instant) {
        self.me = node;
        self.change_life(self.life(), view, now);
    }

    /// Continues in another life.
    pub(crate) fn change_life(&mut self, life: Life, view: &impl View, now: Instant) {
        let id = Id::new(&self.me, life);
        if self.foca.change_identity(id, &mut self.collector).is_ok() {
            self.incarnation = 0;
            self.settle(view, now);
        }
    }

    /// Drops all memory of a node that is down.
    pub(crate) fn forget(&mut self, node: NodeId, life: Life) {
        let timer = Timer::RemoveDown(Id::new(&node, life));
        let _ = self.foca.handle_timer(timer, &mut self.collector);
    }

    /// Adjusts how often news is repeated to the number of members, this node included.
    pub(crate) fn set_size(&mut self, members: usize) {
        if members.max(1).ilog2() != self.size.max(1).ilog2() {
            self.size = members;
            self.repeat(repetitions(members));
        }
    }

    /// Sets the repetitions of future news.
    fn repeat(&mut self, repetitions: u8) {
        let replaced = self.foca.set_config(protocol_config(&self.config, repetitions));
        debug_assert!(replaced.is_ok(), "only the number of repetitions changes");
    }

    /// Runs the protocol on something that may be bad news or refute it, which is sent more often.
    fn emphatically<R>(&mut self, find_out: impl FnOnce(&mut Self) -> R) -> R {
        let usual = repetitions(self.size);
        let is_rare = self.foca.updates_backlog() < MANY_NEWS;
        self.repeat(if is_rare { usual + MORE_OFTEN } else { usual });
        let found = find_out(self);
        self.repeat(usual);
        found
    }

    /// The next action, in order.
    pub(crate) fn poll_output(&mut self) -> Option<Output> {
        queue::pop(&mut self.output)
    }

    /// When [`Self::handle_timeout`] is due.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    pub(crate) fn life(&self) -> Life {
        self.foca.identity().life
    }

    /// This node's claim about itself.
    pub(crate) fn own_claim(&self) -> Claim {
        Claim { life: self.life(), incarnation: self.incarnation, standing: Standing::Alive }
    }

    /// The incarnation in which a member is known; 0 if it is not known.
    pub(crate) fn incarnation_of(&self, node: &NodeId) -> u16 {
        let short = Short::of(node);
        let known = self.foca.iter_members().find(|member| member.id().short == short);
        known.map_or(0, Member::incarnation)
    }

    /// Takes over what the protocol produced: packets first, because they show which probe the
    /// timers belong to.
    fn settle(&mut self, view: &impl View, now: Instant) {
        self.take_collected(view, now);
        let rested = self.hurried.is_none_or(|last| now.saturating_duration_since(last) >= HASTE);
        if std::mem::take(&mut self.hurry) && rested && self.foca.updates_backlog() > 0 {
            self.hurried = Some(now);
            let _ = self.foca.gossip(&mut self.collector);
            self.collector.drop_empty_gossip();
            self.take_collected(view, now);
        }
        if self.foca.updates_backlog() > 0
            && let Some(timer) = self.resting.take()
        {
            let pause = self.dice.up_to(self.config.gossip_interval);
            self.add(now + pause, Tick::Protocol { timer, set: now });
        }
    }

    fn take_collected(&mut self, view: &impl View, now: Instant) {
        let pinged = self.take_sends(view);
        for (timer, after) in std::mem::take(&mut self.collector.timers) {
            let after = self.wait(&timer, after, pinged, view);
            if matches!(timer, Timer::PeriodicGossip(_)) {
                self.resting = None;
            }
            if let Timer::ChangeSuspectToDown { member_id, incarnation, .. } = &timer {
                if self.tally.suspected.len() < MAX_SUSPECTED {
                    self.tally.suspected.extend(view.resolve(member_id.short));
                }
                self.hurry = true;
                let (id, incarnation) = (*member_id, *incarnation);
                self.add(now, Tick::Tell(Accusation { id, incarnation, left: TELLINGS }));
            }
            self.add(now + after, Tick::Protocol { timer, set: now });
        }
        for (notice, id) in std::mem::take(&mut self.collector.notices) {
            // An unknown node does not stay a member for long.
            let Some(node) = view.resolve(id.short) else { continue };
            self.hurry |= matches!(notice, Notice::Down) && self.foca.updates_backlog() < MANY_NEWS;
            if matches!(notice, Notice::Renewed) {
                self.incarnation = 0;
                self.renewed = Some(now);
            }
            self.output.push_back(match notice {
                Notice::Up => Output::Up(node, id.life),
                Notice::Down => Output::Down(node, id.life),
                Notice::Renamed => Output::Renamed(node, id.life),
                Notice::Renewed => Output::Renewed(id.life),
            });
        }
    }

    /// The packets; true if one of them was a probe.
    fn take_sends(&mut self, view: &impl View) -> bool {
        let mut pinged = false;
        let mut told = Vec::new();
        // Only an announcement may be sent to a node that is not known.
        let stranger = self.collector.stranger.take();
        for (to, mut bytes) in std::mem::take(&mut self.collector.sends) {
            let stranger = stranger.filter(|node| Short::of(node) == to);
            let Some(mut to) = stranger.or_else(|| view.resolve(to)) else { continue };
            let mut number = None;
            if let Ok((mut header, rest)) = postcard::take_from_bytes::<RawHeader>(&bytes) {
                self.incarnation = self.incarnation.max(header.incarnation);
                match header.message {
                    RawMessage::Ping(ping) => number = Some(ping),
                    RawMessage::Feed => bytes = messages::shorten(&header, rest, MAX_FEED),
                    RawMessage::Gossip => {
                        if let Some((peer, life)) = self.connected(&told, view)
                            && let Some(other) = messages::readdress(&header, life, rest)
                        {
                            (to, bytes) = (peer, other);
                        }
                        told.push(to);
                    }
                    _ => {
                        if let Some(third) = header.message.third() {
                            let Some(whole) = view.resolve(third.short()) else { continue };
                            third.0 = *whole.as_bytes();
                            let Some(whole) = messages::rewrite(&header, rest) else { continue };
                            bytes = whole;
                        }
                    }
                }
            }
            let Some(datagram) = Message::Swim(&bytes).encode() else { continue };
            if let Some(number) = number {
                self.probing.begin(to, number, view.session(&to), datagram.clone());
                pinged = true;
            }
            self.output.push_back(Output::Send(to, datagram));
        }
        pinged
    }

    /// The member to gossip to instead of one drawn from all: one with a session, if there are
    /// enough of these. A new session costs five times as much as the news, and a round trip. After
    /// three minutes of random probes from and to other members, a node has sessions with a random
    /// part of the mesh, so news spreads along these equally well. Probes are not redirected.
    fn connected(&mut self, told: &[NodeId], view: &impl View) -> Option<(NodeId, Life)> {
        if view.sessions() < MIN_CONNECTED {
            return None;
        }
        view.connected(self.dice.draw()).filter(|(peer, _)| !told.contains(peer))
    }

    /// The time of a timer, in place of what the protocol requested.
    fn wait(
        &mut self,
        timer: &Timer<Id>,
        asked: Duration,
        pinged: bool,
        view: &impl View,
    ) -> Duration {
        let unconnected = pinged && self.probing.is_unconnected();
        let allowance = if unconnected { self.config.handshake_allowance } else { Duration::ZERO };
        match timer {
            // Others are asked early: they may have a session.
            Timer::SendIndirectProbe { .. } => {
                self.probing.awareness.stretch(asked + allowance.min(self.config.probe_timeout))
            }
            Timer::ProbeRandomMember(_) if pinged => {
                self.probing.awareness.stretch(asked + allowance)
            }
            // The first probe after joining comes at a random time, so that probes spread out.
            Timer::ProbeRandomMember(_) => self.dice.up_to(asked),
            Timer::ChangeSuspectToDown { member_id, .. } => {
                let near = view
                    .resolve(member_id.short)
                    .is_some_and(|node| view.same_site(&node) && view.session(&node));
                self.probing.awareness.stretch(if near { asked / 2 } else { asked })
            }
            Timer::PeriodicAnnounce(_)
            | Timer::PeriodicAnnounceDown(_)
            | Timer::PeriodicGossip(_) => self.dice.jitter(asked, 20),
            Timer::RemoveDown(_) => asked,
        }
    }

    /// Whether only a new life can answer a claim about this node: its death, or a suspicion with
    /// no incarnation left to refute it.
    fn ends_life(&self, claim: &Claim) -> bool {
        match claim.standing {
            Standing::Alive => false,
            Standing::Suspect => claim.incarnation.max(self.incarnation) == u16::MAX,
            Standing::Down => true,
        }
    }

    fn may_renew(&self, now: Instant) -> bool {
        let rested = self.renewed.is_none_or(|at| now.saturating_duration_since(at) >= RENEWAL);
        rested && !is_planted(Bug::Refutation)
    }

    fn tell(&mut self, accusation: Accusation, view: &impl View, now: Instant) {
        let Accusation { id, incarnation, left } = accusation;
        let suspected = self.foca.iter_members().any(|member| {
            *member.id() == id
                && member.incarnation() == incarnation
                && member.state() == State::Suspect
        });
        let Some(node) = view.resolve(id.short).filter(|_| suspected) else { return };
        if is_told(&node, view) {
            let claim = Claim { life: id.life, incarnation, standing: Standing::Suspect };
            self.output.push_back(Output::Tell(node, claim));
        }
        if left > 1 {
            let pause = self.config.suspicion / (2 * u32::from(TELLINGS));
            self.add(now + pause, Tick::Tell(Accusation { left: left - 1, ..accusation }));
        }
    }

    fn add(&mut self, due: Instant, tick: Tick) {
        self.tally.dropped_timers += u64::from(!self.timers.add(due, tick));
    }
}

/// Whether this node notifies a suspect. In a large mesh only over a session: when a site is gone,
/// all others would try handshakes with each of its members for a minute and a half. The nodes with
/// a session are enough.
fn is_told(node: &NodeId, view: &impl View) -> bool {
    view.session(node) || view.sessions() < MIN_CONNECTED
}

#[cfg(test)]
mod tests;
