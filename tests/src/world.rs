//! A small world: sites with distances between them, nodes that run the real daemon, apiservers
//! that speak real TLS, all on this test's own loopback addresses.
//!
//! Datagrams between nodes travel through the WAN emulator ([`Shaper`]), at whose public addresses
//! the nodes know each other. Each node is set up the way an operator does it: `init` on the first,
//! `invite` there and `join` here for the others, a TOML file, `run`.
//!
//! Dropping the world ends its processes and removes its folder.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use meshport_demo::wan::{LinkConfig, Shaper, ShaperConfig};
use serde_json::Value;
use tempfile::TempDir;

use crate::clients;
use crate::curl::{Answer, Curl};
use crate::http;
use crate::metrics::Metrics;
use crate::process::{Process, meshport, run, run_ok};
use crate::series::Load;
use crate::wait;

/// How long a daemon may take from its start to its first answer on a busy two-core machine.
const START_LIMIT: Duration = Duration::from_secs(20);
/// How long the members of a world may take to find each other.
const MEET_LIMIT: Duration = Duration::from_secs(60);
/// The timeout of every client here: a patient Kubernetes client's handshake timeout.
const CLIENT_LIMIT: Duration = Duration::from_secs(5);

/// The plan for a node of the world.
#[derive(Clone, Debug)]
pub struct NodePlan {
    name: String,
    site: String,
    origin: Option<SocketAddr>,
    roles: Vec<String>,
    mtu: Option<u16>,
    http: &'static str,
    settings: String,
    lifetime: Option<&'static str>,
    program: PathBuf,
}

impl NodePlan {
    /// A node that only uses services.
    pub fn new(name: &str, site: &str) -> Self {
        Self {
            name: name.to_owned(),
            site: site.to_owned(),
            origin: None,
            roles: vec!["node".to_owned()],
            mtu: None,
            http: "off",
            settings: String::new(),
            lifetime: None,
            program: meshport().to_owned(),
        }
    }

    /// An operator's machine, which is not a node.
    pub fn operator(name: &str, site: &str) -> Self {
        Self { roles: vec!["operator".to_owned()], ..Self::new(name, site) }
    }

    /// Makes it an origin with the apiserver at `address`.
    #[must_use]
    pub fn origin(mut self, address: SocketAddr) -> Self {
        self.origin = Some(address);
        self.role("origin:kube-apiserver")
    }

    /// Has one more role.
    #[must_use]
    pub fn role(mut self, role: &str) -> Self {
        self.roles.push(role.to_owned());
        self
    }

    /// Limits packets to this many bytes, as in networks with this MTU.
    #[must_use]
    pub fn mtu(mut self, bytes: u16) -> Self {
        self.mtu = Some(bytes);
        self
    }

    /// Joins with a credential of this lifetime, such as `24s`.
    #[must_use]
    pub fn lifetime(mut self, lifetime: &'static str) -> Self {
        self.lifetime = Some(lifetime);
        self
    }

    /// Uses another build of the product.
    #[must_use]
    pub fn program(mut self, program: &Path) -> Self {
        program.clone_into(&mut self.program);
        self
    }

    /// Serves metrics on a loopback port of the system's choice, see [`Node::http`].
    #[must_use]
    pub fn http(mut self) -> Self {
        self.http = "127.0.0.1:0";
        self
    }

    /// Adds settings: TOML that continues the table of the apiserver service, and then may open
    /// tables that the harness does not write itself.
    #[must_use]
    pub fn settings(mut self, toml: &str) -> Self {
        self.settings.push_str(toml);
        self
    }
}

/// A node of the world.
#[derive(Debug)]
pub struct Node {
    plan: NodePlan,
    state: PathBuf,
    config: PathBuf,
    log: PathBuf,
    /// The UDP address its mesh is bound to.
    pub udp: SocketAddr,
    /// The address where its node's clients reach the apiserver.
    pub local: SocketAddr,
    process: Option<Process>,
}

