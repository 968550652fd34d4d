//! The apiservers that call the kubelet of one node. Each stream is a CONNECT on the Unix socket of
//! an apiserver's node, and the kubelet should answer behind it.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use meshport_config::NodeName;
use meshport_daemon::tcp::{Host, Tcp};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::book::Book;
use super::instance::Greeted;
use super::{lock, machine};
use crate::level::clients::Door;
use crate::measure::Measures;
use crate::scenario::Load;

/// The daemon's socket on an apiserver's node.
pub(super) const SOCKET: &str = "/run/meshport/egress.sock";
/// A kubelet's address on its node.
pub(super) const KUBELET: &str = "127.0.0.1:10250";
/// The port of [`KUBELET`].
const PORT: u16 = 10250;
/// The longest answer to a CONNECT, in bytes.
const MAX_HEAD: usize = 4 << 10;

/// The callers of one kubelet.
#[derive(Clone)]
pub(super) struct Callers {
    /// The kubelet's node and name.
    pub(super) to: usize,
    pub(super) name: NodeName,
    /// The nodes with an apiserver.
    pub(super) apiservers: Arc<[(usize, Host)]>,
    pub(super) load: Load,
    pub(super) book: Arc<Mutex<Book>>,
    /// Number of streams so far; the apiservers take turns by it.
    pub(super) turn: Arc<AtomicUsize>,
}

impl Callers {
    /// The next apiserver whose node is running.
    fn caller(&self) -> io::Result<&(usize, Host)> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let book = lock(&self.book);
        let all = self.apiservers.iter().cycle().skip(turn % self.apiservers.len());
        let mut all = all.take(self.apiservers.len());
        all.find(|(at, _)| book.routes[*at].is_some()).ok_or(io::ErrorKind::NotConnected.into())
    }

    /// Requests the kubelet. The process that answers sends next.
    async fn call(&self, host: &Host) -> io::Result<Tcp> {
        let mut tcp = host.connect_unix(Path::new(SOCKET)).await?;
        let target = format!("{}:{PORT}", self.name);
        let request = format!("CONNECT {target} HTTP/1.1\r\nhost: {target}\r\n\r\n");
        tcp.write_all(request.as_bytes()).await?;
        let mut head = Vec::new();
        // Byte by byte, since the bytes after the head are the kubelet's.
        while !head.ends_with(b"\r\n\r\n") {
            if head.len() >= MAX_HEAD {
                return Err(io::ErrorKind::InvalidData.into());
            }
            head.push(tcp.read_u8().await?);
        }
        let head = String::from_utf8_lossy(&head);
        let status = head.split(' ').nth(1).and_then(|it| it.parse().ok()).unwrap_or(0);
        if status != 200 {
            let first = head.lines().next().unwrap_or_default();
            lock(&self.book).refused(self.to, status, first);
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        Ok(tcp)
    }
}

impl Door for Callers {
    type Session = Greeted;

    fn load(&self) -> &Load {
        &self.load
    }

    fn now(&self) -> Duration {
        machine::now()
    }

    fn measure(&self, change: impl FnOnce(&mut Measures)) {
        change(&mut lock(&self.book).back);
    }

    async fn open(&self) -> io::Result<Greeted> {
        lock(&self.book).back.sessions.begun += 1;
        let (from, host) = self.caller()?;
        let started = machine::now();
        let greeted = Greeted::greet(self.call(host).await?).await?;
        let took = machine::now() - started;
        lock(&self.book).called(*from, self.to, greeted.origin, took);
        Ok(greeted)
    }

    async fn ask(&self, greeted: &mut Greeted) -> io::Result<()> {
        greeted.ask(self.load.request_bytes, self.load.response_bytes).await
    }

    async fn over(greeted: &mut Greeted) {
        greeted.over().await;
    }

    fn closed(&self, greeted: Greeted) {
        drop(greeted);
        lock(&self.book).back.sessions.closed += 1;
    }

    fn answered(&self, started: Duration, answered: bool) {
        lock(&self.book).call_ends(self.to, started, answered);
    }
}
