//! `meshport renew`: a new credential for the node of this machine, which stays the same node.
//!
//! The authority's key or an invite signs it, and so does the node's own key. A running daemon
//! checks and stores it, and presents it to its peers without ending a session; one that it refuses
//! changes nothing. Otherwise it is written for the next start. A credential of an earlier release,
//! which the node never signed, is renewed too.

use clap::Args;
use meshport_config::{Credential, MeshId, UnixSeconds};
use serde::Serialize;

use super::join::{Joined, refuse_revoked};
use super::query::DaemonArgs;
use super::signer::{Holder, SignerArgs};
use super::{clock, output};
use meshport_daemon::Error;
use meshport_daemon::admin::credentials::RenewRequest;
use meshport_state::{Existing, StateDir};

/// `meshport renew`
#[derive(Debug, Args)]
pub(crate) struct RenewArgs {
    #[command(flatten)]
    pub(crate) signer: SignerArgs,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
}

/// The new credential.
#[derive(Debug, Serialize)]
pub(crate) struct RenewOutcome {
    #[serde(flatten)]
    pub(crate) joined: Joined,
    /// Expiry of the credential that it replaces.
    pub(crate) former_expires_at: UnixSeconds,
    /// Whether a running daemon already presents it.
    pub(crate) in_force: bool,
}

pub(crate) fn run(args: &RenewArgs) -> Result<(), Error> {
    let state = args.daemon.state()?;
    let (former, credential) = sign(&state, args, clock::wall())?;
    let in_force = hand_over(args, &state, &credential)?;
    let joined = Joined::of(&credential);
    let outcome = RenewOutcome { joined, former_expires_at: former.expires_at, in_force };
    let advice = match in_force {
        true => "The running daemon uses it now; no session ended.",
        false => "No daemon answers here; the next start uses it.",
    };
    output::with_advice(args.json, &outcome, &outcome.joined.lines(), advice)
}

/// Creates the credential; returns the previous and the new one.
pub(crate) fn sign(
    state: &StateDir,
    args: &RenewArgs,
    now: UnixSeconds,
) -> Result<(Credential, Credential), Error> {
    let missing = || no_node(state);
    let (node, record) = state.node_key()?.zip(state.record_key()?).ok_or_else(missing)?;
    let former = state.credential_to_renew(&node)?.ok_or_else(missing)?;
    former.check_keys(&node.public(), &record.public())?;
    let holder = Holder {
        former: &former,
        node: &node,
        record: &record,
        // Nodes that never knew the previous key learn from this that it is revoked.
        succession: former.succession.clone(),
        at: dated_after(&former, now),
    };
    let credential = args.signer.sign(state, "renew", holder)?;
    check(state, &credential, &former.mesh, now)?;
    Ok((former, credential))
}

/// Passes the credential to the daemon, otherwise writes it to the state folder. Returns whether a
/// daemon uses it.
fn hand_over(args: &RenewArgs, state: &StateDir, credential: &Credential) -> Result<bool, Error> {
    let request = RenewRequest { credential: credential.to_text() };
    let report = args.daemon.ask_if_running(&request, state, "the credential is unchanged")?;
    if !report.as_ref().is_some_and(|it| it.is_stored) {
        state.store_credential(credential, Existing::ReplaceForOwner)?;
    }
    Ok(report.is_some())
}

/// Of two credentials of the same second, others may keep the previous one. They refuse one from
/// the future, which was signed while this machine's clock was ahead.
fn dated_after(former: &Credential, now: UnixSeconds) -> UnixSeconds {
    match former.valid_from() <= now {
        true => now.max(former.issued_at.saturating_add(1)),
        false => now,
    }
}

/// Refuses a new credential that the mesh would not accept, as far as the folder shows.
pub(super) fn check(
    state: &StateDir,
    credential: &Credential,
    mesh: &MeshId,
    now: UnixSeconds,
) -> Result<(), Error> {
    credential.verify(mesh, now)?;
    refuse_revoked(&state.revocations(mesh)?, credential)
}

/// The error if the folder has no node identity.
pub(super) fn no_node(state: &StateDir) -> Error {
    Error::State {
        path: state.path().to_owned(),
        what: "this machine is not a node".into(),
        remedy: "Run `meshport join INVITE`".into(),
    }
}
