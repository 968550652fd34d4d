//! Reads the counters, as [`crate::admin::stats`].

use std::sync::atomic::Ordering;
use std::time::Duration;

use meshport_config::ServiceName;
use meshport_config::counters::Counter;
use meshport_core::ledger::Side;

use super::{Reporter, in_ms};
use crate::admin::metrics::Distribution;
use crate::admin::stats::{StatsKind, StatsRow};
use crate::expose::ExposedCounts;
use crate::sessions::exposed::{ExposeCount, is_refusal};
use crate::sessions::origins::{OriginTotals, Whose};
use crate::sessions::totals::{SessionCount, Totals};

/// The reported percentile of connect times.
const MOST_PERCENT: u64 = 95;

impl Reporter<'_> {
    /// Listeners first, then each service with its origins.
    pub(crate) fn stats(&self) -> Vec<StatsRow> {
        let mut rows: Vec<StatsRow> =
            self.state.process.exposures.counts().iter().map(of_listener).collect();
        for service in self.core.services() {
            let totals = self.state.sessions.totals(service);
            let open = self.state.sessions.count_side(service, Side::Client);
            rows.push(of_service(service, &totals, open));
            let origins = totals.origins.all();
            let rows_of = origins.iter().map(|(whose, it)| self.of_origin(service, *whose, it));
            rows.extend(rows_of);
        }
        rows
    }

    fn of_origin(&self, service: &ServiceName, whose: Whose, totals: &OriginTotals) -> StatsRow {
        let (name, site) = match whose {
            Whose::Node(node) if node == self.state.identity.me.node => {
                (self.state.identity.me.name.to_string(), Some(self.state.identity.me.site.clone()))
            }
            Whose::Node(node) => {
                let entry = self.core.discovery().directory().get(&node);
                let site = entry.map(|entry| entry.credential.site.clone());
                (self.name(&node), site)
            }
            Whose::Outside(address) => (address.to_string(), None),
            Whose::Others => ("others".to_owned(), None),
        };
        let route = self.core.route(service).cloned().unwrap_or_default();
        let lines = route.candidates.iter().map(|it| it.origin.line);
        let own = lines.filter(|line| Whose::from(line) == whose);
        let open =
            own.map(|line| self.state.sessions.count_line(service, Side::Client, line)).sum();
        let times = totals.connects.read();
        StatsRow {
            kind: StatsKind::Origin,
            name,
            service: Some(service.clone()),
            site,
            sessions_open: open,
            sessions_total: times.counts.iter().sum(),
            errors: totals.failed(),
            bytes_up: totals.up(),
            bytes_down: totals.down(),
            connect_mean_ms: mean_ms(&times),
            connect_p95_ms: most_ms(&times),
        }
    }
}

fn of_listener(it: &ExposedCounts) -> StatsRow {
    let counts = &it.totals.counts;
    let refused = ExposeCount::ALL.iter().filter(|count| is_refusal(**count));
    let refused: u64 = refused.map(|count| counts.get(*count)).sum();
    let times = it.totals.connects.read();
    StatsRow {
        kind: StatsKind::Listener,
        name: it.name.to_string(),
        service: None,
        site: None,
        sessions_open: it.open,
        sessions_total: times.counts.iter().sum(),
        errors: refused + it.totals.failed.load(Ordering::Relaxed),
        bytes_up: counts.get(ExposeCount::Up),
        bytes_down: counts.get(ExposeCount::Down),
        connect_mean_ms: mean_ms(&times),
        connect_p95_ms: most_ms(&times),
    }
}

fn of_service(service: &ServiceName, totals: &Totals, open: u64) -> StatsRow {
    let errors = [
        SessionCount::Failed,
        SessionCount::OverLimit,
        SessionCount::OverShare,
        SessionCount::OverPace,
    ];
    let times = totals.connects.read();
    StatsRow {
        kind: StatsKind::Service,
        name: service.to_string(),
        service: None,
        site: None,
        sessions_open: open,
        sessions_total: totals.counts.get(SessionCount::Connected),
        errors: errors.iter().map(|count| totals.counts.get(*count)).sum(),
        bytes_up: totals.counts.get(SessionCount::UpBytes),
        bytes_down: totals.counts.get(SessionCount::DownBytes),
        connect_mean_ms: mean_ms(&times),
        connect_p95_ms: most_ms(&times),
    }
}

fn mean_ms(times: &Distribution) -> Option<f64> {
    let count: u64 = times.counts.iter().sum();
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    (count > 0).then(|| in_ms(times.sum / count))
}

/// The first bucket bound at or above the percentile.
fn most_ms(times: &Distribution) -> Option<f64> {
    let count: u64 = times.counts.iter().sum();
    let wanted = count.checked_mul(MOST_PERCENT)?.div_ceil(100);
    let mut passed = 0;
    let holds = |(held, bound): (&u64, &Duration)| {
        passed += held;
        (count > 0 && passed >= wanted).then(|| in_ms(*bound))
    };
    times.counts.iter().zip(times.bounds).find_map(holds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sessions::durations::{CONNECT_BOUNDS, Durations};

    #[test]
    fn times_are_a_mean_and_a_bound_for_most() {
        let durations = Durations::new(&CONNECT_BOUNDS);
        assert_eq!((mean_ms(&durations.read()), most_ms(&durations.read())), (None, None));
        for _ in 0..95 {
            durations.note(Duration::from_millis(2));
        }
        for _ in 0..5 {
            durations.note(Duration::from_secs(9));
        }
        let read = durations.read();
        assert_eq!((mean_ms(&read), most_ms(&read)), (Some(451.9), Some(2.5)));
        durations.note(Duration::from_secs(9));
        assert_eq!(most_ms(&durations.read()), None);
    }
}
