//! A standard WireGuard peer, Debian's wireguard-go configured with `wg`, against a node: proves
//! that the traffic between nodes is WireGuard and nothing else.
//!
//! Two network namespaces with a cable between them: the daemon in one, wireguard-go in the other
//! with the key of a node that joined but never ran meshport. The test itself presents the
//! credential, byte by byte in the wire format.

#![expect(clippy::print_stdout, reason = "figures for the reader of a test run")]

use data_encoding::BASE64;
use meshport_discovery::Count;
use meshport_mesh::MeshCount;
use meshport_tests::identity::Identity;
use meshport_tests::{wait, wireguard};
use std::fs;
use std::thread;
use std::time::Duration;

use crate::setup::{
    ACKNOWLEDGED, MOVED, MOVED_PORT, ONE_WAY_PORT, OUTER, SETTLE, SHAKES_HANDS, Setup, begins_with,
    verb,
};

const GOSSIP_PORT: u16 = 7402;
/// Counters of handshakes that the daemon started, that it answered, and that it started early
/// because the peer was silent.
const HANDSHAKES: [MeshCount; 3] = [
    MeshCount::HandshakesCompleted,
    MeshCount::InitiationsAccepted,
    MeshCount::HandshakesAfterSilence,
];
const REFUSED: [u8; 2] = [1, 3];
/// How long a peer pings to outlast WireGuard's rekey after 120 s.
const REKEY_PINGS: u32 = 140;
const LONG_ECHO: usize = 1300;
const LEAST_MTU: &str = "1280";
/// A packet right behind a burst may pass without a cookie: the daemon accepts it after a pause of
/// 5 ms, and wireguard-go must allocate buffers for the first burst, so that it does not pile up.
/// So the test repeats it until this many cookies were requested, with this limit on tries.
const ASKED: usize = 2;
const TRIES: usize = 8;
/// How long only one side sends, to outlast that rekey, and how often it sends.
const REKEY_TALK: Duration = Duration::from_secs(130);
/// Between these times the daemon requests nothing from a peer that it has never heard as a member;
/// with a new session it presents its credential again.
const ONE_WAY: [Duration; 2] = [Duration::from_secs(65), Duration::from_secs(105)];
/// Minimum bytes per second of sending, as WireGuard counts them: a ping waits for its answer for
/// some seconds...
const LEAST_WORD: u64 = 16;
/// ...and an empty packet of 32 bytes every ten seconds amounts to less than this.
const ONLY_EMPTY: u64 = 256;
/// How long the previous secret still opens tunnels: long enough for three handshakes.
const OVERLAP: &str = "60s";
const OVERLAP_ENDS: Duration = Duration::from_secs(90);
/// Lines of the file of secrets during an overlap: both, the statement, the end.
const TWO_SECRETS: usize = 4;

/// Each side starts the session in one of two worlds; in two more worlds only one of them has data
/// to send. All outlast the rekey after two minutes, so they run in parallel.
#[test]
#[ignore = "needs root, wireguard-go and network namespaces, takes 3 minutes: ./tests/run interop"]
fn wireguard_go_shakes_hands_rekeys_and_roams() {
    thread::scope(|scope| {
        scope.spawn(the_daemon_begins_renews_and_moves);
        scope.spawn(|| the_daemon_renews(Talks::Daemon));
        scope.spawn(|| the_daemon_renews(Talks::Peer));
        wireguard_go_begins_renews_and_moves();
    });
}

/// The side that sends data in a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Talks {
    Daemon,
    Peer,
}

