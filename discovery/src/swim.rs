//! Membership: the SWIM protocol by `foca`, which is named in this file only, driven without a
//! clock.
//!
//! What is added around it: timers are kept here and stretched by the local health score; a peer to
//! which no WireGuard session exists gets the time a handshake takes; a suspect is told directly,
//! so that it can refute at once; it is not declared down while it is heard; news of a death is
//! passed on without waiting for the next round. Node ids of sender and receiver do not travel,
//! because the mesh has proven both; other members travel as short ids. Which claims of others to
//! believe is decided by the caller, who knows what is signed.
//!
//! Memory is bounded by the members the caller lets in and by [`MAX_TIMERS`].

use std::collections::VecDeque;
use std::fmt;
use std::num::{NonZeroU8, NonZeroUsize};
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut};
use foca::{
    Codec, Config, Foca, Header, Identity, Member, NoCustomBroadcast, Notification, PeriodicParams,
    Runtime, State, Timer,
};
use meshport_config::NodeId;
use rand_for_foca::rngs::Xoshiro256PlusPlus;
use serde::Serialize;

use crate::config::DiscoveryConfig;
use crate::dice::Dice;
use crate::state::Life;
use crate::timers::Timers;
use crate::wire::{Claim, MAX_DATAGRAM, Message, Short, Standing};
use messages::{BadFormat, RawHeader, RawId, RawMessage};
use probing::Probing;

mod interface;
mod messages;
mod probing;

pub(crate) use interface::{Output, Seen, Tally, View};
pub(crate) use messages::BadSwim;

/// Timers waiting; membership has a handful of its own and one per suspicion.
pub(crate) const MAX_TIMERS: usize = 4096;
/// Bytes of the two node ids that stay at home, and of the datagram's own header.
const IDS: usize = 64;
const ENVELOPE: usize = 4;
/// How often a suspect is told, spread over its time to refute.
const TELLINGS: u8 = 4;
/// The shortest time between two new lives of this node. Whoever calls it down again and again
/// makes it speak to everybody once in this time and not more.
const RENEWAL: Duration = Duration::from_secs(1);
/// The shortest time between two rounds of gossip that do not wait for their turn.
const HASTE: Duration = Duration::from_millis(50);
/// How often a random member is asked for other members, and one that is down whether it is back.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(30);
const ANNOUNCE_DOWN_EVERY: Duration = Duration::from_secs(10);

#[derive(Debug)]
enum Tick {
    Protocol { timer: Timer<Id>, set: Instant },
    Tell { id: Id, incarnation: u16, left: u8 },
}

