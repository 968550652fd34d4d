//! Inputs and outputs of a tunnel.

use std::net::Ipv6Addr;

use meshport_config::{NodeId, SecretId};
use zeroize::Zeroizing;

/// A session of a peer: its half, and the low byte of its receiver index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SessionId {
    pub(crate) mark: u8,
    pub(crate) low: u8,
}

/// The terms under which sessions are agreed: a mesh secret and the keys of both nodes, each of
/// which may be replaced while sessions continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Under {
    pub(crate) secret: SecretId,
    pub(crate) own: NodeId,
    pub(crate) peer: NodeId,
}

/// The inner addresses of both nodes, derived from their keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ends {
    pub(crate) own: Ipv6Addr,
    pub(crate) peer: Ipv6Addr,
}

/// The inputs of a half, except this node's private key.
pub(crate) struct Terms {
    pub(crate) under: Under,
    pub(crate) ends: Ends,
    pub(crate) psk: Zeroizing<[u8; 32]>,
}

/// The outcome of [`Tunnel::open`](super::Tunnel::open). Lengths count bytes at the start of the
/// output buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Opened {
    /// An authenticated inner packet.
    Packet(usize),
    /// An authenticated packet without content, or a cookie that was accepted.
    Nothing,
    /// An authenticated packet that is not IP.
    NotIp,
    /// A handshake message to send back to the datagram's source.
    Reply(usize),
    /// Not authentic, or without a session.
    Failed(Failure),
}

/// Why a datagram was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// Seen before, or too old to tell.
    Replayed,
    /// No such session.
    NoSession,
    /// Anything else: wrong keys, tampered, unexpected.
    Invalid,
}
