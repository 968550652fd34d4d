//! The generated unit under a running systemd: in its own machine, made of namespaces and this
//! system's programs by systemd-nspawn, step by step as docs/systemd.md says.

#![expect(clippy::print_stdout, reason = "what could not be checked, for the reader of a run")]

mod clients;
mod commands;

use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use meshport_tests::process::{Process, meshport};
use meshport_tests::wait;
use rcgen::CertificateParams;
use tempfile::TempDir;

use clients::{restarts_fail_no_client, upgrades_in_place};

/// Starts within 10 s after which systemd gives up, unless the unit sets another limit; with a
/// second before each, and the time of a start, it is slightly more.
const GIVEN_UP: u32 = 10;
const PATIENCE: Duration = Duration::from_secs(120);
/// File that collects the skipped checks, for the table at the end of `tests/run`.
const NOT_CHECKED: &str = "MESHPORT_NOT_CHECKED";
/// System calls that nspawn's filter in version 252 has no rule for, and that a machine allows.
const LANDLOCK: &str = "landlock_create_ruleset landlock_add_rule landlock_restrict_self";
/// Folders of the root that are links into `/usr`.
const MERGED: [&str; 4] = ["bin", "sbin", "lib", "lib64"];
const PROGRAM: &str = "/usr/local/bin/meshport";
const UNIT: &str = "etc/systemd/system/meshport.service";
/// Where docs/virtual-addresses.md has it.
const DROP_IN: &str = "etc/systemd/system/meshport.service.d/virtual-address.conf";
const SETTINGS: &str = "etc/meshport/meshport.toml";
/// Those attempts of `meshport-confined` that the unit's sandbox allows.
const ALLOWED: [&str; 2] = ["keep-state", "listen"];
/// The file to which it reports the successful attempts.
const TRIED: &str = "/run/tried";
/// The drop-in from docs/systemd.md for a service that listens below 1024.
const BELOW_1024: &str = "[Service]\n\
    AmbientCapabilities=CAP_NET_BIND_SERVICE\n\
    CapabilityBoundingSet=CAP_NET_BIND_SERVICE\n\
    PrivateUsers=no\n";
/// Files that only root can read, handed over as docs/systemd.md has it.
const CREDENTIALS: &str = "[Service]\n\
    LoadCredential=client.crt:/etc/kubernetes/pki/client.crt\n\
    LoadCredential=client.key:/etc/kubernetes/pki/client.key\n";

/// A machine with its own systemd; it ends when this is dropped.
struct Machine {
    nspawn: Process,
    name: String,
    /// Its process 1, as this machine knows it.
    leader: u32,
    folder: TempDir,
}

impl Machine {
    /// Boots one; or why that is not possible here.
    fn boot() -> Result<Self, String> {
        let folder = tempfile::Builder::new().prefix("mp").tempdir().expect("a folder");
        let root = folder.path().join("root");
        furnish(&root)?;
        let name = name();
        let mut nspawn = Command::new("systemd-nspawn");
        nspawn.args(["--quiet", "--private-network", "--register=no", "--keep-unit"]);
        nspawn.args(["--link-journal=no", "--console=pipe", "--boot"]);
        nspawn.arg(format!("--machine={name}"));
        nspawn.arg(format!("--system-call-filter={LANDLOCK}"));
        nspawn.arg("--directory").arg(&root);
        for entry in fs::read_dir("/usr").expect("a folder").flatten() {
            if entry.file_name() != "local" && entry.path().is_dir() {
                nspawn.arg(format!("--bind-ro={}", entry.path().display()));
            }
        }
        // It needs neither, and they take seconds.
        nspawn.args(["systemd.mask=systemd-logind.service", "systemd.mask=dbus.socket"]);
        let mut nspawn =
            Process::start("systemd-nspawn", &mut nspawn, &folder.path().join("nspawn.log"));
        let leader = wait::within(PATIENCE, || match leader(nspawn.id()) {
            Some(leader) => Some(Some(leader)),
            None => (!nspawn.is_running()).then_some(None),
        });
        let Some(leader) = leader.flatten() else {
            return Err(format!("systemd-nspawn makes no machine: {}", nspawn.output().trim()));
        };
        let machine = Self { nspawn, name, leader, folder };
        let booted = wait::within(PATIENCE, || {
            let state = said(&machine.output(&["systemctl", "is-system-running"]));
            ["running", "degraded"].contains(&state.trim()).then_some(())
        });
        match booted {
            Some(()) => Ok(machine),
            None => Err(format!("systemd does not come up: {}", machine.nspawn.output().trim())),
        }
    }

