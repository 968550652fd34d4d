//! Identities: public keys, names, roles, wall time, inner addresses.
//!
//! Public keys and names are newtypes whose text form parses back to the same value. A constructed
//! name is valid: parsing and deserialising check it, so later code need not. In human-readable
//! formats (JSON) ids are text; in binary ones (postcard) they are their bytes.

mod names;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;
use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use data_encoding::BASE64;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

use crate::text::TextError;

pub(crate) use self::names::is_label;
pub use self::names::{
    GroupName, ListenerName, MAX_NAME_BYTES, MAX_ROLES, NodeName, Role, RoleName, Roles,
    ServiceName, SiteName, VirtualName,
};

/// The form in which keys are accepted.
const KEY_FORM: &str = "32 bytes in base64: 44 characters, as `wg` prints keys";
/// Separates the hash of a mesh's address prefix from every other hash.
const PREFIX_DOMAIN: &[u8] = b"meshport inner prefix v1\0";
/// Separates the hash of a node's inner address from every other hash.
const ADDRESS_DOMAIN: &[u8] = b"meshport inner address v1\0";
/// How many characters of a key distinguish nodes in logs.
const SHORT_CHARS: usize = 8;

/// 32 bytes in standard base64 with padding, in its one valid form.
pub(crate) fn key_from_text(text: &str) -> Option<[u8; 32]> {
    if text.len() != 44 {
        return None;
    }
    let mut bytes = [0; 33];
    let length = BASE64.decode_mut(text.as_bytes(), &mut bytes).ok()?;
    let (key, rest) = bytes.split_first_chunk()?;
    (length == 32 && rest.len() == 1).then_some(*key)
}

macro_rules! public_key {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name([u8; 32]);

        /// Byte order. The first eight bytes nearly always decide, and are compared as one number,
        /// which is several times as fast as a call to `memcmp`.
        impl Ord for $name {
            fn cmp(&self, other: &Self) -> Ordering {
                let first = |key: &[u8; 32]| {
                    u64::from_be_bytes(*key.first_chunk().expect("a key has 32 bytes"))
                };
                first(&self.0).cmp(&first(&other.0)).then_with(|| self.0.cmp(&other.0))
            }
        }

        impl PartialOrd for $name {
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }

        impl $name {
            /// From the key's 32 bytes.
            pub const fn from_bytes(bytes: [u8; 32]) -> Self {
                Self(bytes)
            }

            /// The key's 32 bytes.
            pub const fn as_bytes(&self) -> &[u8; 32] {
                &self.0
            }

            /// The first 8 characters of the text form, for logs and tables.
            pub fn short(&self) -> String {
                let mut text = self.to_string();
                text.truncate(SHORT_CHARS);
                text
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&BASE64.encode(&self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.short())
            }
        }

        impl FromStr for $name {
            type Err = TextError;

            fn from_str(text: &str) -> Result<Self, TextError> {
                key_from_text(text).map(Self).ok_or_else(|| TextError::form($what, text, KEY_FORM))
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                if serializer.is_human_readable() {
                    serializer.collect_str(self)
                } else {
                    self.0.serialize(serializer)
                }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                if deserializer.is_human_readable() {
                    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
                } else {
                    <[u8; 32]>::deserialize(deserializer).map(Self)
                }
            }
        }
    };
}

public_key! {
    /// A node: its X25519 public key, which is also its WireGuard public key.
    ///
    /// The text form is standard base64 with padding, 44 characters, as `wg` prints keys.
    NodeId, "a node id"
}
public_key! {
    /// A mesh: the Ed25519 public key of its authority. Text form as of [`NodeId`].
    MeshId, "a mesh id"
}
public_key! {
    /// An Ed25519 public key that signs under an authority: of a delegation, or of a node's
    /// records. Text form as of [`NodeId`]. Whether it is a usable key shows only when it verifies
    /// a signature.
    VerifyKey, "an Ed25519 public key"
}

impl MeshId {
    /// The same key, for verifying the authority's signatures.
    pub const fn verify_key(&self) -> VerifyKey {
        VerifyKey(self.0)
    }
}

/// Wall-clock time, in whole seconds since 1970-01-01T00:00:00Z. For credentials and logs only;
/// everything else measures with a monotonic clock.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct UnixSeconds(pub u64);

impl UnixSeconds {
    /// This many seconds later, at most the end of time.
    #[must_use]
    pub const fn saturating_add(self, seconds: u64) -> Self {
        Self(self.0.saturating_add(seconds))
    }

    /// Seconds from `earlier` to this; 0 when it is not earlier.
    pub const fn seconds_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// As UTC in RFC 3339 form, `2026-11-21T08:25:47Z`.
impl fmt::Display for UnixSeconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, second) = (self.0 / 86_400, self.0 % 86_400);
        let (year, month, day) = civil_date(days);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar.
///
/// Years are counted from March, so that the leap day is a year's last day and the month lengths
/// follow a straight line (Howard Hinnant, "chrono-compatible low-level date algorithms").
fn civil_date(days: u64) -> (u64, u64, u64) {
    const DAYS_TO_1970: u64 = 719_468; // from 0000-03-01
    const DAYS_PER_ERA: u64 = 146_097; // 400 years
    let shifted = days + DAYS_TO_1970;
    let (era, day_of_era) = (shifted / DAYS_PER_ERA, shifted % DAYS_PER_ERA);
    let leap_days = day_of_era / 1460 + day_of_era / 146_096 - day_of_era / 36_524;
    let year_of_era = (day_of_era - leap_days) / 365;
    let first_day = 365 * year_of_era + year_of_era / 4 - year_of_era / 100;
    let day_of_year = day_of_era - first_day;
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

/// A node's address inside the mesh: IPv6 in the unique local range (RFC 4193).
///
/// `fd`, then 40 bits of a hash of the mesh id (together the mesh's /48), then 80 bits of a hash of
/// mesh id and node id. Everyone computes it; nobody assigns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InnerAddr(Ipv6Addr);

impl InnerAddr {
    /// The address of `node` in `mesh`.
    pub fn derive(mesh: &MeshId, node: &NodeId) -> Self {
        let prefix = Sha256::new().chain_update(PREFIX_DOMAIN).chain_update(mesh.0).finalize();
        let host = Sha256::new()
            .chain_update(ADDRESS_DOMAIN)
            .chain_update(mesh.0)
            .chain_update(node.0)
            .finalize();
        let mut octets = [0; 16];
        octets[0] = 0xfd;
        octets[1..6].copy_from_slice(&prefix[..5]);
        octets[6..].copy_from_slice(&host[..10]);
        Self(Ipv6Addr::from(octets))
    }

    /// As a plain IPv6 address.
    pub const fn ip(&self) -> Ipv6Addr {
        self.0
    }
}

impl fmt::Display for InnerAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
