//! Access to a cluster from a kubeconfig: CA, server name and client credentials.
//!
//! Its `server` is not dialled; it only provides the name to verify if `tls-server-name` is absent.
//! That may be the name of one apiserver, but any may answer, so the usual name of apiservers is
//! accepted too. Programs (`exec`) are not run. Relative files are resolved from the kubeconfig's
//! folder, like kubectl does.

use std::io;
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
use crate::{files, http};

const AUTHORITY: &str = "certificate-authority";
const CERTIFICATE: &str = "client-certificate";
const KEY: &str = "client-key";
const TOKEN_FILE: &str = "tokenFile";

/// The largest file that a kubeconfig names, in bytes.
const MAX_FILE_BYTES: u64 = 1024 * 1024;
/// The largest kubeconfig, in bytes: those of many clusters have 100 KiB.
const MAX_KUBECONFIG_BYTES: u64 = 256 * 1024;
/// The most `[` and `{` in it, quoted ones included: the time that the parser takes grows with the
/// product of its length and the open ones. A kubeconfig of a thousand clusters has some thousands
/// if it is JSON, and hardly any otherwise.
const MAX_BRACKETS: usize = 8192;
/// The levels that the parser reads.
const MAX_LEVELS: usize = 128;
/// The beginning of its error beyond them.
const TOO_DEEP: &str = "recursion limit exceeded";

/// An error of a kubeconfig or of a file that it names. Messages call the kubeconfig "it" and
/// repeat nothing that could be a secret.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KubeconfigError {
    /// A file is missing or may not be read.
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("it is not YAML")]
    NotYaml,
    #[error("it is nested deeper than {MAX_LEVELS} levels")]
    TooDeep,
    #[error("it has more than {MAX_BRACKETS} opening brackets")]
    TooManyBrackets,
    /// It refers to an entry that does not exist.
    #[error("it has no entry \"{name}\" in {list}")]
    NoEntry { list: &'static str, name: String },
    #[error("its cluster has no certificate-authority")]
    NoAuthority,
    #[error("the server of its cluster has no host name or address")]
    NoServer,
    /// The value of this key is malformed.
    #[error("its {key} is damaged: expected {expected}")]
    Damaged { key: String, expected: &'static str },
    /// TLS cannot use a certificate or key in it.
    #[error("its certificates cannot be used: {0}")]
    Tls(#[from] rustls::Error),
}

/// How to access the cluster of a kubeconfig's current context.
pub(crate) struct Access {
    pub(crate) tls: TlsConnector,
    /// Accepted names in the certificate, the kubeconfig's own first.
    pub(crate) names: Vec<ServerName<'static>>,
    pub(crate) authorization: Option<HeaderValue>,
}

impl Access {
    /// Reads the file, and those it names.
    ///
    /// # Errors
    /// [`KubeconfigError`]: what is missing or cannot be used.
    pub(crate) async fn read(path: &Path) -> Result<Self, KubeconfigError> {
        let bytes = file(path, MAX_KUBECONFIG_BYTES).await?;
        Self::of(&document(&bytes)?, folder_of(path)).await
    }

    async fn of(document: &Value, folder: &Path) -> Result<Self, KubeconfigError> {
        let context = document["current-context"].as_str().unwrap_or_default();
        let context = &named(document, "contexts", context)?["context"];
        let cluster = context["cluster"].as_str().unwrap_or_default();
        let cluster = &named(document, "clusters", cluster)?["cluster"];
        let user = context["user"].as_str().unwrap_or_default();
        let user = &named(document, "users", user)?["user"];

        let authority = pem(cluster, AUTHORITY, folder).await?;
        let authority = authority.ok_or(KubeconfigError::NoAuthority)?;
        let mut roots = rustls::RootCertStore::empty();
        for certificate in certificates(&authority, AUTHORITY)? {
            roots.add(certificate)?;
        }
        let builder = http::tls_client().with_root_certificates(roots);
        let certificate = pem(user, CERTIFICATE, folder).await?;
        let key = pem(user, KEY, folder).await?;
        let mut config = match (certificate, key) {
            (Some(certificate), Some(key)) => {
                let key = PrivateKeyDer::from_pem_slice(&key)
                    .map_err(|_| damaged(KEY, "a private key in PEM"))?;
                builder.with_client_auth_cert(certificates(&certificate, CERTIFICATE)?, key)?
            }
            _ => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![http::ALPN.to_vec()];
        Ok(Self {
            tls: TlsConnector::from(Arc::new(config)),
            names: names(cluster)?,
            authorization: authorization(user, folder).await?,
        })
    }
}

/// The files a kubeconfig names; none when it cannot be read.
pub(crate) fn files_of(path: &Path) -> Vec<PathBuf> {
    let Ok(bytes) = files::read(path, MAX_KUBECONFIG_BYTES) else { return Vec::new() };
    let Ok(document) = document(&bytes) else { return Vec::new() };
    let keys = [AUTHORITY, CERTIFICATE, KEY, TOKEN_FILE];
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

fn document(bytes: &[u8]) -> Result<Value, KubeconfigError> {
    let text = std::str::from_utf8(bytes).map_err(|_| KubeconfigError::NotYaml)?;
    if text.matches(['[', '{']).count() > MAX_BRACKETS {
        return Err(KubeconfigError::TooManyBrackets);
    }
    yaml_serde::from_str(text).map_err(|error| {
        let is_deep = error.to_string().starts_with(TOO_DEEP);
        if is_deep { KubeconfigError::TooDeep } else { KubeconfigError::NotYaml }
    })
}

fn folder_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("."))
}

/// The entry of a list that has this name.
fn named<'a>(
    document: &'a Value,
    list: &'static str,
    name: &str,
) -> Result<&'a Value, KubeconfigError> {
    let all = document[list].as_array().map(Vec::as_slice).unwrap_or_default();
    let found = all.iter().find(|entry| entry["name"] == name);
    found.ok_or_else(|| KubeconfigError::NoEntry { list, name: name.to_owned() })
}

