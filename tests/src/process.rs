//! Processes of a test: the real binary, its output in a file, ended when the test ends.
//!
//! A [`Process`] ends only the child it started, by its handle, and always waits for it. When a
//! test panics while it runs, the tail of its output is printed: the reason is usually there.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use crate::repository::root;
use crate::wait;

mod running;

use running::RUNNING;
pub use running::end_children_on_panic;

/// How many lines of output a failing test prints per process.
const TAIL_LINES: usize = 40;
/// Maximum number of bytes read for the tail of a log.
const TAIL_BYTES: u64 = 64 * 1024;

/// The library of faketime, which shows a process another wall clock.
pub fn faketime() -> PathBuf {
    let places = fs::read_dir("/usr/lib").expect("Debian has it").flatten();
    let mut files = places.map(|place| place.path().join("faketime/libfaketime.so.1"));
    files.find(|file| file.exists()).expect("the package libfaketime is installed")
}

/// The product's binary: `MESHPORT_BIN` if it is set, else the release build of this checkout.
///
/// Cargo's own lock on the target folder makes concurrent tests build once.
pub fn meshport() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| match env::var_os("MESHPORT_BIN") {
        Some(path) => fs::canonicalize(&path)
            .unwrap_or_else(|error| panic!("MESHPORT_BIN names {}: {error}", path.display())),
        None => build(&["--release", "-p", "meshport"]),
    })
}

/// Raises this process's limit on descriptors as far as the system allows, and returns the limit.
/// Processes started afterwards inherit it.
pub fn raise_descriptors() -> usize {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("the limit may be raised to its maximum");
    limit.maximum.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX))
}

/// The gateway of a cluster, built like the other tools of the tests.
pub fn gateway() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| build(&["--workspace", "--bin", "meshport-gateway"]))
}

fn build(what: &[&str]) -> PathBuf {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--locked", "--message-format=json"]).args(what);
    // The variables that a test runner sets for this package would make build scripts run again.
    let of_package = |(key, _): &(OsString, _)| key.to_string_lossy().starts_with("CARGO_PKG_");
    for (key, _) in env::vars_os().filter(of_package) {
        cargo.env_remove(key);
    }
    cargo.env_remove("CARGO_MANIFEST_DIR").env_remove("CARGO_MANIFEST_PATH");
    let output = cargo.current_dir(root()).output().expect("cargo can be run");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let messages = String::from_utf8(output.stdout).expect("cargo prints UTF-8");
    let messages = messages.lines().filter_map(|line| serde_json::from_str(line).ok());
    let executable = |message: serde_json::Value| Some(message["executable"].as_str()?.to_owned());
    messages.filter_map(executable).next_back().expect("cargo names the binary it built").into()
}

/// A running child of this test.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command` with its output appended to `log`.
    pub fn start(name: &str, command: &mut Command, log: &Path) -> Self {
        let open = || {
            let file = OpenOptions::new().create(true).append(true).open(log);
            file.unwrap_or_else(|error| panic!("cannot write {}: {error}", log.display()))
        };
        command.stdin(Stdio::null()).stdout(open()).stderr(open());
        let child = command.spawn().unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        RUNNING.add(&child);
        Self { name: name.to_owned(), child, log: log.to_path_buf() }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Ends it at once, as a crash or `kill -9` would.
    pub fn kill(mut self) {
        self.end();
    }

    /// Sends it a signal by name, for example `TERM`.
    pub fn signal(&self, signal: &str) {
        let sent = run("kill", &["-s", signal, &self.id().to_string()]);
        assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    }

    /// Waits for its own end.
    ///
    /// # Panics
    /// If it still runs after `limit`.
    #[track_caller]
    pub fn ended(&mut self, limit: Duration) -> ExitStatus {
        let what = format!("{} ends", self.name);
        wait::until(&what, limit, || self.child.try_wait().expect("a child can be waited for"))
    }

    /// Its program and arguments; empty once it has ended.
    pub fn arguments(&self) -> Vec<String> {
        let line = fs::read(format!("/proc/{}/cmdline", self.id())).unwrap_or_default();
        let parts = line.split(|byte| *byte == 0).filter(|part| !part.is_empty());
        parts.map(|part| String::from_utf8_lossy(part).into_owned()).collect()
    }

    /// Resident memory in KiB, while it runs.
    pub fn resident_kib(&self) -> u64 {
        let own = memory_kib(self.id(), "VmRSS:");
        own.unwrap_or_else(|| panic!("{} is gone", self.name))
    }

    /// Descriptors it has open, while it runs.
    pub fn descriptors(&self) -> usize {
        let listed = fs::read_dir(format!("/proc/{}/fd", self.id()));
        listed.unwrap_or_else(|_| panic!("{} is gone", self.name)).count()
    }

    /// Anonymous resident memory in KiB: without pages of files, which the kernel can drop. Only
    /// while it runs.
    pub fn anonymous_kib(&self) -> u64 {
        let own = memory_kib(self.id(), "RssAnon:");
        own.unwrap_or_else(|| panic!("{} is gone", self.name))
    }

    /// Processor time used by it and its present descendants, user and system.
    pub fn processor_time(&self) -> Duration {
        let own = processor_time(self.id());
        let own = own.unwrap_or_else(|| panic!("{} is gone", self.name));
        own + descendants(self.id()).into_iter().filter_map(processor_time).sum::<Duration>()
    }

    /// Its threads, and the processor time of each.
    pub fn threads(&self) -> Vec<(u32, Duration)> {
        let folder = format!("/proc/{}/task", self.id());
        let tasks = fs::read_dir(&folder).into_iter().flatten().flatten();
        let ids = tasks.filter_map(|task| task.file_name().to_str()?.parse::<u32>().ok());
        let used = |id: u32| Some((id, processor_time_in(&format!("{folder}/{id}"))?));
        ids.filter_map(used).collect()
    }

    /// How often its threads have gone to sleep, and so were woken.
    pub fn wakeups(&self) -> u64 {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.id()));
        let status = |task: fs::DirEntry| fs::read_to_string(task.path().join("status")).ok();
        let of_task = |status: String| {
            let line =
                status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            line.and_then(|count| count.trim().parse::<u64>().ok())
        };
        let all = tasks.into_iter().flatten().flatten().filter_map(status).filter_map(of_task);
        all.sum()
    }

    /// Its peak resident memory in KiB, plus that of each of its current descendants.
    pub fn peak_kib(&self) -> u64 {
        let all = descendants(self.id()).into_iter().chain([self.id()]);
        all.filter_map(|id| memory_kib(id, "VmHWM:")).sum()
    }

    /// All its output so far.
    pub fn output(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn end(&mut self) {
        // Both fail only if it has already ended, which is the goal.
        let _ = self.child.kill();
        let _ = self.child.wait();
        RUNNING.remove(self.child.id());
    }
}

