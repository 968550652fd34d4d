//! A packet socket for ARP or neighbour discovery of one address on one interface. One of the few
//! files with unsafe code: none of our crates offers packet socket addresses or the list of
//! interfaces.
//!
//! Only opening it requires CAP_NET_RAW, so it is opened before the sandbox.

use std::ffi::CStr;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::ptr;

use meshport_core::vip::frame::Hardware;
use meshport_core::vip::nd;
use socket2::{Domain, SockAddr, SockAddrStorage, SockFilter, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The longest frame that is read, in bytes. Longer frames are never ARP or neighbour discovery.
pub(super) const MAX_FRAME_BYTES: usize = 1514;
const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;

/// Opens a packet socket that is not bound to an interface and receives nothing.
///
/// # Errors
/// `PermissionDenied` without CAP_NET_RAW; another error if an outer filter refuses the family.
pub(super) fn open(address: IpAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::PACKET, Type::RAW.nonblocking().cloexec(), None)?;
    let program = filter(address);
    let plain = |it: &libc::sock_filter| SockFilter::new(it.code, it.jt, it.jf, it.k);
    socket.attach_filter(&program.iter().map(plain).collect::<Vec<_>>())?;
    Ok(socket)
}

/// A filter that passes frames that may concern `address`; the kernel drops all others. Offsets are
/// those of RFC 826, and of RFC 4861 behind the Ethernet and IPv6 headers.
fn filter(address: IpAddr) -> Vec<libc::sock_filter> {
    const LOAD_WORD: u16 = 0x20;
    const LOAD_BYTE: u16 = 0x30;
    const JUMP_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let plain = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
    let jump = |k, jt, jf| libc::sock_filter { code: JUMP_EQUAL, jt, jf, k };
    let (all, none) = (plain(RETURN, u32::MAX), plain(RETURN, 0));
    match address {
        IpAddr::V4(address) => {
            let bits = address.to_bits();
            vec![
                // The sender's address, then the target's.
                plain(LOAD_WORD, 28),
                jump(bits, 2, 0),
                plain(LOAD_WORD, 38),
                jump(bits, 0, 1),
                all,
                none,
            ]
        }
        IpAddr::V6(address) => {
            let [.., a, b, c, d] = address.octets();
            vec![
                // ICMPv6 solicitation or advertisement; last word of the target.
                plain(LOAD_BYTE, 20),
                jump(58, 0, 6),
                plain(LOAD_BYTE, 54),
                jump(135, 1, 0),
                jump(136, 0, 3),
                plain(LOAD_WORD, 74),
                jump(u32::from_be_bytes([a, b, c, d]), 0, 1),
                all,
                none,
            ]
        }
    }
}

/// A packet socket registered with the runtime.
#[derive(Debug)]
pub(super) struct PacketSocket {
    socket: AsyncFd<Socket>,
    address: IpAddr,
    /// The interface to which it is bound.
    index: Option<u32>,
    /// Membership in the address's solicited-node multicast group. The kernel announces it to
    /// switches and makes the interface receive it.
    group: Option<UdpSocket>,
}

