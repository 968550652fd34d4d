//! A leaf: the client side of a daemon, for the duration of one command.
//!
//! Like a daemon, it chooses routes with the core and races and replays sessions. It has no gossip,
//! no instances, no incoming streams and no admin socket. A task detects suspends and network
//! changes, and then renews every tunnel; when the wall clock is set, it only probes all paths.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use meshport_config::{
    Credential, Defaults, MeshSecrets, Revocation, Revocations, Seed, ServiceName, ServiceSettings,
    Settings, SiteName,
};
use meshport_mesh::{Incoming, Mesh};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use tracing::info;

use crate::Error;
use crate::admin::api::OriginRef;
use crate::admin::certificates::OriginCertificate;
use meshport_core::route::{Candidate, Line, OriginView, PathView, Route, Standing};

use crate::clock;
use crate::descriptors;
use crate::driver::commands::Command;
use crate::driver::endpoints;
use crate::driver::write_queue::{MAX_WRITES, SecretsWrite, Write};
use crate::driver::{Channels, Components, Driver, Question};
use crate::findings;
use crate::health::certificates::{self, Origins};
use crate::health::handshake::CertificateError;
use crate::lifecycle::dashboard::Viewer;
use crate::lifecycle::suspend::{MAX_DESTINATIONS, Reading, SuspendDetector, TICK, Wakeup};
use crate::node;
use crate::node::assemble;
use crate::node::services::Services;
use crate::random;
use crate::report::LocalState;
use crate::sessions::claim::IfTaken;
use crate::sessions::ingress::Context;
use crate::sessions::registry::Sessions;
use crate::tcp::Host;
use meshport_state::Identity;

/// The inputs of a leaf.
#[derive(Debug)]
pub struct Options {
    /// Its keys and its credential, which has the role operator.
    pub identity: Identity,
    /// Members to contact first.
    pub seeds: Vec<Seed>,
    /// The directory saved by a previous run.
    pub directory: Option<Vec<u8>>,
    /// The service that clients reach.
    pub service: ServiceName,
    /// Listen addresses for clients; the first free one is used, and port 0 means any port. If
    /// empty, the leaf has no clients.
    pub listen: Vec<SocketAddr>,
    /// Local UDP address of the mesh; port 0 means any free port.
    pub mesh_listen: SocketAddr,
}

/// Where new sessions of a leaf go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// The origin.
    pub name: String,
    /// Its site.
    pub site: Option<SiteName>,
    /// Whether a relay carries the sessions.
    pub relayed: bool,
    /// The round-trip time of the path, once measured.
    pub rtt: Option<Duration>,
    /// Whether the origin reports that it is ready and its path answers.
    pub healthy: bool,
    /// Why the route has it first.
    pub why: String,
    line: Line,
}

impl Destination {
    fn of(first: &Candidate, why: &str) -> Self {
        Self {
            name: first.origin.name.clone(),
            site: first.origin.site.clone(),
            relayed: matches!(first.origin.line, Line::Relayed { .. }),
            rtt: match first.origin.path {
                PathView::Up(rtt) => Some(rtt),
                PathView::Own | PathView::Unmeasured | PathView::Dead => None,
            },
            healthy: first.standing == Standing::Healthy,
            why: why.to_owned(),
            line: first.origin.line,
        }
    }

    /// Whether both are the same origin over the same path: direct or through the same relay.
    pub fn is_same_way(&self, other: &Self) -> bool {
        self.line == other.line
    }
}

/// A leaf's progress towards a usable route.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// Members with a tunnel.
    pub members: usize,
    /// Known origins of the service.
    pub origins: usize,
    /// Origins whose path has been measured.
    pub measured: usize,
    /// Why a member was refused, or refused this leaf, most recently.
    pub refused: Option<String>,
    /// An origin that denies this leaf access.
    pub denied: Option<String>,
}

/// A running leaf. Dropping it ends its sessions without notice; [`Leaf::stop`] tells the members
/// first.
#[derive(Debug)]
pub struct Leaf {
    mesh: Mesh,
    service: ServiceName,
    listen: Option<SocketAddr>,
    routes: watch::Receiver<Arc<Route>>,
    refused: watch::Receiver<Option<String>>,
    own_duplicate: watch::Receiver<Option<String>>,
    /// That another process uses this leaf's key, until the caller takes it.
    copied: Option<String>,
    revocations: watch::Receiver<Revocations>,
    credential: Credential,
    writes: mpsc::Receiver<Write>,
    offered: Option<Box<SecretsWrite>>,
    commands: mpsc::Sender<Command>,
    /// Dropping this sender stops the driver.
    _questions: mpsc::Sender<Question>,
    listeners: JoinSet<()>,
    tasks: JoinSet<()>,
}

