//! A TLS handshake that only reads the certificate: it verifies and requests nothing.
//!
//! The handshake is finished and closed properly, so that the server logs no error. It sends no
//! server name, so a server with several certificates shows its default one. It takes and gives
//! bytes, so that it runs over streams of the mesh and over plain TCP.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConnection;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::health::certificate::Certificate;
use crate::health::probe::AnyCertificate;
use crate::http;
use crate::sessions::attempt::failure::Failure;

/// Maximum size of a server's flight, including its certificate chain: apiservers send 2 to 6 KiB.
const MAX_FLIGHT_BYTES: usize = 128 * 1024;
/// Size of one read from a plain connection, in bytes.
const PIECE_BYTES: usize = 4 * 1024;

/// Why a server's certificate could not be read. Messages call the server "it".
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateError {
    // The server.
    /// It ended the connection too early.
    #[error("it closed the connection without a certificate")]
    Closed,
    /// It sent more than a handshake contains.
    #[error("its TLS handshake is longer than {} KiB", MAX_FLIGHT_BYTES / 1024)]
    TooLong,
    /// The peer does not speak TLS, or no version that is accepted.
    #[error("it does not speak TLS: {0}")]
    NotTls(#[source] rustls::Error),
    /// Its certificate is not X.509.
    #[error("its certificate cannot be read")]
    Malformed,

    // The way to it.
    /// Its address cannot be reached from here.
    #[error("cannot connect: {0}")]
    Network(#[from] io::Error),
    /// Its node cannot be reached through the mesh, or does not serve it.
    #[error(transparent)]
    Path(#[from] Failure),
    /// There was no certificate within this time.
    #[error("no answer within {0:?}")]
    Late(Duration),

    // The daemon that asked it.
    /// The error that the daemon reports, in its words.
    #[error("{0}")]
    Reported(String),

    // Us.
    /// The TLS library accepts no handshake.
    #[error("internal error: no TLS client: {0}. Please report it")]
    Client(#[source] rustls::Error),
}

pub(crate) struct Handshake {
    tls: ClientConnection,
    taken: usize,
}

impl Handshake {
    pub(crate) fn new() -> Result<Self, CertificateError> {
        let builder = http::tls_client();
        let any = AnyCertificate::new(Arc::clone(builder.crypto_provider()));
        let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(any));
        let config = Arc::new(builder.with_no_client_auth());
        // An address is not sent as a server name.
        let name = ServerName::IpAddress(std::net::Ipv4Addr::LOCALHOST.into());
        let tls = ClientConnection::new(config, name);
        Ok(Self { tls: tls.map_err(CertificateError::Client)?, taken: 0 })
    }

    /// The bytes to send now; empty if there are none.
    pub(crate) fn outgoing(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // Writing to memory does not fail.
        while self.tls.wants_write() && self.tls.write_tls(&mut bytes).is_ok_and(|sent| sent > 0) {}
        bytes
    }

    /// Handles bytes from the server.
    ///
    /// # Errors
    /// [`CertificateError::NotTls`], [`CertificateError::TooLong`].
    pub(crate) fn take(&mut self, mut bytes: &[u8]) -> Result<(), CertificateError> {
        self.taken += bytes.len();
        if self.taken > MAX_FLIGHT_BYTES {
            return Err(CertificateError::TooLong);
        }
        while !bytes.is_empty() {
            self.tls.read_tls(&mut bytes)?;
            self.tls.process_new_packets().map_err(CertificateError::NotTls)?;
        }
        Ok(())
    }

    /// The server's certificate and the intermediate ones that it sent, once the handshake has
    /// finished; the connection is then closed.
    pub(crate) fn chain(&mut self) -> Option<Vec<CertificateDer<'static>>> {
        if self.tls.is_handshaking() {
            return None;
        }
        let chain = self.tls.peer_certificates()?.to_vec();
        self.tls.send_close_notify();
        Some(chain)
    }
}

/// The certificate of the server at an address, a name or an IP address with a port.
///
/// # Errors
/// [`CertificateError`] if there is no answer within `limit`, or not with TLS.
pub async fn of_server(address: &str, limit: Duration) -> Result<Certificate, CertificateError> {
    let read = timeout(limit, over_tcp(address)).await;
    let chain = read.unwrap_or(Err(CertificateError::Late(limit)))?;
    Certificate::of_chain(chain).ok_or(CertificateError::Malformed)
}

async fn over_tcp(address: &str) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let mut tcp = TcpStream::connect(address).await?;
    let mut handshake = Handshake::new()?;
    let mut piece = [0; PIECE_BYTES];
    loop {
        tcp.write_all(&handshake.outgoing()).await?;
        let length = tcp.read(&mut piece).await?;
        if length == 0 {
            return Err(CertificateError::Closed);
        }
        handshake.take(&piece[..length])?;
        if let Some(chain) = handshake.chain() {
            // The certificate has arrived, so an error while closing does not matter.
            let _ = tcp.write_all(&handshake.outgoing()).await;
            return Ok(chain);
        }
    }
}
