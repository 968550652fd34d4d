//! Answers a member that asks an issuer for its next credential.

use meshport_config::NodeId;
use meshport_core::renewal::Request;
use meshport_core::wire::Answer as Code;
use meshport_mesh::Stream;
use tokio::sync::Semaphore;

use crate::exchange::reply;
use crate::node::driver::answers::Ask;
use crate::node::driver::renewal::Judge;

/// Concurrent requests; more are refused, so that they do not slow sessions.
const MAX_UNDER_WAY: usize = 8;

static UNDER_WAY: Semaphore = Semaphore::const_new(MAX_UNDER_WAY);

/// Answers a member that asks for its next credential.
pub(super) async fn answer<A: Ask>(
    ask: &A,
    asker: NodeId,
    request: Request,
    stream: Stream,
) -> Code {
    let code_and_message = async {
        let Ok(_place) = UNDER_WAY.try_acquire() else { return (Code::Overloaded, Vec::new()) };
        match ask.ask(Judge { asker, request }).await {
            Ok(judged) => (Code::Connected, judged.encode()),
            Err(_ending) => (Code::Leaving, Vec::new()),
        }
    };
    let (code, message) = code_and_message.await;
    reply(stream, code, &message).await;
    code
}
