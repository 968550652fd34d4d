//! What an operator does to nodes that run, in the operator's own ways; and processes that get no
//! time.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use meshport_daemon::StateDir;
use meshport_daemon::admin::queries::StatusRequest;
use meshport_daemon::state::Existing;
use rand::Rng;
use tokio::time::sleep;

use super::{LOOK, World, clock, node};
use crate::Error;
use crate::identity::Mesh;

/// How long a daemon that has been started may take until it can be told something.
const STARTING: Duration = Duration::from_secs(10);

/// A node whose process stands still again and again.
#[derive(Debug)]
pub(super) struct Starved {
    node: usize,
    stall: Duration,
    until: Duration,
    /// When it stands still next.
    next: Duration,
}

impl Starved {
    pub(super) fn new(node: usize, stall: Duration, until: Duration) -> Self {
        Self { node, stall, until, next: Duration::ZERO }
    }
}

/// The folder of whoever may act for the authority.
fn operator(folder: &Path) -> PathBuf {
    folder.join("operator")
}

/// Puts the authority's key where the operator looks for it.
pub(super) fn keep_authority(folder: &Path, mesh: &Mesh) -> Result<(), Error> {
    let keep = || {
        let state = StateDir::create(operator(folder))?;
        state.store_authority_key(&mesh.authority, Existing::Keep)
    };
    keep().map_err(Error::Part)
}

impl World {
    /// Makes those stand still whose time has come.
    pub(super) fn stall(&mut self, now: Duration) -> Result<(), Error> {
        self.starved.retain(|it| now < it.until);
        for it in &mut self.starved {
            if now >= it.next {
                self.nodes[it.node].stall(it.stall)?;
                it.next = now + it.stall + self.rng.random_range(Duration::ZERO..it.stall * 2);
            }
        }
        Ok(())
    }

    /// Writes a node's file anew, and has its daemon read it.
    pub(super) async fn configure(&mut self, at: usize, event: usize) -> Result<(), Error> {
        let mut events = self.scenario.events.iter().filter(|it| it.configure.is_some());
        let settings = events.nth(event).and_then(|event| event.settings.clone());
        self.nodes[at].configure(&self.scenario, &settings.unwrap_or_default())?;
        if !self.nodes[at].is_running() {
            return Ok(());
        }
        // One that is just starting has no ear for the signal and would end by it; once it answers
        // it has.
        let deadline = clock() + STARTING;
        while self.nodes[at].admin().ask(&StatusRequest).await.is_err() {
            if clock() > deadline {
                let (name, s) = (&self.nodes[at].name, STARTING.as_secs());
                let what = format!("{name} cannot be told to reload: no answer for {s} s");
                return Err(Error::Machine(what));
            }
            sleep(LOOK).await;
        }
        self.nodes[at].reload();
        Ok(())
    }

    /// Hands a revocation to a node that runs, this one or the first, by the verb for it. What the
    /// clients of whoever is revoked ask for is counted no more.
    pub(super) async fn revoke(
        &mut self,
        subject: usize,
        through: Option<usize>,
    ) -> Result<(), Error> {
        let runs = |at: &usize| self.nodes[*at].is_running() && !self.guard.is_revoked(*at);
        let first = through.filter(runs).or_else(|| (0..self.nodes.len()).find(runs));
        self.clients[subject].abort_all();
        let Some(first) = first else { return Ok(()) };
        let mut command = Command::new(&self.options.program);
        command.arg("revoke").arg(self.nodes[subject].identity.credential.node.to_string());
        command.arg("--authority").arg(operator(&self.options.folder).join("authority.key"));
        command.arg("--config").arg(self.nodes[first].config());
        command.env("HOME", operator(&self.options.folder)).stdin(Stdio::null());
        let program = self.options.program.clone();
        // It waits for the daemon's answer, and meanwhile everything else goes on.
        let output = tokio::task::spawn_blocking(move || command.output()).await;
        let failed = |what: String| Error::Machine(format!("meshport revoke: {what}"));
        let output = output.map_err(|error| failed(error.to_string()))?;
        let output = output.map_err(node::file(&program))?;
        match output.status.success() {
            true => Ok(()),
            false => Err(failed(String::from_utf8_lossy(&output.stderr).into_owned())),
        }
    }
}
