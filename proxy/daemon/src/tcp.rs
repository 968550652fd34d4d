//! TCP connections as the daemon uses them: the kernel's in the product, in-memory ones in a
//! simulation.
//!
//! All connections of clients and instances use these types, so that whole nodes can run in one
//! process and in virtual time. A [`Host`] is a node's machine as far as local addresses are
//! concerned. In-memory connections behave like the kernel's wherever the daemon can tell:
//! backlogs, half-close, resets, backpressure, refused connections.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Shutdown, SocketAddr, UdpSocket};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{self, TcpListener, TcpSocket, TcpStream, UnixStream};

pub mod memory;
pub mod store;

use store::Stored;

use crate::Error;
use crate::unix::{self, SocketFile, SocketPath};

/// Connections the kernel may queue for accept; it caps the value at `somaxconn`. One controller
/// manager alone dials 60 in parallel.
const BACKLOG: i32 = 4096;
/// Receive buffer of connections within this machine: three reads of
/// [`splice`](crate::sessions::splice). The kernel's default starts at one and a half reads and
/// grows for fast readers, so a few of many parallel streams get twice the rate of the others.
/// Connections to other machines keep the default, since a long path may need more.
const LOCAL_UNREAD: u32 = 192 << 10;

/// The machine that has a node's local addresses.
#[derive(Debug, Clone, Default)]
pub enum Host {
    /// The machine that runs this process.
    #[default]
    Kernel,
    /// In memory.
    Memory(memory::Host),
}

impl Host {
    /// Connects to `address`: a socket address or, with the kernel, a name and a port.
    ///
    /// # Errors
    /// `ConnectionRefused` if nobody listens there; otherwise the system's error.
    pub async fn connect(&self, address: &str) -> io::Result<Tcp> {
        match self {
            Self::Kernel => connect(address).await.map(Tcp::Kernel),
            Self::Memory(host) => host.connect(address).await.map(Tcp::Memory),
        }
    }

    /// Connects to a Unix socket.
    ///
    /// # Errors
    /// `ConnectionRefused` or, with the kernel, `NotFound` if nobody listens there.
    pub async fn connect_unix(&self, path: &Path) -> io::Result<Tcp> {
        match self {
            Self::Kernel => UnixStream::connect(path).await.map(Tcp::Unix),
            Self::Memory(host) => host.connect_unix(path).await.map(Tcp::Memory),
        }
    }

    /// Listens on `address`.
    ///
    /// # Errors
    /// The address is in use or does not exist.
    pub fn listen(&self, address: SocketAddr) -> io::Result<Listener> {
        self.listen_on(address, Presence::Now)
    }

    /// Listens on an address that the system may get later.
    ///
    /// # Errors
    /// The address is in use; one that does not exist yet is none.
    pub(crate) fn listen_ahead(&self, address: SocketAddr) -> io::Result<Listener> {
        self.listen_on(address, Presence::Later)
    }

    fn listen_on(&self, address: SocketAddr, presence: Presence) -> io::Result<Listener> {
        match self {
            Self::Kernel => listen(address, presence).map(Listener::Kernel),
            Self::Memory(host) => host.listen(address).map(Listener::Memory),
        }
    }

    /// Listens on a Unix socket, see [`unix::bind`].
    ///
    /// # Errors
    /// [`Error::State`] if another process answers there or the path cannot be a socket's;
    /// [`Error::Io`] if the system refuses.
    pub(crate) async fn listen_unix(&self, at: SocketPath<'_>) -> Result<UnixListener, Error> {
        match self {
            Self::Kernel => {
                let (listener, _file) = unix::bind(at).await?;
                Ok(UnixListener::Kernel { listener, _file })
            }
            Self::Memory(host) => {
                let failed = Error::io(format!("listen on {}", at.path.display()));
                host.listen_unix(at.path).map(UnixListener::Memory).map_err(failed)
            }
        }
    }

    /// Whether this machine has an address: a socket can be bound to it.
    pub(crate) fn has(&self, ip: IpAddr) -> bool {
        match self {
            Self::Kernel => UdpSocket::bind((ip, 0)).is_ok(),
            Self::Memory(_) => ip.is_loopback(),
        }
    }
}

/// When the system has the address of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    /// Before it is bound.
    Now,
    /// Possibly later.
    Later,
}

