//! The state folder: a node's durable values, one file each.
//!
//! | file | content | secret |
//! | --- | --- | --- |
//! | `node.key` | the WireGuard key; its public half is the NodeId | yes |
//! | `record.key` | signs this node's records in the directory | yes |
//! | `mesh.secret` | shared by all members; during a rotation also the previous one | yes |
//! | `authority.key` | signs invites and credentials; only where `init` ran | yes |
//! | `credential` | the signed statement of who this node is | no |
//! | `seeds` | nodes to announce to, one per line, and a checksum | no |
//! | `generation` | the number of the last start, and a checksum | no |
//! | `directory` | knowledge of the others, for a cold boot | no |
//! | `nodes` | nodes of the cluster, for the way back at a cold boot | no |
//! | `revocations` | what the authority has revoked, one signed line each | no |
//! | `node.next` | the node's next identity, while its keys are replaced | yes |
//! | `credential.base`, `credential.former` | those before the current one, for renewals | no |
//! | `mandate` | an issuer's right to renew credentials of others, with its keys | yes |
//! | `mandates` | the mandates that the authority's key here has signed | no |
//! | `lock` | held by the one process that uses the folder | no |
//!
//! Every file has mode 0600, is written whole, and is opened relative to the opened folder, where
//! no link is followed (`folder`). A missing or damaged file is an error that names it and the
//! remedy, never a silent reset; files that people may edit are used as read, with a warning about
//! anything odd (`seal`). Each file has a bound on its size.

mod error;
mod folder;
mod generation;
mod known;
mod lock;
mod next;
mod renewals;
mod seal;
#[cfg(test)]
mod tests;

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use meshport_config::{
    Added, AuthorityKey, Credential, Issued, MAX_NAME_BYTES, MAX_REVOCATION_BYTES, MAX_REVOCATIONS,
    MAX_SUCCESSIONS, MeshId, MeshSecret, MeshSecrets, NodeKey, NodeName, RecordKey, Revocation,
    Revocations, Seed, UnixSeconds,
};
use zeroize::Zeroizing;

use self::folder::{Content, Folder, state_error};

pub use self::error::Error;
pub use self::folder::Existing;
pub use self::generation::Generation;
pub use self::lock::StateLock;
pub use self::next::NextIdentity;
pub use self::renewals::KnownRenewals;

/// A key, secret, credential or counter in text form is far smaller, in bytes.
const MAX_TEXT_BYTES: usize = 4 * 1024;
/// Seeds that a node stores: an invite has 8, and a user may add more to the file.
pub const MAX_STORED_SEEDS: usize = 64;
/// [`MAX_STORED_SEEDS`] with 8 endpoints of the longest DNS names each, in bytes.
const MAX_SEEDS_BYTES: usize = 256 * 1024;
/// A line of base64 with a name for each revocation, and the last line, in bytes.
const MAX_REVOCATIONS_BYTES: usize =
    (MAX_REVOCATIONS + MAX_SUCCESSIONS + 1) * (2 * MAX_REVOCATION_BYTES + 1 + MAX_NAME_BYTES);
/// Begins the last line of the revocations, before their number: a file truncated between two lines
/// would otherwise read as fewer.
const END: &str = "end ";

const NODE_KEY: &str = "node.key";
const RECORD_KEY: &str = "record.key";
const MESH_SECRET: &str = "mesh.secret";
const AUTHORITY_KEY: &str = "authority.key";
/// Remedy for an attempt to create a mesh on a machine that is in one.
const IN_USE: &str = "This machine is in a mesh; add others to it with `meshport invite`. --force \
                      creates another mesh in its place, which every node must then join again";
