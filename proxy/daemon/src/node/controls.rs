//! The channels into a running node.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use meshport_config::{Endpoint, ServiceName};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::driver::commands::Command;
use crate::expose::ExposeOwner;
use crate::node::fallback::Fallbacks;
use crate::sessions::ingress::{Context, SessionLimits};
use crate::wayback::WayBack;
use meshport_core::egress::Offers;

/// The limits of each service's sessions.
pub(crate) type Limits = Mutex<BTreeMap<ServiceName, watch::Sender<Arc<SessionLimits>>>>;
/// The tasks that accept clients; their sessions end with them.
pub(crate) type Listeners = Mutex<JoinSet<()>>;

/// The channels into the running parts.
#[derive(Debug)]
pub(crate) struct Controls {
    pub(crate) commands: mpsc::Sender<Command>,
    pub(crate) context: Context,
    pub(crate) limits: Limits,
    pub(crate) listeners: Listeners,
    pub(crate) exposed: ExposeOwner,
    pub(crate) offers: watch::Sender<Arc<Offers>>,
    pub(crate) back: WayBack,
    pub(crate) names: Names,
}

/// The names that are looked up periodically.
#[derive(Debug)]
pub(crate) struct Names {
    pub(crate) advertise: watch::Sender<Vec<Endpoint>>,
    pub(crate) fallbacks: watch::Sender<Fallbacks>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no holder of this lock can panic")
}
