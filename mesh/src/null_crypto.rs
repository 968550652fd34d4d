//! A QUIC crypto session without packet protection.
//!
//! QUIC runs inside WireGuard here: confidentiality, integrity and the identity of the peer come
//! from the tunnel and its source check, so a second AEAD would only cost CPU. This session keeps
//! only the handshake around the keys: both sides exchange random bytes and their transport
//! parameters in length-prefixed, versioned frames, and every packet ends in a constant tag of
//! [`TAG_LENGTH`] bytes derived from those random bytes. The tag protects nothing. It makes a
//! packet of another connection or of an earlier process of the same peer fail to "decrypt".
//!
//! ```text
//! client                                server
//! Initial:   Hello(random, params)  ->
//!                                   <-  Initial:   Hello(random)
//!                                   <-  Handshake: Params(params)
//! Handshake: Done                   ->
//! ```
//!
//! Bounds: a frame body is at most [`MAX_BODY`] bytes and a session buffers at most one frame.
//! Malformed input is a `TransportError` that closes the connection. Retry, 0-RTT, address
//! validation tokens and exported keying material do not exist here and are refused.

#[cfg(feature = "fuzzing")]
pub(super) mod fuzzing;

use std::any::Any;
use std::io::Cursor;
use std::sync::{Arc, Mutex};

use bytes::BytesMut;
use quinn_proto::crypto::{
    AeadKey, ClientConfig, CryptoError, ExportKeyingMaterialError, HandshakeTokenKey, HeaderKey,
    KeyPair, Keys, PacketKey, ServerConfig, Session, UnsupportedVersion,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectError, ConnectionId, Side, TransportError, TransportErrorCode};

/// Length of the constant that ends every packet, in bytes.
pub(super) const TAG_LENGTH: usize = 4;
/// Random bytes each side contributes to the tags.
const RANDOM_LENGTH: usize = 16;
/// Version of the frames below; peers with a different version are refused.
const FRAME_VERSION: u8 = 1;
/// Length in bytes of a frame's header: type, version, length.
const FRAME_HEADER: usize = 4;
/// Maximum length of a frame's body, in bytes. Transport parameters take about 120.
const MAX_BODY: usize = 2048;

/// Source of the random bytes for one endpoint, seeded by the caller.
type Random = Arc<Mutex<dyn FnMut(&mut [u8]) + Send>>;
type Tag = [u8; TAG_LENGTH];

/// Makes sessions for both sides of an endpoint.
#[derive(Clone)]
pub(super) struct NullCrypto {
    random: Random,
}

impl std::fmt::Debug for NullCrypto {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NullCrypto").finish_non_exhaustive()
    }
}

impl NullCrypto {
    /// `random` fills a buffer with bytes that differ from those of every other process.
    pub(super) fn new(random: impl FnMut(&mut [u8]) + Send + 'static) -> Self {
        Self { random: Arc::new(Mutex::new(random)) }
    }

    fn session(&self, side: Side, params: &TransportParameters) -> NullSession {
        let mut random = [0; RANDOM_LENGTH];
        let mut fill = self.random.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        fill(&mut random);
        NullSession {
            side,
            params: *params,
            random,
            peer_random: None,
            peer_params: None,
            received: Vec::new(),
            step: Step::Start,
        }
    }
}

impl ClientConfig for NullCrypto {
    fn start_session(
        self: Arc<Self>,
        _version: u32,
        _server_name: &str,
        params: &TransportParameters,
    ) -> Result<Box<dyn Session>, ConnectError> {
        Ok(Box::new(self.session(Side::Client, params)))
    }
}

impl ServerConfig for NullCrypto {
    fn initial_keys(
        &self,
        _version: u32,
        dst_cid: &ConnectionId,
    ) -> Result<Keys, UnsupportedVersion> {
        Ok(initial_keys(dst_cid))
    }

    // Retry packets are never sent; `is_valid_retry` refuses any that arrive.
    fn retry_tag(&self, _version: u32, _orig_dst_cid: &ConnectionId, _packet: &[u8]) -> [u8; 16] {
        [0; 16]
    }

    fn start_session(
        self: Arc<Self>,
        _version: u32,
        params: &TransportParameters,
    ) -> Box<dyn Session> {
        Box::new(self.session(Side::Server, params))
    }
}

/// The progress of a session's handshake. Each step is left at most once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Nothing is written yet. The client sends first; the server waits for its hello.
    Start,
    /// Client: the hello is written; waiting for the server's.
    HelloSent,
    /// The peer's hello is known; the handshake keys come next.
    HaveHello,
    /// Handshake keys were handed out. Client: waiting for the server's parameters. Server: its
    /// parameters come next.
    Keyed,
    /// Client: the server's parameters are known; the last frame and the keys come next.
    HaveParams,
    /// Server: parameters and keys are sent; waiting for the client's last frame.
    ParamsSent,
    /// Complete; more handshake bytes are an error.
    Done,
}

