//! The open sessions of a process that was succeeded (see [`crate::succession`]).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::Duration;

use meshport_core::ledger::{Entry, SessionId};
use meshport_mesh::ProcessTag;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tracing::{info, warn};

use crate::node::{Node, Remains};
use crate::succession::{Channel, Earlier, MAX_DRAINING, MAX_LISTED, Order, Report, Sockets};

/// Interval at which ended sessions are reported.
const LOOK: Duration = Duration::from_millis(500);
/// How long to accept streams of peers that do not know the successor yet.
const GRACE: Duration = Duration::from_secs(5);

/// A draining process: a task that ends with the last session.
#[derive(Debug)]
pub(super) struct Draining {
    task: JoinHandle<()>,
    stop: oneshot::Sender<()>,
}

impl Draining {
    /// Starts draining a node. Adds the sockets for its successor to `earlier`.
    ///
    /// # Errors
    /// No descriptors are left. The sessions have ended then.
    pub(super) async fn begin(node: Node, earlier: &mut Earlier) -> io::Result<Self> {
        let (channel, messages) = Channel::pair()?;
        let tag = earlier.own;
        let (remains, packets) = node.detach().await?;
        earlier.push(Sockets { messages, packets });
        let keeper = Keeper { remains, channel, tag, reported: None };
        let (stop, stopped) = oneshot::channel();
        Ok(Self { task: tokio::spawn(keeper.run(stopped)), stop })
    }

    /// Resolves when no session is open.
    pub(super) async fn ended(&mut self) {
        if let Err(error) = (&mut self.task).await {
            warn!(%error, "this process's sessions ended with an error");
        }
    }

    /// Resets open sessions and tells the peers.
    pub(super) async fn stop(mut self) {
        if !self.task.is_finished() {
            drop(self.stop);
            let _ = (&mut self.task).await;
        }
    }
}

struct Keeper {
    remains: Remains,
    channel: Channel,
    tag: ProcessTag,
    /// The sessions that the successor knows; `None` until it has asked.
    reported: Option<BTreeSet<SessionId>>,
}

impl Keeper {
    async fn run(mut self, stopped: oneshot::Receiver<()>) {
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut over = std::pin::pin!(sleep(MAX_DRAINING));
        let mut grace = Some(Box::pin(sleep(GRACE)));
        let mut stopped = std::pin::pin!(stopped);
        loop {
            tokio::select! {
                order = self.channel.receive() => match order {
                    Some(Order::Attach) => {
                        // If the successor has ended, the next message shows it.
                        let _ = self.answer().await;
                    }
                    Some(Order::End(ids)) => {
                        ids.into_iter().for_each(|id| self.remains.sessions.end_one(id));
                    }
                    None => {
                        info!("successor exited; closing this process's sessions");
                        break;
                    }
                },
                _ = look.tick() => {
                    if self.report().await.is_ok_and(|open| open == 0) && grace.is_none() {
                        break;
                    }
                }
                () = async { grace.as_mut().expect("checked").await }, if grace.is_some() => {
                    grace = None;
                    self.remains.leaving.send_replace(true);
                }
                // Resolves when `Draining::stop` drops the sender, which a failed upgrade keeps.
                _ = &mut stopped => break,
                () = &mut over => {
                    let open = self.remains.sessions.count();
                    info!(open, "drain timeout reached; resetting remaining sessions");
                    break;
                }
            }
        }
        self.remains.close().await;
    }

    /// Reports all sessions to a successor.
    async fn answer(&mut self) -> io::Result<()> {
        let begin = Report::Begin { process: std::process::id(), tag: self.tag };
        self.channel.send(&begin).await?;
        let entries = self.remains.sessions.entries();
        for peers in self.remains.peers_of(&entries).chunks(MAX_LISTED) {
            self.channel.send(&Report::Peers(peers.to_vec())).await?;
        }
        self.reported = Some(entries.iter().map(|entry| entry.id).collect());
        for opened in entries.chunks(MAX_LISTED) {
            self.channel.send(&Report::Opened(opened.to_vec())).await?;
        }
        self.channel.send(&Report::Whole).await
    }

    /// Reports changes to the successor; returns the number of open sessions.
    async fn report(&mut self) -> io::Result<usize> {
        let entries = self.remains.sessions.entries();
        let open = entries.len();
        let Some(reported) = &mut self.reported else { return Ok(open) };
        let mut now: BTreeMap<SessionId, Entry> =
            entries.into_iter().map(|entry| (entry.id, entry)).collect();
        let closed: Vec<SessionId> =
            reported.iter().filter(|id| !now.contains_key(id)).copied().collect();
        reported.retain(|id| now.remove(id).is_some());
        let opened: Vec<Entry> = now.into_values().collect();
        reported.extend(opened.iter().map(|entry| entry.id));
        for closed in closed.chunks(MAX_LISTED) {
            self.channel.send(&Report::Closed(closed.to_vec())).await?;
        }
        for opened in opened.chunks(MAX_LISTED) {
            self.channel.send(&Report::Opened(opened.to_vec())).await?;
        }
        Ok(open)
    }
}