async fn connect(address: &str) -> io::Result<TcpStream> {
    match address.parse::<SocketAddr>() {
        Ok(local) if local.ip().is_loopback() => {
            let socket = match local {
                SocketAddr::V4(_) => TcpSocket::new_v4(),
                SocketAddr::V6(_) => TcpSocket::new_v6(),
            }?;
            socket.set_recv_buffer_size(LOCAL_UNREAD)?;
            socket.connect(local).await
        }
        _ => TcpStream::connect(address).await,
    }
}

/// Listens on a kernel address, for callers that need their own stream type.
pub(crate) fn listen_kernel(address: SocketAddr) -> io::Result<KernelListener> {
    listen(address, Presence::Now)
}

fn listen(address: SocketAddr, presence: Presence) -> io::Result<KernelListener> {
    if let Some((socket, stored)) = store::inherit(address) {
        if !socket.is_listener()? {
            listen_again(&socket)?;
        }
        let listener = TcpListener::from_std(socket.into())?;
        return Ok(KernelListener { listener, stored: Some(Arc::new(stored)) });
    }
    let is_named = address.port() != 0;
    let chosen = if is_named { address } else { free_port(address)? };
    let socket = socket(chosen)?;
    if presence == Presence::Later {
        match chosen {
            SocketAddr::V4(_) => socket.set_freebind_v4(true)?,
            SocketAddr::V6(_) => socket.set_freebind_v6(true)?,
        }
    }
    socket.bind(&chosen.into())?;
    socket.listen(BACKLOG)?;
    // The next process picks another free port.
    let stored = if is_named { Stored::put(&socket, chosen) } else { None };
    let listener = TcpListener::from_std(socket.into())?;
    Ok(KernelListener { listener, stored: stored.map(Arc::new) })
}

/// A port that is free now. When a socket bound to port 0 stops listening, the kernel unbinds it,
/// so [`Listener::close`] needs a socket bound to an explicit port.
fn free_port(address: SocketAddr) -> io::Result<SocketAddr> {
    let socket = socket(address)?;
    socket.bind(&address.into())?;
    let bound = socket.local_addr()?;
    bound.as_socket().ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

fn socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.set_nonblocking(true)?;
    if address.ip().is_loopback() {
        // Accepted sockets inherit it in time for the window they offer.
        socket.set_recv_buffer_size(LOCAL_UNREAD as usize)?;
    }
    Ok(socket)
}

/// A kernel listener.
#[derive(Debug)]
pub struct KernelListener {
    listener: TcpListener,
    /// Its entry in the store for the next process, if any.
    stored: Option<Arc<Stored>>,
}

impl KernelListener {
    /// Accepts the next connection.
    ///
    /// # Errors
    /// The system is out of descriptors or memory.
    pub(crate) async fn accept(&self) -> io::Result<TcpStream> {
        let (accepted, _) = self.listener.accept().await?;
        SockRef::from(&accepted).set_reuse_port(true)?;
        Ok(accepted)
    }

    /// The address it listens on.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Accepts connections. Dropping it releases the address.
#[derive(Debug)]
pub enum Listener {
    /// A kernel listener.
    Kernel(KernelListener),
    /// An in-memory listener.
    Memory(memory::Listener),
}

impl Listener {
    /// Accepts the next connection.
    ///
    /// # Errors
    /// The system is out of descriptors or memory.
    pub async fn accept(&self) -> io::Result<Tcp> {
        match self {
            Self::Kernel(kernel) => kernel.accept().await.map(Tcp::Kernel),
            Self::Memory(listener) => Ok(Tcp::Memory(listener.accept().await)),
        }
    }

    /// The address it listens on.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Kernel(kernel) => kernel.listener.local_addr(),
            Self::Memory(listener) => Ok(listener.local_addr()),
        }
    }

    /// Starts to refuse clients, including those waiting to be accepted, and keeps the address.
    ///
    /// # Errors
    /// The system cannot stop listening or keep the address, which is then released.
    pub fn close(self) -> io::Result<Closed> {
        match self {
            Self::Kernel(KernelListener { listener, stored }) => {
                let socket = Socket::from(listener.into_std()?);
                refuse(&socket)?;
                if let Some(stored) = &stored {
                    stored.note_closed();
                }
                Ok(Closed(Reserved::Kernel { socket, stored }))
            }
            Self::Memory(listener) => Ok(Closed(Reserved::Memory(listener.close()))),
        }
    }
}

/// Accepts connections on a Unix socket, whose file is removed on drop.
#[derive(Debug)]
pub(crate) enum UnixListener {
    /// A kernel listener.
    Kernel { listener: net::UnixListener, _file: SocketFile },
    /// An in-memory listener.
    Memory(memory::UnixListener),
}

