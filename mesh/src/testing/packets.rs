//! Two state machines with a session, connected directly: sealing and opening without sockets, a
//! runtime or QUIC.

use std::net::{Ipv6Addr, SocketAddr};
use std::time::Instant;

use meshport_proto::core::{Core, Datagrams, SEAL_OVERHEAD};
use meshport_proto::event::{Now, Route};
use meshport_proto::{Identity, MeshConfig};

/// IPv4 and UDP around an outer datagram, in bytes.
const OUTER_HEADERS: usize = 28;

/// One direction of a session: the near node seals, the far one opens.
pub struct Packets {
    near: Core,
    far: Core,
    /// Time is stopped: no timer fires between the packets.
    now: Now,
    to: Ipv6Addr,
    sealed: Vec<u8>,
    opened: Vec<u8>,
}

impl std::fmt::Debug for Packets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Packets").field("to", &self.to).finish_non_exhaustive()
    }
}

impl Packets {
    /// Nodes of one mesh, after handshake and admission.
    ///
    /// # Panics
    /// If an identity is not valid at its credential's time of issue.
    pub fn new(near: Identity, far: Identity, start: Instant) -> Self {
        let now = Now { instant: start, wall: near.credential.issued_at };
        let (to, from) = (far.key.public(), near.key.public());
        let core = |identity, seed| {
            let core = Core::new(identity, MeshConfig::default(), [seed; 32], now);
            core.expect("the identities are good")
        };
        let (mut near, mut far) = (core(near, 1), core(far, 2));
        near.set_peer(now, to, &[address(2)], None);
        far.set_peer(now, from, &[address(1)], None);
        near.connect(now, &to).expect("its address is known");
        let (to, opened) = (far.address(), vec![0; 1 << 16]);
        let mut packets = Self { near, far, now, to, sealed: Vec::new(), opened };
        packets.settle();
        packets
    }

    /// Delivers their datagrams until they are silent.
    fn settle(&mut self) {
        let Self { near, far, now, opened, .. } = self;
        loop {
            let there = near.poll_transmit();
            let back = far.poll_transmit();
            if there.is_none() && back.is_none() {
                break;
            }
            for (to, sent, from) in [(&mut *far, there, 1), (&mut *near, back, 2)] {
                if let Some(sent) = sent {
                    to.handle_datagram(*now, Route::from(address(from)), &sent.bytes, opened);
                }
            }
        }
    }

    /// Both nodes, and the address of the far one.
    #[cfg(test)]
    pub(crate) fn into_nodes(self) -> (Core, Core, Ipv6Addr) {
        (self.near, self.far, self.to)
    }

    /// The QUIC datagram that fills a packet of an IPv4 path with this MTU, in bytes.
    pub fn segment(mtu: usize) -> usize {
        mtu - OUTER_HEADERS - SEAL_OVERHEAD
    }

    /// Seals a batch of datagrams of `segment` bytes each, as QUIC passes it to the socket; returns
    /// the bytes on the wire.
    ///
    /// # Panics
    /// If there is no session.
    pub fn seal(&mut self, contents: &[u8], segment: usize) -> &[u8] {
        let batch = Datagrams { bytes: contents, segment };
        let sealed = self.near.seal_streams(self.now, &self.to, batch, &mut self.sealed, 0);
        let sealed = sealed.expect("there is a session");
        &self.sealed[..sealed.length]
    }

    /// Opens a batch as the socket receives it; returns the bytes of datagrams in it.
    pub fn open(&mut self, sealed: &[u8], segment: usize) -> usize {
        let from = Route::from(address(1));
        let datagrams = sealed.chunks(segment + SEAL_OVERHEAD);
        let opened = datagrams.filter_map(|datagram| {
            self.far.handle_datagram(self.now, from, datagram, &mut self.opened)
        });
        opened.map(|packet| packet.length).sum()
    }
}

fn address(last: u8) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, last], 51820))
}
