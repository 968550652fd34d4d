//! QUIC configuration inside the tunnels.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hkdf::Hkdf;
use meshport_config::NodeKey;
use quinn::{ClientConfig, EndpointConfig, IdleTimeout, MtuDiscoveryConfig, ServerConfig};
use quinn::{TransportConfig, VarInt};
use quinn_proto::crypto::{CryptoError, HmacKey};
use quinn_proto::{NoneTokenStore, ValidationTokenConfig};
use rand::rngs::StdRng;
use rand::{RngCore, SeedableRng};
use sha2::Sha256;

use super::congestion::{BoundedCubic, Remote};
use super::connection_id::{self, Ids, ProcessTag, Random};
use super::lock;
use super::null_crypto::{NoTokens, NullCrypto};
use super::windows::{self, Grants, Pools};
use meshport_proto::inner::UDP_OVERHEAD;
use meshport_proto::settings::FIRST_STREAMS;
use meshport_proto::tunnel::DATA_OVERHEAD;
use meshport_proto::{MeshConfig, MeshError};

/// Datagrams per batch that the socket offers to send; quinn itself uses at most 10.
pub(super) const MAX_BATCH: usize = 64;
/// Unacknowledged bytes per connection: enough to fill the longest supported path and the queues of
/// its streams.
const SEND_WINDOW: u64 = 64 << 20;
/// A connection ends after this long without a packet. Bounds how long the resources of a vanished
/// peer are kept; the probes of paths and origins find failures much earlier.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// Keepalive interval of the side that opened a connection. A keepalive wakes both sides twice, and
/// an origin has thousands of peers.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
/// Initial RTT if the handshake did not measure it.
const DEFAULT_RTT: Duration = Duration::from_millis(50);
/// Added to a measured RTT for processing at both ends.
const RTT_MARGIN: Duration = Duration::from_millis(5);
/// Largest initial RTT: quinn's default.
const MAX_RTT: Duration = Duration::from_millis(333);
/// The outer MTU if the system does not report one.
const USUAL_MTU: u16 = 1500;
/// Datagram size that QUIC requires of every path.
const MIN_DATAGRAM: u16 = 1200;
/// Bytes of handshake data buffered per connection; a handshake needs about 300.
const CRYPTO_BUFFER: usize = 8192;
/// Maximum number of incoming connection attempts in progress.
const MAX_INCOMING: usize = 1024;
/// Bytes buffered per attempt until it is accepted, and in total.
const INCOMING_BUFFER: u64 = 64 << 10;
const INCOMING_BUFFER_TOTAL: u64 = 4 << 20;

/// Known properties of a path before a connection uses it.
#[derive(Debug, Default)]
pub(super) struct PathHints {
    /// The outer address of the peer.
    pub(super) remote: Option<SocketAddr>,
    /// The round-trip time of the WireGuard handshake.
    pub(super) rtt: Option<Duration>,
    /// The MTU of the first link.
    pub(super) mtu: Option<u16>,
}

impl PathHints {
    /// The round-trip time that windows are sized for.
    fn window_rtt(&self) -> Duration {
        self.rtt.unwrap_or(DEFAULT_RTT)
    }
}

/// Creates the configurations of one endpoint. All randomness comes from one seed.
#[derive(Debug)]
pub(super) struct QuicSetup {
    crypto: Arc<NullCrypto>,
    random: Random,
    tag: ProcessTag,
    mtu: u16,
    pools: Pools,
}

/// Derives 32 bytes for one purpose from a secret.
fn derive(secret: &[u8], purpose: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    Hkdf::<Sha256>::new(Some(b"meshport quic v1"), secret)
        .expand(purpose, &mut out)
        .expect("32 bytes are a permitted length");
    out
}

impl QuicSetup {
    /// `seed` must differ in every process; `tag` identifies the process in its connection ids.
    pub(super) fn new(config: &MeshConfig, seed: &[u8; 32], pools: Pools, tag: ProcessTag) -> Self {
        let random: Random = Arc::new(Mutex::new(StdRng::from_seed(derive(seed, b"ids"))));
        let source = random.clone();
        let crypto = Arc::new(NullCrypto::new(move |bytes| lock(&source).fill_bytes(bytes)));
        Self { crypto, random, tag, mtu: config.mtu, pools }
    }

    /// The largest QUIC datagram for a path.
    fn datagram(&self, path: &PathHints) -> u16 {
        let any = SocketAddr::from(([0; 16], 0));
        let overhead = overhead(path.remote.unwrap_or(any));
        let mtu = self.mtu.min(path.mtu.unwrap_or(USUAL_MTU));
        mtu.saturating_sub(overhead).max(MIN_DATAGRAM)
    }

    /// The largest QUIC datagram accepted from any peer.
    pub(super) fn max_datagram(&self) -> u16 {
        let remote = Some(SocketAddr::from(([0, 0, 0, 0], 0)));
        self.datagram(&PathHints { remote, mtu: Some(self.mtu), ..PathHints::default() })
    }

