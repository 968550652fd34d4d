//! The packets that travel inside a tunnel: IPv6 with UDP or an ICMPv6 echo, whole or in
//! fragments, nothing else.
//!
//! Defines the byte layout and the checksums (RFC 8200, RFC 768, RFC 4443, RFC 1071). A standard
//! WireGuard peer may use its kernel's own stack, so both checksums are always written. Other
//! extension headers and options are not supported and refused.
//!
//! Decoding borrows from the packet and never allocates; any byte string is either a packet or an
//! [`InnerError`].

use std::net::Ipv6Addr;

/// Bytes of the IPv6 header.
pub(crate) const IPV6_HEADER: usize = 40;
/// Bytes of the UDP header.
pub(crate) const UDP_HEADER: usize = 8;
/// Bytes of an ICMPv6 echo header: type, code, checksum, identifier, sequence.
const ECHO_HEADER: usize = 8;
/// Bytes of the fragment header: next header, reserved, offset and flags, id.
const FRAGMENT_HEADER: usize = 8;
/// Bytes before a fragment's part of the packet.
pub(crate) const FRAGMENT_OVERHEAD: usize = IPV6_HEADER + FRAGMENT_HEADER;
/// Offsets and lengths of fragments, except the last one's length, are multiples of this.
pub(crate) const FRAGMENT_UNIT: usize = 8;
/// Flag of a fragment, in the lowest bit of its offset: others follow.
const MORE_FRAGMENTS: u16 = 1;
/// Bytes before a UDP payload: the IPv6 header and the UDP header.
pub const UDP_OVERHEAD: usize = IPV6_HEADER + UDP_HEADER;
/// Protocol number of UDP.
const PROTOCOL_UDP: u8 = 17;
/// Protocol number of the fragment header.
const PROTOCOL_FRAGMENT: u8 = 44;
/// Protocol number of ICMPv6.
const PROTOCOL_ICMPV6: u8 = 58;
/// ICMPv6 type of an echo request.
const ECHO_REQUEST: u8 = 128;
/// ICMPv6 type of an echo reply.
const ECHO_REPLY: u8 = 129;
/// Hop limit of every packet; a tunnel has one hop, so the usual default suffices.
const HOP_LIMIT: u8 = 64;

/// Source and destination of a UDP datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// Inner address of the sender.
    pub source: Ipv6Addr,
    /// Inner address of the receiver.
    pub destination: Ipv6Addr,
    /// UDP port of the sender.
    pub source_port: u16,
    /// UDP port of the receiver.
    pub destination_port: u16,
}

/// A decoded inner packet, borrowing its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packet<'a> {
    /// A UDP datagram.
    Udp(Udp<'a>),
    /// An ICMPv6 echo request.
    EchoRequest(Echo<'a>),
    /// An ICMPv6 echo reply.
    EchoReply(Echo<'a>),
    /// A part of one of these.
    Fragment(Fragment<'a>),
}

impl Packet<'_> {
    /// Source and destination.
    pub(crate) fn addresses(&self) -> Addresses {
        match self {
            Self::Udp(udp) => {
                Addresses { source: udp.flow.source, destination: udp.flow.destination }
            }
            Self::EchoRequest(echo) | Self::EchoReply(echo) => {
                Addresses { source: echo.source, destination: echo.destination }
            }
            Self::Fragment(fragment) => fragment.addresses,
        }
    }
}

/// Source and destination of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// Inner address of the sender.
    pub source: Ipv6Addr,
    /// Inner address of the receiver.
    pub destination: Ipv6Addr,
}

/// A fragment of a UDP or ICMPv6 packet (RFC 8200, section 4.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fragment<'a> {
    /// Source and destination.
    pub addresses: Addresses,
    /// The protocol of the whole packet.
    pub protocol: u8,
    /// The same in all fragments of a packet.
    pub id: u32,
    /// Position of `part` in the payload of the whole packet.
    pub offset: usize,
    /// Whether others follow.
    pub has_more: bool,
    /// Bytes of the whole packet's payload.
    pub part: &'a [u8],
}