impl PacketSocket {
    /// Registers a socket that [`open`] made for `address`.
    #[expect(unsafe_code, reason = "the runtime trusts that a descriptor stays what it is")]
    pub(super) fn new(socket: Socket, address: IpAddr) -> io::Result<Self> {
        // SAFETY: the socket owns its descriptor, always returns the same one, and is closed after
        // the runtime has released it.
        let socket = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) }?;
        Ok(Self { socket, address, index: None, group: None })
    }

    /// Binds the socket to the interface with this index, for sending and receiving.
    ///
    /// # Errors
    /// The interface does not exist or is down.
    pub(super) fn bind(&mut self, index: u32) -> io::Result<()> {
        if self.index == Some(index) {
            return Ok(());
        }
        self.index = None;
        let protocol = if self.address.is_ipv4() { ARP } else { IPV6 };
        self.socket.get_ref().bind(&address_of(protocol, index)?)?;
        if let IpAddr::V6(address) = self.address {
            let group = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
            group.join_multicast_v6(&nd::solicited_node(address), index)?;
            self.group = Some(group);
        }
        self.index = Some(index);
        Ok(())
    }

    /// Resolves when a frame may be available.
    pub(super) async fn readable(&self) -> io::Result<()> {
        self.socket.readable().await?.retain_ready();
        Ok(())
    }

    /// Reads the next frame, truncated to the buffer.
    ///
    /// # Errors
    /// `WouldBlock` if no frame is available; otherwise an error of the interface.
    pub(super) fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.socket.try_io(Interest::READABLE, |mut socket| socket.read(buffer))
    }

    /// Sends a frame without waiting.
    ///
    /// # Errors
    /// The interface is down, or its queue is full.
    pub(super) fn send(&self, frame: &[u8]) -> io::Result<()> {
        self.socket.get_ref().send(frame).map(drop)
    }
}

/// The address of a packet socket: a protocol on an interface.
#[expect(unsafe_code, reason = "an address that the socket crate does not know")]
fn address_of(protocol: u16, index: u32) -> io::Result<SockAddr> {
    let mut storage = SockAddrStorage::zeroed();
    let index = i32::try_from(index).map_err(io::Error::other)?;
    let length = libc::socklen_t::try_from(size_of::<libc::sockaddr_ll>());
    // SAFETY: the storage is larger than any socket address, aligned for all of them, and zeroed,
    // which is a valid sockaddr_ll.
    let address: &mut libc::sockaddr_ll = unsafe { storage.view_as() };
    address.sll_family = libc::AF_PACKET.unsigned_abs() as libc::sa_family_t;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = index;
    // SAFETY: the storage is a sockaddr_ll of that length.
    Ok(unsafe { SockAddr::new(storage, length.map_err(io::Error::other)?) })
}

/// The kernel's data about an interface or one of its addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Entry {
    /// The interface itself.
    Link {
        /// Its index.
        index: u32,
        /// Its hardware address, if it is Ethernet.
        hardware: Option<Hardware>,
        /// Whether it is administratively up.
        is_up: bool,
        /// Whether it has a carrier.
        is_running: bool,
    },
    /// One of its addresses.
    Address(IpAddr),
}

/// All interfaces and their addresses, each entry with the name of its interface.
///
/// # Errors
/// The system is out of memory or refuses a netlink socket.
#[expect(unsafe_code, reason = "a list in memory of the C library")]
pub(super) fn interfaces() -> io::Result<Vec<(String, Entry)>> {
    let mut list: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: the pointer is one to write to; on success it is a list that is freed below.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut entries = Vec::new();
    let mut next = list;
    // SAFETY: `next` is null or an entry of the list, which lives until it is freed below.
    while let Some(entry) = unsafe { next.as_ref() } {
        // SAFETY: an entry's name is a string of the C library, of the same life.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
        // SAFETY: an entry's address is null or has the length that its family implies.
        let found = unsafe { read_entry(entry.ifa_addr, entry.ifa_flags) };
        entries.extend(found.map(|found| (name, found)));
        next = entry.ifa_next;
    }
    // SAFETY: the list came from getifaddrs, and nothing refers to it any longer.
    unsafe { libc::freeifaddrs(list) };
    Ok(entries)
}

