//! Carries bytes between a TCP connection and its counterpart in both directions until both are
//! done.
//!
//! When one direction finishes, so does the other side's (half-close). An error in one direction
//! breaks both: the TCP side gets a reset, the stream side a reset and a stop. Backpressure is end
//! to end: a side is read only after the other has taken the previous data, so a session buffers at
//! most [`READ_BYTES`] per direction, on top of the kernel's and the mesh's windows. Idle sessions
//! hold no buffer.
//!
//! When a session is ended with nothing in flight, the client gets a FIN, as if the other side had
//! finished, and the other side gets one once the client has closed. If the client sends data
//! instead, or bytes of either side are buffered here, both get a reset: truncated data must not
//! look complete.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use meshport_core::ledger::Traffic;
use meshport_mesh::{RecvHalf, SendHalf, Stream};
use tokio::time::timeout;

use crate::sessions::exposed::Tally;
use crate::sessions::origins::OriginTotals;
use crate::sessions::totals::{SessionCount, Totals};
use crate::tcp::Tcp;

/// Most bytes read from a TCP connection in one call.
const READ_BYTES: usize = 64 * 1024;
/// Most chunks read from a stream in one call; one vectored write sends them.
const READ_CHUNKS: usize = 32;
/// How long a client may take to close a connection after it got a FIN.
const MAX_FAREWELL: Duration = Duration::from_secs(2);
/// Maximum size of a TLS `close_notify` record (RFC 8446, section 6.1): two bytes, their header and
/// the overhead of encryption.
const MAX_CLOSE_NOTIFY: usize = 64;
/// The code of a session's stream resets and stops; its only meaning is that the other connection
/// broke.
pub(crate) const ABORTED: u32 = 1;

/// The bytes carried so far.
#[derive(Debug, Default)]
pub(crate) struct Carried {
    /// Bytes from the TCP connection.
    pub(crate) up: AtomicU64,
    /// Bytes to the TCP connection.
    pub(crate) down: AtomicU64,
    /// Whether the last bytes came from the TCP connection.
    asked: AtomicBool,
    /// Whether bytes from the TCP connection are buffered until the other side takes them. Also set
    /// once it has ended, since only the other side can then end the session.
    holds_up: AtomicBool,
    /// The same for bytes to the TCP connection.
    holds_down: AtomicBool,
    /// Further counters of a client's session, updated as bytes pass.
    counted: Option<Counted>,
}

/// The counters of a client's session.
#[derive(Debug)]
pub(crate) struct Counted {
    pub(crate) totals: Arc<Totals>,
    pub(crate) origin: Arc<OriginTotals>,
    /// For a client of an exposed listener.
    pub(crate) tally: Option<Arc<Tally>>,
}

impl Counted {
    fn add(&self, total: SessionCount, bytes: u64, from_client: bool) {
        self.totals.counts.add(total, bytes);
        self.origin.add(bytes, from_client);
        if let Some(tally) = &self.tally {
            tally.add(bytes, from_client);
        }
    }
}

impl Carried {
    /// Counters of a client's session that has sent this many bytes and waits for the answer.
    pub(crate) fn of_client(sent: u64, counted: Counted) -> Self {
        let carried = Self { counted: Some(counted), ..Self::default() };
        carried.add_up(sent);
        carried
    }

    pub(crate) fn add_up(&self, bytes: u64) {
        self.add(&self.up, SessionCount::UpBytes, bytes, true);
    }

    fn add_down(&self, bytes: u64) {
        self.add(&self.down, SessionCount::DownBytes, bytes, false);
    }

    fn add(&self, count: &AtomicU64, total: SessionCount, bytes: u64, asks: bool) {
        if bytes > 0 {
            count.fetch_add(bytes, Ordering::Relaxed);
            self.asked.store(asks, Ordering::Relaxed);
            if let Some(counted) = &self.counted {
                counted.add(total, bytes, asks);
            }
        }
    }

    /// As the session ledger needs it.
    pub(crate) fn traffic(&self) -> Traffic {
        let waits = self.asked.load(Ordering::Relaxed);
        Traffic { bytes: self.total(), waits, holds: self.holds() }
    }

    /// Whether bytes are buffered in either direction, or a side has ended.
    fn holds(&self) -> bool {
        [&self.holds_up, &self.holds_down].into_iter().any(|it| it.load(Ordering::Relaxed))
    }

