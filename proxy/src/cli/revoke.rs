//! `meshport revoke`: shuts a node or an invite out of the mesh permanently.
//!
//! The authority's key signs a line, and a running daemon gossips it. On one machine that is one
//! step; otherwise --print prints the line here and --import takes it there.

use std::path::PathBuf;

use clap::Args;
use meshport_config::{
    AuthorityKey, Credential, Invite, NodeId, Revocation, Revoked, Roles, SiteName, VerifyKey,
};
use meshport_core::names;
use serde::Serialize;

use super::lifetime::Lifetime;
use super::query::DaemonArgs;
use super::{authority, clock, line, output, runtime, saved_directory};
use meshport_daemon::Error;
use meshport_daemon::admin::api::{PeerRow, RevokeReport, RevokeRequest};
use meshport_daemon::admin::client::AdminClient;
use meshport_daemon::admin::credentials::{CredentialRow, Validity};
use meshport_daemon::admin::queries::{CredentialsRequest, PeersRequest};

mod issuer;

/// Prefixes that name an invite or an endorsed authority key by its public key.
const BY_KEY: [&str; 2] = ["invite:", "authority:"];

/// A node, as far as its credential is known.
#[derive(Debug, Clone)]
struct Known {
    node: NodeId,
    /// Empty if it is not known.
    name: String,
    site: Option<SiteName>,
    roles: Option<Roles>,
}

impl Known {
    fn of(it: &Credential) -> Self {
        let (site, roles) = (Some(it.site.clone()), Some(it.roles.clone()));
        Self { node: it.node, name: it.name.to_string(), site, roles }
    }

    fn of_peer(it: &PeerRow) -> Self {
        let name = it.name.as_ref().map_or_else(String::new, ToString::to_string);
        Self { node: it.node, name, site: it.site.clone(), roles: it.roles.clone() }
    }
}

/// Which nodes a verb is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Any.
    Any,
    /// Members: of several with one name, those that are leaves do not count.
    Member,
}

/// `meshport revoke`
#[derive(Debug, Args)]
pub(crate) struct RevokeArgs {
    /// The node (name, NodeId or short NodeId), a file with an invite, invite:KEY with the key from
    /// a warning in `status`, or authority:KEY with an endorsed authority key; - reads standard
    /// input. An invite's line works too, but other users of this machine can see it
    #[arg(value_name = "NODE|INVITE", required_unless_present = "import")]
    pub(crate) target: Option<String>,
    /// Import what --print printed: the line, a file with the lines, or - for standard input
    #[arg(long, value_name = "LINE", conflicts_with_all = ["target", "print", "authority"])]
    pub(crate) import: Option<String>,
    /// Revoke NODE as an issuer: the mandate that `meshport delegate` made for it, and credentials
    /// that it signed since the current part of the mandate began. It stays a member
    #[arg(long, conflicts_with = "import")]
    pub(crate) issuer: bool,
    /// With --issuer, also revoke what it signed within this time before now
    #[arg(long, value_name = "TIME", requires = "issuer")]
    pub(crate) since: Option<Lifetime>,
    /// Only print the line, for --import on a node
    #[arg(long)]
    pub(crate) print: bool,
    /// Also revoke the nodes that joined with the invite; without it they are only listed, also
    /// with --import
    #[arg(long)]
    pub(crate) with_nodes: bool,
    /// The authority's key [default: authority.key in the state folder]
    #[arg(long, value_name = "FILE")]
    pub(crate) authority: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
}

/// The signed line, with --print.
#[derive(Debug, Serialize)]
struct Printed {
    /// The line for `meshport revoke --import`.
    revocation: String,
    /// The revoked object: `node KEY` or `invite KEY`.
    revoked: String,
}

