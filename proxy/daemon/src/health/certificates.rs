//! Asks every origin of a service for its certificate, in parallel.

use std::time::Duration;

use meshport_config::ServiceName;
use meshport_mesh::Mesh;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::Error;
use crate::admin::api::OriginRef;
use crate::admin::certificates::OriginCertificate;
use crate::health::handshake::CertificateError;
use crate::sessions::attempt::{self, Target};
use crate::tcp::Host;
use meshport_core::route::Candidate;

/// How long one origin may take: enough for a handshake through a new tunnel on any path, with one
/// lost packet.
pub const LIMIT: Duration = Duration::from_secs(3);
/// Origins of one service that are asked; a control plane has 3 to 7.
const MAX_ASKED: usize = 64;
/// Concurrent requests in this process; they come from operators, who are few.
const MAX_UNDER_WAY: usize = 4;

static UNDER_WAY: Semaphore = Semaphore::const_new(MAX_UNDER_WAY);

/// The origin to ask, and the path to it.
#[derive(Debug)]
pub(crate) struct Origins {
    pub(crate) origins: Vec<(OriginRef, Candidate)>,
    /// The address of the local instance, if this node has one.
    pub(crate) local_instance: Option<String>,
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
            let read = timeout(limit, attempt::certificate(&target)).await;
            let read = read.unwrap_or(Err(CertificateError::Late(limit)));
            (at, OriginCertificate::new(who, read))
        });
    }
    let mut answers = asked.join_all().await;
    answers.sort_by_key(|(at, _)| *at);
    answers.into_iter().map(|(_, answer)| answer).collect()
}
