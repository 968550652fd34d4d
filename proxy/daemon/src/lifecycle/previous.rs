//! Waits for resources that the previous daemon still holds: the lock on the state folder and the
//! mesh's sockets.

use std::io;
use std::path::Path;
use std::time::Duration;

use meshport_config::Settings;
use meshport_mesh::Shards;
use tokio::time::sleep;
use tracing::info;

use crate::Error;
use crate::admin::AdminClient;
use crate::admin::queries::StatusRequest;
use crate::clock;
use crate::node::assemble;
use meshport_state::{StateDir, StateLock};

/// How long to wait for a stopping daemon: its drain time and a margin.
const MAX_WAIT: Duration = super::DRAIN_TIME.saturating_add(Duration::from_secs(10));
/// How long the folder may be locked while no daemon answers, as when one starts or stops.
const MAX_SILENCE: Duration = Duration::from_secs(2);
/// How long the sockets of a closed mesh may stay open: its tasks end shortly after.
const RELEASE_TIME: Duration = Duration::from_secs(5);
/// Interval between attempts to lock the state folder or to bind the mesh.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Locks the state folder. Waits for a stopping daemon, which releases the lock once its sessions
/// have ended. Fails at once if the holder is a daemon that keeps running.
pub(super) async fn lock(state: &StateDir, socket: &Path) -> Result<StateLock, Error> {
    let client = AdminClient::new(socket);
    let begun = clock::now();
    let (mut heard, mut is_leaving) = (begun, false);
    loop {
        let error = match state.lock() {
            Ok(lock) => return Ok(lock),
            Err(error) => Error::from(error),
        };
        match client.ask(&StatusRequest).await {
            Ok(status) if status.process.is_leaving => {
                heard = clock::now();
                if !std::mem::replace(&mut is_leaving, true) {
                    info!(
                        "another daemon of this state folder is stopping: waiting for it to exit"
                    );
                }
            }
            Ok(_) => return Err(error),
            Err(_silent) => {}
        }
        let now = clock::now();
        if now.duration_since(heard) > MAX_SILENCE || now.duration_since(begun) > MAX_WAIT {
            return Err(error);
        }
        sleep(RETRY_INTERVAL).await;
    }
}

/// Takes over the mesh's sockets or binds new ones. With `may_wait`, retries for [`RELEASE_TIME`]
/// while a closed mesh holds the address: a daemon of the previous release does not pass its
/// sockets on.
pub(super) async fn bind_mesh(
    settings: &Settings,
    shards: usize,
    may_wait: bool,
) -> Result<Shards, Error> {
    let begun = clock::now();
    loop {
        match assemble::bind_mesh(settings, shards) {
            Err(Error::Io { source, .. })
                if may_wait
                    && source.kind() == io::ErrorKind::AddrInUse
                    && clock::now().duration_since(begun) < RELEASE_TIME =>
            {
                sleep(RETRY_INTERVAL).await;
            }
            bound => return bound,
        }
    }
}
