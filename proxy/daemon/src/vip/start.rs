//! The tasks of all virtual addresses of a node, and their end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use meshport_config::{Credential, ServiceName, Settings};
use meshport_core::route::Route;
use meshport_mesh::Mesh;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::warn;

use super::board::Board;
use super::sockets::VipSockets;
use super::task::{Node, Task};
use crate::clock;
use crate::expose::Exposures;

/// How long a stop waits for the addresses to be taken over: a holder answers for two seconds at
/// most after its release, plus a turn.
const RELEASE_LIMIT: Duration = Duration::from_millis(2_500);

/// Has the tasks release their addresses.
#[derive(Debug)]
pub(crate) struct Release {
    stop: watch::Sender<bool>,
    /// Closed when no task is left.
    running: mpsc::Receiver<()>,
}

impl Release {
    /// Gives all addresses to other nodes of their groups. Resolves when these answer, or after
    /// [`RELEASE_LIMIT`].
    pub(crate) async fn run(&mut self) {
        self.stop.send_replace(true);
        // Either way nothing is left to wait for.
        let _ = timeout(RELEASE_LIMIT, self.running.recv()).await;
    }
}

/// What the tasks need of the node.
#[derive(Debug)]
pub(crate) struct Parts<'a> {
    pub(crate) board: &'a Board,
    pub(crate) mesh: &'a Mesh,
    pub(crate) credential: watch::Receiver<Arc<Credential>>,
    pub(crate) routes: &'a BTreeMap<ServiceName, watch::Receiver<Arc<Route>>>,
    pub(crate) exposures: &'a Exposures,
    /// Which start of the daemon it is.
    pub(crate) generation: u64,
}

/// Starts a task for each virtual address of the settings.
pub(crate) fn start(
    settings: &Settings,
    VipSockets(mut sockets): VipSockets,
    parts: &Parts<'_>,
    tasks: &mut JoinSet<()>,
) -> Release {
    let stop = watch::Sender::new(false);
    let (runs, running) = mpsc::channel(1);
    for (name, it) in &settings.virtual_addresses {
        let (Some(opened), Some(route)) = (sockets.remove(name), parts.routes.get(&it.service))
        else {
            continue;
        };
        let node = Node {
            mesh: parts.mesh.clone(),
            credential: parts.credential.clone(),
            route: route.clone(),
            exposures: parts.exposures.clone(),
            generation: parts.generation,
            stop: stop.subscribe(),
        };
        let side = parts.board.add(name.clone(), it.clone(), clock::now());
        match Task::new(name.clone(), it.clone(), opened, node, side) {
            Ok(task) => {
                let runs = runs.clone();
                tasks.spawn(async move {
                    task.run().await;
                    drop(runs);
                });
            }
            Err(error) => warn!(address = %name, %error, "the virtual address is not served"),
        }
    }
    Release { stop, running }
}
