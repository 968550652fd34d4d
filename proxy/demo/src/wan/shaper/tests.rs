use std::net::UdpSocket as StdSocket;

use super::*;
use crate::wan::link::Jitter;

const PATIENCE: Duration = Duration::from_secs(10);

struct Host {
    socket: StdSocket,
    public: SocketAddr,
}

impl Host {
    fn new(shaper: &Shaper, name: &str, site: &str) -> Self {
        let socket = StdSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let real = socket.local_addr().unwrap();
        let public = shaper.add_node(name, site, Some(real)).unwrap();
        Self { socket, public }
    }

    fn send(&self, to: &Self, payload: &[u8]) {
        self.socket.send_to(payload, to.public).unwrap();
    }

    fn receive(&self) -> (Vec<u8>, SocketAddr) {
        let mut buffer = [0; 2048];
        let (length, from) = self.socket.recv_from(&mut buffer).unwrap();
        (buffer[..length].to_vec(), from)
    }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = read_clock() + PATIENCE;
    while !done() {
        assert!(read_clock() < deadline, "never happened: {what}");
        thread::yield_now();
    }
}

#[test]
fn a_datagram_arrives_from_the_senders_public_address_after_the_latency() {
    let shaper = Shaper::start(ShaperConfig::default()).unwrap();
    let (a, b) = (Host::new(&shaper, "a", "fra"), Host::new(&shaper, "b", "nyc"));
    shaper.set_link("fra", "nyc", &LinkConfig::delay(Duration::from_millis(20)));
    for _ in 0..3 {
        let sent = read_clock();
        a.send(&b, b"ping");
        let (payload, from) = b.receive();
        assert!(sent.elapsed() >= Duration::from_millis(20), "early: {:?}", sent.elapsed());
        assert_eq!((payload.as_slice(), from), (&b"ping"[..], a.public));
        b.socket.send_to(b"pong", from).unwrap();
        let (payload, from) = a.receive();
        assert!(sent.elapsed() >= Duration::from_millis(40), "early: {:?}", sent.elapsed());
        assert_eq!((payload.as_slice(), from), (&b"pong"[..], b.public));
    }
    let counters = shaper.shutdown();
    assert_eq!((counters.received, counters.delivered, counters.in_flight), (6, 6, 0));
}

#[test]
fn sites_have_their_own_links_and_the_near_one_overtakes() {
    let shaper = Shaper::start(ShaperConfig::default()).unwrap();
    let here = Host::new(&shaper, "here", "fra");
    let near = Host::new(&shaper, "near", "fra");
    let far = Host::new(&shaper, "far", "syd");
    shaper.set_link("fra", "syd", &LinkConfig::delay(Duration::from_millis(60)));
    shaper.set_link("fra", "fra", &LinkConfig::delay(Duration::from_millis(1)));
    far.send(&here, b"far");
    near.send(&here, b"near");
    assert_eq!(here.receive(), (b"near".to_vec(), near.public));
    assert_eq!(here.receive(), (b"far".to_vec(), far.public));
}

#[test]
fn order_is_kept_under_jitter() {
    let shaper = Shaper::start(ShaperConfig::default()).unwrap();
    let (a, b) = (Host::new(&shaper, "a", "x"), Host::new(&shaper, "b", "y"));
    let jitter = Jitter::Uniform { max: Duration::from_millis(5) };
    shaper.set_link("x", "y", &LinkConfig { jitter, ..LinkConfig::default() });
    for index in 0..100u8 {
        a.send(&b, &[index]);
    }
    let received: Vec<u8> = (0..100).map(|_| b.receive().0[0]).collect();
    assert_eq!(received, (0..100).collect::<Vec<u8>>());
}

