//! Leaves and members, from both sides.
//!
//! A leaf is a node whose credential has only the role `operator`: it uses services and takes no
//! part in gossip. Members keep it out of the directory, do not gossip about it, and accept only
//! probes and queries from it. A leaf trusts signed data, and otherwise only that a member is
//! present.

use std::sync::Arc;
use std::time::Instant;

use meshport_config::{Credential, NodeId};

use super::{Discovery, items};
use crate::Count;
use crate::directory::Liveness;
use crate::news::Offer;
use crate::wire::{Ask, Claim, Message, Standing};

/// Origins sent to a leaf, the nearest to the sender first.
const MAX_TOLD_ORIGINS: usize = 32;
/// Other members sent to a leaf, in case it loses its current ones.
const MAX_TOLD_OTHERS: usize = 4;
/// Members considered in one search: more than tried at once.
const MAX_CANDIDATES: usize = 16;
/// Datagrams of one answer to a leaf.
const MAX_ANSWER: usize = 32;

impl Discovery {
    /// A member's side: the mesh has admitted a leaf.
    pub(super) fn take_leaf(&mut self, credential: &Credential) {
        let taken = self.leaves.admit(credential, &self.peers.contacts);
        self.outbox.counters[Count::DroppedLeaf] += u64::from(!taken);
    }

    /// How many leaves have a session with this node.
    pub fn leaves(&self) -> usize {
        self.leaves.connected(&self.peers.contacts)
    }

    /// Whether a node is a leaf that this one serves.
    pub fn is_leaf(&self, node: &NodeId) -> bool {
        self.leaves.contains(node)
    }

    /// A member's side: handles the permitted messages of a leaf.
    pub(super) fn take_from_leaf(&mut self, from: NodeId, message: Message<'_>, now: Instant) {
        let valid = self.leaves.is_valid(&from, self.clock.wall);
        match message {
            Message::Probe(nonce) if valid => self.send(from, &Message::Echo(nonce)),
            Message::WideProbe(wide) if valid => self.send(from, &Message::WideEcho(wide)),
            Message::SplitProbe(wide) if valid => self.send(from, &Message::SplitEcho(wide)),
            Message::NewsSeen(revision) => self.take_seen(from, revision),
            Message::Ask(ask) if valid && !self.local.has_left() => self.tell_leaf(from, &ask, now),
            _ => self.outbox.counters[Count::DroppedLeaf] += 1,
        }
    }

    /// Sends a leaf what it lacks.
    fn tell_leaf(&mut self, leaf: NodeId, ask: &Ask, now: Instant) {
        self.outbox.counters[Count::LeafQuestions] += 1;
        self.take_revocations(leaf, ask.revoked, now);
        if self.peers.leaf_digest(&ask.services, self.peers.me).to_le_bytes() == ask.digest {
            if self.peers.contacts.allow_reply(leaf, now) {
                self.send(leaf, &Message::Same);
            }
            return;
        }
        let origins = self.peers.origins(&ask.services);
        let distance = |node: &NodeId| self.monitor.rtt(node);
        let mut told: Vec<NodeId> = origins.filter(|node| *node != self.peers.me).collect();
        told.sort_by_key(|node| (distance(node).is_none(), distance(node), *node));
        told.dedup();
        told.truncate(MAX_TOLD_ORIGINS);
        told.insert(0, self.peers.me);
        let others = self.peers.random_members(MAX_TOLD_OTHERS, &told, &mut self.dice);
        told.extend(others);
        let told = told.into_iter().map(Offer::whole);
        self.send_items(leaf, told, MAX_ANSWER, now);
    }

    /// On a leaf: handles the messages of a member, except probes.
    pub(super) fn take_as_leaf(&mut self, from: NodeId, message: Message<'_>, now: Instant) {
        match message {
            Message::Same => self.heard_answer(from, now),
            Message::Items(items) => {
                self.take_items(from, &items, items::Channel::Sync, now);
                self.heard_answer(from, now);
            }
            Message::News(item) => self.take_news(from, item, now),
            Message::Revoked(list) => self.take_revoked(from, &list, now),
            _ => self.outbox.counters[Count::DroppedLeaf] += 1,
        }
    }

