//! Several nodes, one LAN, one mesh, and random faults of all three.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use proptest::prelude::*;

use super::*;

/// A turn of the simulated world, in milliseconds.
const TURN_MS: u64 = 5;
/// The longest a frame takes on the LAN and a claim over the mesh.
const MAX_LAN_MS: u64 = 50;
const MAX_MESH_MS: u64 = 300;
/// Time from the last fault until one node must hold the address: a contested node is quiet for
/// [`CONFLICT_QUIET`] at most.
const SETTLE_MS: u64 = 16_000;
/// Time for which a holder and its successor may both hold the address while the first announcement
/// is in transit.
const HANDOVER_MS: u64 = MAX_LAN_MS + 2 * TURN_MS;

/// Time for which two holders may overlap after their LAN has healed: until the lower one's next
/// announcement has arrived.
const HEALING_MS: u64 = 400 + HANDOVER_MS;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The process does not run; what is sent to it waits.
    Stopped(usize),
    /// The process is gone and starts again afterwards.
    Killed(usize),
    /// No claim reaches the node or leaves it.
    NoMesh(usize),
    /// No frame reaches the node or leaves it.
    NoLan(usize),
    /// No origin is usable from the node.
    Unusable(usize),
}

#[derive(Debug, Clone, Copy)]
struct Spell {
    fault: Fault,
    from_ms: u64,
    to_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Message {
    Frame(Heard),
    Claim(usize, Claim),
}

struct Simulation {
    now_ms: u64,
    nodes: Vec<Option<Contest>>,
    starts: u64,
    spells: Vec<Spell>,
    /// Due time, order, receiver; the message is in `sent` at the order.
    due: BinaryHeap<Reverse<(u64, usize, usize)>>,
    sent: Vec<Message>,
    dice: u64,
}

fn at(ms: u64) -> BootTime {
    BootTime::new(Duration::from_millis(ms))
}

fn hardware(node: usize) -> Hardware {
    // The lowest hardware address is not that of the first node.
    Hardware([2, 0, 0, 0, 0, 9 - u8::try_from(node).unwrap()])
}

fn id(node: usize) -> NodeId {
    NodeId::from_bytes([u8::try_from(node).unwrap() + 1; 32])
}

impl Simulation {
    fn new(nodes: usize, spells: Vec<Spell>, dice: u64) -> Self {
        let mut world = Self {
            now_ms: 0,
            nodes: (0..nodes).map(|_| None).collect(),
            starts: 0,
            spells,
            due: BinaryHeap::new(),
            sent: Vec::new(),
            dice,
        };
        (0..nodes).for_each(|node| world.start(node));
        world
    }

    fn start(&mut self, node: usize) {
        self.starts += 1;
        let own = Contender {
            node: id(node),
            incarnation: self.starts,
            hardware: hardware(node),
            priority: 0,
        };
        let mut contest = Contest::new(own, at(self.now_ms));
        contest.handle_usable(true, at(self.now_ms));
        self.nodes[node] = Some(contest);
    }

    fn has(&self, fault: Fault) -> bool {
        let now = self.now_ms;
        self.spells
            .iter()
            .any(|spell| spell.fault == fault && (spell.from_ms..spell.to_ms).contains(&now))
    }

