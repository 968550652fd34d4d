use std::sync::{Arc, Mutex};
use std::time::Instant;

use meshport_config::UnixSeconds;
use meshport_core::route::{OriginView, PathView, Policy, Preference, Route, choose};
use meshport_discovery::OriginState;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::super::super::wire::Wire;
use super::*;
use crate::identity::Mesh;
use crate::instance::Instance;
use crate::network::Network;
use crate::scenario::Scenario;
use crate::trace::Trace;

/// A worker, an origin nearby and one far away.
const WORLD: &str = r#"
description = "Three"
duration-s = 1
site = [
  { name = "fra", nodes = 2, origins = 1 },
  { name = "ams", nodes = 1, origins = 1 },
]
path = [{ between = ["fra", "ams"], rtt-ms = 20 }]
"#;
const NEAR: usize = 0;
const WORKER: usize = 1;
const FAR: usize = 2;

fn at(seconds: u64) {
    machine::pretend(Duration::from_secs(seconds));
}

fn book() -> Book {
    at(100);
    let scenario = Scenario::parse(WORLD).expect("a good scenario");
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let mesh = Mesh::new(UnixSeconds(1_800_000_000), &mut rng);
    let network = Network::new(&scenario, &mut rng).expect("a network");
    let ids = scenario.nodes().map(|place| {
        let identity = mesh.member(&scenario, place, &mut rng).expect("a member");
        (scenario.name(place), identity.credential.node)
    });
    let ids: Vec<_> = ids.collect();
    let trace = Trace::new(ids.iter().map(|(name, _)| name.clone()).collect(), None);
    let wire = Arc::new(Mutex::new(Wire::new(network, trace, ids.len())));
    let instances = vec![Some(Instance::Ready), None, Some(Instance::Ready)];
    let mut book = Book::new(ids, instances, Duration::ZERO, wire);
    book.routes = vec![Some(Arc::default()); 3];
    book
}

/// The route of a node to whom the origins look like this, the first one preferred.
fn route(book: &Book, views: &[(usize, PathView)]) -> Arc<Route> {
    let views = views.iter().map(|(origin, path)| {
        let (name, site) = (book.names[*origin].clone(), "any".parse().expect("a name"));
        let view = OriginView::of_node(book.ids[*origin], name, site, OriginState::Ready);
        OriginView { path: *path, ..view }
    });
    #[expect(clippy::disallowed_methods, reason = "any time will do")]
    let now = Instant::now();
    let policy = Policy::Nearest { band: Duration::from_millis(1), band_percent: 15 };
    Arc::new(choose(views.collect(), &policy, &Preference::default(), now).0)
}

fn up(millis: u64) -> PathView {
    PathView::Up(Duration::from_millis(millis))
}

/// The same with the worse one first, as no route may be.
fn upside_down(route: &Route) -> Arc<Route> {
    let mut route = route.clone();
    route.candidates.reverse();
    Arc::new(route)
}

#[test]
fn a_session_that_begins_at_a_dead_origin_is_noticed() {
    let mut book = book();
    let good = route(&book, &[(NEAR, PathView::Dead), (FAR, up(20))]);
    book.routes[WORKER] = Some(good.clone());
    book.begins(WORKER);
    assert!(book.violations.is_empty());
    book.note(WORKER, "goes to fra-1".into());
    book.routes[WORKER] = Some(upside_down(&good));
    book.begins(WORKER);
    let [found] = &book.violations[..] else { panic!("{:?}", book.violations) };
    assert_eq!((found.rule, found.node.as_deref()), (rules::DEAD_ORIGIN, Some("fra-2")));
    assert_eq!(found.what, "a session goes to fra-1 while ams-1 is healthy");
    assert_eq!((found.at, found.last.len()), (Duration::from_secs(100), 1));
    // Nothing better is there: it may as well try.
    let dead = route(&book, &[(NEAR, PathView::Dead), (FAR, PathView::Dead)]);
    book.routes[WORKER] = Some(dead);
    book.begins(WORKER);
    assert_eq!(book.violations.len(), 1);
}

#[test]
fn routes_that_are_bad_or_far_are_noticed() {
    let mut book = book();
    let good = route(&book, &[(NEAR, up(1)), (FAR, up(20))]);
    book.routes[WORKER] = Some(good.clone());
    assert_eq!((book.bad_route(WORKER), book.strays(WORKER)), (None, None));
    book.routes[WORKER] = Some(upside_down(&good));
    assert_eq!(book.bad_route(WORKER), None);
    assert!(book.strays(WORKER).is_some_and(|what| what.contains("goes to ams-1")));
    book.instances[FAR] = Some(Instance::Hung);
    assert!(book.bad_route(WORKER).is_some_and(|what| what.contains("ams-1")));
    // Nobody serves.
    book.instances[NEAR] = Some(Instance::Down);
    assert_eq!(book.bad_route(WORKER), None);
    book.instances = vec![Some(Instance::Ready), None, Some(Instance::Ready)];
    book.routes[WORKER] = Some(good);
    lock(&book.wire).network.block(WORKER, NEAR, false);
    assert!(book.bad_route(WORKER).is_some_and(|what| what.contains("fra-1")));
}

