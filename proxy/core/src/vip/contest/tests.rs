//! Single rules of one node.

use std::net::{IpAddr, Ipv4Addr};

use super::*;

const IP: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7));
const CLIENT: Heard = Heard::Asked { hardware: Hardware([2, 0, 0, 0, 1, 1]), ip: IP };
const LOWER: Hardware = Hardware([2, 0, 0, 0, 0, 1]);
const OWN: Hardware = Hardware([2, 0, 0, 0, 0, 5]);
const HIGHER: Hardware = Hardware([2, 0, 0, 0, 0, 9]);

fn at(ms: u64) -> BootTime {
    BootTime::new(Duration::from_millis(ms))
}

fn contest() -> Contest {
    let node = NodeId::from_bytes([5; 32]);
    let own = Contender { node, incarnation: 1, hardware: OWN, priority: 10 };
    let mut contest = Contest::new(own, at(0));
    contest.handle_usable(true, at(0));
    contest
}

fn frames(contest: &mut Contest, ms: u64) -> Vec<Frame> {
    let mut frames = Vec::new();
    while let Some(transmit) = contest.poll_transmit(at(ms)) {
        if let Transmit::Frame(frame) = transmit {
            frames.push(frame);
        }
    }
    frames
}

/// Runs until `to_ms` on time; the frames of that time.
fn run(contest: &mut Contest, from_ms: u64, to_ms: u64) -> Vec<Frame> {
    let mut sent = Vec::new();
    for ms in (from_ms..=to_ms).step_by(10) {
        if contest.poll_timeout() <= at(ms) {
            contest.handle_timeout(at(ms));
        }
        sent.extend(frames(contest, ms));
    }
    sent
}

/// A holder at 2 s.
fn holder() -> Contest {
    let mut contest = contest();
    run(&mut contest, 0, 2_000);
    assert_eq!(contest.poll_event(), Some(Event::Gained));
    contest
}

fn claim(sequence: u64, priority: u8, stance: Stance, hardware: Hardware) -> Claim {
    Claim { incarnation: 1, sequence, usable: true, priority, stance, hardware, hears: true }
}

fn peer(number: u8) -> NodeId {
    NodeId::from_bytes([number; 32])
}

#[test]
fn it_probes_three_times_before_it_claims() {
    let mut contest = contest();
    assert_eq!(run(&mut contest, 0, 990), []);
    assert_eq!(run(&mut contest, 1_000, 1_440), [Frame::Probe; 3]);
    assert!(!contest.answers(at(1_440)));
    assert_eq!(run(&mut contest, 1_450, 1_450), [Frame::Announce, Frame::Refresh]);
    assert!(contest.answers(at(1_450)));
}

#[test]
fn a_node_without_a_usable_origin_does_not_claim() {
    let mut contest = contest();
    contest.handle_usable(false, at(0));
    assert_eq!(run(&mut contest, 0, 5_000), []);
}

#[test]
fn an_answered_probe_ends_the_probing() {
    let mut contest = contest();
    run(&mut contest, 0, 1_200);
    contest.handle_frame(Heard::Claimed(HIGHER), at(1_210));
    assert_eq!(run(&mut contest, 1_210, 2_200), []);
    assert_eq!(run(&mut contest, 2_210, 2_210), [Frame::Probe]);
}

/// A successor announces itself on the LAN before the claims of its predecessor arrive.
#[test]
fn late_claims_of_a_predecessor_free_nothing() {
    for before in [vec![Stance::Releasing], vec![Stance::Holding, Stance::Releasing]] {
        let mut contest = contest();
        run(&mut contest, 0, 500);
        contest.handle_frame(Heard::Claimed(HIGHER), at(500));
        contest.handle_frame(Heard::Claimed(LOWER), at(510));
        for (sequence, stance) in (1..).zip(before) {
            contest.handle_claim(peer(9), claim(sequence, 1, stance, HIGHER), at(600));
        }
        assert_eq!(run(&mut contest, 600, 1_500), []);
        // The successor's own claim does.
        contest.handle_claim(peer(1), claim(1, 1, Stance::Releasing, LOWER), at(1_505));
        assert_eq!(run(&mut contest, 1_510, 1_510), [Frame::Probe]);
    }
}

#[test]
fn a_holder_that_cannot_send_yields_to_the_first_that_is_ready() {
    let mut holder = holder();
    holder.handle_cut(at(2_100));
    assert!(holder.answers(at(2_100)));
    holder.handle_claim(peer(9), claim(1, 1, Stance::Ready, HIGHER), at(2_600));
    assert!(!holder.answers(at(2_600)));
    assert_eq!(holder.poll_event(), Some(Event::Lost(Loss::Cut)));
    assert_eq!(run(&mut holder, 2_600, 6_000), [], "it does not come back by itself");
}

#[test]
fn a_late_probe_starts_over() {
    let mut contest = contest();
    run(&mut contest, 0, 1_200);
    contest.handle_timeout(at(1_420));
    assert_eq!(frames(&mut contest, 1_420), []);
    assert_eq!(run(&mut contest, 1_420, 2_420), [Frame::Probe]);
}

