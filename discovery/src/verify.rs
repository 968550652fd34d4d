//! Verification of everything received from others.
//!
//! Everything discovery takes from the network or from disk is checked here each time, unless there
//! is a [`Memo`]. It remembers what it has checked and returns the same allocation again: a
//! simulation of thousands of nodes in one process would otherwise check and store every record
//! once per node.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use meshport_config::{Credential, Error as ConfigError, MeshId, UnixSeconds, VerifyKey};

use crate::state::{BadState, SignedState};

/// Records and credentials that a [`Memo`] keeps; when full it starts over.
pub const MAX_MEMO: usize = 65_536;

/// Why something from another node is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// The bytes are not in the format, or beyond a bound.
    #[error("it is malformed; the sender may run another version")]
    Malformed,
    /// The record is not signed by the record key in its node's credential.
    #[error("its signature is not by the record key of its node")]
    Signature,
    /// The credential is not trusted.
    #[error("its credential is refused: {0}")]
    Untrusted(String),
}

impl From<BadState> for Rejected {
    fn from(bad: BadState) -> Self {
        match bad {
            BadState::Malformed => Self::Malformed,
            BadState::Signature => Self::Signature,
        }
    }
}

impl From<ConfigError> for Rejected {
    fn from(error: ConfigError) -> Self {
        Self::Untrusted(error.to_string())
    }
}

/// A credential of this mesh that is valid at `wall`, from its bytes.
pub(crate) fn credential(
    bytes: &[u8],
    mesh: &MeshId,
    wall: UnixSeconds,
) -> Result<Arc<Credential>, Rejected> {
    let credential = Credential::from_bytes(bytes)?;
    credential.verify(mesh, wall)?;
    Ok(Arc::new(credential))
}

/// A record signed with `key` in this mesh, from its bytes.
pub(crate) fn state(
    bytes: &[u8],
    mesh: &MeshId,
    key: &VerifyKey,
) -> Result<Arc<SignedState>, Rejected> {
    Ok(Arc::new(SignedState::verify(bytes, mesh, key)?))
}

/// Remembers what was checked; clones share their memory.
#[derive(Debug, Clone, Default)]
pub struct Memo(Arc<Mutex<Known>>);

/// Two are equal when they share their memory.
impl PartialEq for Memo {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Memo {}

#[derive(Debug, Default)]
struct Known {
    credentials: Shelf<Arc<Credential>>,
    states: Shelf<(VerifyKey, Arc<SignedState>)>,
}

/// The checked signatures, by their last eight bytes, which are practically random. Of two with the
/// same bytes the later one is kept.
#[derive(Debug)]
struct Shelf<T>(BTreeMap<u64, (Box<[u8]>, T)>);

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> Shelf<T> {
    fn get(&self, bytes: &[u8]) -> Option<&T> {
        let (known, value) = self.0.get(&tail(bytes))?;
        (**known == *bytes).then_some(value)
    }

    fn insert(&mut self, bytes: &[u8], value: T) {
        if self.0.len() >= MAX_MEMO {
            self.0.clear();
        }
        self.0.insert(tail(bytes), (bytes.into(), value));
    }
}

fn tail(bytes: &[u8]) -> u64 {
    bytes.last_chunk().map_or(0, |last| u64::from_le_bytes(*last))
}

impl Memo {
    /// A credential of this mesh that is valid at `wall`, from its bytes.
    pub fn credential(
        &self,
        bytes: &[u8],
        mesh: &MeshId,
        wall: UnixSeconds,
    ) -> Result<Arc<Credential>, Rejected> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(credential) = known.credentials.get(bytes)
            && credential.mesh == *mesh
            && (credential.issued_at..credential.expires_at).contains(&wall)
        {
            return Ok(Arc::clone(credential));
        }
        let credential = credential(bytes, mesh, wall)?;
        known.credentials.insert(bytes, Arc::clone(&credential));
        Ok(credential)
    }

    pub(crate) fn state(
        &self,
        bytes: &[u8],
        mesh: &MeshId,
        key: &VerifyKey,
    ) -> Result<Arc<SignedState>, Rejected> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((checked, state)) = known.states.get(bytes)
            && checked == key
        {
            return Ok(Arc::clone(state));
        }
        let state = state(bytes, mesh, key)?;
        known.states.insert(bytes, (*key, Arc::clone(&state)));
        Ok(state)
    }
}
