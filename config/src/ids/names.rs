//! Names of sites, nodes and services, and the roles in a credential.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;
use std::slice;
use std::str::FromStr;
use std::sync::Arc;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::text::{TextError, text_form};

/// The longest name, in bytes: that of a DNS label (RFC 1035, 2.3.4).
pub const MAX_NAME_BYTES: usize = 63;
/// Maximum roles of a credential: a few fixed ones and an origin role per service.
pub const MAX_ROLES: usize = 16;

/// Whether `text` is a lower-case DNS label: 1 to 63 of `a-z`, `0-9`, `-`, no `-` at either end.
pub(crate) fn is_label(text: &str) -> bool {
    let is_allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=MAX_NAME_BYTES).contains(&text.len())
        && text.bytes().all(is_allowed)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Whether `text` is one or more labels with dots between, 63 bytes in all.
fn is_dotted(text: &str) -> bool {
    text.len() <= MAX_NAME_BYTES && text.split('.').all(is_label)
}

/// Whether `text` is a label, or two with a colon between, 63 bytes in all.
fn is_role(text: &str) -> bool {
    let (kind, subject) = text.split_once(':').unwrap_or((text, "any"));
    text.len() <= MAX_NAME_BYTES && is_label(kind) && is_label(subject)
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal, $is_valid:ident, $form:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = TextError;

            fn from_str(text: &str) -> Result<Self, TextError> {
                if !$is_valid(text) {
                    return Err(TextError::form($what, text, $form));
                }
                Ok(Self(text.into()))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &*self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        text_form!($name);
    };
}

name! {
    /// A location with low latency inside, such as a datacenter: one DNS label.
    SiteName, "a site name", is_label,
    "1 to 63 of a-z, 0-9 and '-', with no '-' at either end"
}
name! {
    /// A service offered through the mesh: one DNS label.
    ServiceName, "a service name", is_label,
    "1 to 63 of a-z, 0-9 and '-', with no '-' at either end"
}
name! {
    /// A node's name: 1 to 63 bytes of DNS labels with dots between.
    NodeName, "a node name", is_dotted,
    "1 to 63 of a-z, 0-9, '-' and '.', with a letter or digit at both ends of each dotted part"
}

name! {
    /// A listener for clients outside the mesh: one DNS label.
    ListenerName, "a listener name", is_label,
    "1 to 63 of a-z, 0-9 and '-', with no '-' at either end"
}

name! {
    /// A virtual address, as one node's settings, status and metrics name it: one DNS label.
    VirtualName, "a name", is_label,
    "1 to 63 of a-z, 0-9 and '-', with no '-' at either end"
}

name! {
    /// The group of nodes on a LAN that share a virtual address: one DNS label.
    GroupName, "a group name", is_label,
    "1 to 63 of a-z, 0-9 and '-', with no '-' at either end"
}

name! {
    /// A role of a later version, by its name.
    RoleName, "the name of a role", is_role,
    "one or two DNS labels with ':' between, 63 bytes in all"
}

/// Services that the documentation mentions.
const COMMON_SERVICES: [&str; 3] = [ServiceName::KUBE_APISERVER, "konnectivity", "rke2-supervisor"];
/// Maximum wrong, missing, extra or swapped characters of a misspelt name.
const MAX_SLIPS: usize = 2;

impl ServiceName {
    /// The first and default service.
    pub const KUBE_APISERVER: &str = "kube-apiserver";

    /// The name of the Kubernetes apiserver's service, `kube-apiserver`.
    pub fn kube_apiserver() -> Self {
        Self(Self::KUBE_APISERVER.into())
    }

    /// The common service that this name probably misspells; `None` if it is one of them or clearly
    /// another.
    pub fn misspelt(&self) -> Option<&'static str> {
        let name = self.as_str();
        COMMON_SERVICES.into_iter().filter(|_| !COMMON_SERVICES.contains(&name)).find(|common| {
            // A name with a prefix or suffix, such as "kube-apiserver-2", is another name.
            !name.starts_with(common)
                && !name.ends_with(common)
                && strsim::osa_distance(name, common) <= MAX_SLIPS
        })
    }

    /// The name under which streams of the way back are counted, `way-back`. Settings cannot use
    /// it.
    pub const WAY_BACK: &str = "way-back";

    /// The name [`ServiceName::WAY_BACK`].
    pub fn way_back() -> Self {
        Self(Self::WAY_BACK.into())
    }
}

