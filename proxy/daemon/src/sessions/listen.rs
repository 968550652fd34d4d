//! The local addresses that clients connect to.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::Error;

use crate::clock;
use crate::sessions::arrived::Arrived;
use crate::sessions::claim::{Claim, IfTaken, Loss, Place};
use crate::sessions::client::ClientId;
use crate::sessions::ingress::Ingress;
use crate::sessions::pacing::{Admission, Paid};
use crate::sessions::totals::SessionCount;
use crate::tcp::{Closed, Host, Listener, Tcp, store};
use meshport_core::findings::{CLIENT_IDLES, CLIENT_OVER_SHARE, SESSIONS_FULL};
use meshport_core::quota::OverQuota;

/// Pause after an accept failed for lack of descriptors or memory, since a retry would fail
/// immediately.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);
/// Interval between log lines about too many clients, which may arrive by the thousand.
const SAY_INTERVAL: Duration = Duration::from_secs(60);

/// Binds all addresses of a service. On a machine without IPv6 it leaves out the IPv6 addresses if
/// others remain, since the default names both loopbacks.
pub(crate) fn bind_all(
    host: &Host,
    addresses: &[SocketAddr],
    if_taken: IfTaken,
) -> Result<Vec<Claim>, Error> {
    let has_ipv4 = addresses.iter().any(SocketAddr::is_ipv4);
    let mut claims = Vec::new();
    for address in addresses {
        let place = Place { host: host.clone(), address: *address, is_virtual: false };
        let spare = address.is_ipv6() && has_ipv4;
        match place.claim(if_taken) {
            Ok(Claim::Taken(_)) if spare && has_no_ipv6() => warn!(%address, "{NO_IPV6}"),
            Ok(claim) => claims.push(claim),
            Err(error) if spare && lacks_ipv6(&error) => warn!(%address, "{NO_IPV6}"),
            Err(error) => return Err(Error::io(format!("listen on {address}"))(error)),
        }
    }
    Ok(claims)
}

/// Whether this machine has not even the loopback address, so no other one will come.
fn has_no_ipv6() -> bool {
    std::net::UdpSocket::bind((std::net::Ipv6Addr::LOCALHOST, 0)).is_err_and(|it| lacks_ipv6(&it))
}

/// Why an address is left out.
const NO_IPV6: &str = "this machine has no IPv6: not listening there";

fn lacks_ipv6(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable
        || error.raw_os_error() == Some(libc::EAFNOSUPPORT)
}

/// Serves clients until dropped; dropping also ends the sessions.
///
/// The address is open only while an origin may answer. Once none has been usable for the service's
/// hold time and no trial is answered, it is closed: clients are then refused immediately instead
/// of timing out. It stays bound, so no other process can take it, and reopens with the first
/// usable route. A lost address ([`Loss`]) is opened once possible.
///
/// When the next process takes over, the address is left to it and sessions continue.
pub(crate) async fn serve(claim: Claim, ingress: Arc<Ingress>) {
    let Some(address) = claim.address() else { return };
    let mut sessions = JoinSet::new();
    tokio::select! {
        biased;
        () = store::handed_over() => {}
        () = serve_at(address, claim, &ingress, &mut sessions) => {}
    }
    let mut logged = LastLogged::default();
    loop {
        while let Some(admission) = ingress.pacing.next() {
            meet(admission, &ingress, &mut sessions, &mut logged);
        }
        tokio::select! {
            Some(_) = sessions.join_next(), if !sessions.is_empty() => {}
            () = ingress.pacing.due() => {}
        }
    }
}

async fn serve_at(
    address: SocketAddr,
    claim: Claim,
    ingress: &Arc<Ingress>,
    sessions: &mut JoinSet<()>,
) {
    let service = &ingress.service;
    let mut listener = match claim {
        Claim::Bound(listener) => listener,
        Claim::Taken(_) => {
            // Do not wait for an origin: another process could take the address meanwhile.
            let listener = open(None, address, ingress).await;
            info!(%service, %address, "clients connect here");
            listener
        }
    };
    loop {
        accept(&listener, ingress, sessions).await;
        let closed = listener.close();
        for waiting in ingress.pacing.take_waiting() {
            ingress.totals.counts.bump(SessionCount::Failed);
            waiting.reset_on_drop();
        }
        warn!(%service, %address, "local address closed until an origin answers");
        listener = reopen(closed, address, ingress, sessions).await;
        info!(%service, %address, "local address open again: an origin answers");
    }
}

/// Accepts clients until no origin may answer.
async fn accept(listener: &Listener, ingress: &Arc<Ingress>, sessions: &mut JoinSet<()>) {
    let hopeless = ingress.hopeless();
    tokio::pin!(hopeless);
    let mut logged = LastLogged::default();
    loop {
        while let Some(admission) = ingress.pacing.next() {
            meet(admission, ingress, sessions, &mut logged);
        }
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(client) => {
                    ingress.note_accepted();
                    meet(ingress.pacing.admit(client), ingress, sessions, &mut logged);
                }
                Err(error) => {
                    if LastLogged::is_due(&mut logged.not_accepted, clock::now()) {
                        warn!(service = %ingress.service, %error, "cannot accept connections; \
                                                                   retrying");
                    }
                    tokio::time::sleep(EXHAUSTED_PAUSE).await;
                }
            },
            Some(_) = sessions.join_next(), if !sessions.is_empty() => {}
            () = ingress.pacing.due() => {}
            () = &mut hopeless => return,
        }
    }
}

