//! Attempts on lines that are given up.

use super::*;

#[test]
fn a_new_route_ends_the_wait_and_the_attempts_on_dead_lines() {
    let mut bench = Bench::new(config(), &[]);
    assert_eq!(bench.poll(), None);
    let held = Some(bench.now + ms(3000));
    assert_eq!(bench.connect.poll_timeout(), held, "nobody is there");
    bench.now += ms(500);
    bench.connect.handle_route(route(&[1]), bench.now);
    assert_eq!(bench.started(), Some((0, 1)));
    assert_eq!(bench.connect.deadline(), bench.now - ms(500) + ms(8000));
    let dead = vec![
        origin(1, OriginState::Ready, PathView::Dead),
        origin(2, OriginState::Ready, PathView::Up(ms(9))),
    ];
    bench.connect.handle_route(spread(dead), bench.now);
    assert_eq!(bench.poll(), Some(Action::Cancel { id: 0, overdue: false }));
    assert_eq!(bench.started(), Some((1, 2)));
}

/// The session would be reset although its origin answers, and its client would have tried twice.
#[test]
fn attempts_on_a_line_whose_sessions_are_reset_end() {
    let lossy = OriginView { broken: true, ..origin(1, OriginState::Ready, UP) };
    let stalled = origin(1, OriginState::Stalled, UP);
    for (near, other, is_left) in [
        (&lossy, OriginState::Ready, true),
        (&lossy, OriginState::Unready, false),
        (&stalled, OriginState::Ready, true),
    ] {
        let mut bench = Bench::new(config(), &[1]);
        assert_eq!(bench.started(), Some((0, 1)));
        bench.connect.handle_route(spread(vec![near.clone(), origin(2, other, UP)]), bench.now);
        let cancelled = is_left.then_some(Action::Cancel { id: 0, overdue: false });
        assert_eq!(bench.poll(), cancelled, "{near:?}");
        assert_eq!(bench.started(), is_left.then_some((1, 2)), "{near:?}");
    }
}

#[test]
fn attempts_on_a_lossy_line_end_once_there_is_a_better_one() {
    let mut bench = Bench::new(config(), &[]);
    let lossy = OriginView { broken: true, ..origin(1, OriginState::Ready, UP) };
    let [alone, better] = [OriginState::Unready, OriginState::Ready]
        .map(|other| spread(vec![lossy.clone(), origin(2, other, UP)]));
    bench.connect.handle_route(alone, bench.now);
    assert_eq!(bench.started(), Some((0, 1)), "for lack of a better one");
    bench.connect.handle_route(better, bench.now);
    assert_eq!(bench.poll(), Some(Action::Cancel { id: 0, overdue: false }));
    assert_eq!(bench.started(), Some((1, 2)));
}

#[test]
fn when_all_are_down_running_attempts_continue() {
    let mut bench = Bench::new(config(), &[1]);
    bench.started();
    let down = vec![origin(1, OriginState::Refusing, PathView::Up(ms(1)))];
    bench.connect.handle_route(spread(down), bench.now);
    assert_eq!(bench.poll(), None);
    let deadline = bench.now + ms(3000);
    assert_eq!(bench.connect.deadline(), deadline);
    bench.sleep();
    assert_eq!(bench.poll(), Some(Action::Cancel { id: 0, overdue: true }));
    bench.now = deadline;
    assert_eq!(bench.poll(), Some(Action::GiveUp));
}

#[test]
fn an_attempt_that_was_lost_from_the_start_goes_on_although_another_origin_is_usable() {
    let ready = |number, path| origin(number, OriginState::Ready, path);
    let lossy = OriginView { broken: true, ..ready(2, UP) };
    for worse in [lossy, ready(2, PathView::Dead)] {
        let mut bench = Bench::new(config(), &[]);
        let route = || spread(vec![ready(1, UP), worse.clone()]);
        bench.connect.handle_route(route(), bench.now);
        assert_eq!(bench.started(), Some((0, 1)));
        bench.connect.handle_failure(0, Some(Verdict::Refused));
        assert_eq!(bench.started(), Some((1, 2)), "for lack of a better one");
        bench.connect.handle_route(route(), bench.now);
        assert_eq!(bench.poll(), None, "nothing has changed: {worse:?}");
    }
}
