//! The queue of durable values to be stored. No socket, no disk, no clock.
//!
//! No secret or key is used before it is stored: the driver offers it here, a writer
//! ([`crate::node::state_writer`]) stores it and reports that, and the driver uses it. A revocation
//! is in force at once and stored for the next start. A crash at any point leaves complete files.
//!
//! All that replaces this node's credential, its key, a credential of an operator or a renewal, is
//! one kind of write, so that the file has the one in use.

use std::sync::Arc;
use std::time::{Duration, Instant};

use meshport_config::{Credential, Mandate, MeshSecrets, NodeId, Revocation, Revocations};

use crate::admin::credentials::RotateKeyRequest;
use crate::renewal::state::RenewalWrite;
use meshport_state::NextIdentity;

/// The state for the next start.
#[derive(Debug)]
pub struct Snapshot {
    /// All nodes, in discovery's encoding.
    pub directory: Vec<u8>,
    /// The generation of this process, which may have increased since its start.
    pub generation: u64,
}

/// The new identity of this node, and how long its previous key still answers.
#[derive(Debug, Clone)]
pub(crate) struct KeyWrite {
    pub(crate) identity: Arc<NextIdentity>,
    pub(crate) overlap: Duration,
}

impl KeyWrite {
    /// Parses the identity that an operator supplies.
    ///
    /// # Errors
    /// The text is not a new identity.
    pub(crate) fn of(request: &RotateKeyRequest) -> Result<Self, meshport_config::Error> {
        let identity: NextIdentity = request.identity.parse()?;
        let overlap = Duration::from_secs(request.overlap_s);
        Ok(Self { identity: Arc::new(identity), overlap })
    }
}

/// Pause after a failed write before the next of its kind.
const RETRY: Duration = Duration::from_secs(5);
/// Writes passed to the writer: one of each kind.
pub(crate) const MAX_WRITES: usize = KINDS;
/// The directory is not one of them: the writer fetches it just before it writes it.
const KINDS: usize = 5;

/// Something to store.
#[derive(Debug)]
pub(crate) enum Write {
    Revocations(RevocationsWrite),
    Secrets(Box<SecretsWrite>),
    Key(KeyWrite),
    Renewal(Box<RenewalWrite>),
    /// The credential that an operator supplied.
    Credential(Box<Credential>),
    /// The mandate that an operator supplied.
    Mandate(Box<Mandate>),
    /// The mandate in use, without keys that have expired.
    Unexpired(Box<Mandate>),
    /// The cluster's nodes, as the way back encodes them.
    Nodes(Vec<u8>),
    Directory(Snapshot),
}

/// All revocations, and the one that revokes this node, if any.
#[derive(Debug, Clone)]
pub(crate) struct RevocationsWrite {
    pub(crate) all: Revocations,
    pub(crate) own: Option<Revocation>,
}

/// Mesh secrets after a rotation, or without the previous one.
#[derive(Debug, Clone)]
pub(crate) struct SecretsWrite {
    pub(crate) secrets: MeshSecrets,
    /// The member that sent them; `None` if an operator did, or if a previous secret ends.
    pub(crate) from: Option<NodeId>,
    /// Stored first: a node that passes a secret on must know the earlier revocations.
    pub(crate) revoked: Revocations,
}

impl Write {
    fn slot(&self) -> Option<usize> {
        match self {
            Self::Revocations(_) => Some(0),
            Self::Secrets(_) => Some(1),
            Self::Key(_) | Self::Renewal(_) | Self::Credential(_) => Some(2),
            Self::Mandate(_) | Self::Unexpired(_) => Some(3),
            Self::Nodes(_) => Some(4),
            Self::Directory(_) => None,
        }
    }

    /// An offer never replaces one with a higher number.
    fn number(&self) -> u64 {
        match self {
            Self::Secrets(new) => new.secrets.number(),
            // A renewal of the credential that an operator replaces would undo that, and so would
            // the rest of a former mandate. An operator's own changes exclude each other.
            Self::Key(_) | Self::Credential(_) | Self::Mandate(_) => 1,
            _ => 0,
        }
    }
}

/// One kind of write: at most one in progress and one waiting.
#[derive(Debug, Default)]
struct Slot {
    waiting: Option<Write>,
    is_under_way: bool,
    /// The highest number in progress or waiting.
    number: u64,
    rests_until: Option<Instant>,
}