const CREDENTIAL: &str = "credential";
const SEEDS: &str = "seeds";
const GENERATION: &str = "generation";
const DIRECTORY: &str = "directory";
const NODES: &str = "nodes";
const REVOCATIONS: &str = "revocations";
const LOCK: &str = "lock";
/// The socket that a daemon with a user-defined state folder has there too.
const SOCKET: &str = "meshport.sock";
/// A configuration file kept next to the state.
const CONFIG: &str = "meshport.toml";
/// All files that meshport writes into the folder, and whether others may know them. An erasure
/// removes them in this order, except the configuration: a folder without a credential does not
/// belong to a node.
const FILES: [(&str, Content); 18] = [
    (CREDENTIAL, Content::Public),
    (next::NEXT, Content::Secret),
    (NODE_KEY, Content::Secret),
    (RECORD_KEY, Content::Secret),
    (MESH_SECRET, Content::Secret),
    (AUTHORITY_KEY, Content::Secret),
    (renewals::MANDATE, Content::Secret),
    (renewals::BASE, Content::Public),
    (renewals::FORMER, Content::Public),
    (renewals::MANDATES, Content::Public),
    (SEEDS, Content::Public),
    (GENERATION, Content::Public),
    (DIRECTORY, Content::Public),
    (NODES, Content::Public),
    (REVOCATIONS, Content::Public),
    (SOCKET, Content::Public),
    (LOCK, Content::Public),
    (CONFIG, Content::Public),
];

const FROM_BACKUP: &str = "Restore it from a backup; without it this mesh gets no new invites";
const JOIN: &str = "Create it with `meshport join INVITE`, on the first node with `meshport init`, \
                    or name another with --state-dir";
const JOIN_AGAIN: &str =
    "Restore it from a backup, or run `meshport join INVITE --force` with a new invite";
const ALTERED: &str = "its content does not match its signature";
const UNSIGNED: &str = "is from an earlier version of meshport: the node has not signed it";
const RENEW: &str = "Reissue it: `meshport renew` where the authority's key is, \
                     `meshport renew INVITE` elsewhere";
const EARLY: &str = "Correct this machine's clock or, if it is right, run `meshport join INVITE \
                     --force` with a new invite";
const TOLD_AGAIN: &str =
    "Restore it from a backup, or remove it: other nodes send the revocations again";
const WRITE_ANEW: &str =
    "Correct it, or rewrite it: a line NODE@ADDRESS:PORT for each node to contact";
/// An existing state folder, opened. Cheap to clone.
#[derive(Debug, Clone)]
pub struct StateDir {
    folder: Folder,
}

/// The identity of a node, checked for consistency.
#[derive(Debug)]
pub struct Identity {
    /// The WireGuard key.
    pub node_key: NodeKey,
    /// Signs this node's records.
    pub record_key: RecordKey,
    /// The mesh's shared secret, and the previous one while both open tunnels.
    pub secrets: MeshSecrets,
    /// The node's credential.
    pub credential: Credential,
}

/// Whether a file of this name in a state folder holds no secret.
pub fn is_public(name: &str) -> bool {
    content(name) == Some(Content::Public)
}

/// Whether a file of this name in a state folder contains a secret of meshport.
pub fn is_secret(name: &str) -> bool {
    content(name) == Some(Content::Secret)
}

/// Whether meshport writes a file of this name.
fn is_own(name: &str) -> bool {
    content(name).is_some()
}

/// The content of a file of meshport; any other may contain a secret.
fn content(name: &str) -> Option<Content> {
    FILES.iter().find(|(file, _)| *file == name).map(|(_, content)| *content)
}

/// The files that an erasure removes, in its order.
fn erased() -> impl Iterator<Item = &'static str> {
    FILES.into_iter().map(|(name, _)| name).filter(|name| *name != CONFIG)
}

