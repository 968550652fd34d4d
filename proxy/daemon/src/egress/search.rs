//! The attempts of one request: streams to the node over several paths. The first to connect wins;
//! the others are reset before they carry any data.

use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use meshport_config::{Credential, NodeId, ServiceName};
use meshport_core::ledger::Side;
use meshport_core::node::Destination;
use meshport_core::route::Line;
use meshport_core::wayback::call::{Call, Want, read_answer};
use meshport_core::wayback::paths::Race;
use meshport_core::wayback::{Refusal, Refused};
use meshport_mesh::{Mesh, Stream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::clock;
use crate::sessions::ingress::Context;
use crate::sessions::registry::Guard;
use crate::sessions::splice::ABORTED;
use crate::tcp::Tcp;
use crate::wayback::WayBack;
use crate::wayback::dial::dial;

/// The result of a search: a path on which the target is connected.
#[derive(Debug)]
pub(super) struct Reached {
    pub(super) connection: Connection,
    pub(super) line: Line,
    pub(super) guard: Guard,
}

#[derive(Debug)]
pub(super) enum Connection {
    /// Through the mesh, with the bytes after the answer.
    Mesh(Stream, Bytes),
    /// On this machine.
    Local(Tcp),
}

/// The node's state that a search uses.
#[derive(Debug, Clone)]
pub(super) struct Search {
    pub(super) context: Context,
    pub(super) back: WayBack,
    /// The credential of this node.
    pub(super) credential: watch::Receiver<Arc<Credential>>,
}

impl Search {
    /// Tries the paths until one connects or the time runs out.
    pub(super) async fn run(
        &self,
        found: &Destination,
        until: Instant,
    ) -> Result<Reached, Refused> {
        let mut race = Race::new(found.paths.clone(), clock::now(), until);
        let mut attempts = JoinSet::new();
        loop {
            while let Some(line) = race.poll(clock::now()) {
                // Registered before the attempt, so that its path is probed closely from the start.
                let sessions = &self.context.sessions;
                let guard = sessions.open(&ServiceName::way_back(), Side::Client, line);
                let attempt = Attempt { search: self.clone(), want: found.want, until };
                attempts.spawn(async move {
                    let connection = attempt.run(line).await?;
                    Ok(Reached { connection, line, guard })
                });
            }
            let now = clock::now();
            if race.is_late(now) {
                let Refused { why, .. } = race.into_refused();
                return Err(Refused::by_node(why, &found.who, &found.want));
            }
            tokio::select! {
                Some(ended) = attempts.join_next(), if !attempts.is_empty() => {
                    let why = match ended {
                        Ok(Ok(reached)) => return Ok(reached),
                        Ok(Err(why)) => why,
                        Err(_gone) => Refusal::Failed,
                    };
                    let refused = Refused::by_node(why, &found.who, &found.want);
                    if race.handle_failure(refused, clock::now()) {
                        return Err(race.into_refused());
                    }
                }
                () = clock::sleep_until(Some(race.poll_timeout())) => {}
            }
        }
    }
}

struct Attempt {
    search: Search,
    want: Want,
    until: Instant,
}

impl Attempt {
    async fn run(&self, line: Line) -> Result<Connection, Refusal> {
        let Search { context, back, credential } = &self.search;
        let mesh = &context.mesh;
        let left = self.until.saturating_duration_since(clock::now());
        match line {
            Line::Direct(node) if mesh.is_own(&node) => {
                let addresses = back.judge(&self.want, &credential.borrow(), &context.host)?;
                dial(&context.host, &addresses, left).await.map(Connection::Local)
            }
            Line::Direct(node) => self.through(node, Call::direct(node, self.want, left)).await,
            Line::Relayed { origin, relay } => {
                self.through(relay, Call::relayed(origin, self.want, left)).await
            }
            Line::Outside(_) => Err(Refusal::NoPath),
        }
    }

    async fn through(&self, hop: NodeId, call: Call) -> Result<Connection, Refusal> {
        let mut pending = Pending::open(&self.search.context.mesh, hop).await?;
        let stream = pending.stream();
        stream.send.write_chunk(call.encode().into()).await.map_err(|_| Refusal::NoPath)?;
        let rest = answered(stream).await?;
        Ok(Connection::Mesh(pending.into_stream(), rest))
    }
}

/// Waits for the answer; returns the bytes after it.
async fn answered(stream: &mut Stream) -> Result<Bytes, Refusal> {
    let mut buffer = BytesMut::new();
    let mut chunk = [Bytes::new()];
    loop {
        let read = stream.recv.read_chunks(&mut chunk).await;
        let is_end = read.map_err(|_| Refusal::NoPath)?.is_none();
        buffer.extend_from_slice(&std::mem::take(&mut chunk[0]));
        if let Some((answer, used)) = read_answer(&buffer, is_end) {
            return answer.map(|()| buffer.split_off(used).freeze());
        }
        if is_end {
            return Err(Refusal::NoPath);
        }
    }
}

/// A stream that is reset on drop.
struct Pending(Option<Stream>);

impl Pending {
    async fn open(mesh: &Mesh, hop: NodeId) -> Result<Self, Refusal> {
        let stream = mesh.open_stream(hop).await.map_err(|_| Refusal::NoPath)?;
        Ok(Self(Some(stream)))
    }

    fn stream(&mut self) -> &mut Stream {
        self.0.as_mut().expect("it is taken only at the end")
    }

    fn into_stream(mut self) -> Stream {
        self.0.take().expect("it is taken once")
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(stream) = &mut self.0 {
            stream.send.reset(ABORTED);
            stream.recv.stop(ABORTED);
        }
    }
}
