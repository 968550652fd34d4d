//! What clients notice that connect all the time while the daemon restarts or is upgraded.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use meshport_tests::process::{Process, meshport};
use meshport_tests::wait;
use rustix::process::{Pid, Signal, kill_process};

use super::{Machine, PATIENCE, PROGRAM, SETTINGS, UNIT, said};

/// Restarts and upgrades under clients, and the file that ends these.
const RESTARTS: u32 = 10;
const UPGRADES: u32 = 2;
const CLIENTS: &str = "1 2 3 4";
/// A previous process ends five seconds after its successor serves if nothing delays it; the rest
/// is the machine's.
const PROBATION: Duration = Duration::from_secs(8);
const ENOUGH: &str = "/srv/enough";

/// In its own folder, which the unit then lets it execute.
const OWN_FOLDER: &str = "/opt/meshport/meshport";
/// Another address of the service.
const ELSEWHERE: &str = "127.0.0.1:7555";

/// Clients that connect all the time, until they are stopped.
struct Clients {
    process: Process,
    log: PathBuf,
}

impl Clients {
    fn start(machine: &Machine) -> Self {
        machine.run(&["rm", "-f", ENOUGH]);
        let client = "curl -sSk -m 30 -o /dev/null -w 'served %{time_total}\\n' \
                      https://127.0.0.1:7445/version";
        let clients = format!(
            "for it in {CLIENTS}; do (until [ -e {ENOUGH} ]; do {client}; done)& done; wait"
        );
        let mut command = machine.command(&["sh", "-c", &clients]);
        let log = machine.folder.path().join("clients.log");
        let _ = fs::remove_file(&log);
        let clients = Self { process: Process::start("clients", &mut command, &log), log };
        clients.go_on();
        clients
    }

    fn served(&self) -> usize {
        fs::read_to_string(&self.log).unwrap_or_default().matches("served").count()
    }

    /// Some more are served.
    fn go_on(&self) {
        let before = self.served();
        let more = || (self.served() > before + 10).then_some(());
        wait::until("clients are served", PATIENCE, more);
    }

    /// None has failed.
    fn end(mut self, machine: &Machine, what: &str) {
        machine.run(&["touch", ENOUGH]);
        self.process.ended(PATIENCE);
        let log = fs::read_to_string(&self.log).expect("it is there");
        let failed: Vec<&str> = log.lines().filter(|line| !line.starts_with("served ")).collect();
        let served = self.served();
        assert!(failed.is_empty(), "{what}: {served} served, failed: {failed:?}");
        let times = log.lines().filter_map(|line| line.strip_prefix("served ")?.parse().ok());
        let longest = times.fold(0.0, f64::max);
        println!("{what}: {served} clients, none failed; the longest took {longest} s");
    }
}

/// A request whose answer never ends: a line a second.
struct Watch {
    process: Process,
    log: PathBuf,
}

impl Watch {
    fn open(machine: &Machine) -> Self {
        let mut command = machine.command(&["curl", "-sSkN", "https://127.0.0.1:7445/watch"]);
        let log = machine.folder.path().join("watch.log");
        let _ = fs::remove_file(&log);
        Self { process: Process::start("watch", &mut command, &log), log }
    }

    fn lines(&self) -> usize {
        fs::read_to_string(&self.log).unwrap_or_default().lines().count()
    }

    /// Some more lines come.
    fn goes_on(&mut self) {
        let before = self.lines();
        let more = || (self.lines() > before + 1).then_some(());
        wait::until("the watch goes on", PATIENCE, more);
        assert!(self.process.is_running(), "the watch has ended");
    }
}

/// Restarts, one after another. What is open before the first is open after the last, until a stop
/// ends it.
pub(super) fn restarts_fail_no_client(machine: &Machine) {
    let mut watch = Watch::open(machine);
    watch.goes_on();
    let clients = Clients::start(machine);
    for _ in 0..RESTARTS {
        let before = machine.property("MainPID");
        machine.run(&["systemctl", "restart", "meshport"]);
        assert_ne!(machine.property("MainPID"), before);
        clients.go_on();
    }
    watch.goes_on();
    clients.end(machine, &format!("{RESTARTS} restarts"));
    machine.run(&["systemctl", "stop", "meshport"]);
    watch.process.ended(PATIENCE);
    let left = || machine.output(&["pgrep", "-f", "meshport run"]).status.success();
    wait::until("no process is left", PATIENCE, || (!left()).then_some(()));
    machine.run(&["systemctl", "start", "meshport"]);
    machine.serves();
}

