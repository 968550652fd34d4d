//! Streams of apiservers' nodes: to the local kubelet, pods and services, or relayed to another
//! node.
//!
//! A stream from a peer without the role `origin:kube-apiserver` is refused before any other check.
//! An open stream ends when its node is revoked or its credential expires, even through a relay and
//! without the relay's help. It also ends when the path to its opener dies: by this node's own
//! probes, or when the mesh closes the connection. Refusals are counted, and audited if a rule
//! caused them.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use meshport_config::planted::{Bug, is_planted};
use meshport_config::{Credential, NodeId, Role, ServiceName};
use meshport_core::relay::{self, Receive};
use meshport_core::wayback::Refusal;
use meshport_core::wayback::call::{Call, Want, answer, answer_for};
use meshport_core::wayback::join::serves_kubelet;
use meshport_core::wayback::judge;
use meshport_core::wire::Answer;
use meshport_mesh::Stream;
use tokio::time::{sleep, timeout};
use tracing::debug;

use super::{Egress, HEADER_TIMEOUT, Peers};
use crate::audit::RefusedStream;
use crate::clock;
use crate::exchange::send_last;
use crate::sessions::registry::Guard;
use crate::sessions::splice::{self, ABORTED, Carried, Early, Ending};
use crate::sessions::totals::SessionCount;
use crate::tcp::Tcp;
use crate::wayback::At;
use crate::wayback::dial::dial;

/// A stream opened by a peer, with the data read so far.
pub(super) struct Called {
    pub(super) peer: NodeId,
    pub(super) call: Call,
    pub(super) stream: Stream,
    /// The bytes after the call.
    pub(super) rest: Bytes,
}

impl Egress {
    /// Serves a stream of the way back to its end.
    pub(super) async fn serve_call(&self, called: Called) {
        let Called { peer, call, .. } = &called;
        let (mesh, may_relay) =
            (&self.context.mesh, self.credential.borrow().roles.contains(&Role::Relay));
        // The opener may not know yet that this node has changed its key.
        let target = Some(call.node).filter(|node| !mesh.is_own(node));
        match relay::receive(mesh.node_id(), *peer, target, call.hops, may_relay) {
            Receive::Serve => self.dial_for(called).await,
            Receive::Carry(_) if is_planted(Bug::OtherNode) => self.dial_for(called).await,
            Receive::Carry(target) => self.carry_on(called, target).await,
            Receive::Refuse => self.refuse_call(called, Refusal::OtherNode).await,
        }
    }

    async fn dial_for(&self, called: Called) {
        let Called { peer, call, stream, .. } = &called;
        let reached = match self.admit_call(peer, call) {
            Ok((holder, open, addresses)) => tokio::select! {
                dialled = dial(&self.context.host, &addresses, call.deadline()) => {
                    dialled.map(|tcp| (tcp, holder, open))
                }
                // The opener found another path or timed out.
                _ = stream.send.stopped() => return,
            },
            Err(why) => Err(why),
        };
        match reached {
            Ok((tcp, holder, open)) => {
                self.note_answer(Answer::Connected);
                self.back.note_connected(&call.want, call.client.is_some());
                let peer = peer.short();
                if let Err(error) = self.join(tcp, called, &holder, &open).await {
                    debug!(%peer, %error, "stream of the way back broke");
                }
            }
            Err(why) => self.refuse_call(called, why).await,
        }
    }

    /// The node that opened the stream, its entry among the open ones, and the address to dial.
    fn admit_call(
        &self,
        peer: &NodeId,
        call: &Call,
    ) -> Result<(Arc<Credential>, Guard, Vec<SocketAddr>), Refusal> {
        if *self.leaving.borrow() {
            return Err(Refusal::Leaving);
        }
        let (peers, now) = (Peers(&self.context.mesh), clock::wall());
        let holder = judge::holder(peer, call.client.as_deref(), &peers, now)?;
        let addresses =
            self.back.judge(&call.want, &self.credential.borrow(), &self.context.host)?;
        let service = ServiceName::way_back();
        let open = self.context.sessions.serve(&service, *peer, holder.node);
        Ok((holder, open.map_err(|_| Refusal::Overloaded)?, addresses))
    }

    async fn join(
        &self,
        tcp: Tcp,
        called: Called,
        holder: &Arc<Credential>,
        open: &Guard,
    ) -> std::io::Result<()> {
        let Called { mut stream, rest, call, .. } = called;
        let want = call.want;
        let code = Bytes::from(answer(Ok(())));
        stream.send.write_chunk(code).await.map_err(std::io::Error::other)?;
        let early = Early { up: Bytes::new(), down: vec![rest] };
        let carried = Carried::default();
        let end = async {
            tokio::select! {
                _ = open.relay(&carried) => {}
                () = self.call_ends(holder) => {}
                () = self.back.until_refused(&want, &self.credential, &self.context.host) => {}
            }
            Ending::Reset
        };
        splice::with_stream(tcp, stream, early, &carried, Box::pin(end)).await
    }

