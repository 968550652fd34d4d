//! A machine is stolen: the operator revokes its node, which is locked out at once and permanently.

use std::fs;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use meshport_demo::wan::Cut;
use meshport_mesh::MeshCount;
use meshport_tests::echo::{self, SERVICE, answers, session};
use meshport_tests::process::{meshport, run, run_ok};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};
use serde_json::Value;

const SETTLE: Duration = Duration::from_secs(40);
/// Time from the end of the command to that of the revoked node's sessions on another node: one
/// second, and what a busy machine adds. Without a revocation they would last.
const CUT: Duration = Duration::from_secs(3);
/// Time from the command until the sessions of the revoked machine's own clients end, and then its
/// daemon; a drain takes 10 s.
const RESET: Duration = Duration::from_secs(3);
/// How long the test watches that the node does not return.
const WATCHED: Duration = Duration::from_secs(15);
/// All nodes but the stolen one.
const OTHERS: [&str; 4] = ["cp", "worker-1", "worker-2", "worker-3"];

/// Five nodes, the first with the authority's key and the service.
fn world() -> (World, Arc<AtomicUsize>) {
    let mut world = World::new();
    let (address, open) = echo::serve();
    let origin = NodePlan::new("cp", "fra").role(&format!("origin:{SERVICE}"));
    world.node(&origin.settings(&echo::offer(address)));
    let listen = echo::usage();
    for name in ["stolen", "worker-1", "worker-2", "worker-3"] {
        world.node(&NodePlan::new(name, "fra").settings(&listen));
    }
    world.meet();
    (world, open)
}

/// Runs `meshport revoke` on a node's machine.
#[track_caller]
fn revoke(world: &World, node: &str, words: &[&str]) -> String {
    let state = world.at(node).state().to_string_lossy().into_owned();
    let words = [&["revoke"], words, &["--state-dir", &state]].concat();
    run_ok(&meshport().to_string_lossy(), &words)
}

/// Waits until all of these have the revocation on disk.
#[track_caller]
fn kept(world: &World, nodes: &[&str]) {
    wait::until("all others know", SETTLE, || {
        let kept = |name: &str| world.at(name).state().join("revocations").exists();
        nodes.iter().all(|it| kept(it)).then_some(())
    });
}

#[test]
fn a_stolen_node_is_cut_off_at_once_and_stays_out() {
    let (mut world, open) = world();
    let mut stays = session(&world, "worker-1");
    let _theirs = [session(&world, "stolen"), session(&world, "stolen")];
    assert_eq!(open.load(Ordering::SeqCst), 3);

    // Stopping the process does not help it, since the other side ends the sessions.
    world.node_mut("stolen").process().signal("STOP");
    // With the authority's key elsewhere no daemon is informed directly. The line is given to a
    // daemon without a part in these sessions, so only its messages to the others can cut them.
    let line = revoke(&world, "cp", &["stolen", "--print"]);
    assert_eq!(open.load(Ordering::SeqCst), 3, "printing the line changes nothing");
    let begun = wait::now();
    let said = revoke(&world, "worker-3", &["--import", &line]);
    println!("{}", said.trim_end());
    assert!(said.contains("one member is shut out"), "{said}");
    wait::until("its sessions end on the origin", CUT, || {
        (open.load(Ordering::SeqCst) == 1).then_some(())
    });
    println!("its sessions ended on another node {:?} after the command began", begun.elapsed());
    kept(&world, &OTHERS);
    println!("all others have it on disk {:?} after the command began", begun.elapsed());
    assert!(answers(&mut stays), "the others' sessions stay");

    // When it resumes, it learns of the revocation and ends, and does not start again.
    let stolen = world.node_mut("stolen");
    stolen.process().signal("CONT");
    let status = stolen.process().ended(SETTLE);
    let text = stolen.process().output();
    assert!(!status.success() && text.contains("revoked"), "{status}: {text}");
    world.spawn("stolen");
    assert_eq!(world.node_mut("stolen").process().ended(SETTLE).code(), Some(4));

    // Without its saved revocation it starts, and no node talks to it.
    fs::remove_file(world.at("stolen").state().join("revocations")).expect("it kept it");
    world.start("stolen");
    wait::throughout("the others are four", WATCHED, || {
        OTHERS.iter().all(|it| world.at(it).alive() == 4)
    });
    assert!(answers(&mut stays));
}

