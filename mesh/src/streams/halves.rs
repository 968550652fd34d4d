//! The two halves of a stream, without quinn's types.

use std::future::{Future, poll_fn};
use std::net::Ipv6Addr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;

use bytes::Bytes;
use meshport_config::NodeId;
use quinn::{ConnectionError, ReadError, RecvStream, SendStream, StoppedError, VarInt, WriteError};

use super::Live;
use crate::backlog::Share;
use crate::link::Link;
use crate::windows::Reading;
use meshport_proto::MeshError;

/// Stream code: the writing half was dropped before it was finished.
const CODE_ABANDONED: u32 = 4;

/// Counts the stream as open while one of its halves exists.
#[derive(Debug)]
struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A bidirectional, flow-controlled byte stream. The halves are independent.
#[derive(Debug)]
pub struct Stream {
    /// The writing half.
    pub send: SendHalf,
    /// The reading half.
    pub recv: RecvHalf,
}

impl Stream {
    pub(super) fn new(
        node: NodeId,
        send: SendStream,
        recv: RecvStream,
        live: &Live,
        link: Arc<Link>,
        address: Ipv6Addr,
    ) -> Self {
        live.streams.fetch_add(1, Ordering::Relaxed);
        let open = Arc::new(Open(live.streams.clone()));
        let reading = Reading::new(live.window.clone());
        let (live, _open) = (live.clone(), open.clone());
        Self {
            send: SendHalf {
                stream: send,
                node,
                share: Share::default(),
                ended: false,
                link,
                address,
                live,
                _open,
            },
            recv: RecvHalf { stream: recv, node, reading, _open: open },
        }
    }
}

/// The writing half. Dropping it before [`SendHalf::finish`] resets the stream, so that an aborted
/// transfer never looks complete.
#[derive(Debug)]
pub struct SendHalf {
    stream: SendStream,
    node: NodeId,
    share: Share,
    ended: bool,
    link: Arc<Link>,
    address: Ipv6Addr,
    live: Live,
    _open: Arc<Open>,
}

impl SendHalf {
    /// Writes all of `chunk` without copying it. Waits while the peer's window is full and, for
    /// bulk data, until it is this stream's turn on the connection.
    ///
    /// # Errors
    /// [`MeshError::Stopped`] if the peer has stopped reading, [`MeshError::ConnectionLost`], or
    /// [`MeshError::StreamClosed`] after [`SendHalf::finish`] or [`SendHalf::reset`].
    pub async fn write_chunk(&mut self, chunk: Bytes) -> Result<(), MeshError> {
        let (length, backlog) = (chunk.len(), &self.live.backlog);
        let entered = backlog.enter(&mut self.share, length, &self.live.connection).await;
        let rank = entered.map_err(|error| lost(self.node, &error))?;
        // Fails only for a stream that has ended, and then the write fails too.
        let _ = self.stream.set_priority(rank.0);
        let mut writing = pin!(self.stream.write_chunk(chunk));
        let written = match poll_fn(|cx| Poll::Ready(writing.as_mut().poll(cx))).await {
            Poll::Ready(written) => written,
            // A slow reader must not block other streams.
            Poll::Pending => {
                backlog.leave(length);
                writing.await
            }
        };
        written.map_err(|error| match error {
            WriteError::Stopped(code) => MeshError::Stopped(code.into_inner()),
            WriteError::ConnectionLost(error) => lost(self.node, &error),
            WriteError::ClosedStream | WriteError::ZeroRttRejected => MeshError::StreamClosed,
        })?;
        // A reachable peer acknowledges these bytes, so silence from now on means trouble.
        self.link.turn(|core, _| core.expect_answer(&self.address));
        Ok(())
    }

    /// Ends the stream's data; everything written so far is still delivered.
    ///
    /// # Errors
    /// [`MeshError::StreamClosed`] if this half has already ended.
    pub fn finish(&mut self) -> Result<(), MeshError> {
        self.ended = true;
        self.stream.finish().map_err(|_| MeshError::StreamClosed)
    }

    /// Aborts the stream: the peer's reading half fails with `code`, undelivered data is dropped.
    pub fn reset(&mut self, code: u32) {
        self.ended = true;
        // Fails only if this half has already ended.
        let _ = self.stream.reset(VarInt::from_u32(code));
    }

    /// Resolves when the peer stops reading, to its code, or when it has received everything up to
    /// [`SendHalf::finish`], to `None`. The future does not borrow this half.
    pub fn stopped(
        &self,
    ) -> impl Future<Output = Result<Option<u64>, MeshError>> + Send + Sync + 'static {
        let stopped = self.stream.stopped();
        let node = self.node;
        async move {
            match stopped.await {
                Ok(code) => Ok(code.map(VarInt::into_inner)),
                Err(StoppedError::ConnectionLost(error)) => Err(lost(node, &error)),
                Err(StoppedError::ZeroRttRejected) => Err(MeshError::StreamClosed),
            }
        }
    }
}

impl Drop for SendHalf {
    fn drop(&mut self) {
        if !self.ended {
            self.reset(CODE_ABANDONED);
        }
    }
}

/// The reading half. Dropping it before the end tells the peer to stop.
#[derive(Debug)]
pub struct RecvHalf {
    stream: RecvStream,
    node: NodeId,
    reading: Reading,
    _open: Arc<Open>,
}

impl RecvHalf {
    /// Waits for data and fills the start of `chunks` with it, in order. Returns the number of
    /// chunks filled, or `None` at the end of the stream.
    ///
    /// # Errors
    /// [`MeshError::Reset`] if the peer has aborted the stream, [`MeshError::ConnectionLost`], or
    /// [`MeshError::StreamClosed`] after [`RecvHalf::stop`].
    pub async fn read_chunks(&mut self, chunks: &mut [Bytes]) -> Result<Option<usize>, MeshError> {
        let read = self.stream.read_chunks(chunks).await.map_err(|error| match error {
            ReadError::Reset(code) => MeshError::Reset(code.into_inner()),
            ReadError::ConnectionLost(error) => lost(self.node, &error),
            ReadError::ClosedStream
            | ReadError::IllegalOrderedRead
            | ReadError::ZeroRttRejected => MeshError::StreamClosed,
        })?;
        if let Some(count) = read {
            self.reading.count(chunks[..count].iter().map(|chunk| chunk.len() as u64).sum());
        }
        Ok(read)
    }

    /// Stops reading: the peer's writing half fails with `code`.
    pub fn stop(&mut self, code: u32) {
        // Fails only if this half has already ended.
        let _ = self.stream.stop(VarInt::from_u32(code));
    }
}

fn lost(node: NodeId, error: &ConnectionError) -> MeshError {
    match error {
        ConnectionError::TimedOut => MeshError::Unreachable(node),
        error => MeshError::ConnectionLost { node, reason: error.to_string() },
    }
}
