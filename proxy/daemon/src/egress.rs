//! Streams of other nodes: to the local instances, or on to another node that hosts one.
//!
//! Dials only services that the configuration or a program on this machine offers and this node's
//! credential allows, and only for nodes that [`access`] admits. A session ends when a new
//! configuration excludes its node, when that node is revoked and when its credential expires, even
//! through a relay and without the relay's help. Every stream gets one answer byte, counted by
//! kind, unless its opener gives up first. A stream counts as open before its instance is dialled,
//! so that the limits on sessions, in total and per node, also limit dials. Relayed streams are
//! bounded by `max_relayed`.

mod calls;
mod inquiry;
mod renewal;
mod search;
pub(crate) mod socket;
mod views;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use meshport_config::{Credential, NodeId, Revocations, Revoked, Role, ServiceName};
use meshport_mesh::{Mesh, Stream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use meshport_core::access::{self, Denial};
use meshport_core::egress::{self, Credentials, Offers, Refused};
use meshport_core::inquiry::{self as question, Question};
use meshport_core::ledger::{Crowded, Entry};
use meshport_core::relay::{self, Receive};
use meshport_core::remote_view;
use meshport_core::renewal::{self as request, Request};
use meshport_core::wayback::call::{self, Call};
use meshport_core::wire::{Answer, BadHeader, Header, MAX_HEADER_BYTES};

use crate::audit::{Audit, RefusedStream};
use crate::clock;
use crate::driver::handle::Handle;
use crate::exchange::send_last;
use crate::sessions::ingress::{Context, Finding};
use crate::sessions::registry::Guard;
use crate::sessions::splice::{self, ABORTED, Carried, Early, Ending};
use crate::sessions::totals::SessionCount;
use crate::tcp::{Host, Tcp};
use crate::wayback::WayBack;

use self::calls::Called;

/// How long a stream may take to send its header, which fits its first packet.
pub(crate) const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// Limit for one of several instances to accept. Instances are near, and a host that is down never
/// answers.
const MAX_INSTANCE_DIAL: Duration = Duration::from_millis(500);

/// A stream opened by a peer, with the data read so far.
struct Incoming {
    peer: NodeId,
    header: Header,
    stream: Stream,
    /// The bytes after the header.
    rest: Bytes,
}

/// An accepted stream.
struct Admitted {
    addresses: Vec<String>,
    open: Guard,
    /// The credential of the node whose client it is.
    holder: Arc<Credential>,
}

/// State that all served streams share.
#[derive(Debug, Clone)]
pub(crate) struct Egress {
    /// The driver, which answers members' queries.
    pub(crate) asked: Handle,
    /// `findings` reports when the local instance refuses: a probe would notice only later.
    pub(crate) context: Context,
    /// This node's own credential.
    pub(crate) credential: watch::Receiver<Arc<Credential>>,
    pub(crate) audit: Audit,
    /// The configured services.
    pub(crate) offers: watch::Receiver<Arc<Offers>>,
    /// Services offered by programs on this machine.
    pub(crate) offered: watch::Receiver<Arc<Offers>>,
    /// Round-robin counter over the instances of a service.
    pub(crate) turn: Arc<AtomicUsize>,
    /// The revocations so far.
    pub(crate) revoked: watch::Receiver<Revocations>,
    /// Maximum sessions that this node relays.
    pub(crate) max_relayed: u64,
    /// Whether this node is shutting down and accepts no new streams.
    pub(crate) leaving: watch::Receiver<bool>,
    /// The targets that apiservers reach through this node.
    pub(crate) back: WayBack,
}

/// The mesh as a source of other nodes' credentials.
pub(crate) struct Peers<'a>(pub(crate) &'a Mesh);

impl Credentials for Peers<'_> {
    fn of_peer(&self, node: &NodeId) -> Option<Arc<Credential>> {
        self.0.credential(node)
    }

    fn known(&self, node: &NodeId) -> Option<Arc<Credential>> {
        self.0.known_credential(node)
    }

    fn is_valid(&self, credential: &Credential) -> bool {
        self.0.check_credential(credential).is_ok()
    }
}

