//! The PROXY protocol header, in which a load balancer names the client: version 1 (a line of text)
//! and 2 (binary), as in HAProxy's `proxy-protocol.txt` of 2020.
//!
//! Only TCP addresses are read. A balancer's own connections (`LOCAL`, `UNKNOWN`), and those of
//! address families without an IP address, have no client. Extensions after the addresses are
//! skipped. Bound: [`MAX_HEADER_BYTES`].

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use meshport_config::ProxyHeader;

/// The longest accepted header, in bytes. Addresses take 52; load balancers add names, ids and
/// certificates of a few hundred bytes.
pub const MAX_HEADER_BYTES: usize = 4096;

/// The beginning of version 2.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// The beginning of version 1.
const WORD: &[u8] = b"PROXY ";
/// The longest line of version 1 with its end, in bytes.
const MAX_LINE_BYTES: usize = 107;
/// Signature, version and command, family, length of the rest.
const FIXED_BYTES: usize = 16;
/// Two addresses and two ports.
const IPV4_BYTES: usize = 12;
const IPV6_BYTES: usize = 36;

/// The two ends of a client's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// Address of the client.
    pub client: SocketAddr,
    /// Address it connected to.
    pub local: SocketAddr,
}

/// A parsed header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Its length in bytes; the client's own bytes follow.
    pub bytes: usize,
    /// The client, if the connection belongs to one.
    pub ends: Option<Ends>,
}

/// The meaning of the first bytes of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// An incomplete header.
    Partial,
    /// A complete header.
    Whole(Header),
    /// Not a header, for this reason.
    Wrong(&'static str),
}

/// Reads the header at the beginning of `bytes`.
pub fn read(bytes: &[u8]) -> Reading {
    if is_begun(bytes, &SIGNATURE) {
        return read_binary(bytes);
    }
    if is_begun(bytes, WORD) {
        return read_line(bytes);
    }
    Reading::Wrong("it does not begin with a PROXY header")
}

/// Whether `bytes` are a prefix of `like`, or start with it.
fn is_begun(bytes: &[u8], like: &[u8]) -> bool {
    let common = bytes.len().min(like.len());
    bytes.get(..common) == like.get(..common)
}

fn read_line(bytes: &[u8]) -> Reading {
    const TOO_LONG: Reading = Reading::Wrong("its line is not terminated");
    const NO_ADDRESSES: Reading = Reading::Wrong("its line lacks two addresses and ports");

    let within = bytes.get(..MAX_LINE_BYTES).unwrap_or(bytes);
    let Some(end) = within.windows(2).position(|two| two == b"\r\n") else {
        return if bytes.len() >= MAX_LINE_BYTES { TOO_LONG } else { Reading::Partial };
    };
    let whole = |ends| Reading::Whole(Header { bytes: end + 2, ends });
    let line = within.get(WORD.len()..end).and_then(|line| std::str::from_utf8(line).ok());
    let Some(line) = line else { return NO_ADDRESSES };
    if line == "UNKNOWN" || line.starts_with("UNKNOWN ") {
        return whole(None);
    }
    let mut words = line.split(' ');
    let family = words.next();
    let is_family = |ip: &IpAddr| match family {
        Some("TCP4") => ip.is_ipv4(),
        Some("TCP6") => ip.is_ipv6(),
        _ => false,
    };
    let mut address = || words.next()?.parse::<IpAddr>().ok().filter(is_family);
    let (client, local) = (address(), address());
    let mut port = || words.next().and_then(port);
    let ends = (client, local, port(), port());
    match (ends, words.next()) {
        ((Some(client), Some(local), Some(from), Some(to)), None) => {
            whole(Some(ends_of(client, from, local, to)))
        }
        _ => NO_ADDRESSES,
    }
}

fn port(text: &str) -> Option<u16> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

fn ends_of(client: IpAddr, from: u16, local: IpAddr, to: u16) -> Ends {
    let at = |ip: IpAddr, port| SocketAddr::new(ip.to_canonical(), port);
    Ends { client: at(client, from), local: at(local, to) }
}

