//! Decides which entries stay in a full directory.
//!
//! The holder of an invite can sign any number of credentials, and gossip carries them everywhere.
//! So the nodes of one invite get at most [`MAX_OF_INVITE`] entries. A newcomer to a full directory
//! evicts a weaker entry ([`Priority`]): one of its own invite if that is at its limit, otherwise
//! one of the invite with the most. It never evicts an equal one, so nodes with different entries
//! do not exchange them forever, and never a node with a tunnel.
//!
//! The order of entries is maintained only while the directory is crowded: from the first newcomer
//! without a place until an eighth is free again. Finding a weaker entry takes logarithmic time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use meshport_config::{Credential, NodeId, Role, VerifyKey};

use super::{Directory, Entry, Liveness, MAX_MEMBERS};

/// Maximum number of entries of one invite, down and left ones included: more than twice the
/// largest supported mesh, which may have joined with a single invite.
pub const MAX_OF_INVITE: usize = MAX_MEMBERS / 4 * 3;
/// This many free entries end a crowd; without the gap it would begin and end with every entry.
const RELIEF: usize = MAX_MEMBERS / 8;
/// Entries examined to find one that may be evicted: more than the caller ever protects.
const LOOKS: usize = 2048;

/// The signer: the key of an invite, or the authority itself.
type Issuer = Option<VerifyKey>;

/// Precedence of an entry, weakest first. Others need nodes that may offer a service or relay; a
/// claim that a node is alive proves little; a connection from it, or to its announced address,
/// requires a handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Priority {
    /// Left, or down and not needed by others.
    Over,
    /// Known by its record, not needed by others.
    Heard,
    /// Reported to be a member, not needed by others.
    Member,
    /// Down, and may offer a service or relay: membership may be wrong.
    UsefulOver,
    /// Known by its record, and may offer a service or relay.
    UsefulHeard,
    /// Reported to be a member, and may offer a service or relay.
    UsefulMember,
    /// Had a tunnel with this node, and is not known to be down.
    Met,
    /// The same, and it may offer a service or relay.
    UsefulMet,
    /// Has a tunnel with this node, or is this node.
    Here,
}

impl Priority {
    /// The priority of a node known from others.
    pub(crate) fn of_hearsay(credential: &Credential) -> Self {
        if is_useful(credential) { Self::UsefulHeard } else { Self::Heard }
    }

    fn of(entry: &Entry) -> Self {
        let is_useful = is_useful(&entry.credential);
        match (entry.liveness, entry.met) {
            _ if entry.here => Self::Here,
            (Liveness::Left, _) => Self::Over,
            (Liveness::Down, _) => [Self::Over, Self::UsefulOver][usize::from(is_useful)],
            (_, true) => [Self::Met, Self::UsefulMet][usize::from(is_useful)],
            (Liveness::Unknown, false) => Self::of_hearsay(&entry.credential),
            (Liveness::Alive, false) => [Self::Member, Self::UsefulMember][usize::from(is_useful)],
        }
    }
}

fn is_useful(credential: &Credential) -> bool {
    credential.roles.iter().any(|role| matches!(role, Role::Relay | Role::Origin(_)))
}

fn issuer_of(credential: &Credential) -> Issuer {
    credential.delegation.as_ref().map(|delegation| delegation.key)
}

/// An entry in eviction order, for each issuer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    issuer: Issuer,
    priority: Priority,
    /// Ended entries go first, the oldest of them; then the entry that came last: a flood
    /// comes later than the entries that it would displace.
    over: Option<Instant>,
    since: Reverse<Option<Instant>>,
    node: NodeId,
}

impl Rank {
    fn of(entry: &Entry) -> Self {
        let is_over = entry.is_over();
        Self {
            issuer: issuer_of(&entry.credential),
            priority: Priority::of(entry),
            over: is_over.then_some(entry.since),
            since: Reverse((!is_over).then_some(entry.since)),
            node: entry.node(),
        }
    }

    fn first_of(issuer: Issuer) -> Self {
        let (over, since) = (None, Reverse(None));
        Self { issuer, priority: Priority::Over, over, since, node: NodeId::from_bytes([0; 32]) }
    }
}

