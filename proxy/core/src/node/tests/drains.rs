//! What a drained origin announces.

use super::*;

const ORIGINS: [&str; 3] = ["node", ORIGIN, ORIGIN];

/// The state of B's instance as A knows it.
fn known(net: &Net) -> Option<OriginState> {
    let entry = net.nodes[A].discovery().directory().get(&net.id(B))?;
    entry.services().find(|(name, _)| **name == service()).map(|(_, state)| state)
}

fn until(net: &mut Net, state: OriginState) {
    let took = net.until(MEET, |net| known(net) == Some(state));
    took.unwrap_or_else(|| panic!("{:?} instead of {state:?}", known(net)));
}

/// Others take a draining instance for one that serves.
#[test]
fn an_unready_instance_is_draining_only_while_another_origin_is_healthy() {
    let mut net = Net::new(&ORIGINS, ms(1));
    for origin in [B, C] {
        let interval = Duration::from_secs(1);
        let config = HealthConfig { interval, fall: 2, asks_ready: true, asks_live: false };
        net.nodes[origin].set_health(&service(), config, net.now);
    }
    until(&mut net, OriginState::Ready);
    let since = net.now;
    assert_eq!(net.nodes[B].set_drained(&service(), Some(since), net.now), Some(true));
    until(&mut net, OriginState::Draining);
    let later = net.now + Duration::from_secs(3600);
    net.repeats.insert(B, later);
    net.pass(MEET);
    assert_eq!(known(&net), Some(OriginState::Draining), "its sessions are to move to C");
    net.repeats.insert(C, later);
    until(&mut net, OriginState::Unready);
    let is_drained = |net: &Net| net.nodes[B].drained().next().is_some();
    assert!(is_drained(&net));
    net.repeats.remove(&C);
    until(&mut net, OriginState::Draining);
    net.repeats.remove(&B);
    net.pass(MEET);
    assert_eq!(known(&net), Some(OriginState::Draining));
    assert_eq!(net.nodes[B].set_drained(&service(), None, net.now), Some(true));
    until(&mut net, OriginState::Ready);
    assert!(!is_drained(&net));
}
