//! A TLS handshake only to read the certificate: nothing is verified, nothing is requested.
//!
//! The handshake is finished and closed properly, so that the server has nothing to complain about.
//! It sends no server name: a server with several certificates shows the one for everybody. The
//! state is moved by bytes, so that it runs over a stream of the mesh and over plain TCP alike.

use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::Error;
use crate::health::probe::AnyCertificate;

/// Bytes of a server's flight, which has its chain of certificates in it: those of apiservers have
/// 2 to 6 KiB.
const MAX_FLIGHT_BYTES: usize = 128 * 1024;
/// Read at once from a plain connection, in bytes.
const PIECE_BYTES: usize = 4 * 1024;

/// One handshake.
pub(crate) struct Handshake {
    tls: ClientConnection,
    taken: usize,
}

impl Handshake {
    pub(crate) fn new() -> Result<Self, String> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate::new(provider)))
            .with_no_client_auth();
        // An address is not sent as a server name.
        let name = ServerName::IpAddress(std::net::Ipv4Addr::LOCALHOST.into());
        let tls = ClientConnection::new(Arc::new(config), name);
        Ok(Self { tls: tls.map_err(|error| error.to_string())?, taken: 0 })
    }

    /// What is to be sent now; empty for nothing.
    pub(crate) fn outgoing(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // Writing to memory does not fail.
        while self.tls.wants_write() && self.tls.write_tls(&mut bytes).is_ok_and(|sent| sent > 0) {}
        bytes
    }

    /// Takes what the server sent.
    ///
    /// # Errors
    /// It is no TLS, or too much.
    pub(crate) fn take(&mut self, mut bytes: &[u8]) -> Result<(), String> {
        self.taken += bytes.len();
        if self.taken > MAX_FLIGHT_BYTES {
            return Err("its TLS handshake is too long".into());
        }
        while !bytes.is_empty() {
            self.tls.read_tls(&mut bytes).map_err(|error| error.to_string())?;
            self.tls.process_new_packets().map_err(|error| format!("it speaks no TLS: {error}"))?;
        }
        Ok(())
    }

    /// The server's certificate once the handshake is over, which is closed then.
    pub(crate) fn certificate(&mut self) -> Option<Vec<u8>> {
        if self.tls.is_handshaking() {
            return None;
        }
        let certificate = self.tls.peer_certificates()?.first()?.to_vec();
        self.tls.send_close_notify();
        Some(certificate)
    }
}

/// The certificate of the server at an address, a name or an IP address with a port.
///
/// # Errors
/// [`Error::Negative`] when nobody answers there within `limit`, or not with TLS.
pub async fn of_server(address: &str, limit: Duration) -> Result<Vec<u8>, Error> {
    let read = timeout(limit, over_tcp(address)).await;
    let read = read.unwrap_or_else(|_late| Err(format!("no answer within {limit:?}")));
    read.map_err(Error::Negative)
}

async fn over_tcp(address: &str) -> Result<Vec<u8>, String> {
    let text = |error: std::io::Error| error.to_string();
    let mut tcp = TcpStream::connect(address).await.map_err(text)?;
    let mut handshake = Handshake::new()?;
    let mut piece = [0; PIECE_BYTES];
    loop {
        tcp.write_all(&handshake.outgoing()).await.map_err(text)?;
        let length = tcp.read(&mut piece).await.map_err(text)?;
        if length == 0 {
            return Err("it closed the connection without a certificate".into());
        }
        handshake.take(&piece[..length])?;
        if let Some(certificate) = handshake.certificate() {
            // The certificate is here, whatever becomes of the goodbye.
            let _ = tcp.write_all(&handshake.outgoing()).await;
            return Ok(certificate);
        }
    }
}
