//! `[[virtual-address]]`: addresses of a LAN that one node of a group answers for.

use std::net::IpAddr;

use super::schema::{Key, Kind};
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
    priority: u32,
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
            priority: it.priority.into(),
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
            priority: u8::try_from(self.priority).unwrap_or(u8::MAX),
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

/// Whether it can be the address of a station on a LAN.
fn is_of_a_station(address: &IpAddr) -> bool {
    let is_plain = !address.is_unspecified() && !address.is_loopback() && !address.is_multicast();
    is_plain
        && match address {
            IpAddr::V4(v4) => !v4.is_broadcast() && !v4.is_link_local(),
            IpAddr::V6(v6) => !v6.is_unicast_link_local() && v6.to_ipv4_mapped().is_none(),
        }
}

fn is_interface(text: &str) -> bool {
    let is_allowed = |b: u8| b.is_ascii_graphic() && b != b'/' && b != b':';
    (1..=MAX_INTERFACE_BYTES).contains(&text.len())
        && text.bytes().all(is_allowed)
        && !matches!(text, "." | "..")
}

fn command(text: &str) -> Option<String> {
    let is_one_line = !text.contains(char::is_control);
    let is_one = is_one_line && !text.trim().is_empty() && text.len() <= MAX_COMMAND_BYTES;
    is_one.then(|| text.to_owned())
}

const COMMAND_FORM: &str = "a command of the shell in one line, at most 1024 bytes";
const LABEL_FORM: &str = "1 to 63 of a-z, 0-9 and '-', with no '-' at either end";

/// The required keys of a table.
pub(super) const REQUIRED: [&str; 3] = ["address", "interface", "group"];

pub(super) const KEYS: &[Key<Draft>] = &[
    Key {
        name: "name",
        about: "The name of this address in status, metrics and logs. Required.",
        example: Some("\"api\""),
        kind: Kind::Text {
            expected: LABEL_FORM,
            get: |from| from.name.as_ref().map(ToString::to_string),
            set: |into, text| text.parse().ok().map(|name| into.name = Some(name)),
        },
    },
    Key {
        name: "address",
        about: "The address that clients use. It must be on the loopback interface of every node \
                of the group; one of them at a time answers for it. Required.",
        example: Some("\"192.0.2.10\""),
        kind: Kind::Text {
            expected: "an IPv4 or IPv6 address of one host without prefix, such as \
                       \"192.0.2.10\"; not one of the loopback network or of link scope",
            get: |from| from.address.as_ref().map(ToString::to_string),
            set: |into, text| {
                let address = text.parse().ok().filter(is_of_a_station)?;
                into.address = Some(address);
                Some(())
            },
        },
    },
    Key {
        name: "interface",
        about: "The interface of the LAN whose stations reach the address. Required.",
        example: Some("\"eth0\""),
        kind: Kind::Text {
            expected: "the name of an interface, such as \"eth0\"",
            get: |from| from.interface.clone(),
            set: |into, text| is_interface(text).then(|| into.interface = Some(text.to_owned())),
        },
    },
    Key {
        name: "group",
        about: "The group of nodes that share the address: those on the LAN with the role vip, \
                this group and this address. Required.",
        example: Some("\"rack-1\""),
        kind: Kind::Text {
            expected: LABEL_FORM,
            get: |from| from.group.as_ref().map(ToString::to_string),
            set: |into, text| text.parse().ok().map(|group| into.group = Some(group)),
        },
    },
    Key {
        name: "service",
        about: "The service behind it: the node holds the address only while it can use an origin \
                of this service, wherever that is.",
        example: Some("\"kube-apiserver\""),
        kind: Kind::Text {
            expected: "the name of a service, such as \"kube-apiserver\"",
            get: |from| Some(from.service.to_string()),
            set: |into, text| text.parse().ok().map(|name| into.service = name),
        },
    },
    Key {
        name: "priority",
        about: "Which node takes a free address: larger numbers first. A holder hands over to a \
                node of higher priority that has been eligible for ten seconds.",
        example: Some("100"),
        kind: Kind::Integer {
            min: 0,
            max: 255,
            unit: "priority",
            get: |from| from.priority,
            set: |into, value| into.priority = value,
        },
    },
    Key {
        name: "on-gain",
        about: "A shell command (/bin/sh) to run when this node has gained the address, for \
                example to announce a route. It gets NAME, ADDRESS and INTERFACE in its \
                environment, and \
                may run for ten seconds.",
        example: Some("\"birdc enable vip\""),
        kind: Kind::Text {
            expected: COMMAND_FORM,
            get: |from| from.on_gain.clone(),
            set: |into, text| command(text).map(|command| into.on_gain = Some(command)),
        },
    },
    Key {
        name: "on-loss",
        about: "A shell command to run when this node has lost the address. It also runs when the \
                daemon starts, and when it was killed or hangs.",
        example: Some("\"birdc disable vip\""),
        kind: Kind::Text {
            expected: COMMAND_FORM,
            get: |from| from.on_loss.clone(),
            set: |into, text| command(text).map(|command| into.on_loss = Some(command)),
        },
    },
];
