//! A node of several shards, in which everything arrives at the wrong one.

use meshport_config::Revocations;

use super::*;
use crate::shard::{MAX_SHARDS, ShardIndex, owner};

/// Node 2, on several shards.
struct Sharded {
    shards: Vec<Core>,
    now: Now,
    /// QUIC payloads that came out.
    streams: usize,
}

impl Sharded {
    fn new(of: usize, config: &MeshConfig, now: Now) -> Self {
        let mut shards: Vec<Core> = Vec::new();
        for index in 0..of {
            let core = Core::new(identity(2), config.clone(), [index as u8; 32], now).unwrap();
            shards.push(core.join(ShardIndex::new(index, of), shards.first()));
        }
        Self { shards, now, streams: 0 }
    }

    /// A datagram arrives at shard `arrival`; what is not for that shard goes on to its owner.
    fn deliver(&mut self, arrival: usize, from: SocketAddr, bytes: &[u8]) {
        let mut out = vec![0; 4096];
        let opened =
            self.shards[arrival].handle_datagram(self.now, Route::from(from), bytes, &mut out);
        self.streams += usize::from(opened.is_some());
        while let Some(HandOver { shard, batch }) = self.shards[arrival].poll_hand_over() {
            assert_ne!(shard, arrival);
            let Batch { route, bytes, stride, claimed } = batch;
            for datagram in bytes.chunks(stride) {
                let core = &mut self.shards[shard];
                let opened = match claimed {
                    Some(node) => {
                        core.handle_claimed(self.now, route, datagram, &mut out, node);
                        None
                    }
                    None => core.handle_datagram(self.now, route, datagram, &mut out),
                };
                self.streams += usize::from(opened.is_some());
                assert!(core.poll_hand_over().is_none(), "handed over twice");
            }
        }
    }

    fn total(&self) -> MeshCounters {
        let mut total = MeshCounters::default();
        self.shards.iter().for_each(|core| total += *core.counters());
        total
    }

    /// Delivers datagrams to and from node 1 until both are silent; those of node 1 arrive at any
    /// shard but the peer's.
    fn pump(&mut self, net: &mut Net) {
        let wrong = (owner(&id(1), self.shards.len()) + 1) % self.shards.len();
        loop {
            let up: Vec<Transmit> =
                net.node(1, |core, _| std::iter::from_fn(|| core.poll_transmit()).collect());
            let shards = self.shards.iter_mut();
            let down: Vec<Transmit> =
                shards.flat_map(|core| std::iter::from_fn(|| core.poll_transmit())).collect();
            if up.is_empty() && down.is_empty() {
                return;
            }
            up.iter().for_each(|transmit| self.deliver(wrong, at(1), &transmit.bytes));
            down.iter().for_each(|transmit| net.deliver(at(2), at(1), &transmit.bytes));
        }
    }
}

#[test]
fn everything_that_arrives_at_a_wrong_shard_reaches_its_owner() {
    for of in 2..=MAX_SHARDS {
        let mut net = Net::new(2);
        let mut two = Sharded::new(of, &MeshConfig::default(), net.now);
        let own = owner(&id(1), of);
        // Initiation, response, data and cookies of a handshake that node 1 begins.
        net.node(1, |core, now| core.connect(now, &id(2))).unwrap();
        two.pump(&mut net);
        assert!(net.up(1, 2));
        let peer = two.shards[own].peer(&id(1)).unwrap();
        assert!(peer.admission.admitted && peer.schedule.has_session());
        assert_eq!(two.total()[MeshCount::InitiationsAccepted], 1);
        assert!(
            two.total()[MeshCount::HandedOver] >= 3,
            "the initiation, its confirmation and a hello"
        );
        assert!(two.shards.iter().map(Core::peer_count).sum::<usize>() == 1, "one owner");
        // And of a handshake that the shard begins.
        two.shards[own].remove_peer(&id(1));
        two.shards[own].set_peer(net.now, id(1), &[at(1)], None);
        two.shards[own].connect(net.now, &id(1)).unwrap();
        net.now.instant += Duration::from_secs(1);
        two.now = net.now;
        two.pump(&mut net);
        assert_eq!(two.total()[MeshCount::HandshakesCompleted], 1);
        let now = net.now;
        let datagram = |core: &mut Core| core.send_datagram(now, id(2), ports::GOSSIP, b"news");
        net.node(1, |core, _| datagram(core)).unwrap();
        two.pump(&mut net);
        let events = std::iter::from_fn(|| two.shards[own].poll_event());
        assert!(events.into_iter().any(|event| matches!(event, MeshEvent::Datagram { .. })));
        let total = two.total();
        assert_eq!(
            (total[MeshCount::DroppedUnknownSession], total[MeshCount::DroppedBadResponse]),
            (0, 0)
        );
    }
}

