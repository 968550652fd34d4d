//! `[events]`: where events of the journal are posted.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::tables::{parsed, reachable, url_path};
use crate::TextError;
use crate::endpoint::Endpoint;

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

    /// For messages: without the path, in which many receivers expect a token.
    #[must_use]
    pub fn redacted(&self) -> Self {
        Self { path: "/REDACTED".into(), ..self.clone() }
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

table! {
    /// Destination of events. None by default.
    EventsSettings, KEYS;
    url: Option<HttpUrl> = None,
        "url" is optional!(URL_FORM, parsed), example "\"https://hooks.example.com/meshport\"",
        as secret,
        "URL to post this node's events to as JSON: nodes that came, left, were refused or \
         revoked; route changes, instances, resets. Off by default.";
    ca_file: Option<PathBuf> = None,
        "ca-file" is optional_path!(), example "\"/etc/meshport/hooks-ca.crt\"",
        "CA certificates (PEM) that verify the server's certificate. Default: those of the system.";
    per_minute: u32 = 12, "per-minute" is number!(1, 600, "posts"),
        "Maximum posts per minute to each receiver. Each carries all waiting events, at most 32.";
    kubernetes: bool = false, "kubernetes" is flag!(),
        "Write route changes, changes of the local instance and resets as Events of this node's \
         Node object, with `cluster-kubeconfig`.";
}

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
