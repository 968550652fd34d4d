//! The rights that a running daemon has given up, and those it still has.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::process::{Command, Stdio};
use std::time::Duration;

use meshport_tests::process::{Process, meshport};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};

const SETTLE: Duration = Duration::from_secs(40);

/// The lines `Name:\tvalue` of all threads' statuses that have this name.
fn of_all_threads(process: u32, name: &str) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).expect("the daemon runs");
    let status =
        tasks.map(|task| fs::read_to_string(task.expect("a thread").path().join("status")));
    let find = |text: String| {
        let line = text.lines().find(|line| line.starts_with(name)).map(str::to_owned);
        let line = line.unwrap_or_else(|| panic!("the kernel says nothing of {name}"));
        line.split_once('\t').expect("a value").1.to_owned()
    };
    // A thread may end while the list is read.
    status.filter_map(Result::ok).map(find).collect()
}

fn one_origin(settings: &str) -> World {
    let mut world = World::new();
    let address = world.apiserver("cp");
    world.node(&NodePlan::new("cp", "a").origin(address).settings(settings));
    world.chooses("cp", "cp", SETTLE);
    world
}

#[test]
fn a_daemon_gives_up_what_it_does_not_need_and_serves_on() {
    let mut world = one_origin("");
    let id = world.node_mut("cp").process().id();
    for value in of_all_threads(id, "NoNewPrivs:") {
        assert_eq!(value, "1");
    }
    for value in of_all_threads(id, "Seccomp:") {
        assert_eq!(value, "2", "2 is a filter");
    }
    for name in ["CapEff:", "CapPrm:", "CapInh:", "CapAmb:"] {
        for value in of_all_threads(id, name) {
            let held = u64::from_str_radix(&value, 16).expect("a number");
            assert_eq!(held & !(1 << 10), 0, "{name} has more than CAP_NET_BIND_SERVICE: {value}");
        }
    }
    let output = world.node_mut("cp").process().output();
    assert!(output.contains("sandbox enabled"), "it says so:\n{output}");
    world.get("cp", "/version");

    // Its settings can be read again, and files in a folder it never knew cannot.
    let elsewhere = tempfile::tempdir().expect("a folder");
    let ca = elsewhere.path().join("ca.crt");
    fs::write(&ca, "").expect("a file");
    let health = format!("\n[service.kube-apiserver.health]\nca-file = \"{}\"\n", ca.display());
    world.reconfigure("cp", |text| format!("{text}{health}"));
    wait::until("the new folder is named", SETTLE, || {
        let output = world.node_mut("cp").process().output();
        let named = output.contains(&*ca.to_string_lossy()) && output.contains("Restart it");
        (named && output.contains("not reloaded")).then_some(())
    });
    world.reconfigure("cp", |text| text.replace(&health, ""));
    wait::until("the former settings are taken", SETTLE, || {
        world.node_mut("cp").process().output().contains("configuration reloaded").then_some(())
    });
    world.get("cp", "/version");
}

#[test]
fn without_a_sandbox_it_reports_that() {
    let mut world = World::new();
    let address = world.apiserver("cp");
    world.make(&NodePlan::new("cp", "a").origin(address));
    let config = world.path("cp.toml");
    let text = fs::read_to_string(&config).expect("a node has settings");
    fs::write(&config, format!("sandbox = false\n{text}")).expect("written");
    world.start("cp");
    let id = world.node_mut("cp").process().id();
    assert!(of_all_threads(id, "Seccomp:").iter().all(|value| value == "0"));
    let output = world.node_mut("cp").process().output();
    assert!(output.contains("without a sandbox"), "it says so:\n{output}");
}

/// A program as another process of the same user runs it: for root without the rights to read
/// processes that forbid it.
fn as_the_same_user(program: &str) -> Command {
    let is_root = fs::metadata("/proc/self").expect("this process runs").uid() == 0;
    let mut command = Command::new(if is_root { "setpriv" } else { program });
    if is_root {
        command.args(["--bounding-set=-sys_ptrace,-perfmon,-sys_admin", program]);
    }
    command
}

/// Whether such a process may read the memory of another.
fn can_be_looked_into(process: u32) -> bool {
    let environment = format!("/proc/{process}/environ");
    as_the_same_user("cat").arg(environment).output().expect("cat runs").status.success()
}

/// The limits of core dumps, as the kernel writes them: the one in force, and the maximum.
fn core_limits(process: u32) -> [String; 2] {
    let limits = fs::read_to_string(format!("/proc/{process}/limits")).expect("it runs");
    let line = limits.lines().find_map(|line| line.strip_prefix("Max core file size"));
    let mut words = line.expect("the kernel says it").split_whitespace().map(str::to_owned);
    [words.next().expect("a limit"), words.next().expect("a limit")]
}

