//! Apiservers whose etcd hangs, each next to a whole node: one of three, and all three.

use super::*;

const ORIGINS: [usize; 3] = [1, 2, 3];
/// Longer than the time in which a newcomer always uses the best origin, and than anything here
/// takes.
const CALM: Duration = Duration::from_secs(6);

/// A worker and three origins, the first the nearest and with a session; `phases` is how far apart
/// their probes are.
fn net(phases: [u64; 2]) -> Net {
    let mut net = Net::new(&["node", ORIGIN, ORIGIN, ORIGIN], ms(5));
    for (origin, delay) in ORIGINS.into_iter().zip([1, 5, 7]) {
        net.link(A, origin, Some(ms(delay)));
    }
    let interval = Duration::from_secs(1);
    let config = HealthConfig { interval, fall: 2, asks_ready: true, asks_live: true };
    for (origin, pause) in ORIGINS.into_iter().zip(phases.into_iter().chain([0])) {
        let now = net.now;
        net.nodes[origin].set_health(&service(), config.clone(), now);
        net.pass(ms(pause));
    }
    let first = Line::Direct(net.id(1));
    net.until(MEET, |net| net.first(A) == Some((first, Standing::Healthy))).expect("they meet");
    net.pass(CALM);
    net.nodes[A].handle_busy(BTreeSet::from([first]), net.now);
    net.pass(ms(1500));
    net.events.clear();
    net
}

fn resets(net: &Net, node: usize) -> Vec<Line> {
    let of_node = net.events.iter().filter(|(at, _)| *at == node);
    let lines = of_node.filter_map(|(_, event)| match event {
        Event::Reset { line, .. } => Some(*line),
        _ => None,
    });
    lines.collect()
}

fn changes(net: &Net, node: usize) -> usize {
    let changed = |(at, event): &&(usize, Event)| {
        *at == node && matches!(event, Event::Route { change: Some(_), .. })
    };
    net.events.iter().filter(changed).count()
}

/// K2: new connections soon use another origin, and hanging sessions are cut well within 4 s.
#[test]
fn one_that_stalls_is_left_in_time_and_gone_back_to() {
    for phase in (0..1000).step_by(250) {
        let mut net = net([0, 0]);
        let first = Line::Direct(net.id(1));
        net.pass(ms(phase));
        net.stalled.insert(1);
        let goes = |net: &Net| net.first(A).is_some_and(|it| it.0 != first);
        let left = net.until(MEET, goes).expect("new connections go elsewhere");
        assert!(left <= ms(1800), "left after {left:?}");
        let cut = left + net.until(MEET, |net| resets(net, A) == [first]).expect("it is cut");
        assert!(cut <= ms(2700), "cut after {cut:?}");
        assert!(goes(&net), "who is cut does not come back to it");
        net.pass(CALM);
        assert_eq!((resets(&net, A), changes(&net, A)), (vec![first], 1), "once, and no other");
        net.unstall(&ORIGINS, 200);
        net.until(MEET, |net| net.first(A) == Some((first, Standing::Healthy))).expect("back");
    }
}

/// The others are live and not ready, before or soon after: new connections go to them, once they
/// can no longer be stalling too. Nothing is cut until one of them is ready.
#[test]
fn one_that_stalls_is_left_for_another_that_is_live_and_not_ready() {
    for after_ms in [-9000_i64, -600, 0, 300] {
        for phase in (0..1000).step_by(330) {
            let mut net = net([330, 330]);
            let [first, second] = [1, 2].map(|at| Line::Direct(net.id(at)));
            net.pass(ms(phase));
            let others = &ORIGINS[1..];
            if after_ms <= 0 {
                net.unready.extend(others);
            }
            net.pass(ms(after_ms.unsigned_abs()));
            net.stalled.insert(1);
            if after_ms > 0 {
                net.pass(ms(after_ms.unsigned_abs()));
                net.unready.extend(others);
            }
            let goes = |net: &Net| net.first(A).is_some_and(|it| it.0 == second);
            let left = net.until(MEET, goes).expect("new connections go elsewhere");
            assert!((ms(7000)..=ms(8700)).contains(&left), "{after_ms} {phase}: after {left:?}");
            net.pass(MEET);
            let seen = [A, 1, 2, 3].map(|at| resets(&net, at));
            assert_eq!(seen, [const { vec![] }; 4], "{after_ms} {phase}");
            assert!(goes(&net) && changes(&net, A) == 1, "{after_ms} {phase}");
            net.unready.clear();
            let is_cut = |net: &Net| [A, 1].iter().all(|at| resets(net, *at) == [first]);
            let cut = net.until(MEET, is_cut).expect("it is cut");
            assert!(cut <= ms(1600), "{after_ms} {phase}: cut after {cut:?}");
            net.unstall(&ORIGINS, 200);
            net.until(MEET, |net| net.first(A) == Some((first, Standing::Healthy))).expect("back");
        }
    }
}

