//! Turns the records of clients into the figures of the tables. Pure: records in, a row out.
//!
//! The fault begins at `fault` and is in force at `struck`; connections that begin in between are
//! in progress when it strikes, like those just before it, and count as neither. `heal` is when
//! healing began and `healed` when it was done (a process that is started takes a moment); `end`
//! closes the run. A figure that does not exist is `None`, `null` in JSON.

use std::time::Duration;

use serde::Serialize;

use crate::record::{Attempt, Failure, Held, Record};

/// A new connection slower than before the fault by more than this counts as disturbed by it.
const DISTURBED: Duration = Duration::from_millis(100);
/// A new connection slower than before the fault by more than this does not go the usual way.
const UNUSUAL: Duration = Duration::from_millis(30);
/// This many new connections after the first must use the victim until it counts as home.
const HOME: usize = 10;
/// How long after a drain begins new connections there still count as on time.
const LEAVE: Duration = Duration::from_millis(2_500);

/// The moments of a run, since its start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moments {
    pub(crate) fault: Duration,
    pub(crate) struck: Duration,
    pub(crate) heal: Option<Duration>,
    pub(crate) healed: Option<Duration>,
    pub(crate) end: Duration,
}

/// The figures of one balancer in one run; flat in the JSON file.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Row {
    pub(crate) fault: String,
    pub(crate) balancer: String,
    pub(crate) run: u32,
    #[serde(flatten)]
    pub(crate) connects: Connects,
    #[serde(flatten)]
    pub(crate) rotation: Rotation,
    #[serde(flatten)]
    pub(crate) refusals: Refusals,
    #[serde(flatten)]
    pub(crate) held: HeldFigures,
    /// The most by which the load itself was late in the run.
    pub(crate) late_ms: f64,
}

/// Figures of new connections.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Connects {
    /// New connections begun since the fault struck, and those of them that failed.
    pub(crate) attempts: u64,
    pub(crate) failed: u64,
    /// Failed connections that began after healing.
    pub(crate) failed_after_heal: u64,
    /// Start of the last failed connection.
    pub(crate) last_failure_s: Option<f64>,
    /// Median before the fault of the time to the first byte of the answer.
    pub(crate) p50_before_ms: Option<f64>,
    /// The longest such time since the fault, of those that succeeded.
    pub(crate) worst_connect_ms: Option<f64>,
    /// The same minus the median before the fault.
    pub(crate) extra_connect_ms: Option<f64>,
    /// Time of the first answer to a connection that began after the fault.
    pub(crate) first_answer_s: Option<f64>,
    /// Start of the last new connection before healing that failed or was slow.
    pub(crate) disturbed_until_s: Option<f64>,
    /// Time from healing until no new connection is more than 30 ms slower than before the fault.
    pub(crate) usual_s: Option<f64>,
}

/// Figures on which upstream served new connections.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Rotation {
    /// Start of the last new connection before healing that a victim served.
    pub(crate) last_new_to_victim_s: Option<f64>,
    /// How many of those began later than 2.5 s after the fault.
    pub(crate) new_to_victim_late: u64,
    /// Time from healing to the first answer.
    pub(crate) first_success_s: Option<f64>,
    /// Time from healing to the first new connection that a victim serves.
    pub(crate) back_in_use_s: Option<f64>,
    /// Time from healing until victims serve every new connection for the rest of the run.
    pub(crate) home_s: Option<f64>,
    /// How often consecutive new connections were served by different upstreams.
    pub(crate) route_changes: u64,
}

/// How clients were refused where nothing could serve them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Refusals {
    /// Time from which all new connections were refused until healing, and the slowest refusal.
    pub(crate) refused_within_s: Option<f64>,
    pub(crate) refused_ms: Option<f64>,
}

