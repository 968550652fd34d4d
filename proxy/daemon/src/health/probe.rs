//! Checks the local instance of a service.
//!
//! Each probe uses a new connection: a persistent one could still answer while new ones are
//! refused. Certificates are checked only where a CA file is configured, since nothing secret is
//! sent without one; a bearer token or client certificate requires it.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::{Bytes, Incoming};
use hyper::header::HeaderValue;
use meshport_config::{HealthMode, HealthSettings};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tracing::{debug, info, warn};
use zeroize::Zeroizing;

use crate::Error;
use meshport_core::health::{FailingChecks, MAX_CHECKS_BODY, Outcome, Question};

use crate::tcp::{Host, Tcp};
use crate::{files, http};

mod unverified;

pub(crate) use unverified::AnyCertificate;

/// The probe "alive" of a Kubernetes apiserver. Any status counts as an answer.
const ALIVE_PATH: &str = "/version";
/// The probe "ready" of a Kubernetes apiserver.
const READY_PATH: &str = "/readyz";
/// The probe "live" of a Kubernetes apiserver: it fails when etcd stalls, but not while the
/// apiserver drains.
const LIVE_PATH: &str = "/livez";
/// The longest token accepted, in bytes; service account tokens have about one KiB.
const MAX_TOKEN_BYTES: u64 = 16 * 1024;

/// How long the body of a failing answer may take after its status.
const BODY_TIMEOUT: Duration = Duration::from_millis(250);

/// The result of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) outcome: Outcome,
    /// The failing checks of an apiserver, if the answer names any.
    pub(crate) failing: FailingChecks,
}

impl From<Outcome> for Answer {
    fn from(outcome: Outcome) -> Self {
        Self { outcome, failing: FailingChecks::default() }
    }
}

/// How an apiserver is reached.
#[derive(Clone)]
struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

/// Checks an instance. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Prober {
    host: Host,
    address: String,
    settings: Arc<HealthSettings>,
    /// Empty in modes without TLS, and until the files exist.
    tls: Arc<OnceLock<Tls>>,
    /// Whether a failure to probe was logged; reset once probes work.
    complained: Arc<AtomicBool>,
}

impl std::fmt::Debug for Prober {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prober").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Prober {
    /// Reads the files the settings name.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Usage`] naming the unusable file.
    pub(crate) fn new(
        host: Host,
        address: String,
        settings: HealthSettings,
    ) -> Result<Self, Error> {
        let prober = Self::without_files(host, address, settings)?;
        if prober.settings.mode == HealthMode::Kubernetes {
            let _ = prober.tls.set(tls(&prober.address, &prober.settings)?);
        }
        Ok(prober)
    }

    /// Like [`Self::new`], but files may be missing: a control-plane node can start before its
    /// certificates exist, and its clients must be served meanwhile. Without the files nothing is
    /// probed, so that no token goes to an unverified server; the instance counts as not ready, and
    /// the log says why.
    ///
    /// # Errors
    /// [`Error::Usage`] for an invalid server name.
    pub(crate) fn at_start(
        host: Host,
        address: String,
        settings: HealthSettings,
    ) -> Result<Self, Error> {
        let prober = Self::without_files(host, address, settings)?;
        if prober.settings.mode == HealthMode::Kubernetes {
            match tls(&prober.address, &prober.settings) {
                Ok(made) => drop(prober.tls.set(made)),
                Err(error) => warn!(
                    %error, address = prober.address,
                    "cannot probe the local apiserver; no node routes to it until this is fixed, \
                     and clients of this node use other origins"
                ),
            }
        }
        Ok(prober)
    }

    fn without_files(host: Host, address: String, settings: HealthSettings) -> Result<Self, Error> {
        server_name(&address, &settings)?;
        let (settings, tls, complained) = (Arc::new(settings), Arc::default(), Arc::default());
        Ok(Self { host, address, settings, tls, complained })
    }

    /// Probes, and waits as long as the settings allow.
    pub(crate) async fn ask(&self, question: Question) -> Answer {
        let patience = match question {
            Question::Alive => self.settings.timeout,
            Question::Ready | Question::Live => self.settings.ready_timeout,
        };
        let answer = timeout(patience, self.ask_patiently(question)).await;
        answer.unwrap_or_else(|_elapsed| Outcome::Silent.into())
    }

