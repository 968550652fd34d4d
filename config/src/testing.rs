//! Helpers of several tests of this crate: a seeded generator and ready-made statements.

use rand_core::{CryptoRng, Error as RngError, RngCore};
use sha2::{Digest, Sha256};

use crate::{AuthorityKey, Grant, Invite, InviteParams, MeshSecret, NodeKey, Seed, UnixSeconds};

/// The wall time that tests begin at.
pub(crate) const NOW: UnixSeconds = UnixSeconds(1_800_000_000);
pub(crate) const DAY: u64 = 86_400;

/// SHA-256 in counter mode: as random as tests need, and the same in every run.
pub(crate) struct TestRng {
    seed: u64,
    block: u64,
}

impl TestRng {
    pub(crate) const fn new(seed: u64) -> Self {
        Self { seed, block: 0 }
    }
}

impl CryptoRng for TestRng {}

impl RngCore for TestRng {
    fn next_u32(&mut self) -> u32 {
        let mut bytes = [0; 4];
        self.fill_bytes(&mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn next_u64(&mut self) -> u64 {
        let mut bytes = [0; 8];
        self.fill_bytes(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn fill_bytes(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(32) {
            let seed = self.seed.to_le_bytes();
            let block = Sha256::new().chain_update(seed).chain_update(self.block.to_le_bytes());
            chunk.copy_from_slice(&block.finalize()[..chunk.len()]);
            self.block += 1;
        }
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), RngError> {
        self.fill_bytes(bytes);
        Ok(())
    }
}

/// The grant of the tests' invites: a node of site `fra`, joining within a day of [`NOW`].
pub(crate) fn grant() -> Grant {
    Grant {
        roles: "node,origin:kube-apiserver".parse().unwrap(),
        site: Some("fra".parse().unwrap()),
        name: None,
        not_before: NOW,
        join_until: NOW.saturating_add(DAY),
        credential_ttl_s: 90 * DAY,
    }
}

pub(crate) fn invite_with(grant: Grant, rng: &mut TestRng) -> (AuthorityKey, Invite) {
    let authority = AuthorityKey::generate(rng);
    let seed = NodeKey::generate(rng).public();
    let endpoints = ["203.0.113.5:51820", "seed.example.com:51820"].map(|e| e.parse().unwrap());
    let params = InviteParams {
        grant,
        mesh_secret: MeshSecret::generate(rng),
        seeds: vec![Seed::new(seed, endpoints.to_vec()).unwrap()],
    };
    let invite = Invite::create(&authority, params, rng).unwrap();
    (authority, invite)
}
