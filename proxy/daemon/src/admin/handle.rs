//! The handle through which the admin server queries the running daemon.
//!
//! Questions travel over one bounded queue to the driver, which owns the core; answers come back on
//! a oneshot channel. A stopping daemon drops the questions, which the caller sees as
//! [`Error::Refused`].

use meshport_config::{Credential, NextSecret, Revocation, ServiceName};
use tokio::sync::{mpsc, oneshot};

use crate::Error;
use crate::admin::api::{
    DrainReport, DrainRequest, PeerRow, PingReport, PingRequest, ReloadReport, RevokeReport,
    Sample, SeedRow, ServiceStatus, Status,
};
use crate::admin::certificates::{CertificatesRequest, OriginCertificate};
use crate::admin::credentials::{CredentialRow, RenewReport, RotateKeyReport, RotateReport};

use crate::admin::explain::Explanation;
use crate::node::orders::Next;

/// Questions waiting for the driver. It answers between network events, so a handful suffices;
/// more askers wait at the door.
pub(crate) const MAX_QUESTIONS: usize = 64;

/// A question to the driver, with the channel its answer goes to.
#[derive(Debug)]
pub(crate) enum Question {
    Status(oneshot::Sender<Status>),
    Lacking(oneshot::Sender<Vec<ServiceName>>),
    Routes(oneshot::Sender<Vec<ServiceStatus>>),
    Explain(oneshot::Sender<Vec<Explanation>>),
    Peers(oneshot::Sender<Vec<PeerRow>>),
    Seeds(oneshot::Sender<Vec<SeedRow>>),
    Samples(oneshot::Sender<Vec<Sample>>),
    Credentials(oneshot::Sender<Vec<CredentialRow>>),
    Renew(Box<Credential>, oneshot::Sender<Result<RenewReport, String>>),
    Rotate(Box<NextSecret>, oneshot::Sender<Result<RotateReport, String>>),
    RotateKey(Next, oneshot::Sender<Result<RotateKeyReport, String>>),
    Drain(DrainRequest, oneshot::Sender<Result<DrainReport, String>>),
    Ping(PingRequest, oneshot::Sender<Result<PingReport, String>>),
    Certificates(CertificatesRequest, oneshot::Sender<Result<Vec<OriginCertificate>, String>>),
    Revoke(Revocation, oneshot::Sender<Result<RevokeReport, String>>),
}

/// A wish to read the configuration again, with the channel its outcome goes to.
pub(crate) type ReloadWish = oneshot::Sender<Result<ReloadReport, String>>;

/// Asks the running daemon. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Handle {
    questions: mpsc::Sender<Question>,
    /// To the process around the node, which has the configuration; a node alone has none.
    reloads: Option<mpsc::Sender<ReloadWish>>,
}

impl Handle {
    pub(crate) fn new() -> (Self, mpsc::Receiver<Question>) {
        let (questions, receiver) = mpsc::channel(MAX_QUESTIONS);
        (Self { questions, reloads: None }, receiver)
    }

    /// The same, in a process that can read its configuration again.
    pub(crate) fn with_reloads(self, reloads: mpsc::Sender<ReloadWish>) -> Self {
        Self { reloads: Some(reloads), ..self }
    }

    /// Reads the configuration again, as SIGHUP does, and says what came of it.
    ///
    /// # Errors
    /// As [`Handle::status`], and when the configuration has problems; nothing has changed then.
    pub async fn reload(&self) -> Result<ReloadReport, Error> {
        let (answer, receiver) = oneshot::channel();
        let reloads = self.reloads.as_ref().ok_or_else(stopping)?;
        reloads.send(answer).await.map_err(|_closed| stopping())?;
        receiver.await.map_err(|_dropped| stopping())?.map_err(Error::Refused)
    }

    /// The services that clients of this node use and that have no healthy origin now; so the
    /// daemon is ready when there are none, and lives when it answers at all.
    ///
    /// # Errors
    /// As [`Handle::status`].
    pub async fn lacking(&self) -> Result<Vec<ServiceName>, Error> {
        self.ask(Question::Lacking).await
    }

    /// The whole view.
    ///
    /// # Errors
    /// [`Error::Refused`] when the daemon is stopping; so for every question here.
    pub async fn status(&self) -> Result<Status, Error> {
        self.ask(Question::Status).await
    }

    /// Per service, the order in which a new session would try the origins.
    ///
    /// # Errors
    /// As [`Handle::status`].
    pub async fn routes(&self) -> Result<Vec<ServiceStatus>, Error> {
        self.ask(Question::Routes).await
    }