    async fn ask_patiently(&self, question: Question) -> Answer {
        let tcp = match self.host.connect(&self.address).await {
            Ok(tcp) => {
                self.complained.store(false, Ordering::Relaxed);
                tcp
            }
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                return Outcome::Refused.into();
            }
            Err(error) => {
                // The cause may be this machine, not the instance.
                if !self.complained.swap(true, Ordering::Relaxed) {
                    let what = match self.settings.mode {
                        HealthMode::Kubernetes => "apiserver",
                        HealthMode::Http | HealthMode::Tcp => "instance",
                    };
                    warn!(address = self.address, %error, "cannot probe the local {what}");
                }
                return Outcome::Broken.into();
            }
        };
        let reply = match (&self.settings.mode, question) {
            (HealthMode::Tcp, _) => return Outcome::Answered(None).into(),
            // Any status shows that it is alive, including 401.
            (HealthMode::Kubernetes, Question::Alive) => self.over_tls(tcp, ALIVE_PATH, None).await,
            (HealthMode::Kubernetes, Question::Ready | Question::Live) => {
                let path = if question == Question::Ready { READY_PATH } else { LIVE_PATH };
                let authorization = self.authorization().await;
                self.over_tls(tcp, path, authorization).await
            }
            (HealthMode::Http, _) => reply(tcp, &self.address, &self.settings.path, None).await,
        };
        let Some(Reply { status, body }) = reply else { return Outcome::Broken.into() };
        let outcome = Outcome::Answered(Some(self.as_ready(status)));
        // Other services may put anything there.
        let failing = match self.settings.mode {
            HealthMode::Kubernetes => FailingChecks::parse(&body),
            HealthMode::Http | HealthMode::Tcp => FailingChecks::default(),
        };
        Answer { outcome, failing }
    }

    /// Plain HTTP services are ready with any success status; Kubernetes must answer 200.
    fn as_ready(&self, status: u16) -> u16 {
        let is_success = (200..300).contains(&status);
        if self.settings.mode == HealthMode::Http && is_success { 200 } else { status }
    }

    async fn over_tls(
        &self,
        tcp: Tcp,
        path: &str,
        authorization: Option<HeaderValue>,
    ) -> Option<Reply> {
        let Tls { connector, name } = self.tls().await?;
        let tls = connector.connect(name, tcp).await.ok()?;
        reply(tls, &self.address, path, authorization).await
    }

    /// The files as first read; `None` while they cannot be read.
    async fn tls(&self) -> Option<Tls> {
        if let Some(made) = self.tls.get() {
            return Some(made.clone());
        }
        let (address, settings) = (self.address.clone(), self.settings.clone());
        let made = tokio::task::spawn_blocking(move || tls(&address, &settings)).await;
        let made = made.ok()?.ok()?;
        info!(address = self.address, "health-probe files found; probing the local apiserver");
        Some(self.tls.get_or_init(|| made).clone())
    }

    /// The token, if configured. If it cannot be read, the instance is probed without it: a bad
    /// file must not look like a hanging instance.
    async fn authorization(&self) -> Option<HeaderValue> {
        let file = self.settings.bearer_token_file.as_ref()?;
        match authorization(file).await {
            Ok(value) => Some(value),
            Err(error) => {
                debug!(file = %file.display(), %error, "probing without the token");
                None
            }
        }
    }
}

/// The answer of an instance.
struct Reply {
    status: u16,
    /// The beginning of the body, of an answer other than 200.
    body: Vec<u8>,
}

async fn reply(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    host: &str,
    path: &str,
    authorization: Option<HeaderValue>,
) -> Option<Reply> {
    let mut request = Request::get(path).header("host", host).header("user-agent", "meshport");
    if let Some(authorization) = authorization {
        request = request.header("authorization", authorization);
    }
    let request = request.body(Empty::<Bytes>::new()).ok()?;
    let reply = http::exchange(stream, request, async |answer| {
        let status = answer.status().as_u16();
        let body = if status == 200 { Vec::new() } else { beginning(answer.into_body()).await };
        Ok::<_, hyper::Error>(Reply { status, body })
    });
    reply.await.ok()
}

/// The start of a body: the status decides, so errors here are ignored.
async fn beginning(mut body: Incoming) -> Vec<u8> {
    let mut read = Vec::new();
    let reading = async {
        while let Some(Ok(frame)) = body.frame().await {
            let Ok(data) = frame.into_data() else { continue };
            read.extend_from_slice(&data[..data.len().min(MAX_CHECKS_BODY - read.len())]);
            if read.len() == MAX_CHECKS_BODY {
                return;
            }
        }
    };
    // A late body counts as absent.
    let _ = timeout(BODY_TIMEOUT, reading).await;
    read
}

/// Rereads the token for each probe: Kubernetes rotates it in place.
async fn authorization(file: &Path) -> io::Result<HeaderValue> {
    let token = files::read_aside(file.to_owned(), MAX_TOKEN_BYTES).await?;
    let header = Zeroizing::new([b"Bearer ", token.trim_ascii()].concat());
    let mut value = HeaderValue::from_bytes(&header).map_err(io::Error::other)?;
    value.set_sensitive(true);
    Ok(value)
}

