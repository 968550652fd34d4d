#![expect(clippy::disallowed_methods, reason = "an origin for virtual time")]

use std::time::Duration;

use super::*;

const AT_ONCE: Cut = Cut::Within { window: Duration::ZERO, forgives: true };

fn node(number: u8) -> NodeId {
    NodeId::from_bytes([number; 32])
}

fn line(number: u8) -> Line {
    Line::Direct(node(number))
}

fn service() -> ServiceName {
    "kube-apiserver".parse().expect("a valid name")
}

fn client(ledger: &mut Ledger, line: Line, now: Instant) -> SessionId {
    let id = ledger.open(&service(), Side::Client, line);
    ledger.handle_carried(id, true, now);
    id
}

fn carried(bytes: u64) -> Traffic {
    Traffic { bytes, ..Traffic::default() }
}

/// The entries that have something to do.
fn changed(ledger: &mut Ledger) -> Vec<SessionId> {
    std::iter::from_fn(|| ledger.poll_changed()).collect()
}

#[test]
fn a_cut_reaches_the_open_sessions_of_one_origin_only() {
    let (mut ledger, now) = (Ledger::default(), Instant::now());
    let (dead, alive) = (line(1), line(2));
    let one = client(&mut ledger, dead, now);
    let other = client(&mut ledger, alive, now);
    assert_eq!(ledger.cut(&service(), dead, AT_ONCE, now), 1);
    let late = client(&mut ledger, dead, now);
    assert_eq!(changed(&mut ledger), [one]);
    assert_eq!(ledger.poll(one, carried(0), now), Some(End::Cut));
    for spared in [other, late] {
        assert_eq!(
            (ledger.poll(spared, carried(0), now), ledger.poll_timeout(spared)),
            (None, None)
        );
    }
    assert_eq!(ledger.cut(&service(), line(3), AT_ONCE, now), 0);
}

#[test]
fn served_sessions_are_reset_within_the_window_for_every_node_and_no_others() {
    let (mut ledger, now) = (Ledger::default(), Instant::now());
    let serve = |ledger: &mut Ledger, from| {
        ledger.serve(&service(), node(from), node(from), 10_000).expect("there is room")
    };
    let served: Vec<SessionId> = (0..100).map(|from| serve(&mut ledger, from)).collect();
    let spared = [
        client(&mut ledger, line(1), now),
        ledger.open(&service(), Side::RelayedFor, line(1)),
        ledger
            .serve(&"metrics".parse().expect("a valid name"), node(1), node(1), 10_000)
            .expect("there is room"),
    ];
    let window = Duration::from_secs(1);
    let how = Cut::Within { window, forgives: true };
    assert_eq!(ledger.cut_served(&service(), how, now), 100);
    assert_eq!(changed(&mut ledger), served);
    let mut ended = |after| {
        let ends = |id: &&SessionId| ledger.poll(**id, carried(0), now + after).is_some();
        served.iter().filter(ends).count()
    };
    let half = ended(window / 2);
    assert!((25..75).contains(&half), "{half} of 100 after half the window");
    assert_eq!(ended(window), 100);
    for id in spared {
        assert_eq!(ledger.poll(id, carried(0), now + window), None);
    }
}

#[test]
fn an_attempt_that_is_answered_after_a_cut_continues_unless_its_line_is_over() {
    let now = Instant::now();
    for (how, shows, ends) in
        [(AT_ONCE, true, false), (AT_ONCE, false, true), (Cut::ForGood, true, true)]
    {
        let mut ledger = Ledger::default();
        let id = ledger.open(&service(), Side::Client, line(1));
        ledger.cut(&service(), line(1), how, now);
        ledger.handle_carried(id, shows, now);
        assert_eq!(ledger.poll(id, carried(0), now).is_some(), ends, "{how:?}, {shows}");
    }
}

#[test]
fn counts_follow_entries_and_tell_of_busy_origins() {
    let mut ledger = Ledger::default();
    let one = ledger.open(&service(), Side::Client, line(1));
    assert!(ledger.take_busy_changed());
    let two = ledger.open(&service(), Side::Client, line(1));
    let served = ledger.serve(&service(), node(1), node(1), 10).expect("there is room");
    assert!(!ledger.take_busy_changed(), "it was busy before, and what is served is not");
    assert_eq!(ledger.count_line(&service(), Side::Client, line(1)), 2);
    assert_eq!((ledger.count_side(&service(), Side::Served), ledger.count()), (1, 3));
    assert_eq!(ledger.busy(), BTreeSet::from([line(1)]));
    [one, two].into_iter().for_each(|id| ledger.close(id));
    assert_eq!((ledger.take_peak(), ledger.take_peak()), (3, 1), "then and now");
    assert!(ledger.take_busy_changed() && ledger.busy().is_empty());
    ledger.close(served);
    ledger.close(served);
    assert_eq!(ledger.count_all(Side::Served), 0);
    let relayed = ledger.open(&service(), Side::RelayedFor, line(4));
    assert_eq!(ledger.count_relayed_for(line(4)), 1);
    ledger.close(relayed);
    assert!(ledger.by_line.is_empty() && ledger.relayed_for.is_empty(), "names of peers stay");
    assert!(ledger.sessions.is_empty());
}

