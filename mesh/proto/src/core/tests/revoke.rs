//! Revoked peers: what they can do, the cost, and the reports to the user.

use meshport_config::{Delegation, DelegationKey, Grant, Revocation, Revocations, Revoked};

use super::*;
use crate::core::revoke::MAX_KNOCKS;

/// The revocation of node `number` by the authority made from `authority`.
fn revoked(authority: u8, number: u8) -> Revocations {
    let authority = AuthorityKey::from_bytes([authority; 32]);
    let mut all = Revocations::default();
    all.add(Revocation::issue(&authority, Revoked::Node(id(number)), WALL));
    all
}

#[test]
fn a_revoked_peer_is_cut_and_stays_out() {
    let mut net = Net::new(3);
    net.connect(1, 2);
    net.seconds(1);
    assert!(net.reaches(1, 2) && net.reaches(2, 1));
    net.events(1);
    net.notices(1);
    net.node(1, |core, now| core.set_revocations(revoked(1, 2), now));
    assert!(matches!(net.events(1)[..], [MeshEvent::SessionDown(_)]));
    assert!(net.notices(1).iter().any(|notice| matches!(notice, Notice::Cut(..))));
    assert_eq!(net.counters(1)[MeshCount::PeersRevoked], 1);
    // Packets of the old session match no peer, and new handshakes are not answered.
    net.send(2, 1, b"old session").unwrap();
    net.pump();
    assert_eq!(net.counters(1)[MeshCount::DroppedUnknownSession], 1);
    let answered = net.counters(1)[MeshCount::InitiationsAccepted];
    net.seconds(60);
    assert!(net.counters(1)[MeshCount::DroppedRevoked] > 0, "{:?}", net.counters(1));
    assert_eq!(net.counters(1)[MeshCount::InitiationsAccepted], answered);
    // Being named with a valid credential does not help.
    net.node(1, |core, now| core.set_peer(now, id(2), &[at(2)], Some(&Arc::new(good(2)))));
    assert_eq!(net.send(1, 2, b"x"), Err(MeshError::UnknownPeer(id(2))));
    // Other peers are not affected.
    net.connect(1, 3);
    assert!(net.reaches(1, 3));
}

/// For a stranger's initiation the gate computes only what reveals its key; then a new tunnel
/// computes the rest and answers. For a revoked node there is no tunnel: only its key is computed,
/// nothing is stored to recognise a repetition, and nothing is sent.
#[test]
fn an_initiation_of_a_revoked_node_costs_its_name_and_leaves_nothing() {
    let mut net = Net::new(3);
    net.node(1, |core, _| {
        core.remove_peer(&id(2));
        core.remove_peer(&id(3));
    });
    net.node(1, |core, now| core.set_revocations(revoked(1, 2), now));
    for number in [2, 3] {
        net.node(number, |core, now| core.connect(now, &id(1))).unwrap();
        let sent = net.node(number, |core, _| core.poll_transmit()).unwrap();
        let before = net.counters(1);
        for _ in 0..20 {
            net.deliver(at(number), at(1), &sent.bytes);
        }
        let answers = net.node(1, |core, _| std::iter::from_fn(|| core.poll_transmit()).count());
        let is_kept = net.nodes[&at(1)].peer(&id(number)).is_some();
        let after = net.counters(1);
        let accepted =
            after[MeshCount::InitiationsAccepted] - before[MeshCount::InitiationsAccepted];
        let known_again = after[MeshCount::DroppedFrequentInitiation]
            - before[MeshCount::DroppedFrequentInitiation];
        let dropped = after[MeshCount::DroppedRevoked] - before[MeshCount::DroppedRevoked];
        if number == 2 {
            assert_eq!((dropped, accepted, known_again), (20, 0, 0));
            assert_eq!((answers, is_kept), (0, false));
        } else {
            assert_eq!((dropped, accepted, known_again), (0, 1, 19));
            assert_eq!((answers, is_kept), (1, true));
        }
    }
}

/// The invite with this number.
fn invite(number: u8) -> DelegationKey {
    DelegationKey::from_bytes([number; 32])
}

/// The same node with a credential that it made with an invite.
fn joined(number: u8, by: u8) -> Identity {
    joined_for(number, by, [UnixSeconds(WALL.0 - 60), UnixSeconds(WALL.0 + 3600)])
}

