//! WireGuard itself: the only file that names boringtun.
//!
//! Owns the sessions of one peer (`Tunnel`) and the check of incoming initiations ([`Gate`]).
//! boringtun's tunnel has one fixed pre-shared key. While the mesh has two secrets, a `Tunnel` has
//! a `Half` per secret in use, so that sessions agreed under one continue while the next is agreed
//! under the other; likewise while a node changes its key. The receiver index identifies the half.
//!
//! boringtun does the Noise handshake, the AEAD, the replay window and the end of sessions after
//! 180 s. It does not decide when to send: `Peer` handles retries, rekeys and keepalives, and calls
//! `Tunnel::tick` before it uses a tunnel if about a second has passed, since boringtun's clock
//! advances only there.
//!
//! Buffers: boringtun panics when an output buffer is shorter than the packet plus
//! [`DATA_OVERHEAD`] or a handshake message; every caller passes at least [`MIN_OUTPUT`] bytes and
//! room for its packet, and the wrapper checks it.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use boringtun::noise::errors::WireGuardError;
use boringtun::noise::handshake::parse_handshake_anon;
use boringtun::noise::rate_limiter::RateLimiter;
use boringtun::noise::{Packet, Tunn, TunnResult};
use boringtun::x25519::{PublicKey, StaticSecret};
use meshport_config::NodeId;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use self::shares::Shares;
pub(crate) use self::terms::{Ends, Failure, Opened, SessionId, Terms, Under};
use crate::shard::SHARD_BITS;

mod shares;
mod terms;

/// Bytes WireGuard adds to an inner packet: header and authentication tag.
pub const DATA_OVERHEAD: usize = 32;
/// Length of a handshake initiation in bytes.
pub const INITIATION: usize = 148;
/// Length of a handshake response in bytes.
pub const RESPONSE: usize = 92;
/// Smallest output buffer: the longest message of a handshake.
pub const MIN_OUTPUT: usize = INITIATION;
/// boringtun's clock is advanced before use if it is older than this.
const TICK_GAP: Duration = Duration::from_secs(1);
/// Period in which sources are counted.
const GATE_PERIOD: Duration = Duration::from_secs(1);
/// Burst of the handshake limit, as a time: a quarter of a second. Beyond that, handshakes of a
/// flood come one by one; a whole second's worth at once would block everything else for 55 ms.
const GATE_BURST: Duration = Duration::from_millis(250);
/// First byte of a WireGuard data message.
const TYPE_DATA: u8 = 4;
/// Messages with this number or a higher one are rejected (Reject-After-Messages), so that no nonce
/// is reused and nothing wraps around. A sender stays below it because sessions end after 180 s,
/// even at 2^56 messages a second.
const REJECT_AFTER_MESSAGES: u64 = u64::MAX - (1 << 13);
/// Strangers whose handshakes are fully computed per second, as a multiple of the limit, so that a
/// spoofed flood without cookies leaves capacity for strangers with one.
const STRANGERS: u32 = 2;
/// Halves in addition to the main one: one for the other secret, one for the other key, and one
/// whose secret is erased but whose session lasts a little longer.
const MAX_SPARES: usize = 3;
/// Position, in the 24 bits of a peer's receiver index, of the number of its half. The 16 bits
/// below are the peer, and the last two its shard.
pub(crate) const MARK_SHIFT: u32 = 16 + SHARD_BITS;

/// The type of a WireGuard message, and its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Message {
    /// A handshake initiation, which has no session yet.
    Initiation,
    /// A handshake response to the session with this receiver index.
    Response(u32),
    /// A cookie reply to the session with this receiver index.
    Cookie(u32),
    /// Data for the session with this receiver index.
    Data(u32),
}

/// Reads type and receiver index; `None` if it is not WireGuard.
pub(crate) fn classify(datagram: &[u8]) -> Option<Message> {
    Some(match Tunn::parse_incoming_packet(datagram).ok()? {
        Packet::HandshakeInit(_) => Message::Initiation,
        Packet::HandshakeResponse(p) => Message::Response(p.receiver_idx),
        Packet::PacketCookieReply(p) => Message::Cookie(p.receiver_idx),
        Packet::PacketData(_) if message_number(datagram)? >= REJECT_AFTER_MESSAGES => return None,
        Packet::PacketData(p) => Message::Data(p.receiver_idx),
    })
}

/// The number of a data message, which is its nonce.
fn message_number(datagram: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(*datagram.get(8..16)?.first_chunk()?))
}

