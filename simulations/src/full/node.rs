//! One simulated node: its identity, its host, its process.

use std::sync::{Arc, Mutex};

use meshport_config::{Endpoint, HealthMode, Revocations, Seed, Settings};
use meshport_daemon::tcp::{Host, memory};
use meshport_daemon::{Environment, Node as Process, VipSockets};
use meshport_mesh::Shards;
use meshport_state::Identity;
use meshport_state::KnownRenewals;
use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

use super::book::Book;
use super::socket::Socket;
use super::wire::FIRST_PORT;
use super::{DRAIN, callers, instance};
use crate::Error;
use crate::identity::{Mesh, bytes32};
use crate::instance::Instance;
use crate::level::Story;
use crate::network::endpoint;
use crate::scenario::{NodeRef, Scenario};

#[derive(Debug)]
pub(super) struct Node {
    pub(super) site: usize,
    pub(super) identity: Identity,
    pub(super) host: Host,
    /// Commands to its instance, if it has one.
    pub(super) instance: Option<watch::Sender<Instance>>,
    pub(super) process: Option<Process>,
    /// Number of starts of its process; 0 before the first.
    pub(super) boot: u32,
    /// The directory in its state folder.
    pub(super) directory: Option<Vec<u8>>,
    /// Tasks that observe its process...
    pub(super) company: JoinSet<()>,
    /// ...and its clients.
    pub(super) clients: JoinSet<()>,
    /// Its previous process while it shuts down.
    pub(super) leaving: Option<JoinHandle<()>>,
    /// The event that set its settings, if any.
    pub(super) configured: Option<usize>,
    /// The settings in force in its process.
    settings: Option<Settings>,
    generation: u64,
    seed: u64,
}

impl Node {
    /// A node that has not started.
    pub(super) fn new(
        scenario: &Scenario,
        member: NodeRef,
        mesh: &Mesh,
        rng: &mut ChaCha8Rng,
    ) -> Result<Self, Error> {
        let identity = mesh.member(scenario, member, rng)?;
        Ok(Self {
            site: member.site,
            identity,
            host: Host::Memory(memory::Host::default()),
            instance: None,
            process: None,
            boot: 0,
            directory: None,
            company: JoinSet::new(),
            clients: JoinSet::new(),
            leaving: None,
            configured: None,
            settings: None,
            generation: super::machine::WALL_START_S,
            seed: rng.next_u64(),
        })
    }

    /// The seed with which others find this node, number `at`.
    pub(super) fn as_seed(&self, at: usize) -> Result<Seed, Error> {
        let endpoint: Result<Endpoint, _> = endpoint(1, FIRST_PORT + at).to_string().parse();
        let wrong = |error: &dyn std::fmt::Display| Error::Scenario(format!("seed: {error}"));
        let endpoint = endpoint.map_err(|error| wrong(&error))?;
        Seed::new(self.identity.credential.node, vec![endpoint]).map_err(|error| wrong(&error))
    }

    pub(super) fn start(
        &mut self,
        at: usize,
        settings: &Settings,
        book: &Arc<Mutex<Book>>,
        seeds: Vec<Seed>,
        revocations: Revocations,
    ) -> Result<(), Error> {
        self.boot += 1;
        self.generation += 1;
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed.wrapping_add(u64::from(self.boot)));
        let environment = Environment {
            shards: Shards::one(Arc::new(Socket::bind(book.clone(), at, self.boot))),
            host: self.host.clone(),
            seed: bytes32(&mut rng),
            generation: self.generation,
            seeds: seeds.into_iter().map(Into::into).collect(),
            directory: self.directory.clone(),
            revocations,
            renewals: KnownRenewals::default(),
            nodes: None,
            vip_sockets: VipSockets::default(),
        };
        let failed = |source| self.failed(source);
        self.process = Some(Process::start(settings, &self.identity, environment).map_err(failed)?);
        self.settings = Some(settings.clone());
        Ok(())
    }

    fn failed(&self, source: meshport_daemon::Error) -> Error {
        Error::Node { name: self.identity.credential.name.to_string(), source }
    }

    /// The settings in force in its process; none before its first start.
    pub(super) fn settings(&self) -> Option<&Settings> {
        self.settings.as_ref()
    }

    /// The settings of its file: the scenario's, and the paths of a simulated host.
    pub(super) fn file(&self, story: &Story) -> Result<Settings, Error> {
        let mut settings = story.settings(self.site, self.configured).clone();
        for service in settings.services.values_mut().filter(|_| self.instance.is_some()) {
            let wrong = |error| Error::Scenario(format!("instance: {error}"));
            service.origin = Some(instance::ADDRESS.parse().map_err(wrong)?);
            service.health.mode = HealthMode::Http;
            service.health.path = instance::READY_PATH.into();
        }
        if self.instance.is_some() && story.scenario.way_back.is_some() {
            settings.egress.socket = Some(callers::SOCKET.into());
        }
        Ok(settings)
    }

    /// Shuts its process down in order: announces that it leaves, drains sessions, ends.
    pub(super) fn leave(&mut self, mut process: Process, ended: impl FnOnce() + Send + 'static) {
        self.leaving = Some(tokio::spawn(async move {
            process.leave(sleep(DRAIN)).await;
            process.close().await;
            ended();
        }));
    }

    /// Replaces its file and makes its process reload it.
    pub(super) async fn reload(&mut self, settings: Settings) -> Result<(), Error> {
        let (Some(process), Some(old)) = (&self.process, self.settings.take()) else {
            return Ok(());
        };
        let failed = |source| self.failed(source);
        self.settings = Some(process.reload(old, settings).await.map_err(failed)?);
        Ok(())
    }
}
