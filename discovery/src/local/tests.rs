use super::*;
use crate::tests::{Mesh, base, ms, secs};

/// A record that has just started.
fn new(now: Instant) -> LocalRecord {
    let me = Mesh::new(1).member(1, "a", "node,origin:kube-apiserver").local();
    LocalRecord::new(me, 1, secs(1), now)
}

/// A record that does not wait for endpoints.
fn started() -> LocalRecord {
    LocalRecord { waits_until: None, ..new(base()) }
}

fn service() -> ServiceName {
    "kube-apiserver".parse().unwrap()
}

fn distance(number: u8, rtt_us: Option<u32>) -> Distance {
    Distance { origin: NodeId::from_bytes([number; 32]), rtt_us, loss_percent: 0 }
}

fn published(local: &mut LocalRecord, now: Instant) -> Option<(Urgency, NodeState)> {
    local.publish(Vec::new, now).map(|(urgency, state)| (urgency, state.get().clone()))
}

#[test]
fn a_service_that_changes_is_news_at_once_and_not_twice() {
    let (mut local, start) = (started(), base());
    assert!(local.set_service(service(), Some(OriginState::Ready), start));
    let (urgency, state) = published(&mut local, start).unwrap();
    assert_eq!((urgency, state.version), (Urgency::News, 1));
    assert_eq!(state.services, [(service(), OriginState::Ready)]);
    assert!(local.set_service(service(), Some(OriginState::Ready), start));
    assert!(published(&mut local, start).is_none(), "nothing changed");
    // A service that flaps is published every 100 ms at most, with its last state.
    local.set_service(service(), Some(OriginState::Hung), start + ms(10));
    local.set_service(service(), Some(OriginState::Unready), start + ms(20));
    assert!(published(&mut local, start + ms(20)).is_none());
    assert_eq!(local.poll_timeout(), Some(start + URGENT_INTERVAL));
    let (_, state) = published(&mut local, start + URGENT_INTERVAL).unwrap();
    assert_eq!((state.version, state.services[0].1), (2, OriginState::Unready));
    local.set_service(service(), None, start + ms(500));
    assert!(published(&mut local, start + ms(500)).unwrap().1.services.is_empty());
}

#[test]
fn the_first_version_waits_for_the_endpoints_and_not_for_long() {
    let start = base();
    let mut local = new(start);
    local.set_service(service(), Some(OriginState::Ready), start);
    assert!(published(&mut local, start).is_none());
    assert!(local.set_endpoints(vec!["10.0.0.1:1".parse().unwrap()], start + ms(1)));
    let (urgency, state) = published(&mut local, start + ms(1)).unwrap();
    assert_eq!((urgency, state.version), (Urgency::News, 1));
    assert_eq!((state.endpoints.len(), state.services.len()), (1, 1));
    let mut silent = new(start);
    silent.want(Urgency::Rumour, Duration::ZERO, start);
    assert_eq!(silent.poll_timeout(), Some(start + FIRST_WAIT));
    assert!(published(&mut silent, start + FIRST_WAIT).is_some());
    silent.set_service(service(), Some(OriginState::Ready), start + ms(500));
    assert!(published(&mut silent, start + ms(500)).is_some(), "only the first one waits");
    let mut gone = new(start);
    gone.leave(start);
    assert!(published(&mut gone, start).is_some(), "a farewell waits for nothing");
}

#[test]
fn endpoints_wait_for_their_turn() {
    let (mut local, start) = (started(), base());
    assert!(local.set_endpoints(vec!["10.0.0.1:1".parse().unwrap()], start));
    assert!(published(&mut local, start).is_some());
    let many = vec!["10.0.0.2:1".parse().unwrap(); MAX_ENDPOINTS + 1];
    assert!(!local.set_endpoints(many, start + ms(1)));
    assert!(published(&mut local, start + ms(999)).is_none());
    let (urgency, state) = published(&mut local, start + ms(1000)).unwrap();
    assert_eq!((urgency, state.endpoints.len()), (Urgency::Rumour, MAX_ENDPOINTS));
}

