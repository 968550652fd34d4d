//! QUIC connection ids that identify the process that created them.
//!
//! Our ids are [`LENGTH`] bytes: the tag of the process, then random bytes. A process that takes
//! over the sockets of earlier ones identifies the owner of a packet by the tag, without a table.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use quinn_proto::{ConnectionId, ConnectionIdGenerator};
use rand::RngCore;
use rand::rngs::StdRng;

use super::lock;

/// Length of our connection ids, in bytes.
const LENGTH: usize = 8;
/// Length of the random destination id in a client's first packet. It differs from [`LENGTH`], so
/// that the length tells the two kinds apart.
const INITIAL_LENGTH: usize = 16;
/// The first byte of a QUIC packet with a long header has this bit (RFC 9000, section 17.2).
const LONG_HEADER: u8 = 0x80;
/// Offset in a long header of the length of the destination's connection id; the id follows.
const LONG_ID_LENGTH: usize = 5;
const LONG_ID: usize = 6;

/// Identifies a process in the connection ids that it creates. It differs from the tags of the
/// predecessors that are still running.
pub type ProcessTag = u8;

/// The source of an endpoint's connection ids and challenges.
pub(super) type Random = Arc<Mutex<StdRng>>;

/// The process to which a QUIC packet belongs. `None` for the first packets of a connection, whose
/// id the peer chose.
pub(super) fn tag_of(packet: &[u8]) -> Option<ProcessTag> {
    let is_long = packet.first()? & LONG_HEADER != 0;
    if !is_long {
        return packet.get(1).copied();
    }
    let is_ours = packet.get(LONG_ID_LENGTH).is_some_and(|it| usize::from(*it) == LENGTH);
    packet.get(LONG_ID).copied().filter(|_| is_ours)
}

/// The destination of a client's first packet.
pub(super) fn initial(random: &Random) -> ConnectionId {
    let mut bytes = [0; INITIAL_LENGTH];
    lock(random).fill_bytes(&mut bytes);
    ConnectionId::new(&bytes)
}

/// Generates the connection ids of this process.
pub(super) struct Ids {
    pub(super) random: Random,
    pub(super) tag: ProcessTag,
}

impl ConnectionIdGenerator for Ids {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut bytes = [self.tag; LENGTH];
        lock(&self.random).fill_bytes(&mut bytes[1..]);
        ConnectionId::new(&bytes)
    }

    fn cid_len(&self) -> usize {
        LENGTH
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn a_packet_names_the_process_that_made_its_connection_id() {
        let random: Random = Arc::new(Mutex::new(StdRng::from_seed([1; 32])));
        let id = Ids { random: random.clone(), tag: 3 }.generate_cid();
        let short = [&[0x40][..], &id, &[7; 31]].concat();
        assert_eq!(tag_of(&short), Some(3));
        let long = |id: &[u8]| {
            let length = u8::try_from(id.len()).expect("at most 20");
            [&[0xe0, 0, 0, 0, 1, length][..], id, &[7; 30]].concat()
        };
        assert_eq!(tag_of(&long(&id)), Some(3));
        // The first packet of a new connection.
        assert_eq!(tag_of(&long(&initial(&random))), None);
        for length in 0..short.len() {
            let _ = (tag_of(&short[..length]), tag_of(&long(&id)[..length]));
        }
    }
}
