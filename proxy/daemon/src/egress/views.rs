//! The view of this node, or of another one that it reaches, for an operator's `dashboard`.

use std::sync::Arc;
use std::time::Duration;

use meshport_config::{Credential, NodeId};
use meshport_core::access::Denial;
use meshport_core::relay::{self, Receive};
use meshport_core::remote_view::{self, MAX_REPLY_BYTES, Reply, Request};
use meshport_core::wire::Answer as Code;
use meshport_mesh::Stream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::{Egress, Peers};
use crate::admin::request::{self, MAX_ANSWER_TIME, Request as _};
use crate::admin::view::ViewRequest;
use crate::clock;
use crate::driver::answers::Ask;
use crate::exchange::{self, Unanswered, reply};

/// Concurrent requests, answered or relayed; more are refused, so that they do not slow sessions.
const MAX_UNDER_WAY: usize = 8;
/// How long the destination node may take, including a new tunnel to it.
const CARRY_LIMIT: Duration = Duration::from_secs(5);

static UNDER_WAY: Semaphore = Semaphore::const_new(MAX_UNDER_WAY);

impl Egress {
    /// Answers an operator's request for a view.
    pub(super) async fn answer_view(&self, peer: NodeId, request: Request, stream: Stream) -> Code {
        let message = async {
            let Ok(_place) = UNDER_WAY.try_acquire() else { return Err(Code::Overloaded) };
            self.reply_to(peer, &request).await?.encode().ok_or(Code::Overloaded)
        };
        reply(stream, message.await).await
    }

    async fn reply_to(&self, peer: NodeId, request: &Request) -> Result<Reply, Code> {
        let mesh = &self.context.mesh;
        // The requester may not know yet that this node has changed its key.
        let target = request.node.filter(|node| !mesh.is_own(node));
        let holder = {
            let (peers, now) = (Peers(mesh), clock::wall());
            remote_view::holder(&peer, request.client.as_deref(), &peers, now)
        };
        let holder = holder.map_err(|why| self.refuse_view(&peer, request, &why))?;
        match relay::receive(mesh.node_id(), peer, target, request.hops, true) {
            Receive::Serve => {
                let carrier = request.client.as_ref().map(|_| peer);
                self.own_view(&holder, carrier, request).await
            }
            Receive::Carry(target) => self.view_of(target, &holder, request).await,
            Receive::Refuse => Err(Code::NoPath),
        }
    }

    async fn own_view(
        &self,
        holder: &Credential,
        carrier: Option<NodeId>,
        request: &Request,
    ) -> Result<Reply, Code> {
        let asked = timeout(MAX_ANSWER_TIME, self.asked.ask(ViewRequest)).await;
        let view = asked.map_err(|_late| Code::TimedOut)?.map_err(|_ending| Code::Leaving)?;
        let document = serde_json::to_string(&view).map_err(|_| Code::Failed)?;
        let tag = ViewRequest::news(&document).map_or(0, request::tag);
        self.audit.operator_view(holder, carrier);
        Ok(Reply::to(request.tag, tag, document))
    }

    /// Requests the view of another node.
    async fn view_of(
        &self,
        target: NodeId,
        holder: &Arc<Credential>,
        request: &Request,
    ) -> Result<Reply, Code> {
        let asked = async {
            let mut next = self.context.mesh.open_stream(target).await.map_err(|_| Code::NoPath)?;
            let onward = request.carried(Credential::clone(holder)).encode();
            let asked = exchange::ask(&mut next, onward, MAX_REPLY_BYTES, Reply::decode).await;
            asked.map_err(|why| match why {
                Unanswered::Older => Code::BadRequest,
                Unanswered::Refused(code) => code,
                Unanswered::Broken(_) => Code::NoPath,
            })
        };
        timeout(CARRY_LIMIT, asked).await.unwrap_or(Err(Code::NoPath))
    }

    fn refuse_view(&self, peer: &NodeId, request: &Request, why: &Denial) -> Code {
        let credential = self.context.mesh.credential(peer);
        self.audit.refused_view(peer, credential.as_deref(), request.client.as_deref(), why);
        Code::NotAllowed
    }
}
