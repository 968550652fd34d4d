//! Streams of other nodes to this node's own instances.
//!
//! Dials only what the configuration offers, and only for peers whose credential allows it. Every
//! stream gets one answer byte; a refusal is counted by kind.

use std::collections::BTreeMap;
use std::future::pending;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use meshport_config::{NodeId, Role, ServiceName};
use meshport_mesh::{Mesh, Stream};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tracing::debug;

use crate::wire::{Answer, Header, MAX_HEADER_BYTES};

use super::sessions::{MAX_SERVED, Sessions, Side, bump};
use super::splice::{self, ABORTED, Carried};

/// How long a stream may take to say what it wants. The header is in its first packet.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// Where the services of this node are dialled.
pub(super) type Offers = BTreeMap<ServiceName, String>;

/// What every served stream shares.
#[derive(Debug, Clone)]
pub(super) struct Egress {
    pub(super) me: NodeId,
    pub(super) mesh: Mesh,
    pub(super) sessions: Sessions,
    pub(super) offers: watch::Receiver<Arc<Offers>>,
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
            return refuse(stream, Answer::BadRequest).await;
        };
        let totals = self.sessions.totals(&header.service);
        match self.dial(&peer, &header).await {
            Ok(tcp) => {
                bump(&totals.answers[usize::from(Answer::Connected.code())]);
                let _open = self.sessions.open(&header.service, Side::Served, peer);
                if let Err(error) = carry(tcp, stream, rest).await {
                    let (service, peer) = (&header.service, peer.short());
                    debug!(%service, %peer, %error, "session broke");
                }
            }
            Err(answer) => {
                bump(&totals.answers[usize::from(answer.code())]);
                debug!(service = %header.service, peer = %peer.short(), %answer, "stream refused");
                refuse(stream, answer).await;
            }
        }
    }

    async fn dial(&self, peer: &NodeId, header: &Header) -> Result<TcpStream, Answer> {
        if *self.leaving.borrow() {
            return Err(Answer::Leaving);
        }
        let credential = self.mesh.credential(peer).ok_or(Answer::NotAllowed)?;
        if !credential.roles.contains(&Role::Node) && !credential.roles.contains(&Role::Operator) {
            return Err(Answer::NotAllowed);
        }
        if header.target.is_some_and(|target| target != self.me) {
            return Err(Answer::NoSuchService);
        }
        let address = self.offers.borrow().get(&header.service).cloned();
        let address = address.ok_or(Answer::NoSuchService)?;
        if self.sessions.count_all(Side::Served) >= MAX_SERVED {
            return Err(Answer::Overloaded);
        }
        match timeout(header.deadline(), TcpStream::connect(&address)).await {
            Ok(Ok(tcp)) => {
                let _ = tcp.set_nodelay(true);
                Ok(tcp)
            }
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                Err(Answer::Refused)
            }
            Ok(Err(_)) => Err(Answer::Failed),
            Err(_elapsed) => Err(Answer::TimedOut),
        }
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

async fn carry(tcp: TcpStream, mut stream: Stream, rest: Bytes) -> io::Result<()> {
    let code = Bytes::copy_from_slice(&[Answer::Connected.code()]);
    stream.send.write_chunk(code).await.map_err(io::Error::other)?;
    splice::with_stream(tcp, stream, vec![rest], &mut Carried::default(), pending()).await
}