/// A role that is encoded by this name.
const ISSUER: &str = "issuer";
/// The same.
const EGRESS: &str = "egress";
/// The same.
const NO_KUBELET: &str = "no-kubelet";
/// The same.
const VIP: &str = "vip";
/// The same.
const GATEWAY: &str = "gateway";
const FORM: &str =
    "node, origin:SERVICE, relay, operator, issuer, egress, vip, gateway or no-kubelet";

/// A permission that a credential gives to its node. Everything else is refused.
///
/// The text forms are `node`, `origin:<service>`, `relay`, `operator`, `issuer`, `egress`, `vip`,
/// `gateway` and `no-kubelet`. The order is that of the encoding: the first four by number, then
/// all others by name, so that versions that know more or fewer roles write a set in the same
/// order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Role {
    /// Use services.
    Node,
    /// Offer this service.
    Origin(ServiceName),
    /// Carry sessions of others.
    Relay,
    /// Administer: forward and control from a person's machine.
    Operator,
    /// Receive requests for renewal. It signs nothing without a mandate ([`crate::Mandate`]).
    Issuer,
    /// Dial services of the cluster for apiservers.
    Egress,
    /// Accept no streams of apiservers to its own kubelet and pods, which the role `node` allows.
    NoKubelet,
    /// Hold virtual addresses of its LAN.
    Vip,
    /// Accept services that a program on its machine offers.
    Gateway,
    /// A role of a later version. It permits nothing here, but is kept and passed on, since it is
    /// signed.
    Other(RoleName),
}

impl Role {
    /// Parses a role, including one that this version does not know: for text from programs.
    /// `FromStr` is for text from people, where a typo must be an error.
    ///
    /// # Errors
    /// [`TextError::Form`] for a text that no version writes.
    pub fn read(text: &str) -> Result<Self, TextError> {
        text.parse().or_else(|error| text.parse().map(Self::Other).map_err(|_| error))
    }

    /// Its number in the byte form, and its service or name.
    fn code(&self) -> (u8, &str) {
        match self {
            Self::Node => (0, ""),
            Self::Origin(service) => (1, service.as_str()),
            Self::Relay => (2, ""),
            Self::Operator => (3, ""),
            Self::Issuer => (4, ISSUER),
            Self::Egress => (4, EGRESS),
            Self::NoKubelet => (4, NO_KUBELET),
            Self::Vip => (4, VIP),
            Self::Gateway => (4, GATEWAY),
            Self::Other(name) => (4, name.as_str()),
        }
    }

    /// A role that has its name in the byte form; none for one that has a number.
    fn named(name: &RoleName) -> Option<Self> {
        match Self::read(name.as_str()) {
            Ok(Self::Node | Self::Origin(_) | Self::Relay | Self::Operator) | Err(_) => None,
            Ok(role) => Some(role),
        }
    }
}

impl Ord for Role {
    fn cmp(&self, other: &Self) -> Ordering {
        self.code().cmp(&other.code())
    }
}

impl PartialOrd for Role {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node => f.pad("node"),
            Self::Origin(service) => f.pad(&format!("origin:{service}")),
            Self::Relay => f.pad("relay"),
            Self::Operator => f.pad("operator"),
            Self::Issuer => f.pad(ISSUER),
            Self::Egress => f.pad(EGRESS),
            Self::NoKubelet => f.pad(NO_KUBELET),
            Self::Vip => f.pad(VIP),
            Self::Gateway => f.pad(GATEWAY),
            Self::Other(name) => f.pad(name.as_str()),
        }
    }
}

/// From the text form: only roles that this version knows.
impl FromStr for Role {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        match text {
            "node" => Ok(Self::Node),
            "relay" => Ok(Self::Relay),
            "operator" => Ok(Self::Operator),
            ISSUER => Ok(Self::Issuer),
            EGRESS => Ok(Self::Egress),
            NO_KUBELET => Ok(Self::NoKubelet),
            VIP => Ok(Self::Vip),
            GATEWAY => Ok(Self::Gateway),
            _ => match text.strip_prefix("origin:") {
                Some(service) => service.parse().map(Self::Origin),
                None => Err(TextError::form("a role", text, FORM)),
            },
        }
    }
}