    /// The configuration of the endpoint. Its reset key is derived from the node's key, so that a
    /// restarted process can reset connections of the previous one.
    ///
    /// # Errors
    /// If the largest datagram is out of QUIC's bounds.
    pub(super) fn endpoint(
        &self,
        key: &NodeKey,
        seed: &[u8; 32],
    ) -> Result<EndpointConfig, MeshError> {
        let reset = ResetKey(derive(&key.secret().to_bytes(), b"stateless reset"));
        let mut config = EndpointConfig::new(Arc::new(reset));
        let (random, tag) = (self.random.clone(), self.tag);
        config
            .rng_seed(Some(derive(seed, b"endpoint")))
            .cid_generator(move || Box::new(Ids { random: random.clone(), tag }))
            .max_udp_payload_size(self.max_datagram())
            .map_err(|_| MeshError::Config("mtu is out of QUIC's bounds"))?;
        Ok(config)
    }

    /// The configuration of an outgoing connection.
    pub(super) fn client(&self, path: &PathHints, remote: Remote) -> ClientConfig {
        let mut transport = self.transport(path, Some(remote));
        // The peer opens streams on its own connection.
        transport.max_concurrent_bidi_streams(VarInt::from_u32(0));
        transport.keep_alive_interval(Some(KEEP_ALIVE));
        let mut config = ClientConfig::new(self.crypto.clone());
        let random = self.random.clone();
        config
            .transport_config(Arc::new(transport))
            .token_store(Arc::new(NoneTokenStore))
            .initial_dst_cid_provider(Arc::new(move || connection_id::initial(&random)));
        config
    }

    /// The configuration of an incoming connection. Without `remote`, the endpoint's default, used
    /// until the peer is known.
    pub(super) fn server(&self, path: &PathHints, remote: Option<Remote>) -> ServerConfig {
        let mut transport = self.transport(path, remote);
        transport.max_concurrent_bidi_streams(VarInt::from_u32(FIRST_STREAMS));
        let mut config = ServerConfig::new(self.crypto.clone(), Arc::new(NoTokens));
        let mut tokens = ValidationTokenConfig::default();
        tokens.sent(0);
        config
            .transport_config(Arc::new(transport))
            .migration(false)
            .validation_token_config(tokens)
            .max_incoming(MAX_INCOMING)
            .incoming_buffer_size(INCOMING_BUFFER)
            .incoming_buffer_size_total(INCOMING_BUFFER_TOTAL);
        config
    }

    /// The connection's share of the node's windows, on this path.
    pub(super) fn grants(&self, path: &PathHints) -> Grants {
        Grants::new(&self.pools, path.window_rtt())
    }

    fn transport(&self, path: &PathHints, remote: Option<Remote>) -> TransportConfig {
        let mut transport = TransportConfig::default();
        let largest = self.datagram(path);
        let discovery = (largest > MIN_DATAGRAM).then(|| {
            let mut discovery = MtuDiscoveryConfig::default();
            discovery.upper_bound(largest);
            discovery
        });
        let rtt = path.rtt.map_or(DEFAULT_RTT, |rtt| (rtt + RTT_MARGIN).min(MAX_RTT));
        let congestion = BoundedCubic::new(self.pools.clone(), remote);
        let stream_window = windows::stream_window(path.window_rtt());
        transport
            .mtu_discovery_config(discovery)
            .initial_rtt(rtt)
            .stream_receive_window(VarInt::from_u32(stream_window))
            .receive_window(VarInt::from_u32(windows::FIRST_WINDOW))
            .send_window(SEND_WINDOW)
            .max_concurrent_uni_streams(VarInt::from_u32(0))
            .datagram_receive_buffer_size(None)
            .crypto_buffer_size(CRYPTO_BUFFER)
            .congestion_controller_factory(Arc::new(congestion))
            .allow_spin(false)
            .max_idle_timeout(Some(idle_timeout()));
        transport
    }
}

fn idle_timeout() -> IdleTimeout {
    IdleTimeout::try_from(IDLE_TIMEOUT).expect("minutes are within QUIC's bounds")
}

/// Creates the tokens of stateless resets: HKDF of the connection id, under a key that survives a
/// restart.
struct ResetKey([u8; 32]);

impl HmacKey for ResetKey {
    fn sign(&self, data: &[u8], signature_out: &mut [u8]) {
        signature_out.copy_from_slice(&derive(&self.0, data));
    }

    fn signature_len(&self) -> usize {
        32
    }

    fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), CryptoError> {
        let expected = derive(&self.0, data);
        let differs = expected.iter().zip(signature).fold(0, |sum, (a, b)| sum | (a ^ b));
        if signature.len() == expected.len() && differs == 0 { Ok(()) } else { Err(CryptoError) }
    }
}

/// Bytes that an IP packet to `remote` adds to a QUIC datagram.
pub(super) fn overhead(remote: SocketAddr) -> u16 {
    let ip = if remote.is_ipv4() { 20 } else { 40 };
    u16::try_from(ip + 8 + DATA_OVERHEAD + UDP_OVERHEAD).unwrap_or(u16::MAX)
}