#[test]
fn sessions_of_a_node_with_a_new_key_are_its_successors() {
    let (mut ledger, now) = (Ledger::default(), Instant::now());
    let relayed = |relay| Line::Relayed { origin: node(9), relay: node(relay) };
    let one = client(&mut ledger, line(1), now);
    let through = client(&mut ledger, relayed(1), now);
    let served = ledger.open(&service(), Side::RelayedFor, line(1));
    ledger.rename(node(1), node(2));
    ledger.rename(node(2), node(3));
    let two = client(&mut ledger, line(3), now);
    assert_eq!(ledger.count_line(&service(), Side::Client, line(3)), 2);
    assert_eq!(ledger.count_line(&service(), Side::Client, line(1)), 1, "if one asks for it");
    assert_eq!(ledger.count_relayed_for(line(3)), 1);
    assert_eq!(ledger.busy(), BTreeSet::from([line(3), relayed(3)]));
    let lines = ledger.lines(&service(), Side::Client);
    assert_eq!(lines, [(line(3), 2), (relayed(3), 1)]);
    // An action on the successor's line applies to all of them.
    assert_eq!(ledger.cut(&service(), line(3), AT_ONCE, now), 2);
    assert_eq!([one, two].map(|id| ledger.poll(id, carried(0), now)), [Some(End::Cut); 2]);
    [one, two, through, served].into_iter().for_each(|id| ledger.close(id));
    assert!(ledger.busy().is_empty() && ledger.by_line.is_empty());
    ledger.rename(node(5), node(6));
    assert_eq!(ledger.renamed.len(), 1, "names that nobody needs are forgotten");
}

#[test]
fn a_dead_path_ends_what_comes_and_goes_on_it_and_nothing_else() {
    let (mut ledger, now) = (Ledger::default(), Instant::now());
    let other: ServiceName = "other".parse().expect("a name");
    let relayed = Line::Relayed { origin: node(9), relay: node(1) };
    let around = Line::Relayed { origin: node(1), relay: node(2) };
    let mut on_it = vec![client(&mut ledger, line(1), now), client(&mut ledger, relayed, now)];
    on_it.push(ledger.serve(&service(), node(1), node(7), 1000).expect("there is room"));
    on_it.push(ledger.relay(&service(), node(1), node(3), 10).expect("there is room")[1]);
    on_it.push(ledger.relay(&service(), node(4), node(1), 10).expect("there is room")[0]);
    let mut off_it = vec![client(&mut ledger, line(2), now), client(&mut ledger, around, now)];
    off_it.push(ledger.serve(&service(), node(2), node(1), 1000).expect("there is room"));
    off_it.push(ledger.serve(&other, node(1), node(1), 1000).expect("there is room"));
    assert_eq!(ledger.sever(&service(), &node(1), now), on_it.len() as u64);
    for id in on_it {
        assert_eq!(ledger.poll(id, carried(0), now), Some(End::Cut));
    }
    for id in off_it {
        assert_eq!(ledger.poll(id, carried(0), now), None);
    }
}

#[test]
fn sessions_to_or_through_a_revoked_node_end_permanently() {
    let (mut ledger, now) = (Ledger::default(), Instant::now());
    let through = Line::Relayed { origin: node(2), relay: node(1) };
    let those = [line(1), through, line(2)].map(|line| client(&mut ledger, line, now));
    assert_eq!(ledger.end(|it| *it == node(1), now), 2);
    let ends = those.map(|id| ledger.poll(id, carried(0), now));
    assert_eq!(ends, [Some(End::Cut), Some(End::Cut), None]);
}

#[test]
fn as_many_as_have_leave_move_the_longest_open_first_and_only_when_they_are_quiet() {
    let (mut ledger, now) = (Ledger::default(), Instant::now());
    let [one, two, three] = [1; 3].map(|number| client(&mut ledger, line(number), now));
    ledger.release(&service(), line(1), 2, false, now);
    assert_eq!(changed(&mut ledger), [one, two]);
    let all = [one, two, three];
    assert_eq!(all.map(|id| ledger.poll(id, carried(5), now)), [None; 3]);
    let later = now + QUIET;
    let moved = Some(End::Moved { quiet: true });
    let ends =
        [(one, 5), (two, 6), (three, 5)].map(|(id, sum)| ledger.poll(id, carried(sum), later));
    assert_eq!(ends, [moved, None, None], "the second was busy, the third has no leave");
    // The second is never quiet, and the third goes in its place; then the second's turn is over.
    let mut at = later;
    while at < now + MAX_UNREST {
        at = ledger.poll_timeout(two).expect("it is looked at");
        let sum = 7 + (at - now).as_millis() as u64;
        assert_eq!(ledger.poll(two, carried(sum), at), None);
    }
    ledger.close(one);
    ledger.release(&service(), line(1), 1, false, at);
    assert_eq!(changed(&mut ledger), [three]);
    ledger.release(&service(), line(1), 1, true, at);
    assert_eq!(changed(&mut ledger), [two]);
    let end = at + MAX_UNREST;
    assert_eq!(
        ledger.poll(two, carried(0), end),
        Some(End::Moved { quiet: false }),
        "it has to go"
    );
}

#[test]
fn leave_that_is_taken_back_ends_nobody() {
    let (mut ledger, now) = (Ledger::default(), Instant::now());
    let one = client(&mut ledger, line(1), now);
    // It is being opened, with a permission waiting for it.
    let two = ledger.open(&service(), Side::Client, line(1));
    ledger.release(&service(), line(1), 2, true, now);
    assert_eq!(ledger.poll(one, carried(0), now), None);
    ledger.release(&service(), line(1), 0, false, now);
    ledger.handle_carried(two, true, now);
    changed(&mut ledger);
    let later = now + QUIET * 4;
    assert_eq!(
        [one, two].map(|id| ledger.poll(id, carried(0), later)),
        [None; 2],
        "they were to stay"
    );
    // Those opened while a permission was waiting end.
    ledger.release(&service(), line(1), 3, true, later);
    let three = client(&mut ledger, line(1), later);
    assert_eq!(changed(&mut ledger), [one, two]);
    assert_eq!(ledger.poll_timeout(three), None, "as many as there were have leave");
}
