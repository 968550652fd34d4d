//! Answers of a stand-in.
//!
//! | path | answer |
//! | --- | --- |
//! | `/readyz` | 200 `ok`, or 500 while it is not ready |
//! | `/livez`, `/healthz` | 200 `ok` |
//! | `/version` | JSON as from an apiserver; `gitVersion` shows that this is a stand-in |
//! | `/whoami` | JSON with the name of the origin |
//! | `/watch` | a line of JSON now and at each interval, without end |
//! | `/bytes/N` | N zeros |
//!
//! Anything else is 404.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::{Value, json};

use super::Shared;
use super::body::{Body, Watch};

/// The most that `/bytes/N` sends.
const MAX_BYTES: u64 = 64 << 30;

pub(super) fn answer(shared: &Shared, request: &Request<Incoming>) -> Response<Body> {
    match *request.method() {
        Method::GET | Method::HEAD => get(shared, request.uri().path()),
        _ => status(StatusCode::METHOD_NOT_ALLOWED, "the stand-in only reads"),
    }
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
            let watch = Watch::new(shared.name.clone(), shared.watch_interval);
            response(StatusCode::OK, "application/json", Body::Watch(watch))
        }
        _ => match path.strip_prefix("/bytes/") {
            Some(length) => zeros(length),
            None => status(StatusCode::NOT_FOUND, "the server could not find what was asked for"),
        },
    }
}

fn zeros(length: &str) -> Response<Body> {
    match length.parse::<u64>() {
        Ok(length) if length <= MAX_BYTES => {
            response(StatusCode::OK, "application/octet-stream", Body::Zeros(length))
        }
        _ => status(StatusCode::BAD_REQUEST, "/bytes/N takes a number of bytes up to 64 GiB"),
    }
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
    response(code, "application/json", Body::Text(Some(format!("{value}\n").into())))
}

fn text(code: StatusCode, text: &'static str) -> Response<Body> {
    response(
        code,
        "text/plain; charset=utf-8",
        Body::Text(Some(Bytes::from_static(text.as_bytes()))),
    )
}

fn response(code: StatusCode, kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
