//! Admits new sessions of a service's clients at the pace of [`meshport_core::pace`], and holds the
//! clients that must wait.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use meshport_core::pace::{Arrival, Pace, Payer};

use crate::clock;
use crate::sessions::client::ClientId;
use crate::sessions::registry::{Hold, Sessions};
use crate::tcp::Tcp;

/// A session that lasts this long counts as useful, even if nothing came back yet.
pub(crate) const LASTS: Duration = Duration::from_millis(500);

/// The clients of a service.
#[derive(Debug)]
pub(crate) struct Pacing {
    pace: Mutex<Pace<ClientId, Waiting>>,
    sessions: Sessions,
    /// Signals that credit was returned to a waiting client.
    repaid: Notify,
}

/// A client that waits, and its descriptor.
#[derive(Debug)]
struct Waiting {
    client: Tcp,
    _descriptor: Hold,
}

/// The decision about a client.
#[derive(Debug)]
pub(crate) enum Admission {
    Serve(Tcp, Paid),
    /// The client is gone.
    Gone,
    Waits(ClientId),
    TurnedAway(Tcp, ClientId),
}

/// The credit that a session has paid to start.
#[derive(Debug)]
pub(crate) struct Paid {
    pacing: Arc<Pacing>,
    payer: Option<Payer<ClientId>>,
    at: Instant,
}

impl Pacing {
    pub(crate) fn new(sessions: Sessions) -> Arc<Self> {
        let pace = Mutex::new(Pace::new(clock::now()));
        Arc::new(Self { pace, sessions, repaid: Notify::new() })
    }

    /// Decides about a client that was just accepted.
    pub(crate) fn admit(self: &Arc<Self>, client: Tcp) -> Admission {
        let now = clock::now();
        let Some((peer, local)) = client.ends() else {
            // Either in memory, or reset before it was accepted.
            if client.is_gone() {
                return Admission::Gone;
            }
            return Admission::Serve(client, self.paid(None, now));
        };
        if self.lock().take_common(now) {
            return Admission::Serve(client, self.paid(Some(Payer::Common), now));
        }
        if client.is_gone() {
            return Admission::Gone;
        }
        self.admit_of(ClientId::behind(peer, local), client, now)
    }

    /// Decides about a new session of an identified client.
    pub(crate) fn admit_of(
        self: &Arc<Self>,
        who: ClientId,
        client: Tcp,
        now: Instant,
    ) -> Admission {
        let Some(hold) = self.sessions.hold(1) else { return Admission::TurnedAway(client, who) };
        match self.lock().arrive(who, Waiting { client, _descriptor: hold }, now) {
            Arrival::Serve(Waiting { client, .. }) => {
                Admission::Serve(client, self.paid(Some(Payer::Holder(who)), now))
            }
            Arrival::Waits => Admission::Waits(who),
            Arrival::Full(Waiting { client, .. }) => Admission::TurnedAway(client, who),
        }
    }

    /// The decision about the next client that has waited long enough.
    pub(crate) fn next(self: &Arc<Self>) -> Option<Admission> {
        let now = clock::now();
        let mut pace = self.lock();
        let (who, Waiting { client, .. }) = pace.poll(now)?;
        let payer = Payer::Holder(who);
        if client.is_gone() {
            pace.repay(payer);
            return Some(Admission::Gone);
        }
        Some(Admission::Serve(client, self.paid(Some(payer), now)))
    }

    /// Removes and returns all waiting clients.
    pub(crate) fn take_waiting(&self) -> Vec<Tcp> {
        self.lock().take_waiting().into_iter().map(|Waiting { client, .. }| client).collect()
    }

    /// Removes and returns clients that may not wait any longer, as turned away.
    pub(crate) fn take_evicted(&self) -> Vec<Admission> {
        let evicted = self.lock().take_evicted().into_iter();
        evicted.map(|(who, Waiting { client, .. })| Admission::TurnedAway(client, who)).collect()
    }

    /// Resolves when [`Pacing::next`] may have a client.
    pub(crate) async fn due(&self) {
        let due = self.lock().poll_timeout();
        tokio::select! {
            () = self.repaid.notified() => {}
            () = clock::sleep_until(due) => {}
        }
    }

    /// A free start, for clients whose listener has its own limits.
    pub(crate) fn free(self: &Arc<Self>) -> Paid {
        self.paid(None, clock::now())
    }

    fn paid(self: &Arc<Self>, payer: Option<Payer<ClientId>>, at: Instant) -> Paid {
        Paid { pacing: self.clone(), payer, at }
    }

    fn lock(&self) -> MutexGuard<'_, Pace<ClientId, Waiting>> {
        self.pace.lock().expect("no holder of this lock can panic")
    }
}

impl Paid {
    /// Refunds the payment of a useful session.
    pub(crate) fn repay(&mut self) {
        let Some(payer) = self.payer.take() else { return };
        if self.pacing.lock().repay(payer) {
            self.pacing.repaid.notify_one();
        }
    }

    /// Refunds the payment of an ended session if it lasted long enough to be useful.
    pub(crate) fn repay_if_lasted(&mut self) {
        if clock::now().saturating_duration_since(self.at) >= LASTS {
            self.repay();
        }
    }
}
