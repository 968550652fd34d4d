//! `meshport join`: one invite line makes this machine a node.
//!
//! The credential is written last: nothing relies on a folder without one, so an interrupted join
//! can continue there.

use std::path::{Path, PathBuf};

use super::paths::Paths;
use super::{clock, line, output};
use clap::Args;
use meshport_config::{
    Credential, Invite, Join, MeshId, MeshSecret, NodeId, NodeKey, NodeName, RecordKey, Revocation,
    Revocations, Role, Roles, Seed, SiteName, UnixSeconds,
};
use meshport_core::units::clean;
use meshport_daemon::Error;
use meshport_state::{Existing, MAX_STORED_SEEDS, StateDir};
use rand_core::OsRng;
use serde::Serialize;

mod now;

/// `meshport join`
#[derive(Debug, Clone, Args)]
pub(crate) struct JoinArgs {
    /// File with the output of `meshport invite`, or - for standard input. The line itself works
    /// too, but other users of this machine can see it
    #[arg(value_name = "INVITE")]
    pub(crate) invite: String,
    /// Name of this machine in the mesh [default: the invite's, else its host name]
    #[arg(long)]
    pub(crate) name: Option<NodeName>,
    /// Site of this machine, if the invite leaves it open
    #[arg(long)]
    pub(crate) site: Option<SiteName>,
    /// State folder to write [default: this user's]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Replace the credential of a machine that has joined before
    #[arg(long)]
    pub(crate) force: bool,
    /// Start the systemd service, now and at boot, and wait until it reaches an apiserver
    #[arg(long)]
    pub(crate) now: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The rights in a credential.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Joined {
    /// The mesh.
    pub(crate) mesh: MeshId,
    /// The node's WireGuard public key.
    pub(crate) node: NodeId,
    /// Its name.
    pub(crate) name: NodeName,
    /// Its site.
    pub(crate) site: SiteName,
    /// Its roles.
    pub(crate) roles: Roles,
    /// Expiry of the credential.
    pub(crate) expires_at: UnixSeconds,
}

/// The result of a join.
#[derive(Debug, Serialize)]
pub(crate) struct JoinReport {
    #[serde(flatten)]
    pub(crate) joined: Joined,
    /// The state folder.
    pub(crate) state_dir: PathBuf,
    /// Whether existing keys were kept; a node that renews its credential stays the same node.
    pub(crate) kept_keys: bool,
    /// Number of members in the invite to contact first.
    pub(crate) seeds: usize,
    /// With `--now`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) started: Option<now::Started>,
}

impl Joined {
    pub(crate) fn of(credential: &Credential) -> Self {
        Self {
            mesh: credential.mesh,
            node: credential.node,
            name: credential.name.clone(),
            site: credential.site.clone(),
            roles: credential.roles.clone(),
            expires_at: credential.expires_at,
        }
    }

