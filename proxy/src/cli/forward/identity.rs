//! The leaf's identity: from an invite, or saved from an earlier use.
//!
//! A folder has several identities from one invite, each in its own subfolder, so that as many
//! forwards can run at once: two processes with one key would take over each other's tunnels. All
//! are created at the first use, since the invite may have expired by the second. Every file has
//! mode 0600. The folder may be in another user's state folder, so no link is followed to it.

use std::path::{Path, PathBuf};

use clap::Args;
use meshport_config::{
    Invite, Join, MeshId, MeshSecrets, NodeKey, NodeName, RecordKey, Role, Roles, Seed, UnixSeconds,
};
use rand_core::OsRng;

use crate::cli::paths::Paths;
use crate::cli::{clock, join, line, output, saved_directory};
use meshport_daemon::Error;
use meshport_daemon::lifecycle::leaf::Leaf;
use meshport_state::Identity;
use meshport_state::{Existing, StateDir, StateLock};

/// Forwards that can run at once with one saved credential.
const SLOTS: usize = 4;
/// Where credentials are saved, in the state folder of the user.
const FOLDER: &str = "forward";
/// The remedy for an unusable saved credential, after "run"...
const WITH_ANOTHER_INVITE: &str = "`meshport forward --invite FILE` with a new invite: `meshport \
                                   invite --site SITE --role operator` makes one";
/// ...in place of this one for nodes.
const JOIN_AGAIN: &str = "`meshport join INVITE --force` with a new invite";

/// Where the leaf's identity comes from.
#[derive(Debug, Args)]
pub(crate) struct IdentityArgs {
    /// File with an invite for the role operator, or - for standard input. The line itself works
    /// too, but other users of this machine can see it
    #[arg(long, value_name = "INVITE")]
    pub(crate) invite: Option<String>,
    /// Folder of the saved credential [default: forward in the state folder of this user]
    #[arg(long, value_name = "DIR")]
    pub(crate) credential: Option<PathBuf>,
    /// Save nothing on disk
    #[arg(long, requires = "invite")]
    pub(crate) no_save: bool,
    /// Name of this machine, with an invite [default: the invite's, else its host name]
    #[arg(long, requires = "invite")]
    pub(crate) name: Option<NodeName>,
}

/// The inputs of a leaf.
#[derive(Debug)]
pub(in crate::cli) struct Start {
    pub(in crate::cli) identity: Identity,
    pub(in crate::cli) seeds: Vec<Seed>,
    pub(in crate::cli) directory: Option<Vec<u8>>,
    pub(in crate::cli) storage: Storage,
}

/// Stores what the next start needs.
#[derive(Debug)]
pub(in crate::cli) enum Storage {
    /// Saves nothing.
    Nothing,
    /// The identity comes from this folder; only the directory changes.
    Saved(Slot),
    /// The identity is new.
    New(Box<NewIdentities>),
}

/// A folder with one identity, held while it is in use.
#[derive(Debug)]
pub(in crate::cli) struct Slot {
    state: StateDir,
    _lock: StateLock,
}

/// New identities that are to be saved.
#[derive(Debug)]
pub(in crate::cli) struct NewIdentities {
    folder: PathBuf,
    /// The one in use comes first.
    identities: Vec<Identity>,
    seeds: Vec<Seed>,
}

/// The warning after a failure of [`Storage::store`].
pub(in crate::cli) fn unsaved(error: &Error) -> String {
    format!("cannot save the credential, so the next start needs the invite again: {error}")
}

/// The identity that the arguments select: from an invite, or a saved one.
///
/// # Errors
/// As [`from_invite`] and [`saved`].
pub(in crate::cli) fn start(args: &IdentityArgs) -> Result<Start, Error> {
    let paths = Paths::of_this_user()?;
    let folder = args.credential.clone().unwrap_or_else(|| paths.state_dir().join(FOLDER));
    // The node on this machine, if any and if its state is readable.
    let node = StateDir::open(paths.state_dir()).ok();
    let (node, now) = (node.as_ref(), clock::wall());
    match &args.invite {
        Some(invite) => from_invite(invite, args, &folder, node, now),
        None => saved(&folder, node, now),
    }
}

