//! Reads a node's saved directory without being a member, which shows the node's knowledge without
//! access to the daemon's internals.

use std::time::Instant;

use meshport_config::{NodeId, ServiceName, UnixSeconds};
use meshport_discovery::{Discovery, LocalNode, Memo, OriginState, Setup};
use meshport_state::Identity;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::Error;
use crate::identity::Mesh;
use crate::rules::Key;
use crate::scenario::{NodeRef, Scenario};

/// Seed of the reader's keys, which may be the same in each run since it has no contact with nodes.
const SEED: u64 = 0x7265_6164;

/// A directory's entry of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) key: Key,
    pub(super) services: Vec<(ServiceName, OriginState)>,
}

impl Record {
    /// Whether it has the same generation and the same services; versions may differ.
    pub(super) fn says_the_same(&self, other: &Self) -> bool {
        self.key.0 == other.key.0 && self.services == other.services
    }
}

/// See the module's description.
#[derive(Debug)]
pub(super) struct Reader {
    me: Identity,
    /// Cache of verified signatures, which makes a check cheap.
    memo: Memo,
}

impl Reader {
    pub(super) fn new(scenario: &Scenario, mesh: &Mesh) -> Result<Self, Error> {
        let mut rng = ChaCha8Rng::seed_from_u64(SEED);
        let member = NodeRef { site: 0, number: 1 };
        Ok(Self { me: mesh.member(scenario, member, &mut rng)?, memo: Memo::default() })
    }

    /// The records in a saved directory, by owner.
    pub(super) fn read(
        &self,
        saved: &[u8],
        now: Instant,
        wall: UnixSeconds,
    ) -> Vec<(NodeId, Record)> {
        let setup = Setup { memo: Some(self.memo.clone()), ..Setup::default() };
        let Identity { credential, record_key, .. } = &self.me;
        let me = LocalNode { credential: credential.clone(), record_key: record_key.clone() };
        let mut discovery = Discovery::new(setup, me, 1, [0; 32], now);
        discovery.restore(saved, now, wall).expect("what a node saved can be read");
        let entries = discovery.directory().iter();
        let others = entries.filter(|(node, _)| **node != self.me.credential.node);
        others
            .map(|(node, entry)| {
                let state = entry.node_state().map(|state| Record {
                    key: (state.generation, state.version),
                    services: state.services.clone(),
                });
                (*node, state.unwrap_or_default())
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::identity::bytes32;

    #[test]
    fn a_node_saves_what_it_says_of_itself_and_it_is_read() {
        let text = "description = \"One\"\nduration-s = 1\n[[site]]\nname = \"fra\"\nnodes = 1\n";
        let scenario = Scenario::parse(text).expect("a good scenario");
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let wall = UnixSeconds(1_800_000_000);
        let mesh = Mesh::new(wall, &mut rng);
        let member = mesh.member(&scenario, NodeRef { site: 0, number: 1 }, &mut rng);
        let member = member.expect("a member");
        #[expect(clippy::disallowed_methods, reason = "any time will do")]
        let now = Instant::now();
        let id = member.credential.node;
        let me = LocalNode { credential: member.credential, record_key: member.record_key };
        let seed = bytes32(&mut rng);
        let mut node = Discovery::new(Setup::default(), me, 7, seed, now);
        let now = now + Duration::from_secs(5);
        node.handle_timeout(now, wall);
        let reader = Reader::new(&scenario, &mesh).expect("a reader");
        let read = reader.read(&node.snapshot(), now, wall);
        assert_eq!(read.len(), 1);
        assert_eq!((read[0].0, read[0].1.key.0), (id, 7), "{read:?}");
    }
}
