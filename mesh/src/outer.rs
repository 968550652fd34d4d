//! The socket under the mesh, as a trait: UDP in the product, memory in tests and simulations.

use std::fmt::Debug;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Datagrams for one destination.
#[derive(Debug, Clone, Copy)]
pub struct OuterTransmit<'a> {
    /// Their destination. IPv4 is never written as mapped IPv6.
    pub destination: SocketAddr,
    /// The local address to send from, if it matters.
    pub source: Option<IpAddr>,
    /// The bytes of all datagrams.
    pub contents: &'a [u8],
    /// A datagram starts every `segment` bytes; only the last may be shorter. At most
    /// [`OuterSocket::max_gso_segments`] of them.
    pub segment: usize,
}

/// The datagrams of one sender that were received into one buffer.
#[derive(Debug, Clone, Copy)]
pub struct OuterMeta {
    /// The sender. IPv4 is never written as mapped IPv6.
    pub from: SocketAddr,
    /// The local address they were sent to, if known and useful for the answer.
    pub local: Option<IpAddr>,
    /// Length of all datagrams in bytes.
    pub length: usize,
    /// A datagram starts every `stride` bytes; only the last may be shorter.
    pub stride: usize,
}

impl Default for OuterMeta {
    fn default() -> Self {
        let from = SocketAddr::from(([0, 0, 0, 0], 0));
        Self { from, local: None, length: 0, stride: 0 }
    }
}

/// A datagram socket that can send and receive several datagrams at once.
pub trait OuterSocket: Send + Sync + Debug + 'static {
    /// Sends now.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room; then nothing was sent. Other errors concern only this
    /// transmit.
    fn try_send(&self, transmit: &OuterTransmit<'_>) -> io::Result<()>;

    /// MTU of the first link towards `remote`, in bytes, if the system knows it; the upper limit of
    /// MTU discovery.
    fn mtu_towards(&self, _remote: SocketAddr) -> Option<u16> {
        None
    }

    /// Receives into at most `buffers.len()` buffers of 64 KiB each, one sender per buffer, and
    /// returns how many were filled. Only one task at a time is woken.
    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [OuterMeta],
    ) -> Poll<io::Result<usize>>;

    /// Completes when sending may succeed again; any number of tasks may wait.
    fn writable(self: Arc<Self>) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>>;

    /// The bound address.
    fn local_addr(&self) -> io::Result<SocketAddr>;

    /// Maximum number of datagrams in an [`OuterTransmit`], at least 1. May change while running.
    fn max_gso_segments(&self) -> usize {
        1
    }
}
