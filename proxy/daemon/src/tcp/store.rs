//! Listening sockets that outlive this process: clients that connect between the end of one daemon
//! and the start of the next wait in the socket's queue instead of being refused. The next process
//! gets the sockets from systemd's descriptor store (`FDSTORE` in sd_notify(3), `LISTEN_FDS` in
//! sd_listen_fds(3)) or, as the successor in an upgrade, from this process (`lifecycle::upgrade`).
//!
//! systemd has a socket while this node accepts clients on it: an older release could not use a
//! closed one, which would block its address. At a restart systemd also has one socket through
//! which the next process takes over everything else (`leave`). From this process, the next one
//! also gets closed sockets, so that no other user's process can bind their addresses in between.
//! One of the few files with unsafe code: inherited descriptors are known only by number.

use std::env;
use std::future::pending;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use socket2::{Domain, Socket, Type};
use tokio::io::AsyncReadExt;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

/// The first inherited descriptor, `SD_LISTEN_FDS_START`.
const FIRST: RawFd = 3;
/// Maximum descriptors taken over; equals `FileDescriptorStoreMax` of the unit.
pub(crate) const MAX_STORED: RawFd = 64;
/// The name, in the service manager's store, of the socket from [`leave`].
const PLACE: &str = "place";

/// What follows if the service manager does not get a socket.
const NOT_KEPT: &str =
    "cannot pass this socket to systemd; the next restart briefly refuses clients";

/// How long the service manager may take to read a message.
const MANAGER_TIME: Duration = Duration::from_secs(60);
/// Interval between attempts to queue a message: the queue holds 10 by default.
const QUEUE_PAUSE: Duration = Duration::from_millis(20);

/// The store of this process, if it is a daemon.
static STORE: OnceLock<Store> = OnceLock::new();

#[derive(Debug)]
struct Store {
    /// Socket to the service manager, if there is one.
    manager: Option<UnixDatagram>,
    /// Copies of this process's listening and closed sockets, with their addresses.
    open: Mutex<Vec<(SocketAddr, Socket)>>,
    /// Addresses that the service manager has to forget, for [`say_again`].
    closed: Mutex<Vec<SocketAddr>>,
    /// Inherited sockets that have not been requested yet.
    inherited: Mutex<Vec<Socket>>,
    /// The socket that the previous process left at a restart.
    place: Mutex<Option<UnixStream>>,
    /// Copies of the mesh's UDP sockets, in shard order.
    mesh: Mutex<Vec<Socket>>,
    /// Whether the next process accepts new clients.
    handed_over: watch::Sender<bool>,
}

/// The sockets inherited from the previous daemon. Dropping this closes those not yet requested,
/// whose clients nobody would accept.
#[derive(Debug)]
pub struct Inherited(());

impl Inherited {
    /// Takes them over at the start of a daemon, before anything else opens a socket. Only the
    /// first call in a process has an effect.
    pub fn take() -> Self {
        STORE.get_or_init(|| {
            let manager = env::var_os("NOTIFY_SOCKET").and_then(|path| {
                let connected = UnixDatagram::unbound().and_then(|socket| {
                    socket.connect(path)?;
                    socket.set_nonblocking(true)?;
                    Ok(socket)
                });
                connected
                    .inspect_err(|error| {
                        info!(%error, "cannot connect to systemd's notify socket; restarts briefly \
                                       refuse clients");
                    })
                    .ok()
            });
            let (places, inherited): (Vec<_>, _) = match manager {
                Some(_) => inherited().into_iter().partition(is_place),
                None => Default::default(),
            };
            Store {
                inherited: Mutex::new(inherited),
                place: Mutex::new(places.into_iter().next().map(UnixStream::from)),
                manager,
                open: Mutex::default(),
                closed: Mutex::default(),
                mesh: Mutex::default(),
                handed_over: watch::Sender::new(false),
            }
        });
        Self(())
    }

