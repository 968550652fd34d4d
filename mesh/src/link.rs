//! Joins the state machine, the outer socket and the clock.
//!
//! A *turn* locks the core, calls it with the current time and delivers its output: datagrams go to
//! the socket, events to the user, and the driver is woken for an earlier timer or for notices. At
//! most [`BACKLOG`] sealed batches wait while the socket is full; more are dropped and counted.
//!
//! QUIC hands over ten datagrams at a time; the kernel accepts more than forty per call. Full
//! batches are therefore collected in a [`Run`] of at most one call; it is sent when it is full,
//! when QUIC ran out of data (its last datagram is short) or when a round of the other tasks has
//! added nothing ([`Link::poll_flush`]). A single datagram never waits.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use meshport_config::UnixSeconds;
use tokio::sync::{Notify, mpsc};

use super::bridge::{Bridge, Predecessors};
use super::inbox::Inboxes;
use super::lock;
use super::outer::{OuterSocket, OuterTransmit};
use meshport_proto::core::{Core, Datagrams, SEAL_OVERHEAD, StreamBatch};
use meshport_proto::event::{MeshEvent, Now, Route};
use meshport_proto::{MeshCount, MeshCounters, MeshError, SharedMeshCounters};

/// The wall clock, for judging credentials.
pub type WallClock = Arc<dyn Fn() -> UnixSeconds + Send + Sync>;

/// Sealed batches kept while the socket is full. QUIC stops sending after one; the rest is room for
/// control packets.
const BACKLOG: usize = 64;
/// Maximum bytes in one send with segments: the kernel's limit is a UDP datagram's 65,507.
const MAX_SEND: usize = 65_000;
/// Maximum number of segments in one send: the kernel's limit.
const MAX_SEGMENTS: usize = 64;

/// Sealed datagrams that the socket had no room for.
#[derive(Debug)]
struct Sealed {
    route: Route,
    bytes: Vec<u8>,
    stride: usize,
}

/// Sealed datagrams for one call of the socket, all but the last of one size.
#[derive(Debug, Default)]
struct Run {
    /// Reused; grows to the largest run.
    bytes: Vec<u8>,
    /// Filled length of `bytes`.
    length: usize,
    /// A datagram starts every `stride` bytes.
    stride: usize,
    /// The destination; `None` while the run is empty.
    route: Option<Route>,
    /// Something was added since the last [`Link::poll_flush`].
    grown: bool,
}

/// The sending half of the link.
#[derive(Debug, Default)]
struct Sender {
    run: Run,
    /// Wakes the task of [`Link::poll_flush`].
    flusher: Option<Waker>,
    backlog: VecDeque<Sealed>,
}

/// A core behind its lock, and the time of the driver's timer.
#[derive(Debug)]
struct Timed {
    core: Core,
    timer: Option<Instant>,
}

/// See the module's description.
#[derive(Debug)]
pub(super) struct Link {
    timed: Mutex<Timed>,
    sender: Mutex<Sender>,
    pub(super) socket: Arc<dyn OuterSocket>,
    pub(super) counters: SharedMeshCounters,
    clock: Clock,
    events: mpsc::Sender<MeshEvent>,
    pub(super) inboxes: Inboxes,
    /// Earlier processes whose packets are forwarded.
    pub(super) predecessors: Predecessors,
    /// The successor that owns the sockets and the tunnels now.
    bridge: OnceLock<Bridge>,
    /// Wakes the task that receives, see [`Link::detach`].
    reader: Mutex<Option<Waker>>,
    /// The driver has something to do.
    pub(super) wake: Notify,
    /// A session was established.
    pub(super) ready: Notify,
    closed: AtomicBool,
}

struct Clock(WallClock);

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clock")
    }
}

impl Link {
    pub(super) fn new(
        core: Core,
        socket: Arc<dyn OuterSocket>,
        wall: WallClock,
        events: mpsc::Sender<MeshEvent>,
        inboxes: Inboxes,
        predecessors: Predecessors,
    ) -> Self {
        Self {
            timed: Mutex::new(Timed { core, timer: None }),
            sender: Mutex::default(),
            socket,
            counters: SharedMeshCounters::default(),
            clock: Clock(wall),
            events,
            inboxes,
            predecessors,
            bridge: OnceLock::new(),
            reader: Mutex::default(),
            wake: Notify::new(),
            ready: Notify::new(),
            closed: AtomicBool::new(false),
        }
    }

