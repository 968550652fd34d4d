//! Round trips through the tunnel, for `meshport ping`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use meshport_mesh::Mesh;
use tokio::sync::oneshot;

use crate::Error;
use crate::admin::api::{MAX_PING_COUNT, NodeRef, PingReport};

/// Concurrent pings; only people start them.
const MAX_PINGS: usize = 8;
/// Interval between probes.
const INTERVAL: Duration = Duration::from_millis(200);
/// Timeout of an answer: any round trip on Earth plus a retried handshake.
const PATIENCE: Duration = Duration::from_secs(3);

static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);

/// Counts a running ping; released on drop.
struct Permit;

impl Drop for Permit {
    fn drop(&mut self) {
        UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Sends `count` probes to a node one after another, then answers. `lacks` explains a missing path
/// to it.
pub(crate) fn start(
    mesh: Mesh,
    who: NodeRef,
    lacks: Option<String>,
    count: u32,
    answer: oneshot::Sender<Result<PingReport, Error>>,
) {
    let under_way = UNDER_WAY.fetch_add(1, Ordering::Relaxed);
    let permit = Permit;
    if under_way >= MAX_PINGS {
        let _ =
            answer.send(Err(Error::Usage("too many concurrent pings; wait for one to end".into())));
        return;
    }
    tokio::spawn(async move {
        let _permit = permit;
        let sent = count.clamp(1, MAX_PING_COUNT);
        let mut rtt_ms = Vec::new();
        for _ in 0..sent {
            let rtt = mesh.ping(who.node, PATIENCE).await.ok();
            rtt_ms.push(rtt.map(|rtt| rtt.as_secs_f64() * 1e3));
            if answer.is_closed() {
                return;
            }
            tokio::time::sleep(INTERVAL).await;
        }
        let _ = answer.send(Ok(PingReport { who, sent, rtt_ms, lacks }));
    });
}
