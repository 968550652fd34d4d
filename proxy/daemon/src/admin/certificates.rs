//! The certificates that the origins of a service present, as data.
//!
//! The same rules as in [`super::api`]: fields are only ever added.

use data_encoding::BASE64;
use meshport_config::ServiceName;
use serde::{Deserialize, Serialize};

use super::api::OriginRef;
use super::request::{Kind, Request};
use crate::health::certificate::Certificate;
use crate::health::handshake::CertificateError;

/// The service whose origins are asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificatesRequest {
    /// Its name.
    pub service: ServiceName,
}

impl Request for CertificatesRequest {
    const PATH: &'static str = "/certificates";
    const KIND: Kind = Kind::Command;
    type Reply = Vec<OriginCertificate>;
}

/// The certificate that one origin presented in a TLS handshake. Nothing in it is verified.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginCertificate {
    /// The origin.
    #[serde(flatten)]
    pub who: OriginRef,
    /// Its certificate, DER in base64; absent when none was read.
    pub certificate: Option<String>,
    /// Why none was read.
    pub problem: Option<String>,
}

impl OriginCertificate {
    /// The answer of one origin.
    pub fn new(who: OriginRef, read: Result<Vec<u8>, CertificateError>) -> Self {
        match read {
            Ok(der) => Self { who, certificate: Some(BASE64.encode(&der)), problem: None },
            Err(error) => Self { who, certificate: None, problem: Some(error.to_string()) },
        }
    }

    /// The certificate, or the error.
    ///
    /// # Errors
    /// [`CertificateError::Reported`], [`CertificateError::Malformed`].
    pub fn read(&self) -> Result<Certificate, CertificateError> {
        let Some(text) = &self.certificate else {
            let problem = self.problem.as_deref().unwrap_or("it showed no certificate");
            return Err(CertificateError::Reported(problem.to_owned()));
        };
        let der = BASE64.decode(text.as_bytes()).ok();
        der.and_then(|der| Certificate::read(&der)).ok_or(CertificateError::Malformed)
    }
}