    /// Aligned lines for people.
    pub(crate) fn lines(&self) -> String {
        format!(
            "mesh     {}\nnode     {}\nname     {}\nsite     {}\nroles    {}\nexpires  {}\n",
            self.mesh, self.node, self.name, self.site, self.roles, self.expires_at
        )
    }
}

pub(crate) fn run(args: &JoinArgs) -> Result<(), Error> {
    let paths = Paths::of_this_user()?;
    let state_dir = args.state_dir.clone().unwrap_or_else(|| paths.state_dir().to_owned());
    if args.now {
        now::check(&state_dir, &paths)?;
    }
    let mut report = join(&line::read(&args.invite)?, args, &state_dir, clock::wall())?;
    if !args.json {
        output::answer(&report.joined.lines())?;
    }
    if args.now {
        let started = now::start(&report.joined, &paths)?;
        if !args.json {
            output::answer(&started.lines())?;
            output::advice(&started.next_step());
        }
        report.started = Some(started);
    } else if !args.json {
        output::advice(&next_step(&report, &paths));
    }
    if args.json { output::json(&report) } else { Ok(()) }
}

/// Verifies the invite, then writes its content. A refused invite writes nothing.
pub(crate) fn join(
    text: &str,
    args: &JoinArgs,
    state_dir: &Path,
    now: UnixSeconds,
) -> Result<JoinReport, Error> {
    let invite = Invite::parse(text.trim())?;
    if invite.delegation.grant.roles.is_leaf() {
        return Err(Error::Usage(
            "this invite is for an operator's machine, which is not a node. Use it there with \
             `meshport forward --invite FILE`"
                .into(),
        ));
    }
    let name = match (&args.name, &invite.delegation.grant.name) {
        (None, Some(name)) => name.clone(),
        (chosen, _) => name_or_host_name(chosen.as_ref())?,
    };
    let fresh = (NodeKey::generate(&mut OsRng), RecordKey::generate(&mut OsRng));
    let accept = |node: &NodeKey, record: &RecordKey| {
        let join = Join { name: Some(name.clone()), site: args.site.clone(), ..Join::default() };
        invite.accept(node, record, join, now)
    };
    let mesh = accept(&fresh.0, &fresh.1)?.mesh;

    let state = create_state(state_dir)?;
    let _lock = state.lock()?;
    refuse_foreign_authority(&state, mesh)?;
    let former = former(&state, mesh, args.force)?;
    let same_mesh = former.mesh.is_none_or(|former| former == mesh);
    let (node_key, record_key) = if same_mesh { former.keys } else { (None, None) };
    let kept_keys = node_key.is_some();
    let (node_key, record_key) = (node_key.unwrap_or(fresh.0), record_key.unwrap_or(fresh.1));
    let credential = accept(&node_key, &record_key)?;
    // Damaged ones, or those of another mesh, count as unknown.
    let known = state.revocations(&mesh);
    // With revoked keys the node would not start, and others would refuse it.
    known.as_ref().map_or(Ok(()), |known| refuse_revoked(known, &credential))?;

    let mut seeds = invite.seeds.clone();
    if former.mesh == Some(mesh) {
        add_seeds(&mut seeds, former.seeds);
    } else {
        state.remove_directory()?;
        if known.is_err() {
            state.store_revocations(&Revocations::default())?;
        }
    }
    if args.force {
        state.remove_next()?;
    }
    // Without a credential, the other files are left from an unfinished join, unless an authority
    // is here.
    let is_unused = former.mesh.is_none() && state.authority_key()?.is_none();
    let replaced = existing(args.force || is_unused);
    write(&state, &node_key, &record_key, &invite.mesh_secret, replaced)?;
    state.store_seeds(&seeds)?;
    state.store_credential(&credential, existing(args.force))?;
    Ok(JoinReport {
        joined: Joined::of(&credential),
        state_dir: state.path().to_owned(),
        kept_keys,
        seeds: seeds.len(),
        started: None,
    })
}

/// The state folder, created if missing; warns of what others may see and do there.
pub(super) fn create_state(path: &Path) -> Result<StateDir, Error> {
    let state = StateDir::create(path)?;
    for doubt in state.doubts_of_folder() {
        output::advice(&format!("warning: {}", clean(&doubt)));
    }
    Ok(state)
}

fn existing(replaced: bool) -> Existing {
    if replaced { Existing::Replace } else { Existing::Keep }
}

/// The leftovers of an earlier join in the folder.
struct Former {
    /// The mesh of its credential; `None` after an unfinished join.
    mesh: Option<MeshId>,
    keys: (Option<NodeKey>, Option<RecordKey>),
    seeds: Vec<Seed>,
}

/// Reads the existing files and refuses to overwrite them without `force`; with it, damaged files
/// count as missing.
fn former(state: &StateDir, mesh: MeshId, force: bool) -> Result<Former, Error> {
    let credential = match state.credential() {
        // A credential from an earlier release still shows which mesh the keys belong to.
        Err(_damaged) if force => {
            let key = state.node_key().ok().flatten();
            key.and_then(|key| state.credential_to_renew(&key).ok().flatten())
        }
        outcome => outcome?,
    };
    if let (Some(credential), false) = (&credential, force) {
        return Err(joined_already(state, credential, mesh));
    }
    let keys = match (state.node_key(), state.record_key()) {
        (Ok(node_key), Ok(record_key)) => (node_key, record_key),
        (Err(_), _) | (_, Err(_)) if force => (None, None),
        (Err(error), _) | (_, Err(error)) => return Err(error.into()),
    };
    let seeds = if force { state.seeds().unwrap_or_default() } else { state.seeds()? };
    // The join rewrites them with a valid checksum.
    if let Some(doubt) = state.doubt_of_seeds() {
        output::advice(&format!("warning: {doubt}"));
    }
    Ok(Former { mesh: credential.map(|credential| credential.mesh), keys, seeds })
}

fn joined_already(state: &StateDir, credential: &Credential, mesh: MeshId) -> Error {
    let Credential { name, site, mesh: own, .. } = credential;
    let (what, remedy) = if *own == mesh {
        let what = format!("this machine has already joined, as {name} in site {site}");
        (what, "Use --force to replace its credential")
    } else {
        let what = format!("this machine belongs to mesh {own}, and the invite to mesh {mesh}");
        (what, "Use --force to leave that mesh for the new one")
    };
    Error::State { path: state.path().to_owned(), what, remedy: remedy.into() }
}

/// Writes keys and secret where they differ from the folder's. A folder's secret that succeeds the
/// invite's stays, since members use it by now.
fn write(
    state: &StateDir,
    node_key: &NodeKey,
    record_key: &RecordKey,
    secret: &MeshSecret,
    existing: Existing,
) -> Result<(), Error> {
    let stored = state.mesh_secrets().ok().flatten();
    let is_it = |held: &MeshSecret| held.to_text() == secret.to_text();
    if !stored.is_some_and(|held| is_it(held.current()) || held.former().is_some_and(is_it)) {
        state.store_mesh_secret(secret, existing)?;
    }
    let stored = state.node_key().ok().flatten().map(|key| key.public());
    if stored != Some(node_key.public()) {
        state.store_node_key(node_key, existing)?;
    }
    let stored = state.record_key().ok().flatten().map(|key| key.public());
    if stored != Some(record_key.public()) {
        state.store_record_key(record_key, existing)?;
    }
    Ok(())
}

/// An authority's folder keeps the secret of its own mesh: its invites need it.
fn refuse_foreign_authority(state: &StateDir, mesh: MeshId) -> Result<(), Error> {
    match state.authority_key()? {
        Some(authority) if authority.public() != mesh => Err(Error::State {
            path: state.path().to_owned(),
            what: "this folder has the authority of another mesh".into(),
            remedy: "Join with another folder: --state-dir DIR".into(),
        }),
        _ => Ok(()),
    }
}

/// Whether a known revocation covers this credential.
pub(super) fn refuse_revoked(known: &Revocations, credential: &Credential) -> Result<(), Error> {
    match known.covering(credential) {
        Some(Revocation { revoked, at, .. }) => {
            Err(meshport_config::Error::Revoked { revoked: *revoked, at: *at }.into())
        }
        None => Ok(()),
    }
}

/// Appends missing entries, the newest knowledge first.
fn add_seeds(seeds: &mut Vec<Seed>, more: Vec<Seed>) {
    for seed in more {
        if seeds.len() < MAX_STORED_SEEDS && seeds.iter().all(|known| known.node != seed.node) {
            seeds.push(seed);
        }
    }
}

/// The chosen name, else the host name.
///
/// # Errors
/// [`Error::Usage`] when the host name cannot be a node name.
pub(crate) fn name_or_host_name(chosen: Option<&NodeName>) -> Result<NodeName, Error> {
    if let Some(name) = chosen {
        return Ok(name.clone());
    }
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim().to_ascii_lowercase();
    host.parse().map_err(|_not_a_name| {
        Error::Usage(format!(
            "the host name {host:?} is not a valid node name; choose one with \
             --name"
        ))
    })
}

fn next_step(report: &JoinReport, paths: &Paths) -> String {
    let JoinReport { joined, state_dir, .. } = report;
    let keys = if report.kept_keys { "with its previous keys" } else { "with new keys" };
    let mut text = format!("{} has joined the mesh {keys}.\n", joined.name);
    if report.seeds == 0 {
        text.push_str(
            "The invite names no seed: add `seeds` under [mesh] in the configuration, or wait for \
             others to reach this node.\n",
        );
    }
    for role in joined.roles.iter().filter(|_| !paths.config().exists()) {
        let Role::Origin(service) = role else { continue };
        text.push_str(&format!(
            "To offer {service}, first set `site`, and `origin` under [service.{service}], in \
             {}.\n",
            paths.config().display(),
        ));
    }
    text.push_str(&format!("Start it:  {}", run_command(state_dir, paths)));
    text
}

/// The command that starts the daemon with that folder.
pub(crate) fn run_command(state_dir: &Path, paths: &Paths) -> String {
    match state_dir == paths.state_dir() {
        true => "meshport run".into(),
        false => format!("meshport run --state-dir {}", state_dir.display()),
    }
}

#[cfg(test)]
mod tests {
    use meshport_config::{AuthorityKey, Grant, InviteParams, Revoked};

