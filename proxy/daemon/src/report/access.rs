//! Access problems: denied nodes, reached session limits, services offered without the role.

use std::sync::atomic::Ordering;
use std::time::Instant;

use meshport_config::{Credential, NodeId, Role, ServiceName, UnixSeconds};
use meshport_discovery::{Entry, Liveness};

use crate::admin::api::ServiceStatus;
use crate::clock;
use meshport_core::access::{Denial, may_use};
use meshport_core::findings::{
    CREDENTIAL_ENDS, Finding, NOT_ALLOWED, OFFERS_NOTHING, OVERLOADED, ROLE_MISSING, SESSIONS_FULL,
};
use meshport_core::node::NodeCore;

use super::Reporter;
use crate::sessions::totals::SessionCount;
use meshport_core::ledger::{Crowding, Holder};

/// Maximum origins or nodes in warnings, one sentence each.
const MAX_SHOWN: usize = 3;

impl Reporter<'_> {
    /// The services with no free client slot.
    pub(super) fn full<'a>(
        &'a self,
        services: &'a [ServiceStatus],
    ) -> impl Iterator<Item = Finding> + 'a {
        services.iter().filter_map(|ServiceStatus { name, .. }| {
            let most = self.state.services.get(name)?.max_sessions()?;
            let totals = self.state.sessions.totals(name);
            let turned_away = totals.counts.get(SessionCount::OverLimit);
            (totals.open.load(Ordering::Relaxed) >= most).then(|| {
                SESSIONS_FULL.found(format!(
                    "{name}: the limit of {most} client sessions is reached; new ones are reset \
                     ({turned_away} since the start){}",
                    self.low_limit()
                ))
            })
        })
    }

    /// Ends the text of a finding about limits that depend on the number of descriptors.
    pub(super) fn low_limit(&self) -> &'static str {
        match self.state.sessions.lacks_descriptors() {
            true => "; the limit on open files is low",
            false => "",
        }
    }

    /// Services that this node may offer but has no instance of.
    pub(super) fn unoffered(&self) -> impl Iterator<Item = Finding> {
        self.state.identity.credential.roles.iter().filter_map(|role| {
            let Role::Origin(name) = role else { return None };
            let offers = self.state.services.get(name).is_some_and(|it| it.origin.is_some());
            (!offers).then(|| {
                OFFERS_NOTHING
                    .found(format!("this node has the role {role}, but offers no {name}"))
                    .naming("service.NAME", &format!("service.{name}"))
            })
        })
    }

    /// The finding if streams of other nodes were recently refused for lack of slots, with the node
    /// that has most.
    pub(super) fn crowding(&self, now: Instant) -> Option<Finding> {
        let Crowding { turned_away, most } = self.state.sessions.crowding(now)?;
        let name = |node: &NodeId| {
            let entry = self.core.discovery().directory().get(node);
            entry.map_or_else(|| node.short(), |entry| entry.credential.name.to_string())
        };
        let all: Vec<String> = most.iter().map(|(who, count)| said(who, *count, name)).collect();
        let limits = self.low_limit();
        Some(OVERLOADED.found(format!(
            "sessions of other nodes are refused (overloaded), {turned_away} since the start; \
             most have {}{limits}",
            all.join(", ")
        )))
    }

    /// The origins that deny this node access.
    pub(super) fn denials(&self) -> Vec<Finding> {
        let of_service = |service: &ServiceName| {
            let route = self.core.route(service).cloned().unwrap_or_default();
            let denied = route.candidates.iter().filter(|it| it.origin.denied);
            let names = denied.map(|it| it.origin.name.clone()).take(MAX_SHOWN);
            names.map(|name| self.denial(service, &name)).collect::<Vec<_>>()
        };
        // Its end is reported, and is the reason for all.
        match has_ended(&self.state.identity.credential, clock::wall()) {
            true => Vec::new(),
            false => self.core.services().flat_map(of_service).collect(),
        }
    }

    /// Why an origin denies this node access, as far as this node knows.
    pub(crate) fn denial(&self, service: &ServiceName, origin: &str) -> Finding {
        let me = &self.state.identity.credential;
        denial(me, service, origin, clock::wall())
    }
}

/// Whether all nodes deny access to the holder, whatever they allow.
pub(super) fn has_ended(own: &Credential, now: UnixSeconds) -> bool {
    may_use(own, now) == Err(Denial::Ended)
}

fn denial(me: &Credential, service: &ServiceName, origin: &str, now: UnixSeconds) -> Finding {
    if has_ended(me, now) {
        let text = "this node's credential has expired";
        return CREDENTIAL_ENDS.broken(format!("{service}: {origin} refuses this node: {text}"));
    }
    NOT_ALLOWED
        .found(format!(
            "{service}: {origin} refuses this node: its `allow` under [service.{service}] has no \
             entry for the name {}, the site {} or a role of {}",
            me.name, me.site, me.roles
        ))
        .naming("service.NAME", &format!("service.{service}"))
}

/// Describes a holder's sessions here.
fn said(holder: &Holder, count: u64, name: impl Fn(&NodeId) -> String) -> String {
    match holder {
        Holder::Node(node) => format!("{} {count}", name(node)),
        Holder::Relay(relay) => format!("what {} relays {count}", name(relay)),
        Holder::Behind { relay, node } => {
            format!("{} through {} {count}", name(node), name(relay))
        }
    }
}

/// Findings for nodes that announce services their credentials do not allow. Nothing is routed to
/// them.
pub(super) fn misfits(core: &NodeCore) -> Vec<Finding> {
    let entries = core.discovery().directory().iter();
    let here = entries.filter(|(_, entry)| entry.liveness == Liveness::Alive);
    let finding = |(_, entry): (&NodeId, &Entry)| {
        let names: Vec<String> = entry.ignored_services().map(ToString::to_string).collect();
        misfit(entry.credential.name.as_str(), &names)
    };
    here.filter_map(finding).take(MAX_SHOWN).collect()
}

/// A node that announces these services without being allowed to.
fn misfit(node: &str, services: &[String]) -> Option<Finding> {
    let first = services.first()?;
    Some(ROLE_MISSING.found(format!(
        "{node} announces {}, which its credential does not allow: it lacks the role \
         origin:{first}",
        services.join(", ")
    )))
}

#[cfg(test)]
mod tests {
    use meshport_core::testing::credential;

    use super::*;

    #[test]
    fn an_expired_credential_is_the_reason_for_a_refusal_rather_than_allow() {
        let (me, service) = (credential(4, "node"), ServiceName::kube_apiserver());
        let said = |now: u64| denial(&me, &service, "cp-1", UnixSeconds(now));
        let before = said(me.expires_at.0 - 1);
        assert!(before.kind.id == "MP308" && before.detail.contains("`allow`"), "{before}");
        let after = said(me.expires_at.0);
        assert!(after.kind.id == "MP203" && !after.detail.contains("allow"), "{after}");
    }

    #[test]
    fn a_node_that_announces_a_denied_service_learns_which_role_it_needs() {
        assert_eq!(misfit("cp-2", &[]), None);
        let said = misfit("cp-2", &["kube-apiserver".to_owned()]).expect("a finding").detail;
        assert!(said.starts_with("cp-2 announces kube-apiserver"), "{said}");
        assert!(said.contains("role origin:kube-apiserver"), "{said}");
    }
}