/// A directory without room for all nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crowding {
    /// The invite with which most of its nodes joined; `None` if most were signed by the authority
    /// itself.
    pub invite: Option<VerifyKey>,
    /// How many nodes joined with it.
    pub entries: usize,
    /// The number of all entries.
    pub of: usize,
}

/// Whether a newcomer is admitted to the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// There is a free place, or it already has one.
    Free,
    /// If this one is evicted.
    Evict(NodeId),
    /// There is no weaker entry.
    Refused,
}

/// Sums over entries, on which admission is based.
#[derive(Debug, Default)]
pub(super) struct Occupancy {
    counts: BTreeMap<Issuer, usize>,
    /// While it is crowded: about 2 MB.
    crowd: Option<Crowd>,
}

#[derive(Debug, Default)]
struct Crowd {
    order: BTreeSet<Rank>,
    sizes: BTreeSet<(usize, Issuer)>,
}

/// The summed values of an entry that is about to change.
#[derive(Debug)]
pub(super) struct Former {
    issuer: Issuer,
    /// While it is crowded.
    rank: Option<Rank>,
}

impl Occupancy {
    pub(super) fn add(&mut self, entry: &Entry) {
        self.count(issuer_of(&entry.credential), |count| count + 1);
        if let Some(crowd) = &mut self.crowd {
            crowd.order.insert(Rank::of(entry));
        }
    }

    pub(super) fn remove(&mut self, former: &Former, left: usize) {
        let Former { issuer, rank } = former;
        self.count(*issuer, |count| count - 1);
        let Some(crowd) = &mut self.crowd else { return };
        if let Some(rank) = rank {
            crowd.order.remove(rank);
        }
        let most = crowd.sizes.iter().rev().find(|(_, issuer)| issuer.is_some());
        let most = most.map_or(0, |(count, _)| *count);
        if left + RELIEF <= MAX_MEMBERS && most + RELIEF <= MAX_OF_INVITE {
            self.crowd = None;
        }
    }

    pub(super) fn before(&self, entry: &Entry) -> Former {
        let rank = self.crowd.is_some().then(|| Rank::of(entry));
        Former { issuer: issuer_of(&entry.credential), rank }
    }

    pub(super) fn after(&mut self, former: &Former, entry: &Entry) {
        let Former { issuer, rank } = former;
        let now = issuer_of(&entry.credential);
        if now != *issuer {
            self.count(*issuer, |count| count - 1);
            self.count(now, |count| count + 1);
        }
        if let Some(crowd) = &mut self.crowd {
            if let Some(rank) = rank {
                crowd.order.remove(rank);
            }
            crowd.order.insert(Rank::of(entry));
        }
    }

    fn count(&mut self, issuer: Issuer, change: impl FnOnce(usize) -> usize) {
        let before = self.counts.get(&issuer).copied().unwrap_or(0);
        let after = change(before);
        if after == 0 {
            self.counts.remove(&issuer);
        } else {
            self.counts.insert(issuer, after);
        }
        if let Some(crowd) = &mut self.crowd {
            crowd.sizes.remove(&(before, issuer));
            crowd.sizes.extend((after > 0).then_some((after, issuer)));
        }
    }

    fn of(&self, issuer: &Issuer) -> usize {
        self.counts.get(issuer).copied().unwrap_or(0)
    }
}

impl Crowd {
    fn weakest(
        &self,
        issuer: Issuer,
        newcomer: Priority,
        is_kept: impl Fn(&NodeId) -> bool,
    ) -> Option<NodeId> {
        let bound = newcomer.min(Priority::Here);
        let all = self.order.range(Rank::first_of(issuer)..);
        let mut weaker = all
            .take_while(|rank| rank.issuer == issuer && rank.priority < bound)
            .take(LOOKS)
            .map(|rank| rank.node);
        weaker.find(|node| !is_kept(node))
    }
}

