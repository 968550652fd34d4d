//! The real UDP socket: dual stack, GSO and GRO, don't-fragment, large buffers.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use quinn_udp::{RecvMeta, Transmit, UdpSockRef};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::batched::Batched;
use super::outer::{OuterMeta, OuterSocket, OuterTransmit};
use super::steer::steer;

/// Kernel buffer requested for each direction, in bytes. The kernel may grant less.
const SOCKET_BUFFER: usize = 4 << 20;
/// Messages received per system call.
const MESSAGES: usize = 8;

/// Outer MTU below which QUIC's smallest datagram does not fit into one packet over IPv6, in
/// bytes: 1200 and all headers.
const WHOLE_MTU: u16 = 1328;

/// A UDP socket. Bound to `[::]` it serves IPv4 as well; IPv4 addresses appear as such.
#[derive(Debug)]
pub struct UdpOuter {
    /// Watched only for input. The kernel reports room to send each time a sent packet leaves the
    /// socket, which would wake the runtime once more for every send; a sender without room waits
    /// in [`UdpOuter::wait_writable`].
    socket: AsyncFd<UdpSocket>,
    /// Batches, and no fragmentation. `None` on paths too small for QUIC's smallest datagram: there
    /// the kernel's defaults fragment it, and every datagram is a separate call.
    batched: Option<Batched>,
    /// A dual-stack IPv6 socket needs mapped IPv4 destinations.
    mapped: bool,
    /// Bound to a wildcard: answers are sent from the address that the datagram was sent to.
    wildcard: bool,
}

impl UdpOuter {
    /// Binds `address` inside a tokio runtime. `[::]` falls back to `0.0.0.0` on machines without
    /// IPv6.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        Self::bind_for_mtu(address, u16::MAX)
    }

    /// Like [`UdpOuter::bind`], for paths of a known outer `mtu`. Below 1328 bytes datagrams may be
    /// fragmented.
    pub fn bind_for_mtu(address: SocketAddr, mtu: u16) -> io::Result<Self> {
        Self::new(open_any(address)?, mtu)
    }

    /// `count` sockets on one port, from which the kernel chooses by [`steer`]; fewer if the system
    /// does not let them share it.
    ///
    /// The first is bound alone: a port in use by another process is an error, as for a single
    /// socket.
    pub(super) fn open_group(address: SocketAddr, count: usize) -> io::Result<Vec<Socket>> {
        let mut group = vec![open_any(address)?];
        if count < 2 {
            return Ok(group);
        }
        if let Err(error) = share_port(&mut group, count) {
            group.truncate(1);
            tracing::warn!(%error, "sockets cannot share the port; using one shard");
            return Ok(group);
        }
        if let Err(error) = steer(&group[0], count) {
            tracing::info!(%error, "the kernel accepts no packet filter; shards pass packets to \
                                    each other");
        }
        Ok(group)
    }

    /// Takes over a bound socket; the current runtime watches it.
    pub(super) fn new(socket: Socket, mtu: u16) -> io::Result<Self> {
        let sizes = set_buffers(&socket);
        let socket = UdpSocket::from(socket);
        let batched = match mtu {
            WHOLE_MTU.. => Some(Batched::new(&socket)?),
            _ => None,
        };
        let local = socket.local_addr()?;
        tracing::info!(
            address = %local,
            receive_buffer = sizes.0,
            send_buffer = sizes.1,
            gso = batched.as_ref().map_or(1, |batched| batched.segments(&socket)),
            "UDP socket bound"
        );
        let socket = watch(socket, Interest::READABLE)?;
        Ok(Self { mapped: local.is_ipv6(), wildcard: local.ip().is_unspecified(), socket, batched })
    }

    /// Waits until the socket may take a datagram.
    async fn wait_writable(&self) -> io::Result<()> {
        let same = self.socket.get_ref().try_clone()?;
        watch(same, Interest::WRITABLE)?.writable().await.map(drop)
    }

    fn send(&self, transmit: &OuterTransmit<'_>, source: Option<IpAddr>) -> io::Result<()> {
        let destination = self.spell(transmit.destination);
        let Some(batched) = &self.batched else {
            return self.socket.get_ref().send_to(transmit.contents, destination).map(|_| ());
        };
        let segmented = transmit.contents.len() > transmit.segment;
        let transmit = Transmit {
            destination,
            ecn: None,
            contents: transmit.contents,
            segment_size: segmented.then_some(transmit.segment),
            src_ip: source,
        };
        batched.state().try_send(UdpSockRef::from(self.socket.get_ref()), &transmit)
    }

    fn poll_recv_single(
        &self,
        cx: &mut Context<'_>,
        buffer: &mut [u8],
        meta: &mut OuterMeta,
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut ready = ready!(self.socket.poll_read_ready(cx))?;
            // The error is that nothing is there.
            let Ok(received) = ready.try_io(|socket| socket.get_ref().recv_from(buffer)) else {
                continue;
            };
            let (length, from) = received?;
            *meta = OuterMeta {
                from: meshport_proto::core::canonical(&from),
                local: None,
                length,
                stride: length.max(1),
            };
            return Poll::Ready(Ok(1));
        }
    }

    fn spell(&self, address: SocketAddr) -> SocketAddr {
        match address {
            SocketAddr::V4(v4) if self.mapped => {
                SocketAddr::new(IpAddr::V6(v4.ip().to_ipv6_mapped()), v4.port())
            }
            other => other,
        }
    }
}