    use super::*;

    const NOW: UnixSeconds = UnixSeconds(1_800_000_000);
    const DAY_S: u64 = 86_400;

    fn line(authority: &AuthorityKey) -> String {
        let grant = Grant {
            roles: "node".parse().expect("roles"),
            site: Some("fra".parse().expect("a site")),
            name: Some("worker-7".parse().expect("a name")),
            not_before: NOW,
            join_until: NOW.saturating_add(DAY_S),
            credential_ttl_s: DAY_S,
        };
        let mesh_secret = MeshSecret::generate(&mut OsRng);
        let params = InviteParams { grant, mesh_secret, seeds: Vec::new() };
        let invite = Invite::create(authority, params, &mut OsRng).expect("an invite");
        invite.to_text().expect("a line").to_string()
    }

    fn joined(folder: &Path, line: String, force: bool) -> Result<JoinReport, Error> {
        let text = line.clone();
        let (now, json) = (false, false);
        let args =
            JoinArgs { invite: line, name: None, site: None, state_dir: None, force, now, json };
        join(&text, &args, folder, NOW)
    }

    #[test]
    fn missing_inputs_of_an_origin_are_reported_before_its_start() {
        let authority = AuthorityKey::generate(&mut OsRng);
        let home = tempfile::tempdir().expect("a folder");
        let paths = Paths::in_home(home.path()).expect("a home");
        let mut report =
            joined(&home.path().join("state"), line(&authority), false).expect("it joins");
        assert!(!next_step(&report, &paths).contains("origin"), "a worker needs nothing");
        report.joined.roles = "node,origin:kube-apiserver".parse().expect("roles");
        let text = next_step(&report, &paths);
        assert!(text.contains("`origin` under [service.kube-apiserver]"), "{text}");
    }

