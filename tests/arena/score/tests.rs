use super::*;

const FAULT: u64 = 10_000;

fn at(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn moments(heal: Option<u64>) -> Moments {
    let healed = heal.map(at);
    let (fault, end) = (at(FAULT), at(FAULT + 60_000));
    Moments { fault, struck: fault, heal: healed, healed, end }
}

fn attempt(begun: u64, took: u64, outcome: Result<&str, Failure>) -> Attempt {
    Attempt { begun: at(begun), took: at(took), outcome: outcome.map(str::to_owned) }
}

fn held(slot: usize, opened: u64, origin: &str, last_line: u64, ended: Option<u64>) -> Held {
    Held {
        slot,
        opened: at(opened),
        origin: origin.to_owned(),
        last_line: at(last_line),
        ended: ended.map(at),
    }
}

fn close(value: Option<f64>, wanted: f64) -> bool {
    value.is_some_and(|value| (value - wanted).abs() < 1e-6)
}

#[test]
fn connections_are_counted_and_compared_with_before() {
    let record = Record {
        attempts: vec![
            attempt(9_000, 4, Ok("near")),
            attempt(9_200, 5, Ok("near")),
            attempt(9_400, 900, Err(Failure::Broken)),
            attempt(FAULT + 200, 5_000, Err(Failure::TimedOut)),
            attempt(FAULT, 205, Ok("mid")),
            attempt(FAULT + 400, 6, Ok("mid")),
            attempt(FAULT + 61_000, 5, Err(Failure::Broken)),
        ],
        ..Record::default()
    };
    let row = score(&record, moments(None), &["near"]);
    assert_eq!((row.connects.attempts, row.connects.failed), (3, 1));
    assert!(close(row.connects.last_failure_s, 0.2) && close(row.connects.disturbed_until_s, 0.2));
    assert!(close(row.connects.p50_before_ms, 5.0) && close(row.connects.worst_connect_ms, 205.0));
    assert!(close(row.connects.extra_connect_ms, 200.0));
    assert_eq!(row.rotation.last_new_to_victim_s, None);
}

#[test]
fn rotation_back_and_home() {
    let heal = FAULT + 20_000;
    let mut record = Record {
        attempts: vec![
            attempt(9_000, 5, Ok("near")),
            attempt(FAULT + 1_000, 4, Ok("near")),
            attempt(FAULT + 3_000, 4, Ok("near")),
            attempt(FAULT + 4_000, 12, Ok("mid")),
            // Sent there while it hung, answered when it went on.
            attempt(heal - 1_000, 1_500, Ok("near")),
            attempt(heal + 1_000, 12, Ok("mid")),
            attempt(heal + 2_000, 4, Ok("near")),
            attempt(heal + 3_000, 12, Ok("far")),
        ],
        ..Record::default()
    };
    record.attempts.extend((0..=10).map(|at| attempt(heal + 4_000 + 200 * at, 4, Ok("near"))));
    let row = score(&record, moments(Some(heal)), &["near"]);
    assert!(close(row.rotation.last_new_to_victim_s, 3.0));
    assert_eq!(row.rotation.new_to_victim_late, 1);
    assert!(close(row.rotation.back_in_use_s, 2.0) && close(row.rotation.home_s, 4.0));
    assert!(close(row.rotation.first_success_s, 0.5));
    assert_eq!(row.rotation.route_changes, 6);
    assert!(close(row.connects.usual_s, 0.0) && close(row.connects.first_answer_s, 1.004));
}

#[test]
fn sessions_that_never_leave_are_home_and_those_that_never_return_are_not() {
    let heal = FAULT + 20_000;
    let of = |origin| Record {
        attempts: (0..20).map(|at| attempt(heal + 100 + 200 * at, 4, Ok(origin))).collect(),
        ..Record::default()
    };
    let home = score(&of("near"), moments(Some(heal)), &["near"]);
    assert!(close(home.rotation.home_s, 0.0) && close(home.rotation.back_in_use_s, 0.1));
    let away = score(&of("mid"), moments(Some(heal)), &["near"]);
    assert_eq!((away.rotation.home_s, away.rotation.back_in_use_s), (None, None));
}

#[test]
fn the_usual_way_is_gone_again_after_the_last_slow_one() {
    let heal = FAULT + 20_000;
    let record = Record {
        attempts: vec![
            attempt(9_000, 5, Ok("near")),
            attempt(heal - 200, 60, Ok("near")),
            attempt(heal + 100, 60, Ok("near")),
            attempt(heal + 300, 20, Ok("near")),
            attempt(heal + 500, 5, Ok("near")),
        ],
        ..Record::default()
    };
    assert!(close(score(&record, moments(Some(heal)), &["near"]).connects.usual_s, 0.3));
}

#[test]
fn refusals_count_from_the_first_of_the_last_row_of_them() {
    let heal = FAULT + 20_000;
    let record = Record {
        attempts: vec![
            attempt(FAULT + 1_000, 1, Err(Failure::Refused)),
            attempt(FAULT + 2_000, 3_000, Err(Failure::Broken)),
            attempt(FAULT + 6_000, 1, Err(Failure::Refused)),
            attempt(FAULT + 7_000, 3, Err(Failure::Refused)),
            attempt(heal + 400, 10, Ok("mid")),
        ],
        ..Record::default()
    };
    let row = score(&record, moments(Some(heal)), &["near", "mid", "far"]);
    assert!(close(row.refusals.refused_within_s, 6.0) && close(row.refusals.refused_ms, 3.0));
    assert!(close(row.rotation.first_success_s, 0.41));
}

#[test]
fn held_connections_by_whose_they_are_and_when_they_end() {
    let heal = FAULT + 20_000;
    let record = Record {
        held: vec![
            held(0, 1_000, "near", FAULT, Some(FAULT + 900)),
            held(0, FAULT + 1_000, "mid", heal + 9_000, Some(heal + 9_000)),
            held(1, 1_000, "near", FAULT, Some(FAULT + 2_000)),
            held(1, FAULT + 2_100, "mid", heal + 30_000, None),
            held(2, 1_000, "mid", heal + 30_000, None),
            held(3, 1_000, "far", FAULT + 5_000, Some(FAULT + 5_000)),
            // Ended before the fault, and opened after it: neither is concerned.
            held(4, 1_000, "near", 2_000, Some(2_000)),
        ],
        ..Record::default()
    };
    let row = score(&record, moments(Some(heal)), &["near"]);
    assert_eq!((row.held.victim_held, row.held.victim_held_ended), (2, 2));
    assert_eq!((row.held.healthy_held, row.held.healthy_held_cut), (2, 1));
    assert!(close(row.held.victim_held_cut_s, 2.0) && close(row.held.held_dark_s, 2.1));
    assert_eq!(row.held.cut_after_heal, 1);
}

#[test]
fn one_that_stays_is_never_cut() {
    let record = Record {
        held: vec![
            held(0, 1_000, "near", FAULT, Some(FAULT + 900)),
            held(1, 1_000, "near", FAULT, None),
        ],
        ..Record::default()
    };
    let row = score(&record, moments(Some(FAULT + 20_000)), &["near"]);
    assert_eq!((row.held.victim_held_ended, row.held.victim_held_cut_s), (1, None));
    assert!(close(row.held.held_dark_s, 20.0));
}
