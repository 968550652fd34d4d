#![expect(clippy::disallowed_methods, reason = "tests begin somewhere in time")]

use proptest::prelude::*;

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn settings(allow: &[&str], balancers: &[&str]) -> ExposeSettings {
    let read = |list: &[&str]| list.iter().map(|it| it.parse().expect("a network")).collect();
    ExposeSettings {
        allow: read(allow),
        accept_proxy_from: read(balancers),
        max_sessions: 10,
        max_sessions_per_source: 3,
        max_rate_per_source: 5,
        ..ExposeSettings::default()
    }
}

fn gate(allow: &[&str], balancers: &[&str]) -> Gate {
    Gate::new((&settings(allow, balancers)).into())
}

#[test]
fn nobody_outside_the_list_is_admitted() {
    let now = Instant::now();
    let mut closed = gate(&[], &[]);
    for address in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
        assert_eq!(closed.arrive(ip(address), now), Err(Refusal::NotAllowed));
    }
    let mut open = gate(&["10.0.0.0/8"], &[]);
    assert_eq!(open.arrive(ip("11.0.0.0"), now), Err(Refusal::NotAllowed));
    assert_eq!(open.arrive(ip("9.255.255.255"), now), Err(Refusal::NotAllowed));
    assert_eq!(open.arrive(ip("::ffff:11.0.0.0"), now), Err(Refusal::NotAllowed));
    assert_eq!(open.arrive(ip("::10.0.0.1"), now), Err(Refusal::NotAllowed));
    let source = Source::of(ip("10.0.0.1"));
    assert_eq!(open.arrive(ip("::ffff:10.0.0.1"), now), Ok(Arrival::Client(source)));
    assert_eq!((open.open(), open.sources(), closed.sources()), (1, 1, 0));
}

#[test]
fn ten_thousand_addresses_beside_the_edge_are_refused_and_leave_no_trace() {
    let now = Instant::now();
    let mut gate = gate(&["10.128.0.0/16", "2001:db8:1::/48"], &[]);
    for index in 0..10_000_u32 {
        let v4 = 0x0a81_0000 + index;
        let below = 0x0a7f_ffff - index;
        let v6 = (0x2001_0db8_0002_u128 << 80) + u128::from(index);
        for outside in [
            IpAddr::V4(v4.into()),
            IpAddr::V4(below.into()),
            IpAddr::V6(std::net::Ipv4Addr::from_bits(v4).to_ipv6_mapped()),
            IpAddr::V6(std::net::Ipv4Addr::from_bits(0x0a80_0001).to_ipv6_compatible()),
            IpAddr::V6(Ipv6Addr::from_bits(v6)),
        ] {
            assert_eq!(gate.arrive(outside, now), Err(Refusal::NotAllowed), "{outside}");
        }
    }
    assert_eq!((gate.open(), gate.sources()), (0, 0));
}

#[test]
fn a_source_has_its_places_and_its_rate() {
    let now = Instant::now();
    let mut gate = gate(&["::/0"], &[]);
    // A host may have all addresses of its network.
    let address = |host: u16| ip(&format!("2001:db8::{host:x}"));
    for host in 0..3 {
        gate.arrive(address(host), now).expect("there is a place");
    }
    assert_eq!(gate.arrive(address(3), now), Err(Refusal::OverShare));
    assert_eq!(gate.arrive(address(4), now), Err(Refusal::OverShare));
    assert_eq!(gate.arrive(address(5), now), Err(Refusal::OverRate), "refused ones count");
    let source = Source::of(address(0));
    gate.leave(Some(source));
    assert_eq!(gate.arrive(address(6), now), Err(Refusal::OverRate));
    let later = now + Duration::from_millis(200);
    assert_eq!(gate.arrive(address(7), later), Ok(Arrival::Client(source)));
    gate.arrive(ip("2001:db8:0:1::1"), now).expect("another source");
}

#[test]
fn all_places_are_taken_by_many() {
    let now = Instant::now();
    let mut gate = gate(&["10.0.0.0/8"], &[]);
    for host in 0..10 {
        gate.arrive(IpAddr::from([10, 0, 0, host]), now).expect("there is a place");
    }
    assert_eq!(gate.arrive(ip("10.0.0.11"), now), Err(Refusal::OverLimit));
    gate.leave(Some(Source::of(ip("10.0.0.3"))));
    gate.arrive(ip("10.0.0.11"), now).expect("one is free");
    let mut fewer = settings(&["10.0.0.0/8"], &[]);
    fewer.max_sessions = 2;
    gate.set_rules((&fewer).into(), now);
    gate.leave(Some(Source::of(ip("10.0.0.4"))));
    assert_eq!(gate.arrive(ip("10.0.0.12"), now), Err(Refusal::OverLimit));
}

