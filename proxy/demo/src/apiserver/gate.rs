//! A gate through which all reads and writes of a stand-in go, so that it can hang like a stopped
//! process: nothing is answered, nothing is lost, everything continues when the gate opens.
//!
//! Bounded by the connections of the stand-in: each task waits at the gate at most once.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Open at first.
#[derive(Debug, Default)]
pub(super) struct Gate {
    closed: AtomicBool,
    waiting: Mutex<Vec<Waker>>,
}

impl Gate {
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    pub(super) fn open(&self) {
        let waiting = {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            // Inside the lock: a task that registers later sees the gate open.
            self.closed.store(false, Ordering::SeqCst);
            std::mem::take(&mut *waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }

    pub(super) async fn opened(&self) {
        std::future::poll_fn(|context| self.poll_opened(context)).await;
    }

    fn poll_opened(&self, context: &Context<'_>) -> Poll<()> {
        if !self.closed.load(Ordering::SeqCst) {
            return Poll::Ready(());
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.closed.load(Ordering::SeqCst) {
            return Poll::Ready(());
        }
        if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
            waiting.push(context.waker().clone());
        }
        Poll::Pending
    }
}

/// A stream behind a [`Gate`].
#[derive(Debug)]
pub(super) struct Gated<S> {
    inner: S,
    gate: Arc<Gate>,
}

impl<S> Gated<S> {
    pub(super) fn new(inner: S, gate: Arc<Gate>) -> Self {
        Self { inner, gate }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Gated<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.gate.poll_opened(context));
        Pin::new(&mut self.inner).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Gated<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.gate.poll_opened(context));
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.gate.poll_opened(context));
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.gate.poll_opened(context));
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}
