//! Identities, credentials and settings.
//!
//! Ids and names, keys, credentials and invites, and the settings file: formats, parsing and
//! validation. Pure: no I/O, no clock, no randomness of its own. Wall time comes in as
//! [`UnixSeconds`], random bytes as a `rand_core` generator. Everything read from outside is
//! bounded and becomes a value or an error, never a panic.

mod codec;
mod credential;
mod endpoint;
mod error;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod ids;
mod invite;
mod keys;
mod link;
pub mod planted;
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

pub use credential::{
    Credential, Delegation, Grant, Issued, MAX_CLOCK_SKEW_S, MAX_CREDENTIAL_BYTES, Subject,
};
pub use endpoint::{Endpoint, Host, MAX_HOST_BYTES};
pub use error::Error;
pub use ids::{
    InnerAddr, MAX_NAME_BYTES, MAX_ROLES, MeshId, NodeId, NodeName, Role, Roles, ServiceName,
    SiteName, UnixSeconds, VerifyKey,
};
pub use invite::{Invite, InviteParams, Join, MAX_ENDPOINTS, MAX_INVITE_BYTES, MAX_SEEDS, Seed};
pub use keys::{AuthorityKey, DelegationKey, MeshSecret, NodeKey, RecordKey, Signature};
pub use link::Link;
pub use revocation::{
    Added, MAX_REVOCATION_BYTES, MAX_REVOCATIONS, MAX_SUCCESSIONS, Revocation, Revocations, Revoked,
};
pub use rotation::{MAX_NEXT_SECRET_BYTES, MeshSecrets, NextSecret, Rotation, SecretId};
pub use seed::NamedSeed;
pub use settings::{
    AdminSettings, Allow, Defaults, Difference, DiscoverySettings, HealthMode, HealthSettings,
    LogFormat, LogLevel, LogSettings, MAX_ADVERTISE, MAX_ALLOW, MAX_FALLBACK, MAX_LISTEN,
    MAX_PINNED, MAX_PROBLEMS, MAX_SERVICES, MAX_SETTINGS_BYTES, MAX_SETTINGS_SEEDS, MAX_SHARDS,
    MeshSettings, Period, Pin, Policy, Problem, ProblemKind, ServiceSettings, Settings, parse,
    parse_leniently, parse_with, reference,
};
pub use succession::Succession;
pub use text::TextError;
