//! The part of an apiserver that the gateway talks to, as Kubernetes 1.36 speaks it: lists and
//! watches of Services and EndpointSlices of `discovery.k8s.io/v1`, Events, and the status of
//! Services. It keeps what the real one would validate as it is.

use std::collections::VecDeque;
use std::io::{self, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use meshport_tests::http::Request;
use serde_json::{Value, json};

/// The paths of what can be watched, with what the lists are called.
const WATCHED: [[&str; 3]; 2] = [
    ["/api/v1/services", "v1", "ServiceList"],
    ["/apis/discovery.k8s.io/v1/endpointslices", "discovery.k8s.io/v1", "EndpointSliceList"],
];
/// How often a watch looks whether its client is there.
const LOOK: Duration = Duration::from_millis(200);
const HEAD_OF_A_WATCH: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\
    Transfer-Encoding: chunked\r\n\r\n";
/// What an apiserver says for a version that it no longer has.
const GONE: u16 = 410;

#[derive(Clone, Debug)]
pub(super) struct StandIn {
    pub(super) address: SocketAddr,
    state: Arc<(Mutex<State>, Condvar)>,
}

#[derive(Debug, Default)]
struct State {
    version: u64,
    /// The objects, and which of [`WATCHED`] they are.
    objects: Vec<(usize, Value)>,
    /// What has happened to them, with the version.
    changes: Vec<(u64, usize, Value)>,
    /// The statuses of the next answers, before any is a real one.
    refusals: VecDeque<u16>,
    refused: usize,
    /// Watches of earlier versions are told that these are gone.
    oldest: u64,
    told_gone: usize,
    events: Vec<Value>,
}

impl StandIn {
    /// One that first answers requests with these statuses.
    pub(super) fn start(refusals: &[u16]) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("loopback has ports");
        let address = listener.local_addr().expect("it is bound");
        let state = State { refusals: refusals.iter().copied().collect(), ..State::default() };
        let own = Self { address, state: Arc::new((Mutex::new(state), Condvar::new())) };
        let server = own.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let server = server.clone();
                // A client that goes away is none of its business.
                thread::spawn(move || server.serve(client));
            }
        });
        own
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many requests it has refused.
    pub(super) fn refused(&self) -> usize {
        self.state().refused
    }

    /// The Events about an object, as reasons and notes.
    pub(super) fn events(&self, name: &str) -> Vec<(String, String)> {
        let text = |it: &Value| it.as_str().unwrap_or_default().to_owned();
        let state = self.state();
        let about = state.events.iter().filter(|it| it["regarding"]["name"] == name);
        about.map(|it| (text(&it["reason"]), text(&it["note"]))).collect()
    }

    /// An object as it is now.
    pub(super) fn object(&self, name: &str) -> Value {
        let state = self.state();
        let found = state.objects.iter().find(|(_, it)| it["metadata"]["name"] == name);
        found.map(|(_, it)| it.clone()).unwrap_or_default()
    }

    /// Creates a Service or a slice, or puts it in the place of the one of its name.
    pub(super) fn put(&self, mut object: Value) {
        let kind = usize::from(object["kind"] == "EndpointSlice");
        let mut state = self.state();
        let name = object["metadata"]["name"].clone();
        let known = state.objects.iter().position(|(_, it)| it["metadata"]["name"] == name);
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = json!(format!("uid-{name}"));
        }
        object["metadata"]["namespace"] = json!("shop");
        object["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        let what = if known.is_some() { "MODIFIED" } else { "ADDED" };
        known.map(|at| state.objects.remove(at));
        state.add(kind, what, object);
        self.state.1.notify_all();
    }

    /// Forgets what has happened, as compaction of etcd does, and ends all watches with it.
    pub(super) fn forget(&self) {
        let mut state = self.state();
        state.version += 1;
        state.oldest = state.version;
        state.changes.clear();
        self.state.1.notify_all();
    }

    /// How many watches were told so.
    pub(super) fn told_gone(&self) -> usize {
        self.state().told_gone
    }

    fn serve(&self, client: TcpStream) -> io::Result<()> {
        let mut reader = BufReader::new(client.try_clone()?);
        let mut writer = client;
        while let Some(request) = Request::read(&mut reader)? {
            let refusal = {
                let mut state = self.state();
                let refusal = state.refusals.pop_front();
                state.refused += usize::from(refusal.is_some());
                refusal
            };
            match refusal {
                Some(status) => answer(&mut writer, status, &failure(status))?,
                None if request.query.contains("watch=") => return self.watch(&request, writer),
                None => {
                    let (status, body) = self.answer(&request);
                    answer(&mut writer, status, &body)?;
                }
            }
        }
        Ok(())
    }

    fn answer(&self, request: &Request) -> (u16, Value) {
        let Request { method, path, body, .. } = request;
        let parts: Vec<&str> = path.split('/').skip(1).collect();
        let mut state = self.state();
        match (method.as_str(), &parts[..]) {
            ("GET", ["apis", "discovery.k8s.io", "v1"]) => {
                let slices = json!({
                    "name": "endpointslices", "singularName": "endpointslice", "namespaced": true,
                    "kind": "EndpointSlice", "verbs": ["get", "list", "watch"],
                });
                let list = json!({
                    "kind": "APIResourceList", "apiVersion": "v1",
                    "groupVersion": "discovery.k8s.io/v1", "resources": [slices],
                });
                (200, list)
            }
            ("GET", _) => match kind(path) {
                Some(kind) => (200, state.list(kind)),
                None => (404, failure(404)),
            },
            (
                "POST" | "PATCH",
                ["apis", "events.k8s.io", "v1", "namespaces", "shop", "events", ..],
            ) => {
                state.events.push(body.clone());
                (201, body.clone())
            }
            ("PATCH", ["api", "v1", "namespaces", "shop", "services", name, "status"]) => {
                let at = state.objects.iter().position(|(_, it)| it["metadata"]["name"] == *name);
                let Some((kind, mut object)) = at.map(|at| state.objects.remove(at)) else {
                    return (404, failure(404));
                };
                // A merge patch, whose lists are whole.
                object["status"]["loadBalancer"] = body["status"]["loadBalancer"].clone();
                state.add(kind, "MODIFIED", object.clone());
                self.state.1.notify_all();
                (200, object)
            }
            _ => (403, failure(403)),
        }
    }

    /// Tells a client what happens, line by line, until it is gone or its version is.
    fn watch(&self, request: &Request, mut writer: TcpStream) -> io::Result<()> {
        let Some(kind) = kind(&request.path) else {
            return answer(&mut writer, 404, &failure(404));
        };
        let mut seen = version(request);
        writer.write_all(HEAD_OF_A_WATCH)?;
        loop {
            let mut state = self.state();
            if seen < state.oldest {
                state.told_gone += 1;
                let error = json!({ "type": "ERROR", "object": failure(GONE) });
                chunk(&mut writer, &error)?;
                return writer.write_all(b"0\r\n\r\n");
            }
            let news =
                state.changes.iter().filter(|(version, of, _)| *version > seen && *of == kind);
            let news: Vec<Value> = news.map(|(_, _, event)| event.clone()).collect();
            seen = state.version;
            if news.is_empty() {
                drop(self.state.1.wait_timeout(state, LOOK));
                // Its client has ended the connection.
                if matches!(writer.take_error(), Ok(Some(_)) | Err(_)) {
                    return Ok(());
                }
                continue;
            }
            drop(state);
            news.iter().try_for_each(|event| chunk(&mut writer, event))?;
        }
    }
}

