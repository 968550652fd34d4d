//! The bodies a stand-in sends: a short text, a long deterministic one, an endless watch.
//!
//! None of them holds more than one chunk: a reader that stops costs no memory here.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use sha2::{Digest, Sha256};
use tokio::time::{Interval, MissedTickBehavior};

/// The length of the pattern that `/bytes` repeats: a prime, so that no power-of-two buffer
/// size can hide a lost, doubled or exchanged piece.
const PATTERN_BYTES: usize = 65_521;

/// The body of an answer.
#[derive(Debug)]
pub enum Body {
    /// A short text, sent at once.
    Text(Option<Bytes>),
    /// The first bytes of the endless pattern.
    Pattern(Pattern),
    /// A line of JSON now and at each interval, without end.
    Watch(Watch),
}

/// See [`Body::Pattern`].
#[derive(Debug)]
pub struct Pattern {
    left: u64,
    served: Arc<AtomicU64>,
}

/// See [`Body::Watch`].
#[derive(Debug)]
pub struct Watch {
    origin: String,
    interval: Interval,
    sequence: u64,
    open: Arc<AtomicU64>,
}

impl Watch {
    pub(super) fn new(origin: String, every: Duration, open: Arc<AtomicU64>) -> Self {
        let mut interval = tokio::time::interval(every.max(Duration::from_millis(1)));
        // A reader that stopped gets no burst of old lines when it continues.
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        open.fetch_add(1, Ordering::Relaxed);
        Self { origin, interval, sequence: 0, open }
    }

    fn line(&mut self) -> Bytes {
        let line = serde_json::json!({
            "type": "BOOKMARK",
            "origin": self.origin,
            "sequence": self.sequence,
        });
        self.sequence += 1;
        Bytes::from(format!("{line}\n"))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Body {
    pub(super) fn text(text: impl Into<Bytes>) -> Self {
        Self::Text(Some(text.into()))
    }

    pub(crate) fn pattern(length: u64, served: Arc<AtomicU64>) -> Self {
        Self::Pattern(Pattern { left: length, served })
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let data = match self.get_mut() {
            Self::Text(text) => text.take(),
            Self::Pattern(pattern) => {
                let chunk = pattern_chunk(pattern.left);
                pattern.left -= chunk.len() as u64;
                pattern.served.fetch_add(chunk.len() as u64, Ordering::Relaxed);
                Some(chunk).filter(|chunk| !chunk.is_empty())
            }
            Self::Watch(watch) => match watch.interval.poll_tick(context) {
                Poll::Ready(_) => Some(watch.line()),
                Poll::Pending => return Poll::Pending,
            },
        };
        Poll::Ready(data.map(|data| Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Text(text) => text.is_none(),
            Self::Pattern(pattern) => pattern.left == 0,
            Self::Watch(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Text(text) => SizeHint::with_exact(text.as_ref().map_or(0, Bytes::len) as u64),
            Self::Pattern(pattern) => SizeHint::with_exact(pattern.left),
            Self::Watch(_) => SizeHint::default(),
        }
    }
}

/// The next piece if `left` bytes are still missing: whole patterns, then a part of one.
pub(crate) fn pattern_chunk(left: u64) -> Bytes {
    static PATTERN: OnceLock<Bytes> = OnceLock::new();
    let pattern = PATTERN.get_or_init(|| {
        // SplitMix64 (Steele, Lea, Flood, 2014): any fixed stream without short repeats will do.
        let mut state = 0u64;
        let bytes = std::iter::repeat_with(|| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = state;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (mixed ^ (mixed >> 31)).to_le_bytes()
        });
        bytes.flatten().take(PATTERN_BYTES).collect::<Vec<u8>>().into()
    });
    let length = usize::try_from(left).unwrap_or(usize::MAX).min(PATTERN_BYTES);
    pattern.slice(..length)
}

/// The SHA-256, in hexadecimal, of what `/bytes/{length}` sends.
pub fn pattern_sha256(length: u64) -> String {
    let mut hash = Sha256::new();
    let mut left = length;
    while left > 0 {
        let chunk = pattern_chunk(left);
        hash.update(&chunk);
        left -= chunk.len() as u64;
    }
    hex(&hash.finalize())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
