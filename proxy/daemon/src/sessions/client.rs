//! Identifies a client, so that none can take all slots: by local user, as the kernel reports it,
//! or by remote address.
//!
//! The user of a loopback connection is read through `sock_diag(7)`, one socket at a time. Without
//! netlink in an outer sandbox, or after the client has closed its end, it is unknown.

use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpStream;

use crate::tcp::Host;

/// `NETLINK_SOCK_DIAG`, of `linux/netlink.h`.
const SOCK_DIAG: i32 = 4;
/// `SOCK_DIAG_BY_FAMILY`, of `linux/sock_diag.h`: the type of question and answer.
const BY_FAMILY: u16 = 20;
/// `NLM_F_REQUEST`, of `linux/netlink.h`.
const REQUEST: u16 = 1;
/// `INET_DIAG_NOCOOKIE`, of `linux/inet_diag.h`: any socket of these addresses.
const ANY_COOKIE: [u8; 8] = [0xff; 8];
/// `struct nlmsghdr` and `struct inet_diag_req_v2`, in bytes.
const QUESTION_BYTES: usize = 16 + 56;
/// Offsets of the user and the inode in `struct inet_diag_msg`, with the header.
const UID_AT: usize = 16 + 64;
const INODE_AT: usize = 16 + 68;
/// More than an answer to a request without extensions, in bytes.
const ANSWER_BYTES: usize = 512;
/// Prefix of an IPv6 client: a host may use a whole /64.
const SITE_BITS: u128 = !0 << 64;

/// A client, as far as it can be identified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ClientId {
    /// Unknown, or already gone.
    Unknown,
    /// A user of this machine.
    User(u32),
    /// A host, or for IPv6 its /64.
    Address(IpAddr),
}

impl std::fmt::Display for ClientId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unknown => f.write_str("unknown"),
            Self::User(uid) => write!(f, "user {uid}"),
            Self::Address(address) => address.fmt(f),
        }
    }
}

impl ClientId {
    /// The client of an accepted connection.
    pub(crate) fn of(stream: &TcpStream) -> Self {
        match (stream.peer_addr(), stream.local_addr()) {
            (Ok(peer), Ok(local)) => Self::behind(peer, local),
            _ => Self::Unknown,
        }
    }

    /// The client of a connection from `peer` to `local`.
    pub(crate) fn behind(peer: SocketAddr, local: SocketAddr) -> Self {
        match peer.ip().to_canonical() {
            ip if ip.is_loopback() => owner(peer, local).map_or(Self::Unknown, Self::User),
            IpAddr::V6(ip) => {
                let network = Ipv6Addr::from_bits(ip.to_bits() & SITE_BITS);
                Self::Address(network.into())
            }
            ip => Self::Address(ip),
        }
    }

    /// The user whose process listens on an address of this machine.
    pub(crate) fn listening(host: &Host, address: SocketAddr) -> Self {
        let nobody: IpAddr = match address {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        match host {
            Host::Kernel => {
                owner(address, SocketAddr::new(nobody, 0)).map_or(Self::Unknown, Self::User)
            }
            Host::Memory(_) => Self::Unknown,
        }
    }
}

/// The user whose socket is bound to `local` and connected to `peer`.
fn owner(local: SocketAddr, peer: SocketAddr) -> Option<u32> {
    let mut answer = [0; ANSWER_BYTES];
    let length = ask(&question(local, peer), &mut answer).ok()?;
    uid(answer.get(..length)?)
}

fn ask(question: &[u8], answer: &mut [u8]) -> io::Result<usize> {
    let protocol = Some(Protocol::from(SOCK_DIAG));
    let mut kernel = Socket::new(Domain::from(libc::AF_NETLINK), Type::DGRAM, protocol)?;
    // The kernel answers synchronously, so do not block if there is no answer.
    kernel.set_nonblocking(true)?;
    kernel.send(question)?;
    kernel.read(answer)
}

fn question(local: SocketAddr, peer: SocketAddr) -> [u8; QUESTION_BYTES] {
    let mut bytes = [0; QUESTION_BYTES];
    let mut rest = &mut bytes[..];
    let mut put = |value: &[u8]| {
        let (field, left) = std::mem::take(&mut rest).split_at_mut(value.len());
        field.copy_from_slice(value);
        rest = left;
    };
    let length = u32::try_from(QUESTION_BYTES).expect("a few bytes");
    put(&length.to_ne_bytes());
    put(&BY_FAMILY.to_ne_bytes());
    put(&REQUEST.to_ne_bytes());
    // Sequence number and port: there is only one request.
    put(&[0; 8]);
    let family = if local.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let protocol = libc::IPPROTO_TCP;
    let small = |number: i32| u8::try_from(number).expect("it is small");
    put(&[small(family), small(protocol), 0, 0]);
    // In any state.
    put(&[0xff; 4]);
    put(&local.port().to_be_bytes());
    put(&peer.port().to_be_bytes());
    put(&padded(local.ip()));
    put(&padded(peer.ip()));
    put(&[0; 4]);
    put(&ANY_COOKIE);
    bytes
}

fn padded(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V6(ip) => ip.octets(),
        IpAddr::V4(ip) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&ip.octets());
            bytes
        }
    }
}

/// The user in an answer. A socket closed by its process has no inode, and user 0.
fn uid(answer: &[u8]) -> Option<u32> {
    let word = |at: usize| Some(u32::from_ne_bytes(answer.get(at..at + 4)?.try_into().ok()?));
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    (kind == BY_FAMILY && word(INODE_AT)? != 0).then_some(word(UID_AT)?)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_kernel_tells_the_user_behind_a_connection_over_loopback() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let local = listener.local_addr().expect("bound");
            let client = TcpStream::connect(local).expect("it accepts");
            let (_server, peer) = listener.accept().expect("it accepts");
            let me = rustix::process::getuid().as_raw();
            assert_eq!(ClientId::behind(peer, local), ClientId::User(me), "{address}");
            drop(client);
            assert_eq!(
                ClientId::behind(peer, local),
                ClientId::Unknown,
                "a closed end is nobody's"
            );
        }
    }

    #[test]
    fn the_kernel_tells_the_user_that_listens() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let local = listener.local_addr().expect("bound");
            let me = ClientId::User(rustix::process::getuid().as_raw());
            assert_eq!(ClientId::listening(&Host::Kernel, local), me, "{address}");
            drop(listener);
            assert_eq!(ClientId::listening(&Host::Kernel, local), ClientId::Unknown);
        }
    }

    #[test]
    fn others_are_distinguished_by_address_and_ipv6_by_network() {
        let local = "10.0.0.1:7445".parse().expect("an address");
        let who =
            |text: &str| ClientId::behind(text.parse().expect("an address"), local).to_string();
        assert_eq!(who("192.0.2.7:1"), "192.0.2.7");
        assert_eq!(who("[::ffff:192.0.2.7]:1"), "192.0.2.7");
        assert_eq!(who("[2001:db8::1:2:3:4]:1"), who("[2001:db8::5:6:7:8]:1"));
        assert_ne!(who("[2001:db8::1]:1"), who("[2001:db8:0:1::1]:1"));
    }

    #[test]
    fn an_answer_that_is_none_names_nobody() {
        assert_eq!(uid(&[]), None);
        assert_eq!(uid(&[0; ANSWER_BYTES]), None);
        assert_eq!(uid(&[20; UID_AT]), None);
    }
}