    fn heard_answer(&mut self, from: NodeId, now: Instant) {
        let taken = self.attach.as_mut().is_some_and(|attach| attach.answered(&from, now));
        if taken {
            // The answer contained other members.
            self.look_for_members(now);
            self.adjust_path(from, now);
        }
    }

    /// A leaf's side: sends due queries.
    pub(super) fn ask_members(&mut self, now: Instant) {
        let Some(attach) = &self.attach else { return };
        if attach.searches(now) {
            let found = self.members_to_try();
            self.attach.iter_mut().for_each(|attach| attach.search(found.iter().copied(), now));
        }
        let Some(attach) = &mut self.attach else { return };
        let (ask, lost) = attach.take_due(now);
        let services = attach.services().to_vec();
        let revoked = self.trust.digest();
        for member in ask {
            let digest = self.peers.leaf_digest(&services, member).to_le_bytes();
            self.send(member, &Message::Ask(Ask { services: services.clone(), digest, revoked }));
        }
        for member in lost {
            self.adjust_path(member, now);
        }
    }

    /// A leaf's side: more members may be known now.
    pub(super) fn look_for_members(&mut self, now: Instant) {
        self.attach.iter_mut().for_each(|attach| attach.hasten(now));
    }

    /// Seeds and other known members alternately, in random order, none of them in use: seeds that
    /// are all down must not displace members that are up.
    fn members_to_try(&mut self) -> Vec<NodeId> {
        let start = self.dice.id();
        let in_use = |node: &NodeId| self.attach.as_ref().is_some_and(|it| it.is_attached(node));
        let is_other = |node: &NodeId| !in_use(node) && !self.gossip.seeds.contains(node);
        let mut known = self.peers.reachable_from(start).filter(is_other);
        let mut seeds: Vec<NodeId> =
            self.gossip.seeds.nodes().filter(|node| !in_use(node)).collect();
        let first = usize::from(start.as_bytes()[0]) % seeds.len().max(1);
        seeds.rotate_left(first);
        let mut seeds = seeds.into_iter();
        let by_turns = std::iter::from_fn(|| {
            let pair = [seeds.next(), known.next()];
            pair.iter().any(Option::is_some).then_some(pair)
        });
        by_turns.flatten().flatten().take(MAX_CANDIDATES).collect()
    }

    /// This machine was suspended or has moved: measures every path again and asks all members at
    /// once.
    pub fn wake(&mut self, now: Instant) {
        self.monitor.paths.wake(now);
        if let Some(attach) = &mut self.attach {
            attach.wake(now);
        }
        self.settle(now);
    }

    /// On a leaf: takes claims about members. A later process takes precedence over an earlier one,
    /// and `down` over `alive` for the same process.
    pub(super) fn hear_claims(&mut self, claims: Vec<(NodeId, Claim)>, now: Instant) {
        for (node, claim) in claims {
            let Some(entry) = self.peers.get(&node) else { continue };
            let over = claim.standing == Standing::Down;
            let was_over = matches!(entry.liveness, Liveness::Down | Liveness::Left);
            let known = (entry.life, was_over, entry.liveness != Liveness::Unknown);
            let ended = entry.farewell() >= Some(claim.life);
            if (ended && !over) || (Some(claim.life), over, true) <= known {
                continue;
            }
            let liveness = match (over, ended) {
                (true, true) => Liveness::Left,
                (true, false) => Liveness::Down,
                (false, _) => Liveness::Alive,
            };
            self.set_liveness(node, liveness, claim.life, now);
            self.adjust_path(node, now);
        }
    }

    /// Whether another node's credential stays out of the directory: that of a leaf.
    pub(super) fn refuses_leaf(&mut self, credential: &Arc<Credential>) -> bool {
        let leaf = credential.roles.is_leaf();
        self.outbox.counters[Count::DroppedLeaf] += u64::from(leaf);
        leaf
    }
}
