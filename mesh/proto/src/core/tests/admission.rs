//! Admission, and the treatment of peers that are refused.

use meshport_config::Error;

use super::*;
use crate::inner;

/// Node 3 with a self-made identity, unknown to nodes 1 and 2.
fn stranger(identity: Identity) -> Net {
    let mut net = Net::new(2);
    // The core refuses to start with an invalid credential, so it starts with a valid one and
    // presents the other.
    let shown = identity.credential.to_bytes();
    let usable = Identity { credential: good(3), ..identity };
    net.add(3, usable, MeshConfig::default());
    net.node(3, |core, now| {
        core.local.shown = shown;
        core.set_peer(now, id(1), &[at(1)], None);
    });
    net
}

fn showing(credential: Credential) -> Identity {
    Identity { key: key(3), credential, secret: MeshSecret::from_bytes([1; 32]) }
}

fn refusal(net: &mut Net, number: u8) -> Option<String> {
    let events = net.events(number);
    assert!(!events.iter().any(|event| matches!(event, MeshEvent::Datagram { .. })));
    events.into_iter().find_map(|event| match event {
        MeshEvent::Refused { reason, .. } => Some(reason),
        _ => None,
    })
}

#[test]
fn an_unknown_node_with_a_valid_credential_is_admitted() {
    let mut net = stranger(showing(good(3)));
    net.send(3, 1, b"hello").unwrap();
    net.pump();
    let events = net.events(1);
    let kinds: Vec<&str> = events
        .iter()
        .map(|event| match event {
            MeshEvent::Admitted { credential } if credential.node == id(3) => "admitted",
            MeshEvent::SessionUp(_) => "up",
            MeshEvent::Datagram { .. } => "datagram",
            MeshEvent::SeenAt { .. } => "seen",
            _ => "other",
        })
        .collect();
    assert_eq!(
        kinds,
        ["admitted", "up", "datagram", "seen"],
        "the credential goes before the queue"
    );
    net.seconds(30);
    assert!(net.up(1, 3), "no longer provisional");
}

#[test]
fn bad_credentials_are_refused_with_their_reason() {
    let hour_ago = UnixSeconds(WALL.0 - 3600);
    let mut tampered = good(3);
    tampered.site = "other".parse().unwrap();
    let until = UnixSeconds(WALL.0 + 86_400);
    let expired = credential(1, 3, hour_ago);
    let foreign = credential(2, 3, until);
    // Issued for it, and signed by another node in its place.
    let (issued, another) = (good(3).to_bytes(), good(2).to_bytes());
    let (issued, end) = (&issued[..issued.len() - 64], &another[another.len() - 64..]);
    let stolen = Credential::from_bytes(&[issued, end].concat()).unwrap();
    for (what, bad) in [
        ("expired", expired),
        ("foreign", foreign),
        ("tampered", tampered),
        ("stolen", stolen),
        ("other", good(2)),
    ] {
        let reason = bad.verify(&good(1).mesh, WALL).err().as_ref().map(Error::to_string);
        let mut net = stranger(showing(bad));
        net.send(3, 1, b"let me in").unwrap();
        net.pump();
        assert!(!net.up(1, 3), "{what}");
        let counters = net.counters(1);
        assert_eq!(counters[MeshCount::CredentialsRefused], 1, "{what}");
        assert_eq!(
            counters[MeshCount::DroppedNotAdmitted],
            1,
            "{what}: its datagram is not processed"
        );
        let told = refusal(&mut net, 1).expect(what);
        match reason {
            Some(reason) => assert_eq!(told, reason, "{what}"),
            None => assert!(told.contains("another node"), "{told}"),
        }
        let heard = refusal(&mut net, 3).expect("the refused side hears of it");
        assert!(heard.contains("refuses this node's credential"), "{heard}");
        // It repeats itself; the user is informed once, and then it is forgotten.
        net.seconds(29);
        assert!(net.counters(1)[MeshCount::CredentialsRefused] > 1, "{what}");
        assert_eq!(refusal(&mut net, 1), None, "{what}");
        net.seconds(5);
        assert_eq!(net.counters(1)[MeshCount::ProvisionalExpired], 1, "{what}");
        assert!(net.nodes[&at(1)].peer(&id(3)).is_none(), "{what}");
    }
}