    /// The socket that the previous process [left](leave) at a restart; `None` after the first
    /// call.
    pub(crate) fn place(&self) -> Option<UnixStream> {
        let store = STORE.get()?;
        let place = store.place.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        store.forget(PLACE);
        Some(place)
    }

    /// Closes sockets that were not requested.
    pub(crate) fn close_rest(&self) {
        let Some(store) = STORE.get() else { return };
        let rest = std::mem::take(&mut *store.inherited());
        for socket in rest {
            if let Some(address) = address(&socket) {
                info!(%address, "closed: no longer an address of this node");
                store.remove(address);
            }
        }
    }
}

impl Drop for Inherited {
    fn drop(&mut self) {
        self.close_rest();
    }
}

/// Keeps a socket in the store until dropped, so that the next process gets it.
#[derive(Debug)]
pub(super) struct Stored(SocketAddr);

impl Stored {
    /// Stores a socket; `None` if there is no store.
    pub(super) fn put(socket: &impl AsFd, address: SocketAddr) -> Option<Self> {
        let store = STORE.get()?;
        let refusal = |error| warn!(%address, %error, "{NOT_KEPT}");
        let copy = socket.as_fd().try_clone_to_owned().map_err(refusal).ok()?;
        store.open().push((address, copy.into()));
        let _ = store.keep(address, socket).map_err(refusal);
        Some(Self(address))
    }

    /// Its socket refuses clients now.
    pub(super) fn note_closed(&self) {
        if let Some(store) = STORE.get() {
            store.remove(self.0);
        }
    }

    /// Its socket accepts clients again.
    pub(super) fn note_open(&self, socket: &impl AsFd) {
        if let Some(store) = STORE.get()
            && let Err(error) = store.keep(self.0, socket)
        {
            warn!(address = %self.0, %error, "{NOT_KEPT}");
        }
    }
}

impl Drop for Stored {
    fn drop(&mut self) {
        let Some(store) = STORE.get() else { return };
        if !*store.handed_over.borrow() {
            store.open().retain(|(address, _)| *address != self.0);
            store.remove(self.0);
        }
    }
}

/// The previous process's socket for `at`, which may be closed. If the service manager has the
/// socket too, it keeps a single copy.
pub(super) fn inherit(at: SocketAddr) -> Option<(Socket, Stored)> {
    let mut inherited = STORE.get()?.inherited();
    let found = inherited.iter().position(|socket| address(socket) == Some(at))?;
    let stored = Stored::put(&inherited[found], at)?;
    Some((inherited.swap_remove(found), stored))
}

/// The mesh's UDP sockets: the previous process's if they have this address, otherwise new ones. A
/// successor gets copies, so datagrams that arrive before it reads wait in the socket.
///
/// # Errors
/// Those of `open`.
pub(crate) fn mesh_sockets(
    at: SocketAddr,
    open: impl FnOnce() -> io::Result<Vec<Socket>>,
) -> io::Result<Vec<Socket>> {
    let Some(store) = STORE.get() else { return open() };
    let mut kept = store.mesh();
    // Without IPv6 the socket for `[::]` is bound to `0.0.0.0`.
    let is_it = |address: SocketAddr| {
        let is_any = address.ip().is_unspecified() && at.ip().is_unspecified();
        address.port() == at.port() && (address.ip() == at.ip() || is_any)
    };
    if !kept.first().and_then(udp_address).is_some_and(is_it) {
        // Sockets of other addresses do not conflict.
        kept.clear();
        *kept = open()?;
    }
    kept.iter().map(Socket::try_clone).collect()
}

/// Leaves all new clients to the next process. Returns false if nothing keeps the sockets until
/// then.
pub(crate) fn hand_over() -> bool {
    let store = STORE.get().filter(|store| store.manager.is_some());
    store.map(|store| store.handed_over.send_replace(true)).is_some()
}

