//! An earlier process with open sessions, as its successor sees it.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use meshport_config::NodeId;
use meshport_core::ledger::{Entry, SessionId};
use meshport_mesh::{Mesh, ProcessTag};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tracing::{info, warn};

use super::{Channel, MAX_LISTED, Order, Report, Sockets};
use crate::egress::Egress;
use crate::sessions::splice::Carried;

/// Limit for an earlier process to report its sessions.
const ANSWER_TIME: Duration = Duration::from_secs(5);

/// See the module's description.
#[derive(Debug)]
pub(crate) struct Predecessor {
    channel: Channel,
    process: u32,
    tag: ProcessTag,
    peers: Vec<(NodeId, SocketAddr)>,
    open: Vec<Entry>,
}

impl Predecessor {
    /// Asks a process for its sessions; `None` if it has ended.
    pub(super) async fn greet(sockets: &Sockets) -> io::Result<Option<Self>> {
        let channel = Channel::new(sockets.messages.try_clone()?)?;
        let answer = timeout(ANSWER_TIME, Self::ask(channel)).await;
        Ok(answer.unwrap_or_else(|_elapsed| {
            warn!("a previous process did not report its sessions; closing them");
            None
        }))
    }

    async fn ask(channel: Channel) -> Option<Self> {
        channel.send(&Order::Attach).await.ok()?;
        let mut told = None;
        loop {
            match (channel.receive().await?, &mut told) {
                (Report::Begin { process, tag }, _) => {
                    told = Some((process, tag, Vec::new(), Vec::new()));
                }
                (Report::Peers(some), Some((_, _, peers, _))) => peers.extend(some),
                (Report::Opened(some), Some((_, _, _, open))) => open.extend(some),
                (Report::Whole, Some(_)) => break,
                // Left over from an earlier conversation.
                _ => {}
            }
        }
        let (process, tag, peers, open) = told?;
        Some(Self { channel, process, tag, peers, open })
    }

    /// Its tag in connection ids.
    pub(super) fn tag(&self) -> ProcessTag {
        self.tag
    }

    /// The number of its open sessions.
    pub(super) fn open(&self) -> usize {
        self.open.len()
    }

    /// Opens tunnels with its peers, which still use those of the earlier process.
    pub(crate) fn connect(&self, mesh: &Mesh) {
        for (node, address) in &self.peers {
            mesh.set_peer(*node, &[*address], None);
            mesh.connect(node);
        }
    }

    /// Counts its sessions as this process's, and ends them when they must end here. Resolves when
    /// that process has ended.
    pub(crate) async fn follow(mut self, egress: Egress) {
        let (open, process) = (self.open.len(), self.process);
        info!(process, open, "sessions continue in the previous process");
        let mut sessions = Followed { egress, open: BTreeMap::new(), tasks: JoinSet::new() };
        let (over, mut ended) = mpsc::channel(MAX_LISTED);
        for entry in std::mem::take(&mut self.open) {
            sessions.open(entry, &over);
        }
        let channel = &self.channel;
        // Separate from the reports: if both sides waited to send, neither would read.
        let orders = async {
            let mut ids = Vec::new();
            while ended.recv_many(&mut ids, MAX_LISTED).await > 0 {
                // Fails only if the process has ended.
                let _ = channel.send(&Order::End(std::mem::take(&mut ids))).await;
            }
        };
        let reports = async {
            while let Some(report) = channel.receive().await {
                match report {
                    Report::Opened(entries) => {
                        entries.into_iter().for_each(|entry| sessions.open(entry, &over));
                    }
                    Report::Closed(ids) => ids.iter().for_each(|id| sessions.close(id)),
                    Report::Begin { .. } | Report::Peers(_) | Report::Whole => {}
                }
            }
        };
        tokio::select! {
            () = orders => {}
            () = reports => {}
        }
        info!(process, "previous process exited");
    }
}

/// The sessions of an earlier process, each a task that waits for a reason to end it.
struct Followed {
    egress: Egress,
    open: BTreeMap<SessionId, AbortHandle>,
    tasks: JoinSet<()>,
}

impl Followed {
    fn open(&mut self, entry: Entry, over: &mpsc::Sender<SessionId>) {
        let (egress, over, id) = (self.egress.clone(), over.clone(), entry.id);
        // Before the task runs, so that the session counts at once.
        let guard = egress.context.sessions.adopt(&entry);
        let task = self.tasks.spawn(async move {
            let carried = Carried::default();
            tokio::select! {
                _ = guard.relay(&carried) => {}
                () = egress.ends(&entry) => {}
            }
            // Fails only if the process has ended.
            let _ = over.send(entry.id).await;
            // The session counts until it has ended there.
            std::future::pending::<()>().await;
        });
        if let Some(before) = self.open.insert(id, task) {
            before.abort();
        }
    }

    fn close(&mut self, id: &SessionId) {
        if let Some(task) = self.open.remove(id) {
            task.abort();
        }
        while self.tasks.try_join_next().is_some() {}
    }
}
