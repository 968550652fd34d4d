//! Answers a member's request for its next credential, or passes it on to the issuer.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use meshport_config::{Credential, NodeId, Role};
use meshport_core::egress::holder;
use meshport_core::relay::{self, Receive};
use meshport_core::renewal::{Reply, Request, Setback};
use meshport_core::wire::Answer as Code;
use meshport_mesh::Stream;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tracing::debug;

use super::{Egress, Peers};
use crate::clock;
use crate::driver::answers::Ask;
use crate::driver::renewal::Judge;
use crate::exchange::reply;
use crate::renewal;

/// Requests answered at once; more are refused, so that they do not slow sessions.
const MAX_ANSWERED: usize = 8;
/// Requests passed on at once, one of each peer: an issuer that is down holds each for
/// [`CARRY_LIMIT`].
const MAX_CARRIED: usize = 8;
/// How long an issuer may take to answer a request that is passed on, including a new tunnel to it;
/// less than the asker waits.
const CARRY_LIMIT: Duration = Duration::from_secs(3);

static ANSWERED: Semaphore = Semaphore::const_new(MAX_ANSWERED);

/// The peers whose requests are passed on now, at most [`MAX_CARRIED`].
static CARRIED: Mutex<BTreeSet<NodeId>> = Mutex::new(BTreeSet::new());

/// The slot of a request that is passed on.
struct Carried(NodeId);

impl Carried {
    /// `None` if that peer has a slot already, or none is free.
    fn begin(peer: NodeId) -> Option<Self> {
        let mut all = CARRIED.lock().expect("no holder of this lock can panic");
        (all.len() < MAX_CARRIED && all.insert(peer)).then_some(Self(peer))
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        CARRIED.lock().expect("no holder of this lock can panic").remove(&self.0);
    }
}

impl Egress {
    /// Answers a member that asks for its next credential.
    pub(super) async fn answer_renewal(
        &self,
        peer: NodeId,
        request: Request,
        stream: Stream,
    ) -> Code {
        let renewed = self.renewal(peer, request).await;
        reply(stream, renewed.map(|renewed| renewed.encode())).await
    }

    async fn renewal(&self, peer: NodeId, request: Request) -> Result<Reply, Code> {
        let mesh = &self.context.mesh;
        let may_relay = self.credential.borrow().roles.contains(&Role::Relay);
        // The requester may not know yet that this node has changed its key.
        let target = request.issuer.filter(|issuer| !mesh.is_own(issuer));
        match relay::receive(mesh.node_id(), peer, target, request.hops(), may_relay) {
            Receive::Serve => {
                let Ok(_place) = ANSWERED.try_acquire() else { return Err(Code::Overloaded) };
                let present = self.present(&peer, &request)?;
                let relay = (!request.client.is_empty()).then_some(peer);
                let asked = self.asked.ask(Judge { present, relay, request }).await;
                asked.map_err(|_ending| Code::Leaving)
            }
            Receive::Carry(issuer) => self.carry_renewal(&peer, issuer, &request).await,
            Receive::Refuse => Err(Code::NoPath),
        }
    }

    /// The current credential of the node that asks, directly or through a relay.
    fn present(&self, peer: &NodeId, request: &Request) -> Result<Arc<Credential>, Code> {
        let client = match request.client.as_slice() {
            [] => None,
            bytes => Some(Credential::from_bytes(bytes).map_err(|_| Code::BadRequest)?),
        };
        let peers = Peers(&self.context.mesh);
        holder(peer, client.as_ref(), &peers, clock::wall()).map_err(|why| {
            debug!(peer = %peer.short(), %why, "renewal request refused");
            Code::NotAllowed
        })
    }

    /// Passes a request on to its issuer, and returns the reply as it is.
    async fn carry_renewal(
        &self,
        peer: &NodeId,
        issuer: NodeId,
        request: &Request,
    ) -> Result<Reply, Code> {
        let mesh = &self.context.mesh;
        let client = mesh.credential(peer).ok_or(Code::NotAllowed)?;
        if client.expires_at <= clock::wall() {
            return Err(Code::NotAllowed);
        }
        let _place = Carried::begin(*peer).ok_or(Code::Overloaded)?;
        let known = mesh.known_credential(&issuer).ok_or(Code::NoPath)?;
        if !known.roles.contains(&Role::Issuer) {
            return Err(Code::NoPath);
        }
        let onward = request.carried(&client);
        match timeout(CARRY_LIMIT, renewal::exchange(mesh, issuer, &onward)).await {
            Ok(Ok(issued)) => Ok(Reply(Ok(issued))),
            Ok(Err(Setback::Refused(refusal))) => Ok(Reply(Err(refusal))),
            Ok(Err(_)) | Err(_) => Err(Code::NoPath),
        }
    }
}