/// Checks initiations before any peer is touched: MAC, load, and the claimed sender. All shards of
/// a node share one, so its limits and its cookies are per node.
pub struct Gate {
    /// In permanent under-load mode: requests cookies, and recognises its own.
    limiter: RateLimiter,
    /// Initiations per second that pass without a cookie.
    limit: u32,
    load: Mutex<Load>,
    keys: Arc<Keys>,
    public: PublicKey,
}

/// The keys of every tunnel of the node.
struct Keys {
    /// For tunnels, whose messages the gate has already counted.
    unlimited: Arc<RateLimiter>,
    secret: StaticSecret,
}

/// Handshakes in the current period, and recently.
#[derive(Default)]
struct Load {
    began: Option<Instant>,
    /// When the initiations that passed without a cookie would have arrived at the rate of the
    /// limit.
    spaced: Option<Instant>,
    /// The same for strangers and their own limit.
    strangers: Option<Instant>,
    /// Initiations with a valid MAC.
    judged: u32,
    /// Initiations with a cookie.
    shares: Shares,
}

/// The result of the gate.
pub(crate) enum Checked {
    /// The initiator's claimed static key; proven only when its tunnel accepts the message.
    Initiator(NodeId),
    /// Under load: send these bytes of the output back.
    Cookie(usize),
    /// Under load, from a source that has used up its share of initiations.
    TooMany,
    /// The first MAC is wrong.
    BadMac,
    /// It does not decrypt.
    Invalid,
}

impl Gate {
    /// `limit` is the number of initiations that pass without a cookie in a second.
    pub(crate) fn new(secret: &StaticSecret, limit: u32) -> Self {
        let public = PublicKey::from(secret);
        Self {
            limiter: RateLimiter::new(&public, 0),
            limit,
            load: Mutex::default(),
            keys: Arc::new(Keys {
                unlimited: Arc::new(RateLimiter::new(&public, u64::MAX)),
                secret: secret.clone(),
            }),
            public,
        }
    }

    /// Resets the counts of sources once a second.
    fn begin_period(&self, now: Instant) {
        let mut load = self.load();
        let lasts = |began| now.saturating_duration_since(began) < GATE_PERIOD;
        if !load.began.is_some_and(lasts) {
            (load.began, load.judged) = (Some(now), 0);
            load.shares.begin();
        }
    }

    fn load(&self) -> MutexGuard<'_, Load> {
        self.load.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this key can agree on a secret: with a key of small order (RFC 7748, section 6.1)
    /// the result is publicly known, without its private half.
    pub(crate) fn agrees_with(&self, node: &NodeId) -> bool {
        let other = PublicKey::from(*node.as_bytes());
        self.keys.secret.diffie_hellman(&other).was_contributory()
    }

    /// Judges an initiation that came from `source`. A cookie reply is written to `out`.
    pub(crate) fn check(
        &self,
        now: Instant,
        source: SocketAddr,
        datagram: &[u8],
        out: &mut [u8],
    ) -> Checked {
        self.begin_period(now);
        let init = match self.keys.unlimited.verify_packet(None, datagram, out) {
            Ok(Packet::HandshakeInit(init)) => init,
            Err(TunnResult::Err(WireGuardError::InvalidMac)) => return Checked::BadMac,
            Ok(_) | Err(_) => return Checked::Invalid,
        };
        if !self.is_unhurried(now) {
            match self.limiter.verify_packet(Some(cookie_address(source)), datagram, out) {
                Ok(_) if self.allows(source.ip(), now) => {}
                Ok(_) => return Checked::TooMany,
                Err(TunnResult::WriteToNetwork(reply)) => return Checked::Cookie(reply.len()),
                Err(_) => return Checked::Invalid,
            }
        }
        match parse_handshake_anon(&self.keys.secret, &self.public, &init) {
            Ok(half) => Checked::Initiator(NodeId::from_bytes(half.peer_static_public)),
            Err(_) => Checked::Invalid,
        }
    }

    /// Counts an initiation; returns whether it is within the limit and needs no cookie.
    fn is_unhurried(&self, now: Instant) -> bool {
        let mut load = self.load();
        load.judged = load.judged.saturating_add(1);
        take_turn(&mut load.spaced, now, self.limit)
    }

    /// Counts an initiation in the name of a node that is no peer; returns whether to compute the
    /// rest of its handshake. Peers are exempt, so that strangers cannot use up the limit for them.
    pub(crate) fn takes_stranger(&self, now: Instant) -> bool {
        take_turn(&mut self.load().strangers, now, self.limit.saturating_mul(STRANGERS))
    }

