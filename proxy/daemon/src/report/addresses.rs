//! The virtual addresses of this node, and why it cannot hold them.

use std::time::Instant;

use meshport_config::NodeId;
use meshport_core::findings::{Finding, VIRTUAL_ADDRESS_ALONE, VIRTUAL_ADDRESS_OBSTACLE};

use super::{Reporter, age_s};
use crate::admin::api::VirtualAddressStatus;
use crate::admin::view::AddressRow;
use crate::vip::board::Shown;
use crate::vip::station::Obstacle;

impl Reporter<'_> {
    /// Each address as the status shows it.
    pub(super) fn virtual_addresses(&self, now: Instant) -> Vec<VirtualAddressStatus> {
        let name = |node: &NodeId| self.name(node);
        let one = |Shown { name: own, settings, state }: Shown| VirtualAddressStatus {
            name: own,
            address: settings.address,
            interface: settings.interface,
            group: settings.group,
            service: settings.service,
            priority: settings.priority,
            state: state.stance.word().to_owned(),
            for_s: age_s(state.since, now),
            obstacle: state.obstacle.map(|obstacle| obstacle.to_string()),
            holder: state.holder.as_ref().map(name),
            others: state.others.iter().map(name).collect(),
        };
        self.state.process.board.shown().into_iter().map(one).collect()
    }

    /// Each address as the view shows it.
    pub(super) fn address_rows(&self) -> Vec<AddressRow> {
        let one = |Shown { name, settings, state }: Shown| {
            let is_own = state.stance.answers();
            let other = state.holder.as_ref().map(|node| self.name(node));
            AddressRow {
                name,
                address: settings.address,
                group: settings.group,
                service: settings.service,
                state: state.stance.word().to_owned(),
                holder: if is_own { Some(self.state.identity.me.name.to_string()) } else { other },
                since_at_s: self.at_s(if is_own { state.since } else { state.holder_since }),
                obstacle: state.obstacle.map(|obstacle| obstacle.to_string()),
                others: state.others.iter().map(|node| self.name(node)).collect(),
            }
        };
        self.state.process.board.shown().into_iter().map(one).collect()
    }

    /// Why this node cannot hold its addresses. A lack of usable origins has its own findings.
    pub(super) fn address_findings(&self) -> Vec<Finding> {
        let mut found = Vec::new();
        for Shown { name, state, .. } in self.state.process.board.shown() {
            match state.obstacle {
                None if state.others.is_empty() => found.push(VIRTUAL_ADDRESS_ALONE.found(
                    format!("the virtual address {name}: no other node of its group is reachable"),
                )),
                None | Some(Obstacle::NoOrigin(_) | Obstacle::Leaving) => {}
                Some(obstacle) => found.push(
                    VIRTUAL_ADDRESS_OBSTACLE
                        .found(format!("the virtual address {name}: {obstacle}")),
                ),
            }
        }
        found
    }
}