impl StateDir {
    /// An existing folder.
    ///
    /// # Errors
    /// [`Error::State`] if it is missing, not a folder, or writable by others.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, Error> {
        Ok(Self { folder: Folder::open(path.into(), JOIN)? })
    }

    /// The folder, created with mode 0700 if missing. An existing one gets that mode if it contains
    /// only meshport's files.
    ///
    /// # Errors
    /// See [`StateDir::open`], and [`Error::Io`] if it cannot be created.
    pub fn create(path: impl Into<PathBuf>) -> Result<Self, Error> {
        Ok(Self { folder: Folder::create(path.into(), is_own, JOIN)? })
    }

    /// An existing folder that may be in another user's: a link at `path` is refused. `None` if
    /// there is nothing.
    ///
    /// # Errors
    /// [`Error::State`] as for [`StateDir::open`].
    pub fn open_itself(path: &Path) -> Result<Option<Self>, Error> {
        Ok(Folder::open_itself(path)?.map(|folder| Self { folder }))
    }

    /// As [`StateDir::open_itself`], created as by [`StateDir::create`] if missing.
    ///
    /// # Errors
    /// See [`StateDir::open_itself`] and [`StateDir::create`].
    pub fn create_itself(path: &Path) -> Result<Self, Error> {
        Ok(Self { folder: Folder::create_itself(path, is_own)? })
    }

    /// As [`StateDir::open_itself`], for a folder in this one.
    ///
    /// # Errors
    /// See [`StateDir::open_itself`].
    pub fn open_in(&self, name: &str) -> Result<Option<Self>, Error> {
        Ok(self.folder.open_in(name)?.map(|folder| Self { folder }))
    }

    /// As [`StateDir::create_itself`], for a folder in this one.
    ///
    /// # Errors
    /// See [`StateDir::create_itself`].
    pub fn create_in(&self, name: &str) -> Result<Self, Error> {
        Ok(Self { folder: self.folder.create_in(name, is_own)? })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Refuses a folder that already contains an authority or a node. Each is recognized by its
    /// last written file, without which the others are useless.
    ///
    /// # Errors
    /// [`Error::State`] naming the first file that would be replaced.
    pub fn require_unused(&self) -> Result<(), Error> {
        let names = [AUTHORITY_KEY, CREDENTIAL];
        let absent = names.iter().try_for_each(|name| self.folder.require_absent(name));
        absent.map_err(|error| match error {
            Error::State { path, what, .. } => Error::State { path, what, remedy: IN_USE.into() },
            error => error,
        })
    }

    /// The files that [`StateDir::erase`] would remove now, in its order.
    pub fn erasable(&self) -> Vec<&'static str> {
        erased().filter(|name| self.folder.require_absent(name).is_err()).collect()
    }

    /// Permanently removes all of meshport's files here, except a configuration.
    ///
    /// # Errors
    /// [`Error::Io`] with the first file that cannot be removed; those before it are gone.
    pub fn erase(&self, lock: StateLock) -> Result<(), Error> {
        erased().try_for_each(|name| self.folder.remove(name))?;
        drop(lock);
        Ok(())
    }

    /// The node's identity, checked: the credential is valid at `now` and names exactly these keys.
    ///
    /// # Errors
    /// [`Error::State`] naming the file that is missing, damaged or does not belong to the others;
    /// [`Error::Trust`] when the credential itself is refused, for example because it expired.
    pub fn identity(&self, now: UnixSeconds) -> Result<Identity, Error> {
        let credential = self.credential()?.ok_or_else(|| self.missing(CREDENTIAL))?;
        let credential = self.fallback(&credential, now)?.unwrap_or(credential);
        // First: with an invalid credential, other files would look wrong.
        self.in_force(&credential, now)?;
        let node_key = self.node_key()?.ok_or_else(|| self.missing(NODE_KEY))?;
        let record_key = self.record_key()?.ok_or_else(|| self.missing(RECORD_KEY))?;
        if credential.node != node_key.public() {
            return Err(self.stranger(NODE_KEY));
        }
        if credential.record_key != record_key.public() {
            return Err(self.stranger(RECORD_KEY));
        }
        self.completed(NextIdentity { node_key, record_key, credential })
    }

    /// The identity from these keys and this credential, with the rest of the folder.
    fn completed(&self, who: NextIdentity) -> Result<Identity, Error> {
        let NextIdentity { node_key, record_key, credential } = who;
        let secrets = self.mesh_secrets()?.ok_or_else(|| self.missing(MESH_SECRET))?;
        if secrets.rotation().is_some_and(|rotation| rotation.mesh != credential.mesh) {
            let what = "is the secret of another mesh than the credential's";
            return Err(state_error(&self.file(MESH_SECRET), what, JOIN_AGAIN));
        }
        if let Some(revocation) = self.revocations(&credential.mesh)?.covering(&credential) {
            let Revocation { revoked, at, .. } = *revocation;
            return Err(meshport_config::Error::Revoked { revoked, at }.into());
        }
        Ok(Identity { node_key, record_key, secrets, credential })
    }

    fn in_force(&self, credential: &Credential, now: UnixSeconds) -> Result<(), Error> {
        credential.verify(&credential.mesh, now).map_err(|error| match error {
            meshport_config::Error::NotYetValid { valid_from, now } => {
                let what = format!("is not valid before {valid_from}, but the clock says {now}");
                state_error(&self.file(CREDENTIAL), what, EARLY)
            }
            error => error.into(),
        })
    }

    /// The WireGuard key; `None` if there is none yet.
    ///
    /// # Errors
    /// [`Error::State`] when the file is damaged or open to others; so for every file here.
    pub fn node_key(&self) -> Result<Option<NodeKey>, Error> {
        self.load(NODE_KEY, JOIN_AGAIN)
    }

    /// The key that signs this node's records.
    pub fn record_key(&self) -> Result<Option<RecordKey>, Error> {
        self.load(RECORD_KEY, JOIN_AGAIN)
    }

    /// The mesh's shared secret, with the previous one as last written.
    pub fn mesh_secrets(&self) -> Result<Option<MeshSecrets>, Error> {
        self.load(MESH_SECRET, JOIN_AGAIN)
    }

    /// The authority's key, where `init` ran.
    pub fn authority_key(&self) -> Result<Option<AuthorityKey>, Error> {
        self.load(AUTHORITY_KEY, FROM_BACKUP)
    }

    /// The node's credential as it was signed, valid or not.
    pub fn credential(&self) -> Result<Option<Credential>, Error> {
        let path = self.file(CREDENTIAL);
        let text = self.read_text(CREDENTIAL, MAX_TEXT_BYTES, JOIN_AGAIN)?;
        let Some(text) = text else { return Ok(None) };
        let credential = Credential::from_text(text.trim()).map_err(|error| match error {
            meshport_config::Error::NotCountersigned => state_error(&path, UNSIGNED, RENEW),
            error => damaged(&path, &error, JOIN_AGAIN),
        })?;
        self.whole(credential).map(Some)
    }

    /// The node's credential as the base for the next one. A credential of an earlier version,
    /// without the node's signature, is accepted: the node's key signs it now.
    pub fn credential_to_renew(&self, key: &NodeKey) -> Result<Option<Credential>, Error> {
        let text = self.read_text(CREDENTIAL, MAX_TEXT_BYTES, JOIN_AGAIN)?;
        let Some(issued) = text.and_then(|text| Issued::from_text(&text).ok()) else {
            return self.credential();
        };
        self.whole(issued.countersign(key)?).map(Some)
    }

    /// Only complete ones are stored. The site or times of an altered one would cause misleading
    /// errors.
    fn whole(&self, credential: Credential) -> Result<Credential, Error> {
        let whole = credential.verify(&credential.mesh, credential.issued_at);
        let altered = |_| damaged(&self.file(CREDENTIAL), &ALTERED, JOIN_AGAIN);
        whole.map(|()| credential).map_err(altered)
    }

    /// The nodes to announce to; empty without the file.
    pub fn seeds(&self) -> Result<Vec<Seed>, Error> {
        let path = self.file(SEEDS);
        let text = self.read_text(SEEDS, MAX_SEEDS_BYTES, WRITE_ANEW)?;
        let text = text.unwrap_or_default();
        let mut seeds = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let seed = line.parse::<Seed>().map_err(|error| {
                let remedy = "Correct or remove that line";
                state_error(&path, format!("line {}: {error}", index + 1), remedy)
            })?;
            seeds.push(seed);
        }
        if seeds.len() > MAX_STORED_SEEDS {
            let what = format!("has {} seeds, at most {MAX_STORED_SEEDS} are used", seeds.len());
            return Err(state_error(&path, what, "Remove some lines"));
        }
        Ok(seeds)
    }

    /// The revocations of the authority of `mesh`, each line verified; empty if there is no such
    /// file.
    ///
    /// # Errors
    /// As [`StateDir::node_key`]; also when lines are missing.
    pub fn revocations(&self, mesh: &MeshId) -> Result<Revocations, Error> {
        let path = self.file(REVOCATIONS);
        let mut all = Revocations::default();
        let text = self.read_text(REVOCATIONS, MAX_REVOCATIONS_BYTES, TOLD_AGAIN)?;
        let Some(text) = text else { return Ok(all) };
        let mut lines: Vec<&str> = text.lines().collect();
        let end = lines.pop().and_then(|line| line.strip_prefix(END)?.parse::<usize>().ok());
        for (index, line) in lines.iter().enumerate() {
            let (line, name) = line.split_once(' ').unwrap_or((line, ""));
            let revocation = Revocation::from_text(line)
                .and_then(|revocation| revocation.verify(mesh).map(|()| revocation));
            let revocation = revocation.map_err(|error| {
                state_error(&path, format!("line {}: {error}", index + 1), TOLD_AGAIN)
            })?;
            let (node, name) = (revocation.revoked.node(), name.parse::<NodeName>());
            if all.add(revocation) == Added::Full {
                let what = format!(
                    "has more than {MAX_REVOCATIONS} revocations or {MAX_SUCCESSIONS} \
                     replaced keys"
                );
                return Err(state_error(&path, what, TOLD_AGAIN));
            }
            // The name is informative only; the revocation counts even if it is damaged.
            if let (Some(node), Ok(name)) = (node, name) {
                all.note_name(node, &name);
            }
        }
        if end != Some(all.iter().count()) {
            let why = "lines are missing: their number does not match the last line";
            return Err(damaged(&path, &why, TOLD_AGAIN));
        }
        Ok(all)
    }

    /// Replaces the revocations.
    pub fn store_revocations(&self, all: &Revocations) -> Result<(), Error> {
        let name = |it: &Revocation| it.revoked.node().and_then(|node| all.name_of(&node));
        let named = |it: &Revocation| name(it).map_or_else(String::new, |name| format!(" {name}"));
        let lines = all.iter().map(|it| format!("{}{}\n", it.to_text(), named(it)));
        let lines: String = lines.chain([format!("{END}{}\n", all.iter().count())]).collect();
        self.folder.write(REVOCATIONS, lines.as_bytes(), Existing::Replace)
    }

    /// Writes the WireGuard key.
    ///
    /// # Errors
    /// [`Error::State`] if the file exists and must be kept, [`Error::Io`] if it cannot be written;
    /// the same for every store here.
    pub fn store_node_key(&self, key: &NodeKey, existing: Existing) -> Result<(), Error> {
        self.store_text(NODE_KEY, &key.to_text(), existing)
    }

    /// Writes the key that signs records.
    pub fn store_record_key(&self, key: &RecordKey, existing: Existing) -> Result<(), Error> {
        self.store_text(RECORD_KEY, &key.to_text(), existing)
    }

    /// Writes the mesh's shared secret from an invite.
    pub fn store_mesh_secret(&self, secret: &MeshSecret, existing: Existing) -> Result<(), Error> {
        self.store_text(MESH_SECRET, &secret.to_text(), existing)
    }

    /// Writes the mesh's shared secret and the previous one, if any, in one file, so that neither
    /// is ever missing.
    pub fn store_mesh_secrets(
        &self,
        secrets: &MeshSecrets,
        existing: Existing,
    ) -> Result<(), Error> {
        self.store_text(MESH_SECRET, &secrets.to_text(), existing)
    }

    /// Writes the authority's key.
    pub fn store_authority_key(&self, key: &AuthorityKey, existing: Existing) -> Result<(), Error> {
        self.store_text(AUTHORITY_KEY, &key.to_text(), existing)
    }

    /// Writes the credential. It is the last file of a join: with it, the folder is complete.
    ///
    /// # Errors
    /// Also [`Error::State`] if it is not for the keys in the folder, with which no node starts.
    pub fn store_credential(
        &self,
        credential: &Credential,
        existing: Existing,
    ) -> Result<(), Error> {
        let is_foreign = self.node_key()?.is_some_and(|key| key.public() != credential.node)
            || self.record_key()?.is_some_and(|key| key.public() != credential.record_key);
        if is_foreign {
            let what = "cannot be replaced by one for other keys than those in this folder";
            return Err(state_error(&self.file(CREDENTIAL), what, RENEW));
        }
        self.store_text(CREDENTIAL, &credential.to_text(), existing)
    }

    /// Replaces the seeds.
    pub fn store_seeds(&self, seeds: &[Seed]) -> Result<(), Error> {
        let content = seal::of_seeds(seeds);
        self.folder.write(SEEDS, content.as_bytes(), Existing::Replace)
    }

    fn store_text(&self, name: &str, text: &str, existing: Existing) -> Result<(), Error> {
        let mut line = Zeroizing::new(String::with_capacity(text.len() + 1));
        line.push_str(text);
        line.push('\n');
        self.folder.write(name, line.as_bytes(), existing)
    }

    fn load<T: FromStr<Err: Display>>(&self, name: &str, remedy: &str) -> Result<Option<T>, Error> {
        let text = self.read_text(name, MAX_TEXT_BYTES, remedy)?;
        text.map(|text| parsed(&text, &self.file(name), remedy)).transpose()
    }

    fn read_text(
        &self,
        name: &str,
        max_bytes: usize,
        remedy: &str,
    ) -> Result<Option<Zeroizing<String>>, Error> {
        let bytes = self.read(name, max_bytes)?;
        bytes.map(|bytes| text(bytes, &self.file(name), remedy)).transpose()
    }

    fn read(&self, name: &str, max_bytes: usize) -> Result<Option<Zeroizing<Vec<u8>>>, Error> {
        self.folder.read(name, max_bytes, content(name).unwrap_or(Content::Secret))
    }

    /// The path of a file, for messages.
    fn file(&self, name: &str) -> PathBuf {
        self.folder.file(name)
    }

    fn missing(&self, name: &str) -> Error {
        let remedy = if name == CREDENTIAL { JOIN } else { JOIN_AGAIN };
        state_error(&self.file(name), "is missing", remedy)
    }

    fn stranger(&self, name: &str) -> Error {
        let what = "is not the key in the credential";
        state_error(&self.file(name), what, JOIN_AGAIN)
    }
}

