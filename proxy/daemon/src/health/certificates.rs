//! Asks every origin of a service for its certificate, in parallel.

use std::time::Duration;

use data_encoding::BASE64;
use meshport_config::ServiceName;
use meshport_mesh::{Mesh, Stream};
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

/// Reads the certificate of a candidate's instance over the path that a session would take. The
/// caller bounds the time.
async fn over_path(target: &Target) -> Result<Vec<u8>, CertificateError> {
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
        if let Some(certificate) = handshake.certificate() {
            // The certificate has arrived, so an error while closing does not matter.
            let _ = send(&mut link, &mut handshake).await;
            if let Connection::Mesh(Stream { mut send, .. }) = link.take_connection() {
                let _ = send.finish();
            }
            return Ok(certificate);
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
