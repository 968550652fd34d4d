//! Reads the cluster's Node objects through the mesh, with a kubeconfig's credentials: all of them
//! on an apiserver's node, only its own on any other.
//!
//! Lists, then watches from there, forever. Keeps the last result while reads fail, and stores it
//! for a cold boot, when a control plane may need the way back before it can list its nodes.
//! Bounds: [`PAGE`] objects and [`MAX_PAGE_BYTES`] a page, [`MAX_EVENT_BYTES`] an event of the
//! watch, and those of [`Nodes`].

use std::net::IpAddr;
use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, HOST, HeaderValue, USER_AGENT};
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use meshport_config::{Credential, ServiceName, Settings};
use meshport_core::wayback::KUBELET_PORT;
use meshport_core::wayback::join::serves_kubelet;
use meshport_core::wayback::nodes::{NodeObject, Nodes};
use serde::Deserialize;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::{info, warn};

use crate::clock;
use crate::driver::commands::Command;
use crate::kubernetes::access::{Access, KubeconfigError};
use crate::kubernetes::roster::Source;
use crate::wayback::WayBack;

/// How long one page may take.
const LIMIT: Duration = Duration::from_secs(15);
/// Objects per page; each has up to 40 KiB, mostly image names.
const PAGE: usize = 50;
/// The largest page, in bytes.
const MAX_PAGE_BYTES: usize = 16 << 20;
/// Maximum pages of a list: as many nodes as are kept.
const MAX_PAGES: usize = 200;
/// The largest event of the watch, in bytes: etcd accepts no larger object.
const MAX_EVENT_BYTES: usize = 2 << 20;
/// Duration of a watch, in seconds; the apiserver then ends it.
const WATCH_S: u64 = 300;
/// How long beyond [`WATCH_S`] the watch may be silent.
const WATCH_GRACE: Duration = Duration::from_secs(30);
/// Pauses after failures.
const MIN_PAUSE: Duration = Duration::from_secs(2);
const MAX_PAUSE: Duration = Duration::from_secs(300);
/// Interval between writes of the known nodes.
const STORE_INTERVAL: Duration = Duration::from_secs(30);

/// The cluster whose Node objects are read.
#[derive(Debug, Clone)]
pub(crate) enum Whose {
    /// The Node objects of all nodes.
    All,
    /// The Node object with this name.
    Own(String),
}