/// The writes of a node.
#[derive(Debug, Default)]
pub(crate) struct WriteQueue {
    slots: [Slot; KINDS],
}

impl WriteQueue {
    /// Queues a value to be stored soon. A later offer of the same kind replaces one that waits.
    pub(crate) fn offer(&mut self, write: Write) {
        let Some(slot) = write.slot().map(|at| &mut self.slots[at]) else { return };
        if write.number() >= slot.number {
            slot.number = write.number();
            slot.waiting = Some(write);
        }
    }

    /// Whether secrets are being written or wait.
    pub(crate) fn has_secrets(&self) -> bool {
        self.slots[1].is_under_way || self.slots[1].waiting.is_some()
    }

    /// The next write for the writer, which answers each.
    pub(crate) fn poll(&mut self, now: Instant) -> Option<Write> {
        let is_due = |slot: &&mut Slot| {
            let rests = slot.rests_until.is_some_and(|until| now < until);
            slot.waiting.is_some() && !slot.is_under_way && !rests
        };
        let slot = self.slots.iter_mut().find(is_due)?;
        slot.is_under_way = true;
        slot.waiting.take()
    }

    /// The writer stored it.
    pub(crate) fn handle_stored(&mut self, write: &Write) {
        if let Some(slot) = self.end(write) {
            slot.rests_until = None;
        }
    }

    /// The writer failed. What is already in force is stored later, unless a later offer waits.
    /// Returns whether the write before it succeeded.
    pub(crate) fn handle_failure(&mut self, write: &Write, now: Instant) -> bool {
        let Some(slot) = self.end(write) else { return true };
        if let Write::Revocations(revoked) = write {
            slot.waiting.get_or_insert_with(|| Write::Revocations(revoked.clone()));
        }
        slot.rests_until.replace(now + RETRY).is_none()
    }

    fn end(&mut self, write: &Write) -> Option<&mut Slot> {
        let slot = &mut self.slots[write.slot()?];
        slot.is_under_way = false;
        slot.number = slot.waiting.as_ref().map_or(0, Write::number);
        Some(slot)
    }

    /// When to poll again.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let waiting = self.slots.iter().filter(|it| it.waiting.is_some() && !it.is_under_way);
        waiting.filter_map(|slot| slot.rests_until).min()
    }
}

#[cfg(test)]
mod tests {
    use meshport_config::{AuthorityKey, Terms};
    use meshport_core::testing::{WALL, credential};
    use rand_core::OsRng;

    use super::*;
    use crate::clock;
    use crate::identity::tests::{next, rotated, secrets};

    fn offer(secrets: &MeshSecrets) -> Write {
        let (secrets, revoked) = (secrets.clone(), Revocations::default());
        Write::Secrets(Box::new(SecretsWrite { secrets, from: None, revoked }))
    }

    fn revocations() -> Write {
        Write::Revocations(RevocationsWrite { all: Revocations::default(), own: None })
    }

    fn number(write: Option<Write>) -> u64 {
        write.expect("it is due").number()
    }

    #[test]
    fn one_of_each_kind_is_under_way_and_revocations_go_first() {
        let (mut writes, now) = (WriteQueue::default(), clock::now());
        writes.offer(offer(&secrets()));
        writes.offer(revocations());
        let first = writes.poll(now).expect("it is due");
        assert!(matches!(first, Write::Revocations(_)));
        let second = writes.poll(now).expect("it is due");
        assert!(matches!(second, Write::Secrets(_)));
        writes.offer(revocations());
        assert!(writes.poll(now).is_none(), "the writer has one of each");
        writes.handle_stored(&first);
        assert!(matches!(writes.poll(now), Some(Write::Revocations(_))));
        assert!(writes.poll(now).is_none() && writes.has_secrets());
        writes.handle_stored(&second);
        assert!(!writes.has_secrets());
    }

    #[test]
    fn an_older_secret_does_not_follow_a_newer_one() {
        let (mut writes, now) = (WriteQueue::default(), clock::now());
        let one = rotated(&secrets(), WALL);
        let two = rotated(&one, WALL);
        writes.offer(offer(&two));
        writes.offer(offer(&one));
        let under_way = writes.poll(now).expect("it is due");
        assert_eq!(under_way.number(), 2);
        // The same while the newer one is being written.
        writes.offer(offer(&one));
        writes.handle_stored(&under_way);
        assert!(writes.poll(now).is_none());
    }

