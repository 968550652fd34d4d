//! The process behind a key, and its address.

use super::*;

/// Number of the address of node 2's copy.
const COPY: u8 = 9;

/// Starts a process with the identity of node 2 there, which knows node 1.
fn start_at(net: &mut Net, place: u8) {
    let mut seed = [place; 32];
    seed[..8].copy_from_slice(&(net.sent.len() as u64).to_le_bytes());
    let core = Core::new(identity(2), MeshConfig::default(), seed, net.now).unwrap();
    net.nodes.insert(at(place), core);
    net.node(place, |core, now| {
        core.set_peer(now, id(1), &[at(1)], None);
        core.connect(now, &id(1)).unwrap();
    });
    net.pump();
}

/// The reports to a node about two processes with one key: the addresses of both, or of the other
/// one.
fn duplicates(net: &mut Net, place: u8) -> Vec<Vec<SocketAddr>> {
    let of = |event| match event {
        MeshEvent::Duplicate { node, at } if node == id(2) => Some(at.to_vec()),
        MeshEvent::OwnDuplicate { by, at } if by == id(1) => Some(vec![at]),
        _ => None,
    };
    net.events(place).into_iter().filter_map(of).collect()
}

#[test]
fn a_copied_identity_is_found_in_three_round_trips_and_both_are_warned() {
    let mut net = Net::new(2);
    net.connect(2, 1);
    net.seconds(30);
    let then = net.now.instant;
    start_at(&mut net, COPY);
    assert_eq!(net.now.instant, then, "nothing waited for a timer");
    assert_eq!(duplicates(&mut net, 1), [[at(2), at(COPY)]]);
    assert_eq!(duplicates(&mut net, 2), [[at(COPY)]]);
    assert_eq!(duplicates(&mut net, COPY), [[at(2)]]);
    // As long as both send, they alternate, and reports come every few seconds at most.
    for _ in 0..60 {
        net.node(2, Core::wake);
        net.pump();
        net.run(Duration::from_millis(500));
        net.node(COPY, Core::wake);
        net.pump();
        net.run(Duration::from_millis(500));
    }
    let told = [1, 2, COPY].map(|place| duplicates(&mut net, place).len());
    assert!(told.iter().all(|times| (8..=13).contains(times)), "{told:?}");
    assert!(net.counters(1)[MeshCount::DuplicatesSeen] > 100);
}

#[test]
fn restarts_moves_and_backups_are_no_duplicates() {
    let mut net = Net::new(2);
    net.connect(2, 1);
    let mut place = 2;
    for round in 0..40u8 {
        net.seconds(1 + u64::from(round) * 7);
        let core = net.nodes.remove(&at(place)).unwrap();
        match round % 4 {
            // A restart at the same address, as with a restored state folder.
            0 => start_at(&mut net, place),
            // A restart on another machine, or behind another mapping.
            1 => {
                place = 3 + round;
                start_at(&mut net, place);
            }
            // The same process elsewhere: a laptop that moves, a NAT that forgets.
            2 => {
                place = 3 + round;
                net.nodes.insert(at(place), core);
                net.node(place, Core::wake);
                net.pump();
            }
            // And back to the address of an earlier one.
            _ => {
                place = 2;
                start_at(&mut net, place);
            }
        }
        assert!(net.reaches(place, 1));
    }
    assert_eq!(net.counters(1)[MeshCount::DuplicatesSeen], 0);
    assert!(net.counters(1)[MeshCount::RestartsSeen] >= 30);
}

#[test]
fn late_packets_of_a_former_process_are_no_duplicate() {
    let mut net = Net::new(2);
    net.connect(2, 1);
    net.seconds(1);
    // The old process renews its session; what it sends in the new one is late.
    let late = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let kept = late.clone();
    net.keep = Box::new(move |sent| {
        let is_late = sent.from == at(2) && sent.bytes[0] == 4;
        if is_late {
            kept.borrow_mut().push(sent.clone());
        }
        !is_late
    });
    net.node(2, Core::wake);
    net.pump();
    net.keep = Box::new(|_| true);
    assert!(!late.borrow().is_empty());
    net.run(Duration::from_millis(50));
    net.nodes.remove(&at(2));
    start_at(&mut net, COPY);
    for sent in late.borrow().iter() {
        net.deliver(sent.from, sent.to, &sent.bytes);
    }
    net.pump();
    net.seconds(1);
    assert!(net.reaches(COPY, 1));
    assert_eq!(net.counters(1)[MeshCount::DuplicatesSeen], 0);
}

#[test]
fn a_peer_says_where_it_sees_a_node_and_says_it_again_when_that_changes() {
    let mut net = Net::new(2);
    net.connect(2, 1);
    let seen = |net: &mut Net, place| {
        let of = |event| match event {
            MeshEvent::SeenAt { by, at } if by == id(1) => Some(at),
            _ => None,
        };
        net.events(place).into_iter().filter_map(of).collect::<Vec<_>>()
    };
    assert_eq!(seen(&mut net, 2), [at(2)]);
    for _ in 0..150 {
        net.seconds(1);
        net.send(2, 1, b"in use").unwrap();
        net.pump();
    }
    assert!(net.counters(2)[MeshCount::HandshakesCompleted] > 1);
    assert_eq!(seen(&mut net, 2), [], "a renewal is no news");
    net.seconds(300);
    net.send(2, 1, b"after the end of the session").unwrap();
    net.pump();
    assert_eq!(seen(&mut net, 2), [at(2)], "told again by a peer that was gone");
    net.seconds(2);
    let core = net.nodes.remove(&at(2)).unwrap();
    net.nodes.insert(at(7), core);
    net.send(7, 1, b"from elsewhere").unwrap();
    net.pump();
    assert_eq!(seen(&mut net, 7), [at(7)]);
}