    /// Counts an initiation of a source; returns false if the source has used up its share under
    /// load.
    fn allows(&self, source: IpAddr, now: Instant) -> bool {
        let mut load = self.load();
        load.judged <= self.limit || load.shares.take(source, now)
    }

    /// Notes that an admitted peer has a session at this address, whose source gets more under
    /// load.
    pub(crate) fn settle(&self, ip: IpAddr, now: Instant) {
        self.load().shares.settle(ip, now);
    }

    #[cfg(test)]
    pub(crate) fn settled(&self, ip: IpAddr) -> Option<Instant> {
        self.load().shares.homes.get(&ip).copied()
    }
}

/// Takes one of `rate` turns a second, with a burst of [`GATE_BURST`].
fn take_turn(taken: &mut Option<Instant>, now: Instant, rate: u32) -> bool {
    let gap = Duration::from_secs(1) / rate.max(1);
    let next = taken.map_or(now, |at| at.max(now)) + gap;
    let is_free = next <= now + GATE_BURST.max(gap);
    if is_free {
        *taken = Some(next);
    }
    is_free
}

/// The input of a cookie. The WireGuard paper (section 5.4.7) uses address and port, boringtun only
/// the address, so both are encoded in an address.
fn cookie_address(source: SocketAddr) -> IpAddr {
    let ip = match source.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let hash = Sha256::new().chain_update(ip.octets()).chain_update(source.port().to_be_bytes());
    Ipv6Addr::from(*hash.finalize().first_chunk::<16>().expect("SHA-256 gives 32 bytes")).into()
}

/// The sessions with one peer.
pub(crate) struct Tunnel {
    /// The half with the newest session, which seals everything.
    main: Half,
    spares: Vec<Half>,
    /// The peer's receiver index under mark 0.
    index: u32,
    /// Time at which boringtun's clock was last advanced.
    ticked: Option<Instant>,
}

/// The sessions agreed under one secret and one pair of keys.
struct Half {
    /// boringtun's state for eight sessions, 11 KiB. It exists only from the first handshake to the
    /// end of the last session, since a node knows thousands of peers that it rarely talks to.
    tunn: Option<Box<Tunn>>,
    keys: Arc<Keys>,
    psk: Zeroizing<[u8; 32]>,
    /// The receiver index of its sessions.
    index: u32,
    /// Whether data can be sealed now. Exact, since sessions end only in `tick`.
    session: bool,
    mark: u8,
    under: Under,
    between: Ends,
    /// Time at which its last session expires; unknown while it is the main half.
    ends: Option<Instant>,
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Tunnel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tunnel")
            .field("session", &self.main.session)
            .field("halves", &(1 + self.spares.len()))
            .finish_non_exhaustive()
    }
}

impl Tunnel {
    /// `index` is the peer's 24-bit receiver index. boringtun's own timers send nothing: keepalives
    /// are off here and done by the peer.
    pub(crate) fn new(gate: &Gate, terms: &Terms, index: u32) -> Self {
        Self { main: Half::new(gate, terms, index, 0), spares: Vec::new(), index, ticked: None }
    }

    /// Starts over, without any session.
    pub(crate) fn restart(&mut self, gate: &Gate, terms: &Terms) {
        *self = Self::new(gate, terms, self.index);
    }

    /// Whether there is a half for these terms.
    pub(crate) fn knows(&self, under: &Under) -> bool {
        self.halves().any(|half| half.under == *under)
    }

    /// Adds a half for another secret or key.
    pub(crate) fn add(&mut self, gate: &Gate, terms: &Terms) {
        // Replace the oldest without a session; if all have one, the oldest of all.
        if self.spares.len() >= MAX_SPARES {
            let idle = self.spares.iter().position(|half| !half.session);
            self.spares.remove(idle.unwrap_or(0));
        }
        let is_free = |mark: &u8| self.halves().all(|half| half.mark != *mark);
        let mark = (0..=u8::MAX).find(is_free).expect("there are four halves at most");
        self.spares.push(Half::new(gate, terms, self.index, mark));
    }

    /// Drops halves that are not `is_valid`, but keeps their sessions until they end.
    pub(crate) fn retain(&mut self, is_valid: impl Fn(&Under) -> bool, now: Instant) {
        if !self.main.session
            && !is_valid(&self.main.under)
            && let Some(valid) = self.spares.iter().position(|half| is_valid(&half.under))
        {
            self.main = self.spares.swap_remove(valid);
        }
        let lives = |half: &Half| half.session && half.ends.is_none_or(|at| at > now);
        self.spares.retain(|half| lives(half) || is_valid(&half.under));
    }

