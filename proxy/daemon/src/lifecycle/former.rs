//! Waits for what the daemon before this one still holds: the lock of the state folder, and the
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
use crate::state::{StateDir, StateLock};

/// How long the next daemon waits for one that stops: until its sessions have ended, and a little
/// more.
const SUCCESSION: Duration = super::DRAIN_TIME.saturating_add(Duration::from_secs(10));
/// How long a folder may be locked while nobody answers: the beginning and the end of a daemon.
const MAX_SILENCE: Duration = Duration::from_secs(2);
/// How long the sockets of a mesh that has ended may stay open: its tasks end a moment after it.
const RELEASE_TIME: Duration = Duration::from_secs(5);
/// From one attempt to lock the state folder, or to bind the mesh, to the next.
const LOCK_INTERVAL: Duration = Duration::from_millis(20);

/// The lock of the state folder. A daemon that is stopping gives it up when its sessions have
/// ended, so it is waited for; any other is not.
pub(super) async fn lock(state: &StateDir, socket: &Path) -> Result<StateLock, Error> {
    let client = AdminClient::new(socket);
    let begun = clock::now();
    let (mut heard, mut is_leaving) = (begun, false);
    loop {
        let error = match state.lock() {
            Ok(lock) => return Ok(lock),
            Err(error) => error,
        };
        match client.ask(&StatusRequest).await {
            Ok(status) if status.process.is_leaving => {
                heard = clock::now();
                if !std::mem::replace(&mut is_leaving, true) {
                    info!("another daemon of this state folder is stopping: waiting for it to end");
                }
            }
            Ok(_) => return Err(error),
            Err(_silent) => {}
        }
        let now = clock::now();
        if now.duration_since(heard) > MAX_SILENCE || now.duration_since(begun) > SUCCESSION {
            return Err(error);
        }
        sleep(LOCK_INTERVAL).await;
    }
}

/// Takes over the mesh's sockets, or binds new ones. With `may_wait` again and again for
/// [`RELEASE_TIME`], while a mesh that has ended still has them: that of a former daemon of the
/// release before, which passes none on.
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
                sleep(LOCK_INTERVAL).await;
            }
            bound => return bound,
        }
    }
}
