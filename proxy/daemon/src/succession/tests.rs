use std::net::{TcpListener, UdpSocket};

use meshport_core::ledger::Side;
use meshport_core::view::Line;

use super::*;
use crate::sessions::registry::Sessions;

#[tokio::test]
async fn sockets_of_earlier_processes_are_told_from_all_others_and_keep_their_order() {
    let mut earlier = Earlier::default();
    for _ in 0..=MAX_EARLIER {
        let (_, messages) = Channel::pair().expect("sockets");
        let packets = (0..2).map(|_| Channel::pair().expect("sockets").1).collect();
        earlier.push(Sockets { messages, packets });
    }
    let inode = |socket: &OwnedFd| rustix::fs::fstat(socket).expect("a socket").st_ino;
    let inodes = |earlier: &Earlier| -> Vec<u64> {
        earlier.copies().expect("copies").iter().map(inode).collect()
    };
    let expected = inodes(&earlier);
    assert_eq!(expected.len(), 3 * (MAX_EARLIER + 1));

    let tcp = TcpListener::bind("127.0.0.1:0").expect("a port");
    let udp = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").expect("a port"));
    let others = std::iter::once(OwnedFd::from(tcp)).chain(udp.map(OwnedFd::from));
    let passed = others.chain(earlier.copies().expect("copies")).collect();
    let (received, others) = Earlier::from_passed(passed);
    assert_eq!((inodes(&received), others.len()), (expected, 3));
}

#[tokio::test]
async fn messages_of_another_release_are_skipped_and_an_end_is_seen() {
    let (here, there) = Channel::pair().expect("sockets");
    let there = Channel::new(there).expect("a socket");
    here.send(&serde_json::json!({ "Later": [1, 2] })).await.expect("sent");
    here.send(&Order::Attach).await.expect("sent");
    assert!(matches!(there.receive().await, Some(Order::Attach)));
    drop(here);
    assert!(there.receive::<Order>().await.is_none());
}

#[test]
fn of_too_many_processes_those_with_the_fewest_sessions_end_and_never_the_last() {
    let mut few: Vec<usize> = (0..MAX_EARLIER).collect();
    assert!(take_surplus(&mut few, |open| *open).is_empty());
    let mut many: Vec<usize> = (0..MAX_EARLIER + 2).rev().collect();
    assert_eq!(take_surplus(&mut many, |open| *open), [1, 2]);
    assert_eq!((many.len(), many.last()), (MAX_EARLIER, Some(&0)));
}

#[test]
fn a_message_has_room_for_the_longest_list() {
    let node = NodeId::from_bytes([255; 32]);
    let service = format!("{0}{0}", "k".repeat(31)).parse().expect("a service");
    let sessions = Sessions::default();
    let line = Line::Relayed { origin: node, relay: node };
    let guard = sessions.open(&service, Side::RelayedFor, line);
    let mut entry = sessions.entries().pop().expect("it is open");
    entry.holder = Some((node, node));
    let report = Report::Opened(vec![entry; MAX_LISTED]);
    let length = serde_json::to_vec(&report).expect("JSON").len();
    assert!(length <= MAX_MESSAGE, "{length}");
    drop(guard);
}
