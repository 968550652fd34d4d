//! `meshport leave`: takes this node out of the mesh permanently.
//!
//! The node's own key signs its departure, and its daemon gossips it: every node then refuses that
//! key, as after a revocation by the authority. Then the daemon stops.

use std::time::Duration;

use clap::Args;
use meshport_config::{NodeId, NodeName, Revocation};
use meshport_daemon::Error;
use meshport_daemon::admin::api::{RevokeRequest, Status};
use meshport_daemon::admin::queries::StatusRequest;
use meshport_state::{StateDir, StateLock};
use serde::Serialize;
use tokio::time::sleep;

use super::query::{DaemonArgs, is_closed};
use super::{clock, output, reset, runtime, service};

/// Limit for a leaving daemon to stop: it repeats its announcement once and saves its state.
const END: Duration = Duration::from_secs(20);
/// How long a daemon keeps running after its departure, with a margin.
const FAREWELL: Duration = Duration::from_secs(2);
/// Interval at which the state lock is polled.
const LOOK: Duration = Duration::from_millis(50);

/// `meshport leave`
#[derive(Debug, Args)]
pub(crate) struct LeaveArgs {
    /// Also erase the state folder, as `meshport reset` does
    #[arg(long)]
    pub(crate) erase: bool,
    /// Do not ask
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
}

/// The node that has left.
#[derive(Debug, Serialize)]
struct Left {
    /// Its key, which is never accepted again.
    node: NodeId,
    /// The name it had.
    name: NodeName,
    /// The systemd unit that was disabled.
    disabled: Option<&'static str>,
    /// With `--erase`.
    #[serde(flatten)]
    erased: Option<reset::Erased>,
}

pub(crate) fn run(args: &LeaveArgs) -> Result<(), Error> {
    let state = args.daemon.state()?;
    let client = args.daemon.client()?;
    let runtime = runtime()?;
    let heard = runtime.block_on(client.ask(&StatusRequest));
    let status = heard.inspect_err(|error| advise(error, &state))?;
    let departure = departure(&state, &status)?;
    if args.erase {
        reset::refuse_authority(&state, false)?;
    }
    let name = &status.me.name;
    reset::confirm(
        args.yes,
        &format!(
            "{name} leaves the mesh for good: its sessions end, its key is never accepted again{}.",
            if args.erase { ", and its state is erased" } else { "" }
        ),
    )?;
    runtime.block_on(client.ask(&RevokeRequest { revocation: departure.to_text() }))?;
    // The daemon announces its departure twice; disabling the unit earlier would stop it first.
    runtime.block_on(async { sleep(FAREWELL).await });
    let disabled = service::disable(state.path())?;
    let lock = runtime.block_on(ended(&state))?;
    let erased = if args.erase { Some(reset::erase(&state, lock)?) } else { None };
    let left = Left { node: status.me.node, name: name.clone(), disabled, erased };
    let advice = match left.disabled {
        Some(_) => "",
        None => "keep the daemon from starting again: disable its unit or remove its manifest",
    };
    output::with_advice(args.json, &left, &left.lines(), advice)
}

/// Advises on what to do if no daemon runs. One that answers elsewhere, or not to this user, runs.
fn advise(error: &Error, state: &StateDir) {
    let is_silent = matches!(error, Error::NoDaemon { .. }) && !is_closed(error);
    if is_silent && state.holder().is_none() {
        output::advice(
            "Only a running daemon can announce the departure. Start it, or erase this machine \
             with `meshport reset` and revoke the node where the authority's key is: meshport \
             revoke NODE",
        );
    }
}

/// The departure, signed by the node's own key, if another member is up to learn it.
fn departure(state: &StateDir, status: &Status) -> Result<Revocation, Error> {
    let (Some(key), Some(credential)) = (state.node_key()?, state.credential()?) else {
        return Err(Error::Usage("this machine is not a node: there is nothing to leave".into()));
    };
    if key.public() != status.me.node {
        return Err(Error::Usage(
            "the daemon's key is not the one in the state folder; name its folder with \
             --state-dir, or try again when `rotate-key` has finished"
                .into(),
        ));
    }
    if status.members.alive <= 1 {
        return Err(Error::Negative(
            "no other member is up, so none would learn of the departure. Try again when \
             `meshport status` shows one; to only erase this machine: meshport reset"
                .into(),
        ));
    }
    Ok(Revocation::of_departure(&key, &credential.mesh, clock::wall()))
}

/// Waits until the daemon has stopped.
async fn ended(state: &StateDir) -> Result<StateLock, Error> {
    let until = clock::now() + END;
    loop {
        match state.lock() {
            Ok(lock) => return Ok(lock),
            Err(error) if clock::now() >= until => return Err(error.into()),
            Err(_running) => sleep(LOOK).await,
        }
    }
}

impl Left {
    fn lines(&self) -> String {
        let mut said = format!("{} has left the mesh; its daemon has stopped\n", self.name);
        if let Some(unit) = self.disabled {
            said.push_str(&format!("disabled {unit}\n"));
        }
        said.push_str(&self.erased.as_ref().map_or_else(String::new, reset::Erased::line));
        said
    }
}
