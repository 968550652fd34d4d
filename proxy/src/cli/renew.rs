//! `meshport renew`: a new credential for the node of this machine, which stays the same node.
//!
//! The authority's key signs it, or an invite does, and the node's own. It is on disk before a
//! running daemon is told; the daemon shows it to its peers without ending a session, and one that
//! does not run begins with it. A credential that the node never signed, as an earlier meshport
//! left it, is renewed too.

use std::path::PathBuf;

use clap::Args;
use meshport_config::{
    Credential, Invite, Join, MeshId, NodeKey, RecordKey, Revocation, Subject, UnixSeconds,
};
use serde::Serialize;

use super::join::Joined;
use super::lifetime::Lifetime;
use super::query::DaemonArgs;
use super::{authority, clock, output, runtime};
use crate::Error;
use crate::admin::credentials::RenewRequest;
use crate::daemon::state::{Existing, StateDir};

/// `meshport renew`
#[derive(Debug, Args)]
pub(crate) struct RenewArgs {
    /// The line of an invite that allows what this node is; "-" reads it from standard input
    /// [default: the authority's key signs]
    #[arg(value_name = "INVITE")]
    pub(crate) invite: Option<String>,
    /// The authority's key [default: authority.key in the state folder]
    #[arg(long, value_name = "FILE", conflicts_with = "invite")]
    pub(crate) authority: Option<PathBuf>,
    /// How long the new credential is valid; an invite says that itself
    #[arg(long, value_name = "TIME", default_value = "365d", conflicts_with = "invite")]
    pub(crate) credential_ttl: Lifetime,
    /// Show the outcome as JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
}

/// What was made.
#[derive(Debug, Serialize)]
pub(crate) struct RenewOutcome {
    #[serde(flatten)]
    pub(crate) joined: Joined,
    /// When the credential that it replaces ends.
    pub(crate) former_expires_at: UnixSeconds,
    /// Whether a running daemon shows it already.
    pub(crate) in_force: bool,
}

pub(crate) fn run(args: &RenewArgs) -> Result<(), Error> {
    let state = args.daemon.state()?;
    let line = args.invite.as_deref().map(authority::line).transpose()?;
    let (former, credential) =
        renew(&state, line.as_ref().map(|it| it.trim()), args, clock::wall())?;
    let in_force = tell(args, &credential)?;
    let joined = Joined::of(&credential);
    let outcome = RenewOutcome { joined, former_expires_at: former.expires_at, in_force };
    if args.json {
        return output::json(&outcome);
    }
    output::answer(&outcome.joined.lines())?;
    output::advice(match in_force {
        true => "The running daemon shows it from now on; no session ended.",
        false => "No daemon answers here; the next one begins with it.",
    });
    Ok(())
}

/// Makes the credential and writes it; returns the one before and the new one.
pub(crate) fn renew(
    state: &StateDir,
    invite: Option<&str>,
    args: &RenewArgs,
    now: UnixSeconds,
) -> Result<(Credential, Credential), Error> {
    let missing = || no_node(state);
    let keys = state.node_key()?.zip(state.record_key()?).ok_or_else(missing)?;
    let former = state.credential_to_renew(&keys.0)?.ok_or_else(missing)?;
    former.check_keys(&keys.0.public(), &keys.1.public())?;
    // Of two that were issued in the same second others may keep the former.
    let at = now.max(former.issued_at.saturating_add(1));
    let credential = match invite {
        Some(line) => by_invite(line, &former, &keys, at)?,
        None => {
            let (file, folder) = (args.authority.as_deref(), || state.authority_key());
            let authority = authority::key_or_invite(file, folder, "renew")?;
            let until = at.saturating_add(args.credential_ttl.seconds());
            let issued = Credential::issue_by_authority(&authority, subject(&former), at, until)?;
            issued.countersign(&keys.0)?
        }
    };
    check(state, &credential, &former.mesh, now)?;
    state.store_credential(&credential, Existing::ReplaceForOwner)?;
    Ok((former, credential))
}

fn subject(former: &Credential) -> Subject {
    Subject {
        node: former.node,
        record_key: former.record_key,
        name: former.name.clone(),
        site: former.site.clone(),
        roles: former.roles.clone(),
        // Whoever never heard of the former key learns of its end from this.
        succession: former.succession.clone(),
    }
}

/// By an invite, with all the roles it gives.
fn by_invite(
    line: &str,
    former: &Credential,
    (node, record): &(NodeKey, RecordKey),
    now: UnixSeconds,
) -> Result<Credential, Error> {
    let invite = Invite::parse(line)?;
    if invite.delegation.roles.is_leaf() != former.roles.is_leaf() {
        return Err(Error::Usage(
            "an invite with the role operator alone is for an operator's machine, every other for \
             a node; this one is not for what is here"
                .into(),
        ));
    }
    let (name, site) = (Some(former.name.clone()), Some(former.site.clone()));
    let succession = former.succession.clone();
    Ok(invite.accept(node, record, Join { name, site, roles: None, succession }, now)?)
}

/// Whether the mesh will believe a new credential, as far as the folder knows.
pub(super) fn check(
    state: &StateDir,
    credential: &Credential,
    mesh: &MeshId,
    now: UnixSeconds,
) -> Result<(), Error> {
    credential.verify(mesh, now)?;
    match state.revocations(mesh)?.covering(credential) {
        Some(Revocation { revoked, at, .. }) => {
            Err(meshport_config::Error::Revoked { revoked: *revoked, at: *at }.into())
        }
        None => Ok(()),
    }
}

/// There is no node in the folder.
pub(super) fn no_node(state: &StateDir) -> Error {
    Error::State {
        path: state.path().to_owned(),
        what: "there is no node here".into(),
        remedy: "Run `meshport join INVITE`".into(),
    }
}

/// Whether a running daemon has taken it up.
fn tell(args: &RenewArgs, credential: &Credential) -> Result<bool, Error> {
    let client = args.daemon.client()?;
    let request = RenewRequest { credential: credential.to_text() };
    match runtime()?.block_on(client.renew(&request)) {
        Ok(_) => Ok(true),
        Err(Error::NoDaemon { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}
