//! Damaged files of a state folder, from an operator's view: what the daemon reports, and that
//! following its advice helps.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use meshport_tests::doctor;
use meshport_tests::process::{Process, meshport, run, run_ok};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};

const SETTLE: Duration = Duration::from_secs(40);
const NODE: &str = "worker";

fn three_nodes() -> World {
    let mut world = World::new();
    world.origin("cp", "a");
    world.node(&NodePlan::new(NODE, "a"));
    world.node(&NodePlan::new("other", "a"));
    world.meet();
    world.chooses(NODE, "cp", SETTLE);
    world
}

fn file(world: &World, name: &str) -> PathBuf {
    world.at(NODE).state().join(name)
}

/// Ends the daemon as an operator does, which saves.
#[track_caller]
fn stop(world: &mut World) {
    let process = world.node_mut(NODE).process();
    process.signal("TERM");
    assert!(process.ended(SETTLE).success());
}

/// Starts the daemon, which must end with the exit code of a state folder; returns its output.
#[track_caller]
fn refused(world: &mut World) -> String {
    let before = world.node_mut(NODE).process().output().len();
    world.spawn(NODE);
    let process = world.node_mut(NODE).process();
    assert_eq!(process.ended(SETTLE).code(), Some(4));
    process.output()[before..].to_owned()
}

#[test]
fn a_damaged_directory_is_reported_and_learned_again_from_others() {
    let mut world = three_nodes();
    let path = file(&world, "directory");
    let who = fs::read(file(&world, "credential")).expect("it is there");
    stop(&mut world);
    let whole = fs::read(&path).expect("it was saved");
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 1;
    let damages = [Vec::new(), whole[..whole.len() / 2].to_vec(), flipped];
    for damaged in damages {
        fs::write(&path, &damaged).expect("it is ours");
        let before = world.node_mut(NODE).process().output().len();
        world.start(NODE);
        world.meet();
        world.chooses(NODE, "cp", SETTLE);
        assert_eq!(world.get(NODE, "/version").status, 200);
        stop(&mut world);
        let said = world.node_mut(NODE).process().output()[before..].to_owned();
        let line = said.lines().find(|line| line.contains("the file directory"));
        let line = line.unwrap_or_else(|| panic!("nothing is said of it: {said}"));
        println!("{line}");
        let said = ["no action needed: seeds and peers send it again", "next save replaces"];
        for words in ["WARN", "the saved directory is damaged"].into_iter().chain(said) {
            assert!(line.contains(words), "{words}: {line}");
        }
        assert_ne!(fs::read(&path).expect("it is saved"), damaged, "the damage is kept");
        assert_eq!(fs::read(file(&world, "credential")).expect("it is there"), who);
    }
    // The last saved value is complete.
    let before = world.node_mut(NODE).process().output().len();
    world.start(NODE);
    let said = world.node_mut(NODE).process().output()[before..].to_owned();
    assert!(said.contains("restored the saved directory"), "{said}");
}

#[test]
fn a_seed_by_name_is_found_in_the_saved_directory() {
    let mut world = World::new();
    for name in ["cp", NODE] {
        world.node(&NodePlan::new(name, "a"));
    }
    world.meet();
    // Only nodes whose seed it is look for a node that left.
    let process = world.node_mut("cp").process();
    process.signal("TERM");
    assert!(process.ended(SETTLE).success());
    wait::until("the goodbye is heard", SETTLE, || (world.at(NODE).alive() == 1).then_some(()));
    stop(&mut world);
    fs::remove_file(file(&world, "seeds")).expect("join wrote it");
    fs::remove_file(world.at("cp").state().join("directory")).expect("it was saved");
    let config = world.path(&format!("{NODE}.toml"));
    let text = fs::read_to_string(&config).expect("a node has settings");
    let named = text.replace("[mesh]\n", "[mesh]\nseeds = [\"cp\", \"nobody\"]\n");
    fs::write(&config, named).expect("it is ours");
    for name in ["cp", NODE] {
        world.start(name);
    }
    world.meet();
    let said = world.node_mut(NODE).process().output();
    let unknown: Vec<&str> = said.lines().filter(|it| it.contains("saved directory has")).collect();
    assert!(matches!(unknown[..], [line] if line.contains("nobody")), "{unknown:?}");
}

