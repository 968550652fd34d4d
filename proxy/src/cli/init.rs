//! `meshport init`: the authority of a new mesh and, unless it is to stand alone, its first node.

use std::path::{Path, PathBuf};

use clap::Args;
use meshport_config::{
    AuthorityKey, Credential, MeshId, MeshSecret, NodeKey, NodeName, RecordKey, Role, Roles,
    SiteName, Subject, UnixSeconds,
};
use rand_core::OsRng;
use serde::Serialize;

use super::lifetime::Lifetime;
use super::paths::Paths;
use super::{clock, output};
use crate::Error;
use crate::daemon::state::{Existing, StateDir};

/// `meshport init`
#[derive(Debug, Clone, Args)]
pub(crate) struct InitArgs {
    /// Site of this machine: a place with cheap latency inside
    #[arg(long, required_unless_present = "authority_only")]
    pub(crate) site: Option<SiteName>,
    /// Name of this machine in the mesh [default: its host name]
    #[arg(long)]
    pub(crate) name: Option<NodeName>,
    /// What this machine may do: node, origin:SERVICE, relay, operator; may be repeated
    #[arg(long = "role", value_name = "ROLE", value_delimiter = ',', default_value = "node")]
    pub(crate) roles: Vec<Role>,
    /// How long this machine's credential is valid
    #[arg(long, value_name = "TIME", default_value = "365d")]
    pub(crate) credential_ttl: Lifetime,
    /// Make the authority and the mesh secret only; this machine is no node
    #[arg(long, conflicts_with_all = ["site", "name", "roles", "credential_ttl"])]
    pub(crate) authority_only: bool,
    /// Folder to write to [default: the state folder of this user]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Replace an authority and keys that exist: all members of the old mesh are cut off
    #[arg(long)]
    pub(crate) force: bool,
    /// Show the outcome as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// What was made.
#[derive(Debug, Serialize)]
pub(crate) struct InitReport {
    pub(crate) mesh: MeshId,
    pub(crate) state_dir: PathBuf,
    pub(crate) written: Vec<&'static str>,
    pub(crate) credential: Option<super::join::Joined>,
}

pub(crate) fn run(args: &InitArgs) -> Result<(), Error> {
    let paths = Paths::of_this_user()?;
    let state_dir = args.state_dir.clone().unwrap_or_else(|| paths.state_dir().to_owned());
    let report = init(args, &state_dir, clock::wall())?;
    if args.json {
        return output::json(&report);
    }
    output::answer(&render(&report))?;
    output::advice(&next_steps(&report, &paths));
    Ok(())
}

/// Makes everything and writes it; the authority's key last, so that a folder without it is known
/// to be unfinished.
pub(crate) fn init(
    args: &InitArgs,
    state_dir: &Path,
    now: UnixSeconds,
) -> Result<InitReport, Error> {
    let existing = if args.force { Existing::Replace } else { Existing::Keep };
    let state = StateDir::create(state_dir)?;
    let _lock = state.lock()?;
    if existing == Existing::Keep {
        state.require_unused()?;
    }
    let authority = AuthorityKey::generate(&mut OsRng);
    let secret = MeshSecret::generate(&mut OsRng);
    let mut written = vec!["authority.key", "mesh.secret"];
    state.store_mesh_secret(&secret, existing)?;
    let mut credential = None;
    if let Some(site) = &args.site {
        let issued = first_node(args, site, &authority, &state, now)?;
        written.extend(["node.key", "record.key", "credential"]);
        credential = Some(super::join::Joined::of(&issued));
    }
    if existing == Existing::Replace {
        state.remove_directory()?;
        state.store_seeds(&[])?;
    }
    state.store_authority_key(&authority, existing)?;
    Ok(InitReport {
        mesh: authority.public(),
        state_dir: state.path().to_owned(),
        written,
        credential,
    })
}

fn first_node(
    args: &InitArgs,
    site: &SiteName,
    authority: &AuthorityKey,
    state: &StateDir,
    now: UnixSeconds,
) -> Result<Credential, Error> {
    let existing = if args.force { Existing::Replace } else { Existing::Keep };
    let node_key = NodeKey::generate(&mut OsRng);
    let record_key = RecordKey::generate(&mut OsRng);
    let subject = Subject {
        node: node_key.public(),
        record_key: record_key.public(),
        name: super::join::name_or_host_name(args.name.as_ref())?,
        site: site.clone(),
        roles: Roles::new(args.roles.iter().cloned())?,
        succession: None,
    };
    let expires_at = now.saturating_add(args.credential_ttl.seconds());
    let issued = Credential::issue_by_authority(authority, subject, now, expires_at)?;
    let credential = issued.countersign(&node_key)?;
    state.store_node_key(&node_key, existing)?;
    state.store_record_key(&record_key, existing)?;
    state.store_credential(&credential, existing)?;
    Ok(credential)
}

fn render(report: &InitReport) -> String {
    match &report.credential {
        Some(joined) => joined.lines(),
        None => format!("mesh   {}\n", report.mesh),
    }
}

fn next_steps(report: &InitReport, paths: &Paths) -> String {
    let folder = report.state_dir.display();
    let mut text = format!("Written to {folder}: {}.\n", report.written.join(", "));
    let flag = match report.state_dir == paths.state_dir() {
        true => String::new(),
        false => format!(" --state-dir {folder}"),
    };
    let site = match &report.credential {
        Some(joined) => {
            let run = super::join::run_command(&report.state_dir, paths);
            text.push_str(&format!("Start this node:     {run}\n"));
            joined.site.to_string()
        }
        None => "SITE".into(),
    };
    text.push_str(&format!(
        "Invite another one:  meshport invite{flag} --site {site} --endpoint THIS_HOST:51820\n\
         Whoever has authority.key owns the mesh, and only invites need it: move it to a place \
         that is offline, and name it there with `meshport invite --authority FILE`."
    ));
    text
}
