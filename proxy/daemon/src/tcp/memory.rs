//! In-memory connections for simulations: the other end reads at once, in order, what one end
//! writes.
//!
//! Bounds: [`MAX_BUFFERED`] bytes in each direction and a backlog of [`MAX_BACKLOG`] connections;
//! as with a kernel, a writer waits for space and a connection beyond the backlog gets no answer.

use std::collections::{BTreeMap, VecDeque};
use std::future::{pending, poll_fn};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Buf, BytesMut};
use tokio::io::ReadBuf;

/// Bytes that may wait to be read in one direction, as in a kernel's buffer.
pub const MAX_BUFFERED: usize = 256 << 10;
/// Connections that may wait to be accepted.
pub const MAX_BACKLOG: usize = 4096;

/// Every change leaves the state consistent, so a poisoned lock is safe to use.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tasks that wait for the same thing: each side of a connection has few.
#[derive(Debug, Default)]
struct Waiting(Vec<Waker>);

impl Waiting {
    fn add(&mut self, cx: &Context<'_>) {
        if !self.0.iter().any(|waker| waker.will_wake(cx.waker())) {
            self.0.push(cx.waker().clone());
        }
    }

    fn wake(&mut self) {
        self.0.drain(..).for_each(Waker::wake);
    }
}

/// One direction of a connection.
#[derive(Debug, Default)]
struct Pipe {
    bytes: BytesMut,
    /// Nothing more will be written.
    ended: bool,
    /// Nothing more will be read.
    unread: bool,
    /// The connection was reset.
    broken: bool,
    readers: Waiting,
    writers: Waiting,
}

impl Pipe {
    fn is_readable(&self) -> bool {
        self.broken || self.ended || !self.bytes.is_empty()
    }

    fn is_writable(&self) -> bool {
        self.broken || self.unread || self.ended || self.bytes.len() < MAX_BUFFERED
    }

    /// Reads at most `most` bytes; an empty result is the end.
    fn read(&mut self, most: usize, mut take: impl FnMut(&[u8])) -> io::Result<usize> {
        if self.broken {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if self.bytes.is_empty() {
            return if self.ended { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) };
        }
        let length = self.bytes.len().min(most);
        take(&self.bytes[..length]);
        self.bytes.advance(length);
        self.writers.wake();
        Ok(length)
    }

    fn write<'a>(&mut self, slices: impl Iterator<Item = &'a [u8]>) -> io::Result<usize> {
        if self.broken {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if self.unread || self.ended {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let before = self.bytes.len();
        if before >= MAX_BUFFERED {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        for slice in slices {
            let room = MAX_BUFFERED - self.bytes.len();
            self.bytes.extend_from_slice(&slice[..slice.len().min(room)]);
        }
        self.readers.wake();
        Ok(self.bytes.len() - before)
    }

    fn change(&mut self, change: impl FnOnce(&mut Self)) {
        change(self);
        self.readers.wake();
        self.writers.wake();
    }
}

/// One end of a connection. Dropping it ends the connection, or resets it if data was left unread
/// or a reset was requested.
#[derive(Debug)]
pub struct End {
    reads: Arc<Mutex<Pipe>>,
    writes: Arc<Mutex<Pipe>>,
    resets: AtomicBool,
}

/// Both ends of a new connection.
pub fn pair() -> (End, End) {
    let (one, two): (Arc<Mutex<Pipe>>, Arc<Mutex<Pipe>>) = Default::default();
    let resets = AtomicBool::default;
    let near = End { reads: one.clone(), writes: two.clone(), resets: resets() };
    (near, End { reads: two, writes: one, resets: resets() })
}

impl End {
    pub(super) async fn readable(&self) {
        poll_fn(|cx| {
            let mut pipe = lock(&self.reads);
            if pipe.is_readable() {
                return Poll::Ready(());
            }
            pipe.readers.add(cx);
            Poll::Pending
        })
        .await;
    }

    pub(super) fn try_read_buf(&self, buffer: &mut BytesMut) -> io::Result<usize> {
        let room = buffer.capacity() - buffer.len();
        lock(&self.reads).read(room, |bytes| buffer.extend_from_slice(bytes))
    }

    pub(super) async fn writable(&self) {
        poll_fn(|cx| {
            let mut pipe = lock(&self.writes);
            if pipe.is_writable() {
                return Poll::Ready(());
            }
            pipe.writers.add(cx);
            Poll::Pending
        })
        .await;
    }

    pub(super) fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        lock(&self.writes).write(slices.iter().map(|slice| &**slice))
    }

    pub(super) fn poll_read(
        &self,
        cx: &Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut pipe = lock(&self.reads);
        let room = buffer.remaining();
        match pipe.read(room, |bytes| buffer.put_slice(bytes)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                pipe.readers.add(cx);
                Poll::Pending
            }
            other => Poll::Ready(other.map(|_| ())),
        }
    }

    pub(super) fn poll_write(&self, cx: &Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut pipe = lock(&self.writes);
        match pipe.write([bytes].into_iter()) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                pipe.writers.add(cx);
                Poll::Pending
            }
            other => Poll::Ready(other),
        }
    }

    /// Whether the other side has closed or reset it without sending data.
    pub(super) fn is_gone(&self) -> bool {
        let pipe = lock(&self.reads);
        pipe.broken || (pipe.ended && pipe.bytes.is_empty())
    }

    pub(super) fn reset_on_drop(&self) {
        self.resets.store(true, Ordering::Relaxed);
    }

    pub(super) fn finish(&self) {
        lock(&self.writes).change(|pipe| pipe.ended = true);
    }
}