/// The same, valid from then until then.
fn joined_for(number: u8, by: u8, [from, until]: [UnixSeconds; 2]) -> Identity {
    let grant = Grant {
        roles: "node".parse().unwrap(),
        site: None,
        name: None,
        not_before: UnixSeconds(WALL.0 - 86_400),
        join_until: UnixSeconds(WALL.0 + 86_400),
        credential_ttl_s: 86_400,
    };
    let authority = AuthorityKey::from_bytes([1; 32]);
    let delegation = Delegation::issue(&authority, invite(by).public(), grant).unwrap();
    let subject = Subject {
        node: id(number),
        record_key: RecordKey::from_bytes([7; 32]).public(),
        name: format!("node-{number}").parse().unwrap(),
        site: "fra".parse().unwrap(),
        roles: "node".parse().unwrap(),
        succession: None,
    };
    let made = Credential::issue_by_delegation(&delegation, &invite(by), subject, from, until);
    let credential = made.unwrap().countersign(&key(number)).unwrap();
    Identity { credential, ..identity(number) }
}

/// The revocation of an invite.
fn leaked(number: u8) -> Revocations {
    let mut all = Revocations::default();
    let what = Revoked::Invite(invite(number).public());
    all.add(Revocation::issue(&AuthorityKey::from_bytes([1; 32]), what, WALL));
    all
}

/// Node 1, and nodes 2 and 3 that joined with invites 2 and 3, all with sessions.
fn guests() -> Net {
    let mut net = Net::new(1);
    for number in [2, 3] {
        net.add(number, joined(number, number), MeshConfig::default());
        net.node(number, |core, now| core.set_peer(now, id(1), &[at(1)], None));
        net.node(1, |core, now| core.set_peer(now, id(number), &[at(number)], None));
        net.connect(number, 1);
    }
    net.seconds(1);
    assert!(net.reaches(1, 2) && net.reaches(2, 1) && net.reaches(3, 1));
    net.events(1);
    net.notices(1);
    net
}

#[test]
fn only_nodes_that_joined_with_a_revoked_invite_are_cut() {
    let mut net = guests();
    net.node(1, |core, now| core.set_revocations(leaked(2), now));
    let down = net.events(1);
    assert!(matches!(down[..], [MeshEvent::SessionDown(node)] if node == id(2)), "{down:?}");
    let cut = net.notices(1);
    assert!(matches!(cut[..], [Notice::Cut(node, _)] if node == id(2)), "{cut:?}");
    assert_eq!(net.counters(1)[MeshCount::PeersRevoked], 1);
    assert!(net.reaches(1, 3) && net.reaches(3, 1));
    // Its handshakes end at its name, and being named does not help.
    let before = net.counters(1);
    net.seconds(60);
    let after = net.counters(1);
    assert!(after[MeshCount::DroppedRevoked] > before[MeshCount::DroppedRevoked]);
    assert_eq!(after[MeshCount::CredentialsRefused], before[MeshCount::CredentialsRefused]);
    net.node(1, |core, now| core.set_peer(now, id(2), &[at(2)], None));
    assert_eq!(net.send(1, 2, b"x"), Err(MeshError::UnknownPeer(id(2))));
}

/// Only its credential shows that it is covered, so a process that never saw it needs one handshake
/// to know.
#[test]
fn a_node_of_a_revoked_invite_gets_one_handshake_from_a_new_process() {
    let mut net = guests();
    net.add(1, identity(1), MeshConfig::default());
    net.node(1, |core, now| core.set_revocations(leaked(2), now));
    for number in [2, 3] {
        net.node(number, Core::wake);
        net.pump();
        net.seconds(1);
    }
    assert!(net.up(1, 3) && !net.up(1, 2));
    assert!(net.nodes[&at(1)].peer(&id(2)).is_none(), "it is removed at once");
    let first = net.counters(1);
    assert_eq!((first[MeshCount::PeersRevoked], first[MeshCount::CredentialsRefused]), (1, 1));
    let refused = |event: &MeshEvent| match event {
        MeshEvent::Refused { node, reason } => *node == id(2) && reason.contains("revoked invite"),
        _ => false,
    };
    assert!(net.events(1).iter().any(refused) && net.counters(2)[MeshCount::RefusedByPeer] == 1);
    let answered = first[MeshCount::InitiationsAccepted];
    net.node(2, Core::wake);
    net.pump();
    net.seconds(60);
    let then = net.counters(1);
    assert!(then[MeshCount::DroppedRevoked] > first[MeshCount::DroppedRevoked]);
    assert_eq!((then[MeshCount::PeersRevoked], then[MeshCount::CredentialsRefused]), (1, 1));
    assert_eq!(then[MeshCount::InitiationsAccepted] - answered, 0, "no handshake but the first");
    assert!(net.nodes[&at(1)].peer(&id(2)).is_none());
}

/// A session alone does not give its address a share under load.
#[test]
fn the_gate_knows_where_admitted_peers_are_and_nobody_else() {
    let mut net = guests();
    net.add(1, identity(1), MeshConfig::default());
    net.node(1, |core, now| core.set_revocations(leaked(2), now));
    for number in [2, 3] {
        net.node(number, Core::wake);
        net.pump();
        net.seconds(1);
    }
    assert_eq!(net.counters(1)[MeshCount::InitiationsAccepted], 2);
    let settled = |net: &Net, number| net.nodes[&at(1)].local.gate.settled(at(number).ip());
    assert_eq!(settled(&net, 2), None, "it was not admitted");
    let began = settled(&net, 3).expect("it is a peer");
    net.node(3, Core::wake);
    net.pump();
    assert!(settled(&net, 3) > Some(began), "it has another session");
}

