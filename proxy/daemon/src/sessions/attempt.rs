//! An attempt to reach a service's instance through one candidate.
//!
//! An attempt opens a link (a stream through the mesh, or a plain connection to this node's own
//! instance or an address outside the mesh), sends the client's first bytes as far as permitted,
//! and ends with the first byte of the answer. Until then the client has received nothing, so a
//! failed attempt costs it only time. The caller decides when to time out
//! ([`meshport_core::connect`]). Several attempts of one client may run in parallel; `shared` has
//! their common state.

use std::time::Duration;

use bytes::Bytes;
use meshport_config::ServiceName;
use meshport_mesh::Mesh;
use tokio::time::timeout;

use meshport_core::connect::Kind;
use meshport_core::evidence::{Attempted, Verdict};
use meshport_core::patience::Patience;
use meshport_core::route::Line;

use crate::tcp::Host;

pub(crate) mod failure;
mod link;
mod shared;

pub(crate) use self::failure::Failure;
pub(crate) use self::link::{Connection, Link};
pub(crate) use self::shared::Shared;

/// The link to a candidate's instance, and the bytes already exchanged on it.
#[derive(Debug)]
pub(crate) struct Upstream {
    line: Line,
    link: Link,
    /// How many of the client's bytes were sent.
    pub(crate) sent: usize,
    /// Bytes of the answer that were read during the attempt.
    pub(crate) first: Vec<Bytes>,
}

impl Upstream {
    /// The line of the candidate.
    pub(crate) fn line(&self) -> Line {
        self.line
    }

    /// How long it took to connect, for lines without another measurement.
    pub(crate) fn timing(&self, now: std::time::Instant) -> Option<Attempted> {
        let took = self.link.connected_after?;
        let untold = !matches!(self.line, Line::Direct(_));
        let (line, verdict) = (self.line, Verdict::Connected(took));
        untold.then_some(Attempted { line, verdict, began: now })
    }

    /// Takes the link, which is then no longer closed on drop.
    pub(crate) fn into_connection(mut self) -> Connection {
        self.link.take_connection()
    }
}

/// The target of an attempt.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) mesh: Mesh,
    pub(crate) host: Host,
    pub(crate) service: ServiceName,
    pub(crate) line: Line,
    /// The address of the local instance, if this node has one.
    pub(crate) local_instance: Option<String>,
    /// Time left until the client is given up.
    pub(crate) left: Duration,
}

/// Tries one candidate until the caller cancels.
pub(crate) async fn attempt(shared: Shared, id: u32, target: Target) -> Result<Upstream, Failure> {
    let mut link = Link::open(&target).await?;
    let (sent, first) = exchange(&shared, id, &mut link).await?;
    Ok(Upstream { line: target.line, link, sent, first })
}

/// Checks whether a candidate's instance accepts a connection; otherwise returns a verdict about
/// its line. Sends nothing.
pub(crate) async fn answers(target: Target, patience: Patience) -> Result<(), Option<Verdict>> {
    let opened = timeout(patience.open, Link::open(&target)).await;
    let mut link = opened.map_err(|_| None)?.map_err(|failure| failure.verdict())?;
    while !link.connected {
        let heard = timeout(patience.open, link.recv()).await;
        heard.map_err(|_| None)?.map_err(|failure| failure.verdict())?;
    }
    Ok(())
}

/// Sends the opening as far as permitted and waits for the first bytes of the answer. Returns how
/// much was sent, and these bytes.
async fn exchange(
    shared: &Shared,
    id: u32,
    link: &mut Link,
) -> Result<(usize, Vec<Bytes>), Failure> {
    let mut states = shared.subscribe();
    let mut sent = 0;
    let mut announced = false;
    loop {
        if link.connected && !std::mem::replace(&mut announced, true) {
            shared.connected(id);
        }
        states.mark_unchanged();
        let (kind, bytes) = shared.take(id, link.connected, sent);
        if let Some(bytes) = bytes {
            sent += link.forward(bytes).await?;
            if link.connected && kind == Kind::Other {
                return Ok((sent, Vec::new()));
            }
        }
        tokio::select! {
            biased;
            answer = link.recv() => {
                let Some(first) = answer? else { continue };
                // An instance that speaks first may do so along with its node's answer.
                if !announced {
                    shared.connected(id);
                }
                if !shared.may_answer(id) {
                    return Err(Failure::Outpaced);
                }
                if first.is_empty() && kind == Kind::Tls {
                    return Err(Failure::Path("the instance closed without an answer".into()));
                }
                return Ok((sent, first));
            }
            _ = states.changed() => {}
        }
    }
}