impl Node {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.plan.name
    }

    /// Its state folder.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// Its configuration file.
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// The build that its daemon runs from its next start on.
    pub fn set_program(&mut self, program: &Path) {
        program.clone_into(&mut self.plan.program);
    }

    /// Its running daemon.
    #[track_caller]
    pub fn process(&mut self) -> &mut Process {
        self.process.as_mut().unwrap_or_else(|| panic!("{} does not run", self.plan.name))
    }

    /// What `meshport status --json` prints, if the daemon answers at its usual socket. Tests poll
    /// it, so it is asked without a process.
    pub fn status(&self) -> Option<Value> {
        let reply = http::get_local(&self.socket(), "/status").ok()?;
        (reply.status == 200).then(|| serde_json::from_str(&reply.body).ok())?
    }

    /// Its usual admin socket.
    pub fn socket(&self) -> PathBuf {
        self.state.join("meshport.sock")
    }

    /// The output of `meshport explain`, as text or as JSON.
    #[track_caller]
    pub fn explain(&self, arguments: &[&str]) -> String {
        self.ask("explain", arguments)
    }

    /// The output of a command that queries the daemon.
    #[track_caller]
    pub fn ask(&self, verb: &str, arguments: &[&str]) -> String {
        let config = self.config.to_string_lossy();
        let all = [&[verb, "--config", &*config], arguments].concat();
        run_ok(&meshport().to_string_lossy(), &all)
    }

    /// The name of the origin new sessions of the apiserver service try first.
    pub fn chosen(&self) -> Option<String> {
        let status = self.status()?;
        let services = status["services"].as_array()?;
        let own = services.iter().find(|service| service["name"] == "kube-apiserver")?;
        own["chosen"]["name"].as_str().map(str::to_owned)
    }

    /// The bound address of a named service, from the status.
    pub fn service(&self, name: &str) -> Option<SocketAddr> {
        let status = self.status()?;
        let services = status["services"].as_array()?;
        let own = services.iter().find(|service| service["name"] == name)?;
        own["listen"][0].as_str()?.parse().ok()
    }

    /// Its loopback HTTP address, from the status.
    pub fn http(&self) -> Option<SocketAddr> {
        self.status()?["admin_http"].as_str()?.parse().ok()
    }

    /// How many members it sees alive, itself included.
    pub fn alive(&self) -> u64 {
        let status = self.status();
        status.and_then(|status| status["members"]["alive"].as_u64()).unwrap_or(0)
    }

    /// Its metrics page.
    #[track_caller]
    pub fn metrics(&self) -> Metrics {
        let reply = http::get_local(&self.socket(), "/metrics").expect("the daemon answers");
        assert_eq!(reply.status, 200, "{reply:?}");
        Metrics::parse(&reply.body)
    }
}

/// An apiserver stand-in of the world.
#[derive(Debug)]
pub struct Apiserver {
    name: String,
    /// Its address, kept over restarts.
    pub address: SocketAddr,
    process: Option<Process>,
}

/// See the module's description.
#[derive(Debug)]
pub struct World {
    // Processes end before the folder they write to is removed: fields are dropped in this order.
    nodes: BTreeMap<String, Node>,
    apiservers: BTreeMap<String, Apiserver>,
    shaper: Shaper,
    first: Option<String>,
    next_host: u8,
    network: [u8; 2],
    /// Output of `init` and `join`, with their names.
    said: Vec<(String, Vec<u8>)>,
    /// The lines that nodes have joined with.
    invites: Vec<String>,
    folder: TempDir,
}

impl World {
    /// A world without nodes, in which every distance is zero.
    pub fn new() -> Self {
        /// Distinguishes the worlds of one process.
        static COUNT: AtomicU8 = AtomicU8::new(0);
        let config = ShaperConfig { strangers: true, ..ShaperConfig::default() };
        let shaper = Shaper::start(config).expect("the WAN emulator starts");
        let folder = tempfile::Builder::new().prefix("mp").tempdir().expect("a temporary folder");
        // Each world has its part of 127.0.0.0/8: 127.a.b.0/24, by process and count.
        let process = std::process::id().to_be_bytes();
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let network = [64 | (process[2] & 0x3f), process[3].wrapping_add(count.wrapping_mul(16))];
        Self {
            nodes: BTreeMap::new(),
            apiservers: BTreeMap::new(),
            shaper,
            first: None,
            next_host: 1,
            network,
            said: Vec::new(),
            invites: Vec::new(),
            folder,
        }
    }

