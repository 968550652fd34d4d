//! An origin and its clients behind two NATs: no two can start a handshake, but all reach a relay.

use meshport_simulations::scenario::Scenario;
use meshport_simulations::world::{Options, World};

const MESH: &str = r#"
description = "Two NATs and a relay"
duration-s = 180
warmup-s = 60

[load]
sessions-per-s = 0.5
hold-s = 10
requests-per-s = 1

[[site]]
name = "hub"
at = [50.1, 8.7]
nodes = 2
relays = 1

[[site]]
name = "lab"
at = [48.1, 11.6]
nodes = 2
origins = 1
nat = true

[[site]]
name = "shop"
at = [53.5, 10.0]
nodes = 4
nat = true
"#;

#[test]
fn behind_two_nats_a_relay_carries_the_sessions() {
    let scenario = Scenario::parse(MESH).expect("a good scenario");
    let run = World::new(scenario, 3, Options::default()).expect("a possible world").run();
    assert!(run.violations.is_empty(), "{:#?}", run.violations);
    for shop in ["shop-1", "shop-2", "shop-3", "shop-4"] {
        assert_eq!(run.route_of(shop), Some("lab-1"), "{shop}");
    }
    let carried: u64 = run.measures.carried.values().sum();
    assert!(carried > 20, "{carried} streams went through the relay");
    let late = run.measures.timeline.iter().skip(60).map(|second| u64::from(second.failed));
    assert_eq!(late.sum::<u64>(), 0);
}
