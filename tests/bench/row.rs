//! A measurement, and the summary of several.

use std::time::Duration;

use serde::Serialize;

use crate::contenders::Contender;
use crate::load::{Job, Seen, Work};

/// A measurement as in the JSON file; fields that do not apply are `null`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    #[serde(flatten)]
    pub(crate) case: Case,
    /// Megabytes (10^6) per second of all streams.
    pub(crate) mb_per_s: Option<f64>,
    /// Processor seconds of all processes of the contender, per GiB (2^30) carried.
    pub(crate) cpu_s_per_gib: Option<f64>,
    /// Processor microseconds of all its processes, per small exchange or new connection.
    pub(crate) cpu_us_each: Option<f64>,
    /// The median of small exchanges, or of new connections to the first byte.
    pub(crate) p50_us: Option<u64>,
    pub(crate) p99_us: Option<u64>,
    /// Small exchanges, or new connections, per second.
    pub(crate) per_s: Option<f64>,
    /// Bytes of the slowest stream divided by those of the fastest.
    pub(crate) fairness: Option<f64>,
    /// Peak resident memory of all its processes; with idle sessions, that with all of them open.
    pub(crate) rss_mib: f64,
    /// Growth of the process that grew most, per idle session.
    pub(crate) kib_per_session: Option<f64>,
    /// New connections that failed.
    pub(crate) failed: u64,
}

/// The workload, the contender, and the parameters.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Case {
    pub(crate) workload: Work,
    pub(crate) contender: &'static str,
    /// What the contender's program says of its version, where that decides.
    pub(crate) version: Option<&'static str>,
    pub(crate) mtu: u32,
    /// `up` or `down`, for bulk.
    pub(crate) direction: Option<&'static str>,
    pub(crate) connections: usize,
    pub(crate) round: u32,
}

/// The contender, the MTU and the round of a measurement.
#[derive(Clone, Copy)]
pub(crate) struct Subject {
    pub(crate) contender: Contender,
    pub(crate) mtu: u32,
    pub(crate) round: u32,
}

#[expect(clippy::cast_precision_loss, reason = "counts of one run are far below 2^52")]
pub(crate) fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

impl Row {
    /// The row for the results of the clients.
    pub(crate) fn of(
        Subject { contender, mtu, round }: Subject,
        job: Job,
        seen: &Seen,
        used: Duration,
        rss_kib: u64,
    ) -> Self {
        const GIB: u64 = 1 << 30;
        let is_bulk = matches!(job.work, Work::Upload | Work::Download);
        let has_cost = contender != Contender::Direct;
        let bulk = |value: f64| is_bulk.then_some(value);
        let count = seen.micros.len() as u64;
        let small = |value: f64| (count > 0).then_some(value);
        let rank = |percent: usize| {
            let at = (seen.micros.len() * percent / 100).min(seen.micros.len().saturating_sub(1));
            seen.micros.get(at).copied()
        };
        let micros = u64::try_from(used.as_micros()).unwrap_or(u64::MAX);
        let case = Case {
            workload: job.work,
            contender: contender.name(),
            version: contender.version(),
            mtu,
            direction: match job.work {
                Work::Upload => Some("up"),
                Work::Download => Some("down"),
                _ => None,
            },
            connections: job.connections,
            round,
        };
        Self {
            case,
            mb_per_s: bulk(ratio(seen.bytes, 1_000_000) / seen.seconds.max(1e-9)),
            cpu_s_per_gib: bulk(used.as_secs_f64() / ratio(seen.bytes, GIB).max(1e-9))
                .filter(|_| has_cost),
            // With bulk streams running, most of the time is theirs.
            cpu_us_each: small(ratio(micros, count))
                .filter(|_| has_cost && job.work != Work::RequestBesideBulk),
            p50_us: rank(50),
            p99_us: rank(99),
            per_s: small(ratio(count, 1) / seen.seconds.max(1e-9)),
            fairness: seen.fairness.filter(|_| job.connections > 1),
            rss_mib: ratio(rss_kib, 1024),
            kib_per_session: None,
            failed: seen.failed,
        }
    }

    /// Workload, connections and MTU.
    pub(crate) fn kind(&self) -> (Work, usize, u32) {
        (self.case.workload, self.case.connections, self.case.mtu)
    }
}

/// The median of a value in some rows; none if no row has it.
pub(crate) fn median<'a>(
    rows: impl Iterator<Item = &'a Row>,
    value: impl Fn(&Row) -> Option<f64>,
) -> Option<f64> {
    median_of(rows.filter_map(value).collect())
}

/// The median; none of nothing.
pub(crate) fn median_of(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(work: Work, connections: usize) -> Job {
        Job { at: ([127, 0, 0, 1], 1).into(), work, connections, millis: 1000, bytes: 0 }
    }

    #[test]
    fn processor_time_is_per_gib_carried() {
        let seen = Seen { bytes: 1 << 29, seconds: 2.0, fairness: Some(0.5), ..Seen::default() };
        let used = Duration::from_millis(1500);
        let subject = Subject { contender: Contender::Meshport, mtu: 1500, round: 1 };
        let row = Row::of(subject, job(Work::Upload, 8), &seen, used, 2048);
        assert!((row.cpu_s_per_gib.expect("bulk") - 3.0).abs() < 1e-9);
        assert!((row.mb_per_s.expect("bulk") - 268.435).abs() < 0.01);
        assert_eq!((row.case.direction, row.fairness, row.p50_us), (Some("up"), Some(0.5), None));
        assert!((row.rss_mib - 2.0).abs() < 1e-9);
        let direct = Subject { contender: Contender::Direct, ..subject };
        let row = Row::of(direct, job(Work::Upload, 1), &seen, used, 0);
        assert_eq!((row.cpu_s_per_gib, row.fairness), (None, None));
    }

    #[test]
    fn small_exchanges_have_ranks() {
        let seen = Seen { micros: (1..=200).collect(), seconds: 2.0, ..Seen::default() };
        let subject = Subject { contender: Contender::Haproxy, mtu: 1500, round: 1 };
        let used = Duration::from_millis(2);
        let row = Row::of(subject, job(Work::Request, 1), &seen, used, 0);
        assert_eq!((row.p50_us, row.p99_us), (Some(101), Some(199)));
        assert!((row.cpu_us_each.expect("small") - 10.0).abs() < 1e-9);
        assert!((row.per_s.expect("small") - 100.0).abs() < 1e-9);
        assert_eq!(row.mb_per_s, None);
    }
}