    /// A path of the machine, seen from outside. What it mounts over it is not seen.
    fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join("root").join(path.trim_start_matches('/'))
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, text).expect("written");
    }

    fn install(&self, program: &Path, as_program: &str) {
        let path = self.path(as_program);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::copy(program, &path).expect("copied");
        fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("it is ours");
    }

    /// A command there, as its root.
    fn command(&self, command: &[&str]) -> Command {
        let mut enter = Command::new("nsenter");
        enter.args(["--target", &self.leader.to_string(), "--all", "env", "-i", "HOME=/"]);
        enter.arg("PATH=/usr/local/bin:/usr/bin:/usr/sbin").args(command);
        enter
    }

    /// Runs something there.
    fn output(&self, command: &[&str]) -> Output {
        self.command(command).output().expect("nsenter runs")
    }

    #[track_caller]
    fn run(&self, command: &[&str]) -> String {
        let output = self.output(command);
        assert!(output.status.success(), "{command:?}: {}{}", said(&output), self.journal());
        said(&output).trim().to_owned()
    }

    fn journal(&self) -> String {
        said(&self.output(&["journalctl", "--no-pager", "-o", "cat", "-n", "60"]))
    }

    /// A property of the unit.
    fn property(&self, name: &str) -> String {
        self.run(&["systemctl", "show", "--value", "-p", name, "meshport"])
    }

    /// Waits until the daemon answers and leads to the apiserver.
    #[track_caller]
    fn serves(&self) {
        self.run(&["meshport", "wait", "--timeout", "60s"]);
        assert_eq!(self.property("ActiveState"), "active");
        let version = self.run(&["curl", "-sSk", "https://127.0.0.1:7445/version"]);
        assert!(version.contains("gitVersion"), "{version}");
        let status = self.run(&["meshport", "status"]);
        assert!(status.contains("cp-1 in site fra"), "{status}");
    }

    /// The process id of the daemon, which is not the service's main process.
    fn process(&self) -> String {
        self.run(&["cat", "/var/lib/meshport/lock"]).trim().to_owned()
    }

    /// The daemon's file in /proc.
    fn daemon(&self, file: &str) -> String {
        let id = self.process();
        self.run(&["cat", &format!("/proc/{id}/{file}")])
    }

    /// The state is the service's alone, as the kernel and `ls` have it.
    fn state_is_the_services(&self) {
        let status = self.daemon("status");
        let user = status.lines().find_map(|line| line.strip_prefix("Uid:\t"));
        let user = user.and_then(|line| line.split('\t').next()).expect("a user");
        assert_ne!(user, "0");
        let link = self.run(&["readlink", "/var/lib/meshport"]);
        assert_eq!(link, "private/meshport");
        let inside = self.run(&["find", "/var/lib/meshport/", "-printf", "%y %m %U %f\n"]);
        assert!(inside.contains("node.key") && inside.contains("credential"), "{inside}");
        for line in inside.lines() {
            let kind = if line.starts_with('d') { "d 700" } else { "f 600" };
            assert!(line.starts_with(&format!("{kind} {user} ")), "{line} of this:\n{inside}");
        }
        let around = self.run(&["stat", "-c", "%a %u", "/var/lib/private", "/run/meshport"]);
        assert_eq!(around, format!("700 0\n755 {user}"));
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Its systemd ends all processes, and nspawn removes what it made around it.
        let _ = self.output(&["systemctl", "halt", "--force"]);
        let _ = wait::within(PATIENCE, || (!self.nspawn.is_running()).then_some(()));
        // It leaves this behind if `/run` is on a disk.
        let _ = fs::remove_dir(Path::new("/run/systemd/nspawn/propagate").join(&self.name));
    }
}