/// The first saved identity that no other process uses. `node` is the state folder of this
/// machine's node, whose saved directory also names members.
///
/// # Errors
/// [`Error::State`] when nothing is saved or all are in use; [`Error::Trust`] when the credential
/// has ended.
fn saved(folder: &Path, node: Option<&StateDir>, now: UnixSeconds) -> Result<Start, Error> {
    let mut busy = 0;
    for state in slots(folder) {
        let Some(_lock) = state.try_lock()? else {
            busy += 1;
            continue;
        };
        let identity = state.identity(now).map_err(for_a_leaf)?;
        if !identity.credential.roles.is_leaf() {
            return Err(not_a_leaf(state.path(), &identity.credential.roles));
        }
        // If either is damaged, the other suffices.
        let seeds = state.seeds().unwrap_or_else(|error| {
            output::advice(&format!("warning: ignoring the saved seeds: {error}"));
            Vec::new()
        });
        if let Some(doubt) = state.doubt_of_seeds().filter(|_| !seeds.is_empty()) {
            output::advice(&format!("warning: {doubt}"));
        }
        let of_node =
            || node.and_then(|it| saved_directory::directory_of(it, &identity.credential.mesh));
        let directory = state.directory().unwrap_or_default().or_else(of_node);
        let storage = Storage::Saved(Slot { state, _lock });
        return Ok(Start { identity, seeds, directory, storage });
    }
    if let (0, Some(unusable)) = (busy, unusable(folder)) {
        return Err(unusable);
    }
    let (what, remedy) = match busy {
        0 if holds_node(folder) => {
            return Err(not_a_leaf(folder, &Roles::from(Role::Node)));
        }
        0 => (
            "no saved operator credential".to_owned(),
            "Run `meshport forward --invite FILE` with an invite: `meshport invite --site SITE \
             --role operator` makes one",
        ),
        busy => (
            format!("all {busy} identities of this credential are in use by other forwards"),
            "Stop one of them, or use another invite with --credential and another folder",
        ),
    };
    Err(Error::State { path: folder.to_owned(), what, remedy: remedy.into() })
}

/// New identities from an invite. `node` as for [`saved`].
///
/// # Errors
/// [`Error::Trust`] when the invite is refused, [`Error::Usage`] when it does not make an operator,
/// [`Error::State`] when the folder belongs to another mesh.
fn from_invite(
    text: &str,
    args: &IdentityArgs,
    folder: &Path,
    node: Option<&StateDir>,
    now: UnixSeconds,
) -> Result<Start, Error> {
    let invite = Invite::parse(line::read(text)?.trim())?;
    let given = &invite.delegation.grant.roles;
    if !given.contains(&Role::Operator) {
        return Err(Error::Usage(format!(
            "this invite does not grant the role operator, only {given}; create one with \
             `meshport invite --site SITE --role operator`"
        )));
    }
    if !args.no_save {
        refuse_other_mesh(folder, *invite.mesh())?;
    }
    let name = match (&args.name, &invite.delegation.grant.name) {
        (None, Some(name)) => name.clone(),
        (chosen, _) => join::name_or_host_name(chosen.as_ref())?,
    };
    let count = if args.no_save { 1 } else { SLOTS };
    let made = (0..count).map(|_| make(&invite, &name, now));
    let identities = made.collect::<Result<Vec<Identity>, Error>>()?;
    let seeds = invite.seeds.clone();
    let identity = copy(&identities[0]);
    let storage = if args.no_save {
        Storage::Nothing
    } else {
        let folder = folder.to_owned();
        Storage::New(Box::new(NewIdentities { folder, identities, seeds: seeds.clone() }))
    };
    let directory = node.and_then(|node| saved_directory::directory_of(node, invite.mesh()));
    Ok(Start { identity, seeds, directory, storage })
}

fn make(invite: &Invite, name: &NodeName, now: UnixSeconds) -> Result<Identity, Error> {
    let (node_key, record_key) = (NodeKey::generate(&mut OsRng), RecordKey::generate(&mut OsRng));
    let roles = Some(Roles::from(Role::Operator));
    // An invite without a site lets the machine choose; a laptop has none.
    let open = invite.delegation.grant.site.is_none();
    let site = open.then(|| "laptop".parse()).transpose()?;
    let join = Join { name: Some(name.clone()), site, roles, succession: None };
    let credential = invite.accept(&node_key, &record_key, join, now)?;
    let secrets = invite.mesh_secret.clone().into();
    Ok(Identity { node_key, record_key, secrets, credential })
}

fn copy(identity: &Identity) -> Identity {
    Identity {
        node_key: identity.node_key.clone(),
        record_key: identity.record_key.clone(),
        secrets: identity.secrets.clone(),
        credential: identity.credential.clone(),
    }
}

impl Storage {
    /// Stores a new identity and the knowledge of the mesh. It replaces an older identity of the
    /// same mesh, unless a process uses that.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::State`] when the identity cannot be written.
    pub(in crate::cli) async fn store(&mut self, directory: Option<Vec<u8>>) -> Result<(), Error> {
        match std::mem::replace(self, Self::Nothing) {
            Self::New(new) => {
                let saved = tokio::task::spawn_blocking(move || new.save()).await;
                let slot =
                    saved.map_err(|error| Error::Bug(format!("saving ended: {error}")))??;
                *self = slot.map_or(Self::Nothing, Self::Saved);
            }
            // It holds the lock of its folder.
            kept => *self = kept,
        }
        self.store_directory(directory).await;
        Ok(())
    }

    /// Stores a new secret of the mesh, if one arrived, and uses it.
    pub(in crate::cli) async fn take_secrets(&self, leaf: &mut Leaf) {
        if let Some(secrets) = leaf.offered_secrets() {
            self.store_secrets(secrets).await;
            leaf.take_secrets().await;
        }
    }

