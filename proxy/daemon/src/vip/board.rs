//! State exchanged between the tasks of the virtual addresses and the rest of the node.
//!
//! Bounds: [`MAX_CLAIMS`] queued claims per task (excess claims are counted and dropped; the sender
//! repeats them) and [`MAX_MEMBERS`] nodes with the role.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use meshport_config::counters::{Counter, Counters, SharedCounters};
use meshport_config::{Credential, NodeId, Role, VirtualAddressSettings, VirtualName, counters};
use meshport_core::vip::claim::{Claim, Stance};
use meshport_core::vip::message::{BadMessage, Message};
use tokio::sync::{mpsc, watch};

use super::station::Obstacle;

/// Queued claims per address: what all nodes of a group send in two seconds.
const MAX_CLAIMS: usize = 64;
/// Nodes with the role `vip` that receive this node's claims.
const MAX_MEMBERS: usize = 1024;

counters! {
    /// Virtual address events since the start.
    pub(crate) enum AddressCount {
        "meshport_virtual_address_changes_total" by "change" {
            /// This node began to answer for it.
            Gained = "gained",
            /// This node stopped answering for it.
            Lost = "lost",
        }
        "meshport_virtual_address_claims_total" by "outcome" {
            /// Passed to the task of the address.
            Heard = "heard",
            /// The sender's credential lacks the role vip.
            WithoutRole = "without-role",
            /// For an address or group that this node does not have or cannot serve.
            Foreign = "foreign",
            /// Not decodable.
            Malformed = "malformed",
            /// Of an unknown version.
            UnknownVersion = "unknown-version",
            /// Dropped because the queue of the address was full.
            Crowded = "crowded",
        }
    }
}

type Counts = SharedCounters<AddressCount, COUNTS>;
const COUNTS: usize = AddressCount::ALL.len();

/// The state of one address on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct State {
    /// Whether this node holds the address, stands by or releases it.
    pub(crate) stance: Stance,
    /// Why this node does not hold the address, if so.
    pub(crate) obstacle: Option<Obstacle>,
    /// The other node that claims to hold it.
    pub(crate) holder: Option<NodeId>,
    /// The other nodes of the group heard over the mesh.
    pub(crate) others: Vec<NodeId>,
    /// When `stance` last changed.
    pub(crate) since: Instant,
    /// When `holder` last changed.
    pub(crate) holder_since: Instant,
}

/// One address for the status and the metrics.
#[derive(Debug, Clone)]
pub(crate) struct Shown {
    pub(crate) name: VirtualName,
    pub(crate) settings: VirtualAddressSettings,
    pub(crate) state: State,
}

#[derive(Debug)]
struct Entry {
    settings: VirtualAddressSettings,
    claims: mpsc::Sender<(NodeId, Claim)>,
    state: watch::Receiver<State>,
}

/// A task's end of the board.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) claims: mpsc::Receiver<(NodeId, Claim)>,
    pub(super) state: watch::Sender<State>,
    pub(super) members: watch::Receiver<BTreeSet<NodeId>>,
    pub(super) counts: Arc<Counts>,
}

#[derive(Debug)]
struct Inner {
    entries: Mutex<BTreeMap<VirtualName, Entry>>,
    /// All nodes of the mesh that may hold virtual addresses.
    members: watch::Sender<BTreeSet<NodeId>>,
    counts: Arc<Counts>,
}

/// See the module's description. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Board(Arc<Inner>);

impl Default for Board {
    fn default() -> Self {
        let inner = Inner {
            entries: Mutex::default(),
            members: watch::Sender::new(BTreeSet::new()),
            counts: Arc::default(),
        };
        Self(Arc::new(inner))
    }
}

impl Board {
    /// Adds an address in standby.
    pub(super) fn add(
        &self,
        name: VirtualName,
        settings: VirtualAddressSettings,
        since: Instant,
    ) -> Side {
        let state = State {
            stance: Stance::Standby,
            obstacle: None,
            holder: None,
            others: Vec::new(),
            since,
            holder_since: since,
        };
        let (claims, received) = mpsc::channel(MAX_CLAIMS);
        let (sender, state) = watch::channel(state);
        self.entries().insert(name, Entry { settings, claims, state });
        Side {
            claims: received,
            state: sender,
            members: self.0.members.subscribe(),
            counts: self.0.counts.clone(),
        }
    }

    /// Handles a datagram from a node with this credential. Returns a description of a message
    /// whose version is unknown.
    pub(crate) fn hear(
        &self,
        from: NodeId,
        credential: Option<&Credential>,
        datagram: &[u8],
    ) -> Option<String> {
        let count = |what| self.0.counts.add(what, 1);
        let message = match Message::decode(datagram) {
            Ok(message) => message,
            Err(unknown @ BadMessage::Version(_)) => {
                count(AddressCount::UnknownVersion);
                return Some(unknown.to_string());
            }
            Err(BadMessage::Malformed) => {
                count(AddressCount::Malformed);
                return None;
            }
        };
        if !credential.is_some_and(may_hold) {
            count(AddressCount::WithoutRole);
            return None;
        }
        let entries = self.entries();
        let is_match = |entry: &&Entry| {
            let VirtualAddressSettings { address, group, .. } = &entry.settings;
            // Closed without a task, which needs a packet socket.
            *address == message.address && *group == message.group && !entry.claims.is_closed()
        };
        count(match entries.values().find(is_match) {
            None => AddressCount::Foreign,
            Some(entry) => match entry.claims.try_send((from, message.claim)) {
                Ok(()) => AddressCount::Heard,
                Err(_) => AddressCount::Crowded,
            },
        });
        None
    }

