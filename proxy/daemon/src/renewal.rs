//! Requests for renewals between members, over streams: see [`meshport_core::renewal`].

use meshport_config::NodeId;
use meshport_core::renewal::{ASK_LIMIT, Reply, Request, Setback};
use meshport_mesh::Mesh;
use tokio::time::timeout;

use crate::exchange::{self, Unanswered};

/// Asks one issuer, which may need a tunnel first; within [`ASK_LIMIT`].
pub(crate) async fn ask(mesh: &Mesh, who: NodeId, request: &Request) -> Result<Vec<u8>, Setback> {
    let asked = timeout(ASK_LIMIT, exchange(mesh, who, request)).await;
    let late = |_| Setback::Silent(format!("no answer within {ASK_LIMIT:?}"));
    asked.map_err(late)?
}

async fn exchange(mesh: &Mesh, who: NodeId, request: &Request) -> Result<Vec<u8>, Setback> {
    let opened = mesh.open_stream(who).await;
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
