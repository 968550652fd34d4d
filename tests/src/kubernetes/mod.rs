//! A real Kubernetes control plane on separate hosts: etcd, apiservers with a meshport daemon next
//! to each, and a worker whose clients reach them through its own daemon.
//!
//! Every host is a network namespace; packets between them pass the router of [`crate::net`], so a
//! host can be lost silently. `tests/kubernetes/build` builds the programs;
//! `MESHPORT_KUBERNETES_BIN` names their folder. Dropping the cluster ends every process.

use std::collections::BTreeMap;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::metrics::Metrics;
use crate::net::{Host, Network};
use crate::process::{Process, meshport, run, run_ok};
use crate::wait;

mod beat;
mod calls;
mod controllers;
mod etcd;
mod faults;
mod hold;
mod kubectl;
mod kubelet;
mod pki;
mod stream;
mod watch;
mod watchers;

pub use beat::Beat;
pub use calls::{Calls, Volley};
pub use etcd::member;
pub use faults::Fault;
pub use hold::{Held, Holds};
pub use kubectl::{Call, Kubectl};
pub use kubelet::IMAGE;
pub use pki::{ADMIN_TOKEN, Pki};
pub use stream::Streams;
pub use watch::{Arrivals, Watch};
pub use watchers::Watchers;

/// How long an apiserver may take from its start to its first 200 on a busy two-core machine.
pub const START_LIMIT: Duration = Duration::from_secs(90);
/// How long routes may take to settle after a change: a nearer origin must last ten seconds, and
/// the machine may be busy.
pub const SETTLE_LIMIT: Duration = Duration::from_secs(60);
/// The host of the clients.
pub const WORKER: usize = 0;
/// The name of the worker's node.
pub const WORKER_NAME: &str = "worker";
/// The address of the apiserver through meshport, on every host.
pub const LOCAL: &str = "https://127.0.0.1:7445";
/// UDP port of every daemon.
const UDP_PORT: u16 = 51820;
/// The network's seed: its links use no randomness.
const SEED: u64 = 1;

/// The path of a program of the control plane, the newer one of etcd where that was fetched.
///
/// # Panics
/// If `MESHPORT_KUBERNETES_BIN` is not set.
pub fn program(name: &str) -> PathBuf {
    if let Some(newer) = newer(name).filter(|_| name.starts_with("etcd")) {
        return newer;
    }
    let folder = std::env::var_os("MESHPORT_KUBERNETES_BIN");
    let folder = folder.expect("MESHPORT_KUBERNETES_BIN: what tests/kubernetes/build prints");
    Path::new(&folder).join(name)
}

/// The path of a newer program than the control plane's, if `tests/kubernetes/newer` fetched it.
pub fn newer(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("MESHPORT_KUBERNETES_NEWER")?;
    Some(Path::new(&folder).join(name)).filter(|path| path.exists())
}

/// How often each fault is injected: `MESHPORT_KUBERNETES_RUNS`, else once.
pub fn rounds() -> usize {
    let said = std::env::var("MESHPORT_KUBERNETES_RUNS").ok();
    said.and_then(|it| it.parse().ok()).unwrap_or(1)
}

/// The median; with an even number, the upper of the two in the middle.
pub fn median<T: Ord>(mut all: Vec<T>) -> T {
    all.sort();
    all.swap_remove(all.len() / 2)
}

/// The cluster to build.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The worker's round trip to each control-plane host; one entry per host.
    pub distances: Vec<Duration>,
    /// The site of each control-plane host; the worker is in the first.
    pub sites: Vec<String>,
    /// Whether the apiservers answer clients without credentials.
    pub anonymous: bool,
    /// Whether the apiservers' certificates name 127.0.0.1.
    pub loopback_in_certificates: bool,
    /// Further names and addresses in the apiservers' certificates.
    pub names: Vec<String>,
    /// Whether every control-plane host has its own etcd member, which its apiserver uses.
    pub stacked: bool,
    /// How long members of a stacked etcd wait for a silent leader. etcd's default is 1 s, but a
    /// disk sync during builds may take longer.
    pub election: Duration,
    /// The roles of the worker.
    pub worker_roles: &'static str,
    /// The roles of every control-plane host.
    pub origin_roles: &'static str,
    /// Where the real kubelet listens.
    pub kubelet_address: &'static str,
    /// Further flags of every apiserver.
    pub flags: Vec<String>,
    /// Further settings in the table of the apiserver service of every daemon, TOML; `@PKI@` is
    /// the folder of keys, certificates and kubeconfigs.
    pub settings: String,
}

