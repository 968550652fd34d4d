//! The local addresses clients connect to.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::Error;

use super::clock;
use super::session::Ingress;
use super::sessions::bump;
use super::tcp::{Host, Listener, Tcp};

/// The pause after accept failed for want of descriptors or memory: it fails again at once
/// otherwise.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);
/// From one line about clients without a place to the next: they may come by the thousand.
const FULL_INTERVAL: Duration = Duration::from_secs(60);

/// Binds all addresses of a service. On a machine without IPv6 its IPv6 ones are left out as long
/// as another one is left, since the default names both loopbacks.
pub(super) fn bind_all(host: &Host, addresses: &[SocketAddr]) -> Result<Vec<Listener>, Error> {
    let mut bound = Vec::new();
    for address in addresses {
        match bind(host, *address) {
            Ok(listener) => bound.push(listener),
            Err(Error::Io { source, .. }) if address.is_ipv6() && lacks_ipv6(&source) => {
                let others = addresses.iter().any(SocketAddr::is_ipv4);
                if !others {
                    return Err(Error::Io { what: format!("listen on {address}"), source });
                }
                warn!(%address, "this machine has no IPv6: not listening there");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(bound)
}

fn lacks_ipv6(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable
        || error.raw_os_error() == Some(libc::EAFNOSUPPORT)
}

/// Binds one local address.
fn bind(host: &Host, address: SocketAddr) -> Result<Listener, Error> {
    host.listen(address).map_err(Error::io(format!("listen on {address}")))
}

/// Serves clients until dropped; dropping also ends the sessions.
///
/// The address is open only while there is hope: once no origin has been usable for the service's
/// hold time and none answers a trial either, it is closed, so that clients are refused at once
/// instead of waiting for their own timeouts. It opens again with the first usable route.
pub(super) async fn serve(listener: Listener, ingress: Arc<Ingress>) {
    let Ok(address) = listener.local_addr() else { return };
    let service = &ingress.service;
    let mut listener = listener;
    let mut sessions = JoinSet::new();
    loop {
        accept(&listener, &ingress, &mut sessions).await;
        drop(listener);
        warn!(%service, %address, "no origin answers: closed until one does");
        listener = reopen(address, &ingress, &mut sessions).await;
        info!(%service, %address, "an origin answers: open again");
    }
}

/// Accepts clients until there is no hope.
async fn accept(listener: &Listener, ingress: &Arc<Ingress>, sessions: &mut JoinSet<()>) {
    let hopeless = ingress.hopeless();
    tokio::pin!(hopeless);
    let mut complained = false;
    let mut full: Option<Instant> = None;
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(client) => {
                    complained = false;
                    if !take(client, ingress, sessions) {
                        say_full(ingress, &mut full);
                    }
                }
                Err(error) => {
                    if !std::mem::replace(&mut complained, true) {
                        warn!(service = %ingress.service, %error, "cannot accept; trying on");
                    }
                    tokio::time::sleep(EXHAUSTED_PAUSE).await;
                }
            },
            Some(_) = sessions.join_next(), if !sessions.is_empty() => {}
            () = &mut hopeless => return,
        }
    }
}

/// Serves a client; whether there is a place for it.
fn take(client: Tcp, ingress: &Arc<Ingress>, sessions: &mut JoinSet<()>) -> bool {
    bump(&ingress.totals.accepted);
    let Some(seat) = ingress.seat() else {
        bump(&ingress.totals.over_limit);
        client.reset_on_drop();
        return false;
    };
    client.set_nodelay();
    let (ingress, place) = (ingress.clone(), ingress.better_place());
    let moves = place.is_some();
    let served = async move {
        if let Ok(client) = client.move_here_if(moves) {
            ingress.serve(client).await;
        }
        drop(seat);
    };
    sessions.spawn_on(served, &place.unwrap_or_else(Handle::current));
    true
}

/// Says that there is no place, unless that was said lately; the status says it for as long.
fn say_full(ingress: &Ingress, said: &mut Option<Instant>) {
    let now = clock::now();
    if said.is_some_and(|at| now.saturating_duration_since(at) < FULL_INTERVAL) {
        return;
    }
    *said = Some(now);
    let max_sessions = ingress.limits.borrow().max_sessions;
    let turned_away = ingress.totals.over_limit.load(Ordering::Relaxed);
    warn!(
        service = %ingress.service, max_sessions, turned_away,
        "all places for clients are taken, so the next ones are reset. Raise max-sessions, or find \
         who holds them (`ss -tnp`)"
    );
}

/// Waits for hope, then for the address, which somebody else may hold meanwhile.
async fn reopen(
    address: SocketAddr,
    ingress: &Arc<Ingress>,
    sessions: &mut JoinSet<()>,
) -> Listener {
    let host = &ingress.place.host;
    let opened = async {
        ingress.hopeful().await;
        let mut complained = false;
        loop {
            match bind(host, address) {
                Ok(listener) => return listener,
                Err(error) if !complained => {
                    complained = true;
                    warn!(service = %ingress.service, %error, "cannot open again; trying on");
                }
                Err(_) => {}
            }
            tokio::time::sleep(EXHAUSTED_PAUSE).await;
        }
    };
    tokio::pin!(opened);
    loop {
        tokio::select! {
            listener = &mut opened => return listener,
            Some(_) = sessions.join_next(), if !sessions.is_empty() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[tokio::test]
    async fn an_ipv6_address_this_machine_lacks_is_left_out_beside_an_ipv4_one() {
        // The documentation prefix (RFC 3849) belongs to no machine.
        let missing = address("[2001:db8::1]:0");
        let bound =
            bind_all(&Host::Kernel, &[address("127.0.0.1:0"), missing]).expect("one is left");
        assert_eq!(bound.len(), 1);
        let error = bind_all(&Host::Kernel, &[missing]).expect_err("none is left").to_string();
        assert!(error.contains("2001:db8::1"), "{error}");
    }

    #[tokio::test]
    async fn a_taken_address_is_named() {
        let first = bind_all(&Host::Kernel, &[address("127.0.0.1:0")]).expect("free");
        let taken = first[0].local_addr().expect("bound");
        let error = bind_all(&Host::Kernel, &[taken]).expect_err("taken").to_string();
        assert!(error.contains(&taken.to_string()), "{error}");
    }
}