/// Stops accepting clients, which then wait for the successor. The sockets stay for [`passed`] or
/// [`take_back`] until this process ends.
pub(crate) fn pass_on() {
    if let Some(store) = STORE.get() {
        store.handed_over.send_replace(true);
    }
}

/// Copies of the sockets for the successor: at most [`MAX_STORED`] listeners, and the mesh's, which
/// this process no longer reads.
///
/// # Errors
/// No descriptors are left.
pub(crate) fn passed() -> io::Result<Vec<OwnedFd>> {
    let Some(store) = STORE.get() else { return Ok(Vec::new()) };
    let most = usize::try_from(MAX_STORED).unwrap_or(0);
    let (open, mesh) = (store.open(), store.mesh());
    let all = open.iter().take(most).map(|(_, it)| it).chain(&*mesh);
    all.map(|it| Ok(it.try_clone()?.into())).collect()
}

/// Leaves a socket to the next process that the service manager starts. The manager discards it if
/// it stops the service instead, or when the other end is closed.
///
/// # Errors
/// There is no store.
pub(crate) fn leave(socket: &UnixStream) -> io::Result<()> {
    let manager = STORE.get().and_then(|store| store.manager.as_ref());
    let manager = manager.ok_or_else(|| io::Error::other("no service manager listens"))?;
    send(manager, &format!("FDSTORE=1\nFDNAME={PLACE}"), Some(socket.as_fd()))
}

/// Releases the mesh's sockets: this process ends without a successor.
pub(crate) fn close_mesh() {
    if let Some(store) = STORE.get() {
        store.mesh().clear();
    }
}

/// Accepts clients again after [`pass_on`]: the next start in this process finds the sockets.
pub(crate) fn take_back() {
    let Some(store) = STORE.get() else { return };
    let passed = std::mem::take(&mut *store.open());
    store.inherited().extend(passed.into_iter().map(|(_, socket)| socket));
    store.handed_over.send_replace(false);
}

/// Adopts the sockets that the previous process passed on.
pub(crate) fn adopt(sockets: impl IntoIterator<Item = OwnedFd>) {
    let Some(store) = STORE.get() else { return };
    for socket in sockets.into_iter().map(Socket::from) {
        if let Some(at) = address(&socket) {
            let mut inherited = store.inherited();
            // At a restart the service manager has passed the socket on as well.
            if !inherited.iter().any(|known| address(known) == Some(at)) {
                inherited.push(socket);
            }
        } else if udp_address(&socket).is_some() {
            store.mesh().push(socket);
        }
    }
}

/// Returns all sockets to the process that passed them on, since this one cannot run.
pub(crate) fn give_back() {
    let Some(store) = STORE.get() else { return };
    store.handed_over.send_replace(true);
    store.inherited().clear();
    store.mesh().clear();
}

/// Closes all sockets here: the successor has them.
pub(crate) fn release() {
    give_back();
    if let Some(store) = STORE.get() {
        store.open().clear();
    }
}

/// Makes another process the service's main process, if a service manager listens.
///
/// # Errors
/// The manager's queue is full.
pub(crate) fn make_main(pid: u32) -> io::Result<()> {
    let Some(manager) = STORE.get().and_then(|store| store.manager.as_ref()) else {
        return Ok(());
    };
    send(manager, &format!("MAINPID={pid}"), None)
}

