//! One attempt to reach a service's instance through one candidate.
//!
//! An attempt opens the way (a stream through the mesh, or a plain connection to this node's own
//! instance), sends the client's first bytes along as far as [`Opening`] allows, and is over with
//! the first byte of the answer. Until then the client has seen nothing, so a failed attempt costs
//! it only time. Each step has its own patience, from the path's round-trip time.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use meshport_mesh::{Mesh, Stream};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::core::route::Candidate;
use crate::wire::{Answer, Header};

use super::opening::{Kind, Opening};
use super::splice::{self, ABORTED};

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

/// The way to a candidate's instance, and what it has answered already.
#[derive(Debug)]
pub(super) struct Upstream {
    pub(super) way: Way,
    /// Bytes of the answer that were read during the attempt.
    pub(super) first: Vec<Bytes>,
}

/// How an instance is reached.
#[derive(Debug)]
pub(super) enum Way {
    /// Through the mesh.
    Mesh(Stream),
    /// It is this node's own.
    Own(TcpStream),
}

/// Why an attempt did not succeed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The client went away; no other attempt is wanted.
    #[error("the client went away")]
    Client,
    /// The candidate cannot be reached or did not answer in time.
    #[error("{0}")]
    Path(String),
    /// The candidate answered that it cannot serve.
    #[error("the origin answered: {0}")]
    Answered(Answer),
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
pub(super) struct Target<'a> {
    pub(super) mesh: &'a Mesh,
    pub(super) header: &'a Header,
    pub(super) candidate: &'a Candidate,
    /// The address of the own instance, when the candidate is this node.
    pub(super) own: Option<&'a str>,
    pub(super) patience: Patience,
}

/// Tries one candidate. On success the answer's first bytes are in the result and the client's
/// bytes in `opening` have all gone out.
pub(super) async fn attempt(
    client: &TcpStream,
    opening: &mut Opening,
    target: Target<'_>,
) -> Result<Upstream, Failure> {
    let patience = target.patience;
    let mut link = timeout(patience.open, Link::open(&target))
        .await
        .map_err(|_| Failure::Path(format!("no way opened in {:?}", patience.open)))??;
    match exchange(client, opening, &mut link, patience).await {
        Ok(first) => Ok(Upstream { way: link.way, first }),
        Err(failure) => {
            link.abort();
            Err(failure)
        }
    }
}

/// Whether a candidate's instance accepts a connection now. Nothing is sent to it.
pub(super) async fn answers(target: Target<'_>) -> bool {
    let patience = target.patience.open;
    let Ok(Ok(mut link)) = timeout(patience, Link::open(&target)).await else { return false };
    while !link.connected {
        match timeout(patience, link.recv()).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) | Err(_) => break,
        }
    }
    link.abort();
    link.connected
}

/// Sends the opening as far as it may go and waits for the first bytes of the answer.
async fn exchange(
    client: &TcpStream,
    opening: &mut Opening,
    link: &mut Link,
    patience: Patience,
) -> Result<Vec<Bytes>, Failure> {
    let mut sent = 0;
    loop {
        if opening.may_go(link.connected) {
            sent = link.forward(opening, sent, patience.open).await?;
            if link.connected && opening.kind() == Kind::Other {
                return Ok(Vec::new());
            }
        }
        // An instance that was asked something has to answer in time; one that was not may wait
        // for as long as its client does.
        let wait = if link.connected {
            (sent > 0).then_some(patience.answer)
        } else {
            Some(patience.open)
        };
        let reads_client = !opening.ended && opening.room() > 0;
        tokio::select! {
            biased;
            answer = link.recv() => match answer? {
                Some(first) if first.is_empty() && opening.kind() == Kind::Tls => {
                    return Err(Failure::Path("the instance closed without an answer".into()));
                }
                Some(first) => {
                    // An instance that speaks first may do so together with its node's answer.
                    link.forward(opening, sent, patience.open).await?;
                    return Ok(first);
                }
                None => {}
            },
            bytes = splice::read(client), if reads_client => match bytes {
                Ok(Some(bytes)) => opening.push(&bytes),
                Ok(None) if !opening.is_empty() => opening.ended = true,
                Ok(None) | Err(_) => return Err(Failure::Client),
            },
            () = elapsed(wait) => {
                return Err(Failure::Path(format!("no answer in {:?}", wait.unwrap_or_default())));
            }
        }
    }
}

async fn elapsed(wait: Option<Duration>) {
    match wait {
        Some(wait) => tokio::time::sleep(wait).await,
        None => std::future::pending().await,
    }
}

/// A way being tried.
struct Link {
    way: Way,
    connected: bool,
}

impl Link {
    async fn open(target: &Target<'_>) -> Result<Self, Failure> {
        if let Some(own) = target.own {
            let connected = TcpStream::connect(own).await.map_err(|error| match error.kind() {
                io::ErrorKind::ConnectionRefused => Failure::Answered(Answer::Refused),
                _ => Failure::Path(format!("cannot dial {own}: {error}")),
            })?;
            let _ = connected.set_nodelay(true);
            return Ok(Self { way: Way::Own(connected), connected: true });
        }
        let node = target.candidate.origin.node;
        let path = |error: meshport_mesh::MeshError| Failure::Path(error.to_string());
        let mut stream = target.mesh.open_stream(node).await.map_err(path)?;
        stream.send.write_chunk(target.header.encode().into()).await.map_err(path)?;
        Ok(Self { way: Way::Mesh(stream), connected: false })
    }

