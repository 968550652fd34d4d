//! The certificates that the origins of a service present, as data.
//!
//! The same rules as in [`super::api`]: fields are only ever added.

use meshport_config::ServiceName;
use serde::{Deserialize, Serialize};

use super::api::OriginRef;
use super::request::verbs;

/// The service whose origins to ask.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificatesRequest {
    /// Its name.
    pub service: ServiceName,
}

verbs! { CertificatesRequest, "/certificates", Command, Vec<OriginCertificate>; }

/// The certificate that one origin presented in a TLS handshake. Nothing in it is verified.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginCertificate {
    /// The origin.
    #[serde(flatten)]
    pub who: OriginRef,
    /// Its certificate, DER in base64; absent when none was read.
    pub certificate: Option<String>,
    /// The intermediate certificates that it sent with it, DER in base64; absent when they are not
    /// known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intermediates: Option<Vec<String>>,
    /// Why none was read.
    pub problem: Option<String>,
}