#[test]
fn an_offline_authority_signs_and_a_node_spreads() {
    let (world, _open) = world();
    let binary = meshport().to_string_lossy().into_owned();
    let cp = world.at("cp").state().to_string_lossy().into_owned();
    let leaked = world.invite("cp", &NodePlan::new("x", "fra"));
    let line = run_ok(&binary, &["revoke", &leaked, "--print", "--state-dir", &cp]);
    assert!(line.starts_with("meshport-revocation-1."), "{line}");
    let worker = world.at("worker-2").state().to_string_lossy().into_owned();
    let said = run_ok(&binary, &["revoke", "--import", &line, "--state-dir", &worker]);
    assert!(said.contains("no current member is affected"), "{said}");
    let again = run_ok(&binary, &["revoke", "--import", &line, "--state-dir", &worker]);
    assert!(again.contains("already revoked"), "{again}");
    wait::until("the first node knows", SETTLE, || {
        world.at("cp").state().join("revocations").exists().then_some(())
    });
    // A worker has no authority to revoke with.
    let refused = run(&binary, &["revoke", "worker-1", "--state-dir", &worker]);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains("--authority"), "{text}");

    // A user who names a previous key of a node is informed that this revokes nothing.
    let key = world.at("cp").state().join("authority.key").to_string_lossy().into_owned();
    let state = world.at("worker-1").state().to_string_lossy().into_owned();
    let rotate = ["rotate-key", "--json", "--authority", &key, "--state-dir", &state];
    let said: Value = serde_json::from_str(&run_ok(&binary, &rotate)).expect("an outcome");
    let [former, new] =
        [&said["former"]["node"], &said["node"]].map(|it| it.as_str().expect("a node"));
    let known = ["credentials", "--within", "1s", "--json", "--state-dir", &cp];
    wait::until("the first node knows the new key", SETTLE, || {
        let rows: Value = serde_json::from_str(&run_ok(&binary, &known)).ok()?;
        rows.as_array()?.iter().any(|row| row["successor"] == new).then_some(())
    });
    let said = revoke(&world, "cp", &[former]);
    let advice = format!("meshport revoke {new}");
    assert!(said.contains("a node that is not revoked") && said.contains(&advice), "{said}");
    let said = revoke(&world, "cp", &[new]);
    assert!(said.contains(": revoked;") && !said.contains("continues"), "{said}");
    // Again by its short name and by that of before, which `credentials` shows.
    for name in [&new[..8], "worker-1"] {
        assert!(revoke(&world, "cp", &[name]).contains("already revoked"), "{name}");
    }
    let rows: Value = serde_json::from_str(&run_ok(&binary, &known)).expect("rows");
    let row = rows.as_array().and_then(|rows| rows.iter().find(|row| row["node"] == new));
    assert_eq!(row.map(|row| &row["name"]), Some(&"worker-1".into()), "{rows}");
    let refused = run(&binary, &["revoke", "worker-99", "--state-dir", &cp]);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(text.contains("no node is named worker-99; did you mean"), "{text}");
}

/// Only its credential says that a node joined with a certain invite.
#[test]
fn a_leaked_invite_takes_the_sessions_of_its_nodes_along() {
    let (mut world, open) = world();
    let leaked = world.invites()[0].clone();
    let mut stays = session(&world, "worker-1");
    let _theirs = session(&world, "stolen");
    assert_eq!(open.load(Ordering::SeqCst), 2);
    let cp = world.at("cp").state().to_string_lossy().into_owned();
    let refused = run(&meshport().to_string_lossy(), &["revoke", &leaked, "--state-dir", &cp]);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains("stolen joined with this"), "{text}");
    // The machine that printed the invite may not know its nodes; a node that does also asks.
    let line = revoke(&world, "cp", &[&leaked, "--print"]);
    let worker = world.at("worker-3").state().to_string_lossy().into_owned();
    let import = ["revoke", "--import", &line, "--state-dir", &worker];
    let refused = run(&meshport().to_string_lossy(), &import);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains("stolen joined with this"), "{text}");
    assert_eq!(open.load(Ordering::SeqCst), 2, "nothing has changed");

    world.node_mut("stolen").process().signal("STOP");
    let begun = wait::now();
    let said = revoke(&world, "worker-3", &["--import", &line, "--with-nodes"]);
    assert!(said.contains("invite") && said.contains("one member is shut out"), "{said}");
    wait::until("its sessions end on the origin", CUT, || {
        (open.load(Ordering::SeqCst) == 1).then_some(())
    });
    println!("its session ended {:?} after the command began", begun.elapsed());
    kept(&world, &OTHERS);
    assert!(answers(&mut stays), "the others' sessions stay");

    let stolen = world.node_mut("stolen");
    stolen.process().signal("CONT");
    let status = stolen.process().ended(SETTLE);
    assert_eq!(status.code(), Some(4), "{}", stolen.process().output());
    // Without its saved revocation it starts and sends handshakes. A restarted origin knows only
    // the list of revocations and sees the credential once.
    fs::remove_file(world.at("stolen").state().join("revocations")).expect("it kept it");
    world.kill("cp");
    world.start("cp");
    world.start("stolen");
    wait::until("the origin drops its handshakes unanswered", SETTLE, || {
        let dropped = world.at("cp").metrics().count(MeshCount::DroppedRevoked);
        (dropped > 0.0).then_some(())
    });
    let page = world.at("cp").metrics();
    assert_eq!(page.count(MeshCount::PeersRevoked), 1.0);
    let log = world.node_mut("cp").process().output();
    assert!(log.contains("unproven sender claims to be this node, whose invite"), "{log}");
    wait::throughout("the others are four", WATCHED, || {
        OTHERS.iter().all(|it| world.at(it).alive() == 4)
    });
}