/// A name for a machine, of which a process may have several.
fn name() -> String {
    static MADE: AtomicU32 = AtomicU32::new(0);
    format!("meshport-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed))
}

/// The machine's root folder, with everything that is not bound into it.
fn furnish(root: &Path) -> Result<(), String> {
    let folders = ["etc/systemd/system", "var", "run", "proc", "sys", "dev", "tmp", "usr"];
    for folder in folders {
        fs::create_dir_all(root.join(folder)).expect("a folder");
    }
    for folder in MERGED {
        let here = Path::new("/").join(folder);
        match fs::read_link(&here) {
            Ok(target) => symlink(target, root.join(folder)).expect("a link"),
            Err(_) if here.exists() => return Err(format!("{} is no link", here.display())),
            Err(_) => {}
        }
    }
    fs::set_permissions(root, Permissions::from_mode(0o755)).expect("it is ours");
    for (file, text) in [
        ("machine-id", ""),
        ("passwd", "root:x:0:0:root:/:/bin/sh\n"),
        ("group", "root:x:0:\n"),
        ("shadow", "root:*:19000::::::\n"),
        ("nsswitch.conf", "passwd: files systemd\ngroup: files systemd\nhosts: files\n"),
    ] {
        fs::write(root.join("etc").join(file), text).expect("written");
    }
    let only_owner = Permissions::from_mode(0o600);
    fs::set_permissions(root.join("etc/shadow"), only_owner).expect("it is ours");
    let copied = [("/etc/ld.so.cache", "ld.so.cache"), ("/usr/lib/os-release", "os-release")];
    for (from, to) in copied {
        fs::copy(from, root.join("etc").join(to)).map_err(|error| format!("{from}: {error}"))?;
    }
    Ok(())
}

/// Process 1 of the machine.
fn leader(nspawn: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{nspawn}/task/{nspawn}/children")).ok()?;
    let mut children = children.split_whitespace().filter_map(|child| child.parse().ok());
    children.find(|child: &u32| {
        let name = fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
        let status = fs::read_to_string(format!("/proc/{child}/status")).unwrap_or_default();
        let first = |line: &str| line.starts_with("NSpid:") && line.ends_with("\t1");
        name.trim() == "systemd" && status.lines().any(first)
    })
}

fn said(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    format!("{}{error}", String::from_utf8_lossy(&output.stdout))
}

/// A machine, unless there can be none here, which is written down then.
fn machine() -> Option<Machine> {
    let reason = match Machine::boot() {
        Ok(machine) => return Some(machine),
        Err(reason) => reason,
    };
    let reason = format!("the unit was not run under a systemd: {reason}").replace('\n', " ");
    println!("NOT CHECKED: {reason}");
    if let Some(list) = std::env::var_os(NOT_CHECKED) {
        let list = OpenOptions::new().create(true).append(true).open(list);
        writeln!(list.expect("the list is there"), "{reason}").expect("it can be written");
    }
    None
}

/// An apiserver stand-in on the machine's network, and its port.
fn apiserver(machine: &Machine) -> (Process, String) {
    let path = |name: &str| machine.folder.path().join(name);
    let key = rcgen::KeyPair::generate().expect("a key");
    let certificate = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("a name");
    let certificate = certificate.self_signed(&key).expect("a certificate");
    fs::write(path("tls.crt"), certificate.pem()).expect("written");
    fs::write(path("tls.key"), key.serialize_pem()).expect("written");
    let mut command = Command::new("nsenter");
    command.args(["--target", &machine.leader.to_string(), "--net"]).arg(meshport());
    command.args(["stand-in", "--name", "cp-1", "--certificate"]).arg(path("tls.crt"));
    command.arg("--key").arg(path("tls.key")).arg("--port-file").arg(path("port"));
    let started = Process::start("stand-in", &mut command, &path("apiserver.log"));
    let port = || fs::read_to_string(path("port")).ok().filter(|port| !port.is_empty());
    let port = wait::until("the apiserver listens", PATIENCE, port);
    (started, port.trim().to_owned())
}

#[test]
#[ignore = "needs root and systemd-nspawn; ./tests/run operator"]
fn the_unit_serves_and_confines_under_a_running_systemd() {
    let Some(machine) = machine() else { return };
    let (_apiserver, port) = apiserver(&machine);
    let settings = format!(
        "site = \"fra\"\n\
         [service.kube-apiserver]\norigin = \"127.0.0.1:{port}\"\n"
    );
    install(&machine, &settings);
    serves_through_what_happens(&machine, &settings);
    restarts_fail_no_client(&machine);
    upgrades_in_place(&machine, &settings);
    a_closed_address_is_not_kept(&machine, &settings, &port);
    outlives_a_mistake(&machine, &settings);
    takes_credentials(&machine, &settings);
    holds_a_virtual_address(&machine, &settings);
    stops(&machine);
    confines(&machine);
    joins_and_starts_with_one_command(&machine, &port);
}

/// As on the page, with `init` for an invite.
fn install(machine: &Machine, settings: &str) {
    machine.install(meshport(), PROGRAM);
    machine.write(UNIT, &machine.run(&["meshport", "generate", "systemd"]));
    machine.write(SETTINGS, settings);
    let roles = "node,origin:kube-apiserver,vip";
    machine.run(&["meshport", "init", "--site", "fra", "--name", "cp-1", "--role", roles]);
    machine.run(&["systemctl", "daemon-reload"]);
    machine.run(&["systemctl", "enable", "--now", "meshport"]);
    machine.serves();
    machine.state_is_the_services();

    let sandbox = "sandbox enabled files=\"yes\" calls=\"yes\" capabilities=\"none\"";
    wait::until("the journal has that it is in a sandbox", PATIENCE, || {
        machine.journal().contains(sandbox).then_some(())
    });
    let record = machine.run(&[
        "journalctl",
        "--no-pager",
        "--unit=meshport",
        "--output=json",
        "--lines=1",
        "MESHPORT_NAME=cp-1",
        "MESHPORT_SITE=fra",
    ]);
    for part in ["\"PRIORITY\":\"6\"", "\"SYSLOG_IDENTIFIER\":\"meshport\"", "started name=cp-1"] {
        assert!(record.replace("\" : \"", "\":\"").contains(part), "{part}: {record}");
    }
    let status = machine.daemon("status");
    let none = "0000000000000000";
    for name in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert!(status.contains(&format!("{name}:\t{none}\n")), "{status}");
    }
    for line in ["NoNewPrivs:\t1\n", "Seccomp:\t2\n"] {
        assert!(status.contains(line), "{status}");
    }
    let limits = machine.daemon("limits");
    let core = limits.lines().find(|line| line.starts_with("Max core file size"));
    let core: Vec<&str> = core.expect("a limit").split_whitespace().collect();
    assert_eq!(core[4..6], ["0", "0"]);
}

