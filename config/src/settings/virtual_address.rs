//! `[[virtual-address]]`: addresses of a LAN that one node of a group answers for.

use std::net::IpAddr;

use super::schema::{Key, key};
use super::tables::parsed;
use crate::ids::{GroupName, ServiceName, VirtualName};

/// Maximum virtual addresses of a node: each is announced repeatedly on its LAN and over the mesh.
pub const MAX_VIRTUAL_ADDRESSES: usize = 8;
/// The longest command of an address, in bytes; more belongs in a script.
const MAX_COMMAND_BYTES: usize = 1024;
/// The longest interface name, in bytes: Linux's limit (`IFNAMSIZ`, without its NUL).
const MAX_INTERFACE_BYTES: usize = 15;

/// A virtual address, and this node's part in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VirtualAddressSettings {
    /// The address, of one host.
    pub address: IpAddr,
    /// The interface of the LAN that the address belongs to.
    pub interface: String,
    /// The nodes that hold it in turn: those of the same group.
    pub group: GroupName,
    /// The service whose origin this node must be able to use to hold it. Default
    /// [`ServiceName::kube_apiserver`].
    pub service: ServiceName,
    /// Precedence among nodes, 0 to 255: the highest takes the address first. Default 100.
    pub priority: u8,
    /// Shell command that runs after this node has gained the address, at most 1024 bytes. Default
    /// none.
    pub on_gain: Option<String>,
    /// Shell command that runs after this node has lost it, and at the start. Default none.
    pub on_loss: Option<String>,
}

/// A virtual address as its table is read and written: keys may be missing.
pub(super) struct Draft {
    pub(super) name: Option<VirtualName>,
    address: Option<IpAddr>,
    interface: Option<String>,
    group: Option<GroupName>,
    service: ServiceName,
    priority: u8,
    on_gain: Option<String>,
    on_loss: Option<String>,
}

impl Draft {
    /// The defaults of absent keys.
    pub(super) fn new() -> Self {
        Self {
            name: None,
            address: None,
            interface: None,
            group: None,
            service: ServiceName::kube_apiserver(),
            priority: 100,
            on_gain: None,
            on_loss: None,
        }
    }

    /// The table for these settings.
    pub(super) fn of(name: &VirtualName, settings: &VirtualAddressSettings) -> Self {
        let it = settings.clone();
        Self {
            name: Some(name.clone()),
            address: Some(it.address),
            interface: Some(it.interface),
            group: Some(it.group),
            service: it.service,
            priority: it.priority,
            on_gain: it.on_gain,
            on_loss: it.on_loss,
        }
    }

    /// The settings, if no required key is missing.
    pub(super) fn finish(self) -> Option<(VirtualName, VirtualAddressSettings)> {
        let settings = VirtualAddressSettings {
            address: self.address?,
            interface: self.interface?,
            group: self.group?,
            service: self.service,
            priority: self.priority,
            on_gain: self.on_gain,
            on_loss: self.on_loss,
        };
        Some((self.name?, settings))
    }

    /// The example in the reference.
    pub(super) fn example() -> Self {
        Self {
            name: "api".parse().ok(),
            address: Some(IpAddr::from([192, 0, 2, 10])),
            interface: Some("eth0".to_owned()),
            group: "rack-1".parse().ok(),
            ..Self::new()
        }
    }
}

/// An address that a station on a LAN can have.
fn station(text: &str) -> Option<IpAddr> {
    let address: IpAddr = text.parse().ok()?;
    let is_plain = !address.is_unspecified() && !address.is_loopback() && !address.is_multicast();
    let is_of_a_station = match address {
        IpAddr::V4(v4) => !v4.is_broadcast() && !v4.is_link_local(),
        IpAddr::V6(v6) => !v6.is_unicast_link_local() && v6.to_ipv4_mapped().is_none(),
    };
    (is_plain && is_of_a_station).then_some(address)
}

fn interface(text: &str) -> Option<String> {
    let is_allowed = |b: u8| b.is_ascii_graphic() && b != b'/' && b != b':';
    let is_one = (1..=MAX_INTERFACE_BYTES).contains(&text.len())
        && text.bytes().all(is_allowed)
        && !matches!(text, "." | "..");
    is_one.then(|| text.to_owned())
}

fn command(text: &str) -> Option<String> {
    let is_one_line = !text.contains(char::is_control);
    let is_one = is_one_line && !text.trim().is_empty() && text.len() <= MAX_COMMAND_BYTES;
    is_one.then(|| text.to_owned())
}

const COMMAND_FORM: &str = "a command of the shell in one line, at most 1024 bytes";
const ADDRESS_FORM: &str = "an IPv4 or IPv6 address of one host without prefix, such as \
                            \"192.0.2.10\"; not one of the loopback network or of link scope";
const LABEL_FORM: &str = "1 to 63 of a-z, 0-9 and '-', with no '-' at either end";

/// The required keys of a table.
pub(super) const REQUIRED: [&str; 3] = ["address", "interface", "group"];

pub(super) const KEYS: &[Key<Draft>] = &[
    key(
        "name",
        "The name of this address in status, metrics and logs. Required.",
        optional!(name, LABEL_FORM, parsed),
    ),
    key(
        "address",
        "The address that clients use. It must be on the loopback interface of every node of the \
         group; one of them at a time answers for it. Required.",
        optional!(address, ADDRESS_FORM, station),
    ),
    key(
        "interface",
        "The interface of the LAN whose stations reach the address. Required.",
        optional!(interface, "the name of an interface, such as \"eth0\"", interface),
    ),
    key(
        "group",
        "The group of nodes that share the address: those on the LAN with the role vip, this group \
         and this address. Required.",
        optional!(group, LABEL_FORM, parsed),
    ),
    key(
        "service",
        "The service behind it: the node holds the address only while it can use an origin of this \
         service, wherever that is.",
        text!(service, "the name of a service, such as \"kube-apiserver\"", parsed),
    ),
    key(
        "priority",
        "Which node takes a free address: larger numbers first. A holder hands over to a node of \
         higher priority that has been eligible for ten seconds.",
        number!(priority, 0, 255, "priority"),
    ),
    key(
        "on-gain",
        "A shell command (/bin/sh) to run when this node has gained the address, for example to \
         announce a route. It gets NAME, ADDRESS and INTERFACE in its environment, and may run for \
         ten seconds.",
        optional!(on_gain, COMMAND_FORM, command),
    ),
    key(
        "on-loss",
        "A shell command to run when this node has lost the address. It also runs when the daemon \
         starts, and when it was killed or hangs.",
        optional!(on_loss, COMMAND_FORM, command),
    ),
];
