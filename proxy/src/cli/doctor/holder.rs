//! Finds the process that uses an address, as far as this user may see it.
//!
//! /proc/net lists all sockets with inode and user; the process has the inode among its open files.
//! Only root can list other users' open files, so for others only the user is named.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

/// The protocol of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Tcp,
    Udp,
}

/// State of a listening TCP socket, `TCP_LISTEN` of the kernel.
const LISTENING: &str = "0A";
/// The maximum number of processes examined; a node has a few thousand at most.
const MAX_PROCESSES: usize = 50_000;

/// `name (pid 7)`, or the user; `None` if it cannot be found.
pub(super) fn of(address: SocketAddr, protocol: Protocol) -> Option<String> {
    of_proc(Path::new("/proc"), address, protocol)
}

fn of_proc(proc: &Path, address: SocketAddr, protocol: Protocol) -> Option<String> {
    let tables: [&str; 2] = match protocol {
        Protocol::Tcp => ["tcp", "tcp6"],
        Protocol::Udp => ["udp", "udp6"],
    };
    let socket = tables.into_iter().find_map(|table| {
        let text = fs::read_to_string(proc.join("net").join(table)).ok()?;
        text.lines().skip(1).find_map(|line| socket(line, address, protocol))
    })?;
    Some(process(proc, &socket.inode).unwrap_or(format!("a process of user {}", socket.user)))
}

struct Socket {
    user: String,
    inode: String,
}

/// The socket of a line, if it conflicts with `address`.
fn socket(line: &str, address: SocketAddr, protocol: Protocol) -> Option<Socket> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, local, _, state, _, _, _, user, _, inode, ..] = fields[..] else { return None };
    let local = parse(local)?;
    let overlaps =
        local.ip() == address.ip() || local.ip().is_unspecified() || address.ip().is_unspecified();
    let listens = protocol == Protocol::Udp || state == LISTENING;
    (local.port() == address.port() && overlaps && listens)
        .then(|| Socket { user: user.to_owned(), inode: inode.to_owned() })
}

/// An address as /proc/net has it: words of 32 bits in the machine's order, in hexadecimal.
fn parse(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| u32::from_str_radix(ip.get(at..at + 8)?, 16).ok();
    let ip = match ip.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?.to_ne_bytes())),
        32 => {
            let mut bytes = [0; 16];
            for (at, four) in bytes.chunks_exact_mut(4).enumerate() {
                four.copy_from_slice(&word(at * 8)?.to_ne_bytes());
            }
            IpAddr::V6(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip.to_canonical(), port))
}

fn process(proc: &Path, inode: &str) -> Option<String> {
    let wanted = format!("socket:[{inode}]");
    let has_it = |pid: &str| {
        let files = fs::read_dir(proc.join(pid).join("fd")).ok();
        let links = files.into_iter().flatten().flatten();
        links
            .filter_map(|link| fs::read_link(link.path()).ok())
            .any(|it| it.as_os_str() == &*wanted)
    };
    let entries = fs::read_dir(proc).ok()?.flatten().take(MAX_PROCESSES);
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut pids = names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    let pid = pids.find(|pid| has_it(pid))?;
    let name = fs::read_to_string(proc.join(&pid).join("comm")).unwrap_or_default();
    Some(format!("{} (pid {pid})", name.trim()))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::*;

    #[test]
    fn the_holder_of_a_port_is_this_process() {
        let tcp = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = tcp.local_addr().expect("an address");
        let who = of(address, Protocol::Tcp).expect("it is held");
        assert!(who.ends_with(&format!("(pid {})", std::process::id())), "{who}");
        let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), address.port());
        assert_eq!(of(any, Protocol::Tcp), Some(who.clone()));
        let udp = UdpSocket::bind("[::1]:0").or_else(|_no_ipv6| UdpSocket::bind("127.0.0.1:0"));
        let udp = udp.expect("a port");
        assert_eq!(of(udp.local_addr().expect("an address"), Protocol::Udp), Some(who));
        drop(tcp);
        assert_eq!(of(address, Protocol::Tcp), None);
    }

    #[test]
    fn lines_that_are_none_are_passed_over() {
        let address = "127.0.0.1:7445".parse().expect("an address");
        for line in ["", "0: 0100007F:1D15", "0: x:y 0:0 0A 0:0 0:0 0 0 0 1 1", "0: 0:1D15 a b"] {
            assert!(socket(line, address, Protocol::Tcp).is_none(), "{line}");
        }
        assert_eq!(parse("ab:1D15"), None);
    }
}