fn serves_through_what_happens(machine: &Machine, settings: &str) {
    let first = machine.property("MainPID");
    machine.write(SETTINGS, &settings.replace("[service", "[log]\nlevel = \"debug\"\n[service"));
    machine.run(&["systemctl", "reload", "meshport"]);
    wait::until("the settings are read again", PATIENCE, || {
        machine.journal().contains("configuration reloaded").then_some(())
    });
    assert_eq!(machine.property("MainPID"), first, "a reload keeps the process");
    machine.serves();

    // As `meshport join` leaves it when run by root.
    machine.run(&["chown", "0:0", "/var/lib/meshport/credential"]);
    machine.run(&["systemctl", "restart", "meshport"]);
    let second = machine.property("MainPID");
    assert_ne!(second, first);
    machine.serves();
    machine.state_is_the_services();

    // The daemon and the service's main process each end with the other.
    let main = |machine: &Machine| machine.property("MainPID");
    for find in [Machine::process, main] {
        let before = machine.property("MainPID");
        machine.run(&["kill", "-s", "KILL", &find(machine)]);
        wait::until("systemd starts it again", PATIENCE, || {
            let now = machine.property("MainPID");
            (now != before && now != "0").then_some(())
        });
        machine.serves();
        machine.state_is_the_services();
    }
}

