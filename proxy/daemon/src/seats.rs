//! The places that a service has for clients of this node: none of its users may take them all.
//!
//! Root may: whatever it takes, it could take from the daemon in other ways.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use meshport_core::places::{NoPlace, Places};

use super::clock;
use super::session::Ingress;
use super::tcp::Tcp;
use super::totals::bump;
use super::who::Who;

/// A client's place among those a service may have.
#[derive(Debug)]
pub(super) struct Seat {
    ingress: Arc<Ingress>,
    holder: Option<Who>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.ingress.change_places(|places| places.give_back(self.holder));
    }
}

impl Ingress {
    /// A place for one more client, unless `max-sessions` are there, or its user has a share of
    /// them that leaves no more than enough for others.
    pub(super) fn seat(self: &Arc<Self>, client: &Tcp) -> Result<Seat, NoPlace<Who>> {
        let all = self.limits.borrow().max_sessions;
        let is_scarce = self.change_places(|places| places.are_scarce(all));
        let who = || client.ends().map(|(peer, local)| Who::behind(peer, local));
        self.seat_for(is_scarce.then(who).flatten(), all)
    }

    /// The same for a client whose user is known, if it is asked for.
    pub(super) fn seat_for(
        self: &Arc<Self>,
        who: Option<Who>,
        all: u64,
    ) -> Result<Seat, NoPlace<Who>> {
        let holder = who.filter(|who| *who != Who::User(0));
        match self.change_places(|places| places.take(holder, all)) {
            Ok(()) => Ok(Seat { ingress: self.clone(), holder }),
            Err(NoPlace::Full) => {
                bump(&self.totals.over_limit);
                Err(NoPlace::Full)
            }
            Err(NoPlace::Share(who, held)) => {
                bump(&self.totals.over_share);
                let mut greedy = self.totals.greedy.lock().unwrap_or_else(PoisonError::into_inner);
                *greedy = Some((who, held, clock::now()));
                Err(NoPlace::Share(who, held))
            }
        }
    }

    fn change_places<T>(&self, change: impl FnOnce(&mut Places<Who>) -> T) -> T {
        let mut places = self.seats.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut places);
        self.totals.clients.store(places.taken(), Ordering::Relaxed);
        changed
    }
}
