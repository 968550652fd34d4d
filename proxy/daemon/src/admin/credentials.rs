//! The answers of `meshport credentials`, `renew`, `rotate-secret` and `rotate-key`, as data.
//!
//! The same rules as in [`super::api`]: fields are only ever added, times are Unix seconds.

use std::fmt;

use meshport_config::{Credential, NodeId, NodeName, Roles, SiteName, UnixSeconds, VerifyKey};
use meshport_core::renewal::warning_s;
use serde::{Deserialize, Serialize};
use zeroize::Zeroize;

use super::request::{Kind, Request, verbs};

/// A certificate with less validity left causes a warning, in seconds.
const ENDS_SOON_S: u64 = 30 * 86_400;

verbs! {
    RenewRequest, "/renew", Command, RenewReport;
    RotateRequest, "/rotate-secret", Command, RotateReport;
    RotateKeyRequest, "/rotate-key", Command, RotateKeyReport;
}

/// Keeps the secret field of a request out of logs, and erases it from memory.
macro_rules! secret {
    ($($name:ident: $field:ident;)*) => {
        $(
            impl fmt::Debug for $name {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str(concat!(stringify!($name), "(redacted)"))
                }
            }

            impl Drop for $name {
                fn drop(&mut self) {
                    self.$field.zeroize();
                }
            }
        )*
    };
}

secret! {
    MandateRequest: mandate;
    RotateRequest: next;
    RotateKeyRequest: identity;
}

/// The validity of a credential.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Validity {
    /// It is valid.
    Valid,
    /// It is valid, and expires soon.
    EndsSoon,
    /// It has expired.
    Ended,
    /// It was revoked, by the authority or because the node has a new key. This is final.
    Revoked,
}

impl Validity {
    /// The validity of a certificate, which expires soon if 30 days are left.
    pub fn of(expires_at: UnixSeconds, now: UnixSeconds) -> Self {
        Self::before(expires_at, ENDS_SOON_S, now)
    }

    /// The validity of a node's credential that is not revoked: see [`warning_s`].
    pub fn of_node(credential: &Credential, now: UnixSeconds) -> Self {
        Self::before(credential.expires_at, warning_s(credential), now)
    }

    fn before(expires_at: UnixSeconds, soon_s: u64, now: UnixSeconds) -> Self {
        match expires_at.seconds_since(now) {
            0 => Self::Ended,
            left_s if left_s < soon_s => Self::EndsSoon,
            _ => Self::Valid,
        }
    }

    /// The name in answers.
    pub fn word(self) -> &'static str {
        match self {
            Self::Valid => "valid",
            Self::EndsSoon => "expires soon",
            Self::Ended => "expired",
            Self::Revoked => "revoked",
        }
    }
}

/// `meshport credentials`: a credential or a revocation. A revocation has the key, and the name if
/// the node was known then.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CredentialRow {
    /// The node; absent for a revoked invite.
    pub node: Option<NodeId>,
    /// The name in it.
    pub name: Option<NodeName>,
    /// The site in it.
    pub site: Option<SiteName>,
    /// The roles in it.
    pub roles: Option<Roles>,
    /// The key of the invite it was made with; absent when the authority itself signed.
    pub invite: Option<VerifyKey>,
    /// The endorsed authority key it was signed under; absent for the mesh's first key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authority: Option<VerifyKey>,
    /// Whether it is the daemon's own.
    pub own: bool,
    /// When it was issued.
    pub issued_at: Option<UnixSeconds>,
    /// When it expires.
    pub expires_at: Option<UnixSeconds>,
    /// Time at which the authority revoked it, or its node changed its key.
    pub revoked_at: Option<UnixSeconds>,
    /// The node that continues in its place with a new key.
    #[serde(default)]
    pub successor: Option<NodeId>,
    /// Whether its node has left the mesh by its own statement; it is revoked then.
    #[serde(default)]
    pub left: bool,
    /// Its validity.
    pub validity: Validity,
    /// The number of the mesh secret that its holder reported; absent until it reports one.
    #[serde(default)]
    pub secret_number: Option<u64>,
}

/// A request of `meshport renew`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenewRequest {
    /// The credential, `meshport-credential-2....`
    pub credential: String,
}

/// The result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenewReport {
    /// Expiry of the credential in use.
    pub expires_at: UnixSeconds,
    /// Whether the daemon did not know it before.
    pub is_new: bool,
    /// Whether the daemon has stored it. Releases before 0.1 leave that to the client.
    #[serde(default)]
    pub is_stored: bool,
}

