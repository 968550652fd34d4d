//! A local address to listen on, which may be impossible for now.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use meshport_core::findings::{ADDRESS_TAKEN, Finding};

use crate::sessions::client::ClientId;
use crate::tcp::{Closed, Host, Listener};

/// Pause between attempts to open an address.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// The first port that needs no capability by default.
const FIRST_FREE_PORT: u16 = 1024;
/// What a systemd unit needs for the ports before it.
const LOW_PORT_REMEDY: &str = "A port below 1024 needs the capability CAP_NET_BIND_SERVICE. Grant \
                               it (in a systemd unit, \
                               `AmbientCapabilities=CAP_NET_BIND_SERVICE`, the same in \
                               `CapabilityBoundingSet`, and `PrivateUsers=no`) or set another \
                               address, and restart the daemon";
const OTHER_PORT_REMEDY: &str = "Permit it where this machine forbids it (SELinux, or \
                                 `SocketBindDeny` in a systemd unit): a running daemon takes the \
                                 address once possible. Or set another address and restart the \
                                 daemon";

/// Why an address cannot be opened for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// Another process has it.
    InUse,
    /// This machine does not have it.
    Absent,
    /// This process may not listen there.
    Denied,
}

impl Loss {
    /// `None` for any other failure.
    pub(crate) fn of(error: &io::Error) -> Option<Self> {
        match error.kind() {
            io::ErrorKind::AddrInUse => Some(Self::InUse),
            io::ErrorKind::AddrNotAvailable => Some(Self::Absent),
            io::ErrorKind::PermissionDenied => Some(Self::Denied),
            _ => None,
        }
    }

    /// The finding; `place` is the address with this port, in words.
    pub(crate) fn finding(self, place: &str, port: u16) -> Finding {
        match self {
            Self::InUse => ADDRESS_TAKEN
                .found(format!("another process listens on {place} and gets its clients")),
            Self::Absent => ADDRESS_TAKEN
                .found(format!("this machine does not have {place}, which is opened once it has")),
            Self::Denied => {
                let is_low = port < FIRST_FREE_PORT;
                let remedy = if is_low { LOW_PORT_REMEDY } else { OTHER_PORT_REMEDY };
                let detail = format!("the daemon may not listen on {place}");
                Finding { remedy: remedy.into(), ..ADDRESS_TAKEN.found(detail) }
            }
        }
    }
}

/// What happens if an address is lost.
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
    /// It is lost for now.
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
        let may_wait = |error: &io::Error| match Loss::of(error) {
            Some(Loss::Absent) => !self.address.ip().is_loopback(),
            loss => loss.is_some(),
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

impl Claim {
    /// The address that clients connect to; none if the socket is unusable.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Bound(listener) => listener.local_addr().ok(),
            Self::Taken(address) => Some(*address),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_says_what_the_failure_was_and_names_the_capability_for_low_ports_only() {
        let said = |code, port: u16| {
            let loss = Loss::of(&io::Error::from_raw_os_error(code))?;
            Some(loss.finding(&format!("the local address 127.0.0.1:{port}"), port).to_string())
        };
        for (code, port, begins) in [
            (libc::EADDRINUSE, 443, "another process listens on the local address 127.0.0.1:443"),
            (libc::EADDRNOTAVAIL, 443, "this machine does not have the local address"),
            (libc::EACCES, 443, "the daemon may not listen on the local address 127.0.0.1:443. A"),
            (libc::EACCES, 1024, "the daemon may not listen on the local address 127.0.0.1:1024"),
            (libc::EPERM, 7445, "the daemon may not listen on the local address 127.0.0.1:7445"),
        ] {
            let text = said(code, port).expect("it is a loss");
            assert!(text.starts_with(begins) && text.ends_with("(MP101)"), "{text}");
            let named = text.contains("AmbientCapabilities=CAP_NET_BIND_SERVICE");
            assert_eq!(named, code == libc::EACCES && port < 1024, "{text}");
        }
        assert_eq!(said(libc::EMFILE, 443), None);
    }
}
