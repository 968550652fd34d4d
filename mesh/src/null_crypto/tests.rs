use super::*;
use proptest::prelude::*;

/// Transport parameters as a peer would encode them: one recognisable value below 64,
/// initial_max_data (RFC 9000, section 18.2).
fn params(data: u8) -> TransportParameters {
    TransportParameters::read(Side::Client, &mut Cursor::new([0x04, 1, data])).unwrap()
}

fn crypto(seed: u8) -> NullCrypto {
    let mut next = seed;
    NullCrypto::new(move |bytes| {
        for byte in bytes {
            next = next.wrapping_mul(29).wrapping_add(17);
            *byte = next;
        }
    })
}

fn pair() -> (NullSession, NullSession) {
    (crypto(1).session(Side::Client, &params(11)), crypto(2).session(Side::Server, &params(22)))
}

/// Everything that `session` sends, one piece per encryption level, and the keys it returns
/// meanwhile.
fn flush(session: &mut NullSession) -> (Vec<Vec<u8>>, Vec<Keys>) {
    let mut pieces = Vec::new();
    let mut keys = Vec::new();
    loop {
        let mut out = Vec::new();
        let new = session.write_handshake(&mut out);
        if out.is_empty() && new.is_none() {
            return (pieces, keys);
        }
        if !out.is_empty() {
            pieces.push(out);
        }
        keys.extend(new);
    }
}

/// Passes on each piece, `step` bytes at a time, and collects the receiver's answers.
fn feed(session: &mut NullSession, pieces: &[Vec<u8>], step: usize) -> (Vec<Vec<u8>>, Vec<Keys>) {
    let (mut said, mut keys) = (Vec::new(), Vec::new());
    for piece in pieces {
        for bytes in piece.chunks(step) {
            session.read_handshake(bytes).unwrap();
        }
        let (more, new) = flush(session);
        said.extend(more);
        keys.extend(new);
    }
    (said, keys)
}

fn handshake(
    client: &mut NullSession,
    server: &mut NullSession,
    step: usize,
) -> (Vec<Keys>, Vec<Keys>) {
    let (hello, none) = flush(client);
    assert!(none.is_empty());
    let (answer, server_keys) = feed(server, &hello, step);
    assert!(server.is_handshaking());
    let (done, client_keys) = feed(client, &answer, step);
    assert!(!client.is_handshaking());
    feed(server, &done, step);
    assert!(!server.is_handshaking());
    (client_keys, server_keys)
}

fn sealed(key: &dyn PacketKey, payload: &[u8]) -> BytesMut {
    let mut buf = payload.to_vec();
    buf.resize(payload.len() + key.tag_len(), 0);
    key.encrypt(0, &mut buf, 0);
    BytesMut::from(&buf[..])
}

#[test]
fn both_sides_agree_on_keys_and_parameters() {
    for step in [1, 3, 4096] {
        let (mut client, mut server) = pair();
        let (ours, theirs) = handshake(&mut client, &mut server, step);
        assert_eq!((ours.len(), theirs.len()), (2, 2));
        for (a, b) in ours.iter().zip(&theirs) {
            for (from, to) in
                [(&a.packet.local, &b.packet.remote), (&b.packet.local, &a.packet.remote)]
            {
                let mut packet = sealed(&**from, b"payload");
                to.decrypt(0, &[], &mut packet).unwrap();
                assert_eq!(&packet[..], b"payload");
            }
        }
        let got = client.transport_parameters().unwrap().unwrap();
        assert_eq!(got, params(22));
        assert_eq!(server.transport_parameters().unwrap().unwrap(), params(11));
    }
}

#[test]
fn packets_of_another_connection_or_direction_are_refused() {
    let (mut client, mut server) = pair();
    let (ours, _) = handshake(&mut client, &mut server, 4096);
    let mut other = crypto(7).session(Side::Client, &params(11));
    let mut other_server = crypto(9).session(Side::Server, &params(22));
    let (_, foreign) = handshake(&mut other, &mut other_server, 4096);
    let mut packet = sealed(&*foreign[1].packet.local, b"stale");
    assert!(ours[1].packet.remote.decrypt(0, &[], &mut packet).is_err());
    // A client's own packet, reflected.
    let mut packet = sealed(&*ours[1].packet.local, b"mirror");
    assert!(ours[1].packet.remote.decrypt(0, &[], &mut packet).is_err());
    // Shorter than a tag.
    assert!(ours[1].packet.remote.decrypt(0, &[], &mut BytesMut::from(&b"abc"[..])).is_err());
}

#[test]
fn initial_tags_follow_the_connection_id() {
    let one = initial_keys(&ConnectionId::new(b"12345678"));
    let two = initial_keys(&ConnectionId::new(b"12345679"));
    let mut packet = sealed(&*one.packet.local, b"hello");
    assert!(two.packet.remote.decrypt(0, &[], &mut packet.clone()).is_err());
    one.packet.remote.decrypt(0, &[], &mut packet).unwrap();
}

#[test]
fn malformed_frames_are_errors() {
    let hello = |version: u8, length: u16, body: &[u8]| {
        let mut frame = vec![FrameType::Hello as u8, version];
        frame.extend_from_slice(&length.to_be_bytes());
        frame.extend_from_slice(body);
        frame
    };
    for (what, bytes) in [
        ("version", hello(2, 16, &[0; 16])),
        ("too long", hello(FRAME_VERSION, 2049, &[0; 16])),
        ("too short", hello(FRAME_VERSION, 15, &[0; 15])),
        ("bad parameters", hello(FRAME_VERSION, 18, &[0xff; 18])),
        ("order", vec![FrameType::Done as u8, FRAME_VERSION, 0, 0]),
        ("kind", vec![9, FRAME_VERSION, 0, 0]),
    ] {
        let (_, mut server) = pair();
        assert!(server.read_handshake(&bytes).is_err(), "{what}");
    }
}

#[test]
fn bytes_after_the_handshake_are_an_error() {
    let (mut client, mut server) = pair();
    handshake(&mut client, &mut server, 4096);
    assert!(server.read_handshake(&[FrameType::Done as u8, FRAME_VERSION, 0, 0]).is_err());
}

#[test]
fn nothing_is_exported_retried_or_accepted_as_a_token() {
    let (mut client, mut server) = pair();
    handshake(&mut client, &mut server, 4096);
    let mut out = [7; 8];
    assert!(client.export_keying_material(&mut out, b"label", b"").is_err());
    assert_eq!(out, [7; 8]);
    assert!(!client.is_valid_retry(&ConnectionId::new(b"12345678"), &[], &[0; 32]));
    assert!(client.early_crypto().is_none());
    let key = NoTokens.aead_from_hkdf(b"random");
    assert!(key.open(&mut [0; 32], &[]).is_err());
}

proptest! {
    #[test]
    fn arbitrary_handshake_bytes_never_panic(
        prefix in 0usize..80,
        noise in proptest::collection::vec(any::<u8>(), 0..200),
        server_side: bool,
    ) {
        let (mut client, mut server) = pair();
        let hello = flush(&mut client).0.concat();
        let (session, good) = if server_side {
            (&mut server, hello)
        } else {
            server.read_handshake(&hello).unwrap();
            (&mut client, flush(&mut server).0.concat())
        };
        let mut bytes = good[..prefix.min(good.len())].to_vec();
        bytes.extend(noise);
        for piece in bytes.chunks(7) {
            if session.read_handshake(piece).is_err() {
                break;
            }
            let _ = flush(session);
            prop_assert!(session.received.len() <= FRAME_HEADER + MAX_BODY);
            let _ = session.transport_parameters();
        }
    }
}
