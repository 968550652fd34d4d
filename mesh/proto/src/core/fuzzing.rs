//! The outer packet path under a script of arbitrary bytes; only with the feature `fuzzing`.
//!
//! A node has a session with an honest member and receives from an attacker who records everything
//! on the wire, changes it, invents datagrams, and may have a session without a credential. The
//! member itself may also send anything into its session.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use meshport_config::fuzzing::Script;
use meshport_config::{
    AuthorityKey, Credential, MeshSecret, NodeId, NodeKey, RecordKey, Subject, UnixSeconds,
};

use super::send::udp_packet;
use super::{Core, Transmit};
use crate::MeshCount;
use crate::event::{MeshEvent, Now, Route};
use crate::inner::{self, Addresses, FRAGMENT_OVERHEAD, FRAGMENT_UNIT, Flow, Fragment};
use crate::reassembly::MAX_JOINED;
use crate::tunnel::DATA_OVERHEAD;
use crate::{Identity, MeshConfig, ports};

const WALL: UnixSeconds = UnixSeconds(1_800_000_000);
const VICTIM: u8 = 1;
const HONEST: u8 = 2;
/// Knows the mesh's secret and has a credential of another authority.
const STRANGER: u8 = 3;
const ATTACKER: u8 = 66;
/// A packet of the script that begins with this describes a fragment.
const FRAGMENT: u8 = 0xff;
/// Steps of a script: enough to reach any state, few enough to be quick.
const MAX_STEPS: usize = 48;
/// Datagrams that one datagram may cause, not counting itself: queues are flushed and answered.
const MAX_CAUSED: usize = 160;

/// Plays a script against a node; panics when the honest member is harmed by what others send, or
/// a bound does not hold.
pub fn outer(start: Instant, data: &[u8]) {
    let mut wire = Wire::new(start);
    let mut script = Script::new(data);
    let mut member_is_honest = true;
    for _ in 0..MAX_STEPS {
        if script.is_over() {
            break;
        }
        match script.byte() % 9 {
            0 => wire.deliver(ATTACKER, script.bytes()),
            1 => {
                let mut datagram = wire.recorded(script.short());
                let at = script.below(datagram.len());
                datagram[at] ^= script.byte();
                wire.deliver(ATTACKER, &datagram);
            }
            2 => {
                let datagram = wire.recorded(script.short());
                let cut = datagram.len() - script.below(datagram.len());
                wire.deliver(ATTACKER, &datagram[..cut]);
            }
            3 => wire.pass(Duration::from_millis(u64::from(script.short()) * 4)),
            4 => {
                member_is_honest = false;
                match script.bytes() {
                    [FRAGMENT, fragment @ ..] => wire.fragment(HONEST, fragment),
                    packet => wire.sealed(HONEST, packet),
                }
            }
            5 => {
                let port = ports::CONTROL + u16::from(script.byte() % 4);
                member_is_honest &= port != ports::CONTROL;
                wire.inner(HONEST, port, script.bytes());
            }
            6 => {
                wire.meet(STRANGER);
                let port = ports::CONTROL + u16::from(script.byte() % 4);
                wire.inner(STRANGER, port, script.bytes());
            }
            7 => wire.initiate(ATTACKER, script.byte()),
            _ if member_is_honest => wire.assert_reached(),
            _ => wire.pump(),
        }
    }
    wire.pass(Duration::from_secs(2));
    if member_is_honest {
        wire.assert_reached();
    }
    wire.assert_bounds();
}

struct Wire {
    now: Now,
    nodes: BTreeMap<u8, Core>,
    /// All datagrams sent.
    seen: Vec<Vec<u8>>,
    delivered: u64,
}

fn key(number: u8) -> NodeKey {
    NodeKey::from_bytes([number; 32])
}

fn id(number: u8) -> NodeId {
    key(number).public()
}

fn at(number: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, number], 51820))
}

fn identity(number: u8, authority: u8, secret: u8) -> Identity {
    let subject = Subject {
        node: id(number),
        record_key: RecordKey::from_bytes([number; 32]).public(),
        name: format!("node-{number}").parse().expect("a name"),
        site: "fra".parse().expect("a site"),
        roles: "node".parse().expect("a role"),
        succession: None,
    };
    let (from, until) = (UnixSeconds(WALL.0 - 3600), UnixSeconds(WALL.0 + 86_400));
    let authority = AuthorityKey::from_bytes([authority; 32]);
    let issued = Credential::issue_by_authority(&authority, subject, from, until);
    let issued = issued.expect("it is valid for a day");
    let credential = issued.countersign(&key(number)).expect("it is for this key");
    Identity { key: key(number), credential, secret: MeshSecret::from_bytes([secret; 32]) }
}

