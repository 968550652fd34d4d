//! Handshake initiations that cost the receiver work and lead to no session: at a steady rate, or
//! in a burst ahead of one that does.

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

use crate::process::run;
use crate::wait;

/// Interval between batches: short compared with the 5 ms between two initiations that a receiver
/// under load accepts without a cookie, so that other initiations rarely get a turn.
const PORTION_INTERVAL: Duration = Duration::from_micros(200);
/// Number of distinct initiations of each kind. A receiver under load takes the first few hundred
/// of each second: as this number divides no rate, those differ every second.
const INITIATIONS: u32 = 4_099;
const INITIATION_BYTES: usize = 148;
/// Offset of the first MAC, which covers all bytes before it (WireGuard's paper, section 5.4.4).
const MAC1: usize = 116;
/// Invalid handshakes sent ahead of a valid one. More than it takes to put either receiver under
/// load (50 at once for the daemon, 128 waiting for wireguard-go), and few enough for a socket to
/// hold: 256 fit into the 212,992 bytes that Linux gives it.
const AHEAD: usize = 200;
/// How soon the thread of a path notices that it should end when no datagram arrives.
const LOOK_UP: Duration = Duration::from_millis(100);
/// No datagram is longer.
const LARGEST: usize = 65_535;
/// A time at which the made-up credential is valid.
const WALL: UnixSeconds = UnixSeconds(1_800_000_000);

/// Initiations whose first MAC is valid and whose rest is noise. They cost the receiver the MAC,
/// and one handshake computation if it is not under load.
pub fn noise(to: &NodeId) -> Vec<Vec<u8>> {
    (0..INITIATIONS).map(|number| noisy(to, number)).collect()
}

fn noisy(to: &NodeId, number: u32) -> Vec<u8> {
    let mut message = vec![0; INITIATION_BYTES];
    message[0] = 1;
    // The bytes under the MAC must differ but need not be random.
    let noise: [u8; 32] = Blake2s256::digest(number.to_be_bytes()).into();
    message[4..MAC1].iter_mut().zip(noise.iter().cycle()).for_each(|(to, from)| *to = *from);
    let key = Blake2s256::new().chain_update(b"mac1----").chain_update(to.as_bytes());
    let mac = <Blake2sMac<U16> as Mac>::new_from_slice(&key.finalize());
    let mac = mac.expect("a digest is a key").chain_update(&message[..MAC1]).finalize();
    message[MAC1..MAC1 + 16].copy_from_slice(&mac.into_bytes());
    message
}

/// Valid initiations, each from a different unknown node: the most an attacker can do who knows the
/// node's public key but not the mesh secret, which only the answer needs. For each one it accepts,
/// the receiver computes a whole handshake, answers, and keeps the initiator for a while.
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

/// The product's own first message to a node, as a member of a nonexistent mesh.
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

/// A running flood; dropping it ends it.
#[derive(Debug)]
pub struct Flood {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    /// Sends `rate` of these initiations a second to `at`, from all these sockets in turn.
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
                // Makes up for a late turn.
                let due = begun.elapsed().as_secs_f64() * f64::from(rate);
                while (counting.load(Ordering::Relaxed) as f64) < due {
                    let (message, socket) = pairs.next().expect("both go round");
                    // Filling the receiver's buffer is the purpose of a flood.
                    let _ = socket.send_to(message, at);
                    counting.fetch_add(1, Ordering::Relaxed);
                }
                wait::moment(wait::now() + PORTION_INTERVAL);
            }
        });
        Self { stop, sent, thread: Some(thread) }
    }

    /// Number sent so far.
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

/// An end of a tunnel.
#[derive(Debug, Clone, Copy)]
pub struct End {
    /// Its UDP address.
    pub at: SocketAddr,
    /// Its public key.
    pub key: NodeId,
    /// Its process.
    pub process: u32,
}

/// A path between two ends of a tunnel, on which every initiation for the flooded end directly
/// follows a burst of invalid ones. That end is stopped until the whole burst is queued: so it is
/// under load when it reads the initiation, however slow the machine is. Its socket has room for
/// the burst, so no datagram of the ends is lost, unlike in a flood that overflows one of them.
/// Dropping the path ends it.
#[derive(Debug)]
pub struct Path {
    way: Arc<Wire>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Wire {
    ends: [End; 2],
    /// The sockets towards each end.
    sockets: [UdpSocket; 2],
    /// The burst comes from its own port; its answers are not read.
    crowd: UdpSocket,
    noise: [Vec<Vec<u8>>; 2],
    crowded: [AtomicBool; 2],
    stop: AtomicBool,
    sent: AtomicU64,
}

impl Path {
    /// Creates a path between these ends. An end sends to the address of the socket that faces it.
    pub fn start(ends: [End; 2], sockets: [UdpSocket; 2], crowd: UdpSocket) -> Self {
        for socket in &sockets {
            socket.set_read_timeout(Some(LOOK_UP)).expect("it is no zero");
        }
        let noise = |end: End| (0..).map(|number| noisy(&end.key, number)).take(AHEAD).collect();
        let noise = ends.map(noise);
        let (crowded, stop, sent) = Default::default();
        let way = Arc::new(Wire { ends, sockets, crowd, noise, crowded, stop, sent });
        let carry = |from| {
            let way = Arc::clone(&way);
            thread::spawn(move || way.carry(from))
        };
        let threads = [0, 1].map(carry).into();
        Self { way, threads }
    }

    /// The address at which one end reaches the other.
    pub fn for_end(&self, end: usize) -> SocketAddr {
        self.way.sockets[end].local_addr().expect("a bound socket has an address")
    }

    /// Floods only this end from now on, or neither.
    pub fn crowd(&self, crowded: Option<usize>) {
        for (end, is_crowded) in self.way.crowded.iter().enumerate() {
            is_crowded.store(crowded == Some(end), Ordering::Relaxed);
        }
    }

    /// Number of invalid initiations sent so far.
    pub fn sent(&self) -> u64 {
        self.way.sent.load(Ordering::Relaxed)
    }
}

impl Wire {
    fn carry(&self, from: usize) {
        let to = 1 - from;
        let mut buffer = vec![0; LARGEST];
        while !self.stop.load(Ordering::Relaxed) {
            // Nothing has arrived, or the destination was not listening.
            let Ok(length) = self.sockets[from].recv(&mut buffer) else { continue };
            let datagram = &buffer[..length];
            let begins = length == INITIATION_BYTES && datagram[0] == 1;
            let is_crowded = begins && self.crowded[to].load(Ordering::Relaxed);
            if is_crowded {
                self.signal(to, "STOP");
                for message in &self.noise[to] {
                    let _ = self.crowd.send_to(message, self.ends[to].at);
                    self.sent.fetch_add(1, Ordering::Relaxed);
                }
            }
            let _ = self.sockets[to].send_to(datagram, self.ends[to].at);
            if is_crowded {
                self.signal(to, "CONT");
            }
        }
    }

    fn signal(&self, end: usize, signal: &str) {
        // If its process has ended, the test reports that.
        let _ = run("kill", &["-s", signal, &self.ends[end].process.to_string()]);
    }
}

impl Drop for Path {
    fn drop(&mut self) {
        self.way.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A panic there has been printed; there is nothing to add while ending.
            let _ = thread.join();
        }
    }
}
