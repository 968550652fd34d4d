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

/// An origin behind a NAT that forgets within 8 s, in a mesh where nothing but `mesh.keepalive` is
/// sent more often than that.
const FORGETFUL: &str = r#"
description = "An origin behind a NAT that forgets"
duration-s = 300
warmup-s = 60

[load]
sessions-per-s = 0.05
hold-s = 1
requests-per-s = 1

[settings.discovery]
probe-interval = "60s"
probe-timeout = "5s"
suspicion = "5m"
sync-interval = "1h"
path-probe-active = "60s"
path-probe-idle = "5m"

[[site]]
name = "hub"
at = [50.1, 8.7]
nodes = 2

[[site]]
name = "lab"
at = [48.1, 11.6]
nodes = 1
origins = 1
nat = true
nat-timeout-s = 8
"#;

#[test]
fn an_origin_behind_a_nat_that_forgets_stays_in_reach_with_a_keepalive() {
    let failed = |settings: &str| {
        let scenario = Scenario::parse(&format!("{FORGETFUL}{settings}")).expect("a good scenario");
        let run = World::new(scenario, 3, Options::default()).expect("a possible world").run();
        let timeline = run.measures.timeline.iter().skip(60);
        timeline.map(|second| u64::from(second.failed)).sum::<u64>()
    };
    let without = failed("");
    let with = failed("settings = { mesh = { keepalive = \"2s\" } }\n");
    assert!(without > 0, "the NAT has forgotten nothing");
    assert_eq!(with, 0);
}