/// [`Role`] in binary formats: the order is the wire format. Nothing is ever added: new roles are
/// encoded by name, so that versions that do not know them can read the rest.
#[derive(Serialize, Deserialize)]
enum RoleCode {
    Node,
    Origin(ServiceName),
    Relay,
    Operator,
    Named(RoleName),
}

impl Serialize for Role {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            return serializer.collect_str(self);
        }
        let code = match self {
            Self::Node => RoleCode::Node,
            Self::Origin(service) => RoleCode::Origin(service.clone()),
            Self::Relay => RoleCode::Relay,
            Self::Operator => RoleCode::Operator,
            Self::Issuer | Self::Egress | Self::NoKubelet | Self::Vip | Self::Gateway => {
                let name = self.code().1.parse();
                RoleCode::Named(name.expect("it has the form of a role's name"))
            }
            Self::Other(name) => RoleCode::Named(name.clone()),
        };
        code.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Role {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            return Self::read(&String::deserialize(deserializer)?).map_err(D::Error::custom);
        }
        Ok(match RoleCode::deserialize(deserializer)? {
            RoleCode::Node => Self::Node,
            RoleCode::Origin(service) => Self::Origin(service),
            RoleCode::Relay => Self::Relay,
            RoleCode::Operator => Self::Operator,
            RoleCode::Named(name) => {
                Self::named(&name).ok_or_else(|| D::Error::custom("a role in another form"))?
            }
        })
    }
}

/// A set of 1 to [`MAX_ROLES`] roles, in ascending order. A slice, since a directory has two sets
/// per node and a tree would take 280 bytes each. The text form lists them with commas:
/// `node,relay`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Roles(Box<[Role]>);

impl Roles {
    /// A set of these roles; repeated ones count once.
    ///
    /// # Errors
    /// [`TextError::Empty`] without any, [`TextError::TooMany`] above [`MAX_ROLES`].
    pub fn new(roles: impl IntoIterator<Item = Role>) -> Result<Self, TextError> {
        let mut set = BTreeSet::new();
        for role in roles {
            set.insert(role);
            if set.len() > MAX_ROLES {
                return Err(TextError::TooMany { what: "roles", found: set.len(), max: MAX_ROLES });
            }
        }
        if set.is_empty() {
            return Err(TextError::Empty { what: "roles" });
        }
        Ok(Self(set.into_iter().collect()))
    }

    /// Whether it contains this role.
    pub fn contains(&self, role: &Role) -> bool {
        self.0.contains(role)
    }

    /// Whether it contains the role to offer this service.
    pub fn may_offer(&self, service: &ServiceName) -> bool {
        self.0.iter().any(|role| matches!(role, Role::Origin(offered) if offered == service))
    }

    /// Whether they make their holder a leaf: an operator's machine, which only uses services.
    pub fn is_leaf(&self) -> bool {
        self.0.len() == 1 && self.contains(&Role::Operator)
    }

    /// Whether every role here is also in `other`.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.0.iter().all(|role| other.contains(role))
    }

    /// The roles, in ascending order.
    pub fn iter(&self) -> slice::Iter<'_, Role> {
        self.0.iter()
    }
}

impl<'a> IntoIterator for &'a Roles {
    type Item = &'a Role;
    type IntoIter = slice::Iter<'a, Role>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl From<Role> for Roles {
    fn from(role: Role) -> Self {
        Self(Box::from([role]))
    }
}

impl fmt::Display for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.0.iter().map(Role::to_string).collect();
        f.pad(&texts.join(","))
    }
}

impl FromStr for Roles {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let roles = text.split(',').map(|role| role.trim().parse()).take(MAX_ROLES * 2);
        Self::new(roles.collect::<Result<Vec<Role>, TextError>>()?)
    }
}

impl Serialize for Roles {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for Roles {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Roles;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "1 to {MAX_ROLES} roles")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Roles, A::Error> {
                let mut roles = BTreeSet::new();
                while let Some(role) = seq.next_element::<Role>()? {
                    if roles.len() == MAX_ROLES {
                        return Err(A::Error::invalid_length(MAX_ROLES + 1, &self));
                    }
                    roles.insert(role);
                }
                Roles::new(roles).map_err(A::Error::custom)
            }
        }

        deserializer.deserialize_seq(Reader)
    }
}
