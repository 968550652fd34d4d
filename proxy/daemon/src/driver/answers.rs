//! The driver's answers to all requests of the admin interface, and the table of them.

use std::pin::Pin;
use std::time::Duration;

use meshport_config::{
    Added, Credential, MAX_REVOCATIONS, NextSecret, NodeId, Revocation, Revocations, Revoked,
    ServiceName,
};
use meshport_core::ledger::Side;
use meshport_core::names;
use meshport_discovery::OriginState;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tracing::info;

use super::Driver;
use crate::Error;
use crate::admin::api::{
    DrainReport, DrainRequest, PingRequest, ReloadReport, RevokeReport, RevokeRequest,
    UpgradeReport,
};
use crate::admin::certificates::CertificatesRequest;
use crate::admin::credentials::{MandateRequest, RenewRequest, RotateKeyRequest, RotateRequest};
use crate::admin::inquire::InquireRequest;
use crate::admin::metrics::Sample;
use crate::admin::offers::OffersRequest;
use crate::admin::ping;
use crate::admin::queries::{
    CredentialsRequest, ExplainRequest, PeersRequest, ReloadRequest, RoutesRequest, SeedsRequest,
    StatsRequest, StatusRequest, UpgradeRequest,
};
use crate::admin::request::{Kind, Request};
use crate::admin::view::ViewRequest;
use crate::admin::wayback::WayRequest;
use crate::clock;
use crate::driver::write_queue::KeyWrite;
use crate::health::certificates;
use crate::inquiry::{self, Inquiry};
use crate::random;

/// The receiver of an answer, which may be gone.
pub(crate) type Asker<T> = oneshot::Sender<Result<T, Error>>;

/// Requests that only the process around a node can carry out.
#[derive(Debug)]
pub(crate) enum ProcessRequest {
    /// Reload the configuration.
    Reload(Asker<ReloadReport>),
    /// Replace this process with the program on disk.
    Upgrade(Asker<UpgradeReport>),
}

/// A query that the driver answers.
pub(crate) trait Answer: Send + 'static {
    /// The answer.
    type Reply: Send + 'static;

    /// Answers at once, or keeps the requester for a later answer.
    fn answer(self, driver: &mut Driver, to: Asker<Self::Reply>);
}

/// The handle of a running node, which answers queries.
pub(crate) trait Ask: Clone + Send + Sync + 'static {
    /// Waits for the answer.
    fn ask<Q: Answer>(&self, question: Q) -> impl Future<Output = Result<Q::Reply, Error>> + Send;
}

/// Why a request has no reply.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The body is not a valid request, for this reason.
    Malformed(String),
    /// It was not answered within this time.
    Late(Duration),
    /// The daemon refused it.
    Refused(Error),
}

/// The reply to a request, as JSON.
type Outcome<'a> = Pin<Box<dyn Future<Output = Result<String, Failure>> + Send + 'a>>;

/// One request of the admin interface, for the router.
pub(crate) struct Row<A> {
    pub(crate) path: &'static str,
    pub(crate) kind: Kind,
    /// The longest body, in bytes.
    pub(crate) max_body: usize,
    /// As [`Request::news`].
    pub(crate) news: fn(&str) -> Option<&str>,
    /// Answers a body, which is empty where the request has no parameters.
    pub(crate) serve: for<'a> fn(&'a A, &'a [u8]) -> Outcome<'a>,
    /// The type of the request.
    #[cfg(feature = "fuzzing")]
    pub(crate) id: std::any::TypeId,
}

impl<A: Ask> Row<A> {
    fn of<R: Request + Answer<Reply = <R as Request>::Reply>>() -> Self {
        Self {
            path: R::PATH,
            kind: R::KIND,
            max_body: R::MAX_BODY_BYTES,
            news: R::news,
            serve: |ask, body| Box::pin(serve::<A, R>(ask, body)),
            #[cfg(feature = "fuzzing")]
            id: std::any::TypeId::of::<R>(),
        }
    }
}

/// All requests.
pub(crate) fn rows<A: Ask>() -> [Row<A>; 21] {
    [
        Row::of::<StatusRequest>(),
        Row::of::<ViewRequest>(),
        Row::of::<RoutesRequest>(),
        Row::of::<ExplainRequest>(),
        Row::of::<StatsRequest>(),
        Row::of::<PeersRequest>(),
        Row::of::<SeedsRequest>(),
        Row::of::<CredentialsRequest>(),
        Row::of::<PingRequest>(),
        Row::of::<WayRequest>(),
        Row::of::<CertificatesRequest>(),
        Row::of::<InquireRequest>(),
        Row::of::<DrainRequest>(),
        Row::of::<OffersRequest>(),
        Row::of::<ReloadRequest>(),
        Row::of::<UpgradeRequest>(),
        Row::of::<RevokeRequest>(),
        Row::of::<RenewRequest>(),
        Row::of::<MandateRequest>(),
        Row::of::<RotateRequest>(),
        Row::of::<RotateKeyRequest>(),
    ]
}