pub(crate) fn run(args: &RevokeArgs) -> Result<(), Error> {
    let client = args.daemon.client()?;
    let revocations = match &args.import {
        Some(word) => {
            let lines = line::read(word)?;
            let read = |line| Revocation::from_text(line).map_err(Error::from);
            lines.split_whitespace().map(read).collect::<Result<Vec<_>, _>>()?
        }
        None => sign(args, &client)?,
    };
    if args.print {
        return print(args, &revocations);
    }
    let mut reports = Vec::new();
    for revocation in &revocations {
        // A credential that an issuer signed stays valid until its holder returns to the previous
        // one.
        if !args.with_nodes && !args.issuer {
            spare_nodes(&revocation.revoked, &client).map_err(|error| elsewhere(error, args))?;
        }
        let request = RevokeRequest { revocation: revocation.to_text() };
        let report = runtime()?.block_on(client.ask(&request));
        reports.push(report.map_err(|error| elsewhere(error, args))?);
    }
    match &reports[..] {
        [report] if args.json => output::json(report),
        all if args.json => output::json(&all),
        all => {
            output::answer(&all.iter().map(said).collect::<String>())?;
            // A member whose mandate is revoked stays one.
            if let (Some(next), false) = (next(all), args.issuer) {
                output::advice(next);
            }
            Ok(())
        }
    }
}

/// What to do after a revocation: a revoked node still has the mesh secret.
fn next(reports: &[RevokeReport]) -> Option<&'static str> {
    let is_out = |it: &RevokeReport| it.is_new && it.successor.is_none();
    reports.iter().any(is_out).then_some(
        "Its holder still has the mesh secret. If that is an attacker, replace it: meshport \
         rotate-secret",
    )
}

fn print(args: &RevokeArgs, revocations: &[Revocation]) -> Result<(), Error> {
    let of =
        |it: &Revocation| Printed { revocation: it.to_text(), revoked: it.revoked.to_string() };
    let printed: Vec<Printed> = revocations.iter().map(of).collect();
    match &printed[..] {
        [one] if args.json => return output::json(one),
        all if args.json => return output::json(&all),
        all => {
            let lines = all.iter().map(|it| format!("{}\n", it.revocation));
            output::answer(&lines.collect::<String>())?;
        }
    }
    let with_nodes = if args.with_nodes || args.issuer { " --with-nodes" } else { "" };
    output::advice(&format!(
        "Run on any node of the mesh: meshport revoke --import {}{with_nodes}",
        if printed.len() == 1 { "LINE" } else { "FILE" }
    ));
    Ok(())
}

/// Advises how to revoke through a daemon elsewhere. If the state folder is in use, that is the
/// error.
fn elsewhere(error: Error, args: &RevokeArgs) -> Error {
    let Error::NoDaemon { path, .. } = &error else { return error };
    let socket = path.display().to_string();
    let in_use = args.daemon.state().ok();
    let in_use = in_use.and_then(|it| args.daemon.require_none(&it, "nothing is revoked").err());
    in_use.filter(|error| matches!(error, Error::State { .. })).unwrap_or_else(|| {
        output::advice(&format!(
            "Nothing is revoked. If the daemon uses a socket other than {socket}, name it with \
             --socket. If none runs, print the line with --print and import it on any node of the \
             mesh: meshport revoke --import LINE"
        ));
        error
    })
}

/// Without `--with-nodes`, refuses to revoke an invite that members have joined with.
fn spare_nodes(revoked: &Revoked, client: &AdminClient) -> Result<(), Error> {
    if !matches!(revoked, Revoked::Invite(_)) {
        return Ok(());
    }
    let joined = joined(revoked, client)?;
    if joined.is_empty() {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "{} joined with this invite or key and would be shut out too: its holder can backdate a \
         credential. Add --with-nodes if that is intended, and let them join again with another \
         invite",
        joined.join(", ")
    )))
}

fn said(report: &RevokeReport) -> String {
    let RevokeReport { revoked, name, is_new, cut, successor } = report;
    let revoked = match name {
        Some(name) => format!("{name} ({revoked})"),
        None => revoked.clone(),
    };
    let mut said = match (is_new, cut) {
        (false, _) => format!("{revoked}: already revoked; nothing changes\n"),
        (true, 0) => format!("{revoked}: revoked; no current member is affected\n"),
        (true, 1) => format!("{revoked}: revoked; one member is shut out\n"),
        (true, many) => format!("{revoked}: revoked; {many} members are shut out\n"),
    };
    if let Some(node) = successor {
        said.push_str(&format!(
            "It continues with a new key, as a node that is not revoked. To shut that out too: \
             meshport revoke {node}\n"
        ));
    }
    said
}