/// The state machine of membership.
pub(crate) struct Swim {
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
        let id = Id { node: me, life };
        Self {
            foca: Foca::new(id, protocol_config(config, 1), generator, Format),
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
            output: VecDeque::new(),
            tally: Tally::default(),
        }
    }

    /// Takes a datagram of an admitted peer. One from the life `over`, or an earlier one, is
    /// ignored.
    ///
    /// # Errors
    ///
    /// [`BadSwim`] when it does not parse; nothing has changed then.
    pub(crate) fn handle_datagram(
        &mut self,
        (from, over): (NodeId, Option<Life>),
        bytes: &[u8],
        view: &impl View,
        now: Instant,
    ) -> Result<Seen, BadSwim> {
        let (header, rest) = postcard::take_from_bytes::<RawHeader>(bytes).map_err(|_| BadSwim)?;
        let claims = messages::read_claims(rest)?;
        let me = *self.foca.identity();
        let stale = header.to != me.life && header.message != RawMessage::Announce;
        let again = header.message == RawMessage::TurnUndead && !self.may_renew(now);
        if stale || again || from == me.node || Some(header.from) <= over {
            return Ok(Seen { claims: Vec::new(), stale });
        }
        self.probing.answered(from, &header.message);
        let own_part = &bytes[..bytes.len() - rest.len()];
        let data = [&from.as_bytes()[..], me.node.as_bytes(), own_part].concat();
        let taken = self.foca.handle_data(&data, &mut self.collector);
        self.settle(view, now);
        taken.map(|()| Seen { claims, stale }).map_err(|_| BadSwim)
    }

    /// Takes claims that were found believable.
    pub(crate) fn apply(
        &mut self,
        claims: impl IntoIterator<Item = (NodeId, Claim)>,
        spread: bool,
        view: &impl View,
        now: Instant,
    ) {
        let me = *self.foca.identity();
        let mut members = Vec::new();
        for (node, claim) in claims {
            let about_me = node == me.node && claim.life == me.life;
            if about_me && claim.standing == Standing::Down && !self.may_renew(now) {
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
            members.push(Member::new(Id { node, life: claim.life }, claim.incarnation, state));
        }
        // An error is one of encoding, which cannot happen: members are far smaller than a packet.
        let _ = self.foca.apply_many(members.into_iter(), spread, &mut self.collector);
        self.settle(view, now);
    }

    /// Does what is due.
    pub(crate) fn handle_timeout(&mut self, view: &impl View, now: Instant) {
        while let Some(tick) = self.timers.take_due(now) {
            match tick {
                Tick::Protocol { timer: Timer::ChangeSuspectToDown { member_id, .. }, set }
                    if view.heard(&member_id.node).is_some_and(|heard| heard > set) => {}
                Tick::Protocol { timer, .. } => {
                    // Errors are about incomplete probes, from which it recovers by itself.
                    let _ = self.foca.handle_timer(timer, &mut self.collector);
                }
                Tick::Tell { id, incarnation, left } => self.tell(id, incarnation, left, now),
            }
            self.settle(view, now);
        }
    }

    /// The process did not run for this long: nobody can be blamed for silence in that time.
    pub(crate) fn stalled(&mut self, by: Duration) {
        self.probing.awareness.late();
        self.timers.shift(by);
    }

    /// Asks a node to take this one in, whatever is known of it.
    pub(crate) fn announce(&mut self, to: NodeId, view: &impl View, now: Instant) {
        let id = Id { node: to, life: Life::default() };
        let _ = self.foca.announce(id, &mut self.collector);
        self.settle(view, now);
    }

    /// Suspects a member, because something else than a probe of the protocol found it silent.
    pub(crate) fn suspect(&mut self, node: NodeId, life: Life, view: &impl View, now: Instant) {
        self.accuse(Id { node, life }, self.config.suspicion, view, now);
    }

    /// Suspects a member for a shorter time, because it is said to be down.
    pub(crate) fn verify(&mut self, node: NodeId, life: Life, view: &impl View, now: Instant) {
        let before = self.tally.suspicions;
        self.accuse(Id { node, life }, self.config.suspicion / 4, view, now);
        self.tally.suspicions = before;
    }

    fn accuse(&mut self, id: Id, patience: Duration, view: &impl View, now: Instant) {
        let known = self.foca.iter_members().find(|member| *member.id() == id);
        let (Some(incarnation), Some(token)) =
            (known.map(Member::incarnation), self.collector.token)
        else {
            return;
        };
        let suspect = Member::new(id, incarnation, State::Suspect);
        let _ = self.foca.apply_many(std::iter::once(suspect), true, &mut self.collector);
        let timer = Timer::ChangeSuspectToDown { member_id: id, incarnation, token };
        self.collector.submit_after(timer, patience);
        self.settle(view, now);
    }

    /// Declares this node's own life over and stops taking part.
    pub(crate) fn leave(&mut self, view: &impl View, now: Instant) {
        let _ = self.foca.leave_cluster(&mut self.collector);
        self.settle(view, now);
        self.timers.clear();
    }

    /// Goes on in a later life.
    pub(crate) fn change_life(&mut self, life: Life, view: &impl View, now: Instant) {
        let id = Id { node: self.foca.identity().node, life };
        if self.foca.change_identity(id, &mut self.collector).is_ok() {
            self.incarnation = 0;
            self.settle(view, now);
        }
    }

    /// Drops all memory of a node that is down.
    pub(crate) fn forget(&mut self, node: NodeId, life: Life) {
        let timer = Timer::RemoveDown(Id { node, life });
        let _ = self.foca.handle_timer(timer, &mut self.collector);
    }

    /// Adjusts how often news are repeated to the number of members, this node included.
    pub(crate) fn set_size(&mut self, members: usize) {
        if members.ilog2() != self.size.max(1).ilog2() {
            self.size = members;
            let config = protocol_config(&self.config, members);
            let replaced = self.foca.set_config(config);
            debug_assert!(replaced.is_ok(), "only the number of repetitions changes");
        }
    }

    /// What is to be done next, in order.
    pub(crate) fn poll_output(&mut self) -> Option<Output> {
        self.output.pop_front()
    }

    /// When [`Self::handle_timeout`] is due.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    pub(crate) fn life(&self) -> Life {
        self.foca.identity().life
    }

    /// What this node says about itself.
    pub(crate) fn own_claim(&self) -> Claim {
        Claim { life: self.life(), incarnation: self.incarnation, standing: Standing::Alive }
    }

    /// How distrustful this node is of its own view, 0 to 8.
    pub(crate) fn score(&self) -> u32 {
        self.probing.awareness.score()
    }

    /// Takes over what the protocol produced: first the packets, because they tell which probe the
    /// timers belong to.
    fn settle(&mut self, view: &impl View, now: Instant) {
        self.take_collected(view, now);
        let rested = self.hurried.is_none_or(|last| now.saturating_duration_since(last) >= HASTE);
        if std::mem::take(&mut self.hurry) && rested {
            self.hurried = Some(now);
            let _ = self.foca.gossip(&mut self.collector);
            self.take_collected(view, now);
        }
    }

    fn take_collected(&mut self, view: &impl View, now: Instant) {
        let mut pinged = false;
        for (to, bytes) in std::mem::take(&mut self.collector.sends) {
            if let Ok((header, _)) = postcard::take_from_bytes::<RawHeader>(&bytes) {
                self.incarnation = self.incarnation.max(header.incarnation);
                if let RawMessage::Ping(number) = header.message {
                    self.probing.begin(to, number, view.session(&to));
                    pinged = true;
                }
            }
            if let Some(datagram) = Message::Swim(&bytes).encode() {
                self.output.push_back(Output::Send(to, datagram));
            }
        }
        for (timer, after) in std::mem::take(&mut self.collector.timers) {
            let after = self.wait(&timer, after, pinged, view);
            if let Timer::ChangeSuspectToDown { member_id, incarnation, .. } = &timer {
                self.tally.suspicions += 1;
                self.hurry = true;
                let (id, incarnation) = (*member_id, *incarnation);
                self.add(now, Tick::Tell { id, incarnation, left: TELLINGS });
            }
            self.add(now + after, Tick::Protocol { timer, set: now });
        }
        for notice in std::mem::take(&mut self.collector.notices) {
            self.hurry |= matches!(notice, Output::Down(..));
            if matches!(notice, Output::Renewed(_)) {
                self.incarnation = 0;
                self.renewed = Some(now);
            }
            self.output.push_back(notice);
        }
    }

    /// How long to wait for a timer instead of what the protocol asks.
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
            // Others are asked early, since they may have a session.
            Timer::SendIndirectProbe { .. } => {
                self.probing.awareness.stretch(asked + allowance.min(self.config.probe_timeout))
            }
            Timer::ProbeRandomMember(_) if pinged => {
                self.probing.awareness.stretch(asked + allowance)
            }
            // The first probe after joining comes at a random time, so that probes spread out.
            Timer::ProbeRandomMember(_) => self.dice.up_to(asked),
            Timer::ChangeSuspectToDown { member_id, .. } => {
                let near = view.same_site(&member_id.node) && view.session(&member_id.node);
                self.probing.awareness.stretch(if near { asked * 2 / 3 } else { asked })
            }
            Timer::PeriodicAnnounce(_)
            | Timer::PeriodicAnnounceDown(_)
            | Timer::PeriodicGossip(_) => self.dice.jitter(asked, 20),
            Timer::RemoveDown(_) => asked,
        }
    }

    fn may_renew(&self, now: Instant) -> bool {
        self.renewed.is_none_or(|at| now.saturating_duration_since(at) >= RENEWAL)
    }

    fn tell(&mut self, id: Id, incarnation: u16, left: u8, now: Instant) {
        let suspected = self.foca.iter_members().any(|member| {
            *member.id() == id
                && member.incarnation() == incarnation
                && member.state() == State::Suspect
        });
        if !suspected {
            return;
        }
        let claim = Claim { life: id.life, incarnation, standing: Standing::Suspect };
        self.output.push_back(Output::Tell(id.node, claim));
        if left > 1 {
            let pause = self.config.suspicion / (2 * u32::from(TELLINGS));
            self.add(now + pause, Tick::Tell { id, incarnation, left: left - 1 });
        }
    }

    fn add(&mut self, due: Instant, tick: Tick) {
        self.tally.dropped_timers += u64::from(!self.timers.add(due, tick));
    }
}

