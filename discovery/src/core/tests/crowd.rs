//! More members than places: validly signed ones, invented by the holder of an invite.

use std::time::{Duration, Instant};

use meshport_config::{Added, Credential, NodeId, Revocation, Revoked};

use crate::Count;
use crate::DiscoveryConfig;
use crate::core::{Discovery, Event};
use crate::directory::{Liveness, MAX_MEMBERS, MAX_OF_INVITE};
use crate::state::Life;
use crate::tests::{Member, Mesh, WALL, base};
use crate::wire::{Claim, Item, Message, Short, Standing};

/// A node, and a member that announces others to it.
struct Lone {
    discovery: Discovery,
    liar: NodeId,
    now: Instant,
    /// Number of requests to the member.
    wanted: usize,
    forgotten: Vec<NodeId>,
}

impl Lone {
    fn new(mesh: &Mesh, liar: &Member) -> Self {
        let me = mesh.member(0, "a", "node").local();
        let discovery = Discovery::new(DiscoveryConfig::default(), me, 1, [5; 32], base());
        let liar_id = liar.credential.node;
        let mut lone =
            Self { discovery, liar: liar_id, now: base(), wanted: 0, forgotten: Vec::new() };
        lone.admit(&liar.credential);
        lone
    }

    /// A peer is connected itself: the mesh has admitted it.
    fn admit(&mut self, credential: &Credential) {
        self.discovery.handle_credential(credential, self.now, WALL);
        self.discovery.handle_session(credential.node, true, self.now);
        self.drain();
    }

    /// The member announces others, so slowly that nothing is rate-limited.
    fn tell(&mut self, members: impl Iterator<Item = Member>) {
        for member in members {
            let bytes = member.credential.to_bytes();
            let item = Item { credential: Some(&bytes), ..Item::about(&member.credential.node) };
            self.say(&Message::Rumours(vec![item]));
        }
    }

    fn say(&mut self, message: &Message<'_>) {
        self.now += Duration::from_millis(2);
        let bytes = message.encode().expect("small");
        self.discovery.handle_datagram(self.liar, &bytes, self.now, WALL);
        self.drain();
    }

    fn drain(&mut self) {
        while let Some(transmit) = self.discovery.poll_transmit() {
            let message = Message::decode(&transmit.payload);
            self.wanted += usize::from(matches!(message, Ok(Message::Want(_))));
        }
        while let Some(event) = self.discovery.poll_event() {
            if let Event::Forgotten(node) = event {
                self.forgotten.push(node);
            }
        }
    }

    fn knows(&self, member: &Member) -> bool {
        self.discovery.directory().get(&member.credential.node).is_some()
    }

    fn of_invite(&self, mesh: &Mesh) -> usize {
        let key = mesh.invite();
        let of = |credential: &Credential| {
            credential.delegation.as_ref().is_some_and(|delegation| delegation.key == key)
        };
        self.discovery.directory().iter().filter(|(_, entry)| of(&entry.credential)).count()
    }

    fn displaced(&self) -> u64 {
        self.discovery.counters()[Count::Displaced]
    }

    fn refused(&self) -> u64 {
        self.discovery.counters()[Count::DroppedDirectoryFull]
    }

    fn revoke(&mut self, mesh: &Mesh) {
        let revocation = Revocation::issue(&mesh.authority, Revoked::Invite(mesh.invite()), WALL);
        assert_eq!(self.discovery.handle_revocation(&revocation, self.now), Ok(Added::New));
        self.drain();
    }
}

fn members(mesh: &Mesh, from: usize, count: usize) -> impl Iterator<Item = Member> {
    (from..from + count).map(|number| mesh.member(u32::try_from(number).unwrap(), "a", "node"))
}

