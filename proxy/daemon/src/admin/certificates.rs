//! The certificates that the origins of a service show, as data.
//!
//! The same rules as in [`super::api`]: fields are only ever added.

use data_encoding::BASE64;
use meshport_config::ServiceName;
use serde::{Deserialize, Serialize};

use super::api::OriginRef;
use super::request::{Kind, Request};
use crate::health::certificate::Certificate;

/// Which service's origins are asked.
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

/// What one origin showed in a TLS handshake. Nothing in it is verified.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OriginCertificate {
    /// Which one.
    #[serde(flatten)]
    pub who: OriginRef,
    /// Its certificate, DER in base64; absent when none was read.
    pub certificate: Option<String>,
    /// Why none was read.
    pub problem: Option<String>,
}

impl OriginCertificate {
    /// The answer of one origin.
    pub fn new(who: OriginRef, read: Result<Vec<u8>, String>) -> Self {
        match read {
            Ok(der) => Self { who, certificate: Some(BASE64.encode(&der)), problem: None },
            Err(problem) => Self { who, certificate: None, problem: Some(problem) },
        }
    }

    /// The certificate, or why there is none.
    ///
    /// # Errors
    /// The problem in words.
    pub fn read(&self) -> Result<Certificate, String> {
        let Some(text) = &self.certificate else {
            return Err(self.problem.clone().unwrap_or_else(|| "it showed no certificate".into()));
        };
        let der = BASE64.decode(text.as_bytes()).ok();
        der.and_then(|der| Certificate::read(&der))
            .ok_or_else(|| "its certificate cannot be read".into())
    }
}