/// Figures of connections that were open at the fault.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct HeldFigures {
    /// Connections held on a victim at the fault, and those of them that ended before healing.
    pub(crate) victim_held: u64,
    pub(crate) victim_held_ended: u64,
    /// Time at which the last of them ended; `None` if one stayed, or there were none.
    pub(crate) victim_held_cut_s: Option<f64>,
    /// Connections held on others at the fault, and those of them that ended before healing.
    pub(crate) healthy_held: u64,
    pub(crate) healthy_held_cut: u64,
    /// Held connections that ended after healing, whatever their age: drift if nothing else.
    pub(crate) cut_after_heal: u64,
    /// The longest time before healing for which a client that held a victim heard nothing.
    pub(crate) held_dark_s: Option<f64>,
}

/// The figures of one record, without the names of its row.
pub(crate) fn score(record: &Record, moments: Moments, victims: &[&str]) -> Row {
    let mut attempts = record.attempts.clone();
    attempts.sort_by_key(|attempt| attempt.begun);
    let fault = attempts.partition_point(|attempt| attempt.begun < moments.fault);
    let since = attempts.partition_point(|attempt| attempt.begun < moments.struck);
    let until = attempts.partition_point(|attempt| attempt.begun < moments.end);
    let before = median(attempts[..fault].iter().filter(succeeded).map(|it| it.took));
    let during = &attempts[since..until.max(since)];

    Row {
        connects: connects(during, before, moments),
        rotation: rotation(during, moments, victims),
        refusals: refusals(during, moments),
        held: held(&record.held, moments, victims),
        late_ms: millis(record.worst_late),
        ..Row::default()
    }
}

fn connects(during: &[Attempt], before: Option<Duration>, moments: Moments) -> Connects {
    let mut figures = Connects::default();
    let relative = |at: Duration| seconds(at, moments.fault);
    let well = moments.healed.unwrap_or(moments.end);
    let failed = || during.iter().filter(|attempt| attempt.outcome.is_err());
    figures.attempts = during.len() as u64;
    figures.failed = failed().count() as u64;
    figures.failed_after_heal = failed().filter(|attempt| attempt.begun >= well).count() as u64;
    figures.last_failure_s = failed().next_back().map(|attempt| relative(attempt.begun));
    let worst = during.iter().filter(succeeded).map(|attempt| attempt.took).max();
    figures.p50_before_ms = before.map(millis);
    figures.worst_connect_ms = worst.map(millis);
    figures.extra_connect_ms = worst.zip(before).map(|(worst, before)| {
        // A run in which nothing was slower than usual has no extra time.
        millis(worst.saturating_sub(before))
    });
    let answered = during.iter().filter(succeeded).map(|attempt| attempt.begun + attempt.took);
    figures.first_answer_s = answered.min().map(relative);
    let slow = before.unwrap_or_default() + DISTURBED;
    let disturbed = during
        .iter()
        .take_while(|attempt| attempt.begun < well)
        .filter(|attempt| attempt.outcome.is_err() || attempt.took > slow);
    figures.disturbed_until_s = disturbed.last().map(|attempt| relative(attempt.begun));
    let Some(healed) = moments.healed else { return figures };
    let usual = before.unwrap_or_default() + UNUSUAL;
    let after = &during[during.partition_point(|attempt| attempt.begun < healed)..];
    let is_unusual = |attempt: &Attempt| attempt.outcome.is_err() || attempt.took > usual;
    // If none is unusual, connect times were usual all along.
    figures.usual_s = match after.iter().rposition(is_unusual) {
        None => after.first().map(|_| 0.0),
        Some(last) => after.get(last + 1).map(|attempt| seconds(attempt.begun, healed)),
    };
    figures
}