/// One takes longer than the others to fail its probes, but no longer than is possible: until then
/// it is in doubt, as if it were live.
#[test]
fn all_that_stall_together_keep_the_route_however_long_one_takes_to_fail() {
    for (slow, more_ms) in [(2, 1500), (2, 2990), (3, 2990), (1, 2990)] {
        for phase in (0..1000).step_by(90) {
            let mut net = net([330, 330]);
            net.slow = Some((slow, ms(more_ms)));
            net.pass(ms(phase));
            net.stalled.extend(ORIGINS);
            net.pass(MEET);
            end(&mut net, &ORIGINS, [(200, 0); 3]);
            net.pass(CALM);
            let seen = [A, 1, 2, 3].map(|at| (resets(&net, at), changes(&net, at)));
            assert_eq!(seen, [const { (vec![], 0) }; 4], "{slow} {more_ms} {phase}");
        }
    }
}

/// How a stall ends at each origin: the status of pending probes, and for how long the last error
/// is repeated.
type Ends = [(u16, u64); 3];

fn end(net: &mut Net, origins: &[usize], ends: Ends) {
    for (origin, (status, repeats_ms)) in ORIGINS.into_iter().zip(ends) {
        if origins.contains(&origin) {
            net.unstall(&[origin], status);
            net.repeats.insert(origin, net.now + ms(repeats_ms));
        }
    }
}

/// However long each takes to fail, and whether the probes that are pending when the stall ends
/// succeed or not: etcd fails some of those that wait for its election, and the apiserver repeats
/// this.
#[test]
fn all_that_stall_together_keep_their_sessions_and_the_route() {
    for (one, two) in [(0, 0), (330, 330), (950, 50)] {
        for phase in (0..1000).step_by(180) {
            for (ends, uneven_ms) in [
                ([(200, 0); 3], 0),
                ([(500, 0); 3], 400),
                ([(500, 400), (200, 0), (500, 800)], 0),
                ([(500, 800), (500, 400), (200, 0)], 0),
                ([(500, 1000), (200, 0), (200, 0)], 400),
            ] {
                let mut net = net([one, two]);
                net.uneven_ms = uneven_ms;
                net.pass(ms(phase));
                net.stalled.extend(ORIGINS);
                net.pass(CALM);
                end(&mut net, &ORIGINS, ends);
                net.pass(CALM);
                let seen = [A, 1, 2, 3].map(|at| resets(&net, at));
                assert_eq!(seen, [const { vec![] }; 4], "{one} {two} {phase} {ends:?}");
                // New connections leave one that says for 0.75 s that it is not ready, and return.
                let left = if ends[0].1 > 500 { 2 } else { 0 };
                assert_eq!(changes(&net, A), left, "{one} {two} {phase} {ends:?}");
            }
        }
    }
}

/// K2: the member that stalls leads etcd, so that all stall until another one is elected. Its own
/// node and the worker leave it soon after that, and no other origin.
#[test]
fn a_stalled_leader_is_left_soon_after_the_election() {
    for election in (1200..=3000).step_by(300) {
        for phase in (0..1000).step_by(250) {
            for recover in [[(200, 0); 2], [(500, 0); 2], [(200, 0), (500, 800)]] {
                let mut net = net([330, 330]);
                let first = Line::Direct(net.id(1));
                let seen = |net: &Net| [A, 1].map(|at| (resets(net, at), changes(net, at)));
                net.pass(ms(phase));
                net.stalled.extend(ORIGINS);
                net.pass(ms(election));
                assert_eq!(seen(&net), [(vec![], 0), (vec![], 0)]);
                let [second, third] = recover;
                end(&mut net, &ORIGINS[1..], [(0, 0), second, third]);
                let is_cut = |net: &Net| [A, 1].iter().all(|at| !resets(net, *at).is_empty());
                let cut = net.until(MEET, is_cut).expect("it is cut");
                // After a quick election it is not yet known that it stalls. Where pending probes
                // fail, the stall of the others is announced a moment before its end.
                let limit = if second.0 == 200 { ms(550) } else { ms(650) };
                let limit = limit.max(ms(2500).saturating_sub(ms(election)));
                assert!(cut <= limit, "{election} {phase} {recover:?}: cut after {cut:?}");
                net.pass(CALM);
                let once = [(vec![first], 1), (vec![first], 1)];
                assert_eq!(seen(&net), once, "{election} {phase} {recover:?}");
            }
        }
    }
}

#[test]
fn a_node_that_leaves_repeats_the_reset_on_its_own_instance() {
    let mut net = net([0, 0]);
    let own = Line::Direct(net.id(1));
    let resets = |net: &Net| -> Vec<bool> {
        let of_origin = net.events.iter().filter(|(at, _)| *at == 1);
        let resets = of_origin.filter_map(|(_, event)| match event {
            Event::Reset { line, served, .. } if *line == own => Some(*served),
            _ => None,
        });
        resets.collect()
    };
    net.stalled.insert(1);
    net.until(MEET, |net| resets(net) == [false]).expect("its own clients are cut");
    net.pass(CALM);
    assert_eq!(resets(&net), [false]);
    let now = net.now;
    net.nodes[1].leave(now);
    net.pass(CALM);
    assert_eq!(resets(&net), [false, true], "with those that it serves to others");
}
