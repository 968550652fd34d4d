//! Periodic work: rounds of news and rumours, comparisons, announcements, housekeeping.

use std::time::{Duration, Instant};

use meshport_config::NodeId;

use super::{Discovery, Event};
use crate::Count;
use crate::directory::{Entry, Liveness};
use crate::news::Telling;
use crate::paths::{Length, PathUse};
use crate::state::Revision;
use crate::wire::{Claim, Item, Message, Standing, Wide};

/// Time for nodes known only from a snapshot to appear.
const UNKNOWN_FOR: Duration = Duration::from_secs(300);
/// Tombstones are kept this many times as long as entries: by then no copy exists anywhere else.
const TOMBSTONE_FACTOR: u32 = 7;
/// Nodes that are not members and are tried at once while this node is alone, and how many entries
/// are examined to find them.
const SEARCH_AT_ONCE: usize = 3;
const SEARCH_LOOKS: usize = 256;
/// Members of this node's site that are notified at once when a watched one is silent or down. All
/// its watchers select the same ones, so each of these hears it from more than one watcher, and all
/// spread it at once: two rounds of gossip later ten times as many know.
const WITNESSES: usize = 24;
/// Rumours considered for one datagram: more do not fit.
const MAX_TOLD_AT_ONCE: usize = 16;

impl Discovery {
    /// All periodic work; called only by the timer.
    pub(super) fn run_rounds(&mut self, now: Instant) {
        let is_sweep = self.clock.take_sweep(now);
        if self.attach.is_none() {
            self.run_gossip(now);
        }
        if is_sweep {
            self.sweep(now);
        }
    }

    fn run_gossip(&mut self, now: Instant) {
        let peers = &self.peers;
        for node in self.gossip.seeds.take_due(|node| peers.is_member(node), &mut self.dice, now) {
            self.swim.announce(node, &self.peers, now);
        }
        self.search(now);
        self.tell_revocations_again(now);
        if self.gossip.sync.take_due(self.config.sync_interval, &mut self.dice, now)
            && let Some(peer) = self.peers.random_members(1, &[], &mut self.dice).first().copied()
        {
            self.compare_with(peer);
        }
    }

    /// Does all pending work, after any input.
    pub(super) fn settle(&mut self, now: Instant) {
        self.clock.note(now);
        if self.attach.is_some() {
            self.drain_paths(now);
            return self.ask_members(now);
        }
        self.drain_swim(now);
        self.adjust_watch(now);
        self.drain_watch(now);
        self.drain_dependents(now);
        self.drain_paths(now);
        self.publish(now);
        self.tell_news(now);
        self.spread_rumours(now);
        self.request_wanted(now);
    }

