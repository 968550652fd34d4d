//! Resources for virtual addresses that cannot be opened inside the sandbox.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

use meshport_config::{Settings, VirtualAddressSettings, VirtualName};
use socket2::Socket;

use super::hooks::{self, Teller};
use super::packet;
use super::station::{ArpSettings, Obstacle};
use crate::Error;

/// Lines that a systemd unit needs in addition to the generated ones.
const UNIT_LINES: &str = "AmbientCapabilities=CAP_NET_RAW, CapabilityBoundingSet=CAP_NET_RAW, \
                          PrivateUsers=no, ProcSubset=all and RestrictAddressFamilies=AF_PACKET";

/// For each virtual address: a packet socket, the kernel's ARP settings, and the link to the
/// process that runs its commands; or why the packet socket cannot be opened.
#[derive(Debug, Default)]
pub struct VipSockets(pub(super) BTreeMap<VirtualName, Result<Opened, Obstacle>>);

#[derive(Debug)]
pub(super) struct Opened {
    pub(super) socket: Socket,
    pub(super) arp: ArpSettings,
    /// Link to the process that runs the commands, if the address has any.
    pub(super) hook: Option<Teller>,
}

impl VipSockets {
    /// Opens the resources of all virtual addresses in the settings.
    ///
    /// # Errors
    /// The process for commands cannot be started.
    pub(crate) fn open(settings: &Settings) -> Result<Self, Error> {
        let mut tellers = hooks::start(settings)?;
        let mut open = |name: &VirtualName, it: &VirtualAddressSettings| {
            let socket = packet::open(it.address).map_err(|error| refused(&error))?;
            let arp = match it.address {
                IpAddr::V4(_) => ArpSettings::open(&it.interface),
                IpAddr::V6(_) => ArpSettings::default(),
            };
            Ok(Opened { socket, arp, hook: tellers.remove(name) })
        };
        let addresses = settings.virtual_addresses.iter();
        Ok(Self(addresses.map(|(name, it)| (name.clone(), open(name, it))).collect()))
    }
}

/// Explains why the packet socket could not be opened.
fn refused(error: &io::Error) -> Obstacle {
    let remedy = format!(
        "restart the daemon with the drop-in of `meshport generate systemd-vip` ({UNIT_LINES})"
    );
    Obstacle::NoSocket(match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => format!(
            "the daemon lacks the capability CAP_NET_RAW: {remedy}; in a container, add NET_RAW \
             to its capabilities and restart it"
        ),
        Some(libc::EAFNOSUPPORT) => {
            format!("a system call filter refuses the family AF_PACKET: {remedy}")
        }
        _ => format!("the kernel refuses a packet socket: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_capability_and_the_lines_of_the_unit() {
        let said = refused(&io::Error::from_raw_os_error(libc::EPERM)).to_string();
        for part in ["CAP_NET_RAW", "AmbientCapabilities=CAP_NET_RAW", "AF_PACKET"] {
            assert!(said.contains(part), "{said}");
        }
        let said = refused(&io::Error::from_raw_os_error(libc::EAFNOSUPPORT)).to_string();
        assert!(said.contains("RestrictAddressFamilies=AF_PACKET"), "{said}");
    }
}
