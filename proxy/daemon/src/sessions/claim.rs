//! A local address to listen on, which another process may have.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use crate::sessions::client::ClientId;
use crate::tcp::{Closed, Host, Listener};

/// Pause between attempts to open an address.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// What happens if another process has an address, or this machine does not have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IfTaken {
    /// Fail: a user waits for the result and can choose another address.
    Fail,
    /// Run without the address and take it once possible. Otherwise any local user could stop the
    /// daemon by taking an address between two starts, and an interface that comes up late would.
    Wait,
}

/// An address at its start.
#[derive(Debug)]
pub(crate) enum Claim {
    /// This node listens there.
    Bound(Listener),
    /// Another process has it, or this machine does not have it yet.
    Taken(SocketAddr),
}

/// Where to listen.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) host: Host,
    pub(crate) address: SocketAddr,
    /// Whether the machine has the address only while it holds it.
    pub(crate) is_virtual: bool,
}

impl Place {
    /// Listens there.
    pub(crate) fn listen(&self) -> io::Result<Listener> {
        match self.is_virtual {
            true => self.host.listen_ahead(self.address),
            false => self.host.listen(self.address),
        }
    }

    /// Listens there as soon as possible, on the reserved socket if there is one. `fails` gets the
    /// first of consecutive equal failures, and the user that has the address if it is in use.
    pub(crate) async fn open(
        &self,
        reserved: Option<&Closed>,
        mut fails: impl FnMut(&io::Error, Option<ClientId>),
    ) -> Listener {
        let mut last = None;
        loop {
            match reserved.map_or_else(|| self.listen(), Closed::open) {
                Ok(listener) => return listener,
                Err(error) => {
                    let kind = error.kind();
                    if last.replace(kind) != Some(kind) {
                        let is_taken = kind == io::ErrorKind::AddrInUse;
                        let holder = || ClientId::listening(&self.host, self.address);
                        fails(&error, is_taken.then(holder));
                    }
                }
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    /// Listens there, unless that is impossible for now and `if_taken` permits waiting. A machine
    /// without a loopback address does not get one.
    pub(crate) fn claim(&self, if_taken: IfTaken) -> io::Result<Claim> {
        let may_wait = |error: &io::Error| match error.kind() {
            io::ErrorKind::AddrNotAvailable => !self.address.ip().is_loopback(),
            _ => is_lost(error),
        };
        match self.listen() {
            Ok(listener) => Ok(Claim::Bound(listener)),
            Err(error) if if_taken == IfTaken::Wait && may_wait(&error) => {
                Ok(Claim::Taken(self.address))
            }
            Err(error) => Err(error),
        }
    }
}

/// Whether an address cannot be opened because another process has it, or this machine does not.
pub(crate) fn is_lost(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable)
}

impl Claim {
    /// The address that clients connect to; none if the socket is unusable.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Bound(listener) => listener.local_addr().ok(),
            Self::Taken(address) => Some(*address),
        }
    }
}
