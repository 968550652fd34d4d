//! A world that is viewed and changed while it runs.

use std::time::Duration;

use meshport_simulations::scenario::{Event, Scenario};
use meshport_simulations::world::{Options, World};

const STORY: &str = "
description = \"Three sites; an origin stops and a link is cut\"
duration-s = 90
load = { sessions-per-s = 1, hold-s = 5 }
site = [
  { name = \"fra\", nodes = 3, origins = 1 },
  { name = \"ams\", nodes = 2, origins = 1 },
  { name = \"vie\", nodes = 2 },
]
path = [
  { between = [\"fra\", \"ams\"], rtt-ms = 8 },
  { between = [\"fra\", \"vie\"], rtt-ms = 12 },
  { between = [\"ams\", \"vie\"], rtt-ms = 40 },
]
event = [
  { at-s = 30, kill = \"fra-1\", for-s = 20 },
  { at-s = 60, cut = [\"fra\", \"vie\"], for-s = 10 },
]
";

fn scenario() -> Scenario {
    Scenario::parse(STORY).expect("a good scenario")
}

fn live() -> World {
    World::new(scenario(), 7, Options { live: true, ..Options::default() }).expect("a good world")
}

/// The origin that a node uses, according to its page.
fn goes_to(world: &World, node: &str) -> Option<String> {
    let chosen = world.view(node)?.services.first()?.chosen.as_ref()?.who.name.clone();
    Some(chosen)
}

fn seconds(s: f64) -> Duration {
    Duration::from_secs_f64(s)
}

#[test]
fn looking_on_changes_nothing() {
    let film = Options { film: true, ..Options::default() };
    let filmed = World::new(scenario(), 7, film).expect("a good world").run();
    let run = World::new(scenario(), 7, Options::default()).expect("a good world").run();
    assert_eq!(filmed.outcome.trace_hash, run.outcome.trace_hash);
    assert!(filmed.film.is_some() && run.film.is_none());

    let mut world = live();
    let mut looks: u32 = 0;
    while world.time() < seconds(90.0) {
        // Steps of arbitrary length.
        let step = seconds(0.013 + 0.7 * f64::from(looks % 11));
        assert!(world.step((world.time() + step).min(seconds(90.0))));
        looks += 1;
        if looks.is_multiple_of(5) {
            let _ = (world.view("vie-1"), world.truth(None));
        }
    }
    assert_eq!(world.trace(), run.outcome.trace_hash);
    assert!(world.truth(None).done.is_empty());
    // It continues after the end of its scenario.
    assert!(world.step(seconds(95.0)) && world.time() == seconds(95.0));
    assert_ne!(world.trace(), run.outcome.trace_hash);
}

#[test]
fn what_is_done_to_the_world_happens_in_it() {
    let mut world = live();
    world.step(seconds(20.0));
    assert_eq!(goes_to(&world, "vie-1").as_deref(), Some("fra-1"));
    let kill = Event { kill: Some("fra-1".into()), for_s: Some(30.0), ..Event::default() };
    world.strike(&kill).expect("it means something");
    let truth = world.truth(None);
    let instance = |name: &str| truth.nodes.iter().find(|it| it.name == name)?.instance;
    assert_eq!((instance("fra-1"), instance("ams-1")), (Some("down"), Some("ready")));
    assert_eq!(truth.done, ["at-s = 20.0\nfor-s = 30.0\nkill = \"fra-1\"\n"]);
    assert_eq!(truth.happened[0].what, "kill: fra-1");

    world.step(seconds(25.0));
    assert_eq!(goes_to(&world, "vie-1").as_deref(), Some("ams-1"));
    let view = world.view("vie-1").expect("it runs");
    let said: Vec<&str> = view.events.iter().map(|it| it.detail.as_str()).collect();
    assert!(said.iter().any(|it| it.starts_with("fra-1 to ams-1: ")), "{said:?}");
    // A live event that ends later than the scenario's own event in the meantime still ends on
    // time.
    world.step(seconds(58.0));
    assert_eq!(goes_to(&world, "vie-1").as_deref(), Some("fra-1"));

    let isolate = Event { isolate: Some("vie".into()), ..Event::default() };
    world.strike(&isolate).expect("it means something");
    let site = world.truth(None).sites.into_iter().find(|it| it.name == "vie");
    assert!(site.is_some_and(|it| it.is_isolated));
    // Until the scenario restores one of its links.
    world.step(seconds(69.5));
    let view = world.view("vie-1").expect("it runs");
    assert!(view.services[0].chosen.is_none(), "{}", view.services[0].summary);
    assert!(view.findings.iter().any(|it| it.row.is_error), "{:?}", view.findings);
    assert!(view.services[0].sessions.failed > 0, "{:?}", view.services[0].sessions);
    assert!(world.truth(None).violations.is_empty(), "{:?}", world.truth(None).violations);
}

#[test]
fn the_view_shows_sessions_and_what_the_last_minutes_were_like() {
    let mut world = live();
    world.step(seconds(25.0));
    let view = world.view("vie-1").expect("it runs");
    let service = &view.services[0];
    assert!(service.summary.starts_with("Sessions go to fra-1 in fra, direct, 12 ms: "));
    assert!(service.sessions.open > 0 && service.sessions.total > 10, "{:?}", service.sessions);
    assert_eq!(service.origins[0].sessions, service.sessions.open);
    assert!(view.history.connected.iter().any(|it| *it > 0), "{:?}", view.history);
    assert_eq!(view.sites.len(), 3);
    assert!(view.node.started_at.0 >= 1_800_000_000);
    let origin = world.view("fra-1").expect("it runs");
    assert!(origin.services[0].offering.as_ref().is_some_and(|it| it.sessions > 0));
    assert!(world.view("nobody").is_none());
}

#[test]
fn what_means_nothing_is_refused_and_does_nothing() {
    let mut world = live();
    world.step(seconds(5.0));
    let before = world.trace();
    for (event, said) in [
        (Event::default(), "exactly one"),
        (Event { crash: Some("nobody".into()), ..Event::default() }, "nobody"),
        (Event { kill: Some("vie-1".into()), ..Event::default() }, "hosts no instance"),
        (Event { configure: Some("fra-1".into()), ..Event::default() }, "configure"),
    ] {
        let error = world.strike(&event).expect_err("it means nothing").to_string();
        assert!(error.contains(said), "{error}");
    }
    assert_eq!(world.trace(), before);
    assert!(world.truth(None).done.is_empty());
}
