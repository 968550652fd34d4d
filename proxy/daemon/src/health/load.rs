//! Counts the connections that this node opens, to tell why an instance is slow.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use meshport_config::ServiceName;

/// Period over which connections are counted.
const PERIOD: Duration = Duration::from_secs(1);

/// The counts of all services of this node; bounded by these.
#[derive(Debug, Default)]
pub(crate) struct Load {
    services: BTreeMap<ServiceName, Count>,
}

#[derive(Debug)]
struct Count {
    begun: Instant,
    /// The total when the period began.
    mark: u64,
    /// The count of the period before.
    before: u64,
}

impl Load {
    /// Handles a service's total number of connections; returns how many came within about one
    /// second, in the current or the previous period.
    pub(crate) fn look(&mut self, service: &ServiceName, total: u64, now: Instant) -> u64 {
        let fresh = || Count { begun: now, mark: total, before: 0 };
        let count = self.services.entry(service.clone()).or_insert_with(fresh);
        let since = total.saturating_sub(count.mark);
        let dials = since.max(count.before);
        if now.saturating_duration_since(count.begun) >= PERIOD {
            *count = Count { begun: now, mark: total, before: since };
        }
        dials
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn a_burst_counts_at_once_and_for_a_period_after() {
        let (mut load, now) = (Load::default(), clock::now());
        let service: ServiceName = "kube-apiserver".parse().expect("a name");
        assert_eq!(load.look(&service, 1000, now), 0, "what was before counts for nothing");
        assert_eq!(load.look(&service, 1300, now + PERIOD / 2), 300);
        assert_eq!(load.look(&service, 1301, now + PERIOD), 301);
        assert_eq!(load.look(&service, 1301, now + PERIOD * 3 / 2), 301);
        load.look(&service, 1301, now + PERIOD * 2);
        assert_eq!(load.look(&service, 1301, now + PERIOD * 2), 0);
    }
}