/// Makes another process the service's main process, and resolves when the service manager has read
/// that (`BARRIER` in sd_notify(3)). Only then may this process end: the manager ignores messages
/// of ended processes, and restarts a service whose main process has ended.
pub(crate) async fn make_main_before_the_end(pid: u32) {
    let Some(manager) = STORE.get().and_then(|store| store.manager.as_ref()) else { return };
    let announced = async {
        queue(manager, &format!("MAINPID={pid}"), None).await?;
        // The manager closes the descriptor, even one that does not know barriers.
        let (ours, theirs) = UnixStream::pair()?;
        queue(manager, "BARRIER=1", Some(theirs.as_fd())).await?;
        drop(theirs);
        ours.set_nonblocking(true)?;
        let mut ours = tokio::net::UnixStream::from_std(ours)?;
        // The manager answers by closing the stream.
        let _ = ours.read_u8().await;
        Ok::<_, io::Error>(())
    };
    match timeout(MANAGER_TIME, announced).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            warn!(pid, %error, "cannot announce the successor to systemd");
        }
        Err(_elapsed) => warn!(
            pid,
            limit_s = MANAGER_TIME.as_secs(),
            "systemd has not acknowledged the new main process; it may restart the service \
             alongside the successor"
        ),
    }
}

/// Tells the service manager again which sockets are open and closed: it ignores a successor until
/// the old process has made it the main one.
pub(crate) fn say_again() {
    let Some(store) = STORE.get() else { return };
    for address in std::mem::take(&mut *store.closed()) {
        store.forget(&name(address));
    }
    let open = store.open();
    for (address, socket) in open.iter().filter(|(_, it)| it.is_listener().unwrap_or(false)) {
        if let Err(error) = store.keep(*address, socket) {
            warn!(%address, %error, "socket will not survive a restart");
        }
    }
}

/// Resolves once the next process accepts the clients. Listeners that are dropped then stay open
/// for it.
pub(crate) async fn handed_over() {
    let Some(store) = STORE.get() else { return pending().await };
    // Cannot fail: the sender lives as long as the process.
    let _ = store.handed_over.subscribe().wait_for(|is_over| *is_over).await;
}

impl Store {
    fn inherited(&self) -> std::sync::MutexGuard<'_, Vec<Socket>> {
        self.inherited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> std::sync::MutexGuard<'_, Vec<(SocketAddr, Socket)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn closed(&self) -> std::sync::MutexGuard<'_, Vec<SocketAddr>> {
        self.closed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mesh(&self) -> std::sync::MutexGuard<'_, Vec<Socket>> {
        self.mesh.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, address: SocketAddr, socket: &impl AsFd) -> io::Result<()> {
        let Some(manager) = &self.manager else { return Ok(()) };
        let message = format!("FDSTORE=1\nFDNAME={}", name(address));
        send(manager, &message, Some(socket.as_fd()))
    }

    fn remove(&self, address: SocketAddr) {
        let mut closed = self.closed();
        if !closed.contains(&address) {
            closed.push(address);
        }
        drop(closed);
        self.forget(&name(address));
    }

    fn forget(&self, name: &str) {
        let Some(manager) = &self.manager else { return };
        let message = format!("FDSTOREREMOVE=1\nFDNAME={name}");
        if let Err(error) = send(manager, &message, None) {
            warn!(name, %error, "systemd keeps a closed socket open");
        }
    }
}

/// The name of a socket in the service manager's store; colons are not allowed.
fn name(address: SocketAddr) -> String {
    format!("listen-{address}").replace(':', "_")
}

/// Sends a message, once the manager's queue has room.
async fn queue(
    to: &UnixDatagram,
    message: &str,
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    loop {
        match send(to, message, descriptor) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(QUEUE_PAUSE).await,
            sent => return sent,
        }
    }
}

