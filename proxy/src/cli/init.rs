//! `meshport init`: creates the authority of a new mesh and, by default, its first node.

use std::path::{Path, PathBuf};

use clap::Args;
use meshport_config::{
    AuthorityKey, Credential, MeshId, MeshSecret, NodeKey, NodeName, RecordKey, Revocations, Role,
    Roles, SiteName, Subject, UnixSeconds,
};
use rand_core::OsRng;
use serde::Serialize;

use super::lifetime::Lifetime;
use super::paths::Paths;
use super::{clock, output, roles};
use meshport_daemon::Error;
use meshport_state::{Existing, StateDir};

/// `meshport init`
#[derive(Debug, Clone, Args)]
pub(crate) struct InitArgs {
    /// Site of this machine, such as its datacenter or zone
    #[arg(long, required_unless_present = "authority_only")]
    pub(crate) site: Option<SiteName>,
    /// Name of this machine in the mesh [default: its host name]
    #[arg(long)]
    pub(crate) name: Option<NodeName>,
    /// What this machine may do: the roles of `meshport invite --role`; may be repeated
    #[arg(long = "role", value_name = "ROLE", value_delimiter = ',', default_value = "node")]
    pub(crate) roles: Vec<Role>,
    /// How long this machine's credential is valid
    #[arg(long, value_name = "TIME", default_value = "365d")]
    pub(crate) credential_ttl: Lifetime,
    /// Create only the authority and the mesh secret; this machine is not a node
    #[arg(long, conflicts_with_all = ["site", "name", "roles", "credential_ttl"])]
    pub(crate) authority_only: bool,
    /// State folder to write [default: this user's]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Replace an existing authority and keys; this cuts off all members of the old mesh
    #[arg(long)]
    pub(crate) force: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The files and the credential that were created.
#[derive(Debug, Serialize)]
pub(crate) struct InitReport {
    /// The new mesh.
    pub(crate) mesh: MeshId,
    /// The state folder.
    pub(crate) state_dir: PathBuf,
    /// The names of the files written there.
    pub(crate) written: Vec<&'static str>,
    /// The credential of the first node; absent with `--authority-only`.
    pub(crate) credential: Option<super::join::Joined>,
}

pub(crate) fn run(args: &InitArgs) -> Result<(), Error> {
    let paths = Paths::of_this_user()?;
    let state_dir = args.state_dir.clone().unwrap_or_else(|| paths.state_dir().to_owned());
    roles::warn_of_misspelt(&args.roles);
    let report = init(args, &state_dir, clock::wall())?;
    output::with_advice(args.json, &report, &render(&report), &next_steps(&report, &paths))
}

/// Writes the authority's key second to last and the credential last, as a join does. So a folder
/// with neither is unfinished and is started over, and an authority without a node gets its first
/// one.
pub(crate) fn init(
    args: &InitArgs,
    state_dir: &Path,
    now: UnixSeconds,
) -> Result<InitReport, Error> {
    let state = super::join::create_state(state_dir)?;
    let _lock = state.lock()?;
    let authority = match authority_without_node(args, &state)? {
        Some(authority) => authority,
        None => {
            if !args.force {
                state.require_unused()?;
            }
            state.store_mesh_secret(&MeshSecret::generate(&mut OsRng), Existing::Replace)?;
            AuthorityKey::generate(&mut OsRng)
        }
    };
    if args.force {
        // A key change begun in the old mesh must not keep a node of the new one from starting.
        state.remove_next()?;
        state.remove_directory()?;
        state.store_seeds(&[])?;
        state.store_revocations(&Revocations::default())?;
    }
    let mut written = vec!["authority.key", "mesh.secret"];
    let mut credential = None;
    match &args.site {
        None => state.store_authority_key(&authority, Existing::Replace)?,
        Some(site) => {
            let issued = first_node(args, site, &authority, &state, now)?;
            written.extend(["node.key", "record.key", "credential"]);
            credential = Some(super::join::Joined::of(&issued));
        }
    }
    Ok(InitReport {
        mesh: authority.public(),
        state_dir: state.path().to_owned(),
        written,
        credential,
    })
}

/// The authority of an earlier call, for which this call should make the first node.
fn authority_without_node(
    args: &InitArgs,
    state: &StateDir,
) -> Result<Option<AuthorityKey>, Error> {
    if args.force || args.site.is_none() || state.credential()?.is_some() {
        return Ok(None);
    }
    let authority = state.authority_key()?;
    Ok(if state.mesh_secrets()?.is_some() { authority } else { None })
}

/// Writes the first node's files, and before its credential the authority's key.
fn first_node(
    args: &InitArgs,
    site: &SiteName,
    authority: &AuthorityKey,
    state: &StateDir,
    now: UnixSeconds,
) -> Result<Credential, Error> {
    let keys = match args.force {
        true => (None, None),
        false => (state.node_key()?, state.record_key()?),
    };
    let node_key = keys.0.unwrap_or_else(|| NodeKey::generate(&mut OsRng));
    let record_key = keys.1.unwrap_or_else(|| RecordKey::generate(&mut OsRng));
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
    state.store_node_key(&node_key, Existing::Replace)?;
    state.store_record_key(&record_key, Existing::Replace)?;
    state.store_authority_key(authority, Existing::Replace)?;
    state.store_credential(&credential, Existing::Replace)?;
    Ok(credential)
}

fn render(report: &InitReport) -> String {
    match &report.credential {
        Some(joined) => joined.lines(),
        None => format!("mesh     {}\n", report.mesh),
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
            text.push_str(&format!("Start this node:  {run}\n"));
            joined.site.to_string()
        }
        None => "SITE".into(),
    };
    text.push_str(&format!(
        "Invite a node:    meshport invite{flag} --site {site} --endpoint THIS_HOST:51820\n\
         The holder of authority.key owns the mesh; no daemon needs it. An invite needs \
         authority.key, and mesh.secret, of which every node has a copy. To keep authority.key \
         offline, move it to another machine with a copy of mesh.secret and create invites there: \
         `meshport invite --state-dir FOLDER --site SITE --seed NODEID@HOST:PORT`; `meshport peers \
         --seeds` on a node prints seeds. Or keep it on removable media and create invites here: \
         `meshport invite --site SITE --authority FILE`.\n\
         If this key is lost, nobody can be admitted or revoked. Make a second one and keep it \
         elsewhere: `meshport authority{flag} --add FILE`."
    ));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_inputs_of_an_invite_are_reported() {
        let home = Path::new("/home/u");
        let report = InitReport {
            mesh: AuthorityKey::generate(&mut OsRng).public(),
            state_dir: home.join("authority"),
            written: vec!["authority.key", "mesh.secret"],
            credential: None,
        };
        let text = next_steps(&report, &Paths::in_home(home).expect("a home"));
        let second = "meshport authority --state-dir /home/u/authority --add FILE";
        for words in [second, "has a copy", "authority.key", "copy of mesh.secret", "peers --seeds"]
        {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
}
