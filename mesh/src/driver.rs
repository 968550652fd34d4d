//! The driver task: timers, notices, a full socket or a full event queue. An idle mesh sleeps here.

use std::future::{Future, pending};
use std::sync::Arc;
use std::time::Instant;

use tokio::time::MissedTickBehavior;

use super::link::Link;
use super::streams::{Streams, UNUSED};
use meshport_proto::core::{Core, Notice};

/// Runs until the link is closed.
pub(super) async fn drive(link: Arc<Link>, streams: Arc<Streams>) {
    let mut unused = tokio::time::interval(UNUSED);
    // After a long sleep, nothing could have been used in the missed intervals.
    unused.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !link.is_closed() {
        while let Some(notice) = link.poll_notice() {
            match notice {
                Notice::Ready => link.ready.notify_waiters(),
                Notice::Cut(node, reason) => streams.cut(&node, reason),
                Notice::Succeeded(node) => streams.retire(&node),
                Notice::Renamed(former, node) => streams.rename(&former, node),
                Notice::Pong(node, token) => streams.pong(&node, token),
            }
        }
        let plan = link.plan();
        tokio::select! {
            () = link.wake.notified() => {}
            _ = unused.tick() => streams.close_unused(),
            () = until(plan.timer) => link.turn(Core::handle_timeout),
            () = when(plan.events_wait, link.room_for_events()) => {}
            () = when(plan.blocked, async { drop(link.socket.clone().writable().await) }) => {}
        }
    }
}

async fn until(timer: Option<Instant>) {
    match timer {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => pending().await,
    }
}

async fn when(wanted: bool, future: impl Future<Output = ()>) {
    if wanted {
        future.await;
    } else {
        pending::<()>().await;
    }
}