impl Directory {
    /// Whether a newcomer with this credential is admitted. Nodes that the caller wants to keep
    /// stay.
    pub(crate) fn admission_of(
        &mut self,
        credential: &Credential,
        priority: Priority,
        is_kept: impl Fn(&NodeId) -> bool,
    ) -> Admission {
        if self.entries.contains(&credential.node) || self.has_place_for(credential) {
            return Admission::Free;
        }
        let (own, Occupancy { counts, crowd }) = (issuer_of(credential), &mut self.occupancy);
        let crowd = crowd.get_or_insert_with(|| Crowd {
            order: self.entries.iter().map(Rank::of).collect(),
            sizes: counts.iter().map(|(issuer, count)| (*count, *issuer)).collect(),
        });
        let is_out = is_used_up(&own, counts.get(&own).copied().unwrap_or(0));
        let largest = crowd.sizes.last().filter(|_| !is_out).map(|(_, issuer)| *issuer);
        let from = largest.into_iter().chain([own]);
        let mut weaker = from.filter_map(|issuer| crowd.weakest(issuer, priority, &is_kept));
        weaker.next().map_or(Admission::Refused, Admission::Evict)
    }

    /// Whether a newcomer with this credential finds a free place.
    pub(super) fn has_place_for(&self, credential: &Credential) -> bool {
        let issuer = issuer_of(credential);
        self.entries.len() < MAX_MEMBERS && !is_used_up(&issuer, self.occupancy.of(&issuer))
    }

    /// Whether a node was refused for lack of space, and few entries have become free since.
    pub(crate) fn is_crowded(&self) -> bool {
        self.occupancy.crowd.is_some()
    }

    /// The invite whose nodes fill the directory, from the first node without a place until an
    /// eighth is free again.
    pub fn crowding(&self) -> Option<Crowding> {
        let (entries, invite) = *self.occupancy.crowd.as_ref()?.sizes.last()?;
        Some(Crowding { invite, entries, of: self.entries.len() })
    }
}

