//! Services that a program offers through one node, as another node finds them.

use meshport_config::Allow;

use super::*;
use crate::offered::{Instance, MAX_OFFER_TIME, NoGateway, Refusal, Wanted};
use crate::testing::credential;

const GATEWAY: &str = "node,gateway,origin:web";

fn web() -> ServiceName {
    "web".parse().expect("a valid name")
}

fn wanted(ready: bool) -> BTreeMap<ServiceName, Wanted> {
    let instances = vec![Instance { address: ([10, 77, 0, 1], 80).into(), ready }];
    BTreeMap::from([(web(), Wanted { instances, allow: Allow::everyone() })])
}

/// The state of A's service as B knows it.
fn known(net: &Net) -> Option<OriginState> {
    let entry = net.nodes[B].discovery().directory().get(&net.id(A))?;
    entry.services().find(|(name, _)| **name == web()).map(|(_, state)| state)
}

/// A offers, and B learns of it.
fn offered(ready: bool) -> Net {
    let mut net = Net::new(&[GATEWAY, "node"], ms(1));
    net.pass(MEET);
    assert_eq!(known(&net), None);
    let own = credential(1, GATEWAY);
    let refused = net.nodes[A].handle_offers(wanted(ready), &own, MAX_OFFER_TIME, net.now);
    assert_eq!(refused, Ok(BTreeMap::new()));
    let state = if ready { OriginState::Ready } else { OriginState::Unready };
    net.until(MEET, |net| known(net) == Some(state)).expect("it is announced");
    net
}

#[test]
fn an_offer_is_announced_until_it_is_due() {
    let mut net = offered(true);
    let took = net.until(2 * MAX_OFFER_TIME, |net| known(net).is_none()).expect("it ends");
    assert!(took <= MAX_OFFER_TIME, "{took:?}");
    assert!(took + MEET >= MAX_OFFER_TIME, "{took:?}");
    assert!(net.nodes[A].offered().is_empty());
    let own = credential(1, GATEWAY);
    for _ in 0..3 {
        let renewed = net.nodes[A].handle_offers(wanted(true), &own, MAX_OFFER_TIME, net.now);
        assert_eq!(renewed, Ok(BTreeMap::new()));
        net.pass(MAX_OFFER_TIME * 9 / 10);
        assert_eq!(known(&net), Some(OriginState::Ready), "it was renewed in time");
    }
}

#[test]
fn an_offer_follows_readiness_and_an_empty_one_withdraws() {
    let mut net = offered(false);
    let own = credential(1, GATEWAY);
    for (wanted, state) in [(wanted(true), Some(OriginState::Ready)), (BTreeMap::new(), None)] {
        let taken = net.nodes[A].handle_offers(wanted, &own, MAX_OFFER_TIME, net.now);
        assert_eq!(taken, Ok(BTreeMap::new()));
        net.until(MEET, |net| known(net) == state).expect("it is announced");
    }
}

#[test]
fn an_offer_ends_with_the_role_and_yields_to_the_configuration() {
    for roles in ["node,origin:web", "node,gateway"] {
        let mut net = offered(true);
        let now = net.now;
        net.nodes[A].announce_services(&credential(1, roles), now);
        net.until(MEET, |net| known(net).is_none()).expect(roles);
    }
    let mut net = offered(true);
    let now = net.now;
    let config = ServiceConfig {
        policy: Policy::Nearest { band: Duration::ZERO, band_percent: 15 },
        weights: Weights::default(),
        damping: Damping::default(),
        drift: DriftConfig::default(),
        health: None,
    };
    net.nodes[A].add_service(web(), config, now);
    net.until(MEET, |net| known(net).is_none()).expect("it is withdrawn");
    let own = credential(1, GATEWAY);
    let refused = net.nodes[A].handle_offers(wanted(true), &own, MAX_OFFER_TIME, now);
    assert_eq!(refused, Ok(BTreeMap::from([(web(), Refusal::Configured)])));
    let own = credential(1, "node,origin:web");
    let refused = net.nodes[A].handle_offers(wanted(true), &own, MAX_OFFER_TIME, now);
    assert_eq!(refused, Err(NoGateway));
}
