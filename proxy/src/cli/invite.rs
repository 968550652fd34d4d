//! `meshport invite`: one line that lets a machine become a node.

use std::path::{Path, PathBuf};

use clap::Args;
use meshport_config::{
    AuthorityKey, Endpoint, Grant, Invite, InviteParams, MAX_ENDPOINTS, MAX_SEEDS, MeshSecret,
    NodeName, Role, Roles, Seed, SiteName, UnixSeconds,
};
use rand_core::OsRng;
use serde::Serialize;

use super::lifetime::Lifetime;
use super::paths::Paths;
use super::{clock, load, output};
use crate::Error;
use crate::daemon::state::{StateDir, read_authority_key};

/// `meshport invite`
#[derive(Debug, Clone, Args)]
pub(crate) struct InviteArgs {
    /// Site of the new node
    #[arg(long)]
    pub(crate) site: SiteName,
    /// What the new node may do: node, origin:SERVICE, relay, operator; may be repeated
    #[arg(long = "role", value_name = "ROLE", value_delimiter = ',', default_value = "node")]
    pub(crate) roles: Vec<Role>,
    /// How long the line can be used to join
    #[arg(long, value_name = "TIME", default_value = "24h")]
    pub(crate) ttl: Lifetime,
    /// How long the new node's credential is valid
    #[arg(long, value_name = "TIME", default_value = "365d")]
    pub(crate) credential_ttl: Lifetime,
    /// The only name the new node may take
    #[arg(long)]
    pub(crate) name: Option<NodeName>,
    /// Where new nodes reach this one; may be repeated [default: `mesh.advertise`]
    #[arg(long = "endpoint", value_name = "HOST:PORT")]
    pub(crate) endpoints: Vec<Endpoint>,
    /// Another node to announce to; may be repeated
    #[arg(long = "seed", value_name = "NODEID@HOST:PORT")]
    pub(crate) seeds: Vec<Seed>,
    /// Allow a line without any seed: the new node waits until others reach it
    #[arg(long)]
    pub(crate) no_seed: bool,
    /// The authority's key [default: authority.key in the state folder]
    #[arg(long, value_name = "FILE")]
    pub(crate) authority: Option<PathBuf>,
    /// Configuration that says where this node is reached [default: the one of this user]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// State folder with the mesh secret [default: the state folder of this user]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Show the line and what it allows as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The line and what it allows.
#[derive(Debug, Serialize)]
pub(crate) struct InviteReport {
    pub(crate) invite: String,
    pub(crate) site: SiteName,
    pub(crate) roles: Roles,
    pub(crate) name: Option<NodeName>,
    pub(crate) join_until: UnixSeconds,
    pub(crate) credential_ttl_s: u64,
    pub(crate) seeds: Vec<String>,
}

pub(crate) fn run(args: &InviteArgs) -> Result<(), Error> {
    let paths = Paths::of_this_user()?;
    let of_file = load::of_file(args.config.as_deref(), args.state_dir.as_deref(), &paths);
    let settings = match of_file {
        // A damaged default file is of no concern to somebody who names everything.
        Err(_) if args.config.is_none() && !args.endpoints.is_empty() => None,
        settings => settings?,
    };
    let of_settings = settings.as_ref().map(|settings| settings.state_dir.clone());
    let state_dir = args.state_dir.clone().or(of_settings);
    let state_dir = state_dir.unwrap_or_else(|| paths.state_dir().to_owned());
    let advertised = match args.endpoints.is_empty() {
        true => settings.map(|settings| settings.mesh.advertise).unwrap_or_default(),
        false => args.endpoints.clone(),
    };
    let report = invite(args, &state_dir, &advertised, clock::wall())?;
    if args.json {
        return output::json(&report);
    }
    output::answer(&format!("{}\n", report.invite))?;
    output::advice(&advice(&report));
    Ok(())
}

/// Makes the line. `advertised` is where this node is reached.
pub(crate) fn invite(
    args: &InviteArgs,
    state_dir: &Path,
    advertised: &[Endpoint],
    now: UnixSeconds,
) -> Result<InviteReport, Error> {
    let state = StateDir::open(state_dir)?;
    let (authority, secret) = authority(args, &state)?;
    let seeds = seeds(args, &state, advertised)?;
    let roles = Roles::new(args.roles.iter().cloned())?;
    let join_until = now.saturating_add(args.ttl.seconds());
    let grant = Grant {
        roles: roles.clone(),
        site: Some(args.site.clone()),
        name: args.name.clone(),
        not_before: now,
        join_until,
        credential_ttl_s: args.credential_ttl.seconds(),
    };
    let params = InviteParams { grant, mesh_secret: secret, seeds: seeds.clone() };
    let invite = Invite::create(&authority, params, &mut OsRng)?;
    Ok(InviteReport {
        invite: invite.to_text()?.to_string(),
        site: args.site.clone(),
        roles,
        name: args.name.clone(),
        join_until,
        credential_ttl_s: args.credential_ttl.seconds(),
        seeds: seeds.iter().map(ToString::to_string).collect(),
    })
}

/// The authority's key and the secret of the same mesh.
fn authority(args: &InviteArgs, state: &StateDir) -> Result<(AuthorityKey, MeshSecret), Error> {
    let path = match &args.authority {
        Some(path) => path.clone(),
        None => state.path().join("authority.key"),
    };
    let missing = |path: PathBuf, remedy: &str| Error::State {
        path,
        what: "is missing".into(),
        remedy: remedy.into(),
    };
    let Some(authority) = read_authority_key(&path)? else {
        let remedy = "Invites need the authority that `meshport init` made; name it with \
                      --authority FILE";
        return Err(missing(path, remedy));
    };
    let Some(secrets) = state.mesh_secrets()? else {
        let remedy = "Name the state folder of `meshport init` or of a node with --state-dir";
        return Err(missing(state.path().join("mesh.secret"), remedy));
    };
    if let Some(credential) = state.credential()?
        && credential.mesh != authority.public()
    {
        return Err(Error::State {
            path,
            what: format!("is the authority of mesh {}", authority.public()),
            remedy: format!(
                "The node in {} belongs to mesh {}; name the matching folder with --state-dir",
                state.path().display(),
                credential.mesh
            ),
        });
    }
    Ok((authority, secrets.current().clone()))
}

/// Nodes the new one announces to: this one, those named, those this one uses itself.
fn seeds(args: &InviteArgs, state: &StateDir, advertised: &[Endpoint]) -> Result<Vec<Seed>, Error> {
    let credential = state.credential()?;
    if credential.is_none() && !args.endpoints.is_empty() {
        let text = "--endpoint says where this machine is reached, but it is not a node; name a \
                    node with --seed NODEID@HOST:PORT";
        return Err(Error::Usage(text.into()));
    }
    let endpoints: Vec<Endpoint> = advertised.iter().take(MAX_ENDPOINTS).cloned().collect();
    let me = credential
        .filter(|_| !endpoints.is_empty())
        .map(|me| Seed::new(me.node, endpoints))
        .transpose()?;
    if let Some(doubt) = state.doubt_of_seeds() {
        output::advice(&format!("warning: {doubt}"));
    }
    let mut seeds: Vec<Seed> = Vec::new();
    for seed in me.into_iter().chain(args.seeds.iter().cloned()).chain(state.seeds()?) {
        if seeds.len() < MAX_SEEDS && seeds.iter().all(|known| known.node != seed.node) {
            seeds.push(seed);
        }
    }
    if seeds.is_empty() && !args.no_seed {
        let text = "a new node would know nobody to announce itself to. Say where this node is \
                    reached with --endpoint HOST:51820 (or `advertise` under [mesh] in its \
                    configuration), name another node with --seed NODEID@HOST:PORT, or allow it \
                    with --no-seed";
        return Err(Error::Usage(text.into()));
    }
    Ok(seeds)
}

fn advice(report: &InviteReport) -> String {
    let name = match &report.name {
        Some(name) => format!("as {name} "),
        None => String::new(),
    };
    let seeds = match report.seeds.len() {
        0 => "no seed".to_owned(),
        1 => format!("the seed {}", report.seeds[0]),
        count => format!("{count} seeds"),
    };
    format!(
        "This line lets anyone who has it join site {} {name}with the roles {}, until {}, with \
         {seeds}. Treat it as a password, also when that time is over.\n\
         On the new machine:  meshport join LINE  (or `meshport join -` and paste it)",
        report.site, report.roles, report.join_until,
    )
}