/// As an earlier version presents it.
#[test]
fn a_credential_without_its_nodes_signature_is_refused_with_what_to_do() {
    let mut net = stranger(showing(good(3)));
    net.node(3, |core, _| core.local.shown.truncate(core.local.shown.len() - 64));
    net.send(3, 1, b"let me in").unwrap();
    net.pump();
    assert!(!net.up(1, 3));
    for number in [1, 3] {
        let told = refusal(&mut net, number).expect("both sides hear of it");
        assert!(told.contains("has not signed its credential"), "{told}");
        assert!(told.contains("meshport renew"), "{told}");
    }
}

/// A credential issued to this node at that time for three hours, and countersigned.
fn issued_at(number: u8, roles: &str, at: UnixSeconds) -> Credential {
    let subject = Subject {
        node: id(number),
        record_key: RecordKey::from_bytes([7; 32]).public(),
        name: "node".parse().unwrap(),
        site: "fra".parse().unwrap(),
        roles: roles.parse().unwrap(),
        succession: None,
    };
    let (authority, until) = (AuthorityKey::from_bytes([1; 32]), UnixSeconds(at.0 + 3 * 3600));
    let issued = Credential::issue_by_authority(&authority, subject, at, until);
    issued.unwrap().countersign(&key(number)).unwrap()
}

/// Both have all signatures: the later one counts, in whichever way the two arrived.
#[test]
fn a_former_credential_brings_back_no_role_that_a_later_one_has_given_up() {
    let former = issued_at(3, "node,relay", UnixSeconds(WALL.0 - 7200));
    let later = issued_at(3, "node", UnixSeconds(WALL.0 - 3600));
    let known =
        |net: &Net| net.nodes[&at(1)].peer(&id(3)).and_then(|it| it.admission.credential.clone());
    let show = |net: &mut Net, credential: &Credential| {
        net.seconds(1);
        net.node(3, |core, now| {
            core.local.shown = credential.to_bytes();
            core.show_to_all(now);
        });
        net.pump();
        assert!(net.up(1, 3));
    };
    // Announced by others before the node connects.
    let mut net = stranger(showing(former.clone()));
    net.node(1, |core, now| core.set_peer(now, id(3), &[at(3)], Some(&Arc::new(later.clone()))));
    net.connect(3, 1);
    show(&mut net, &former);
    assert_eq!(known(&net).as_deref(), Some(&later));
    // Presented by the node itself.
    let mut net = stranger(showing(former.clone()));
    net.connect(3, 1);
    assert_eq!(known(&net).as_deref(), Some(&former), "nobody knows of another one yet");
    for credential in [&later, &former] {
        show(&mut net, credential);
        assert_eq!(known(&net).as_deref(), Some(&later));
    }
}

/// Both clocks were ahead when it was issued, and are right now.
#[test]
fn a_later_credential_that_has_not_begun_takes_nothing_from_the_one_that_is_shown() {
    let present = issued_at(3, "node", UnixSeconds(WALL.0 - 7200));
    let future = issued_at(3, "node,relay", UnixSeconds(WALL.0 + 7200));
    let mut net = stranger(showing(future.clone()));
    net.ahead_s.insert(at(1), 3 * 3600);
    net.connect(3, 1);
    let known = |net: &Net| net.nodes[&at(1)].peer(&id(3)).unwrap().admission.credential.clone();
    assert_eq!(known(&net).as_deref(), Some(&future));
    net.ahead_s.clear();
    net.seconds(1);
    net.node(3, |core, now| {
        core.local.shown = present.to_bytes();
        core.show_to_all(now);
    });
    net.pump();
    assert_eq!(known(&net).as_deref(), Some(&present));
    assert!(net.up(1, 3));
}

