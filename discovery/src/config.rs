//! The settings of discovery, with the reason for each default.
//!
//! [`DiscoveryConfig::sanitized`] forces every value into a range in which the protocol works, so
//! that the rest of the crate needs no checks.

use std::time::Duration;

use meshport_config::{DiscoverySettings, ServiceName};

use crate::verify::Memo;

/// Settings of one node's discovery. All nodes of a mesh should use the same values, but nothing
/// breaks if they differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoveryConfig {
    /// How often each of the two neighbours in this node's site is probed, by this node or by the
    /// neighbour; a random member is probed half as often. With 1 s a crash is noticed within that
    /// time and seven quick probes, regardless of the size of the mesh.
    pub probe_interval: Duration,
    /// How long a direct answer may take before others are asked to probe too. 400 ms is above
    /// every land route, so indirect probes are the exception.
    pub probe_timeout: Duration,
    /// How many others are asked to probe.
    pub indirect_probes: u8,
    /// How long a suspect has to refute. 3 s: three direct notices and several rounds of gossip. A
    /// neighbour in this node's site gets half.
    pub suspicion: Duration,
    /// Interval of gossip about membership news and rumours, while there are any.
    pub gossip_interval: Duration,
    /// Number of random members that receive each round of gossip.
    pub gossip_fanout: u8,
    /// How often the directory is compared with that of a random member. 10 s: a comparison of
    /// equal directories costs one packet of a dozen bytes.
    pub sync_interval: Duration,
    /// Probe interval of a path with sessions.
    pub path_probe_active: Duration,
    /// Probe interval of a path to any other origin.
    pub path_probe_idle: Duration,
    /// Extra time for the first packet to a peer, since it needs a WireGuard session first: one
    /// lost initiation, repeated after a second, and a round trip.
    pub handshake_allowance: Duration,
    /// First pause between announcements to a seed that is not a member.
    pub announce_first: Duration,
    /// Longest pause between these announcements, which never end.
    pub announce_longest: Duration,
    /// How long a member that is down or has left stays in the directory.
    pub forget_after: Duration,
    /// The shortest time between two versions of this node's record that carry no urgent news.
    pub publish_interval: Duration,
}

/// The initial parameters of a node's discovery: settings, and parameters that users do not set.
#[derive(Debug, Clone, Default)]
pub struct Setup {
    /// The settings.
    pub config: DiscoveryConfig,
    /// Makes this node a leaf that wants the origins of these services, at most
    /// [`crate::MAX_ASKED_SERVICES`]: it asks members and takes no part in gossip. `None`: a
    /// member.
    pub leaf_of: Option<Vec<ServiceName>>,
    /// Cache of data verified by other nodes of this process, for simulations of many nodes in one
    /// process. `None`: verify everything.
    pub memo: Option<Memo>,
}

impl From<DiscoveryConfig> for Setup {
    /// A member that verifies everything.
    fn from(config: DiscoveryConfig) -> Self {
        Self { config, ..Self::default() }
    }
}

impl Default for DiscoveryConfig {
    fn default() -> Self {
        Self {
            probe_interval: Duration::from_secs(1),
            probe_timeout: Duration::from_millis(400),
            indirect_probes: 3,
            suspicion: Duration::from_secs(3),
            gossip_interval: Duration::from_millis(200),
            gossip_fanout: 3,
            sync_interval: Duration::from_secs(10),
            path_probe_active: Duration::from_millis(500),
            path_probe_idle: Duration::from_secs(5),
            handshake_allowance: Duration::from_millis(1200),
            announce_first: Duration::from_secs(1),
            announce_longest: Duration::from_secs(30),
            forget_after: Duration::from_secs(24 * 3600),
            publish_interval: Duration::from_secs(1),
        }
    }
}

impl From<&DiscoverySettings> for DiscoveryConfig {
    /// The values of the settings file, and the defaults for the rest.
    fn from(settings: &DiscoverySettings) -> Self {
        Self {
            probe_interval: settings.probe_interval,
            probe_timeout: settings.probe_timeout,
            suspicion: settings.suspicion,
            path_probe_active: settings.path_probe_active,
            path_probe_idle: settings.path_probe_idle,
            sync_interval: settings.sync_interval,
            ..Self::default()
        }
    }
}

impl DiscoveryConfig {
    /// The same settings with every value forced into its working range.
    #[must_use]
    pub fn sanitized(self) -> Self {
        let ms = Duration::from_millis;
        let probe_interval = self.probe_interval.clamp(ms(100), ms(60_000));
        let announce_first = self.announce_first.clamp(ms(100), ms(60_000));
        Self {
            probe_interval,
            probe_timeout: self.probe_timeout.clamp(ms(20), probe_interval * 2 / 3),
            indirect_probes: self.indirect_probes.clamp(1, 8),
            suspicion: self.suspicion.clamp(ms(300), ms(120_000)),
            gossip_interval: self.gossip_interval.clamp(ms(20), ms(10_000)),
            gossip_fanout: self.gossip_fanout.clamp(1, 8),
            sync_interval: self.sync_interval.clamp(ms(500), ms(600_000)),
            path_probe_active: self.path_probe_active.clamp(ms(50), ms(60_000)),
            path_probe_idle: self.path_probe_idle.clamp(ms(100), ms(600_000)),
            handshake_allowance: self.handshake_allowance.clamp(ms(0), ms(10_000)),
            announce_first,
            announce_longest: self.announce_longest.clamp(announce_first, ms(600_000)),
            forget_after: self.forget_after.clamp(ms(10_000), ms(30 * 24 * 3_600_000)),
            publish_interval: self.publish_interval.clamp(ms(100), ms(600_000)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_in_range() {
        assert_eq!(DiscoveryConfig::default().sanitized(), DiscoveryConfig::default());
    }

    #[test]
    fn nonsense_is_forced_into_range() {
        let nonsense = DiscoveryConfig {
            probe_interval: Duration::ZERO,
            probe_timeout: Duration::MAX,
            indirect_probes: 0,
            announce_longest: Duration::ZERO,
            ..DiscoveryConfig::default()
        };
        let sane = nonsense.sanitized();
        assert!(sane.probe_timeout < sane.probe_interval);
        assert!(sane.indirect_probes >= 1);
        assert!(sane.announce_longest >= sane.announce_first);
    }
}