fn is_used_up(issuer: &Issuer, count: usize) -> bool {
    issuer.is_some() && count >= MAX_OF_INVITE
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::dice::Dice;
    use crate::directory::{Merge, Record};
    use crate::tests::{Mesh, base};

    /// A credential like one of these, for another node; it is not verified here.
    fn like(model: &Credential, number: usize) -> Credential {
        let (mut dice, mut node) = (Dice::new([9; 32], b'p'), [0; 32]);
        node[..8]
            .copy_from_slice(&(number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
        node[8..16].copy_from_slice(&dice.bytes());
        let mut credential = model.clone();
        credential.node = NodeId::from_bytes(node);
        credential
    }

    fn take(
        directory: &mut Directory,
        credential: Credential,
        priority: Priority,
        now: Instant,
    ) -> Merge {
        if let Admission::Evict(node) = directory.admission_of(&credential, priority, |_| false) {
            directory.remove(&node);
        }
        let node = credential.node;
        let outcome =
            directory.merge(&Record { credential: Arc::new(credential), state: None }, now);
        if priority == Priority::Here {
            directory.set_here(&node, true);
        }
        outcome
    }

    fn assert_in_order(directory: &Directory) {
        let Occupancy { counts, crowd } = &directory.occupancy;
        let mut counted: BTreeMap<Issuer, usize> = BTreeMap::new();
        for (_, entry) in directory.iter() {
            *counted.entry(issuer_of(&entry.credential)).or_default() += 1;
        }
        assert_eq!(*counts, counted);
        if let Some(crowd) = crowd {
            let order: BTreeSet<Rank> =
                directory.iter().map(|(_, entry)| Rank::of(entry)).collect();
            assert!(crowd.order == order, "the order is another one");
            let sizes = counts.iter().map(|(issuer, count)| (*count, *issuer)).collect();
            assert_eq!(crowd.sizes, sizes);
        }
    }

    /// After any changes of entries, the sums equal those computed from scratch.
    #[test]
    fn the_order_of_entries_follows_all_that_happens_to_them() {
        let mesh = Mesh::new(1);
        let (one, other) =
            (mesh.member(0, "a", "node"), mesh.with_invite(7).member(0, "a", "node,relay"));
        let models = [one.credential, other.credential];
        let (mut directory, mut dice) = (Directory::new(), Dice::new([3; 32], b't'));
        for number in 0..=MAX_MEMBERS {
            let model = &models[usize::from(number >= MAX_OF_INVITE)];
            take(&mut directory, like(model, number), Priority::Heard, base());
        }
        assert!(directory.is_crowded());
        for step in 0..400 {
            let now = base() + Duration::from_secs(step);
            let number = dice.below(MAX_MEMBERS);
            let node = like(&models[0], number).node;
            match dice.below(7) {
                0 => drop(directory.set_liveness(&node, Liveness::Alive, None, now)),
                1 => drop(directory.set_liveness(&node, Liveness::Down, None, now)),
                2 => drop(directory.forget(&node, now)),
                3 => directory.set_here(&node, dice.below(2) == 0),
                4 => directory.set_since(&node, base()),
                5 => {
                    // It is renewed by another issuer.
                    let mut credential = like(&models[dice.below(2)], number);
                    credential.issued_at.0 += step;
                    let credential = Arc::new(credential);
                    directory.merge(&Record { credential, state: None }, now);
                }
                _ => {
                    let newcomer = like(&models[dice.below(2)], MAX_MEMBERS + 1 + number);
                    take(&mut directory, newcomer, Priority::Here, now);
                }
            }
        }
        assert_in_order(&directory);
        assert!(directory.is_crowded());
        let all: Vec<NodeId> = directory.iter().map(|(node, _)| *node).collect();
        for node in &all[..2 * RELIEF] {
            directory.remove(node);
        }
        assert!(!directory.is_crowded(), "there is room for many");
        assert_in_order(&directory);
    }

    /// Two nodes that heard the same in another order may differ in the entries that matter to no
    /// node, and agree on all others; and further exchanges change nothing.
    #[test]
    fn nodes_that_filled_in_another_order_agree_on_important_nodes() {
        let mesh = Mesh::new(1);
        let leaked = mesh.with_invite(7);
        let plain = leaked.member(0, "a", "node").credential;
        let useful = [
            mesh.member(1, "a", "node,origin:kube-apiserver").credential,
            leaked.member(2, "a", "node,origin:kube-apiserver").credential,
            leaked.member(3, "a", "node,relay").credential,
        ];
        let count = MAX_OF_INVITE + 500;
        let invented = |number: usize| match number % 1000 {
            rest @ 0..3 => like(&useful[rest], number),
            _ => like(&plain, number),
        };
        let honest = |number: usize| like(&useful[0], 100_000 + number);
        let priority = |it: &Credential| Priority::of_hearsay(it);
        let [mut up, mut down] = [Directory::new(), Directory::new()];
        for number in 0..count {
            for (directory, number) in [(&mut up, number), (&mut down, count - 1 - number)] {
                let credential = invented(number);
                take(directory, credential.clone(), priority(&credential), base());
            }
        }
        for number in 0..3 {
            take(&mut up, honest(number), Priority::UsefulHeard, base());
            take(&mut down, honest(2 - number), Priority::UsefulHeard, base());
        }
        // The guest connects to each of them itself.
        let guest = like(&plain, 200_000);
        assert_eq!(take(&mut up, guest.clone(), Priority::Here, base()), Merge::New);
        assert_eq!(take(&mut down, guest, Priority::Here, base()), Merge::New);
        let known = |directory: &Directory| -> BTreeSet<NodeId> {
            let all = directory.iter();
            all.filter(|(_, it)| it.here || is_useful(&it.credential))
                .map(|(node, _)| *node)
                .collect()
        };
        assert_eq!(known(&up), known(&down));
        assert_eq!(known(&up).len(), 3 * (count / 1000) + 3 + 1 + 3.min(count % 1000));
        let before = (up.root(), down.root());
        let all: Vec<Arc<Credential>> =
            up.iter().map(|(_, it)| Arc::clone(&it.credential)).collect();
        for credential in all {
            take(&mut down, Credential::clone(&credential), priority(&credential), base());
        }
        assert_eq!((up.root(), down.root()), before);
    }
}
