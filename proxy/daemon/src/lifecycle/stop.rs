//! The signals that stop a daemon.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;

use super::DRAIN_TIME;

/// Handlers for SIGTERM and SIGINT, installed until dropped.
#[derive(Debug)]
pub(super) struct Stop([Option<Signal>; 2]);

impl Stop {
    pub(super) fn listen() -> Self {
        Self([SignalKind::terminate(), SignalKind::interrupt()].map(|kind| signal(kind).ok()))
    }

    /// Resolves at the first signal.
    pub(super) async fn told(&mut self) {
        let [terminate, interrupt] = &mut self.0;
        tokio::select! {
            Some(Some(())) = async { Some(terminate.as_mut()?.recv().await) } => {}
            Some(Some(())) = async { Some(interrupt.as_mut()?.recv().await) } => {}
            else => std::future::pending().await,
        }
    }
}

/// Resolves after the drain time, or at another signal.
pub(super) async fn drain_time() {
    let again = async {
        let Ok(mut terminate) = signal(SignalKind::terminate()) else { return };
        let Ok(mut interrupt) = signal(SignalKind::interrupt()) else { return };
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    };
    // Timeout and signal have the same effect.
    let _ = timeout(DRAIN_TIME, again).await;
}
