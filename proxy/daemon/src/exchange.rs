//! Request and reply on a stream between members, for `doctor`, renewals and `dashboard`.
//!
//! The requester closes its side after the request; the reply is one answer byte and, after
//! [`Answer::Connected`], a message.

use std::fmt::Display;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use meshport_core::wire::Answer;
use meshport_mesh::Stream;
use tokio::time::timeout;

/// How long a short reply may take to arrive before its stream is dropped.
const PATIENCE: Duration = Duration::from_secs(2);
/// A long message's limit grows by a second per this many bytes: even a slow uplink carries more.
const BYTES_A_SECOND: usize = 32 << 10;

/// Why a request has no reply.
#[derive(Debug)]
pub(crate) enum Unanswered {
    /// The member runs a version that does not know this request.
    Older,
    /// The member refuses.
    Refused(Answer),
    /// The exchange failed.
    Broken(String),
}

/// Sends a complete request.
///
/// # Errors
///
/// [`Unanswered::Broken`] when the stream or its connection has ended.
pub(crate) async fn send(stream: &mut Stream, request: Vec<u8>) -> Result<(), Unanswered> {
    stream.send.write_chunk(request.into()).await.map_err(|error| broken(&error))?;
    // A member that refuses the request may have stopped the stream already; its answer shows that.
    let _ = stream.send.finish();
    Ok(())
}

/// Waits for the reply. `decode` takes the bytes of the message that have arrived, and returns
/// `None` while they are incomplete; a message is at most `limit` bytes.
///
/// # Errors
///
/// If the member refuses the request, or sends no valid reply.
pub(crate) async fn receive<T, E: Display>(
    stream: &mut Stream,
    limit: usize,
    decode: impl Fn(&[u8]) -> Result<Option<T>, E>,
) -> Result<T, Unanswered> {
    let mut buffer = BytesMut::new();
    let mut chunk = [Bytes::new()];
    loop {
        let read = stream.recv.read_chunks(&mut chunk).await;
        let is_over = read.map_err(|error| broken(&error))?.is_none();
        buffer.extend_from_slice(&std::mem::take(&mut chunk[0]));
        if let Some((&code, message)) = buffer.split_first() {
            match Answer::from_code(code) {
                Some(Answer::Connected) => match decode(message).map_err(|error| broken(&error))? {
                    Some(reply) => return Ok(reply),
                    None if message.len() <= limit => {}
                    None => return Err(broken(&"its reply exceeds the size limit")),
                },
                Some(Answer::BadRequest) => return Err(Unanswered::Older),
                Some(answer) => return Err(Unanswered::Refused(answer)),
                None => {
                    return Err(broken(&format_args!("unknown answer code {code}")));
                }
            }
        }
        if is_over {
            return Err(broken(&"it closed the stream without an answer"));
        }
    }
}

/// Sends a reply and waits until it has arrived or timed out.
pub(crate) async fn reply(mut stream: Stream, code: Answer, message: &[u8]) {
    let bytes = [&[code.code()][..], message].concat();
    if stream.send.write_chunk(bytes.into()).await.is_ok() && stream.send.finish().is_ok() {
        let patience = PATIENCE + Duration::from_secs((message.len() / BYTES_A_SECOND) as u64);
        // Dropping the stream earlier would lose the reply.
        let _ = timeout(patience, stream.send.stopped()).await;
    }
}

fn broken(why: &dyn Display) -> Unanswered {
    Unanswered::Broken(why.to_string())
}
