//! The two programs, and a mesh that is upgraded node by node and back.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use meshport_discovery::Count;
use meshport_mesh::MeshCount;
use meshport_tests::echo::{self, SERVICE, answers, session};
use meshport_tests::process::{meshport, run_ok};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};

const SETTLE: Duration = Duration::from_secs(40);

/// One of the two versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Previous,
    Current,
}

pub(crate) fn program(version: Version) -> &'static Path {
    static PREVIOUS: OnceLock<PathBuf> = OnceLock::new();
    match version {
        Version::Current => meshport(),
        Version::Previous => PREVIOUS.get_or_init(|| {
            let path = std::env::var_os("MESHPORT_PREVIOUS_BIN");
            path.expect("MESHPORT_PREVIOUS_BIN names the previous release's program").into()
        }),
    }
}

/// A verb of this version on the state folder of a node.
#[track_caller]
pub(crate) fn verb(world: &World, node: &str, version: Version, words: &[&str]) -> String {
    let state = world.at(node).state().to_string_lossy().into_owned();
    let all = [words, &["--state-dir", &state]].concat();
    run_ok(&program(version).to_string_lossy(), &all)
}

/// Checks that every node of either version could read everything that other nodes sent. Records
/// that arrive before their credential are rejected in any mesh; the log reports unreadable ones.
#[track_caller]
pub(crate) fn nobody_was_misread(world: &mut World, names: &[&str]) {
    const OF_MESH: [MeshCount; 3] = [
        MeshCount::DroppedControl,
        MeshCount::DroppedUnknownControl,
        MeshCount::DroppedInnerMalformed,
    ];
    const OF_DISCOVERY: [Count; 5] = [
        Count::DroppedMalformed,
        Count::DroppedVersion,
        Count::DroppedUnknownKind,
        Count::DroppedSwim,
        Count::RejectedCredentials,
    ];
    // The same on the previous release's page.
    const EARLIER: [&str; 6] = [
        "dropped_control",
        "dropped_inner_malformed",
        "dropped_malformed",
        "dropped_version",
        "dropped_swim",
        "rejected_credentials",
    ];
    for name in names {
        let page = world.at(name).metrics();
        for metric in ["meshport_mesh_events_total", "meshport_discovery_events_total"] {
            assert!(page.sum(metric, "") > 0.0, "{name} has no {metric}");
            for event in EARLIER {
                let count = page.sum(metric, &format!("event=\"{event}\""));
                assert_eq!(count, 0.0, "{name} counts {event}");
            }
        }
        let of_mesh = OF_MESH.map(|counter| page.count(counter));
        let of_discovery = OF_DISCOVERY.map(|counter| page.count(counter));
        assert_eq!((of_mesh, of_discovery), ([0.0; 3], [0.0; 5]), "{name} counts {page:?}");
        let log = world.node_mut(name).process().output();
        assert!(!log.contains("malformed") && !log.contains("later version"), "{name}: {log}");
    }
}

/// Restarts a node's daemon with this version.
fn restart(world: &mut World, name: &str, version: Version) {
    world.node_mut(name).process().signal("TERM");
    world.node_mut(name).process().ended(SETTLE);
    world.node_mut(name).set_program(program(version));
    world.start(name);
}

/// Waits until a node of the current release sees this many members of that release, and this many
/// that do not announce their version, like the previous release.
fn counts_releases(world: &World, name: &str, current: u64, silent: u64) {
    let what = format!("{name} sees {current} upgraded members and {silent} others");
    wait::until(&what, SETTLE, || {
        let releases = &world.at(name).status()?["members"]["releases"];
        let count = |release| releases[release].as_u64().unwrap_or(0);
        let all = releases.as_object()?.len();
        let is_so = count(env!("CARGO_PKG_VERSION")) == current && count("unknown") == silent;
        (is_so && all == 1 + usize::from(silent > 0)).then_some(())
    });
}

/// Each program reports its release, so that an operator can distinguish them.
#[test]
#[ignore = "needs the previous release: tests/run versions"]
fn each_release_has_its_own_version() {
    let tag = include_str!("../../previous-release");
    let line = tag.lines().find(|line| !line.starts_with('#')).expect("a version and a commit");
    let previous = line.split(' ').next().expect("a version");
    let own = [(Version::Previous, previous), (Version::Current, env!("CARGO_PKG_VERSION"))];
    for (release, version) in own {
        let said = run_ok(&program(release).to_string_lossy(), &["--version"]);
        assert_eq!(said.trim(), format!("meshport {version}"));
    }
}

/// As an operator does it: first the nodes that only use services, then the origins; then a
/// complete rollback, as after a failed upgrade.
#[test]
#[ignore = "needs the previous release: tests/run versions"]
fn a_mesh_is_upgraded_node_by_node_and_back() {
    let mut world = World::new();
    let names = ["worker", "cp-2", "cp-1"];
    for name in ["cp-1", "cp-2"] {
        let (address, apiserver) = (echo::serve().0, world.apiserver(name));
        let plan = NodePlan::new(name, "fra").origin(apiserver).role(&format!("origin:{SERVICE}"));
        let plan = plan.settings(&echo::offer(address)).program(program(Version::Previous));
        world.node(&plan);
    }
    let worker = NodePlan::new("worker", "fra").settings(&echo::usage());
    world.node(&worker.program(program(Version::Previous)));
    world.meet();
    for version in [Version::Current, Version::Previous] {
        for (upgraded, name) in (1_u64..).zip(names) {
            restart(&mut world, name, version);
            world.meet();
            if version == Version::Current {
                counts_releases(&world, name, upgraded, names.len() as u64 - upgraded);
            }
            let mut open = session(&world, "worker");
            assert!(answers(&mut open), "after {name} runs {version:?}");
            assert_eq!(world.get("worker", "/version").status, 200);
        }
    }
    nobody_was_misread(&mut world, &names);
}

/// A program queries a daemon of the other version, in both directions.
#[test]
#[ignore = "needs the previous release: tests/run versions"]
fn queries_are_understood_across_versions() {
    let mut world = World::new();
    for (name, version) in [("cp-1", Version::Previous), ("cp-2", Version::Current)] {
        let apiserver = world.apiserver(name);
        world.node(&NodePlan::new(name, "fra").origin(apiserver).program(program(version)));
    }
    world.meet();
    for name in ["cp-1", "cp-2"] {
        wait::until("it is used", SETTLE, || world.at(name).chosen());
    }
    for (name, version) in [("cp-1", Version::Current), ("cp-2", Version::Previous)] {
        let state = world.at(name).state().to_string_lossy().into_owned();
        let program = program(version).to_string_lossy().into_owned();
        let ask = |words: &[&str]| run_ok(&program, &[words, &["--state-dir", &state]].concat());
        for words in [
            &["status"][..],
            &["status", "--json"],
            &["explain"],
            &["peers"],
            &["credentials"],
            &["version"],
            &["drain"],
            &["undrain"],
        ] {
            let said = ask(words);
            assert!(!said.is_empty() || words[0].ends_with("drain"), "{name} {words:?}");
        }
        wait::until("ping finds its way", SETTLE, || {
            let other = if name == "cp-1" { "cp-2" } else { "cp-1" };
            (!ask(&["ping", other]).is_empty()).then_some(())
        });
    }
}
