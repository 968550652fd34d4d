//! Sessions that outlive an upgrade or a restart.
//!
//! The old process *drains*: it hands everything to its successor except its open sessions, which
//! it keeps until they have ended or [`MAX_DRAINING`] is over. Its packets go through the
//! successor's mesh ([`Mesh::detach`](meshport_mesh::Mesh::detach)). The successor counts these
//! sessions as its own and ends them for the same reasons as its own.
//!
//! The two talk over a separate pair of sockets, next to those that carry packets. The draining
//! process knows only the sockets, not its successor: a later successor inherits them, asks again,
//! and continues where the previous one stopped. When no process has their other end any more, the
//! draining process ends.

mod drains;
mod predecessor;

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use meshport_config::NodeId;
use meshport_core::ledger::{Entry, SessionId};
use meshport_mesh::{ProcessTag, Shards};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use socket2::{Domain, Socket, Type};
use tokio::net::UnixDatagram;
use tracing::warn;

use crate::clock;
use crate::driver::commands::Drained;

pub(crate) use predecessor::Predecessor;

/// How long sessions may continue after an upgrade. client-go restarts each watch after 5 to 10
/// minutes, so most sessions end by themselves, and a draining process costs memory.
pub(crate) const MAX_DRAINING: Duration = Duration::from_secs(600);
/// Maximum earlier processes whose sessions continue. Beyond that, those with the fewest end.
const MAX_EARLIER: usize = 8;
/// Maximum elements of a list in one message; the longest takes some 500 bytes.
pub(crate) const MAX_LISTED: usize = 100;
/// The longest message in bytes.
const MAX_MESSAGE: usize = 1 << 16;

/// From the draining process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Report {
    /// The answer to [`Order::Attach`] begins. Discard everything sent before it.
    Begin { process: u32, tag: ProcessTag },
    /// Peers of its sessions, with the addresses of their packets.
    Peers(Vec<(NodeId, SocketAddr)>),
    /// Sessions that are open.
    Opened(Vec<Entry>),
    /// The answer ends.
    Whole,
    /// Sessions that have ended.
    Closed(Vec<SessionId>),
}

/// To the draining process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// A successor asks for all sessions, and for every change from now on.
    Attach,
    /// Reset these sessions.
    End(Vec<SessionId>),
}

/// One end of the conversation: a socket that keeps message boundaries and reports when the peer is
/// gone.
#[derive(Debug)]
pub(crate) struct Channel(UnixDatagram);

impl Channel {
    pub(crate) fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None)?;
        Ok((Self::new(ours.into())?, theirs.into()))
    }

    fn new(socket: OwnedFd) -> io::Result<Self> {
        let socket = Socket::from(socket);
        socket.set_nonblocking(true)?;
        UnixDatagram::from_std(OwnedFd::from(socket).into()).map(Self)
    }

    pub(crate) async fn send(&self, message: &impl Serialize) -> io::Result<()> {
        self.0.send(&serde_json::to_vec(message)?).await.map(drop)
    }

    /// `None` when the other process has ended. Skips messages that this release does not
    /// understand.
    pub(crate) async fn receive<T: DeserializeOwned>(&self) -> Option<T> {
        let mut space = vec![0; MAX_MESSAGE];
        loop {
            let length = self.0.recv(&mut space).await.ok().filter(|length| *length > 0)?;
            if let Ok(message) = serde_json::from_slice(&space[..length]) {
                return Some(message);
            }
        }
    }
}

/// The earlier processes that are draining, and what this one continues of the one before.
#[derive(Debug, Default)]
pub(crate) struct Earlier {
    /// The sockets to each; the last is to the process before this one.
    all: Vec<Sockets>,
    pub(crate) own: ProcessTag,
    pub(crate) drained: Drained,
}

/// The sockets to one of them: for messages, and for the packets of each shard.
#[derive(Debug)]
pub(crate) struct Sockets {
    pub(crate) messages: OwnedFd,
    pub(crate) packets: Vec<OwnedFd>,
}

impl Earlier {
    /// Separates these from the other sockets that a successor was given.
    pub(crate) fn from_passed(passed: Vec<OwnedFd>) -> (Self, Vec<OwnedFd>) {
        let (drained, passed) = drains::take(passed, clock::now());
        let mut others = Vec::new();
        let mut ours = Vec::new();
        let mut shards = 0;
        for socket in passed.into_iter().map(Socket::from) {
            let is_unix = socket.domain().is_ok_and(|it| it == Domain::UNIX);
            shards += usize::from(!is_unix && socket.r#type().is_ok_and(|it| it == Type::DGRAM));
            if is_unix { ours.push(socket.into()) } else { others.push(socket.into()) }
        }
        let mut earlier = Vec::new();
        let mut ours = ours.into_iter();
        while let Some(messages) = ours.next() {
            let packets: Vec<OwnedFd> = ours.by_ref().take(shards).collect();
            if packets.len() == shards {
                earlier.push(Sockets { messages, packets });
            }
        }
        (Self { all: earlier, own: 0, drained }, others)
    }

    pub(crate) fn push(&mut self, sockets: Sockets) {
        self.all.push(sockets);
    }

    /// Copies of all, to pass to a successor.
    pub(crate) fn copies(&self) -> io::Result<Vec<OwnedFd>> {
        let all = self.all.iter().flat_map(|it| std::iter::once(&it.messages).chain(&it.packets));
        let drains = drains::pipe(&self.drained, clock::now())?.map(Ok);
        all.map(OwnedFd::try_clone).chain(drains).collect()
    }

    /// Asks each process for its sessions, and lets `shards` forward its packets. Forgets processes
    /// that have ended and, of more than [`MAX_EARLIER`], those with the fewest sessions, which
    /// end. A mesh with another number of shards continues nothing.
    pub(crate) async fn join(&mut self, shards: Shards) -> io::Result<(Shards, Vec<Predecessor>)> {
        let mut running = Vec::new();
        for sockets in std::mem::take(&mut self.all) {
            if sockets.packets.len() != shards.count() {
                warn!("mesh.shards changed; closing the previous process's sessions");
            } else if let Some(predecessor) = Predecessor::greet(&sockets).await? {
                running.push((predecessor, sockets));
            }
        }
        for (predecessor, _) in take_surplus(&mut running, |(predecessor, _)| predecessor.open()) {
            let open = predecessor.open();
            warn!(
                open,
                "restarted too often in a short time; closing the sessions of an earlier process"
            );
        }
        let (predecessors, sockets): (Vec<_>, _) = running.into_iter().unzip();
        self.all = sockets;
        let tags: Vec<ProcessTag> = predecessors.iter().map(Predecessor::tag).collect();
        self.own = (0..=ProcessTag::MAX).find(|tag| !tags.contains(tag)).unwrap_or_default();
        let packets = self.all.iter().map(|sockets| {
            sockets.packets.iter().map(OwnedFd::try_clone).collect::<io::Result<Vec<_>>>()
        });
        let packets: Vec<Vec<OwnedFd>> = packets.collect::<io::Result<_>>()?;
        let shards = shards.continuing(self.own, tags.into_iter().zip(packets).collect())?;
        Ok((shards, predecessors))
    }
}

/// Takes those with the fewest sessions from more than [`MAX_EARLIER`] processes. The last one may
/// still accept streams, so it stays.
fn take_surplus<T>(running: &mut Vec<T>, open: impl Fn(&T) -> usize) -> Vec<T> {
    let earlier = running.len().saturating_sub(1);
    running[..earlier].sort_by_key(open);
    running.drain(..running.len().saturating_sub(MAX_EARLIER)).collect()
}

#[cfg(test)]
mod tests;
