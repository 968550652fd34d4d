//! What the authority takes back: the operator's word to one node, what every process keeps of it,
//! and what must hold afterwards.

use std::collections::BTreeSet;
use std::time::Duration;

use meshport_config::{Revocation, Revoked, UnixSeconds};

use super::{World, lock, machine};
use crate::report::Violation;

/// Everybody within reach knows by then, as at the wide level.
pub(super) const MAX_NEWS: Duration = Duration::from_secs(15);

impl World {
    /// The operator hands a revocation to a node that runs: this one, or the first.
    pub(super) async fn revoke(&mut self, subject: usize, through: Option<usize>) {
        let wall = UnixSeconds(machine::WALL_START_S + machine::now().as_secs());
        let id = self.nodes[subject].identity.credential.node;
        let revocation = Revocation::issue(&self.authority, Revoked::Node(id), wall);
        lock(&self.book).revoked[subject].get_or_insert(machine::now());
        let runs = |at: &usize| {
            self.nodes[*at].process.is_some() && lock(&self.book).revoked[*at].is_none()
        };
        let first = through.filter(runs).or_else(|| (0..self.nodes.len()).find(runs));
        let process = first.and_then(|at| self.nodes[at].process.as_ref());
        if let Some(process) = process
            && let Err(error) = process.handle().revoke(revocation).await
        {
            lock(&self.book).note(subject, format!("its revocation is refused: {error}"));
        }
    }

    /// Follows what a process knows of revocations: its socket is gone as soon as it hears of its
    /// own, and its end is noticed at the next look.
    pub(super) fn follow_revocations(&mut self, at: usize) {
        let Some(process) = &self.nodes[at].process else { return };
        let mut known = process.revocations();
        let (book, wire) = (self.book.clone(), self.wire.clone());
        let own = self.nodes[at].identity.credential.clone();
        self.company[at].spawn(async move {
            while known.changed().await.is_ok() {
                let all = known.borrow_and_update().clone();
                if all.covering(&own).is_some() {
                    lock(&wire).close(at);
                }
                lock(&book).hears_of(at, &all);
            }
        });
    }

    /// Keeps what processes know, as their state folders do, and ends those that are revoked.
    pub(super) fn keep_revocations(&mut self) {
        for at in 0..self.nodes.len() {
            let node = &mut self.nodes[at];
            let Some(process) = &node.process else { continue };
            node.revocations = process.revocations().borrow().clone();
            if node.revocations.covering(&node.identity.credential).is_some() {
                lock(&self.book).note(at, "the authority has revoked it".into());
                self.crash(at);
            }
        }
    }

    /// Nobody knows of one that was revoked anything but that.
    pub(super) async fn check_revoked(&self) -> Vec<Violation> {
        let rule = "whoever is revoked is shut out";
        let late = |at: &Duration| machine::now().saturating_sub(*at) > MAX_NEWS;
        let revoked: Vec<bool> =
            lock(&self.book).revoked.iter().map(|at| at.as_ref().is_some_and(late)).collect();
        let ids: BTreeSet<_> = (self.nodes.iter().zip(&revoked))
            .filter(|(_, revoked)| **revoked)
            .map(|(node, _)| node.identity.credential.node)
            .collect();
        let mut found = Vec::new();
        for (at, node) in self.nodes.iter().enumerate() {
            let Some(process) = node.process.as_ref().filter(|_| !revoked[at]) else { continue };
            let known = process.revocations().borrow().clone();
            if let Some(id) = ids.iter().find(|id| !known.has_node(id)) {
                let what = format!("it does not know of the revocation of {}", id.short());
                found.push(self.violation(rule, Some(at), what));
            }
            let Ok(peers) = process.handle().peers().await else { continue };
            if let Some(peer) = peers.iter().find(|peer| ids.contains(&peer.node)) {
                let what = format!("it still knows {}, {}", peer.node.short(), peer.liveness);
                found.push(self.violation(rule, Some(at), what));
            }
            let to = lock(&self.book).ways_to(at, &ids);
            if to > 0 {
                let what = format!("its route has {to} ways through revoked nodes");
                found.push(self.violation(rule, Some(at), what));
            }
        }
        let served = std::mem::take(&mut lock(&self.book).served);
        let rule = "whoever is revoked is served no more";
        found.extend(served.into_iter().map(|(at, what)| self.violation(rule, Some(at), what)));
        found
    }
}
