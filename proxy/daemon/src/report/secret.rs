//! The current mesh secret, and the members that have not reported it.

use std::collections::BTreeMap;

use meshport_config::NodeId;
use meshport_discovery::Liveness;
use meshport_mesh::{Mesh, PeerStatus};

use crate::admin::credentials::SecretStatus;
use crate::clock;
use meshport_core::findings::{Finding, SECRET_LAGGING};

use super::Reporter;

/// Names listed; the rest is counted.
const MAX_NAMES: usize = 10;

impl Reporter<'_> {
    pub(super) fn secret(&self, mesh: &Mesh) -> SecretStatus {
        self.secret_with(|number| self.lagging(mesh, number))
    }

    /// Like `secret`, for a node outside any rotation.
    pub(crate) fn secret_alone(&self) -> SecretStatus {
        self.secret_with(|_| Vec::new())
    }

    fn secret_with(&self, lagging: impl FnOnce(u64) -> Vec<String>) -> SecretStatus {
        let secrets = &self.state.identity.secrets;
        // A secret that has expired by the clock is refused, erased or not.
        let former_ends_at = secrets.retires_at().filter(|at| clock::wall() < *at);
        // Without a former secret, members that lag can no longer connect.
        let lagging = match former_ends_at {
            Some(_) => lagging(secrets.number()),
            None => Vec::new(),
        };
        SecretStatus {
            number: secrets.number(),
            rotated_at: secrets.rotation().map(|rotation| rotation.at),
            former_ends_at,
            lagging: lagging.len(),
            lagging_names: lagging.into_iter().take(MAX_NAMES).collect(),
        }
    }

    fn lagging(&self, mesh: &Mesh, number: u64) -> Vec<String> {
        let peers: BTreeMap<NodeId, PeerStatus> =
            mesh.peers().into_iter().map(|peer| (peer.node, peer)).collect();
        let others = self.core.discovery().directory().iter();
        let lag = others.filter(|(node, entry)| {
            **node != self.state.identity.me.node
                && lags(peers.get(node), entry.liveness == Liveness::Alive, number)
        });
        let mut names: Vec<String> =
            lag.map(|(_, entry)| entry.credential.name.to_string()).collect();
        names.sort();
        names
    }
}

/// Whether a member may lack the secret. Absent members do: they must return before the former
/// secret ends. One that is alive without a tunnel to this node gets it from others, which notice
/// if it does not take it.
fn lags(peer: Option<&PeerStatus>, is_alive: bool, number: u64) -> bool {
    let has = peer.and_then(|it| it.secret_number).is_some_and(|said| said >= number);
    let has_tunnel = peer.is_some_and(|it| it.session);
    !has && (has_tunnel || !is_alive)
}

/// The number of the mesh secret that each peer has reported.
pub(super) fn numbers(mesh: &Mesh) -> BTreeMap<NodeId, u64> {
    mesh.peers().into_iter().filter_map(|peer| Some((peer.node, peer.secret_number?))).collect()
}

/// The warning for the operator before the former secret ends.
pub(super) fn finding(secret: &SecretStatus) -> Option<Finding> {
    let until = secret.former_ends_at.filter(|_| secret.lagging > 0)?;
    let names = secret.lagging_names.join(", ");
    let more = match secret.lagging - secret.lagging_names.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(SECRET_LAGGING.found(format!(
        "may not have the new mesh secret yet: {names}{more}; the old one expires at {until}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_live_member_without_a_tunnel_is_left_to_others() {
        let peer = |session, secret_number| PeerStatus {
            node: NodeId::from_bytes([1; 32]),
            name: None,
            address: std::net::Ipv6Addr::LOCALHOST,
            endpoint: None,
            admitted: session,
            session,
            last_handshake: None,
            last_received: None,
            rx_bytes: 0,
            tx_bytes: 0,
            queued: 0,
            quic_rtt: None,
            streams: 0,
            secret_number,
        };
        for (peer, is_alive, expected) in [
            (None, true, false),
            (Some(peer(false, None)), true, false),
            (Some(peer(true, None)), true, true),
            (Some(peer(true, Some(1))), true, true),
            (Some(peer(true, Some(2))), true, false),
            (Some(peer(false, Some(2))), false, false),
            (Some(peer(false, Some(1))), false, true),
            (None, false, true),
        ] {
            assert_eq!(lags(peer.as_ref(), is_alive, 2), expected, "{peer:?} {is_alive}");
        }
    }
}
