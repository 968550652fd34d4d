//! The wall clock of a daemon is wrong for a while: sessions continue, and the node is back once it
//! is right.

use meshport_tests::process::faketime;

use super::*;
use crate::issuers::{delegate, expires_at};

/// How long a clock that is a day behind is watched: some rounds of gossip and of probes.
const BACK: Duration = Duration::from_secs(20);
/// The same until all sessions of the mesh have been renewed, for which two minutes are usual.
const RENEWED: Duration = Duration::from_secs(135);
/// How long a clock must be ahead before it is believed.
const BELIEVED: Duration = Duration::from_secs(30);
/// How often an issuer looks at the clock.
const LOOKS: Duration = Duration::from_secs(30);
/// How soon a node is back once its clock is right.
const SOON: Duration = Duration::from_secs(10);
/// Lines of the file of secrets during an overlap: the statement, both, the end.
const TWO_SECRETS: usize = 4;

/// The wall clock of one node: a file.
struct Clock(PathBuf);

impl Clock {
    /// Restarts a node with a clock that is wrong by this much.
    fn of(world: &mut World, node: &str, offset: &str) -> (Self, Process) {
        let clock = Self(world.path("clock"));
        clock.set(offset);
        world.kill(node);
        // The library looks at its file each time, which the sandbox forbids.
        let config = world.path(&format!("{node}.toml"));
        let text = fs::read_to_string(&config).expect("the node has settings");
        fs::write(&config, format!("sandbox = false\n{text}")).expect("the folder can be written");
        let process = clock.start(world, node);
        (clock, process)
    }

    fn set(&self, offset: &str) {
        fs::write(&self.0, format!("{offset}\n")).expect("the world's folder can be written");
    }

    /// A command of a node by this clock.
    fn command(&self, world: &World, node: &str, verb: &str) -> Command {
        let mut command = Command::new(meshport());
        command.arg(verb).arg("--config").arg(world.path(&format!("{node}.toml")));
        command.env("LD_PRELOAD", faketime()).env("FAKETIME_TIMESTAMP_FILE", &self.0);
        command.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        command
    }

    fn start(&self, world: &World, node: &str) -> Process {
        let mut command = self.command(world, node, "run");
        Process::start(node, &mut command, &world.path(&format!("{node}-clock.log")))
    }
}

