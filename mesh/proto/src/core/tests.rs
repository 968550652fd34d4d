//! Several state machines on a simulated wire, in virtual time.

mod admission;
mod clock;
mod here;
mod hostile;
mod narrow;
mod revoke;
mod rotate;
mod sessions;
mod shards;
mod succeed;

use std::collections::BTreeMap;
use std::time::Duration;

use meshport_config::{AuthorityKey, MeshSecret, NodeKey, RecordKey, Subject, UnixSeconds};

use super::*;
use crate::admission::Control;
use crate::ports;

const WALL: UnixSeconds = UnixSeconds(1_800_000_000);

fn key(number: u8) -> NodeKey {
    NodeKey::from_bytes([number; 32])
}

fn id(number: u8) -> NodeId {
    key(number).public()
}

fn at(number: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, number], 51820))
}

/// A credential for node `number`, signed by the authority made from `authority`.
fn credential(authority: u8, number: u8, until: UnixSeconds) -> Credential {
    credential_for(authority, number, until, "node")
}

/// The same with these roles.
fn credential_for(authority: u8, number: u8, until: UnixSeconds, roles: &str) -> Credential {
    let subject = Subject {
        node: id(number),
        record_key: RecordKey::from_bytes([7; 32]).public(),
        name: format!("node-{number}").parse().unwrap(),
        site: "fra".parse().unwrap(),
        roles: roles.parse().unwrap(),
        succession: None,
    };
    let issued = UnixSeconds(until.0.min(WALL.0) - 3600);
    let authority = AuthorityKey::from_bytes([authority; 32]);
    let made = Credential::issue_by_authority(&authority, subject, issued, until).unwrap();
    made.countersign(&key(number)).unwrap()
}

fn good(number: u8) -> Credential {
    credential(1, number, UnixSeconds(WALL.0 + 86_400))
}

/// A hello that shows this credential to a peer that is known.
fn hello(credential: &[u8]) -> Control<'_> {
    Control::Hello { instance: 5, has_yours: true, continues: false, joins: false, credential }
}

/// Time until which the driver of a core sleeps.
fn next_wake(core: &mut Core) -> Option<Instant> {
    core.postpone();
    core.poll_timeout()
}

fn identity(number: u8) -> Identity {
    let secret = MeshSecret::from_bytes([1; 32]);
    Identity { key: key(number), credential: good(number), secret }
}

/// A datagram that was sent.
#[derive(Debug, Clone)]
struct Sent {
    at: Instant,
    from: SocketAddr,
    to: SocketAddr,
    bytes: Vec<u8>,
}

impl Sent {
    fn is_initiation(&self) -> bool {
        self.bytes[0] == 1
    }
}

/// Decides whether a datagram arrives.
type Keep = Box<dyn FnMut(&Sent) -> bool>;

struct Net {
    now: Now,
    start: Instant,
    nodes: BTreeMap<SocketAddr, Core>,
    /// Offset of a node's wall clock, in seconds.
    ahead_s: BTreeMap<SocketAddr, i64>,
    sent: Vec<Sent>,
    keep: Keep,
    /// QUIC payloads that came out, by receiver.
    streams: Vec<(SocketAddr, Vec<u8>)>,
    /// Times a node was woken by its timer.
    wakes: usize,
}

impl Net {
    fn new(count: u8) -> Self {
        Self::with(count, &MeshConfig::default())
    }

    /// Nodes 1..=count that know each other's addresses.
    fn with(count: u8, config: &MeshConfig) -> Self {
        #[expect(clippy::disallowed_methods, reason = "a test needs some instant to count from")]
        let start = Instant::now();
        let mut net = Self {
            now: Now { instant: start, wall: WALL },
            start,
            nodes: BTreeMap::new(),
            ahead_s: BTreeMap::new(),
            sent: Vec::new(),
            keep: Box::new(|_| true),
            streams: Vec::new(),
            wakes: 0,
        };
        for number in 1..=count {
            net.add(number, identity(number), config.clone());
        }
        for number in 1..=count {
            for other in (1..=count).filter(|other| *other != number) {
                net.node(number, |core, now| core.set_peer(now, id(other), &[at(other)], None));
            }
        }
        net
    }

    fn add(&mut self, number: u8, identity: Identity, config: MeshConfig) {
        let mut seed = [number; 32];
        // A process that replaces another one has another seed.
        seed[0] = self.sent.len() as u8;
        let core = Core::new(identity, config, seed, self.now).unwrap();
        self.nodes.insert(at(number), core);
    }

    fn node<T>(&mut self, number: u8, work: impl FnOnce(&mut Core, Now) -> T) -> T {
        let now = self.now_at(&at(number));
        work(self.nodes.get_mut(&at(number)).unwrap(), now)
    }

    /// Both clocks of a node.
    fn now_at(&self, place: &SocketAddr) -> Now {
        let ahead_s = self.ahead_s.get(place).copied().unwrap_or_default();
        Now { wall: UnixSeconds(self.now.wall.0.saturating_add_signed(ahead_s)), ..self.now }
    }

    fn counters(&self, number: u8) -> MeshCounters {
        *self.nodes[&at(number)].counters()
    }

