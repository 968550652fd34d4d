//! The current mesh secret, and the members that have not reported it.

use std::collections::BTreeMap;

use meshport_config::NodeId;
use meshport_mesh::Mesh;

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

    /// Absent members count: they must return before the former secret ends.
    fn lagging(&self, mesh: &Mesh, number: u64) -> Vec<String> {
        let said = numbers(mesh);
        let has = |node: &NodeId| said.get(node).is_some_and(|said| *said >= number);
        let others = self.core.discovery().directory().iter();
        let lag = others.filter(|(node, _)| **node != self.state.identity.me.node && !has(node));
        let mut names: Vec<String> =
            lag.map(|(_, entry)| entry.credential.name.to_string()).collect();
        names.sort();
        names
    }
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
