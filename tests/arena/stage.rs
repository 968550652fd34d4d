//! The stage of a run: hosts, upstreams, a mesh of real daemons, and the rivals.
//!
//! The upstreams are meshport's apiserver stand-ins, each a process on its own host. Rivals dial
//! them over the network; meshport's daemon on the same host dials its loopback. Dropping the stage
//! ends every process.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use meshport_tests::process::{Process, meshport};
use meshport_tests::wait;

use crate::contenders::Contender;
use crate::mesh::Mesh;
use meshport_tests::net::Network;

/// Names of the upstreams and of their hosts, nearest first.
pub(crate) const UPSTREAMS: [&str; 3] = ["near", "mid", "far"];
/// The client's round trip to each of them.
const ROUND_TRIPS: [Duration; 3] =
    [Duration::from_millis(2), Duration::from_millis(10), Duration::from_millis(14)];
/// The round trip between any other two hosts.
const ELSEWHERE: Duration = Duration::from_millis(10);
/// The host of clients and balancers; upstream `n` is on host `1 + n`, the relay on the last.
pub(crate) const CLIENT: usize = 0;
/// The host of the member that may relay, where there is one.
pub(crate) const RELAY: usize = 4;
/// The port of an apiserver.
const PORT: u16 = 6443;
/// Interval between the lines of a held connection.
const TICK: &str = "250ms";
/// How long an upstream may take to start on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(20);

/// See the module's description. Fields are dropped in this order.
pub(crate) struct Stage {
    rivals: Vec<Process>,
    mesh: Mesh,
    upstreams: Vec<Option<Process>>,
    pub(crate) network: Network,
    folder: PathBuf,
}

impl Stage {
    /// Starts all of it, with logs and settings in `folder`, and waits until meshport has chosen
    /// the nearest.
    pub(crate) fn new(
        contenders: &[Contender],
        relay: bool,
        seed: u64,
        folder: &Path,
        log_level: &str,
    ) -> Self {
        let mut addresses = vec![Ipv4Addr::new(10, 77, 0, 1)];
        addresses.extend([11, 12, 13].map(|host| Ipv4Addr::new(10, 77, 0, host)));
        addresses.extend(relay.then_some(Ipv4Addr::new(10, 77, 0, 21)));
        let network = Network::new(&addresses, seed);
        for a in 0..addresses.len() {
            for b in 0..a {
                let to_upstream = (b == CLIENT).then(|| ROUND_TRIPS.get(a - 1)).flatten();
                network.distance(a, b, *to_upstream.unwrap_or(&ELSEWHERE));
            }
        }
        let mut stage = Self {
            rivals: Vec::new(),
            mesh: Mesh::new(folder, log_level),
            upstreams: UPSTREAMS.iter().map(|_| None).collect(),
            network,
            folder: folder.to_owned(),
        };
        (0..UPSTREAMS.len()).for_each(|upstream| stage.start(upstream));
        if contenders.iter().any(Contender::is_ours) {
            stage.mesh.start(&stage.network, relay);
        }
        let upstreams: Vec<SocketAddr> = stage.addresses();
        for contender in contenders.iter().filter(|contender| !contender.is_ours()) {
            let client = &stage.network.hosts[CLIENT];
            let mut command =
                contender.start(|program| client.command(program), &upstreams, folder);
            let log = folder.join(format!("{}.log", contender.name));
            stage.rivals.push(Process::start(contender.name, &mut command, &log));
        }
        stage
    }

    /// The upstreams as rivals dial them.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        let hosts = &self.network.hosts[1..=UPSTREAMS.len()];
        hosts.iter().map(|host| SocketAddr::from((host.address, PORT))).collect()
    }

    /// The certificate authority of the upstreams, PEM.
    pub(crate) fn authority(&self) -> String {
        fs::read_to_string(self.folder.join("pki/ca.crt")).expect("upstreams make an authority")
    }

    /// Starts an upstream that does not run, and waits until it accepts connections.
    pub(crate) fn start(&mut self, upstream: usize) {
        let name = UPSTREAMS[upstream];
        let port_file = self.folder.join(format!("{name}.port"));
        // The file of an earlier start would be seen too early; there may be none.
        let _ = fs::remove_file(&port_file);
        let host = &self.network.hosts[1 + upstream];
        let mut command = host.command(&meshport().to_string_lossy());
        command.args(["stand-in", "--name", name, "--listen", &format!("0.0.0.0:{PORT}")]);
        command.arg("--pki").arg(self.folder.join("pki")).args(["--watch-interval", TICK]);
        command.arg("--port-file").arg(&port_file);
        let log = self.folder.join(format!("upstream-{name}.log"));
        self.upstreams[upstream] = Some(Process::start(name, &mut command, &log));
        wait::until("an upstream accepts connections", START_LIMIT, || {
            port_file.exists().then_some(())
        });
    }

    /// Ends an upstream as `kill -9` does.
    pub(crate) fn kill(&mut self, upstream: usize) {
        if let Some(process) = self.upstreams[upstream].take() {
            process.kill();
        }
    }

    /// Sends an upstream a signal.
    pub(crate) fn signal(&self, upstream: usize, signal: &str) {
        self.upstreams[upstream].as_ref().expect("the upstream runs").signal(signal);
    }
}
