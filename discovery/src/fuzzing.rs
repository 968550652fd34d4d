//! Bodies of the fuzz targets that need private parts; only with the feature `fuzzing`.
//!
//! Each takes arbitrary bytes and panics when a property does not hold.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use meshport_config::fuzzing::Script;
use meshport_config::{
    AuthorityKey, Credential, NodeId, NodeKey, RecordKey, Revocation, Roles, Subject, Succession,
    UnixSeconds,
};
use sha2::{Digest, Sha256};

use crate::directory::Liveness;
use crate::state::{NodeState, Revision, SignedState};
use crate::wire::{Item, Message, Short, VERSION, WIDE_DATAGRAM, Wanted, Wide};
use crate::{Discovery, DiscoveryConfig, LocalNode, OriginState, snapshot, swim};

const WALL: UnixSeconds = UnixSeconds(1_800_000_000);
const VICTIM: u8 = 0;
const HONEST: u8 = 1;
const LIAR: u8 = 2;
const SERVICE: &str = "kube-apiserver";
/// Steps of a script: enough to reach any state, few enough to be quick.
const MAX_STEPS: usize = 48;
/// Datagrams that one datagram may cause: two batches of records and outstanding ones.
const MAX_CAUSED: usize = 32;

/// A datagram, a record, a membership packet or a saved directory: what parses is within its
/// bounds, and reads the same after it is written again.
pub fn message(now: Instant, data: &[u8]) {
    let mut script = Script::new(data);
    match script.byte() % 4 {
        0 => {
            let bytes = [&[VERSION], script.all()].concat();
            let Ok(message) = Message::decode(&bytes) else { return };
            // Numbers have longer forms than the shortest; written again it never grows.
            let again = message.encode().expect("what came in a datagram fits one");
            assert!(again.len() <= bytes.len());
            assert_eq!(Message::decode(&again), Ok(message));
        }
        1 => {
            let Ok(state) = SignedState::read(script.all()) else { return };
            let signed = SignedState::sign(state.clone(), &mesh().public(), &record_key(1));
            assert_eq!(*signed.get(), state, "a record that was within its bounds is cut");
            assert_eq!(SignedState::read(signed.as_bytes()), Ok(state));
        }
        2 => {
            let bytes = script.all();
            if let Ok(claims) = swim::read_claims(bytes) {
                // A claim takes at least 12 bytes.
                assert!(claims.len() * 12 <= bytes.len());
            }
        }
        _ => saved(now, script.all()),
    }
}

/// A saved directory with this content and the right checksum: what a directory restores, it saves
/// again, and that restores as much.
fn saved(now: Instant, content: &[u8]) {
    let bytes = sealed(content);
    let Ok(body) = snapshot::read(&bytes) else { return };
    assert!(body.nodes.len() <= content.len());
    let mut node = discovery(VICTIM, now);
    let Ok(restored) = node.restore(&bytes, now, WALL) else { return };
    assert!(restored <= body.nodes.len());
    let members = snapshot::members_of(&bytes, &credential(VICTIM).mesh, WALL);
    assert!(members.is_ok_and(|members| (restored..=body.nodes.len()).contains(&members.len())));
    let mut again = discovery(VICTIM, now);
    let count = again.restore(&node.snapshot(), now, WALL);
    assert_eq!(count.ok(), Some(node.directory().len() - 1));
}

/// A saved directory with any content and the right checksum.
pub fn sealed(content: &[u8]) -> Vec<u8> {
    let mut bytes = [&snapshot::MAGIC[..], &[snapshot::FORMAT], content].concat();
    let checksum = Sha256::digest(&bytes);
    bytes.extend_from_slice(&checksum);
    bytes
}

/// The content of a saved directory of this version.
fn unsealed(bytes: &[u8]) -> &[u8] {
    let end = bytes.len().saturating_sub(snapshot::CHECKSUM);
    bytes.get(snapshot::HEADER..end).unwrap_or(&[])
}

/// Plays a script of one admitted member against another: it sends anything, including records that
/// it has signed. Panics if one datagram causes many, if a bound does not hold, or if an honest
/// third member is harmed.
pub fn member(start: Instant, data: &[u8]) {
    let mut mesh = Trio::new(start);
    let mut script = Script::new(data);
    for _ in 0..MAX_STEPS {
        if script.is_over() {
            break;
        }
        match script.byte() % 5 {
            0 => mesh.lie(script.bytes()),
            1 => {
                let kind = script.byte();
                let bytes = [&[VERSION, kind], script.bytes()].concat();
                mesh.lie(&bytes);
            }
            2 => {
                let (wrap, own) = (script.byte(), script.bytes());
                mesh.record(wrap, own);
            }
            3 => {
                // A message of the honest node, changed somewhere and sent again.
                let mut bytes = mesh.overheard(script.byte());
                let at = script.below(bytes.len());
                bytes[at] ^= script.byte();
                mesh.lie(&bytes);
            }
            _ => mesh.pass(Duration::from_millis(u64::from(script.short() & 0x0fff))),
        }
    }
    mesh.pass(Duration::from_secs(3));
    mesh.assert_sound();
}