impl Wire {
    /// The victim and the honest member, with a session.
    fn new(start: Instant) -> Self {
        let now = Now { instant: start, wall: WALL };
        let mut wire = Self { now, nodes: BTreeMap::new(), seen: Vec::new(), delivered: 0 };
        wire.add(VICTIM, identity(VICTIM, 1, 1));
        wire.add(HONEST, identity(HONEST, 1, 1));
        for (from, to) in [(VICTIM, HONEST), (HONEST, VICTIM)] {
            wire.of(from, |core, now| core.set_peer(now, id(to), &[at(to)], None));
        }
        wire.of(HONEST, |core, now| core.connect(now, &id(VICTIM))).expect("its address is known");
        wire.pump();
        wire.assert_reached();
        wire
    }

    fn add(&mut self, number: u8, identity: Identity) {
        let config = MeshConfig { max_provisional: 4, max_peers: 6, ..MeshConfig::default() };
        let core = Core::new(identity, config, [number; 32], self.now);
        self.nodes.insert(number, core.expect("the identity is good"));
    }

    fn of<T>(&mut self, number: u8, work: impl FnOnce(&mut Core, Now) -> T) -> T {
        work(self.nodes.get_mut(&number).expect("it exists"), self.now)
    }

    /// Makes a node that wants a session with the victim, unless it exists.
    fn meet(&mut self, number: u8) {
        if !self.nodes.contains_key(&number) {
            let secret = if number == STRANGER { 1 } else { 2 };
            self.add(number, identity(number, 2, secret));
            self.of(number, |core, now| core.set_peer(now, id(VICTIM), &[at(VICTIM)], None));
        }
        if !self.of(number, |core, _| core.has_session(&id(VICTIM))) {
            // It has an address; whether it gets an answer depends on the victim.
            let _ = self.of(number, |core, now| core.connect(now, &id(VICTIM)));
            self.pump();
        }
    }

    /// A fresh initiation by a stranger without the mesh's secret.
    fn initiate(&mut self, number: u8, skip: u8) {
        self.pass(Duration::from_millis(u64::from(skip)));
        self.nodes.remove(&number);
        self.meet(number);
    }

    /// A datagram that was sent before; there always is one.
    fn recorded(&self, which: u16) -> Vec<u8> {
        self.seen[usize::from(which) % self.seen.len()].clone()
    }

    /// A datagram from outside, and everything that follows from it.
    fn deliver(&mut self, from: u8, bytes: &[u8]) {
        self.hand(VICTIM, at(from), bytes);
        self.pump();
    }

    fn hand(&mut self, to: u8, from: SocketAddr, bytes: &[u8]) {
        let (now, mut out) = (self.now, vec![0; bytes.len().max(2048)]);
        let Some(core) = self.nodes.get_mut(&to) else { return };
        let waiting = core.out.transmits.len();
        if let Some(packet) = core.handle_datagram(now, Route::from(from), bytes, &mut out) {
            assert!(inner::UDP_OVERHEAD + packet.length + DATA_OVERHEAD <= bytes.len());
        }
        assert!(core.poll_joined().is_none_or(|it| it.payload().len() <= MAX_JOINED));
        let caused = core.out.transmits.len() - waiting;
        assert!(caused <= MAX_CAUSED, "{caused} datagrams for one");
        self.delivered += u64::from(to == VICTIM);
    }

    /// Delivers datagrams until no node sends more.
    fn pump(&mut self) {
        for _ in 0..64 {
            let mut moved = Vec::new();
            for (number, core) in &mut self.nodes {
                while let Some(Transmit { route, bytes }) = core.poll_transmit() {
                    moved.push((*number, route.remote, bytes));
                }
                while core.poll_notice().is_some() {}
            }
            if moved.is_empty() {
                return;
            }
            for (from, to, bytes) in moved {
                let to = (1..=3).chain([ATTACKER]).find(|number| at(*number) == to);
                self.seen.push(bytes.clone());
                if let Some(to) = to {
                    self.hand(to, at(from), &bytes);
                }
            }
        }
        panic!("they never stop talking");
    }