fn tls(address: &str, settings: &HealthSettings) -> Result<Tls, Error> {
    Ok(Tls { connector: connector(settings)?, name: server_name(address, settings)? })
}

fn connector(settings: &HealthSettings) -> Result<TlsConnector, Error> {
    let builder = http::tls_client();
    let builder = match &settings.ca_file {
        Some(file) => {
            let mut roots = rustls::RootCertStore::empty();
            for certificate in certificates(file)? {
                roots.add(certificate).map_err(|error| unusable(file, &error))?;
            }
            builder.with_root_certificates(roots)
        }
        None => {
            let any = AnyCertificate::new(Arc::clone(builder.crypto_provider()));
            builder.dangerous().with_custom_certificate_verifier(Arc::new(any))
        }
    };
    let mut config = match (&settings.client_cert_file, &settings.client_key_file) {
        (Some(certificate), Some(key_file)) => {
            let key = PrivateKeyDer::from_pem_slice(&pem(key_file)?)
                .map_err(|error| unusable(key_file, &error))?;
            builder
                .with_client_auth_cert(certificates(certificate)?, key)
                .map_err(|error| unusable(certificate, &error))?
        }
        _ => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![http::ALPN.to_vec()];
    config.resumption = rustls::client::Resumption::disabled();
    Ok(TlsConnector::from(Arc::new(config)))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let pem = pem(file)?;
    let read = CertificateDer::pem_slice_iter(&pem);
    let all = read.collect::<Result<Vec<_>, _>>().map_err(|error| unusable(file, &error))?;
    if all.is_empty() {
        return Err(unusable(file, &"it holds no certificate"));
    }
    Ok(all)
}

fn pem(file: &Path) -> Result<Zeroizing<Vec<u8>>, Error> {
    files::read(file, files::MAX_PEM_BYTES).map_err(|error| unusable(file, &error))
}

fn unusable(file: &Path, why: &dyn std::fmt::Display) -> Error {
    Error::Usage(format!(
        "{}: cannot be used for health probes: {why}. Check the path and that it is PEM",
        file.display()
    ))
}

fn server_name(address: &str, settings: &HealthSettings) -> Result<ServerName<'static>, Error> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let name = settings.server_name.as_deref().unwrap_or(host.trim_matches(['[', ']']));
    ServerName::try_from(name.to_owned())
        .map_err(|_| Error::Usage(format!("\"{name}\" is not a host name; set server-name")))
}

#[cfg(test)]
mod tests {
    use meshport_config::Settings;
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// Answers every request with `answer` and closes the connection.
    async fn server(answer: &'static [u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("bound").to_string();
        tokio::spawn(async move {
            loop {
                let (mut tcp, _) = listener.accept().await.expect("open");
                let _ = tcp.read(&mut [0; 1024]).await;
                let _ = tcp.write_all(answer).await;
            }
        });
        address
    }

    fn settings(mode: HealthMode) -> HealthSettings {
        let settings = Settings::defaults("fra".parse().expect("a site"));
        let service = settings.services.values().next().expect("the default service");
        HealthSettings { mode, ..service.health.clone() }
    }