async fn serve<A: Ask, R>(ask: &A, body: &[u8]) -> Result<String, Failure>
where
    R: Request + Answer<Reply = <R as Request>::Reply>,
{
    let body = if body.is_empty() { b"null" } else { body };
    let request: R = serde_json::from_slice(body).map_err(|error| {
        Failure::Malformed(format!("this is not a {} request: {error}", &R::PATH[1..]))
    })?;
    request.check().map_err(|error| Failure::Malformed(error.to_string()))?;
    let limit = request.limit();
    let reply = timeout(limit, ask.ask(request)).await.map_err(|_late| Failure::Late(limit))?;
    let reply = reply.map_err(Failure::Refused)?;
    serde_json::to_string(&reply).map_err(|error| {
        Failure::Refused(Error::Bug(format!("cannot encode the reply as JSON: {error}")))
    })
}

/// The services in use on this node that have no healthy origin: the daemon is ready if there are
/// none, and alive if it answers at all.
pub(crate) struct Lacking;

/// All metrics.
pub(crate) struct Samples;

/// Answers that are available at once.
macro_rules! read_off {
    ($($name:ident, $reply:ty, |$driver:ident| $read:expr;)*) => {
        $(
            impl Answer for $name {
                type Reply = $reply;

                fn answer(self, $driver: &mut Driver, to: Asker<$reply>) {
                    let _ = to.send(Ok($read));
                }
            }
        )*
    };
}

read_off! {
    Lacking, Vec<ServiceName>, |it| it.reporter().lacking();
    Samples, Vec<Sample>,
        |it| it.reporter().samples(&it.mesh, clock::now());
    StatusRequest, <Self as Request>::Reply,
        |it| it.reporter().status(&it.mesh, clock::now());
    ViewRequest, <Self as Request>::Reply, |it| it.reporter().view(&it.mesh, clock::now());
    RoutesRequest, <Self as Request>::Reply, |it| it.reporter().services(clock::now());
    ExplainRequest, <Self as Request>::Reply,
        |it| it.reporter().explanations(clock::now());
    StatsRequest, <Self as Request>::Reply, |it| it.reporter().stats();
    PeersRequest, <Self as Request>::Reply, |it| it.reporter().peers(&it.mesh);
    SeedsRequest, <Self as Request>::Reply, |it| it.reporter().seeds();
    CredentialsRequest, <Self as Request>::Reply,
        |it| it.reporter().credentials(&it.mesh, clock::wall());
}

impl Answer for ReloadRequest {
    type Reply = <Self as Request>::Reply;

    fn answer(self, driver: &mut Driver, to: Asker<Self::Reply>) {
        // A stopping process drops it, which the requester notices.
        let full = driver.outputs.process.try_send(ProcessRequest::Reload(to));
        if let Err(TrySendError::Full(ProcessRequest::Reload(to))) = full {
            let _ = to.send(Err(Error::Refused("another reload is under way; try again".into())));
        }
    }
}

impl Answer for UpgradeRequest {
    type Reply = <Self as Request>::Reply;

    fn answer(self, driver: &mut Driver, to: Asker<Self::Reply>) {
        let full = driver.outputs.process.try_send(ProcessRequest::Upgrade(to));
        if let Err(TrySendError::Full(ProcessRequest::Upgrade(to))) = full {
            let _ = to.send(Err(Error::Refused("a reload is under way; try again".into())));
        }
    }
}

impl Answer for DrainRequest {
    type Reply = <Self as Request>::Reply;

    fn answer(self, driver: &mut Driver, to: Asker<Self::Reply>) {
        let _ = to.send(driver.drain(&self));
    }
}

impl Answer for RevokeRequest {
    type Reply = <Self as Request>::Reply;

    fn answer(self, driver: &mut Driver, to: Asker<Self::Reply>) {
        let revoked = Revocation::from_text(&self.revocation)
            .map_err(Error::Trust)
            .and_then(|it| driver.revoke(&it));
        let _ = to.send(revoked);
    }
}