impl Default for Plan {
    /// Three control-plane hosts, each its own site, the first one the nearest.
    fn default() -> Self {
        Self {
            distances: [2, 40, 60].map(Duration::from_millis).to_vec(),
            sites: ["fra", "ams", "par"].map(str::to_owned).to_vec(),
            anonymous: true,
            loopback_in_certificates: true,
            names: Vec::new(),
            stacked: false,
            election: Duration::from_secs(2),
            worker_roles: "node",
            origin_roles: "node,origin:kube-apiserver",
            kubelet_address: "127.0.0.1",
            flags: Vec::new(),
            settings: String::new(),
        }
    }
}

/// See the module's description.
#[derive(Debug)]
pub struct Cluster {
    // Processes end before their hosts and the folder they write to are removed: fields are dropped
    // in this order.
    processes: BTreeMap<String, Process>,
    remains: Vec<kubelet::Remains>,
    /// The hosts: the worker, the control-plane hosts, etcd's.
    pub network: Network,
    /// Its keys and certificates.
    pub pki: Pki,
    plan: Plan,
    first: Option<String>,
    folder: TempDir,
}

/// The name of a control-plane host's node and of its apiserver, counted from 1.
pub fn origin(number: usize) -> String {
    format!("cp-{number}")
}

impl Cluster {
    /// The hosts, the certificates and a running etcd; no apiserver and no daemon yet.
    pub fn hosts(plan: Plan) -> Self {
        crate::netns::remove_stale();
        let count = plan.distances.len();
        let numbers = (11..).take(count).chain([21]);
        let mut addresses = vec![Ipv4Addr::new(10, 77, 0, 1)];
        addresses.extend(numbers.map(|last| Ipv4Addr::new(10, 77, 0, last)));
        let network = Network::new(&addresses, SEED);
        for (at, distance) in plan.distances.iter().enumerate() {
            network.distance(WORKER, 1 + at, *distance);
        }
        let folder = tempfile::Builder::new().prefix("mk").tempdir().expect("a temporary folder");
        let pki = Pki::new(&folder.path().join("pki"));
        pki.client("controllers", "system:kube-controller-manager", None);
        pki.client("scheduler", "system:kube-scheduler", None);
        // A kubelet's rights suffice to read the cluster's list of apiservers.
        pki.client("lister", "system:node:lister", Some("system:nodes"));
        pki.kubeconfig("lister", LOCAL, Some("lister"));
        for number in 1..=count {
            let mut names: Vec<String> =
                ["kubernetes", "kubernetes.default.svc", "10.96.0.1"].map(str::to_owned).to_vec();
            names.push(network.hosts[number].address.to_string());
            if plan.loopback_in_certificates {
                names.extend(["localhost".to_owned(), "127.0.0.1".to_owned()]);
            }
            names.extend(plan.names.iter().cloned());
            pki.server(&origin(number), &names);
        }
        let processes = BTreeMap::new();
        let mut cluster =
            Self { processes, remains: Vec::new(), network, pki, plan, first: None, folder };
        cluster.start_etcd();
        cluster
    }

    /// A whole cluster: every apiserver ready, every daemon up, the worker's on the first origin.
    pub fn new(plan: Plan) -> Self {
        let mut cluster = Self::hosts(plan);
        let count = cluster.origins();
        (1..=count).for_each(|number| cluster.spawn_apiserver(number, &[]));
        (1..=count).for_each(|number| cluster.apiserver_is_ready(number));
        (1..=count).for_each(|number| cluster.start_node(number));
        cluster.start_node(WORKER);
        cluster.settles();
        cluster
    }

    /// How many control-plane hosts there are.
    pub fn origins(&self) -> usize {
        self.plan.distances.len()
    }

    /// A file in the cluster's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A control-plane host (counted from 1) or the worker.
    pub fn host(&self, at: usize) -> &Host {
        &self.network.hosts[at]
    }

    /// The host of etcd.
    pub fn etcd_host(&self) -> usize {
        self.origins() + 1
    }

    /// Starts a program on a host under a name of this test.
    pub fn start(&mut self, name: &str, at: usize, program: &Path, arguments: &[String]) {
        let mut command = self.host(at).command(&program.to_string_lossy());
        command.args(arguments).env("HOME", self.folder.path());
        self.adopt(name, &mut command);
    }

