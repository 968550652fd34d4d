//! Resources for virtual addresses that cannot be opened inside the sandbox.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

use meshport_config::{Settings, VirtualName};
use socket2::Socket;

use super::hooks::{self, Teller};
use super::packet;
use super::station::ArpSettings;
use crate::Error;

/// Lines that a systemd unit needs in addition to the generated ones.
const UNIT_LINES: &str = "AmbientCapabilities=CAP_NET_RAW, CapabilityBoundingSet=CAP_NET_RAW, \
                          PrivateUsers=no, ProcSubset=all and RestrictAddressFamilies=AF_PACKET";

/// For each virtual address: a packet socket, the kernel's ARP settings, and the link to the
/// process that runs its commands.
#[derive(Debug, Default)]
pub struct VipSockets(pub(super) BTreeMap<VirtualName, Opened>);

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
    /// This process lacks CAP_NET_RAW, an outer filter blocks packet sockets, or the process for
    /// commands cannot be started.
    pub(crate) fn open(settings: &Settings) -> Result<Self, Error> {
        let mut tellers = hooks::start(settings)?;
        let open = |(name, it): (&VirtualName, &meshport_config::VirtualAddressSettings)| {
            let socket = packet::open(it.address).map_err(|error| refused(name, &error))?;
            let arp = match it.address {
                IpAddr::V4(_) => ArpSettings::open(&it.interface),
                IpAddr::V6(_) => ArpSettings::default(),
            };
            let hook = tellers.remove(name);
            Ok((name.clone(), Opened { socket, arp, hook }))
        };
        settings.virtual_addresses.iter().map(open).collect::<Result<_, Error>>().map(Self)
    }
}

/// Explains why the packet socket could not be opened.
fn refused(name: &VirtualName, error: &io::Error) -> Error {
    let of = format!("[[virtual-address]] {name} needs a packet socket, but");
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => Error::Unfit(format!(
            "{of} this process lacks the capability CAP_NET_RAW. A systemd unit needs the drop-in \
             of `meshport generate systemd-vip`: {UNIT_LINES}. In a container, add NET_RAW to its \
             capabilities"
        )),
        Some(libc::EAFNOSUPPORT) => Error::Unfit(format!(
            "{of} a system call filter refuses the family AF_PACKET. A systemd unit needs \
             the drop-in of `meshport generate systemd-vip`: {UNIT_LINES}"
        )),
        _ => Error::Unfit(format!("{of} the kernel refuses it: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_capability_and_the_lines_of_the_unit() {
        let name = "api".parse().expect("a name");
        let said = refused(&name, &io::Error::from_raw_os_error(libc::EPERM)).to_string();
        for part in ["api", "CAP_NET_RAW", "AmbientCapabilities=CAP_NET_RAW", "AF_PACKET"] {
            assert!(said.contains(part), "{said}");
        }
        let said = refused(&name, &io::Error::from_raw_os_error(libc::EAFNOSUPPORT)).to_string();
        assert!(said.contains("RestrictAddressFamilies=AF_PACKET"), "{said}");
    }
}