#[test]
#[ignore = "needs the library of faketime: ./tests/run e2e"]
fn a_clock_before_all_credentials_cuts_nobody_and_is_named_at_the_next_start() {
    let mut world = two_nodes_with_an_echo();
    let (clock, daemon) = Clock::of(&mut world, "worker-b", "+0d");
    let local = world.at("worker-b").local;
    serves_again(&world, local);
    let mut open = session(&world, "worker-b");
    // All credentials of this mesh are minutes old.
    clock.set("-1d");
    let mut next = wait::now();
    wait::throughout("sessions go on, and new ones come about", BACK, || {
        wait::pace(&mut next, Duration::from_millis(200));
        let served = world.curl().get(local, "/version").is_ok_and(|it| it.status == 200);
        served && answers(&mut open) && world.at("cp-a").alive() == 2
    });
    let warnings = || world.at("worker-b").status().map(|it| it["warnings"].to_string());
    let said = warnings().expect("it answers");
    println!("{said}");
    assert!(said.contains("this machine's clock is wrong"), "{said}");
    clock.set("+0d");
    wait::until("the clock is not blamed any more", SOON, || (warnings()? == "[]").then_some(()));
    clock.set("-1d");
    drop(daemon);

    // A start cannot know that the clock was right before.
    let mut daemon = clock.start(&world, "worker-b");
    assert_eq!(daemon.ended(SETTLE).code(), Some(4));
    let output = daemon.output();
    // The library of faketime may print after it.
    let said = output.lines().rfind(|it| it.starts_with("meshport: ")).expect("it says why");
    println!("{said}");
    for words in ["worker-b/credential: is not valid before", "Correct this machine's clock"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    clock.set("+0d");
    let _daemon = clock.start(&world, "worker-b");
    serves_again(&world, local);
    assert_eq!(warnings().as_deref(), Some("[]"));
}

#[test]
#[ignore = "needs the library of faketime: ./tests/run e2e"]
fn a_wall_clock_that_jumps_a_day_either_way_stops_nothing() {
    let mut world = two_nodes();
    // Two days after the credentials were made, so that they are valid a day earlier as well.
    let (clock, daemon) = Clock::of(&mut world, "worker-b", "+2d");
    let local = world.at("worker-b").local;
    serves_again(&world, local);
    let load = load(&world);
    for jump in ["+3d", "+1d", "+2d"] {
        clock.set(jump);
        load.goes_on(2 * SOME, SETTLE);
        // A jump ahead is not believed at once.
        let mut next = wait::now();
        wait::throughout("it answers", BELIEVED + Duration::from_secs(3), || {
            wait::pace(&mut next, Duration::from_millis(200));
            world.at("worker-b").status().is_some()
        });
    }
    unharmed(load);
    // Restarted with a clock that is a day behind: everything it signs and sends is older than
    // before.
    clock.set("+1d");
    daemon.kill();
    let daemon = clock.start(&world, "worker-b");
    serves_again(&world, local);
    wait::until("it is a member again", SETTLE, || {
        (world.at("cp-a").alive() == 2 && world.at("worker-b").alive() == 2).then_some(())
    });
    drop(daemon);
}

#[test]
#[ignore = "needs the library of faketime: ./tests/run e2e"]
fn a_clock_that_was_400_days_ahead_for_a_minute_isolates_nobody() {
    let mut world = two_nodes();
    let (clock, _daemon) = Clock::of(&mut world, "worker-b", "+0d");
    let local = world.at("worker-b").local;
    serves_again(&world, local);
    let config = world.path("cp-a.toml");
    run_ok(
        &meshport().to_string_lossy(),
        &["rotate-secret", "--config", &config.to_string_lossy()],
    );
    let secrets = || fs::read_to_string(world.at("worker-b").state().join("mesh.secret")).ok();
    let both = wait::until("it has the new secret and the former", SETTLE, || {
        secrets().filter(|text| text.lines().count() == TWO_SECRETS)
    });
    clock.set("+400d");
    wait::until("by its clock all others have ended", BELIEVED + SETTLE, || {
        let found = world.at("worker-b").status()?["findings"].to_string();
        assert!(!found.contains("MP203"), "a renewal would be wrong: {found}");
        (world.at("worker-b").alive() == 1).then_some(())
    });
    let mut next = wait::now();
    wait::throughout("it is alone", BACK, || {
        wait::pace(&mut next, Duration::from_secs(1));
        world.at("worker-b").alive() == 1
    });
    let status = world.at("worker-b").status().expect("it answers");
    let found = status["findings"].as_array().expect("findings");
    println!("{found:?}");
    let ids: Vec<_> = found.iter().map(|it| it["id"].as_str().unwrap_or_default()).collect();
    assert_eq!(ids, ["MP103"], "the clock alone is accused");
    // What it signs now would outlast the mistake.
    let authority = world.at("cp-a").state().join("authority.key");
    for verb in ["renew", "rotate-key"] {
        let mut command = clock.command(&world, "worker-b", verb);
        let output = command.arg("--authority").arg(&authority).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr);
        println!("{said}");
        assert!(!output.status.success() && said.contains("clock jumped ahead by 400 d"), "{said}");
    }
    clock.set("+0d");
    let begun = wait::now();
    wait::until("it serves, and both know each other", SOON, || {
        let served = world.curl().get(local, "/version").is_ok_and(|it| it.status == 200);
        (served && world.at("cp-a").alive() == 2 && world.at("worker-b").alive() == 2).then_some(())
    });
    println!("back {:?} after the clock is right", begun.elapsed());
    assert_eq!(secrets(), Some(both), "the former secret was erased long before its end");
}

