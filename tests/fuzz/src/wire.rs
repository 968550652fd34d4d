//! Input from the network: datagrams, inner packets, streams, gossip.

use meshport_config::{Issued, ProxyHeader};
use meshport_core::expose::header::{self, Ends, MAX_HEADER_BYTES as MAX_PROXY_BYTES, Reading};
use meshport_core::health::{FailingChecks, MAX_CHECK_BYTES, MAX_CHECKS};
use meshport_core::inquiry::{Question, Testimony};
use meshport_core::remote_view;
use meshport_core::renewal::{Reply, Request};
use meshport_core::wayback::call::Call;
use meshport_core::wayback::head;
use meshport_core::wayback::nodes::{MAX_NODES, Nodes};
use meshport_core::wire::{Header, MAX_DEADLINE, MAX_HEADER_BYTES};

use crate::start;

/// Datagrams at the UDP socket: an attacker on the network against a node with an honest peer.
pub fn outer(data: &[u8]) {
    meshport_mesh::fuzzing::outer(start(), data);
}

/// Compares inner packets with a second parser of the format; also control messages.
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
/// reading of the output finds no failing checks.
pub fn checks(data: &[u8]) {
    let checks = FailingChecks::parse(data);
    let text = checks.to_string();
    assert!(text.len() <= MAX_CHECKS * (MAX_CHECK_BYTES + 2) + " and 16384 more".len());
    assert!(text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' '), "{text:?}");
    assert_eq!(checks.is_empty(), text.is_empty());
    assert!(checks.count() <= data.len() / "[-]x failed".len());
    assert!(FailingChecks::parse(text.as_bytes()).is_empty(), "{text:?}");
}

/// A client's TLS hello: how its bytes are split makes no difference. The first four bytes are the
/// lengths of the pieces.
pub fn hello(data: &[u8]) {
    let Some((lengths, bytes)) = data.split_first_chunk::<4>() else { return };
    let pieces = lengths.map(usize::from);
    let (read, _) = meshport_daemon::fuzzing::client_hello(bytes, &pieces);
    let (again, end) = meshport_daemon::fuzzing::client_hello(bytes, &[1]);
    if read.starts_with("Unreadable") {
        // The error may lie in the bytes after a piece.
        assert!(!again.starts_with("Plain"), "{read}, but byte by byte {again}");
        return;
    }
    assert_eq!(read, again);
    let (once_more, _) = meshport_daemon::fuzzing::client_hello(&bytes[..end], &[1]);
    assert_eq!(once_more, again, "what follows changes it");
}

/// A balancer's header: more bytes never change it, and it reads the same after it is written
/// again.
pub fn proxy(data: &[u8]) {
    let reading = header::read(data);
    let mut first = Reading::Partial;
    for length in 0..=data.len().min(MAX_PROXY_BYTES + 1) {
        first = header::read(&data[..length]);
        if first != Reading::Partial {
            break;
        }
    }
    if data.len() <= MAX_PROXY_BYTES || first != Reading::Partial {
        assert_eq!(first, reading, "what follows changes the header");
    }
    let Reading::Whole(read) = reading else { return };
    assert!(read.bytes <= data.len() && read.bytes <= MAX_PROXY_BYTES);
    let Some(Ends { client, local }) = read.ends else { return };
    for version in [ProxyHeader::V1, ProxyHeader::V2] {
        let bytes = header::write(version, Ends { client, local });
        let Reading::Whole(again) = header::read(&bytes) else { panic!("it is not read again") };
        let same = client.is_ipv4() == local.is_ipv4();
        assert_eq!((again.bytes, again.ends), (bytes.len(), read.ends.filter(|_| same)));
    }
}

/// The header of a proxied stream, byte by byte: the first answer that is not "more" stays the
/// same however much follows. Questions and answers of members, requests for renewals and views.
pub fn stream(data: &[u8]) {
    inquiry(data);
    renewal(data);
    way_back(data);
    view(data);
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

/// A stream of the way back and an apiserver's request: they read the same when written again, and
/// every refusal is one line.
fn way_back(data: &[u8]) {
    if let Ok(Some((call, used))) = Call::decode(data) {
        assert_eq!(Call::decode(&data[..used]), Ok(Some((call.clone(), used))));
        let again = call.encode();
        assert!(again.len() <= used, "written again it is longer");
        assert_eq!(Call::decode(&again), Ok(Some((call, again.len()))));
    }
    for head in [data.to_vec(), [&b"CONNECT "[..], data].concat()] {
        match head::read(&head) {
            Ok(Some(target)) => {
                let again = format!("CONNECT {target} HTTP/1.1\r\n\r\n");
                assert_eq!(head::read(again.as_bytes()), Ok(Some(target)));
            }
            Ok(None) => assert!(head.len() < head::MAX_HEAD_BYTES, "a request without an end"),
            Err(refused) => {
                let answer = String::from_utf8(refused.answer()).expect("it is ASCII");
                assert_eq!(answer.matches("\r\n\r\n").count(), 1, "{answer:?}");
            }
        }
    }
    let nodes = Nodes::from_bytes(data);
    assert!(nodes.is_none_or(|nodes| nodes.len() <= MAX_NODES));
}

/// A request for a view and its reply mean the same when they are written again.
fn view(data: &[u8]) {
    if let Ok(Some(request)) = remote_view::Request::decode(data) {
        assert_eq!(remote_view::Request::decode(&request.encode()), Ok(Some(request)));
    }
    if let Ok(Some(reply)) = remote_view::Reply::decode(data) {
        let again = reply.encode().expect("what was read is short enough");
        assert_eq!(remote_view::Reply::decode(&again), Ok(Some(reply)));
    }
}

/// A question of a member reads the same however much follows; so does an answer, which has nothing
/// that a terminal would obey.
fn inquiry(data: &[u8]) {
    if let Ok(Some((question, used))) = Question::decode(data) {
        assert_eq!(Question::decode(&data[..used]), Ok(Some((question.clone(), used))));
        let again = question.encode();
        assert!(again.len() <= used, "written again it is longer");
        assert_eq!(Question::decode(&again), Ok(Some((question, again.len()))));
    }
    if let Ok(Some(testimony)) = Testimony::decode(data) {
        assert!(testimony.version.bytes().all(|byte| (0x20..0x7f).contains(&byte)));
        assert_eq!(Testimony::decode(&testimony.encode()), Ok(Some(testimony)));
    }
}

/// A request for a renewal and its reply mean the same when they are written again; an issued
/// credential has one byte form.
fn renewal(data: &[u8]) {
    if let Ok(Some(request)) = Request::decode(data) {
        assert_eq!(Request::decode(&request.encode()), Ok(Some(request)));
    }
    if let Ok(Some(reply)) = Reply::decode(data) {
        let again = reply.encode();
        assert!(again.len() <= Reply::MAX_BYTES, "{} bytes", again.len());
        if let Reply(Ok(bytes)) = &reply
            && let Ok(issued) = Issued::from_bytes(bytes)
        {
            assert_eq!(&issued.to_bytes(), bytes, "what was issued has two byte forms");
        }
        assert_eq!(Reply::decode(&again), Ok(Some(reply)));
    }
}