/// A UDP datagram whose lengths are consistent. The checksum is verified on demand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Udp<'a> {
    /// Addresses and ports.
    pub flow: Flow,
    /// The bytes after the UDP header.
    pub payload: &'a [u8],
    segment: &'a [u8],
}

impl Udp<'_> {
    /// Whether the UDP checksum is right. A zero checksum is wrong over IPv6 (RFC 8200, 8.1).
    pub fn checksum_ok(&self) -> bool {
        let field = self.segment[6..8] != [0, 0];
        field
            && checksum(&self.flow.source, &self.flow.destination, PROTOCOL_UDP, self.segment) == 0
    }
}

/// An ICMPv6 echo message with a verified checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Echo<'a> {
    /// Inner address of the sender.
    pub source: Ipv6Addr,
    /// Inner address of the receiver.
    pub destination: Ipv6Addr,
    message: &'a [u8],
}

impl Echo<'_> {
    /// Identifier and sequence number as one number.
    pub fn token(&self) -> u32 {
        u32::from_be_bytes([self.message[4], self.message[5], self.message[6], self.message[7]])
    }

    /// The complete reply packet: same identifier, sequence and data, addresses exchanged.
    pub fn reply(&self) -> Vec<u8> {
        echo_packet(ECHO_REPLY, &self.destination, &self.source, &self.message[4..])
    }
}

/// A complete ICMPv6 echo request whose identifier and sequence number are `token`.
pub fn echo_request(source: &Ipv6Addr, destination: &Ipv6Addr, token: u32) -> Vec<u8> {
    echo_packet(ECHO_REQUEST, source, destination, &token.to_be_bytes())
}

/// `rest` is everything after the checksum: identifier, sequence number, data.
fn echo_packet(kind: u8, from: &Ipv6Addr, to: &Ipv6Addr, rest: &[u8]) -> Vec<u8> {
    let mut packet = vec![0; IPV6_HEADER + 4];
    packet.extend_from_slice(rest);
    let (header, message) = packet.split_at_mut(IPV6_HEADER);
    write_ipv6(header, PROTOCOL_ICMPV6, message.len(), from, to);
    message[0] = kind;
    let sum = checksum(from, to, PROTOCOL_ICMPV6, message);
    message[2..4].copy_from_slice(&sum.to_ne_bytes());
    packet
}

/// Why bytes are not an inner packet that a node understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InnerError {
    /// Not an IPv6 header, or a length that does not fit the bytes.
    #[error("inner packet is malformed; the peer sends something other than IPv6")]
    Malformed,
    /// Another protocol than UDP or ICMPv6 echo, or an extension header.
    #[error("inner packet uses a protocol other than UDP or ICMPv6 echo; it is dropped")]
    Unsupported,
    /// The checksum is wrong.
    #[error("inner packet has a wrong checksum; the peer's network stack is broken")]
    Checksum,
}

/// Writes the IPv6 and UDP headers for `payload` into the first [`UDP_OVERHEAD`] bytes of `out`
/// and the payload behind them. Returns the length of the packet.
///
/// # Panics
/// If `out` is shorter than the packet or the payload longer than a UDP datagram can be; both are
/// bounded by the caller's constants.
pub fn write_udp(flow: &Flow, payload: &[u8], out: &mut [u8]) -> usize {
    let length = UDP_OVERHEAD + payload.len();
    let udp_length = u16::try_from(UDP_HEADER + payload.len()).expect("payload fits a datagram");
    let (header, segment) = out[..length].split_at_mut(IPV6_HEADER);
    write_ipv6(header, PROTOCOL_UDP, segment.len(), &flow.source, &flow.destination);
    segment[0..2].copy_from_slice(&flow.source_port.to_be_bytes());
    segment[2..4].copy_from_slice(&flow.destination_port.to_be_bytes());
    segment[4..6].copy_from_slice(&udp_length.to_be_bytes());
    segment[6..8].fill(0);
    segment[8..].copy_from_slice(payload);
    let sum = match checksum(&flow.source, &flow.destination, PROTOCOL_UDP, segment) {
        // Zero means "no checksum", which IPv6 forbids; both are equal in ones' complement (RFC
        // 768).
        0 => u16::MAX,
        sum => sum,
    };
    segment[6..8].copy_from_slice(&sum.to_ne_bytes());
    length
}

