//! What comes over the wire: datagrams, inner packets, streams, gossip.

use meshport_core::health::{FailingChecks, MAX_CHECK_BYTES, MAX_CHECKS};
use meshport_core::wire::{Header, MAX_DEADLINE, MAX_HEADER_BYTES};

use crate::start;

/// Datagrams at the UDP socket: an attacker on the network against a node with an honest peer.
pub fn outer(data: &[u8]) {
    meshport_mesh::fuzzing::outer(start(), data);
}

/// Inner packets against a second reading of the format; control messages.
pub fn inner(data: &[u8]) {
    meshport_mesh::fuzzing::inner_packet(data);
}

/// The handshake of QUIC without keys, whole and in pieces.
pub fn handshake(data: &[u8]) {
    meshport_mesh::fuzzing::null_handshake(data);
}

/// Messages, records and saved directories of discovery: read, written, read again.
pub fn gossip(data: &[u8]) {
    meshport_discovery::fuzzing::message(start(), data);
}

/// An admitted member that sends and signs anything, against one that is honest.
pub fn discovery(data: &[u8]) {
    meshport_discovery::fuzzing::member(start(), data);
}

/// The body of an apiserver's failing answer: names and text are plain and short, and a second
/// reading of what was said finds nothing that fails.
pub fn checks(data: &[u8]) {
    let checks = FailingChecks::parse(data);
    let text = checks.to_string();
    assert!(text.len() <= MAX_CHECKS * (MAX_CHECK_BYTES + 2) + " and 16384 more".len());
    assert!(text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' '), "{text:?}");
    assert_eq!(checks.is_empty(), text.is_empty());
    assert!(checks.count() <= data.len() / "[-]x failed".len());
    assert!(FailingChecks::parse(text.as_bytes()).is_empty(), "{text:?}");
}

/// The header of a proxied stream, byte by byte: the first answer that is not "more" stays the
/// same however much follows.
pub fn stream(data: &[u8]) {
    let mut first = None;
    for length in 0..=data.len().min(MAX_HEADER_BYTES + 1) {
        let outcome = Header::decode(&data[..length]);
        if outcome != Ok(None) {
            first = Some((length, outcome));
            break;
        }
    }
    let Some((length, outcome)) = first else {
        assert!(data.len() <= MAX_HEADER_BYTES, "a header without an end");
        assert_eq!(Header::decode(data), Ok(None));
        return;
    };
    assert_eq!(Header::decode(data), outcome, "what follows changes the header");
    let Ok(Some((header, used))) = outcome else { return };
    assert_eq!(used, length);
    assert!(header.deadline() <= MAX_DEADLINE);
    let again = header.encode();
    assert!(again.len() <= used, "written again it is longer");
    assert_eq!(Header::decode(&again), Ok(Some((header, again.len()))));
}
