//! One node of the lab: a real daemon as a child process with a folder of its own.
//!
//! The child lives no longer than the lab: the verb it runs ends when its standard input does, and
//! dropping the value kills it and waits for it. Who makes it stand still is a process of its own,
//! which lets it go on whatever becomes of the lab.

use std::fs::{self, OpenOptions};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use meshport_config::{Revocations, Seed};
use meshport_daemon::admin::AdminClient;
use meshport_daemon::state::Existing;
use meshport_daemon::{Identity, StateDir};
use rustix::process::{Pid, Signal, kill_process};
use toml::{Table, Value};

use crate::Error;
use crate::scenario::{Scenario, merge, service};

/// Where clients connect and the mesh listens on a node's own loopback address.
const CLIENTS: u16 = 7445;
const MESH: u16 = 51820;
/// Lines of a log that are shown when something is wrong with its daemon.
const TAIL: usize = 12;
/// Makes a process stand still for some seconds. Nothing that ends the lab ends this.
const STALL: &str = "trap '' HUP INT TERM; kill -STOP \"$1\" && sleep \"$2\"; kill -CONT \"$1\"";

/// See the module's description.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) site: usize,
    pub(super) identity: Identity,
    pub(super) hosts: bool,
    address: Ipv4Addr,
    folder: PathBuf,
    place: Option<Place>,
    child: Option<Child>,
    /// Who makes it stand still, if somebody does.
    stall: Option<Child>,
}

/// Where a node is and what it hosts.
#[derive(Debug)]
pub(super) struct Place {
    /// Its address in the emulated network.
    pub(super) public: SocketAddr,
    /// Its instance, and the certificate of who signed for that.
    pub(super) instance: Option<(SocketAddr, PathBuf)>,
}

impl Node {
    /// A node that has not started, in a folder below `folder`.
    pub(super) fn new(
        scenario: &Scenario,
        (site, number): (usize, usize),
        identity: Identity,
        folder: &Path,
        address: Ipv4Addr,
    ) -> Self {
        let name = scenario.name((site, number));
        let hosts = number <= scenario.sites[site].origins;
        let folder = folder.join(&name);
        let (place, child, stall) = (None, None, None);
        Self { name, site, identity, hosts, address, folder, place, child, stall }
    }

    /// Where its clients connect.
    pub(super) fn clients(&self) -> SocketAddr {
        (self.address, CLIENTS).into()
    }