/// Decodes one entry of the list.
///
/// # Safety
/// `address` is null or points to a socket address of the length that its family implies.
#[expect(unsafe_code, reason = "the kind of an address is in its first field")]
unsafe fn read_entry(address: *const libc::sockaddr, flags: libc::c_uint) -> Option<Entry> {
    if address.is_null() {
        return None;
    }
    // SAFETY: all socket addresses begin with their family.
    let family = i32::from(unsafe { (*address).sa_family });
    match family {
        libc::AF_INET => {
            // SAFETY: that is what the family says; reading needs no alignment.
            let v4 = unsafe { ptr::read_unaligned(address.cast::<libc::sockaddr_in>()) };
            let address = Ipv4Addr::from_bits(u32::from_be(v4.sin_addr.s_addr));
            Some(Entry::Address(address.into()))
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { ptr::read_unaligned(address.cast::<libc::sockaddr_in6>()) };
            Some(Entry::Address(Ipv6Addr::from(v6.sin6_addr.s6_addr).into()))
        }
        libc::AF_PACKET => {
            // SAFETY: as above.
            let link = unsafe { ptr::read_unaligned(address.cast::<libc::sockaddr_ll>()) };
            let is_ethernet = link.sll_hatype == libc::ARPHRD_ETHER && link.sll_halen == 6;
            let hardware = link.sll_addr.first_chunk().map(|bytes| Hardware(*bytes));
            let has = |flag: libc::c_int| flags & flag.unsigned_abs() != 0;
            Some(Entry::Link {
                index: link.sll_ifindex.unsigned_abs(),
                hardware: hardware.filter(|it| is_ethernet && it.is_station()),
                is_up: has(libc::IFF_UP),
                is_running: has(libc::IFF_RUNNING),
            })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_interface_is_listed_with_its_address() {
        let all = interfaces().expect("there is a list");
        let of_loopback: Vec<&Entry> =
            all.iter().filter(|(name, _)| name == "lo").map(|(_, entry)| entry).collect();
        let local = Entry::Address(IpAddr::V4(Ipv4Addr::LOCALHOST));
        assert!(of_loopback.contains(&&local), "{all:?}");
        let link = of_loopback.iter().find_map(|entry| match entry {
            Entry::Link { index, hardware, is_up, .. } => Some((*index, *hardware, *is_up)),
            Entry::Address(_) => None,
        });
        assert_eq!(link, Some((1, None, true)));
    }

    /// Runs the filter as the kernel does: a load beyond the end rejects the frame.
    fn passes(program: &[libc::sock_filter], frame: &[u8]) -> bool {
        let (mut at, mut word) = (0, 0);
        loop {
            let libc::sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            let from = usize::try_from(k).expect("an offset");
            match code {
                0x20 => match frame.get(from..from + 4) {
                    Some(bytes) => word = u32::from_be_bytes(bytes.try_into().expect("four")),
                    None => return false,
                },
                0x30 => match frame.get(from) {
                    Some(byte) => word = u32::from(*byte),
                    None => return false,
                },
                0x15 => at += usize::from(if word == k { jt } else { jf }),
                _ => return k > 0,
            }
        }
    }

    #[test]
    fn the_filter_takes_what_is_about_the_address() {
        use meshport_core::vip::frame::Frame;
        use meshport_core::vip::lan;

        let own = Hardware([2, 0, 0, 0, 0, 1]);
        for [address, other] in [["192.0.2.10", "192.0.2.11"], ["2001:db8::10", "2001:db8::11"]] {
            let [address, other]: [IpAddr; 2] =
                [address, other].map(|it| it.parse().expect("an address"));
            let program = filter(address);
            let answer = Frame::Answer { hardware: own, ip: other };
            for frame in [Frame::Probe, Frame::Announce, Frame::Refresh, answer] {
                let about = |address| lan::encode(frame, address, own).expect("bytes");
                assert!(passes(&program, &about(address)), "{frame:?}");
                // A frame for the other address does not pass.
                assert!(!passes(&program, &about(other)), "{frame:?}");
            }
            let mut echo = lan::encode(Frame::Probe, address, own).expect("bytes");
            if address.is_ipv6() {
                echo[54] = 128;
                assert!(!passes(&program, &echo));
            }
            assert!(!passes(&program, &[0; 20]));
        }
    }
}
