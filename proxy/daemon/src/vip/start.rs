//! Starts and stops the tasks of a node's virtual addresses.

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

/// How long a stop waits for other nodes to take over the addresses: a holder answers for at most
/// two seconds after its release, plus one turn.
const RELEASE_LIMIT: Duration = Duration::from_millis(2_500);

/// Makes the tasks release their addresses.
#[derive(Debug)]
pub(crate) struct Release {
    stop: watch::Sender<bool>,
    /// Closed when all tasks have ended.
    running: mpsc::Receiver<()>,
}

impl Release {
    /// Hands all addresses over to other nodes of their groups. Resolves when those nodes answer,
    /// or after [`RELEASE_LIMIT`].
    pub(crate) async fn run(&mut self) {
        self.stop.send_replace(true);
        // After a timeout there is nothing left to do either.
        let _ = timeout(RELEASE_LIMIT, self.running.recv()).await;
    }
}

/// The parts of the node that the tasks need.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    pub(crate) board: &'a Board,
    pub(crate) mesh: &'a Mesh,
    pub(crate) credential: watch::Receiver<Arc<Credential>>,
    pub(crate) routes: &'a BTreeMap<ServiceName, watch::Receiver<Arc<Route>>>,
    pub(crate) exposures: &'a Exposures,
    /// The daemon's generation.
    pub(crate) generation: u64,
}

/// Starts a task for each virtual address in the settings.
pub(crate) fn start(
    settings: &Settings,
    VipSockets(mut sockets): VipSockets,
    context: &Context<'_>,
    tasks: &mut JoinSet<()>,
) -> Release {
    let stop = watch::Sender::new(false);
    let (runs, running) = mpsc::channel(1);
    for (name, it) in &settings.virtual_addresses {
        let (Some(opened), Some(route)) = (sockets.remove(name), context.routes.get(&it.service))
        else {
            continue;
        };
        let side = context.board.add(name.clone(), it.clone(), clock::now());
        let opened = match opened {
            Ok(opened) => opened,
            Err(obstacle) => {
                warn!(%name, %obstacle, "this node cannot hold the virtual address");
                side.state.send_modify(|state| state.obstacle = Some(obstacle));
                continue;
            }
        };
        let node = Node {
            mesh: context.mesh.clone(),
            credential: context.credential.clone(),
            route: route.clone(),
            exposures: context.exposures.clone(),
            generation: context.generation,
            stop: stop.subscribe(),
        };
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