/// A repetition count of about four per decade of members reaches everybody, with a margin for
/// loss.
fn protocol_config(config: &DiscoveryConfig, members: usize) -> Config {
    let doublings = u8::try_from(members.max(1).ilog2()).unwrap_or(u8::MAX);
    let repetitions = (doublings + doublings / 4).clamp(6, 24);
    let every = |frequency, count: u8| {
        let num_members = NonZeroUsize::new(usize::from(count)).unwrap_or(NonZeroUsize::MIN);
        Some(PeriodicParams { frequency, num_members })
    };
    Config {
        probe_period: config.probe_interval,
        probe_rtt: config.probe_timeout,
        num_indirect_probes: NonZeroUsize::new(usize::from(config.indirect_probes))
            .unwrap_or(NonZeroUsize::MIN),
        max_transmissions: NonZeroU8::new(repetitions).unwrap_or(NonZeroU8::MIN),
        suspect_to_down_after: config.suspicion,
        // Forgetting is the directory's business.
        remove_down_after: None,
        max_packet_size: NonZeroUsize::new(MAX_DATAGRAM - ENVELOPE + IDS)
            .unwrap_or(NonZeroUsize::MIN),
        notify_down_members: true,
        periodic_announce: every(ANNOUNCE_EVERY, 1),
        periodic_announce_to_down_members: every(ANNOUNCE_DOWN_EVERY, 1),
        periodic_gossip: every(config.gossip_interval, config.gossip_fanout),
    }
}