/// A state folder from a backup has the credential from before a renewal.
#[test]
fn a_former_credential_of_the_same_role_lets_its_node_in_and_the_later_one_counts() {
    let former = issued_at(3, "node", UnixSeconds(WALL.0 - 7200));
    let later = Arc::new(issued_at(3, "node", UnixSeconds(WALL.0 - 3600)));
    let mut net = stranger(showing(former));
    net.node(1, |core, now| core.set_peer(now, id(3), &[at(3)], Some(&later)));
    net.connect(3, 1);
    assert!(net.up(1, 3));
    let known = net.nodes[&at(1)].peer(&id(3)).and_then(|it| it.admission.credential.clone());
    assert_eq!(known.as_deref(), Some(&*later));
}

#[test]
fn a_flood_of_credentials_costs_few_signatures_and_keeps_nobody_out() {
    let mut net = stranger(showing(credential(2, 3, UnixSeconds(WALL.0 + 86_400))));
    net.connect(3, 1);
    let before = net.counters(1);
    assert_eq!(before[MeshCount::CredentialsRefused], 1);
    let mut bytes = good(3).to_bytes();
    let end = bytes.len() - 64;
    for flood in 0..200_u8 {
        bytes[end] = flood;
        net.node(3, |core, now| {
            core.local.shown.clone_from(&bytes);
            let slot = core.peers.of_node(&id(1)).unwrap();
            core.send_control(slot, now, ports::CONTROL, &hello(&bytes));
        });
        net.pump();
        net.run(Duration::from_millis(5));
    }
    let after = net.counters(1);
    let verified = after[MeshCount::CredentialsRefused] - before[MeshCount::CredentialsRefused];
    let dropped =
        after[MeshCount::DroppedFrequentCredential] - before[MeshCount::DroppedFrequentCredential];
    // One second of them, at five a second.
    assert!((4..=6).contains(&verified), "{verified} verified, {dropped} dropped");
    assert!(verified + dropped >= 200);
    assert!(!net.up(1, 3));
    // The next one that the peer presents may be valid, and it repeats that until it is heard.
    net.node(3, |core, now| {
        core.local.shown = good(3).to_bytes();
        core.show_to_all(now);
    });
    net.seconds(2);
    assert!(net.up(1, 3));
}

#[test]
fn another_mesh_secret_leads_nowhere() {
    let secret = MeshSecret::from_bytes([9; 32]);
    let mut net = stranger(Identity { key: key(3), credential: good(3), secret });
    net.send(3, 1, b"let me in").unwrap();
    net.run(Duration::from_millis(500));
    assert_eq!(net.counters(1)[MeshCount::InitiationsAccepted], 1);
    assert_eq!(net.counters(3)[MeshCount::DroppedBadResponse], 1);
    assert!(!net.up(1, 3) && !net.up(3, 1));
    net.seconds(120);
    assert!(net.nodes[&at(1)].peer(&id(3)).is_none());
    assert_eq!(net.events(1).len(), 0);
}

#[test]
fn a_known_credential_admits_without_a_hello() {
    let mut net = Net::new(2);
    net.node(1, |core, now| core.set_peer(now, id(2), &[at(2)], Some(&Arc::new(good(2)))));
    // Control messages are lost: only handshakes, keepalives and small datagrams pass.
    net.keep = Box::new(|sent| sent.bytes.len() < 150);
    net.connect(1, 2);
    assert!(net.up(1, 2));
    assert!(!net.up(2, 1), "node 2 does not know node 1's");
    assert!(matches!(net.events(1)[..], [MeshEvent::SessionUp(_)]));
    net.keep = Box::new(|_| true);
    net.seconds(2);
    assert!(net.up(2, 1), "hellos are repeated until one arrives");
    let events = net.events(1);
    assert!(matches!(events[..], [MeshEvent::SeenAt { .. }]), "no credential: {events:?}");
}

#[test]
fn a_credential_given_for_another_node_is_refused() {
    let mut net = Net::new(2);
    net.node(1, |core, now| core.set_peer(now, id(2), &[], Some(&Arc::new(good(3)))));
    assert!(refusal(&mut net, 1).unwrap().contains("another node"));
    let expired = credential(1, 2, UnixSeconds(WALL.0 - 600));
    net.node(1, |core, now| core.set_peer(now, id(2), &[], Some(&Arc::new(expired.clone()))));
    assert!(refusal(&mut net, 1).unwrap().contains("expired"));
    assert_eq!(net.counters(1)[MeshCount::CredentialsRefused], 2);
    net.node(1, |core, now| core.set_peer(now, id(2), &[at(2)], None));
    net.connect(1, 2);
    assert!(net.up(1, 2), "its own hello counts");
}