    /// Time at which [`Self::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if let Some(attach) = &self.attach {
            let due = [attach.poll_timeout(), self.monitor.paths.poll_timeout()];
            return due.into_iter().flatten().chain([self.clock.sweep_at]).min();
        }
        let telling = self.gossip.next_telling(self.peers.is_alone());
        if self.local.has_left() {
            return telling;
        }
        let due = [
            telling,
            self.gossip.next_question(),
            self.swim.poll_timeout(),
            self.monitor.poll_timeout(),
            self.local.poll_timeout(),
            self.trust.poll_timeout(),
            Some(self.clock.sweep_at),
        ];
        due.into_iter().flatten().min()
    }

    /// Sends connected peers this node's newest record.
    pub(super) fn start_news(&mut self, now: Instant) {
        let mut peers = self.peers.connected_except(None, &mut self.dice);
        peers.sort_unstable();
        let with_rtt = |peer| (peer, self.monitor.rtt(&peer));
        self.gossip.news.start(peers.into_iter().map(with_rtt), now);
    }

    pub(super) fn take_seen(&mut self, from: NodeId, revision: Revision) {
        let own = self.peers.get(&self.peers.me).and_then(Entry::node_state);
        if own.is_some_and(|own| own.revision() == revision) {
            self.gossip.news.acknowledged(&from);
        }
    }

    /// Measures the path to a node, or stops, as the caller and the node's services require.
    pub(super) fn adjust_path(&mut self, node: NodeId, now: Instant) {
        let offers = self.peers.get(&node).is_some_and(|entry| {
            entry.liveness != Liveness::Left && entry.services().next().is_some()
        });
        let asked = self.attach.as_ref().is_some_and(|attach| attach.is_attached(&node));
        let needed = (offers || asked).then_some(PathUse::Idle);
        let usage = self.monitor.interest(&node).or(needed).filter(|_| node != self.peers.me);
        let session = self.peers.contacts.session(&node);
        if !self.monitor.paths.set(node, usage, session, now) {
            self.outbox.counters[Count::DroppedPaths] += 1;
        }
    }

    fn drain_paths(&mut self, now: Instant) {
        // A new path is due at once, not at the driver's next turn.
        if !self.local.has_left() {
            self.monitor.paths.handle_timeout(now);
        }
        while let Some(probe) = self.monitor.paths.poll_send() {
            let message = match probe.length {
                Length::Small => Message::Probe(probe.nonce),
                Length::Wide => Message::WideProbe(Wide::of(probe.nonce)),
                Length::Split => Message::SplitProbe(Wide::split(probe.nonce)),
            };
            self.send(probe.to, &message);
        }
        while let Some(node) = self.monitor.paths.poll_split() {
            let on = self.monitor.paths.is_split(&node);
            self.outbox.report(Event::Split { node, on });
        }
        let mut changed = false;
        while let Some(node) = self.monitor.paths.poll_change() {
            changed = true;
            self.outbox.report(Event::PathChanged(node));
        }
        if changed && self.attach.is_none() {
            self.measure_distances(now);
        }
    }

    fn measure_distances(&mut self, now: Instant) {
        if !self.local.tells_distances() {
            return;
        }
        let distances = self.monitor.distances(&self.peers.directory);
        let members = self.peers.directory.alive();
        self.local.set_distances(distances, members, &mut self.dice, now);
    }

    /// Watches the next member of this node's site in the order of ids and the one before it, which
    /// do the same: of each pair only one has to probe. Random probes find a crash eventually;
    /// these find it soon.
    fn adjust_watch(&mut self, now: Instant) {
        if std::mem::take(&mut self.monitor.members_changed) && !self.local.has_left() {
            self.monitor.watch(&self.peers.neighbours(), &self.peers.contacts, now);
        }
    }

    fn drain_watch(&mut self, now: Instant) {
        if !self.local.has_left() {
            self.monitor.neighbours.handle_timeout(now);
        }
        while let Some(probe) = self.monitor.neighbours.poll_send() {
            self.send(probe.to, &Message::Probe(probe.nonce));
        }
        while let Some(node) = self.monitor.neighbours.poll_change() {
            let dead = self.monitor.is_silent(&node);
            let life = self.peers.get(&node).filter(|entry| entry.is_alive());
            if let Some(life) = life.and_then(|entry| entry.life).filter(|_| dead) {
                self.swim.suspect(node, life, &self.peers, now);
                self.drain_swim(now);
                self.tell_witnesses(node, Standing::Suspect);
            }
        }
    }

    fn drain_dependents(&mut self, now: Instant) {
        if self.local.has_left() {
            return;
        }
        self.monitor.dependents.handle_timeout(now);
        while let Some(silent) = self.monitor.dependents.poll_send() {
            let nonce = self.dice.bytes();
            self.send(silent, &Message::Probe(nonce));
        }
    }

    /// Informs the members next to a watched one of this node's site about its new state, if this
    /// node has detected it itself.
    pub(super) fn tell_witnesses(&mut self, node: NodeId, standing: Standing) {
        if !self.monitor.is_silent(&node) {
            return;
        }
        let Some(life) = self.peers.get(&node).and_then(|entry| entry.life) else { return };
        // A suspicion goes only to the other watcher, which need not wait for its next turn.
        let count = if standing == Standing::Down { WITNESSES } else { 1 };
        let claim = Claim { life, incarnation: self.swim.incarnation_of(&node), standing };
        for witness in self.peers.witnesses(node, count) {
            self.send(
                witness,
                &Message::Rumours(vec![Item { claim: Some(claim), ..Item::about(&node) }]),
            );
        }
    }

    fn tell_news(&mut self, now: Instant) {
        while let Some(telling) = self.gossip.news.take_due(now) {
            let own = self.peers.get(&self.peers.me).and_then(|entry| entry.state.clone());
            match (telling, own) {
                (Telling::Tell(peer), Some(state)) => {
                    let item = Item { state: Some(state.as_bytes()), ..self.own_item() };
                    self.send(peer, &Message::News(item));
                }
                (Telling::GivenUp, _) => self.outbox.counters[Count::UnacknowledgedNews] += 1,
                (Telling::Tell(_), None) => {}
            }
        }
    }

    fn spread_rumours(&mut self, now: Instant) {
        // Without members to send it to, the rumour waits.
        if self.peers.is_alone() || !self.gossip.rumours.take_due(self.config.gossip_interval, now)
        {
            return;
        }
        let mut told = self.gossip.rumours.freshest();
        told.truncate(MAX_TOLD_AT_ONCE);
        let packed = self.pack_rumours(&told);
        for peer in self.peers.audience(usize::from(self.config.gossip_fanout), &mut self.dice) {
            packed.datagrams.iter().for_each(|payload| self.send_bytes(peer, payload.clone()));
        }
        for offer in &told[..packed.items.min(told.len())] {
            self.gossip.rumours.told(&offer.node);
        }
    }

    fn request_wanted(&mut self, now: Instant) {
        if !self.gossip.sync.is_fetching() {
            return;
        }
        if self.gossip.sync.is_overdue(now) {
            let others = self.peers.random_members(4, &[], &mut self.dice);
            self.gossip.sync.requeue(&others, now);
        }
        for (peer, lists) in self.gossip.sync.take_requests(now) {
            for list in lists {
                self.send(peer, &Message::Want(list));
            }
        }
        if !self.gossip.sync.is_fetching() {
            // Everything requested arrived or was given up; there may be more.
            self.gossip.sync.trigger(now);
        }
    }

    /// Announces to nodes that are known but not members: all of them in turn while this node is
    /// alone, otherwise only those known from a snapshot. SWIM asks members that are down.
    fn search(&mut self, now: Instant) {
        let alone = self.peers.is_alone();
        let pause = if alone { self.config.announce_first } else { self.config.announce_first * 2 };
        if !self.gossip.take_search(pause, &mut self.dice, now) {
            return;
        }
        if self.peers.directory.alive() == self.peers.directory.len() {
            return;
        }
        let start = self.dice.id();
        // A node without endpoints has just been admitted elsewhere, and its record will follow.
        let wanted = |entry: &Entry| match entry.liveness {
            Liveness::Unknown => !entry.endpoints().is_empty(),
            Liveness::Down => alone && !entry.endpoints().is_empty(),
            Liveness::Alive | Liveness::Left => false,
        };
        let around = self.peers.directory.around(start).take(SEARCH_LOOKS);
        let found: Vec<NodeId> = around
            .filter(|(_, entry)| wanted(entry))
            .map(|(node, _)| *node)
            .take(if alone { SEARCH_AT_ONCE } else { 1 })
            .collect();
        for node in found {
            self.swim.announce(node, &self.peers, now);
        }
    }

    fn sweep(&mut self, now: Instant) {
        for node in self.monitor.acquit(now) {
            self.adjust_path(node, now);
        }
        self.peers.contacts.prune(now);
        self.leaves.sweep(self.clock.wall);
        self.doubts.prune(now);
        if self.attach.is_none() {
            self.measure_distances(now);
        }
        let forget_after = self.config.forget_after;
        if let Some(before) = now.checked_sub(forget_after * TOMBSTONE_FACTOR) {
            self.peers.directory.prune_tombstones(before);
        }
        if self.peers.directory.is_settled(self.clock.wall) {
            return;
        }
        let mut fading = Vec::new();
        let mut forgotten = Vec::new();
        let mut expired = Vec::new();
        let mut silent = Vec::new();
        for (node, entry) in self.peers.directory.iter().filter(|(node, _)| **node != self.peers.me)
        {
            let age = now.saturating_duration_since(entry.since);
            match entry.liveness {
                _ if self.clock.wall >= entry.credential.expires_at => expired.push(*node),
                Liveness::Unknown if age >= UNKNOWN_FOR => silent.push(*node),
                Liveness::Down | Liveness::Left if age >= forget_after => forgotten.push(*node),
                Liveness::Down | Liveness::Left if age >= forget_after / 2 && !entry.fading => {
                    fading.push(*node);
                }
                _ => {}
            }
        }
        for node in silent {
            self.peers.directory.set_liveness(&node, Liveness::Down, None, now);
        }
        for node in fading {
            self.peers.directory.fade(&node);
        }
        for node in forgotten {
            self.drop_member(node, now);
            self.peers.directory.forget(&node, now);
            self.outbox.report(Event::Forgotten(node));
        }
        for node in expired {
            self.set_aside(node, now);
        }
        self.peers.directory.find_first_end();
    }
}
