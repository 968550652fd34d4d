//! meshport in the arena: one daemon next to each upstream that offers it, one without an origin on
//! the client's host, and, in faults that need a relay, one more with that role.
//!
//! Made the way an operator makes it: `init`, `invite`, `join`, a TOML file, `run`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use meshport_tests::process::{Process, meshport, run, run_ok};
use meshport_tests::wait;
use serde_json::Value;

use crate::contenders::{ALL, Contender};
use crate::stage::{CLIENT, RELAY, UPSTREAMS};
use meshport_tests::net::Network;

/// How long the daemons may take to find each other, and the client's to settle on the nearest.
const SETTLE_LIMIT: Duration = Duration::from_secs(60);
/// The name of the client's node.
const WORKER: &str = "worker";
/// UDP port of every daemon.
const UDP_PORT: u16 = 51820;

/// The daemons. Dropping it ends them.
pub(crate) struct Mesh {
    folder: PathBuf,
    log_level: String,
    daemons: Vec<Process>,
}

impl Mesh {
    /// A mesh without nodes, whose files are in `folder`.
    pub(crate) fn new(folder: &Path, log_level: &str) -> Self {
        let log_level = log_level.to_owned();
        Self { folder: folder.to_owned(), log_level, daemons: Vec::new() }
    }

    /// Makes and starts all daemons, and waits until the client's has chosen the nearest.
    pub(crate) fn start(&mut self, network: &Network, relay: bool) {
        let mut nodes: Vec<(&str, usize, Vec<&str>)> = Vec::new();
        let origin = ["node", "origin:kube-apiserver", "origin:spread"];
        for (upstream, name) in UPSTREAMS.iter().enumerate() {
            nodes.push((name, 1 + upstream, origin.to_vec()));
        }
        nodes.push((WORKER, CLIENT, vec!["node"]));
        if relay {
            nodes.push(("relay", RELAY, vec!["node", "relay"]));
        }
        for (index, (name, host, roles)) in nodes.iter().enumerate() {
            self.admit(index == 0, name, roles, network);
            let address = network.hosts[*host].address;
            let text = self.settings(name, &format!("{address}:{UDP_PORT}"), roles);
            fs::write(self.config(name), text).expect("the arena's folder can be written");
            let mut command = network.hosts[*host].command(&meshport().to_string_lossy());
            command.arg("run").arg("--config").arg(self.config(name));
            let log = self.folder.join(format!("meshport-{name}.log"));
            self.daemons.push(Process::start(name, &mut command, &log));
        }
        let count = nodes.len() as u64;
        let what = format!("{WORKER} sees {count} members and all origins of both services");
        wait::until(&what, SETTLE_LIMIT, || {
            let status = self.status(WORKER)?;
            let met = status["members"]["alive"] == count;
            (met && is_settled(&status)?).then_some(())
        });
    }

    /// The first node makes the mesh, every other one joins it.
    fn admit(&self, first: bool, name: &str, roles: &[&str], network: &Network) {
        let state = self.state(name);
        let roles: Vec<&str> = roles.iter().flat_map(|role| ["--role", role]).collect();
        let binary = meshport().to_string_lossy();
        if first {
            let mut init = vec!["init", "--state-dir", &state, "--site", name, "--name", name];
            init.extend(roles);
            run_ok(&binary, &init);
            return;
        }
        let by = self.state(UPSTREAMS[0]);
        let seed = format!("{}:{UDP_PORT}", network.hosts[1].address);
        let mut invite = vec!["invite", "--state-dir", &by, "--site", name, "--ttl", "1h"];
        invite.extend(["--endpoint", &seed]);
        invite.extend(roles);
        let invite = run_ok(&binary, &invite);
        run_ok(&binary, &["join", &invite, "--state-dir", &state, "--name", name]);
    }

    fn settings(&self, name: &str, public: &str, roles: &[&str]) -> String {
        let ours = |at: usize| -> String {
            let contender: &Contender = &ALL[at];
            if name == WORKER { format!("\"{}\"", contender.local()) } else { String::new() }
        };
        let offers = roles.iter().any(|role| role.starts_with("origin:"));
        let origin = if offers { "origin = \"127.0.0.1:6443\"\n" } else { "" };
        let mut text = format!(
            "site = \"{name}\"\nstate-dir = \"{}\"\n\n[mesh]\nlisten = \"{public}\"\n\
             advertise = [\"{public}\"]\n\n[admin]\nhttp = \"off\"\n\n\
             [log]\nlevel = \"{}\"\n\n\
             [service.kube-apiserver]\nlisten = [{}]\n{origin}",
            self.state(name),
            self.log_level,
            ours(0),
        );
        if offers || name == WORKER {
            text.push_str(&format!(
                "\n[service.spread]\nlisten = [{}]\npolicy = \"spread\"\n{origin}\n\
                 [service.spread.health]\nmode = \"kubernetes\"\n",
                ours(1)
            ));
        }
        text
    }

    fn state(&self, name: &str) -> String {
        self.folder.join(name).to_string_lossy().into_owned()
    }

    fn config(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.toml"))
    }

    fn status(&self, name: &str) -> Option<Value> {
        let config = self.config(name);
        let arguments = ["status", "--json", "--config", &*config.to_string_lossy()];
        let output = run(&meshport().to_string_lossy(), &arguments);
        output.status.success().then(|| serde_json::from_slice(&output.stdout).ok())?
    }
}

/// Whether every origin of every service is ready and reached, and the nearest one chosen.
fn is_settled(status: &Value) -> Option<bool> {
    let services = status["services"].as_array()?;
    let well = |origin: &Value| origin["state"] == "ready" && origin["path"] == "direct";
    let known = services.iter().all(|service| {
        let origins = service["origins"].as_array();
        origins.is_some_and(|all| all.iter().filter(|it| well(it)).count() == UPSTREAMS.len())
    });
    let own = services.iter().find(|service| service["name"] == "kube-apiserver")?;
    Some(known && services.len() == 2 && own["chosen"]["name"] == UPSTREAMS[0])
}