#[test]
fn cuts_drop_and_heal() {
    let shaper = Shaper::start(ShaperConfig::default()).unwrap();
    let (a, b) = (Host::new(&shaper, "a", "x"), Host::new(&shaper, "b", "y"));
    let c = Host::new(&shaper, "c", "x");
    let mut cut_so_far = 0;
    let cuts = [
        (Cut::Between("y".into(), "x".into()), true, true),
        (Cut::OneWay { from: "x".into(), to: "y".into() }, true, false),
        (Cut::Site("y".into()), true, true),
        (Cut::Node("b".into()), true, true),
        (Cut::Site("z".into()), false, false),
    ];
    for (cut, there, back) in cuts {
        shaper.set_down(cut.clone(), true);
        a.send(&b, b"there");
        b.send(&a, b"back");
        cut_so_far += u64::from(there) + u64::from(back);
        until("the cut datagrams are counted", || {
            shaper.counters().dropped_cut == cut_so_far && shaper.counters().in_flight == 0
        });
        shaper.set_down(cut.clone(), false);
        if !there {
            assert_eq!(b.receive().0, b"there", "{cut:?}");
        }
        if !back {
            assert_eq!(a.receive().0, b"back", "{cut:?}");
        }
        c.send(&a, b"inside");
        assert_eq!(a.receive().0, b"inside", "{cut:?} leaves the inside of a site alone");
        a.send(&b, b"healed");
        assert_eq!(b.receive().0, b"healed", "{cut:?}");
    }
}

#[test]
fn strangers_are_dropped_and_addresses_may_come_later() {
    let shaper = Shaper::start(ShaperConfig::default()).unwrap();
    let a = Host::new(&shaper, "a", "x");
    let public = shaper.add_node("late", "x", None).unwrap();
    assert_eq!(shaper.public_addr("late"), Some(public));
    a.socket.send_to(b"too early", public).unwrap();
    until("the receiver is unknown", || shaper.counters().dropped_no_address == 1);

    let late = StdSocket::bind("127.0.0.1:0").unwrap();
    late.set_read_timeout(Some(PATIENCE)).unwrap();
    late.send_to(b"stranger", a.public).unwrap();
    until("the sender is unknown", || shaper.counters().dropped_unknown_sender == 1);

    shaper.set_real("late", late.local_addr().unwrap()).unwrap();
    late.send_to(b"hello", a.public).unwrap();
    assert_eq!(a.receive(), (b"hello".to_vec(), public));

    // A restart on another port: the old address is a stranger again.
    let reborn = StdSocket::bind("127.0.0.1:0").unwrap();
    shaper.set_real("late", reborn.local_addr().unwrap()).unwrap();
    late.send_to(b"ghost", a.public).unwrap();
    until("the former address is forgotten", || shaper.counters().dropped_unknown_sender == 2);
}

#[test]
fn wrong_calls_are_refused() {
    let shaper = Shaper::start(ShaperConfig::default()).unwrap();
    let real: SocketAddr = "127.0.0.1:9".parse().unwrap();
    shaper.add_node("a", "x", Some(real)).unwrap();
    assert!(matches!(shaper.add_node("a", "y", None), Err(Error::Usage(_))));
    assert!(matches!(shaper.add_node("b", "y", Some(real)), Err(Error::Usage(_))));
    shaper.add_node("c", "y", None).unwrap();
    assert!(matches!(shaper.set_real("c", real), Err(Error::Usage(_))));
    assert!(matches!(shaper.set_real("nobody", real), Err(Error::Usage(_))));
    shaper.set_real("a", real).unwrap();
}

#[test]
fn drops_of_the_link_are_counted_with_the_headers() {
    let shaper = Shaper::start(ShaperConfig::default()).unwrap();
    let (a, b) = (Host::new(&shaper, "a", "x"), Host::new(&shaper, "b", "y"));
    let up = LinkConfig { mtu: 1500, ..LinkConfig::default() };
    shaper.set_link("x", "y", &up);
    a.send(&b, &[0; 1473]);
    until("the MTU counts 28 bytes of headers", || shaper.counters().dropped_too_big == 1);
    a.send(&b, &[0; 1472]);
    assert_eq!(b.receive().0.len(), 1472);
    shaper.set_link_one_way("x", "y", &LinkConfig { up: false, ..up });
    a.send(&b, b"down");
    until("the link is down", || shaper.counters().dropped_down == 1);
    until("the other one has arrived", || shaper.counters().delivered == 1);
}

#[test]
fn the_delay_queue_is_bounded() {
    let mut state = State::new(ShaperConfig::default());
    let payload: Arc<[u8]> = vec![0; 1 << 20].into();
    for _ in 0..300 {
        state.enqueue(Duration::from_secs(1), 0, 0, &payload);
    }
    assert_eq!(state.queued_bytes, MAX_IN_FLIGHT_BYTES);
    assert_eq!(state.counters.dropped_overflow, 300 - 256);
}
