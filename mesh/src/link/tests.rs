#![expect(clippy::disallowed_methods, reason = "an origin for made-up time")]

use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::pin::Pin;

use meshport_config::{AuthorityKey, Credential, MeshSecret, NodeKey, RecordKey, Subject};
use meshport_proto::Identity;

use super::*;
use crate::outer::OuterMeta;
use crate::testing::Packets;

const WALL: UnixSeconds = UnixSeconds(1_800_000_000);

/// A socket that keeps what is sent.
#[derive(Debug, Default)]
struct Kept(Mutex<Vec<Vec<u8>>>);

impl OuterSocket for Kept {
    fn try_send(&self, transmit: &OuterTransmit<'_>) -> io::Result<()> {
        let datagrams = transmit.contents.chunks(transmit.segment);
        lock(&self.0).extend(datagrams.map(<[u8]>::to_vec));
        Ok(())
    }

    fn poll_recv(
        &self,
        _cx: &mut Context<'_>,
        _buffers: &mut [IoSliceMut<'_>],
        _meta: &mut [OuterMeta],
    ) -> Poll<io::Result<usize>> {
        Poll::Pending
    }

    fn writable(self: Arc<Self>) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send + Sync>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(SocketAddr::from(([10, 0, 0, 1], 51820)))
    }

    fn max_gso_segments(&self) -> usize {
        64
    }
}

fn identity(number: u8) -> Identity {
    let key = NodeKey::from_bytes([number; 32]);
    let subject = Subject {
        node: key.public(),
        record_key: RecordKey::from_bytes([7; 32]).public(),
        name: format!("node-{number}").parse().unwrap(),
        site: "fra".parse().unwrap(),
        roles: "node".parse().unwrap(),
        succession: None,
    };
    let until = UnixSeconds(WALL.0 + 86_400);
    let authority = AuthorityKey::from_bytes([1; 32]);
    let made = Credential::issue_by_authority(&authority, subject, WALL, until).unwrap();
    let credential = made.countersign(&key).unwrap();
    Identity { key, credential, secret: MeshSecret::from_bytes([1; 32]) }
}

/// A call of the socket has datagrams of one length, also if splitting starts or ends while others
/// wait for the same call.
#[tokio::test(start_paused = true)]
async fn datagrams_keep_their_bounds_when_splitting_starts_and_ends() {
    let start = tokio::time::Instant::now().into_std();
    let (near, mut far, to) = Packets::new(identity(1), identity(2), start).into_nodes();
    let (kept, events) = (Arc::new(Kept::default()), mpsc::channel(1).0);
    let inboxes = Inboxes::new(1).next().unwrap();
    let (wall, none): (WallClock, _) = (Arc::new(|| WALL), Predecessors::default());
    let link = Link::new(near, kept.clone(), wall, events, inboxes, none);
    let (mut sent, mut arrived, mut opened) = (0, 0, vec![0; 1 << 16]);
    for segment in [1392, 1200, 640, 632, 609, 600, 20] {
        for step in 0..16 {
            let is_narrow = step & 2 != 0;
            link.turn(|core, _| core.set_narrow(&far.node(), is_narrow));
            // Some batches end with a shorter datagram; the others wait for more.
            let count = 3 + step % 5;
            let length = count * segment - if step % 3 == 0 { 7 } else { 0 };
            link.send_streams(&to, &vec![7; length], segment);
            sent += length;
        }
    }
    let cx = Context::from_waker(Waker::noop());
    (0..2).for_each(|_| assert!(link.poll_flush(&cx).is_pending()));
    let from = Route::from(kept.local_addr().unwrap());
    for datagram in std::mem::take(&mut *lock(&kept.0)) {
        let found = far.handle_datagram(link.now(), from, &datagram, &mut opened);
        arrived += found.map_or(0, |packet| packet.length);
        arrived += far.poll_joined().map_or(0, |packet| packet.payload().len());
    }
    assert_eq!(arrived, sent);
    assert!(far.counters()[MeshCount::PacketsJoined] > 100);
}