impl Leaf {
    /// Binds the local addresses and starts to look for members.
    ///
    /// # Errors
    /// [`Error::Io`] if an address cannot be bound, [`Error::Mesh`] if the credential is not valid
    /// now.
    pub fn start(options: Options) -> Result<Self, Error> {
        let (settings, mut services) = bind(&options)?;
        let Options { identity, seeds, directory, service, .. } = options;
        descriptors::raise();
        findings::warn_of_few_descriptors(&settings);
        // Nodes may not open streams to a leaf: without a queue, incoming ones are rejected.
        let shards = assemble::bind_mesh(&settings, 1)?;
        let [mesh_seed, core_seed, ticket_seed] = random::seeds(random::seed()?);
        let started = assemble::start_mesh(&settings, &identity, shards, mesh_seed)?;
        let (mesh, Incoming { events, .. }) = started;
        let sessions = Sessions::default();
        let facts = services.facts(&settings);
        let listen = facts.values().find_map(|facts| facts.listen.first().copied());
        let state = LocalState::new(&identity, &mesh, &sessions, facts, &Host::Kernel);
        let (writer, writes) = mpsc::channel(MAX_WRITES);
        let leaf_of = Some(vec![service.clone()]);
        let (mut driver, channels) = Driver::new(Components {
            core: assemble::build_core(&settings, &identity, clock::wall().0, core_seed, leaf_of),
            mesh: mesh.clone(),
            events,
            sessions: sessions.clone(),
            state,
            probers: BTreeMap::new(),
            seed_names: Vec::new(),
            writer: Some(writer),
            // Members send the revocations again on the first query.
            revocations: Revocations::default(),
        });
        let Channels { questions, commands, findings, refused, revocations, .. } = channels;
        node::restore(directory.as_deref(), &mut driver.core);
        let plain = seeds.iter().map(|seed| (seed.node, endpoints::plain(&seed.endpoints)));
        driver.execute(Command::Seeds(plain.collect()));
        let context = Context {
            mesh: mesh.clone(),
            host: Host::Kernel,
            sessions,
            findings,
            first_ticket: random::number(ticket_seed),
        };
        let (_limits, listeners) = services.serve(&settings, &context, &mut driver);
        let listeners = listeners.into_inner().expect("nobody has locked it yet");
        let routes = driver.outputs.routes[&service].subscribe();
        let own_duplicate = driver.outputs.own_duplicate.subscribe();
        let mut tasks = JoinSet::new();
        tasks.spawn(driver.run());
        tasks.spawn(follow_names(seeds, commands.clone()));
        tasks.spawn(watch_over(mesh.clone(), commands.clone()));
        Ok(Self {
            mesh,
            service,
            listen,
            routes,
            refused,
            own_duplicate,
            copied: None,
            revocations,
            credential: identity.credential,
            writes,
            offered: None,
            commands,
            _questions: questions,
            listeners,
            tasks,
        })
    }

    /// The bound listen address; `None` if the leaf has no clients.
    pub fn listen(&self) -> Option<SocketAddr> {
        self.listen
    }

    /// Where new sessions go now; `None` while no origin is usable.
    pub fn destination(&self) -> Option<Destination> {
        let route = self.routes.borrow();
        let first = route.choice()?;
        Some(Destination::of(first, &route.why))
    }

    /// Returns a reader of other nodes' views, usable while this leaf runs.
    pub fn viewer(&self) -> Viewer {
        Viewer::new(self.mesh.clone(), self.routes.clone())
    }

    /// The progress so far.
    pub fn progress(&self) -> Progress {
        let route = self.routes.borrow();
        let measured = |it: &&Candidate| matches!(it.origin.path, PathView::Up(_));
        let denied = |it: &&Candidate| it.origin.denied;
        Progress {
            members: self.mesh.peers().iter().filter(|peer| peer.session && peer.admitted).count(),
            origins: route.candidates.len(),
            measured: route.candidates.iter().filter(measured).count(),
            refused: self.refused.borrow().clone(),
            denied: route.candidates.iter().find(denied).map(|it| it.origin.name.clone()),
        }
    }

    /// Fails once this leaf is revoked.
    ///
    /// # Errors
    /// [`Error::Trust`] with the revocation.
    pub fn check_revoked(&self) -> Result<(), Error> {
        match self.revocations.borrow().covering(&self.credential) {
            Some(&Revocation { revoked, at, .. }) => {
                Err(meshport_config::Error::Revoked { revoked, at }.into())
            }
            None => Ok(()),
        }
    }

    /// Fetches the certificates of all origins. One that is known to be down is not asked, and its
    /// answer says so. `limit` is the timeout per origin.
    pub async fn certificates(&self, limit: Duration) -> Vec<OriginCertificate> {
        let route = self.routes.borrow().clone();
        let who = |candidate: &Candidate| {
            let OriginView { line, name, site, .. } = &candidate.origin;
            OriginRef { node: line.origin(), name: name.clone(), site: site.clone(), relay: None }
        };
        let is_down = |it: &&Candidate| it.standing >= Standing::Down;
        let (down, up): (Vec<_>, Vec<_>) = route.candidates.iter().partition(is_down);
        let up = up.into_iter().map(|it| (who(it), it.clone())).collect();
        let origins = Origins { origins: up, local_instance: None };
        let mut answers = certificates::ask(&self.mesh, &self.service, origins, limit).await;
        let reason = || CertificateError::Reported("it is down or out of reach".into());
        answers.extend(down.into_iter().map(|it| OriginCertificate::new(who(it), Err(reason()))));
        answers
    }