    #[tokio::test]
    async fn an_answer_that_ends_its_connection_is_an_answer() {
        let address = server(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n").await;
        let prober =
            Prober::new(Host::Kernel, address, settings(HealthMode::Http)).expect("no files");
        for _ in 0..100 {
            assert_eq!(prober.ask(Question::Alive).await, Outcome::Answered(Some(200)).into());
        }
    }

    /// A TLS server that answers every request this way.
    async fn tls_server(answer: &'static [u8]) -> (String, tokio::task::JoinHandle<()>) {
        let (acceptor, _) = crate::testing::tls_server();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("bound").to_string();
        let serving = tokio::spawn(async move {
            // The connection stays open after the answer, as some servers do.
            let mut open = Vec::new();
            loop {
                let (tcp, _) = listener.accept().await.expect("open");
                // A prober without its files closes before the handshake.
                let Ok(mut tls) = acceptor.accept(tcp).await else { continue };
                let _ = tls.read(&mut [0; 1024]).await;
                let _ = tls.write_all(answer).await;
                let _ = tls.flush().await;
                open.push(tls);
            }
        });
        (address, serving)
    }

    #[tokio::test]
    async fn an_apiserver_says_which_checks_fail_and_its_status_counts_without() {
        let whole = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 54\r\n\r\n\
                      [+]ping ok\n[-]etcd failed: reason withheld\nreadyz check";
        let stuck = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 999\r\n\r\n\
                      [-]etcd failed: reason withheld\n[-]informer-sync failed: 1";
        let silent = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 9\r\n\r\n";
        for (answer, status, failing) in [
            (&whole[..], 500, "etcd"),
            (&stuck[..], 500, "etcd, informer-sync"),
            (&silent[..], 503, ""),
        ] {
            let (address, _serving) = tls_server(answer).await;
            let settings = settings(HealthMode::Kubernetes);
            let prober = Prober::new(Host::Kernel, address, settings).expect("no files");
            let answer = prober.ask(Question::Ready).await;
            assert_eq!(answer.outcome, Outcome::Answered(Some(status)));
            assert_eq!(answer.failing.to_string(), failing);
        }
    }

    #[tokio::test]
    async fn files_that_come_later_are_read_then_and_nothing_is_asked_before() {
        let ok = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
        let (address, _serving) = tls_server(ok).await;
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("ca.crt");
        let key = rcgen::KeyPair::generate().expect("a key");
        let made = rcgen::CertificateParams::default().self_signed(&key).expect("signed");
        let settings =
            HealthSettings { ca_file: Some(file.clone()), ..settings(HealthMode::Kubernetes) };
        let new = Prober::new(Host::Kernel, address.clone(), settings.clone());
        assert!(new.expect_err("a reload says it").to_string().contains("ca.crt"));
        let prober = Prober::at_start(Host::Kernel, address, settings).expect("it starts");
        assert_eq!(prober.ask(Question::Ready).await.outcome, Outcome::Broken);
        assert!(prober.tls.get().is_none());
        std::fs::write(&file, made.pem()).expect("written");
        // Another authority signed the server's certificate, so verification fails.
        assert_eq!(prober.ask(Question::Ready).await.outcome, Outcome::Broken);
        assert!(prober.tls.get().is_some(), "the file was read");
    }

    #[test]
    fn a_pipe_in_place_of_a_file_is_refused_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let pair = rcgen::KeyPair::generate().expect("a key");
        let made = rcgen::CertificateParams::default().self_signed(&pair).expect("signed");
        std::fs::write(path("crt"), made.pem()).expect("written");
        std::fs::write(path("key"), pair.serialize_pem()).expect("written");
        mknodat(CWD, path("pipe"), FileType::Fifo, Mode::RUSR, 0).expect("made");
        for (ca, certificate, key, is_fine) in [
            ("crt", "crt", "key", true),
            ("pipe", "crt", "key", false),
            ("crt", "pipe", "key", false),
            ("crt", "crt", "pipe", false),
        ] {
            let settings = HealthSettings {
                ca_file: Some(path(ca)),
                client_cert_file: Some(path(certificate)),
                client_key_file: Some(path(key)),
                ..settings(HealthMode::Kubernetes)
            };
            let (say, said) = std::sync::mpsc::sync_channel(1);
            std::thread::spawn(move || say.send(connector(&settings).map(drop)));
            let said = said.recv_timeout(Duration::from_secs(20)).expect("it waits for nobody");
            let why = said.err().map(|it| it.to_string());
            let is_as_it_is = why.as_ref().is_none_or(|it| it.contains("not a regular file"));
            assert!(why.is_none() == is_fine && is_as_it_is, "{ca} {certificate} {key}: {why:?}");
        }
    }

    #[tokio::test]
    async fn refused_and_cut_connections_are_distinguished() {
        let address = server(b"").await;
        let prober =
            Prober::new(Host::Kernel, address, settings(HealthMode::Http)).expect("no files");
        assert_eq!(prober.ask(Question::Alive).await, Outcome::Broken.into());
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("bound").to_string();
        drop(listener);
        let prober =
            Prober::new(Host::Kernel, address, settings(HealthMode::Tcp)).expect("no files");
        assert_eq!(prober.ask(Question::Alive).await, Outcome::Refused.into());
    }

    #[tokio::test]
    async fn an_unreadable_token_is_left_out_and_a_readable_one_is_trimmed() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("token");
        let settings =
            HealthSettings { bearer_token_file: Some(file.clone()), ..settings(HealthMode::Http) };
        let prober = Prober::new(Host::Kernel, "127.0.0.1:1".into(), settings).expect("read later");
        assert_eq!(prober.authorization().await, None);
        std::fs::write(&file, "two\nlines\n").expect("writes");
        assert_eq!(prober.authorization().await, None);
        std::fs::write(&file, "word\n").expect("writes");
        let value = prober.authorization().await.expect("readable");
        assert_eq!(value, "Bearer word");
        assert!(value.is_sensitive());
    }
}
