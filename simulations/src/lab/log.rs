//! Reads routes from the daemons' logs: when the first origin changed, and to which.

use std::time::Duration;

use serde_json::Value;

/// Seconds of a day.
const DAY_S: f64 = 86_400.0;
/// The log line of a daemon whose first origin changes, and of one that knows none.
const CHANGED: &str = "route changed";
const NONE: &str = "no origin can be used";

/// A node's first origin changed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Change {
    /// Time since the start of the run.
    pub(super) at: Duration,
    pub(super) node: usize,
    /// The origin's name; none if the node knows no origin.
    pub(super) to: Option<String>,
}

/// All changes in a node's log, in order. `start_s` is the second of the (UTC) day at which the run
/// began; earlier lines count as at the start.
pub(super) fn changes(log: &str, node: usize, start_s: f64) -> impl Iterator<Item = Change> {
    log.lines().filter_map(move |line| change(line, node, start_s))
}

fn change(line: &str, node: usize, start_s: f64) -> Option<Change> {
    let line: Value = serde_json::from_str(line).ok()?;
    let fields = &line["fields"];
    let to = match fields["message"].as_str()? {
        CHANGED => Some(fields["to"].as_str()?.to_owned()),
        NONE => None,
        _ => return None,
    };
    let at = second_of_day(line["timestamp"].as_str()?)?;
    let mut since = at - start_s;
    if since < -DAY_S / 2.0 {
        since += DAY_S;
    }
    Some(Change { at: Duration::try_from_secs_f64(since).unwrap_or_default(), node, to })
}

/// Reads a time such as `2026-01-31T23:59:59.123456Z`.
fn second_of_day(text: &str) -> Option<f64> {
    let (_, time) = text.trim_end_matches('Z').split_once('T')?;
    let mut parts = time.split(':').map(str::parse::<f64>);
    let mut next = || parts.next()?.ok();
    Some(next()? * 3600.0 + next()? * 60.0 + next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_distinguished_from_other_lines_also_at_midnight() {
        let log = concat!(
            "{\"timestamp\":\"2026-01-31T23:59:59.500000Z\",\"level\":\"INFO\",\"fields\":",
            "{\"message\":\"route changed\",\"service\":\"any\",\"to\":\"fra-1\"}}\n",
            "no JSON\n",
            "{\"timestamp\":\"2026-02-01T00:00:01.250000Z\",\"level\":\"WARN\",\"fields\":",
            "{\"message\":\"no origin can be used\",\"service\":\"kube-apiserver\"}}\n",
            "{\"timestamp\":\"2026-02-01T00:00:02Z\",\"fields\":{\"message\":\"started\"}}\n",
        );
        let change = |millis, to| Change { at: Duration::from_millis(millis), node: 3, to };
        let found: Vec<Change> = changes(log, 3, DAY_S - 1.0).collect();
        assert_eq!(found, [change(500, Some("fra-1".into())), change(2250, None)]);
    }
}
