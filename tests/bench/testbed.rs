//! Two hosts in network namespaces, the server on the far one, and between them a cable of the
//! asked MTU or a long line. A contender puts itself in between: clients of the near host dial its
//! local address, the server's own address is on the far host.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use meshport_demo::wan::LinkConfig;
use meshport_tests::net::Line;
use meshport_tests::netns::{Namespace, cable};
use meshport_tests::process::Process;
use meshport_tests::wait;

/// The hosts' addresses on the cable.
pub(crate) const NEAR: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
pub(crate) const FAR: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
/// The server's port, on all addresses of the far host.
pub(crate) const SERVER: u16 = 7000;
/// The address on the near host's loopback where a contender listens.
pub(crate) const LOCAL: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7600);
/// How long anything may take to be there.
pub(crate) const START_LIMIT: Duration = Duration::from_secs(30);

/// The two hosts.
pub(crate) struct Testbed {
    // First: it ends before the host it is on.
    server: Process,
    line: Option<Line>,
    pub(crate) near: Namespace,
    pub(crate) far: Namespace,
    pub(crate) mtu: u32,
    pub(crate) folder: PathBuf,
}

impl Testbed {
    /// Lays it out and starts the server.
    pub(crate) fn new(mtu: u32, folder: &Path) -> Self {
        let (near, far) = (Namespace::new(), Namespace::new());
        let ends = cable(&near, &format!("{NEAR}/24"), &far, &format!("{FAR}/24"));
        for (host, end) in [(&near, &ends[0]), (&far, &ends[1])] {
            host.ip(&["link", "set", end, "mtu", &mtu.to_string()]);
        }
        Self::with(near, far, None, mtu, folder)
    }

    /// Lays a long line of MTU 1500 instead of the cable.
    pub(crate) fn apart(link: &LinkConfig, seed: u64, folder: &Path) -> Self {
        let (near, far) = (Namespace::new(), Namespace::new());
        let line = Line::new([(&near, NEAR), (&far, FAR)], link, seed);
        Self::with(near, far, Some(line), 1500, folder)
    }

    fn with(near: Namespace, far: Namespace, line: Option<Line>, mtu: u32, folder: &Path) -> Self {
        for host in [&near, &far] {
            // Ten thousand connections to one address, and their ends that linger.
            host.run("sysctl", &["-qw", "net.ipv4.ip_local_port_range=1024 65000"]);
            host.run("sysctl", &["-qw", "net.ipv4.tcp_tw_reuse=1"]);
            host.run("sysctl", &["-qw", "net.core.somaxconn=4096"]);
        }
        let mut command = own(&far);
        command.args(["serve", &format!("0.0.0.0:{SERVER}")]);
        let server = Process::start("server", &mut command, &folder.join("server.log"));
        let testbed = Self { server, line, near, far, mtu, folder: folder.to_owned() };
        wait::until("the server listens", START_LIMIT, || {
            let test = ["-c", &format!("exec 3<>/dev/tcp/127.0.0.1/{SERVER}")];
            testbed.far.succeeds("bash", &test).then_some(())
        });
        testbed
    }

    /// Lets TCP connections on both hosts have buffers of this many bytes. The system-wide limit
    /// for sockets that request a size is not part of these namespaces.
    pub(crate) fn set_tcp_buffers(&self, bytes: u64) {
        for host in [&self.near, &self.far] {
            for way in ["rmem", "wmem"] {
                let setting = format!("net.ipv4.tcp_{way}=4096 131072 {bytes}");
                host.run("sysctl", &["-qw", &setting]);
            }
        }
    }

    /// Lets TCP connections of both hosts have this congestion control instead of the system's.
    pub(crate) fn set_tcp_congestion(&self, name: &str) {
        for host in [&self.near, &self.far] {
            host.run("sysctl", &["-qw", &format!("net.ipv4.tcp_congestion_control={name}")]);
        }
    }

    /// A command of this very program on the near host.
    pub(crate) fn client(&self) -> Command {
        own(&self.near)
    }

    /// Whether a connection through the contender is answered.
    pub(crate) fn answers(&self, at: SocketAddr) -> bool {
        let (ip, port) = (at.ip(), at.port());
        let test = format!(
            "exec 3<>/dev/tcp/{ip}/{port} && printf ex >&3 && timeout 2 head -c 1 <&3 | grep -q x"
        );
        self.near.succeeds("bash", &["-c", &test])
    }

    /// A file of this testbed's folder.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Whether the server is still there.
    pub(crate) fn check(&mut self) {
        assert!(self.server.is_running(), "the server has ended");
        let overflows = self.line.as_ref().map_or(0, Line::overflows);
        assert_eq!(overflows, 0, "packets did not fit into the emulated line");
    }
}

fn own(host: &Namespace) -> Command {
    let own = std::env::current_exe().expect("a running program has a path");
    host.command(&own.to_string_lossy())
}