/// Lets the current runtime watch a socket.
#[expect(deprecated, reason = "its follower is unsafe; a socket of std's keeps its descriptor")]
fn watch(socket: UdpSocket, interest: Interest) -> io::Result<AsyncFd<UdpSocket>> {
    AsyncFd::with_interest(socket, interest)
}

/// Looks up the route, and so the MTU of its link. Sends nothing.
fn mtu_towards(remote: SocketAddr) -> io::Result<u16> {
    let socket = Socket::new(Domain::for_address(remote), Type::DGRAM, Some(Protocol::UDP))?;
    socket.connect(&remote.into())?;
    let mtu = match remote {
        SocketAddr::V4(_) => rustix::net::sockopt::ip_mtu(&socket)?,
        SocketAddr::V6(_) => rustix::net::sockopt::ipv6_mtu(&socket)?,
    };
    Ok(u16::try_from(mtu).unwrap_or(u16::MAX))
}

/// Binds `address`, or its IPv4 sibling on a machine without IPv6.
fn open_any(address: SocketAddr) -> io::Result<Socket> {
    match open(address, false) {
        Err(error) if address.is_ipv6() && address.ip().is_unspecified() && no_ipv6(&error) => {
            tracing::info!(%error, "IPv6 is not available; using IPv4 only");
            open(SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port())), false)
        }
        other => other,
    }
}

/// Binds more sockets to the port of the first, until there are `count`.
fn share_port(group: &mut Vec<Socket>, count: usize) -> io::Result<()> {
    // Only after binding, so that binding fails if another process uses the port.
    group[0].set_reuse_port(true)?;
    let address = group[0].local_addr()?;
    let address = address.as_socket().ok_or(io::ErrorKind::InvalidInput)?;
    while group.len() < count {
        group.push(open(address, true)?);
    }
    Ok(())
}

fn open(address: SocketAddr, shared: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    if shared {
        socket.set_reuse_port(true)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Whether binding failed because the machine has no IPv6.
fn no_ipv6(error: &io::Error) -> bool {
    /// `EAFNOSUPPORT` on Linux; the standard library has no kind for it.
    const NO_FAMILY: i32 = 97;
    error.kind() == io::ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(NO_FAMILY)
}

/// Requests large buffers and returns the granted sizes: receive, send.
fn set_buffers(socket: &Socket) -> (usize, usize) {
    for (what, result) in [
        ("receive", socket.set_recv_buffer_size(SOCKET_BUFFER)),
        ("send", socket.set_send_buffer_size(SOCKET_BUFFER)),
    ] {
        if let Err(error) = result {
            tracing::warn!(%error, what, "cannot enlarge the socket buffer");
        }
    }
    (socket.recv_buffer_size().unwrap_or(0), socket.send_buffer_size().unwrap_or(0))
}

impl OuterSocket for UdpOuter {
    fn try_send(&self, transmit: &OuterTransmit<'_>) -> io::Result<()> {
        match self.send(transmit, transmit.source) {
            // This machine may no longer have the requested source address.
            Err(error)
                if transmit.source.is_some() && error.kind() != io::ErrorKind::WouldBlock =>
            {
                self.send(transmit, None)
            }
            other => other,
        }
    }

    fn mtu_towards(&self, remote: SocketAddr) -> Option<u16> {
        mtu_towards(remote).ok()
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [OuterMeta],
    ) -> Poll<io::Result<usize>> {
        let Some(batched) = &self.batched else {
            return match (buffers, meta) {
                ([buffer, ..], [meta, ..]) => self.poll_recv_single(cx, buffer, meta),
                _ => Poll::Ready(Ok(0)),
            };
        };
        let mut received = [RecvMeta::default(); MESSAGES];
        let limit = buffers.len().min(meta.len()).min(MESSAGES);
        loop {
            let mut ready = ready!(self.socket.poll_read_ready(cx))?;
            let result = ready.try_io(|socket| {
                let socket = UdpSockRef::from(socket.get_ref());
                batched.state().recv(socket, &mut buffers[..limit], &mut received[..limit])
            });
            // The error is that nothing is there.
            let Ok(count) = result else { continue };
            let count = count?;
            if count < limit {
                // The queue is empty: saves the call that would report that. Anything that arrives
                // later, or has just arrived, makes the socket readable again.
                ready.clear_ready();
            }
            for (meta, received) in meta.iter_mut().zip(&received[..count]) {
                *meta = OuterMeta {
                    from: meshport_proto::core::canonical(&received.addr),
                    local: received.dst_ip.filter(|_| self.wildcard).map(|ip| ip.to_canonical()),
                    length: received.len,
                    stride: received.stride,
                };
            }
            return Poll::Ready(Ok(count));
        }
    }

    fn writable(self: Arc<Self>) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>> {
        Box::pin(async move { self.wait_writable().await })
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.get_ref().local_addr()
    }

    fn max_gso_segments(&self) -> usize {
        self.batched.as_ref().map_or(1, |batched| batched.segments(self.socket.get_ref()))
    }
}

#[cfg(test)]
mod tests;
