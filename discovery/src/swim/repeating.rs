//! How often membership news is repeated, and the protocol settings that follow.

use std::num::{NonZeroU8, NonZeroUsize};
use std::time::Duration;

use super::{Config, ENVELOPE, IDS, PeriodicParams};
use crate::config::DiscoveryConfig;
use crate::wire::MAX_DATAGRAM;

/// Minimum and maximum number of times each member sends others the news of a newcomer. An
/// estimate: if all members send something k times to uniformly drawn members, about one in e to
/// the power of k misses it (1 in 400 for 6), and learns it when directories are compared. Loss and
/// uneven draws increase that.
const REPETITIONS: (u8, u8) = (6, 24);
/// Factor for news that a member is suspected or down, or that a suspect is alive. A member that
/// misses this keeps talking to a dead member, or omits a living one. With 12 instead of 6 the
/// estimate is 1 in 160,000. With 9 (1 in 8,000) and loss, three of a thousand had not heard of a
/// death when it was no longer sent.
pub(super) const MORE_OFTEN: u8 = 6;
/// With this many news items waiting, none is sent more often: a whole site has gone or returned,
/// and directory comparisons deliver what a member misses.
pub(super) const MANY_NEWS: usize = 8;
/// With this many news items waiting, a few full datagrams, newcomers announced by others are not
/// added; with the second number, nothing from others is. The protocol goes through all of them for
/// each packet. In a mass join all members compare directories anyway.
pub(super) const MAX_NEWCOMERS: usize = 64;
pub(super) const MAX_NEWS: usize = 512;
/// Probes of a neighbour for one of a random member. Neighbours find a crash; random probes find
/// only a node whose neighbours died with it, for which paths to origins do not wait. Each goes to
/// another member, and most of its cost is the new tunnel.
const RANDOM_PROBE_RATIO: u32 = 2;
/// How often a random member is asked for other members, and one that is down is asked whether it
/// is back.
const ANNOUNCE_EVERY: Duration = Duration::from_secs(60);
const ANNOUNCE_DOWN_EVERY: Duration = Duration::from_secs(10);

/// How often the news of a newcomer is sent among this many members. More often in larger meshes,
/// so that the number of members that miss it stays about the same.
pub(super) fn repetitions(members: usize) -> u8 {
    let doublings = u8::try_from(members.max(1).ilog2()).unwrap_or(u8::MAX);
    (doublings * 3 / 4).clamp(REPETITIONS.0, REPETITIONS.1)
}

/// The protocol's own settings.
pub(super) fn protocol_config(config: &DiscoveryConfig, repetitions: u8) -> Config {
    let every = |frequency, count: u8| {
        let num_members = NonZeroUsize::new(usize::from(count)).unwrap_or(NonZeroUsize::MIN);
        Some(PeriodicParams { frequency, num_members })
    };
    Config {
        probe_period: config.probe_interval * RANDOM_PROBE_RATIO,
        probe_rtt: config.probe_timeout,
        num_indirect_probes: NonZeroUsize::new(usize::from(config.indirect_probes))
            .unwrap_or(NonZeroUsize::MIN),
        max_transmissions: NonZeroU8::new(repetitions).unwrap_or(NonZeroU8::MIN),
        suspect_to_down_after: config.suspicion,
        // The directory decides when to forget.
        remove_down_after: None,
        max_packet_size: NonZeroUsize::new(MAX_DATAGRAM - ENVELOPE + IDS)
            .unwrap_or(NonZeroUsize::MIN),
        notify_down_members: true,
        periodic_announce: every(ANNOUNCE_EVERY, 1),
        periodic_announce_to_down_members: every(ANNOUNCE_DOWN_EVERY, 1),
        periodic_gossip: every(config.gossip_interval, config.gossip_fanout),
    }
}
