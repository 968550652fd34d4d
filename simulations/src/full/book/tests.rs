use std::sync::Arc;
use std::time::Instant;

use meshport_config::{AuthorityKey, Revocation, Revoked, UnixSeconds};
use meshport_core::route::{OriginView, PathView, Policy, Preference, Route, choose};
use meshport_demo::wan::{LinkConfig, Loss};
use meshport_discovery::OriginState;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::identity::Mesh;
use crate::instance::Instance;
use crate::level::Account;
use crate::network::Network;
use crate::rules::{LASTING, SETTLING};
use crate::scenario::{Happening, Scenario};

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

fn dice() -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(1)
}

fn scenario(text: &str) -> Scenario {
    Scenario::parse(text).expect("a good scenario")
}

fn account(scenario: &Scenario) -> Account {
    let mut rng = dice();
    let mesh = Mesh::new(UnixSeconds(1_800_000_000), &mut rng);
    let mut id = |member| {
        let identity = mesh.member(scenario, member, &mut rng).expect("a member");
        identity.credential.node
    };
    let ids = scenario.nodes().map(&mut id).collect();
    Account::new(scenario, ids, &mut dice())
}

fn book() -> Book {
    book_of(WORLD)
}

fn book_of(text: &str) -> Book {
    let (scenario, mut rng) = (scenario(text), dice());
    let network = Network::new(&scenario, &mut rng).expect("a network");
    let scene = Scene::new(account(&scenario), network, None);
    let mut book = Book::new(Scene { now: Duration::from_secs(100), ..scene });
    book.routes = vec![Some(Arc::default()); 3];
    book
}

