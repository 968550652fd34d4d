//! Requests for renewals between members, over streams: see [`meshport_core::renewal`].

use std::time::Duration;

use meshport_config::NodeId;
use meshport_core::renewal::{ASK_LIMIT, Refusal, Reply, Request, Setback};
use meshport_mesh::Mesh;
use tokio::time::timeout;

use crate::exchange::{self, Unanswered};

pub(crate) mod state;

/// Less than the asker waits in all, so that it hears why nobody has answered.
const MARGIN: Duration = Duration::from_secs(1);

/// Asks one issuer, which may need a tunnel first; if it does not answer, asks it through each of
/// these relays. An invalid answer of a relay counts as none.
pub(crate) async fn ask(
    mesh: &Mesh,
    issuer: NodeId,
    relays: &[NodeId],
    request: &Request,
    fits: impl Fn(&[u8]) -> Result<(), Setback>,
) -> Result<Vec<u8>, Setback> {
    let limit = ASK_LIMIT - MARGIN;
    let direct = if relays.is_empty() { limit } else { limit / 2 };
    let late = |within| move |_| Setback::Silent(format!("no answer within {within:?}"));
    let asked = timeout(direct, exchange(mesh, issuer, request)).await;
    let mut problem = match asked.map_err(late(direct)).flatten() {
        Err(error @ Setback::Silent(_)) => error.to_string(),
        // Only the issuer could have sent this.
        said => return said,
    };
    let part = (limit - direct) / u32::try_from(relays.len().max(1)).expect("relays are few");
    let request = request.through_relay(issuer);
    let mut gains_nothing = false;
    for relay in relays {
        let asked = timeout(part, exchange(mesh, *relay, &request)).await;
        let answer = asked.map_err(late(part)).flatten();
        match answer.and_then(|issued| fits(&issued).map(|()| issued)) {
            Ok(issued) => return Ok(issued),
            Err(other) => {
                gains_nothing |= other == Setback::Refused(Refusal::NothingGained);
                problem.push_str(&format!("; through relay {}: {other}", relay.short()));
            }
        }
    }
    // This is not a failure. A lying relay hides no more than a silent one.
    Err(if gains_nothing { Refusal::NothingGained.into() } else { Setback::Silent(problem) })
}

/// A request and its reply.
pub(crate) async fn exchange(
    mesh: &Mesh,
    with: NodeId,
    request: &Request,
) -> Result<Vec<u8>, Setback> {
    let opened = mesh.open_stream(with).await;
    let mut stream = opened.map_err(|error| Setback::Silent(error.to_string()))?;
    let request = request.encode();
    let reply = exchange::ask(&mut stream, request, Reply::MAX_BYTES, Reply::decode).await?;
    Ok(reply.0?)
}

impl From<Unanswered> for Setback {
    fn from(why: Unanswered) -> Self {
        Self::Silent(why.to_string())
    }
}
