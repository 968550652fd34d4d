//! One simulated node: its process, its tunnels, its clients.

use std::sync::Arc;
use std::time::Duration;

use meshport_config::{Credential, NodeKey, RecordKey, Revocations, UnixSeconds};
use meshport_discovery::Memo;
use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::clients::{Clients, Tally};
use super::{Event, WALL_START, World};
use crate::Error;
use crate::brain::Brain;
use crate::identity::{Issuer, bytes32};
pub(super) use crate::network::endpoint;
use crate::scenario::{Lie, NodeRef, Scenario};
use crate::tunnel::Tunnels;

pub(super) struct Node {
    /// The site it belongs to, regardless of its current location.
    pub(super) site: usize,
    pub(super) key: RecordKey,
    pub(super) credential: Arc<Credential>,
    pub(super) seed: u64,
    /// `None` while its process does not run.
    pub(super) brain: Option<Brain>,
    /// Counts the starts of its process; 0 is "not yet".
    pub(super) boot: u32,
    pub(super) process: Process,
    pub(super) tunnels: Tunnels,
    /// Nodes whose address it knows, and which of their addresses.
    pub(super) book: Book,
    pub(super) folder: Folder,
    /// How far its wall clock is ahead, in seconds.
    pub(super) ahead_s: i64,
    /// Time until which its process is stopped.
    pub(super) still_until: Duration,
    pub(super) lie: Option<Lie>,
    /// One of its old datagrams, for a lie.
    pub(super) replay: Vec<u8>,
    pub(super) clients: Clients,
}

/// The state of the current or last process of a node, except its decisions.
#[derive(Debug, Default)]
pub(super) struct Process {
    pub(super) started: Duration,
    /// It has announced that it leaves, and is about to end.
    pub(super) leaving: bool,
    /// The next time at which it needs a call.
    pub(super) wake: Option<Duration>,
    /// The counts of its clients.
    pub(super) tally: Tally,
}

/// The state folder of a node: it stays when its process ends.
#[derive(Debug, Default)]
pub(super) struct Folder {
    /// The generation of the last process.
    pub(super) generation: u64,
    /// Whether its directory must be saved: some event will stop it.
    pub(super) saves: bool,
    /// The time of its last save, and the saved directory.
    pub(super) saved: (Duration, Arc<[u8]>),
    /// The revocations that it knows.
    pub(super) revocations: Revocations,
}

/// The address of each node that a node knows, by number; 0 is none. Dense, because most nodes know
/// most others.
#[derive(Debug, Default)]
pub(super) struct Book(Vec<u16>);

impl Book {
    pub(super) fn get(&self, node: usize) -> Option<u16> {
        self.0.get(node).copied().filter(|address| *address != 0)
    }

    pub(super) fn insert(&mut self, node: usize, address: u16) {
        if self.0.len() <= node {
            self.0.reserve_exact(node + 1 - self.0.len());
            self.0.resize(node + 1, 0);
        }
        self.0[node] = address;
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

impl Node {
    pub(super) fn is_running(&self, boot: u32) -> bool {
        self.brain.is_some() && self.boot == boot
    }
}

impl World {
    /// A node asked to be called now. The reason may no longer apply.
    pub(super) fn wake(&mut self, node: usize) {
        let wanted = self.nodes[node].brain.as_ref().and_then(Brain::poll_timeout);
        if wanted.is_some_and(|wanted| wanted <= self.instant()) {
            return self.tick(node);
        }
        self.sleep(node);
    }

    /// Wakes a node at its next timer.
    pub(super) fn sleep(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        let Some(wanted) = node.brain.as_ref().and_then(Brain::poll_timeout) else { return };
        let wanted = wanted.saturating_duration_since(self.epoch).max(self.scene.now);
        if node.process.wake.is_none_or(|wake| wanted < wake) {
            node.process.wake = Some(wanted);
            self.queue.push(wanted, Event::Wake { node: at, boot: node.boot });
        }
    }
}

/// Makes a node that has not started.
pub(super) fn make(
    scenario: &Scenario,
    member: NodeRef,
    issuer: &Issuer,
    rng: &mut ChaCha8Rng,
) -> Result<Node, Error> {
    let key = RecordKey::from_bytes(bytes32(rng));
    let node_key = NodeKey::from_bytes(bytes32(rng));
    let credential = issuer.issue(scenario, member, &node_key, &key)?;
    Ok(Node {
        site: member.site,
        key,
        credential: Arc::new(credential),
        seed: rng.next_u64(),
        brain: None,
        boot: 0,
        process: Process::default(),
        tunnels: Tunnels::default(),
        book: Book::default(),
        folder: Folder::default(),
        ahead_s: 0,
        still_until: Duration::ZERO,
        lie: None,
        replay: Vec::new(),
        clients: Clients::new(ChaCha8Rng::seed_from_u64(rng.next_u64())),
    })
}

/// Shares the credentials that all nodes will hold of each other: every handshake compares two, and
/// comparing a shared one needs no look inside.
pub(super) fn share(nodes: &mut [Node], memo: &Memo) -> Result<(), Error> {
    for node in nodes {
        let (bytes, mesh) = (node.credential.to_bytes(), node.credential.mesh);
        let known = memo.credential(&bytes, &mesh, UnixSeconds(WALL_START));
        let name = &node.credential.name;
        node.credential =
            known.map_err(|error| Error::Scenario(format!("node {name}: {error}")))?;
    }
    Ok(())
}
