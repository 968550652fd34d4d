use std::future::poll_fn;
use std::net::Ipv6Addr;

use super::*;

/// Receives until `bytes` bytes are there; answers the first sender, and the datagram sizes.
async fn receive(socket: &UdpOuter, bytes: usize) -> (SocketAddr, Option<IpAddr>, Vec<usize>) {
    let mut space = vec![0; MESSAGES << 16];
    let mut sizes = Vec::new();
    let mut first = None;
    while sizes.iter().sum::<usize>() < bytes {
        let mut meta = [OuterMeta::default(); MESSAGES];
        let mut buffers: Vec<IoSliceMut<'_>> =
            space.chunks_mut(1 << 16).map(IoSliceMut::new).collect();
        let count = poll_fn(|cx| socket.poll_recv(cx, &mut buffers, &mut meta)).await.unwrap();
        for meta in &meta[..count] {
            first.get_or_insert((meta.from, meta.local));
            let mut rest = meta.length;
            while rest > 0 {
                sizes.push(rest.min(meta.stride));
                rest -= rest.min(meta.stride);
            }
        }
    }
    let (from, local) = first.unwrap();
    (from, local, sizes)
}

fn loopback(address: &str) -> UdpOuter {
    UdpOuter::bind(address.parse().unwrap()).unwrap()
}

fn send(socket: &UdpOuter, destination: SocketAddr, contents: &[u8], segment: usize) {
    let transmit = OuterTransmit { destination, source: None, contents, segment };
    socket.try_send(&transmit).unwrap();
}

#[tokio::test]
async fn a_batch_arrives_as_its_datagrams() {
    let (a, b) = (loopback("127.0.0.1:0"), loopback("127.0.0.1:0"));
    let segments = a.max_gso_segments().min(40);
    let contents = vec![1; segments * 1400 - 100];
    send(&a, b.local_addr().unwrap(), &contents, 1400);
    let (from, local, sizes) = receive(&b, contents.len()).await;
    assert_eq!((from, local), (a.local_addr().unwrap(), None));
    let mut expected = vec![1400; segments];
    expected[segments - 1] -= 100;
    assert_eq!(sizes, expected);
}

#[tokio::test]
async fn a_dual_stack_socket_speaks_both_and_spells_ipv4_plainly() {
    let dual = loopback("[::]:0");
    let port = dual.local_addr().unwrap().port();
    for (other, ip) in [
        (loopback("127.0.0.1:0"), IpAddr::V4(Ipv4Addr::LOCALHOST)),
        (loopback("[::1]:0"), IpAddr::V6(Ipv6Addr::LOCALHOST)),
    ] {
        let here = other.local_addr().unwrap();
        send(&other, SocketAddr::new(ip, port), b"question", 8);
        let (from, local, _) = receive(&dual, 8).await;
        assert_eq!((from, local), (here, Some(ip)));
        let transmit =
            OuterTransmit { destination: from, source: local, contents: b"answer", segment: 6 };
        dual.try_send(&transmit).unwrap();
        let (from, _, sizes) = receive(&other, 6).await;
        assert_eq!((from, sizes), (SocketAddr::new(ip, port), vec![6]));
    }
}

#[tokio::test]
async fn a_source_address_that_is_gone_does_not_stop_the_packet() {
    let (a, b) = (loopback("0.0.0.0:0"), loopback("127.0.0.1:0"));
    let gone = Some(IpAddr::from([203, 0, 113, 77]));
    let destination = b.local_addr().unwrap();
    a.try_send(&OuterTransmit { destination, source: gone, contents: b"x", segment: 1 }).unwrap();
    assert_eq!(receive(&b, 1).await.2, [1]);
}

#[tokio::test]
async fn a_datagram_that_is_too_large_is_an_error() {
    let (a, b) = (loopback("127.0.0.1:0"), loopback("127.0.0.1:0"));
    let contents = vec![0; 65_530];
    let transmit = OuterTransmit {
        destination: b.local_addr().unwrap(),
        source: None,
        contents: &contents,
        segment: contents.len(),
    };
    assert_eq!(a.try_send(&transmit).unwrap_err().raw_os_error(), Some(90));
}