/// A node in one of its lives. A later life replaces an earlier one, so that a node that restarts
/// or was declared down is back with its first packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Id {
    node: NodeId,
    life: Life,
}

impl Identity for Id {
    type Addr = NodeId;

    fn renew(&self) -> Option<Self> {
        let renewal = self.life.renewal.checked_add(1)?;
        Some(Self { life: Life { renewal, ..self.life }, ..*self })
    }

    fn addr(&self) -> NodeId {
        self.node
    }

    fn win_addr_conflict(&self, adversary: &Self) -> bool {
        self.life > adversary.life
    }
}

#[derive(Debug, Default)]
struct Collector {
    sends: Vec<(NodeId, Vec<u8>)>,
    timers: Vec<(Timer<Id>, Duration)>,
    notices: Vec<Output>,
    /// What the protocol marks its present timers with.
    token: Option<foca::TimerToken>,
}

impl Runtime<Id> for Collector {
    fn notify(&mut self, notification: Notification<'_, Id>) {
        self.notices.push(match notification {
            Notification::MemberUp(id) => Output::Up(id.node, id.life),
            Notification::MemberDown(id) => Output::Down(id.node, id.life),
            Notification::Rename(_, id) => Output::Renamed(id.node, id.life),
            Notification::Rejoin(id) => Output::Renewed(id.life),
            Notification::Active | Notification::Idle | Notification::Defunct => return,
        });
    }

    fn send_to(&mut self, to: Id, data: &[u8]) {
        self.sends.push((to.node, data[IDS..].to_vec()));
    }

    fn submit_after(&mut self, timer: Timer<Id>, after: Duration) {
        if let Timer::ProbeRandomMember(token) = &timer {
            self.token = Some(*token);
        }
        self.timers.push((timer, after));
    }
}

impl From<Id> for RawId {
    fn from(id: Id) -> Self {
        Self(*id.node.as_bytes(), id.life)
    }
}