/// The daemon renews a session that it started even if only one side has data for it and the other
/// answers only with empty packets.
fn the_daemon_renews(talks: Talks) {
    let setup = Setup::new();
    setup.daemon_begins();
    // From then on wireguard-go sends only its own messages or those of this test.
    wireguard::silence(&setup.guest, &setup.interface, ONE_WAY_PORT, setup.folder.path());
    let before = HANDSHAKES.map(|counter| setup.counted(counter));
    let (first, begun) = (setup.handshake_at(), wait::now());
    let talk = |until: Duration| match talks {
        Talks::Daemon => setup.daemon_talks(begun + until),
        Talks::Peer => setup.peer_talks(begun + until),
    };
    let transferred = || wireguard::transferred(&setup.guest, &setup.interface);
    talk(ONE_WAY[0]);
    let quiet = transferred();
    talk(ONE_WAY[1]);
    let [received, sent] = {
        let now = transferred();
        [0, 1].map(|at| now[at] - quiet[at])
    };
    assert_eq!(setup.handshake_at(), first, "{talks:?}: renewed too early");
    talk(REKEY_TALK);
    let after = HANDSHAKES.map(|counter| setup.counted(counter));
    assert_eq!(after[0] - before[0], 1.0, "{talks:?}: the daemon renews the session that it began");
    assert_eq!(after[1..], before[1..], "{talks:?}: wireguard-go began, or nothing was heard");
    assert!(setup.handshake_at() >= first + 100, "{talks:?}: no renewal of two minutes");
    println!("{talks:?} talks: wireguard-go received {received} bytes and sent {sent}");
    let (said, answered) = match talks {
        Talks::Daemon => (received, sent),
        Talks::Peer => (sent, received),
    };
    let seconds = (ONE_WAY[1] - ONE_WAY[0]).as_secs();
    assert!(said > seconds * LEAST_WORD, "{talks:?}: only {said} bytes were said");
    assert!(answered < ONLY_EMPTY, "{talks:?}: {answered} bytes in answer are not empty packets");
}

/// After presenting its credential, the peer sends only answers until the daemon has initiated a
/// session itself. Only the initiator of a session renews it.
fn the_daemon_begins_renews_and_moves() {
    let setup = Setup::new();
    let own = setup.peer.preshared_key(&setup.node.node());
    let answers = setup.show(&setup.peer.credential.to_bytes());
    assert!(begins_with(&answers, ACKNOWLEDGED), "the credential got no answer: {answers:02x?}");
    assert_eq!(setup.counted(MeshCount::HandshakesCompleted), 0.0, "the daemon has begun already");

    // wireguard-go forgets its session and gets another pre-shared key: it answers the daemon's
    // initiations, and the daemon rejects every answer.
    setup.anew(&BASE64.encode(&[7; 32]));
    wait::until("the daemon refuses the answer under another key", SHAKES_HANDS, || {
        (setup.counted(MeshCount::DroppedBadResponse) > 0.0).then_some(())
    });
    assert_eq!(setup.counted(MeshCount::HandshakesCompleted), 0.0, "a session with two keys");
    assert_eq!(setup.handshake_at(), 0, "wireguard-go has a session with two keys");

    setup.anew(&own);
    setup.daemon_shakes_hands("the daemon begins a handshake with the right key", SHAKES_HANDS);
    wait::until("wireguard-go has the session", SETTLE, || {
        (setup.handshake_at() > 0).then_some(())
    });
    let before = HANDSHAKES.map(|counter| setup.counted(counter));
    let first = setup.handshake_at();
    assert!(setup.pings(REKEY_PINGS), "echoes were lost while the daemon renewed its session");
    let after = HANDSHAKES.map(|counter| setup.counted(counter));
    assert_eq!(after[0] - before[0], 1.0, "the daemon renews the session that it began");
    assert_eq!(after[1..], before[1..], "wireguard-go began, or something was not answered");
    assert!(setup.handshake_at() >= first + 100, "no renewal of two minutes");
    assert_eq!(setup.counted(MeshCount::CookiesReceived), 0.0, "the link was not quiet");

    let moved = format!("{MOVED}:{MOVED_PORT}");
    assert_ne!(setup.daemon_seen_at(), moved);
    setup.move_daemon();
    assert!(setup.pings(3), "echoes are lost while the daemon moves");
    assert_eq!(setup.daemon_seen_at(), moved, "wireguard-go does not follow the daemon");
    setup.leave_former_address();
    assert!(setup.pings(3), "echoes are lost after the daemon's roam");
}

