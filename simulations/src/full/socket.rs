//! The socket of a node's process, and the wire as an
//! [`EventSource`](super::machine::EventSource). Both use the lock of the book, which holds the
//! wire and the network.

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use meshport_mesh::{OuterMeta, OuterSocket, OuterTransmit};

use super::book::Book;
use super::wire::FIRST_PORT;
use super::{lock, machine};
use crate::network::endpoint;

/// Most datagrams per send, as in the kernel.
const MAX_SEGMENTS: usize = 64;

/// The wire as what happens around a simulated machine.
pub(super) struct Waiting(pub(super) Arc<Mutex<Book>>);

impl machine::EventSource for Waiting {
    fn next(&self) -> Option<Duration> {
        lock(&self.0).wire.next()
    }

    fn happen(&mut self, now: Duration) {
        let Book { scene, wire, .. } = &mut *lock(&self.0);
        wire.happen(scene, now);
    }
}

/// The socket of one process of one node.
pub(super) struct Socket {
    book: Arc<Mutex<Book>>,
    node: usize,
    boot: u32,
}

impl Socket {
    /// Binds the socket. Data queued for an earlier process of this node is dropped.
    pub(super) fn bind(book: Arc<Mutex<Book>>, node: usize, boot: u32) -> Self {
        lock(&book).wire.open(node, boot);
        Self { book, node, boot }
    }
}

impl std::fmt::Debug for Socket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Socket").field("node", &self.node).finish_non_exhaustive()
    }
}

impl OuterSocket for Socket {
    fn try_send(&self, transmit: &OuterTransmit<'_>) -> io::Result<()> {
        let Book { scene, wire, .. } = &mut *lock(&self.book);
        if wire.is_open(self.node, self.boot) {
            for bytes in transmit.contents.chunks(transmit.segment.max(1)) {
                wire.send(scene, self.node, transmit.destination, bytes);
            }
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        buffers: &mut [IoSliceMut<'_>],
        meta: &mut [OuterMeta],
    ) -> Poll<io::Result<usize>> {
        let wire = &mut lock(&self.book).wire;
        match wire.is_open(self.node, self.boot) {
            true => wire.receive(self.node, cx, buffers, meta).map(Ok),
            false => Poll::Pending,
        }
    }

    fn writable(self: Arc<Self>) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        let address = lock(&self.book).scene.network.address(self.node);
        Ok(endpoint(address, FIRST_PORT + self.node))
    }

    fn max_gso_segments(&self) -> usize {
        MAX_SEGMENTS
    }
}
