//! Revocations: the operator passes them to one node, and every process stores those it learns.

use meshport_config::{Revocation, Revoked, UnixSeconds};

use super::{Simulation, lock, machine};
use crate::level::{Judge, Level};

impl Simulation {
    /// Passes a revocation to a running node: this one, or the first.
    pub(super) async fn revoke(&mut self, subject: usize, through: Option<usize>) {
        let wall = UnixSeconds(machine::WALL_START_S + machine::now().as_secs());
        let id = self.nodes[subject].identity.credential.node;
        let revocation = Revocation::issue(&self.authority, Revoked::Node(id), wall);
        let first = lock(&self.book).teller(through);
        let process = first.and_then(|at| self.nodes[at].process.as_ref());
        if let Some(process) = process
            && let Err(error) = process.handle().revoke(&revocation).await
        {
            lock(&self.book).says(subject, format!("its revocation is refused: {error}"));
        }
    }

    /// Observes the revocations a process knows. A process that learns of its own loses its socket
    /// immediately; its end is handled by the next check.
    pub(super) fn follow_revocations(&mut self, at: usize) {
        let Some(process) = &self.nodes[at].process else { return };
        let mut known = process.revocations();
        let book = self.book.clone();
        let own = self.nodes[at].identity.credential.clone();
        self.nodes[at].company.spawn(async move {
            while known.changed().await.is_ok() {
                let all = known.borrow_and_update().clone();
                let mut book = lock(&book);
                if all.covering(&own).is_some() {
                    book.wire.close(at);
                }
                book.hears_of(at, &all);
            }
        });
    }

    /// Stores the revocations that processes know, as their state folders do, and ends revoked
    /// processes.
    pub(super) fn keep_revocations(&mut self) {
        for at in 0..self.nodes.len() {
            let node = &self.nodes[at];
            let Some(process) = &node.process else { continue };
            let known = process.revocations().borrow().clone();
            let is_revoked = known.covering(&node.identity.credential).is_some();
            lock(&self.book).revocations[at] = known;
            if is_revoked {
                lock(&self.book).says(at, "the authority has revoked it".into());
                self.crash(at);
            }
        }
    }

    /// Checks that no node has a peer that was revoked long ago.
    pub(super) async fn look_at_peers(&mut self) {
        lock(&self.book).seen.iter_mut().for_each(|seen| seen.revoked_peers.clear());
        let subjects = lock(&self.book).long_revoked();
        for subject in subjects {
            let id = self.nodes[subject].identity.credential.node;
            for at in 0..self.nodes.len() {
                let asked = {
                    let book = lock(&self.book);
                    at != subject && book.takes_part(at) && book.shuts_out(at, subject)
                };
                let Some(process) = self.nodes[at].process.as_ref().filter(|_| asked) else {
                    continue;
                };
                let peers = process.handle().peers().await.unwrap_or_default();
                if peers.iter().any(|peer| peer.node == id) {
                    lock(&self.book).seen[at].revoked_peers.insert(subject);
                }
            }
        }
    }
}
