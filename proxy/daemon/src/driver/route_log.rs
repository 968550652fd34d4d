//! Log lines about routes.

use meshport_config::{NodeId, ServiceName};
use tracing::{info, warn};

use meshport_core::changes::{Change, Choice};
use meshport_core::route::{Line, Route, Standing};

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

/// Logs when no origin of a service is ready any more, and when one is again.
pub(crate) fn readiness(service: &ServiceName, before: &Route, now: &Route) {
    let was_ready = before.unready_choice().is_none();
    match (now.unready_choice(), now.choice()) {
        (Some(first), _) if was_ready => {
            let (to, state) = (&first.origin.name, first.origin.state);
            warn!(%service, %to, %state, "no origin is ready; sessions go to one that is not");
        }
        (None, Some(first)) if !was_ready && first.standing < Standing::Doubtful => {
            info!(%service, to = %first.origin.name, "an origin is ready again");
        }
        _ => {}
    }
}

fn name(choice: &Choice) -> &str {
    &choice.name
}

#[cfg(test)]
mod tests {
    use meshport_core::route::{OriginView, Policy, Preference, choose};
    use meshport_discovery::OriginState;

    use super::*;
    use crate::clock;
    use crate::testing::logged;

    #[test]
    fn that_no_origin_is_ready_is_said_once_and_its_end_too() {
        use OriginState::{Ready, Refusing, Unready};
        let service: ServiceName = "kube-apiserver".parse().expect("a name");
        let route_of = |state| {
            let near = crate::testing::candidate(NodeId::from_bytes([1; 32])).origin;
            let origins = vec![OriginView { state, ..near }];
            choose(origins, &Policy::Spread, &Preference::default(), clock::now()).0
        };
        let said = |before, now| logged(|| readiness(&service, &route_of(before), &route_of(now)));
        let begins = said(Ready, Unready);
        assert!(begins.contains("WARN") && begins.contains("no origin is ready"), "{begins}");
        assert!(begins.contains("to=cp-1 state=unready"), "{begins}");
        assert!(said(Unready, Ready).contains("an origin is ready again"));
        // That none answers is said by the change of the route.
        for (before, now) in [(Unready, Unready), (Unready, Refusing), (Ready, Ready)] {
            assert_eq!(said(before, now), "", "{before} {now}");
        }
    }

    #[test]
    fn a_change_says_from_where_to_where_and_why() {
        let service: ServiceName = "kube-apiserver".parse().expect("a name");
        let line = |port| Line::Outside(([192, 0, 2, 1], port).into());
        let choice = |port, name: &str| Some(Choice { line: line(port), name: name.to_owned() });
        let (from, to) = (choice(1, "cp-fra"), choice(2, "cp-nyc"));
        let change = Change { at: clock::now(), from, to, cause: "refusing" };
        let origin = OriginView::outside(([192, 0, 2, 1], 2).into());
        let memory = Preference::default();
        let (now_first, _) = choose(vec![origin], &Policy::Spread, &memory, clock::now());
        let said = logged(|| route(&service, &change, &now_first, NodeId::short));
        assert!(said.contains("from=cp-fra to=cp-nyc cause=\"refusing\""), "{said}");
        let none = Change { to: None, ..change };
        let said = logged(|| route(&service, &none, &Route::default(), NodeId::short));
        assert!(said.contains("from=cp-fra cause=\"refusing\""), "{said}");
    }
}
