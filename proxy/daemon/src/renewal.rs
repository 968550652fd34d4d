//! Requests for renewals between members, over streams: see [`meshport_core::renewal`].

use meshport_config::NodeId;
use meshport_core::renewal::{ASK_LIMIT, Reply, Request, Setback};
use meshport_mesh::Mesh;
use tokio::time::timeout;

use crate::exchange::{self, Unanswered};

/// Asks one issuer, which may need a tunnel first; if it does not answer, through each of these
/// relays, in equal parts of [`ASK_LIMIT`].
pub(crate) async fn ask(
    mesh: &Mesh,
    issuer: NodeId,
    relays: &[NodeId],
    request: &Request,
) -> Result<Vec<u8>, Setback> {
    let ways = u32::try_from(1 + relays.len()).expect("relays are few");
    let part = ASK_LIMIT / ways;
    let late = |_| Setback::Silent(format!("no answer within {part:?}"));
    let direct = timeout(part, exchange(mesh, issuer, request)).await.map_err(late).flatten();
    let mut problem = match direct {
        // Nobody but the issuer could have said that.
        Ok(_) | Err(Setback::Refused(_)) => return direct,
        Err(problem) => problem.to_string(),
    };
    let request = request.through_relay(issuer);
    for relay in relays {
        match timeout(part, exchange(mesh, *relay, &request)).await.map_err(late).flatten() {
            Ok(issued) => return Ok(issued),
            Err(other) => problem.push_str(&format!("; through relay {}: {other}", relay.short())),
        }
    }
    Err(Setback::Silent(problem))
}

/// A request and its reply.
pub(crate) async fn exchange(
    mesh: &Mesh,
    with: NodeId,
    request: &Request,
) -> Result<Vec<u8>, Setback> {
    let opened = mesh.open_stream(with).await;
    let mut stream = opened.map_err(|error| Setback::Silent(error.to_string()))?;
    exchange::send(&mut stream, request.encode()).await?;
    let Reply(answer) = exchange::receive(&mut stream, Reply::MAX_BYTES, Reply::decode).await?;
    Ok(answer?)
}

impl From<Unanswered> for Setback {
    fn from(why: Unanswered) -> Self {
        match why {
            Unanswered::Older => Self::Silent("it is of an earlier version".into()),
            Unanswered::Refused(answer) => Self::Silent(format!("it answers {answer}")),
            Unanswered::Broken(why) => Self::Silent(why),
        }
    }
}
