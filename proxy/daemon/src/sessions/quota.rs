//! Session slots of a service: no local user may take all of them.
//!
//! Root may, since it can stop the daemon anyway.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use meshport_core::ledger::CLIENT_DESCRIPTORS;
use meshport_core::quota::{OverQuota, Quota};

use crate::clock;
use crate::sessions::client::ClientId;
use crate::sessions::ingress::Ingress;
use crate::sessions::registry::Hold;
use crate::sessions::totals::{OverShare, SessionCount};
use crate::tcp::Tcp;

/// One session slot of a service; freed on drop.
#[derive(Debug)]
pub(crate) struct Slot {
    ingress: Arc<Ingress>,
    holder: Option<ClientId>,
    _descriptors: Hold,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.ingress.change_quota(|quota| quota.release(self.holder));
    }
}

impl Ingress {
    /// A slot for one more client, unless `max-sessions` are open, its user has used its share, or
    /// the process has too few descriptors.
    pub(crate) fn slot(self: &Arc<Self>, client: &Tcp) -> Result<Slot, OverQuota<ClientId>> {
        let all = self.limits.borrow().max_sessions;
        let is_scarce = self.change_quota(|quota| quota.is_scarce(all));
        let who = || client.ends().map(|(peer, local)| ClientId::behind(peer, local));
        self.slot_for(is_scarce.then(who).flatten(), all)
    }

    /// Like [`Self::slot`], for a client that is already identified.
    pub(crate) fn slot_of(self: &Arc<Self>, who: ClientId) -> Result<Slot, OverQuota<ClientId>> {
        let all = self.limits.borrow().max_sessions;
        let is_scarce = self.change_quota(|quota| quota.is_scarce(all));
        self.slot_for(is_scarce.then_some(who), all)
    }

    /// Like [`Self::slot`]; `who` identifies the client if needed.
    pub(crate) fn slot_for(
        self: &Arc<Self>,
        who: Option<ClientId>,
        all: u64,
    ) -> Result<Slot, OverQuota<ClientId>> {
        let holder = who.filter(|who| *who != ClientId::User(0));
        let taken = match self.context.sessions.hold(CLIENT_DESCRIPTORS) {
            Some(hold) => self.change_quota(|quota| quota.take(holder, all)).map(|()| hold),
            None => Err(OverQuota::Full),
        };
        match taken {
            Ok(hold) => Ok(Slot { ingress: self.clone(), holder, _descriptors: hold }),
            Err(OverQuota::Full) => {
                self.totals.counts.bump(SessionCount::OverLimit);
                Err(OverQuota::Full)
            }
            Err(OverQuota::Share(who, held)) => {
                self.totals.counts.bump(SessionCount::OverShare);
                self.totals.addresses.note_over_share(OverShare { who, held }, clock::now());
                Err(OverQuota::Share(who, held))
            }
        }
    }

    fn change_quota<T>(&self, change: impl FnOnce(&mut Quota<ClientId>) -> T) -> T {
        let mut quota = self.quota.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut quota);
        self.totals.open.store(quota.used(), Ordering::Relaxed);
        changed
    }
}
