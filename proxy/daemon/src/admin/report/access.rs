//! Warnings about access: denied nodes, reached session limits, services offered without the role.

use std::sync::atomic::Ordering;
use std::time::Instant;

use meshport_config::{NodeId, ServiceName};
use meshport_discovery::{Entry, Liveness};

use crate::admin::api::ServiceStatus;
use meshport_core::node::NodeCore;

use super::Reporter;
use meshport_core::ledger::{Crowding, Holder};

/// Origins or nodes that are warned of, each in a sentence.
const MAX_SHOWN: usize = 3;

impl Reporter {
    /// The services whose places for clients are all taken.
    pub(super) fn full<'a>(
        &'a self,
        services: &'a [ServiceStatus],
    ) -> impl Iterator<Item = String> + 'a {
        services.iter().filter_map(|ServiceStatus { name, .. }| {
            let most = self.services.get(name)?.max_sessions()?;
            let totals = self.sessions.totals(name);
            let turned_away = totals.clients.over_limit.load(Ordering::Relaxed);
            (totals.clients.open.load(Ordering::Relaxed) >= most).then(|| {
                format!(
                    "{name}: the limit of {most} client sessions is reached: new ones are reset \
                     ({turned_away} since the start). Raise max-sessions under [service.{name}], \
                     or find the clients that hold them: `ss -tnp` on this machine"
                )
            })
        })
    }

    /// Whether streams of other nodes found no place lately, and who has most.
    pub(super) fn crowding(&self, core: &NodeCore, now: Instant) -> Option<String> {
        let Crowding { turned_away, most } = self.sessions.crowding(now)?;
        let name = |node: &NodeId| {
            let entry = core.discovery().directory().get(node);
            entry.map_or_else(|| node.short(), |entry| entry.credential.name.to_string())
        };
        let all: Vec<String> = most.iter().map(|(who, count)| said(who, *count, name)).collect();
        let limits = match self.sessions.lacks_descriptors() {
            true => ". The limit on open files is low: raise LimitNOFILE",
            false => "",
        };
        Some(format!(
            "sessions of other nodes are refused (overloaded), {turned_away} since the start: a \
             node may have at most as many sessions here as there are places left for others. \
             Most have {}. Find out on those nodes what opens them, or revoke a compromised \
             one{limits}",
            all.join(", ")
        ))
    }

    /// The origins that do not let this node in.
    pub(super) fn denials(&self, core: &NodeCore) -> Vec<String> {
        let of_service = |service: &ServiceName| {
            let route = core.route(service).cloned().unwrap_or_default();
            let denied = route.candidates.iter().filter(|it| it.origin.denied);
            let names = denied.map(|it| it.origin.name.clone()).take(MAX_SHOWN);
            names.map(|name| self.denial(service, &name)).collect::<Vec<_>>()
        };
        core.services().flat_map(of_service).collect()
    }

    /// Why an origin does not let this node in, as far as this node can know, and what to do.
    pub(crate) fn denial(&self, service: &ServiceName, origin: &str) -> String {
        let me = &self.identity.credential;
        format!(
            "{service}: {origin} refuses this node: `allow` under [service.{service}] there has \
             no entry for its name {}, its site {} or a role of {}. A name or site counts only if \
             the invite fixed it",
            me.name, me.site, me.roles
        )
    }
}

/// Who has how many sessions here.
fn said(holder: &Holder, count: u64, name: impl Fn(&NodeId) -> String) -> String {
    match holder {
        Holder::Node(node) => format!("{} {count}", name(node)),
        Holder::Relay(relay) => format!("what {} relays {count}", name(relay)),
        Holder::Behind { relay, node } => {
            format!("{} through {} {count}", name(node), name(relay))
        }
    }
}

/// The nodes that announce services which their credentials do not allow. Nothing is routed there.
pub(super) fn misfits(core: &NodeCore) -> Vec<String> {
    let entries = core.discovery().directory().iter();
    let here = entries.filter(|(_, entry)| entry.liveness == Liveness::Alive);
    let sentence = |(_, entry): (&NodeId, &Entry)| {
        let names: Vec<String> = entry.ignored_services().map(ToString::to_string).collect();
        misfit(entry.credential.name.as_str(), &names)
    };
    here.filter_map(sentence).take(MAX_SHOWN).collect()
}

/// What to do about a node that announces these services without being allowed to.
fn misfit(node: &str, services: &[String]) -> Option<String> {
    let first = services.first()?;
    Some(format!(
        "{node} announces {}, which its credential does not allow, so it is ignored. Let it join \
         again with the role origin:{first}, or remove the origin from its configuration",
        services.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_announces_what_it_may_not_is_told_which_role_it_needs() {
        assert_eq!(misfit("cp-2", &[]), None);
        let said = misfit("cp-2", &["kube-apiserver".to_owned()]).expect("a warning");
        assert!(said.starts_with("cp-2 announces kube-apiserver"), "{said}");
        assert!(said.contains("role origin:kube-apiserver"), "{said}");
    }
}