fn sign(args: &RevokeArgs, client: &AdminClient) -> Result<Vec<Revocation>, Error> {
    let given = line::read_unless_name(args.target.as_deref().unwrap_or_default())?;
    let target = given.trim();
    if target.is_empty() {
        let empty = "nothing to revoke: name a node, or give the line of an invite";
        return Err(Error::Usage(empty.into()));
    }
    let folder = || Ok::<_, Error>(args.daemon.state()?.authority_key()?);
    let file = args.authority.as_deref();
    let authority = authority::key(file, folder, authority::SIGN_ELSEWHERE)?;
    if args.issuer {
        return issuer::sign(target, args, client, &authority);
    }
    let revoked = match Invite::parse(target) {
        _ if BY_KEY.iter().any(|it| target.starts_with(it)) => by_key(target, &authority)?,
        Ok(invite) => invite.revoked(),
        Err(error) if target.starts_with("meshport-") => return Err(error.into()),
        Err(_) => match target.parse::<NodeId>() {
            Ok(node) => Revoked::Node(node),
            Err(_) => Revoked::Node(named(target, Wanted::Any, &args.daemon, client)?),
        },
    };
    Ok(vec![Revocation::issue(&authority, revoked, clock::wall())])
}

/// An invite or an authority key, named by its public key.
fn by_key(target: &str, signer: &AuthorityKey) -> Result<Revoked, Error> {
    let (kind, key) = target.split_once(':').unwrap_or(("", target));
    let key = key.parse::<VerifyKey>().map_err(|error| {
        let from = match kind {
            "authority" => "`meshport authority` shows for it",
            _ => "`meshport credentials` shows for the invite; or give the invite's line",
        };
        Error::Usage(format!("{target}: {error}. After {kind}: comes the key that {from}"))
    })?;
    if key == signer.public().verify_key() {
        let why = "the mesh's first authority key cannot be revoked: every other one is endorsed \
                   by it. If it was stolen, make a new mesh";
        return Err(Error::Usage(why.into()));
    }
    Ok(Revoked::Invite(key))
}

/// The node with this NodeId, short NodeId or name.
pub(super) fn node(
    target: &str,
    wanted: Wanted,
    daemon: &DaemonArgs,
    client: &AdminClient,
) -> Result<NodeId, Error> {
    if let Ok(node) = target.parse() {
        return Ok(node);
    }
    // The list of peers lacks this node.
    match own(daemon) {
        Some(own) if own.name.as_ref() == target || own.node.short() == target => Ok(own.node),
        _ => named(target, wanted, daemon, client),
    }
}

/// The node of this machine, if any.
fn own(daemon: &DaemonArgs) -> Option<Credential> {
    let state = daemon.state().ok()?;
    let key = state.node_key().ok()??;
    state.credential_to_renew(&key).ok()?
}

/// The only node with this name.
fn named(
    target: &str,
    wanted: Wanted,
    daemon: &DaemonArgs,
    client: &AdminClient,
) -> Result<NodeId, Error> {
    match runtime()?.block_on(client.ask(&PeersRequest)) {
        Ok(peers) => {
            let known: Vec<Known> = peers.iter().map(Known::of_peer).collect();
            match one_of(target, wanted, &known)? {
                Some(node) => Ok(node),
                None => revoked_before(target, client, &known),
            }
        }
        Err(silent @ Error::NoDaemon { .. }) => {
            let saved =
                daemon.state().and_then(|state| saved_directory::all(&state, clock::wall()));
            let known = saved.unwrap_or_default();
            let known: Vec<Known> = known.iter().map(|it| Known::of(&it.credential)).collect();
            one_of(target, wanted, &known)?.ok_or_else(|| {
                let unknown = names::unknown(target, names_of(&known));
                Error::Usage(format!("{silent}. In the saved directory {unknown}"))
            })
        }
        Err(error) => Err(error),
    }
}