/// Decodes an inner packet. Bytes beyond the IPv6 payload length (padding) are ignored.
///
/// # Errors
/// [`InnerError`]; the UDP checksum is left to [`Udp::checksum_ok`].
pub fn parse(packet: &[u8]) -> Result<Packet<'_>, InnerError> {
    let Some((header, rest)) = packet.split_first_chunk::<IPV6_HEADER>() else {
        return Err(InnerError::Malformed);
    };
    if header[0] >> 4 != 6 {
        return Err(InnerError::Malformed);
    }
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    let body = rest.get(..length).ok_or(InnerError::Malformed)?;
    let source = address(header, 8);
    let destination = address(header, 24);
    match header[6] {
        PROTOCOL_UDP => parse_udp(source, destination, body).map(Packet::Udp),
        PROTOCOL_ICMPV6 => parse_echo(source, destination, body),
        PROTOCOL_FRAGMENT => {
            parse_fragment(Addresses { source, destination }, body).map(Packet::Fragment)
        }
        _ => Err(InnerError::Unsupported),
    }
}

fn parse_fragment(addresses: Addresses, body: &[u8]) -> Result<Fragment<'_>, InnerError> {
    let Some((header, part)) = body.split_first_chunk::<FRAGMENT_HEADER>() else {
        return Err(InnerError::Malformed);
    };
    let [protocol, _, high, low, id @ ..] = *header;
    // So no fragment contains fragments.
    if !matches!(protocol, PROTOCOL_UDP | PROTOCOL_ICMPV6) {
        return Err(InnerError::Unsupported);
    }
    let position = u16::from_be_bytes([high, low]);
    let has_more = position & MORE_FRAGMENTS != 0;
    if part.is_empty() || (has_more && !part.len().is_multiple_of(FRAGMENT_UNIT)) {
        return Err(InnerError::Malformed);
    }
    let offset = usize::from(position >> 3) * FRAGMENT_UNIT;
    let id = u32::from_be_bytes(id);
    Ok(Fragment { addresses, protocol, id, offset, has_more, part })
}

/// Source and destination of a complete packet of ours.
///
/// # Panics
/// If it has no IPv6 header.
pub(crate) fn addresses(packet: &[u8]) -> Addresses {
    let header = packet.first_chunk().expect("a packet of ours has a header");
    Addresses { source: address(header, 8), destination: address(header, 24) }
}

/// Destination port of a complete UDP packet of ours.
///
/// # Panics
/// If it is shorter than its headers.
pub(crate) fn destination_port(packet: &[u8]) -> u16 {
    u16::from_be_bytes([packet[IPV6_HEADER + 2], packet[IPV6_HEADER + 3]])
}

/// Bytes of data in a complete packet of ours, if it is UDP.
pub(crate) fn udp_length(packet: &[u8]) -> Option<usize> {
    (packet[6] == PROTOCOL_UDP).then(|| body(packet).len() - UDP_HEADER)
}

/// The payload of a complete packet of ours, without padding: what its fragments divide.
///
/// # Panics
/// If it is shorter than it says.
pub(crate) fn body(packet: &[u8]) -> &[u8] {
    let length = usize::from(u16::from_be_bytes([packet[4], packet[5]]));
    &packet[IPV6_HEADER..][..length]
}

/// Writes the headers of a fragment and its part into `out`. Returns its length.
pub(crate) fn write_fragment(fragment: &Fragment<'_>, out: &mut [u8]) -> usize {
    let Addresses { source, destination } = &fragment.addresses;
    let length = FRAGMENT_OVERHEAD + fragment.part.len();
    let (header, body) = out[..length].split_at_mut(IPV6_HEADER);
    write_ipv6(header, PROTOCOL_FRAGMENT, body.len(), source, destination);
    let offset = u16::try_from(fragment.offset).expect("an inner packet is shorter than 64 KiB");
    let more = if fragment.has_more { MORE_FRAGMENTS } else { 0 };
    body[..2].copy_from_slice(&[fragment.protocol, 0]);
    // An offset is a multiple of 8, so it is its own field, above the three bits of flags.
    body[2..4].copy_from_slice(&(offset | more).to_be_bytes());
    body[4..8].copy_from_slice(&fragment.id.to_be_bytes());
    body[8..].copy_from_slice(fragment.part);
    length
}