#[test]
fn truncated_revocations_are_reported_and_fetched_again_from_others() {
    let mut world = three_nodes();
    let gone = world.invite("cp", &NodePlan::new("x", "a"));
    let state = world.at("cp").state().to_string_lossy().into_owned();
    run_ok(&meshport().to_string_lossy(), &["revoke", &gone, "--state-dir", &state]);
    let path = file(&world, "revocations");
    wait::until("the node keeps the revocation", SETTLE, || path.exists().then_some(()));
    stop(&mut world);
    let whole = fs::read_to_string(&path).expect("it is there");
    assert_eq!(whole.lines().count(), 2, "{whole}");
    let line = whole.lines().next().expect("a revocation").len();
    for length in [0, line / 2, line, line + 1] {
        fs::write(&path, &whole[..length]).expect("it is ours");
        let said = refused(&mut world);
        println!("{}", said.trim_end());
        assert_eq!(said.lines().count(), 1, "one line says it: {said}");
        for words in [&*path.to_string_lossy(), "remove it", "send the revocations again"] {
            assert!(said.contains(words), "{words}: {said}");
        }
        assert_eq!(fs::read_to_string(&path).expect("it is there"), whole[..length]);
    }
    fs::remove_file(&path).expect("as it was told");
    world.start(NODE);
    wait::until("the others tell it again", SETTLE, || {
        (fs::read_to_string(&path).ok()? == whole).then_some(())
    });
    assert_eq!(world.get(NODE, "/version").status, 200);
}

#[test]
fn a_file_that_cannot_be_written_is_reported_until_a_write_succeeds() {
    let mut world = three_nodes();
    let state = world.at("cp").state().to_string_lossy().into_owned();
    let revoke_one = |world: &mut World, name| {
        let gone = world.invite("cp", &NodePlan::new(name, "a"));
        run_ok(&meshport().to_string_lossy(), &["revoke", &gone, "--state-dir", &state]);
    };
    // All that it may write meanwhile.
    let files = ["revocations", "directory"].map(|name| file(&world, name));
    for file in &files {
        // The daemon may write it in between.
        wait::until("a folder is in its place, which no file can replace", SETTLE, || {
            let _ = fs::remove_file(file);
            fs::create_dir(file).ok()
        });
    }
    revoke_one(&mut world, "x");
    let failed = "the last write to the state folder failed: cannot replace ";
    wait::until("it is reported", SETTLE, || {
        let examined = doctor::examine(meshport(), &world, NODE);
        let what = examined.detail("MP118").strip_prefix(failed)?;
        let named = files.iter().any(|file| what.starts_with(&*file.to_string_lossy()));
        assert!(named && what.contains("os error"), "{what}");
        Some(())
    });
    let warned = |world: &World| {
        let status = world.at(NODE).status().expect("it answers");
        status["warnings"].to_string().contains("(MP118)")
    };
    assert!(warned(&world));

    for file in &files {
        fs::remove_dir(file).expect("it is empty");
    }
    revoke_one(&mut world, "y");
    wait::until("it is over", SETTLE, || (files[0].is_file() && !warned(&world)).then_some(()));
}

/// Starts the daemon and ends it again; returns its output about altered files.
fn told(world: &mut World) -> Vec<String> {
    let before = world.node_mut(NODE).process().output().len();
    world.start(NODE);
    world.meet();
    assert_eq!(world.get(NODE, "/version").status, 200);
    stop(world);
    let said = world.node_mut(NODE).process().output()[before..].to_owned();
    let is_it = |line: &&str| line.contains("checksum") || line.contains("by hand");
    said.lines().filter(is_it).map(str::to_owned).collect()
}

