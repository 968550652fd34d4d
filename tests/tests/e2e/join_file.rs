//! A daemon that joins at its first start, as the pods of the generated DaemonSet do.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use meshport_tests::process::{Process, meshport};
use meshport_tests::world::{NodePlan, World};

const SETTLE: Duration = Duration::from_secs(40);
const NODE: &str = "worker";

/// A mesh with an origin, and a machine with settings that is not a node yet.
fn with_a_machine() -> World {
    let mut world = World::new();
    world.origin("cp", "a");
    world.make(&NodePlan::new(NODE, "a"));
    fs::remove_dir_all(world.at(NODE).state()).expect("join made it");
    world
}

/// A file with an invite for a site.
fn invite(world: &World, site: &str) -> PathBuf {
    let file = world.path("invite");
    fs::write(&file, world.invite("cp", &NodePlan::new(NODE, site))).expect("written");
    file
}

fn run(world: &World, invite: &Path) -> Process {
    let mut command = Command::new(meshport());
    command.arg("run").arg("--config").arg(world.path(&format!("{NODE}.toml")));
    command.arg("--join-file").arg(invite).args(["--join-name", NODE]);
    Process::start(NODE, &mut command, &world.path("run.log"))
}

#[test]
fn the_first_start_joins_and_later_ones_need_no_invite() {
    let world = with_a_machine();
    let file = invite(&world, "a");
    let credential = world.at(NODE).state().join("credential");
    let mut daemon = run(&world, &file);
    world.chooses(NODE, "cp", SETTLE);
    let first = fs::read(&credential).expect("it has joined");
    daemon.signal("TERM");
    assert!(daemon.ended(SETTLE).success());
    assert!(daemon.output().contains("joined with the invite of --join-file"));

    fs::remove_file(&file).expect("it is ours");
    let _daemon = run(&world, &file);
    world.chooses(NODE, "cp", SETTLE);
    assert_eq!(fs::read(&credential).expect("it is there"), first, "the same node");
}

#[test]
fn without_a_fitting_invite_nothing_is_written() {
    let world = with_a_machine();
    let file = invite(&world, "elsewhere");
    let mut daemon = run(&world, &file);
    assert!(!daemon.ended(SETTLE).success());
    let said = daemon.output();
    assert!(said.contains("elsewhere") && said.contains("site"), "{said}");

    fs::remove_file(&file).expect("it is ours");
    let mut daemon = run(&world, &file);
    assert!(!daemon.ended(SETTLE).success());
    let said = daemon.output();
    let named = format!("cannot read the line from {}", file.display());
    assert!(said.contains(&named), "{said}");
    assert!(!world.at(NODE).state().exists());
}