#[test]
#[ignore = "needs the library of faketime: ./tests/run e2e"]
fn a_clock_that_was_400_days_behind_while_sessions_are_renewed_cuts_nobody() {
    let mut world = two_nodes_with_an_echo();
    let (clock, daemon) = Clock::of(&mut world, "worker-b", "+0d");
    let local = world.at("worker-b").local;
    serves_again(&world, local);
    let mut open = session(&world, "worker-b");
    let load = load(&world);
    for (offset, time) in [("-400d", RENEWED), ("+0d", BELIEVED + SOON)] {
        clock.set(offset);
        let mut next = wait::now();
        wait::throughout(&format!("the session goes on at {offset}"), time, || {
            wait::pace(&mut next, Duration::from_millis(200));
            let alive = [world.at("cp-a").alive(), world.at("worker-b").alive()];
            answers(&mut open) && alive == [2, 2]
        });
    }
    unharmed(load);
    assert!(!daemon.output().contains("peer refused"), "a peer that was admitted is refused");
}

#[test]
#[ignore = "needs the library of faketime: ./tests/run e2e"]
fn a_clock_that_is_400_days_ahead_for_20_s_cuts_nothing() {
    let mut world = two_nodes_with_an_echo();
    let (clock, _daemon) = Clock::of(&mut world, "cp-a", "+0d");
    let local = world.at("worker-b").local;
    serves_again(&world, local);
    let mut open = session(&world, "worker-b");
    let load = load(&world);
    clock.set("+400d");
    // All open sessions are judged anew now, as each is from time to time.
    let config = world.at("cp-a").config();
    let text = fs::read_to_string(config).expect("the node has settings");
    fs::write(config, format!("{text}allow = [\"site:b\"]\n")).expect("the folder can be written");
    let said = world.at("cp-a").ask("reload", &[]);
    assert!(said.contains("allow"), "{said}");
    let mut next = wait::now();
    wait::throughout("the session goes on", BACK, || {
        wait::pace(&mut next, Duration::from_millis(200));
        answers(&mut open) && world.at("cp-a").alive() == 2
    });
    clock.set("+0d");
    unharmed(load);
    assert!(answers(&mut open), "the session ended later");
}

#[test]
#[ignore = "needs the library of faketime: ./tests/run e2e"]
fn an_issuer_with_a_credential_from_the_future_returns_to_the_one_before() {
    let mut world = World::new();
    world.node(&NodePlan::new("cp-a", "a"));
    world.node(&NodePlan::new("cp-b", "b").role("issuer").lifetime("24m"));
    world.meet();
    let flags = ["--credential-ttl", "24m", "--role", "node", "--role", "issuer"];
    delegate(&world, "cp-a", "cp-b", &flags);
    let (clock, daemon) = Clock::of(&mut world, "cp-b", "+0d");
    let both = |world: &World| world.at("cp-a").alive() == 2 && world.at("cp-b").alive() == 2;
    wait::until("both know each other", SETTLE, || both(&world).then_some(()));
    let first = expires_at(&world, "cp-b");
    // Seven minutes before the end by its clock.
    clock.set("+17m");
    let future = wait::until("it signs for itself", BELIEVED + LOOKS + SETTLE, || {
        Some(expires_at(&world, "cp-b")).filter(|it| *it > first)
    });
    clock.set("+0d");
    wait::until("it uses the one before", SOON, || {
        (expires_at(&world, "cp-b") == first).then_some(())
    });
    said(&daemon, "the current credential is not valid yet by this machine's clock");
    wait::until("both know each other", SOON, || both(&world).then_some(()));
    // A restart changes nothing, and the later one counts once it has begun.
    drop(daemon);
    let _daemon = clock.start(&world, "cp-b");
    wait::until("it uses the one before", SETTLE, || {
        (world.at("cp-b").status()?["credential_expires_at"] == first).then_some(())
    });
    clock.set("+17m");
    wait::until("it uses the one that has begun", BELIEVED + SETTLE, || {
        (expires_at(&world, "cp-b") == future).then_some(())
    });
}