#[test]
fn a_changed_seed_or_generation_is_reported_and_a_failed_start_names_the_file() {
    let mut world = three_nodes();
    let (seeds, generation) = (file(&world, "seeds"), file(&world, "generation"));
    stop(&mut world);
    assert_eq!(told(&mut world), [] as [String; 0]);

    // Another port and a lower number, which only the checksum distinguishes from right ones.
    let whole = fs::read_to_string(&seeds).expect("join wrote it");
    let (line, rest) = whole.split_once('\n').expect("a seed");
    let (seed, digit) = line.split_at(line.len() - 1);
    let digit = if digit == "7" { "3" } else { "7" };
    let changed = format!("{seed}{digit}\n{rest}");
    fs::write(&seeds, &changed).expect("it is ours");
    let number = fs::read_to_string(&generation).expect("each start writes it");
    fs::write(&generation, number.replacen('1', "0", 1)).expect("it is ours");
    let said = told(&mut world);
    for path in [&seeds, &generation] {
        let name = format!("{}: was edited by hand or is damaged", path.display());
        let line = said.iter().find(|line| line.contains(&name));
        let line = line.unwrap_or_else(|| panic!("nothing is said of {name}: {said:?}"));
        println!("{line}");
        assert!(line.contains("WARN"), "{line}");
    }
    assert_eq!(fs::read_to_string(&seeds).expect("it is there"), changed, "left alone");

    // Only the seeds are reported again: the generation was rewritten.
    let said = told(&mut world);
    assert!(matches!(&said[..], [line] if line.contains("seeds: was edited by hand")), "{said:?}");
    fs::write(&seeds, whole.replace(rest, "# by hand\n")).expect("it is ours");
    assert_eq!(told(&mut world), [] as [String; 0]);

    // No node is at the seeds' addresses, and nothing else is known.
    fs::write(&seeds, &changed).expect("it is ours");
    fs::remove_file(file(&world, "directory")).expect("it was saved");
    for other in ["cp", "other"] {
        world.kill(other);
    }
    world.start(NODE);
    let status = world.at(NODE).status().expect("it answers");
    let warnings = status["warnings"].to_string();
    assert!(warnings.contains("in the file seeds of the state folder"), "{warnings}");
}

#[test]
fn a_secret_on_the_command_line_is_hidden_while_the_command_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("cp").to_string_lossy().into_owned();
    let program = meshport().to_string_lossy().into_owned();
    run_ok(&program, &["init", "--state-dir", &state, "--site", "fra", "--name", "cp"]);
    // An address for documentation: there is no answer, and the command keeps trying.
    let seed = ["--endpoint", "192.0.2.1:51820", "--role", "operator"];
    let invite = ["invite", "--state-dir", &state, "--site", "fra"];
    let line = run_ok(&program, &[&invite[..], &seed].concat());
    let (_, secret) = line.trim().split_once('.').expect("a tag and the rest");
    for (number, words) in
        [vec!["--invite", line.trim()], vec![&*format!("--invite={}", line.trim())]]
            .iter()
            .enumerate()
    {
        let mut command = Command::new(meshport());
        command.args(["forward", "--no-save", "--name", "laptop", "--listen", "127.0.0.1:0"]);
        command.args(words);
        let log = folder.path().join(format!("forward-{number}.log"));
        let mut process = Process::start("forward", &mut command, &log);
        wait::until("it says so", SETTLE, || {
            process.output().contains("It is overwritten now").then_some(())
        });
        let shown = process.arguments().join(" ");
        assert!(process.is_running(), "{}", process.output());
        assert!(shown.contains("meshport-invite-xxx") && !shown.contains(secret), "{shown}");
        process.kill();
    }
}

#[test]
fn a_new_node_says_that_its_folder_is_not_its_own() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = meshport().to_string_lossy().into_owned();
    let make = |name: &str| {
        let path = folder.path().join(name);
        fs::create_dir(&path).expect("made");
        fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("set");
        fs::write(path.join("notes.txt"), "somebody else's\n").expect("written");
        path.to_string_lossy().into_owned()
    };
    let (first, second) = (make("first"), make("second"));
    let said = |arguments: &[&str]| {
        let output = run(&program, arguments);
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        // Lines are wrapped on a terminal only.
        let words = "files that are not meshport's (notes.txt)";
        assert!(said.contains(words), "{arguments:?}: {said}");
    };
    said(&["init", "--state-dir", &first, "--site", "fra", "--name", "cp"]);
    let invite = ["invite", "--state-dir", &first, "--site", "fra", "--no-seed"];
    let invite = run_ok(&program, &invite);
    said(&["join", invite.trim(), "--state-dir", &second, "--name", "worker"]);
}
