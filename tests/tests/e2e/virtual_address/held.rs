//! Connections that are held: a request on each now and then, a new one after an end.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use meshport_tests::wait;
use rustls::{ClientConfig, ClientConnection, StreamOwned};

use super::client::{PATIENCE, REQUEST, connect};

const COUNT: usize = 20;
const INTERVAL: Duration = Duration::from_millis(250);
/// More than the head and the body of an answer take.
const MAX_ANSWER: usize = 4096;

#[derive(Debug)]
pub(super) struct Held {
    stop: Arc<AtomicBool>,
    ended: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl Held {
    /// Begins, on the host that this is called on.
    pub(super) fn start(to: SocketAddr, config: &Arc<ClientConfig>) -> Self {
        let (stop, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let one = |_| {
            let (config, stop, ended) = (config.clone(), stop.clone(), ended.clone());
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let mut next = wait::now();
                    // Failures to connect are counted by the clients beside these.
                    if let Ok(mut stream) = connect(to, config.clone()) {
                        while !stop.load(Ordering::Relaxed) && exchange(&mut stream).is_ok() {
                            wait::pace(&mut next, INTERVAL);
                        }
                        ended.fetch_add(1, Ordering::Relaxed);
                    } else {
                        wait::pace(&mut next, INTERVAL);
                    }
                }
            })
        };
        let threads = (0..COUNT).map(one).collect();
        Self { stop, ended, threads }
    }

    /// Ends them; how many have ended before.
    pub(super) fn finish(self) -> usize {
        let ended = self.ended.load(Ordering::Relaxed);
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().expect("they do not panic"));
        ended
    }
}

/// One request and its answer.
fn exchange(stream: &mut StreamOwned<ClientConnection, TcpStream>) -> io::Result<()> {
    debug_assert!(stream.sock.read_timeout()? == Some(PATIENCE));
    stream.write_all(REQUEST.replace("close", "keep-alive").as_bytes())?;
    let (mut answer, mut buffer) = (Vec::new(), [0; MAX_ANSWER]);
    loop {
        match stream.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            length => answer.extend_from_slice(&buffer[..length]),
        }
        if is_whole(&answer) {
            return Ok(());
        }
    }
}

fn is_whole(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer).to_lowercase();
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    length.and_then(|length| length.parse::<usize>().ok()).is_some_and(|it| body.len() >= it)
}
