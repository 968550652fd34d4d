//! Sends the packets of earlier processes, which arrive over their bridges, through the link of
//! this one.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, ready};

use super::bridge::{Bridge, Predecessor};
use super::link::Link;

/// Sends the packets of each predecessor of `link` until it has ended. Called on the shard's
/// runtime.
pub(super) fn carry_all(link: &Arc<Link>) {
    for predecessor in link.predecessors.iter() {
        tokio::spawn(carry(predecessor.clone(), link.clone()));
    }
}

/// Sends a predecessor's packets until one of the two ends.
async fn carry(predecessor: Arc<Predecessor>, link: Arc<Link>) {
    let (bridge, mut space) = (predecessor.bridge(), Bridge::space());
    let carried = async {
        loop {
            let frame = poll_fn(|cx| {
                let frame = ready!(bridge.poll_recv(cx, &mut space));
                let frame = frame.map(|it| link.send_streams(&it.peer, it.contents, it.segment));
                Poll::Ready(frame)
            });
            if frame.await.is_none() {
                return;
            }
            while !link.flush_backlog() {
                // An error shows at the next attempt to send.
                let _ = link.socket.clone().writable().await;
            }
        }
    };
    tokio::select! {
        biased;
        // The next successor reads from the same socket.
        () = link.closed() => {}
        () = carried => {}
    }
    predecessor.note_end();
    if !link.predecessors.are_running() {
        link.turn(|core, _| core.set_continues(false));
    }
}
