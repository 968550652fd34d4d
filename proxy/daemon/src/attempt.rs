//! One attempt to reach a service's instance through one candidate.
//!
//! An attempt opens the way (a stream through the mesh, or a plain connection to this node's own
//! instance or to an address outside of the mesh), sends the client's first bytes along as far as
//! they may go, and is over with the first byte of the answer. Until then the client has seen
//! nothing, so a failed attempt costs it only time. Each step has its own patience, from the path's
//! round-trip time. Several attempts of one client may run at once; what they share is `shared`.

use std::time::Duration;

use bytes::Bytes;
use meshport_config::ServiceName;
use meshport_mesh::Mesh;
use tokio::time::{Instant, timeout};

use meshport_core::connect::Kind;
use meshport_core::evidence::{Attempted, Verdict};
use meshport_core::route::{Candidate, Line};
use meshport_core::wire::Answer;

use super::clock;
use super::tcp::Host;

use self::link::Link;

mod certificate;
mod link;
mod shared;

pub(super) use self::certificate::certificate;
pub(super) use self::link::Way;
pub(super) use self::shared::Shared;

/// The shortest wait for any step: scheduling on a busy machine must not look like a dead path.
const MIN_PATIENCE: Duration = Duration::from_millis(400);
/// The longest wait for one step of one candidate while others are untried.
const MAX_PATIENCE: Duration = Duration::from_secs(3);
/// What an instance may take for its first answer byte besides the path: accepting a connection and
/// one asymmetric signature on a loaded machine.
const ANSWER_ALLOWANCE: Duration = Duration::from_millis(1000);
/// Round trips in opening a stream to a peer without a session: WireGuard handshake, QUIC
/// handshake, the stream itself, and one lost packet.
const OPENING_ROUND_TRIPS: u32 = 4;

/// The way to a candidate's instance, and what has passed on it already.
#[derive(Debug)]
pub(super) struct Upstream {
    line: Line,
    link: Link,
    /// How many of the client's bytes have gone out.
    pub(super) sent: usize,
    /// Bytes of the answer that were read during the attempt.
    pub(super) first: Vec<Bytes>,
}

impl Upstream {
    /// Where it leads.
    pub(super) fn line(&self) -> Line {
        self.line
    }

    /// How long it took to be connected, for lines of which nothing else tells.
    pub(super) fn timing(&self, now: std::time::Instant) -> Option<Attempted> {
        let took = self.link.connected_after?;
        let untold = !matches!(self.line, Line::Direct(_));
        let (line, verdict) = (self.line, Verdict::Connected(took));
        untold.then_some(Attempted { line, verdict, began: now })
    }

    /// Takes the way, which is not given up any more.
    pub(super) fn into_way(mut self) -> Way {
        self.link.take_way()
    }
}

/// Why an attempt did not succeed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The client went away; no other attempt is wanted.
    #[error("the client went away")]
    Client,
    /// Another attempt of the same client was connected before.
    #[error("another origin was connected before")]
    Outpaced,
    /// The candidate cannot be reached or did not answer in time.
    #[error("{0}")]
    Path(String),
    /// The candidate answered that it cannot serve.
    #[error("the origin answered: {0}")]
    Answered(Answer),
}

impl Failure {
    /// What it says about the candidate's line, if anything.
    pub(super) fn verdict(&self) -> Option<Verdict> {
        match self {
            Self::Client | Self::Outpaced => None,
            Self::Path(_) | Self::Answered(Answer::TimedOut) => Some(Verdict::Silent),
            Self::Answered(Answer::NotAllowed) => Some(Verdict::Denied),
            Self::Answered(_) => Some(Verdict::Refused),
        }
    }
}

/// How long the steps of an attempt may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    open: Duration,
    answer: Duration,
}

