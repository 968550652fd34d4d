//! Behaviour that boringtun does not define, case by case.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use curve25519_dalek::constants::EIGHT_TORSION;
use meshport_config::{MeshSecret, NodeKey, SecretId};

use super::shares::{
    FEW_PER_SOURCE, HOME_LIFE, MAX_AT_HOME, MAX_HOMES, MAX_PER_SOURCE, MAX_PROVEN, MAX_SOURCES,
};
use super::*;

/// Room for any message of these tests.
const ROOM: usize = 2048;
const LIMIT: u32 = 2;

fn key(number: u8) -> NodeKey {
    NodeKey::from_bytes([number; 32])
}

fn gate(number: u8) -> Gate {
    Gate::new(key(number).secret(), LIMIT)
}

/// The time of these tests.
#[expect(clippy::disallowed_methods, reason = "an origin for made-up time")]
fn start() -> Instant {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    *START
}

/// The tunnel of one node to another.
fn tunnel(from: u8, to: u8) -> Tunnel {
    let mut tunnel = Tunnel::new(&gate(from), &terms(from, to, id(), 1), u32::from(from));
    // The same as in [`Tunnel::answer`].
    tunnel.main.wake();
    tunnel
}

fn terms(from: u8, to: u8, secret: SecretId, psk: u8) -> Terms {
    let (own, peer) = (key(from).public(), key(to).public());
    let ends = Ends { own: Ipv6Addr::LOCALHOST, peer: Ipv6Addr::LOCALHOST };
    Terms { under: Under { secret, own, peer }, ends, psk: Zeroizing::new([psk; 32]) }
}

/// The terms of a tunnel's sessions, with this secret.
fn under(tunnel: &Tunnel, secret: SecretId) -> Under {
    Under { secret, ..tunnel.under() }
}

/// The name of the one secret here.
fn id() -> SecretId {
    SecretId::of(&MeshSecret::from_bytes([1; 32]))
}

fn initiation(tunnel: &mut Tunnel) -> Vec<u8> {
    let mut out = vec![0; ROOM];
    let under = tunnel.under();
    let length = tunnel.initiate(&under, &mut out).unwrap();
    out.truncate(length);
    out
}

fn open(tunnel: &mut Tunnel, datagram: &[u8]) -> (Opened, Vec<u8>) {
    let mut out = vec![0; ROOM];
    let opened = tunnel.open(0, datagram, &mut out);
    (opened, out)
}

fn sealed(tunnel: &mut Tunnel) -> Vec<u8> {
    let mut out = vec![0; ROOM];
    let length = tunnel.seal(&packet(), &mut out).unwrap();
    out.truncate(length);
    out
}

/// An IPv6 header without content: what boringtun takes for a packet.
fn packet() -> Vec<u8> {
    let mut packet = vec![0; 40];
    packet[0] = 0x60;
    packet
}

/// Two tunnels with a session that both sides use.
fn connected() -> (Tunnel, Tunnel) {
    let (mut one, mut two) = (tunnel(1, 2), tunnel(2, 1));
    let initiation = initiation(&mut one);
    let (opened, response) = open(&mut two, &initiation);
    let Opened::Reply(length) = opened else { panic!("{opened:?}") };
    assert_eq!((initiation.len(), length), (INITIATION, RESPONSE));
    let (opened, first) = open(&mut one, &response[..length]);
    let Opened::Reply(length) = opened else { panic!("{opened:?}") };
    assert_eq!(open(&mut two, &first[..length]).0, Opened::Nothing);
    (one, two)
}

fn at(last: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, last], port))
}

/// Sends initiations until the gate is under load.
fn loaded(gate: &Gate) {
    let mut out = [0; ROOM];
    for number in 0..=LIMIT {
        let first = initiation(&mut tunnel(100 + number as u8, 1));
        gate.check(start(), at(100, 1), &first, &mut out);
    }
}

/// An initiation with the cookie that the gate gives to `source`.
fn proven(gate: &Gate, tunnel: &mut Tunnel, source: SocketAddr) -> Vec<u8> {
    let mut out = [0; ROOM];
    let Checked::Cookie(length) = gate.check(start(), source, &initiation(tunnel), &mut out) else {
        panic!("no cookie for {source}");
    };
    assert_eq!(open(tunnel, &out[..length]).0, Opened::Nothing);
    initiation(tunnel)
}