#[test]
fn a_batch_is_handed_over_as_one() {
    let mut net = Net::new(2);
    let mut two = Sharded::new(2, &MeshConfig::default(), net.now);
    net.node(1, |core, now| core.connect(now, &id(2))).unwrap();
    two.pump(&mut net);
    let wrong = 1 - owner(&id(1), 2);
    let contents = vec![7; 10 * 1200 - 100];
    let mut sealed = Vec::new();
    let address = net.node(1, |core, _| core.address_of(&id(2))).unwrap();
    let batch = net
        .node(1, |core, now| {
            core.seal_streams(
                now,
                &address,
                Datagrams { bytes: &contents, segment: 1200 },
                &mut sealed,
                0,
            )
        })
        .unwrap();
    let mut out = vec![0; 4096];
    let mut arrive = |two: &mut Sharded, from: SocketAddr, datagram: &[u8]| {
        let found = two.shards[wrong].handle_datagram(two.now, from.into(), datagram, &mut out);
        assert!(found.is_none());
    };
    for datagram in sealed[..batch.length].chunks(batch.stride) {
        arrive(&mut two, at(1), datagram);
    }
    // After a shorter one, and from another sender, a new batch begins.
    let first = sealed[..batch.stride].to_vec();
    arrive(&mut two, at(1), &first);
    arrive(&mut two, at(9), &first);
    let lengths: Vec<(usize, u64)> = std::iter::from_fn(|| two.shards[wrong].poll_hand_over())
        .map(|it| (it.batch.bytes.len(), it.batch.datagrams()))
        .collect();
    assert_eq!(lengths, [(batch.length, 10), (batch.stride, 1), (batch.stride, 1)]);
}

#[test]
fn the_limit_of_handshakes_is_the_nodes() {
    // A quarter of them may come at once.
    let config = MeshConfig { handshakes_per_second: 16, ..MeshConfig::default() };
    let mut net = Net::new(14);
    let mut two = Sharded::new(2, &config, net.now);
    for number in 3..=14 {
        net.node(number, |core, now| core.connect(now, &id(2))).unwrap();
        let initiation = net.node(number, |core, _| core.poll_transmit()).unwrap();
        two.deliver(usize::from(number) % 2, at(number), &initiation.bytes);
    }
    let total = two.total();
    assert_eq!(total[MeshCount::InitiationsAccepted] + total[MeshCount::CookiesSent], 12);
    assert!(
        (4..=5).contains(&total[MeshCount::InitiationsAccepted]),
        "{}",
        total[MeshCount::InitiationsAccepted]
    );
}

#[test]
fn a_node_that_was_shut_out_is_shut_out_of_its_shard() {
    use meshport_config::{Revocation, Revoked};

    let mut net = Net::new(2);
    let mut two = Sharded::new(2, &MeshConfig::default(), net.now);
    let mut revocations = Revocations::default();
    let authority = AuthorityKey::from_bytes([1; 32]);
    revocations.add(Revocation::issue(&authority, Revoked::Node(id(1)), WALL));
    let now = two.now;
    two.shards.iter_mut().for_each(|core| core.set_revocations(revocations.clone(), now));
    net.node(1, |core, now| core.connect(now, &id(2))).unwrap();
    two.pump(&mut net);
    assert!(!net.up(1, 2));
    assert_eq!(
        (two.total()[MeshCount::DroppedRevoked], two.total()[MeshCount::InitiationsAccepted]),
        (1, 0)
    );
}