    /// Sets the round-trip time between two sites.
    pub fn distance(&self, a: &str, b: &str, round_trip: Duration) {
        self.shaper.set_link(a, b, &LinkConfig::delay(round_trip / 2));
    }

    /// The WAN emulator, for cuts and counters.
    pub fn shaper(&self) -> &Shaper {
        &self.shaper
    }

    /// A file or folder in the world's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts an apiserver stand-in of that name on a free port, and returns its address.
    #[track_caller]
    pub fn apiserver(&mut self, name: &str) -> SocketAddr {
        let free = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
        let server = Apiserver { name: name.to_owned(), address: free, process: None };
        self.apiservers.insert(name.to_owned(), server);
        self.start_apiserver(name);
        self.apiservers[name].address
    }

    /// Starts an apiserver, and a node of its name and this site that offers it.
    #[track_caller]
    pub fn origin(&mut self, name: &str, site: &str) {
        let address = self.apiserver(name);
        self.node(&NodePlan::new(name, site).origin(address));
    }

    /// Restarts a killed apiserver at its address.
    #[track_caller]
    pub fn start_apiserver(&mut self, name: &str) {
        let (pki, port_file) = (self.path("pki"), self.path(&format!("{name}.port")));
        let log = self.path(&format!("apiserver-{name}.log"));
        let server = self.apiservers.get_mut(name).expect("the world has this apiserver");
        // A port file of an earlier start would be read too early.
        let _ = fs::remove_file(&port_file);
        let mut command = Command::new(meshport());
        command.args(["stand-in", "--name", name, "--listen", &server.address.to_string()]);
        command.arg("--pki").arg(&pki).arg("--port-file").arg(&port_file);
        server.process = Some(Process::start(&server.name, &mut command, &log));
        let port = wait::until("the apiserver tells its port", START_LIMIT, || {
            let text = fs::read_to_string(&port_file).ok()?;
            let text = text.trim();
            // The file may hold a port or a whole address.
            text.rsplit(':').next()?.parse().ok()
        });
        server.address.set_port(port);
    }

    /// Ends an apiserver as `kill -9` does.
    #[track_caller]
    pub fn kill_apiserver(&mut self, name: &str) {
        let server = self.apiservers.get_mut(name).expect("the world has this apiserver");
        server.process.take().expect("the apiserver runs").kill();
    }

    /// Sets the answer of an apiserver's `/readyz`: 200 or 500. Everything else is still served.
    #[track_caller]
    pub fn set_ready(&self, name: &str, ready: bool) {
        let process = self.apiservers[name].process.as_ref().expect("the apiserver runs");
        process.signal(if ready { "USR2" } else { "USR1" });
    }

    /// Makes a node and starts its daemon.
    #[track_caller]
    pub fn node(&mut self, plan: &NodePlan) {
        let name = plan.name.clone();
        self.make(plan);
        self.start(&name);
    }

    /// Sets up a node (`init` or `invite` and `join`, and its settings) without starting it.
    #[track_caller]
    pub fn make(&mut self, plan: &NodePlan) {
        let address = IpAddr::from([127, self.network[0], self.network[1], self.next_host]);
        self.next_host += 1;
        let node = Node {
            plan: plan.clone(),
            state: self.path(&plan.name),
            config: self.path(&format!("{}.toml", plan.name)),
            log: self.path(&format!("{}.log", plan.name)),
            udp: free_udp(address),
            local: free_tcp(address),
            process: None,
        };
        let public = self.shaper.add_node(&plan.name, &plan.site, Some(node.udp));
        let public = public.expect("the WAN emulator takes another node");
        match self.first.clone() {
            None => {
                self.init(&node);
                self.first = Some(plan.name.clone());
            }
            Some(first) => {
                let invite = self.invite(&first, plan);
                self.join(&node, &invite);
                self.invites.push(invite);
            }
        }
        let text = settings(&node, public);
        fs::write(&node.config, text).expect("the world's folder can be written");
        self.nodes.insert(plan.name.clone(), node);
    }

