//! `[events]`: where events of the journal are posted.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::schema::{Key, Kind};
use super::tables::{path, path_text, reachable, url_path};
use crate::TextError;
use crate::endpoint::Endpoint;

/// Destination of events. None by default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventsSettings {
    /// The URL for posts; none by default.
    pub url: Option<HttpUrl>,
    /// The certificates that verify the server's; by default those of the system.
    pub ca_file: Option<PathBuf>,
    /// Maximum posts per minute to each receiver, 1 to 600. Default 12.
    pub per_minute: u32,
    /// Whether events about this node become Events of its Node object. Needs the
    /// `cluster-kubeconfig` of a service. Default false.
    pub kubernetes: bool,
}

impl Default for EventsSettings {
    fn default() -> Self {
        Self { url: None, ca_file: None, per_minute: 12, kubernetes: false }
    }
}

/// An address of HTTP: `https://hooks.example.com/meshport`, `http://127.0.0.1:8080/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpUrl {
    is_tls: bool,
    endpoint: Endpoint,
    path: String,
}

impl HttpUrl {
    /// Whether the connection is encrypted.
    pub fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// The address to connect to.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// The path with its query.
    pub fn path(&self) -> &str {
        &self.path
    }
}

impl FromStr for HttpUrl {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Self, TextError> {
        let wrong = || TextError::form("a URL", text, URL_FORM);
        let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
        let (is_tls, port) = match scheme {
            "https" => (true, 443),
            "http" => (false, 80),
            _ => return Err(wrong()),
        };
        let at = rest.find('/').unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(at);
        // No user information: a password in the settings would be readable with them.
        if authority.contains('@') {
            return Err(wrong());
        }
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
        let whole = if has_port { authority.to_owned() } else { format!("{authority}:{port}") };
        let endpoint = reachable(&whole).ok_or_else(wrong)?;
        let path = url_path(if rest.is_empty() { "/" } else { rest }).ok_or_else(wrong)?;
        Ok(Self { is_tls, endpoint, path })
    }
}

impl fmt::Display for HttpUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.endpoint, self.path)
    }
}

const URL_FORM: &str = "an address such as \"https://hooks.example.com/meshport\"";

pub(super) const KEYS: &[Key<EventsSettings>] = &[
    Key {
        name: "url",
        about: "URL to post this node's events to as JSON: nodes that came, left, were refused or \
                revoked; route changes, instances, resets. Off by default.",
        example: Some("\"https://hooks.example.com/meshport\""),
        kind: Kind::Text {
            expected: URL_FORM,
            get: |from| from.url.as_ref().map(ToString::to_string),
            set: |into, text| text.parse().ok().map(|url| into.url = Some(url)),
        },
    },
    Key {
        name: "ca-file",
        about: "CA certificates (PEM) that verify the server's certificate. Default: those of the \
                system.",
        example: Some("\"/etc/meshport/hooks-ca.crt\""),
        kind: Kind::Text {
            expected: "a path",
            get: |from| from.ca_file.as_deref().map(path_text),
            set: |into, text| path(text).map(|file| into.ca_file = Some(file)),
        },
    },
    Key {
        name: "per-minute",
        about: "Maximum posts per minute to each receiver. Each carries all waiting events, at \
                most 32.",
        example: None,
        kind: Kind::Integer {
            min: 1,
            max: 600,
            unit: "posts",
            get: |from| from.per_minute,
            set: |into, value| into.per_minute = value,
        },
    },
    Key {
        name: "kubernetes",
        about: "Write route changes, changes of the local instance and resets as Events of this \
                node's Node object, with `cluster-kubeconfig`.",
        example: None,
        kind: Kind::Flag {
            get: |from| from.kubernetes,
            set: |into, value| into.kubernetes = value,
        },
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_and_written() {
        for (text, written) in [
            ("https://hooks.example.com", "https://hooks.example.com:443/"),
            ("http://127.0.0.1:8080/a?b=c", "http://127.0.0.1:8080/a?b=c"),
            ("http://[::1]/x", "http://[::1]:80/x"),
        ] {
            let url: HttpUrl = text.parse().expect("a URL");
            assert_eq!(url.to_string(), written);
            assert_eq!(written.parse::<HttpUrl>().expect("it is read again"), url);
        }
        for text in [
            "",
            "hooks.example.com",
            "ftp://a.example/",
            "https://",
            "https://u:p@a.example/",
            "https://0.0.0.0/",
            "http://a.example:0/",
            "http://a.example/a b",
            "http://a.example/#x",
        ] {
            assert!(text.parse::<HttpUrl>().is_err(), "{text}");
        }
    }
}