    #[test]
    fn a_renewal_is_not_written_after_what_an_operator_supplies_meanwhile() {
        let (mut writes, now) = (WriteQueue::default(), clock::now());
        let own = credential(3, "node");
        let renewal = || {
            let (next, base, former) = (own.clone(), own.clone(), own.clone());
            Write::Renewal(Box::new(RenewalWrite { next, base, former, early: None }))
        };
        let supplied = || Write::Credential(Box::new(own.clone()));
        let identity = Arc::new(next(4, Some(3)));
        let key = || Write::Key(KeyWrite { identity: identity.clone(), overlap: Duration::ZERO });
        let all: [&dyn Fn() -> Write; 2] = [&supplied, &key];
        for change in all {
            // While it is being written, and while it waits for an earlier renewal.
            for first in [change, &renewal as &dyn Fn() -> Write] {
                writes.offer(first());
                let under_way = writes.poll(now).expect("it is due");
                if matches!(under_way, Write::Renewal(_)) {
                    writes.offer(change());
                }
                writes.offer(renewal());
                assert!(writes.poll(now).is_none(), "one at a time");
                writes.handle_stored(&under_way);
                if matches!(under_way, Write::Renewal(_)) {
                    let last = writes.poll(now).expect("it is due");
                    assert!(!matches!(last, Write::Renewal(_)), "{last:?}");
                    writes.handle_stored(&last);
                }
                assert!(writes.poll(now).is_none(), "it is dropped");
            }
        }
        writes.offer(renewal());
        assert!(matches!(writes.poll(now), Some(Write::Renewal(_))));
    }

    #[test]
    fn the_rest_of_a_former_mandate_is_not_written_after_a_new_one() {
        let (mut writes, now) = (WriteQueue::default(), clock::now());
        let own = credential(3, "node");
        let terms = Terms {
            issuer: own.node,
            roles: own.roles,
            site: None,
            lifetime_s: 86_400,
            from: WALL,
            until: WALL.saturating_add(864_000),
        };
        let mandate = Mandate::create(&AuthorityKey::from_bytes([9; 32]), &terms, &mut OsRng);
        let mandate = Box::new(mandate.expect("good"));
        let rest = || Write::Unexpired(mandate.clone());
        writes.offer(rest());
        writes.offer(Write::Mandate(mandate.clone()));
        writes.offer(rest());
        let new = writes.poll(now).expect("it is due");
        assert!(matches!(new, Write::Mandate(_)), "{new:?}");
        writes.offer(rest());
        writes.handle_stored(&new);
        assert!(writes.poll(now).is_none());
    }

    #[test]
    fn after_a_failure_the_latest_offer_is_written_when_the_rest_is_over() {
        let (mut writes, now) = (WriteQueue::default(), clock::now());
        let one = rotated(&secrets(), WALL);
        writes.offer(offer(&rotated(&one, WALL)));
        let failed = writes.poll(now).expect("it is due");
        assert!(writes.handle_failure(&failed, now), "the first failure");
        assert_eq!(writes.poll_timeout(), None, "nothing waits");
        // A failed write reserves no number: members offer theirs again.
        writes.offer(offer(&one));
        assert!(writes.poll(now).is_none());
        assert_eq!(writes.poll_timeout(), Some(now + RETRY));
        assert_eq!(number(writes.poll(now + RETRY)), 1);
    }

    #[test]
    fn a_revocation_is_written_again_until_it_is_stored() {
        let (mut writes, now) = (WriteQueue::default(), clock::now());
        writes.offer(revocations());
        let failed = writes.poll(now).expect("it is due");
        assert!(writes.handle_failure(&failed, now));
        assert_eq!(writes.poll_timeout(), Some(now + RETRY));
        let again = writes.poll(now + RETRY).expect("it is due");
        assert!(!writes.handle_failure(&again, now + RETRY), "not the first failure");

        let later = Write::Revocations(RevocationsWrite {
            all: crate::testing::revocations(credential(3, "node").node),
            own: None,
        });
        writes.offer(later);
        let last = writes.poll(now + RETRY * 2).expect("it is due");
        let Write::Revocations(it) = &last else { panic!("{last:?}") };
        assert!(it.all.has_node(&credential(3, "node").node), "a later one replaces it");
        writes.handle_stored(&last);
        assert!(writes.poll(now + RETRY * 3).is_none());
    }
}