    /// Bytes in both directions.
    pub(crate) fn total(&self) -> u64 {
        self.up.load(Ordering::Relaxed) + self.down.load(Ordering::Relaxed)
    }
}

/// Bytes read from either side before they were joined; sent first.
#[derive(Debug, Default)]
pub(crate) struct Early {
    /// From the TCP connection.
    pub(crate) up: Bytes,
    /// To the TCP connection.
    pub(crate) down: Vec<Bytes>,
}

/// How a session is ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Both sides are reset: data may be in flight.
    Reset,
    /// The client gets a FIN, as if the other side had finished, and the other side once the client
    /// has closed; both are reset if bytes are held or the client sends more.
    Farewell,
}

/// Joins a TCP connection and a stream. Returns `Err` if one of them broke or `cut` resolved first;
/// both are then reset.
pub(crate) async fn with_stream(
    tcp: Tcp,
    stream: Stream,
    early: Early,
    carried: &Carried,
    end: impl Future<Output = Ending>,
) -> io::Result<()> {
    let unfinished = Unfinished::new(&tcp);
    let Stream { mut send, mut recv } = stream;
    let result = {
        let both = pin!(async {
            // Bytes already read from the stream come first.
            let to_tcp = to_tcp(&mut recv, &tcp, early.down, carried);
            tokio::try_join!(to_tcp, to_stream(&tcp, &mut send, early.up, carried)).map(drop)
        });
        unless(pin!(end), both).await
    };
    match result {
        Over::Done => {}
        Over::Ended(Ending::Farewell)
            if !carried.holds() && take_leave(&tcp).await && send.finish().is_ok() =>
        {
            recv.stop(ABORTED);
        }
        Over::Ended(_) | Over::Broken(_) => {
            send.reset(ABORTED);
            recv.stop(ABORTED);
            return result.into_result();
        }
    }
    unfinished.done();
    Ok(())
}

/// Joins two TCP connections; otherwise like [`with_stream`].
pub(crate) async fn with_tcp(
    one: Tcp,
    two: Tcp,
    early: Early,
    carried: &Carried,
    end: impl Future<Output = Ending>,
) -> io::Result<()> {
    let unfinished = [Unfinished::new(&one), Unfinished::new(&two)];
    let both = pin!(async {
        let add_down = |bytes| carried.add_down(bytes);
        let add_up = |bytes| carried.add_up(bytes);
        let down = between(&two, &one, early.down, &carried.holds_down, add_down);
        let up = between(&one, &two, vec![early.up], &carried.holds_up, add_up);
        tokio::try_join!(down, up).map(drop)
    });
    let result = unless(pin!(end), both).await;
    match result {
        Over::Ended(Ending::Farewell) if !carried.holds() && take_leave(&one).await => two.finish(),
        Over::Done | Over::Ended(_) | Over::Broken(_) => result.into_result()?,
    }
    unfinished.into_iter().for_each(Unfinished::done);
    Ok(())
}

/// Sends a FIN to a client and waits until it closes; false if it sends data instead or times out.
/// TLS sends `close_notify` before it closes.
async fn take_leave(tcp: &Tcp) -> bool {
    tcp.finish();
    let closes = async {
        match read(tcp).await {
            Ok(None) => true,
            Ok(Some(bytes)) if may_be_close_notify(&bytes) => matches!(read(tcp).await, Ok(None)),
            Ok(Some(_)) | Err(_) => false,
        }
    };
    timeout(MAX_FAREWELL, closes).await.unwrap_or(false)
}

/// Whether these bytes are one short TLS record: an alert, which TLS 1.3 disguises as application
/// data.
fn may_be_close_notify(bytes: &[u8]) -> bool {
    const ALERT: u8 = 21;
    const APPLICATION_DATA: u8 = 23;
    let [ALERT | APPLICATION_DATA, 3, _, high, low, rest @ ..] = bytes else { return false };
    bytes.len() <= MAX_CLOSE_NOTIFY && usize::from(u16::from_be_bytes([*high, *low])) == rest.len()
}

