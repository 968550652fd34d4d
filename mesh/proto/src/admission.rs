//! Admission: how two nodes present their credentials once a session exists.
//!
//! Messages travel as UDP datagrams to [`CONTROL`](crate::ports::CONTROL) inside the tunnel.
//! `Hello` carries the sender's credential and its instance, a number that is new in every process;
//! it is repeated with growing gaps until the peer sends `Ack`, or [`HELLO_TRIES`] are spent.
//! `Refused` gives a peer the reason why its credential was not accepted. A `Hello` without the
//! flag "I have yours" makes the receiver send its own again, so a restarted node is admitted
//! within a round trip.
//!
//! `Number` reports the sender's mesh secret by number, and `Secret` sends the newest one to a peer
//! with an older one. It comes with a digest of the sender's revocations: a receiver that lacks one
//! learns it first, so it never passes the secret on to a revoked node.
//!
//! `Here` reports, once per session, the sender's process and the address at which it sees the
//! receiver; `Duplicate` tells a process that another one runs with its key.
//!
//! Until a peer's credential is accepted, nothing else from it is processed. A message is at most
//! [`MAX_MESSAGE`] bytes. Unknown versions and kinds are dropped and reported by their [`name`];
//! later versions may extend `Hello`, `Ack` and `Number`; additional bytes are ignored.
//!
//! [`name`]: unknown

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use meshport_config::MAX_NEXT_SECRET_BYTES;
use zeroize::Zeroizing;

/// Version of the messages below.
const VERSION: u8 = 1;
const KIND_HELLO: u8 = 1;
const KIND_ACK: u8 = 2;
const KIND_REFUSED: u8 = 3;
const KIND_NUMBER: u8 = 4;
const KIND_SECRET: u8 = 5;
const KIND_HERE: u8 = 6;
const KIND_DUPLICATE: u8 = 7;
/// Flag of a hello: the sender has accepted the receiver's credential.
const FLAG_HAS_YOURS: u8 = 1;
/// Flag of a hello: the sender's QUIC connections of earlier processes are still open.
const FLAG_CONTINUES: u8 = 2;
/// Flag of a hello: the sender joins fragments of packets.
const FLAG_JOINS: u8 = 4;
/// Flag of a number: the sender wants to know the receiver's.
const FLAG_WANTS_YOURS: u8 = 1;
/// Longest reason in a refusal, in bytes.
const MAX_REASON: usize = 200;
/// Maximum bytes that a later version may add to a hello, which must still fit one datagram.
const MAX_ADDED: usize = 256;
/// Longest message, in bytes: a hello with the longest credential.
pub(crate) const MAX_MESSAGE: usize =
    2 + 8 + 1 + 2 + meshport_config::MAX_CREDENTIAL_BYTES + MAX_ADDED;

/// Gap before the first repetition of a hello, doubled each time.
const HELLO_FIRST_GAP: Duration = Duration::from_millis(250);
/// Longest gap between hellos.
const HELLO_LAST_GAP: Duration = Duration::from_secs(5);
/// Maximum hellos per session; a peer that never answers is not a meshport node.
const HELLO_TRIES: u32 = 12;
/// A hello unanswered for this long is repeated when the peer reports that it lacks it.
const HELLO_ASKED_GAP: Duration = Duration::from_secs(1);
/// Minimum interval between hellos, however often the peer asks.
const HELLO_MIN_GAP: Duration = Duration::from_millis(100);

/// A control message, borrowing its bytes.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Control<'a> {
    /// "This is me."
    Hello {
        /// New in every process of the sender.
        instance: u64,
        /// Whether the sender has accepted the receiver's credential.
        has_yours: bool,
        /// Whether the QUIC connections of the sender's earlier processes are still open. The
        /// release before ignores this.
        continues: bool,
        /// Whether the sender joins fragments of packets. The release before does not.
        joins: bool,
        /// The sender's credential, encoded.
        credential: &'a [u8],
    },
    /// "I have accepted the credential of your process with this instance."
    Ack {
        /// Copied from the hello.
        instance: u64,
    },
    /// "I do not accept your credential."
    Refused {
        /// Text for display; printable ASCII.
        reason: String,
    },
    /// "The mesh's newest secret that I have has this number."
    Number {
        /// 0 for the first, and while the sender has not learned it.
        number: u64,
        /// Whether the receiver should answer with its own.
        wants_yours: bool,
    },
    /// "This process sends, and sees you at this address."
    Here {
        /// The sender's, as in a hello.
        instance: u64,
        /// The address of the receiver's packets.
        you: SocketAddr,
    },
    /// "Another process has your key."
    Duplicate {
        /// The address of its packets.
        at: SocketAddr,
    },
    /// "This is the newest."
    Secret {
        /// The revocations that the sender knows.
        revocations: RevocationSummary,
        /// The secret and the authority's statement about it, encoded.
        next: &'a [u8],
    },
}