/// One side of a connection's handshake.
struct NullSession {
    side: Side,
    params: TransportParameters,
    random: [u8; RANDOM_LENGTH],
    peer_random: Option<[u8; RANDOM_LENGTH]>,
    peer_params: Option<TransportParameters>,
    /// Bytes of an incomplete frame; at most one frame.
    received: Vec<u8>,
    step: Step,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum FrameType {
    Hello = 1,
    Params = 2,
    Done = 3,
}

fn malformed(reason: &'static str) -> TransportError {
    let code = TransportErrorCode::PROTOCOL_VIOLATION;
    TransportError { code, frame: None, reason: reason.to_owned() }
}

impl NullSession {
    /// Consumes one frame of `kind`.
    fn read_frame(&mut self, kind: u8, body: &[u8]) -> Result<(), TransportError> {
        let hello = FrameType::Hello as u8;
        match (self.side, self.step) {
            (Side::Server, Step::Start) if kind == hello => {
                let (random, params) = split_random(body)?;
                self.peer_random = Some(random);
                self.peer_params = Some(self.read_params(params)?);
                self.step = Step::HaveHello;
            }
            (Side::Client, Step::HelloSent) if kind == hello => {
                let (random, rest) = split_random(body)?;
                if !rest.is_empty() {
                    return Err(malformed("server hello has trailing bytes"));
                }
                self.peer_random = Some(random);
                self.step = Step::HaveHello;
            }
            (Side::Client, Step::Keyed) if kind == FrameType::Params as u8 => {
                self.peer_params = Some(self.read_params(body)?);
                self.step = Step::HaveParams;
            }
            (Side::Server, Step::ParamsSent) if kind == FrameType::Done as u8 => {
                if !body.is_empty() {
                    return Err(malformed("last handshake frame has a body"));
                }
                self.step = Step::Done;
            }
            _ => return Err(malformed("handshake frame out of order")),
        }
        Ok(())
    }

    fn read_params(&self, bytes: &[u8]) -> Result<TransportParameters, TransportError> {
        let mut cursor = Cursor::new(bytes);
        TransportParameters::read(self.side, &mut cursor).map_err(TransportError::from)
    }

    /// The keys for both directions; `label` distinguishes handshake and application.
    fn keys(&self, label: u8) -> Option<Keys> {
        let peer = self.peer_random?;
        let (client, server) = match self.side {
            Side::Client => (self.random, peer),
            Side::Server => (peer, self.random),
        };
        let tag = |direction: u8| tag_of(&[&[label, direction], &client, &server]);
        let (local, remote) = match self.side {
            Side::Client => (tag(0), tag(1)),
            Side::Server => (tag(1), tag(0)),
        };
        Some(null_keys(local, remote))
    }
}

fn split_random(body: &[u8]) -> Result<([u8; RANDOM_LENGTH], &[u8]), TransportError> {
    let (random, rest) = body.split_first_chunk().ok_or_else(|| malformed("hello is too short"))?;
    Ok((*random, rest))
}

fn write_frame(out: &mut Vec<u8>, kind: FrameType, body: &[u8]) {
    let length = u16::try_from(body.len()).expect("our own frames are far below 64 KiB");
    out.extend_from_slice(&[kind as u8, FRAME_VERSION]);
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(body);
}

impl Session for NullSession {
    fn initial_keys(&self, dst_cid: &ConnectionId, _side: Side) -> Keys {
        initial_keys(dst_cid)
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        None
    }

    // The tunnel has the identity, not this session.
    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        None
    }

    fn early_data_accepted(&self) -> Option<bool> {
        Some(false)
    }

    fn is_handshaking(&self) -> bool {
        !matches!((self.side, self.step), (_, Step::Done) | (Side::Client, Step::HaveParams))
    }

    fn read_handshake(&mut self, buf: &[u8]) -> Result<bool, TransportError> {
        let mut input = buf;
        while !input.is_empty() {
            // First complete the header, then the body.
            let header = FRAME_HEADER.saturating_sub(self.received.len()).min(input.len());
            self.received.extend_from_slice(&input[..header]);
            input = &input[header..];
            let Some(&[kind, version, high, low]) = self.received.first_chunk() else { break };
            if version != FRAME_VERSION {
                return Err(malformed("handshake frame version is not supported"));
            }
            let length = usize::from(u16::from_be_bytes([high, low]));
            if length > MAX_BODY {
                return Err(malformed("handshake frame is too long"));
            }
            let missing = FRAME_HEADER + length - self.received.len();
            let taken = missing.min(input.len());
            self.received.extend_from_slice(&input[..taken]);
            input = &input[taken..];
            if taken == missing {
                let frame = std::mem::take(&mut self.received);
                self.read_frame(kind, &frame[FRAME_HEADER..])?;
            }
        }
        Ok(false)
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        Ok(self.peer_params)
    }

