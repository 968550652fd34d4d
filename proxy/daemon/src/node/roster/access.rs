//! Access to a cluster from a kubeconfig: CA, server name and client credentials.
//!
//! Its `server` is not dialled; it only gives the name to verify where `tls-server-name` is absent.
//! An IP address there belongs to one apiserver, while any may answer, so a name that apiservers
//! usually have is also accepted. Programs (`exec`) are not run. Relative files are resolved from
//! the kubeconfig's folder, like kubectl does.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use data_encoding::BASE64;
use hyper::header::HeaderValue;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::Value;
use tokio_rustls::TlsConnector;
use zeroize::Zeroizing;

use crate::health::certificate::USUAL_NAMES;

/// The largest file that is read, in bytes: kubeconfigs of many clusters have 100 KiB.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// How to talk to the cluster of a kubeconfig's current context.
pub(super) struct Access {
    pub(super) tls: TlsConnector,
    /// The names one of which the certificate has to have, the kubeconfig's own first.
    pub(super) names: Vec<ServerName<'static>>,
    pub(super) authorization: Option<HeaderValue>,
}

impl Access {
    /// Reads the file, and those it names.
    ///
    /// # Errors
    /// What is missing or cannot be used.
    pub(super) async fn read(path: &Path) -> Result<Self, String> {
        let bytes = file(path).await?;
        Self::of(&document(&bytes)?, folder_of(path)).await
    }

    async fn of(document: &Value, folder: &Path) -> Result<Self, String> {
        let context = document["current-context"].as_str().unwrap_or_default();
        let context = &named(document, "contexts", context)?["context"];
        let cluster = context["cluster"].as_str().unwrap_or_default();
        let cluster = &named(document, "clusters", cluster)?["cluster"];
        let user = context["user"].as_str().unwrap_or_default();
        let user = &named(document, "users", user)?["user"];

        let authority = pem(cluster, "certificate-authority", folder).await?;
        let authority = authority.ok_or("its cluster has no certificate-authority")?;
        let mut roots = rustls::RootCertStore::empty();
        for certificate in certificates(&authority)? {
            roots.add(certificate).map_err(|error| error.to_string())?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots);
        let certificate = pem(user, "client-certificate", folder).await?;
        let key = pem(user, "client-key", folder).await?;
        let mut config = match (certificate, key) {
            (Some(certificate), Some(key)) => {
                let key = PrivateKeyDer::from_pem_slice(&key)
                    .map_err(|_| "its client-key is no private key".to_owned())?;
                let chain = certificates(&certificate)?;
                builder.with_client_auth_cert(chain, key).map_err(|error| error.to_string())?
            }
            _ => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self {
            tls: TlsConnector::from(Arc::new(config)),
            names: names(cluster)?,
            authorization: authorization(user, folder).await?,
        })
    }
}

/// The files a kubeconfig names; none when it cannot be read.
pub(crate) fn files_of(path: &Path) -> Vec<PathBuf> {
    let Ok(bytes) = std::fs::read(path).map(Zeroizing::new) else { return Vec::new() };
    let Ok(document) = document(&bytes) else { return Vec::new() };
    let keys = ["certificate-authority", "client-certificate", "client-key", "tokenFile"];
    let lists = [("clusters", "cluster"), ("users", "user")];
    let mut files = Vec::new();
    for (list, entry) in lists {
        for each in document[list].as_array().into_iter().flatten() {
            let named = keys.iter().filter_map(|key| each[entry][*key].as_str());
            files.extend(named.map(|file| folder_of(path).join(file)));
        }
    }
    files
}

fn document(bytes: &[u8]) -> Result<Value, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not text".to_owned())?;
    yaml_serde::from_str(text).map_err(|_| "it is no YAML".to_owned())
}

fn folder_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("."))
}

/// The entry of a list that has this name.
fn named<'a>(document: &'a Value, list: &str, name: &str) -> Result<&'a Value, String> {
    let all = document[list].as_array().map(Vec::as_slice).unwrap_or_default();
    let found = all.iter().find(|entry| entry["name"] == name);
    found.ok_or_else(|| format!("it has no entry \"{name}\" in {list}"))
}

/// What stands in `KEY-data`, else in the file that `KEY` names.
async fn pem(from: &Value, key: &str, folder: &Path) -> Result<Option<Zeroizing<Vec<u8>>>, String> {
    if let Some(data) = from[format!("{key}-data")].as_str() {
        let decoded = BASE64.decode(data.trim().as_bytes());
        return decoded.map(|it| Some(it.into())).map_err(|_| format!("its {key}-data is damaged"));
    }
    match from[key].as_str() {
        Some(path) => file(&folder.join(path)).await.map(Some),
        None => Ok(None),
    }
}

