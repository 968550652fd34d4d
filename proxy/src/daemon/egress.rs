//! Streams of other nodes: to this node's own instances, or on to another node that hosts one.
//!
//! Dials only what the configuration offers and this node's credential allows it to offer, and only
//! for peers whose credential allows them to use it. Every stream gets one answer byte, counted by
//! kind, unless its opener gives up first. A stream counts as open from before its instance is
//! dialled, so that [`MAX_SERVED`] bounds dials too. Relayed streams are bounded by `max_relayed`.

use std::collections::BTreeMap;
use std::future::pending;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use meshport_config::{NodeId, Role, Roles, ServiceName};
use meshport_mesh::{Mesh, Stream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::debug;

use crate::core::relay::{self, Receive};
use crate::core::route::Line;
use crate::wire::{Answer, Header, MAX_HEADER_BYTES};

use super::clock;
use super::session::Finding;
use super::sessions::{Guard, MAX_SERVED, Sessions, Side, bump};
use super::splice::{self, ABORTED, Carried, Early};
use super::tcp::{Host, Tcp};

/// How long a stream may take to say what it wants. The header is in its first packet.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// The share of all relayed sessions that may be one node's: a quarter.
const RELAYED_SHARE: u64 = 4;

/// Where the services of this node are dialled.
pub(super) type Offers = BTreeMap<ServiceName, String>;

/// What every served stream shares.
#[derive(Debug, Clone)]
pub(super) struct Egress {
    pub(super) me: NodeId,
    /// What this node's credential allows it.
    pub(super) roles: Roles,
    pub(super) mesh: Mesh,
    pub(super) host: Host,
    pub(super) sessions: Sessions,
    /// Where it goes when the own instance refuses: a probe would notice only later.
    pub(super) findings: mpsc::Sender<Finding>,
    pub(super) offers: watch::Receiver<Arc<Offers>>,
    /// Sessions this node carries on to others at once.
    pub(super) max_relayed: u64,
    /// Whether this node is going away and takes no new streams.
    pub(super) leaving: watch::Receiver<bool>,
}

impl Egress {
    /// Serves streams until the mesh gives no more.
    pub(super) async fn run(self, mut streams: mpsc::Receiver<(NodeId, Stream)>) {
        let mut tasks = JoinSet::new();
        loop {
            tokio::select! {
                stream = streams.recv() => match stream {
                    Some((peer, stream)) => {
                        let egress = self.clone();
                        tasks.spawn(async move { egress.serve(peer, stream).await });
                    }
                    None => return,
                },
                Some(_) = tasks.join_next(), if !tasks.is_empty() => {}
            }
        }
    }

    async fn serve(&self, peer: NodeId, mut stream: Stream) {
        let read = timeout(HEADER_TIMEOUT, read_header(&mut stream)).await;
        let Ok(Some((header, rest))) = read else {
            bump(&self.sessions.others().answers[usize::from(Answer::BadRequest.code())]);
            return refuse(stream, Answer::BadRequest).await;
        };
        let may_relay = self.roles.contains(&Role::Relay);
        match relay::receive((self.me, peer), header.target, header.hops, may_relay) {
            Receive::Serve => self.serve_here(peer, &header, (stream, rest)).await,
            Receive::Carry(target) => self.relay(peer, target, &header, (stream, rest)).await,
            Receive::Refuse => {
                let totals = self.sessions.totals(&header.service);
                bump(&totals.answers[usize::from(Answer::NoPath.code())]);
                refuse(stream, Answer::NoPath).await;
            }
        }
    }

    async fn serve_here(&self, peer: NodeId, header: &Header, (stream, rest): (Stream, Bytes)) {
        let (service, peer_name) = (&header.service, peer.short());
        let totals = self.sessions.totals(service);
        let dialled = match self.admit(&peer, header) {
            Ok((address, open)) => tokio::select! {
                dialled = dial(&self.host, &address, header.deadline()) => {
                    dialled.map(|tcp| (tcp, open))
                }
                // The opener has lost its patience and tries another origin.
                _ = stream.send.stopped() => {
                    debug!(%service, peer = %peer_name, "opener gone before the instance answered");
                    return;
                }
            },
            Err(answer) => Err(answer),
        };
        match dialled {
            Ok((tcp, _open)) => {
                bump(&totals.answers[usize::from(Answer::Connected.code())]);
                if let Err(error) = carry(tcp, stream, rest).await {
                    debug!(%service, peer = %peer_name, %error, "session broke");
                }
            }
            Err(answer) => {
                if answer == Answer::Refused {
                    let _ = self.findings.try_send(Finding::OwnRefused(service.clone()));
                }
                bump(&totals.answers[usize::from(answer.code())]);
                debug!(%service, peer = %peer_name, %answer, "stream refused");
                refuse(stream, answer).await;
            }
        }
    }

    /// Where to dial for a stream, and its entry among the open ones.
    fn admit(&self, peer: &NodeId, header: &Header) -> Result<(String, Guard), Answer> {
        self.trust(peer)?;
        let address = self.offers.borrow().get(&header.service).cloned();
        let address = address.filter(|_| self.roles.may_offer(&header.service));
        let address = address.ok_or(Answer::NoSuchService)?;
        if self.sessions.count_all(Side::Served) >= MAX_SERVED {
            return Err(Answer::Overloaded);
        }
        let line = Line::Direct(*peer);
        Ok((address, self.sessions.open(&header.service, Side::Served, line)))
    }

    /// Whether a peer may use this node at all.
    fn trust(&self, peer: &NodeId) -> Result<(), Answer> {
        if *self.leaving.borrow() {
            return Err(Answer::Leaving);
        }
        let credential = self.mesh.credential(peer).ok_or(Answer::NotAllowed)?;
        // The tunnel outlives a credential by up to one handshake; what it carries does not.
        if credential.expires_at <= clock::wall() {
            return Err(Answer::NotAllowed);
        }
        if !credential.roles.contains(&Role::Node) && !credential.roles.contains(&Role::Operator) {
            return Err(Answer::NotAllowed);
        }
        Ok(())
    }

    /// Carries a stream on to the node it is meant for. It leaves here with no hop left, so that
    /// nobody carries it any further: there is no way for it to come back.
    async fn relay(
        &self,
        peer: NodeId,
        target: NodeId,
        header: &Header,
        (stream, rest): (Stream, Bytes),
    ) {
        let totals = self.sessions.totals(&header.service);
        let (name, next_name) = (peer.short(), target.short());
        let opened = match self.admit_relayed(&peer, target, header) {
            Ok(guards) => tokio::select! {
                opened = self.open_onward(target, header) => opened.map(|next| (next, guards)),
                _ = stream.send.stopped() => return,
            },
            Err(answer) => Err(answer),
        };
        match opened {
            Ok((next, [mut guard, _for_peer])) => {
                bump(&totals.relayed);
                let ended = splice::between_streams(stream, next, rest, guard.cut(0.0)).await;
                if let Err(error) = ended {
                    debug!(peer = %name, origin = %next_name, %error, "relayed session broke");
                }
            }
            Err(answer) => {
                bump(&totals.answers[usize::from(answer.code())]);
                debug!(peer = %name, origin = %next_name, %answer, "relaying refused");
                refuse(stream, answer).await;
            }
        }
    }

    /// The entries of a relayed session among the open ones.
    fn admit_relayed(
        &self,
        peer: &NodeId,
        target: NodeId,
        header: &Header,
    ) -> Result<[Guard; 2], Answer> {
        self.trust(peer)?;
        let (service, most) = (&header.service, self.max_relayed);
        let from = Line::Direct(*peer);
        let of_peer = self.sessions.count_peer(Side::RelayedFor, from);
        if self.sessions.count_all(Side::Relayed) >= most || of_peer >= most.div_ceil(RELAYED_SHARE)
        {
            return Err(Answer::Overloaded);
        }
        let onward = self.sessions.open(service, Side::Relayed, Line::Direct(target));
        Ok([onward, self.sessions.open(service, Side::RelayedFor, from)])
    }

    async fn open_onward(&self, target: NodeId, header: &Header) -> Result<Stream, Answer> {
        let left = header.deadline();
        let opened = async {
            let mut next = self.mesh.open_stream(target).await?;
            let onward = Header::direct(header.service.clone(), left);
            next.send.write_chunk(onward.encode().into()).await?;
            Ok::<_, meshport_mesh::MeshError>(next)
        };
        let opened = timeout(left, opened).await;
        opened.map_err(|_| Answer::TimedOut)?.map_err(|_| Answer::NoPath)
    }
}

async fn dial(host: &Host, address: &str, patience: Duration) -> Result<Tcp, Answer> {
    match timeout(patience, host.connect(address)).await {
        Ok(Ok(tcp)) => {
            tcp.set_nodelay();
            Ok(tcp)
        }
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => Err(Answer::Refused),
        Ok(Err(_)) => Err(Answer::Failed),
        Err(_elapsed) => Err(Answer::TimedOut),
    }
}

/// The header and what came behind it; `None` for anything else.
async fn read_header(stream: &mut Stream) -> Option<(Header, Bytes)> {
    let mut buffer = BytesMut::new();
    let mut chunk = [Bytes::new()];
    loop {
        stream.recv.read_chunks(&mut chunk).await.ok()??;
        buffer.extend_from_slice(&chunk[0]);
        match Header::decode(&buffer) {
            Ok(Some((header, used))) => return Some((header, buffer.split_off(used).freeze())),
            Ok(None) if buffer.len() < MAX_HEADER_BYTES => {}
            Ok(None) | Err(_) => return None,
        }
    }
}

async fn refuse(mut stream: Stream, answer: Answer) {
    let code = Bytes::copy_from_slice(&[answer.code()]);
    if stream.send.write_chunk(code).await.is_ok() && stream.send.finish().is_ok() {
        // The answer has to arrive before the stream is dropped.
        let _ = timeout(HEADER_TIMEOUT, stream.send.stopped()).await;
    }
    stream.recv.stop(ABORTED);
}

async fn carry(tcp: Tcp, mut stream: Stream, rest: Bytes) -> io::Result<()> {
    let code = Bytes::copy_from_slice(&[Answer::Connected.code()]);
    stream.send.write_chunk(code).await.map_err(io::Error::other)?;
    let early = Early { up: Bytes::new(), down: vec![rest] };
    splice::with_stream(tcp, stream, early, &Carried::default(), pending()).await
}

#[cfg(test)]
mod tests;
