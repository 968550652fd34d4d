use super::*;

const A: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1);
const B: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2);

/// Packs datagrams into `count` buffers of `size` bytes. Returns the runs: sender, length, stride.
fn pack(
    count: usize,
    size: usize,
    datagrams: &[(Ipv6Addr, usize)],
) -> Vec<(Ipv6Addr, usize, usize)> {
    let mut space = vec![0; count * size];
    let mut buffers: Vec<IoSliceMut<'_>> = space.chunks_mut(size).map(IoSliceMut::new).collect();
    let mut meta = vec![RecvMeta::default(); count];
    let mut pack = Pack { buffers: &mut buffers, meta: &mut meta, used: 0, closed: false };
    for (number, (from, length)) in datagrams.iter().enumerate() {
        pack.push(*from, &vec![number as u8 + 1; *length]);
    }
    let used = pack.used;
    // Every run holds whole datagrams, and all bytes of a datagram are equal.
    for (buffer, meta) in buffers.iter().zip(&meta).take(used) {
        for datagram in buffer[..meta.len].chunks(meta.stride) {
            assert!(datagram.iter().all(|byte| *byte == datagram[0] && *byte != 0));
        }
    }
    let run = |meta: &RecvMeta| match meta.addr.ip() {
        IpAddr::V6(from) => (from, meta.len, meta.stride),
        IpAddr::V4(_) => panic!("inner addresses are IPv6"),
    };
    meta[..used].iter().map(run).collect()
}

#[test]
fn equal_datagrams_of_one_peer_become_one_run() {
    assert_eq!(pack(4, 1000, &[(A, 100); 7]), [(A, 700, 100)]);
    assert_eq!(pack(4, 1000, &[(A, 100), (A, 100), (A, 40)]), [(A, 240, 100)]);
}

#[test]
fn a_run_ends_after_a_shorter_or_before_a_longer_datagram() {
    let runs = pack(4, 1000, &[(A, 100), (A, 40), (A, 40), (A, 90)]);
    assert_eq!(runs, [(A, 140, 100), (A, 40, 40), (A, 90, 90)]);
}

#[test]
fn peers_are_never_mixed() {
    let runs = pack(4, 1000, &[(A, 100), (B, 100), (B, 100), (A, 100)]);
    assert_eq!(runs, [(A, 100, 100), (B, 200, 100), (A, 100, 100)]);
}

#[test]
fn a_full_buffer_starts_the_next() {
    assert_eq!(pack(3, 250, &[(A, 100); 5]), [(A, 200, 100), (A, 200, 100), (A, 100, 100)]);
}

#[test]
fn what_does_not_fit_is_left_out() {
    assert_eq!(pack(1, 250, &[(A, 300), (A, 100), (B, 100)]), [(A, 100, 100)]);
    assert_eq!(pack(1, 250, &[(A, 0)]), []);
}

/// Like [`pack`], but the pack opens each datagram itself. A datagram without a sender fails to
/// open and leaves garbage.
fn open(
    count: usize,
    size: usize,
    datagrams: &[(Option<Ipv6Addr>, usize)],
) -> Vec<(Ipv6Addr, usize, usize)> {
    let mut space = vec![0; count * size];
    let mut buffers: Vec<IoSliceMut<'_>> = space.chunks_mut(size).map(IoSliceMut::new).collect();
    let mut meta = vec![RecvMeta::default(); count];
    let mut scratch = vec![0; 4096];
    let mut pack = Pack { buffers: &mut buffers, meta: &mut meta, used: 0, closed: false };
    for (number, (from, length)) in datagrams.iter().enumerate() {
        let outer = UDP_OVERHEAD + length + 32;
        pack.open(
            outer,
            &mut scratch,
            |out| {
                assert!(out.len() >= outer.max(MIN_OUTPUT));
                out[..outer].fill(0xee);
                out[UDP_OVERHEAD..][..*length].fill(number as u8 + 1);
                from.map(|from| StreamPacket { from, length: *length })
            },
            |_, _| false,
        );
    }
    let used = pack.used;
    let mut runs = Vec::new();
    let mut opened = datagrams.iter().zip(1u8..).filter(|((from, _), _)| from.is_some());
    for (buffer, meta) in buffers.iter().zip(&meta).take(used) {
        let IpAddr::V6(from) = meta.addr.ip() else { panic!("inner addresses are IPv6") };
        runs.push((from, meta.len, meta.stride));
        // Every datagram is complete and in order.
        for datagram in buffer[..meta.len].chunks(meta.stride) {
            let ((_, length), value) = opened.next().unwrap();
            assert_eq!(datagram, vec![value; *length]);
        }
    }
    runs
}

#[test]
fn datagrams_are_opened_in_their_final_place() {
    assert_eq!(open(2, 2000, &[(Some(A), 100); 9]), [(A, 900, 100)]);
    let mixed = [(Some(A), 100), (None, 100), (Some(A), 100), (Some(B), 100), (Some(B), 40)];
    assert_eq!(open(4, 2000, &mixed), [(A, 200, 100), (B, 140, 100)]);
    let longer = [(Some(A), 100), (Some(A), 120), (Some(A), 60), (Some(A), 120)];
    assert_eq!(open(4, 2000, &longer), [(A, 100, 100), (A, 180, 120), (A, 120, 120)]);
    // Payloads shorter than their headers.
    assert_eq!(open(4, 2000, &[(Some(A), 20); 5]), [(A, 100, 20)]);
    // First no room for the packet around the last datagram, then none for the datagram.
    assert_eq!(open(2, 350, &[(Some(A), 100); 4]), [(A, 300, 100), (A, 100, 100)]);
}