#[test]
fn a_balancer_speaks_for_clients_and_nobody_else_does() {
    let now = Instant::now();
    let mut gate = gate(&["10.0.0.0/8"], &["192.0.2.1"]);
    assert_eq!(gate.arrive(ip("192.0.2.1"), now), Ok(Arrival::Balancer));
    assert_eq!(gate.identify(ip("11.0.0.1"), now), Err(Refusal::NotAllowed));
    gate.leave(None);
    assert_eq!(gate.open(), 0);
    // The balancer itself is not a client.
    assert_eq!(gate.arrive(ip("192.0.2.1"), now), Ok(Arrival::Balancer));
    assert_eq!(gate.identify(ip("192.0.2.1"), now), Err(Refusal::NotAllowed));
    let source = gate.identify(ip("10.1.1.1"), now).expect("it may");
    gate.leave(Some(source));
    assert_eq!(gate.arrive(ip("192.0.2.2"), now), Err(Refusal::NotAllowed));
}

#[test]
fn sources_are_counted_up_to_a_bound_and_forgotten_when_idle() {
    let now = Instant::now();
    let mut settings = settings(&["0.0.0.0/0"], &[]);
    settings.max_sessions = 100_000;
    let mut gate = Gate::new((&settings).into());
    let of = |index: u32| IpAddr::V4((0x0a00_0000 + index).into());
    let bound = u32::try_from(MAX_SOURCES).expect("it fits");
    for index in 0..bound {
        let Ok(Arrival::Client(source)) = gate.arrive(of(index), now) else { panic!("{index}") };
        // Every second one stays.
        if index % 2 == 1 {
            gate.leave(Some(source));
        }
    }
    assert_eq!(gate.arrive(of(bound), now), Err(Refusal::TooManySources));
    gate.arrive(of(0), now).expect("who is known has its places");
    // Their credit is full again.
    let later = now + Duration::from_secs(1);
    gate.arrive(of(bound), later).expect("the idle ones are forgotten");
    assert!(gate.sources() <= MAX_SOURCES);
    for index in (0..bound).step_by(2) {
        gate.leave(Some(Source::of(of(index))));
    }
    let end = later + Duration::from_secs(10);
    // Two are examined each time.
    for _ in 0..bound {
        if let Ok(Arrival::Client(source)) = gate.arrive(of(1), end) {
            gate.leave(Some(source));
        }
        if gate.sources() < 4 {
            return;
        }
    }
    panic!("{} sources stay", gate.sources());
}

#[derive(Debug, Clone)]
enum Step {
    Arrive(u8),
    Leave(usize),
    Wait(u16),
    Limit(u32, u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => any::<u8>().prop_map(Step::Arrive),
        3 => any::<usize>().prop_map(Step::Leave),
        1 => (0_u16..400).prop_map(Step::Wait),
        1 => (1_u32..12, 1_u32..5).prop_map(|(all, each)| Step::Limit(all, each)),
    ];
    proptest::collection::vec(step, 1..200)
}

proptest! {
    /// No limit is ever exceeded, and the counts match those of a simple list.
    #[test]
    fn the_counts_are_exact(steps in steps()) {
        let mut now = Instant::now();
        let mut settings = settings(&["10.0.0.0/8"], &["192.0.2.0/24"]);
        let mut gate = Gate::new((&settings).into());
        let mut inside: Vec<Option<Source>> = Vec::new();
        for step in steps {
            match step {
                Step::Arrive(who) => {
                    let address = match who % 8 {
                        0 => IpAddr::from([11, 0, 0, who]),
                        1 => IpAddr::from([192, 0, 2, who]),
                        _ => IpAddr::from([10, 0, 0, who % 8]),
                    };
                    let before = inside.len();
                    match gate.arrive(address, now) {
                        Ok(Arrival::Client(source)) => inside.push(Some(source)),
                        Ok(Arrival::Balancer) => {
                            let client = IpAddr::from([10, 0, 0, who % 16]);
                            inside.push(gate.identify(client, now).ok());
                        }
                        Err(refusal) => prop_assert_eq!(
                            refusal == Refusal::NotAllowed, who % 8 == 0, "{:?}", refusal
                        ),
                    }
                    if inside.len() > before {
                        prop_assert!(inside.len() <= settings.max_sessions as usize);
                        if let Some(Some(source)) = inside.last() {
                            let own = inside.iter().filter(|it| **it == Some(*source)).count();
                            prop_assert!(own <= settings.max_sessions_per_source as usize);
                        }
                    }
                }
                Step::Leave(at) if !inside.is_empty() => {
                    let source = inside.swap_remove(at % inside.len());
                    gate.leave(source);
                }
                Step::Leave(_) => {}
                Step::Wait(ms) => now += Duration::from_millis(ms.into()),
                Step::Limit(all, each) => {
                    (settings.max_sessions, settings.max_sessions_per_source) = (all, each);
                    gate.set_rules((&settings).into(), now);
                }
            }
            prop_assert_eq!(gate.open() as usize, inside.len());
        }
        inside.into_iter().for_each(|source| gate.leave(source));
        prop_assert_eq!(gate.open(), 0);
        prop_assert!(gate.sources.values().all(|held| held.open == 0));
    }
}
