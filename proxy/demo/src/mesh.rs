//! The demo's mesh: apiservers in this process, daemons as child processes, and between the sites
//! an emulated WAN, on which all nodes have their addresses.
//!
//! Dropping it ends the daemons and removes the folder. Bounds: the nodes of [`super::plan`], one
//! query per node at a time while it starts.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use meshport_config::UnixSeconds;

use super::apiserver::{Authority, StandIn, StandInConfig};
use super::client::{Client, clock};
use super::daemon::Daemon;
use super::folder::Folder;
use super::members::{MemberFiles, NewMesh, write_config};
use super::plan::{DISTANCES_MS, NodePlan, Part, SITES, STAGE, link, origin_name};
use crate::wan::{LinkConfig, Shaper, ShaperConfig};
use meshport_daemon::Error;
use meshport_daemon::admin::api::{OriginStatus, ServiceStatus, Status};
use meshport_daemon::admin::queries::StatusRequest;

/// How long all nodes together may take until each has a route to every origin: some seconds, and
/// ten times that on a busy machine.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// Interval between checks of a node that is not ready.
const LOOK: Duration = Duration::from_millis(25);

/// See the module's description.
#[derive(Debug)]
pub(super) struct DemoMesh {
    // Daemons end before the folder they write to is removed: fields are dropped in this order.
    daemons: Vec<Daemon>,
    /// By site.
    apiservers: Vec<StandIn>,
    shaper: Shaper,
    authority: PathBuf,
    authority_pem: String,
    /// Where the clients of each site connect.
    locals: Vec<SocketAddr>,
    /// The name of each node and the address of its page.
    pages: Vec<(String, String)>,
    folder: Folder,
}

impl DemoMesh {
    /// Makes and starts everything. The nodes do not know each other yet.
    pub(super) fn start(seed: u64, now: UnixSeconds) -> Result<Self, Error> {
        let folder = Folder::create()?;
        let authority_file = folder.join("ca.crt");
        let authority = Authority::in_folder(folder.path())?;
        let shaper = start_shaper(seed)?;
        let apiservers = (0..SITES.len())
            .map(|site| {
                let leaf = authority.issue_server(&origin_name(site))?;
                StandIn::start(StandInConfig::new(leaf))
            })
            .collect::<Result<Vec<_>, _>>()?;
        let mut mesh = Self {
            daemons: Vec::new(),
            apiservers,
            shaper,
            authority: authority_file,
            authority_pem: authority.certificate_pem().to_owned(),
            locals: Vec::new(),
            pages: Vec::new(),
            folder,
        };
        let mut new_mesh = NewMesh::new(now);
        for plan in NodePlan::all() {
            mesh.add(plan, &mut new_mesh)?;
        }
        Ok(mesh)
    }

    fn add(&mut self, plan: NodePlan, new_mesh: &mut NewMesh) -> Result<(), Error> {
        let name = plan.name();
        let files = MemberFiles {
            state: self.folder.join(&name),
            config: self.folder.join(&format!("{name}.toml")),
            socket: self.folder.socket(&format!("{name}.sock"))?,
            log: self.folder.join(&format!("{name}.log")),
        };
        let public = self.shaper.add_node(&name, plan.site_name(), None)?;
        new_mesh.add(&plan, &files.state, public)?;
        let apiserver = (plan.part == Part::Origin)
            .then(|| (self.apiservers[plan.site].addr(), self.authority.as_path()));
        write_config(&plan, &files, public, apiserver)?;
        self.daemons.push(Daemon::start(plan, files, self.folder.path())?);
        Ok(())
    }

    /// Gives the WAN the port of each daemon, and waits until each has a route to every origin and
    /// those of the stage prefer the nearest.
    pub(super) async fn ready(&mut self) -> Result<(), Error> {
        let deadline = clock() + READY_LIMIT;
        self.place(deadline).await?;
        for index in 0..self.daemons.len() {
            self.wait_for(index, deadline, lacks).await?;
        }
        Ok(())
    }

    async fn place(&mut self, deadline: Instant) -> Result<(), Error> {
        for index in 0..self.daemons.len() {
            let status = self.wait_for(index, deadline, |_, _| None).await?;
            let plan = self.daemons[index].plan;
            self.shaper.set_real(&plan.name(), status.process.mesh_listen)?;
            if let Some(http) = status.process.admin_http {
                self.pages.push((plan.name(), format!("http://{http}/")));
            }
            if plan.part == Part::Worker {
                let listen = apiserver_of(&status).and_then(|service| service.listen.first());
                let name = plan.name();
                let none = || Error::Bug(format!("{name} has no address for clients"));
                self.locals.push(*listen.ok_or_else(none)?);
            }
        }
        Ok(())
    }