async fn file(path: &Path) -> Result<Zeroizing<Vec<u8>>, String> {
    let problem = |error: std::io::Error| format!("{}: {error}", PathBuf::from(path).display());
    let length = tokio::fs::metadata(path).await.map_err(problem)?.len();
    if length > MAX_FILE_BYTES {
        return Err(format!("{} has {length} bytes, which is too large", path.display()));
    }
    tokio::fs::read(path).await.map(Zeroizing::new).map_err(problem)
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let all = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let all = all.map_err(|_| "a certificate of it is damaged".to_owned())?;
    if all.is_empty() { Err("a certificate of it is empty".into()) } else { Ok(all) }
}

/// The name that kubectl verifies, `tls-server-name` or else the host in `server`, and what may
/// stand in for an address.
fn names(cluster: &Value) -> Result<Vec<ServerName<'static>>, String> {
    let server = cluster["server"].as_str().unwrap_or_default();
    let host = server.split_once("://").map_or(server, |(_, rest)| rest);
    let host = host.split('/').next().unwrap_or_default();
    let host = match host.strip_prefix('[') {
        Some(ip) => ip.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let name = cluster["tls-server-name"].as_str().unwrap_or(host).to_owned();
    let name = ServerName::try_from(name).map_err(|_| "its cluster names no server")?;
    let usual = ServerName::try_from(USUAL_NAMES[0]).map_err(|error| error.to_string())?;
    let is_address = matches!(name, ServerName::IpAddress(_));
    Ok(std::iter::once(name).chain(is_address.then_some(usual)).collect())
}

async fn authorization(user: &Value, folder: &Path) -> Result<Option<HeaderValue>, String> {
    let token = match (user["tokenFile"].as_str(), user["token"].as_str()) {
        (Some(path), _) => {
            let bytes = file(&folder.join(path)).await?;
            String::from_utf8(bytes.to_vec()).map_err(|_| "its token is not text".to_owned())?
        }
        (None, Some(token)) => token.to_owned(),
        (None, None) => return Ok(None),
    };
    let token = Zeroizing::new(token);
    let text = Zeroizing::new(format!("Bearer {}", token.trim()));
    let mut value =
        HeaderValue::try_from(text.as_str()).map_err(|_| "its token is damaged".to_owned())?;
    value.set_sensitive(true);
    Ok(Some(value))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_verified_name_is_the_one_kubectl_verifies() {
        let usual = "kubernetes.default.svc";
        for (cluster, expected) in [
            (json!({"server": "https://127.0.0.1:7445"}), vec!["127.0.0.1", usual]),
            (json!({"server": "https://[fd00::1]:6443"}), vec!["fd00::1", usual]),
            (json!({"server": "https://api.example.com/k8s/c"}), vec!["api.example.com"]),
            (json!({"server": "https://x:1", "tls-server-name": "kubernetes"}), vec!["kubernetes"]),
        ] {
            let found = names(&cluster).expect("a name");
            assert_eq!(found.iter().map(ServerName::to_str).collect::<Vec<_>>(), expected);
        }
        assert!(names(&json!({})).is_err());
    }

    #[tokio::test]
    async fn a_kubeconfig_is_read_with_the_files_it_names() {
        let folder = tempfile::tempdir().expect("a folder");
        let key = rcgen::KeyPair::generate().expect("a key");
        let certificate = rcgen::CertificateParams::default().self_signed(&key).expect("signed");
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).expect("written");
        };
        write("ca.crt", &certificate.pem());
        write("token", "s3cret\n");
        let authority = BASE64.encode(certificate.pem().as_bytes());
        let client = BASE64.encode(key.serialize_pem().as_bytes());
        let text = |user: &str| {
            format!(
                "current-context: a\nclusters:\n- name: c\n  cluster: {{server: \
                 'https://10.0.0.1:6443', certificate-authority: ca.crt}}\ncontexts:\n- name: a\n  \
                 context: {{cluster: c, user: u}}\nusers:\n- name: u\n  user: {user}\n"
            )
        };
        write("config", &text("{tokenFile: token}"));
        let access = Access::read(&folder.path().join("config")).await.expect("readable");
        let value = access.authorization.expect("a token");
        assert_eq!(value, "Bearer s3cret");
        assert!(value.is_sensitive());
        let named = files_of(&folder.path().join("config"));
        assert_eq!(named, ["ca.crt", "token"].map(|name| folder.path().join(name)));
        assert!(files_of(&folder.path().join("token")).is_empty());
        let inline = format!("{{client-certificate-data: {authority}, client-key-data: {client}}}");
        write("config", &text(&inline));
        let access = Access::read(&folder.path().join("config")).await.expect("readable");
        assert!(access.authorization.is_none());

        for broken in ["{tokenFile: missing}", "{client-certificate-data: '%', client-key: x}"] {
            write("config", &text(broken));
            assert!(Access::read(&folder.path().join("config")).await.is_err(), "{broken}");
        }
        write("config", "current-context: nothing\n");
        assert!(Access::read(&folder.path().join("config")).await.is_err());
    }
}