fn names_of(known: &[Known]) -> impl Iterator<Item = &str> {
    known.iter().map(|it| it.name.as_str()).filter(|name| !name.is_empty())
}

/// The node with this name or short id among these, if any.
fn one_of(target: &str, wanted: Wanted, known: &[Known]) -> Result<Option<NodeId>, Error> {
    let is_it = |it: &&Known| it.name == target || it.node.short() == target;
    let mut found: Vec<&Known> = known.iter().filter(is_it).collect();
    let is_member = |it: &&Known| !it.roles.as_ref().is_some_and(Roles::is_leaf);
    if wanted == Wanted::Member && found.iter().any(is_member) {
        found.retain(is_member);
    }
    match found[..] {
        [] => Ok(None),
        [one] => Ok(Some(one.node)),
        _ => {
            let text = |it: &&Known| match (&it.roles, &it.site) {
                (Some(roles), Some(site)) => format!("{} ({roles}, site {site})", it.node),
                _ => it.node.to_string(),
            };
            let all: Vec<String> = found.iter().map(text).collect();
            let all = all.join(" and ");
            Err(Error::Usage(format!("{target} matches several nodes, {all}; give the NodeId")))
        }
    }
}

/// A node that is already revoked.
fn revoked_before(target: &str, client: &AdminClient, known: &[Known]) -> Result<NodeId, Error> {
    let rows = runtime()?.block_on(client.ask(&CredentialsRequest))?;
    let is_it = |row: &&CredentialRow| {
        row.validity == Validity::Revoked
            && (row.node.is_some_and(|node| node.short() == target)
                || row.name.as_ref().is_some_and(|name| name.as_ref() == target))
    };
    rows.iter().find(is_it).and_then(|row| row.node).ok_or_else(|| {
        let next = "`meshport credentials` lists revoked nodes too";
        Error::Usage(names::unknown_then(target, names_of(known), next))
    })
}