fn wireguard_go_begins_renews_and_moves() {
    let setup = Setup::new();

    // A session alone grants nothing: neither echo nor gossip is answered.
    assert!(!setup.pings(2), "an echo was answered before any credential was shown");
    assert!(setup.handshake_at() > 0, "WireGuard's own handshake did not complete");
    assert!(setup.counted(MeshCount::DroppedNotAdmitted) > 0.0);

    let own = setup.peer.credential.to_bytes();
    let mut tampered = own.clone();
    *tampered.last_mut().expect("a credential has bytes") ^= 1;
    let foreign = {
        let state = setup.folder.path().join("foreign");
        verb(&["init", "--site", "a", "--name", "peer"], &state);
        Identity::read(&state).credential.to_bytes()
    };
    let of_another = setup.node.credential.to_bytes();
    // Its issuer omitted the node's own signature.
    let unsigned = ("one-sided", &own[..own.len() - 64].to_vec());
    for (what, credential) in
        [("tampered", &tampered), ("foreign", &foreign), ("another's", &of_another), unsigned]
    {
        let before = setup.counted(MeshCount::CredentialsRefused);
        let answers = setup.show(credential);
        assert!(!begins_with(&answers, ACKNOWLEDGED), "a {what} credential was accepted");
        assert!(begins_with(&answers, REFUSED), "a {what} credential was not refused: {answers:?}");
        assert!(setup.counted(MeshCount::CredentialsRefused) > before, "{what}: not counted");
    }

    let answers = setup.show(&own);
    assert!(begins_with(&answers, ACKNOWLEDGED), "the credential got no answer: {answers:02x?}");
    assert!(setup.pings(3), "inner echo is not answered");

    // Larger than any gossip message, yet it fits the tunnel.
    let before = setup.counted(Count::DroppedMalformed);
    setup.send(GOSSIP_PORT, &[1; 1300]);
    assert!(setup.counted(Count::DroppedMalformed) > before, "oversized gossip is not counted");
    assert!(setup.pings(2), "the daemon does not serve after oversized gossip");

    // The peer's kernel sends long packets in fragments.
    let before = setup.counted(MeshCount::PacketsJoined);
    setup.guest.ip(&["link", "set", &setup.interface, "mtu", LEAST_MTU]);
    assert!(setup.pings_with(3, LONG_ECHO), "echoes that are sent in fragments are not answered");
    assert_eq!(setup.counted(MeshCount::PacketsJoined), before + 3.0);

    let first = setup.handshake_at();
    assert!(setup.pings(REKEY_PINGS), "echoes were lost while the session was rekeyed");
    assert!(setup.handshake_at() >= first + 100, "no rekey happened in {REKEY_PINGS} s");

    setup.guest.run("wg", &["set", &setup.interface, "listen-port", "40002"]);
    assert!(setup.pings(3), "echoes are lost after a roam");
    let roamed = format!("{}:40002", OUTER[1]);
    wait::until("the daemon sees the new port", SETTLE, || {
        (setup.seen_at()? == roamed).then_some(())
    });
}

