//! Reads the cluster's own list of apiservers through the mesh, with a kubeconfig's credentials;
//! [`meshport_core::roster`] compares it.
//!
//! One request at a time, one reading per [`INTERVAL`], with backoff after failures. Requests the
//! slice first, and the older object if the slice is not served or not allowed.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::header::{AUTHORIZATION, HOST, HeaderValue, USER_AGENT};
use hyper::{Request, Uri};
use meshport_config::ServiceName;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::client::TlsStream;
use tracing::{info, warn};

use crate::driver::commands::Command;
use crate::http;
use crate::kubernetes::access::{Access, KubeconfigError};
use crate::tcp::{Host, Tcp};

/// Interval between readings. An apiserver stays on the list for 15 s after its last renewal, so
/// reading more often gains nothing.
const INTERVAL: Duration = Duration::from_secs(30);
/// Maximum pause after failures; each doubles it.
const MAX_PAUSE: Duration = Duration::from_secs(600);
/// Limit for one reading: what clients allow for a TLS handshake.
const LIMIT: Duration = Duration::from_secs(10);
/// The largest answer in bytes; a list of five has about 2 KiB.
const MAX_ANSWER_BYTES: usize = 256 * 1024;
/// The slice of the service `kubernetes`, and the Endpoints object that preceded slices.
const PATHS: [&str; 2] = [
    "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes",
    "/api/v1/namespaces/default/endpoints/kubernetes",
];

/// Where to read the list, and with which credentials.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) host: Host,
    /// This node's own local address of the service.
    pub local: SocketAddr,
    pub(crate) kubeconfig: PathBuf,
}