#[test]
fn a_holder_answers_probes_and_a_standby_does_not() {
    for other in [LOWER, HIGHER] {
        let mut holder = holder();
        holder.handle_frame(Heard::Probed(other), at(2_010));
        assert_eq!(frames(&mut holder, 2_010), [Frame::Announce]);
        assert_eq!(holder.poll_event(), None);
        let mut standby = contest();
        standby.handle_frame(Heard::Probed(other), at(10));
        assert_eq!(frames(&mut standby, 10), []);
    }
}

#[test]
fn a_releasing_holder_answers_clients_but_no_probes_until_another_announces() {
    let mut holder = holder();
    holder.handle_stop(at(2_010));
    holder.handle_frame(Heard::Probed(LOWER), at(2_020));
    assert_eq!(frames(&mut holder, 2_020), []);
    holder.handle_frame(CLIENT, at(2_030));
    assert_eq!(frames(&mut holder, 2_030).len(), 1);
    assert!(!holder.is_stopped());
    holder.handle_frame(Heard::Claimed(HIGHER), at(2_040));
    assert_eq!(holder.poll_event(), Some(Event::Lost(Loss::Stopped)));
    assert!(holder.is_stopped());
    holder.handle_frame(CLIENT, at(2_050));
    assert_eq!(frames(&mut holder, 2_050), []);
}

#[test]
fn a_releasing_holder_that_was_stopped_is_silent() {
    let mut holder = holder();
    holder.handle_usable(false, at(2_010));
    assert!(holder.answers(at(2_300)));
    holder.handle_frame(CLIENT, at(2_320));
    assert_eq!(frames(&mut holder, 2_320), []);
    assert_eq!(holder.poll_event(), Some(Event::Lost(Loss::Unusable)));
}

#[test]
fn of_two_that_probe_the_lower_one_continues() {
    for (other, events) in [(LOWER, None), (HIGHER, Some(Event::Gained))] {
        let mut contest = contest();
        run(&mut contest, 0, 1_200);
        contest.handle_frame(Heard::Probed(other), at(1_210));
        run(&mut contest, 1_210, 1_600);
        assert_eq!(contest.poll_event(), events);
    }
}

#[test]
fn only_a_holder_answers_clients() {
    let mut standby = contest();
    standby.handle_frame(CLIENT, at(10));
    assert_eq!(frames(&mut standby, 10), []);
    let mut holder = holder();
    holder.handle_frame(CLIENT, at(2_010));
    let Heard::Asked { hardware, ip } = CLIENT else { unreachable!() };
    assert_eq!(frames(&mut holder, 2_010), [Frame::Answer { hardware, ip }]);
}

#[test]
fn a_holder_that_was_stopped_answers_nothing_that_waited() {
    let mut holder = holder();
    holder.handle_frame(CLIENT, at(2_010));
    assert_eq!(frames(&mut holder, 4_000), []);
    assert_eq!(holder.poll_event(), Some(Event::Lost(Loss::Stalled)));
    holder.handle_frame(CLIENT, at(4_000));
    assert_eq!(frames(&mut holder, 4_000), []);
}

#[test]
fn a_flood_of_questions_does_not_cost_the_lease() {
    let mut holder = holder();
    for _ in 0..10_000 {
        holder.handle_frame(CLIENT, at(2_010));
    }
    holder.handle_timeout(at(2_300));
    assert_eq!(holder.poll_transmit(at(2_300)), Some(Transmit::Frame(Frame::Announce)));
    assert!(frames(&mut holder, 2_300).len() <= MAX_FRAMES + 2);
}

#[test]
fn a_holder_yields_to_a_lower_station_and_defends_against_a_higher_one() {
    let mut yields = holder();
    yields.handle_frame(Heard::Claimed(LOWER), at(2_010));
    assert_eq!(yields.poll_event(), Some(Event::Lost(Loss::Contested(LOWER))));
    assert_eq!(frames(&mut yields, 2_010), []);
    let mut defends = holder();
    defends.handle_frame(Heard::Claimed(HIGHER), at(2_010));
    assert_eq!(frames(&mut defends, 2_010), [Frame::Announce]);
    assert_eq!(defends.poll_event(), None);
}

#[test]
fn a_station_that_does_not_yield_gets_the_address_after_a_second() {
    let mut holder = holder();
    for ms in (2_010..2_900).step_by(100) {
        holder.handle_frame(Heard::Claimed(HIGHER), at(ms));
        run(&mut holder, ms, ms + 90);
    }
    assert_eq!(holder.poll_event(), None);
    holder.handle_frame(Heard::Claimed(HIGHER), at(2_920));
    assert_eq!(holder.poll_event(), Some(Event::Lost(Loss::Contested(HIGHER))));
    assert_eq!(run(&mut holder, 2_920, 12_900), []);
    assert_eq!(run(&mut holder, 12_920, 12_920), [Frame::Probe]);
}