fn mesh() -> AuthorityKey {
    AuthorityKey::from_bytes([1; 32])
}

fn record_key(number: u8) -> RecordKey {
    RecordKey::from_bytes([number; 32])
}

fn credential(number: u8) -> Credential {
    let roles: Roles = "node,origin:kube-apiserver,relay".parse().expect("roles");
    let key = NodeKey::from_bytes([number + 1; 32]);
    let subject = Subject {
        node: key.public(),
        record_key: record_key(number).public(),
        name: format!("worker-{number}").parse().expect("a name"),
        site: "fra".parse().expect("a site"),
        roles,
        succession: None,
    };
    let until = WALL.saturating_add(86_400);
    let issued = Credential::issue_by_authority(&mesh(), subject, WALL, until);
    issued.and_then(|issued| issued.countersign(&key)).expect("it is valid for a day")
}

fn discovery(number: u8, now: Instant) -> Discovery {
    let me = LocalNode { credential: credential(number), record_key: record_key(number) };
    Discovery::new(DiscoveryConfig::default(), me, 1, [number; 32], now)
}

/// Two real nodes and the input of the third; datagrams between the two take no time.
struct Trio {
    now: Instant,
    start: Instant,
    nodes: [Discovery; 2],
    ids: [NodeId; 3],
    /// The latest messages of the honest node, newest first.
    said: VecDeque<Vec<u8>>,
    /// The records that the honest node has had, newest last.
    own: Vec<NodeState>,
}

impl Trio {
    /// They know each other, and the honest one offers a service.
    fn new(now: Instant) -> Self {
        let nodes = [VICTIM, HONEST].map(|number| discovery(number, now));
        let ids = [VICTIM, HONEST, LIAR].map(|number| credential(number).node);
        let mut trio = Self { now, start: now, nodes, ids, said: VecDeque::new(), own: Vec::new() };
        for (number, node) in trio.nodes.iter_mut().enumerate() {
            for other in (0..3_u8).filter(|other| usize::from(*other) != number) {
                node.handle_credential(&credential(other), now, WALL);
                node.handle_session(ids[usize::from(other)], true, now);
            }
        }
        let service = SERVICE.parse().expect("a name");
        trio.nodes[1].set_service(service, OriginState::Ready, now);
        trio.carry();
        trio.pass(Duration::from_secs(2));
        trio.assert_sound();
        trio
    }

    fn wall(&self) -> UnixSeconds {
        WALL.saturating_add((self.now - self.start).as_secs())
    }

    fn lie(&mut self, bytes: &[u8]) {
        let (now, wall, liar) = (self.now, self.wall(), self.ids[usize::from(LIAR)]);
        let victim = &mut self.nodes[usize::from(VICTIM)];
        victim.handle_datagram(liar, bytes, now, wall);
        let caused = self.carry();
        assert!(caused <= MAX_CAUSED, "{caused} datagrams for one");
    }

    /// A record that the liar has signed, about itself or about the honest one.
    fn record(&mut self, wrap: u8, body: &[u8]) {
        let about = self.ids[if wrap & 0x80 == 0 { LIAR } else { HONEST } as usize];
        // The bytes are read as a record with its signature, which is then replaced by a valid one.
        let Ok(state) = SignedState::read(body) else { return };
        let state = NodeState { node: about, ..state };
        let signed = SignedState::sign(state, &mesh().public(), &record_key(LIAR));
        let item = Item { state: Some(signed.as_bytes()), ..Item::about(&about) };
        let message = match wrap % 3 {
            0 => Message::Items(vec![item]),
            1 => Message::Rumours(vec![item]),
            _ => Message::News(item),
        };
        if let Some(bytes) = message.encode() {
            self.lie(&bytes);
        }
    }

    fn overheard(&self, which: u8) -> Vec<u8> {
        self.said[usize::from(which) % self.said.len()].clone()
    }

    /// Delivers the datagrams of the two real nodes; returns how many the victim sent first.
    fn carry(&mut self) -> usize {
        let (now, wall) = (self.now, self.wall());
        let mut first = None;
        for _ in 0..64 {
            let mut moved = Vec::new();
            for (from, node) in self.nodes.iter_mut().enumerate() {
                while let Some(transmit) = node.poll_transmit() {
                    assert!(transmit.payload.len() <= WIDE_DATAGRAM);
                    moved.push((from, transmit));
                }
                while node.poll_event().is_some() {}
            }
            first.get_or_insert(moved.len());
            self.remember_own();
            if moved.is_empty() {
                return first.unwrap_or_default();
            }
            for (from, transmit) in moved {
                if from == usize::from(HONEST) {
                    self.said.push_front(transmit.payload.clone());
                    self.said.truncate(16);
                }
                let to = self.ids[..2].iter().position(|id| *id == transmit.to);
                if let Some(to) = to {
                    self.nodes[to].handle_datagram(self.ids[from], &transmit.payload, now, wall);
                }
            }
        }
        panic!("they never stop talking");
    }