fn send(to: &UnixDatagram, message: &str, socket: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    let sockets: Vec<BorrowedFd<'_>> = socket.into_iter().collect();
    if !sockets.is_empty() {
        rights.push(SendAncillaryMessage::ScmRights(&sockets));
    }
    sendmsg(to, &[IoSlice::new(message.as_bytes())], &mut rights, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The address of a TCP socket that listens or is closed.
fn address(socket: &Socket) -> Option<SocketAddr> {
    let is_tcp = socket.r#type().is_ok_and(|it| it == Type::STREAM);
    let address = socket.local_addr().ok().filter(|_| is_tcp)?.as_socket()?;
    (address.port() != 0).then_some(address)
}

/// Whether this is a socket that [`leave`] has left.
fn is_place(socket: &Socket) -> bool {
    socket.domain().is_ok_and(|it| it == Domain::UNIX)
        && socket.r#type().is_ok_and(|it| it == Type::STREAM)
}

fn udp_address(socket: &Socket) -> Option<SocketAddr> {
    let is_udp = socket.r#type().is_ok_and(|it| it == Type::DGRAM);
    socket.local_addr().ok().filter(|_| is_udp)?.as_socket()
}

/// The number of inherited descriptors, according to the environment.
fn count(pid: Option<&str>, fds: Option<&str>, own: u32) -> RawFd {
    let is_own = pid.and_then(|pid| pid.parse::<u32>().ok()) == Some(own);
    let fds = fds.and_then(|fds| fds.parse::<RawFd>().ok()).filter(|_| is_own);
    fds.unwrap_or(0).clamp(0, MAX_STORED)
}

/// The inherited sockets: listeners, and what [`leave`] has left.
#[expect(unsafe_code, reason = "inherited descriptors are known by their numbers only")]
fn inherited() -> Vec<Socket> {
    let [pid, fds] = ["LISTEN_PID", "LISTEN_FDS"].map(|name| env::var(name).ok());
    let count = count(pid.as_deref(), fds.as_deref(), std::process::id());
    let take = |number: RawFd| {
        // SAFETY: the service manager has opened these descriptors for this very process, whose id
        // it names, before the process ran. Nothing else knows their numbers, and this runs once,
        // as the initialisation of a `OnceLock`.
        Socket::from(unsafe { OwnedFd::from_raw_fd(number) })
    };
    let sockets = (FIRST..FIRST + count).map(take);
    // systemd leaves them open across exec, but programs that this process starts must not have
    // them.
    let is_ours = |it: &Socket| {
        (address(it).is_some() || is_place(it))
            && it.set_nonblocking(true).is_ok()
            && it.set_cloexec(true).is_ok()
    };
    sockets.filter(is_ours).collect()
}

#[cfg(test)]
mod tests {
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

    use super::*;

    #[test]
    fn descriptors_for_another_process_or_out_of_bounds_are_not_taken() {
        assert_eq!(count(Some("7"), Some("2"), 7), 2);
        assert_eq!(count(Some("8"), Some("2"), 7), 0, "a parent's");
        assert_eq!(count(None, Some("2"), 7), 0);
        assert_eq!(count(Some("7"), None, 7), 0);
        assert_eq!(count(Some("7"), Some("-1"), 7), 0);
        assert_eq!(count(Some("7"), Some("many"), 7), 0);
        assert_eq!(count(Some("7"), Some("2000000000"), 7), MAX_STORED);
    }

    #[test]
    fn names_have_no_colon() {
        let name = |text: &str| name(text.parse().expect("an address"));
        assert_eq!(name("127.0.0.1:7445"), "listen-127.0.0.1_7445");
        assert_eq!(name("[::1]:7445"), "listen-[__1]_7445");
    }

    #[test]
    fn a_sent_socket_is_the_one_that_listens() {
        let (to, at) = UnixDatagram::pair().expect("sockets");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        send(&to, "FDSTORE=1", Some(listener.as_fd())).expect("it is sent");
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut rights = RecvAncillaryBuffer::new(&mut space);
        let mut text = [0; 64];
        let mut into = [io::IoSliceMut::new(&mut text)];
        let got = recvmsg(&at, &mut into, &mut rights, RecvFlags::empty()).expect("it is there");
        let sent = rights.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut sockets) => sockets.next(),
            _ => None,
        });
        assert_eq!(&text[..got.bytes], b"FDSTORE=1");
        let sent = Socket::from(sent.expect("a socket"));
        assert_eq!(address(&sent), listener.local_addr().ok());
        assert_eq!(address(&Socket::from(OwnedFd::from(at))), None, "not of a listener");
    }
}