/// Without an apiserver the address is closed, and systemd has to release it too. The admin port
/// stays.
fn a_closed_address_is_not_kept(machine: &Machine, settings: &str, port: &str) {
    let kept = || machine.property("NFileDescriptorStore");
    let before = kept();
    assert_ne!(before, "0");
    machine.write(SETTINGS, &settings.replace(port, "1"));
    machine.run(&["systemctl", "reload", "meshport"]);
    wait::until("systemd keeps one socket", PATIENCE, || (kept() == "1").then_some(()));
    let refused = machine.output(&["curl", "-sSk", "https://127.0.0.1:7445/"]);
    assert!(said(&refused).contains("connect"), "{}", said(&refused));
    machine.write(SETTINGS, settings);
    machine.run(&["systemctl", "reload", "meshport"]);
    machine.serves();
    wait::until("systemd keeps them again", PATIENCE, || (kept() == before).then_some(()));
}

/// A mistake in the settings ends it again and again; once that is mended it serves.
fn outlives_a_mistake(machine: &Machine, settings: &str) {
    machine.write(SETTINGS, &settings.replace("origin", "orgin"));
    machine.run(&["systemctl", "restart", "meshport"]);
    wait::until("it has failed often", PATIENCE, || {
        assert_ne!(machine.property("ActiveState"), "failed", "systemd has given it up");
        let restarts: u32 = machine.property("NRestarts").parse().expect("a number");
        (restarts > GIVEN_UP).then_some(())
    });
    // Clients are refused meanwhile, since no process would accept them.
    assert_eq!(machine.property("NFileDescriptorStore"), "0");
    machine.write(SETTINGS, settings);
    machine.serves();
}

/// A client certificate that only root can read.
fn takes_credentials(machine: &Machine, settings: &str) {
    for (from, to) in [("tls.crt", "client.crt"), ("tls.key", "client.key")] {
        let text = fs::read_to_string(machine.folder.path().join(from)).expect("text");
        let path = format!("etc/kubernetes/pki/{to}");
        machine.write(&path, &text);
        fs::set_permissions(machine.path(&path), Permissions::from_mode(0o600)).expect("ours");
    }
    let ca = fs::read_to_string(machine.folder.path().join("tls.crt")).expect("text");
    machine.write("etc/kubernetes/pki/ca.crt", &ca);
    let health = "[service.kube-apiserver.health]\n\
         ca-file = \"/etc/kubernetes/pki/ca.crt\"\n\
         client-cert-file = \"/run/credentials/meshport.service/client.crt\"\n\
         client-key-file = \"/run/credentials/meshport.service/client.key\"\n";
    machine.write(SETTINGS, &format!("{settings}{health}"));
    machine.write(&format!("{UNIT}.d/credentials.conf"), CREDENTIALS);
    machine.run(&["systemctl", "daemon-reload"]);
    machine.run(&["systemctl", "restart", "meshport"]);
    machine.serves();
}

/// An interface with a carrier, and the settings of docs/virtual-addresses.md.
fn give_lan(machine: &Machine, interface: &str) {
    let link = format!(
        "ip link add {interface} type veth peer name switch && \
         ip link set {interface} up && ip link set switch up && \
         ip address add 192.0.2.10/32 dev lo && \
         sysctl -qw net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2"
    );
    assert_eq!(machine.run(&["sh", "-c", &link]), "");
}