/// Joins two streams until both are done; `rest` was already read from `one`. Returns `Err` if one
/// of them broke or `cut` resolved first; both are then reset.
pub(crate) async fn between_streams(
    mut one: Stream,
    mut two: Stream,
    rest: Bytes,
    cut: impl Future<Output = ()>,
) -> io::Result<()> {
    let result = {
        let end = pin!(async {
            cut.await;
            Ending::Reset
        });
        let both = pin!(async {
            let there = pass(&mut one.recv, &mut two.send, rest);
            let back = pass(&mut two.recv, &mut one.send, Bytes::new());
            tokio::try_join!(there, back).map(drop)
        });
        unless(end, both).await.into_result()
    };
    if result.is_err() {
        for stream in [&mut one, &mut two] {
            stream.send.reset(ABORTED);
            stream.recv.stop(ABORTED);
        }
    }
    result
}

/// Resets a connection if dropped before [`Unfinished::done`]: a transfer cut off by the end of its
/// task must not look complete.
pub(crate) struct Unfinished<'a>(Option<&'a Tcp>);

impl<'a> Unfinished<'a> {
    pub(crate) fn new(tcp: &'a Tcp) -> Self {
        Self(Some(tcp))
    }

    /// The session ended normally.
    pub(crate) fn done(mut self) {
        self.0 = None;
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Some(tcp) = self.0 {
            tcp.reset_on_drop();
        }
    }
}