/// A replaced program is executed from its own folder. From another folder it cannot be executed,
/// and the daemon keeps serving.
pub(super) fn upgrades_in_place(machine: &Machine, settings: &str) {
    let replace = |program: &str| {
        let next = format!("{program}.next");
        machine.install(meshport(), &next);
        machine.run(&["mv", &next, program]);
    };
    let uses = |program: &str| {
        machine
            .write(UNIT, &machine.run(&["meshport", "generate", "systemd", "--binary", program]));
        machine.run(&["systemctl", "daemon-reload"]);
        machine.run(&["systemctl", "restart", "meshport"]);
        machine.serves();
    };
    let before = machine.property("MainPID");
    replace(PROGRAM);
    let refused = machine.output(&["meshport", "upgrade"]);
    assert!(said(&refused).contains("exited without an answer"), "{}", said(&refused));
    assert_eq!(machine.property("MainPID"), before);
    machine.serves();

    machine.install(meshport(), OWN_FOLDER);
    uses(OWN_FOLDER);
    systemd_may_be_slow(machine);
    let clients = Clients::start(machine);
    for _ in 0..UPGRADES {
        let before = machine.property("MainPID");
        replace(OWN_FOLDER);
        machine.run(&["meshport", "upgrade"]);
        assert_ne!(machine.property("MainPID"), before);
        clients.go_on();
    }
    clients.end(machine, &format!("{UPGRADES} upgrades in place"));
    machine.run(&["systemctl", "restart", "meshport"]);
    machine.serves();
    what_is_kept_is_the_successors(machine, settings);
    uses(PROGRAM);
}

/// systemd reads late which process is the service, as on a machine without processor time. The
/// previous process must not end before: systemd ignores messages of a process that has ended, and
/// would restart the service beside the successor.
fn systemd_may_be_slow(machine: &Machine) {
    let (start, process) = (machine.property("InvocationID"), machine.process());
    let mut command = machine.command(&["meshport", "upgrade"]);
    let log = machine.folder.path().join("upgrade.log");
    let mut upgrade = Process::start("upgrade", &mut command, &log);
    let taken_over = || (machine.process() != process).then_some(());
    wait::until("a successor has the state folder", PATIENCE, taken_over);
    machine.serves();
    let successor = machine.process();
    // Otherwise it would name its own helper to systemd as soon as the previous process has ended.
    machine.run(&["kill", "-s", "STOP", &successor]);
    let systemd = Stopped::new(machine.leader);
    wait::within(PROBATION, || {
        let stat = machine.output(&["cat", &format!("/proc/{process}/stat")]);
        (!stat.status.success() || said(&stat).contains(") Z ")).then_some(())
    });
    drop(systemd);
    // It answers after it has read all messages.
    machine.property("MainPID");
    machine.run(&["kill", "-s", "CONT", &successor]);
    assert!(upgrade.ended(PATIENCE).success(), "{}{}", upgrade.output(), machine.journal());
    assert_eq!(machine.property("InvocationID"), start, "{}", machine.journal());
    assert_eq!(machine.process(), successor);
    machine.serves();
}

/// A process that does not run until this is dropped.
struct Stopped(Pid);

impl Stopped {
    fn new(process: u32) -> Self {
        let process = i32::try_from(process).ok().and_then(Pid::from_raw).expect("a process");
        kill_process(process, Signal::STOP).expect("it runs");
        Self(process)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// systemd keeps only the sockets that the successor serves, or clients would wait at an address
/// that nobody serves. One that cannot run changes nothing.
fn what_is_kept_is_the_successors(machine: &Machine, settings: &str) {
    let kept = || machine.property("NFileDescriptorStore");
    let before = kept();
    machine.write(SETTINGS, &settings.replace("origin", "orgin"));
    assert!(!machine.output(&["meshport", "upgrade"]).status.success());
    assert_eq!(kept(), before);
    let service = "[service.kube-apiserver]\n";
    let elsewhere = format!("{service}listen = [\"{ELSEWHERE}\"]\n");
    machine.write(SETTINGS, &settings.replace(service, &elsewhere));
    machine.run(&["meshport", "upgrade"]);
    wait::until("it keeps that one and the admin port", PATIENCE, || (kept() == "2").then_some(()));
    machine.run(&["curl", "-sSk", &format!("https://{ELSEWHERE}/version")]);
    let refused = machine.output(&["curl", "-sSk", "-m", "10", "https://127.0.0.1:7445/"]);
    assert!(said(&refused).contains("Failed to connect"), "{}", said(&refused));
    machine.write(SETTINGS, settings);
}