impl Drop for End {
    fn drop(&mut self) {
        let left = !lock(&self.reads).bytes.is_empty();
        let resets = left || self.resets.load(Ordering::Relaxed);
        lock(&self.writes).change(|pipe| {
            pipe.ended = true;
            pipe.broken |= resets;
        });
        lock(&self.reads).change(|pipe| {
            pipe.unread = true;
            pipe.broken |= resets;
        });
    }
}

/// Connections waiting to be accepted.
#[derive(Debug, Default)]
struct Queue {
    ends: VecDeque<End>,
    acceptors: Waiting,
}

/// The address of a listener.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Address {
    /// At a TCP address.
    Tcp(SocketAddr),
    /// At the path of a Unix socket.
    Unix(PathBuf),
}

type Queues = BTreeMap<Address, Arc<Mutex<Queue>>>;

/// The local addresses of one machine, including Unix sockets. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Host(Arc<Mutex<Queues>>);

impl Host {
    pub(super) fn listen(&self, address: SocketAddr) -> io::Result<Listener> {
        Ok(Listener { address, queue: self.open(Address::Tcp(address))? })
    }

    /// Listens at the path of a Unix socket.
    ///
    /// # Errors
    /// If another listener has the path.
    pub(super) fn listen_unix(&self, path: &Path) -> io::Result<UnixListener> {
        self.open(Address::Unix(path.to_owned())).map(UnixListener)
    }

    fn open(&self, address: Address) -> io::Result<Open> {
        let queue: Arc<Mutex<Queue>> = Arc::default();
        let mut queues = lock(&self.0);
        if queues.contains_key(&address) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        queues.insert(address.clone(), queue.clone());
        Ok(Open { host: self.clone(), address, queue })
    }

    pub(super) async fn connect(&self, address: &str) -> io::Result<End> {
        self.reach(Address::Tcp(address.parse().map_err(io::Error::other)?)).await
    }

    /// Connects to a Unix socket.
    ///
    /// # Errors
    /// `ConnectionRefused` if there is no listener.
    pub(super) async fn connect_unix(&self, path: &Path) -> io::Result<End> {
        self.reach(Address::Unix(path.to_owned())).await
    }

    async fn reach(&self, address: Address) -> io::Result<End> {
        let queue = lock(&self.0).get(&address).cloned();
        let queue = queue.ok_or(io::ErrorKind::ConnectionRefused)?;
        let (near, far) = pair();
        let taken = {
            let mut queue = lock(&queue);
            let has_room = queue.ends.len() < MAX_BACKLOG;
            if has_room {
                queue.ends.push_back(far);
                queue.acceptors.wake();
            }
            has_room
        };
        if !taken {
            pending::<()>().await;
        }
        Ok(near)
    }
}

/// A listening address. Dropping it resets waiting connections.
#[derive(Debug)]
struct Open {
    host: Host,
    address: Address,
    queue: Arc<Mutex<Queue>>,
}

impl Open {
    async fn accept(&self) -> End {
        poll_fn(|cx| {
            let mut queue = lock(&self.queue);
            if let Some(end) = queue.ends.pop_front() {
                return Poll::Ready(end);
            }
            queue.acceptors.add(cx);
            Poll::Pending
        })
        .await
    }
}

/// Accepts connections to one address.
#[derive(Debug)]
pub struct Listener {
    address: SocketAddr,
    queue: Open,
}

impl Listener {
    pub(super) async fn accept(&self) -> End {
        self.queue.accept().await
    }

    pub(super) fn local_addr(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn close(self) -> Closed {
        Closed { host: self.queue.host.clone(), address: self.address }
    }
}

/// Accepts connections to one path.
#[derive(Debug)]
pub struct UnixListener(Open);

impl UnixListener {
    pub(super) async fn accept(&self) -> End {
        self.0.accept().await
    }
}

/// The address of a listener that currently does not accept. In memory no other process can take
/// it.
#[derive(Debug)]
pub struct Closed {
    host: Host,
    address: SocketAddr,
}

impl Closed {
    pub(super) fn open(&self) -> io::Result<Listener> {
        self.host.listen(self.address)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        lock(&self.host.0).remove(&self.address);
        let waiting = std::mem::take(&mut lock(&self.queue).ends);
        waiting.iter().for_each(End::reset_on_drop);
    }
}
