//! The certificates of the stand-ins: one authority, and a leaf per origin that carries its name.
//!
//! Everything is PEM, because files, `curl --cacert` and kubeconfigs need PEM. Keys are ECDSA
//! P-256. The certificates are valid from 1975 to 4096, so no clock is needed to make them; they
//! only protect a demo.

use std::fs;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use zeroize::Zeroizing;

use meshport_daemon::Error;

/// The DNS names every stand-in's certificate carries, as an apiserver's does. The only other name
/// in it is the origin's.
const COMMON_NAMES: [&str; 5] = [
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];

/// The application protocols offered, best first.
const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The files of an authority that is shared through a folder.
const CERTIFICATE_FILE: &str = "ca.crt";
const KEY_FILE: &str = "ca.key";
const LOCK_FILE: &str = "lock";

/// A certificate authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

impl Authority {
    /// Makes a new authority.
    pub fn generate() -> Result<Self, Error> {
        let params = Self::params();
        let key = KeyPair::generate().map_err(cannot("make a key"))?;
        let certificate = params.self_signed(&key).map_err(cannot("sign an authority"))?;
        Ok(Self { pem: certificate.pem(), issuer: Issuer::new(params, key) })
    }

    /// The authority of a folder: `ca.crt` and `ca.key`, which are created if missing, as is the
    /// folder. Processes that share the folder share the authority, also when they start at the
    /// same moment.
    ///
    /// # Errors
    /// A file cannot be read or written, or the key is damaged.
    pub fn in_folder(folder: &Path) -> Result<Self, Error> {
        fs::create_dir_all(folder).map_err(Error::io(format!("make {}", folder.display())))?;
        let lock = fs::File::create(folder.join(LOCK_FILE));
        let _lock = lock
            .and_then(|file| file.lock().map(|()| file))
            .map_err(Error::io(format!("lock {}", folder.display())))?;
        let (certificate, key) = (folder.join(CERTIFICATE_FILE), folder.join(KEY_FILE));
        if key.exists() && certificate.exists() {
            let key = Zeroizing::new(read_file(&key)?);
            let key = KeyPair::from_pem(&key).map_err(|_| {
                Error::Usage(format!("{KEY_FILE} in {} is damaged", folder.display()))
            })?;
            return Ok(Self {
                pem: read_file(&certificate)?,
                issuer: Issuer::new(Self::params(), key),
            });
        }
        let authority = Self::generate()?;
        let pem = Zeroizing::new(authority.issuer.key().serialize_pem());
        write_file(&key, &pem, 0o600)?;
        write_file(&certificate, &authority.pem, 0o644)?;
        Ok(authority)
    }

    /// The same for each authority, so that one can be restored from its key alone.
    fn params() -> CertificateParams {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "meshport stand-in authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params
    }

    /// The authority's certificate, PEM.
    pub fn certificate_pem(&self) -> &str {
        &self.pem
    }