    /// Keeps every record of the honest node; a script has few steps.
    fn remember_own(&mut self) {
        let honest = usize::from(HONEST);
        let entry = self.nodes[honest].directory().get(&self.ids[honest]);
        if let Some(state) = entry.and_then(|entry| entry.node_state())
            && self.own.last() != Some(state)
        {
            self.own.push(state.clone());
        }
    }

    /// Advances time; every timer fires when it is due and then moves.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        for _ in 0..20_000 {
            let due = self.nodes.iter().filter_map(Discovery::poll_timeout).min();
            let Some(due) = due.filter(|due| *due <= end) else {
                self.now = end;
                return;
            };
            self.now = self.now.max(due);
            let (now, wall) = (self.now, self.wall());
            for node in &mut self.nodes {
                if node.poll_timeout().is_some_and(|at| at <= now) {
                    node.handle_timeout(now, wall);
                }
            }
            self.carry();
        }
        panic!("a timer fires all the time");
    }

    /// The victim considers the honest node alive and has a record of it: distances are not urgent,
    /// so it need not be the latest. No node was invented.
    fn assert_sound(&self) {
        let [victim, honest] = &self.nodes;
        assert!(victim.directory().len() <= 3, "a member that no authority knows");
        assert_eq!(victim.revocations().len(), 0, "a revocation that no authority has signed");
        let node = &self.ids[usize::from(HONEST)];
        let entry = victim.directory().get(node).expect("it was admitted");
        assert_eq!(entry.liveness, Liveness::Alive, "an honest node was called down");
        let known = entry.node_state().expect("it has said so");
        assert!(self.own.contains(known), "a record that its owner never had: {known:?}");
        let last = honest.directory().get(node).and_then(|entry| entry.node_state());
        let last = last.expect("it knows itself");
        assert_eq!(known.services, last.services, "what is urgent has not been told");
        assert_eq!(known.endpoints, last.endpoints, "an address that was not told");
    }
}

/// Real datagrams, records and saved directories, for a corpus: a name, the target's leading byte
/// where it has one, and the bytes.
pub fn seeds(start: Instant) -> Vec<(&'static str, Vec<u8>)> {
    let trio = Trio::new(start);
    let mut seeds: Vec<(&str, Vec<u8>)> = Vec::new();
    for bytes in &trio.said {
        seeds.push(("said", [&[0], &bytes[1..]].concat()));
    }
    let node = &trio.ids[usize::from(HONEST)];
    let entry = trio.nodes[0].directory().get(node).expect("it was admitted");
    let state = entry.state.as_ref().expect("it has said so");
    let (credential, short) = (entry.credential.to_bytes(), Short::of(node));
    let item =
        Item { credential: Some(&credential), state: Some(state.as_bytes()), ..Item::about(node) };
    // Of another mesh: well formed, and no node may accept it.
    let other = AuthorityKey::from_bytes([9; 32]);
    let revocation = Revocation::issue(&other, meshport_config::Revoked::Node(*node), WALL);
    let revocation = revocation.to_bytes();
    let former = NodeKey::from_bytes([9; 32]);
    let succession = Succession::agree(&former, node, &mesh().public(), WALL);
    let succeeded = Revocation::of_succession(&mesh().public(), node, &succession).to_bytes();
    for message in [
        Message::Items(vec![item]),
        Message::Rumours(vec![Item { credential: None, ..item }]),
        Message::News(item),
        Message::Want(vec![Wanted { short, with_credential: true }]),
        Message::NewsSeen(Revision { generation: 1, version: 2 }),
        Message::Probe([1; 8]),
        Message::WideProbe(Wide::of([1; 8])),
        Message::WideEcho(Wide::of([1; 8])),
        Message::SplitProbe(Wide::split([1; 8])),
        Message::SplitEcho(Wide::split([1; 8])),
        Message::Unacknowledged,
        Message::Revoked(vec![&revocation]),
        Message::Revoked(vec![&succeeded, &revocation]),
    ] {
        let bytes = message.encode().expect("it fits");
        seeds.push(("message", [&[0], &bytes[1..]].concat()));
    }
    seeds.push(("record", [&[1], state.as_bytes()].concat()));
    seeds.push(("saved", [&[3], unsealed(&trio.nodes[0].snapshot())].concat()));
    seeds
}
