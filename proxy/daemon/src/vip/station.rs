//! Whether this machine can hold a virtual address: checks its interface, its addresses and its
//! kernel's ARP settings.

use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::FileExt;

use meshport_core::vip::frame::Hardware;
use tracing::debug;

use super::packet::Entry;

/// The folder of the kernel's ARP settings, by interface.
const FOLDER: &str = "/proc/sys/net/ipv4/conf";
/// The longest value of one of these settings, in bytes.
const MAX_VALUE_BYTES: usize = 16;

/// Why this node cannot hold a virtual address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Obstacle {
    /// The credential lacks the role.
    #[error("this node's credential lacks the role vip")]
    NoRole,
    /// The process that runs its commands has ended.
    #[error("the process that runs on-gain and on-loss has exited: restart the daemon")]
    NoHooks,
    /// The interface does not exist.
    #[error("interface {0} does not exist")]
    NoInterface(String),
    /// ARP and neighbour discovery need Ethernet.
    #[error("the interface {0} is not Ethernet")]
    NotEthernet(String),
    /// The interface is down or has no carrier.
    #[error("the interface {0} is down or has no carrier")]
    NoCarrier(String),
    /// The kernel would not accept packets for the address.
    #[error("{address} is not on the interface lo: run `ip address add {address}/{prefix} dev lo`")]
    NotHere {
        /// The address.
        address: IpAddr,
        /// Its length in bits.
        prefix: u8,
    },
    /// The kernel answers for the address even without the daemon.
    #[error(
        "{address} is on the interface {interface}, so the kernel answers for it: move it to lo"
    )]
    OnLan {
        /// The address.
        address: IpAddr,
        /// The interface of the LAN.
        interface: String,
    },
    /// The kernel answers ARP for addresses on lo, or announces them on the LAN.
    #[error(
        "net.ipv4.conf.all.{key} is {found} here: run `sysctl -w net.ipv4.conf.all.{key}={wanted}`"
    )]
    Arp {
        /// `arp_ignore` or `arp_announce`.
        key: &'static str,
        /// Its value.
        found: u32,
        /// The required value.
        wanted: u32,
    },
    /// The ARP setting cannot be read.
    #[error("net.ipv4.conf.all.{0} cannot be read: a systemd unit needs ProcSubset=all for it")]
    ArpUnknown(&'static str),
    /// The packet socket could not be opened at the start, for this reason.
    #[error("{0}")]
    NoSocket(String),
    /// The packet socket does not work.
    #[error("cannot use the interface {interface}: {reason}")]
    Broken {
        /// The interface.
        interface: String,
        /// The system's error.
        reason: String,
    },
    /// The service behind the address has no usable origin.
    #[error("no origin of {0} is usable from here")]
    NoOrigin(String),
    /// The daemon is stopping.
    #[error("this node is leaving")]
    Leaving,
}

/// The LAN interface in its current state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Station {
    pub(super) index: u32,
    pub(super) hardware: Hardware,
}

/// The kernel's ARP settings. The files are opened before the sandbox, which hides them.
#[derive(Debug, Default)]
pub(super) struct ArpSettings {
    ignore: [Option<File>; 2],
    announce: [Option<File>; 2],
}

impl ArpSettings {
    /// Opens the settings of all interfaces and of this one, which may not exist.
    pub(super) fn open(interface: &str) -> Self {
        let open = |interface: &str, key: &str| {
            let path = format!("{FOLDER}/{interface}/{key}");
            File::open(&path).inspect_err(|error| debug!(%error, path, "not read")).ok()
        };
        let both = |key| [open("all", key), open(interface, key)];
        Self { ignore: both("arp_ignore"), announce: both("arp_announce") }
    }

    /// Reads the effective values: the kernel uses the larger of the values for all interfaces and
    /// for this one.
    fn read(&self) -> ArpReading {
        let one = |file: &Option<File>| {
            let mut bytes = [0; MAX_VALUE_BYTES];
            let length = file.as_ref()?.read_at(&mut bytes, 0).ok()?;
            std::str::from_utf8(&bytes[..length]).ok()?.trim().parse::<u32>().ok()
        };
        let largest = |files: &[Option<File>; 2]| files.iter().filter_map(one).max();
        ArpReading { ignore: largest(&self.ignore), announce: largest(&self.announce) }
    }
}

/// The effective values, where readable.
#[derive(Debug, Clone, Copy)]
struct ArpReading {
    ignore: Option<u32>,
    announce: Option<u32>,
}

/// The LAN interface, if this machine can hold the address on it.
pub(super) fn look(
    interface: &str,
    address: IpAddr,
    arp: &ArpSettings,
    list: io::Result<Vec<(String, Entry)>>,
) -> Result<Station, Obstacle> {
    let broken = |error: io::Error| Obstacle::Broken {
        interface: interface.to_owned(),
        reason: error.to_string(),
    };
    let list = list.map_err(broken)?;
    let station = station(interface, &list)?;
    is_accepted(interface, address, &list)?;
    if address.is_ipv4() {
        is_silent(arp.read())?;
    }
    Ok(station)
}