    fn events(&mut self, number: u8) -> Vec<MeshEvent> {
        self.node(number, |core, _| std::iter::from_fn(|| core.poll_event()).collect())
    }

    fn notices(&mut self, number: u8) -> Vec<Notice> {
        self.node(number, |core, _| std::iter::from_fn(|| core.poll_notice()).collect())
    }

    /// Payloads of the datagrams among the events of a node; drops the other events.
    fn datagrams(&mut self, number: u8) -> Vec<Vec<u8>> {
        let payload = |event| match event {
            MeshEvent::Datagram { payload, .. } => Some(payload.to_vec()),
            _ => None,
        };
        self.events(number).into_iter().filter_map(payload).collect()
    }

    fn deliver(&mut self, from: SocketAddr, to: SocketAddr, bytes: &[u8]) {
        let now = self.now_at(&to);
        let Some(core) = self.nodes.get_mut(&to) else { return };
        let mut out = vec![0; 2048.max(bytes.len())];
        if let Some(packet) = core.handle_datagram(now, Route::from(from), bytes, &mut out) {
            let payload = out[crate::inner::UDP_OVERHEAD..][..packet.length].to_vec();
            self.streams.push((to, payload));
        }
        if let Some(joined) = core.poll_joined() {
            self.streams.push((to, joined.payload().to_vec()));
        }
    }

    /// Delivers datagrams until no node sends any more.
    fn pump(&mut self) {
        loop {
            let mut moved = Vec::new();
            for (from, core) in &mut self.nodes {
                while let Some(Transmit { route, bytes }) = core.poll_transmit() {
                    let at = self.now.instant;
                    moved.push(Sent { at, from: *from, to: route.remote, bytes });
                }
            }
            if moved.is_empty() {
                return;
            }
            for datagram in moved {
                self.sent.push(datagram.clone());
                if (self.keep)(&datagram) {
                    self.deliver(datagram.from, datagram.to, &datagram.bytes);
                }
            }
        }
    }

    /// Advances time and serves every timer when it is due.
    fn run(&mut self, time: Duration) {
        let end = self.now.instant + time;
        self.pump();
        while let Some(due) = self.nodes.values_mut().filter_map(next_wake).min()
            && due <= end
        {
            self.now.instant = self.now.instant.max(due);
            let places: Vec<SocketAddr> = self.nodes.keys().copied().collect();
            for place in places {
                let now = self.now_at(&place);
                let core = self.nodes.get_mut(&place).unwrap();
                if next_wake(core).is_some_and(|at| at <= now.instant) {
                    self.wakes += 1;
                    core.handle_timeout(now);
                    let next = next_wake(core);
                    assert!(next.is_none_or(|at| at > self.now.instant), "a timer does not move");
                }
            }
            self.pump();
        }
        self.now.instant = end;
    }

    fn connect(&mut self, from: u8, to: u8) {
        self.node(from, |core, now| core.connect(now, &id(to))).unwrap();
        self.pump();
    }

    fn send(&mut self, from: u8, to: u8, payload: &[u8]) -> Result<(), MeshError> {
        self.node(from, |core, now| core.send_datagram(now, id(to), ports::GOSSIP, payload))
    }

    /// Sends and delivers a datagram; whether it arrived.
    fn reaches(&mut self, from: u8, to: u8) -> bool {
        self.events(to);
        self.send(from, to, b"probe").unwrap();
        self.pump();
        self.datagrams(to).contains(&b"probe".to_vec())
    }

    fn up(&self, number: u8, other: u8) -> bool {
        self.nodes[&at(number)]
            .peer(&id(other))
            .is_some_and(|p| p.schedule.has_session() && p.admission.admitted)
    }

    fn endpoint(&self, number: u8, other: u8) -> Option<SocketAddr> {
        self.nodes[&at(number)].peer(&id(other))?.endpoint.map(|route| route.remote)
    }

    fn since_start(&self, at: Instant) -> Duration {
        at.saturating_duration_since(self.start)
    }

    /// Seals `packet`, which need not be valid, in the session that `from` has with `to`.
    fn seal(&mut self, from: u8, to: u8, packet: &[u8]) -> Vec<u8> {
        self.node(from, |core, _| {
            let slot = core.peers.of_node(&id(to)).unwrap();
            let mut out = vec![0; packet.len() + 256];
            let tunnel = &mut core.peers.get_mut(slot).unwrap().tunnel;
            let length = tunnel.seal(packet, &mut out).unwrap();
            out.truncate(length);
            out
        })
    }

    /// Delivers a control message from one node to another.
    fn tell(&mut self, from: u8, to: u8, message: &Control<'_>) {
        let flow = self.node(from, |core, _| {
            let slot = core.peers.of_node(&id(to)).unwrap();
            core.flow(slot, ports::CONTROL, ports::CONTROL).unwrap()
        });
        let sealed = self.seal(from, to, &send::udp_packet(&flow, &message.encode()));
        self.deliver(at(from), at(to), &sealed);
    }

    fn seconds(&mut self, seconds: u64) {
        self.run(Duration::from_secs(seconds));
    }
}