/// With the drop-in, as docs/virtual-addresses.md has it; without, it says what is missing.
fn holds_a_virtual_address(machine: &Machine, settings: &str) {
    give_lan(machine, "vip0");
    let address = "[[virtual-address]]\nname = \"api\"\naddress = \"192.0.2.10\"\n\
                   interface = \"vip0\"\ngroup = \"rack\"\n";
    machine.write(SETTINGS, &format!("{settings}{address}"));
    machine.run(&["meshport", "check"]);
    machine.run(&["systemctl", "restart", "meshport"]);
    machine.serves();
    wait::until("it says what its unit lacks", PATIENCE, || {
        machine.journal().contains("meshport generate systemd-vip").then_some(())
    });
    machine.write(DROP_IN, &machine.run(&["meshport", "generate", "systemd-vip"]));
    machine.run(&["systemctl", "daemon-reload"]);
    machine.run(&["systemctl", "restart", "meshport"]);
    machine.serves();
    wait::until("it holds the address", PATIENCE, || {
        machine.run(&["meshport", "status"]).contains("holding for").then_some(())
    });
    let status = machine.daemon("status");
    assert!(status.contains("CapEff:\t0000000000000000\n"), "given up: {status}");
    machine.run(&["rm", &format!("/{DROP_IN}")]);
    machine.write(SETTINGS, settings);
    machine.run(&["systemctl", "daemon-reload"]);
    machine.run(&["systemctl", "restart", "meshport"]);
    machine.serves();
}

fn stops(machine: &Machine) {
    machine.run(&["systemctl", "stop", "meshport"]);
    assert_eq!(machine.property("ActiveState"), "inactive");
    assert_eq!(machine.property("Result"), "success");
    assert_eq!(machine.property("ExecMainStatus"), "0");
    assert!(!machine.output(&["curl", "-sSk", "https://127.0.0.1:7445/"]).status.success());
    assert!(!machine.output(&["ls", "/run/meshport"]).status.success(), "the folder is left");
    machine.run(&["ls", "/var/lib/private/meshport/node.key"]);
}

