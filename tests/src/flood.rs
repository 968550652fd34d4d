//! Handshake initiations that cost their receiver something and come to nothing, at a steady rate.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use blake2::digest::consts::U16;
use blake2::digest::{Digest, Mac};
use blake2::{Blake2s256, Blake2sMac};
use meshport_config::NodeId;

use crate::wait;

/// How often a portion of them is sent.
const PORTION_INTERVAL: Duration = Duration::from_millis(10);
/// Different initiations. They differ in what costs the receiver something: the first MAC.
const INITIATIONS: usize = 2_000;
const INITIATION_BYTES: usize = 148;
/// Where the first MAC begins: all before it is under it (WireGuard's paper, section 5.4.4).
const MAC1: usize = 116;

/// An initiation whose first MAC is right and whose rest is noise: the most that somebody can make
/// who knows the node's public key.
fn initiation(to: &NodeId, number: usize) -> [u8; INITIATION_BYTES] {
    let mut message = [0; INITIATION_BYTES];
    message[0] = 1;
    // What is under the MAC has to differ, and need not be random.
    let noise: [u8; 32] = Blake2s256::digest(number.to_be_bytes()).into();
    message[4..MAC1].iter_mut().zip(noise.iter().cycle()).for_each(|(to, from)| *to = *from);
    let key = Blake2s256::new().chain_update(b"mac1----").chain_update(to.as_bytes());
    let mac = <Blake2sMac<U16> as Mac>::new_from_slice(&key.finalize());
    let mac = mac.expect("a digest is a key").chain_update(&message[..MAC1]).finalize();
    message[MAC1..MAC1 + 16].copy_from_slice(&mac.into_bytes());
    message
}

/// A running flood; it ends when it is dropped.
#[derive(Debug)]
pub struct Flood {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    /// Sends `rate` initiations a second for `node`, which listens at `at`, from all these sockets
    /// in turn.
    pub fn start(node: NodeId, at: SocketAddr, sockets: Vec<UdpSocket>, rate: u32) -> Self {
        let messages: Vec<_> = (0..INITIATIONS).map(|number| initiation(&node, number)).collect();
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopping, counting) = (Arc::clone(&stop), Arc::clone(&sent));
        let thread = thread::spawn(move || {
            let mut pairs = messages.iter().cycle().zip(sockets.iter().cycle());
            let begun = wait::now();
            while !stopping.load(Ordering::Relaxed) {
                // What a late turn has missed is made up for.
                let due = begun.elapsed().as_secs_f64() * f64::from(rate);
                while (counting.load(Ordering::Relaxed) as f64) < due {
                    let (message, socket) = pairs.next().expect("both go round");
                    // A full buffer of the receiver is what a flood is for.
                    let _ = socket.send_to(message, at);
                    counting.fetch_add(1, Ordering::Relaxed);
                }
                wait::moment(wait::now() + PORTION_INTERVAL);
            }
        });
        Self { stop, sent, thread: Some(thread) }
    }

    /// How many it has sent so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed; there is nothing to add while ending.
            let _ = thread.join();
        }
    }
}
