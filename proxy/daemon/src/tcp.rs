//! TCP connections as the daemon uses them: the kernel's in the product, memory's in a simulation.
//!
//! The daemon makes, accepts, reads and writes every connection of a client or an instance through
//! these types, so that whole nodes can run in one process and in virtual time. A [`Host`] is the
//! machine a node runs on, as far as its local addresses go. Memory behaves as the kernel does
//! where the daemon can tell: backlogs, half-close, resets, backpressure, refused connections.

use std::future::pending;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Shutdown, SocketAddr, UdpSocket};
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{self, TcpListener, TcpSocket, TcpStream, UnixStream};

pub mod memory;
pub mod store;

use store::Stored;

use crate::Error;
use crate::unix::{self, Place, SocketFile};

/// Connections the kernel may hold before they are accepted; the kernel caps it at `somaxconn`.
/// One controller manager alone dials 60 at once.
const BACKLOG: i32 = 4096;
/// Bytes that a connection on this machine may hold unread: three reads of
/// [`splice`](crate::sessions::splice). By default the kernel begins with one and a half reads and
/// grows the buffer of fast readers, so that of parallel streams a few get twice the rate of the
/// others. Connections that leave this machine keep the default: a long path may need more.
const LOCAL_UNREAD: u32 = 192 << 10;

/// Where a node's local addresses are.
#[derive(Debug, Clone, Default)]
pub enum Host {
    /// On the machine this process runs on.
    #[default]
    Kernel,
    /// In memory.
    Memory(memory::Host),
}

impl Host {
    /// Connects to `address`, a socket address or, with the kernel, a name and a port.
    ///
    /// # Errors
    /// `ConnectionRefused` when nobody listens there; otherwise as the system says.
    pub async fn connect(&self, address: &str) -> io::Result<Tcp> {
        match self {
            Self::Kernel => connect(address).await.map(Tcp::Kernel),
            Self::Memory(host) => host.connect(address).await.map(Tcp::Memory),
        }
    }

    /// Connects to a Unix socket.
    ///
    /// # Errors
    /// `ConnectionRefused` or, with the kernel, `NotFound` when nobody listens there.
    pub async fn connect_unix(&self, path: &Path) -> io::Result<Tcp> {
        match self {
            Self::Kernel => UnixStream::connect(path).await.map(Tcp::Unix),
            Self::Memory(host) => host.connect_unix(path).await.map(Tcp::Memory),
        }
    }

    /// Listens on `address`.
    ///
    /// # Errors
    /// When the address is taken or the system does not have it.
    pub fn listen(&self, address: SocketAddr) -> io::Result<Listener> {
        self.listen_on(address, Presence::Now)
    }

    /// Listens on an address that the system may get later.
    ///
    /// # Errors
    /// When the address is taken.
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
    /// [`Error::State`] when another process answers there or the path cannot be a socket's,
    /// [`Error::Io`] for what the machine lacks.
    pub(crate) async fn listen_unix(&self, place: Place<'_>) -> Result<UnixListener, Error> {
        match self {
            Self::Kernel => {
                let (listener, _file) = unix::bind(place).await?;
                Ok(UnixListener::Kernel { listener, _file })
            }
            Self::Memory(host) => {
                let failed = Error::io(format!("listen on {}", place.path.display()));
                host.listen_unix(place.path).map(UnixListener::Memory).map_err(failed)
            }
        }
    }

    /// Whether an address is one of this machine's: a socket can be bound to it.
    pub(crate) fn has(&self, ip: IpAddr) -> bool {
        match self {
            Self::Kernel => UdpSocket::bind((ip, 0)).is_ok(),
            Self::Memory(_) => ip.is_loopback(),
        }
    }
}

/// When the system has an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    /// As soon as it is listened on.
    Now,
    /// Perhaps later.
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

/// Listens on an address of the kernel's, for who needs its own kind of stream.
pub(crate) fn listen_kernel(address: SocketAddr) -> io::Result<KernelListener> {
    listen(address, Presence::Now)
}

fn listen(address: SocketAddr, presence: Presence) -> io::Result<KernelListener> {
    if let Some((socket, stored)) = store::inherit(address) {
        let listener = TcpListener::from_std(socket.into())?;
        return Ok(KernelListener { listener, stored: Some(stored) });
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
    // The next process asks for another free port.
    let stored = if is_named { Stored::put(&socket, chosen) } else { None };
    Ok(KernelListener { listener: TcpListener::from_std(socket.into())?, stored })
}

/// A port that is free now. Of a socket that asked for port 0 the kernel takes the port away when
/// it stops listening, so [`Listener::close`] needs one that was asked for by its number.
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
        // Those that it accepts have it from the start, when they offer their window.
        socket.set_recv_buffer_size(LOCAL_UNREAD as usize)?;
    }
    Ok(socket)
}

