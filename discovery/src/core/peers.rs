//! A node's data about the others: their records, and its contacts with them.
//!
//! Answers queries that need both, including those of membership, and picks the peers for messages
//! to a few. Bounded by the directory and the contacts.

use std::time::Instant;

use meshport_config::{NodeId, ServiceName, SiteName};

use crate::contacts::Contacts;
use crate::dice::Dice;
use crate::directory::{Directory, Entry, Liveness, Record, mix};
use crate::news::MAX_TOLD;
use crate::state::{Life, NodeState};
use crate::swim::{MIN_CONNECTED, View};
use crate::wire::{Claim, Short};

/// Entries examined from a random one on to find a member.
const LOOKS: usize = 64;

/// The directory and the contacts of a node, from that node's point of view.
#[derive(Debug)]
pub(super) struct Peers {
    pub(super) me: NodeId,
    site: SiteName,
    pub(super) directory: Directory,
    pub(super) contacts: Contacts,
}

impl Peers {
    /// Knows no nodes, not even itself.
    pub(super) fn new(me: NodeId, site: SiteName) -> Self {
        Self { me, site, directory: Directory::new(), contacts: Contacts::default() }
    }

    /// A tunnel with a peer exists, or has ended.
    pub(super) fn handle_session(&mut self, node: NodeId, up: bool, now: Instant) {
        self.contacts.set_session(node, up, now);
        self.directory.set_here(&node, up);
    }

    /// Adds this node to its own directory, with this record and in this life.
    pub(super) fn enter(&mut self, own: &Record, life: Life, now: Instant) {
        self.directory.merge(own, now);
        self.set_own_life(life, now);
        self.directory.set_here(&self.me, true);
    }

    pub(super) fn set_own_life(&mut self, life: Life, now: Instant) {
        self.directory.set_liveness(&self.me, Liveness::Alive, Some(life), now);
    }

    /// The known facts about a node.
    pub(super) fn get(&self, node: &NodeId) -> Option<&Entry> {
        self.directory.get(node)
    }

    pub(super) fn is_known(&self, node: &NodeId) -> bool {
        self.get(node).is_some()
    }

    pub(super) fn is_member(&self, node: &NodeId) -> bool {
        self.get(node).is_some_and(Entry::is_alive)
    }

    /// Whether no other node is a member.
    pub(super) fn is_alone(&self) -> bool {
        self.directory.alive() <= 1
    }

    /// Whether another node has neither signed this life nor shown itself in it.
    pub(super) fn is_unsigned(&self, node: &NodeId, life: Life) -> bool {
        self.get(node).is_some_and(|entry| {
            let signed = entry.node_state().map(NodeState::life);
            *node != self.me && Some(life) > signed.max(entry.life)
        })
    }

    /// Up to `count` different members, chosen uniformly, without this node and `except`.
    pub(super) fn random_members(
        &self,
        count: usize,
        except: &[NodeId],
        dice: &mut Dice,
    ) -> Vec<NodeId> {
        let fits = |node: &NodeId, entry: &Entry| {
            entry.is_alive() && *node != self.me && !except.contains(node)
        };
        choose(count, || {
            let mut drawn = self.directory.drawn(dice.draw()).take(LOOKS);
            drawn.find(|(node, entry)| fits(node, entry)).map(|it| *it.0)
        })
    }

    /// Members to send rumours to: random ones, with sessions if there are enough of those.
    pub(super) fn audience(&self, count: usize, dice: &mut Dice) -> Vec<NodeId> {
        if self.contacts.sessions() < MIN_CONNECTED {
            return self.random_members(count, &[], dice);
        }
        choose(count, || {
            self.contacts.connected_from(dice.draw()).find(|node| self.is_member(node))
        })
    }

    /// Peers with a session, except one; at most [`MAX_TOLD`], drawn at random.
    pub(super) fn connected_except(&self, except: Option<NodeId>, dice: &mut Dice) -> Vec<NodeId> {
        let connected = self.contacts.connected();
        let mut peers: Vec<NodeId> = connected.filter(|peer| Some(*peer) != except).collect();
        while peers.len() > MAX_TOLD {
            peers.swap_remove(dice.below(peers.len()));
        }
        peers
    }

