//! A credential is about to end: the operator sees it, renews it, and no session ends.

use std::fs;
use std::time::Duration;

use meshport_config::Credential;
use meshport_tests::echo::{self, SERVICE, answers, session};
use meshport_tests::identity;
use meshport_tests::process::{meshport, run, run_ok};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};
use serde_json::Value;

const SETTLE: Duration = Duration::from_secs(40);
const DAY: u64 = 86_400;

fn verb(world: &World, node: &str, verb: &str, flags: &[&str]) -> Vec<String> {
    let state = world.at(node).state().to_string_lossy().into_owned();
    [&[verb, "--state-dir", &state], flags].concat().into_iter().map(str::to_owned).collect()
}

#[track_caller]
fn ok(world: &World, node: &str, name: &str, flags: &[&str]) -> String {
    let words = verb(world, node, name, flags);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    run_ok(&meshport().to_string_lossy(), &words)
}

/// The row of one node in another one's list.
fn row(world: &World, at: &str, name: &str) -> Value {
    let listed = ok(world, at, "credentials", &["--json", "--within", "1s"]);
    let rows: Vec<Value> = serde_json::from_str(&listed).expect("a list");
    rows.into_iter().find(|row| row["name"] == name).expect("it is known")
}

/// The whole lifetime of a node's credential in days, as another node knows it.
fn days(world: &World, at: &str, name: &str) -> u64 {
    let row = row(world, at, name);
    let time = |key: &str| row[key].as_u64().expect("a time");
    (time("expires_at") - time("issued_at")) / DAY
}

#[test]
fn credentials_are_renewed_under_open_sessions() {
    let mut world = World::new();
    let (address, _open) = echo::serve();
    let origin = NodePlan::new("cp", "fra").role(&format!("origin:{SERVICE}"));
    world.node(&origin.settings(&echo::offer(address)));
    world.node(&NodePlan::new("worker", "fra").settings(&echo::usage()));
    world.meet();
    let mut open = session(&world, "worker");
    assert_eq!(days(&world, "worker", "cp"), 365);

    // An expiring credential shows as an exit code, a word and a number.
    let words = verb(&world, "worker", "credentials", &["--within", "366d"]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let output = run(&meshport().to_string_lossy(), &words);
    assert_eq!(output.status.code(), Some(1));
    let advice = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(advice.contains("meshport renew"), "{advice}");

    // On the node with the authority's key.
    let said = ok(&world, "cp", "renew", &["--credential-ttl", "90d", "--json"]);
    let said: Value = serde_json::from_str(&said).expect("an outcome");
    assert_eq!(said["in_force"], true, "{said}");
    wait::until("the worker knows the origin's new credential", SETTLE, || {
        (days(&world, "worker", "cp") == 90).then_some(())
    });
    let stored = fs::read_to_string(world.at("cp").state().join("credential")).expect("a file");
    let stored = Credential::from_text(stored.trim()).expect("a credential");
    assert_eq!(said["expires_at"], stored.expires_at.0, "the daemon has stored it");
    assert!(answers(&mut open), "the session goes on");

    // Elsewhere, with an invite, which also adds a role. A running daemon loads the renewed
    // credential at SIGHUP.
    let line = world.invite("cp", &NodePlan::new("worker", "fra").role("relay"));
    let (state, beside) = (world.at("worker").state().to_owned(), world.path("beside"));
    run_ok("cp", &["-a", &state.to_string_lossy(), &beside.to_string_lossy()]);
    let flags = ["renew", &line, "--json", "--state-dir", &*beside.to_string_lossy()];
    let said: Value =
        serde_json::from_str(&run_ok(&meshport().to_string_lossy(), &flags)).expect("an outcome");
    assert_eq!(said["in_force"], false, "{said}");
    fs::copy(beside.join("credential"), state.join("credential")).expect("it is there");
    world.reconfigure("worker", str::to_owned);
    wait::until("the origin knows the worker's new role", SETTLE, || {
        let roles = row(&world, "cp", "worker")["roles"].to_string();
        roles.contains("relay").then_some(())
    });
    assert!(answers(&mut open), "the session goes on");
    let mut another = session(&world, "worker");
    assert!(answers(&mut another));
    let log = world.node_mut("worker").process().output();
    assert!(log.contains("this node's credential was renewed"), "{log}");
    assert!(!log.contains("member down") && !log.contains("sessions reset"), "{log}");
}

/// The status's warning of the end of the node's own credential, if any.
fn warned(world: &World, node: &str) -> Option<String> {
    let warnings = world.at(node).status()?["warnings"].as_array()?.clone();
    let mut texts = warnings.iter().filter_map(|it| it.as_str().map(str::to_owned));
    texts.find(|text| text.contains("this node's credential"))
}

#[test]
fn twenty_days_before_the_end_log_status_and_metric_say_so() {
    let mut world = World::new();
    world.node(&NodePlan::new("cp", "fra"));
    world.make(&NodePlan::new("worker", "fra"));
    let authority = world.at("cp").state().join("authority.key");
    let hours = |hours: u64| Duration::from_secs(hours * 3600);
    identity::age(world.at("worker").state(), &authority, hours(345 * 24), hours(20 * 24 + 1));
    world.start("worker");
    world.meet();

    let ends = row(&world, "worker", "worker")["expires_at"].as_u64().expect("a time");
    assert_eq!(days(&world, "worker", "worker"), 365);
    let metric = |world: &World| {
        world.at("worker").metrics().sum("meshport_credential_expiry_timestamp_seconds", "")
    };
    assert_eq!(metric(&world), ends as f64);
    let warning = warned(&world, "worker").expect("the status warns");
    let log = world.node_mut("worker").process().output();
    let lines: Vec<&str> = log.lines().filter(|it| it.contains("credential expires in")).collect();
    println!("{warning}\n{}", lines.join("\n"));
    assert!(warning.contains("expires in 20 d") && warning.contains("meshport renew"), "{warning}");
    assert_eq!(lines.len(), 1, "once a day: {log}");
    let told = lines[0].contains("WARN") && lines[0].contains("expires in 20 d");
    assert!(told && lines[0].contains("meshport renew"), "{}", lines[0]);
    // No warning for credentials with a year left.
    assert_eq!(warned(&world, "cp"), None);
    assert!(!world.node_mut("cp").process().output().contains("credential expires in"));

    // Its advice works.
    let flags = ["--authority", &*authority.to_string_lossy(), "--credential-ttl", "90d"];
    ok(&world, "worker", "renew", &flags);
    wait::until("nothing is warned of", SETTLE, || {
        warned(&world, "worker").is_none().then_some(())
    });
    let later = metric(&world) - ends as f64;
    assert!(later > 69.0 * DAY as f64, "{later} s later");
}