#[test]
fn what_excuses_a_wrong_belief_is_that_something_has_changed_lately() {
    let mut book = book();
    assert_eq!(book.settles(NEAR, FAR), Some(SETTLING));
    book.starts(FAR);
    let after_start = Duration::from_secs(100) + SETTLING;
    assert_eq!(book.settles(NEAR, FAR), Some(after_start));
    assert_eq!(book.settles(NEAR, WORKER), Some(SETTLING));
    at(200);
    book.ways_changed();
    assert_eq!(book.settles(NEAR, WORKER), Some(Duration::from_secs(200) + SETTLING));
    book.starves(WORKER, Duration::from_millis(200), Duration::from_secs(300));
    assert_eq!(book.settles(NEAR, WORKER), Some(Duration::from_secs(200) + SETTLING));
    book.starves(WORKER, Duration::from_secs(2), Duration::from_secs(300));
    assert_eq!(book.settles(NEAR, WORKER), Some(Duration::from_secs(302) + SETTLING));
    assert_eq!(book.disturbed, Duration::from_secs(302));
    lock(&book.wire).network.block(NEAR, FAR, false);
    assert_eq!(book.settles(NEAR, FAR), None);
    assert_eq!(book.within_reach(NEAR), [NEAR, WORKER]);
    book.revoked[WORKER] = Some(Duration::ZERO);
    assert_eq!(book.settles(NEAR, WORKER), None);
}

/// How many suspicions there were, and how many of them were by mistake.
fn suspicions(book: &Book) -> (u64, u64) {
    let seen = book.measures.suspicions.expect("they are counted from the beginning");
    (seen.raised, seen.wrong)
}

#[test]
fn a_suspicion_is_by_mistake_if_the_other_one_runs_within_reach_and_nothing_excuses_it() {
    let mut book = book();
    assert_eq!(suspicions(&book), (0, 0));
    let (worker, far) = (book.ids[WORKER], book.ids[FAR]);
    book.suspects(NEAR, &far);
    assert_eq!(suspicions(&book), (1, 1));
    assert!(lock(&book.wire).trace.last(NEAR).iter().any(|line| line.contains("suspects ams-1")));
    book.starts(WORKER);
    book.suspects(NEAR, &worker);
    assert_eq!(suspicions(&book), (2, 1));
    at(100 + SETTLING.as_secs());
    book.suspects(NEAR, &worker);
    assert_eq!(suspicions(&book), (3, 2));
    // Its process has ended, whoever suspects is about to end, and there is no way.
    book.routes[WORKER] = None;
    book.suspects(NEAR, &worker);
    book.suspects(WORKER, &far);
    lock(&book.wire).network.block(NEAR, FAR, false);
    book.suspects(NEAR, &far);
    assert_eq!(suspicions(&book), (6, 2));
    // During the start-up nothing is counted.
    book.warmup = Duration::from_secs(200);
    book.suspects(NEAR, &worker);
    assert_eq!(suspicions(&book), (6, 2));
}

#[test]
fn suspicions_that_nobody_heard_of_break_the_rule_of_queues() {
    let mut book = book();
    book.overlooks(WORKER, 3);
    let [found] = &book.violations[..] else { panic!("{:?}", book.violations) };
    assert_eq!((found.rule, found.node.as_deref()), (rules::QUEUES, Some("fra-2")));
    assert!(found.what.starts_with("3 suspicions"), "{}", found.what);
}

#[test]
fn a_session_that_is_neither_open_nor_closed_is_noticed() {
    let mut book = book();
    let (first, second) =
        (book.connected(WORKER, NEAR, SETTLING), book.connected(WORKER, FAR, SETTLING));
    book.closed(first);
    assert_eq!((book.miscounted(WORKER), book.miscounted(NEAR)), (None, None));
    assert!(book.has_session(WORKER, FAR) && !book.has_session(WORKER, NEAR));
    book.sessions.open.remove(&second);
    let what = book.miscounted(WORKER);
    assert_eq!(what.as_deref(), Some("2 sessions opened, 1 closed, 0 open"));
    book.starts(WORKER);
    book.connected(WORKER, NEAR, SETTLING);
    assert_eq!(book.opened_by_process(WORKER), 1);
}

#[test]
fn an_answer_to_or_from_a_revoked_node_is_noticed_after_a_while() {
    let mut book = book();
    book.revoked[FAR] = Some(Duration::from_secs(100));
    at(125);
    book.served(WORKER, FAR);
    assert!(book.violations.is_empty());
    at(131);
    // Its own clients on its own host are nobody else's business.
    book.served(FAR, FAR);
    book.served(WORKER, NEAR);
    assert!(book.violations.is_empty());
    book.served(FAR, NEAR);
    book.served(WORKER, FAR);
    let found: Vec<_> =
        book.violations.iter().map(|it| (it.rule, it.node.as_deref(), it.what.as_str())).collect();
    let rule = rules::SERVED_NO_MORE;
    assert_eq!(found[0], (rule, Some("fra-1"), "it serves a client of ams-1"));
    assert_eq!(found[1], (rule, Some("ams-1"), "it serves a client of fra-2"));
    // The ways have changed: whoever serves may not have heard.
    book.ways_changed();
    book.served(WORKER, FAR);
    assert_eq!(book.violations.len(), 2);
}
