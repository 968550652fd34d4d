//! Succession: how a node's WireGuard key is replaced.
//!
//! A NodeId is a public key, so a node with a new key is another node. Its credential names the
//! node it succeeds, and that node's key has signed its consent: the [`Succession`]. Neither part
//! suffices alone: an issuer cannot take over a node without its key, and a node's key alone yields
//! no credential. The consent is also the previous node's revocation, which anyone can verify by
//! itself.

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::ids::{MeshId, NodeId, UnixSeconds};
use crate::keys::{NodeKey, Signature};
use crate::signing::signed_message;

const DOMAIN: &[u8] = b"meshport succession v1\0";

/// A node's consent that a certain other node succeeds it.
///
/// A value of this type is well formed, not verified: [`Succession::verify`] decides whether to
/// accept it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Succession {
    /// The node that consents and thereby ends.
    pub former: NodeId,
    /// Time of signing; informational only.
    pub at: UnixSeconds,
    pub(crate) signature: Signature,
}

impl Succession {
    /// The node of `former` consents that `successor` succeeds it in `mesh`.
    pub fn agree(former: &NodeKey, successor: &NodeId, mesh: &MeshId, at: UnixSeconds) -> Self {
        let node = former.public();
        let message = signed_message(DOMAIN, &(mesh, node, successor, at));
        Self { former: node, at, signature: former.sign(&message) }
    }

    /// Checks that the previous node has signed it, for this successor in this mesh.
    ///
    /// # Errors
    /// [`Error::Tampered`].
    pub fn verify(&self, mesh: &MeshId, successor: &NodeId) -> Result<(), Error> {
        let message = signed_message(DOMAIN, &(mesh, self.former, successor, self.at));
        // A node that succeeds itself would be revoked by its own credential.
        let is_other = self.former != *successor;
        let is_good = is_other && self.former.verify(&message, &self.signature).is_ok();
        if is_good { Ok(()) } else { Err(Error::Tampered { what: "the former key's consent" }) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{DAY, NOW, TestRng, grant, invite_with};
    use crate::{Added, Credential, Invite, Join, RecordKey, Revocation, Revocations, Revoked};

    /// A node of a mesh, and an invite by which its successor gets a credential.
    fn place(seed: u64) -> (NodeKey, Invite, TestRng) {
        let mut rng = TestRng::new(seed);
        let (_, invite) = invite_with(grant(), &mut rng);
        (NodeKey::generate(&mut rng), invite, rng)
    }

    fn credential(
        invite: &Invite,
        rng: &mut TestRng,
        node: &NodeKey,
        succession: Option<Succession>,
    ) -> Result<Credential, Error> {
        let name = Some("worker-7".parse().unwrap());
        let join = Join { name, succession, ..Join::default() };
        invite.accept(node, &RecordKey::generate(rng), join, NOW)
    }

    #[test]
    fn a_successor_needs_a_credential_and_the_former_nodes_agreement() {
        for seed in 0..32 {
            let (former, invite, mut rng) = place(seed);
            let (mesh, next) = (*invite.mesh(), NodeKey::generate(&mut rng));
            let agreed = Succession::agree(&former, &next.public(), &mesh, NOW);
            agreed.verify(&mesh, &next.public()).expect("keys of either sign can sign");
            let credential = credential(&invite, &mut rng, &next, Some(agreed)).expect("good");
            let again = Credential::from_text(&credential.to_text()).expect("it has a text form");
            assert_eq!(again, credential);
            again.verify(&mesh, NOW).expect("it is good");
            let late = again.verify(&mesh, again.expires_at);
            assert!(matches!(late, Err(Error::Expired { .. })), "{late:?}");
            // It can neither lose its succession nor lend it to another credential.
            let mut lost = again.clone();
            lost.succession = None;
            assert_eq!(lost.verify(&mesh, NOW), Err(Error::Tampered { what: "the credential" }));
        }
    }

    #[test]
    fn no_succession_without_the_former_nodes_own_signature() {
        let (former, invite, mut rng) = place(1);
        let (mesh, next) = (*invite.mesh(), NodeKey::generate(&mut rng));
        let thief = NodeKey::generate(&mut rng);
        let refused = |succession: &Succession, node: &NodeKey, rng: &mut TestRng| {
            let error = credential(&invite, rng, node, Some(succession.clone())).unwrap_err();
            assert_eq!(error, Error::Tampered { what: "the former key's consent" });
        };
        // A holder of an invite signs with its own key, in the name of the victim.
        let own = Succession::agree(&thief, &thief.public(), &mesh, NOW);
        let forged = Succession { former: former.public(), ..own };
        refused(&forged, &thief, &mut rng);
        // The consent was for another successor, another mesh, another time.
        let agreed = Succession::agree(&former, &next.public(), &mesh, NOW);
        refused(&agreed, &thief, &mut rng);
        let (_, elsewhere, _) = place(2);
        let foreign = Succession::agree(&former, &next.public(), elsewhere.mesh(), NOW);
        refused(&foreign, &next, &mut rng);
        refused(&Succession { at: NOW.saturating_add(DAY), ..agreed.clone() }, &next, &mut rng);
        refused(&Succession { former: next.public(), ..agreed.clone() }, &next, &mut rng);
        let itself = Succession::agree(&next, &next.public(), &mesh, NOW);
        refused(&itself, &next, &mut rng);
        for bit in 0..512 {
            let mut bytes = *agreed.signature.as_bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let changed = Succession { signature: Signature::from_bytes(bytes), ..agreed.clone() };
            assert!(changed.verify(&mesh, &next.public()).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn the_agreement_revokes_the_former_node_and_nobody_else() {
        let (former, invite, mut rng) = place(1);
        let (mesh, next) = (*invite.mesh(), NodeKey::generate(&mut rng));
        let before = credential(&invite, &mut rng, &former, None).expect("good");
        assert!(before.ends_former().is_none());
        let agreed = Succession::agree(&former, &next.public(), &mesh, NOW);
        let after = credential(&invite, &mut rng, &next, Some(agreed)).expect("good");
        let end = after.ends_former().expect("it has a former one");
        end.verify(&mesh).expect("it is signed by the former one");
        let read = Revocation::from_text(&end.to_text()).expect("it has a text form");
        assert_eq!(read, end);
        let mut all = Revocations::default();
        assert_eq!(all.add(end.clone()), Added::New);
        assert_eq!(all.add(end.clone()), Added::Known);
        assert_eq!(all.covering(&before), Some(&end));
        assert!(all.has_node(&former.public()) && all.covering(&after).is_none());
        assert_eq!(end.successor(), Some(next.public()));
        // It is not one of the authority's, which have a separate limit and come first.
        assert_eq!((all.len(), all.digest(), all.iter().count()), (0, 0, 1));
        let (authority, _) = invite_with(grant(), &mut TestRng::new(7));
        let theirs = Revocation::issue(&authority, Revoked::Node(former.public()), NOW);
        let mut both = all.clone();
        assert_eq!(both.add(theirs.clone()), Added::New);
        assert_eq!((both.covering(&before), both.len()), (Some(&theirs), 1));
        assert_eq!(all.successor_of(&former.public()), next.public());
        // Two nodes that succeed each other form a cycle, which must terminate.
        let back = Succession::agree(&next, &former.public(), &mesh, NOW);
        all.add(Revocation::of_succession(&mesh, &former.public(), &back));
        all.successor_of(&former.public());
        let bytes = end.to_bytes();
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let believed = Revocation::from_bytes(&bytes).is_ok_and(|it| it.verify(&mesh).is_ok());
            assert!(!believed, "bit {bit}");
        }
    }
}
