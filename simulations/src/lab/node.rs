//! One node of the lab: a real daemon as a child process with its own folder.
//!
//! The child does not outlive the lab: the command it runs ends when its standard input does, and
//! dropping the value kills it and waits for it. A separate process stops and continues it, so that
//! it continues even if the lab fails.

use std::fs::{self, OpenOptions};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use meshport_config::{Revocations, Seed};
use meshport_daemon::admin::AdminClient;
use meshport_demo::client::Client;
use meshport_state::Existing;
use meshport_state::{Identity, StateDir};
use rustix::process::{Pid, Signal, kill_process};
use tokio::task::JoinSet;
use toml::{Table, Value};

use crate::Error;
use crate::scenario::{Scenario, merge, service};

/// Ports for clients and for the mesh on a node's own loopback address.
const CLIENTS: u16 = 7445;
const MESH: u16 = 51820;
/// The number of log lines shown when a daemon fails.
const TAIL: usize = 12;
/// Stops a process for some seconds. It outlives the lab.
const STALL: &str = "trap '' HUP INT TERM; kill -STOP \"$1\" && sleep \"$2\"; kill -CONT \"$1\"";

/// See the module's description.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) site: usize,
    pub(super) identity: Identity,
    /// The first of its clients, and the others.
    pub(super) client: Client,
    pub(super) clients: JoinSet<()>,
    address: Ipv4Addr,
    folder: PathBuf,
    child: Option<Child>,
    /// Its previous process, while that shuts down.
    leaving: Option<Child>,
    /// The process that stops it, if any.
    stall: Option<Child>,
}

/// A node's location and what it hosts.
#[derive(Debug)]
pub(super) struct Location<'a> {
    /// Its address in the emulated network.
    pub(super) public: SocketAddr,
    /// Its instance, and the certificate of the issuer.
    pub(super) instance: Option<(SocketAddr, &'a Path)>,
}

impl Node {
    /// A node that has not started, with a subfolder of this folder. Its clients trust this
    /// certificate.
    pub(super) fn new(
        site: usize,
        identity: Identity,
        folder: &Path,
        address: Ipv4Addr,
        authority: &str,
    ) -> Result<Self, Error> {
        let client = Client::new((address, CLIENTS).into(), authority);
        let client = client.map_err(|error| Error::Machine(format!("make a client: {error}")))?;
        // The certificate of every stand-in.
        let client = client.with_certified(Ipv4Addr::LOCALHOST.into());
        let folder = folder.join(identity.credential.name.as_str());
        let (clients, child, leaving, stall) = (JoinSet::new(), None, None, None);
        Ok(Self { site, identity, client, clients, address, folder, child, leaving, stall })
    }

    pub(super) fn name(&self) -> &str {
        self.identity.credential.name.as_str()
    }

    /// The address of its daemon behind the emulated network.
    pub(super) fn mesh(&self) -> SocketAddr {
        (self.address, MESH).into()
    }

    pub(super) fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    pub(super) fn admin(&self) -> AdminClient {
        AdminClient::new(self.folder.join("socket"))
    }

    pub(super) fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// Writes its state folder and its settings.
    pub(super) fn prepare(
        &self,
        scenario: &Scenario,
        seeds: &[Seed],
        location: &Location<'_>,
    ) -> Result<(), Error> {
        let state = || -> Result<(), meshport_state::Error> {
            let state = StateDir::create(self.folder.join("state"))?;
            let Identity { node_key, record_key, secrets, credential } = &self.identity;
            state.store_mesh_secrets(secrets, Existing::Keep)?;
            state.store_node_key(node_key, Existing::Keep)?;
            state.store_record_key(record_key, Existing::Keep)?;
            state.store_seeds(seeds)?;
            state.store_credential(credential, Existing::Keep)
        };
        fs::create_dir_all(&self.folder).map_err(file(&self.folder))?;
        state().map_err(|source| self.failed(source))?;
        let path = self.config();
        fs::write(&path, self.settings(scenario, location).to_string()).map_err(file(&path))
    }

    fn failed(&self, source: meshport_state::Error) -> Error {
        Error::Node { name: self.name().to_owned(), source: source.into() }
    }

    fn config(&self) -> PathBuf {
        self.folder.join("meshport.toml")
    }

