//! The signals that stop or restart a daemon.

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;

use tracing::warn;

use super::DRAIN_TIME;
use super::starter::Starter;
use crate::Error;

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

/// The order to leave everything to the process that the service manager starts next: SIGWINCH,
/// which earlier releases ignore.
#[derive(Debug)]
pub(super) struct Restart<'a> {
    signal: Signal,
    pub(super) starter: Option<&'a Starter>,
}

impl<'a> Restart<'a> {
    /// Installs the handler, for the life of the process.
    pub(super) fn listen(starter: Option<&'a Starter>) -> Result<Self, Error> {
        let signal =
            signal(SignalKind::window_change()).map_err(Error::io("listen for signals"))?;
        Ok(Self { signal, starter })
    }

    /// Makes the helper the service's main process, if the unit asks for it. Without that the order
    /// has no effect, since the service manager waits for this process to end.
    pub(super) fn lead(&self) {
        if let Some(starter) = self.starter {
            starter.lead();
        }
    }

    /// Resolves on the order, even one from before this call, or when the main process has ended.
    pub(super) async fn told(&mut self) {
        let Some(starter) = self.starter.filter(|starter| starter.leads()) else {
            return std::future::pending().await;
        };
        tokio::select! {
            _ = self.signal.recv() => {}
            () = starter.lost() => warn!("the service's main process exited: restarting"),
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