fn read_binary(bytes: &[u8]) -> Reading {
    const TOO_SHORT: Reading = Reading::Wrong("it is shorter than its addresses");

    let Some(fixed) = bytes.get(SIGNATURE.len()..FIXED_BYTES) else { return Reading::Partial };
    let [command, family, high, low] = *fixed else { return Reading::Partial };
    let length = FIXED_BYTES + usize::from(u16::from_be_bytes([high, low]));
    if command >> 4 != 2 {
        return Reading::Wrong("its version is neither 1 nor 2");
    }
    if length > MAX_HEADER_BYTES {
        return Reading::Wrong("it is longer than 4096 bytes");
    }
    let is_local = match command & 0xf {
        0 => true,
        1 => false,
        _ => return Reading::Wrong("its command is neither LOCAL nor PROXY"),
    };
    let Some(rest) = bytes.get(FIXED_BYTES..length) else { return Reading::Partial };
    let whole = |ends| Reading::Whole(Header { bytes: length, ends });
    let ends = match family {
        _ if is_local => return whole(None),
        0x11 => ipv4(rest),
        0x21 => ipv6(rest),
        // Unspecified, UDP and Unix sockets.
        0x00 | 0x12 | 0x22 | 0x31 | 0x32 => return whole(None),
        _ => return Reading::Wrong("its address family is unknown"),
    };
    ends.map_or(TOO_SHORT, |ends| whole(Some(ends)))
}

fn ipv4(bytes: &[u8]) -> Option<Ends> {
    let (addresses, ports) = bytes.get(..IPV4_BYTES)?.split_at(8);
    let (client, local) = addresses.split_at(4);
    let ip = |bytes: &[u8]| Some(IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?)));
    let [from, to] = two_ports(ports)?;
    Some(ends_of(ip(client)?, from, ip(local)?, to))
}

fn ipv6(bytes: &[u8]) -> Option<Ends> {
    let (addresses, ports) = bytes.get(..IPV6_BYTES)?.split_at(32);
    let (client, local) = addresses.split_at(16);
    let ip = |bytes: &[u8]| Some(IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?)));
    let [from, to] = two_ports(ports)?;
    Some(ends_of(ip(client)?, from, ip(local)?, to))
}

fn two_ports(bytes: &[u8]) -> Option<[u16; 2]> {
    let [a, b, c, d] = <[u8; 4]>::try_from(bytes).ok()?;
    Some([u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])])
}

/// The header for a connection with these ends; empty for [`ProxyHeader::Off`].
pub fn write(version: ProxyHeader, ends: Ends) -> Vec<u8> {
    let (client, local) = (ends.client.ip().to_canonical(), ends.local.ip().to_canonical());
    let (from, to) = (ends.client.port(), ends.local.port());
    match version {
        ProxyHeader::Off => Vec::new(),
        ProxyHeader::V1 => {
            let family = match (client, local) {
                (IpAddr::V4(_), IpAddr::V4(_)) => "TCP4",
                (IpAddr::V6(_), IpAddr::V6(_)) => "TCP6",
                _ => return b"PROXY UNKNOWN\r\n".to_vec(),
            };
            let mut line = Vec::with_capacity(MAX_LINE_BYTES);
            write!(line, "PROXY {family} {client} {local} {from} {to}\r\n").expect("it is memory");
            line
        }
        ProxyHeader::V2 => {
            let mut rest = Vec::with_capacity(IPV6_BYTES);
            let family = match (client, local) {
                (IpAddr::V4(client), IpAddr::V4(local)) => {
                    rest.extend_from_slice(&client.octets());
                    rest.extend_from_slice(&local.octets());
                    0x11
                }
                (IpAddr::V6(client), IpAddr::V6(local)) => {
                    rest.extend_from_slice(&client.octets());
                    rest.extend_from_slice(&local.octets());
                    0x21
                }
                _ => 0x00,
            };
            if family != 0 {
                rest.extend_from_slice(&from.to_be_bytes());
                rest.extend_from_slice(&to.to_be_bytes());
            }
            let length = u16::try_from(rest.len()).expect("two addresses").to_be_bytes();
            [&SIGNATURE[..], &[0x21, family, length[0], length[1]], &rest].concat()
        }
    }
}

#[cfg(test)]
mod tests;