    /// Issues a server certificate for the origin `name`, for loopback addresses and the names an
    /// apiserver goes by.
    ///
    /// # Errors
    /// `name` is no DNS name in lower case, or is a name of every apiserver.
    pub fn issue_server(&self, name: &str) -> Result<Leaf, Error> {
        check_name(name)?;
        let mut params = CertificateParams::default();
        for dns in COMMON_NAMES.into_iter().chain([name]) {
            let dns = dns.try_into().map_err(cannot("name a certificate"))?;
            params.subject_alt_names.push(SanType::DnsName(dns));
        }
        for ip in [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)] {
            params.subject_alt_names.push(SanType::IpAddress(ip));
        }
        self.issue(name, params, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// Issues a client certificate.
    ///
    /// # Errors
    /// As for [`Authority::issue_server`].
    pub fn issue_client(&self, name: &str) -> Result<Leaf, Error> {
        check_name(name)?;
        self.issue(name, CertificateParams::default(), ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn issue(
        &self,
        name: &str,
        mut params: CertificateParams,
        purpose: ExtendedKeyUsagePurpose,
    ) -> Result<Leaf, Error> {
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![purpose];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().map_err(cannot("make a key"))?;
        let certificate =
            params.signed_by(&key, &self.issuer).map_err(cannot("sign a certificate"))?;
        Ok(Leaf {
            name: name.to_owned(),
            certificate: certificate.pem(),
            key: Zeroizing::new(key.serialize_pem()),
        })
    }
}

/// A certificate with its key, both PEM.
#[derive(Clone)]
pub struct Leaf {
    pub(super) name: String,
    certificate: String,
    key: Zeroizing<String>,
}

impl std::fmt::Debug for Leaf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leaf").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Leaf {
    /// Reads certificate and key from files written by [`Leaf::write`] or by another tool. `name`
    /// is the name that the stand-in reports.
    ///
    /// # Errors
    /// A file cannot be read. Its content is checked when it is used.
    pub fn read(name: &str, certificate: &Path, key: &Path) -> Result<Self, Error> {
        Ok(Self {
            name: name.to_owned(),
            certificate: read_file(certificate)?,
            key: Zeroizing::new(read_file(key)?),
        })
    }

    /// Writes both to files; the key file is readable by its owner only.
    pub fn write(&self, certificate: &Path, key: &Path) -> Result<(), Error> {
        write_file(certificate, &self.certificate, 0o644)?;
        write_file(key, &self.key, 0o600)
    }

    /// The name of the origin or client.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The certificate, PEM.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate
    }

    /// The private key, PEM.
    pub fn key_pem(&self) -> &str {
        &self.key
    }

    /// The chain and key as rustls takes them.
    ///
    /// # Errors
    /// One of them is no PEM of its kind.
    pub(super) fn to_rustls(
        &self,
    ) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), Error> {
        let damaged = |what: &str| Error::Usage(format!("the {what} of {} is damaged", self.name));
        let chain = CertificateDer::pem_slice_iter(self.certificate.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|_| damaged("certificate"))?;
        if chain.is_empty() {
            return Err(damaged("certificate"));
        }
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).map_err(|_| damaged("key"))?;
        Ok((chain, key))
    }

    /// Requests client certificates of `client_ca` (PEM), and verifies one that is sent.
    pub(super) fn server_config(&self, client_ca: Option<&str>) -> Result<ServerConfig, Error> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(cannot("choose TLS versions"))?;
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(pem) => {
                let roots = Arc::new(roots(pem)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider)
                    .allow_unauthenticated()
                    .build()
                    .map_err(cannot("verify client certificates"))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let (chain, key) = self.to_rustls()?;
        let mut config = builder
            .with_single_cert(chain, key)
            .map_err(|error| Error::Usage(format!("certificate of {}: {error}", self.name)))?;
        config.alpn_protocols = ALPN.iter().map(|protocol| protocol.to_vec()).collect();
        Ok(config)
    }
}

/// The trust anchors in a PEM text.
///
/// # Errors
/// There is none, or one of them is damaged.
pub fn roots(pem: &str) -> Result<RootCertStore, Error> {
    let damaged = || Error::Usage("the authority is not a PEM certificate".to_owned());
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        roots.add(certificate.map_err(|_| damaged())?).map_err(|_| damaged())?;
    }
    if roots.is_empty() { Err(damaged()) } else { Ok(roots) }
}

/// The origin's name in a stand-in's certificate: the DNS name that only this one has.
pub(crate) fn origin_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let certificate = webpki::EndEntityCert::try_from(certificate).ok()?;
    let name = certificate.valid_dns_names().find(|name| !COMMON_NAMES.contains(name))?;
    Some(name.to_owned())
}

fn read_file(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(Error::io(format!("read {}", path.display())))
}

fn write_file(path: &Path, text: &str, mode: u32) -> Result<(), Error> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(mode);
    options
        .open(path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(Error::io(format!("write {}", path.display())))
}

fn check_name(name: &str) -> Result<(), Error> {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    // A last label of digits alone would make it look like an IPv4 address.
    let last = name.rsplit('.').next().unwrap_or_default();
    let host = !last.bytes().all(|b| b.is_ascii_digit());
    // The common name of a certificate holds 64 bytes.
    if name.len() <= 64 && host && name.split('.').all(label) && !COMMON_NAMES.contains(&name) {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "{name:?} cannot name an origin: use a DNS name in lower case that is none of {}",
        COMMON_NAMES.join(", ")
    )))
}

/// These calls fail only without randomness or because of a bug of ours.
fn cannot<E: std::fmt::Display>(what: &str) -> impl FnOnce(E) -> Error {
    move |error| Error::Bug(format!("cannot {what}: {error}"))
}