    /// Resolves once the node of an open stream may no longer call.
    pub(super) async fn call_ends(&self, holder: &Arc<Credential>) {
        let mut revoked = self.revoked.clone();
        loop {
            let revocations = revoked.borrow_and_update().clone();
            let peers = Peers(&self.context.mesh);
            let Some(left) = judge::stays(holder, &revocations, &peers, clock::wall()) else {
                return;
            };
            // The sender is dropped only when the daemon stops.
            tokio::select! {
                Ok(()) = revoked.changed() => {}
                () = sleep(left) => {}
            }
        }
    }

    /// Relays a stream to its destination node, with no hop left.
    async fn carry_on(&self, called: Called, target: NodeId) {
        let Called { peer, call, stream, .. } = &called;
        let opened = match self.admit_carried(peer, target, call) {
            Ok((holder, guards)) => tokio::select! {
                opened = self.open_on(&holder, target, call) => opened.map(|next| (next, guards)),
                _ = stream.send.stopped() => return,
            },
            Err(why) => Err(why),
        };
        match opened {
            Ok((next, [guard, for_peer])) => {
                let totals = self.context.sessions.totals(&ServiceName::way_back());
                totals.counts.bump(SessionCount::Relayed);
                let carried = Carried::default();
                let end = async {
                    tokio::select! {
                        _ = guard.relay(&carried) => {}
                        _ = for_peer.relay(&carried) => {}
                    }
                };
                let Called { peer, stream, rest, .. } = called;
                if let Err(error) = splice::between_streams(stream, next, rest, end).await {
                    let (peer, node) = (peer.short(), target.short());
                    debug!(%peer, %node, %error, "relayed stream of the way back broke");
                }
            }
            Err(why) => self.refuse_call(called, why).await,
        }
    }

    fn admit_carried(
        &self,
        peer: &NodeId,
        target: NodeId,
        call: &Call,
    ) -> Result<(Arc<Credential>, [Guard; 2]), Refusal> {
        if *self.leaving.borrow() {
            return Err(Refusal::Leaving);
        }
        // A stream that was already relayed has no hop left, so this one is the peer's own.
        let holder = self.context.mesh.credential(peer).ok_or(Refusal::NotOrigin)?;
        judge::may_call(&holder, clock::wall())?;
        if let Some(other) = self.context.mesh.credential(&target) {
            may_dial(&other, &call.want)?;
        }
        let service = ServiceName::way_back();
        let guards = self.context.sessions.relay(&service, *peer, target, self.max_relayed);
        Ok((holder, guards.ok_or(Refusal::Overloaded)?))
    }

    async fn open_on(
        &self,
        holder: &Credential,
        target: NodeId,
        call: &Call,
    ) -> Result<Stream, Refusal> {
        let opened = async {
            let next = self.context.mesh.open_stream(target).await;
            let mut next = next.map_err(|_| Refusal::NoPath)?;
            // The target has answered, so its credential is known.
            let other = self.context.mesh.credential(&target).ok_or(Refusal::NoPath)?;
            may_dial(&other, &call.want)?;
            let onward = call.carried(holder.clone()).encode();
            next.send.write_chunk(onward.into()).await.map_err(|_| Refusal::NoPath)?;
            Ok(next)
        };
        timeout(call.deadline(), opened).await.unwrap_or(Err(Refusal::NoPath))
    }

    async fn refuse_call(&self, called: Called, why: Refusal) {
        let Called { peer, call, mut stream, .. } = called;
        self.back.note_refused(At::Stream, why);
        self.note_answer(answer_for(why));
        if answer_for(why) == Answer::NotAllowed {
            self.audit.refused_stream(&RefusedStream {
                peer: &peer,
                credential: self.context.mesh.credential(&peer).as_deref(),
                client: call.client.as_deref(),
                service: &ServiceName::way_back(),
                reason: &format!("{why}: {}", call.want.word()),
            });
        }
        debug!(peer = %peer.short(), %why, "stream of the way back refused");
        send_last(&mut stream, answer(Err(why)).into(), HEADER_TIMEOUT).await;
        stream.recv.stop(ABORTED);
    }

    fn note_answer(&self, answer: Answer) {
        self.context.sessions.totals(&ServiceName::way_back()).answers.note(answer);
    }
}

/// Whether the holder of a credential can dial such a target, as far as other nodes know.
fn may_dial(credential: &Credential, want: &Want) -> Result<(), Refusal> {
    match want {
        Want::Kubelet(_) | Want::Pod(_) if serves_kubelet(credential) => Ok(()),
        Want::Kubelet(_) | Want::Pod(_) => Err(Refusal::NoKubelet),
        Want::Service(_) if credential.roles.contains(&Role::Egress) => Ok(()),
        Want::Service(_) => Err(Refusal::NotEgress),
    }
}
