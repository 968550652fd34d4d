//! `meshport renew`: a new credential for the node of this machine, which stays the same node.
//!
//! The authority's key signs it, or an invite does. It is on disk before a running daemon is told;
//! the daemon shows it to its peers without ending a session, and one that does not run begins with
//! it.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use meshport_config::{
    AuthorityKey, Credential, Invite, Join, NodeKey, RecordKey, Subject, UnixSeconds,
};
use serde::Serialize;
use zeroize::Zeroizing;

use super::join::Joined;
use super::lifetime::Lifetime;
use super::paths::Paths;
use super::query::DaemonArgs;
use super::{clock, load, output, runtime};
use crate::Error;
use crate::admin::credentials::RenewRequest;
use crate::daemon::state::{Existing, StateDir, read_authority_key};

/// The longest line taken from standard input, in bytes; far above any invite.
const MAX_INVITE_BYTES: u64 = 64 * 1024;

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
    let state = StateDir::open(state_dir(&args.daemon)?)?;
    let line = args.invite.as_deref().map(line).transpose()?;
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
    let former = state.credential()?.ok_or_else(missing)?;
    let keys = state.node_key()?.zip(state.record_key()?).ok_or_else(missing)?;
    former.check_keys(&keys.0.public(), &keys.1.public())?;
    // Of two that were issued in the same second others may keep the former.
    let at = now.max(former.issued_at.saturating_add(1));
    let credential = match invite {
        Some(line) => by_invite(line, &former, &keys, at)?,
        None => {
            let authority = authority(state, args.authority.as_deref(), "renew")?;
            let until = at.saturating_add(args.credential_ttl.seconds());
            Credential::issue_by_authority(&authority, subject(&former), at, until)?
        }
    };
    credential.verify(&former.mesh, now)?;
    if let Some(revocation) = state.revocations(&former.mesh)?.covering(&credential) {
        let (revoked, at) = (revocation.revoked, revocation.at);
        return Err(meshport_config::Error::Revoked { revoked, at }.into());
    }
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

/// The authority's key, from a file or from the folder. `verb` takes an invite in its place.
pub(super) fn authority(
    state: &StateDir,
    file: Option<&Path>,
    verb: &str,
) -> Result<AuthorityKey, Error> {
    let authority = match file {
        Some(path) => read_authority_key(path)?,
        None => state.authority_key()?,
    };
    authority.ok_or_else(|| {
        Error::Usage(format!(
            "the authority's key is not here; name its file with --authority, or let `meshport \
             invite` make a line where it is and give that: meshport {verb} INVITE"
        ))
    })
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

/// A word of the command line, or standard input.
pub(super) fn line(word: &str) -> Result<Zeroizing<String>, Error> {
    if word != "-" {
        return Ok(Zeroizing::new(word.to_owned()));
    }
    let mut text = Zeroizing::new(String::new());
    let read = std::io::stdin().lock().take(MAX_INVITE_BYTES).read_to_string(&mut text);
    read.map_err(Error::io("read the invite from standard input"))?;
    Ok(text)
}

/// The state folder of the daemon here.
pub(super) fn state_dir(args: &DaemonArgs) -> Result<PathBuf, Error> {
    let paths = Paths::of_this_user()?;
    let DaemonArgs { config, state_dir, .. } = args;
    let of_file = load::of_file(config.as_deref(), state_dir.as_deref(), &paths)?;
    let of_file = of_file.map(|settings| settings.state_dir);
    Ok(state_dir.clone().or(of_file).unwrap_or_else(|| paths.state_dir().to_owned()))
}
