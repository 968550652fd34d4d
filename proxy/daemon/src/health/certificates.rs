//! Asks every origin of a service for its certificate, in parallel.

use std::time::Duration;

use data_encoding::BASE64;
use meshport_config::ServiceName;
use meshport_mesh::{Mesh, Stream};
use rustls::pki_types::CertificateDer;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::Error;
use crate::admin::api::OriginRef;
use crate::admin::certificates::OriginCertificate;
use crate::health::certificate::Certificate;
use crate::health::handshake::{CertificateError, Handshake};
use crate::sessions::attempt::{Connection, Failure, Link, Target};
use crate::tcp::Host;
use meshport_core::route::Candidate;

/// Limit for one origin: enough for a handshake through a new tunnel on any path, with one lost
/// packet.
pub const LIMIT: Duration = Duration::from_secs(3);
/// Origins of one service that are asked; a control plane has 3 to 7.
const MAX_ASKED: usize = 64;
/// Intermediate certificates of one origin in an answer, and their size; real chains have up to 3.
const MAX_INTERMEDIATES: usize = 8;
const MAX_INTERMEDIATE_BYTES: usize = 16 * 1024;
/// Concurrent requests in this process; only operators send them.
const MAX_UNDER_WAY: usize = 4;

static UNDER_WAY: Semaphore = Semaphore::const_new(MAX_UNDER_WAY);

/// The origin to ask, and the path to it.
#[derive(Debug)]
pub(crate) struct Origins {
    pub(crate) origins: Vec<(OriginRef, Candidate)>,
    /// The address of the local instance, if this node has one.
    pub(crate) local_instance: Option<String>,
}

impl OriginCertificate {
    /// The answer of one origin, with its own certificate first.
    pub fn new(
        who: OriginRef,
        read: Result<Vec<CertificateDer<'static>>, CertificateError>,
    ) -> Self {
        let chain = match read {
            Ok(chain) => chain,
            Err(error) => {
                let problem = Some(error.to_string());
                return Self { who, certificate: None, intermediates: None, problem };
            }
        };
        let mut texts = chain.iter().map(|der| BASE64.encode(der));
        let certificate = texts.next();
        let sizes = chain.iter().skip(1).map(|der| der.len());
        let fits =
            chain.len() <= 1 + MAX_INTERMEDIATES && sizes.sum::<usize>() <= MAX_INTERMEDIATE_BYTES;
        let intermediates = fits.then(|| texts.collect());
        Self { who, certificate, intermediates, problem: None }
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
        let der = |text: &String| BASE64.decode(text.as_bytes()).ok();
        let read = der(text).and_then(|der| Certificate::read(&der));
        let certificate = read.ok_or(CertificateError::Malformed)?;
        let intermediates = self
            .intermediates
            .as_ref()
            .and_then(|all| all.iter().map(|text| der(text).map(CertificateDer::from)).collect());
        Ok(certificate.with(intermediates))
    }
}

/// Asks all origins, then answers.
pub(crate) fn start(
    mesh: Mesh,
    service: ServiceName,
    origins: Result<Origins, Error>,
    answer: oneshot::Sender<Result<Vec<OriginCertificate>, Error>>,
) {
    let busy = |_| Error::Refused("too many requests at once; try again later".into());
    let admitted = origins.and_then(|it| Ok((it, UNDER_WAY.try_acquire().map_err(busy)?)));
    let (origins, permit) = match admitted {
        Ok(admitted) => admitted,
        Err(why) => {
            // The requester may have left.
            let _ = answer.send(Err(why));
            return;
        }
    };
    tokio::spawn(async move {
        let _permit = permit;
        let _ = answer.send(Ok(ask(&mesh, &service, origins, LIMIT).await));
    });
}

/// The answers of all origins, in order; each may take up to `limit`.
pub(crate) async fn ask(
    mesh: &Mesh,
    service: &ServiceName,
    origins: Origins,
    limit: Duration,
) -> Vec<OriginCertificate> {
    let Origins { origins, local_instance } = origins;
    let mut asked = JoinSet::new();
    for (at, (who, candidate)) in origins.into_iter().take(MAX_ASKED).enumerate() {
        let target = Target {
            mesh: mesh.clone(),
            host: Host::Kernel,
            service: service.clone(),
            line: candidate.origin.line,
            local_instance: local_instance.clone(),
            left: limit,
        };
        asked.spawn(async move {
            let read = timeout(limit, over_path(&target)).await;
            let read = read.unwrap_or(Err(CertificateError::Late(limit)));
            (at, OriginCertificate::new(who, read))
        });
    }
    let mut answers = asked.join_all().await;
    answers.sort_by_key(|(at, _)| *at);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

/// Reads the certificates of a candidate's instance over the path that a session would take. The
/// caller bounds the time.
async fn over_path(target: &Target) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let mut link = Link::open(target).await?;
    let mut handshake = Handshake::new()?;
    loop {
        send(&mut link, &mut handshake).await?;
        let Some(chunks) = link.recv().await? else { continue };
        if chunks.iter().all(bytes::Bytes::is_empty) {
            return Err(CertificateError::Closed);
        }
        for chunk in chunks {
            handshake.take(&chunk)?;
        }
        if let Some(chain) = handshake.chain() {
            // The certificate has arrived, so an error while closing does not matter.
            let _ = send(&mut link, &mut handshake).await;
            if let Connection::Mesh(Stream { mut send, .. }) = link.take_connection() {
                let _ = send.finish();
            }
            return Ok(chain);
        }
    }
}

async fn send(link: &mut Link, handshake: &mut Handshake) -> Result<(), Failure> {
    let bytes = handshake.outgoing();
    if !bytes.is_empty() {
        link.forward(bytes.into()).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_holds_the_intermediate_certificates_of_real_chains() {
        let who = OriginRef { node: None, name: "cp-1".into(), site: None, relay: None };
        let key = rcgen::KeyPair::generate().expect("a key");
        let made = rcgen::CertificateParams::default().self_signed(&key).expect("signed");
        let answer = |certificates| {
            let chain = vec![made.der().clone(); certificates];
            serde_json::to_value(OriginCertificate::new(who.clone(), Ok(chain))).expect("JSON")
        };
        let read = |value| {
            let answer: OriginCertificate = serde_json::from_value(value).expect("an answer");
            answer.read().expect("a certificate")
        };
        let of = |certificates| Certificate::of_chain(vec![made.der().clone(); certificates]);
        for certificates in [1, 3] {
            assert_eq!(Some(read(answer(certificates))), of(certificates));
        }
        // Too many, and a daemon that reports none.
        let alone = Certificate::read(made.der()).expect("a certificate");
        assert_eq!(read(answer(2 + MAX_INTERMEDIATES)), alone);
        let mut former = answer(3);
        former.as_object_mut().expect("an object").remove("intermediates");
        assert_eq!(read(former), alone);
    }
}
