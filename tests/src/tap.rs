//! A UDP relay in front of one node that keeps a copy of every datagram, for replay and corruption.
//!
//! Each peer gets its own socket towards the node, as behind a NAT, so that answers find their way
//! back. At most [`MAX_KEPT`] datagrams are kept.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// Maximum number of datagrams towards the node that are kept.
pub const MAX_KEPT: usize = 4096;
/// How often a relaying thread checks whether it should end.
const LOOK: Duration = Duration::from_millis(200);
const MAX_DATAGRAM: usize = 65_535;

/// A running tap; dropping it ends its threads.
#[derive(Debug)]
pub struct Tap {
    public: SocketAddr,
    node: SocketAddr,
    kept: Arc<Mutex<Vec<Vec<u8>>>>,
    stop: Arc<AtomicBool>,
}

impl Tap {
    /// Relays between a new port on `address` and `node`.
    ///
    /// # Errors
    /// If no port is free on `address`.
    pub fn start(address: IpAddr, node: SocketAddr) -> io::Result<Self> {
        let outside = Arc::new(UdpSocket::bind((address, 0))?);
        outside.set_read_timeout(Some(LOOK))?;
        let public = outside.local_addr()?;
        let (kept, stop) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let tap = Self { public, node, kept: Arc::clone(&kept), stop: Arc::clone(&stop) };
        thread::spawn(move || inwards(&outside, node, &kept, &stop));
        Ok(tap)
    }

    /// The address peers send to.
    pub fn public(&self) -> SocketAddr {
        self.public
    }

    /// Copies of the datagrams sent to the node so far.
    pub fn kept(&self) -> Vec<Vec<u8>> {
        self.kept.lock().expect("the relay does not panic").clone()
    }

    /// Sends `datagrams` to the node from a socket no peer has.
    ///
    /// # Errors
    /// The system refuses a socket or a datagram.
    pub fn inject(&self, datagrams: &[Vec<u8>]) -> io::Result<()> {
        let socket = UdpSocket::bind((self.public.ip(), 0))?;
        for datagram in datagrams {
            socket.send_to(datagram, self.node)?;
        }
        Ok(())
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn inwards(
    outside: &Arc<UdpSocket>,
    node: SocketAddr,
    kept: &Mutex<Vec<Vec<u8>>>,
    stop: &Arc<AtomicBool>,
) {
    let mut peers: BTreeMap<SocketAddr, Arc<UdpSocket>> = BTreeMap::new();
    let mut buffer = vec![0; MAX_DATAGRAM];
    while !stop.load(Ordering::Relaxed) {
        let Ok((length, peer)) = outside.recv_from(&mut buffer) else { continue };
        let datagram = &buffer[..length];
        if let Ok(mut kept) = kept.lock()
            && kept.len() < MAX_KEPT
        {
            kept.push(datagram.to_vec());
        }
        let inside = match peers.get(&peer) {
            Some(inside) => Arc::clone(inside),
            None => {
                let Ok(inside) = outwards(outside, peer, node, stop) else { continue };
                peers.insert(peer, Arc::clone(&inside));
                inside
            }
        };
        // A datagram that cannot be relayed is lost, as datagrams may be.
        let _ = inside.send(datagram);
    }
}

/// A socket towards the node for one peer, and the thread that carries its answers back.
fn outwards(
    outside: &Arc<UdpSocket>,
    peer: SocketAddr,
    node: SocketAddr,
    stop: &Arc<AtomicBool>,
) -> io::Result<Arc<UdpSocket>> {
    let inside = Arc::new(UdpSocket::bind((outside.local_addr()?.ip(), 0))?);
    inside.connect(node)?;
    inside.set_read_timeout(Some(LOOK))?;
    let (outside, answers, stop) = (Arc::clone(outside), Arc::clone(&inside), Arc::clone(stop));
    thread::spawn(move || {
        let mut buffer = vec![0; MAX_DATAGRAM];
        while !stop.load(Ordering::Relaxed) {
            if let Ok(length) = answers.recv(&mut buffer) {
                let _ = outside.send_to(&buffer[..length], peer);
            }
        }
    });
    Ok(inside)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn datagrams_go_both_ways_and_are_kept() {
        let node = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        node.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout can be set");
        let there = node.local_addr().expect("a bound socket has an address");
        let tap = Tap::start(Ipv4Addr::LOCALHOST.into(), there).expect("a free port");
        let peer = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        peer.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout can be set");
        peer.send_to(b"ask", tap.public()).expect("loopback carries it");
        let mut buffer = [0; 16];
        let (length, from) = node.recv_from(&mut buffer).expect("the tap relays");
        assert_eq!(&buffer[..length], b"ask");
        node.send_to(b"answer", from).expect("loopback carries it");
        let (length, from) = peer.recv_from(&mut buffer).expect("the tap relays back");
        assert_eq!((&buffer[..length], from), (&b"answer"[..], tap.public()));
        assert_eq!(tap.kept(), [b"ask".to_vec()]);
    }
}
