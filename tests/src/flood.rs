//! Handshake initiations that cost their receiver something and come to nothing, at a steady rate.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use blake2::digest::consts::U16;
use blake2::digest::{Digest, Mac};
use blake2::{Blake2s256, Blake2sMac};
use meshport_config::{
    AuthorityKey, Credential, MeshSecret, NodeId, NodeKey, RecordKey, Subject, UnixSeconds,
};
use meshport_mesh::testing::Switch;
use meshport_mesh::{Identity, Mesh, MeshConfig};
use tokio::runtime::Builder;

use crate::wait;

/// How often a portion of them is sent: short against the 5 ms from one that a receiver under load
/// takes without a cookie to the next, so that what is not of the flood seldom comes at its turn.
const PORTION_INTERVAL: Duration = Duration::from_micros(200);
/// Different ones of either kind. A receiver under load takes the first few hundred of each second:
/// as this divides no rate, those are others every time.
const INITIATIONS: u32 = 4_099;
const INITIATION_BYTES: usize = 148;
/// Where the first MAC begins: all before it is under it (WireGuard's paper, section 5.4.4).
const MAC1: usize = 116;
/// Any time at which an invented credential is valid.
const WALL: UnixSeconds = UnixSeconds(1_800_000_000);

/// Initiations whose first MAC is right and whose rest is noise: they cost the receiver the MAC,
/// and when it is not under load one computation of the handshake.
pub fn noise(to: &NodeId) -> Vec<Vec<u8>> {
    (0..INITIATIONS).map(|number| noisy(to, number)).collect()
}

fn noisy(to: &NodeId, number: u32) -> Vec<u8> {
    let mut message = vec![0; INITIATION_BYTES];
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

/// Initiations that are good, each of another node that nobody has heard of: the most that somebody
/// can make who knows the node's public key and not the mesh's secret, which only the answer needs.
/// The receiver computes a whole handshake for each that it takes, answers it, and keeps its
/// initiator for a while.
pub fn invented(to: &NodeId) -> Vec<Vec<u8>> {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut all = Vec::new();
        for number in 0..INITIATIONS {
            all.push(initiation_of_nobody(to, number).await);
        }
        all
    })
}

/// What the product itself says first to a node, as a member of a mesh that does not exist.
async fn initiation_of_nobody(to: &NodeId, number: u32) -> Vec<u8> {
    let key = NodeKey::from_bytes(Blake2s256::digest(number.to_be_bytes()).into());
    let subject = Subject {
        node: key.public(),
        record_key: RecordKey::from_bytes([7; 32]).public(),
        name: "nobody".parse().expect("a name"),
        site: "nowhere".parse().expect("a site"),
        roles: "node".parse().expect("a role"),
        succession: None,
    };
    let authority = AuthorityKey::from_bytes([1; 32]);
    let until = UnixSeconds(WALL.0 + 3600);
    let issued = Credential::issue_by_authority(&authority, subject, WALL, until);
    let issued = issued.expect("it is valid for an hour");
    let credential = issued.countersign(&key).expect("it is for this key");
    let identity = Identity { key, credential, secret: MeshSecret::from_bytes([1; 32]) };
    let [here, there] = [1, 2].map(|host| SocketAddr::from(([10, 0, 0, host], 51820)));
    let switch = Switch::new(1);
    switch.capture();
    let started =
        Mesh::start(identity, MeshConfig::default(), switch.attach(here), [1; 32], || WALL);
    let (mesh, _incoming) = started.expect("a good identity");
    mesh.set_peer(*to, &[there], None);
    mesh.connect(to);
    loop {
        if let Some(said) = switch.captured().pop() {
            assert_eq!((said.bytes[0], said.bytes.len()), (1, INITIATION_BYTES));
            return said.bytes;
        }
        tokio::task::yield_now().await;
    }
}

/// A running flood; it ends when it is dropped.
#[derive(Debug)]
pub struct Flood {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    /// Sends `rate` of these a second to `at`, from all these sockets in turn.
    pub fn start(
        messages: Vec<Vec<u8>>,
        at: SocketAddr,
        sockets: Vec<UdpSocket>,
        rate: u32,
    ) -> Self {
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