/// A node's route with these views of the origins, the first one preferred.
fn route(book: &Book, views: &[(usize, PathView)]) -> Arc<Route> {
    let views = views.iter().map(|(origin, path)| {
        let (name, site) =
            (book.scene.account.name(*origin).to_owned(), "any".parse().expect("a name"));
        let view =
            OriginView::of_node(book.scene.account.id(*origin), name, site, OriginState::Ready);
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

/// The same with the worse origin first, which no route may have.
fn upside_down(route: &Route) -> Arc<Route> {
    let mut route = route.clone();
    route.candidates.reverse();
    Arc::new(route)
}

/// A failed request is a violation only if the scenario requires answers.
#[test]
fn a_request_that_fails_is_noticed_where_none_may() {
    let found = |load: &str| {
        let mut book = book_of(&format!("{WORLD}{load}"));
        let started = Duration::from_secs(90);
        book.answered(WORKER, started, true);
        book.answered(WORKER, started, false);
        let found = book.scene.account.violations.iter();
        found.map(|it| (it.rule, it.what.clone())).collect::<Vec<_>>()
    };
    let told = (rules::ANSWERED, "a request failed after 10000000 us".to_owned());
    assert_eq!(found("[load]\nsessions-per-s = 1\nmay-fail = false\n"), [told]);
    assert_eq!(found("[load]\nsessions-per-s = 1\n"), []);
    assert_eq!(found(""), []);
}

#[test]
fn a_session_that_begins_at_a_dead_origin_is_noticed() {
    let mut book = book();
    let good = route(&book, &[(NEAR, PathView::Dead), (FAR, up(20))]);
    book.routes[WORKER] = Some(good.clone());
    book.looks_for_one(WORKER);
    assert!(book.scene.account.violations.is_empty());
    book.says(WORKER, "goes to fra-1".into());
    book.routes[WORKER] = Some(upside_down(&good));
    book.looks_for_one(WORKER);
    let [found] = &book.scene.account.violations[..] else {
        panic!("{:?}", book.scene.account.violations)
    };
    assert_eq!((found.rule, found.node.as_deref()), (rules::DEAD_ORIGIN, Some("fra-2")));
    assert_eq!(found.what, "a session goes to fra-1 while ams-1 is healthy");
    assert_eq!((found.at, found.last.len()), (Duration::from_secs(100), 1));
    // There is nothing better, so it may try.
    let dead = route(&book, &[(NEAR, PathView::Dead), (FAR, PathView::Dead)]);
    book.routes[WORKER] = Some(dead);
    book.looks_for_one(WORKER);
    assert_eq!(book.scene.account.violations.len(), 1);
}

#[test]
fn routes_that_are_bad_or_far_are_noticed() {
    let mut book = book();
    let good = route(&book, &[(NEAR, up(1)), (FAR, up(20))]);
    book.routes[WORKER] = Some(good.clone());
    assert_eq!(book.bad_route(WORKER), None);
    book.routes[WORKER] = Some(upside_down(&good));
    assert_eq!(book.bad_route(WORKER), None);
    // Allowed for a bounded time, or with settings that do not prefer the nearest.
    book.seen[WORKER].lasting = Some(LASTING);
    says(&book, rules::NEAR_ROUTES, "uses ams-1");
    book.seen[WORKER].lasting = Some(LASTING - Duration::from_secs(1));
    assert_eq!(book.bad_route(WORKER), None);
    // It need not use the nearer origin if that path is lossy or as long as the other.
    book.seen[WORKER].lasting = Some(LASTING);
    let lossy = LinkConfig { loss: Loss::independent(0.1), ..LinkConfig::default() };
    for quality in [lossy, LinkConfig::delay(Duration::from_millis(10))] {
        book.happens(&Happening::Quality(0, 0, Some(quality)));
        assert_eq!(book.bad_route(WORKER), None);
    }
    book.scene.account.instances[FAR] = Some(Instance::Hung);
    says(&book, rules::GOOD_ROUTES, "ams-1");
    // Nobody serves.
    book.scene.account.instances[NEAR] = Some(Instance::Down);
    assert_eq!(book.bad_route(WORKER), None);
    book.scene.account.instances = vec![Some(Instance::Ready), None, Some(Instance::Ready)];
    book.routes[WORKER] = Some(good);
    book.scene.network.block(WORKER, NEAR, false);
    says(&book, rules::GOOD_ROUTES, "fra-1");
    book.routes[WORKER] = Some(Arc::default());
    says(&book, rules::GOOD_ROUTES, "nobody");
}

/// Checks the violation about the worker's route.
fn says(book: &Book, rule: &str, word: &str) {
    let found = book.bad_route(WORKER);
    assert!(found.as_ref().is_some_and(|it| it.0 == rule && it.1.contains(word)), "{found:?}");
}

#[test]
fn a_node_that_disagrees_is_noticed() {
    let mut book = book();
    let record = |generation, version| Record { key: (generation, version), services: Vec::new() };
    for (at, seen) in book.seen.iter_mut().enumerate() {
        seen.alive = 3;
        seen.records = (0..3).map(|of| (of, record(of as u64, at as u64))).collect();
    }
    // A newer version may be in transit at any time.
    let good = book.seen[WORKER].clone();
    let mut judge = |seen: Seen, word: &str| {
        book.seen[WORKER] = seen;
        let what = book.disagreement(WORKER).unwrap_or_default();
        assert!(what.contains(word) && what.is_empty() == word.is_empty(), "{what}");
    };
    judge(good.clone(), "");
    judge(Seen { absent: BTreeSet::from([FAR]), ..good.clone() }, "considers ams-1 down");
    judge(Seen { alive: 2, ..good.clone() }, "considers 2 of 3 reachable nodes alive");
    let with = |of: usize, record: Option<Record>| {
        let mut records = good.records.clone();
        records.remove(&of);
        records.extend(record.map(|record| (of, record)));
        Seen { records, ..good.clone() }
    };
    judge(with(FAR, None), "knows 2 of 3");
    judge(with(FAR, Some(record(0, 9))), "ams-1 is not the newest");
    let services = vec![(crate::scenario::service(), OriginState::Unready)];
    judge(with(FAR, Some(Record { services, ..record(2, 1) })), "ams-1 is not the newest");
    // An unreachable node may be in any state.
    book.scene.network.block(WORKER, FAR, false);
    book.seen[WORKER].absent.insert(FAR);
    assert_eq!(book.disagreement(WORKER), None);
}

/// Makes a node learn that another one is revoked.
fn tell(book: &mut Book, at: usize, subject: usize) {
    let authority = AuthorityKey::from_bytes([1; 32]);
    let id = Revoked::Node(book.scene.account.id(subject));
    book.revocations[at].add(Revocation::issue(&authority, id, UnixSeconds(1_800_000_000)));
}

#[test]
fn any_trace_of_a_revoked_node_is_noticed() {
    let mut book = book();
    book.scene.account.revoked[FAR] = Some(Duration::from_secs(80));
    let mut left = |change: &mut dyn FnMut(&mut Book)| {
        change(&mut book);
        book.scene.account.violations.clear();
        book.check_revoked();
        let found = book.scene.account.violations.pop();
        found.filter(|it| it.rule == rules::SHUT_OUT).map(|it| it.what).unwrap_or_default()
    };
    assert_eq!(left(&mut |_| {}), "", "nobody could tell anybody");
    let what = left(&mut |book| tell(book, NEAR, FAR));
    assert_eq!(what, "it does not know of the revocation of ams-1");
    assert_eq!(left(&mut |book| tell(book, WORKER, FAR)), "");
    let what = left(&mut |book| {
        book.connected(WORKER, FAR, SETTLING);
    });
    assert_eq!(what, "it has a session to ams-1");
    let what = left(&mut |book| {
        book.seen[WORKER].revoked_peers.insert(FAR);
    });
    assert_eq!(what, "it has a tunnel to ams-1");
    let what = left(&mut |book| book.routes[NEAR] = Some(route(book, &[(FAR, up(20))])));
    assert_eq!(what, "its route goes through ams-1");
    let what = left(&mut |book| book.scene.account.revoked[FAR] = Some(Duration::from_secs(99)));
    assert_eq!(what, "", "it was just revoked");
}

#[test]
fn what_excuses_a_wrong_belief_is_that_something_has_changed_lately() {
    let mut book = book();
    assert_eq!(book.settles(NEAR, FAR), Some(SETTLING));
    book.starts(FAR, 1);
    let after_start = Duration::from_secs(100) + SETTLING;
    assert_eq!(book.settles(NEAR, FAR), Some(after_start));
    assert_eq!(book.settles(NEAR, WORKER), Some(SETTLING));
    book.scene.now = Duration::from_secs(200);
    book.happens(&Happening::Path(0, 0, true));
    assert_eq!(book.settles(NEAR, WORKER), Some(Duration::from_secs(200) + SETTLING));
    book.stands_still(WORKER, Duration::from_millis(200), Duration::from_secs(300));
    assert_eq!(book.settles(NEAR, WORKER), Some(Duration::from_secs(200) + SETTLING));
    book.stands_still(WORKER, Duration::from_secs(2), Duration::from_secs(302));
    assert_eq!(book.settles(NEAR, WORKER), Some(Duration::from_secs(302) + SETTLING));
    assert_eq!(book.scene.account.last_disturbed(), Duration::from_secs(302));
    book.scene.network.block(NEAR, FAR, false);
    assert_eq!(book.settles(NEAR, FAR), None);
    assert_eq!(book.within_reach(NEAR).collect::<Vec<_>>(), [NEAR, WORKER]);
    book.scene.account.revoked[WORKER] = Some(Duration::ZERO);
    assert_eq!(book.settles(NEAR, WORKER), None);
}

/// The number of suspicions, and how many of them were false.
fn suspicions(book: &Book) -> (u64, u64) {
    let seen = book.scene.measures.suspicions.expect("they are counted from the beginning");
    (seen.raised, seen.wrong)
}

#[test]
fn a_suspicion_is_by_mistake_if_the_other_one_runs_within_reach_and_nothing_excuses_it() {
    let mut book = book();
    assert_eq!(suspicions(&book), (0, 0));
    book.suspects(NEAR, FAR);
    assert_eq!(suspicions(&book), (1, 1));
    assert!(book.scene.trace.last(NEAR).iter().any(|line| line.contains("suspects ams-1")));
    book.starts(WORKER, 1);
    book.suspects(NEAR, WORKER);
    assert_eq!(suspicions(&book), (2, 1));
    book.scene.now = Duration::from_secs(100 + SETTLING.as_secs());
    book.suspects(NEAR, WORKER);
    assert_eq!(suspicions(&book), (3, 2));
    // The process has ended, the suspecting node is about to end, and there is no path.
    book.routes[WORKER] = None;
    book.suspects(NEAR, WORKER);
    book.suspects(WORKER, FAR);
    book.scene.network.block(NEAR, FAR, false);
    book.suspects(NEAR, FAR);
    assert_eq!(suspicions(&book), (6, 2));
    // Nothing is counted during the start-up.
    book.scene.account =
        account(&Scenario { warmup_s: Some(200.0), duration_s: 300.0, ..scenario(WORLD) });
    book.suspects(NEAR, WORKER);
    assert_eq!(suspicions(&book), (6, 2));
}

#[test]
fn suspicions_that_nobody_heard_of_break_the_rule_of_queues() {
    let mut book = book();
    book.overlooks(WORKER, 3);
    let [found] = &book.scene.account.violations[..] else {
        panic!("{:?}", book.scene.account.violations)
    };
    assert_eq!((found.rule, found.node.as_deref()), (rules::QUEUES, Some("fra-2")));
    assert!(found.what.starts_with("3 suspicions"), "{}", found.what);
}

#[test]
fn a_session_that_is_neither_open_nor_closed_is_noticed() {
    let mut book = book();
    let (first, second) =
        (book.connected(WORKER, NEAR, SETTLING), book.connected(WORKER, FAR, SETTLING));
    book.closed(first);
    book.check_count(WORKER);
    book.check_count(NEAR);
    assert!(book.scene.account.violations.is_empty(), "{:?}", book.scene.account.violations);
    assert!(book.sessions.has(WORKER, FAR) && !book.sessions.has(WORKER, NEAR));
    book.sessions.open.remove(&second);
    book.check_count(WORKER);
    let [found] = &book.scene.account.violations[..] else {
        panic!("{:?}", book.scene.account.violations)
    };
    assert_eq!(found.what, "2 sessions opened, 1 closed, 0 open");
    book.starts(WORKER, 1);
    book.connected(WORKER, NEAR, SETTLING);
    assert_eq!(book.opened_by_process(WORKER), 1);
}

#[test]
fn an_answer_to_or_from_a_revoked_node_is_noticed_after_a_while() {
    let mut book = book();
    book.scene.account.revoked[FAR] = Some(Duration::from_secs(100));
    book.scene.now = Duration::from_secs(125);
    book.check_served(WORKER, FAR);
    assert!(book.scene.account.violations.is_empty());
    book.scene.now = Duration::from_secs(131);
    // A node's own clients do not count.
    book.check_served(FAR, FAR);
    book.check_served(WORKER, NEAR);
    assert!(book.scene.account.violations.is_empty());
    book.check_served(FAR, NEAR);
    assert!(book.scene.account.violations.is_empty(), "nobody remembers it");
    tell(&mut book, NEAR, FAR);
    book.check_served(FAR, NEAR);
    book.check_served(WORKER, FAR);
    let found: Vec<_> = book
        .scene
        .account
        .violations
        .iter()
        .map(|it| (it.rule, it.node.as_deref(), &*it.what))
        .collect();
    let rule = rules::SERVED_NO_MORE;
    assert_eq!(found[0], (rule, Some("fra-1"), "it serves a client of ams-1"));
    assert_eq!(found[1], (rule, Some("ams-1"), "it serves a client of fra-2"));
    // The link has changed: the serving node may not have learned of the revocation.
    book.happens(&Happening::Path(0, 0, true));
    book.check_served(WORKER, FAR);
    assert_eq!(book.scene.account.violations.len(), 2);
}