    fn init(&mut self, node: &Node) {
        let state = node.state.to_string_lossy();
        let mut arguments = vec!["init", "--state-dir", &*state, "--site", &*node.plan.site];
        arguments.extend(["--name", &*node.plan.name]);
        arguments.extend(node.plan.roles.iter().flat_map(|role| ["--role", &**role]));
        self.run(&node.plan.program, &arguments);
    }

    fn join(&mut self, node: &Node, invite: &str) {
        let state = node.state.to_string_lossy();
        let arguments = ["join", invite, "--state-dir", &*state, "--name", &*node.plan.name];
        self.run(&node.plan.program, &arguments);
    }

    /// Runs a verb that sets up a node, and keeps its output.
    fn run(&mut self, program: &Path, arguments: &[&str]) {
        let output = run(&program.to_string_lossy(), arguments);
        let problem = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "meshport {}: {problem}", arguments.join(" "));
        let what = format!("meshport {}", arguments[0]);
        self.said.push((format!("output of {what}"), output.stdout));
        self.said.push((format!("messages of {what}"), output.stderr));
    }

    /// Output of the commands that set up the nodes, with their names.
    pub fn said(&self) -> &[(String, Vec<u8>)] {
        &self.said
    }

    /// The lines that its nodes have joined with.
    pub fn invites(&self) -> &[String] {
        &self.invites
    }

    /// An invite for `plan`, made on the node `by`.
    #[track_caller]
    pub fn invite(&self, by: &str, plan: &NodePlan) -> String {
        let Node { state, plan: NodePlan { program, .. }, .. } = &self.nodes[by];
        let state = state.to_string_lossy().into_owned();
        let seed = self.shaper.public_addr(by).expect("a node has a public address").to_string();
        let mut arguments = vec!["invite", "--state-dir", &state, "--site", &plan.site];
        arguments.extend(["--ttl", "1h", "--endpoint", &seed]);
        arguments.extend(plan.roles.iter().flat_map(|role| ["--role", &**role]));
        arguments.extend(plan.lifetime.iter().flat_map(|lifetime| ["--credential-ttl", lifetime]));
        run_ok(&program.to_string_lossy(), &arguments)
    }

    /// A place in this network for a machine that is not a node: the UDP address that it must use.
    #[track_caller]
    pub fn place(&mut self, name: &str, site: &str) -> SocketAddr {
        let address = IpAddr::from([127, self.network[0], self.network[1], self.next_host]);
        self.next_host += 1;
        let udp = free_udp(address);
        let public = self.shaper.add_node(name, site, Some(udp));
        public.expect("the WAN emulator takes another machine");
        udp
    }

    /// Starts the daemon of a node and waits until it answers.
    #[track_caller]
    pub fn start(&mut self, name: &str) {
        self.spawn(name);
        let node = self.node_mut(name);
        wait::until(&format!("{name} answers its status"), START_LIMIT, || {
            assert!(node.process().is_running(), "the daemon of {name} ended");
            let config = node.config.to_string_lossy();
            let status = ["status", "--config", &*config];
            run(&meshport().to_string_lossy(), &status).status.success().then_some(())
        });
    }

    /// Starts the daemon of a node and returns at once.
    #[track_caller]
    pub fn spawn(&mut self, name: &str) {
        let node = self.node_mut(name);
        let mut command = Command::new(&node.plan.program);
        command.arg("run").arg("--config").arg(&node.config);
        node.process = Some(Process::start(&node.plan.name, &mut command, &node.log));
    }

    /// Rewrites the settings of a node and makes its daemon reload them.
    #[track_caller]
    pub fn reconfigure(&mut self, name: &str, change: impl FnOnce(&str) -> String) {
        let node = self.node_mut(name);
        let text = fs::read_to_string(&node.config).expect("a node has settings");
        fs::write(&node.config, change(&text)).expect("the world's folder can be written");
        node.process().signal("HUP");
    }

    /// Ends the daemon of a node as `kill -9` does.
    #[track_caller]
    pub fn kill(&mut self, name: &str) {
        self.node_mut(name).process.take().expect("the daemon runs").kill();
    }

    /// A node.
    #[track_caller]
    pub fn at(&self, name: &str) -> &Node {
        self.nodes.get(name).unwrap_or_else(|| panic!("the world has no node {name}"))
    }

    /// A node, to stop it or to measure it.
    #[track_caller]
    pub fn node_mut(&mut self, name: &str) -> &mut Node {
        self.nodes.get_mut(name).unwrap_or_else(|| panic!("the world has no node {name}"))
    }

    /// Names of all nodes.
    pub fn names(&self) -> Vec<String> {
        self.nodes.keys().cloned().collect()
    }

    /// Waits until every running node sees every running node.
    #[track_caller]
    pub fn meet(&self) {
        let running = || self.nodes.values().filter(|node| node.process.is_some());
        let count = running().count() as u64;
        for node in running() {
            let what = format!("{} sees {count} members", node.name());
            wait::until(&what, MEET_LIMIT, || (node.alive() == count).then_some(()));
        }
    }

    /// Waits until new sessions of `node` go to `origin` first.
    ///
    /// # Panics
    /// If that takes longer than `limit`.
    #[track_caller]
    pub fn chooses(&self, node: &str, origin: &str, limit: Duration) {
        let what = format!("{node} chooses {origin}");
        wait::until(&what, limit, || (self.at(node).chosen()? == origin).then_some(()));
    }

    /// The client of this world: trusts its certificate authority, times out after 5 s.
    pub fn curl(&self) -> Curl {
        Curl::new(&self.path("pki").join("ca.crt"), CLIENT_LIMIT)
    }

    /// Requests at a local address, once per `interval`, each on a new connection.
    pub fn load(&self, local: SocketAddr, interval: Duration) -> Load {
        let trust = clients::trusting(&self.path("pki").join("ca.crt"));
        Load::of(interval, move || clients::ask(local, trust.clone()))
    }

    /// A request through the local address of a node.
    #[track_caller]
    pub fn get(&self, node: &str, path: &str) -> Answer {
        let answer = self.curl().get(self.at(node).local, path);
        answer.unwrap_or_else(|problem| panic!("{path} through {node}: {problem}"))
    }
}

