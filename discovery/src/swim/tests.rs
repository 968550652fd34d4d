use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::directory::{Directory, Liveness, Record};
use crate::tests::{base, node};
use crate::wire::Short;

mod known;

/// All nodes have sessions with each other unless stated otherwise.
#[derive(Default)]
struct Sight {
    unconnected: Vec<NodeId>,
    heard: BTreeMap<NodeId, Instant>,
    connected: BTreeMap<NodeId, Life>,
    known: Vec<(NodeId, Claim)>,
}

impl View for Sight {
    fn resolve(&self, short: Short) -> Option<NodeId> {
        Some(NodeId::from_bytes([short.0[0]; 32]))
    }

    fn session(&self, peer: &NodeId) -> bool {
        !self.unconnected.contains(peer)
    }

    fn same_site(&self, _: &NodeId) -> bool {
        false
    }

    fn sessions(&self) -> usize {
        self.connected.len()
    }

    fn connected(&self, draw: u64) -> Option<(NodeId, Life)> {
        let count = self.connected.len() as u64;
        let place = usize::try_from(draw.checked_rem(count)?).unwrap();
        self.connected.iter().nth(place).map(|(node, life)| (*node, *life))
    }

    fn knows(&self, member: &NodeId, claim: &Claim) -> bool {
        self.known.contains(&(*member, *claim))
    }

    fn heard(&self, peer: &NodeId) -> Option<Instant> {
        self.heard.get(peer).copied()
    }
}

fn life(generation: u64) -> Life {
    Life { generation, renewal: 0 }
}

fn swim(number: u8) -> Swim {
    Swim::new(&DiscoveryConfig::default(), node(number), life(1), [number; 32])
}

fn claim(standing: Standing) -> Claim {
    Claim { life: life(1), incarnation: 0, standing }
}

fn incoming(from: NodeId, bytes: &[u8]) -> Incoming<'_> {
    Incoming { from, over: None, bytes }
}

fn outputs(swim: &mut Swim) -> Vec<Output> {
    std::iter::from_fn(|| swim.poll_output()).collect()
}

/// Runs the timers until something other than a packet comes out.
fn until_output(
    swim: &mut Swim,
    view: &impl View,
    start: Instant,
    limit: Duration,
) -> Option<(Output, Duration)> {
    while let Some(due) = swim.poll_timeout().filter(|due| *due - start <= limit) {
        swim.handle_timeout(view, due);
        for output in outputs(swim) {
            if !matches!(output, Output::Send(..)) {
                return Some((output, due - start));
            }
        }
    }
    None
}

#[test]
fn two_nodes_meet_by_an_announcement() {
    let (mut a, mut b, sight, now) = (swim(1), swim(2), Sight::default(), base());
    a.announce(node(2), &sight, now);
    let mut met = Vec::new();
    let mut packets: VecDeque<(u8, Output)> =
        outputs(&mut a).into_iter().map(|it| (1, it)).collect();
    while let Some((from, output)) = packets.pop_front() {
        match output {
            Output::Send(to, datagram) => {
                let Ok(Message::Swim(bytes)) = Message::decode(&datagram) else {
                    panic!("not membership")
                };
                assert!(bytes.len() < 40, "an announcement and its answer are small");
                let (receiver, number) = if to == node(1) { (&mut a, 1) } else { (&mut b, 2) };
                receiver.handle_datagram(incoming(node(from), bytes), &sight, now).unwrap();
                packets.extend(outputs(receiver).into_iter().map(|it| (number, it)));
            }
            other => met.push((from, other)),
        }
    }
    assert!(met.contains(&(1, Output::Up(node(2), life(1)))));
    assert!(met.contains(&(2, Output::Up(node(1), life(1)))));
}