    /// Why the route of each service is what it is.
    ///
    /// # Errors
    /// As [`Handle::status`].
    pub async fn explain(&self) -> Result<Vec<Explanation>, Error> {
        self.ask(Question::Explain).await
    }

    /// Every node the mesh knows.
    ///
    /// # Errors
    /// As [`Handle::status`].
    pub async fn peers(&self) -> Result<Vec<PeerRow>, Error> {
        self.ask(Question::Peers).await
    }

    /// Every member that is not away, as others can begin with it; this node first.
    ///
    /// # Errors
    /// As [`Handle::status`].
    pub async fn seeds(&self) -> Result<Vec<SeedRow>, Error> {
        self.ask(Question::Seeds).await
    }

    /// All metrics.
    ///
    /// # Errors
    /// As [`Handle::status`].
    pub async fn samples(&self) -> Result<Vec<Sample>, Error> {
        self.ask(Question::Samples).await
    }

    /// Round trips through the tunnel to one node; answers when the last probe is back or given
    /// up.
    ///
    /// # Errors
    /// As [`Handle::status`], and [`Error::Usage`] when no other node is meant.
    pub async fn ping(&self, request: PingRequest) -> Result<PingReport, Error> {
        self.ask(|answer| Question::Ping(request, answer)).await?.map_err(Error::Usage)
    }

    /// The certificates that the origins of a service show; answers when all have, or had time to.
    ///
    /// # Errors
    /// As [`Handle::status`], and when this node has no such service.
    pub async fn certificates(
        &self,
        request: CertificatesRequest,
    ) -> Result<Vec<OriginCertificate>, Error> {
        self.ask(|answer| Question::Certificates(request, answer)).await?.map_err(Error::Refused)
    }

    /// Lets other nodes leave this node's instance of a service, or use it again.
    ///
    /// # Errors
    /// As [`Handle::status`], and when this node does not offer the service.
    pub async fn drain(&self, request: DrainRequest) -> Result<DrainReport, Error> {
        self.ask(|answer| Question::Drain(request, answer)).await?.map_err(Error::Refused)
    }

    /// Takes back what the authority says, in the whole mesh.
    ///
    /// # Errors
    /// As [`Handle::status`], and when the authority of this mesh has not signed it.
    pub async fn revoke(&self, revocation: Revocation) -> Result<RevokeReport, Error> {
        self.ask(|answer| Question::Revoke(revocation, answer)).await?.map_err(Error::Refused)
    }

    /// All the credentials this node knows, its own first.
    ///
    /// # Errors
    /// As [`Handle::status`].
    pub async fn credentials(&self) -> Result<Vec<CredentialRow>, Error> {
        self.ask(Question::Credentials).await
    }

    /// Takes a credential of this node into use, which is on disk already.
    ///
    /// # Errors
    /// As [`Handle::status`], and when it is not for this node or not valid.
    pub async fn renew(&self, credential: Credential) -> Result<RenewReport, Error> {
        let question = |answer| Question::Renew(Box::new(credential), answer);
        self.ask(question).await?.map_err(Error::Refused)
    }

    /// Gives the mesh a new secret; answers when it is kept here and in use.
    ///
    /// # Errors
    /// As [`Handle::status`], when the authority of this mesh has not signed it, and when it cannot
    /// be kept.
    pub async fn rotate(&self, next: NextSecret) -> Result<RotateReport, Error> {
        let question = |answer| Question::Rotate(Box::new(next), answer);
        self.ask(question).await?.map_err(Error::Refused)
    }

    /// Lets the node go on under a new key; answers when it is kept here and in use.
    ///
    /// # Errors
    /// As [`Handle::status`], when it is not the successor of this node, and when it cannot be
    /// kept.
    pub(crate) async fn rotate_key(&self, next: Next) -> Result<RotateKeyReport, Error> {
        self.ask(|answer| Question::RotateKey(next, answer)).await?.map_err(Error::Refused)
    }

    async fn ask<T>(
        &self,
        question: impl FnOnce(oneshot::Sender<T>) -> Question,
    ) -> Result<T, Error> {
        let (answer, receiver) = oneshot::channel();
        self.questions.send(question(answer)).await.map_err(|_closed| stopping())?;
        receiver.await.map_err(|_dropped| stopping())
    }
}

fn stopping() -> Error {
    Error::Refused("it is stopping; try again when it is back".into())
}