impl Default for World {
    fn default() -> Self {
        Self::new()
    }
}

fn settings(node: &Node, public: SocketAddr) -> String {
    let NodePlan { site, origin, mtu, http, settings, .. } = &node.plan;
    let state = node.state.display();
    let mtu = mtu.map_or_else(String::new, |bytes| format!("mtu = {bytes}\n"));
    let mut text = format!(
        "site = \"{site}\"\nstate-dir = \"{state}\"\n\n[mesh]\nlisten = \"{}\"\n\
         advertise = [\"{public}\"]\n{mtu}\n[admin]\nhttp = \"{http}\"\n\n\
         [service.kube-apiserver]\nlisten = [\"{}\"]\n",
        node.udp, node.local
    );
    if let Some(origin) = origin {
        let _ = writeln!(text, "origin = \"{origin}\"");
    }
    text.push_str(settings);
    text
}

/// A free UDP address; each node has its own IP address, so it stays free.
fn free_udp(address: IpAddr) -> SocketAddr {
    let socket = UdpSocket::bind((address, 0)).expect("a free UDP port");
    socket.local_addr().expect("a bound socket has an address")
}

fn free_tcp(address: IpAddr) -> SocketAddr {
    let socket = TcpListener::bind((address, 0)).expect("a free TCP port");
    socket.local_addr().expect("a bound socket has an address")
}
