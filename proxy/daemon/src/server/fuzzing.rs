//! A connection of the admin server in memory; only with the feature `fuzzing`.

use std::any::TypeId;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;

use super::router::ListenerKind;
use super::{Client, serve_connection};
use crate::Error;
use crate::admin::pace::Pace;
use crate::admin::request::Kind;
use crate::admin::slots::Slots;
use crate::driver::answers::{Answer, Ask, rows};
use crate::sessions::client::ClientId;

/// The requests that reached the daemon over a connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Asked {
    /// Queries that change nothing.
    pub questions: usize,
    /// Requests to drain, revoke, renew, rotate or ping.
    pub commands: usize,
}

/// A daemon that counts and refuses everything.
#[derive(Debug, Clone, Default)]
struct Refusing(Arc<Mutex<Asked>>);

impl Ask for Refusing {
    async fn ask<Q: Answer>(&self, _question: Q) -> Result<Q::Reply, Error> {
        let mut asked = self.0.lock().expect("nobody panics");
        let mut commands = rows::<Self>().into_iter().filter(|row| row.kind == Kind::Command);
        match commands.any(|row| row.id == TypeId::of::<Q>()) {
            true => asked.commands += 1,
            false => asked.questions += 1,
        }
        Err(Error::Refused("not here".into()))
    }
}

/// Serves these bytes as a whole connection on the socket or the loopback port. Returns the output
/// and the requests that reached the daemon, which refuses all of them.
///
/// # Panics
/// If the connection does not end although its client has.
pub async fn admin_connection(by_socket: bool, bytes: &[u8]) -> (Vec<u8>, Asked) {
    let daemon = Refusing::default();
    // Larger than any request and all its answers: neither side waits for the other.
    let (mut client, server) = tokio::io::duplex(1 << 22);
    let (_stop, stopping) = watch::channel(false);
    let listener = if by_socket { ListenerKind::Socket } else { ListenerKind::Loopback };
    let slot = Slots::default().take(ClientId::Unknown).expect("there is room");
    let identified = Client { who: ClientId::Unknown, listener, pace: Pace::default() };
    let serving = serve_connection(server, identified, daemon.clone(), stopping, slot);
    let talking = async {
        client.write_all(bytes).await.expect("there is room");
        client.shutdown().await.expect("it is memory");
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.expect("it is memory");
        answer
    };
    let ((), answer) = tokio::join!(serving, talking);
    let asked = daemon.0.lock().expect("nobody panics").clone();
    (answer, asked)
}