impl Drop for Process {
    #[expect(clippy::print_stderr, reason = "the output of a failing test")]
    fn drop(&mut self) {
        self.end();
        if std::thread::panicking() {
            eprintln!("--- last output of {} ---\n{}", self.name, tail(&self.log));
        }
    }
}

fn memory_kib(id: u32, field: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    line.split_whitespace().next()?.parse().ok()
}

fn processor_time(id: u32) -> Option<Duration> {
    processor_time_in(&format!("/proc/{id}"))
}

fn processor_time_in(folder: &str) -> Option<Duration> {
    /// The unit of the kernel's figures: USER_HZ is 100 on every Linux this runs on.
    const TICK: Duration = Duration::from_millis(10);
    let stat = fs::read_to_string(format!("{folder}/stat")).ok()?;
    // The second field, a name in parentheses, may hold spaces; the rest does not.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks: u32 = [11, 12].iter().filter_map(|at| fields.get(*at)?.parse::<u32>().ok()).sum();
    Some(TICK * ticks)
}

/// Children, their children, and so on.
fn descendants(id: u32) -> Vec<u32> {
    let mut all = Vec::new();
    let mut open = vec![id];
    while let Some(parent) = open.pop() {
        let tasks = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
        for task in tasks {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            let children = children.split_whitespace().filter_map(|it| it.parse::<u32>().ok());
            open.extend(children.clone());
            all.extend(children);
        }
    }
    all
}

fn tail(log: &Path) -> String {
    let Ok(mut file) = File::open(log) else { return String::new() };
    let length = file.metadata().map_or(0, |data| data.len());
    let skipped =
        std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(length.saturating_sub(TAIL_BYTES)));
    let mut bytes = Vec::new();
    if skipped.and_then(|_| file.read_to_end(&mut bytes)).is_err() {
        return String::new();
    }
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

/// Runs a tool until it ends.
///
/// # Panics
/// If it cannot be started; the caller checks its exit status.
pub fn run(program: &str, arguments: &[&str]) -> Output {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    output.unwrap_or_else(|error| panic!("cannot run {program}: {error}"))
}

/// Runs a tool that must succeed and returns its output, trimmed.
///
/// # Panics
/// If it fails, with what it wrote to standard error.
#[track_caller]
pub fn run_ok(program: &str, arguments: &[&str]) -> String {
    let output = run(program, arguments);
    let problem = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {}: {problem}", arguments.join(" "));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_watched_and_ended() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let log = folder.path().join("log");
        let mut command = Command::new("sh");
        command.args(["-c", "echo hello; exec tail -f /dev/null"]);
        let mut process = Process::start("shell", &mut command, &log);
        wait::until("it prints", Duration::from_secs(10), || {
            process.output().contains("hello").then_some(())
        });
        assert!(process.is_running() && process.resident_kib() > 0);
        let id = process.id();
        process.kill();
        assert!(!Path::new(&format!("/proc/{id}")).exists());
    }

    #[test]
    fn a_signal_reaches_it() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut command = Command::new("tail");
        command.args(["-f", "/dev/null"]);
        let mut process = Process::start("tail", &mut command, &folder.path().join("log"));
        process.signal("TERM");
        assert!(!process.ended(Duration::from_secs(10)).success());
    }

    #[test]
    fn the_tail_is_the_end() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let log = folder.path().join("log");
        let lines: Vec<String> = (0..20_000).map(|line| format!("line {line}")).collect();
        fs::write(&log, lines.join("\n")).expect("a file can be written");
        let tail = tail(&log);
        assert_eq!(tail.lines().count(), TAIL_LINES);
        assert!(tail.ends_with("line 19999"));
    }
}