    /// Sends what the opening has beyond `sent`; returns how much has gone out now.
    async fn forward(
        &mut self,
        opening: &mut Opening,
        sent: usize,
        patience: Duration,
    ) -> Result<usize, Failure> {
        if opening.len() == sent {
            return Ok(sent);
        }
        let bytes = opening.after(sent);
        opening.spend();
        let send = async {
            match &mut self.way {
                Way::Mesh(stream) => {
                    stream.send.write_chunk(bytes).await.map_err(|error| error.to_string())
                }
                Way::Own(tcp) => {
                    splice::write(tcp, &mut [bytes]).await.map_err(|error| error.to_string())
                }
            }
        };
        match timeout(patience, send).await {
            Ok(Ok(())) => Ok(opening.len()),
            Ok(Err(error)) => Err(Failure::Path(error)),
            Err(_elapsed) => Err(Failure::Path(format!("nothing taken in {patience:?}"))),
        }
    }

    /// The next thing the candidate says: `Ok(None)` is its "connected", `Ok(Some)` the first bytes
    /// of the instance's own answer (none at all if it ended without any).
    async fn recv(&mut self) -> Result<Option<Vec<Bytes>>, Failure> {
        match &mut self.way {
            Way::Own(tcp) => match splice::read(tcp).await {
                Ok(bytes) => Ok(Some(bytes.into_iter().collect())),
                Err(error) => Err(Failure::Path(error.to_string())),
            },
            Way::Mesh(stream) => {
                let mut chunks = [Bytes::new()];
                let read = stream.recv.read_chunks(&mut chunks).await;
                let [mut bytes] = chunks;
                match read {
                    Err(error) => Err(Failure::Path(error.to_string())),
                    Ok(None) if self.connected => Ok(Some(Vec::new())),
                    Ok(None) => Err(Failure::Path("the origin closed the stream".into())),
                    Ok(Some(_)) if self.connected => Ok(Some(vec![bytes])),
                    Ok(Some(_)) => {
                        let answer = bytes.split_to(bytes.len().min(1));
                        accepted(answer.first().copied())?;
                        self.connected = true;
                        Ok((!bytes.is_empty()).then(|| vec![bytes]))
                    }
                }
            }
        }
    }

    fn abort(&mut self) {
        match &mut self.way {
            Way::Mesh(stream) => {
                stream.send.reset(ABORTED);
                stream.recv.stop(ABORTED);
            }
            Way::Own(tcp) => splice::reset(tcp),
        }
    }
}

fn accepted(code: Option<u8>) -> Result<(), Failure> {
    match code.map(Answer::from_code) {
        Some(Some(Answer::Connected)) => Ok(()),
        Some(Some(answer)) => Err(Failure::Answered(answer)),
        Some(None) | None => Err(Failure::Path("the origin's answer makes no sense".into())),
    }
}

#[cfg(test)]
mod tests {
    use meshport_config::NodeId;
    use meshport_mesh::Incoming;
    use tokio::io::AsyncWriteExt;

    use super::super::testing::{candidate, pair, service, tcp_pair};
    use super::*;

    /// Takes one stream and reads its header; what came behind it is returned too.
    async fn take(incoming: &mut Incoming) -> (Stream, Vec<u8>) {
        let (_, mut stream) = incoming.streams.recv().await.expect("a stream");
        let mut bytes = Vec::new();
        loop {
            if let Some((_, used)) = Header::decode(&bytes).expect("a header") {
                return (stream, bytes.split_off(used));
            }
            read_more(&mut stream, &mut bytes).await;
        }
    }

    async fn read_more(stream: &mut Stream, bytes: &mut Vec<u8>) {
        let mut chunk = [Bytes::new()];
        stream.recv.read_chunks(&mut chunk).await.expect("open").expect("not at its end");
        bytes.extend_from_slice(&chunk[0]);
    }

    /// An attempt of a client that has sent `said` already.
    async fn try_with(
        near: &Mesh,
        far: NodeId,
        said: &[u8],
    ) -> (Result<Upstream, Failure>, Opening) {
        let (mut client, accepted) = tcp_pair().await;
        client.write_all(said).await.expect("writes");
        accepted.readable().await.expect("open");
        let candidate = candidate(far);
        let header = Header::direct(service(), Duration::from_secs(5));
        let patience = Patience::new(&candidate, 2, Duration::from_secs(5));
        let target =
            Target { mesh: near, header: &header, candidate: &candidate, own: None, patience };
        let mut opening = Opening::default();
        let result = attempt(&accepted, &mut opening, target).await;
        (result, opening)
    }

    #[tokio::test]
    async fn a_greeting_that_comes_with_the_answer_loses_nothing_of_the_client() {
        let (near, mut far) = pair();
        let node = far.mesh.node_id();
        let origin = async {
            let (mut stream, mut said) = take(&mut far.incoming).await;
            let answer = [&[Answer::Connected.code()], &b"hello client"[..]].concat();
            stream.send.write_chunk(answer.into()).await.expect("open");
            while said.len() < 12 {
                read_more(&mut stream, &mut said).await;
            }
            said
        };
        let both = async { tokio::join!(origin, try_with(&near.mesh, node, b"hello server")) };
        let both = timeout(Duration::from_secs(10), both).await;
        let (said, (result, _)) = both.expect("nothing is waited for in vain");
        assert_eq!(said, b"hello server");
        assert_eq!(result.expect("connected").first.concat(), b"hello client");
    }
}
