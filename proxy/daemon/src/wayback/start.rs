//! Starts the tasks of the way back.

use meshport_config::{ServiceName, Settings};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::nodes;
use super::socket::{self, OpenStreams, Requests};
use crate::egress::Egress;
use crate::node::commands::Command;
use crate::node::roster::Source;

/// Starts reading Node objects and serving the socket, as configured. Returns its open streams.
pub(crate) fn start(
    egress: &Egress,
    settings: &Settings,
    sources: &[(ServiceName, Source)],
    commands: &mpsc::Sender<Command>,
    tasks: &mut JoinSet<()>,
) -> OpenStreams {
    let Egress { context, back, asked, audit, credential, leaving, .. } = egress.clone();
    context.sessions.register(&ServiceName::way_back());
    let own = credential.borrow().clone();
    socket::warn_of_missing_role(&settings.egress, &own);
    if let Some((source, whose)) = nodes::source(settings, &own, sources) {
        tasks.spawn(nodes::follow(source, whose, back.clone(), commands.clone()));
    }
    let streams = OpenStreams::default();
    let requests =
        Requests { context, back, asked, audit, credential, leaving, streams: streams.clone() };
    tasks.spawn(socket::serve(requests));
    streams
}