    /// Erases all halves whose private key is not that of `own`, including sessions. False if none
    /// is left, so that the tunnel must start over.
    pub(crate) fn keep_only(&mut self, own: &NodeId) -> bool {
        self.spares.retain(|half| half.under.own == *own);
        if self.main.under.own == *own {
            return true;
        }
        let live = self.spares.iter().position(|half| half.session).unwrap_or(0);
        if live >= self.spares.len() {
            return false;
        }
        self.main = self.spares.swap_remove(live);
        true
    }

    /// Makes this half the one that seals, since its session is the newest. The other half's
    /// session is not used after `ends`.
    pub(crate) fn activate(&mut self, mark: u8, ends: Instant) {
        if let Some(half) = self.spares.iter_mut().find(|half| half.mark == mark) {
            std::mem::swap(&mut self.main, half);
            half.ends = Some(ends);
            self.main.ends = None;
        }
    }

    /// The terms under which the current session was agreed, or would be.
    pub(crate) fn under(&self) -> Under {
        self.main.under
    }

    /// The inner addresses of packets that are sealed now.
    pub(crate) fn ends(&self) -> Ends {
        self.main.between
    }

    /// The inner addresses of packets of the half with this mark.
    pub(crate) fn ends_of(&self, mark: u8) -> Option<Ends> {
        if self.main.mark == mark {
            return Some(self.main.between);
        }
        self.spares.iter().find(|half| half.mark == mark).map(|half| half.between)
    }

    /// Whether data can be sealed.
    pub(crate) fn has_session(&self) -> bool {
        self.main.session
    }

    /// Frees the memory for sessions and handshakes if there are none. This also forgets the time
    /// of the last answered initiation, so a recorded one may be answered again. As after a restart
    /// of this process, that does no harm (the WireGuard paper, section 5.1): the peer's next
    /// initiation is newer.
    pub(crate) fn rest(&mut self) {
        for half in std::iter::once(&mut self.main).chain(&mut self.spares) {
            (half.tunn, half.session) = (None, false);
        }
    }

    /// Whether memory for sessions is allocated.
    #[cfg(test)]
    pub(crate) fn is_at_rest(&self) -> bool {
        self.halves().all(|half| half.tunn.is_none())
    }

    /// Seals `inner` (empty for a keepalive) into `out`, which is [`DATA_OVERHEAD`] bytes longer.
    /// `None` without a session.
    pub(crate) fn seal(&mut self, inner: &[u8], out: &mut [u8]) -> Option<usize> {
        if !self.main.session || out.len() < MIN_OUTPUT.max(inner.len() + DATA_OVERHEAD) {
            return None;
        }
        match self.main.tunn.as_mut()?.encapsulate(inner, out) {
            TunnResult::WriteToNetwork(packet) if packet[0] == TYPE_DATA => Some(packet.len()),
            _ => None,
        }
    }

    /// Opens a datagram for the half with this mark; `out` is at least as long, and at least
    /// [`MIN_OUTPUT`] bytes.
    pub(crate) fn open(&mut self, mark: u8, datagram: &[u8], out: &mut [u8]) -> Opened {
        if self.main.mark == mark {
            return self.main.open(datagram, out);
        }
        match self.spares.iter_mut().find(|half| half.mark == mark) {
            Some(half) => half.open(datagram, out),
            None => Opened::Failed(Failure::NoSession),
        }
    }

    /// Answers an initiation under these terms, and returns the half.
    pub(crate) fn answer(
        &mut self,
        under: &Under,
        datagram: &[u8],
        out: &mut [u8],
    ) -> (u8, Opened) {
        match self.half(under) {
            Some(half) => {
                half.wake();
                (half.mark, half.open(datagram, out))
            }
            None => (0, Opened::Failed(Failure::NoSession)),
        }
    }

    /// A new handshake initiation under these terms, even if one is in progress.
    pub(crate) fn initiate(&mut self, under: &Under, out: &mut [u8]) -> Option<usize> {
        if out.len() < MIN_OUTPUT {
            return None;
        }
        match self.half(under)?.wake().format_handshake_initiation(out, true) {
            TunnResult::WriteToNetwork(packet) => Some(packet.len()),
            _ => None,
        }
    }

    /// Whether boringtun's clock must be advanced before the tunnel is used.
    pub(crate) fn is_stale(&self, now: Instant) -> bool {
        self.ticked.is_none_or(|at| now.saturating_duration_since(at) >= TICK_GAP)
    }