/// Writes the header of a whole packet with this protocol and `length` bytes of payload.
pub(crate) fn write_header(addresses: &Addresses, protocol: u8, length: usize, out: &mut [u8]) {
    write_ipv6(out, protocol, length, &addresses.source, &addresses.destination);
}

fn parse_udp(source: Ipv6Addr, destination: Ipv6Addr, body: &[u8]) -> Result<Udp<'_>, InnerError> {
    let Some((header, _)) = body.split_first_chunk::<UDP_HEADER>() else {
        return Err(InnerError::Malformed);
    };
    let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
    if length < UDP_HEADER || length > body.len() {
        return Err(InnerError::Malformed);
    }
    let segment = &body[..length];
    let flow = Flow {
        source,
        destination,
        source_port: u16::from_be_bytes([header[0], header[1]]),
        destination_port: u16::from_be_bytes([header[2], header[3]]),
    };
    Ok(Udp { flow, payload: &segment[UDP_HEADER..], segment })
}

fn parse_echo(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    body: &[u8],
) -> Result<Packet<'_>, InnerError> {
    if body.len() < ECHO_HEADER {
        return Err(InnerError::Malformed);
    }
    let echo = Echo { source, destination, message: body };
    let packet = match (body[0], body[1]) {
        (ECHO_REQUEST, 0) => Packet::EchoRequest(echo),
        (ECHO_REPLY, 0) => Packet::EchoReply(echo),
        _ => return Err(InnerError::Unsupported),
    };
    match checksum(&source, &destination, PROTOCOL_ICMPV6, body) {
        0 => Ok(packet),
        _ => Err(InnerError::Checksum),
    }
}

fn address(header: &[u8; IPV6_HEADER], at: usize) -> Ipv6Addr {
    let mut octets = [0; 16];
    octets.copy_from_slice(&header[at..at + 16]);
    Ipv6Addr::from(octets)
}

fn write_ipv6(header: &mut [u8], protocol: u8, length: usize, from: &Ipv6Addr, to: &Ipv6Addr) {
    let length = u16::try_from(length).expect("an inner packet is shorter than 64 KiB");
    header[0..4].copy_from_slice(&[0x60, 0, 0, 0]);
    header[4..6].copy_from_slice(&length.to_be_bytes());
    header[6] = protocol;
    header[7] = HOP_LIMIT;
    header[8..24].copy_from_slice(&from.octets());
    header[24..40].copy_from_slice(&to.octets());
}

/// The internet checksum over the IPv6 pseudo header and `segment`, in memory order: write it with
/// `to_ne_bytes`. Over a segment that carries its checksum the result is zero when it is right.
fn checksum(from: &Ipv6Addr, to: &Ipv6Addr, protocol: u8, segment: &[u8]) -> u16 {
    let mut pseudo = [0u8; 40];
    pseudo[0..16].copy_from_slice(&from.octets());
    pseudo[16..32].copy_from_slice(&to.octets());
    let length = u32::try_from(segment.len()).expect("an inner packet is shorter than 64 KiB");
    pseudo[32..36].copy_from_slice(&length.to_be_bytes());
    pseudo[39] = protocol;
    let mut sum = add_words(add_words(0, &pseudo), segment);
    // 2^16 is congruent to 1 modulo 2^16 - 1, so folding any wider sum gives the 16-bit one.
    sum = (sum & 0xffff_ffff) + (sum >> 32);
    sum = (sum & 0xffff_ffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    !u16::try_from(sum).expect("folded to 16 bits")
}

/// Adds `bytes` as 32-bit words in memory order. The sum is independent of byte order up to a swap
/// of the result (RFC 1071, 2), so the hot loop needs none. Only the last call may be odd.
fn add_words(mut sum: u64, bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(4);
    for word in &mut words {
        sum += u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
    }
    let mut last = [0u8; 4];
    let rest = words.remainder();
    last[..rest.len()].copy_from_slice(rest);
    sum + u64::from(u32::from_ne_bytes(last))
}

#[cfg(test)]
mod tests;