/// Serves a client, unless it must wait for its turn. First turns away those whose account has made
/// room for it.
fn meet(
    admission: Admission,
    ingress: &Arc<Ingress>,
    sessions: &mut JoinSet<()>,
    logged: &mut LastLogged,
) {
    for evicted in ingress.pacing.take_evicted() {
        meet(evicted, ingress, sessions, logged);
    }
    let who = match admission {
        Admission::Serve(client, paid) => return take(client, paid, ingress, sessions, logged),
        Admission::Gone => return ingress.totals.counts.bump(SessionCount::Abandoned),
        Admission::Waits(who) => {
            ingress.totals.counts.bump(SessionCount::Paced);
            who
        }
        Admission::TurnedAway(client, who) => {
            ingress.totals.counts.bump(SessionCount::OverPace);
            client.reset_on_drop();
            who
        }
    };
    let now = clock::now();
    ingress.totals.addresses.note_paced(who, now);
    if LastLogged::is_due(&mut logged.paced, now) {
        warn!(
            service = %ingress.service, client = %who,
            "{CLIENT_IDLES}"
        );
    }
}

/// Serves a client if there is a slot for it.
fn take(
    client: Tcp,
    paid: Paid,
    ingress: &Arc<Ingress>,
    sessions: &mut JoinSet<()>,
    logged: &mut LastLogged,
) {
    let slot = match ingress.slot(&client) {
        Ok(slot) => slot,
        Err(why) => {
            client.reset_on_drop();
            return say_no_place(ingress, why, logged);
        }
    };
    client.set_nodelay();
    let (ingress, shard) = (ingress.clone(), ingress.better_shard());
    let moves = shard.is_some();
    let served = async move {
        if let Ok(client) = client.move_here_if(moves) {
            ingress.serve(client, Arrived::unread(paid)).await;
        }
        drop(slot);
    };
    sessions.spawn_on(served, &shard.unwrap_or_else(Handle::current));
}

/// Time of the last line about events that clients can cause by the thousand.
#[derive(Debug, Default)]
pub(crate) struct LastLogged {
    full: Option<Instant>,
    over_share: Option<Instant>,
    paced: Option<Instant>,
    not_accepted: Option<Instant>,
}

impl LastLogged {
    /// Whether another line is due.
    pub(crate) fn is_due(last: &mut Option<Instant>, now: Instant) -> bool {
        let is_due = last.is_none_or(|at| now.saturating_duration_since(at) >= SAY_INTERVAL);
        if is_due {
            *last = Some(now);
        }
        is_due
    }
}

/// Logs that a client was refused, unless that was logged recently; `status` shows it meanwhile.
fn say_no_place(ingress: &Ingress, why: OverQuota<ClientId>, logged: &mut LastLogged) {
    let last = match why {
        OverQuota::Full => &mut logged.full,
        OverQuota::Share(..) => &mut logged.over_share,
    };
    if !LastLogged::is_due(last, clock::now()) {
        return;
    }
    let max_sessions = ingress.limits.borrow().max_sessions;
    let few_descriptors = ingress.context.sessions.lacks_descriptors();
    if let OverQuota::Share(who, held) = why {
        let turned_away = ingress.totals.counts.get(SessionCount::OverShare);
        return warn!(
            service = %ingress.service, client = %who, held, max_sessions, turned_away,
            few_descriptors, "{CLIENT_OVER_SHARE}"
        );
    }
    let turned_away = ingress.totals.counts.get(SessionCount::OverLimit);
    warn!(
        service = %ingress.service, max_sessions, turned_away, few_descriptors,
        "{SESSIONS_FULL}"
    );
}

/// Waits until an origin may answer, then for the address if it was lost.
async fn reopen(
    closed: io::Result<Closed>,
    address: SocketAddr,
    ingress: &Arc<Ingress>,
    sessions: &mut JoinSet<()>,
) -> Listener {
    let opened = async {
        ingress.hopeful().await;
        // If closing failed, the address was given up.
        open(closed.as_ref().ok(), address, ingress).await
    };
    tokio::pin!(opened);
    loop {
        tokio::select! {
            listener = &mut opened => return listener,
            Some(_) = sessions.join_next(), if !sessions.is_empty() => {}
        }
    }
}

/// Opens the address once possible. Without a reserved socket it is bound again.
async fn open(closed: Option<&Closed>, address: SocketAddr, ingress: &Ingress) -> Listener {
    let (service, addresses) = (&ingress.service, &ingress.totals.addresses);
    let host = ingress.context.host.clone();
    let place = Place { host, address, is_virtual: false };
    let fails = |error: &io::Error, holder: Option<ClientId>| {
        let loss = Loss::of(error);
        addresses.note_lost(address, loss);
        if let Some(loss) = loss {
            let holder = holder.map(tracing::field::display);
            let found = loss.finding("the local address", address.port());
            warn!(%service, %address, holder, %error, "{found}");
        } else {
            warn!(%service, %address, %error, "cannot open the local address; retrying");
        }
    };
    let listener = place.open(closed, fails).await;
    addresses.note_lost(address, None);
    listener
}

#[cfg(test)]
mod tests;