/// A set of revocations, to compare it with another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RevocationSummary {
    /// How many there are.
    pub(crate) count: u32,
    /// The digest of all of them.
    pub(crate) digest: u64,
}

impl std::fmt::Debug for Control<'_> {
    /// Prints only the kind, since one kind carries a secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Hello { .. } => "Hello",
            Self::Ack { .. } => "Ack",
            Self::Refused { .. } => "Refused",
            Self::Number { .. } => "Number",
            Self::Here { .. } => "Here",
            Self::Duplicate { .. } => "Duplicate",
            Self::Secret { .. } => "Secret",
        })
    }
}

impl Control<'_> {
    /// The bytes on the wire. A reason is truncated at its bound.
    pub(crate) fn encode(&self) -> Zeroizing<Vec<u8>> {
        // Large enough for a secret: a buffer that grows leaves a copy behind.
        let mut out = Zeroizing::new(Vec::with_capacity(64 + MAX_NEXT_SECRET_BYTES));
        out.push(VERSION);
        match self {
            Control::Hello { instance, has_yours, continues, joins, credential } => {
                out.push(KIND_HELLO);
                out.extend_from_slice(&instance.to_be_bytes());
                let flag = |is_set: &bool, flag: u8| if *is_set { flag } else { 0 };
                out.push(
                    flag(has_yours, FLAG_HAS_YOURS)
                        | flag(continues, FLAG_CONTINUES)
                        | flag(joins, FLAG_JOINS),
                );
                let length = u16::try_from(credential.len()).expect("a credential is bounded");
                out.extend_from_slice(&length.to_be_bytes());
                out.extend_from_slice(credential);
            }
            Control::Ack { instance } => {
                out.push(KIND_ACK);
                out.extend_from_slice(&instance.to_be_bytes());
            }
            Control::Refused { reason } => {
                out.push(KIND_REFUSED);
                out.extend(reason.bytes().filter(|b| printable(*b)).take(MAX_REASON));
            }
            Control::Number { number, wants_yours } => {
                out.push(KIND_NUMBER);
                out.extend_from_slice(&number.to_be_bytes());
                out.push(if *wants_yours { FLAG_WANTS_YOURS } else { 0 });
            }
            Control::Here { instance, you } => {
                out.push(KIND_HERE);
                out.extend_from_slice(&instance.to_be_bytes());
                encode_address(&mut out, you);
            }
            Control::Duplicate { at } => {
                out.push(KIND_DUPLICATE);
                encode_address(&mut out, at);
            }
            Control::Secret { revocations: RevocationSummary { count, digest }, next } => {
                out.push(KIND_SECRET);
                out.extend_from_slice(&count.to_be_bytes());
                out.extend_from_slice(&digest.to_be_bytes());
                out.extend_from_slice(next);
            }
        }
        out
    }

    /// Decodes a message; `None` when it is malformed, too long or of another version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Control<'_>> {
        let (&[VERSION, kind], body) = bytes.split_first_chunk()? else { return None };
        if bytes.len() > MAX_MESSAGE {
            return None;
        }
        match kind {
            KIND_HELLO => decode_hello(body),
            KIND_ACK => {
                let instance = u64::from_be_bytes(*body.first_chunk()?);
                Some(Control::Ack { instance })
            }
            KIND_REFUSED if body.len() <= MAX_REASON && body.iter().all(|b| printable(*b)) => {
                Some(Control::Refused { reason: String::from_utf8_lossy(body).into_owned() })
            }
            KIND_NUMBER => {
                let (number, flags) = body.split_first_chunk()?;
                let flags = flags.first()?;
                let number = u64::from_be_bytes(*number);
                Some(Control::Number { number, wants_yours: flags & FLAG_WANTS_YOURS != 0 })
            }
            KIND_HERE => {
                let (instance, you) = body.split_first_chunk()?;
                let (instance, you) = (u64::from_be_bytes(*instance), decode_address(you)?);
                Some(Control::Here { instance, you })
            }
            KIND_DUPLICATE => Some(Control::Duplicate { at: decode_address(body)? }),
            KIND_SECRET => {
                let (count, rest) = body.split_first_chunk()?;
                let (digest, next) = rest.split_first_chunk()?;
                let revocations = RevocationSummary {
                    count: u32::from_be_bytes(*count),
                    digest: u64::from_be_bytes(*digest),
                };
                (next.len() <= MAX_NEXT_SECRET_BYTES)
                    .then_some(Control::Secret { revocations, next })
            }
            _ => None,
        }
    }
}