impl Patience {
    /// From the candidate's cost; `round` counts how often all candidates were tried before, and
    /// doubles everything each time, so that slowness everywhere is not taken for death.
    pub(super) fn new(candidate: &Candidate, round: u32, left: Duration) -> Self {
        let factor = 1 << round.min(4);
        let within = |wait: Duration| (wait.clamp(MIN_PATIENCE, MAX_PATIENCE) * factor).min(left);
        Self {
            open: within(candidate.cost * OPENING_ROUND_TRIPS),
            answer: within(candidate.cost * 2 + ANSWER_ALLOWANCE),
        }
    }
}

/// Where and what to try.
#[derive(Debug, Clone)]
pub(super) struct Target {
    pub(super) mesh: Mesh,
    pub(super) host: Host,
    pub(super) service: ServiceName,
    pub(super) line: Line,
    /// The address of the local instance, if this node has one.
    pub(super) own: Option<String>,
    /// Time until nobody waits for the answer any more.
    pub(super) left: Duration,
    pub(super) patience: Patience,
}

/// Tries one candidate.
pub(super) async fn attempt(shared: Shared, id: u32, target: Target) -> Result<Upstream, Failure> {
    let patience = target.patience;
    let mut link = timeout(patience.open, Link::open(&target))
        .await
        .map_err(|_| Failure::Path(format!("no way opened in {:?}", patience.open)))??;
    let (sent, first) = exchange(&shared, id, &mut link, patience).await?;
    Ok(Upstream { line: target.line, link, sent, first })
}

/// Whether a candidate's instance accepts a connection now; else what that says about its line.
/// Nothing is sent to it.
pub(super) async fn answers(target: Target) -> Result<(), Option<Verdict>> {
    let patience = target.patience.open;
    let opened = timeout(patience, Link::open(&target)).await;
    let mut link = opened.map_err(|_| None)?.map_err(|failure| failure.verdict())?;
    while !link.connected {
        let heard = timeout(patience, link.recv()).await;
        heard.map_err(|_| None)?.map_err(|failure| failure.verdict())?;
    }
    Ok(())
}

/// Sends the opening as far as it may go and waits for the first bytes of the answer. Returns how
/// much was sent, and those.
async fn exchange(
    shared: &Shared,
    id: u32,
    link: &mut Link,
    patience: Patience,
) -> Result<(usize, Vec<Bytes>), Failure> {
    let mut states = shared.subscribe();
    let mut sent = 0;
    let mut waiting = Waiting::new();
    let mut announced = false;
    loop {
        if link.connected && !std::mem::replace(&mut announced, true) {
            shared.connected(id);
        }
        states.mark_unchanged();
        let (kind, bytes) = shared.take(id, link.connected, sent);
        if let Some(bytes) = bytes {
            sent += link.forward(bytes, patience.open).await?;
            if link.connected && kind == Kind::Other {
                return Ok((sent, Vec::new()));
            }
        }
        waiting.note(link.connected, sent > 0);
        let (until, wait) = waiting.until(patience);
        tokio::select! {
            biased;
            answer = link.recv() => {
                let Some(first) = answer? else { continue };
                // An instance that speaks first may do so together with its node's answer.
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
            () = passed(until) => {
                return Err(Failure::Path(format!("no answer in {wait:?}")));
            }
        }
    }
}

/// What an attempt waits for, and since when: what the client sends meanwhile prolongs nothing.
struct Waiting {
    connected: bool,
    asked: bool,
    since: Instant,
}

impl Waiting {
    fn new() -> Self {
        Self { connected: false, asked: false, since: Instant::from_std(clock::now()) }
    }

    fn note(&mut self, connected: bool, asked: bool) {
        if (connected, connected && asked) != (self.connected, self.connected && self.asked) {
            self.since = Instant::from_std(clock::now());
        }
        (self.connected, self.asked) = (connected, asked);
    }

    /// Until when it waits, and how long that is. An instance that was asked something has to
    /// answer in time; one that was not may wait for as long as its client does.
    fn until(&self, patience: Patience) -> (Option<Instant>, Duration) {
        let wait = if self.connected { patience.answer } else { patience.open };
        ((!self.connected || self.asked).then(|| self.since + wait), wait)
    }
}

async fn passed(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until).await,
        None => std::future::pending().await,
    }
}