#[tokio::test]
async fn an_address_in_use_is_an_error() {
    let first = loopback("127.0.0.1:0");
    let error = UdpOuter::bind(first.local_addr().unwrap()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
}

/// The socket of `group` that gets `datagram`.
fn lands(group: &[Socket], datagram: &[u8]) -> usize {
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = group[0].local_addr().unwrap().as_socket().unwrap();
    sender.send_to(datagram, port).unwrap();
    // Loopback delivers before the call returns.
    let mut space = [std::mem::MaybeUninit::uninit(); 2048];
    let mut got = group.iter().map(|socket| socket.recv(&mut space).ok());
    let at = got.by_ref().position(|length| length == Some(datagram.len())).unwrap();
    assert!(got.all(|length| length.is_none()), "one socket gets it");
    at
}

#[test]
fn the_kernel_takes_every_kind_of_datagram_to_its_shard() {
    for count in 2..=4_u8 {
        let group = UdpOuter::open_group("127.0.0.1:0".parse().unwrap(), count.into()).unwrap();
        assert_eq!(group.len(), usize::from(count));
        for peer in 0..=255_u8 {
            let shard = usize::from(peer & 3) % usize::from(count);
            // The receiver index: the counter of sessions, and three bytes of the peer's index.
            let index = [0x99, peer, 0xab, 0xcd];
            let with = |kind: u8, before: &[u8]| {
                let mut bytes = [&[kind, 0, 0, 0], before, &index].concat();
                bytes.resize(92, 0xee);
                bytes
            };
            assert_eq!(lands(&group, &with(4, &[])), shard, "data");
            assert_eq!(lands(&group, &with(3, &[])), shard, "a cookie");
            assert_eq!(lands(&group, &with(2, &[1, 2, 3, 4])), shard, "a response");
            // An initiation, whose ephemeral key begins with this byte.
            let mut initiation = vec![0xee; 148];
            initiation[..9].copy_from_slice(&[1, 0, 0, 0, 7, 7, 7, 7, peer]);
            assert_eq!(lands(&group, &initiation), usize::from(peer) % usize::from(count));
        }
        for short in [&b""[..], &[4], &[4, 0, 0, 0, 1], &[2, 0, 0, 0, 1, 2, 3, 4, 5], &[1; 8]] {
            assert_eq!(lands(&group, short), 0, "{short:?}");
        }
    }
}

#[test]
fn a_port_that_shards_share_is_taken_for_others() {
    let group = UdpOuter::open_group("127.0.0.1:0".parse().unwrap(), 2).unwrap();
    let port = group[0].local_addr().unwrap().as_socket().unwrap();
    for count in [1, 2] {
        let error = UdpOuter::open_group(port, count).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}

#[tokio::test]
async fn segmentation_that_the_kernel_refused_is_tried_again() {
    let (a, b) = (loopback("127.0.0.1:0"), loopback("127.0.0.1:0"));
    let most = a.max_gso_segments();
    if most == 1 {
        return;
    }
    tokio::time::pause();
    let destination = b.local_addr().unwrap();
    for _ in 0..2 {
        // More segments than the kernel takes.
        let (contents, segment) = (&[1; 60_000][..], 100);
        let refused = OuterTransmit { destination, source: None, contents, segment };
        assert_eq!(a.try_send(&refused).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(a.max_gso_segments(), 1);
        tokio::time::advance(std::time::Duration::from_secs(9)).await;
        assert_eq!(a.max_gso_segments(), 1, "too soon");
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        assert_eq!(a.max_gso_segments(), most);
        send(&a, destination, &[2; 4200], 1400);
        assert_eq!(receive(&b, 4200).await.2, [1400; 3]);
    }
}

#[tokio::test]
async fn a_sender_that_waits_for_room_is_woken_and_receiving_continues() {
    let (a, b) = (Arc::new(loopback("127.0.0.1:0")), loopback("127.0.0.1:0"));
    for _ in 0..2 {
        let waited = tokio::time::timeout(std::time::Duration::from_secs(10), a.clone().writable());
        waited.await.expect("there is room").unwrap();
        send(&b, a.local_addr().unwrap(), b"still here", 10);
        assert_eq!(receive(&a, 10).await.2, [10]);
    }
}
