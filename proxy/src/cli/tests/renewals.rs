//! New credentials for the same node, and mandates: a running daemon checks and stores them.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixListener;
use std::thread;

use meshport_config::{Credential, Mandate, Terms};
use meshport_state::Existing;
use rand_core::OsRng;

use super::super::renew::RenewArgs;
use super::silent::first;
use super::*;

/// As without a daemon.
fn renewed(
    state: &StateDir,
    args: &RenewArgs,
    now: UnixSeconds,
) -> Result<(Credential, Credential), Error> {
    let (former, credential) = renew::sign(state, args, now)?;
    state.store_credential(&credential, Existing::ReplaceForOwner)?;
    Ok((former, credential))
}

fn run(folder: &str) -> Result<(), Error> {
    match verb(&["renew", "--state-dir", folder]) {
        Verb::Renew(args) => renew::run(&args),
        other => panic!("{other:?}"),
    }
}

/// A node keeps its keys and name over an update; its credential must be issued again.
#[test]
fn a_credential_of_an_earlier_version_is_renewed_and_not_used() {
    let (machines, line) = Machines::with_line(&[]);
    machines.join("worker", &line, NAMED).expect("it joins");
    let (state, later) = (machines.state("worker"), NOW.saturating_add(HOUR));
    let known = state.credential().expect("loads").expect("it is there");
    let whole = known.to_bytes();
    let issued = data_encoding::BASE64URL_NOPAD.encode(&whole[..whole.len() - 64]);
    let as_before = || {
        let path = machines.path("worker").join("credential");
        fs::write(path, format!("meshport-credential-1.{issued}\n")).expect("written");
    };
    as_before();
    let refusals = [message(state.identity(NOW)), message(machines.join("worker", &line, NAMED))];
    assert!(refusals.iter().all(|text| text.contains("`meshport renew INVITE`")), "{refusals:?}");
    let Verb::Renew(args) = verb(&["renew", &line]) else { panic!("it is renew") };
    let (former, renewed) = renewed(&state, &args, later).expect("it signs");
    assert_eq!((&former, renewed.node, &renewed.name), (&known, known.node, &known.name));
    assert_eq!(state.identity(later).expect("whole").credential, renewed);
    as_before();
    let again = machines.join_at("worker", &line, FORCED, later).expect("it joins again");
    assert!(again.kept_keys && again.joined.node == known.node);
    // Its keys are not taken to another mesh.
    as_before();
    machines.init("abroad", FIRST).expect("a mesh");
    let abroad = machines.invite("abroad", HERE).expect("a line").invite;
    let moved = machines.join_at("worker", &abroad, FORCED, later).expect("asked for");
    assert!(!moved.kept_keys && moved.joined.node != known.node);
}

/// The clock was ahead when it was signed.
#[test]
fn a_credential_from_the_future_is_replaced_by_one_of_now() {
    let (machines, _) = Machines::with_line(&[]);
    let Verb::Renew(args) = verb(&["renew"]) else { panic!("it is renew") };
    let state = machines.state("first");
    renewed(&state, &args, NOW.saturating_add(400 * DAY)).expect("it signs");
    let now = NOW.saturating_add(HOUR);
    let text = message(state.identity(now));
    assert!(text.contains("is not valid before"), "{text}");
    let (_, renewed) = renewed(&state, &args, now).expect("it signs");
    assert_eq!(state.identity(now).expect("whole").credential, renewed);
}

#[test]
fn a_renewed_node_stays_the_same_node() {
    let (machines, line) = Machines::with_line(&["--credential-ttl", "20d"]);
    machines.join("second", &line, NAMED).expect("it joins");
    let later = NOW.saturating_add(HOUR);
    let renew = |machine: &str, flags: &[&str], now| {
        let Verb::Renew(args) = verb(&[&["renew"], flags].concat()) else { panic!("renew") };
        renewed(&machines.state(machine), &args, now)
    };
    let (before, after) = renew("first", &["--credential-ttl", "90d"], later).expect("it signs");
    assert_eq!(after.expires_at, later.saturating_add(90 * DAY));
    assert_eq!((before.node, &before.name, &before.roles), (after.node, &after.name, &after.roles));
    assert_eq!(machines.state("first").credential().expect("stored"), Some(after));
    // Another machine has no authority, and an invite has its own rights.
    let refusal = message(renew("second", &[], later));
    assert!(refusal.contains("renew INVITE"), "{refusal}");
    let more = [HERE, &["--role", "node,relay", "--credential-ttl", "40d"]].concat();
    let more = machines.invite("first", &more).expect("a line").invite;
    let (before, after) = renew("second", &[&more], later).expect("it is allowed");
    assert_eq!((before.node, before.record_key), (after.node, after.record_key));
    assert_eq!(after.roles.to_string(), "node,relay");
    assert_eq!(after.expires_at, later.saturating_add(40 * DAY));
    machines.state("second").identity(later).expect("it all fits");
    // A line for another site, for an operator, of another mesh, or expired.
    let elsewhere = invite_args(&[&["--site", "ber"], HERE].concat());
    let at = &elsewhere.endpoints;
    let elsewhere = invite::invite(&elsewhere, &machines.path("first"), at, &[], NOW);
    let operator = machines.invite("first", &[HERE, &["--role", "operator"]].concat());
    let (_others, foreign) = Machines::with_line(&[]);
    let lines = [elsewhere, operator].map(|it| it.expect("a line").invite);
    for line in lines.iter().chain([&foreign]) {
        assert!(renew("second", &[line], later).is_err());
    }
    assert!(renew("second", &[&more], NOW.saturating_add(2 * DAY)).is_err());
    machines.state("second").identity(later).expect("nothing was written");
}