fn station(interface: &str, list: &[(String, Entry)]) -> Result<Station, Obstacle> {
    let name = || interface.to_owned();
    let link = list.iter().find_map(|(of, entry)| match entry {
        Entry::Link { index, hardware, is_up, is_running } if of == interface => {
            Some((*index, *hardware, *is_up && *is_running))
        }
        _ => None,
    });
    let (index, hardware, has_carrier) = link.ok_or_else(|| Obstacle::NoInterface(name()))?;
    let hardware = hardware.ok_or_else(|| Obstacle::NotEthernet(name()))?;
    if has_carrier { Ok(Station { index, hardware }) } else { Err(Obstacle::NoCarrier(name())) }
}

/// Checks that the kernel accepts packets for the address and does not have it on the LAN.
fn is_accepted(interface: &str, address: IpAddr, list: &[(String, Entry)]) -> Result<(), Obstacle> {
    let mut labels =
        list.iter().filter(|(_, entry)| *entry == Entry::Address(address)).map(|(of, _)| of);
    let Some(first) = labels.next() else {
        let prefix = if address.is_ipv4() { 32 } else { 128 };
        return Err(Obstacle::NotHere { address, prefix });
    };
    if [first].into_iter().chain(labels).any(|of| is_of(of, interface)) {
        return Err(Obstacle::OnLan { address, interface: interface.to_owned() });
    }
    Ok(())
}

/// Whether the label of an IPv4 address (`eth0:1`) belongs to that interface.
fn is_of(label: &str, interface: &str) -> bool {
    label.split(':').next() == Some(interface)
}

/// Checks that the kernel neither answers for nor announces addresses of other interfaces.
fn is_silent(arp: ArpReading) -> Result<(), Obstacle> {
    match arp.ignore.ok_or(Obstacle::ArpUnknown("arp_ignore"))? {
        // Ignores other interfaces' addresses; also other subnets'; all addresses.
        1 | 2 | 8 => {}
        found => return Err(Obstacle::Arp { key: "arp_ignore", found, wanted: 1 }),
    }
    match arp.announce.ok_or(Obstacle::ArpUnknown("arp_announce"))? {
        2 => Ok(()),
        found => Err(Obstacle::Arp { key: "arp_announce", found, wanted: 2 }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Hardware = Hardware([2, 0, 0, 0, 0, 1]);

    fn link(name: &str, hardware: Option<Hardware>, is_running: bool) -> (String, Entry) {
        (name.to_owned(), Entry::Link { index: 7, hardware, is_up: true, is_running })
    }

    fn address(name: &str, text: &str) -> (String, Entry) {
        (name.to_owned(), Entry::Address(text.parse().expect("an address")))
    }

    fn looked(list: Vec<(String, Entry)>) -> Result<Station, Obstacle> {
        let address = "2001:db8::10".parse().expect("an address");
        look("eth0", address, &ArpSettings::default(), Ok(list))
    }

    #[test]
    fn the_interface_must_be_there_and_carry() {
        let lo = || address("lo", "2001:db8::10");
        assert_eq!(looked(vec![lo()]), Err(Obstacle::NoInterface("eth0".to_owned())));
        let of = |hardware, runs| looked(vec![lo(), link("eth0", hardware, runs)]);
        assert_eq!(of(None, true), Err(Obstacle::NotEthernet("eth0".to_owned())));
        assert_eq!(of(Some(MAC), false), Err(Obstacle::NoCarrier("eth0".to_owned())));
        assert_eq!(of(Some(MAC), true), Ok(Station { index: 7, hardware: MAC }));
    }

    #[test]
    fn the_address_is_on_lo_and_not_on_the_lan() {
        let eth0 = || link("eth0", Some(MAC), true);
        let missing = looked(vec![eth0(), address("lo", "2001:db8::11")]).expect_err("not here");
        assert!(missing.to_string().contains("ip address add 2001:db8::10/128 dev lo"));
        let on_lan = looked(vec![eth0(), address("eth0", "2001:db8::10")]).expect_err("on the LAN");
        assert!(matches!(on_lan, Obstacle::OnLan { .. }));
        let v4 = "192.0.2.10".parse().expect("an address");
        let list = [address("lo", "192.0.2.10"), address("eth0:1", "192.0.2.10")];
        assert!(matches!(is_accepted("eth0", v4, &list), Err(Obstacle::OnLan { .. })));
        assert_eq!(is_accepted("eth0", v4, &list[..1]), Ok(()));
    }

    #[test]
    fn the_kernel_must_not_answer_arp() {
        let judged = |ignore, announce| is_silent(ArpReading { ignore, announce });
        for ignore in [1, 2, 8] {
            assert_eq!(judged(Some(ignore), Some(2)), Ok(()));
        }
        let said = judged(Some(0), Some(2)).expect_err("it answers").to_string();
        assert!(said.contains("sysctl -w net.ipv4.conf.all.arp_ignore=1"), "{said}");
        assert!(matches!(judged(Some(1), Some(1)), Err(Obstacle::Arp { found: 1, .. })));
        assert_eq!(judged(None, Some(2)), Err(Obstacle::ArpUnknown("arp_ignore")));
        assert_eq!(judged(Some(1), None), Err(Obstacle::ArpUnknown("arp_announce")));
    }

    #[test]
    fn this_machines_settings_are_read() {
        let read = ArpSettings::open("lo").read();
        assert!(read.ignore.is_some() && read.announce.is_some(), "{read:?}");
        assert!(ArpSettings::default().read().ignore.is_none());
    }
}
