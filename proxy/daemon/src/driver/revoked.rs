//! Sessions of revoked nodes.

use meshport_config::{NodeId, Revocations, Revoked};
use meshport_mesh::Mesh;

use crate::sessions::registry::Sessions;

/// Ends this node's sessions with an instance of a revoked node, or through it, and returns how
/// many there were. The mesh ends those over a tunnel with a revoked node; a session that a relay
/// carries would last until the relay hears of the revocation, or as long as it ignores that. Nodes
/// that continue under another key keep their sessions.
///
/// One datagram can bring several revocations, and `all` contains them from the first of their
/// events on. So every session is checked against all of them before the mesh forgets who joined
/// with a revoked invite.
pub(crate) fn close_revoked_sessions(all: &Revocations, mesh: &Mesh, sessions: &Sessions) -> u64 {
    let by_authority =
        |what: &Revoked| all.get(what).is_some_and(|found| found.successor().is_none());
    let by_invite = |node: &NodeId| {
        let invite = mesh.known_credential(node)?.delegation.as_ref()?.key;
        Some(by_authority(&Revoked::Invite(invite)))
    };
    let is_revoked =
        |node: &NodeId| by_authority(&Revoked::Node(*node)) || by_invite(node) == Some(true);
    // A session is renamed only with the event of its own succession.
    let ended = sessions.end(|node| is_revoked(node) || is_revoked(&all.successor_of(node)));
    mesh.set_revocations(all);
    ended
}
