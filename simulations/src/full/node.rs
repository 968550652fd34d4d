//! One simulated node: who it is, its host, its process.

use std::sync::{Arc, Mutex};

use meshport_config::{Endpoint, HealthMode, Revocations, Seed, Settings};
use meshport_daemon::tcp::{Host, memory};
use meshport_daemon::{Environment, Identity, Node as Process};
use meshport_mesh::Shards;
use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::instance;
use super::wire::{Socket, Wire, endpoint};
use crate::Error;
use crate::identity::{Mesh, bytes32};
use crate::scenario::{Overrides, Scenario};

/// One node.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) site: usize,
    pub(super) identity: Identity,
    pub(super) hosts: bool,
    pub(super) host: Host,
    pub(super) process: Option<Process>,
    /// Counts the starts of its process; 0 is "not yet".
    pub(super) boot: u32,
    /// What its state folder holds.
    pub(super) directory: Option<Vec<u8>>,
    /// What its process has in force.
    settings: Option<Settings>,
    generation: u64,
    seed: u64,
}

impl Node {
    /// A node that has not started.
    pub(super) fn new(
        scenario: &Scenario,
        (site, number): (usize, usize),
        mesh: &Mesh,
        rng: &mut ChaCha8Rng,
    ) -> Result<Self, Error> {
        let identity = mesh.member(scenario, (site, number), rng)?;
        Ok(Self {
            name: scenario.name((site, number)),
            site,
            identity,
            hosts: scenario.hosts((site, number)),
            host: Host::Memory(memory::Host::default()),
            process: None,
            boot: 0,
            directory: None,
            settings: None,
            generation: super::machine::WALL_START_S,
            seed: rng.next_u64(),
        })
    }

    /// The seed by which others find this node, the `at`-th of all.
    pub(super) fn as_seed(&self, at: usize) -> Result<Seed, Error> {
        let endpoint: Result<Endpoint, _> = endpoint(1, at).to_string().parse();
        let wrong = |error: &dyn std::fmt::Display| Error::Scenario(format!("seed: {error}"));
        let endpoint = endpoint.map_err(|error| wrong(&error))?;
        Seed::new(self.identity.credential.node, vec![endpoint]).map_err(|error| wrong(&error))
    }

    /// Starts its process.
    pub(super) fn start(
        &mut self,
        at: usize,
        settings: &Settings,
        wire: &Arc<Mutex<Wire>>,
        (seeds, revocations): (Vec<Seed>, Revocations),
    ) -> Result<(), Error> {
        self.boot += 1;
        self.generation += 1;
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed.wrapping_add(u64::from(self.boot)));
        let environment = Environment {
            shards: Shards::one(Arc::new(Socket::bind(wire.clone(), at, self.boot))),
            host: self.host.clone(),
            seed: bytes32(&mut rng),
            generation: self.generation,
            seeds: seeds.into_iter().map(Into::into).collect(),
            directory: self.directory.clone(),
            revocations,
            admin_http: None,
        };
        let failed = |source| Error::Node { name: self.name.clone(), source };
        self.process = Some(Process::start(settings, &self.identity, environment).map_err(failed)?);
        self.settings = Some(settings.clone());
        Ok(())
    }

    /// What its process has in force; none before its first start.
    pub(super) fn settings(&self) -> Option<&Settings> {
        self.settings.as_ref()
    }

    /// Its file has changed, and its process is told to read it again.
    pub(super) async fn reload(&mut self, settings: Settings) -> Result<(), Error> {
        let (Some(process), Some(old)) = (&self.process, self.settings.take()) else {
            return Ok(());
        };
        let failed = |source| Error::Node { name: self.name.clone(), source };
        self.settings = Some(process.reload(old, settings).await.map_err(failed)?);
        Ok(())
    }
}

/// The settings of a node: those of the scenario, and where things are on a simulated host.
pub(super) fn settings(
    overrides: &Overrides,
    node: &Node,
    configured: Option<usize>,
) -> Result<Settings, Error> {
    let mut settings = match configured {
        Some(event) => overrides.event(event, node.site).clone(),
        None => overrides.site(node.site).clone(),
    };
    for service in settings.services.values_mut() {
        if node.hosts {
            let wrong = |error| Error::Scenario(format!("instance: {error}"));
            service.origin = Some(instance::ADDRESS.parse().map_err(wrong)?);
            service.health.mode = HealthMode::Http;
            service.health.path = instance::READY_PATH.into();
        }
    }
    Ok(settings)
}