/// `meshport join --now` on a machine that has the unit and nothing else: as a worker, then as a
/// control plane, whose configuration it writes.
fn joins_and_starts_with_one_command(machine: &Machine, port: &str) {
    let first = format!(
        "site = \"fra\"\nstate-dir = \"/srv/first\"\n[admin]\nhttp = \"127.0.0.1:7501\"\n\
         [mesh]\nlisten = \"127.0.0.1:51821\"\nadvertise = [\"127.0.0.1:51821\"]\n\
         [service.kube-apiserver]\nlisten = [\"127.0.0.1:7500\"]\n\
         origin = \"127.0.0.1:{port}\"\n"
    );
    machine.write("srv/first.toml", &first);
    let role = "node,origin:kube-apiserver";
    let init = ["meshport", "init", "--state-dir", "/srv/first", "--site", "fra", "--name", "cp-2"];
    machine.run(&[&init[..], &["--role", role]].concat());
    let run = ["--unit=first", "meshport", "run", "--config", "/srv/first.toml"];
    machine.run(&[&["systemd-run", "--quiet"][..], &run[..]].concat());
    let invited = |role: &str, name: &str| {
        let invite = ["meshport", "invite", "--config", "/srv/first.toml", "--site", "fra"];
        let line = machine.run(&[&invite[..], &["--role", role, "--name", name]].concat());
        machine.write("srv/invite", line.lines().next().expect("a line"));
    };
    let forgets = || {
        machine.run(&["systemctl", "disable", "--quiet", "--now", "meshport"]);
        machine.run(&[
            "rm",
            "-rf",
            "/var/lib/private/meshport",
            "/var/lib/meshport",
            "/etc/meshport",
        ]);
    };

    forgets();
    invited("node", "worker-1");
    let shown = machine.run(&["meshport", "join", "--now", "/srv/invite"]);
    println!("{shown}");
    for words in ["name     worker-1\n", "address  127.0.0.1:7445", "reaches  cp-2 in fra, "] {
        assert!(shown.contains(words), "{words:?} is not in:\n{shown}");
    }
    assert!(shown.contains("server: https://127.0.0.1:7445"), "{shown}");
    let version = machine.run(&["curl", "-sSk", "https://127.0.0.1:7445/version"]);
    assert!(version.contains("gitVersion"), "{version}");
    assert_eq!(machine.run(&["systemctl", "is-enabled", "meshport"]), "enabled");
    machine.state_is_the_services();
    assert!(!machine.output(&["ls", "/etc/meshport"]).status.success(), "a worker needs no file");

    forgets();
    invited(role, "cp-3");
    let shown = machine.run(&["meshport", "join", "--now", "/srv/invite"]);
    assert!(shown.contains("/etc/meshport/meshport.toml sets this node's apiserver"), "{shown}");
    let written = machine.run(&["cat", "/etc/meshport/meshport.toml"]);
    assert!(written.contains("site = \"fra\"") && written.contains("127.0.0.1:6443"), "{written}");

    // Nothing is written if there is no unit.
    forgets();
    machine.run(&["mv", &format!("/{UNIT}"), "/srv/unit"]);
    machine.run(&["systemctl", "daemon-reload"]);
    let output = machine.output(&["meshport", "join", "--now", "/srv/invite"]);
    assert!(said(&output).contains("has no meshport.service"), "{}", said(&output));
    assert!(!machine.output(&["ls", "/var/lib/meshport"]).status.success(), "a state folder");
    machine.run(&["mv", "/srv/unit", &format!("/{UNIT}")]);
    machine.run(&["systemctl", "daemon-reload"]);
    machine.run(&["systemctl", "stop", "first"]);
}

/// The successful attempts of `meshport-confined` in the daemon's place.
fn confines(machine: &Machine) {
    let program = "/usr/local/bin/confined";
    machine.install(Path::new(env!("CARGO_BIN_EXE_meshport-confined")), program);
    let everybody = "umask 0; mkdir -p /home/somebody /run/user /etc/open /srv/open; \
         for it in /home/somebody /run/user /tmp; do echo open >$it/open; done";
    machine.run(&["sh", "-c", everybody]);
    let could = |log: &str| -> Vec<String> {
        let tried = log.lines().filter_map(|line| line.strip_prefix("tried "));
        let could = tried.filter_map(|line| line.strip_suffix(": yes"));
        could.map(str::to_owned).collect()
    };
    // The comparison: root can do all of it.
    let log = machine.run(&[program]);
    assert!(could(&log).len() == log.lines().count() && log.lines().count() > 10, "{log}");

    let unit = machine.run(&["meshport", "generate", "systemd", "--binary", program]);
    // Not in the journal, which may no longer know its unit.
    let once = format!("Restart=no\nStandardOutput=append:{TRIED}");
    let unit = unit.replace("Restart=always", &once);
    machine.write("etc/systemd/system/confined.service", &unit);
    let under_unit = || {
        machine.run(&["rm", "-f", TRIED]);
        machine.run(&["systemctl", "daemon-reload"]);
        machine.run(&["systemctl", "start", "confined"]);
        wait::until("it has tried everything", PATIENCE, || {
            let log = said(&machine.output(&["cat", TRIED]));
            log.contains("tried make-setuid").then_some(log)
        })
    };
    let log = under_unit();
    assert_eq!(could(&log), ALLOWED, "{log}");
    machine.run(&["systemctl", "stop", "confined"]);
    machine.write("etc/systemd/system/confined.service.d/low.conf", BELOW_1024);
    let log = under_unit();
    assert_eq!(could(&log), [&ALLOWED[..], &["listen-below-1024"]].concat(), "{log}");
}