/// Waits until the process runs `meshport` and is protected from inspection.
#[track_caller]
fn hidden(process: u32) {
    let is_meshport = || {
        let program = fs::read_to_string(format!("/proc/{process}/comm")).ok()?;
        (program.trim() == "meshport").then_some(())
    };
    wait::until("meshport runs", SETTLE, is_meshport);
    wait::until("it cannot be looked into", SETTLE, || {
        (!can_be_looked_into(process)).then_some(())
    });
    assert!(is_meshport().is_some(), "it ended");
    assert_eq!(core_limits(process)[0], "0", "a core dump may be written");
}

#[test]
fn no_verb_with_keys_in_its_memory_can_be_dumped_or_looked_into() {
    let folder = tempfile::tempdir().expect("a folder");
    let start = |name: &str, command: &mut Command| {
        Process::start(name, command, &folder.path().join(name))
    };
    // The question itself can be answered with yes.
    let other = start("tail", as_the_same_user("tail").args(["-f", "/dev/null"]));
    wait::until("another program can be", SETTLE, || {
        (other.arguments().first()? == "tail" && can_be_looked_into(other.id())).then_some(())
    });
    let mut world = one_origin("");
    let daemon = world.node_mut("cp").process().id();
    hidden(daemon);
    assert_eq!(core_limits(daemon)[1], "0", "the limit can be raised");

    // A leaf, whose command may want to be dumped.
    let invite = world.invite("cp", &NodePlan::operator("laptop", "a"));
    let mut forward = as_the_same_user(&meshport().to_string_lossy());
    forward.args(["forward", "--no-save", "--listen", "127.0.0.1:0", "--invite", &invite]);
    forward.args(["--mesh-listen", "127.0.0.1:0"]);
    let forward = start("forward", &mut forward);
    hidden(forward.id());
    assert_eq!(core_limits(forward.id())[1], core_limits(std::process::id())[1]);

    // A verb with the authority's key, that waits for a line.
    let mut verb = as_the_same_user(&meshport().to_string_lossy());
    verb.args(["revoke", "-", "--state-dir"]).arg(world.at("cp").state());
    let verb = verb.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut verb = verb.expect("the binary can be run");
    hidden(verb.id());
    assert_eq!(core_limits(verb.id()), ["0", "0"]);
    drop(verb.stdin.take());
    let ended = verb.wait_with_output().expect("a child can be waited for");
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(!ended.status.success() && said.contains("nothing to revoke"), "{said}");
}

#[test]
fn the_folder_of_the_socket_is_made_before_the_sandbox() {
    let mut world = World::new();
    world.make(&NodePlan::new("worker", "a"));
    let (config, socket) = (world.path("worker.toml"), world.path("deep/below/meshport.sock"));
    let text = fs::read_to_string(&config).expect("the node has settings");
    let named = format!("[admin]\nsocket = \"{}\"", socket.display());
    fs::write(&config, text.replace("[admin]", &named)).expect("ours");
    world.start("worker");
    assert!(socket.exists());
}

/// A user who is not root.
const USER: u32 = 65534;

/// Started where it has the default ports for itself, as a user whose home has no configuration.
#[test]
#[ignore = "needs root for a network namespace and another user: ./tests/run e2e"]
fn a_first_configuration_of_a_user_is_read_without_a_restart() {
    let home = tempfile::tempdir().expect("a folder");
    chown(home.path(), Some(USER), Some(USER)).expect("root may");
    let user = USER.to_string();
    // The checkout may be closed to other users.
    let program = home.path().join("program");
    fs::copy(meshport(), &program).expect("copied");
    let of_user = |words: &[&str]| {
        let mut command = Command::new("unshare");
        let script = "ip link set lo up && exec \"$@\"";
        command.args(["--net", "sh", "-c", script, "sh", "setpriv", "--reuid", &user, "--regid"]);
        command.args([&user, "--clear-groups"]).arg(&program).args(words);
        for variable in ["XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR"] {
            command.env_remove(variable);
        }
        command.env("HOME", home.path());
        command
    };
    let init = of_user(&["init", "--site", "a", "--name", "one"]).output().expect("it runs");
    assert!(init.status.success(), "{}", String::from_utf8_lossy(&init.stderr));
    let daemon = Process::start("one", &mut of_user(&["run"]), &home.path().join("log"));
    let reload = || of_user(&["reload"]).output().expect("it runs");
    wait::until("it answers", SETTLE, || {
        let reload = reload();
        let told = String::from_utf8_lossy(&reload.stdout).into_owned();
        told.contains("no setting has changed").then_some(())
    });
    let file = home.path().join(".config/meshport/meshport.toml");
    let folder = file.parent().expect("it is in one");
    fs::create_dir_all(folder).expect("root may");
    fs::write(&file, "site = \"a\"\n[service.kube-apiserver]\npolicy = \"spread\"\n")
        .expect("ours");
    let reload = reload();
    let told = String::from_utf8_lossy(&reload.stdout).into_owned();
    let wrong = String::from_utf8_lossy(&reload.stderr).into_owned();
    assert!(told.contains("policy: \"nearest\" -> \"spread\""), "{told}{wrong}{}", daemon.output());
}
