//! Decides which credentials and records a node accepts.
//!
//! Verifies everything from others and from disk, and stores revocations. Those to resend are
//! bounded by [`MAX_AGAIN`], all of them by [`Revocations`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use meshport_config::{Credential, MeshId, Revocation, Revocations, UnixSeconds, VerifyKey};

use crate::state::SignedState;
use crate::verify::{self, Memo, Rejected};

/// After this time a revocation is sent once more.
const AGAIN: Duration = Duration::from_secs(1);
/// Revocations waiting for that; comparison delivers further ones.
const MAX_AGAIN: usize = 64;

/// The mesh, the cache of verified data, and the authority's revocations.
#[derive(Debug)]
pub(super) struct Trust {
    pub(super) mesh: MeshId,
    memo: Option<Memo>,
    pub(super) revocations: Revocations,
    /// Revocations to send once more, and when.
    retold: VecDeque<(Instant, Revocation)>,
}

impl Trust {
    pub(super) fn new(mesh: MeshId, memo: Option<Memo>) -> Self {
        Self { mesh, memo, revocations: Revocations::default(), retold: VecDeque::new() }
    }

    /// A credential of this mesh that is valid at `wall`; it may be revoked.
    pub(super) fn credential(
        &self,
        bytes: &[u8],
        wall: UnixSeconds,
    ) -> Result<Arc<Credential>, Rejected> {
        match &self.memo {
            Some(memo) => memo.credential(bytes, &self.mesh, wall),
            None => verify::credential(bytes, &self.mesh, wall),
        }
    }

    /// A record signed with `key`.
    pub(super) fn state(
        &self,
        bytes: &[u8],
        key: &VerifyKey,
    ) -> Result<Arc<SignedState>, Rejected> {
        match &self.memo {
            Some(memo) => memo.state(bytes, &self.mesh, key),
            None => verify::state(bytes, &self.mesh, key),
        }
    }

    pub(super) fn is_revoked(&self, credential: &Credential) -> bool {
        self.revocations.covering(credential).is_some()
    }

    pub(super) fn digest(&self) -> [u8; 8] {
        self.revocations.digest().to_le_bytes()
    }

    /// Schedules a revocation to be sent once more, unless too many are waiting.
    pub(super) fn tell_again(&mut self, revocation: Revocation, now: Instant) {
        if self.retold.len() < MAX_AGAIN {
            self.retold.push_back((now + AGAIN, revocation));
        }
    }

    /// The next revocation that is due to be sent once more.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<Revocation> {
        self.retold.pop_front_if(|(due, _)| *due <= now).map(|(_, revocation)| revocation)
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.retold.front().map(|(due, _)| *due)
    }
}