impl Answer for RenewRequest {
    type Reply = <Self as Request>::Reply;

    fn answer(self, driver: &mut Driver, to: Asker<Self::Reply>) {
        match Credential::from_text(&self.credential) {
            Ok(next) => driver.renew(next, to),
            Err(error) => drop(to.send(Err(Error::Trust(error)))),
        }
    }
}

impl Answer for RotateRequest {
    type Reply = <Self as Request>::Reply;

    fn answer(self, driver: &mut Driver, to: Asker<Self::Reply>) {
        match NextSecret::from_text(&self.next) {
            Ok(next) => driver.rotate(&next, to),
            Err(error) => drop(to.send(Err(Error::Trust(error)))),
        }
    }
}

impl Answer for RotateKeyRequest {
    type Reply = <Self as Request>::Reply;

    fn answer(self, driver: &mut Driver, to: Asker<Self::Reply>) {
        match KeyWrite::of(&self) {
            Ok(next) => driver.rotate_key(next, to),
            Err(error) => drop(to.send(Err(Error::Trust(error)))),
        }
    }
}

impl Answer for CertificatesRequest {
    type Reply = <Self as Request>::Reply;

    fn answer(self, driver: &mut Driver, to: Asker<Self::Reply>) {
        let origins = driver.reporter().to_ask(&self.service);
        certificates::start(driver.mesh.clone(), self.service, origins, to);
    }
}

impl Answer for InquireRequest {
    type Reply = <Self as Request>::Reply;

    fn answer(self, driver: &mut Driver, to: Asker<Self::Reply>) {
        let seed = match random::seed() {
            Ok(seed) => seed,
            Err(error) => return drop(to.send(Err(error))),
        };
        let (members, own) = driver.reporter().to_inquire(&driver.mesh);
        let (mesh, calls) = (driver.mesh.clone(), driver.outputs.called.subscribe());
        inquiry::start(Inquiry { mesh, members, own, calls, seed }, to);
    }
}

impl Answer for PingRequest {
    type Reply = <Self as Request>::Reply;

    fn answer(self, driver: &mut Driver, to: Asker<Self::Reply>) {
        match driver.reporter().find(&self.target) {
            Ok(who) => {
                let lacks = driver.reporter().apart(&who.node);
                ping::start(driver.mesh.clone(), who, lacks, self.count, to);
            }
            Err(error) => drop(to.send(Err(error))),
        }
    }
}

impl Driver {
    fn revoke(&mut self, revocation: &Revocation) -> Result<RevokeReport, Error> {
        let directory = self.core.discovery().directory();
        let members = directory.alive();
        let revoked = revocation.revoked.node().and_then(|node| directory.get(&node));
        let name = revoked.map(|entry| entry.credential.name.clone());
        let added = self.core.handle_revocation(revocation, clock::now());
        let added = added.map_err(|it| Error::Refused(it.to_string()))?;
        if added == Added::Full {
            return Err(Error::Refused(format!(
                "the limit of {MAX_REVOCATIONS} revocations is reached; create a new mesh"
            )));
        }
        // Discovery has already forgotten the revoked members.
        let left = self.core.discovery().directory().alive();
        Ok(RevokeReport {
            revoked: revocation.revoked.to_string(),
            name,
            is_new: added == Added::New,
            cut: members.saturating_sub(left),
            successor: successor(self.core.discovery().revocations(), &revocation.revoked),
        })
    }

    fn drain(&mut self, request: &DrainRequest) -> Result<DrainReport, Error> {
        let DrainRequest { service, draining } = request;
        let now = clock::now();
        let Some(changed) = self.core.set_drained(service, draining.then_some(now), now) else {
            return Err(Error::Refused(format!(
                "this node offers no {service}, so there is nothing to drain; run this on an origin"
            )));
        };
        if changed {
            let word = match draining {
                true => "drains: other nodes leave it",
                false => "is offered again",
            };
            info!(%service, "{} {word}", names::local_instance(service));
        }
        let state = self.core.own_state(service).unwrap_or(OriginState::Unknown).to_string();
        let sessions = self.sessions.count_side(service, Side::Served);
        Ok(DrainReport { service: service.clone(), changed, state, sessions })
    }
}

/// The successor of a revoked node that is not revoked itself: an operator who revokes the former
/// key may mean the current node.
fn successor(all: &Revocations, revoked: &Revoked) -> Option<NodeId> {
    let Revoked::Node(node) = revoked else { return None };
    let last = all.successor_of(node);
    (last != *node && !all.has_node(&last)).then_some(last)
}
