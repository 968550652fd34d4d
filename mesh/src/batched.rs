//! Batches of a UDP socket, with a second chance for segmentation.
//!
//! The kernel answers `EINVAL` or `EIO` to a batch that it cannot segment: always, on a device
//! without segmentation, or for a while, when a link's MTU has shrunk below the discovered one.
//! quinn-udp sends one by one from then on. Here segmentation is tried again every [`RETRY`].

use std::io;
use std::net::UdpSocket;
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use quinn_udp::{UdpSockRef, UdpSocketState};
use tokio::time::Instant;

use super::lock;

/// Interval between trials of segmentation. A failed trial costs one call of the socket.
const RETRY: Duration = Duration::from_secs(10);

/// See the module's description.
#[derive(Debug)]
pub(super) struct Batched {
    state: RwLock<UdpSocketState>,
    /// Segments per call at the start.
    most: usize,
    /// Since when segmentation has been failing, if it is.
    lost: Mutex<Option<Instant>>,
}

impl Batched {
    pub(super) fn new(socket: &UdpSocket) -> io::Result<Self> {
        let state = UdpSocketState::new(UdpSockRef::from(socket))?;
        let most = state.max_gso_segments();
        Ok(Self { state: RwLock::new(state), most, lost: Mutex::new(None) })
    }

    /// The state for sending and receiving.
    pub(super) fn state(&self) -> RwLockReadGuard<'_, UdpSocketState> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The current number of segments per call.
    pub(super) fn segments(&self, socket: &UdpSocket) -> usize {
        let now = self.state().max_gso_segments();
        if now >= self.most { now } else { self.recover(socket).unwrap_or(now) }
    }

    /// Tries segmentation again once [`RETRY`] has passed.
    fn recover(&self, socket: &UdpSocket) -> Option<usize> {
        #[expect(clippy::disallowed_methods, reason = "an edge: the socket has a clock of its own")]
        let now = Instant::now();
        let mut lost = lock(&self.lost);
        if now.saturating_duration_since(*lost.get_or_insert(now)) < RETRY {
            return None;
        }
        let fresh = UdpSocketState::new(UdpSockRef::from(socket)).ok()?;
        *lost = None;
        tracing::debug!("trying segmentation again");
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = fresh;
        Some(self.state().max_gso_segments())
    }
}