    /// Starts a complete command under a name of this test.
    pub fn adopt(&mut self, name: &str, command: &mut Command) {
        let log = self.path(&format!("{name}.log"));
        let process = Process::start(name, command, &log);
        self.keep(name, process);
    }

    /// Adopts a running process under a name of this test: it ends with the cluster.
    pub fn keep(&mut self, name: &str, process: Process) {
        self.processes.insert(name.to_owned(), process);
    }

    /// A process that was started.
    #[track_caller]
    pub fn process(&mut self, name: &str) -> &mut Process {
        self.processes.get_mut(name).unwrap_or_else(|| panic!("{name} does not run"))
    }

    /// Ends a process as `kill -9` does, whether it runs or not.
    pub fn kill(&mut self, name: &str) {
        if let Some(process) = self.processes.remove(name) {
            process.kill();
        }
    }

    /// Starts an apiserver and returns at once.
    pub fn spawn_apiserver(&mut self, number: usize, flags: &[&str]) {
        let mut all = self.apiserver_flags(number);
        all.extend(flags.iter().map(|flag| (*flag).to_owned()));
        self.start(&process_name(number), number, &program("kube-apiserver"), &all);
    }

    /// The flags of an apiserver.
    pub fn apiserver_flags(&self, number: usize) -> Vec<String> {
        let name = origin(number);
        let own = self.host(number).address;
        let etcd = if self.plan.stacked { own } else { self.host(self.etcd_host()).address };
        let pki = |file: &str| self.pki.text(file);
        let mut all = vec![
            format!("--etcd-servers=http://{etcd}:2379"),
            "--bind-address=0.0.0.0".to_owned(),
            "--secure-port=6443".to_owned(),
            format!("--advertise-address={own}"),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--enable-admission-plugins=NodeRestriction".to_owned(),
            format!("--anonymous-auth={}", self.plan.anonymous),
            format!("--tls-cert-file={}", pki(&format!("{name}.crt"))),
            format!("--tls-private-key-file={}", pki(&format!("{name}.key"))),
            format!("--client-ca-file={}", pki("ca.crt")),
            format!("--token-auth-file={}", pki("tokens.csv")),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={}", pki("sa.pub")),
            format!("--service-account-signing-key-file={}", pki("sa.key")),
            format!("--cert-dir={}", self.path(&name).display()),
            "--v=1".to_owned(),
        ];
        all.extend(self.plan.flags.iter().cloned());
        all
    }

    /// Waits until an apiserver reports ready.
    pub fn apiserver_is_ready(&mut self, number: usize) {
        let what = format!("the apiserver of {} is ready", origin(number));
        let ask = ["https://127.0.0.1:6443/readyz".to_owned()];
        wait::until(&what, START_LIMIT, || {
            let running = self.process(&process_name(number)).is_running();
            assert!(running, "the apiserver of {} ended", origin(number));
            self.curl(number, &ask).filter(|said| said == "ok")
        });
    }

    /// Starts an apiserver and waits until it is ready.
    pub fn start_apiserver(&mut self, number: usize, flags: &[&str]) {
        self.spawn_apiserver(number, flags);
        self.apiserver_is_ready(number);
    }

    /// The process of an apiserver.
    #[track_caller]
    pub fn apiserver(&mut self, number: usize) -> &mut Process {
        self.process(&process_name(number))
    }

    /// The origin of all the worker's sessions, counted from 1, once at least `least` sessions are
    /// open and all are on the origin that new sessions choose.
    #[track_caller]
    pub fn gathered(&self, least: u64) -> usize {
        wait::until("all sessions are where new ones go", SETTLE_LIMIT, || {
            let status = self.status(WORKER)?;
            let origins = status["services"][0]["origins"].as_array()?;
            let sessions = |origin: &Value| origin["sessions"].as_u64().unwrap_or(0);
            let chosen = origins.iter().find(|origin| origin["chosen"] == true)?;
            let all: u64 = origins.iter().map(sessions).sum();
            (sessions(chosen) == all && all >= least).then_some(())?;
            let name = chosen["name"].as_str()?;
            (1..=self.origins()).find(|number| origin(*number) == name)
        })
    }

