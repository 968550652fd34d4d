//! What the authority takes back: the operator's word to one node, what every process keeps of it,
//! and what must hold afterwards.

use std::collections::BTreeSet;
use std::time::Duration;

use meshport_config::{NodeId, Revocation, Revoked, UnixSeconds};

use super::{World, lock, machine};
use crate::rules::{self, MAX_NEWS};

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
            && let Err(error) = process.handle().revoke(&revocation).await
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

    /// Whoever was revoked is known to be by all within reach, and nobody has anything to do with
    /// it any more.
    pub(super) async fn check_revoked(&mut self) {
        let late = |at: Duration| machine::now().saturating_sub(at) > MAX_NEWS;
        let subjects: Vec<usize> = {
            let book = lock(&self.book);
            (0..self.nodes.len()).filter(|at| book.revoked[*at].is_some_and(late)).collect()
        };
        for subject in subjects {
            for at in 0..self.nodes.len() {
                if let Some(what) = self.keeps(at, subject).await {
                    let what = format!("{what} {}", self.nodes[subject].name);
                    self.violates(rules::SHUT_OUT, Some(at), what);
                    break;
                }
            }
        }
    }

    /// What a node still has to do with one that was revoked long ago.
    async fn keeps(&self, at: usize, subject: usize) -> Option<&'static str> {
        if at == subject || !lock(&self.book).takes_part(at) {
            return None;
        }
        let process = self.nodes[at].process.as_ref()?;
        let id = self.nodes[subject].identity.credential.node;
        if !self.shuts_out(at, &id) {
            let book = lock(&self.book);
            let told = book.settled(&[at]) <= machine::now();
            let tellers = |other: &usize| *other != at && self.shuts_out(*other, &id);
            let is_late = told && book.within_reach(at).iter().any(tellers);
            return is_late.then_some("it does not know of the revocation of");
        }
        let peers = process.handle().peers().await.ok()?;
        let book = lock(&self.book);
        if peers.iter().any(|peer| peer.node == id) {
            Some("among its peers is")
        } else if book.ways_to(at, &BTreeSet::from([id])) > 0 {
            Some("its route has a way through")
        } else if book.has_session(at, subject) {
            Some("a client of it has a session to")
        } else {
            None
        }
    }

    /// Whether a node that runs knows of the revocation of another one.
    fn shuts_out(&self, at: usize, id: &NodeId) -> bool {
        let process = self.nodes[at].process.as_ref();
        process.is_some_and(|process| process.revocations().borrow().has_node(id))
    }
}