#[test]
fn a_silent_member_is_suspected_notified_and_declared_down() {
    let (mut swim, sight, start) = (swim(1), Sight::default(), base());
    swim.apply([(node(2), claim(Standing::Alive))], true, &sight, start);
    assert!(outputs(&mut swim).contains(&Output::Up(node(2), life(1))));
    let (first, told) = until_output(&mut swim, &sight, start, Duration::from_secs(20)).unwrap();
    assert_eq!(first, Output::Tell(node(2), claim(Standing::Suspect)));
    let mut last = first;
    let mut down = told;
    while !matches!(last, Output::Down(..)) {
        (last, down) = until_output(&mut swim, &sight, start, Duration::from_secs(20)).unwrap();
    }
    assert_eq!(down - told, Duration::from_secs(3), "the time to refute");
    assert!(!swim.tally.suspected.is_empty());
}

/// When a member that others report down is down here, and whether it is notified of the suspicion.
fn verified(sight: &Sight) -> (Duration, bool) {
    let (mut swim, start) = (swim(1), base());
    swim.apply([(node(2), claim(Standing::Alive))], false, sight, start);
    swim.handle_timeout(sight, start);
    outputs(&mut swim);
    swim.verify(node(2), life(1), sight, start);
    let mut told = false;
    while let Some(due) = swim.poll_timeout() {
        swim.handle_timeout(sight, due);
        for output in outputs(&mut swim) {
            told |= matches!(output, Output::Tell(to, _) if to == node(2));
            if output == Output::Down(node(2), life(1)) {
                return (due - start, told);
            }
        }
    }
    panic!("it is never down");
}

#[test]
fn in_a_large_mesh_a_suspect_is_notified_over_sessions_or_has_more_time() {
    let suspicion = DiscoveryConfig::default().suspicion;
    let others = |count: usize| -> BTreeMap<NodeId, Life> {
        let number = |it: usize| u8::try_from(it).unwrap();
        (3..3 + count).map(|it| (node(number(it)), life(1))).collect()
    };
    let stranger = vec![node(2)];
    let few = others(MIN_CONNECTED - 1);
    let few = Sight { connected: few, unconnected: stranger.clone(), ..Sight::default() };
    let (after, told) = verified(&few);
    assert!(told && after < suspicion / 2, "{after:?}");
    let many = Sight { connected: others(MIN_CONNECTED), ..Sight::default() };
    let (after, told) = verified(&many);
    assert!(told && after < suspicion / 2, "{after:?}");
    let (after, told) = verified(&Sight { unconnected: stranger, ..many });
    assert!(!told && after >= suspicion * 3 / 4, "{after:?}");
}

#[test]
fn a_random_member_is_probed_every_two_intervals() {
    let (mut swim, start, sight) = (swim(1), base(), Sight::default());
    let config = DiscoveryConfig::default();
    for number in 2..100 {
        swim.apply([(node(number), claim(Standing::Alive))], false, &sight, start);
    }
    let (mut probes, minute) = (0, Duration::from_secs(60));
    let mut first = None;
    while let Some(due) = swim.poll_timeout().filter(|due| *due - start < minute) {
        swim.handle_timeout(&sight, due);
        for output in outputs(&mut swim) {
            let Output::Send(to, datagram) = output else { continue };
            let Ok(Message::Swim(bytes)) = Message::decode(&datagram) else { continue };
            let header = postcard::take_from_bytes::<RawHeader>(bytes).unwrap().0;
            if let RawMessage::Ping(number) = header.message {
                first.get_or_insert(due);
                probes += 1;
                let answer = RawMessage::Ack(number);
                let header =
                    RawHeader { from: life(1), incarnation: 0, to: life(1), message: answer };
                let ack = postcard::to_stdvec(&header).unwrap();
                let _ = swim.handle_datagram(incoming(to, &ack), &sight, due);
            }
        }
    }
    let passed = first.map_or(Duration::ZERO, |first| start + minute - first);
    let wanted = passed.as_secs_f64() / (config.probe_interval * 2).as_secs_f64();
    assert!((wanted * 0.5..=wanted + 1.0).contains(&f64::from(probes)), "{probes} of {wanted}");
}