#[test]
fn a_cookie_is_for_one_address_and_one_port() {
    let (gate, mut initiator, mut out) = (gate(1), tunnel(2, 1), [0; ROOM]);
    loaded(&gate);
    let proven = proven(&gate, &mut initiator, at(7, 51820));
    for elsewhere in [at(7, 51821), at(8, 51820)] {
        let checked = gate.check(start(), elsewhere, &proven, &mut out);
        assert!(matches!(checked, Checked::Cookie(_)), "the cookie holds at {elsewhere}");
    }
    let checked = gate.check(start(), at(7, 51820), &proven, &mut out);
    assert!(matches!(checked, Checked::Initiator(node) if node == key(2).public()));
}

#[test]
fn under_load_one_source_has_its_share() {
    let (gate, mut out) = (gate(1), [0; ROOM]);
    loaded(&gate);
    let mut passed = 0;
    // One machine with many keys and ports, all at a proven address.
    for number in 0..60_u8 {
        let source = at(7, 40_000 + u16::from(number));
        let mut initiator = tunnel(150 + number, 1);
        let datagram = proven(&gate, &mut initiator, source);
        match gate.check(start(), source, &datagram, &mut out) {
            Checked::Initiator(_) => passed += 1,
            Checked::TooMany => {}
            _ => panic!("a cookie does not help"),
        }
    }
    assert_eq!(passed, MAX_PER_SOURCE);
    let (mut other, source) = (tunnel(3, 1), at(8, 51820));
    let datagram = proven(&gate, &mut other, source);
    let checked = gate.check(start(), source, &datagram, &mut out);
    assert!(matches!(checked, Checked::Initiator(_)), "another source has to wait for it");
    let again = initiation(&mut other);
    let later = gate.check(start() + GATE_PERIOD, source, &again, &mut out);
    assert!(!matches!(later, Checked::TooMany));
}

/// Two hundred addresses of one attacker, each proven, cost as much as a few together, and a peer
/// that comes after them is still heard.
#[test]
fn many_proven_sources_leave_few_to_each() {
    let gate = gate(1);
    let address = |number: u32| IpAddr::from((10 << 24 | number).to_be_bytes());
    for period in 0..2 {
        gate.begin_period(start() + GATE_PERIOD * period);
        gate.load().judged = LIMIT + 1;
        let tries = |source| (0..100).filter(|_| gate.allows(source, start())).count() as u32;
        let passed: u32 = (0..200).map(|number| tries(address(number))).sum();
        let greedy = MAX_PROVEN / MAX_PER_SOURCE;
        assert_eq!(passed, MAX_PROVEN + (200 - greedy) * FEW_PER_SOURCE);
        assert_eq!(tries(address(1000)), FEW_PER_SOURCE);
    }
}

/// Many peers behind one address, or in one network, renew their sessions while others flood from
/// two hundred addresses. It changes little if one of those with many addresses is a member.
#[test]
fn where_peers_are_they_keep_their_share() {
    let gate = gate(1);
    let address = |number: u32| IpAddr::from((10 << 24 | number).to_be_bytes());
    let network = |last: u16| IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, last]);
    gate.settle(network(1), start());
    let tries = |source, now| (0..100).filter(|_| gate.allows(source, now)).count() as u32;
    let flooded = |now| {
        gate.begin_period(now);
        gate.load().judged = LIMIT + 1;
        (0..200).map(|number| tries(address(number), now)).sum::<u32>()
    };
    let by_others = flooded(start());
    assert_eq!(tries(network(2), start()), MAX_PER_SOURCE, "another peer of that network");

    // It stays known for a while after the last session.
    let end = start() + HOME_LIFE;
    assert_eq!(flooded(end), by_others);
    assert_eq!(tries(network(2), end), FEW_PER_SOURCE);

    // A member was at all of them.
    (0..200).for_each(|number| gate.settle(address(number), end));
    assert!(flooded(end + GATE_PERIOD) <= by_others + MAX_AT_HOME);
    for number in 0..2 * MAX_HOMES as u32 {
        gate.settle(address(number), end);
    }
    assert_eq!(gate.load().shares.homes.len(), MAX_HOMES);
    gate.settle(network(1), end);
    assert_eq!(tries(network(2), end + GATE_PERIOD), FEW_PER_SOURCE, "there was no room");
    let later = end + HOME_LIFE;
    gate.settle(network(1), later);
    assert_eq!(gate.load().shares.homes.len(), 1);

    // They are accepted even when there are too many sources.
    gate.begin_period(later);
    gate.load().judged = LIMIT + 1;
    (0..MAX_SOURCES as u32).for_each(|number| _ = gate.allows(address(number), later));
    assert!(gate.allows(network(1), later) && !gate.allows(address(1 << 16), later));
}

