//! The handle through which others ask the running node.
//!
//! Queries go over one bounded queue to the driver, which owns the core; answers come back on a
//! oneshot channel. A stopping daemon drops the queries, which the caller sees as
//! [`Error::Refused`].

use meshport_config::Revocation;
use tokio::sync::{mpsc, oneshot};

use crate::Error;
use crate::admin::api::{PeerRow, RevokeReport, RevokeRequest, Status};
use crate::admin::metrics::Sample;
use crate::admin::queries::{PeersRequest, StatusRequest};
use crate::driver::Question;
use crate::driver::answers::{Answer, Ask, Samples};

/// Queries the running daemon. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Handle {
    questions: mpsc::Sender<Question>,
}

impl Handle {
    pub(crate) fn new(questions: mpsc::Sender<Question>) -> Self {
        Self { questions }
    }

    /// The whole view.
    ///
    /// # Errors
    /// [`Error::Refused`] when the daemon is stopping.
    pub async fn status(&self) -> Result<Status, Error> {
        self.ask(StatusRequest).await
    }

    /// Every node the mesh knows.
    pub async fn peers(&self) -> Result<Vec<PeerRow>, Error> {
        self.ask(PeersRequest).await
    }

    /// All metrics.
    pub async fn samples(&self) -> Result<Vec<Sample>, Error> {
        self.ask(Samples).await
    }

    /// Applies the authority's revocation and gossips it.
    ///
    /// # Errors
    /// As [`Handle::status`], and when the authority of this mesh has not signed it.
    pub async fn revoke(&self, revocation: &Revocation) -> Result<RevokeReport, Error> {
        self.ask(RevokeRequest { revocation: revocation.to_text() }).await
    }
}

impl Ask for Handle {
    async fn ask<Q: Answer>(&self, question: Q) -> Result<Q::Reply, Error> {
        let (to, answer) = oneshot::channel();
        let question = Question(Box::new(move |driver| question.answer(driver, to)));
        self.questions.send(question).await.map_err(|_closed| stopping())?;
        answer.await.map_err(|_dropped| stopping())?
    }
}

pub(crate) fn stopping() -> Error {
    Error::Refused("it is stopping; try again when it is back".into())
}