#[test]
fn a_credential_that_runs_out_ends_the_admission_at_the_next_renewal() {
    let mut net = Net::new(1);
    let soon = credential(1, 2, UnixSeconds(WALL.0 + 60));
    let secret = MeshSecret::from_bytes([1; 32]);
    net.add(2, Identity { key: key(2), credential: soon, secret }, MeshConfig::default());
    net.node(1, |core, now| core.set_peer(now, id(2), &[at(2)], None));
    net.node(2, |core, now| core.set_peer(now, id(1), &[at(1)], None));
    net.connect(1, 2);
    assert!(net.up(1, 2));
    net.events(1);
    for _ in 0..130 {
        net.send(1, 2, b"x").unwrap();
        net.now.wall.0 += 1;
        net.seconds(1);
    }
    assert!(!net.up(1, 2));
    let told = net.events(1);
    assert!(told.iter().any(|event| matches!(event, MeshEvent::SessionDown(_))), "{told:?}");
    assert!(told.iter().any(|event| matches!(event, MeshEvent::Refused { .. })), "{told:?}");
}

#[test]
fn nothing_but_control_is_processed_before_admission() {
    // Node 3 presents nothing that is accepted, then tries everything.
    let mut net = stranger(showing(credential(2, 3, UnixSeconds(WALL.0 + 86_400))));
    net.connect(3, 1);
    let (own, other) = (net.nodes[&at(3)].address(), net.nodes[&at(1)].address());
    let flow = |port| inner::Flow {
        source: own,
        destination: other,
        source_port: port,
        destination_port: port,
    };
    let udp = |port| send::udp_packet(&flow(port), b"payload");
    let before = net.counters(1)[MeshCount::DroppedNotAdmitted];
    for packet in
        [udp(ports::GOSSIP), udp(ports::STREAMS), udp(53), inner::echo_request(&own, &other, 7)]
    {
        let sealed = net.seal(3, 1, &packet);
        net.deliver(at(3), at(1), &sealed);
    }
    assert_eq!(net.counters(1)[MeshCount::DroppedNotAdmitted], before + 4);
    assert_eq!(net.counters(1)[MeshCount::EchoesAnswered], 0);
    assert!(net.streams.is_empty());
    let sealed = net.seal(3, 1, &udp(ports::CONTROL));
    net.deliver(at(3), at(1), &sealed);
    assert_eq!(net.counters(1)[MeshCount::DroppedUnknownControl], 1);
}

#[test]
fn control_messages_are_answered_at_the_port_they_came_from() {
    let mut net = Net::new(2);
    net.connect(1, 2);
    let (own, other) = (net.nodes[&at(2)].address(), net.nodes[&at(1)].address());
    let flow = inner::Flow {
        source: own,
        destination: other,
        source_port: 40_000,
        destination_port: ports::CONTROL,
    };
    let hello = hello(&good(2).to_bytes()).encode();
    let sealed = net.seal(2, 1, &send::udp_packet(&flow, &hello));
    net.events(2);
    net.deliver(at(2), at(1), &sealed);
    net.pump();
    let answers = net.events(2);
    let [MeshEvent::Datagram { port: 40_000, payload, .. }] = &answers[..] else {
        panic!("{answers:?}")
    };
    assert_eq!(Control::decode(payload), Some(Control::Ack { instance: 5 }));
}

