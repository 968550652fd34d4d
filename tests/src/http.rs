//! HTTP byte by byte: requests and their answers, and what a server of a test receives.

use std::io::{self, BufRead, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

/// Deadline for the answer to a request, regardless of other clients.
pub const ANSWER: Duration = Duration::from_secs(10);

/// A complete answer.
#[derive(Debug)]
pub struct Reply {
    /// Its status.
    pub status: u16,
    /// Its status line and headers, in lower case.
    pub head: String,
    /// The body.
    pub body: String,
}

impl Reply {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(key, _)| *key == name).map(|(_, value)| value)
    }
}

/// Sends these bytes and reads the answer up to its end.
pub fn exchange(at: SocketAddr, request: &str) -> Reply {
    try_exchange(at, request).expect("the port is open and the answer complete")
}

/// As [`exchange`], where the answer may fail to come.
///
/// # Errors
/// The port is closed, or the answer is incomplete.
pub fn try_exchange(at: SocketAddr, request: &str) -> io::Result<Reply> {
    let stream = TcpStream::connect(at)?;
    stream.set_read_timeout(Some(ANSWER))?;
    converse(stream, request)
}

/// A GET at a daemon's admin socket.
///
/// # Errors
/// No daemon answers, or not in time.
pub fn get_local(socket: &Path, path: &str) -> io::Result<Reply> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(ANSWER))?;
    converse(stream, &format!("GET {path} HTTP/1.1\r\nHost: meshport\r\nConnection: close\r\n\r\n"))
}

fn converse(mut stream: impl Read + Write, request: &str) -> io::Result<Reply> {
    stream.write_all(request.as_bytes())?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    let status = head.split(' ').nth(1).and_then(|it| it.parse().ok());
    let status = status.ok_or(io::ErrorKind::InvalidData)?;
    Ok(Reply { status, head: head.to_lowercase(), body: body.to_owned() })
}

/// A GET with more header lines, each of which ends with CR LF.
pub fn get(at: SocketAddr, path: &str, headers: &str) -> Reply {
    let host = if headers.starts_with("Host:") { String::new() } else { format!("Host: {at}\r\n") };
    exchange(at, &format!("GET {path} HTTP/1.1\r\n{host}{headers}Connection: close\r\n\r\n"))
}

/// A request that a test has received.
#[derive(Debug)]
pub struct Request {
    /// Its method.
    pub method: String,
    /// Its path, without the query.
    pub path: String,
    /// What follows the question mark.
    pub query: String,
    /// The body as JSON; null if it is none.
    pub body: Value,
}

impl Request {
    /// The next one of a connection; none at its end.
    ///
    /// # Errors
    /// The connection breaks, or the length is no number.
    pub fn read(reader: &mut impl BufRead) -> io::Result<Option<Self>> {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let mut words = line.split_whitespace();
        let [method, target] = [words.next(), words.next()].map(Option::unwrap_or_default);
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let [method, path, query] = [method, path, query].map(str::to_owned);
        let mut length = 0;
        loop {
            let mut header = String::new();
            reader.read_line(&mut header)?;
            if header.trim().is_empty() {
                break;
            }
            let lower = header.to_ascii_lowercase();
            if let Some(value) = lower.strip_prefix("content-length:") {
                length = value.trim().parse().map_err(io::Error::other)?;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let body = serde_json::from_slice(&body).unwrap_or_default();
        Ok(Some(Self { method, path, query, body }))
    }
}