#[test]
fn distances_are_published_when_they_matter_and_ever_more_rarely() {
    let (mut local, start, mut dice) = (started(), base(), Dice::new([1; 32], 0));
    let mut now = start;
    local.set_distances(vec![distance(1, Some(10_000))], 10, &mut dice, now);
    let due = local.poll_timeout().unwrap();
    assert!((ms(200)..=ms(1000)).contains(&(due - now)), "{:?}", due - now);
    now = due;
    let first = local.publish(|| vec![distance(1, Some(10_000))], now).unwrap().1;
    assert_eq!(first.get().distances.len(), 1);
    // A fifth more is not worth publishing, nor is a millisecond on a short path.
    local.set_distances(vec![distance(1, Some(12_000))], 10, &mut dice, now);
    local.set_distances(vec![distance(1, Some(10_900))], 10, &mut dice, now);
    assert_eq!(local.poll_timeout(), None);
    // Half as much again is, and so is silence; but a mesh of ten publishes every 20 s at most.
    local.set_distances(vec![distance(1, Some(15_000))], 10, &mut dice, now);
    assert_eq!(local.poll_timeout(), Some(now + Duration::from_secs(20)));
    now += Duration::from_secs(20);
    local.publish(|| vec![distance(1, Some(15_000))], now).unwrap();
    local.set_distances(vec![distance(1, None)], 1000, &mut dice, now);
    assert_eq!(local.poll_timeout(), Some(now + Duration::from_secs(2000)));
    // Urgent news includes the newest distances.
    local.set_service(service(), Some(OriginState::Ready), now + Duration::from_secs(1));
    let due = local.poll_timeout().unwrap();
    let (urgency, state) = local.publish(|| vec![distance(1, None)], due).unwrap();
    assert_eq!(urgency, Urgency::News);
    assert_eq!(state.get().distances[0].rtt_us, None);
}

#[test]
fn a_distance_that_begins_to_lose_is_published_and_one_probe_is_not() {
    let (mut local, start, mut dice) = (started(), base(), Dice::new([1; 32], 0));
    let losing = |loss_percent| Distance { loss_percent, ..distance(1, Some(10_000)) };
    local.want(Urgency::Quiet, Duration::ZERO, start);
    local.publish(|| vec![losing(0)], start).unwrap();
    // One to three of the last sixteen probes.
    for loss in [6, 12, 18] {
        local.set_distances(vec![losing(loss)], 10, &mut dice, start);
        assert_eq!(local.poll_timeout(), None, "{loss} %");
    }
    local.set_distances(vec![losing(25)], 10, &mut dice, start);
    let due = local.poll_timeout().expect("four of them are told");
    let (urgency, state) = local.publish(|| vec![losing(31)], due).unwrap();
    assert_eq!((urgency, state.get().distances[0].loss_percent), (Urgency::Quiet, 31));
    local.set_distances(vec![losing(12)], 10, &mut dice, due);
    assert_eq!(local.poll_timeout(), None, "it may come back");
    local.set_distances(vec![losing(0)], 10, &mut dice, due);
    assert!(local.poll_timeout().is_some(), "it is well again");
}

#[test]
fn only_the_nearest_origins_are_named() {
    let (mut local, start) = (started(), base());
    local.want(Urgency::Quiet, Duration::ZERO, start);
    let far = |number: u8| distance(number, (number > 0).then(|| 1000 * u32::from(number)));
    let (_, state) = local.publish(|| (0..40).rev().map(far).collect(), start).unwrap();
    let named: Vec<u8> = state.get().distances.iter().map(|it| it.origin.as_bytes()[0]).collect();
    assert_eq!(named, (1..=16).collect::<Vec<u8>>());
}

#[test]
fn a_later_generation_restarts_its_versions_and_a_farewell_is_last() {
    let (mut local, start) = (started(), base());
    local.want(Urgency::Quiet, Duration::ZERO, start);
    published(&mut local, start).unwrap();
    local.set_life(Life { generation: 1, renewal: 1 }, start);
    let (_, renewed) = published(&mut local, start + ms(100)).unwrap();
    assert_eq!((renewed.generation, renewed.renewal, renewed.version), (1, 1, 2));
    local.set_life(Life { generation: 7, renewal: 0 }, start + ms(100));
    let (_, raised) = published(&mut local, start + ms(200)).unwrap();
    assert_eq!((raised.generation, raised.renewal, raised.version), (7, 0, 1));
    local.set_life(Life { generation: 2, renewal: 0 }, start + ms(200));
    assert_eq!(local.generation(), 7);
    local.leave(start + ms(201));
    let (urgency, farewell) = published(&mut local, start + ms(201)).unwrap();
    assert_eq!(urgency, Urgency::News);
    assert!(farewell.left && local.has_left());
    local.set_service(service(), Some(OriginState::Ready), start + ms(300));
    assert_eq!(local.poll_timeout(), None);
}
