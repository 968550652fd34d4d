//! Network namespaces of a test: separate hosts on this machine, joined by virtual cables.
//!
//! Needs root and `ip` (iproute2). Names contain the process id, so that two runs do not collide;
//! everything created here is removed when it is dropped, and removing a namespace removes its
//! interfaces.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::process::{run, run_ok};

/// Distinguishes the namespaces and cables of one process.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// The folder where `ip netns` keeps its names.
const FOLDER: &str = "/run/netns";

/// Removes the namespaces of processes that have ended: killed processes could not do it.
pub fn remove_stale() {
    let Ok(names) = std::fs::read_dir(FOLDER) else { return };
    for name in names.flatten().filter_map(|entry| entry.file_name().into_string().ok()) {
        let owner = name.strip_prefix("meshport-").and_then(|rest| rest.split_once('-'));
        let owner = owner.and_then(|(process, _)| process.parse::<u32>().ok());
        if owner.is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists()) {
            let _ = run("ip", &["netns", "del", &name]);
        }
    }
}

/// An emulated host.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Creates a host with only its loopback interface.
    pub fn new() -> Self {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("meshport-{}-{number}", std::process::id());
        run_ok("ip", &["netns", "add", &name]);
        let namespace = Self { name };
        namespace.ip(&["link", "set", "lo", "up"]);
        namespace
    }

    /// Its name for `ip netns`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its namespace file, for a thread that enters it.
    pub fn file(&self) -> PathBuf {
        Path::new(FOLDER).join(&self.name)
    }

    /// Moves an interface from the caller's host to this one.
    ///
    /// # Panics
    /// If `ip` refuses.
    #[track_caller]
    pub fn take(&self, interface: &str) {
        run_ok("ip", &["link", "set", interface, "netns", &self.name]);
    }

    /// A command that runs inside.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name, program]);
        command
    }

    /// Runs a tool inside, which must succeed; returns its output, trimmed.
    #[track_caller]
    pub fn run(&self, program: &str, arguments: &[&str]) -> String {
        let inside = ["netns", "exec", &self.name, program];
        run_ok("ip", &[&inside, arguments].concat())
    }

    /// Whether a tool that runs inside succeeds.
    pub fn succeeds(&self, program: &str, arguments: &[&str]) -> bool {
        let inside = ["netns", "exec", &self.name, program];
        run("ip", &[&inside, arguments].concat()).status.success()
    }

    /// The processes on this host.
    pub fn processes(&self) -> Vec<String> {
        let listed = run("ip", &["netns", "pids", &self.name]);
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        listed.split_whitespace().map(str::to_owned).collect()
    }

    /// Runs `work` in a thread on this host; the threads it starts and the sockets it opens are on
    /// this host too, even later.
    ///
    /// # Panics
    /// If the thread cannot enter, or `work` panics.
    pub fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let enter = || {
            let file = File::open(self.file()).expect("a namespace has a file");
            let network = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(file.as_fd(), network).expect("root may enter");
            work()
        };
        let done = thread::scope(|scope| scope.spawn(enter).join());
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// The interfaces inside that are not its loopback.
    pub fn interfaces(&self) -> Vec<String> {
        let listed = self.ip(&["-o", "link", "show"]);
        let names = listed.lines().filter_map(|line| line.split(": ").nth(1));
        let names = names.filter_map(|name| name.split('@').next());
        names.filter(|name| *name != "lo").map(str::to_owned).collect()
    }

    /// Configures an address, a route or an interface inside.
    ///
    /// # Panics
    /// If `ip` refuses.
    #[track_caller]
    pub fn ip(&self, arguments: &[&str]) -> String {
        run_ok("ip", &[&["-n", &self.name], arguments].concat())
    }
}

impl Default for Namespace {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // A namespace that cannot be removed is left.
        let _ = run("ip", &["netns", "del", &self.name]);
    }
}

/// Lays a cable between two hosts; each end gets its address, written with its prefix length.
/// Returns the names of the ends.
pub fn cable(a: &Namespace, a_address: &str, b: &Namespace, b_address: &str) -> [String; 2] {
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    // An interface name has 15 characters at most.
    let ends = ["a", "b"].map(|end| format!("mp{}.{number}{end}", std::process::id() % 1_000_000));
    run_ok("ip", &["link", "add", &ends[0], "type", "veth", "peer", "name", &ends[1]]);
    for (end, host, address) in [(&ends[0], a, a_address), (&ends[1], b, b_address)] {
        host.take(end);
        host.ip(&["addr", "add", address, "dev", end]);
        host.ip(&["link", "set", end, "up"]);
    }
    ends
}

/// Plugs a host into a switch, which is a bridge of another one: the interface gets a name, and
/// its addresses with their prefix lengths. Returns the name of the switch's end.
pub fn plug(
    host: &Namespace,
    interface: &str,
    addresses: &[&str],
    switch: &Namespace,
    bridge: &str,
) -> String {
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let ends = ["a", "b"].map(|end| format!("mp{}.{number}{end}", std::process::id() % 1_000_000));
    run_ok("ip", &["link", "add", &ends[0], "type", "veth", "peer", "name", &ends[1]]);
    host.take(&ends[0]);
    switch.take(&ends[1]);
    host.ip(&["link", "set", &ends[0], "name", interface]);
    for address in addresses {
        // The address is unique, so duplicate detection is not needed.
        let is_v6 = address.contains(':');
        let more: &[&str] = if is_v6 { &["nodad"] } else { &[] };
        host.ip(&[&["addr", "add", address, "dev", interface], more].concat());
    }
    host.ip(&["link", "set", interface, "up"]);
    switch.ip(&["link", "set", &ends[1], "master", bridge, "up"]);
    let [_, end] = ends;
    end
}
