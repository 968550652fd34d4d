//! Whether the authorities that a client trusts signed a server's certificate.

use std::time::Duration;

use meshport_config::UnixSeconds;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use webpki::{EndEntityCert, Error, KeyUsage, anchor_from_trusted_cert};

use super::{Certificate, der};

/// The certificates of the authorities that a client trusts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authorities(Vec<CertificateDer<'static>>);

impl Authorities {
    /// Reads them from PEM; `None` if there is none, or one that cannot be verified with here.
    pub fn read(pem: &[u8]) -> Option<Self> {
        let all: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().ok()?;
        let is_usable = |it| anchor_from_trusted_cert(it).is_ok();
        (!all.is_empty() && all.iter().all(is_usable)).then_some(Self(all))
    }

    /// Whether clients refuse the certificate because none of these signed it. False in doubt:
    /// without the intermediate certificates, and for those that are refused for another reason.
    pub fn disown(&self, certificate: &Certificate, now: UnixSeconds) -> bool {
        let Certificate { leaf, intermediates: Some(intermediates) } = certificate else {
            return false;
        };
        let anchors = self.0.iter().map(anchor_from_trusted_cert).collect::<Result<Vec<_>, _>>();
        // Kubernetes clients accept a server's own certificate as its authority.
        let (Ok(anchors), Ok(end), false) =
            (anchors, EndEntityCert::try_from(leaf), self.0.contains(leaf))
        else {
            return false;
        };
        let algorithms = ring::default_provider().signature_verification_algorithms.all;
        // Who signed one that has expired is known only at a time at which it was valid.
        let valid = certificate.ends_at().map_or(now, |end| now.min(end));
        let time = UnixTime::since_unix_epoch(Duration::from_secs(valid.0));
        let usage = KeyUsage::server_auth();
        let path =
            end.verify_for_usage(algorithms, &anchors, intermediates, time, usage, None, None);
        match path.err() {
            Some(Error::UnknownIssuer | Error::InvalidSignatureForPublicKey) => true,
            // One that `openssl req -x509` made. This library verifies no such certificate, but
            // Kubernetes clients accept it from an authority of theirs.
            Some(Error::CaUsedAsEndEntity) => {
                let pairs = anchors.iter().zip(&self.0);
                let mut named = pairs.filter(|(anchor, _)| *anchor.subject == *end.issuer());
                intermediates.is_empty() && !named.any(|(_, authority)| signed(authority, leaf))
            }
            _ => false,
        }
    }
}

/// Whether the key of an authority signed a certificate; true in doubt.
fn signed(authority: &CertificateDer<'_>, certificate: &CertificateDer<'_>) -> bool {
    let (Ok(authority), Some((fields, signature))) =
        (EndEntityCert::try_from(authority), der::signed(certificate))
    else {
        return true;
    };
    let mut algorithms = ring::default_provider().signature_verification_algorithms.all.iter();
    algorithms.any(|it| authority.verify_signature(*it, fields, signature).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

    const NOW: UnixSeconds = UnixSeconds(1_800_000_000);

    type Authority = (rcgen::Certificate, Issuer<'static, KeyPair>);

    fn params(subject: &str, is_ca: bool) -> CertificateParams {
        let mut params = CertificateParams::new(vec!["kubernetes".to_owned()]).expect("a name");
        params.distinguished_name.push(rcgen::DnType::CommonName, subject);
        if is_ca {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        }
        params
    }

    fn authority(subject: &str) -> Authority {
        let (key, params) = (KeyPair::generate().expect("a key"), params(subject, true));
        (params.self_signed(&key).expect("signed"), Issuer::new(params, key))
    }

    fn below(authority: &Authority, subject: &str) -> Authority {
        let (key, params) = (KeyPair::generate().expect("a key"), params(subject, true));
        let made = params.signed_by(&key, &authority.1).expect("signed");
        (made, Issuer::new(params, key))
    }

    fn server(authority: &Authority, is_ca: bool) -> rcgen::Certificate {
        let key = KeyPair::generate().expect("a key");
        params("kube-apiserver", is_ca).signed_by(&key, &authority.1).expect("signed")
    }

    fn self_signed(is_ca: bool) -> rcgen::Certificate {
        let key = KeyPair::generate().expect("a key");
        params("kube-apiserver", is_ca).self_signed(&key).expect("signed")
    }

    fn disowned(by: &[&rcgen::Certificate], chain: &[&rcgen::Certificate]) -> bool {
        let pem: String = by.iter().map(|it| it.pem()).collect();
        let chain = chain.iter().map(|it| it.der().clone()).collect();
        let chain = Certificate::of_chain(chain).expect("a certificate");
        Authorities::read(pem.as_bytes()).expect("authorities").disown(&chain, NOW)
    }

    #[test]
    fn a_certificate_of_another_authority_is_disowned() {
        let (ours, theirs) = (authority("kubernetes"), authority("other"));
        assert!(!disowned(&[&ours.0], &[&server(&ours, false)]));
        assert!(!disowned(&[&theirs.0, &ours.0], &[&server(&ours, false)]), "one of a bundle");
        assert!(disowned(&[&ours.0], &[&server(&theirs, false)]));
        // kubeadm gives every cluster's authority the same name.
        assert!(disowned(&[&ours.0], &[&server(&authority("kubernetes"), false)]));
        assert!(disowned(&[&ours.0], &[&self_signed(false)]));
        assert!(disowned(&[&ours.0], &[&self_signed(true)]), "`openssl req -x509` makes such");
        let named_alike = authority("kubernetes").0;
        assert!(disowned(&[&ours.0], &[&named_alike]), "also with the name of the authority");
    }

    #[test]
    fn intermediate_certificates_count() {
        let (ours, theirs) = (authority("kubernetes"), authority("other"));
        let between = below(&ours, "between");
        let leaf = server(&between, false);
        assert!(!disowned(&[&ours.0], &[&leaf, &between.0]));
        assert!(disowned(&[&theirs.0], &[&leaf, &between.0]));
        assert!(disowned(&[&ours.0], &[&leaf]), "the server does not send it");
        let alone = Certificate::read(leaf.der()).expect("a certificate");
        let ours = Authorities::read(ours.0.pem().as_bytes()).expect("an authority");
        assert!(!ours.disown(&alone, NOW), "an older daemon does not report it");
    }

    #[test]
    fn what_clients_accept_or_refuse_for_other_reasons_is_not_disowned() {
        let ours = authority("kubernetes");
        for is_ca in [false, true] {
            let own = self_signed(is_ca);
            assert!(!disowned(&[&own], &[&own]));
        }
        assert!(!disowned(&[&ours.0], &[&server(&ours, true)]));
        let key = KeyPair::generate().expect("a key");
        let made = || params("kubernetes", true).self_signed(&key).expect("signed");
        assert!(!disowned(&[&made()], &[&made()]), "made again with the same key");
        assert_eq!(Authorities::read(b"no PEM"), None);
    }

    #[test]
    fn one_that_has_expired_is_disowned_by_other_authorities_only() {
        let (ours, theirs) = (authority("kubernetes"), authority("kubernetes"));
        let key = KeyPair::generate().expect("a key");
        let mut params = params("kube-apiserver", false);
        params.not_after = rcgen::date_time_ymd(2020, 1, 1);
        let ended = params.clone().signed_by(&key, &ours.1).expect("signed");
        assert!(!disowned(&[&ours.0], &[&ended]), "that it expired is another finding");
        assert!(disowned(&[&theirs.0], &[&ended]));
        assert!(disowned(&[&ours.0], &[&params.self_signed(&key).expect("signed")]));
    }
}
