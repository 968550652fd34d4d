//! The protocol's identities, and which parts of its messages are sent: not the node ids of sender
//! and receiver, because the mesh has proven both; other members by their short ids.

use bytes::{Buf, BufMut};
use meshport_config::NodeId;
use serde::Serialize;

use super::messages::{BadFormat, RawHeader, RawId, RawMessage};
use super::{Codec, Header, IDS, Identity, Member, Protocol, State};
use crate::state::Life;
use crate::wire::{Claim, Short, Standing};

/// A node in one of its lives. A later life replaces an earlier one, so a node that restarts or was
/// declared down is back with its first packet. Identified by its short id, as in the directory:
/// the protocol finds members by going through all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Id {
    pub(crate) short: Short,
    pub(crate) life: Life,
}

impl Id {
    pub(crate) fn new(node: &NodeId, life: Life) -> Self {
        Self { short: Short::of(node), life }
    }
}

impl Identity for Id {
    type Addr = u64;

    fn renew(&self) -> Option<Self> {
        let renewal = self.life.renewal.checked_add(1)?;
        Some(Self { life: Life { renewal, ..self.life }, ..*self })
    }

    fn addr(&self) -> u64 {
        u64::from_le_bytes(self.short.0)
    }

    fn win_addr_conflict(&self, adversary: &Self) -> bool {
        self.life > adversary.life
    }
}

impl From<Id> for RawId {
    /// The sender fills in the rest of the id.
    fn from(id: Id) -> Self {
        Self(*id.short.lowest().as_bytes(), id.life)
    }
}

impl From<RawId> for Id {
    fn from(raw: RawId) -> Self {
        Self::new(&NodeId::from_bytes(raw.0), raw.1)
    }
}

/// Conversion between the protocol's messages and those sent, both ways: without content, with a
/// probe number, and with a third node as well.
macro_rules! translate {
    ($($plain:ident)*; $($numbered:ident)*; $($third:ident $field:ident),*) => {
        impl From<&Protocol<Id>> for RawMessage {
            fn from(message: &Protocol<Id>) -> Self {
                match *message {
                    $(Protocol::$plain => Self::$plain,)*
                    $(Protocol::$numbered(number) => Self::$numbered(number),)*
                    $(Protocol::$third { $field, probe_number: number } => {
                        Self::$third($field.into(), number)
                    })*
                }
            }
        }

        impl From<RawMessage> for Protocol<Id> {
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

/// The protocol's messages as bytes: the short ids of both nodes, which are never sent, then the
/// header, then members as short id and claim.
#[derive(Debug)]
pub(crate) struct Format;

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
        to.put_slice(&header.src.short.0);
        to.put_slice(&header.dst.short.0);
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
        let (mut src, mut dst) = ([0; 8], [0; 8]);
        from.copy_to_slice(&mut src);
        from.copy_to_slice(&mut dst);
        let (raw, rest) = postcard::take_from_bytes::<RawHeader>(from.chunk())
            .map_err(|_| BadFormat::Malformed)?;
        let used = from.remaining() - rest.len();
        from.advance(used);
        Ok(Header {
            src: Id { short: Short(src), life: raw.from },
            src_incarnation: raw.incarnation,
            dst: Id { short: Short(dst), life: raw.to },
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
        Self::put(&(member.id().short, Claim { life, incarnation, standing }), to)
    }

    /// Members never come this way: the caller reads, checks and applies them one by one.
    fn decode_member(&mut self, _: impl Buf) -> Result<Member<Id>, BadFormat> {
        Err(BadFormat::Malformed)
    }
}