impl Egress {
    /// Serves streams until the mesh ends.
    pub(crate) async fn run(self, mut streams: mpsc::Receiver<(NodeId, Stream)>) {
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
        let (header, rest) = match read.unwrap_or(Err(NoHeader { version: None })) {
            Ok(Opening::Session(header, rest)) => (header, rest),
            Ok(Opening::Call(call, rest)) => {
                return self.serve_call(Called { peer, call, stream, rest }).await;
            }
            Ok(Opening::Question(question)) => {
                let answer = inquiry::answer(&self.asked, peer, question, stream).await;
                return self.context.sessions.others().answers.note(answer);
            }
            Ok(Opening::Renewal(request)) => {
                let answer = self.answer_renewal(peer, request, stream).await;
                return self.context.sessions.others().answers.note(answer);
            }
            Ok(Opening::View(request)) => {
                let answer = self.answer_view(peer, request, stream).await;
                return self.context.sessions.others().answers.note(answer);
            }
            Err(NoHeader { version }) => {
                if let Some(version) = version {
                    let what = format!("streams of version {version}");
                    let _ = self.context.findings.try_send(Finding::Unknown { from: peer, what });
                }
                self.context.sessions.others().answers.note(Answer::BadRequest);
                return refuse(stream, Answer::BadRequest).await;
            }
        };
        let may_relay = self.credential.borrow().roles.contains(&Role::Relay);
        // The opener may not know yet that this node has changed its key.
        let target = header.target.filter(|target| !self.context.mesh.is_own(target));
        let verdict =
            relay::receive(self.context.mesh.node_id(), peer, target, header.hops, may_relay);
        let incoming = Incoming { peer, header, stream, rest };
        match verdict {
            Receive::Serve => self.serve_here(incoming).await,
            Receive::Carry(target) => self.relay(incoming, target).await,
            Receive::Refuse => {
                let totals = self.context.sessions.totals(&incoming.header.service);
                totals.answers.note(Answer::NoPath);
                refuse(incoming.stream, Answer::NoPath).await;
            }
        }
    }

    async fn serve_here(&self, incoming: Incoming) {
        let Incoming { peer, header, stream, rest } = incoming;
        let (service, peer_name) = (&header.service, peer.short());
        let totals = self.context.sessions.totals(service);
        let dialled = match self.admit(&peer, &header) {
            Ok(admitted) => tokio::select! {
                dialled = self.dial(&admitted.addresses, header.deadline()) => {
                    dialled.map(|tcp| (tcp, admitted)).map_err(Refused::from)
                }
                // The opener timed out and tries another origin.
                _ = stream.send.stopped() => {
                    debug!(%service, peer = %peer_name, "opener gone before the instance answered");
                    return;
                }
            },
            Err(refused) => Err(refused),
        };
        match dialled {
            Ok((tcp, Admitted { holder, open, .. })) => {
                totals.answers.note(Answer::Connected);
                let relay = header.client.as_ref().map(|_| peer);
                let operator = holder.roles.contains(&Role::Operator);
                let operator =
                    operator.then(|| self.audit.operator_session(&holder, relay, service));
                let carried = Carried::default();
                let carried = operator.as_ref().map_or(&carried, |session| &session.carried);
                // Boxed: it is moved twice, and each future would reserve space for it.
                let cut = Box::pin(async {
                    tokio::select! {
                        () = self.access_ends(service, &holder) => {}
                        _ = open.relay(carried) => {}
                    }
                });
                if let Err(error) = carry(tcp, stream, rest, carried, cut).await {
                    debug!(%service, peer = %peer_name, %error, "session broke");
                }
            }
            Err(refused) => {
                if refused.answer == Answer::Refused {
                    let _ = self.context.findings.try_send(Finding::OwnRefused(service.clone()));
                }
                totals.answers.note(refused.answer);
                self.refuse(&peer, &header, stream, refused).await;
            }
        }
    }