fn rotation(during: &[Attempt], moments: Moments, victims: &[&str]) -> Rotation {
    let mut figures = Rotation::default();
    let by_victim = |attempt: &&Attempt| {
        attempt.outcome.as_ref().is_ok_and(|origin| victims.contains(&origin.as_str()))
    };
    let heal = moments.heal.unwrap_or(moments.end);
    // A connection that the victim answered only after healing was not routed there in time.
    let early = during.iter().filter(by_victim).filter(|it| it.begun + it.took < heal);
    let late = early.clone().filter(|it| it.begun >= moments.fault + LEAVE);
    figures.new_to_victim_late = late.count() as u64;
    figures.last_new_to_victim_s =
        early.clone().next_back().map(|it| seconds(it.begun, moments.fault));

    let origins: Vec<&String> = during.iter().filter_map(|it| it.outcome.as_ref().ok()).collect();
    figures.route_changes = origins.windows(2).filter(|pair| pair[0] != pair[1]).count() as u64;

    let Some(healed) = moments.healed else { return figures };
    let answered = during.iter().filter(succeeded).map(|it| it.begun + it.took);
    let first = answered.filter(|at| *at >= heal).min();
    figures.first_success_s = first.map(|at| seconds(at, healed));
    let after = &during[during.partition_point(|it| it.begun < healed)..];
    figures.back_in_use_s = after.iter().find(by_victim).map(|it| seconds(it.begun, healed));
    // If none went elsewhere, it was home all along.
    let away = after.iter().rposition(|it| !by_victim(&it));
    let stretch = &after[away.map_or(0, |away| away + 1)..];
    if stretch.len() > HOME {
        figures.home_s = Some(if away.is_none() { 0.0 } else { seconds(stretch[0].begun, healed) });
    }
    figures
}

fn refusals(during: &[Attempt], moments: Moments) -> Refusals {
    let mut figures = Refusals::default();
    let Some(heal) = moments.heal else { return figures };
    let before = during.partition_point(|attempt| attempt.begun + attempt.took < heal);
    // Attempts that began before healing and were answered after it do not count as refusals.
    let unwell: Vec<&Attempt> = during[..before.max(1).min(during.len())]
        .iter()
        .filter(|attempt| attempt.begun + attempt.took < heal)
        .collect();
    let is_refused = |attempt: &&Attempt| attempt.outcome == Err(Failure::Refused);
    let trailing: Vec<&Attempt> = unwell.into_iter().rev().take_while(is_refused).collect();
    figures.refused_within_s = trailing.last().map(|first| seconds(first.begun, moments.fault));
    figures.refused_ms = trailing.iter().map(|attempt| attempt.took).max().map(millis);
    figures
}

fn held(held: &[Held], moments: Moments, victims: &[&str]) -> HeldFigures {
    let mut figures = HeldFigures::default();
    let heal = moments.heal.unwrap_or(moments.end);
    let at_fault = || {
        let open = |it: &&Held| it.ended.is_none_or(|ended| ended >= moments.fault);
        held.iter().filter(move |it| it.opened < moments.fault).filter(open)
    };
    let is_victim = |it: &&Held| victims.contains(&it.origin.as_str());
    let cut = |it: &&Held| it.ended.is_some_and(|ended| ended < heal);
    let of_victims = || at_fault().filter(is_victim);
    let of_others = || at_fault().filter(|it| !is_victim(it));
    figures.victim_held = of_victims().count() as u64;
    figures.victim_held_ended = of_victims().filter(cut).count() as u64;
    figures.healthy_held = of_others().count() as u64;
    figures.healthy_held_cut = of_others().filter(cut).count() as u64;
    if figures.victim_held == figures.victim_held_ended {
        let last = of_victims().filter_map(|it| it.ended).max();
        figures.victim_held_cut_s = last.map(|at| seconds(at, moments.fault));
    }
    let after = |it: &&Held| it.ended.is_some_and(|at| at >= heal && at < moments.end);
    figures.cut_after_heal = held.iter().filter(after).count() as u64;
    let dark = of_victims().map(|it| {
        let next = held.iter().filter(|next| next.slot == it.slot && next.opened > it.last_line);
        let heard = next.map(|next| next.opened).min().unwrap_or(heal).min(heal);
        heard.saturating_sub(it.last_line).as_secs_f64()
    });
    figures.held_dark_s = dark.reduce(f64::max);
    figures
}

fn succeeded(attempt: &&Attempt) -> bool {
    attempt.outcome.is_ok()
}

fn seconds(at: Duration, since: Duration) -> f64 {
    at.saturating_sub(since).as_secs_f64()
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn median(times: impl Iterator<Item = Duration>) -> Option<Duration> {
    let mut times: Vec<Duration> = times.collect();
    times.sort();
    times.get(times.len() / 2).copied()
}

#[cfg(test)]
mod tests;