    /// Ends an apiserver as `kill -9` does.
    pub fn kill_apiserver(&mut self, number: usize) {
        self.kill(&process_name(number));
    }

    /// Starts a hollow kubelet on a host; it talks only to the local address.
    pub fn start_kubelet(&mut self, at: usize) {
        let node = self.node_name(at);
        let client = format!("kubelet-{node}");
        self.pki.client(&client, &format!("system:node:{node}"), Some("system:nodes"));
        let config = self.pki.kubeconfig(&client, LOCAL, Some(&client));
        let flags = [
            "--morph=kubelet".to_owned(),
            format!("--name={node}"),
            format!("--kubeconfig={}", config.display()),
        ];
        self.start(&client, at, &program("kubemark"), &flags);
    }

    /// kubectl on a host, through the daemon there.
    pub fn kubectl(&self, at: usize) -> Kubectl {
        self.kubectl_to(at, "local", LOCAL)
    }

    /// kubectl on a host, to another server.
    pub fn kubectl_to(&self, at: usize, name: &str, server: &str) -> Kubectl {
        let config = self.pki.kubeconfig(name, server, None);
        Kubectl::new(self.host(at), self.path(&format!("home-{at}-{name}")), config)
    }

    /// kubectl on a control-plane host, directly to the apiserver there.
    pub fn kubectl_direct(&self, number: usize) -> Kubectl {
        self.kubectl_to(number, "direct", "https://127.0.0.1:6443")
    }

