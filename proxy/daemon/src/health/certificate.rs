//! Names common to the certificates of all origins of a service.
//!
//! A client that moves to another origin verifies the same name there, so a name that only one
//! certificate has works until that origin fails. Pure: other modules fetch the certificates; this
//! one reads their names and trusts nothing. What signed them is in [`Authorities`].

mod authorities;
mod der;

use std::collections::BTreeSet;

use meshport_config::UnixSeconds;
use rustls::pki_types::{CertificateDer, ServerName};

pub use self::authorities::Authorities;

/// Names read from one certificate. Those of apiservers have 5 to 20.
const MAX_NAMES: usize = 256;
/// Names of apiservers inside their clusters, the most common first: kubeadm, k3s, RKE2, k0s, Talos
/// and kubespray put all four into every certificate.
pub const USUAL_NAMES: [&str; 4] = [
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
    "kubernetes.default",
    "kubernetes",
];

/// The certificate of one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    leaf: CertificateDer<'static>,
    /// Those that the server sent with it; absent if not known.
    intermediates: Option<Vec<CertificateDer<'static>>>,
}

impl Certificate {
    /// Parses a certificate in DER; `None` if it is invalid.
    pub fn read(der: &[u8]) -> Option<Self> {
        let leaf = CertificateDer::from(der.to_vec());
        let is_valid = webpki::EndEntityCert::try_from(&leaf).is_ok();
        is_valid.then_some(Self { leaf, intermediates: None })
    }

    /// Parses all that a server sent, its own certificate first.
    pub(crate) fn of_chain(mut chain: Vec<CertificateDer<'static>>) -> Option<Self> {
        let intermediates = chain.split_off(chain.len().min(1));
        Some(Self::read(chain.first()?)?.with(Some(intermediates)))
    }

    pub(crate) fn with(self, intermediates: Option<Vec<CertificateDer<'static>>>) -> Self {
        Self { intermediates, ..self }
    }

    /// Whether a client that verifies `name`, a DNS name or an IP address, accepts it.
    pub fn is_for(&self, name: &str) -> bool {
        let Ok(certificate) = webpki::EndEntityCert::try_from(&self.leaf) else { return false };
        ServerName::try_from(name)
            .is_ok_and(|name| certificate.verify_is_valid_for_subject_name(&name).is_ok())
    }

    /// Its expiry; `None` if its times cannot be read.
    pub fn ends_at(&self) -> Option<UnixSeconds> {
        der::ends_at(&self.leaf)
    }

    /// Its DNS names, without wildcards, as written there.
    pub fn names(&self) -> Vec<String> {
        let Ok(certificate) = webpki::EndEntityCert::try_from(&self.leaf) else {
            return Vec::new();
        };
        let names = certificate.valid_dns_names().filter(|name| !name.contains('*'));
        names.take(MAX_NAMES).map(str::to_owned).collect()
    }
}

/// The DNS names for which all certificates are valid, usual names first; empty without a
/// certificate.
pub fn common_names(certificates: &[Certificate]) -> Vec<String> {
    // A wildcard of one certificate may cover a name of another.
    let all: BTreeSet<String> = certificates.iter().flat_map(Certificate::names).collect();
    let shared = |name: &String| certificates.iter().all(|it| it.is_for(name));
    let mut common: Vec<String> = all.into_iter().filter(shared).collect();
    common.sort_by_key(|name| {
        USUAL_NAMES.iter().position(|usual| usual == name).unwrap_or(USUAL_NAMES.len())
    });
    common
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A certificate with these DNS names and IP addresses.
    fn certificate(names: &[&str]) -> Certificate {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let key = rcgen::KeyPair::generate().expect("a key");
        let made = rcgen::CertificateParams::new(names).expect("names").self_signed(&key);
        Certificate::read(made.expect("signed").der()).expect("a certificate")
    }

    #[test]
    fn a_name_counts_when_every_certificate_has_it() {
        let one = certificate(&["kubernetes", "kubernetes.default.svc", "cp-1", "10.77.0.11"]);
        let two = certificate(&["cp-2", "kubernetes.default.svc", "kubernetes", "10.77.0.12"]);
        let common = common_names(&[one.clone(), two.clone()]);
        assert_eq!(common, ["kubernetes.default.svc", "kubernetes"]);
        assert!(one.is_for("10.77.0.11") && !two.is_for("10.77.0.11"));
        assert_eq!(common_names(&[one])[2..], ["cp-1"]);
        assert_eq!(common_names(&[]), Vec::<String>::new());
    }

    #[test]
    fn wildcards_cover_names_and_are_none_themselves() {
        let wild = certificate(&["*.example.com"]);
        let exact = certificate(&["api.example.com", "a.b.example.com"]);
        assert_eq!(wild.names(), Vec::<String>::new());
        assert_eq!(common_names(&[wild, exact]), ["api.example.com"]);
    }

    #[test]
    fn nothing_in_common_and_no_certificate_are_said() {
        let apart = [certificate(&["cp-1"]), certificate(&["cp-2"])];
        assert_eq!(common_names(&apart), Vec::<String>::new());
        assert_eq!(Certificate::read(b"no certificate"), None);
        assert!(!apart[0].is_for("") && !apart[0].is_for("not a name"));
    }
}