    /// Returns, once for each report, that another process uses this leaf's key.
    pub fn take_copied(&mut self) -> Option<String> {
        self.copied.take()
    }

    /// Waits until [`Leaf::destination`], [`Leaf::progress`] or [`Leaf::check_revoked`] may have
    /// changed, a new secret is offered, or another process uses this leaf's key.
    pub async fn changed(&mut self) {
        tokio::select! {
            changed = self.routes.changed() => if changed.is_err() {
                // The driver has ended, so this process is about to end.
                std::future::pending::<()>().await;
            },
            Ok(()) = self.refused.changed() => {}
            Ok(()) = self.own_duplicate.changed() => {
                self.copied = self.own_duplicate.borrow().clone();
            }
            Ok(()) = self.revocations.changed() => {}
            Some(write) = self.writes.recv() => match write {
                Write::Secrets(new) => self.offered = Some(new),
                // A leaf need not store these: members send revocations again, and keys are
                // replaced only over an admin socket.
                write => {
                    let _ = self.commands.try_send(Command::Stored(write));
                }
            },
        }
    }

    /// The secrets that members have offered: a new one, or the end of the previous one.
    /// [`Leaf::take_secrets`] puts them in use.
    pub fn offered_secrets(&self) -> Option<&MeshSecrets> {
        self.offered.as_ref().map(|new| &new.secrets)
    }

    /// Puts the offered secrets in use. A caller that stores secrets stores them first.
    pub async fn take_secrets(&mut self) {
        let Some(new) = self.offered.take() else { return };
        // The driver outlives every call on this leaf.
        let _ = self.commands.send(Command::Stored(Write::Secrets(new))).await;
    }

    /// The current directory of the mesh, to save for the next run.
    pub async fn directory(&self) -> Option<Vec<u8>> {
        node::snapshot(&self.commands).await.map(|snapshot| snapshot.directory)
    }

    /// Ends the sessions and tells the members. Takes at most a second.
    pub async fn stop(mut self) {
        self.listeners.shutdown().await;
        self.mesh.close().await;
        self.tasks.shutdown().await;
    }
}

/// Binds the first free address.
fn bind(options: &Options) -> Result<(Settings, Services), Error> {
    let wanted = options.listen.iter().map(|address| vec![*address]);
    // Without addresses, try once with an empty list.
    let wanted = wanted.chain(options.listen.is_empty().then(Vec::new));
    let mut last = Error::Bug("there is nothing to bind".into());
    for listen in wanted {
        let settings = settings(options, listen);
        match Services::bind(&Host::Kernel, &settings, IfTaken::Fail, |_| "--listen".into()) {
            Ok(services) => return Ok((settings, services)),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The settings of a daemon whose only service is this leaf's.
fn settings(options: &Options, listen: Vec<SocketAddr>) -> Settings {
    let site = options.identity.credential.site.clone();
    let mut settings = Settings::with_defaults(site, &Defaults::default());
    let service = ServiceSettings { listen, ..ServiceSettings::defaults(&options.service) };
    settings.services = BTreeMap::from([(options.service.clone(), service)]);
    settings.mesh.listen = options.mesh_listen;
    settings
}

/// Resolves the seeds' names periodically.
async fn follow_names(seeds: Vec<Seed>, commands: mpsc::Sender<Command>) {
    // A leaf never advertises addresses.
    let (_nothing, advertised) = watch::channel(Vec::new());
    endpoints::follow(seeds, advertised, commands).await;
}

/// Tells the driver when this machine was suspended or has changed its network.
async fn watch_over(mesh: Mesh, commands: mpsc::Sender<Command>) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut detector = SuspendDetector::default();
    loop {
        ticks.tick().await;
        let command = match detector.handle_reading(read(&mesh)) {
            None => continue,
            Some(Wakeup::Renew { slept, moved }) => {
                info!(slept_s = slept.as_secs(), moved, "renewing all tunnels");
                Command::Wake(slept)
            }
            Some(Wakeup::Probe) => {
                info!("the wall clock was set; probing all paths");
                Command::Probe
            }
        };
        if commands.send(command).await.is_err() {
            return;
        }
    }
}

fn read(mesh: &Mesh) -> Reading {
    let boot = clock_gettime(ClockId::Boottime);
    let peers = mesh.peers().into_iter();
    let used = peers.filter(|peer| peer.session).filter_map(|peer| peer.endpoint);
    let towards: BTreeSet<SocketAddr> =
        used.take(MAX_DESTINATIONS).chain(endpoints::ANYWHERE).collect();
    let source =
        |to: SocketAddr| -> (SocketAddr, Option<IpAddr>) { (to, endpoints::source_towards(to)) };
    Reading {
        awake: Duration::try_from(boot).unwrap_or_default(),
        wall: clock::since_1970(),
        sources: towards.into_iter().map(source).collect(),
    }
}
