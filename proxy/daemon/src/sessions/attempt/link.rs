//! A link to an instance during an attempt: opened, written, read, closed on drop.

use std::io;
use std::time::{Duration, Instant};

use bytes::Bytes;
use meshport_config::NodeId;
use meshport_mesh::Stream;

use super::{Failure, Target};
use crate::clock;
use crate::sessions::splice::{self, ABORTED};
use crate::tcp::{Host, Tcp};
use meshport_core::route::Line;
use meshport_core::wire::{Answer, Header};

/// The connection to an instance.
#[derive(Debug)]
pub(crate) enum Connection {
    /// Through the mesh.
    Mesh(Stream),
    /// A plain connection: to this node's own instance, or outside the mesh.
    Plain(Tcp),
}

/// A link being tried; closed on drop.
#[derive(Debug)]
pub(crate) struct Link {
    connection: Option<Connection>,
    pub(super) connected: bool,
    opened: Instant,
    /// Time from opening it until it was connected.
    pub(super) connected_after: Option<Duration>,
}

impl Link {
    pub(crate) async fn open(target: &Target) -> Result<Self, Failure> {
        let (service, left) = (target.service.clone(), target.left);
        let opened = clock::now();
        let mut link = match target.line {
            Line::Direct(node) if target.mesh.is_own(&node) => {
                let address = target.local_instance.as_deref().ok_or_else(|| {
                    Failure::Path("this node no longer offers the service".into())
                })?;
                Self::plain(&target.host, address).await?
            }
            Line::Direct(node) => {
                Self::through(target, node, &Header::direct(service, left)).await?
            }
            Line::Relayed { origin, relay } => {
                Self::through(target, relay, &Header::relayed(service, origin, left)).await?
            }
            Line::Outside(address) => Self::plain(&target.host, &address.to_string()).await?,
        };
        link.opened = opened;
        if link.connected {
            link.connect();
        }
        Ok(link)
    }

    fn new(connection: Connection) -> Self {
        Self {
            connection: Some(connection),
            connected: false,
            opened: clock::now(),
            connected_after: None,
        }
    }

    fn connect(&mut self) {
        self.connected = true;
        self.connected_after = Some(clock::now().saturating_duration_since(self.opened));
    }

    async fn plain(host: &Host, address: &str) -> Result<Self, Failure> {
        let tcp = host.connect(address).await.map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused => Failure::Answered(Answer::Refused),
            _ => Failure::Path(format!("cannot dial {address}: {error}")),
        })?;
        tcp.set_nodelay();
        let mut link = Self::new(Connection::Plain(tcp));
        link.connected = true;
        Ok(link)
    }

    async fn through(target: &Target, node: NodeId, header: &Header) -> Result<Self, Failure> {
        let path = |error: meshport_mesh::MeshError| Failure::Path(error.to_string());
        let stream = target.mesh.open_stream(node).await.map_err(path)?;
        let mut link = Self::new(Connection::Mesh(stream));
        if let Some(Connection::Mesh(stream)) = &mut link.connection {
            stream.send.write_chunk(header.encode().into()).await.map_err(path)?;
        }
        Ok(link)
    }

    /// Takes the link, which is then no longer closed on drop.
    pub(crate) fn take_connection(&mut self) -> Connection {
        self.connection.take().expect("it is taken once")
    }

    fn connection(&mut self) -> &mut Connection {
        self.connection.as_mut().expect("it is taken only at the end")
    }

    /// Sends bytes of the client; returns how many.
    pub(crate) async fn forward(&mut self, bytes: Bytes) -> Result<usize, Failure> {
        let length = bytes.len();
        let sent = match self.connection() {
            Connection::Mesh(stream) => {
                stream.send.write_chunk(bytes).await.map_err(|error| error.to_string())
            }
            Connection::Plain(tcp) => {
                splice::write(tcp, &mut [bytes]).await.map_err(|error| error.to_string())
            }
        };
        sent.map(|()| length).map_err(Failure::Path)
    }

    /// The candidate's next message: `Ok(None)` is its "connected", `Ok(Some)` the first bytes of
    /// the instance's answer (empty if it ended without any).
    pub(crate) async fn recv(&mut self) -> Result<Option<Vec<Bytes>>, Failure> {
        let connected = self.connected;
        match self.connection() {
            Connection::Plain(tcp) => match splice::read(tcp).await {
                Ok(bytes) => Ok(Some(bytes.into_iter().collect())),
                Err(error) => Err(Failure::Path(error.to_string())),
            },
            Connection::Mesh(stream) => {
                let mut chunks = [Bytes::new()];
                let read = stream.recv.read_chunks(&mut chunks).await;
                let [mut bytes] = chunks;
                match read {
                    Err(error) => Err(Failure::Path(error.to_string())),
                    Ok(None) if connected => Ok(Some(Vec::new())),
                    Ok(None) => Err(Failure::Path("the origin closed the stream".into())),
                    Ok(Some(_)) if connected => Ok(Some(vec![bytes])),
                    Ok(Some(_)) => {
                        let answer = bytes.split_to(bytes.len().min(1));
                        accepted(answer.first().copied())?;
                        self.connect();
                        Ok((!bytes.is_empty()).then(|| vec![bytes]))
                    }
                }
            }
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        match &mut self.connection {
            Some(Connection::Mesh(stream)) => {
                stream.send.reset(ABORTED);
                stream.recv.stop(ABORTED);
            }
            Some(Connection::Plain(tcp)) => tcp.reset_on_drop(),
            None => {}
        }
    }
}
fn accepted(code: Option<u8>) -> Result<(), Failure> {
    match code.map(Answer::from_code) {
        Some(Some(Answer::Connected)) => Ok(()),
        Some(Some(answer)) => Err(Failure::Answered(answer)),
        // Not the instance's answer: what follows is unknown.
        Some(None) => {
            Err(Failure::Path("the origin runs a later version and sent an unknown answer".into()))
        }
        None => Err(Failure::Path("the origin's answer is malformed".into())),
    }
}
