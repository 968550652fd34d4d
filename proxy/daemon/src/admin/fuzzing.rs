//! One connection of the admin server from memory; only with the feature `fuzzing`.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;

use super::router::Door;
use super::server::serve_connection;
use super::slots::Slots;
use crate::Handle;
use crate::admin::handle::Question;
use crate::sessions::who::Who;

/// What reached the daemon in the course of a connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Asked {
    /// Questions that change nothing.
    pub questions: usize,
    /// Requests to drain, revoke, renew, rotate or ping.
    pub commands: usize,
}

/// Serves these bytes as a whole connection, by the socket or by the loopback port; what was
/// answered, and what the daemon was asked. The daemon refuses everything.
///
/// # Panics
/// When the connection does not end although its client has.
pub async fn admin_connection(by_socket: bool, bytes: &[u8]) -> (Vec<u8>, Asked) {
    let (handle, mut asked) = Handle::new();
    let counting = async {
        let mut counts = Asked::default();
        while let Some(question) = asked.recv().await {
            match question {
                Question::Drain(..)
                | Question::Ping(..)
                | Question::Certificates(..)
                | Question::Revoke(..)
                | Question::Renew(..)
                | Question::Rotate(..)
                | Question::RotateKey(..) => counts.commands += 1,
                _ => counts.questions += 1,
            }
        }
        counts
    };
    // Larger than any request and all its answers: neither side waits for the other.
    let (mut client, server) = tokio::io::duplex(1 << 22);
    let (_stop, stopping) = watch::channel(false);
    let door = if by_socket { Door::Socket } else { Door::Loopback };
    let slot = Slots::default().take(Who::Unknown).expect("there is room");
    let serving = serve_connection(server, door, handle, stopping, slot);
    let talking = async {
        client.write_all(bytes).await.expect("there is room");
        client.shutdown().await.expect("it is memory");
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.expect("it is memory");
        answer
    };
    let ((), answer, counts) = tokio::join!(serving, talking, counting);
    (answer, counts)
}
