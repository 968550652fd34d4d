//! Reads the cluster's own list of apiservers, through the mesh, with the credentials of a
//! kubeconfig, for [`meshport_core::roster`] to compare.
//!
//! One request at a time and one reading per [`INTERVAL`], fewer while it fails. The slice is asked
//! for first, the older object where the slice is not served or not allowed.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use meshport_config::ServiceName;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::client::TlsStream;
use tracing::{info, warn};

use crate::node::orders::Order;
use crate::tcp::{Host, Tcp};

mod access;

use access::Access;
pub(crate) use access::files_of;

/// From one reading to the next. An apiserver is on the list for 15 s after it was last heard of,
/// so asking more often tells no more.
const INTERVAL: Duration = Duration::from_secs(30);
/// The longest pause after failures, which double it.
const MAX_PAUSE: Duration = Duration::from_secs(600);
/// How long one reading may take: what a client gives a TLS handshake.
const LIMIT: Duration = Duration::from_secs(10);
/// The largest answer in bytes; a list of five has about 2 KiB.
const MAX_ANSWER_BYTES: usize = 256 * 1024;
/// The slice of the service `kubernetes`, and the object that was there before slices were.
const PATHS: [&str; 2] = [
    "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes",
    "/api/v1/namespaces/default/endpoints/kubernetes",
];

/// Where the list is read, and with what.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) host: Host,
    /// This node's own local address of the service.
    pub local: SocketAddr,
    pub(crate) kubeconfig: PathBuf,
}

/// Begins to read every list.
pub(crate) fn start(
    sources: Vec<(ServiceName, Source)>,
    orders: &mpsc::Sender<Order>,
    tasks: &mut JoinSet<()>,
) {
    for (service, source) in sources {
        tasks.spawn(follow(service, source, orders.clone()));
    }
}

/// Reads for ever and tells the driver.
async fn follow(service: ServiceName, source: Source, orders: mpsc::Sender<Order>) {
    let mut pause = Duration::ZERO;
    let mut told: Option<String> = None;
    loop {
        sleep(pause).await;
        let read = timeout(LIMIT, source.read()).await;
        let read = read.unwrap_or_else(|_| Err("no answer in time".into()));
        match &read {
            Ok(_) => {
                pause = INTERVAL;
                if told.take().is_some() {
                    info!(%service, "the cluster's list of apiservers is read again");
                }
            }
            Err(problem) => {
                pause = (pause * 2).clamp(INTERVAL, MAX_PAUSE);
                // Each state once, not each attempt.
                if told.as_ref() != Some(problem) {
                    let file = source.kubeconfig.display();
                    warn!(%service, %file, problem, "cannot read the cluster's list of apiservers");
                    told = Some(problem.clone());
                }
            }
        }
        if orders.send(Order::Listed(service.clone(), read.ok())).await.is_err() {
            return;
        }
    }
}

impl Source {
    async fn read(&self) -> Result<BTreeSet<SocketAddr>, String> {
        // Anew each time: tokens and certificates are replaced in place.
        let access = Access::read(&self.kubeconfig).await?;
        let mut status = 0;
        for path in PATHS {
            let body;
            (status, body) = self.get(&access, path).await?;
            if status == 200 {
                let document = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
                return Ok(addresses(&document));
            }
        }
        Err(match status {
            401 => "the apiserver rejects these credentials (401)".into(),
            403 => "these credentials may not get endpointslices or endpoints in the namespace \
                    default (403)"
                .into(),
            other => format!("the apiserver answers {other}"),
        })
    }

    /// A connection to an apiserver whose certificate has one of the names; else what the first of
    /// them met.
    async fn connect(&self, access: &Access, address: &str) -> io::Result<TlsStream<Tcp>> {
        let mut problem = None;
        for name in &access.names {
            let tcp = self.host.connect(address).await?;
            match access.tls.connect(name.clone(), tcp).await {
                Ok(tls) => return Ok(tls),
                Err(error) => problem = problem.or(Some(error)),
            }
        }
        Err(problem.unwrap_or_else(|| io::ErrorKind::InvalidInput.into()))
    }

    async fn get(&self, access: &Access, path: &str) -> Result<(u16, Bytes), String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let address = self.local.to_string();
        let tls = self.connect(access, &address).await.map_err(|error| text(&error))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(tls))
            .await
            .map_err(|error| text(&error))?;
        let request = Request::get(path).header("host", &address).header("user-agent", "meshport");
        let request = match &access.authorization {
            Some(value) => request.header("authorization", value.clone()),
            None => request,
        };
        let request = request.body(Empty::<Bytes>::new()).map_err(|error| text(&error))?;
        let exchange = async {
            let answer = sender.send_request(request).await.map_err(|error| text(&error))?;
            let status = answer.status().as_u16();
            let body = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect().await;
            Ok((status, body.map_err(|error| text(&error))?.to_bytes()))
        };
        tokio::pin!(exchange);
        tokio::select! {
            done = &mut exchange => done,
            // The last thing a connection brings may be the answer.
            _ = connection => exchange.await,
        }
    }
}

/// The addresses of a slice or of the older object; what is neither has none.
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