    fn write_handshake(&mut self, buf: &mut Vec<u8>) -> Option<Keys> {
        match (self.side, self.step) {
            (Side::Client, Step::Start) => {
                let mut body = self.random.to_vec();
                self.params.write(&mut body);
                write_frame(buf, FrameType::Hello, &body);
                self.step = Step::HelloSent;
                None
            }
            (side, Step::HaveHello) => {
                if side == Side::Server {
                    write_frame(buf, FrameType::Hello, &self.random);
                }
                self.step = Step::Keyed;
                self.keys(b'h')
            }
            (Side::Server, Step::Keyed) => {
                let mut body = Vec::new();
                self.params.write(&mut body);
                write_frame(buf, FrameType::Params, &body);
                self.step = Step::ParamsSent;
                self.keys(b'a')
            }
            (Side::Client, Step::HaveParams) => {
                write_frame(buf, FrameType::Done, &[]);
                self.step = Step::Done;
                self.keys(b'a')
            }
            _ => None,
        }
    }

    // A key update changes nothing: the tag belongs to the connection.
    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        self.keys(b'a').map(|keys| keys.packet)
    }

    fn is_valid_retry(&self, _: &ConnectionId, _: &[u8], _: &[u8]) -> bool {
        false
    }

    fn export_keying_material(
        &self,
        _output: &mut [u8],
        _label: &[u8],
        _context: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        Err(ExportKeyingMaterialError)
    }
}

/// Packet "key": appends and checks a constant.
struct NullKey(Tag);

impl PacketKey for NullKey {
    fn encrypt(&self, _packet: u64, buf: &mut [u8], _header_len: usize) {
        let at = buf.len().saturating_sub(TAG_LENGTH);
        buf[at..].copy_from_slice(&self.0);
    }

    fn decrypt(&self, _: u64, _: &[u8], payload: &mut BytesMut) -> Result<(), CryptoError> {
        let length = payload.len().checked_sub(TAG_LENGTH).ok_or(CryptoError)?;
        if payload[length..] != self.0 {
            return Err(CryptoError);
        }
        payload.truncate(length);
        Ok(())
    }

    fn tag_len(&self) -> usize {
        TAG_LENGTH
    }

    fn confidentiality_limit(&self) -> u64 {
        u64::MAX
    }

    // Stray packets with a foreign tag are dropped; no number of them may end a connection.
    fn integrity_limit(&self) -> u64 {
        u64::MAX
    }
}

/// Header "key": headers stay as they are.
struct NullHeader;

impl HeaderKey for NullHeader {
    fn decrypt(&self, _pn_offset: usize, _packet: &mut [u8]) {}

    fn encrypt(&self, _pn_offset: usize, _packet: &mut [u8]) {}

    fn sample_size(&self) -> usize {
        0
    }
}

fn null_keys(local: Tag, remote: Tag) -> Keys {
    Keys {
        header: KeyPair { local: Box::new(NullHeader), remote: Box::new(NullHeader) },
        packet: KeyPair { local: Box::new(NullKey(local)), remote: Box::new(NullKey(remote)) },
    }
}

fn initial_keys(dst_cid: &ConnectionId) -> Keys {
    let tag = tag_of(&[b"initial", dst_cid]);
    null_keys(tag, tag)
}

/// A short fingerprint (FNV-1a, 32 bits) of `parts`. It distinguishes connections and is no secret.
fn tag_of(parts: &[&[u8]]) -> Tag {
    let mut hash = 0x811c_9dc5_u32;
    for byte in parts.iter().copied().flatten() {
        hash = (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193);
    }
    hash.to_be_bytes()
}

/// Address validation tokens: never issued by us, never accepted.
#[derive(Debug)]
pub(super) struct NoTokens;

impl HandshakeTokenKey for NoTokens {
    fn aead_from_hkdf(&self, _random_bytes: &[u8]) -> Box<dyn AeadKey> {
        Box::new(NoTokens)
    }
}

impl AeadKey for NoTokens {
    // Only called when an endpoint issues tokens, which ours is configured not to do; no endpoint
    // would open the result.
    fn seal(&self, _data: &mut Vec<u8>, _additional_data: &[u8]) -> Result<(), CryptoError> {
        Ok(())
    }

    fn open<'a>(
        &self,
        _data: &'a mut [u8],
        _additional_data: &[u8],
    ) -> Result<&'a mut [u8], CryptoError> {
        Err(CryptoError)
    }
}

#[cfg(test)]
mod tests;