    /// Stores a new secret of the mesh.
    async fn store_secrets(&self, secrets: &MeshSecrets) {
        let Self::Saved(slot) = self else { return };
        let (state, secrets) = (slot.state.clone(), secrets.clone());
        let kept = tokio::task::spawn_blocking(move || Slot::store_secrets(&state, &secrets)).await;
        if let Ok(Err(error)) = kept {
            output::advice(&format!("cannot save the new mesh secret for the next start: {error}"));
        }
    }

    /// Stores the current knowledge of the mesh.
    pub(in crate::cli) async fn store_directory(&self, directory: Option<Vec<u8>>) {
        let (Self::Saved(slot), Some(directory)) = (self, directory) else { return };
        let state = slot.state.clone();
        let kept = tokio::task::spawn_blocking(move || state.store_directory(&directory)).await;
        if let Ok(Err(error)) = kept {
            output::advice(&format!(
                "cannot save the directory, so the next start uses the invite's addresses: {error}"
            ));
        }
    }
}

impl Slot {
    /// Writes a new mesh secret to all folders of this credential that have an older one, which
    /// would soon be useless without it.
    fn store_secrets(state: &StateDir, secrets: &MeshSecrets) -> Result<(), Error> {
        let folder = state.path().parent().unwrap_or(state.path());
        for state in slots(folder) {
            let held = state.mesh_secrets()?.map(|held| held.number());
            if held.is_none_or(|held| held < secrets.number()) {
                state.store_mesh_secrets(secrets, Existing::Replace)?;
            }
        }
        Ok(())
    }
}

impl NewIdentities {
    /// Writes all identities; the first goes into a folder that the process can lock.
    fn save(self) -> Result<Option<Slot>, Error> {
        let mut own = None;
        let folder = StateDir::create_itself(&self.folder)?;
        let mut identities = self.identities.into_iter();
        for number in 0..SLOTS {
            let state = folder.create_in(&number.to_string())?;
            // A running forward keeps its identity; ours goes into the next folder.
            let Some(_lock) = state.try_lock()? else { continue };
            let Some(identity) = identities.next() else { break };
            state.store_mesh_secrets(&identity.secrets, Existing::Replace)?;
            state.store_node_key(&identity.node_key, Existing::Replace)?;
            state.store_record_key(&identity.record_key, Existing::Replace)?;
            state.store_seeds(&self.seeds)?;
            state.store_credential(&identity.credential, Existing::Replace)?;
            own.get_or_insert(Slot { state, _lock });
        }
        Ok(own)
    }
}

/// The folders of a saved credential that are complete.
fn slots(folder: &Path) -> impl Iterator<Item = StateDir> {
    let whole = |state: &StateDir| state.credential().is_ok_and(|credential| credential.is_some());
    folders(folder).into_iter().flatten().filter(whole)
}

/// All existing folders of a saved credential, or why one cannot be opened.
fn folders(folder: &Path) -> Vec<Result<StateDir, meshport_state::Error>> {
    match StateDir::open_itself(folder) {
        Ok(None) => Vec::new(),
        Ok(Some(folder)) => {
            let slot = |number: usize| folder.open_in(&number.to_string()).transpose();
            (0..SLOTS).filter_map(slot).collect()
        }
        Err(error) => vec![Err(error)],
    }
}

/// The error of the first saved credential, if none can be used.
fn unusable(folder: &Path) -> Option<Error> {
    let error = |state: Result<StateDir, _>| state.and_then(|state| state.credential()).err();
    folders(folder).into_iter().find_map(error).map(for_a_leaf)
}

/// Replaces the remedy for a node (join again or renew) with that for a leaf.
fn for_a_leaf(error: meshport_state::Error) -> Error {
    let of_nodes = ["meshport join", "meshport renew"];
    match error.into() {
        Error::State { path, what, remedy } if remedy.contains(JOIN_AGAIN) => {
            let remedy = remedy.replace(JOIN_AGAIN, WITH_ANOTHER_INVITE);
            Error::State { path, what, remedy }
        }
        Error::State { path, what, remedy } if of_nodes.iter().any(|it| remedy.contains(it)) => {
            Error::State { path, what, remedy: format!("Run {WITH_ANOTHER_INVITE}") }
        }
        error => error,
    }
}

/// Whether the folder is the state folder of a node.
fn holds_node(folder: &Path) -> bool {
    let is_node = |state: StateDir| state.credential().is_ok_and(|it| it.is_some());
    StateDir::open_itself(folder).ok().flatten().is_some_and(is_node)
}

fn not_a_leaf(path: &Path, roles: &Roles) -> Error {
    Error::State {
        path: path.to_owned(),
        what: format!("the credential here is a node's ({roles}), not an operator's"),
        remedy: "Use `meshport run` with it, or get an invite with the role operator".into(),
    }
}

fn refuse_other_mesh(folder: &Path, mesh: MeshId) -> Result<(), Error> {
    let mut saved = slots(folder).filter_map(|state| state.credential().ok().flatten());
    if saved.all(|credential| credential.mesh == mesh) {
        return Ok(());
    }
    Err(Error::State {
        path: folder.to_owned(),
        what: "the credential saved here belongs to another mesh".into(),
        remedy: "Choose another folder with --credential, or save nothing with --no-save".into(),
    })
}

#[cfg(test)]
mod tests;