#[test]
fn a_renewal_names_the_flags_if_the_daemon_has_another_socket() {
    let (machines, folder) = first();
    let state = machines.state("first");
    let before = state.credential().expect("whole");
    run(&folder).expect("no daemon uses the folder");
    let after = state.credential().expect("whole");
    assert_ne!(after, before);
    let _lock = state.lock().expect("it is free");
    let said = message(run(&folder));
    assert!(said.contains("the credential is unchanged"), "{said}");
    assert!(said.contains("--socket") && said.contains("--config"), "{said}");
    assert_eq!(state.credential().expect("whole"), after);
}

/// Runs a verb with a daemon that answers with this status and body. Returns whether the client
/// wrote this file, and the result.
fn answered(
    file: &str,
    [status, body]: [&str; 2],
    run: impl FnOnce(&Machines, &str) -> Result<(), Error>,
) -> (bool, Result<(), Error>) {
    let (machines, folder) = first();
    let state = machines.path("first");
    let content = || fs::read(state.join(file)).ok();
    let before = content();
    let socket = UnixListener::bind(state.join("meshport.sock")).expect("it is free");
    let length = body.len();
    let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{body}");
    let daemon = thread::spawn(move || {
        let (mut stream, _) = socket.accept().expect("the client connects");
        let mut request = [0; 4096];
        assert!(stream.read(&mut request).expect("a request") > 0);
        stream.write_all(answer.as_bytes()).expect("it waits");
        let _ = io::copy(&mut stream, &mut io::sink());
    });
    let result = run(&machines, &folder);
    daemon.join().expect("it was asked");
    (content() != before, result)
}

/// Installs a mandate for the node of this folder.
fn install(machines: &Machines, folder: &str) -> Result<(), Error> {
    let state = machines.state("first");
    let own = state.credential().expect("whole").expect("a node");
    let terms = Terms {
        issuer: own.node,
        roles: own.roles,
        site: None,
        lifetime_s: 30 * DAY,
        from: own.issued_at,
        until: own.issued_at.saturating_add(90 * DAY),
    };
    let authority = state.authority_key().expect("whole").expect("the first machine has it");
    let mandate = Mandate::create(&authority, &terms, &mut OsRng).expect("it fits");
    let file = machines.path("line");
    fs::write(&file, &*mandate.to_text().expect("it fits")).expect("written");
    let file = file.to_string_lossy();
    match verb(&["delegate", "--install", &*file, "--state-dir", folder]) {
        Verb::Delegate(args) => delegate::run(&args),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_the_daemon_refuses_is_not_stored() {
    let refusal = ["409 Conflict", r#"{"error":"it is revoked"}"#];
    let renewed = answered("credential", refusal, |_, folder| run(folder));
    for (is_written, result) in [renewed, answered("mandate", refusal, install)] {
        assert_eq!(message(result), "the daemon refused: it is revoked");
        assert!(!is_written);
    }
}

#[test]
fn what_the_daemon_accepts_is_stored_once_by_it_or_after_one_of_an_earlier_release() {
    for (key, file) in [("expires_at", "credential"), ("until", "mandate")] {
        for (stored, is_written) in [(r#","is_stored":true"#, false), ("", true)] {
            let report = format!(r#"{{"{key}":1800000000,"is_new":true{stored}}}"#);
            let (was_written, result) =
                answered(file, ["200 OK", &report], |machines, folder| match file {
                    "mandate" => install(machines, folder),
                    _ => run(folder),
                });
            result.expect("it is in use");
            assert_eq!(was_written, is_written, "{report}");
        }
    }
}
