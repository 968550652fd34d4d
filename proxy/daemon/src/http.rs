//! A request over HTTP/1.1 on a connection of its own, and how TLS clients are set up.

use std::sync::Arc;

use hyper::body::{Body, Incoming};
use hyper::client::conn::http1;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, ConfigBuilder, WantsVerifier};
use tokio::io::{AsyncRead, AsyncWrite};

/// The protocol that TLS clients offer.
pub(crate) const ALPN: &[u8] = b"http/1.1";

/// Sends a request. `read` takes the answer, while the connection is served.
pub(crate) async fn exchange<B, T, E, F>(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    request: Request<B>,
    read: impl FnOnce(Response<Incoming>) -> F,
) -> Result<T, E>
where
    B: Body<Data: Send, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + 'static,
    E: From<hyper::Error>,
    F: Future<Output = Result<T, E>>,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let exchange = async { read(sender.send_request(request).await?).await };
    tokio::pin!(exchange);
    tokio::select! {
        done = &mut exchange => done,
        // The answer may be the last data on the connection.
        _ = connection => exchange.await,
    }
}

/// A TLS client, before it is told whom to believe.
pub(crate) fn tls_client() -> ConfigBuilder<ClientConfig, WantsVerifier> {
    ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring speaks the default versions")
}
