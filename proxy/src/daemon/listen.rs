//! The local addresses clients connect to.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tracing::warn;

use crate::Error;

use super::session::Ingress;
use super::sessions::{Side, bump};
use super::splice;

/// Connections the kernel may hold before they are accepted; the kernel caps it at `somaxconn`.
/// One controller manager alone dials 60 at once.
const BACKLOG: i32 = 4096;
/// The pause after accept failed for want of descriptors or memory: it fails again at once
/// otherwise.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);

/// Binds one local address.
pub(super) fn bind(address: SocketAddr) -> Result<TcpListener, Error> {
    let open = || -> io::Result<TcpListener> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        TcpListener::from_std(socket.into())
    };
    open().map_err(Error::io(format!("listen on {address}")))
}

/// Accepts clients until dropped; dropping also ends the sessions.
pub(super) async fn accept(listener: TcpListener, ingress: Arc<Ingress>) {
    let mut sessions = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((client, _)) => {
                    bump(&ingress.totals.accepted);
                    let most = ingress.limits.borrow().max_sessions;
                    let open = ingress.sessions.count_side(&ingress.service, Side::Client);
                    if open >= most || sessions.len() as u64 >= most {
                        bump(&ingress.totals.over_limit);
                        splice::reset(&client);
                        continue;
                    }
                    let _ = client.set_nodelay(true);
                    let ingress = ingress.clone();
                    sessions.spawn(async move { ingress.serve(client).await });
                }
                Err(error) => {
                    warn!(service = %ingress.service, %error, "cannot accept; trying again");
                    tokio::time::sleep(EXHAUSTED_PAUSE).await;
                }
            },
            Some(_) = sessions.join_next(), if !sessions.is_empty() => {}
        }
    }
}