    /// The scenario's settings, with addresses and paths.
    fn settings(&self, scenario: &Scenario, location: &Location<'_>) -> Table {
        let mut table = scenario.settings.clone();
        merge(&mut table, &scenario.sites[self.site].settings);
        let text = |path: PathBuf| Value::from(path.to_string_lossy().into_owned());
        let list = |address: SocketAddr| Value::from(vec![address.to_string()]);
        let mut over = Table::new();
        over.insert("site".into(), scenario.sites[self.site].name.to_string().into());
        over.insert("name".into(), self.name().into());
        over.insert("state-dir".into(), text(self.folder.join("state")));
        let mut put = |name: &str, keys: Vec<(&str, Value)>| {
            let keys = keys.into_iter().map(|(key, value)| (key.to_owned(), value));
            over.insert(name.into(), Value::Table(keys.collect()));
        };
        put("log", vec![("format", "json".into())]);
        let listen = self.mesh().to_string().into();
        put("mesh", vec![("listen", listen), ("advertise", list(location.public))]);
        put("admin", vec![("socket", text(self.folder.join("socket"))), ("http", "off".into())]);
        let mut keys =
            Table::from_iter([("listen".to_owned(), list((self.address, CLIENTS).into()))]);
        if let Some((address, authority)) = &location.instance {
            let health = Table::from_iter([("ca-file".to_owned(), text(authority.to_path_buf()))]);
            keys.insert("origin".into(), address.to_string().into());
            keys.insert("health".into(), health.into());
        }
        put("service", vec![(service().as_str(), keys.into())]);
        merge(&mut table, &over);
        table
    }

    /// Starts its daemon, and kills a previous one that is still shutting down.
    pub(super) fn start(&mut self, program: &Path, with_state: bool) -> Result<(), Error> {
        self.end_former();
        if !with_state {
            let state = StateDir::open(self.folder.join("state"));
            let removed = state.and_then(|state| {
                state.store_revocations(&Revocations::default())?;
                state.remove_directory()
            });
            removed.map_err(|source| self.failed(source))?;
        }
        let log = self.log();
        let open = OpenOptions::new().create(true).append(true).open(&log).map_err(file(&log))?;
        let also = open.try_clone().map_err(file(&log))?;
        let child = Command::new(program)
            .arg(meshport_demo::VERB)
            .arg("--config")
            .arg(self.config())
            .env("HOME", &self.folder)
            .stdin(Stdio::piped())
            .stdout(open)
            .stderr(also)
            .spawn();
        self.child = Some(child.map_err(file(program))?);
        Ok(())
    }

    /// Its process dies.
    pub(super) fn kill(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        // These fail only if it has ended and was reaped.
        let _ = child.kill();
        if let Some(mut stall) = self.stall.take() {
            // Its pid is not reused until it is reaped.
            let _ = stall.wait();
        }
        let _ = child.wait();
    }

    /// Stops its process for this long, unless it is stopped already.
    pub(super) fn stall(&mut self, length: Duration) -> Result<(), Error> {
        let Some(child) = &self.child else { return Ok(()) };
        if let Some(stall) = &mut self.stall
            && stall.try_wait().is_ok_and(|ended| ended.is_none())
        {
            return Ok(());
        }
        let (number, seconds) = (child.id().to_string(), length.as_secs_f64().to_string());
        let mut command = Command::new("sh");
        command.args(["-c", STALL, "sh", &number, &seconds]).stdin(Stdio::null());
        self.stall = Some(command.spawn().map_err(file(Path::new("sh")))?);
        Ok(())
    }

    /// Asks it to stop cleanly.
    pub(super) fn leave(&mut self) {
        let number = self.child.as_ref().map(Child::id).and_then(|id| i32::try_from(id).ok());
        if let Some(number) = number.and_then(Pid::from_raw) {
            // It may have ended already, and is reaped in any case.
            let _ = kill_process(number, Signal::TERM);
        }
        self.leaving = self.child.take();
    }

    fn end_former(&mut self) {
        if let Some(mut former) = self.leaving.take() {
            // Both fail only if it has ended and was reaped.
            let _ = former.kill();
            let _ = former.wait();
        }
    }

    /// The error, if it ended unexpectedly.
    pub(super) fn ended(&mut self) -> Option<String> {
        let status = self.child.as_mut()?.try_wait().ok()??;
        self.child = None;
        Some(format!("its daemon ended by itself ({status})"))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
        self.end_former();
    }
}

/// The end of a log.
pub(super) fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL)..].join("\n")
}

/// An error about a file.
pub(super) fn file(path: &Path) -> impl Fn(std::io::Error) -> Error {
    let path = path.display().to_string();
    move |source| Error::File { path: path.clone(), source }
}
