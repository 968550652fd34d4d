//! Endpoints: an IP address or DNS name, and a port.
//!
//! Pure: nothing is resolved here. A constructed endpoint is well formed: its name is lower case
//! and its port is not 0.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use crate::ids::is_label;
use crate::text::{TextError, text_form};

#[cfg(test)]
mod tests;

/// The longest DNS name in text form, in bytes (RFC 1035, 2.3.4).
pub const MAX_HOST_BYTES: usize = 253;

const WHAT: &str = "an endpoint";
const FORM: &str =
    "an address and port, such as 203.0.113.5:51820, [2001:db8::1]:51820 or seed.example.com:51820";

/// The host part of an [`Endpoint`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// An address.
    Ip(IpAddr),
    /// A DNS name, which the connecting side resolves repeatedly.
    Name(String),
}

/// A host and a port other than 0.
///
/// The text forms are `203.0.113.5:51820`, `[2001:db8::1]:51820` and `seed.example.com:51820`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    host: Host,
    port: u16,
}

impl Endpoint {
    /// From its parts; a name is converted to lower case.
    ///
    /// # Errors
    /// [`TextError::Form`] for a malformed DNS name or port 0.
    pub fn new(host: Host, port: u16) -> Result<Self, TextError> {
        let host = match host {
            Host::Name(name) => Host::Name(checked_name(&name)?),
            Host::Ip(ip) => Host::Ip(ip),
        };
        if port == 0 {
            return Err(wrong(&with_port(&host, port)));
        }
        Ok(Self { host, port })
    }

    /// The host part.
    pub const fn host(&self) -> &Host {
        &self.host
    }

    /// The port, 1 to 65535.
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The address, if it is not a name.
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        match self.host {
            Host::Ip(ip) => Some(SocketAddr::new(ip, self.port)),
            Host::Name(_) => None,
        }
    }
}

impl TryFrom<SocketAddr> for Endpoint {
    type Error = TextError;

    /// The same address and port; an IPv6 scope is left out.
    fn try_from(addr: SocketAddr) -> Result<Self, TextError> {
        Self::new(Host::Ip(addr.ip()), addr.port())
    }
}

impl FromStr for Endpoint {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let (host, port) = text.rsplit_once(':').ok_or_else(|| wrong(text))?;
        let is_port = (1..=5).contains(&port.len()) && port.bytes().all(|b| b.is_ascii_digit());
        let port = port.parse().ok().filter(|_| is_port).ok_or_else(|| wrong(text))?;
        let host = match host.strip_prefix('[') {
            Some(bracketed) => {
                let inside = bracketed.strip_suffix(']').ok_or_else(|| wrong(text))?;
                Host::Ip(inside.parse::<Ipv6Addr>().map_err(|_| wrong(text))?.into())
            }
            None => match host.parse::<std::net::Ipv4Addr>() {
                Ok(ip) => Host::Ip(ip.into()),
                Err(_) => Host::Name(checked_name(host).map_err(|_| wrong(text))?),
            },
        };
        if port == 0 {
            return Err(wrong(text));
        }
        Ok(Self { host, port })
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(ip) => ip.fmt(f),
            Self::Name(name) => f.pad(name),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&with_port(&self.host, self.port))
    }
}

text_form!(Endpoint);

fn with_port(host: &Host, port: u16) -> String {
    match host {
        Host::Ip(IpAddr::V6(ip)) => format!("[{ip}]:{port}"),
        host => format!("{host}:{port}"),
    }
}

fn wrong(text: &str) -> TextError {
    TextError::form(WHAT, text, FORM)
}

/// A DNS name in lower case: labels as in host names, and not a mistyped IPv4 address (its last
/// label is not a number; RFC 1123, 2.1).
fn checked_name(name: &str) -> Result<String, TextError> {
    let lower = name.to_ascii_lowercase();
    let is_number = |label: &str| label.bytes().all(|b| b.is_ascii_digit());
    let is_valid = lower.len() <= MAX_HOST_BYTES
        && lower.split('.').all(is_label)
        && lower.rsplit('.').next().is_some_and(|last| !is_number(last));
    if is_valid { Ok(lower) } else { Err(wrong(name)) }
}
