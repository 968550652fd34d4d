//! Internals for the benches; not part of the interface.

use std::future::pending;
use std::io;

use bytes::Bytes;
use meshport_mesh::Stream;

use crate::sessions::splice::{self, Carried, Early};
use crate::tcp::Tcp;
use meshport_core::opening::Opening;

/// Carries bytes between a connection and a stream until both are done; returns how many.
pub async fn with_stream(tcp: Tcp, stream: Stream) -> io::Result<u64> {
    let carried = Carried::default();
    splice::with_stream(tcp, stream, Early::default(), &carried, pending()).await?;
    Ok(carried.total())
}

/// The same between two connections.
pub async fn with_tcp(one: Tcp, two: Tcp) -> io::Result<u64> {
    let carried = Carried::default();
    splice::with_tcp(one, two, Early::default(), &carried, pending()).await?;
    Ok(carried.total())
}

/// Reads what is available, waiting if there is nothing; `None` at the end.
pub async fn read(tcp: &Tcp) -> io::Result<Option<Bytes>> {
    splice::read(tcp).await
}

/// Writes all of the chunks.
pub async fn write(tcp: &Tcp, chunks: &mut [Bytes]) -> io::Result<()> {
    splice::write(tcp, chunks).await
}

/// The part of a client's first bytes that is sent to the first candidate, if any.
pub fn open(first: &[u8]) -> Option<Bytes> {
    let mut opening = Opening::default();
    opening.push(first);
    opening.may_go(false).then(|| {
        opening.spend();
        opening.before_answer(0)
    })
}
