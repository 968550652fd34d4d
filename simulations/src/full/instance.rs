//! A simulated apiserver or kubelet on a node's host. It answers health probes over HTTP and
//! clients in TLS-shaped records, so that the daemon treats them as TLS.
//!
//! | record | from | body |
//! | --- | --- | --- |
//! | 22 | client | a hello, [`HELLO_BYTES`] long |
//! | 22 | instance | its node's number in the first two bytes, [`GREETING_BYTES`] long |
//! | 23 | client | a request: the length of the answer in the first four bytes |
//! | 23 | instance | the answer |
//!
//! Bounds: a record's body is at most [`MAX_RECORD`] bytes; longer answers are several records.

use std::io;

use meshport_daemon::tcp::{Host, Tcp};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::instance::{ANSWER_TIME, ETCD_TIMEOUT, Instance};

/// An apiserver's address on its host.
pub(super) const ADDRESS: &str = "127.0.0.1:6443";
/// Bytes of a client's hello, of typical size.
pub(super) const HELLO_BYTES: usize = 300;
/// Bytes of the answer to a hello, including certificates.
const GREETING_BYTES: usize = 2500;
/// The longest body of a record, as in TLS.
const MAX_RECORD: usize = 16 << 10;
/// Bytes of a record before its body.
const HEADER: usize = 5;
/// The records' types.
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;
/// The longest request of a health probe.
const MAX_PROBE: usize = 4 << 10;
/// The path of the readiness probe.
pub(super) const READY_PATH: &str = "/readyz";
/// The path of the liveness probe.
const LIVE_PATH: &str = "/livez";

type State = watch::Receiver<Instance>;

/// Serves at `address` as `state` requires; never returns.
pub(super) async fn run(host: Host, address: &str, mut state: State, number: u16) {
    let address = address.parse().expect("a socket address");
    loop {
        if state.wait_for(|state| *state != Instance::Down).await.is_err() {
            return;
        }
        let Ok(listener) = host.listen(address) else { return };
        let mut connections = JoinSet::new();
        loop {
            let accepts = *state.borrow() != Instance::Hung;
            tokio::select! {
                accepted = listener.accept(), if accepts => {
                    let Ok(tcp) = accepted else { continue };
                    connections.spawn(serve(tcp, state.clone(), number));
                }
                Some(_) = connections.join_next(), if !connections.is_empty() => {}
                changed = state.changed() => {
                    if changed.is_err() || *state.borrow() == Instance::Down {
                        break;
                    }
                }
            }
        }
    }
}

async fn serve(tcp: Tcp, mut state: State, number: u16) {
    let mut served = Served { tcp, in_order: false };
    // A client that disconnects is not an error.
    served.in_order = serve_all(&mut served.tcp, &mut state, number).await.is_ok();
}

/// A connection that is reset on drop unless it ended in order.
struct Served {
    tcp: Tcp,
    in_order: bool,
}

impl Drop for Served {
    fn drop(&mut self) {
        if !self.in_order {
            self.tcp.reset_on_drop();
        }
    }
}

async fn serve_all(tcp: &mut Tcp, state: &mut State, number: u16) -> io::Result<()> {
    loop {
        let mut first = [0; 1];
        if tcp.read(&mut first).await? == 0 {
            return Ok(());
        }
        match first[0] {
            HANDSHAKE => {
                read_body(tcp).await?;
                think(state).await;
                let mut greeting = vec![0; GREETING_BYTES];
                greeting[..2].copy_from_slice(&number.to_be_bytes());
                write_record(tcp, HANDSHAKE, &greeting).await?;
            }
            DATA => {
                let request = read_body(tcp).await?;
                let wanted = request.first_chunk().map_or(0, |it| u32::from_be_bytes(*it));
                think(state).await;
                ask_etcd(state).await;
                let answer = vec![0; wanted as usize];
                for record in answer.chunks(MAX_RECORD) {
                    write_record(tcp, DATA, record).await?;
                }
            }
            _ => return probe(tcp, state).await,
        }
    }
}

/// Waits until the etcd member answers.
async fn ask_etcd(state: &mut State) {
    // Fails only at the end of the run.
    let _ = state.wait_for(|state| *state != Instance::Stalled).await;
}

/// Waits as long as an answer takes; does not return while the instance hangs.
async fn think(state: &mut State) {
    tokio::time::sleep(ANSWER_TIME).await;
    // Fails only at the end of the run.
    let _ = state.wait_for(|state| *state != Instance::Hung).await;
}

async fn probe(tcp: &mut Tcp, state: &mut State) -> io::Result<()> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        if request.len() >= MAX_PROBE || tcp.read_buf(&mut request).await? == 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    think(state).await;
    let asks = |path: &str| String::from_utf8_lossy(&request).contains(path);
    let asks_ready = asks(READY_PATH);
    let times_out = (asks_ready || asks(LIVE_PATH))
        && tokio::time::timeout(ETCD_TIMEOUT, ask_etcd(state)).await.is_err();
    let status = match *state.borrow() {
        _ if times_out => "500 Internal Server Error",
        Instance::Unready if asks_ready => "500 Internal Server Error",
        _ => "200 OK",
    };
    let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    tcp.write_all(answer.as_bytes()).await
}

async fn read_body(tcp: &mut Tcp) -> io::Result<Vec<u8>> {
    let mut rest = [0; HEADER - 1];
    tcp.read_exact(&mut rest).await?;
    let length = usize::from(u16::from_be_bytes([rest[2], rest[3]]));
    let mut body = vec![0; length];
    tcp.read_exact(&mut body).await?;
    Ok(body)
}

async fn write_record(tcp: &mut Tcp, kind: u8, body: &[u8]) -> io::Result<()> {
    let length = u16::try_from(body.len()).expect("at most MAX_RECORD");
    let [high, low] = length.to_be_bytes();
    let record = [&[kind, 3, 3, high, low], body].concat();
    tcp.write_all(&record).await
}

/// A client's connection that has been greeted by an instance.
#[derive(Debug)]
pub(super) struct Greeted {
    tcp: Tcp,
    /// The number of the instance's node.
    pub(super) origin: usize,
}

impl Greeted {
    /// Sends a hello on a new connection and waits for the greeting.
    pub(super) async fn greet(mut tcp: Tcp) -> io::Result<Self> {
        write_record(&mut tcp, HANDSHAKE, &[0; HELLO_BYTES]).await?;
        let greeting = read_answer(&mut tcp).await?;
        let number = greeting.first_chunk().ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { tcp, origin: usize::from(u16::from_be_bytes(*number)) })
    }

    /// Sends a request and waits for the complete answer.
    pub(super) async fn ask(&mut self, request: usize, answer: usize) -> io::Result<()> {
        let mut body = vec![0; request.clamp(4, MAX_RECORD)];
        let wanted = u32::try_from(answer).unwrap_or(u32::MAX);
        body[..4].copy_from_slice(&wanted.to_be_bytes());
        write_record(&mut self.tcp, DATA, &body).await?;
        let mut left = answer;
        while left > 0 {
            left = left.saturating_sub(read_answer(&mut self.tcp).await?.len());
        }
        Ok(())
    }

    /// Resolves when the connection has ended.
    pub(super) async fn over(&mut self) {
        // Neither side sends anything here unprompted: readability means the end or an error.
        let _ = self.tcp.read(&mut [0; 1]).await;
    }
}

async fn read_answer(tcp: &mut Tcp) -> io::Result<Vec<u8>> {
    let mut kind = [0; 1];
    tcp.read_exact(&mut kind).await?;
    read_body(tcp).await
}
