//! Answers of a stand-in.
//!
//! | path | answer |
//! | --- | --- |
//! | `/readyz` | 200 `ok`, or 500 while it is not ready |
//! | `/livez`, `/healthz` | 200 `ok` |
//! | `/version` | JSON as from an apiserver; `gitVersion` shows that this is a stand-in |
//! | `/whoami` | JSON with the name of the origin |
//! | `/watch` | a line of JSON now and at each interval, without end |
//! | `/bytes/N` | N bytes of a fixed pattern, see [`super::body::pattern_sha256`] |
//! | POST `/sink` | reads the body, answers its length and SHA-256 |
//! | `/api/v1/namespaces` | a list of four namespaces |
//!
//! Anything else is 404. Without anonymous access everything is 401 for strangers, the health
//! paths too, as with `--anonymous-auth=false`.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::Shared;
use super::body::{Body, Watch, hex};

/// The most that `/bytes/N` sends.
pub const MAX_PATTERN_BYTES: u64 = 64 << 30;

pub(super) async fn answer(
    shared: Arc<Shared>,
    request: Request<Incoming>,
    certified: bool,
) -> Result<Response<Body>, Infallible> {
    let counters = &shared.counters;
    counters.requests.fetch_add(1, Ordering::Relaxed);
    if !certified && !authorized(&shared, &request) {
        counters.unauthorized.fetch_add(1, Ordering::Relaxed);
        return Ok(status(StatusCode::UNAUTHORIZED, "Unauthorized"));
    }
    let path = request.uri().path().to_owned();
    if let "/readyz" | "/livez" | "/healthz" | "/version" = path.as_str() {
        counters.probes.fetch_add(1, Ordering::Relaxed);
    }
    Ok(match (request.method(), path.as_str()) {
        (&Method::POST, "/sink") => sink(&shared, request.into_body()).await,
        (_, "/sink") => status(StatusCode::METHOD_NOT_ALLOWED, "POST what is to be counted"),
        (&Method::GET | &Method::HEAD, path) => get(&shared, path),
        _ => status(StatusCode::METHOD_NOT_ALLOWED, "the stand-in only reads"),
    })
}

fn authorized<B>(shared: &Shared, request: &Request<B>) -> bool {
    let Some(token) = &shared.bearer_token else { return true };
    let given = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    // Not in constant time: the token protects a test.
    given.and_then(|value| value.strip_prefix("Bearer ")) == Some(token)
}

fn get(shared: &Shared, path: &str) -> Response<Body> {
    match path {
        "/readyz" if !shared.ready.load(Ordering::Relaxed) => text(
            StatusCode::INTERNAL_SERVER_ERROR,
            "[+]ping ok\n[-]stand-in failed: told not to be ready\nreadyz check failed\n",
        ),
        "/readyz" | "/livez" | "/healthz" => text(StatusCode::OK, "ok"),
        "/version" => json_answer(
            StatusCode::OK,
            &json!({
                "major": "0",
                "minor": "0",
                "gitVersion": concat!("v", env!("CARGO_PKG_VERSION"), "-meshport-stand-in"),
                "platform": "meshport/stand-in",
            }),
        ),
        "/whoami" => json_answer(StatusCode::OK, &json!({ "origin": shared.name })),
        "/watch" => {
            let open = Arc::clone(&shared.counters.open_watches);
            let watch = Watch::new(shared.name.clone(), shared.watch_interval, open);
            response(StatusCode::OK, "application/json", Body::Watch(watch))
        }
        "/api/v1/namespaces" => json_answer(StatusCode::OK, &namespaces()),
        _ => match path.strip_prefix("/bytes/") {
            Some(length) => pattern(shared, length),
            None => status(StatusCode::NOT_FOUND, "the server could not find what was asked for"),
        },
    }
}

fn pattern(shared: &Shared, length: &str) -> Response<Body> {
    match length.parse::<u64>() {
        Ok(length) if length <= MAX_PATTERN_BYTES => {
            let body = Body::pattern(length, Arc::clone(&shared.counters.bytes_served));
            response(StatusCode::OK, "application/octet-stream", body)
        }
        _ => status(StatusCode::BAD_REQUEST, "/bytes/N takes a number of bytes up to 64 GiB"),
    }
}

async fn sink(shared: &Shared, mut body: Incoming) -> Response<Body> {
    let mut hash = Sha256::new();
    let mut length = 0u64;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            return status(StatusCode::BAD_REQUEST, "the body ended early");
        };
        if let Some(data) = frame.data_ref() {
            hash.update(data);
            length += data.len() as u64;
            shared.counters.bytes_sunk.fetch_add(data.len() as u64, Ordering::Relaxed);
        }
    }
    let answer = json!({
        "origin": shared.name,
        "bytes": length,
        "sha256": hex(&hash.finalize()),
    });
    json_answer(StatusCode::OK, &answer)
}

fn namespaces() -> Value {
    let names = ["default", "kube-node-lease", "kube-public", "kube-system"];
    let item = |name: &str| {
        json!({
            "metadata": { "name": name, "resourceVersion": "1" },
            "status": { "phase": "Active" },
        })
    };
    json!({
        "kind": "NamespaceList",
        "apiVersion": "v1",
        "metadata": { "resourceVersion": "1" },
        "items": names.map(item),
    })
}

/// A Kubernetes `Status` object, the shape of every error an apiserver gives.
fn status(code: StatusCode, message: &str) -> Response<Body> {
    let body = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": code.canonical_reason().unwrap_or_default().replace(' ', ""),
        "code": code.as_u16(),
    });
    json_answer(code, &body)
}

fn json_answer(code: StatusCode, value: &Value) -> Response<Body> {
    response(code, "application/json", Body::text(format!("{value}\n")))
}

fn text(code: StatusCode, text: &'static str) -> Response<Body> {
    response(code, "text/plain; charset=utf-8", Body::text(Bytes::from_static(text.as_bytes())))
}

fn response(code: StatusCode, kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
