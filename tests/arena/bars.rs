//! The requirements that meshport must meet, and the verdict over all runs.
//!
//! A bar is met when the worst of the runs is within its limit. The best rival is the one with the
//! best median; which is better compares medians.

use crate::contenders::{ALL, NEAREST, SPREAD};
use crate::faults::FLAPS;
use crate::score::Row;

/// A figure that a run did not produce.
const NEVER: f64 = f64::INFINITY;

/// A requirement.
pub(crate) struct Bar {
    pub(crate) fault: &'static str,
    pub(crate) what: &'static str,
    unit: &'static str,
    /// The measured value; lower is better, [`NEVER`] is worst.
    measure: fn(&Row) -> f64,
    pub(crate) limit: f64,
    /// The service of meshport that it is asked of.
    ours: &'static str,
    /// Whether a rival may lose no connection in that fault to compete: one that does not leave a
    /// dead upstream is quick to use it again, and what it lost is not among its slow ones.
    clean: bool,
    /// Whether rivals are measured by it too.
    shared: bool,
}

impl Bar {
    /// The limit on a machine that is busy with other things, where a time may be three times as
    /// long, and a connection that another origin wins counts as a route change there and back.
    /// What must not happen at all stays forbidden: its limit is 0.
    fn loose_limit(&self) -> f64 {
        3.0 * self.limit
    }
}

/// A line of the verdict.
pub(crate) struct Verdict {
    pub(crate) bar: Bar,
    pub(crate) median: f64,
    pub(crate) worst: f64,
    pub(crate) rival: Option<(&'static str, f64)>,
}

impl Verdict {
    /// Whether every run is within the limit.
    pub(crate) fn met(&self) -> bool {
        self.worst <= self.bar.limit
    }

    /// The same on a machine that is busy with other things.
    pub(crate) fn met_loosely(&self) -> bool {
        self.worst <= self.bar.loose_limit()
    }

    /// How the median compares with the best rival's.
    pub(crate) fn against_rival(&self) -> &'static str {
        match self.rival {
            None if !self.bar.shared => "-",
            None => "no rival",
            Some((_, rival)) if self.median < rival => "better",
            Some((_, rival)) if self.show(self.median) == self.show(rival) => "equal",
            Some(_) => "WORSE",
        }
    }

    /// A figure of this bar with its unit.
    pub(crate) fn show(&self, value: f64) -> String {
        show(value, self.bar.unit)
    }
}