    /// The address to dial for a stream, and its entry among the open sessions.
    fn admit(&self, peer: &NodeId, header: &Header) -> Result<Admitted, Refused> {
        if *self.leaving.borrow() {
            return Err(Answer::Leaving.into());
        }
        let (client, peers, now) =
            (header.client.as_deref(), Peers(&self.context.mesh), clock::wall());
        let holder = egress::holder(peer, client, &peers, now)?;
        let mut addresses = {
            let (offers, own) = (self.offer_of(&header.service), self.credential.borrow());
            egress::admit(&holder, &header.service, &offers, &own, now)?.addresses.clone()
        };
        if addresses.len() > 1 {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed) % addresses.len();
            addresses.rotate_left(turn);
        }
        match self.context.sessions.serve(&header.service, *peer, holder.node) {
            Ok(open) => Ok(Admitted { addresses, open, holder }),
            Err(crowded) => {
                self.say_crowded(peer, &holder, crowded);
                Err(Answer::Overloaded.into())
            }
        }
    }

    /// The offers that include a service; the settings take precedence.
    fn offer_of(&self, service: &ServiceName) -> watch::Ref<'_, Arc<Offers>> {
        let offers = self.offers.borrow();
        if offers.contains_key(service) { offers } else { self.offered.borrow() }
    }

    /// Dials a service's instances in this order until one accepts. A dead or silent instance
    /// delays the stream but does not fail it.
    async fn dial(&self, addresses: &[String], patience: Duration) -> Result<Tcp, Answer> {
        let host = &self.context.host;
        let Some((last, others)) = addresses.split_last() else { return Err(Answer::Refused) };
        let begun = clock::now();
        let left = || patience.saturating_sub(clock::now().saturating_duration_since(begun));
        for address in others {
            if let Ok(tcp) = dial(host, address, left().min(MAX_INSTANCE_DIAL)).await {
                return Ok(tcp);
            }
        }
        dial(host, last, left()).await
    }

    /// Logs that a node's session got no slot, unless that was logged recently. Meanwhile `status`
    /// shows which node has most.
    fn say_crowded(&self, peer: &NodeId, holder: &Credential, crowded: Crowded) {
        if !self.context.sessions.turn_away(clock::now()) {
            return;
        }
        let (node, name) = (holder.node.short(), &holder.name);
        let relay = (holder.node != *peer).then(|| peer.short());
        match crowded {
            Crowded::Full => warn!(
                %node, %name, relay,
                "the limit on sessions of other nodes is reached: new ones are refused \
                 (overloaded). `meshport status` shows which nodes have the most"
            ),
            Crowded::Share(_, held) => warn!(
                %node, %name, relay, held,
                "a node has used up its share of sessions here: only its new ones are refused \
                 (overloaded). `meshport status` shows which nodes have the most, and what to do"
            ),
        }
    }

    /// Resolves once the node of a session in another process of this node loses access. That
    /// process ends the session with the credential that it knows.
    pub(crate) async fn ends(&self, entry: &Entry) {
        let Some((_, node)) = entry.holder else { return std::future::pending().await };
        match self.credential_of(&node, &entry.service).await {
            Some(holder) if entry.service == ServiceName::way_back() => {
                self.call_ends(&holder).await;
            }
            Some(holder) => self.access_ends(&entry.service, &holder).await,
            None => {}
        }
    }

    /// The credential of such a session's node, as soon as it matters. A non-member behind a relay
    /// has presented it to the other process only: `None` once such a node may have lost access,
    /// since this process cannot tell.
    async fn credential_of(&self, node: &NodeId, service: &ServiceName) -> Option<Arc<Credential>> {
        let (mut offers, mut revoked) = (self.offers.clone(), self.revoked.clone());
        let invites = |all: &Revocations| {
            all.iter().filter(|it| matches!(it.revoked, Revoked::Invite(_))).count()
        };
        let offer = offers.borrow().get(service).cloned();
        let invites_before = invites(&revoked.borrow());
        loop {
            let is_known = self.context.mesh.known_credential(node);
            if is_known.is_some() {
                return is_known;
            }
            let is_changed = offers.borrow_and_update().get(service) != offer.as_ref();
            let may_be_revoked = {
                let all = revoked.borrow_and_update();
                egress::is_revoked(node, &all) || invites(&all) != invites_before
            };
            if is_changed || may_be_revoked {
                return None;
            }
            // The sender is dropped only when the daemon stops.
            tokio::select! {
                Ok(()) = offers.changed() => {}
                Ok(()) = revoked.changed() => {}
                else => return std::future::pending().await,
            }
        }
    }

    /// Resolves once the node of an open session loses access: it was revoked, its credential
    /// expired, or a new configuration excludes it. Checks only when one of these changes, and
    /// never looks at the session's data.
    async fn access_ends(&self, service: &ServiceName, holder: &Arc<Credential>) {
        let (mut offers, mut revoked) = (self.offers.clone(), self.revoked.clone());
        let mut offered = self.offered.clone();
        loop {
            let revocations = revoked.borrow_and_update().clone();
            let left = {
                let (offers, offered) = (offers.borrow_and_update(), offered.borrow_and_update());
                let (mesh, now) = (&self.context.mesh, clock::wall());
                let offer = offers.get(service).or_else(|| offered.get(service));
                egress::stays(holder, offer, &revocations, &Peers(mesh), now)
            };
            let Some(left) = left else { return };
            // The sender is dropped only when the daemon stops.
            tokio::select! {
                Ok(()) = offers.changed() => {}
                Ok(()) = offered.changed() => {}
                Ok(()) = revoked.changed() => {}
                () = sleep(left) => {}
            }
        }
    }

    /// Sends the opener of a stream the reason for its refusal.
    async fn refuse(&self, peer: &NodeId, header: &Header, stream: Stream, refused: Refused) {
        let Refused { answer, why } = refused;
        let service = &header.service;
        if let Some(why) = why {
            self.audit.refused_stream(&RefusedStream {
                peer,
                credential: self.context.mesh.credential(peer).as_deref(),
                client: header.client.as_deref(),
                service,
                reason: &why.to_string(),
            });
        }
        debug!(%service, peer = %peer.short(), %answer, "stream refused");
        refuse(stream, answer).await;
    }

    /// Relays a stream to its destination node, with no hop left: no node relays it further, so it
    /// cannot loop.
    async fn relay(&self, incoming: Incoming, target: NodeId) {
        let Incoming { peer, header, stream, rest } = incoming;
        let totals = self.context.sessions.totals(&header.service);
        let opened = match self.admit_relayed(&peer, target, &header) {
            Ok((holder, guards)) => tokio::select! {
                opened = self.open_onward(&holder, target, &header) => {
                    opened.map(|next| (next, guards))
                }
                _ = stream.send.stopped() => return,
            },
            Err(refused) => Err(refused),
        };
        match opened {
            Ok((next, [guard, _for_peer])) => {
                totals.counts.bump(SessionCount::Relayed);
                let carried = Carried::default();
                let end = async {
                    guard.relay(&carried).await;
                };
                let ended = splice::between_streams(stream, next, rest, end).await;
                if let Err(error) = ended {
                    let (peer, origin) = (peer.short(), target.short());
                    debug!(%peer, %origin, %error, "relayed session broke");
                }
            }
            Err(refused) => {
                totals.answers.note(refused.answer);
                self.refuse(&peer, &header, stream, refused).await;
            }
        }
    }

    /// The credential of the node for which a stream is relayed, and its entries among the open
    /// sessions.
    fn admit_relayed(
        &self,
        peer: &NodeId,
        target: NodeId,
        header: &Header,
    ) -> Result<(Arc<Credential>, [Guard; 2]), Refused> {
        if *self.leaving.borrow() {
            return Err(Answer::Leaving.into());
        }
        let holder = self.context.mesh.credential(peer).ok_or(Denial::Unknown)?;
        access::may_use(&holder, clock::wall())?;
        let service = &header.service;
        let guards = self.context.sessions.relay(service, *peer, target, self.max_relayed);
        let guards = guards.ok_or(Answer::Overloaded)?;
        if let Some(origin) = self.context.mesh.credential(&target) {
            access::may_serve(&origin, service)?;
        }
        Ok((holder, guards))
    }

    async fn open_onward(
        &self,
        holder: &Credential,
        target: NodeId,
        header: &Header,
    ) -> Result<Stream, Refused> {
        let (service, left) = (&header.service, header.deadline());
        let opened = async {
            let mut next =
                self.context.mesh.open_stream(target).await.map_err(|_| Answer::NoPath)?;
            // The origin has answered, so its credential is known.
            let origin = self.context.mesh.credential(&target).ok_or(Denial::NoOrigin)?;
            access::may_serve(&origin, service)?;
            let onward = Header::carried(service.clone(), holder.clone(), left).encode();
            let sent = next.send.write_chunk(onward.into()).await;
            sent.map_err(|_| Answer::NoPath)?;
            Ok(next)
        };
        timeout(left, opened).await.unwrap_or(Err(Answer::TimedOut.into()))
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

/// The start of a stream.
enum Opening {
    /// A session, and the bytes after its header.
    Session(Header, Bytes),
    /// A stream of the way back, and the bytes after its call.
    Call(Call, Bytes),
    /// A query to this node.
    Question(Question),
    /// A request for the next credential of a node.
    Renewal(Request),
    /// An operator's request for the view of a node.
    View(remote_view::Request),
}

/// Anything else.
struct NoHeader {
    /// The version, if the header is from a later release.
    version: Option<u8>,
}

/// Reads the header and the bytes after it, or the query.
async fn read_header(stream: &mut Stream) -> Result<Opening, NoHeader> {
    let mut buffer = BytesMut::new();
    let mut chunk = [Bytes::new()];
    loop {
        match stream.recv.read_chunks(&mut chunk).await {
            Ok(Some(_)) => buffer.extend_from_slice(&chunk[0]),
            Ok(None) | Err(_) => return Err(NoHeader { version: None }),
        }
        let read = match buffer.first() {
            Some(&question::VERSION) => {
                let read = Question::decode(&buffer).map_err(drop);
                Some(read.map(|it| it.map(|(question, _)| Opening::Question(question))))
            }
            Some(&call::VERSION) => match Call::decode(&buffer) {
                Ok(Some((call, used))) => {
                    return Ok(Opening::Call(call, buffer.split_off(used).freeze()));
                }
                Ok(None) => Some(Ok(None)),
                Err(_) => Some(Err(())),
            },
            Some(&(request::VERSION | request::RELAYED_VERSION)) => {
                let read = Request::decode(&buffer).map_err(drop);
                Some(read.map(|it| it.map(Opening::Renewal)))
            }
            Some(&remote_view::VERSION) => {
                let read = remote_view::Request::decode(&buffer).map_err(drop);
                Some(read.map(|it| it.map(Opening::View)))
            }
            _ => None,
        };
        match read {
            Some(Ok(Some(opening))) => return Ok(opening),
            Some(Ok(None)) => continue,
            Some(Err(())) => return Err(NoHeader { version: None }),
            None => {}
        }
        match Header::decode(&buffer) {
            Ok(Some((header, used))) => {
                return Ok(Opening::Session(header, buffer.split_off(used).freeze()));
            }
            Ok(None) if buffer.len() < MAX_HEADER_BYTES => {}
            Err(BadHeader::Version(version)) => {
                return Err(NoHeader { version: Some(version) });
            }
            Ok(None) | Err(_) => return Err(NoHeader { version: None }),
        }
    }
}

async fn refuse(mut stream: Stream, answer: Answer) {
    let code = Bytes::copy_from_slice(&[answer.code()]);
    send_last(&mut stream, code, HEADER_TIMEOUT).await;
    stream.recv.stop(ABORTED);
}

async fn carry(
    tcp: Tcp,
    mut stream: Stream,
    rest: Bytes,
    carried: &Carried,
    cut: impl Future<Output = ()>,
) -> io::Result<()> {
    let code = Bytes::copy_from_slice(&[Answer::Connected.code()]);
    stream.send.write_chunk(code).await.map_err(io::Error::other)?;
    let early = Early { up: Bytes::new(), down: vec![rest] };
    let end = async {
        cut.await;
        Ending::Reset
    };
    splice::with_stream(tcp, stream, early, carried, end).await
}

#[cfg(test)]
mod tests;
