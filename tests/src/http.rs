//! HTTP requests byte by byte, for tests of a port's answers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Limit for the answer to a request, whatever other clients do.
pub const ANSWER: Duration = Duration::from_secs(10);

/// A whole answer.
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
    let mut stream = TcpStream::connect(at).expect("the port is open");
    stream.set_read_timeout(Some(ANSWER)).expect("a timeout is set");
    stream.write_all(request.as_bytes()).expect("the request is sent");
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).expect("the answer is complete");
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").expect("an answer has a head");
    let status = head.split(' ').nth(1).and_then(|it| it.parse().ok()).expect("a status");
    Reply { status, head: head.to_lowercase(), body: body.to_owned() }
}

/// A GET with more header lines, of which each ends with CR LF.
pub fn get(at: SocketAddr, path: &str, headers: &str) -> Reply {
    let host = if headers.starts_with("Host:") { String::new() } else { format!("Host: {at}\r\n") };
    exchange(at, &format!("GET {path} HTTP/1.1\r\n{host}{headers}Connection: close\r\n\r\n"))
}
