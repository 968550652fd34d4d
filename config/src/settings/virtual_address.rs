//! `[[virtual-address]]`: addresses of a LAN that one node of a group answers for.

use std::net::{IpAddr, Ipv4Addr};

use super::schema::{List, label};
use super::tables::parsed;
use crate::ids::{GroupName, ServiceName, VirtualName};

/// Maximum virtual addresses of a node: each is announced repeatedly on its LAN and over the mesh.
pub const MAX_VIRTUAL_ADDRESSES: usize = 8;
/// The longest command of an address, in bytes; more belongs in a script.
const MAX_COMMAND_BYTES: usize = 1024;
/// The longest interface name, in bytes: Linux's limit (`IFNAMSIZ`, without its NUL).
const MAX_INTERFACE_BYTES: usize = 15;

const COMMAND_FORM: &str = "a command of the shell in one line, at most 1024 bytes";
const ADDRESS_FORM: &str = "an IPv4 or IPv6 address of one host without prefix, such as \
                            \"192.0.2.10\"; not one of the loopback network or of link scope";
const LABEL_FORM: &str = "1 to 63 of a-z, 0-9 and '-', with no '-' at either end";
const INTERFACE_FORM: &str = "the name of an interface, such as \"eth0\"";
const SERVICE_FORM: &str = "the name of a service, such as \"kube-apiserver\"";

incomplete_table! {
    /// A virtual address, and this node's part in it.
    VirtualAddressSettings, KEYS;
    address: IpAddr = Ipv4Addr::UNSPECIFIED.into(), "address" is text!(ADDRESS_FORM, station),
        "The address that clients use. It must be on the loopback interface of every node of the \
         group; one of them at a time answers for it. Required.";
    interface: String = String::new(), "interface" is text!(INTERFACE_FORM, interface),
        "The interface of the LAN whose stations reach the address. Required.";
    group: GroupName = "none".parse().expect("a label"), "group" is text!(LABEL_FORM, parsed),
        "The group of nodes that share the address: those on the LAN with the role vip, this group \
         and this address. Required.";
    service: ServiceName = ServiceName::kube_apiserver(), "service" is text!(SERVICE_FORM, parsed),
        "The service behind it: the node holds the address only while it can use an origin of this \
         service, wherever that is.";
    priority: u8 = 100, "priority" is number!(0, 255, "priority"),
        "Which node takes a free address: larger numbers first. A holder hands over to a node of \
         higher priority that has been eligible for ten seconds.";
    on_gain: Option<String> = None, "on-gain" is optional!(COMMAND_FORM, command),
        "A shell command (/bin/sh) to run when this node has gained the address, for example to \
         announce a route. It gets NAME, ADDRESS and INTERFACE in its environment, and may run for \
         ten seconds.";
    on_loss: Option<String> = None, "on-loss" is optional!(COMMAND_FORM, command),
        "A shell command to run when this node has lost the address. It also runs when the daemon \
         starts, and when it was killed or hangs.";
}

/// `[[virtual-address]]`.
pub(super) const ADDRESSES: List<VirtualName, VirtualAddressSettings> = List {
    name: "virtual-address",
    max: MAX_VIRTUAL_ADDRESSES,
    label: label(
        "name",
        "The name of this address in status, metrics and logs. Required.",
        LABEL_FORM,
    ),
    differs: "a name that no other [[virtual-address]] has",
    keys: KEYS,
    required: &["address", "interface", "group"],
    tables: &[],
    empty: VirtualAddressSettings::empty,
};

impl VirtualAddressSettings {
    /// The example in the reference.
    pub(super) fn example() -> Self {
        Self {
            address: IpAddr::from([192, 0, 2, 10]),
            interface: "eth0".to_owned(),
            group: "rack-1".parse().expect("a label"),
            ..Self::empty()
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