/// A listener of the kernel's.
#[derive(Debug)]
pub struct KernelListener {
    listener: TcpListener,
    /// Its place in the service manager's store, where it has one.
    stored: Option<Stored>,
}

impl KernelListener {
    /// The next connection. None comes any more once the next process is to accept them.
    pub(crate) async fn accept(&self) -> io::Result<TcpStream> {
        if self.stored.is_none() {
            return Ok(self.listener.accept().await?.0);
        }
        tokio::select! {
            biased;
            () = store::handed_over() => pending().await,
            accepted = self.listener.accept() => Ok(accepted?.0),
        }
    }

    /// Where it listens.
    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Accepts connections; its drop gives the address up.
#[derive(Debug)]
pub enum Listener {
    /// The kernel's.
    Kernel(KernelListener),
    /// Memory's.
    Memory(memory::Listener),
}

impl Listener {
    /// The next connection.
    ///
    /// # Errors
    /// The system is out of descriptors or memory.
    pub async fn accept(&self) -> io::Result<Tcp> {
        match self {
            Self::Kernel(kernel) => kernel.accept().await.map(Tcp::Kernel),
            Self::Memory(listener) => Ok(Tcp::Memory(listener.accept().await)),
        }
    }

    /// Where it listens.
    ///
    /// # Errors
    /// When the socket is not usable.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Kernel(kernel) => kernel.listener.local_addr(),
            Self::Memory(listener) => Ok(listener.local_addr()),
        }
    }

    /// Refuses clients from now on, those that wait to be accepted included, and keeps the address.
    ///
    /// # Errors
    /// The system does not let go of the socket, or its address; it is given up then.
    pub fn close(self) -> io::Result<Closed> {
        match self {
            Self::Kernel(KernelListener { listener, stored }) => {
                let socket = Socket::from(listener.into_std()?);
                refuse(&socket)?;
                let is_stored = stored.is_some();
                Ok(Closed(Reserved::Kernel { socket, is_stored }))
            }
            Self::Memory(listener) => Ok(Closed(Reserved::Memory(listener.close()))),
        }
    }
}

/// Accepts connections on a Unix socket, whose file is removed with it.
#[derive(Debug)]
pub(crate) enum UnixListener {
    /// The kernel's.
    Kernel { listener: net::UnixListener, _file: SocketFile },
    /// Memory's.
    Memory(memory::UnixListener),
}

impl UnixListener {
    /// The next connection.
    ///
    /// # Errors
    /// The system is out of descriptors or memory.
    pub(crate) async fn accept(&self) -> io::Result<Tcp> {
        match self {
            Self::Kernel { listener, .. } => Ok(Tcp::Unix(listener.accept().await?.0)),
            Self::Memory(listener) => Ok(Tcp::Memory(listener.accept().await)),
        }
    }
}

/// Keeps an address without accepting: clients are refused at once, and no process can take it.
#[derive(Debug)]
pub struct Closed(Reserved);

#[derive(Debug)]
enum Reserved {
    Kernel {
        socket: Socket,
        /// It was in the store while it was open.
        is_stored: bool,
    },
    Memory(memory::Closed),
}

impl Closed {
    /// Accepts connections again.
    ///
    /// # Errors
    /// Another process listens there all the same, or the system is out of memory. Nothing has
    /// changed then.
    pub fn open(&self) -> io::Result<Listener> {
        let (socket, is_stored) = match &self.0 {
            Reserved::Kernel { socket, is_stored } => (socket, *is_stored),
            Reserved::Memory(closed) => return closed.open().map(Listener::Memory),
        };
        // Before it listens: afterwards nothing may fail that leaves clients in its queue.
        let copy = socket.try_clone()?;
        // Sessions from before, open or just ended, are in its way unless it would share the
        // address, which it does for the time of the second call only.
        let listens = socket.listen(BACKLOG).or_else(|_| {
            socket.set_reuse_address(true)?;
            socket.listen(BACKLOG)
        });
        // Accepted connections inherit this, and must not block the next start.
        let opened = listens.and_then(|()| {
            socket.set_reuse_address(true)?;
            TcpListener::from_std(copy.into())
        });
        if opened.is_err() {
            refuse(socket)?;
        }
        let listener = opened?;
        let address = listener.local_addr().ok().filter(|_| is_stored);
        let stored = address.and_then(|address| Stored::put(socket, address));
        Ok(Listener::Kernel(KernelListener { listener, stored }))
    }
}