/// A peer that presents another node's revoked credential is refused; one that presents its own is
/// blocked: its session proves that it is its own.
#[test]
fn a_peer_shuts_out_nobody_but_itself() {
    let mut net = guests();
    net.node(1, |core, now| core.set_revocations(leaked(9), now));
    for (number, is_out) in [(2, false), (3, true)] {
        net.tell(3, 1, &hello(&joined(number, 9).credential.to_bytes()));
        let is_blocked = |number| net.nodes[&at(1)].is_blocked(&id(number));
        assert_eq!((is_blocked(2), is_blocked(3)), (false, is_out));
        assert_eq!(net.nodes[&at(1)].peer(&id(3)).is_none(), is_out);
    }
    assert_eq!(net.counters(1)[MeshCount::CredentialsRefused], 2);
    assert!(net.reaches(1, 2));
}

/// Any number of keys can be made, and so can credentials that name a revoked invite: only one that
/// is really signed takes an entry among the blocked, even if it has expired.
#[test]
fn an_invented_credential_of_a_revoked_invite_is_not_remembered() {
    let mut net = guests();
    net.node(1, |core, now| core.set_revocations(leaked(9), now));
    let mut unsigned = joined(2, 9).credential;
    unsigned.expires_at = UnixSeconds(unsigned.expires_at.0 + 1);
    let old = joined_for(3, 9, [120, 60].map(|ago| UnixSeconds(WALL.0 - ago))).credential;
    for (number, credential, is_remembered) in [(2, unsigned, false), (3, old, true)] {
        net.tell(number, 1, &hello(&credential.to_bytes()));
        assert!(net.nodes[&at(1)].peer(&id(number)).is_none(), "it says that it is revoked");
        assert_eq!(net.nodes[&at(1)].is_blocked(&id(number)), is_remembered);
    }
    let counters = net.counters(1);
    assert_eq!(
        (counters[MeshCount::CredentialsRefused], counters[MeshCount::PeersRevoked]),
        (2, 1)
    );
    assert_eq!(net.nodes[&at(1)].blocked.nodes.len(), 1);
}

/// The reports of handshakes in the name of a node, among the events of node 1.
fn knocks(net: &mut Net) -> Vec<(NodeId, String)> {
    let events = net.events(1).into_iter();
    let knocked = events.filter_map(|event| match event {
        MeshEvent::Knocked { node, why } => Some((node, why)),
        _ => None,
    });
    knocked.collect()
}

/// Anybody who knows its key can begin handshakes in its name, at any rate.
#[test]
fn a_handshake_of_a_revoked_node_is_reported_once_in_ten_minutes() {
    let mut net = Net::new(3);
    let mut all = revoked(1, 2);
    all.add(Revocation::issue(&AuthorityKey::from_bytes([1; 32]), Revoked::Node(id(3)), WALL));
    net.node(1, |core, now| core.set_revocations(all, now));
    let mut first = Vec::new();
    for number in [2, 3] {
        net.node(number, |core, now| core.connect(now, &id(1))).unwrap();
        first.push(net.node(number, |core, _| core.poll_transmit()).unwrap().bytes);
    }
    net.events(1);
    for _ in 0..20 {
        net.deliver(at(66), at(1), &first[0]);
        net.deliver(at(66), at(1), &first[1]);
    }
    let told = knocks(&mut net);
    let why = "revoked by the authority".to_owned();
    assert_eq!(told, [(id(2), why.clone()), (id(3), why.clone())]);
    assert_eq!(net.counters(1)[MeshCount::DroppedRevoked], 40);
    net.keep = Box::new(|_| false);
    net.seconds(599);
    net.deliver(at(66), at(1), &first[0]);
    assert_eq!(knocks(&mut net), []);
    net.seconds(1);
    net.deliver(at(66), at(1), &first[0]);
    assert_eq!(knocks(&mut net), [(id(2), why)]);
    // Names beyond the bound are only counted, until there is room again.
    net.node(1, |core, now| {
        for number in 0..MAX_KNOCKS {
            let mut name = [0; 32];
            name[..8].copy_from_slice(&(number as u64).to_le_bytes());
            core.note_knock(NodeId::from_bytes(name), now);
        }
        assert_eq!(core.blocked.told.len(), MAX_KNOCKS);
    });
    net.seconds(600);
    net.deliver(at(66), at(1), &first[1]);
    assert_eq!(net.nodes[&at(1)].blocked.told.len(), 1);
}
