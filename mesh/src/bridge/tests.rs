use std::future::poll_fn;

use super::*;

fn peer(number: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, number)
}

#[test]
fn messages_carry_what_was_sent_and_bad_ones_are_none() {
    let contents: Vec<u8> = (0..100_000_u32).map(|it| it.to_le_bytes()[0]).collect();
    for segment in [1, 1200, 1201, 8_900, 65_535] {
        let frame = Frame { peer: peer(9), segment, contents: &contents };
        let messages: Vec<Vec<u8>> = frame.encode().collect();
        assert!(messages.iter().all(|it| it.len() <= Bridge::space().len()), "{segment}");
        let received = messages.iter().map(|it| Frame::decode(it).expect("it was encoded"));
        let received: Vec<&[u8]> = received
            .inspect(|it| assert_eq!((it.peer, it.segment), (peer(9), segment)))
            .flat_map(|it| it.datagrams().collect::<Vec<_>>())
            .collect();
        assert_eq!(received, contents.chunks(segment).collect::<Vec<_>>(), "{segment}");
    }
    for bad in [&[][..], &[0; 17], &[0; 18], &[0; 40]] {
        assert_eq!(Frame::decode(bad), None);
    }
}

#[tokio::test]
async fn each_predecessor_gets_its_packets_and_all_get_those_of_nobody() {
    let (first, to_first) = Bridge::pair(&[]).expect("sockets");
    let (second, to_second) = Bridge::pair(&[]).expect("sockets");
    let all = Predecessors::new(2, [(0, to_first), (1, to_second)]).expect("sockets");
    let packet = |tag: u8, length: usize| {
        let mut packet = vec![7; length];
        packet[..2].copy_from_slice(&[0x40, tag]);
        packet
    };
    let mut diverted = Diverted::default();
    assert!(!diverted.take(&all, peer(1), &packet(2, 30)), "it is for this process");
    assert!(diverted.take(&all, peer(1), &packet(0, 30)));
    assert!(diverted.take(&all, peer(1), &packet(0, 20)));
    assert!(diverted.take(&all, peer(1), &packet(1, 30)));
    assert!(diverted.take(&all, peer(2), &packet(0, 30)));
    assert!(!diverted.take(&all, peer(2), &packet(200, 25)), "perhaps it is for this process");
    diverted.send(&all);

    let mut space = Bridge::space();
    let mut next = async |bridge: &Bridge| {
        poll_fn(|cx| {
            bridge.poll_recv(cx, &mut space).map(|frame| {
                let frame = frame.expect("it runs");
                (frame.peer, frame.datagrams().map(<[u8]>::len).collect::<Vec<_>>())
            })
        })
        .await
    };
    assert_eq!(next(&first).await, (peer(1), vec![30, 20]));
    assert_eq!(next(&first).await, (peer(2), vec![30, 25]));
    assert_eq!(next(&second).await, (peer(1), vec![30]));
    assert_eq!(next(&second).await, (peer(2), vec![25]));
    drop(all);
    let mut space = Bridge::space();
    let end = poll_fn(|cx| first.poll_recv(cx, &mut space).map(|it| it.is_none()));
    assert!(end.await, "the other process has ended");
}

#[tokio::test]
async fn a_full_socket_delays_packets_and_loses_no_more_than_the_bound() {
    let (ours, theirs) = Bridge::pair(&[]).expect("sockets");
    let theirs = Bridge::new(theirs).expect("a socket");
    let contents = vec![7; 10_000];
    let count = 4 * MAX_BACKLOG;
    for _ in 0..count {
        ours.send(&Frame { peer: peer(1), segment: 1000, contents: &contents });
    }
    assert!(!ours.has_room());
    let mut space = Bridge::space();
    let mut received = 0;
    while !ours.has_room() || received < MAX_BACKLOG {
        poll_fn(|cx| theirs.poll_recv(cx, &mut space).map(|it| it.is_some())).await;
        received += 1;
    }
    ours.writable().await.expect("it never fails");
    assert!((MAX_BACKLOG..=count).contains(&received), "{received} of {count}");
}
