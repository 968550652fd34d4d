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

/// Takes over the mesh's sockets or binds new ones. Retries for [`RELEASE_TIME`] while the address
/// is in use: a process that exits may release the lock of the state folder before its sockets, and
/// a daemon of the previous release does not pass its sockets on.
pub(super) async fn bind_mesh(settings: &Settings, shards: usize) -> Result<Shards, Error> {
    let (begun, mut told) = (clock::now(), false);
    loop {
        match assemble::bind_mesh(settings, shards) {
            Err(Error::Io { source, .. })
                if source.kind() == io::ErrorKind::AddrInUse
                    && clock::now().duration_since(begun) < RELEASE_TIME =>
            {
                if !std::mem::replace(&mut told, true) {
                    info!(address = %settings.mesh.listen, "waiting for the mesh's UDP address");
                }
                sleep(RETRY_INTERVAL).await;
            }
            bound => return bound,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_mesh_waits_for_an_address_that_a_process_is_about_to_release() {
        let held = UdpSocket::bind("127.0.0.1:0").expect("loopback");
        let mut settings = meshport_config::parse("site = \"fra\"\n").expect("it is good");
        settings.mesh.listen = held.local_addr().expect("bound");
        {
            let bound = bind_mesh(&settings, 1);
            tokio::pin!(bound);
            assert!(timeout(RELEASE_TIME / 2, &mut bound).await.is_err(), "it is in use");
            drop(held);
            bound.await.expect("it is free");
        }
        let held = UdpSocket::bind(settings.mesh.listen).expect("loopback");
        let error = bind_mesh(&settings, 1).await.expect_err("it stays in use");
        assert!(error.to_string().contains("another process"), "{error}");
        drop(held);
    }
}