    /// The next member of this node's site in the order of ids and the one before; of all sites if
    /// its site has at most one other member.
    pub(super) fn neighbours(&self) -> Vec<NodeId> {
        let others = |entry: &Entry| entry.is_alive() && entry.node() != self.me;
        let near = |entry: &Entry| others(entry) && entry.credential.site == self.site;
        let beside = |fits: &dyn Fn(&Entry) -> bool| -> Option<[NodeId; 2]> {
            let mut around = self.directory.around(self.me).filter(|(_, entry)| fits(entry));
            let (next, before) = (around.next()?.0, around.next_back()?.0);
            Some([*next, *before])
        };
        match beside(&near).or_else(|| beside(&others)) {
            Some(pair) => pair.to_vec(),
            None => self.directory.iter().filter(|it| others(it.1)).map(|it| *it.0).collect(),
        }
    }

    /// Other members of this node's site except one: the `count` that follow it in the order of
    /// ids, and the one before.
    pub(super) fn witnesses(&self, beside: NodeId, count: usize) -> Vec<NodeId> {
        let fits = |entry: &Entry| {
            entry.is_alive()
                && entry.credential.site == self.site
                && entry.node() != self.me
                && entry.node() != beside
        };
        let mut around = self.directory.around(beside).filter(|(_, entry)| fits(entry));
        let before = around.next_back().map(|(node, _)| *node);
        around.map(|(node, _)| *node).take(count).chain(before).collect()
    }

    /// Up to `most` origins that are members, for a newcomer, those of its own site first.
    pub(super) fn origins_for(&self, newcomer: &Entry, most: usize) -> Vec<NodeId> {
        let others = |entry: &&Entry| entry.node() != newcomer.node() && entry.is_alive();
        let origins = |near: bool| {
            let all = self.directory.services().flat_map(|it| self.directory.origins(it));
            let here =
                move |entry: &&Entry| (entry.credential.site == newcomer.credential.site) == near;
            all.map(|(entry, _)| entry).filter(others).filter(here)
        };
        let mut chosen: Vec<NodeId> = Vec::new();
        for entry in origins(true).chain(origins(false)) {
            if chosen.len() < most && !chosen.contains(&entry.node()) {
                chosen.push(entry.node());
            }
        }
        chosen
    }

    /// The origins of some services, some perhaps twice.
    pub(super) fn origins(&self, services: &[ServiceName]) -> impl Iterator<Item = NodeId> {
        let of = |service| self.directory.origins(service).map(|(entry, _)| entry.node());
        services.iter().flat_map(of)
    }

    /// The digest that a leaf and the member it asks compare: over that member's record and those
    /// of all origins.
    pub(super) fn leaf_digest(&self, services: &[ServiceName], teller: NodeId) -> u64 {
        let mut nodes: Vec<NodeId> = self.origins(services).chain([teller]).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let entries = nodes.iter().filter_map(|node| self.get(node));
        entries.fold(0, |sum, entry| mix(sum, entry.full_digest()))
    }

    /// Nodes from `start` on whose record has endpoints, and that may be up.
    pub(super) fn reachable_from(&self, start: NodeId) -> impl Iterator<Item = NodeId> {
        let may_be_there = |(node, entry): &(&NodeId, &Entry)| {
            **node != self.me
                && !entry.endpoints().is_empty()
                && matches!(entry.liveness, Liveness::Alive | Liveness::Unknown)
        };
        self.directory.around(start).filter(may_be_there).map(|(node, _)| *node)
    }
}

/// Up to `count` different nodes, in at most twice as many draws.
fn choose(count: usize, mut draw: impl FnMut() -> Option<NodeId>) -> Vec<NodeId> {
    let mut chosen: Vec<NodeId> = Vec::with_capacity(count);
    for _ in 0..count * 2 {
        chosen.extend(draw().filter(|node| !chosen.contains(node)));
        if chosen.len() == count {
            break;
        }
    }
    chosen
}

impl View for Peers {
    fn resolve(&self, short: Short) -> Option<NodeId> {
        self.directory.resolve(short)
    }

    fn session(&self, peer: &NodeId) -> bool {
        self.contacts.session(peer)
    }

    fn same_site(&self, peer: &NodeId) -> bool {
        self.get(peer).is_some_and(|entry| entry.credential.site == self.site)
    }

    fn sessions(&self) -> usize {
        self.contacts.sessions()
    }

    fn connected(&self, draw: u64) -> Option<(NodeId, Life)> {
        self.contacts.connected_from(draw).find_map(|peer| {
            let entry = self.get(&peer).filter(|entry| entry.is_alive())?;
            Some((peer, entry.life?))
        })
    }

    fn knows(&self, member: &NodeId, claim: &Claim) -> bool {
        self.get(member).is_some_and(|entry| entry.is_old_news(claim))
    }

    fn heard(&self, peer: &NodeId) -> Option<Instant> {
        self.contacts.last_heard(peer)
    }
}