impl From<RawId> for Id {
    fn from(raw: RawId) -> Self {
        Self { node: NodeId::from_bytes(raw.0), life: raw.1 }
    }
}

/// The protocol's messages and those that travel, each way: without content, with a probe number,
/// and with a third node as well.
macro_rules! translate {
    ($($plain:ident)*; $($numbered:ident)*; $($third:ident $field:ident),*) => {
        impl From<&foca::Message<Id>> for RawMessage {
            fn from(message: &foca::Message<Id>) -> Self {
                match *message {
                    $(foca::Message::$plain => Self::$plain,)*
                    $(foca::Message::$numbered(number) => Self::$numbered(number),)*
                    $(foca::Message::$third { $field, probe_number: number } => {
                        Self::$third($field.into(), number)
                    })*
                }
            }
        }

        impl From<RawMessage> for foca::Message<Id> {
            fn from(message: RawMessage) -> Self {
                match message {
                    $(RawMessage::$plain => Self::$plain,)*
                    $(RawMessage::$numbered(number) => Self::$numbered(number),)*
                    $(RawMessage::$third(id, number) => {
                        Self::$third { $field: id.into(), probe_number: number }
                    })*
                }
            }
        }
    };
}

translate! {
    Announce Feed Gossip Broadcast TurnUndead;
    Ping Ack;
    PingReq target, IndirectPing origin, IndirectAck target, ForwardedAck origin
}

/// The protocol's messages as bytes: both node ids, which never leave the node, then the header,
/// then members as short id and claim.
#[derive(Debug)]
struct Format;

impl Format {
    fn put(value: &impl Serialize, mut to: impl BufMut) -> Result<(), BadFormat> {
        // The largest value is a header with a third node: 32 bytes and a few numbers.
        let mut scratch = [0; 128];
        let bytes = postcard::to_slice(value, &mut scratch).map_err(|_| BadFormat::Room)?;
        if to.remaining_mut() < bytes.len() {
            return Err(BadFormat::Room);
        }
        to.put_slice(bytes);
        Ok(())
    }
}

impl Codec<Id> for Format {
    type Error = BadFormat;

    fn encode_header(&mut self, header: &Header<Id>, mut to: impl BufMut) -> Result<(), BadFormat> {
        if to.remaining_mut() < IDS {
            return Err(BadFormat::Room);
        }
        to.put_slice(header.src.node.as_bytes());
        to.put_slice(header.dst.node.as_bytes());
        let raw = RawHeader {
            from: header.src.life,
            incarnation: header.src_incarnation,
            to: header.dst.life,
            message: (&header.message).into(),
        };
        Self::put(&raw, to)
    }

    fn decode_header(&mut self, mut from: impl Buf) -> Result<Header<Id>, BadFormat> {
        if from.remaining() < IDS {
            return Err(BadFormat::Malformed);
        }
        let (mut src, mut dst) = ([0; 32], [0; 32]);
        from.copy_to_slice(&mut src);
        from.copy_to_slice(&mut dst);
        let (raw, rest) = postcard::take_from_bytes::<RawHeader>(from.chunk())
            .map_err(|_| BadFormat::Malformed)?;
        let used = from.remaining() - rest.len();
        from.advance(used);
        Ok(Header {
            src: Id { node: NodeId::from_bytes(src), life: raw.from },
            src_incarnation: raw.incarnation,
            dst: Id { node: NodeId::from_bytes(dst), life: raw.to },
            message: raw.message.into(),
        })
    }

    fn encode_member(&mut self, member: &Member<Id>, to: impl BufMut) -> Result<(), BadFormat> {
        let standing = match member.state() {
            State::Alive => Standing::Alive,
            State::Suspect => Standing::Suspect,
            State::Down => Standing::Down,
        };
        let (life, incarnation) = (member.id().life, member.incarnation());
        Self::put(&(Short::of(&member.id().node), Claim { life, incarnation, standing }), to)
    }

    /// Members never come this way: the caller reads, checks and applies them one by one.
    fn decode_member(&mut self, _: impl Buf) -> Result<Member<Id>, BadFormat> {
        Err(BadFormat::Malformed)
    }
}

#[cfg(test)]
mod tests;