/// Reads available bytes, waiting if there are none; `None` at the end. Allocates no buffer while
/// it waits.
pub(crate) async fn read(tcp: &Tcp) -> io::Result<Option<Bytes>> {
    loop {
        tcp.readable().await?;
        let mut buffer = BytesMut::with_capacity(READ_BYTES);
        match tcp.try_read_buf(&mut buffer) {
            Ok(0) => return Ok(None),
            Ok(_) => return Ok(Some(buffer.freeze())),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// Writes all of `chunks`, leaving them empty.
pub(crate) async fn write(tcp: &Tcp, chunks: &mut [Bytes]) -> io::Result<()> {
    let mut first = 0;
    loop {
        while chunks.get(first).is_some_and(Bytes::is_empty) {
            first += 1;
        }
        if first == chunks.len() {
            return Ok(());
        }
        match try_write(tcp, &mut chunks[first..]) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => tcp.writable().await?,
            Err(error) => return Err(error),
        }
    }
}

/// Like [`write()`]; `holds` is set until all is written.
async fn write_held(tcp: &Tcp, chunks: &mut [Bytes], holds: &AtomicBool) -> io::Result<()> {
    holds.store(true, Ordering::Relaxed);
    write(tcp, chunks).await?;
    holds.store(false, Ordering::Relaxed);
    Ok(())
}

/// Writes what the connection takes now and removes it from `chunks`. A separate function, since
/// [`write()`] would keep the slices while it waits.
fn try_write(tcp: &Tcp, chunks: &mut [Bytes]) -> io::Result<()> {
    let slices: [IoSlice<'_>; READ_CHUNKS] =
        std::array::from_fn(|at| IoSlice::new(chunks.get(at).map_or(&[], Bytes::as_ref)));
    let mut written = tcp.try_write_vectored(&slices[..slices.len().min(chunks.len())])?;
    for chunk in chunks {
        let taken = written.min(chunk.len());
        chunk.advance(taken);
        written -= taken;
    }
    Ok(())
}

async fn to_stream(
    tcp: &Tcp,
    send: &mut SendHalf,
    early: Bytes,
    carried: &Carried,
) -> io::Result<()> {
    let mut next = Some(early);
    while let Some(bytes) = next {
        let length = bytes.len() as u64;
        if length > 0 {
            carried.holds_up.store(true, Ordering::Relaxed);
            send.write_chunk(bytes).await.map_err(io::Error::other)?;
            carried.add_up(length);
            carried.holds_up.store(false, Ordering::Relaxed);
        }
        next = read(tcp).await?;
    }
    carried.holds_up.store(true, Ordering::Relaxed);
    send.finish().map_err(io::Error::other)
}

async fn to_tcp(
    recv: &mut RecvHalf,
    tcp: &Tcp,
    mut first: Vec<Bytes>,
    carried: &Carried,
) -> io::Result<()> {
    carried.add_down(total(&first));
    write_held(tcp, &mut first, &carried.holds_down).await?;
    let mut chunks = Vec::new();
    while gather(recv, &mut chunks, &carried.holds_down).await? {
        carried.add_down(total(&chunks));
        write_held(tcp, &mut chunks, &carried.holds_down).await?;
    }
    carried.holds_down.store(true, Ordering::Relaxed);
    tcp.finish();
    Ok(())
}

/// Reads available data of a stream into `chunks`, replacing their content and waiting if there is
/// none; false at the end.
///
/// While other streams are busy, data arrives one datagram at a time, and writing each separately
/// would cost more than everything else. So other tasks, including the receiver, run first as long
/// as each round brings more data. Sets `holds` on the first data.
async fn gather(
    recv: &mut RecvHalf,
    chunks: &mut Vec<Bytes>,
    holds: &AtomicBool,
) -> io::Result<bool> {
    if !next(recv, chunks).await? {
        return Ok(false);
    }
    holds.store(true, Ordering::Relaxed);
    while chunks.len() < READ_CHUNKS && total(chunks) < READ_BYTES as u64 {
        after_others().await;
        if !more(recv, chunks).await? {
            break;
        }
    }
    Ok(true)
}

/// Like [`gather`], but takes available data first, and holds no memory for chunks while it waits.
async fn next(recv: &mut RecvHalf, chunks: &mut Vec<Bytes>) -> io::Result<bool> {
    chunks.clear();
    if more(recv, chunks).await? {
        return Ok(true);
    }
    *chunks = Vec::new();
    let mut first = [Bytes::new()];
    let filled = recv.read_chunks(&mut first).await.map_err(io::Error::other)?;
    chunks.extend(first);
    Ok(filled.is_some())
}

/// Adds the data available now; false if there is none or at the end, which the next call reports
/// again.
async fn more(recv: &mut RecvHalf, chunks: &mut Vec<Bytes>) -> io::Result<bool> {
    let filled = chunks.len();
    chunks.resize(READ_CHUNKS, Bytes::new());
    let read = at_once(recv.read_chunks(&mut chunks[filled..])).await;
    // A reset is reported only once; the next call would see a normal end.
    let read = read.transpose().map_err(io::Error::other)?.flatten();
    chunks.truncate(filled + read.unwrap_or(0));
    Ok(read.is_some())
}

/// Lets every ready task run once.
async fn after_others() {
    let mut is_their_turn = true;
    poll_fn(|cx| match std::mem::take(&mut is_their_turn) {
        true => {
            cx.waker().wake_by_ref();
            Poll::Pending
        }
        false => Poll::Ready(()),
    })
    .await;
}

/// The value of a future if it is ready.
pub(crate) async fn at_once<F: Future>(future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

async fn pass(recv: &mut RecvHalf, send: &mut SendHalf, rest: Bytes) -> io::Result<()> {
    if !rest.is_empty() {
        send.write_chunk(rest).await.map_err(io::Error::other)?;
    }
    let mut chunks = Vec::new();
    while next(recv, &mut chunks).await? {
        for chunk in &mut chunks {
            send.write_chunk(std::mem::take(chunk)).await.map_err(io::Error::other)?;
        }
    }
    send.finish().map_err(io::Error::other)
}

async fn between(
    from: &Tcp,
    to: &Tcp,
    mut first: Vec<Bytes>,
    holds: &AtomicBool,
    count: impl Fn(u64),
) -> io::Result<()> {
    count(total(&first));
    write_held(to, &mut first, holds).await?;
    while let Some(bytes) = read(from).await? {
        count(bytes.len() as u64);
        write_held(to, &mut [bytes], holds).await?;
    }
    holds.store(true, Ordering::Relaxed);
    to.finish();
    Ok(())
}

/// How a session ended.
enum Over {
    /// Both directions have ended normally.
    Done,
    /// One of them failed.
    Broken(io::Error),
    /// It was ended early.
    Ended(Ending),
}

impl Over {
    fn into_result(self) -> io::Result<()> {
        match self {
            Self::Done => Ok(()),
            Self::Broken(error) => Err(error),
            Self::Ended(_) => Err(io::Error::other("ended so that the client reconnects")),
        }
    }
}

/// Both are borrowed: a future that owns futures reserves space for each of them twice.
async fn unless(
    end: Pin<&mut impl Future<Output = Ending>>,
    carry: Pin<&mut impl Future<Output = io::Result<()>>>,
) -> Over {
    tokio::select! {
        result = carry => result.map_or_else(Over::Broken, |()| Over::Done),
        ending = end => Over::Ended(ending),
    }
}

fn total(chunks: &[Bytes]) -> u64 {
    chunks.iter().map(|chunk| chunk.len() as u64).sum()
}

#[cfg(test)]
mod tests;
