//! The bodies a stand-in sends: a short text, many zeros, an endless watch.
//!
//! None of them holds more than one chunk: a reader that stops costs no memory here.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tokio::time::{Interval, MissedTickBehavior};

/// A chunk of `/bytes`.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The body of an answer.
pub(super) enum Body {
    /// A short text, sent at once.
    Text(Option<Bytes>),
    /// This many zeros.
    Zeros(u64),
    /// A line of JSON now and at each interval, without end.
    Watch(Watch),
}

/// See [`Body::Watch`].
pub(super) struct Watch {
    origin: String,
    interval: Interval,
    sequence: u64,
}

impl Watch {
    pub(super) fn new(origin: String, every: Duration) -> Self {
        let mut interval = tokio::time::interval(every.max(Duration::from_millis(1)));
        // A reader that stopped gets no burst of old lines when it continues.
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { origin, interval, sequence: 0 }
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

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let data = match self.get_mut() {
            Self::Text(text) => text.take(),
            Self::Zeros(0) => None,
            Self::Zeros(left) => {
                let length = usize::try_from(*left).unwrap_or(usize::MAX).min(ZEROS.len());
                *left -= length as u64;
                Some(Bytes::from_static(&ZEROS[..length]))
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
            Self::Zeros(left) => *left == 0,
            Self::Watch(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Text(text) => SizeHint::with_exact(text.as_ref().map_or(0, Bytes::len) as u64),
            Self::Zeros(left) => SizeHint::with_exact(*left),
            Self::Watch(_) => SizeHint::default(),
        }
    }
}