/// The relay's knowledge and reaction do not matter: here it is stopped.
#[test]
fn sessions_that_a_relay_carries_end_at_both_ends_without_it() {
    let mut world = World::new();
    for (one, other) in [("a", "b"), ("a", "c"), ("b", "c")] {
        world.distance(one, other, Duration::from_millis(4));
    }
    let (address, open) = echo::serve();
    let origin = NodePlan::new("cp", "b").role(&format!("origin:{SERVICE}"));
    world.node(&origin.settings(&echo::offer(address)));
    world.node(&NodePlan::new("relay", "c").role("relay").settings(&echo::usage()));
    for name in ["worker-1", "worker-2"] {
        world.node(&NodePlan::new(name, "a").settings(&echo::usage()));
    }
    world.meet();
    wait::until("both workers know the way around", SETTLE, || {
        let knows = |name: &str| {
            let told = world.at(name).explain(&["--service", SERVICE, "--json"]);
            let told: Value = serde_json::from_str(&told).ok()?;
            let relay = &told[0]["candidates"][0]["relays"][0];
            (relay["name"] == "relay").then_some(())
        };
        knows("worker-1").and_then(|()| knows("worker-2"))
    });
    world.shaper().set_down(Cut::Between("a".to_owned(), "b".to_owned()), true);
    let _first = session(&world, "worker-1");
    let mut second = session(&world, "worker-2");
    assert_eq!(open.load(Ordering::SeqCst), 2);

    // The origin knows that a worker is revoked.
    world.node_mut("relay").process().signal("STOP");
    let begun = wait::now();
    revoke(&world, "cp", &["worker-1"]);
    wait::until("its session ends on the origin", CUT, || {
        (open.load(Ordering::SeqCst) == 1).then_some(())
    });
    println!("a carried session ended on the origin after {:?}", begun.elapsed());
    world.node_mut("relay").process().signal("CONT");
    assert!(answers(&mut second), "the other's session stays");

    // A worker knows that the origin is revoked.
    let key = world.at("cp").state().join("authority.key").to_string_lossy().into_owned();
    let line = revoke(&world, "worker-2", &["cp", "--print", "--authority", &key]);
    assert!(answers(&mut second));
    let resets = |world: &mut World| {
        world.node_mut("worker-2").process().output().matches("sessions reset").count()
    };
    let before = resets(&mut world);
    world.node_mut("relay").process().signal("STOP");
    let begun = wait::now();
    second.set_read_timeout(Some(CUT)).expect("a socket");
    revoke(&world, "worker-2", &["--import", &line]);
    let end = second.read(&mut [0]).expect_err("it sends nothing by itself");
    assert_eq!(end.kind(), std::io::ErrorKind::ConnectionReset, "after {:?}", begun.elapsed());
    println!("a carried session ended at its client after {:?}", begun.elapsed());
    assert_eq!(resets(&mut world), before, "nothing else has ended it");
    world.node_mut("relay").process().signal("CONT");
}

/// A long session of a revoked machine's own client does not hang until its daemon has drained.
#[test]
fn on_a_revoked_machine_its_own_clients_are_reset_at_once() {
    let (mut world, _open) = world();
    let mut open = session(&world, "stolen");
    open.set_read_timeout(Some(SETTLE)).expect("a time that is not zero");
    let begun = wait::now();
    revoke(&world, "cp", &["stolen"]);
    let ended = open.read(&mut [0]);
    println!("its client's session ended after {:?}: {ended:?}", begun.elapsed());
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    assert!(begun.elapsed() < RESET, "{:?}", begun.elapsed());
    let status = world.node_mut("stolen").process().ended(RESET);
    assert!(!status.success(), "{status}");
}