#[test]
fn a_suspect_gets_half_of_the_time_from_a_second_accuser() {
    let down_after = |is_suspected: bool| {
        let (mut swim, sight, start) = (swim(1), Sight::default(), base());
        // It must not be probed meanwhile: only the accusation is measured.
        let others = (2..40).map(|number| (node(number), claim(Standing::Alive)));
        swim.apply(others, true, &sight, start);
        outputs(&mut swim);
        if is_suspected {
            swim.apply([(node(2), claim(Standing::Suspect))], true, &sight, start);
        }
        swim.suspect(node(2), life(1), &sight, start);
        let is_down = |output: &Output| matches!(output, Output::Down(it, _) if *it == node(2));
        while let Some(due) = swim.poll_timeout() {
            swim.handle_timeout(&sight, due);
            if outputs(&mut swim).iter().any(is_down) {
                return due - start;
            }
        }
        unreachable!("there is always a timer")
    };
    let suspicion = DiscoveryConfig::default().suspicion;
    assert_eq!((down_after(false), down_after(true)), (suspicion, suspicion / 2));
}

#[test]
fn a_member_without_session_gets_the_time_of_a_handshake() {
    let suspected_after = |sight: &Sight| {
        let (mut swim, start) = (swim(1), base());
        swim.apply([(node(2), claim(Standing::Alive))], true, sight, start);
        outputs(&mut swim);
        until_output(&mut swim, sight, start, Duration::from_secs(20)).unwrap().1
    };
    let connected = suspected_after(&Sight::default());
    let unconnected = suspected_after(&Sight { unconnected: vec![node(2)], ..Sight::default() });
    let config = DiscoveryConfig::default();
    // Once at the start, and once more instead of the time for an answer.
    assert_eq!(unconnected - connected, config.handshake_allowance * 2 - config.probe_timeout);
}

#[test]
fn a_suspect_that_is_heard_is_not_declared_down() {
    let (mut swim, mut sight, start) = (swim(1), Sight::default(), base());
    swim.apply([(node(2), claim(Standing::Alive))], true, &sight, start);
    outputs(&mut swim);
    let (_, told) = until_output(&mut swim, &sight, start, Duration::from_secs(20)).unwrap();
    for step in 1..20 {
        sight.heard.insert(node(2), start + told + Duration::from_millis(500 * step));
        let end = told + Duration::from_millis(500 * step);
        while let Some((output, _)) = until_output(&mut swim, &sight, start, end) {
            assert!(matches!(output, Output::Tell(..)), "{output:?}");
        }
    }
}

#[test]
fn a_suspicion_of_this_node_is_refuted_and_its_death_outlived() {
    let (mut swim, sight, now) = (swim(1), Sight::default(), base());
    swim.apply([(node(2), claim(Standing::Alive))], true, &sight, now);
    outputs(&mut swim);
    swim.apply([(node(1), claim(Standing::Suspect))], true, &sight, now);
    assert_eq!(swim.tally.refutations, 1);
    assert_eq!(swim.own_claim().incarnation, 1);
    swim.apply([(node(1), claim(Standing::Suspect))], true, &sight, now);
    assert_eq!(swim.tally.refutations, 1, "an old suspicion needs no answer");
    outputs(&mut swim);
    swim.apply([(node(1), claim(Standing::Down))], true, &sight, now);
    let renewed = Life { generation: 1, renewal: 1 };
    assert!(outputs(&mut swim).contains(&Output::Renewed(renewed)));
    assert_eq!((swim.life(), swim.own_claim().incarnation), (renewed, 0));
    // Repeated reports are not answered at once.
    let again = Claim { life: renewed, ..claim(Standing::Down) };
    swim.apply([(node(1), again)], true, &sight, now);
    assert_eq!(swim.life(), renewed);
    swim.apply([(node(1), again)], true, &sight, now + RENEWAL);
    assert_eq!(swim.life().renewal, 2);
}

