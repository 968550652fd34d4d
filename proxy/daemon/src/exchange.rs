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
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unanswered {
    /// The member runs a version that does not know this request.
    #[error("it runs an earlier version")]
    Older,
    /// The member refuses.
    #[error("it answers {0}")]
    Refused(Answer),
    /// The exchange failed.
    #[error("{0}")]
    Broken(String),
}

/// Sends a request and waits for its reply. `decode` takes the bytes of the message that have
/// arrived, and returns `None` while they are incomplete; a message is at most `limit` bytes.
///
/// # Errors
///
/// When the stream or its connection has ended, the member refuses the request, or it sends no
/// valid reply.
pub(crate) async fn ask<T, E: Display>(
    stream: &mut Stream,
    request: Vec<u8>,
    limit: usize,
    decode: impl Fn(&[u8]) -> Result<Option<T>, E>,
) -> Result<T, Unanswered> {
    stream.send.write_chunk(request.into()).await.map_err(|error| broken(&error))?;
    // A member that refuses the request may have stopped the stream already; its answer shows that.
    let _ = stream.send.finish();
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

/// Sends a reply, or why there is none; returns its code.
pub(crate) async fn reply(mut stream: Stream, message: Result<Vec<u8>, Answer>) -> Answer {
    let (code, message) = match message {
        Ok(message) => (Answer::Connected, message),
        Err(code) => (code, Vec::new()),
    };
    let patience = PATIENCE + Duration::from_secs((message.len() / BYTES_A_SECOND) as u64);
    let bytes = [&[code.code()][..], &message].concat();
    send_last(&mut stream, bytes.into(), patience).await;
    code
}

/// Sends the last bytes and waits until they have arrived or timed out: dropping the stream earlier
/// would lose them.
pub(crate) async fn send_last(stream: &mut Stream, bytes: Bytes, patience: Duration) {
    if stream.send.write_chunk(bytes).await.is_ok() && stream.send.finish().is_ok() {
        let _ = timeout(patience, stream.send.stopped()).await;
    }
}

fn broken(why: &dyn Display) -> Unanswered {
    Unanswered::Broken(why.to_string())
}
