//! Sessions in use are renewed while twenty thousand spoofed initiations a second arrive at the
//! node, in stopped time: those that others initiated, which must pass its gate, and one that it
//! initiated itself.

use std::net::SocketAddr;
use std::time::Duration;

use crate::common::*;
use bytes::Bytes;
use meshport_config::{NodeId, NodeKey};
use meshport_mesh::testing::{Datagram, Switch};
use meshport_mesh::{Identity, Mesh, MeshCount, Stream};

/// Spoofed initiations a second.
const RATE: usize = 20_000;
/// How often a portion of them arrives.
const TURN: Duration = Duration::from_millis(1);
const PORTION: usize = RATE / 1000;
/// Number of different ones; they are repeated from other addresses. As this divides no rate,
/// different ones are accepted each time.
const STRANGERS: u16 = 499;
/// The nodes that initiated a session with `FLOODED`, and the one with which `FLOODED` initiated
/// one.
const PEERS: u8 = 8;
const FLOODED: u8 = 9;
const OTHER: u8 = 10;
/// Sessions are renewed at an age of 110 to 120 s.
const FLOOD_BEGINS: Duration = Duration::from_secs(108);
const FLOOD_LASTS: Duration = Duration::from_secs(14);
/// How often each stream sends something, and when its echo must be back: the path takes 10 ms, and
/// a lost packet 200 ms more.
const WORD: Duration = Duration::from_millis(100);
const BACK: Duration = Duration::from_millis(100);

fn spoofed(number: usize) -> SocketAddr {
    let [high, low] = u16::try_from(number % 60_000).expect("it is less").to_be_bytes();
    SocketAddr::from(([198, 18, high, low], 51820))
}

/// The first message of an unknown node to `to`: the best that can be made without the mesh secret,
/// for which the receiver computes a whole handshake if it accepts it.
async fn initiation(number: u16, to: NodeId) -> Vec<u8> {
    let mut bytes = [3; 32];
    // Not in bits that X25519 ignores.
    bytes[8..10].copy_from_slice(&number.to_be_bytes());
    let key = NodeKey::from_bytes(bytes);
    let foreign = World::new(9);
    let credential = foreign.credential(&key, "nobody");
    let switch = Switch::new(1);
    switch.capture();
    let identity = Identity { key, credential, secret: foreign.secret };
    let stranger = start(identity, switch.attach(at(1)), 1);
    stranger.mesh.set_peer(to, &[at(2)], None);
    stranger.mesh.connect(&to);
    loop {
        if let Some(said) = switch.captured().pop() {
            assert_eq!((said.bytes[0], said.bytes.len()), (1, 148));
            return said.bytes;
        }
        tokio::task::yield_now().await;
    }
}

/// A stream that is in use all the time: each message comes back at once.
async fn talk(mut stream: Stream, time: Duration) {
    let mut next = tokio::time::interval(WORD);
    for word in 0..time.as_millis() / WORD.as_millis() {
        next.tick().await;
        let word = Bytes::copy_from_slice(&word.to_be_bytes());
        stream.send.write_chunk(word.clone()).await.expect("the session lives");
        let heard = tokio::time::timeout(BACK, read_some(&mut stream.recv)).await;
        let heard = heard.unwrap_or_else(|_| panic!("nothing is heard for {BACK:?}"));
        assert_eq!(heard.expect("the session lives"), Some(word));
    }
}

async fn opened(from: &Mesh, to: u8) -> Stream {
    within(Duration::from_secs(2), from.open_stream(id(to))).await.expect("it is there")
}

#[tokio::test(start_paused = true)]
async fn sessions_are_renewed_under_a_flood_of_spoofed_initiations() {
    let mut spoofs = Vec::new();
    for number in 0..STRANGERS {
        spoofs.push(initiation(number, id(FLOODED)).await);
    }
    let switch = Switch::new(1);
    switch.set_delay(Duration::from_millis(5));
    let meshes: Vec<Mesh> =
        nodes(&World::new(1), &switch, OTHER).into_iter().map(|node| echo(node).0).collect();
    let mesh = |number: u8| &meshes[usize::from(number) - 1];

    let time = FLOOD_BEGINS + FLOOD_LASTS;
    let mut talks = tokio::task::JoinSet::new();
    for peer in 1..=PEERS {
        talks.spawn(talk(opened(mesh(peer), FLOODED).await, time));
    }
    talks.spawn(talk(opened(mesh(FLOODED), OTHER).await, time));
    tokio::time::sleep(FLOOD_BEGINS).await;
    let completed = |number: u8| mesh(number).counters()[MeshCount::HandshakesCompleted];
    assert!((1..=FLOODED).all(|number| completed(number) == 1), "a session was renewed too early");

    let (mut turn, mut sent) = (tokio::time::interval(TURN), 0);
    for _ in 0..FLOOD_LASTS.as_millis() / TURN.as_millis() {
        turn.tick().await;
        for number in sent..sent + PORTION {
            let bytes = spoofs[number % spoofs.len()].clone();
            switch.inject(&Datagram { from: spoofed(number), to: at(FLOODED), bytes });
        }
        sent += PORTION;
    }
    talks.join_all().await;

    let flooded = mesh(FLOODED).counters();
    assert!(flooded[MeshCount::DatagramsReceived] as usize > sent, "it has not heard {sent}");
    assert!(
        flooded[MeshCount::CookiesSent] as usize > sent * 9 / 10,
        "it was not under load: {flooded:?}"
    );
    assert!(flooded[MeshCount::ProvisionalEvicted] > 0, "strangers were not taken in: {flooded:?}");
    let mut proven = 0;
    for number in 1..=FLOODED {
        let counters = mesh(number).counters();
        assert_eq!(counters[MeshCount::HandshakesCompleted], 2, "node {number}: {counters:?}");
        assert_eq!(counters[MeshCount::HandshakesAfterSilence], 0, "node {number}: {counters:?}");
        proven += counters[MeshCount::CookiesReceived];
    }
    // One of them may have been handled before the next spoofed one.
    assert!(proven >= u64::from(PEERS) / 2, "{proven} had to prove their address");
}
