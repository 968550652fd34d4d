//! The contenders: meshport, today's alternatives, and the cost without encryption.

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use meshport_tests::netns::Namespace;
use meshport_tests::process::{Process, meshport, run_ok};
use meshport_tests::{wait, wireguard};

use crate::rivals;
use crate::testbed::{FAR, LOCAL, NEAR, SERVER, START_LIMIT, Testbed};

/// Names boringtun's program when it is not on the path.
pub(crate) const BORINGTUN_VARIABLE: &str = "MESHPORT_BENCH_BORINGTUN";
/// Names a wireguard-go other than the one on the path: Debian 12 has one of 2022, before
/// segmentation offload, which is three times as slow as that of Debian 13.
pub(crate) const WIREGUARD_GO_VARIABLE: &str = "MESHPORT_BENCH_WIREGUARD_GO";

/// A way from the near host's loopback to the far host's server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Contender {
    /// Two meshport nodes
    Meshport,
    /// No contender at all: clients dial the far host
    Direct,
    /// haproxy without encryption: the price of a proxy
    Haproxy,
    /// haproxy over wireguard-go, the newest that was found
    WireguardGo,
    /// haproxy over boringtun-cli
    Boringtun,
    /// haproxy over Debian's nebula
    Nebula,
    /// stunnel on both hosts
    Stunnel,
    /// A port forward of OpenSSH
    Ssh,
}

/// All, in the order of the tables.
pub(crate) const ALL: [Contender; 8] = [
    Contender::Meshport,
    Contender::Direct,
    Contender::Haproxy,
    Contender::WireguardGo,
    Contender::Boringtun,
    Contender::Nebula,
    Contender::Stunnel,
    Contender::Ssh,
];

/// A contender that runs. Dropping it ends its processes.
pub(crate) struct Running {
    /// The address that clients dial.
    pub(crate) at: SocketAddr,
    pub(crate) processes: Vec<Process>,
}

impl Contender {
    /// Its name in tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Meshport => "meshport",
            Self::Direct => "direct",
            Self::Haproxy => "haproxy",
            Self::WireguardGo => "wireguard-go+haproxy",
            Self::Boringtun => "boringtun+haproxy",
            Self::Nebula => "nebula+haproxy",
            Self::Stunnel => "stunnel",
            Self::Ssh => "ssh -L",
        }
    }

    /// The version of wireguard-go, which differs by a factor of three; none of the others.
    pub(crate) fn version(self) -> Option<&'static str> {
        static WIREGUARD_GO: LazyLock<Option<String>> = LazyLock::new(wireguard_go_version);
        (self == Self::WireguardGo).then(|| WIREGUARD_GO.as_deref()).flatten()
    }

    /// The requirement that this machine does not meet, and how to meet it.
    pub(crate) fn lacks(self) -> Option<String> {
        let debian = |program: &str, package: &str| {
            let found = on_path(program).is_some();
            (!found).then(|| format!("there is no {program}; install the Debian package {package}"))
        };
        let haproxy = || debian("haproxy", "haproxy");
        match self {
            Self::Meshport | Self::Direct => None,
            Self::Haproxy => haproxy(),
            Self::WireguardGo => {
                haproxy().or_else(|| debian("wg", "wireguard-tools")).or_else(|| {
                    wireguard_go().is_none().then(|| {
                        "there is no wireguard-go; install the Debian package wireguard-go".into()
                    })
                })
            }
            Self::Boringtun => {
                haproxy().or_else(|| debian("wg", "wireguard-tools")).or_else(|| {
                    let remedy =
                        "there is no boringtun-cli; `cargo install boringtun-cli`, and name it";
                    boringtun().is_none().then(|| format!("{remedy} in {BORINGTUN_VARIABLE}"))
                })
            }
            Self::Nebula => haproxy().or_else(|| debian("nebula", "nebula")),
            Self::Stunnel => debian("stunnel", "stunnel4"),
            Self::Ssh => {
                debian("sshd", "openssh-server").or_else(|| debian("ssh", "openssh-client"))
            }
        }
    }

    /// Starts it and waits until the server answers through it.
    pub(crate) fn start(self, testbed: &Testbed) -> Running {
        let running = match self {
            Self::Meshport => start_meshport(testbed),
            Self::Direct => Running { at: SocketAddr::from((FAR, SERVER)), processes: Vec::new() },
            Self::Haproxy => {
                let haproxy = rivals::haproxy(testbed, SocketAddr::from((FAR, SERVER)));
                Running { at: LOCAL, processes: vec![haproxy] }
            }
            Self::WireguardGo => {
                let program = wireguard_go().expect("who lacks it does not start");
                rivals::wireguard(testbed, move |host, interface| {
                    wireguard::wireguard_go_at(&program, host, interface)
                })
            }
            Self::Boringtun => {
                let program = boringtun().expect("who lacks it does not start");
                rivals::wireguard(testbed, move |host, interface| {
                    let mut command = host.command(&program.to_string_lossy());
                    let flags = ["--foreground", "--disable-drop-privileges"];
                    command.args(flags).arg(interface);
                    command
                })
            }
            Self::Nebula => rivals::nebula(testbed),
            Self::Stunnel => rivals::stunnel(testbed),
            Self::Ssh => rivals::ssh(testbed),
        };
        let what = format!("the server answers through {}", self.name());
        wait::until(&what, START_LIMIT, || testbed.answers(running.at).then_some(()));
        running
    }
}