/// The names of the nodes that the daemon knows to have joined with an invite.
fn joined(revoked: &Revoked, client: &AdminClient) -> Result<Vec<String>, Error> {
    let peers = runtime()?.block_on(client.ask(&PeersRequest))?;
    let covered = |peer: &&PeerRow| {
        let keys = [peer.invite, peer.authority].into_iter().flatten();
        keys.map(Revoked::Invite).any(|it| it == *revoked)
    };
    let name =
        |peer: &PeerRow| peer.name.as_ref().map_or_else(|| peer.node.short(), ToString::to_string);
    Ok(peers.iter().filter(covered).map(name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_means_one_node() {
        let known = |number: u8, name: &str, roles: &str| Known {
            node: NodeId::from_bytes([number; 32]),
            name: name.into(),
            site: "fra".parse().ok(),
            roles: roles.parse().ok(),
        };
        let [cp, new] = [known(4, "cp-1", "node,relay"), known(5, "", "-")];
        let all = [cp.clone(), new.clone(), known(6, "cp-2", "node")];
        let any = |target: &str, known: &[Known]| one_of(target, Wanted::Any, known);
        assert_eq!(any("cp-2", &all).expect("one"), Some(all[2].node));
        assert_eq!(any(&new.node.short(), &all).expect("one"), Some(new.node));
        assert_eq!(any("", &all[..1]).expect("none"), None);
        assert_eq!(any("cp-3", &all).expect("none"), None);
        assert_eq!(names_of(&all).collect::<Vec<_>>(), ["cp-1", "cp-2"]);
        // A laptop's `forward`, or a node's, may have a member's name.
        let twice = [cp.clone(), known(7, "cp-1", "operator")];
        let error = any("cp-1", &twice).expect_err("two").to_string();
        for one in ["(node,relay, site fra) and ", "(operator, site fra); give the NodeId"] {
            assert!(error.contains(one), "{error}");
        }
        let member = |known: &[Known]| one_of("cp-1", Wanted::Member, known);
        assert_eq!(member(&twice).expect("one"), Some(cp.node));
        assert_eq!(member(&twice[1..]).expect("one"), Some(twice[1].node));
        assert!(member(&[cp.clone(), cp]).is_err());
    }

    #[test]
    fn without_an_answer_the_socket_that_was_tried_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let text = |name: &str| folder.path().join(name).display().to_string();
        let line = ["meshport", "revoke", "x", "--socket", &text("wrong.sock")];
        let Ok(cli) = <crate::cli::Cli as clap::Parser>::try_parse_from(line) else { panic!() };
        let crate::cli::Verb::Revoke(args) = cli.verb else { panic!("it is revoke") };
        let client = args.daemon.client().expect("it is named");
        let error =
            runtime().expect("a runtime").block_on(client.ask(&PeersRequest)).expect_err("nobody");
        let error = elsewhere(error, &args);
        let said = error.to_string();
        assert!(said.contains("wrong.sock") && said.contains("--socket"), "{said}");
        assert_eq!(error.exit_code(), 6);
    }

    #[test]
    fn a_file_with_an_invite_means_that_invite() {
        use meshport_config::{Grant, Invite, InviteParams, MeshSecret, UnixSeconds};

        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        let signer = AuthorityKey::from_bytes([4; 32]);
        let grant = Grant {
            roles: "node".parse().expect("roles"),
            site: None,
            name: None,
            not_before: UnixSeconds(1),
            join_until: UnixSeconds(2),
            credential_ttl_s: 1,
        };
        let mesh_secret = MeshSecret::generate(&mut rand_core::OsRng);
        let params = InviteParams { grant, mesh_secret, seeds: Vec::new() };
        let invite = Invite::create(&signer, params, &mut rand_core::OsRng).expect("an invite");
        std::fs::write(path("invite"), &*invite.to_text().expect("a line")).expect("written");
        let state = meshport_state::StateDir::create(folder.path().join("state")).expect("made");
        let keep = meshport_state::Existing::Keep;
        state.store_authority_key(&signer, keep).expect("stored");
        let line =
            ["meshport", "revoke", &path("invite"), "--print", "--state-dir", &path("state")];
        let Ok(cli) = <crate::cli::Cli as clap::Parser>::try_parse_from(line) else { panic!() };
        let crate::cli::Verb::Revoke(args) = cli.verb else { panic!("it is revoke") };
        let client = args.daemon.client().expect("it is named");
        let signed = sign(&args, &client).expect("it is an invite");
        assert_eq!(signed[0].revoked, invite.revoked());
    }

    #[test]
    fn an_invite_has_a_key_too() {
        let key = meshport_config::DelegationKey::from_bytes([3; 32]).public();
        let signer = AuthorityKey::from_bytes([4; 32]);
        for kind in ["invite", "authority"] {
            let found = by_key(&format!("{kind}:{key}"), &signer).expect("it is a key");
            assert_eq!(found, Revoked::Invite(key));
            assert!(by_key(&format!("{kind}:worker-7"), &signer).is_err());
        }
        let first = format!("authority:{}", signer.public().verify_key());
        assert!(
            by_key(&first, &signer).expect_err("it is the root").to_string().contains("new mesh")
        );
    }

    #[test]
    fn says_what_became_of_it() {
        let node = NodeId::from_bytes([4; 32]);
        let of = |is_new, cut, successor| {
            let name = (cut == 1).then(|| "worker".parse().expect("a name"));
            said(&RevokeReport { revoked: "node k".into(), name, is_new, cut, successor })
        };
        let report = |is_new, cut| of(is_new, cut, None);
        assert_eq!(report(true, 1), "worker (node k): revoked; one member is shut out\n");
        assert!(report(true, 0).contains("no current member"));
        assert!(report(true, 3).contains("3 members"));
        assert!(report(false, 0).contains("already revoked"));
        // Revoking a previous key does not revoke the current node.
        let text = of(true, 0, Some(node));
        assert!(text.contains("not revoked") && text.contains(&format!("revoke {node}\n")));
        let next = |is_new, successor| {
            let revoked = "node k".into();
            next(&[RevokeReport { revoked, name: None, is_new, cut: 1, successor }])
        };
        assert!(next(true, None).is_some_and(|it| it.contains("meshport rotate-secret")));
        assert_eq!((next(false, None), next(true, Some(node))), (None, None));
    }
}