impl UnixListener {
    /// Accepts the next connection.
    pub(crate) async fn accept(&self) -> io::Result<Tcp> {
        match self {
            Self::Kernel { listener, .. } => Ok(Tcp::Unix(listener.accept().await?.0)),
            Self::Memory(listener) => Ok(Tcp::Memory(listener.accept().await)),
        }
    }
}

/// Keeps an address without accepting: clients are refused immediately, and no other process can
/// take it.
#[derive(Debug)]
pub struct Closed(Reserved);

#[derive(Debug)]
enum Reserved {
    Kernel { socket: Socket, stored: Option<Arc<Stored>> },
    Memory(memory::Closed),
}

impl Closed {
    /// Accepts connections again.
    ///
    /// # Errors
    /// Another process listens there nevertheless, or the system is out of memory. Nothing has
    /// changed then.
    pub fn open(&self) -> io::Result<Listener> {
        let (socket, stored) = match &self.0 {
            Reserved::Kernel { socket, stored } => (socket, stored.clone()),
            Reserved::Memory(closed) => return closed.open().map(Listener::Memory),
        };
        // Before listening: if a later step failed, clients would be stuck in the queue.
        let copy = socket.try_clone()?;
        let opened = listen_again(socket).and_then(|()| TcpListener::from_std(copy.into()));
        if opened.is_err() {
            refuse(socket)?;
        }
        let listener = opened?;
        if let Some(stored) = &stored {
            stored.note_open(socket);
        }
        Ok(Listener::Kernel(KernelListener { listener, stored }))
    }
}

/// Accepts connections again after [`refuse`].
fn listen_again(socket: &Socket) -> io::Result<()> {
    // Earlier sessions, open or just closed, prevent listening unless they and this socket share
    // the port. With SO_REUSEADDR another user's socket could get in between; with SO_REUSEPORT,
    // which [`KernelListener::accept`] sets on sessions, only one of this user could.
    socket.set_reuse_port(true)?;
    let listening = socket.listen(BACKLOG);
    socket.set_reuse_port(false)?;
    listening?;
    // Accepted connections inherit this option, which must not prevent the next start.
    socket.set_reuse_address(true)
}

/// Keeps a socket bound and refuses its clients.
fn refuse(socket: &Socket) -> io::Result<()> {
    // While it listens, no other socket can bind the address. Afterwards any user's socket with
    // SO_REUSEADDR could, unless this one clears the option.
    socket.set_reuse_address(false)?;
    // On Linux this returns a listening socket to the bound state.
    match socket.shutdown(Shutdown::Read) {
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
        other => other,
    }
}

/// One connection.
#[derive(Debug)]
pub enum Tcp {
    /// A kernel connection.
    Kernel(TcpStream),
    /// A Unix socket connection. It has no reset, so its client sees an end instead of one.
    Unix(UnixStream),
    /// An in-memory connection.
    Memory(memory::End),
}

impl Tcp {
    /// If `moves` is set, registers the connection with the current runtime instead of its previous
    /// one.
    ///
    /// # Errors
    /// The system is out of memory; the connection is closed then.
    pub(crate) fn move_here_if(self, moves: bool) -> io::Result<Self> {
        match self {
            Self::Kernel(tcp) if moves => Ok(Self::Kernel(TcpStream::from_std(tcp.into_std()?)?)),
            Self::Unix(unix) if moves => Ok(Self::Unix(UnixStream::from_std(unix.into_std()?)?)),
            stays => Ok(stays),
        }
    }

    /// The peer's and the local address of a TCP connection; none in memory.
    pub(crate) fn ends(&self) -> Option<(SocketAddr, SocketAddr)> {
        match self {
            Self::Kernel(tcp) => Some((tcp.peer_addr().ok()?, tcp.local_addr().ok()?)),
            Self::Unix(_) | Self::Memory(_) => None,
        }
    }