/// Keeps a socket bound and refuses its clients.
fn refuse(socket: &Socket) -> io::Result<()> {
    // As long as it listens, no other socket can bind the address. Afterwards any user's socket
    // with SO_REUSEADDR can, unless this one does not set it.
    socket.set_reuse_address(false)?;
    // Linux takes a listening socket back to one that is only bound.
    match socket.shutdown(Shutdown::Read) {
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
        other => other,
    }
}

/// One connection.
#[derive(Debug)]
pub enum Tcp {
    /// The kernel's.
    Kernel(TcpStream),
    /// One of a Unix socket, which carries bytes the same way; only that it has no reset, so its
    /// client sees an end where a TCP client sees one.
    Unix(UnixStream),
    /// Memory's.
    Memory(memory::End),
}

impl Tcp {
    /// If it `moves`: lets the runtime this is called in watch it from now on, instead of the one
    /// that did.
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

    /// The other end and this one, of TCP; memory does not say.
    pub(crate) fn ends(&self) -> Option<(SocketAddr, SocketAddr)> {
        match self {
            Self::Kernel(tcp) => Some((tcp.peer_addr().ok()?, tcp.local_addr().ok()?)),
            Self::Unix(_) | Self::Memory(_) => None,
        }
    }

    /// Whether the other side has ended or reset it without a word.
    pub(crate) fn is_gone(&self) -> bool {
        let socket = match self {
            Self::Kernel(tcp) => socket2::SockRef::from(tcp),
            Self::Unix(unix) => socket2::SockRef::from(unix),
            Self::Memory(end) => return end.is_gone(),
        };
        match socket.peek(&mut [MaybeUninit::uninit()]) {
            Ok(read) => read == 0,
            Err(error) => error.kind() != io::ErrorKind::WouldBlock,
        }
    }

    /// The user of the process at the other end of a Unix socket (SO_PEERCRED); none where the
    /// system does not say. In memory all processes are root's.
    pub(crate) fn peer_user(&self) -> Option<u32> {
        match self {
            Self::Kernel(_) => None,
            Self::Unix(unix) => unix.peer_cred().ok().map(|peer| peer.uid()),
            Self::Memory(_) => Some(0),
        }
    }

    /// Waits until there may be something to read, or its end.
    ///
    /// # Errors
    /// The runtime is going down.
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

    /// Reads what is there into the buffer's free space; 0 bytes are the end.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there; `ConnectionReset` when the other side broke it.
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
    /// The runtime is going down.
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

    /// Writes as much as there is room for; returns how many bytes.
    ///
    /// # Errors
    /// `WouldBlock` when there is no room; otherwise the connection is broken.
    pub fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Kernel(tcp) => tcp.try_write_vectored(slices),
            Self::Unix(unix) => unix.try_write_vectored(slices),
            Self::Memory(end) => end.try_write_vectored(slices),
        }
    }

    /// Sends small pieces at once. A connection that is already gone needs nothing.
    pub fn set_nodelay(&self) {
        if let Self::Kernel(tcp) = self {
            let _ = tcp.set_nodelay(true);
        }
    }

    /// Makes the drop of this connection a reset instead of an end.
    pub fn reset_on_drop(&self) {
        match self {
            // A connection that is already gone needs no reset.
            Self::Kernel(tcp) => {
                let _ = socket2::SockRef::from(tcp).set_linger(Some(Duration::ZERO));
            }
            Self::Unix(_) => {}
            Self::Memory(end) => end.reset_on_drop(),
        }
    }

    /// Ends the writing direction; a connection that is already closed needs no end.
    pub fn finish(&self) {
        match self {
            Self::Kernel(tcp) => {
                let _ = socket2::SockRef::from(tcp).shutdown(Shutdown::Write);
            }
            Self::Unix(unix) => {
                let _ = socket2::SockRef::from(unix).shutdown(Shutdown::Write);
            }
            Self::Memory(end) => end.finish(),
        }
    }
}

/// Reads what is there. A buffer that is not full afterwards has emptied the socket, which tokio is
/// told: otherwise the next wait would end at once, for a read that finds nothing.
fn read_or_note_empty(tcp: &TcpStream, buffer: &mut BytesMut) -> io::Result<usize> {
    let room = buffer.capacity() - buffer.len();
    let mut read = None;
    let emptied = tcp.try_io(Interest::READABLE, || {
        let count = *read.insert(tcp.try_read_buf(buffer)?);
        // At the end of the stream it stays readable.
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