    pub(super) fn now(&self) -> Now {
        now(&self.clock.0)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Resolves once the link is closed.
    pub(super) async fn closed(&self) {
        loop {
            let notified = self.ready.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            if self.is_closed() {
                return;
            }
            notified.await;
        }
    }

    /// Ends the driver. Nothing more is sent or received for the user.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        if let Some(flusher) = lock(&self.sender).flusher.take() {
            flusher.wake();
        }
        self.wake.notify_one();
        self.ready.notify_waiters();
    }

    /// Hands the socket and the tunnels over to another process. The core is no longer driven; the
    /// packets of open connections go over `bridge`.
    pub(super) fn detach(&self, bridge: Bridge) {
        // A second successor is not possible: the first has the sockets.
        let _ = self.bridge.set(bridge);
        self.close();
        if let Some(reader) = lock(&self.reader).take() {
            reader.wake();
        }
    }

    /// The bridge to the successor, if there is one.
    pub(super) fn bridge(&self) -> Option<&Bridge> {
        self.bridge.get()
    }

    /// The receiving task waits.
    pub(super) fn note_reader(&self, waker: &Waker) {
        let mut reader = lock(&self.reader);
        if !reader.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *reader = Some(waker.clone());
        }
    }

    /// Fails once the mesh is closed.
    pub(super) fn check_open(&self) -> Result<(), MeshError> {
        if self.is_closed() { Err(MeshError::Closed) } else { Ok(()) }
    }

    /// Reads the core without changing it.
    pub(super) fn look<T>(&self, read: impl FnOnce(&Core) -> T) -> T {
        read(&lock(&self.timed).core)
    }

    /// Takes a turn: runs `work` on the core, then sends its output.
    pub(super) fn turn<T>(&self, work: impl FnOnce(&mut Core, Now) -> T) -> T {
        let now = self.now();
        let mut sender = lock(&self.sender);
        let mut timed = lock(&self.timed);
        let result = work(&mut timed.core, now);
        self.let_out(&mut timed, &mut sender);
        result
    }

    /// Takes over the output of a changed core.
    fn let_out(&self, timed: &mut MutexGuard<'_, Timed>, sender: &mut Sender) {
        while let Some(transmit) = timed.core.poll_transmit() {
            let length = transmit.bytes.len();
            self.send(sender, transmit.route, &transmit.bytes, length);
        }
        while let Some(hand_over) = timed.core.poll_hand_over() {
            let datagrams = hand_over.batch.datagrams();
            if !self.inboxes.send(hand_over) {
                self.counters.add(MeshCount::DroppedHandOver, datagrams);
            }
        }
        let waiting = !self.hand_out_events(&mut timed.core);
        let earlier = match (timed.core.poll_timeout(), timed.timer) {
            (Some(due), Some(timer)) => due < timer,
            (Some(_), None) => true,
            (None, _) => false,
        };
        if waiting || earlier || timed.core.has_notices() || !sender.backlog.is_empty() {
            self.wake.notify_one();
        }
    }

    /// False if the user's queue is full and events wait.
    fn hand_out_events(&self, core: &mut Core) -> bool {
        while core.has_events() {
            match self.events.try_reserve() {
                Ok(permit) => {
                    if let Some(event) = core.poll_event() {
                        permit.send(event);
                    }
                }
                Err(mpsc::error::TrySendError::Full(())) => return false,
                // The receiver was dropped; that is the user's choice.
                Err(mpsc::error::TrySendError::Closed(())) => drop(core.poll_event()),
            }
        }
        true
    }

    /// Waits until the user's queue has room again.
    pub(super) async fn room_for_events(&self) {
        drop(self.events.reserve().await);
    }

    /// Notes when the driver will wake next, and returns what it needs for that.
    pub(super) fn plan(&self) -> Plan {
        let mut sender = lock(&self.sender);
        let blocked = !self.flush(&mut sender);
        let mut timed = lock(&self.timed);
        let events_wait = !self.hand_out_events(&mut timed.core);
        timed.core.postpone();
        timed.timer = timed.core.poll_timeout();
        Plan { timer: timed.timer, events_wait, blocked }
    }

    /// The next notice for the driver.
    pub(super) fn poll_notice(&self) -> Option<meshport_proto::core::Notice> {
        lock(&self.timed).core.poll_notice()
    }

    /// Seals a batch of QUIC datagrams and sends it, or collects more for the same destination. If
    /// the socket is full the batch is kept; nothing is ever sealed twice.
    pub(super) fn send_streams(&self, to: &std::net::Ipv6Addr, contents: &[u8], segment: usize) {
        let now = self.now();
        let mut sender = lock(&self.sender);
        // A single datagram: an answer, a request or an acknowledgement that a caller waits for.
        let alone = sender.run.length == 0 && contents.len() <= segment;
        let ends = alone || !contents.len().is_multiple_of(segment.max(1));
        let mut rest = contents;
        while !rest.is_empty() && segment > 0 {
            let capacity = self.capacity(&mut sender, segment);
            let (these, later) = rest.split_at(rest.len().min(capacity * segment));
            self.seal(&mut sender, now, to, Datagrams { bytes: these, segment });
            rest = later;
        }
        if ends {
            self.send_run(&mut sender);
        } else if let Some(flusher) = sender.flusher.as_ref().filter(|_| sender.run.length > 0) {
            flusher.wake_by_ref();
        }
    }

    /// The number of datagrams of `segment` bytes that the run can take, at least one. Sends
    /// the run first if they cannot be added to it.
    fn capacity(&self, sender: &mut Sender, segment: usize) -> usize {
        let most = self.segments(segment + SEAL_OVERHEAD);
        let run = &sender.run;
        // Only the last datagram of a run may be shorter.
        if run.length > 0 && segment + SEAL_OVERHEAD <= run.stride {
            let left = self.segments(run.stride).saturating_sub(run.length / run.stride);
            let left = if segment + SEAL_OVERHEAD < run.stride { left.min(1) } else { left };
            if left > 0 {
                return left;
            }
        }
        self.send_run(sender);
        most
    }

    /// Adds sealed datagrams to the run, which is sent when it is full.
    fn seal(
        &self,
        sender: &mut Sender,
        now: Now,
        to: &std::net::Ipv6Addr,
        datagrams: Datagrams<'_>,
    ) {
        let mut run = std::mem::take(&mut sender.run);
        let mut timed = lock(&self.timed);
        let batch = timed.core.seal_streams(now, to, datagrams, &mut run.bytes, run.length);
        self.let_out(&mut timed, sender);
        drop(timed);
        let Some(StreamBatch { route, length, stride }) = batch else {
            sender.run = run;
            return;
        };
        // The datagrams of a peer change their length when its path becomes narrow.
        let is_split = stride != datagrams.segment + SEAL_OVERHEAD;
        if run.route.is_some_and(|other| other != route || (is_split && stride != run.stride)) {
            self.send(sender, run.route.unwrap_or(route), &run.bytes[..run.length], run.stride);
            run.bytes.copy_within(run.length..run.length + length, 0);
            run.length = 0;
        }
        if run.length == 0 {
            (run.route, run.stride) = (Some(route), stride);
        }
        run.length += length;
        run.grown = true;
        let is_full = run.length / run.stride >= self.segments(run.stride);
        let is_closed = !run.length.is_multiple_of(run.stride);
        sender.run = run;
        if is_full || is_closed {
            self.send_run(sender);
        }
    }

    /// Maximum number of datagrams of `stride` bytes in one call of the socket.
    fn segments(&self, stride: usize) -> usize {
        let segments = self.socket.max_gso_segments().clamp(1, MAX_SEGMENTS);
        segments.min(MAX_SEND / stride).max(1)
    }

    fn send_run(&self, sender: &mut Sender) {
        let mut run = std::mem::take(&mut sender.run);
        if let Some(route) = run.route.take() {
            self.send(sender, route, &run.bytes[..run.length], run.stride);
        }
        sender.run = Run { bytes: run.bytes, ..Run::default() };
    }

    /// Sends the run once a round of the other tasks has added nothing to it. For one task only;
    /// ready when the link is closed.
    pub(super) fn poll_flush(&self, cx: &Context<'_>) -> Poll<()> {
        if self.is_closed() {
            return Poll::Ready(());
        }
        let sender = &mut *lock(&self.sender);
        if !sender.flusher.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            sender.flusher = Some(cx.waker().clone());
        }
        if std::mem::take(&mut sender.run.grown) {
            cx.waker().wake_by_ref();
        } else {
            self.send_run(sender);
        }
        Poll::Pending
    }

    /// Sends `bytes`, a datagram every `stride` bytes, or queues those that the socket has no room
    /// for. A successor owns the tunnels: then nothing is sent here.
    fn send(&self, sender: &mut Sender, route: Route, bytes: &[u8], stride: usize) {
        if self.bridge().is_some() {
            return;
        }
        if !self.flush(sender) {
            self.keep(sender, route, bytes, stride);
            return;
        }
        if let Some(rest) = self.send_now(route, bytes, stride) {
            self.counters.bump(MeshCount::SocketFull);
            self.keep(sender, route, &bytes[rest..], stride);
        }
    }

    fn keep(&self, sender: &mut Sender, route: Route, bytes: &[u8], stride: usize) {
        if sender.backlog.len() >= BACKLOG {
            self.counters.bump(MeshCount::DroppedSendBacklog);
            return;
        }
        sender.backlog.push_back(Sealed { route, bytes: bytes.to_vec(), stride });
        self.wake.notify_one();
    }

    /// True if nothing is left to send.
    fn flush(&self, sender: &mut Sender) -> bool {
        while let Some(sealed) = sender.backlog.front_mut() {
            if let Some(rest) = self.send_now(sealed.route, &sealed.bytes, sealed.stride) {
                sealed.bytes.drain(..rest);
                return false;
            }
            sender.backlog.pop_front();
        }
        true
    }

    /// True if the socket has taken everything.
    pub(super) fn flush_backlog(&self) -> bool {
        self.flush(&mut lock(&self.sender))
    }

    /// Sends as much as the socket takes. `Some(offset)` of the first byte it had no room for.
    fn send_now(&self, route: Route, bytes: &[u8], stride: usize) -> Option<usize> {
        let mut offset = 0;
        while offset < bytes.len() {
            let segments = self.segments(stride);
            let end = bytes.len().min(offset + segments * stride);
            let transmit = OuterTransmit {
                destination: route.remote,
                source: route.local,
                contents: &bytes[offset..end],
                segment: stride,
            };
            match self.socket.try_send(&transmit) {
                Ok(()) => self.count_sent(end - offset, stride),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Some(offset),
                // The socket may have stopped accepting batches with this very call: tries again in
                // pieces.
                Err(_) if segments > 1 && self.socket.max_gso_segments() == 1 => continue,
                Err(error) => self.count_error(&error),
            }
            offset = end;
        }
        None
    }

    fn count_sent(&self, bytes: usize, stride: usize) {
        let datagrams = bytes.div_ceil(stride) as u64;
        self.counters.add(MeshCount::DatagramsSent, datagrams);
        self.counters.add(MeshCount::BytesSent, bytes as u64);
    }

    fn count_error(&self, error: &io::Error) {
        /// `EMSGSIZE` on Linux; the standard library has no kind for it.
        const TOO_LARGE: i32 = 90;
        if error.raw_os_error() == Some(TOO_LARGE) {
            self.counters.bump(MeshCount::DroppedSendTooLarge);
        } else {
            self.counters.bump(MeshCount::DroppedSendError);
            tracing::debug!(%error, "the socket refused a datagram");
        }
    }

    /// The core's counters and the socket's; those of the streams are zero.
    pub(super) fn counters(&self) -> MeshCounters {
        let mut counters = self.look(|core| *core.counters());
        counters += self.counters.read();
        counters
    }
}

/// The events that the driver waits for.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) timer: Option<Instant>,
    pub(super) events_wait: bool,
    pub(super) blocked: bool,
}

/// Both clocks. The monotonic one is tokio's, so that tests can stop it.
pub(super) fn now(wall: &WallClock) -> Now {
    #[expect(clippy::disallowed_methods, reason = "the edge where the mesh reads the clock")]
    let instant = tokio::time::Instant::now().into_std();
    Now { instant, wall: wall() }
}

#[cfg(test)]
mod tests;