/// A flood of valid initiations: they are taken one by one, up to the limit, so nothing else waits
/// behind a second's worth of handshakes.
#[test]
fn a_flood_is_admitted_evenly() {
    let limit = 200;
    let gate = Gate::new(key(1).secret(), limit);
    let flood: Vec<Vec<u8>> = (2..=251).map(|from| initiation(&mut tunnel(from, 1))).collect();
    let (mut out, mut passed) = ([0; ROOM], Vec::new());
    for number in 0..5000_u32 {
        let now = start() + Duration::from_millis(1) * number;
        for datagram in flood.iter().cycle().skip(20 * number as usize % 250).take(20) {
            if let Checked::Initiator(_) = gate.check(now, at(9, 1), datagram, &mut out) {
                passed.push(now);
            }
        }
    }
    assert!((1000..=1050).contains(&passed.len()), "{} in five seconds", passed.len());
    let begun = passed.partition_point(|at| *at < start() + Duration::from_millis(10));
    assert!(begun <= 53, "{begun} at once");
    for window in passed[begun..].windows(4) {
        let span = window[3] - window[0];
        assert!(span >= Duration::from_millis(14), "three within {span:?} of another");
    }
}

#[test]
fn sources_of_one_network_share_and_are_bounded() {
    let gate = gate(1);
    gate.load().judged = LIMIT + 1;
    let network = |last: u16| IpAddr::from([0x2001, 0xdb8, 0, 1, 0, 0, 0, last]);
    let passed = (0..100).filter(|last| gate.allows(network(*last), start())).count();
    assert_eq!(passed, MAX_PER_SOURCE as usize);
    for number in 0..2 * MAX_SOURCES as u32 {
        gate.allows(IpAddr::from((10 << 24 | number).to_be_bytes()), start());
    }
    assert_eq!(gate.load().shares.proven.len(), MAX_SOURCES);
    gate.load().judged = LIMIT;
    assert!(gate.allows(network(1), start()), "without load nobody is refused");
}

/// The number 2^255 - 19 of Curve25519's field plus this much, encoded as a key.
fn beyond_the_field(more: i8) -> [u8; 32] {
    let mut number = [u8::MAX; 32];
    number[31] = u8::MAX >> 1;
    number[0] = 0_u8.wrapping_sub(19).wrapping_add_signed(more);
    number
}

/// All keys with which every shared secret is known: the points of the curve whose order divides
/// the cofactor; the one of its twist that is not on the curve, -1; 0 and 1 in their second form,
/// which is beyond the field; and each with the highest bit, which X25519 ignores.
fn keys_of_small_order() -> BTreeSet<[u8; 32]> {
    let of_the_curve = EIGHT_TORSION.iter().map(|point| point.to_montgomery().to_bytes());
    let all = of_the_curve.chain([-1, 0, 1].map(beyond_the_field));
    let with_highest_bit = |mut key: [u8; 32]| {
        key[31] |= 0x80;
        key
    };
    all.flat_map(|key| [key, with_highest_bit(key)]).collect()
}

#[test]
fn a_key_of_small_order_agrees_with_nobody() {
    let gate = gate(1);
    assert!(gate.agrees_with(&key(2).public()));
    // Being beyond the field alone is no reason to refuse: this is 2 in its second form.
    assert!(gate.agrees_with(&NodeId::from_bytes(beyond_the_field(2))));
    let refused = keys_of_small_order();
    assert_eq!(refused.len(), 2 * 7);
    for point in refused {
        assert!(!gate.agrees_with(&NodeId::from_bytes(point)), "{point:02x?}");
    }
}

/// Requires that a value can be erased and that its drop does something: erasing is all that these
/// types do on drop. boringtun's tunnel, and ring's keys in it, give no such guarantee.
#[test]
fn static_keys_and_secrets_are_erased_when_dropped() {
    fn erases_itself<T: zeroize::Zeroize>(_: &T) -> bool {
        std::mem::needs_drop::<T>()
    }
    assert!(!erases_itself(&[1_u8; 32]));
    assert!(erases_itself(&gate(1).keys.secret));
    assert!(erases_itself(&terms(1, 2, id(), 1).psk));
    assert!(erases_itself(&MeshSecret::from_bytes([1; 32])));
}