#[test]
fn members_invented_with_a_leaked_invite_take_no_room_from_real_ones() {
    let own = Mesh::new(1);
    let (leaked, other) = (own.with_invite(2), own.with_invite(3));
    let liar = leaked.member(1, "a", "node");
    let mut lone = Lone::new(&own, &liar);
    // The limit of one invite, with the liar among them, and some more.
    lone.tell(members(&leaked, 100_000, MAX_OF_INVITE + 99));
    assert_eq!(lone.of_invite(&leaked), MAX_OF_INVITE);
    assert_eq!((lone.refused(), lone.displaced()), (100, 0));
    let crowding = lone.discovery.directory().crowding().expect("a node found no place");
    assert_eq!((crowding.invite, crowding.entries), (Some(leaked.invite()), MAX_OF_INVITE));
    // The others keep their places.
    lone.tell(members(&own, 200_000, 3));
    assert_eq!((lone.of_invite(&own), lone.refused()), (4, 100));
    // Nodes of the same invite: one that connects here, and one that others look for.
    let here = leaked.member(300_000, "a", "node");
    lone.admit(&here.credential);
    let (origin, relay) = (
        leaked.member(300_001, "a", "node,origin:kube-apiserver"),
        leaked.member(300_002, "a", "node,relay"),
    );
    lone.tell([&origin, &relay].into_iter().map(Member::copy));
    assert!(lone.knows(&here) && lone.knows(&origin) && lone.knows(&relay) && lone.knows(&liar));
    assert_eq!((lone.of_invite(&leaked), lone.displaced()), (MAX_OF_INVITE, 3));
    assert_eq!(lone.forgotten.len(), 3);

    // Another invite leaks as well, and the directory is full.
    lone.tell(members(&other, 400_000, MAX_MEMBERS - lone.discovery.directory().len() + 50));
    assert_eq!(lone.discovery.directory().len(), MAX_MEMBERS);
    assert_eq!((lone.refused(), lone.displaced()), (150, 3));
    let late = own.member(500_000, "a", "node");
    lone.admit(&late.credential);
    let origin = own.member(500_001, "a", "node,origin:kube-apiserver");
    lone.tell([origin.copy()].into_iter());
    assert!(lone.knows(&late) && lone.knows(&origin) && lone.knows(&here));
    assert_eq!(lone.discovery.directory().len(), MAX_MEMBERS);
    assert_eq!((lone.of_invite(&leaked), lone.displaced()), (MAX_OF_INVITE - 2, 5));

    // Nodes that were never heard are down after a while, and make room for any others.
    for _ in 0..32 {
        lone.now += Duration::from_secs(10);
        lone.discovery.handle_timeout(lone.now, WALL);
        lone.drain();
    }
    lone.admit(&liar.credential);
    lone.tell(members(&own, 600_000, 7));
    assert_eq!((lone.refused(), lone.displaced()), (150, 12));
    assert!(lone.knows(&late) && lone.knows(&origin) && lone.knows(&here));

    // Announcements of an evicted node do not help: it has to be heard itself first.
    let gone = members(&leaked, 100_000, 256).chain(members(&other, 400_000, 256));
    let gone = gone.filter(|it| lone.forgotten[5..].contains(&it.credential.node));
    let gone: Vec<Member> = gone.collect();
    assert!(!gone.is_empty(), "those that were told of first went first");
    lone.tell(gone.into_iter());
    assert_eq!((lone.refused(), lone.displaced()), (150, 12), "nobody goes for them");

    // The operator follows the remedy in `status`.
    lone.revoke(&leaked);
    assert_eq!((lone.of_invite(&leaked), lone.of_invite(&own)), (0, 13));
    assert_eq!(lone.discovery.directory().crowding(), None);
    assert_eq!(lone.wanted, 0, "nobody who was refused is asked for again");
}

#[test]
fn what_came_with_a_refused_credential_is_not_asked_for_again() {
    let mesh = Mesh::new(1);
    let mut lone = Lone::new(&mesh, &mesh.member(1, "a", "node"));
    let stranger = Mesh::new(9).member(2, "a", "node");
    let (bytes, state) = (stranger.credential.to_bytes(), stranger.sign(stranger.state(1, 1)));
    let short = Short::of(&stranger.credential.node);
    let claim = None;
    let whole = Item { short, credential: Some(&bytes), state: Some(state.as_bytes()), claim };
    for _ in 0..5 {
        lone.say(&Message::Items(vec![whole]));
    }
    assert_eq!((lone.wanted, lone.discovery.counters()[Count::RejectedCredentials]), (0, 5));
    // Without a credential the record may be worth a request.
    lone.say(&Message::Items(vec![Item { credential: None, ..whole }]));
    assert_eq!(lone.wanted, 1);
}

#[test]
fn a_forgotten_node_that_has_signed_a_record_since_returns_by_hearsay() {
    let mesh = Mesh::new(1);
    let mut lone = Lone::new(&mesh, &mesh.member(1, "a", "node"));
    let node = mesh.member(2, "a", "node");
    let tell = |lone: &mut Lone, signer: &Member, generation: u64| {
        let bytes = node.credential.to_bytes();
        let mut state = signer.state(generation, 1);
        state.node = node.credential.node;
        let state = signer.sign(state);
        let life = Life { generation, renewal: 0 };
        let claim = Some(Claim { life, incarnation: 0, standing: Standing::Alive });
        let short = Short::of(&node.credential.node);
        let item = Item { short, credential: Some(&bytes), state: Some(state.as_bytes()), claim };
        lone.say(&Message::Items(vec![item]));
    };
    tell(&mut lone, &node, 3);
    let id = node.credential.node;
    lone.discovery.peers.directory.set_liveness(&id, Liveness::Down, None, lone.now);
    lone.discovery.peers.directory.forget(&id, lone.now);
    // A late copy, and a forger of a later one.
    tell(&mut lone, &node, 3);
    tell(&mut lone, &mesh.member(7, "a", "node"), 4);
    assert!(!lone.knows(&node));
    tell(&mut lone, &node, 4);
    assert!(lone.knows(&node));
}
