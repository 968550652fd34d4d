//! Detects that a peer does not acknowledge the long packets of a connection.
//!
//! A path whose MTU has dropped loses long packets and delivers short ones. Only their sender can
//! know: the peer does not expect them, and its own short packets are answered. QUIC retransmits
//! lost data, so if a long packet is sent while an earlier one has been unacknowledged for
//! [`PATIENCE`], and none of its length was acknowledged since, the path should be probed.

use std::time::{Duration, Instant};

/// How long a packet may stay unacknowledged: several probe timeouts of QUIC on usual paths, and
/// short enough that the path is left before clients time out.
const PATIENCE: Duration = Duration::from_millis(500);
/// Minimum patience, in round trips.
const ROUND_TRIPS: u32 = 3;
/// Packets of at least this many bytes count as long. Path probes cover shorter ones.
const LONG: u64 = 512;
/// QUIC's smallest full packet, in bytes. Longer ones prove no more, since QUIC falls back to this
/// size.
const FULL: u64 = 1200;
/// A packet sent this long ago, in multiples of the patience, and not since, is no longer in
/// flight: its stream was reset.
const STALE: u32 = 8;

/// The state of a connection's long packets.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unacknowledged {
    oldest: Option<Packet>,
}

#[derive(Debug, Clone, Copy)]
struct Packet {
    /// Time at which it was sent, or last reported overdue.
    since: Instant,
    /// Acknowledged packets of at least this length, in bytes, prove that it would get through.
    proof: u64,
}

impl Unacknowledged {
    /// Records that packets of this many bytes in total were sent, all but the last of equal
    /// length. True if long ones are overdue on a path with this round-trip time; once per
    /// patience.
    pub fn sent(&mut self, bytes: u64, rtt: Duration, now: Instant) -> bool {
        if bytes < LONG {
            return false;
        }
        let length = bytes.min(FULL);
        // Packet lengths vary with their other contents.
        let fresh = Packet { since: now, proof: length - length / 8 };
        let oldest = self.oldest.get_or_insert(fresh);
        let patience = PATIENCE.max(rtt * ROUND_TRIPS);
        let waited = now.saturating_duration_since(oldest.since);
        if waited < patience {
            return false;
        }
        *oldest = Packet { since: now, ..*oldest };
        waited < patience * STALE
    }

    /// Handles the acknowledgement of a packet of this many bytes.
    pub fn acknowledged(&mut self, bytes: u64) {
        self.oldest = self.oldest.filter(|oldest| bytes < oldest.proof);
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "an origin for made-up time")]

    use super::*;

    const RTT: Duration = Duration::from_millis(20);

    /// Packets of these lengths leave at these times, in milliseconds; those up to `widest` are
    /// acknowledged after a round trip. Returns when the sender reports them overdue.
    fn overdue(packets: &[(u64, u64)], widest: u64, rtt: Duration) -> Vec<u64> {
        let (start, mut known) = (Instant::now(), Unacknowledged::default());
        let rtt_ms = u64::try_from(rtt.as_millis()).unwrap();
        let sent = packets.iter().map(|(at, bytes)| (*at, 1, *bytes));
        let passing = packets.iter().filter(|(_, bytes)| *bytes <= widest);
        let answers = passing.map(|(at, bytes)| (at + rtt_ms, 0, *bytes));
        let mut all: Vec<_> = sent.chain(answers).collect();
        all.sort_unstable();
        let overdue = all.into_iter().filter(|(at, is_sent, bytes)| match is_sent {
            0 => {
                known.acknowledged(*bytes);
                false
            }
            _ => known.sent(*bytes, rtt, start + Duration::from_millis(*at)),
        });
        overdue.map(|(at, ..)| at).collect()
    }

    #[test]
    fn long_packets_that_are_repeated_without_acknowledgement_are_overdue() {
        // QUIC's probes, each after twice the time of the one before, and short packets between.
        let lost = [0, 60, 180, 420, 900, 1860, 3780].map(|at| (at, 1200));
        let short = (0..40).map(|at| (at * 100 + 5, 90));
        let all: Vec<_> = lost.into_iter().chain(short).collect();
        assert_eq!(overdue(&all, 1172, RTT), [900, 1860, 3780]);
        assert_eq!(overdue(&all, 1200, RTT), []);
        // The black hole may start at any size, and packets may have any length.
        let lost: Vec<_> = all.iter().map(|(at, bytes)| (*at, bytes * 3 / 4)).collect();
        assert_eq!(overdue(&lost, 800, RTT), [900, 1860, 3780]);
    }

    #[test]
    fn a_transfer_that_runs_into_a_hole_is_overdue_though_its_short_ends_pass() {
        // Batches, whose last packets are short, and what was in flight before.
        let before = (0..100).map(|at| (at * 10, 1200));
        let known_before = overdue(&before.clone().collect::<Vec<_>>(), 1200, RTT);
        assert_eq!(known_before, []);
        let after = (100..300).flat_map(|at| [(at * 10, 9600), (at * 10, 400)]);
        let all: Vec<_> = before.chain(after).collect();
        // All of the first second are acknowledged by 1010 ms.
        assert_eq!(overdue(&all, 1200, RTT), [1510, 2010, 2510]);
    }

    #[test]
    fn a_long_path_is_waited_for_and_what_was_given_up_is_forgotten() {
        let slow = Duration::from_millis(600);
        let lost = [0, 900, 1700, 1900].map(|at| (at, 1200));
        assert_eq!(overdue(&lost, 1172, slow), [1900]);
        let later = [(0, 1200), (60_000, 1200), (60_100, 1200)];
        assert_eq!(overdue(&later, 1172, RTT), []);
        // Discovery of a larger MTU and jumbo frames prove nothing relevant.
        let jumbo = [(0, 8900), (60, 1200), (600, 1200)];
        assert_eq!(overdue(&jumbo, 1200, RTT), []);
    }
}