    /// Where its daemon listens behind the emulated network.
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
        &mut self,
        scenario: &Scenario,
        seeds: &[Seed],
        place: Place,
    ) -> Result<(), Error> {
        self.place = Some(place);
        let state = || -> Result<(), meshport_daemon::Error> {
            let state = StateDir::create(self.folder.join("state"))?;
            let Identity { node_key, record_key, secrets, credential } = &self.identity;
            state.store_mesh_secrets(secrets, Existing::Keep)?;
            state.store_node_key(node_key, Existing::Keep)?;
            state.store_record_key(record_key, Existing::Keep)?;
            state.store_seeds(seeds)?;
            state.store_credential(credential, Existing::Keep)
        };
        fs::create_dir_all(&self.folder).map_err(file(&self.folder))?;
        state().map_err(|source| Error::Node { name: self.name.clone(), source })?;
        self.configure(scenario, &Table::new())
    }

    /// Its configuration.
    pub(super) fn config(&self) -> PathBuf {
        self.folder.join("meshport.toml")
    }

    /// Writes its configuration, with these settings over those of the scenario.
    pub(super) fn configure(&self, scenario: &Scenario, over: &Table) -> Result<(), Error> {
        let Some(place) = &self.place else { return Ok(()) };
        let (path, new) = (self.config(), self.folder.join("meshport.toml.new"));
        // As a whole: its daemon reads it when it likes.
        fs::write(&new, self.settings(scenario, over, place).to_string()).map_err(file(&new))?;
        fs::rename(&new, &path).map_err(file(&path))
    }

    /// The scenario's settings, those over them, and where things are.
    fn settings(&self, scenario: &Scenario, changed: &Table, place: &Place) -> Table {
        let mut table = scenario.settings.clone();
        merge(&mut table, &scenario.sites[self.site].settings);
        merge(&mut table, changed);
        let text = |path: PathBuf| Value::from(path.to_string_lossy().into_owned());
        let list = |address: SocketAddr| Value::from(vec![address.to_string()]);
        let mut over = Table::new();
        over.insert("site".into(), scenario.sites[self.site].name.to_string().into());
        over.insert("name".into(), self.name.clone().into());
        over.insert("state-dir".into(), text(self.folder.join("state")));
        let mut put = |name: &str, keys: Vec<(&str, Value)>| {
            let keys = keys.into_iter().map(|(key, value)| (key.to_owned(), value));
            over.insert(name.into(), Value::Table(keys.collect()));
        };
        put("log", vec![("format", "json".into())]);
        let listen = self.mesh().to_string().into();
        put("mesh", vec![("listen", listen), ("advertise", list(place.public))]);
        put("admin", vec![("socket", text(self.folder.join("socket"))), ("http", "off".into())]);
        let mut keys = Table::from_iter([("listen".to_owned(), list(self.clients()))]);
        if let Some((address, authority)) = &place.instance {
            let health = Table::from_iter([("ca-file".to_owned(), text(authority.clone()))]);
            keys.insert("origin".into(), address.to_string().into());
            keys.insert("health".into(), health.into());
        }
        put("service", vec![(service().as_str(), keys.into())]);
        merge(&mut table, &over);
        table
    }

    /// Starts its daemon.
    pub(super) fn start(&mut self, program: &Path, with_state: bool) -> Result<(), Error> {
        if !with_state {
            let state = StateDir::open(self.folder.join("state"));
            let removed = state.and_then(|state| {
                state.store_revocations(&Revocations::default())?;
                state.remove_directory()
            });
            removed.map_err(|source| Error::Node { name: self.name.clone(), source })?;
        }
        let log = self.log();
        let open = OpenOptions::new().create(true).append(true).open(&log).map_err(file(&log))?;
        let also = open.try_clone().map_err(file(&log))?;
        let child = Command::new(program)
            .arg(meshport_demo::VERB)
            .arg("--config")
            .arg(self.folder.join("meshport.toml"))
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
        // All of these fail only when it has ended and was waited for.
        let _ = child.kill();
        if let Some(mut stall) = self.stall.take() {
            // While it is not waited for nobody else has its number.
            let _ = stall.wait();
        }
        let _ = child.wait();
    }

    /// Its process stands still for so long, unless it does already.
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

    /// Tells its daemon to read its configuration again.
    pub(super) fn reload(&self) {
        self.signal(Signal::HUP);
    }

    fn signal(&self, signal: Signal) {
        let number = self.child.as_ref().map(Child::id).and_then(|id| i32::try_from(id).ok());
        if let Some(number) = number.and_then(Pid::from_raw) {
            // It may have ended by itself, which is noticed elsewhere.
            let _ = kill_process(number, signal);
        }
    }

    /// Asks it to leave in good order. The process is the caller's to wait for.
    pub(super) fn leave(&mut self) -> Option<Child> {
        self.signal(Signal::TERM);
        self.child.take()
    }

    /// What is wrong, if it ended by itself.
    pub(super) fn ended(&mut self) -> Option<String> {
        let status = self.child.as_mut()?.try_wait().ok()??;
        self.child = None;
        Some(format!("its daemon ended by itself ({status}); the end of its log:\n{}", self.tail()))
    }

    /// The end of its log.
    pub(super) fn tail(&self) -> String {
        let text = fs::read_to_string(self.log()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(TAIL)..].join("\n")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

/// An error about a file.
pub(super) fn file(path: &Path) -> impl Fn(std::io::Error) -> Error {
    let path = path.display().to_string();
    move |source| Error::File { path: path.clone(), source }
}