impl Running {
    /// Processor time that all its processes have used.
    pub(crate) fn processor_time(&self) -> Duration {
        self.processes.iter().map(Process::processor_time).sum()
    }

    /// Resident memory of each of its processes now, in KiB.
    pub(crate) fn resident_kib(&self) -> Vec<u64> {
        self.processes.iter().map(Process::resident_kib).collect()
    }

    /// The most that all its processes together have had resident, in KiB.
    pub(crate) fn peak_kib(&self) -> u64 {
        self.processes.iter().map(Process::peak_kib).sum()
    }
}

/// Sessions that a proxy with two descriptors for each can have here, a few kept for itself.
pub(crate) fn most_sessions() -> usize {
    const KEPT: u64 = 400;
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let most = files.map_or(u64::MAX, |files| files.saturating_sub(KEPT) / 2);
    usize::try_from(most).unwrap_or(usize::MAX)
}

fn boringtun() -> Option<PathBuf> {
    named_or(std::env::var_os(BORINGTUN_VARIABLE), || on_path("boringtun-cli"))
}

fn wireguard_go() -> Option<PathBuf> {
    named_or(std::env::var_os(WIREGUARD_GO_VARIABLE), || on_path("wireguard-go"))
}

/// The version that wireguard-go reports, if it is installed.
fn wireguard_go_version() -> Option<String> {
    let output = Command::new(wireguard_go()?).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().next().map(str::to_owned)
}

/// The named program, if it exists, or another one.
fn named_or(named: Option<OsString>, other: impl FnOnce() -> Option<PathBuf>) -> Option<PathBuf> {
    named.map(PathBuf::from).filter(|path| path.is_file()).or_else(other)
}

fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    folders.map(|folder| folder.join(program)).find(|file| file.is_file())
}

/// Two nodes, made as an operator makes them; the far one offers the server as service `bench`.
fn start_meshport(testbed: &Testbed) -> Running {
    let binary = meshport().to_string_lossy().into_owned();
    let state = |name: &str| testbed.file(name).to_string_lossy().into_owned();
    let (far, near) = (state("far"), state("near"));
    let roles = ["--role", "node", "--role", "origin:bench"];
    let init = ["init", "--state-dir", &far, "--site", "far", "--name", "far"];
    run_ok(&binary, &[&init[..], &roles].concat());
    let endpoint = format!("{FAR}:51820");
    let invite = ["invite", "--state-dir", &far, "--site", "near", "--ttl", "1h"];
    let more = ["--role", "node", "--endpoint", &endpoint];
    let invite = run_ok(&binary, &[&invite[..], &more].concat());
    run_ok(&binary, &["join", &invite, "--state-dir", &near, "--name", "near"]);
    let node = |host: &Namespace, name: &str, address: &str, service: &str| {
        let config = testbed.file(&format!("{name}.toml"));
        let text = format!(
            "site = \"{name}\"\nstate-dir = \"{}\"\n[mesh]\nlisten = \"{address}:51820\"\n\
             advertise = [\"{address}:51820\"]\n[admin]\nhttp = \"off\"\n[log]\nlevel = \"info\"\n\
             [service.bench]\n{service}\nmax-sessions = 20000\n\
             [service.bench.health]\nmode = \"tcp\"\n\
             [service.kube-apiserver]\nmax-sessions = 1\n",
            state(name)
        );
        fs::write(&config, text).expect("the folder can be written");
        let mut command = host.command(&binary);
        command.arg("run").arg("--config").arg(&config);
        Process::start(name, &mut command, &testbed.file(&format!("meshport-{name}.log")))
    };
    let origin = format!("listen = []\norigin = \"127.0.0.1:{SERVER}\"");
    let origin = node(&testbed.far, "far", &FAR.to_string(), &origin);
    let worker = node(&testbed.near, "near", &NEAR.to_string(), &format!("listen = [\"{LOCAL}\"]"));
    Running { at: LOCAL, processes: vec![worker, origin] }
}

/// A file of settings.
pub(crate) fn write(path: &Path, text: &str) {
    fs::write(path, text).expect("the folder can be written");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_that_is_named_is_the_one_if_it_is_there() {
        let own = std::env::current_exe().expect("a running program has a path");
        let other = || Some(PathBuf::from("other"));
        assert_eq!(named_or(Some(own.clone().into()), other), Some(own));
        assert_eq!(named_or(Some("/nowhere/program".into()), other), other());
        assert_eq!(named_or(None, other), other());
    }
}
