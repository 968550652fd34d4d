//! The handshake without keys under arbitrary bytes; only with the feature `fuzzing`.

use meshport_config::fuzzing::Script;

use super::{
    Cursor, FRAME_HEADER, MAX_BODY, NullCrypto, NullSession, Session, Side, TransportParameters,
};

/// Passes bytes to one side of a handshake, after a part of a valid one. How they are split makes
/// no difference, at most one frame is stored, and the handshake does not complete without the
/// other side's parameters.
pub fn null_handshake(data: &[u8]) {
    let mut script = Script::new(data);
    let (kind, step, kept) = (script.byte(), usize::from(script.byte()) + 1, script.below(512));
    let noise = script.all();
    let side = if kind & 1 == 0 { Side::Client } else { Side::Server };
    let good = good_bytes(side);
    let mut input = good[..kept.min(good.len())].to_vec();
    input.extend_from_slice(noise);
    let whole = outcome(side, &input, input.len().max(1));
    assert_eq!(whole, outcome(side, &input, step), "the pieces make a difference");
}

fn session(side: Side) -> NullSession {
    let mut next = u8::from(side == Side::Client);
    let crypto = NullCrypto::new(move |bytes| {
        for byte in bytes {
            next = next.wrapping_mul(29).wrapping_add(17);
            *byte = next;
        }
    });
    // A value below 64: initial_max_data (RFC 9000, section 18.2).
    let params = TransportParameters::read(Side::Client, &mut Cursor::new([0x04, 1, 11]));
    crypto.session(side, &params.expect("they are well-formed"))
}

/// The bytes of the other side to `side` in a handshake that succeeds.
fn good_bytes(side: Side) -> Vec<u8> {
    let (mut client, mut server) = (session(Side::Client), session(Side::Server));
    let mut to_server = flush(&mut client);
    let to_client = told(&mut server, &to_server);
    let last = told(&mut client, &to_client);
    told(&mut server, &last);
    assert!(!client.is_handshaking() && !server.is_handshaking());
    to_server.extend(last);
    if side == Side::Client { to_client } else { to_server }
}

/// The answers of a session to valid frames, each passed separately.
fn told(session: &mut NullSession, bytes: &[u8]) -> Vec<u8> {
    let mut answer = Vec::new();
    for frame in frames(bytes) {
        session.read_handshake(frame).expect("a good handshake");
        answer.extend(flush(session));
    }
    answer
}

fn flush(session: &mut NullSession) -> Vec<u8> {
    let mut out = Vec::new();
    loop {
        let before = out.len();
        if session.write_handshake(&mut out).is_none() && out.len() == before {
            return out;
        }
    }
}

/// The reaction of a session to these bytes in pieces: its answers, whether it completes, and
/// whether it fails.
fn outcome(side: Side, input: &[u8], step: usize) -> (Vec<u8>, bool, bool) {
    let mut session = session(side);
    let mut said = flush(&mut session);
    let mut failed = false;
    // The input is first split at frames, like packets of one level: there is an answer in between.
    for piece in frames(input).flat_map(|frame| frame.chunks(step)) {
        failed = session.read_handshake(piece).is_err();
        if failed {
            break;
        }
        assert!(session.received.len() <= FRAME_HEADER + MAX_BODY, "more than a frame is kept");
        said.extend(flush(&mut session));
    }
    let done = !session.is_handshaking();
    let params = session.transport_parameters().expect("it never fails");
    assert!(!done || params.is_some(), "done without the other side's parameters");
    (said, done, failed)
}

fn frames(mut rest: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let length = match rest {
            [] => return None,
            [_, _, high, low, ..] => FRAME_HEADER + usize::from(u16::from_be_bytes([*high, *low])),
            _ => rest.len(),
        };
        let (frame, more) = rest.split_at(length.min(rest.len()));
        rest = more;
        Some(frame)
    })
}
