//! `meshport invite`: one line that lets a machine become a node.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use meshport_config::{
    AuthorityKey, Endpoint, Grant, Invite, InviteParams, MAX_ENDPOINTS, MeshId, MeshSecret,
    NamedSeed, NodeName, Period, Role, Roles, Seed, SiteName, UnixSeconds,
};
use rand_core::OsRng;
use serde::Serialize;

mod many;

use super::lifetime::Lifetime;
use super::paths::Paths;
use super::{clock, load, output, roles, runtime, saved_directory};
use meshport_core::names;
use meshport_core::seeds::{self, Known};
use meshport_daemon::Error;
use meshport_daemon::admin::api::SeedRow;
use meshport_daemon::admin::client::AdminClient;
use meshport_daemon::admin::queries::SeedsRequest;
use meshport_state::{StateDir, authority_key_in, read_authority_key};

/// The two files that an invite needs, for messages.
const TWO_FILES: &str = "Creating an invite needs two files of the same mesh: authority.key and \
                         mesh.secret";

/// Lifetime of a credential that no issuer renews, in seconds: a year.
const UNRENEWED_S: u64 = 365 * 86_400;

/// `meshport invite`
#[derive(Debug, Clone, Args)]
pub(crate) struct InviteArgs {
    /// Site of the new node
    #[arg(long)]
    pub(crate) site: SiteName,
    /// What the new node may do: node, origin:SERVICE, relay, operator, issuer, egress, vip,
    /// gateway; may be repeated
    #[arg(long = "role", value_name = "ROLE", value_delimiter = ',', default_value = "node")]
    pub(crate) roles: Vec<Role>,
    /// Keep apiservers from the new node's kubelet and pods (the role no-kubelet)
    #[arg(long)]
    pub(crate) no_kubelet: bool,
    /// How long the invite can be used to join
    #[arg(long, value_name = "TIME", default_value = "24h")]
    pub(crate) ttl: Lifetime,
    /// How long the new node's credential is valid [default: what a mandate grants that was made
    /// with this state folder and covers the node, else 365d]
    #[arg(long, value_name = "TIME")]
    pub(crate) credential_ttl: Option<Lifetime>,
    /// The only name the new node may take; with --count, the part before the number
    #[arg(long)]
    pub(crate) name: Option<NodeName>,
    #[command(flatten)]
    pub(crate) many: many::ManyArgs,
    /// Where new nodes reach this one; may be repeated [default: `mesh.advertise`, else what the
    /// running daemon announces]
    #[arg(long = "endpoint", value_name = "HOST:PORT")]
    pub(crate) endpoints: Vec<Endpoint>,
    /// A member to contact first: the name of a node known here, or a line of `meshport peers
    /// --seeds`; HOST may be a DNS name. May be repeated
    #[arg(long = "seed", value_name = "NAME|NODEID@HOST:PORT")]
    pub(crate) seeds: Vec<NamedSeed>,
    /// Allow an invite without seeds: the new node waits until others reach it
    #[arg(long)]
    pub(crate) no_seed: bool,
    /// The authority's key [default: authority.key in the state folder]
    #[arg(long, value_name = "FILE")]
    pub(crate) authority: Option<PathBuf>,
    /// Configuration with this node's `mesh.advertise` [default: this user's]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// State folder with the mesh secret [default: this user's]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Print the invite and what it allows as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The line and what it allows.
#[derive(Debug, Serialize)]
pub(crate) struct InviteReport {
    /// The line for `meshport join`.
    pub(crate) invite: String,
    /// The site of nodes that join with it.
    pub(crate) site: SiteName,
    /// Their roles.
    pub(crate) roles: Roles,
    /// The only name that a node may take; absent if it may choose.
    pub(crate) name: Option<NodeName>,
    /// When the invite expires.
    pub(crate) join_until: UnixSeconds,
    /// How long a credential made with it is valid.
    pub(crate) credential_ttl_s: u64,
    /// Whether a mandate made here covers its renewal; decides the advice.
    #[serde(skip)]
    pub(crate) is_renewed: bool,
    /// The members that a new node contacts first.
    pub(crate) seeds: Vec<String>,
}

pub(crate) fn run(args: &InviteArgs) -> Result<(), Error> {
    roles::warn_of_misspelt(&args.roles);
    let paths = Paths::of_this_user()?;
    let of_file = load::of_file(args.config.as_deref(), args.state_dir.as_deref(), &paths);
    let settings = match of_file {
        // With `--endpoint` given, a damaged default file does not matter.
        Err(_) if args.config.is_none() && !args.endpoints.is_empty() => None,
        settings => settings?,
    };
    let of_settings = settings.as_ref().map(|settings| settings.state_dir.clone());
    let state_dir = args.state_dir.clone().or(of_settings);
    let state_dir = state_dir.unwrap_or_else(|| load::default_state_dir(&paths));
    let advertised = match args.endpoints.is_empty() {
        true => settings.map(|settings| settings.mesh.advertise).unwrap_or_default(),
        false => args.endpoints.clone(),
    };
    let socket = load::socket(args.config.as_deref(), args.state_dir.as_deref())?;
    let now = clock::wall();
    let names = many::names(args)?;
    let known = members(&AdminClient::new(socket), &state_dir, now)?;
    if let Some(names) = names {
        let of = |name: NodeName| {
            let args = InviteArgs { name: Some(name), ..args.clone() };
            invite(&args, &state_dir, &advertised, &known, now)
        };
        return print(args, &names.into_iter().map(of).collect::<Result<Vec<_>, Error>>()?);
    }
    if args.many.out.is_some() {
        return Err(Error::Usage("--out is for --count or --names".into()));
    }
    let report = invite(args, &state_dir, &advertised, &known, now)?;
    output::with_advice(args.json, &report, &format!("{}\n", report.invite), &advice(&report))
}

/// Writes the invites of many machines, or prints them with their names.
fn print(args: &InviteArgs, reports: &[InviteReport]) -> Result<(), Error> {
    if let Some(folder) = &args.many.out {
        many::write(folder, reports)?;
        output::advice(&written(reports.len(), folder));
    }
    match (args.json, &args.many.out) {
        (true, _) => output::json(reports),
        (false, Some(_)) => Ok(()),
        (false, None) => {
            let line = |it: &InviteReport| {
                let name = it.name.as_ref().map_or("", NodeName::as_str);
                format!("{name} {}\n", it.invite)
            };
            output::answer(&reports.iter().map(line).collect::<String>())
        }
    }
}

fn written(count: usize, folder: &Path) -> String {
    let folder = folder.display();
    match count {
        1 => format!("1 invite is in {folder}. It lets one name join; treat it as a password"),
        _ => format!(
            "{count} invites are in {folder}. Each lets one name join; treat them as passwords"
        ),
    }
}

/// The members that the running daemon knows; if none answers, those of the saved directory.
fn members(
    daemon: &AdminClient,
    state_dir: &Path,
    now: UnixSeconds,
) -> Result<Vec<SeedRow>, Error> {
    let known = match runtime()?.block_on(daemon.ask(&SeedsRequest)) {
        Err(Error::NoDaemon { .. }) => {
            let state = StateDir::open(state_dir).map_err(Error::from);
            state.and_then(|state| saved_directory::members(&state, now))
        }
        outcome => outcome,
    };
    Ok(known.unwrap_or_else(|error| {
        output::advice(&format!("cannot add other members as seeds: {error}"));
        Vec::new()
    }))
}

/// Makes the line from this node's `advertised` addresses and the members that a daemon here knows
/// (`known`).
pub(crate) fn invite(
    args: &InviteArgs,
    state_dir: &Path,
    advertised: &[Endpoint],
    known: &[SeedRow],
    now: UnixSeconds,
) -> Result<InviteReport, Error> {
    let state = StateDir::open(state_dir)?;
    let (authority, secret) = authority(args, &state)?;
    let mut seeds = seeds(args, &state, advertised, known)?;
    let forbidden = args.no_kubelet.then_some(Role::NoKubelet);
    let roles = Roles::new(args.roles.iter().cloned().chain(forbidden))?;
    let join_until = now.saturating_add(args.ttl.seconds());
    let renewed_s = renewed_lifetime_s(&state, &authority.public(), &roles, &args.site, now);
    let chosen_s = args.credential_ttl.map(Lifetime::seconds);
    let credential_ttl_s = chosen_s.or(renewed_s).unwrap_or(UNRENEWED_S);
    let grant = Grant {
        roles: roles.clone(),
        site: Some(args.site.clone()),
        name: args.name.clone(),
        not_before: now,
        join_until,
        credential_ttl_s,
    };
    let invite = loop {
        let (grant, mesh_secret) = (grant.clone(), secret.clone());
        let params = InviteParams { grant, mesh_secret, seeds: seeds.clone() };
        match Invite::create(&authority, params, &mut OsRng) {
            // Many long names make the invite too large: drop a seed.
            Err(meshport_config::Error::TooLarge { .. }) if seeds.len() > 1 => drop(seeds.pop()),
            outcome => break outcome?,
        }
    };
    Ok(InviteReport {
        invite: invite.to_text()?.to_string(),
        site: args.site.clone(),
        roles,
        name: args.name.clone(),
        join_until,
        credential_ttl_s,
        is_renewed: renewed_s.is_some(),
        seeds: seeds.iter().map(ToString::to_string).collect(),
    })
}

/// See [`StateDir::renewed_lifetime_s`]. A damaged file only costs the default here; the verbs that
/// need it report it.
fn renewed_lifetime_s(
    state: &StateDir,
    mesh: &MeshId,
    roles: &Roles,
    site: &SiteName,
    now: UnixSeconds,
) -> Option<u64> {
    let revoked = state.revocations(mesh).ok()?;
    state.renewed_lifetime_s(roles, site, &revoked, now).ok()?
}

/// The authority's key and the secret of the same mesh.
fn authority(args: &InviteArgs, state: &StateDir) -> Result<(AuthorityKey, MeshSecret), Error> {
    let path = args.authority.clone().unwrap_or_else(|| authority_key_in(state.path()));
    let missing = |path: PathBuf, remedy: &str| Error::State {
        path,
        what: "is missing".into(),
        remedy: format!("{TWO_FILES}. {remedy}"),
    };
    let authority = match &args.authority {
        Some(path) => read_authority_key(path)?,
        None => state.authority_key()?,
    };
    let Some(authority) = authority else {
        let remedy = "If authority.key is elsewhere, name it with --authority FILE";
        return Err(missing(path, remedy));
    };
    let Some(secrets) = state.mesh_secrets()? else {
        let remedy = "Each node has a copy of mesh.secret: name a state folder that has it with \
                      --state-dir";
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

/// The seeds of the new node: this node, those named, other members that the daemon knows, then the
/// seeds in the state folder, which may be long gone.
fn seeds(
    args: &InviteArgs,
    state: &StateDir,
    advertised: &[Endpoint],
    known: &[SeedRow],
) -> Result<Vec<Seed>, Error> {
    let credential = state.credential()?;
    if credential.is_none() && !args.endpoints.is_empty() {
        let text = "--endpoint gives this machine's address, but this machine is not a node; name \
                    a node with --seed NODEID@HOST:PORT";
        return Err(Error::Usage(text.into()));
    }
    // A daemon of another node may belong to another mesh.
    let own = known.iter().find(|row| row.own);
    let is_foreign = credential.as_ref().zip(own).is_some_and(|(me, row)| me.node != row.seed.node);
    let known = if is_foreign { &[] } else { known };
    let endpoints: Vec<Endpoint> = advertised.iter().take(MAX_ENDPOINTS).cloned().collect();
    let me = match (credential, known.iter().find(|row| row.own)) {
        (Some(me), _) if !endpoints.is_empty() => Some(Seed::new(me.node, endpoints)?),
        (_, row) => row.map(|row| row.seed.clone()),
    };
    if let Some(doubt) = state.doubt_of_seeds() {
        output::advice(&format!("warning: {doubt}"));
    }
    let named = args.seeds.iter().map(|seed| whole(seed, known));
    let named = named.collect::<Result<Vec<Seed>, Error>>()?;
    let first: Vec<Seed> = me.into_iter().chain(named).collect();
    let member = |row: &SeedRow| Known {
        seed: row.seed.clone(),
        site: row.site.clone(),
        is_origin: row.is_origin,
        is_relay: row.is_relay,
    };
    let known: Vec<Known> = known.iter().map(member).collect();
    let chosen = seeds::choose(&first, &known, &state.seeds()?);
    if chosen.is_empty() && !args.no_seed {
        let text = "the invite would have no seed, so a new node could contact no member. Give \
                    this node's address with --endpoint HOST:51820 (or `advertise` under [mesh] \
                    in its \
                    configuration), name another node with --seed NODEID@HOST:PORT, or allow it \
                    with --no-seed";
        return Err(Error::Usage(text.into()));
    }
    Ok(chosen)
}

/// Resolves a seed that was given by name.
fn whole(seed: &NamedSeed, known: &[SeedRow]) -> Result<Seed, Error> {
    let name = match seed {
        NamedSeed::Whole(seed) => return Ok(seed.clone()),
        NamedSeed::Name(name) => name,
    };
    let row = known.iter().find(|row| row.name == *name);
    row.map(|row| row.seed.clone()).ok_or_else(|| {
        let names = known.iter().map(|row| row.name.as_ref());
        Error::Usage(names::unknown_then(
            name.as_ref(),
            names,
            "For a node that neither the daemon here nor its saved directory knows, give the seed \
             as `meshport peers --seeds` prints it on a node: NODEID@HOST:PORT",
        ))
    })
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
    let roles = report.roles.to_string();
    let roles = match roles.contains(',') {
        true => format!("the roles {roles}"),
        false => format!("the role {roles}"),
    };
    let used = match report.roles.is_leaf() {
        true => "On the operator's machine:  meshport forward --invite FILE",
        false => "On the new machine:  meshport join FILE",
    };
    let lifetime = Duration::from_secs(report.credential_ttl_s);
    let renewed = match report.is_renewed {
        true => format!(
            "The new node's credential is valid for {}; issuers renew it. ",
            Period(lifetime)
        ),
        false => String::new(),
    };
    format!(
        "Until {}, anyone who has this line can join site {} {name}with {roles}. It names {seeds}. \
         {renewed}It also holds the mesh secret: treat it as a password, even after that time.\n\
         {used}  (with the line in FILE; or - and the line on standard input)",
        report.join_until, report.site,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_step_is_that_of_the_role() {
        let report = |roles: &str| InviteReport {
            invite: String::new(),
            site: "fra".parse().expect("a site"),
            roles: roles.parse().expect("roles"),
            name: None,
            join_until: UnixSeconds(0),
            credential_ttl_s: 1,
            is_renewed: false,
            seeds: Vec::new(),
        };
        let (node, operator) = (advice(&report("node")), advice(&report("operator")));
        assert!(node.contains("meshport join FILE") && !node.contains("forward"), "{node}");
        assert!(operator.contains("meshport forward --invite FILE"), "{operator}");
        assert!(!operator.contains("meshport join"), "{operator}");
        assert!(node.contains("with the role node.") && node.contains("mesh secret"), "{node}");
    }

    #[test]
    fn one_invite_and_several_are_counted() {
        let of = |count| written(count, Path::new("out"));
        assert!(of(1).starts_with("1 invite is in out. It lets"), "{}", of(1));
        assert!(of(2).starts_with("2 invites are in out. Each lets"), "{}", of(2));
    }
}
