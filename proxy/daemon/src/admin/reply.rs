//! HTTP answers with the headers that make them safe in a browser.

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Response, StatusCode};
use serde::Serialize;

/// An answer whose body is in memory.
pub type Reply = Response<Full<Bytes>>;

/// The policy for answers other than our pages: a browser may show them, but not in a frame.
const NOTHING: &str = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'";

#[derive(Serialize)]
struct Complaint<'a> {
    error: &'a str,
}

/// An answer that must not be cached.
pub(crate) fn text(status: StatusCode, content_type: &'static str, body: String) -> Reply {
    let mut reply = Response::new(Full::new(Bytes::from(body)));
    *reply.status_mut() = status;
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(NOTHING));
    reply
}

/// A JSON document.
pub fn json(status: StatusCode, document: String) -> Reply {
    text(status, "application/json", document + "\n")
}

/// An error as JSON.
pub fn complaint(status: StatusCode, why: &str) -> Reply {
    json(status, serde_json::to_string(&Complaint { error: why }).unwrap_or_default())
}