/// A peer of a later version is reported once a minute, whatever it sends, and stays a peer.
#[test]
fn control_messages_of_a_later_version_are_named_and_counted() {
    let mut net = Net::new(2);
    net.connect(1, 2);
    let flow = inner::Flow {
        source: net.nodes[&at(2)].address(),
        destination: net.nodes[&at(1)].address(),
        source_port: ports::CONTROL,
        destination_port: ports::CONTROL,
    };
    net.events(1);
    let say = |net: &mut Net, message: &[u8]| {
        let sealed = net.seal(2, 1, &send::udp_packet(&flow, message));
        net.deliver(at(2), at(1), &sealed);
        net.pump();
        let told = net.events(1).into_iter().filter_map(|event| match event {
            MeshEvent::Unknown { from, what } => Some((from, what)),
            _ => None,
        });
        told.collect::<Vec<_>>()
    };
    assert_eq!(say(&mut net, &[1, 99, 7]), [(id(2), "control message 99".to_owned())]);
    assert_eq!(say(&mut net, &[2, 1]), [], "told a moment ago");
    net.seconds(61);
    assert_eq!(say(&mut net, &[2, 1]), [(id(2), "control messages of version 2".to_owned())]);
    let counters = net.counters(1);
    assert_eq!(counters[MeshCount::DroppedUnknownControl], 3);
    assert_eq!(counters[MeshCount::DroppedControl], 0);
    assert!(net.up(1, 2));
}

#[test]
fn an_identity_that_does_not_fit_is_refused_at_start() {
    let net = Net::new(1);
    let make = |identity| Core::new(identity, MeshConfig::default(), [0; 32], net.now).err();
    let error = make(Identity { key: key(2), ..identity(1) }).unwrap();
    assert!(matches!(error, MeshError::Identity(_)), "{error}");
    let expired = credential(1, 1, UnixSeconds(WALL.0 - 600));
    let error = make(Identity { credential: expired, ..identity(1) }).unwrap();
    assert!(error.to_string().contains("expired"), "{error}");
    let config = MeshConfig { mtu: 1000, ..MeshConfig::default() };
    let error = Core::new(identity(1), config, [0; 32], net.now).err().unwrap();
    assert!(error.to_string().contains("mtu"), "{error}");
}

#[test]
fn another_credential_is_shown_to_all_and_cuts_nobody() {
    let mut net = Net::new(3);
    net.connect(1, 2);
    net.seconds(2);
    net.events(2);
    net.notices(2);
    let renewed = credential(1, 1, UnixSeconds(WALL.0 + 2 * 86_400));
    let for_another = credential(1, 2, UnixSeconds(WALL.0 + 2 * 86_400));
    net.node(1, |core, now| {
        assert!(core.set_credential(for_another, now).is_err());
        assert!(core.set_credential(credential(1, 1, UnixSeconds(WALL.0 - 1)), now).is_err());
        assert!(core.set_credential(credential(2, 1, UnixSeconds(WALL.0 + 9)), now).is_err());
        core.set_credential(renewed.clone(), now).unwrap();
    });
    net.pump();
    let shown = net.events(2);
    let admitted = |it: &MeshEvent| match it {
        MeshEvent::Admitted { credential } => **credential == renewed,
        _ => false,
    };
    assert!(shown.iter().any(admitted), "{shown:?}");
    assert!(!shown.iter().any(|it| matches!(it, MeshEvent::SessionDown(_))), "{shown:?}");
    let cut = |it: &Notice| matches!(it, Notice::Cut(..));
    assert!(!net.notices(2).iter().any(cut) && !net.notices(1).iter().any(cut));
    // A peer that connects later sees the new one.
    net.connect(3, 1);
    net.seconds(2);
    assert!(net.events(3).iter().any(admitted));
}

#[test]
fn a_credential_that_the_caller_knows_too_is_kept_once() {
    let mut net = Net::new(2);
    net.connect(1, 2);
    let known = Arc::new(good(2));
    net.node(1, |core, now| core.set_peer(now, id(2), &[at(2)], Some(&known)));
    let kept = |net: &Net| net.nodes[&at(1)].credential(&id(2)).unwrap();
    assert!(Arc::ptr_eq(&kept(&net), &known), "shown first");
    // Another process of the peer presents the same again.
    net.add(2, identity(2), MeshConfig::default());
    net.node(2, |core, now| core.set_peer(now, id(1), &[at(1)], None));
    net.connect(2, 1);
    assert!(net.up(1, 2) && Arc::ptr_eq(&kept(&net), &known), "known first");
}