/// Path of the authority's key in a state folder that has it.
pub fn authority_key_in(folder: &Path) -> PathBuf {
    folder.join(AUTHORITY_KEY)
}

/// The authority's key from any file, for an authority that is kept apart from its node.
pub fn read_authority_key(path: &Path) -> Result<Option<AuthorityKey>, Error> {
    let Some(bytes) = folder::read_named(path, MAX_TEXT_BYTES, Content::Secret)? else {
        return Ok(None);
    };
    parsed(&text(bytes, path, FROM_BACKUP)?, path, FROM_BACKUP).map(Some)
}

fn parsed<T: FromStr<Err: Display>>(text: &str, path: &Path, remedy: &str) -> Result<T, Error> {
    text.trim().parse().map_err(|error| damaged(path, &error, remedy))
}

fn text(
    mut bytes: Zeroizing<Vec<u8>>,
    path: &Path,
    remedy: &str,
) -> Result<Zeroizing<String>, Error> {
    String::from_utf8(std::mem::take(&mut *bytes)).map(Zeroizing::new).map_err(|error| {
        drop(Zeroizing::new(error.into_bytes()));
        damaged(path, &"not text", remedy)
    })
}

fn damaged(path: &Path, why: &dyn Display, remedy: &str) -> Error {
    state_error(path, format!("is damaged ({why})"), remedy)
}