#[test]
fn a_suspicion_that_cannot_be_refuted_is_outlived_and_not_at_once_again() {
    let (mut swim, sight, now) = (swim(1), Sight::default(), base());
    swim.apply([(node(2), claim(Standing::Alive))], true, &sight, now);
    let last = Claim { incarnation: u16::MAX, ..claim(Standing::Suspect) };
    swim.apply([(node(1), last)], true, &sight, now);
    let renewed = Life { generation: 1, renewal: 1 };
    assert_eq!((swim.life(), swim.own_claim().incarnation), (renewed, 0));
    // Not even if the last incarnation but one has moved this node to the last one.
    let but_one = Claim { life: renewed, incarnation: u16::MAX - 1, ..last };
    swim.apply([(node(1), but_one)], true, &sight, now);
    assert_eq!((swim.life(), swim.own_claim().incarnation), (renewed, u16::MAX));
    for incarnation in [0, u16::MAX] {
        let again = Claim { life: renewed, incarnation, ..last };
        swim.apply([(node(1), again)], true, &sight, now);
        assert_eq!(swim.life(), renewed, "{incarnation}");
    }
    let again = Claim { life: renewed, ..last };
    swim.apply([(node(1), again)], true, &sight, now + RENEWAL);
    assert_eq!((swim.life().renewal, swim.own_claim().incarnation), (2, 0));
}

