//! Log lines about routes.

use meshport_config::{NodeId, ServiceName};
use tracing::{info, warn};

use meshport_core::changes::{Change, Choice};
use meshport_core::route::{Line, Route};

/// Logs how a service's first choice changed, and why.
pub(crate) fn route(
    service: &ServiceName,
    change: &Change,
    route: &Route,
    node: impl Fn(&NodeId) -> String,
) {
    let from = change.from.as_ref().map_or("none", name);
    let Change { cause, .. } = change;
    let (Some(to), Some(first)) = (&change.to, route.choice()) else {
        warn!(%service, %from, cause, "no origin can be used");
        return;
    };
    let to = name(to);
    let site = first.origin.site.as_ref().map(tracing::field::display);
    let relay = match first.origin.line {
        Line::Relayed { relay, .. } => Some(node(&relay)),
        Line::Direct(_) | Line::Outside(_) => None,
    };
    info!(%service, %from, %to, site, relay, cause, why = route.why, "route changed");
}

fn name(choice: &Choice) -> &str {
    &choice.name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::testing::logged;

    #[test]
    fn a_change_says_from_where_to_where_and_why() {
        let service: ServiceName = "kube-apiserver".parse().expect("a name");
        let line = |port| Line::Outside(([192, 0, 2, 1], port).into());
        let choice = |port, name: &str| Some(Choice { line: line(port), name: name.to_owned() });
        let (from, to) = (choice(1, "cp-fra"), choice(2, "cp-nyc"));
        let change = Change { at: clock::now(), from, to, cause: "refusing" };
        let origin = meshport_core::route::OriginView::outside(([192, 0, 2, 1], 2).into());
        let (policy, memory) = (meshport_core::route::Policy::Spread, Default::default());
        let (now_first, _) =
            meshport_core::route::choose(vec![origin], &policy, &memory, clock::now());
        let said = logged(|| route(&service, &change, &now_first, NodeId::short));
        assert!(said.contains("from=cp-fra to=cp-nyc cause=\"refusing\""), "{said}");
        let none = Change { to: None, ..change };
        let said = logged(|| route(&service, &none, &Route::default(), NodeId::short));
        assert!(said.contains("from=cp-fra cause=\"refusing\""), "{said}");
    }
}