fn show(value: f64, unit: &str) -> String {
    match unit {
        _ if value == NEVER => "never".to_owned(),
        "" => format!("{value:.0}"),
        "s" => format!("{value:.1} s"),
        unit => format!("{value:.0} {unit}"),
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of one run are far below 2^52")]
fn count(value: u64) -> f64 {
    value as f64
}

fn time(value: Option<f64>) -> f64 {
    value.unwrap_or(NEVER)
}

/// Time of the last disturbed connection; 0 if none was disturbed.
fn disturbed(row: &Row) -> f64 {
    row.connects.disturbed_until_s.unwrap_or(0.0)
}

/// Time at which the last held connection to the victim ended. Contenders without such connections
/// have none to cut, so they do not compete.
fn cut(row: &Row) -> f64 {
    time(row.held.victim_held_cut_s)
}

fn touched(row: &Row) -> f64 {
    count(row.held.victim_held_ended + row.held.healthy_held_cut)
}

fn failed(row: &Row) -> f64 {
    count(row.connects.failed)
}

fn healthy_cut(row: &Row) -> f64 {
    count(row.held.healthy_held_cut)
}

fn worst(row: &Row) -> f64 {
    time(row.connects.worst_connect_ms)
}

fn extra(row: &Row) -> f64 {
    time(row.connects.extra_connect_ms)
}

fn back(row: &Row) -> f64 {
    time(row.rotation.back_in_use_s)
}

/// Time of the last new connection to a draining upstream; 0 if there was none. A contender that
/// does not use the upstream while it is healthy has nothing to show either.
fn late_news(row: &Row) -> f64 {
    row.rotation.back_in_use_s.map_or(NEVER, |_| row.rotation.last_new_to_victim_s.unwrap_or(0.0))
}

impl Bar {
    fn new(
        fault: &'static str,
        what: &'static str,
        unit: &'static str,
        measure: fn(&Row) -> f64,
        limit: f64,
    ) -> Self {
        Self { fault, what, unit, measure, limit, ours: NEAREST, clean: false, shared: true }
    }

    /// Measures the service that holds connections on every origin.
    fn spread(self) -> Self {
        Self { ours: SPREAD, ..self }
    }

    fn clean(self) -> Self {
        Self { clean: true, ..self }
    }

    /// Does not compare with rivals.
    fn own(self) -> Self {
        Self { shared: false, ..self }
    }
}

/// All requirements.
pub(crate) fn all() -> Vec<Bar> {
    [of_the_dead(), of_the_living(), of_the_network()].into_iter().flatten().collect()
}

/// An upstream is dead, in one way or another.
fn of_the_dead() -> Vec<Bar> {
    let (bar, clean, spread) = (Bar::new, Bar::clean, Bar::spread);
    vec![
        bar("kill", "failed connections", "", failed, 0.0),
        // Over its own usual time, which is longest for a tool that goes far without need.
        bar("kill", "worst extra connect time", "ms", extra, 50.0).own(),
        clean(bar("kill", "worst connect time", "ms", worst, 100.0)),
        bar("kill", "held ones cut within", "s", cut, 1.0),
        spread(bar("kill", "healthy held ones cut", "", healthy_cut, 0.0)),
        clean(bar("kill", "victim used again after", "s", back, 15.0)),
        bar("kill", "failed after recovery", "", |row| count(row.connects.failed_after_heal), 0.0),
        bar("blackhole", "failed connections", "", failed, 0.0),
        clean(bar("blackhole", "worst connect time", "ms", worst, 1_000.0)),
        bar("blackhole", "held ones cut within", "s", cut, 3.0),
        spread(bar("blackhole", "failed connections (spread)", "", failed, 0.0)),
        spread(bar("blackhole", "healthy held ones cut", "", healthy_cut, 0.0)),
        clean(bar("blackhole", "victim used again after", "s", back, 15.0)),
        bar("hang", "failed connections", "", failed, 0.0),
        clean(bar("hang", "worst connect time", "ms", worst, 1_500.0)),
        clean(bar("hang", "gone from rotation within", "s", disturbed, 4.0)),
        bar("hang", "held ones cut within", "s", cut, 4.0),
        spread(bar("hang", "healthy held ones cut", "", healthy_cut, 0.0)),
        clean(bar("hang", "victim used again after", "s", back, 15.0)),
    ]
}

/// Upstreams that serve, though they refuse or say they are not ready; and none at all.
fn of_the_living() -> Vec<Bar> {
    let bar = Bar::new;
    vec![
        bar("unready", "failed connections", "", failed, 0.0),
        bar("unready", "last new one there at", "s", late_news, 2.5),
        bar("unready", "held ones touched", "", touched, 0.0),
        bar("terminate", "failed connections", "", failed, 0.0),
        bar("terminate", "held ones cut by us", "", touched, 0.0),
        bar("all-unready", "failed connections", "", failed, 0.0),
        bar("all-unready", "held ones cut", "", touched, 0.0),
        // Away and back once is not flapping, though there is no need for it either.
        bar("all-unready", "route changes", "", |row| count(row.rotation.route_changes), 2.0),
        bar("all-down-2s", "failed connections", "", failed, 0.0),
        bar(
            "all-down-60s",
            "port closed within",
            "s",
            |row| time(row.refusals.refused_within_s),
            4.0,
        ),
        bar("all-down-60s", "slowest refusal", "ms", |row| time(row.refusals.refused_ms), 5.0),
        bar(
            "all-down-60s",
            "first success after",
            "s",
            |row| time(row.rotation.first_success_s),
            1.0,
        ),
        bar("flapping", "failed connections", "", failed, 0.0),
        bar(
            "flapping",
            "route changes",
            "",
            |row| count(row.rotation.route_changes),
            f64::from(FLAPS),
        ),
    ]
}

fn of_the_network() -> Vec<Bar> {
    let bar = Bar::new;
    vec![
        bar("loss", "failed connections", "", failed, 0.0),
        bar("loss", "home again after", "s", |row| time(row.rotation.home_s), 20.0),
        bar(
            "partition",
            "served through the relay after",
            "s",
            |row| time(row.connects.first_answer_s),
            4.0,
        ),
        bar("partition", "failed connections", "", failed, 0.0),
        bar("partition", "direct again after", "s", |row| time(row.connects.usual_s), 20.0),
    ]
}

/// The verdict on every bar for which there are rows.
pub(crate) fn judge(rows: &[Row]) -> Vec<Verdict> {
    let verdicts = all().into_iter().filter_map(|bar| {
        let values = |balancer: &str| {
            let own = rows.iter().filter(|row| row.fault == bar.fault && row.balancer == balancer);
            let lost = balancer != bar.ours && bar.clean;
            let value = |row: &Row| {
                if lost && row.connects.failed > 0 { NEVER } else { (bar.measure)(row) }
            };
            let mut values: Vec<f64> = own.map(value).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let ours = values(bar.ours);
        let worst = *ours.last()?;
        let rivals = ALL.iter().filter(|contender| bar.shared && !contender.is_ours());
        let rivals = rivals.filter_map(|rival| Some((rival.name, median(&values(rival.name))?)));
        let rival = rivals
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .map(|(name, value)| if value == NEVER { ("none", value) } else { (name, value) });
        Some(Verdict { median: median(&ours)?, worst, rival, bar })
    });
    verdicts.collect()
}

fn median(sorted: &[f64]) -> Option<f64> {
    sorted.get(sorted.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::score::{Connects, HeldFigures};

    fn row(balancer: &str, failed: u64, cut: Option<f64>) -> Row {
        Row {
            fault: "kill".to_owned(),
            balancer: balancer.to_owned(),
            connects: Connects { failed, ..Connects::default() },
            held: HeldFigures { victim_held_cut_s: cut, ..HeldFigures::default() },
            ..Row::default()
        }
    }

    #[test]
    fn the_worst_run_decides_and_the_best_rival_is_named() {
        let rows = [
            row(NEAREST, 0, Some(0.2)),
            row(NEAREST, 0, Some(0.3)),
            row(NEAREST, 1, None),
            row("kubespray-nginx", 0, Some(0.1)),
            row("k0s-envoy", 7, Some(0.4)),
        ];
        let verdicts = judge(&rows);
        let on = |what: &str| verdicts.iter().find(|it| it.bar.what == what).expect("a verdict");
        let failed = on("failed connections");
        assert!(!failed.met() && failed.median == 0.0 && failed.worst == 1.0);
        assert_eq!(failed.rival, Some(("kubespray-nginx", 0.0)));
        assert_eq!(failed.against_rival(), "equal");
        let cut = on("held ones cut within");
        assert_eq!((cut.show(cut.median), cut.show(cut.worst)), ("0.3 s".into(), "never".into()));
        assert_eq!(cut.against_rival(), "WORSE");
        assert!(verdicts.iter().all(|verdict| verdict.bar.fault == "kill"));
    }

    #[test]
    fn every_bar_is_about_a_fault_of_the_schedule() {
        let faults = crate::faults::all();
        for bar in all() {
            assert!(faults.iter().any(|fault| fault.name == bar.fault), "{}", bar.fault);
        }
    }
}