/// Why a request to the cluster failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListError {
    // The kubeconfig, or the rights of its user.
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
    #[error("the apiserver rejects these credentials (401)")]
    Unauthorized,
    #[error(
        "these credentials may not get endpointslices or endpoints in the namespace default (403)"
    )]
    Forbidden,

    // The apiserver, and the way to it.
    #[error("cannot connect to {address}: {source}")]
    Connect { address: SocketAddr, source: io::Error },
    #[error("the request failed: {0}")]
    Http(#[from] hyper::Error),
    #[error("timed out")]
    Late,
    #[error("the apiserver answers {0}")]
    Status(u16),
    #[error("the apiserver's answer is longer than {MAX_ANSWER_BYTES} bytes or incomplete: {0}")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the apiserver's answer is not JSON: {0}")]
    NotJson(#[from] serde_json::Error),
}

/// Starts reading every list.
pub(crate) fn start(
    sources: Vec<(ServiceName, Source)>,
    commands: &mpsc::Sender<Command>,
    tasks: &mut JoinSet<()>,
) {
    for (service, source) in sources {
        tasks.spawn(follow(service, source, commands.clone()));
    }
}

/// Reads the list periodically and passes it to the driver.
async fn follow(service: ServiceName, source: Source, commands: mpsc::Sender<Command>) {
    let mut pause = Duration::ZERO;
    let mut told: Option<String> = None;
    loop {
        sleep(pause).await;
        let read = timeout(LIMIT, source.read()).await;
        let read = read.unwrap_or(Err(ListError::Late));
        match &read {
            Ok(_) => {
                pause = INTERVAL;
                if told.take().is_some() {
                    info!(%service, "the cluster's list of apiservers can be read again");
                }
            }
            Err(error) => {
                pause = (pause * 2).clamp(INTERVAL, MAX_PAUSE);
                let problem = error.to_string();
                // Logs each state once, not each attempt.
                if told.as_ref() != Some(&problem) {
                    let file = source.kubeconfig.display();
                    warn!(%service, %file, problem, "cannot read the cluster's list of apiservers");
                    told = Some(problem);
                }
            }
        }
        if commands.send(Command::Listed(service.clone(), read.ok())).await.is_err() {
            return;
        }
    }
}

impl Source {
    async fn read(&self) -> Result<BTreeSet<SocketAddr>, ListError> {
        // Read each time: tokens and certificates are replaced in place.
        let access = Access::read(&self.kubeconfig).await?;
        let mut status = 0;
        for path in PATHS {
            let body;
            (status, body) = self.get(&access, path).await?;
            if status == 200 {
                return Ok(addresses(&serde_json::from_slice(&body)?));
            }
        }
        Err(match status {
            401 => ListError::Unauthorized,
            403 => ListError::Forbidden,
            other => ListError::Status(other),
        })
    }

    /// Connects to an apiserver whose certificate has one of the names; otherwise returns the error
    /// for the first name.
    pub(crate) async fn connect(&self, access: &Access) -> io::Result<TlsStream<Tcp>> {
        let mut problem = None;
        for name in &access.names {
            let tcp = self.host.connect(&self.local.to_string()).await?;
            match access.tls.connect(name.clone(), tcp).await {
                Ok(tls) => return Ok(tls),
                Err(error) => problem = problem.or(Some(error)),
            }
        }
        Err(problem.unwrap_or_else(|| io::ErrorKind::InvalidInput.into()))
    }

    async fn get(&self, access: &Access, path: &'static str) -> Result<(u16, Bytes), ListError> {
        let mut request = Request::new(Full::default());
        *request.uri_mut() = Uri::from_static(path);
        self.exchange(access, request).await
    }

    /// Sends a request with these credentials on a separate connection; returns status and body.
    pub(crate) async fn exchange(
        &self,
        access: &Access,
        mut request: Request<Full<Bytes>>,
    ) -> Result<(u16, Bytes), ListError> {
        let address = self.local;
        let failed = |source| ListError::Connect { address, source };
        let tls = self.connect(access).await.map_err(failed)?;
        let headers = request.headers_mut();
        headers.insert(USER_AGENT, HeaderValue::from_static("meshport"));
        headers.extend(HeaderValue::from_maybe_shared(address.to_string()).map(|it| (HOST, it)));
        headers.extend(access.authorization.clone().map(|it| (AUTHORIZATION, it)));
        http::exchange(tls, request, async |answer| {
            let status = answer.status().as_u16();
            let body = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect().await;
            Ok((status, body.map_err(ListError::Body)?.to_bytes()))
        })
        .await
    }
}

/// The addresses of a slice or of the older object; none for anything else.
fn addresses(document: &Value) -> BTreeSet<SocketAddr> {
    let mut found = BTreeSet::new();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut add = |ips: Vec<Value>, ports: &Value| {
        let ports = list(ports);
        for port in ports.iter().filter_map(|port| port["port"].as_u64()) {
            let Ok(port) = u16::try_from(port) else { continue };
            let ips = ips.iter().filter_map(Value::as_str);
            let ips = ips.filter_map(|ip| ip.parse::<IpAddr>().ok());
            found.extend(ips.map(|ip| SocketAddr::new(ip, port)));
        }
    };
    for endpoint in list(&document["endpoints"]) {
        add(list(&endpoint["addresses"]), &document["ports"]);
    }
    for subset in list(&document["subsets"]) {
        let ips = list(&subset["addresses"]).iter().map(|address| address["ip"].clone()).collect();
        add(ips, &subset["ports"]);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<String> {
        let document = serde_json::from_str(text).expect("JSON");
        addresses(&document).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn both_forms_of_the_list_are_read() {
        let slice = r#"{"kind":"EndpointSlice","endpoints":[{"addresses":["10.0.0.2"],
            "conditions":{"ready":true}},{"addresses":["10.0.0.1"]}],"ports":[{"port":6443}]}"#;
        assert_eq!(read(slice), ["10.0.0.1:6443", "10.0.0.2:6443"]);
        let older = r#"{"kind":"Endpoints","subsets":[{"addresses":[{"ip":"10.0.0.1"},
            {"ip":"fd00::1"}],"ports":[{"name":"https","port":6443}]}]}"#;
        assert_eq!(read(older), ["10.0.0.1:6443", "[fd00::1]:6443"]);
    }

    #[test]
    fn what_is_no_list_has_no_addresses() {
        for text in [
            "null",
            "[]",
            r#"{"endpoints":7,"subsets":[3,{"addresses":[{"ip":"x"}],"ports":[{"port":1}]}]}"#,
            r#"{"endpoints":[{"addresses":["10.0.0.1"]}],"ports":[{"port":70000}]}"#,
        ] {
            assert_eq!(read(text), Vec::<String>::new(), "{text}");
        }
    }
}