#[test]
#[ignore = "needs root, wireguard-go and network namespaces: ./tests/run interop"]
fn wireguard_go_under_load_and_with_another_secret() {
    let mut setup = Setup::new();
    let path = setup.leads_by_a_path();
    let own = setup.peer.preshared_key(&setup.node.node());

    // With another pre-shared key wireguard-go cannot decrypt our answer, and has no session.
    setup.anew(&BASE64.encode(&[7; 32]));
    assert!(!setup.pings(2));
    assert_eq!(setup.handshake_at(), 0, "a session with two pre-shared keys");
    assert!(setup.counted(MeshCount::InitiationsAccepted) > 0.0, "no handshake was tried");
    assert_eq!(setup.counted(MeshCount::DroppedNotAdmitted), 0.0, "data came through");
    assert_eq!(setup.counted(MeshCount::CookiesSent), 0.0, "the daemon was under load");

    // The daemon is under load: wireguard-go must present a cookie, and does.
    path.crowd(Some(0));
    let answered = "Received handshake response";
    let asked = format!("Receiving cookie response from {}\n", setup.way);
    let tries = (0..TRIES).map(|_| {
        let log = setup.shakes_hands_anew("wireguard-go shakes hands with a cookie", &own);
        assert!(!log.contains("invalid cookie"), "wireguard-go cannot read a cookie:\n{log}");
        wireguard::count_before(&log, answered, &asked)
    });
    let cookies: Vec<usize> = tries.filter(|cookies| *cookies > 0).take(ASKED).collect();
    println!("{} initiations, {} cookies", path.sent(), setup.counted(MeshCount::CookiesSent));
    // A second request means that the first cookie was rejected.
    assert_eq!(cookies, [1; ASKED], "cookies until a handshake was answered");
    path.crowd(None);
    let answers = setup.show(&setup.peer.credential.to_bytes());
    assert!(begins_with(&answers, ACKNOWLEDGED), "the credential got no answer: {answers:02x?}");

    // wireguard-go is under load and has lost its session: the daemon must present a cookie.
    assert_eq!(setup.counted(MeshCount::CookiesReceived), 0.0, "wireguard-go was under load");
    let before = path.sent();
    path.crowd(Some(1));
    let asked = format!("denied handshake message for {}\n", setup.way);
    let mut tries = (0..TRIES).map(|_| {
        setup.anew(&own);
        let logged = setup.wireguard.output().len();
        setup.daemon_shakes_hands("the daemon shakes hands with a cookie", SHAKES_HANDS);
        let log = setup.wireguard.output().split_off(logged);
        wireguard::count_before(&log, "Received handshake initiation", &asked)
    });
    let cookies = tries.find(|cookies| *cookies > 0);
    println!("{} initiations to wireguard-go", path.sent() - before);
    assert_eq!(cookies, Some(1), "cookies until a handshake was answered");
    assert!(setup.counted(MeshCount::CookiesReceived) > 0.0, "the daemon cannot read a cookie");
    path.crowd(None);
    assert!(setup.pings(3), "echoes are lost afterwards");
}

#[test]
#[ignore = "needs root, wireguard-go and network namespaces: ./tests/run interop"]
fn wireguard_go_while_the_mesh_has_two_secrets() {
    let setup = Setup::new();
    let shakes_hands = |what: &str, shared: &str| {
        setup.anew(shared);
        wait::until(what, SHAKES_HANDS, || {
            setup.pings(1);
            (setup.handshake_at() > 0).then_some(())
        });
        let answers = setup.show(&setup.peer.credential.to_bytes());
        assert!(begins_with(&answers, ACKNOWLEDGED), "{what}: no answer: {answers:02x?}");
        assert!(setup.pings(2), "{what}: echoes are lost");
    };
    let former = setup.peer.preshared_key(&setup.node.node());
    shakes_hands("the only secret opens a tunnel", &former);

    // A peer with one fixed pre-shared key is served with either of the two.
    let state = setup.folder.path().join("node");
    verb(&["rotate-secret", "--overlap", OVERLAP], &state);
    let file = fs::read_to_string(state.join("mesh.secret")).expect("a node has it");
    assert_eq!(file.lines().count(), TWO_SECRETS);
    let rotated = Identity::read(&state).preshared_key(&setup.peer.node());
    assert_ne!(rotated, former);
    shakes_hands("the former secret opens a tunnel", &former);
    shakes_hands("the new secret opens a tunnel", &rotated);

    wait::until("the former secret is erased", OVERLAP_ENDS, || {
        let file = fs::read_to_string(state.join("mesh.secret")).expect("a node has it");
        (file.lines().count() < TWO_SECRETS).then_some(())
    });
    setup.anew(&former);
    assert!(!setup.pings(2));
    assert_eq!(setup.handshake_at(), 0, "the former secret opens nothing any more");
    shakes_hands("the new secret still opens a tunnel", &rotated);
}