    /// Advances boringtun's clock, which ends sessions older than 180 s. May yield a packet to
    /// send.
    pub(crate) fn tick(&mut self, now: Instant, out: &mut [u8]) -> Option<usize> {
        self.ticked = Some(now);
        if out.len() < MIN_OUTPUT {
            return None;
        }
        // Only the peer can start something new under terms other than the session's.
        for half in &mut self.spares {
            half.tick(out);
        }
        self.main.tick(out)
    }

    /// Seals nothing more until a handshake or a packet proves that a session exists.
    pub(crate) fn abandon(&mut self) {
        self.main.session = false;
        self.spares.iter_mut().for_each(|half| half.session = false);
    }

    fn halves(&self) -> impl Iterator<Item = &Half> {
        std::iter::once(&self.main).chain(&self.spares)
    }

    fn half(&mut self, under: &Under) -> Option<&mut Half> {
        std::iter::once(&mut self.main).chain(&mut self.spares).find(|half| half.under == *under)
    }
}

impl Half {
    fn new(gate: &Gate, terms: &Terms, index: u32, mark: u8) -> Self {
        Self {
            tunn: None,
            keys: gate.keys.clone(),
            psk: terms.psk.clone(),
            index: index ^ (u32::from(mark) << MARK_SHIFT),
            session: false,
            mark,
            under: terms.under,
            between: terms.ends,
            ends: None,
        }
    }

    /// The tunnel state that handshakes need.
    fn wake(&mut self) -> &mut Tunn {
        self.tunn.get_or_insert_with(|| {
            Box::new(Tunn::new(
                self.keys.secret.clone(),
                PublicKey::from(*self.under.peer.as_bytes()),
                Some(*self.psk),
                None,
                self.index,
                Some(self.keys.unlimited.clone()),
            ))
        })
    }

    fn open(&mut self, datagram: &[u8], out: &mut [u8]) -> Opened {
        if out.len() < datagram.len().max(MIN_OUTPUT) || datagram.is_empty() {
            return Opened::Failed(Failure::Invalid);
        }
        let Some(tunn) = &mut self.tunn else { return Opened::Failed(Failure::NoSession) };
        let opened = match tunn.decapsulate(None, datagram, out) {
            TunnResult::Done => Opened::Nothing,
            TunnResult::WriteToTunnelV6(packet, _) | TunnResult::WriteToTunnelV4(packet, _) => {
                Opened::Packet(packet.len())
            }
            TunnResult::WriteToNetwork(reply) => Opened::Reply(reply.len()),
            TunnResult::Err(error) => refusal(datagram, &error),
        };
        match opened {
            Opened::Packet(_) | Opened::NotIp => self.session = true,
            // Keepalives confirm a session like data does; a cookie does not.
            Opened::Nothing => self.session |= datagram[0] == TYPE_DATA,
            // The response to our initiation creates a session; the answer is its first packet.
            Opened::Reply(_) => self.session |= out[0] == TYPE_DATA,
            Opened::Failed(_) => {}
        }
        if matches!(opened, Opened::Reply(_)) && self.session {
            self.forget_queue();
        }
        opened
    }

    fn tick(&mut self, out: &mut [u8]) -> Option<usize> {
        let tunn = self.tunn.as_mut()?;
        let length = match tunn.update_timers(out) {
            TunnResult::WriteToNetwork(packet) => Some(packet.len()),
            _ => None,
        };
        self.session = tunn.time_since_last_handshake().is_some();
        length
    }

    /// Drops keepalives that boringtun may have queued while there was no session.
    fn forget_queue(&mut self) {
        let mut scratch = [0; MIN_OUTPUT];
        let Some(tunn) = &mut self.tunn else { return };
        while !matches!(tunn.decapsulate(None, &[], &mut scratch), TunnResult::Done) {}
    }
}

fn refusal(datagram: &[u8], error: &WireGuardError) -> Opened {
    let failure = match error {
        // `classify` has checked the datagram itself; this is about the decrypted content.
        WireGuardError::InvalidPacket if datagram[0] == TYPE_DATA => return Opened::NotIp,
        WireGuardError::DuplicateCounter
        | WireGuardError::InvalidCounter
        | WireGuardError::WrongTai64nTimestamp => Failure::Replayed,
        WireGuardError::NoCurrentSession | WireGuardError::WrongIndex => Failure::NoSession,
        _ => Failure::Invalid,
    };
    Opened::Failed(failure)
}

#[cfg(test)]
mod tests;
