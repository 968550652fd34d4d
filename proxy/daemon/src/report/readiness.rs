//! Whether sessions depend on origins that are not ready.

use meshport_config::ServiceName;
use meshport_core::findings::{Finding, NONE_READY};
use meshport_core::route::Route;

/// That no origin of a service is ready, though some answer.
pub(super) fn finding(service: &ServiceName, route: &Route) -> Option<Finding> {
    let origin = &route.unready_choice()?.origin;
    let (name, state) = (&origin.name, origin.state);
    let mut nodes: Vec<_> =
        route.candidates.iter().filter_map(|it| it.origin.line.origin()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    Some(NONE_READY.found(match nodes.len() {
        1 => format!("{service}: its only origin, {name}, is {state}; sessions go there"),
        all => format!(
            "{service}: none of its {all} origins is ready; sessions go to {name}, which is {state}"
        ),
    }))
}

#[cfg(test)]
mod tests {
    use meshport_config::NodeId;
    use meshport_core::route::{OriginView, Policy, Preference, choose};
    use meshport_discovery::OriginState;

    use super::*;
    use crate::clock;
    use crate::testing::{candidate, service};

    fn said(states: &[OriginState]) -> Option<String> {
        let view = |(number, state): (u8, &OriginState)| OriginView {
            state: *state,
            name: format!("cp-{number}"),
            ..candidate(NodeId::from_bytes([number; 32])).origin
        };
        let origins = (1..).zip(states).map(view).collect();
        let (route, _) = choose(origins, &Policy::Spread, &Preference::default(), clock::now());
        finding(&service(), &route).map(|it| it.detail)
    }

    #[test]
    fn no_ready_origin_is_an_error_of_the_service() {
        use OriginState::{Draining, Ready, Refusing, Stalled, Unready};
        assert_eq!(
            said(&[Unready, Refusing, Stalled]).as_deref(),
            Some(
                "kube-apiserver: none of its 3 origins is ready; sessions go to cp-1, which is \
                 unready"
            )
        );
        assert_eq!(
            said(&[Stalled]).as_deref(),
            Some("kube-apiserver: its only origin, cp-1, is stalled; sessions go there")
        );
        for states in [&[Unready, Ready][..], &[Unready, Draining], &[Refusing], &[]] {
            assert_eq!(said(states), None, "{states:?}");
        }
    }
}