    /// Advances time; every timer fires when it is due and then moves.
    fn pass(&mut self, time: Duration) {
        let end = self.now.instant + time;
        self.pump();
        for _ in 0..4096 {
            let due = self.nodes.values().filter_map(Core::poll_timeout).min();
            let Some(due) = due.filter(|due| *due <= end) else {
                self.now.instant = end;
                return;
            };
            self.now.instant = self.now.instant.max(due);
            let now = self.now;
            for core in self.nodes.values_mut() {
                if core.poll_timeout().is_some_and(|at| at <= now.instant) {
                    core.handle_timeout(now);
                    let next = core.poll_timeout();
                    assert!(next.is_none_or(|at| at > now.instant), "a timer does not move");
                }
            }
            self.pump();
        }
        panic!("a timer fires all the time");
    }

    /// Sends bytes as an inner packet in the session `from` has with the victim, if it has one.
    fn sealed(&mut self, from: u8, packet: &[u8]) {
        let sealed = self.of(from, |core, _| {
            let slot = core.peers.of_node(&id(VICTIM))?;
            let mut out = vec![0; packet.len() + 256];
            let length = core.peers.get_mut(slot)?.tunnel.seal(packet, &mut out)?;
            out.truncate(length);
            Some(out)
        });
        if let Some(bytes) = sealed {
            self.seen.push(bytes.clone());
            self.deliver(from, &bytes);
        }
    }

    /// A fragment: its place, its id and whether others follow, and its part of the packet.
    fn fragment(&mut self, from: u8, bytes: &[u8]) {
        let Some((&[place, flags], part)) = bytes.split_first_chunk::<2>() else { return };
        let destination = self.of(VICTIM, |core, _| core.address());
        let source = self.of(from, |core, _| core.address());
        let has_more = flags & 1 != 0;
        let cut = if has_more { part.len() / FRAGMENT_UNIT * FRAGMENT_UNIT } else { part.len() };
        let fragment = Fragment {
            addresses: Addresses { source, destination },
            protocol: 17,
            // The top bit is a demand.
            id: u32::from(flags >> 1) << 25,
            offset: usize::from(place) * FRAGMENT_UNIT,
            has_more,
            part: &part[..cut],
        };
        let mut packet = vec![0; FRAGMENT_OVERHEAD + cut];
        inner::write_fragment(&fragment, &mut packet);
        self.sealed(from, &packet);
    }

    fn inner(&mut self, from: u8, port: u16, payload: &[u8]) {
        let to = self.of(VICTIM, |core, _| core.address());
        let source = self.of(from, |core, _| core.address());
        let flow = Flow { source, destination: to, source_port: port, destination_port: port };
        let packet = udp_packet(&flow, payload);
        self.sealed(from, &packet);
    }

    /// Requires a datagram of the honest member to arrive, and no others.
    fn assert_reached(&mut self) {
        let send = |core: &mut Core, now| core.send_datagram(now, id(VICTIM), ports::GOSSIP, b"?");
        self.of(HONEST, send).expect("it has an address");
        self.pump();
        // A session may have ended meanwhile; then a handshake comes first.
        self.pass(Duration::from_secs(3));
        let events: Vec<MeshEvent> =
            self.of(VICTIM, |core, _| std::iter::from_fn(|| core.poll_event()).collect());
        let mut arrived = false;
        for event in events {
            if let MeshEvent::Datagram { from, payload, .. } = event {
                assert_eq!(from, id(HONEST), "a datagram of a node that was not admitted");
                arrived |= payload == "?";
            }
        }
        assert!(arrived, "the honest member does not get through");
    }

    fn assert_bounds(&mut self) {
        let core = &self.nodes[&VICTIM];
        assert!(core.peers.len() <= 6 && core.peers.provisional() <= 4);
        assert!(core.timers.len() <= core.peers.len());
        assert!(core.out.transmits.is_empty());
        assert_eq!(core.counters()[MeshCount::DatagramsReceived], self.delivered);
        for peer in core.status(self.now.instant) {
            let mine = [id(HONEST), id(STRANGER), id(ATTACKER)];
            assert!(mine.contains(&peer.node), "a peer from nowhere");
            assert!(!peer.admitted || peer.node == id(HONEST), "a stranger was admitted");
        }
    }
}