impl State {
    fn add(&mut self, kind: usize, what: &str, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let event = json!({ "type": what, "object": object });
        self.changes.push((self.version, kind, event));
        self.objects.push((kind, object));
    }

    /// As an apiserver lists: the items have neither kind nor version.
    fn list(&self, kind: usize) -> Value {
        let [_, version, name] = WATCHED[kind];
        let bare = |(_, object): &(usize, Value)| {
            let mut object = object.clone();
            let fields = object.as_object_mut().expect("an object");
            fields.remove("kind");
            fields.remove("apiVersion");
            object
        };
        let items: Vec<Value> =
            self.objects.iter().filter(|(of, _)| *of == kind).map(bare).collect();
        let metadata = json!({ "resourceVersion": self.version.to_string() });
        json!({ "kind": name, "apiVersion": version, "metadata": metadata, "items": items })
    }
}

/// Which of [`WATCHED`] a path is.
fn kind(path: &str) -> Option<usize> {
    WATCHED.iter().position(|[of, ..]| *of == path)
}

/// The version that a watch begins after.
fn version(request: &Request) -> u64 {
    let mut pairs = request.query.split('&').filter_map(|it| it.split_once('='));
    let version = pairs.find(|(key, _)| *key == "resourceVersion");
    version.and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
}

/// What an apiserver says with such a status.
fn failure(code: u16) -> Value {
    let reason = match code {
        403 => "Forbidden",
        404 => "NotFound",
        GONE => "Expired",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        _ => "InternalError",
    };
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": format!("the stand-in says {code}"), "reason": reason, "code": code,
    })
}

fn answer(writer: &mut TcpStream, status: u16, body: &Value) -> io::Result<()> {
    let body = body.to_string();
    // With 429 an apiserver says when to come back.
    let later = if status == 429 { "Retry-After: 1\r\n" } else { "" };
    write!(
        writer,
        "HTTP/1.1 {status} It\r\nContent-Type: application/json\r\n{later}\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn chunk(writer: &mut TcpStream, event: &Value) -> io::Result<()> {
    let line = format!("{event}\n");
    write!(writer, "{:x}\r\n{line}\r\n", line.len())
}