    /// Records a node's credential.
    pub(crate) fn note_member(&self, credential: &Credential) {
        let node = credential.node;
        self.0.members.send_if_modified(|members| match may_hold(credential) {
            true => members.len() < MAX_MEMBERS && members.insert(node),
            false => members.remove(&node),
        });
    }

    pub(crate) fn forget_member(&self, node: &NodeId) {
        self.0.members.send_if_modified(|members| members.remove(node));
    }

    /// All addresses, for the status.
    pub(crate) fn shown(&self) -> Vec<Shown> {
        let shown = |(name, entry): (&VirtualName, &Entry)| Shown {
            name: name.clone(),
            settings: entry.settings.clone(),
            state: entry.state.borrow().clone(),
        };
        self.entries().iter().map(shown).collect()
    }

    /// The counters, summed over all addresses.
    pub(crate) fn counts(&self) -> Counters<AddressCount, COUNTS> {
        self.0.counts.read()
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<VirtualName, Entry>> {
        self.0.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a credential allows its node to hold virtual addresses.
pub(super) fn may_hold(credential: &Credential) -> bool {
    credential.roles.contains(&Role::Vip)
}

#[cfg(test)]
mod tests {
    use meshport_core::testing::credential;
    use meshport_core::vip::frame::Hardware;

    use super::*;
    use crate::clock;

    fn settings() -> VirtualAddressSettings {
        VirtualAddressSettings {
            address: "192.0.2.10".parse().expect("an address"),
            interface: "eth0".to_owned(),
            group: "rack-1".parse().expect("a name"),
            service: "kube-apiserver".parse().expect("a name"),
            priority: 100,
            on_gain: None,
            on_loss: None,
        }
    }

    fn message() -> Message {
        let claim = Claim {
            incarnation: 1,
            sequence: 1,
            usable: true,
            priority: 100,
            stance: Stance::Holding,
            hardware: Hardware([2, 0, 0, 0, 0, 1]),
            hears: true,
        };
        let VirtualAddressSettings { address, group, .. } = settings();
        Message { group, address, claim }
    }

    #[test]
    fn a_claim_needs_the_role_the_group_and_the_address() {
        let board = Board::default();
        let mut side = board.add("api".parse().expect("a name"), settings(), clock::now());
        let (with, without) = (credential(4, "node,vip"), credential(5, "node"));
        let said = message().encode();
        assert_eq!(board.hear(with.node, Some(&with), &said), None);
        assert_eq!(side.claims.try_recv(), Ok((with.node, message().claim)));
        assert_eq!(board.hear(without.node, Some(&without), &said), None);
        assert_eq!(board.hear(without.node, None, &said), None);
        let group = Message { group: "rack-2".parse().expect("a name"), ..message() };
        assert_eq!(board.hear(with.node, Some(&with), &group.encode()), None);
        assert_eq!(board.hear(with.node, Some(&with), &said[..9]), None);
        let later = [&[9], &said[1..]].concat();
        let unknown = board.hear(with.node, Some(&with), &later);
        assert_eq!(unknown.as_deref(), Some("claim of version 9"));
        assert!(side.claims.try_recv().is_err());
        drop(side);
        assert_eq!(board.hear(with.node, Some(&with), &said), None);
        let counts = board.counts();
        assert_eq!((counts[AddressCount::Heard], counts[AddressCount::WithoutRole]), (1, 2));
        assert_eq!((counts[AddressCount::Foreign], counts[AddressCount::Malformed]), (2, 1));
        assert_eq!(counts[AddressCount::UnknownVersion], 1);
    }

    #[test]
    fn claims_that_nobody_takes_up_are_counted() {
        let board = Board::default();
        let _side = board.add("api".parse().expect("a name"), settings(), clock::now());
        let with = credential(4, "node,vip");
        for _ in 0..MAX_CLAIMS + 3 {
            board.hear(with.node, Some(&with), &message().encode());
        }
        assert_eq!(board.counts()[AddressCount::Crowded], 3);
    }

    #[test]
    fn members_are_those_with_the_role() {
        let board = Board::default();
        let side = board.add("api".parse().expect("a name"), settings(), clock::now());
        let with = credential(4, "node,vip");
        board.note_member(&with);
        board.note_member(&credential(5, "node"));
        assert_eq!(*side.members.borrow(), [with.node].into());
        board.note_member(&credential(4, "node"));
        assert!(side.members.borrow().is_empty());
        board.note_member(&with);
        board.forget_member(&with.node);
        assert!(side.members.borrow().is_empty());
    }
}
