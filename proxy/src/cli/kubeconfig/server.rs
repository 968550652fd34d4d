//! The address in a kubeconfig's `server`, and the name that its certificate is verified for.

use std::net::IpAddr;
use std::path::Path;

use data_encoding::BASE64;
use meshport_daemon::health::certificate::Authorities;
use serde_json::{Map, Value};

use crate::cli::textfile;

/// The CA of a cluster; `None` if it has none, or an unreadable one, or verifies nothing. As in
/// kubectl, the data precedes the file.
pub(super) fn authorities(cluster: &Map<String, Value>) -> Option<Authorities> {
    if cluster.get("insecure-skip-tls-verify").and_then(Value::as_bool) == Some(true) {
        return None;
    }
    let text = |key| cluster.get(key)?.as_str().filter(|text| !text.is_empty());
    let pem = match text("certificate-authority-data") {
        Some(data) => {
            let data: Vec<u8> = data.bytes().filter(|it| !it.is_ascii_whitespace()).collect();
            BASE64.decode(&data).ok()?
        }
        None => textfile::read(Path::new(text("certificate-authority")?)).ok()??.into_bytes(),
    };
    Authorities::read(&pem)
}

/// Why a `server` is not an apiserver's address, as the object of "has".
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ServerError {
    #[error("no server")]
    Missing,
    #[error("a server that is not an https:// address, {0}")]
    Scheme(String),
    #[error(
        "a server URL with a path, {0}: a proxy answers there. Choose a context for the apiserver \
         itself"
    )]
    Path(String),
    #[error("a server with an invalid host, {0}")]
    Host(String),
    #[error("a server with an invalid port, {0}")]
    Port(String),
}

/// `https://host[:port]` of an apiserver. The local address leads to TLS servers only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServerUrl {
    /// A DNS name or an IP address, without brackets.
    pub(super) host: String,
    port: u16,
}

impl ServerUrl {
    /// Reads a `server`.
    pub(super) fn parse(text: &str) -> Result<Self, ServerError> {
        if text.is_empty() {
            return Err(ServerError::Missing);
        }
        let Some(rest) = text.strip_prefix("https://") else {
            return Err(ServerError::Scheme(text.to_owned()));
        };
        let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        if !matches!(path, "" | "/") {
            return Err(ServerError::Path(text.to_owned()));
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => rest.split_once(']').unwrap_or_default(),
            None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
        };
        let port = port.strip_prefix(':').map_or(Ok(443), str::parse);
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let is_good =
            !host.is_empty() && (host.parse::<IpAddr>().is_ok() || host.chars().all(is_name));
        if !is_good || authority.contains('@') {
            return Err(ServerError::Host(text.to_owned()));
        }
        let port = port.map_err(|_| ServerError::Port(text.to_owned()))?;
        Ok(Self { host: host.to_owned(), port })
    }

    /// Whether it leads to this machine.
    pub(super) fn is_this_machine(&self) -> bool {
        match self.host.parse::<IpAddr>() {
            Ok(ip) => ip.is_loopback(),
            Err(_a_name) => self.host.eq_ignore_ascii_case("localhost"),
        }
    }

    /// The address to dial.
    pub(super) fn address(&self) -> String {
        let Self { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    /// The name that a client of the source context verifies; `None` if it verifies none.
    pub(super) fn verified_as(&self, cluster: &Map<String, Value>) -> Option<String> {
        let unverified = cluster.get("insecure-skip-tls-verify").and_then(Value::as_bool);
        if unverified == Some(true) {
            return None;
        }
        let set = cluster.get("tls-server-name").and_then(Value::as_str);
        Some(set.filter(|name| !name.is_empty()).unwrap_or(&self.host).to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn host(text: &str) -> Result<String, ServerError> {
        ServerUrl::parse(text).map(|server| server.host)
    }

    fn verified(server: &str, cluster: &Value) -> Option<String> {
        let server = ServerUrl::parse(server).expect("a server");
        server.verified_as(cluster.as_object().expect("a mapping"))
    }

    #[test]
    fn hosts_are_read() {
        assert_eq!(host("https://10.0.0.1:6443").as_deref(), Ok("10.0.0.1"));
        assert_eq!(host("https://api.example.com").as_deref(), Ok("api.example.com"));
        assert_eq!(host("https://[fd00::1]:6443/").as_deref(), Ok("fd00::1"));
        for bad in ["", "10.0.0.1:6443", "http://a", "https://", "https://[::1", "https://u:p@h:1"]
        {
            assert!(host(bad).is_err(), "{bad}");
        }
        let address = |text: &str| ServerUrl::parse(text).map(|server| server.address());
        assert_eq!(address("https://api.example.com").as_deref(), Ok("api.example.com:443"));
        assert_eq!(address("https://[fd00::1]:6443/").as_deref(), Ok("[fd00::1]:6443"));
        assert!(address("https://10.0.0.1:port").is_err());
        let error = host("https://rancher.example.com/k8s/clusters/c-1").expect_err("a path");
        assert!(matches!(error, ServerError::Path(_)), "{error}");
    }

    #[test]
    fn this_machine_is_known() {
        for (text, expected) in [
            ("https://127.0.0.1:7445", true),
            ("https://[::1]:1", true),
            ("https://localhost:1", true),
            ("https://10.0.0.1:1", false),
            ("https://local.example.com", false),
        ] {
            let server = ServerUrl::parse(text).expect("a server");
            assert_eq!(server.is_this_machine(), expected, "{text}");
        }
    }

    #[test]
    fn the_ca_is_read_as_kubectl_reads_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let key = rcgen::KeyPair::generate().expect("a key");
        let made = rcgen::CertificateParams::default().self_signed(&key).expect("signed");
        let path = folder.path().join("ca.crt");
        std::fs::write(&path, made.pem()).expect("written");
        let (path, data) = (path.to_string_lossy(), BASE64.encode(made.pem().as_bytes()));
        let read = |cluster: Value| authorities(cluster.as_object().expect("a mapping"));
        let expected = Authorities::read(made.pem().as_bytes());
        assert!(expected.is_some());
        assert_eq!(read(json!({"certificate-authority": path})), expected);
        assert_eq!(read(json!({"certificate-authority-data": data})), expected);
        for without in [
            json!({}),
            json!({"certificate-authority": "/none"}),
            json!({"certificate-authority-data": "Q0E=", "certificate-authority": path}),
            json!({"certificate-authority-data": data, "insecure-skip-tls-verify": true}),
        ] {
            assert_eq!(read(without), None);
        }
    }

    #[test]
    fn the_name_that_was_verified_is_verified_again() {
        let plain = json!({});
        let name = |text: &str| Some(text.to_owned());
        assert_eq!(verified("https://api.example.com:6443", &plain), name("api.example.com"));
        assert_eq!(verified("https://10.0.0.1:6443", &plain), name("10.0.0.1"));
        assert_eq!(verified("https://[fd00::1]:6443", &plain), name("fd00::1"));
        let set = json!({"tls-server-name": "kubernetes.default.svc"});
        assert_eq!(verified("https://10.0.0.1:6443", &set), name("kubernetes.default.svc"));
        let unverified = json!({"insecure-skip-tls-verify": true});
        assert_eq!(verified("https://10.0.0.1:6443", &unverified), None);
    }
}
