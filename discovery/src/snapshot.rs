//! The directory on disk, so that a node can start while no seed is reachable.
//!
//! A snapshot is a magic number, a version byte, a postcard body and a SHA-256 checksum. The
//! checksum only detects damage: every record is verified again as if it came from the network. Any
//! damage is an error value and restores nothing.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use meshport_config::{Credential, MeshId, UnixSeconds};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::directory::{Directory, Liveness, MAX_MEMBERS, Record};
use crate::error::DiscoveryError;
use crate::state::SignedState;
use crate::verify;

/// Largest snapshot that is read, in bytes: a full directory of the largest records.
pub const MAX_SNAPSHOT_BYTES: usize = MAX_MEMBERS * 1800;

pub(crate) const MAGIC: &[u8; 8] = b"mpdirect";
pub(crate) const FORMAT: u8 = 1;
pub(crate) const HEADER: usize = MAGIC.len() + 1;
pub(crate) const CHECKSUM: usize = 32;

#[derive(Serialize, Deserialize)]
pub(crate) struct Body<'a> {
    pub(crate) mesh: [u8; 32],
    /// Wall time of saving, in seconds.
    pub(crate) saved_at: u64,
    #[serde(borrow)]
    pub(crate) nodes: Vec<Node<'a>>,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Node<'a> {
    pub(crate) credential: &'a [u8],
    pub(crate) state: Option<&'a [u8]>,
    /// Seconds for which the node has been down or gone, if it is.
    pub(crate) over_s: Option<u64>,
}

/// The bytes of a directory.
pub(crate) fn write<'a>(
    directory: &'a Directory,
    ended: impl Iterator<Item = &'a Record>,
    mesh: &MeshId,
    wall: UnixSeconds,
    now: Instant,
) -> Vec<u8> {
    let over = |liveness, since| {
        let over = matches!(liveness, Liveness::Down | Liveness::Left);
        over.then(|| now.saturating_duration_since(since).as_secs())
    };
    let nodes = directory.iter().map(|(_, entry)| {
        (&*entry.credential, entry.state.as_deref(), over(entry.liveness, entry.since))
    });
    let known = |it: &&Record| directory.get(&it.credential.node).is_some();
    let ended = ended.filter(|it| !known(it));
    let ended = ended.map(|it| (&*it.credential, it.state.as_deref(), None));
    encode(nodes.chain(ended), mesh, wall)
}

/// A snapshot of nodes that are not considered down, for [`crate::Discovery::restore`]: for
/// simulations in which many nodes begin as after a restart of the whole mesh.
pub fn snapshot_of<'a>(
    nodes: impl Iterator<Item = (&'a Credential, &'a SignedState)>,
    mesh: &MeshId,
    wall: UnixSeconds,
) -> Vec<u8> {
    let nodes = nodes.map(|(credential, state)| (credential, Some(state), None));
    encode(nodes, mesh, wall)
}

/// A node of a snapshot.
#[derive(Debug, Clone)]
pub struct SavedMember {
    /// Its credential, verified.
    pub credential: Arc<Credential>,
    /// The addresses that it announced.
    pub endpoints: Vec<SocketAddr>,
    /// Whether it was down or had left when the snapshot was taken.
    pub is_away: bool,
}

/// The nodes of a snapshot whose credential is valid at `wall`, at most [`MAX_MEMBERS`], for a
/// program without a directory.
///
/// # Errors
///
/// [`DiscoveryError`] when the bytes are damaged, of another format or of another mesh.
pub fn members_of(
    bytes: &[u8],
    mesh: &MeshId,
    wall: UnixSeconds,
) -> Result<Vec<SavedMember>, DiscoveryError> {
    let body = read(bytes)?;
    if body.mesh != *mesh.as_bytes() {
        return Err(DiscoveryError::SnapshotForeign);
    }
    let member = |node: &Node<'_>| {
        let credential = verify::credential(node.credential, mesh, wall).ok()?;
        let state = node.state.and_then(|it| verify::state(it, mesh, &credential.record_key).ok());
        let state = state.filter(|state| state.get().node == credential.node);
        let endpoints = state.map(|state| state.get().endpoints.clone()).unwrap_or_default();
        Some(SavedMember { credential, endpoints, is_away: node.over_s.is_some() })
    };
    Ok(body.nodes.iter().take(MAX_MEMBERS).filter_map(member).collect())
}

fn encode<'a>(
    nodes: impl Iterator<Item = (&'a Credential, Option<&'a SignedState>, Option<u64>)>,
    mesh: &MeshId,
    wall: UnixSeconds,
) -> Vec<u8> {
    let owned: Vec<_> = nodes.map(|(it, state, over_s)| (it.to_bytes(), state, over_s)).collect();
    let nodes = owned.iter().map(|(credential, state, over_s)| Node {
        credential,
        state: state.map(SignedState::as_bytes),
        over_s: *over_s,
    });
    let body = Body { mesh: *mesh.as_bytes(), saved_at: wall.0, nodes: nodes.collect() };
    let mut bytes = [&MAGIC[..], &[FORMAT]].concat();
    let body = postcard::to_stdvec(&body).expect("writing plain values to memory cannot fail");
    bytes.extend_from_slice(&body);
    let checksum = Sha256::digest(&bytes);
    bytes.extend_from_slice(&checksum);
    bytes
}

/// The content of a snapshot.
///
/// # Errors
///
/// [`DiscoveryError`] for anything but a complete snapshot of this format.
pub(crate) fn read(bytes: &[u8]) -> Result<Body<'_>, DiscoveryError> {
    let damaged = |what| DiscoveryError::SnapshotDamaged { what };
    if bytes.len() > MAX_SNAPSHOT_BYTES {
        return Err(damaged("larger than any directory"));
    }
    if bytes.len() < HEADER + CHECKSUM || !bytes.starts_with(MAGIC) {
        return Err(damaged("not a saved directory"));
    }
    let (content, checksum) = bytes.split_at(bytes.len() - CHECKSUM);
    if Sha256::digest(content)[..] != *checksum {
        return Err(damaged("the checksum does not match"));
    }
    if content[MAGIC.len()] != FORMAT {
        return Err(DiscoveryError::SnapshotVersion {
            found: content[MAGIC.len()],
            expected: FORMAT,
        });
    }
    match postcard::take_from_bytes::<Body<'_>>(&content[HEADER..]) {
        Ok((body, [])) => Ok(body),
        _ => Err(damaged("the content does not parse")),
    }
}

#[cfg(test)]
mod tests;
