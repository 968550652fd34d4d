//! Identities, credentials and settings.
//!
//! Formats, parsing and validation of ids and names, keys, credentials and invites, and the
//! settings file. Pure: no I/O, no clock, no randomness. Wall time is passed as [`UnixSeconds`],
//! randomness as a `rand_core` generator. All outside input is bounded and becomes a value or an
//! error, never a panic.

mod authority;
mod cidr;
mod codec;
pub mod counters;
mod credential;
mod endpoint;
mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod ids;
mod invite;
mod keys;
mod mandate;
mod name_pattern;
pub mod planted;
#[cfg(test)]
mod recorded;
mod revocation;
mod revoked;
mod rotation;
mod seed;
mod settings;
mod signing;
mod succession;
#[cfg(test)]
mod testing;
mod text;
mod words;

pub use authority::{AuthorityKey, AuthoritySignature, Chain, Endorsement, MAX_ENDORSEMENTS};
pub use cidr::Cidr;
pub use credential::{
    Credential, Delegation, Grant, Issued, MAX_CLOCK_SKEW_S, MAX_CREDENTIAL_BYTES, Subject,
};
pub use endpoint::{Endpoint, Host, MAX_HOST_BYTES};
pub use error::Error;
pub use ids::{
    GroupName, InnerAddr, ListenerName, MAX_NAME_BYTES, MAX_ROLES, MeshId, NodeId, NodeName, Role,
    RoleName, Roles, ServiceName, SiteName, UnixSeconds, VerifyKey, VirtualName,
};
pub use invite::{Invite, InviteParams, Join, MAX_ENDPOINTS, MAX_INVITE_BYTES, MAX_SEEDS, Seed};
pub use keys::{DelegationKey, MeshSecret, NodeKey, RecordKey, Signature};
pub use mandate::{MAX_TURNS, Mandate, Terms, Turn};
pub use name_pattern::NamePattern;
pub use revocation::{
    Added, MAX_REVOCATION_BYTES, MAX_REVOCATIONS, MAX_SUCCESSIONS, Revocation, Revocations, Revoked,
};
pub use rotation::{MAX_NEXT_SECRET_BYTES, MeshSecrets, NextSecret, Rotation, SecretId};
pub use seed::NamedSeed;
pub use settings::{
    AdminSettings, Allow, Defaults, Difference, DiscoverySettings, EgressSettings, EventsSettings,
    ExposeRule, ExposeSettings, HealthMode, HealthSettings, HttpUrl, KubeletSettings, LogFormat,
    LogLevel, LogSettings, MAX_ADVERTISE, MAX_ALLOW, MAX_CIDRS, MAX_EGRESS_NODES, MAX_EGRESS_UIDS,
    MAX_EXPOSED, MAX_FALLBACK, MAX_KUBELET_ADDRESSES, MAX_LISTEN, MAX_NAMES, MAX_NETWORKS,
    MAX_OUTSIDE, MAX_PINNED, MAX_PROBLEMS, MAX_RULES, MAX_SERVICES, MAX_SETTINGS_BYTES,
    MAX_SETTINGS_SEEDS, MAX_SHARDS, MAX_VIRTUAL_ADDRESSES, MAX_WEIGHT, MeshSettings, NodeAddress,
    Period, Pin, Policy, Problem, ProblemKind, ProxyHeader, ServiceSettings, Settings, SocketMode,
    VirtualAddressSettings, Weight, parse, parse_leniently, parse_with, reference,
};
pub use succession::Succession;
pub use text::{TextError, wrap};