    /// The output of curl on a host with the administrator's token and these further arguments,
    /// without verification; `None` without an answer.
    pub fn curl(&self, at: usize, arguments: &[String]) -> Option<String> {
        let mut command = self.host(at).command("curl");
        command.args(["-sSk", "--noproxy", "*", "--max-time", "5", "-H"]);
        command.arg(format!("Authorization: Bearer {ADMIN_TOKEN}")).args(arguments);
        let output = command.output().expect("curl can be run");
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The name of the node on a host.
    pub fn node_name(&self, at: usize) -> String {
        if at == WORKER { WORKER_NAME.to_owned() } else { origin(at) }
    }

    /// Sets up the node of a host (`init` or `invite` and `join`, and its settings).
    pub fn make_node(&mut self, at: usize) {
        let name = self.node_name(at);
        let state = self.state(&name);
        let site = self.plan.sites[at.saturating_sub(1)].clone();
        let binary = meshport().to_string_lossy();
        let plan = &self.plan;
        let role = if at == WORKER { plan.worker_roles } else { plan.origin_roles };
        match &self.first {
            None => {
                let place = ["--site", &site, "--name", &name, "--role", role];
                run_ok(&binary, &[&["init", "--state-dir", &state][..], &place].concat());
                self.first = Some(name.clone());
            }
            Some(first) => {
                let by = self.state(first);
                let at_first = self.host_of(first).address;
                let seed = format!("{at_first}:{UDP_PORT}");
                let mut invite = vec!["invite", "--state-dir", &by, "--site", &site];
                invite.extend(["--ttl", "1h", "--endpoint", &seed, "--role", role]);
                let invite = run_ok(&binary, &invite);
                run_ok(&binary, &["join", &invite, "--state-dir", &state, "--name", &name]);
            }
        }
        fs::write(self.config(&name), self.settings(at, &site)).expect("a settings file");
    }

    /// Starts the daemon of a host, sets up its node first if necessary, and waits until it
    /// answers.
    pub fn start_node(&mut self, at: usize) {
        let name = self.node_name(at);
        if !self.config(&name).exists() {
            self.make_node(at);
        }
        let config = self.config(&name).display().to_string();
        self.start(&name, at, meshport(), &["run".to_owned(), "--config".to_owned(), config]);
        wait::until(&format!("{name} answers its status"), START_LIMIT, || self.status(at));
    }

    /// The output of `meshport status --json` on a host, if the daemon answers.
    pub fn status(&self, at: usize) -> Option<Value> {
        let output = self.meshport(at, &["status", "--json"]).output().expect("meshport runs");
        output.status.success().then(|| serde_json::from_slice(&output.stdout).ok())?
    }

    /// A verb of meshport for the daemon of a host.
    pub fn meshport(&self, at: usize, verb: &[&str]) -> Command {
        let mut command = self.host(at).command(&meshport().to_string_lossy());
        command.args(verb).arg("--config").arg(self.config(&self.node_name(at)));
        command
    }

    /// The metrics page of a daemon.
    #[track_caller]
    pub fn metrics(&self, at: usize) -> Metrics {
        let socket = format!("{}/meshport.sock", self.state(&self.node_name(at)));
        let page = run("curl", &["-sSf", "--unix-socket", &socket, "http://meshport/metrics"]);
        assert!(page.status.success(), "{}", String::from_utf8_lossy(&page.stderr));
        Metrics::parse(&String::from_utf8_lossy(&page.stdout))
    }

    /// How many watches the apiservers serve, their own included; `None` if one does not answer.
    pub fn watches(&self) -> Option<u64> {
        let ask = ["https://127.0.0.1:6443/metrics".to_owned()];
        let served = |number| {
            let metrics = Metrics::parse(&self.curl(number, &ask)?);
            Some(metrics.sum("apiserver_longrunning_gauge", "verb=\"WATCH\"") as u64)
        };
        (1..=self.origins()).map(served).sum()
    }

    /// The origin that new sessions on a host try first.
    pub fn chosen(&self, at: usize) -> Option<String> {
        let status = self.status(at)?;
        status["services"][0]["chosen"]["name"].as_str().map(str::to_owned)
    }

    /// The names of the origins that a host considers ready and reachable.
    pub fn ready(&self, at: usize) -> Vec<String> {
        let Some(status) = self.status(at) else { return Vec::new() };
        let origins = status["services"][0]["origins"].as_array().cloned().unwrap_or_default();
        let well = |origin: &&Value| {
            origin["state"] == "ready" && (origin["path"] == "direct" || origin["path"] == "own")
        };
        let name = |origin: &Value| origin["name"].as_str().map(str::to_owned);
        origins.iter().filter(well).filter_map(name).collect()
    }

    /// Waits until the worker considers every origin ready.
    #[track_caller]
    pub fn all_are_ready(&self) {
        let count = self.origins();
        wait::until("the worker knows every origin as ready", SETTLE_LIMIT, || {
            (self.ready(WORKER).len() == count).then_some(())
        });
    }

    /// Waits until the worker considers every origin ready and uses the nearest.
    #[track_caller]
    pub fn settles(&self) {
        self.all_are_ready();
        if self.plan.distances.windows(2).all(|pair| pair[0] < pair[1]) {
            self.chooses(WORKER, &origin(1));
        }
    }

    /// Waits until new sessions on a host try this origin first.
    #[track_caller]
    pub fn chooses(&self, at: usize, name: &str) {
        let what = format!("{} chooses {name}", self.node_name(at));
        wait::until(&what, SETTLE_LIMIT, || (self.chosen(at)? == name).then_some(()));
    }

    fn host_of(&self, name: &str) -> &Host {
        let count = self.origins();
        let at = (0..=count).find(|at| self.node_name(*at) == name).expect("a host's name");
        self.host(at)
    }

    fn state(&self, name: &str) -> String {
        self.path(&format!("state-{name}")).to_string_lossy().into_owned()
    }

    /// The admin socket of a host's daemon.
    pub fn socket(&self, at: usize) -> PathBuf {
        PathBuf::from(self.state(&self.node_name(at))).join("meshport.sock")
    }

    /// Adds TOML to the settings of a host whose node was set up but does not run yet.
    pub fn add_settings(&self, at: usize, toml: &str) {
        let config = self.config(&self.node_name(at));
        let text = fs::read_to_string(&config).expect("the node was made");
        fs::write(&config, text + toml).expect("a settings file");
    }

    fn config(&self, name: &str) -> PathBuf {
        self.path(&format!("{name}.toml"))
    }

    fn settings(&self, at: usize, site: &str) -> String {
        let state = self.state(&self.node_name(at));
        let address = self.host(at).address;
        let mut text = format!(
            "site = \"{site}\"\nstate-dir = \"{state}\"\n\n[mesh]\nadvertise = [\"{address}:\
             {UDP_PORT}\"]\nlisten = \"0.0.0.0:{UDP_PORT}\"\n\n[service.kube-apiserver]\n"
        );
        if at != WORKER {
            text.push_str("origin = \"127.0.0.1:6443\"\n");
        }
        text.push_str(&self.plan.settings.replace("@PKI@", &self.path("pki").to_string_lossy()));
        text
    }
}

fn process_name(number: usize) -> String {
    format!("apiserver-{number}")
}