#[test]
fn a_later_life_replaces_an_earlier_one_and_not_the_other_way_round() {
    let (mut swim, sight, now) = (swim(1), Sight::default(), base());
    swim.apply([(node(2), claim(Standing::Alive))], true, &sight, now);
    swim.apply([(node(2), claim(Standing::Down))], true, &sight, now);
    let later = Claim { life: life(2), ..claim(Standing::Alive) };
    swim.apply([(node(2), later)], true, &sight, now);
    swim.apply([(node(2), claim(Standing::Alive))], true, &sight, now);
    let seen: Vec<_> =
        outputs(&mut swim).into_iter().filter(|it| !matches!(it, Output::Send(..))).collect();
    let expected = [
        Output::Up(node(2), life(1)),
        Output::Down(node(2), life(1)),
        Output::Renamed(node(2), life(2)),
        Output::Up(node(2), life(2)),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn packets_for_another_life_or_from_an_ended_one_are_not_taken() {
    let (mut a, mut b, sight, now) = (swim(1), swim(2), Sight::default(), base());
    // A member that still knows an earlier life of node 2.
    let earlier = Claim { life: life(0), ..claim(Standing::Alive) };
    a.apply([(node(2), earlier)], true, &sight, now);
    outputs(&mut a);
    let mut pings = Vec::new();
    while pings.is_empty() {
        let due = a.poll_timeout().unwrap();
        a.handle_timeout(&sight, due);
        pings.extend(outputs(&mut a).into_iter().filter_map(|output| match output {
            Output::Send(_, datagram) => Some(datagram),
            _ => None,
        }));
    }
    let Ok(Message::Swim(bytes)) = Message::decode(&pings[0]) else { panic!("not membership") };
    let seen = b.handle_datagram(incoming(node(1), bytes), &sight, now).unwrap();
    assert!(seen.stale);
    assert!(outputs(&mut b).is_empty());
    a.announce(node(2), &sight, now);
    let Some(Output::Send(_, datagram)) = a.poll_output() else { panic!("nothing sent") };
    let Ok(Message::Swim(bytes)) = Message::decode(&datagram) else { panic!("not membership") };
    b.handle_datagram(Incoming { over: Some(life(1)), ..incoming(node(1), bytes) }, &sight, now)
        .unwrap();
    assert!(outputs(&mut b).is_empty(), "a farewell of this life was signed");
    b.handle_datagram(Incoming { over: Some(life(0)), ..incoming(node(1), bytes) }, &sight, now)
        .unwrap();
    assert!(!outputs(&mut b).is_empty());
}

#[test]
fn a_stall_moves_every_deadline() {
    let (mut swim, sight, start) = (swim(1), Sight::default(), base());
    swim.apply([(node(2), claim(Standing::Alive))], true, &sight, start);
    let before = swim.poll_timeout().unwrap();
    swim.stalled(Duration::from_secs(7));
    assert_eq!(swim.poll_timeout().unwrap() - before, Duration::from_secs(7));
    assert_eq!(swim.probing.awareness.score(), 1);
}

/// The nodes that get the first rounds of gossip, and the datagrams.
fn gossip(sight: &Sight) -> Vec<(NodeId, Vec<u8>)> {
    let (mut swim, start) = (swim(1), base());
    for number in 2..100 {
        swim.apply([(node(number), claim(Standing::Alive))], true, sight, start);
    }
    let mut told = Vec::new();
    while let Some(due) = swim.poll_timeout().filter(|due| *due - start < Duration::from_secs(1)) {
        swim.handle_timeout(sight, due);
        told.extend(outputs(&mut swim).into_iter().filter_map(|output| match output {
            Output::Send(to, datagram) => Some((to, datagram)),
            _ => None,
        }));
    }
    told.retain(|(_, datagram)| {
        let Ok(Message::Swim(bytes)) = Message::decode(datagram) else { return false };
        let header = postcard::take_from_bytes::<RawHeader>(bytes).unwrap().0;
        header.message == RawMessage::Gossip
    });
    told
}

#[test]
fn gossip_goes_along_sessions_where_there_are_enough() {
    let few = Sight { connected: [(node(2), life(1))].into(), ..Sight::default() };
    assert!(gossip(&few).iter().any(|(to, _)| *to != node(2)));
    let number = |it: usize| u8::try_from(it).unwrap();
    let connected: BTreeMap<NodeId, Life> =
        (2..2 + MIN_CONNECTED).map(|it| (node(number(it)), life(7))).collect();
    let told = gossip(&Sight { connected: connected.clone(), ..Sight::default() });
    assert!(!told.is_empty());
    for (to, datagram) in told {
        assert!(connected.contains_key(&to));
        let Ok(Message::Swim(bytes)) = Message::decode(&datagram) else { panic!("not membership") };
        let (header, rest) = postcard::take_from_bytes::<RawHeader>(bytes).unwrap();
        assert_eq!(header.to, life(7), "the life that the receiver is in");
        assert!(!read_claims(rest).unwrap().is_empty());
    }
}

#[test]
fn a_node_with_nothing_to_pass_on_sleeps() {
    let (mut swim, sight, start) = (swim(1), Sight::default(), base());
    let interval = DiscoveryConfig::default().gossip_interval;
    swim.apply([(node(2), claim(Standing::Alive))], true, &sight, start);
    let mut now = start;
    while swim.resting.is_none() {
        now = swim.poll_timeout().unwrap();
        assert!(now < start + interval * 20, "the news of one member goes out a few times");
        swim.handle_timeout(&sight, now);
    }
    assert_eq!(swim.foca.updates_backlog(), 0);
    swim.apply([(node(3), claim(Standing::Alive))], true, &sight, now);
    assert!(swim.resting.is_none(), "there is something to pass on");
    assert!(swim.poll_timeout().unwrap() <= now + interval);
}

/// Whether a datagram is gossip, and how many claims it carries.
fn claims_of_gossip(output: &Output) -> Option<usize> {
    let Output::Send(_, datagram) = output else { return None };
    let Ok(Message::Swim(bytes)) = Message::decode(datagram) else { return None };
    let (header, rest) = postcard::take_from_bytes::<RawHeader>(bytes).unwrap();
    (header.message == RawMessage::Gossip).then(|| read_claims(rest).unwrap().len())
}

#[test]
fn gossip_that_says_nothing_is_not_sent_except_to_refute() {
    let (mut swim, sight, start) = (swim(1), Sight::default(), base());
    for number in 2..20 {
        swim.apply([(node(number), claim(Standing::Alive))], true, &sight, start);
    }
    let mut seen: Vec<Output> = outputs(&mut swim);
    let mut run = |swim: &mut Swim, from: Instant, seconds: u64| {
        let end = from + Duration::from_secs(seconds);
        while let Some(due) = swim.poll_timeout().filter(|due| *due < end) {
            swim.handle_timeout(&sight, due);
            seen.extend(outputs(swim));
        }
        seen.drain(..).filter_map(|output| claims_of_gossip(&output)).collect::<Vec<_>>()
    };
    // Some of those that never answer are suspected and die meanwhile, each with a round out of
    // turn.
    let gossip = run(&mut swim, start, 60);
    assert!(gossip.len() > 20, "{gossip:?}");
    assert!(gossip.iter().all(|claims| *claims > 0), "{gossip:?}");
    let later = start + Duration::from_secs(60);
    swim.apply([(node(1), claim(Standing::Suspect))], true, &sight, later);
    let refutation: Vec<_> = outputs(&mut swim).iter().filter_map(claims_of_gossip).collect();
    assert!(!refutation.is_empty(), "the header says it");
}

proptest! {
    /// What the directory considers old news changes nothing in membership, which need not be
    /// asked.
    #[test]
    fn what_is_old_news_changes_nothing(
        steps in prop::collection::vec((0..3_u64, 0..4_u16, 0..3_u8), 1..40),
    ) {
        let member = crate::tests::Mesh::new(1).member(2, "a", "node");
        let credential = std::sync::Arc::new(member.credential);
        let (him, now, sight) = (credential.node, base(), Sight::default());
        let mut directory = Directory::new();
        directory.merge(&Record { credential, state: None }, now);
        let mut swim = swim(1);
        for (generation, incarnation, standing) in steps {
            let all = [Standing::Alive, Standing::Suspect, Standing::Down];
            let standing = all[usize::from(standing)];
            let claim = Claim { life: life(generation), incarnation, standing };
            let is_old = directory.get(&him).is_some_and(|entry| entry.is_old_news(&claim));
            let before: Vec<_> = swim.foca.iter_membership_state().cloned().collect();
            swim.apply([(him, claim)], true, &sight, now);
            let after: Vec<_> = swim.foca.iter_membership_state().cloned().collect();
            let notices: Vec<Output> = outputs(&mut swim)
                .into_iter()
                .filter(|output| !matches!(output, Output::Send(..)))
                .collect();
            if is_old {
                prop_assert_eq!(before, after);
                prop_assert_eq!(&notices, &[]);
            }
            for notice in notices {
                match notice {
                    Output::Up(_, life) => {
                        directory.set_liveness(&him, Liveness::Alive, Some(life), now);
                    }
                    Output::Down(_, life) => {
                        directory.set_liveness(&him, Liveness::Down, Some(life), now);
                    }
                    Output::Renamed(_, life) => {
                        let liveness = directory.get(&him).expect("it is there").liveness;
                        directory.set_liveness(&him, liveness, Some(life), now);
                    }
                    other => prop_assert!(false, "{:?}", other),
                }
            }
            directory.note_claim(&him, &claim);
        }
    }
}

/// The number of gossip datagrams with a claim about a node, if nothing else happens.
fn times_said(standing: Standing, others: u8) -> usize {
    let (mut swim, sight, start) = (swim(1), Sight::default(), base());
    let known = (2..60).map(|number| (node(number), claim(Standing::Alive)));
    swim.apply(known, false, &sight, start);
    outputs(&mut swim);
    let down = (10..10 + others).map(|number| (node(number), claim(Standing::Down)));
    swim.apply(down, true, &sight, start);
    let about = if standing == Standing::Alive { 99 } else { 2 };
    swim.apply([(node(about), claim(standing))], true, &sight, start);
    let mut said = 0;
    let end = start + Duration::from_secs(60);
    while let Some(due) = swim.poll_timeout().filter(|due| *due < end) {
        for output in outputs(&mut swim) {
            let Output::Send(_, datagram) = output else { continue };
            let Ok(Message::Swim(bytes)) = Message::decode(&datagram) else { continue };
            let rest = postcard::take_from_bytes::<RawHeader>(bytes).unwrap().1;
            let is_it = |(short, it): &(Short, Claim)| {
                *short == Short::of(&node(about)) && it.standing == standing && it.incarnation == 0
            };
            said += usize::from(read_claims(rest).unwrap().iter().any(is_it));
        }
        if swim.foca.updates_backlog() == 0 && said > 0 {
            break;
        }
        swim.handle_timeout(&sight, due);
    }
    said
}

#[test]
fn bad_news_is_sent_more_often_unless_there_is_much() {
    let usual = usize::from(repetitions(2));
    assert_eq!(times_said(Standing::Alive, 0), usual);
    assert_eq!(times_said(Standing::Down, 0), usual + usize::from(MORE_OFTEN));
    let many = u8::try_from(MANY_NEWS).unwrap();
    assert_eq!(times_said(Standing::Down, many), usual);
}

#[test]
fn of_a_thousand_newcomers_only_some_are_spoken_of() {
    let (mut swim, sight, start) = (swim(1), Sight::default(), base());
    let id = |number: u32| {
        let mut bytes = [9; 32];
        bytes[..4].copy_from_slice(&number.to_be_bytes());
        NodeId::from_bytes(bytes)
    };
    for number in 0..1000 {
        swim.apply([(id(number), claim(Standing::Alive))], true, &sight, start);
    }
    assert_eq!((swim.foca.num_members(), swim.foca.updates_backlog()), (1000, MAX_NEWCOMERS));
    for number in 0..1000 {
        swim.apply([(id(number), claim(Standing::Down))], true, &sight, start);
    }
    assert!(swim.foca.updates_backlog() <= MAX_NEWS, "news of one member replace each other");
    assert_eq!(swim.foca.num_members(), 0, "they are taken in nevertheless");
}

#[test]
fn a_node_that_announces_itself_gets_some_members() {
    let (mut swim, sight, now) = (swim(1), Sight::default(), base());
    let known = (3..200).map(|number| (node(number), claim(Standing::Alive)));
    swim.apply(known, false, &sight, now);
    outputs(&mut swim);
    let mut newcomer = self::swim(2);
    newcomer.announce(node(1), &sight, now);
    let Some(Output::Send(_, datagram)) = newcomer.poll_output() else { panic!("nothing sent") };
    let Ok(Message::Swim(bytes)) = Message::decode(&datagram) else { panic!("not membership") };
    swim.handle_datagram(incoming(node(2), bytes), &sight, now).unwrap();
    let feed = outputs(&mut swim).into_iter().find_map(|output| match output {
        Output::Send(to, datagram) => Some((to, datagram)),
        _ => None,
    });
    let (to, datagram) = feed.expect("an answer");
    let Ok(Message::Swim(bytes)) = Message::decode(&datagram) else { panic!("not membership") };
    let (header, rest) = postcard::take_from_bytes::<RawHeader>(bytes).unwrap();
    assert_eq!((to, header.message), (node(2), RawMessage::Feed));
    assert_eq!(read_claims(rest).unwrap().len(), MAX_FEED);
    let seen = newcomer.handle_datagram(incoming(node(1), bytes), &sight, now).unwrap();
    assert_eq!(seen.claims.len(), MAX_FEED);
}
