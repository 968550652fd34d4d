//! A userspace WireGuard between two hosts, configured with `wg` as in its manual: the usual layer
//! below haproxy without a mesh.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::netns::Namespace;
use crate::process::run_ok;
use crate::wait;

/// Bytes that WireGuard adds to an IPv4 packet: IP 20, UDP 8, header and tag 32.
pub const OVERHEAD: u32 = 60;
/// The hosts' addresses inside the tunnel.
pub const INNER: [&str; 2] = ["10.79.0.1", "10.79.0.2"];
/// UDP port of both ends.
const PORT: u16 = 51821;
/// How long a program may take to create its interface.
const START_LIMIT: Duration = Duration::from_secs(30);

/// An end of a tunnel.
#[derive(Debug, Clone, Copy)]
pub struct End<'a> {
    /// The host.
    pub host: &'a Namespace,
    /// Its outer address.
    pub address: &'a str,
    /// Its name in log files and interfaces; the first letters of both ends differ.
    pub name: &'a str,
}

/// The command for Debian's `wireguard-go`.
pub fn wireguard_go(host: &Namespace, interface: &str) -> Command {
    wireguard_go_at(Path::new("wireguard-go"), host, interface)
}

/// The command for another `wireguard-go`.
pub fn wireguard_go_at(program: &Path, host: &Namespace, interface: &str) -> Command {
    let mut command = host.command(&program.to_string_lossy());
    command.args(["--foreground", interface]);
    command
}

/// Creates a tunnel over a path with this MTU. `start` gets the name of each end and its command,
/// and starts it; keys are written below `folder`.
pub fn tunnel(
    ends: [End<'_>; 2],
    mtu: u32,
    folder: &Path,
    program: impl Fn(&Namespace, &str) -> Command,
    mut start: impl FnMut(&str, &mut Command),
) {
    let mut keys = Vec::new();
    for End { host, name, .. } in ends {
        let interface = interface(name);
        forget_socket(&interface);
        start(name, &mut program(host, &interface));
        wait::until("the tunnel's interface is there", START_LIMIT, || {
            host.succeeds("wg", &["show", &interface]).then_some(())
        });
        let file = folder.join(format!("wireguard-{name}.key"));
        fs::write(&file, run_ok("wg", &["genkey"])).expect("the test's folder can be written");
        let only_owner = fs::Permissions::from_mode(0o600);
        fs::set_permissions(&file, only_owner).expect("the file is ours");
        let public = host.run("sh", &["-c", &format!("wg pubkey <{}", file.display())]);
        keys.push((file, public));
    }
    let mtu = (mtu - OVERHEAD).to_string();
    for (at, End { host, name, .. }) in ends.into_iter().enumerate() {
        let (other, interface) = (1 - at, interface(name));
        let (port, key) = (PORT.to_string(), keys[at].0.to_string_lossy());
        let endpoint = format!("{}:{PORT}", ends[other].address);
        let allowed = format!("{}/32", INNER[other]);
        let own = ["set", &*interface, "listen-port", &port, "private-key", &*key];
        let peer = ["peer", &keys[other].1, "endpoint", &endpoint, "allowed-ips", &allowed];
        host.run("wg", &[&own[..], &peer].concat());
        host.ip(&["addr", "add", &format!("{}/24", INNER[at]), "dev", &interface]);
        host.ip(&["link", "set", &interface, "mtu", &mtu, "up"]);
    }
}

/// Unix time of the last completed handshake with its only peer; 0 is never.
///
/// # Panics
/// If `wg` does not say it.
pub fn latest_handshake(host: &Namespace, interface: &str) -> u64 {
    shown(host, interface, "latest-handshakes", 1)
}

/// Bytes received from and sent to its only peer.
///
/// # Panics
/// If `wg` does not say it.
pub fn transferred(host: &Namespace, interface: &str) -> [u64; 2] {
    [1, 2].map(|word| shown(host, interface, "transfer", word))
}

fn shown(host: &Namespace, interface: &str, what: &str, word: usize) -> u64 {
    let shown = host.run("wg", &["show", interface, what]);
    let number = shown.split_whitespace().nth(word).and_then(|number| number.parse().ok());
    number.unwrap_or_else(|| panic!("wg shows other {what}: {shown}"))
}

/// How often `word` occurs in a log before the first line with `end`.
pub fn count_before(log: &str, end: &str, word: &str) -> usize {
    let (before, _) = log.split_once(end).unwrap_or_else(|| panic!("no {end:?} in this:\n{log}"));
    before.matches(word).count()
}

/// From now on a host drops everything that arrives through its tunnel, and sends only UDP to this
/// port into it. Messages of the tunnel's program itself still pass.
///
/// # Panics
/// If the host has no `nft`, or the folder cannot be written.
pub fn silence(host: &Namespace, interface: &str, but: u16, folder: &Path) {
    let rules = format!(
        "table inet silent {{\n\
         chain in {{\ntype filter hook input priority 0;\niifname \"{interface}\" drop\n}}\n\
         chain out {{\ntype filter hook output priority 0;\n\
         oifname \"{interface}\" udp dport {but} accept\noifname \"{interface}\" drop\n}}\n\
         }}\n"
    );
    let file = folder.join("silent.nft");
    fs::write(&file, rules).expect("the test's folder can be written");
    host.run("nft", &["-f", &file.to_string_lossy()]);
}

/// Removes the socket that a killed program left for the same interface. The new program would
/// remove it, and so would the `wg` that waits for that program; the second of the two fails.
pub fn forget_socket(interface: &str) {
    let socket = Path::new("/var/run/wireguard").join(interface).with_extension("sock");
    match fs::remove_file(&socket) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            panic!("{} cannot be removed: {error}", socket.display())
        }
        Ok(()) | Err(_) => {}
    }
}

/// The name is used for a socket that all hosts of this machine share.
fn interface(name: &str) -> String {
    format!("mpb{}{}", std::process::id() % 1_000_000, &name[..1])
}