    /// A number below `end`: splitmix64.
    fn roll(&mut self, end: u64) -> u64 {
        self.dice = self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.dice;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    fn send(&mut self, from: usize, message: Message) {
        let (fault, longest): (fn(usize) -> Fault, _) = match message {
            Message::Frame(_) => (Fault::NoLan, MAX_LAN_MS),
            Message::Claim(..) => (Fault::NoMesh, MAX_MESH_MS),
        };
        for to in 0..self.nodes.len() {
            if to == from || self.has(fault(from)) || self.has(fault(to)) {
                continue;
            }
            let due = self.now_ms + self.roll(longest + 1);
            self.due.push(Reverse((due, self.sent.len(), to)));
            self.sent.push(message);
        }
    }

    /// A turn of one node: its messages first, or the clock first.
    fn run(&mut self, node: usize, messages: &[Message], is_clock_first: bool) {
        let now = at(self.now_ms);
        let usable = !self.has(Fault::Unusable(node));
        let busy = self.roll(4) == 0;
        let Some(contest) = &mut self.nodes[node] else { return };
        contest.handle_usable(usable, now);
        contest.handle_busy(busy, now);
        if is_clock_first && contest.poll_timeout() <= now {
            contest.handle_timeout(now);
        }
        for &message in messages {
            match message {
                Message::Frame(heard) => contest.handle_frame(heard, now),
                Message::Claim(from, claim) => contest.handle_claim(id(from), claim, now),
            }
        }
        if contest.poll_timeout() <= now {
            contest.handle_timeout(now);
        }
        let mut out = Vec::new();
        while let Some(transmit) = contest.poll_transmit(now) {
            out.push(transmit);
        }
        while contest.poll_event().is_some() {}
        for transmit in out {
            self.send(
                node,
                match transmit {
                    Transmit::Frame(Frame::Probe) => Message::Frame(Heard::Probed(hardware(node))),
                    Transmit::Frame(Frame::Cede(other)) => Message::Frame(Heard::Claimed(other)),
                    Transmit::Frame(_) => Message::Frame(Heard::Claimed(hardware(node))),
                    Transmit::Claim(claim) => Message::Claim(node, claim),
                },
            );
        }
    }

    fn turn(&mut self) {
        self.now_ms += TURN_MS;
        let mut arrived = vec![Vec::new(); self.nodes.len()];
        let mut waiting = Vec::new();
        while let Some(&Reverse((due, order, to))) = self.due.peek() {
            if due > self.now_ms {
                break;
            }
            self.due.pop();
            if self.has(Fault::Stopped(to)) {
                waiting.push(Reverse((due, order, to)));
            } else {
                arrived[to].push(self.sent[order]);
            }
        }
        self.due.extend(waiting);
        for (node, messages) in arrived.into_iter().enumerate() {
            if self.has(Fault::Killed(node)) {
                self.nodes[node] = None;
            } else if !self.has(Fault::Stopped(node)) {
                if self.nodes[node].is_none() {
                    self.start(node);
                }
                let is_clock_first = self.roll(2) == 0;
                self.run(node, &messages, is_clock_first);
            }
        }
    }

    /// The nodes that answer clients. A stopped holder counts until its lease has ended; a stopped
    /// node that releases does not, since it reads its successor's announcement before it sends
    /// anything.
    fn holders(&self) -> Vec<usize> {
        let answers = |node: &usize| {
            let contest = self.nodes[*node].as_ref();
            contest.is_some_and(|contest| {
                let releases = matches!(contest.state, State::Releasing { .. });
                let is_idle = releases && self.has(Fault::Stopped(*node));
                contest.answers(at(self.now_ms)) && !is_idle
            })
        };
        (0..self.nodes.len()).filter(answers).collect()
    }

    /// The longest time with two holders until `end_ms`.
    fn longest_overlap_until(&mut self, end_ms: u64) -> u64 {
        let (mut longest, mut current) = (0, 0);
        while self.now_ms < end_ms {
            self.turn();
            current = if self.holders().len() > 1 { current + TURN_MS } else { 0 };
            longest = longest.max(current);
        }
        longest
    }
}

const NODES: usize = 4;
/// Period in which faults may occur.
const FAULTS_MS: u64 = 20_000;

fn spell(with_lan: bool) -> impl Strategy<Value = Spell> {
    let kinds = if with_lan { 5 } else { 4 };
    (0..kinds, 0..NODES, 0..FAULTS_MS, 20..5_000_u64).prop_map(|(kind, node, from_ms, length)| {
        let fault = match kind {
            0 => Fault::Stopped(node),
            1 => Fault::Killed(node),
            2 => Fault::NoMesh(node),
            3 => Fault::Unusable(node),
            _ => Fault::NoLan(node),
        };
        Spell { fault, from_ms, to_ms: from_ms + length }
    })
}

fn end_of(spells: &[Spell]) -> u64 {
    spells.iter().map(|spell| spell.to_ms).max().unwrap_or(0)
}

/// Random schedules of each property; ten seconds of a debug build.
const CASES: u32 = 200;

/// The condition after all faults: one holder, which stays.
fn assert_settled(world: &mut Simulation) -> Result<(), TestCaseError> {
    let end = world.now_ms + SETTLE_MS;
    world.longest_overlap_until(end);
    let holders = world.holders();
    prop_assert_eq!(holders.len(), 1, "holders: {:?}", holders);
    while world.now_ms < end + 3_000 {
        world.turn();
        prop_assert_eq!(world.holders(), holders.clone());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    #[test]
    fn on_a_whole_lan_two_answer_only_while_an_announcement_travels(
        spells in proptest::collection::vec(spell(false), 0..12),
        dice: u64,
    ) {
        let end = end_of(&spells);
        let mut world = Simulation::new(NODES, spells, dice);
        let overlap = world.longest_overlap_until(end);
        prop_assert!(overlap <= HANDOVER_MS, "two owners for {overlap} ms");
        assert_settled(&mut world)?;
    }

    #[test]
    fn after_a_cut_lan_has_healed_two_answer_until_one_has_announced(
        spells in proptest::collection::vec(spell(true), 0..12),
        dice: u64,
    ) {
        let end = end_of(&spells);
        let mut world = Simulation::new(NODES, spells, dice);
        world.longest_overlap_until(end);
        let overlap = world.longest_overlap_until(end + SETTLE_MS);
        prop_assert!(overlap <= HEALING_MS, "two owners for {overlap} ms");
        assert_settled(&mut world)?;
    }
}

/// The first holder, and the time by which it certainly holds the address.
fn first_holder(spells: Vec<Spell>) -> (Simulation, usize) {
    let mut world = Simulation::new(NODES, spells, 7);
    world.longest_overlap_until(4_000);
    let holders = world.holders();
    assert_eq!(holders, [0], "the lowest id among equals");
    (world, holders[0])
}

/// Time from `from_ms` until another node than `old` answers.
fn gap(world: &mut Simulation, old: usize) -> u64 {
    let from_ms = world.now_ms;
    while world.holders().iter().all(|&holder| holder == old) {
        world.turn();
        assert!(world.now_ms < from_ms + 10_000, "no successor");
    }
    world.now_ms - from_ms
}

#[test]
fn a_killed_or_stopped_holder_is_replaced_within_two_seconds() {
    for fault in [Fault::Killed(0), Fault::Stopped(0)] {
        let (mut world, old) = first_holder(vec![Spell { fault, from_ms: 4_001, to_ms: 9_000 }]);
        let gap = gap(&mut world, old);
        assert!(gap <= 2_000, "{fault:?}: {gap} ms");
        let overlap = world.longest_overlap_until(15_000);
        assert_eq!(overlap, 0, "{fault:?}");
        assert_ne!(world.holders(), [old], "{fault:?}: it does not come back by itself");
    }
}

#[test]
fn a_holder_that_is_cut_from_the_mesh_alone_keeps_the_address() {
    let spell = Spell { fault: Fault::NoMesh(0), from_ms: 4_001, to_ms: 9_000 };
    let (mut world, old) = first_holder(vec![spell]);
    while world.now_ms < 12_000 {
        world.turn();
        assert_eq!(world.holders(), [old]);
    }
}

#[test]
fn a_holder_that_is_cut_from_the_lan_alone_gives_the_address_away_and_keeps_off() {
    let spell = Spell { fault: Fault::NoLan(0), from_ms: 4_001, to_ms: 9_000 };
    let (mut world, old) = first_holder(vec![spell]);
    let gap = gap(&mut world, old);
    // Four claims of up to 300 ms one after another are in it.
    assert!(gap <= 4_500, "{gap} ms");
    let next = world.holders();
    world.longest_overlap_until(world.now_ms + MAX_MESH_MS + 2 * TURN_MS);
    while world.now_ms < 15_000 {
        world.turn();
        assert_eq!(world.holders().len(), 1, "at {} ms", world.now_ms);
        assert!(!world.holders().contains(&old));
    }
    assert!(!next.is_empty());
}

#[test]
fn a_lan_that_is_cut_for_all_moves_the_address_once() {
    let spells =
        (0..NODES).map(|node| Spell { fault: Fault::NoLan(node), from_ms: 4_001, to_ms: 40_000 });
    let (mut world, _) = first_holder(spells.collect());
    let (mut moves, mut last) = (0, world.holders());
    while world.now_ms < 40_000 {
        world.turn();
        let holders = world.holders();
        if holders.len() == 1 && holders != last {
            (moves, last) = (moves + 1, holders);
        }
    }
    // Each node may release it once a minute.
    assert!(moves <= NODES, "{moves} moves");
}

#[test]
fn a_clean_stop_leaves_no_gap() {
    let (mut world, old) = first_holder(Vec::new());
    let now = at(world.now_ms);
    world.nodes[old].as_mut().unwrap().handle_stop(now);
    // The node is no longer usable, which the world would report again.
    let ends = world.now_ms + 60_000;
    let from_ms = world.now_ms;
    world.spells.push(Spell { fault: Fault::Unusable(old), from_ms, to_ms: ends });
    while world.holders().contains(&old) {
        world.turn();
        assert!(!world.holders().is_empty(), "nobody answers after {} ms", world.now_ms - from_ms);
        assert!(world.now_ms < from_ms + 10_000, "no successor");
    }
    assert!(world.nodes[old].as_ref().unwrap().is_stopped());
}

#[test]
fn two_holders_on_two_sides_are_one_soon_after_both_cuts_have_healed() {
    let spell = |fault| Spell { fault, from_ms: 4_001, to_ms: 9_000 };
    let (mut world, _) = first_holder(vec![spell(Fault::NoMesh(0)), spell(Fault::NoLan(0))]);
    world.longest_overlap_until(8_995);
    assert_eq!(world.holders(), [0, 1], "each side has one");
    let overlap = world.longest_overlap_until(20_000);
    assert!((TURN_MS..=HEALING_MS).contains(&overlap), "two owners for {overlap} ms");
    assert_eq!(world.holders(), [1], "the lower hardware address stays");
}

/// The holder cedes while its last claim is still in transit, and its successor stands still after
/// its first announcement. A third node hears both in that order.
#[test]
fn a_late_claim_of_the_predecessor_does_not_free_the_address() {
    let spells = vec![
        Spell { fault: Fault::NoMesh(0), from_ms: 883, to_ms: 1_246 },
        Spell { fault: Fault::Stopped(1), from_ms: 7_156, to_ms: 8_836 },
        Spell { fault: Fault::Unusable(3), from_ms: 580, to_ms: 3_676 },
        Spell { fault: Fault::Stopped(3), from_ms: 8_961, to_ms: 9_611 },
        Spell { fault: Fault::NoMesh(3), from_ms: 4_314, to_ms: 6_806 },
        Spell { fault: Fault::Unusable(0), from_ms: 7_631, to_ms: 9_641 },
    ];
    let mut world = Simulation::new(NODES, spells, 7_490_326_912_978_798_621);
    let overlap = world.longest_overlap_until(12_000);
    assert!(overlap <= HANDOVER_MS, "two owners for {overlap} ms");
}