/// The content of `KEY-data`, else of the file that `KEY` names.
async fn pem(
    from: &Value,
    key: &str,
    folder: &Path,
) -> Result<Option<Zeroizing<Vec<u8>>>, KubeconfigError> {
    let inline = format!("{key}-data");
    if let Some(data) = from[&inline].as_str() {
        let decoded = BASE64.decode(data.trim().as_bytes());
        return decoded.map(|it| Some(it.into())).map_err(|_| damaged(&inline, "base64"));
    }
    match from[key].as_str() {
        Some(path) => file(&folder.join(path), MAX_FILE_BYTES).await.map(Some),
        None => Ok(None),
    }
}

async fn file(path: &Path, limit: u64) -> Result<Zeroizing<Vec<u8>>, KubeconfigError> {
    let problem = |source| KubeconfigError::File { path: path.to_owned(), source };
    files::read_aside(path.to_owned(), limit).await.map_err(problem)
}

/// The certificates in the value of a key, at least one.
fn certificates(pem: &[u8], key: &str) -> Result<Vec<CertificateDer<'static>>, KubeconfigError> {
    let all = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let all = all.ok().filter(|all| !all.is_empty());
    all.ok_or_else(|| damaged(key, "certificates in PEM"))
}

fn damaged(key: &str, expected: &'static str) -> KubeconfigError {
    KubeconfigError::Damaged { key: key.to_owned(), expected }
}

/// The name that kubectl verifies: `tls-server-name`, or else the host in `server`, for which the
/// usual name of apiservers may stand in.
fn names(cluster: &Value) -> Result<Vec<ServerName<'static>>, KubeconfigError> {
    let server = cluster["server"].as_str().unwrap_or_default();
    let host = server.split_once("://").map_or(server, |(_, rest)| rest);
    let host = host.split('/').next().unwrap_or_default();
    let host = match host.strip_prefix('[') {
        Some(ip) => ip.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let chosen = cluster["tls-server-name"].as_str();
    let name = chosen.unwrap_or(host).to_owned();
    let name = ServerName::try_from(name).map_err(|_| KubeconfigError::NoServer)?;
    let usual = ServerName::try_from(USUAL_NAMES[0]).ok();
    let usual = usual.filter(|usual| chosen.is_none() && *usual != name);
    Ok(std::iter::once(name).chain(usual).collect())
}

async fn authorization(
    user: &Value,
    folder: &Path,
) -> Result<Option<HeaderValue>, KubeconfigError> {
    let token = match (user[TOKEN_FILE].as_str(), user["token"].as_str()) {
        (Some(path), _) => file(&folder.join(path), MAX_FILE_BYTES).await?,
        (None, Some(token)) => Zeroizing::new(token.as_bytes().to_vec()),
        (None, None) => return Ok(None),
    };
    let header = Zeroizing::new([b"Bearer ", token.trim_ascii()].concat());
    let mut value =
        HeaderValue::from_bytes(&header).map_err(|_| damaged("token", "one line of ASCII"))?;
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
            (json!({"server": "https://cp-1:6443"}), vec!["cp-1", usual]),
            (json!({"server": "https://api.example.com/k8s/c"}), vec!["api.example.com", usual]),
            (json!({"server": "https://x:1", "tls-server-name": "cp-1"}), vec!["cp-1"]),
            (json!({"server": "https://kubernetes.default.svc:6443"}), vec![usual]),
        ] {
            let found = names(&cluster).expect("a name");
            assert_eq!(found.iter().map(ServerName::to_str).collect::<Vec<_>>(), expected);
        }
        assert!(names(&json!({})).is_err());
    }

    #[test]
    fn deep_nesting_is_refused_and_quoted_brackets_nest_nothing() {
        let flow = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        let block = |levels: usize| "- ".repeat(levels) + "a";
        let said = |text: &str| document(text.as_bytes()).err().map(|it| it.to_string());
        let deep = Some("it is nested deeper than 128 levels".to_owned());
        for nested in [flow, block] {
            assert_eq!(said(&nested(MAX_LEVELS)), None);
            assert_eq!(said(&nested(MAX_LEVELS + 1)), deep);
        }
        assert_eq!(said(&block(100_000)), deep);
        assert_eq!(said(&format!("a: '{}'", "[".repeat(1000))), None);
        assert_eq!(said("a: ["), Some("it is not YAML".into()));
        let many = said(&flow(100_000)).expect("it would take seconds");
        assert_eq!(many, "it has more than 8192 opening brackets");
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