    /// Queries a daemon until it is ready.
    async fn wait_for(
        &mut self,
        index: usize,
        deadline: Instant,
        lacks: fn(&NodePlan, &Status) -> Option<String>,
    ) -> Result<Status, Error> {
        loop {
            let daemon = &mut self.daemons[index];
            let lacking = match daemon.admin.ask(&StatusRequest).await {
                Ok(status) => match lacks(&daemon.plan, &status) {
                    None => return Ok(status),
                    Some(lacking) => lacking,
                },
                Err(error) => error.to_string(),
            };
            if let Some(how) = daemon.ended() {
                return Err(self.failure(index, &format!("it exited by itself ({how})")));
            }
            if clock() >= deadline {
                let limit = READY_LIMIT.as_secs();
                return Err(self.failure(index, &format!("not ready within {limit} s: {lacking}")));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// An error about one daemon, with the end of its log; the folder is kept for inspection.
    pub(super) fn failure(&mut self, index: usize, what: &str) -> Error {
        self.folder.keep();
        let (daemon, folder) = (&self.daemons[index], self.folder.path().display());
        let (name, log) = (daemon.plan.name(), daemon.log_tail());
        Error::Negative(format!(
            "{name}: {what}\n  the last lines of its log:\n{log}\n  \
             all logs and configurations: {folder}"
        ))
    }

    /// An error unless every daemon runs.
    pub(super) fn check(&mut self) -> Result<(), Error> {
        for index in 0..self.daemons.len() {
            if let Some(how) = self.daemons[index].ended() {
                return Err(self.failure(index, &format!("it exited by itself ({how})")));
            }
        }
        Ok(())
    }

    /// Leaves logs and configurations where they are.
    pub(super) fn keep_folder(&mut self) -> &Path {
        self.folder.keep();
        self.folder.path()
    }

    pub(super) fn daemons(&mut self) -> &mut [Daemon] {
        &mut self.daemons
    }

    pub(super) fn shaper(&self) -> &Shaper {
        &self.shaper
    }

    pub(super) fn apiserver(&self, site: usize) -> &StandIn {
        &self.apiservers[site]
    }

    /// Where the clients of a site connect.
    pub(super) fn local(&self, site: usize) -> SocketAddr {
        self.locals[site]
    }

    /// The name of each node and the address of its page.
    pub(super) fn pages(&self) -> &[(String, String)] {
        &self.pages
    }

    /// The address of the page of a site's worker.
    pub(super) fn page(&self, site: usize) -> String {
        let worker = NodePlan { site, part: Part::Worker }.name();
        let page = self.pages.iter().find(|(name, _)| *name == worker);
        page.map(|(_, page)| page.clone()).unwrap_or_default()
    }

    pub(super) fn client(&self, site: usize) -> Result<Client, Error> {
        Client::new(self.local(site), &self.authority_pem)
    }

    /// A command that shows which origin answers at a site's local address.
    pub(super) fn curl(&self, site: usize) -> String {
        let (authority, local) = (self.authority.display(), self.local(site));
        format!("curl --cacert {authority} https://{local}/whoami")
    }
}

fn start_shaper(seed: u64) -> Result<Shaper, Error> {
    let config = ShaperConfig {
        seed,
        default_link: LinkConfig::lan(),
        strangers: true,
        ..ShaperConfig::default()
    };
    let shaper = Shaper::start(config)?;
    for (a, b, ms) in DISTANCES_MS {
        shaper.set_link(a, b, &link(Duration::from_millis(ms)));
    }
    Ok(shaper)
}

/// The one service of the demo.
fn apiserver_of(status: &Status) -> Option<&ServiceStatus> {
    status.services.first()
}

/// The conditions that a node still lacks: a proven route to each origin, on the stage the nearest
/// first.
fn lacks(plan: &NodePlan, status: &Status) -> Option<String> {
    let origins = apiserver_of(status).map(|service| &service.origins[..]).unwrap_or_default();
    let proven = |origin: &&OriginStatus| {
        origin.usable
            && origin.state == "ready"
            && (origin.rtt_ms.is_some() || origin.path == "own")
    };
    let reached: Vec<&str> =
        origins.iter().filter(proven).map(|origin| origin.who.name.as_str()).collect();
    let missing = (0..SITES.len()).map(origin_name).filter(|name| !reached.contains(&&**name));
    let missing: Vec<String> = missing.map(|name| describe(&name, origins)).collect();
    if !missing.is_empty() {
        return Some(missing.join(", "));
    }
    if plan.site != STAGE {
        // The other two are so near each other that a busy machine may swap them.
        return None;
    }
    let chosen = apiserver_of(status)?.chosen.as_ref()?;
    let nearest = origin_name(plan.site);
    (chosen.who.name.as_str() != nearest)
        .then(|| format!("it prefers {} to {nearest} ({})", chosen.who.name, chosen.why))
}

/// The obstacle between a node and an origin it does not reach.
fn describe(name: &str, origins: &[OriginStatus]) -> String {
    match origins.iter().find(|origin| origin.who.name.as_str() == name) {
        None => format!("{name} is not known"),
        Some(origin) => format!("{name} is {} and its path {}", origin.state, origin.path),
    }
}