#[test]
fn buffers_that_are_too_short_are_refused_and_nothing_panics() {
    let (mut one, mut two) = connected();
    let datagram = sealed(&mut one);
    for length in 0..ROOM.min(160) {
        let mut out = vec![0; length];
        let enough = length >= MIN_OUTPUT;
        assert_eq!(one.seal(&packet(), &mut out).is_some(), enough, "{length}");
        let under = one.under();
        assert_eq!(one.initiate(&under, &mut out).is_some(), enough, "{length}");
        assert_eq!(two.open(0, &datagram, &mut out) != Opened::Failed(Failure::Invalid), enough);
        let _ = one.tick(start(), &mut out);
    }
    let long = vec![0x60; 500];
    assert_eq!(one.seal(&long, &mut [0; 531]), None);
    assert_eq!(two.open(0, &[4; 300], &mut [0; 299]), Opened::Failed(Failure::Invalid));
}

/// A thousand packets of 1400 bytes are 11 ms of a gigabit, and 110 ms of a tenth of it: more than
/// the difference between links of one path.
#[test]
fn packets_may_overtake_a_thousand_others() {
    let (mut one, mut two) = connected();
    let sealed: Vec<Vec<u8>> = (0..1200).map(|_| sealed(&mut one)).collect();
    let arrives = |two: &mut Tunnel, number: usize| open(two, &sealed[number]).0;
    assert_eq!(arrives(&mut two, 1100), Opened::Packet(40));
    for late in (90..1100).rev() {
        assert_eq!(arrives(&mut two, late), Opened::Packet(40), "{late}");
        assert_eq!(arrives(&mut two, late), Opened::Failed(Failure::Replayed), "{late} again");
    }
    assert_eq!(arrives(&mut two, 70), Opened::Failed(Failure::Replayed), "too old to know");
    assert_eq!(arrives(&mut two, 1101), Opened::Packet(40));
}

#[test]
fn numbers_at_the_end_of_their_range_are_no_messages() {
    let (mut one, mut two) = connected();
    let mut datagram = sealed(&mut one);
    for (number, is_message) in [
        (u64::MAX, false),
        (REJECT_AFTER_MESSAGES, false),
        (REJECT_AFTER_MESSAGES - 1, true),
        (1 << 60, true),
    ] {
        datagram[8..16].copy_from_slice(&number.to_le_bytes());
        assert_eq!(classify(&datagram).is_some(), is_message, "{number:#x}");
        if is_message {
            assert_eq!(open(&mut two, &datagram).0, Opened::Failed(Failure::Invalid));
        }
    }
}

/// The second of two secrets that the mesh has for a while.
fn other() -> SecretId {
    SecretId::of(&MeshSecret::from_bytes([2; 32]))
}

#[test]
fn sessions_of_two_secrets_live_side_by_side_and_the_newest_seals() {
    let (mut one, mut two) = connected();
    let old = sealed(&mut one);
    for (tunnel, from, to) in [(&mut one, 1, 2), (&mut two, 2, 1)] {
        tunnel.add(&gate(from), &terms(from, to, other(), 2));
        assert!([id(), other()].iter().all(|it| tunnel.knows(&under(tunnel, *it))));
    }
    let mut out = [0; ROOM];
    let length = one.initiate(&under(&one, other()), &mut out).unwrap();
    let first = out[..length].to_vec();
    // The answer under the wrong secret opens nothing, and does not prevent the right one.
    let mut answers = [id(), other()].map(|secret| {
        let mut out = [0; ROOM];
        let (mark, opened) = two.answer(&under(&two, secret), &first, &mut out);
        let Opened::Reply(length) = opened else { panic!("{opened:?}") };
        (mark, out[..length].to_vec())
    });
    let (_, wrong) = &mut answers[0];
    assert_eq!(one.open(1, wrong, &mut out), Opened::Failed(Failure::Invalid));
    let Opened::Reply(length) = one.open(1, &answers[1].1, &mut out) else { panic!("no session") };
    let confirms = out[..length].to_vec();
    one.activate(1, now());
    assert_eq!(two.open(answers[1].0, &confirms, &mut out), Opened::Nothing);
    two.activate(1, now());
    assert_eq!((one.under().secret, two.under().secret), (other(), other()));
    // Packets sealed before arrive later, and packets sealed now are under the other secret.
    assert_eq!(two.open(0, &old, &mut out), Opened::Packet(40));
    let new = sealed(&mut one);
    assert_eq!(two.open(1, &new, &mut out), Opened::Packet(40));
    two.retain(|under| under.secret == other(), now());
    assert!(!two.knows(&under(&two, id())), "its time was over");
}

fn now() -> Instant {
    #[expect(clippy::disallowed_methods, reason = "a test needs some instant to count from")]
    Instant::now()
}