#[test]
fn an_old_claim_is_not_a_sign_of_life() {
    let mut contest = contest();
    let old = claim(7, 10, Stance::Holding, HIGHER);
    contest.handle_claim(peer(9), old, at(10));
    for ms in (20..2_000).step_by(10) {
        contest.handle_claim(peer(9), old, at(ms));
        run(&mut contest, ms, ms);
    }
    assert_eq!(contest.poll_event(), Some(Event::Gained));
}

#[test]
fn a_standby_defers_to_a_preferred_one_for_a_while() {
    let mut contest = contest();
    let mut first = None;
    for ms in (0..3_000).step_by(10) {
        contest.handle_claim(peer(9), claim(ms + 1, 11, Stance::Standby, HIGHER), at(ms));
        if !run(&mut contest, ms, ms).is_empty() {
            first = first.or(Some(ms));
        }
    }
    assert_eq!(first, Some(1_600));
}

#[test]
fn a_holder_hands_over_to_a_preferred_node_that_has_settled_and_tries_once() {
    let mut holder = holder();
    let mut lost = Vec::new();
    for ms in (2_010..60_000).step_by(10) {
        holder.handle_claim(peer(9), claim(ms, 11, Stance::Standby, HIGHER), at(ms));
        run(&mut holder, ms, ms);
        if let Some(Event::Lost(why)) = holder.poll_event() {
            lost.push((ms, why));
        }
    }
    let [(ms, Loss::HandedOver)] = lost[..] else { panic!("lost: {lost:?}") };
    assert!((14_000..15_000).contains(&ms), "lost at {ms} ms");
    assert!(holder.answers(at(59_990)), "the preferred node did not claim");
}

#[test]
fn more_peers_than_a_group_has_are_ignored() {
    let mut contest = contest();
    for number in 10..200 {
        contest.handle_claim(peer(number), claim(1, 0, Stance::Standby, HIGHER), at(10));
    }
    assert_eq!(contest.peers.len(), MAX_PEERS);
}

/// A standby that has probed after a holder announced its release, at 2.46 s.
fn ready() -> Contest {
    let mut contest = contest();
    for ms in (0..2_000).step_by(100) {
        contest.handle_claim(peer(9), claim(ms / 100 + 1, 10, Stance::Holding, HIGHER), at(ms));
    }
    contest.handle_claim(peer(9), claim(50, 10, Stance::Releasing, HIGHER), at(2_000));
    assert_eq!(run(&mut contest, 2_000, 2_470), [Frame::Probe; 3]);
    assert_eq!(contest.stance(), Stance::Ready);
    assert!(!contest.answers(at(2_470)));
    contest
}

#[test]
fn a_ready_standby_takes_the_address_with_the_word_of_the_holder() {
    let mut named = ready();
    named.handle_frame(Heard::Claimed(OWN), at(2_480));
    assert_eq!(frames(&mut named, 2_480), [Frame::Announce, Frame::Refresh]);
    let mut gone = ready();
    gone.handle_claim(peer(9), claim(51, 10, Stance::Standby, HIGHER), at(2_480));
    assert_eq!(gone.poll_event(), Some(Event::Gained));
    let mut another = ready();
    another.handle_frame(Heard::Claimed(LOWER), at(2_480));
    assert_eq!(another.stance(), Stance::Standby);
}

#[test]
fn a_ready_standby_does_not_wait_for_a_holder_that_says_nothing() {
    let mut contest = ready();
    assert_eq!(run(&mut contest, 2_480, 3_640), []);
    assert_eq!(run(&mut contest, 3_650, 3_660), [Frame::Announce, Frame::Refresh]);
}

/// A holder that stops at 2.01 s, for which a standby is ready at 2.5 s, with short connections
/// until `to_ms`; the frames of that time.
fn busy_until(to_ms: u64) -> (Contest, Vec<Frame>) {
    let mut holder = holder();
    holder.handle_stop(at(2_010));
    let mut sent = run(&mut holder, 2_010, 2_490);
    holder.handle_claim(peer(4), claim(7, 10, Stance::Ready, LOWER), at(2_500));
    for ms in (2_500..=to_ms).step_by(10) {
        holder.handle_busy(true, at(ms));
        sent.extend(run(&mut holder, ms, ms));
    }
    (holder, sent)
}

#[test]
fn a_holder_that_releases_names_its_successor_between_two_connections() {
    let (mut holder, sent) = busy_until(2_600);
    assert_eq!(sent, []);
    holder.handle_busy(false, at(2_610));
    assert_eq!(run(&mut holder, 2_610, 2_620), [Frame::Cede(LOWER)]);
    // A station that asks before the other one has announced itself gets the other one's address.
    holder.handle_frame(CLIENT, at(2_630));
    assert_eq!(frames(&mut holder, 2_630), [Frame::Cede(LOWER)]);
    holder.handle_frame(Heard::Claimed(LOWER), at(2_640));
    assert!(holder.is_stopped());
}

#[test]
fn connections_hold_a_release_up_for_a_second() {
    assert_eq!(busy_until(3_490).1, []);
    assert_eq!(busy_until(3_510).1, [Frame::Cede(LOWER)]);
}