/// The kind or version of a message from a later version; `None` for a malformed one.
pub(crate) fn unknown(bytes: &[u8]) -> Option<String> {
    match bytes {
        [VERSION, kind, ..] if *kind > KIND_DUPLICATE => Some(format!("control message {kind}")),
        [version, _, ..] if *version > VERSION => {
            Some(format!("control messages of version {version}"))
        }
        _ => None,
    }
}

fn decode_hello(body: &[u8]) -> Option<Control<'_>> {
    let (instance, rest) = body.split_first_chunk()?;
    let (&[flags, high, low], credential) = rest.split_first_chunk()?;
    let credential = credential.get(..usize::from(u16::from_be_bytes([high, low])))?;
    let [has_yours, continues, joins] =
        [FLAG_HAS_YOURS, FLAG_CONTINUES, FLAG_JOINS].map(|flag| flags & flag != 0);
    let instance = u64::from_be_bytes(*instance);
    Some(Control::Hello { instance, has_yours, continues, joins, credential })
}

/// Encodes address, whose length tells its family, and port.
fn encode_address(out: &mut Vec<u8>, address: &SocketAddr) {
    match address.ip() {
        IpAddr::V4(ip) => out.extend_from_slice(&ip.octets()),
        IpAddr::V6(ip) => out.extend_from_slice(&ip.octets()),
    }
    out.extend_from_slice(&address.port().to_be_bytes());
}

fn decode_address(bytes: &[u8]) -> Option<SocketAddr> {
    let (ip, port) = bytes.split_last_chunk::<2>()?;
    let ip = match ip.len() {
        4 => IpAddr::from(*ip.first_chunk::<4>()?),
        16 => IpAddr::from(*ip.first_chunk::<16>()?),
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_be_bytes(*port)))
}

fn printable(byte: u8) -> bool {
    (0x20..0x7f).contains(&byte)
}

/// When to present our credential to a peer.
#[derive(Debug, Default)]
pub(crate) struct Showing {
    acknowledged: bool,
    tries: u32,
    next: Option<Instant>,
    last: Option<Instant>,
}

impl Showing {
    /// Handles a new session: present it unless this process of the peer has it.
    pub(crate) fn session_up(&mut self, now: Instant) {
        if !self.acknowledged {
            self.tries = 0;
            self.next = Some(now);
        }
    }

    /// Handles a peer without our credential.
    pub(crate) fn wanted(&mut self, now: Instant) {
        self.acknowledged = false;
        self.tries = 0;
        let earliest = self.last.map_or(now, |last| last + HELLO_MIN_GAP);
        self.next = Some(earliest.max(now));
    }

    /// Handles the peer's report that it does not have our credential: it lost it, rejected it
    /// while its clock was wrong, or the hello is still in transit.
    pub(crate) fn asked(&mut self, now: Instant) {
        let is_recent = |last: Instant| now.saturating_duration_since(last) < HELLO_ASKED_GAP;
        if self.next.is_none() || !self.last.is_some_and(is_recent) {
            self.wanted(now);
        }
    }

    /// Handles the peer's acknowledgement.
    pub(crate) fn acknowledged(&mut self) {
        self.acknowledged = true;
        self.next = None;
    }

    /// Whether the peer has confirmed that it has it.
    pub(crate) fn is_acknowledged(&self) -> bool {
        self.acknowledged
    }

    /// Handles the end of the session, without which nothing can be presented.
    pub(crate) fn session_down(&mut self) {
        self.next = None;
    }

    /// Time of the next hello.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.next
    }

    /// Whether to send a hello now; schedules the next one.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        if self.next.is_none_or(|at| at > now) {
            return false;
        }
        self.last = Some(now);
        self.tries += 1;
        let gap = HELLO_FIRST_GAP.saturating_mul(1 << (self.tries - 1).min(8)).min(HELLO_LAST_GAP);
        self.next = (self.tries < HELLO_TRIES).then(|| now + gap);
        true
    }
}

#[cfg(test)]
mod tests;