/// How this node's credential is renewed by issuers, in `meshport status`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenewalStatus {
    /// Members that are up and have the role issuer, this node included if it holds a mandate.
    pub issuers: usize,
    /// When this node starts to ask them; absent without issuers.
    pub due_at: Option<UnixSeconds>,
    /// Consecutive rounds in which none of them renewed it.
    pub failed_rounds: u32,
    /// The last failure; absent if there is none.
    pub problem: Option<String>,
    /// When this node's own mandate expires; absent if it has none.
    pub mandate_ends_at: Option<UnixSeconds>,
}

/// A request of `meshport delegate --install`.
#[derive(Clone, Serialize, Deserialize)]
pub struct MandateRequest {
    /// The line of the mandate, `meshport-mandate-1....`
    pub mandate: String,
}

impl Request for MandateRequest {
    const PATH: &'static str = "/mandate";
    const KIND: Kind = Kind::Command;
    type Reply = MandateReport;

    /// A mandate has 4,000 bytes at most before base64.
    const MAX_BODY_BYTES: usize = 8 * 1024;
}

/// The result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MandateReport {
    /// When the mandate in use expires.
    pub until: UnixSeconds,
    /// Whether the daemon did not know it before.
    pub is_new: bool,
    /// Whether the daemon has stored it. Releases before 0.1 leave that to the client.
    #[serde(default)]
    pub is_stored: bool,
}

/// The mesh secret in force, in `meshport status`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretStatus {
    /// Increases with every rotation; 0 for the first.
    pub number: u64,
    /// When the authority signed it; absent for the first.
    pub rotated_at: Option<UnixSeconds>,
    /// Time until which the previous one also opens tunnels; absent if there is none.
    pub former_ends_at: Option<UnixSeconds>,
    /// Number of members not known to have the new secret, while there is a previous one. Those
    /// that are alive and have no tunnel to this node are left to others.
    pub lagging: usize,
    /// The first of them by name.
    pub lagging_names: Vec<String>,
}

/// A request of `meshport rotate-secret`.
#[derive(Clone, Serialize, Deserialize)]
pub struct RotateRequest {
    /// The line with the new secret, `meshport-next-secret-1....`
    pub next: String,
}

/// The result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RotateReport {
    /// The number of the secret in force.
    pub number: u64,
    /// Time until which the previous one also opens tunnels; absent if there is none.
    pub former_ends_at: Option<UnixSeconds>,
    /// Whether the daemon did not know it before.
    pub is_new: bool,
}

/// The key that a node had before its current one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormerKey {
    /// The node with that key.
    pub node: NodeId,
    /// Time at which it is erased.
    pub ends_at: UnixSeconds,
}

/// A request of `meshport rotate-key`.
#[derive(Clone, Serialize, Deserialize)]
pub struct RotateKeyRequest {
    /// The new keys and the credential, as the file `node.next` has them.
    pub identity: String,
    /// How long the previous key also answers, in seconds.
    pub overlap_s: u64,
}

/// The result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RotateKeyReport {
    /// The node with its current key.
    pub node: NodeId,
    /// Its previous key, while that still answers.
    pub former: Option<FormerKey>,
    /// Whether that was news to the daemon.
    pub is_new: bool,
}

#[cfg(test)]
mod tests {
    use meshport_config::{AuthorityKey, Mandate, Terms};
    use meshport_core::testing::{WALL, credential};
    use rand_core::OsRng;

    use super::*;

    #[test]
    fn a_mandate_for_a_year_with_long_roles_is_not_too_long() {
        let service = |number: u8| format!("origin:{}{number}", "s".repeat(60));
        let roles: Vec<String> = (1..=9).map(service).collect();
        let length = |days: u64| {
            let terms = Terms {
                issuer: credential(3, "node").node,
                roles: roles.join(",").parse().expect("roles"),
                site: None,
                lifetime_s: 30 * 86_400,
                from: WALL,
                until: WALL.saturating_add(days * 86_400),
            };
            let authority = AuthorityKey::from_bytes([9; 32]);
            let mandate = Mandate::create(&authority, &terms, &mut OsRng).expect("it fits");
            let mandate = mandate.to_text().expect("it fits").to_string();
            serde_json::to_string(&MandateRequest { mandate }).expect("plain data").len()
        };
        // The limit of 0.0.10, which takes shorter ones.
        assert!(length(120) <= 4096 && length(365) > 4096);
        assert!(length(365) <= MandateRequest::MAX_BODY_BYTES);
    }
}