    /// Whether the peer has reset it, or has closed it without sending data.
    pub(crate) fn is_gone(&self) -> bool {
        let socket = match self {
            // Data that came before the reset can still be read.
            Self::Kernel(tcp) if tcp.peer_addr().is_err() => return true,
            Self::Kernel(tcp) => SockRef::from(tcp),
            Self::Unix(unix) => SockRef::from(unix),
            Self::Memory(end) => return end.is_gone(),
        };
        match socket.peek(&mut [MaybeUninit::uninit()]) {
            Ok(read) => read == 0,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }

    /// The user of the peer process of a Unix socket (SO_PEERCRED), if known. In memory all
    /// processes belong to root.
    pub(crate) fn peer_user(&self) -> Option<u32> {
        match self {
            Self::Kernel(_) => None,
            Self::Unix(unix) => unix.peer_cred().ok().map(|peer| peer.uid()),
            Self::Memory(_) => Some(0),
        }
    }

    /// Waits until there may be data or the end of the stream.
    ///
    /// # Errors
    /// The runtime is shutting down.
    pub async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Kernel(tcp) => tcp.readable().await,
            Self::Unix(unix) => unix.readable().await,
            Self::Memory(end) => {
                end.readable().await;
                Ok(())
            }
        }
    }

    /// Reads available data into the buffer's free space; 0 bytes mean the end.
    ///
    /// # Errors
    /// `WouldBlock` if there is no data; `ConnectionReset` if the peer reset the connection.
    pub fn try_read_buf(&self, buffer: &mut BytesMut) -> io::Result<usize> {
        match self {
            Self::Kernel(tcp) => read_or_note_empty(tcp, buffer),
            Self::Unix(unix) => unix.try_read_buf(buffer),
            Self::Memory(end) => end.try_read_buf(buffer),
        }
    }

    /// Waits until there may be room to write.
    ///
    /// # Errors
    /// The runtime is shutting down.
    pub async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Kernel(tcp) => tcp.writable().await,
            Self::Unix(unix) => unix.writable().await,
            Self::Memory(end) => {
                end.writable().await;
                Ok(())
            }
        }
    }

    /// Writes as much as fits; returns the number of bytes.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room; otherwise the connection is broken.
    pub fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Kernel(tcp) => tcp.try_write_vectored(slices),
            Self::Unix(unix) => unix.try_write_vectored(slices),
            Self::Memory(end) => end.try_write_vectored(slices),
        }
    }

    /// Disables Nagle's algorithm. Has no effect on a closed connection.
    pub fn set_nodelay(&self) {
        if let Self::Kernel(tcp) = self {
            let _ = tcp.set_nodelay(true);
        }
    }

    /// Makes dropping this connection send a reset instead of a FIN.
    pub fn reset_on_drop(&self) {
        match self {
            // A closed connection needs no reset.
            Self::Kernel(tcp) => {
                let _ = SockRef::from(tcp).set_linger(Some(Duration::ZERO));
            }
            Self::Unix(_) => {}
            Self::Memory(end) => end.reset_on_drop(),
        }
    }

    /// Shuts down the write side; has no effect on a closed connection.
    pub fn finish(&self) {
        match self {
            Self::Kernel(tcp) => {
                let _ = SockRef::from(tcp).shutdown(Shutdown::Write);
            }
            Self::Unix(unix) => {
                let _ = SockRef::from(unix).shutdown(Shutdown::Write);
            }
            Self::Memory(end) => end.finish(),
        }
    }
}

/// Reads available data. If the buffer is not full afterwards, the socket is empty; this tells
/// tokio so, since otherwise the next wait would return immediately for a read without data.
fn read_or_note_empty(tcp: &TcpStream, buffer: &mut BytesMut) -> io::Result<usize> {
    let room = buffer.capacity() - buffer.len();
    let mut read = None;
    let emptied = tcp.try_io(Interest::READABLE, || {
        let count = *read.insert(tcp.try_read_buf(buffer)?);
        // At the end of the stream the socket stays readable.
        if 0 < count && count < room { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    });
    read.map_or_else(|| emptied.map(|()| 0), Ok)
}

impl AsyncRead for Tcp {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Kernel(tcp) => Pin::new(tcp).poll_read(cx, buffer),
            Self::Unix(unix) => Pin::new(unix).poll_read(cx, buffer),
            Self::Memory(end) => end.poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Tcp {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Kernel(tcp) => Pin::new(tcp).poll_write(cx, bytes),
            Self::Unix(unix) => Pin::new(unix).poll_write(cx, bytes),
            Self::Memory(end) => end.poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Kernel(tcp) => Pin::new(tcp).poll_flush(cx),
            Self::Unix(unix) => Pin::new(unix).poll_flush(cx),
            Self::Memory(_) => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Kernel(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Self::Unix(unix) => Pin::new(unix).poll_shutdown(cx),
            Self::Memory(end) => {
                end.finish();
                Poll::Ready(Ok(()))
            }
        }
    }
}

#[cfg(test)]
mod tests;