/// Why they could not be read.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
    #[error("these credentials may not list and watch nodes (403): see `meshport generate egress`")]
    Forbidden,
    #[error("the apiserver answers {0}")]
    Status(u16),
    /// The resource version is too old to watch from; the list is read again.
    #[error("the watch is out of date")]
    Gone,
    #[error("cannot connect: {0}")]
    Connect(#[from] std::io::Error),
    #[error("the request failed: {0}")]
    Http(#[from] hyper::Error),
    #[error("timed out")]
    Late,
    #[error("the answer is too long or incomplete: {0}")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the answer is not of the expected form: {0}")]
    Form(#[from] serde_json::Error),
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Meta {
    name: String,
    resource_version: String,
    #[serde(rename = "continue")]
    next: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct List {
    metadata: Meta,
    items: Vec<Object>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Object {
    metadata: Meta,
    spec: Spec,
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    #[serde(rename = "podCIDR")]
    pod_cidr: String,
    #[serde(rename = "podCIDRs")]
    pod_cidrs: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    addresses: Vec<Address>,
    daemon_endpoints: Endpoints,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Address {
    #[serde(rename = "type")]
    kind: String,
    address: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Endpoints {
    kubelet_endpoint: Port,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Port {
    #[serde(rename = "Port")]
    port: u16,
}

/// The type of an event; read before its object, whose form depends on it.
#[derive(Debug, Deserialize)]
struct Kind {
    #[serde(rename = "type")]
    kind: String,
}

/// An event of a Node object.
#[derive(Debug, Deserialize)]
struct Event {
    object: Object,
}

impl From<Object> for NodeObject {
    fn from(object: Object) -> Self {
        let Object { metadata, spec, status } = object;
        let (mut names, mut internal, mut other) = (Vec::new(), Vec::new(), Vec::new());
        for Address { kind, address } in status.addresses {
            match (address.parse::<IpAddr>(), kind.as_str()) {
                (Ok(ip), "InternalIP") => internal.push(ip),
                (Ok(ip), _) => other.push(ip),
                (Err(_), _) => names.push(address),
            }
        }
        let pods = std::iter::once(spec.pod_cidr).chain(spec.pod_cidrs);
        let mut pod_cidrs: Vec<_> = pods.filter_map(|text| text.parse().ok()).collect();
        pod_cidrs.sort_unstable();
        pod_cidrs.dedup();
        let kubelet_port = match status.daemon_endpoints.kubelet_endpoint.port {
            0 => KUBELET_PORT,
            port => port,
        };
        internal.append(&mut other);
        Self { name: metadata.name, names, addresses: internal, pod_cidrs, kubelet_port }
    }
}

/// The cluster to read and which of its nodes: given by a service with a kubeconfig and by what
/// this node needs.
pub(crate) fn source(
    settings: &Settings,
    credential: &Credential,
    sources: &[(ServiceName, Source)],
) -> Option<(Source, Whose)> {
    let apiserver = ServiceName::kube_apiserver();
    let (_, source) = sources.iter().find(|(name, _)| *name == apiserver)?;
    let whose = match settings.egress.socket {
        Some(_) => Whose::All,
        None if serves_kubelet(credential) => Whose::Own(credential.name.to_string()),
        None => return None,
    };
    Some((source.clone(), whose))
}

/// Keeps reading them; never returns.
pub(crate) async fn follow(
    source: Source,
    whose: Whose,
    back: WayBack,
    commands: mpsc::Sender<Command>,
) {
    if let Whose::Own(_) = whose {
        back.serves().await;
    }
    let mut reader = Reader::new(source, whose, back, commands);
    loop {
        let error = reader.read().await;
        let pause = reader.attempts.handle_failure(&error);
        if let Some(problem) = reader.attempts.news(&error) {
            reader.complain(&problem);
        }
        sleep(pause).await;
    }
}

/// Failed attempts since the last working watch.
#[derive(Debug, Default)]
struct Attempts {
    pause: Duration,
    /// The problem that was logged last.
    told: Option<String>,
}

impl Attempts {
    /// Handles an event of a watch. If the watch has lasted longer than the pause before it, the
    /// next failure counts as a new one.
    fn handle_event(&mut self, lasted: Duration) {
        if lasted > self.pause {
            *self = Self::default();
        }
    }

    /// The pause before the next attempt.
    fn handle_failure(&mut self, error: &ReadError) -> Duration {
        let doubled = if let ReadError::Gone = error { MIN_PAUSE } else { self.pause * 2 };
        self.pause = doubled.clamp(MIN_PAUSE, MAX_PAUSE);
        self.pause
    }

    /// The problem, unless it needs no action or was logged already.
    fn news(&mut self, error: &ReadError) -> Option<String> {
        let problem = error.to_string();
        if matches!(error, ReadError::Gone) || self.told.as_ref() == Some(&problem) {
            return None;
        }
        self.told = Some(problem.clone());
        Some(problem)
    }
}

struct Reader {
    source: Source,
    whose: Whose,
    back: WayBack,
    commands: mpsc::Sender<Command>,
    attempts: Attempts,
    nodes: Nodes,
    stored: Vec<u8>,
    store_at: Instant,
}

impl Reader {
    fn new(source: Source, whose: Whose, back: WayBack, commands: mpsc::Sender<Command>) -> Self {
        let attempts = Attempts::default();
        let (nodes, stored, store_at) = (Nodes::default(), Vec::new(), now());
        Self { source, whose, back, commands, attempts, nodes, stored, store_at }
    }

    fn complain(&self, problem: &str) {
        let file = self.source.kubeconfig.display();
        match self.whose {
            Whose::All => warn!(%file, problem, "cannot read the cluster's nodes"),
            // Not a warning: the settings allow for it.
            Whose::Own(_) => info!(%file, problem, "cannot read this node's Node object"),
        }
    }

    /// Lists, then watches until that ends.
    async fn read(&mut self) -> ReadError {
        match self.list_and_watch().await {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    async fn list_and_watch(&mut self) -> Result<std::convert::Infallible, ReadError> {
        let mut version = self.list().await?;
        info!(nodes = self.nodes.len(), "loaded the cluster's nodes");
        loop {
            version = self.watch(version).await?;
        }
    }

    /// Reads all objects; returns the version of the list.
    async fn list(&mut self) -> Result<String, ReadError> {
        let mut found = Nodes::default();
        let mut next = String::new();
        let mut version = String::new();
        for _ in 0..MAX_PAGES {
            let query = format!("limit={PAGE}{}{}", self.selector(), with("continue", &next));
            let page = async {
                let answer = self.get(&query).await?;
                let body = Limited::new(answer.into_body(), MAX_PAGE_BYTES).collect().await;
                let body = body.map_err(ReadError::Body)?.to_bytes();
                Ok::<List, ReadError>(serde_json::from_slice(&body)?)
            };
            let page = timeout(LIMIT, page).await.unwrap_or(Err(ReadError::Late))?;
            page.items.into_iter().for_each(|object| found.set(object.into()));
            Meta { next, resource_version: version, .. } = page.metadata;
            if next.is_empty() {
                break;
            }
        }
        self.nodes = found;
        self.tell().await;
        Ok(version)
    }

    /// Follows changes until the apiserver ends the watch; returns the version to continue from.
    async fn watch(&mut self, mut version: String) -> Result<String, ReadError> {
        let query = format!(
            "watch=1&allowWatchBookmarks=true&timeoutSeconds={WATCH_S}{}{}",
            self.selector(),
            with("resourceVersion", &version)
        );
        let answer = timeout(LIMIT, self.get(&query)).await.unwrap_or(Err(ReadError::Late))?;
        let mut body = answer.into_body();
        let mut buffer = Vec::new();
        let begun = now();
        let until = begun + Duration::from_secs(WATCH_S) + WATCH_GRACE;
        loop {
            let frame = timeout_at(until.min(self.store_at_if_due(until)), body.frame()).await;
            match frame {
                Ok(Some(frame)) => {
                    if let Ok(data) = frame?.into_data() {
                        buffer.extend_from_slice(&data);
                    }
                }
                Ok(None) => return Ok(version),
                Err(_elapsed) if now() >= until => return Ok(version),
                Err(_elapsed) => self.tell().await,
            }
            let mut is_changed = false;
            while let Some(end) = buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = buffer.drain(..=end).collect();
                if line.trim_ascii().is_empty() {
                    continue;
                }
                is_changed |= self.take(&line, &mut version)?;
                self.attempts.handle_event(now().saturating_duration_since(begun));
            }
            if buffer.len() > MAX_EVENT_BYTES {
                return Err(ReadError::Body("an event of the watch is too long".into()));
            }
            if is_changed {
                self.tell().await;
            }
        }
    }

    /// When to store unsaved changes, if any.
    fn store_at_if_due(&self, otherwise: Instant) -> Instant {
        if self.nodes.to_bytes() == self.stored { otherwise } else { self.store_at }
    }

    /// Handles an event of the watch; returns whether anything relevant changed.
    fn take(&mut self, line: &[u8], version: &mut String) -> Result<bool, ReadError> {
        let Kind { kind } = serde_json::from_slice(line)?;
        let is_change = match kind.as_str() {
            "ADDED" | "MODIFIED" => true,
            "DELETED" | "BOOKMARK" => false,
            "ERROR" => return Err(ReadError::Gone),
            // An event of a later version.
            _ => return Ok(false),
        };
        let Event { object } = serde_json::from_slice(line)?;
        let name = object.metadata.name.clone();
        version.clone_from(&object.metadata.resource_version);
        if is_change {
            let before = self.nodes.get(&name).cloned();
            self.nodes.set(object.into());
            return Ok(self.nodes.get(&name) != before.as_ref());
        }
        if kind == "DELETED" {
            self.nodes.remove(&name);
        }
        Ok(kind == "DELETED")
    }

    /// Publishes the nodes to the daemon, and stores them at intervals.
    async fn tell(&mut self) {
        self.back.set_nodes(&self.nodes);
        let now = now();
        let bytes = self.nodes.to_bytes();
        if bytes != self.stored && now >= self.store_at {
            self.stored.clone_from(&bytes);
            self.store_at = now + STORE_INTERVAL;
            // A stopped driver stores nothing.
            let _ = self.commands.send(Command::StoreNodes(bytes)).await;
        }
    }

    fn selector(&self) -> String {
        match &self.whose {
            Whose::All => String::new(),
            Whose::Own(name) => format!("&fieldSelector=metadata.name%3D{name}"),
        }
    }

    /// Sends a request on a separate connection, and returns a successful answer.
    async fn get(&self, query: &str) -> Result<Response<Incoming>, ReadError> {
        // Read each time: tokens and certificates are replaced in place.
        let access = Access::read(&self.source.kubeconfig).await?;
        let tls = self.source.connect(&access).await?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(tls)).await?;
        // It ends with its response body.
        tokio::spawn(connection);
        let mut request = Request::new(Empty::<Bytes>::new());
        let uri = format!("/api/v1/nodes?{query}");
        *request.uri_mut() =
            uri.parse::<Uri>().map_err(|error| ReadError::Body(Box::new(error)))?;
        let headers = request.headers_mut();
        let host = self.source.local.to_string();
        headers.insert(USER_AGENT, HeaderValue::from_static("meshport"));
        headers.extend(HeaderValue::from_maybe_shared(host).map(|it| (HOST, it)));
        headers.extend(access.authorization.clone().map(|it| (AUTHORIZATION, it)));
        let answer = sender.send_request(request).await?;
        match answer.status().as_u16() {
            200 => Ok(answer),
            403 => Err(ReadError::Forbidden),
            410 => Err(ReadError::Gone),
            other => Err(ReadError::Status(other)),
        }
    }
}

fn now() -> Instant {
    Instant::from_std(clock::now())
}

/// A parameter of a query, if it has a value. Values come from the apiserver.
fn with(name: &str, value: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.~".contains(c);
    let escaped = value.bytes().map(|byte| match char::from(byte) {
        plain if is_plain(plain) => plain.to_string(),
        _ => format!("%{byte:02X}"),
    });
    if value.is_empty() {
        String::new()
    } else {
        format!("&{name}={}", escaped.collect::<String>())
    }
}

#[cfg(test)]
mod tests;