    /// The files in the order a join writes them, except the last.
    const WRITTEN: [&str; 4] = ["mesh.secret", "node.key", "record.key", "seeds"];

    #[test]
    fn an_interrupted_join_continues() {
        let [authority, abroad] = [(); 2].map(|()| AuthorityKey::generate(&mut OsRng));
        let folder = tempfile::tempdir().expect("a folder");
        let whole = folder.path().join("whole");
        let first = line(&authority);
        joined(&whole, first.clone(), false).expect("it joins");
        for (number, of) in (0..1 << WRITTEN.len()).flat_map(|of| [(0, of), (1, of), (2, of)]) {
            // The same line, another one of the mesh, and one of another mesh.
            let line = [first.clone(), line(&authority), line(&abroad)][number].clone();
            let path = folder.path().join(format!("{number}-{of}"));
            let state = StateDir::create(&path).expect("it is made");
            let left = (0..WRITTEN.len()).filter(|at| of & (1 << at) != 0);
            for name in left.map(|at| WRITTEN[at]) {
                std::fs::copy(whole.join(name), path.join(name)).expect("copied");
            }
            std::fs::write(path.join(".node.key.7-0.tmp"), "half").expect("written");
            let report = joined(&path, line, false);
            let report = report.unwrap_or_else(|error| panic!("{number} {of:b}: {error}"));
            let identity = state.identity(NOW).expect("a whole folder");
            assert_eq!(identity.credential.node, report.joined.node);
            assert_eq!(report.kept_keys, of & 2 != 0, "a key that is there stays");
        }
    }

    #[test]
    fn files_that_a_node_relies_on_are_not_replaced_without_consent() {
        let authority = AuthorityKey::generate(&mut OsRng);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("state");
        joined(&path, line(&authority), false).expect("it joins");
        let read = |name: &str| std::fs::read(path.join(name)).expect("it is there");
        let before = WRITTEN.map(read);
        let error = joined(&path, line(&authority), false).expect_err("it is a node");
        assert!(error.to_string().contains("--force"), "{error}");
        assert!(WRITTEN.map(read) == before, "nothing was written");

        // The secret next to an authority is not replaced either: others already have it.
        let path = folder.path().join("authority");
        let state = StateDir::create(&path).expect("it is made");
        state.store_authority_key(&authority, Existing::Keep).expect("stored");
        let secret = MeshSecret::generate(&mut OsRng);
        state.store_mesh_secret(&secret, Existing::Keep).expect("stored");
        let error = joined(&path, line(&authority), false).expect_err("another secret");
        assert!(error.to_string().contains("mesh.secret: already exists"), "{error}");
    }

    #[test]
    fn revoked_keys_cannot_join_again_and_another_mesh_is_not_affected() {
        let [authority, abroad] = [(); 2].map(|()| AuthorityKey::generate(&mut OsRng));
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("state");
        let first = joined(&path, line(&authority), false).expect("it joins").joined;
        let state = StateDir::open(&path).expect("it was made");
        let mut revoked = Revocations::default();
        revoked.add(Revocation::issue(&authority, Revoked::Node(first.node), NOW));
        state.store_revocations(&revoked).expect("stored");
        let before = state.credential().expect("loads");
        let refused = joined(&path, line(&authority), true).expect_err("it is out for good");
        let text = refused.to_string();
        assert!(text.contains("only with new keys: `meshport reset`"), "{text}");
        assert_eq!(state.credential().expect("loads"), before, "nothing was written");

        joined(&path, line(&abroad), true).expect("asked for");
        state.identity(NOW).expect("a whole folder");
    }
}
