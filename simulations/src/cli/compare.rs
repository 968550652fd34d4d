//! `meshport-sim compare`: the differences between two results.

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use serde_json::Value;

use super::{read, say};
use crate::Error;

/// The direction in which a value gets worse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Worse {
    Up,
    Down,
    /// Neither: it only shows an amount.
    Never,
}

/// Values that are compared.
const COMPARED: [(&str, Worse); 24] = [
    ("/requests/total", Worse::Never),
    ("/requests/failed", Worse::Up),
    ("/requests/slow", Worse::Up),
    ("/requests/retried", Worse::Up),
    ("/sessions/broken", Worse::Up),
    ("/sessions/hedged", Worse::Never),
    ("/connect_ms/p50", Worse::Up),
    ("/connect_ms/p99", Worse::Up),
    ("/latency_ms/p99", Worse::Up),
    ("/stretch/p99", Worse::Up),
    ("/stretch_quiet/p99", Worse::Up),
    ("/nearest_share", Worse::Down),
    ("/nearest_share_at_end", Worse::Down),
    ("/news_p99_s", Worse::Up),
    ("/news_unheard", Worse::Up),
    ("/suspicions", Worse::Never),
    ("/false_suspicions", Worse::Up),
    ("/evictions", Worse::Never),
    ("/false_evictions", Worse::Up),
    ("/route_changes", Worse::Up),
    ("/bytes_per_node_per_s", Worse::Up),
    ("/packets_per_node_per_s", Worse::Up),
    ("/tunnel_bytes_per_node_per_s", Worse::Up),
    ("/cpu_us_per_node_s", Worse::Never),
];
/// A change below this share is noise between seeds; with the same seed there is none.
const NOTABLE: f64 = 0.02;
/// Stands for a time never reached.
const NEVER: &str = "never";

pub(super) fn main(before: &Path, after: &Path) -> Result<ExitCode, Error> {
    let (old, new) = (load(before)?, load(after)?);
    let mut text = String::new();
    let mut unlike = Vec::new();
    for key in ["scenario", "level", "seed", "nodes", "virtual_s"] {
        let both = (show(old.get(key)), show(new.get(key)));
        if both.0 != both.1 {
            let _ = writeln!(text, "not the same {key}: {} and {}", both.0, both.1);
            unlike.push(key);
        }
    }
    // Runs of the lab have no hash.
    if old["trace_hash"].is_string() && old["trace_hash"] == new["trace_hash"] {
        return say("the two runs are identical");
    }
    let _ = writeln!(text, "{:<34} {:>14} {:>14} {:>9}", "", "before", "after", "change");
    let mut worse = 0;
    for (key, way) in COMPARED {
        let (old, new) = (old.pointer(key), new.pointer(key));
        worse += usize::from(line(&mut text, &key[1..], old, new, way));
    }
    worse += faults(&mut text, &old, &new);
    let violations = |of: &Value| of["violations"].as_array().map_or(0, Vec::len);
    let (old, new) = (violations(&old), violations(&new));
    let _ = writeln!(text, "{:<34} {old:>14} {new:>14}", "violations");
    let _ = write!(text, "{worse} values are worse, marked with !");
    if !unlike.is_empty() {
        let of = unlike.join(", ");
        let _ = write!(text, "; the different {of} may be the cause, not a regression");
    }
    say(&text)?;
    Ok(ExitCode::from(u8::from(new > old)))
}

/// Compares the nodes' reactions to faults in both runs, and lists faults in only one; returns the
/// number of worse values.
fn faults(text: &mut String, old: &Value, new: &Value) -> usize {
    let list = |of: &Value| of["faults"].as_array().cloned().unwrap_or_default();
    let mut others: Vec<Option<Value>> = list(new).into_iter().map(Some).collect();
    let mut worse = 0;
    for fault in list(old) {
        // An event may occur several times with others in between, so each is paired with its
        // counterpart.
        let is_like = |it: &&mut Option<Value>| {
            it.as_ref().is_some_and(|other| other["what"] == fault["what"])
        };
        let other = others.iter_mut().find(is_like).and_then(Option::take);
        let name = show(Some(&fault["what"]));
        let Some(other) = other else {
            let _ = writeln!(text, "{name}: only before");
            continue;
        };
        for (key, of) in [("detected_p99_s", "concerned"), ("failover_p99_s", "users")] {
            let (old, new) = (reached(&fault, key, of), reached(&other, key, of));
            let words = format!("{name}: {key}");
            worse += usize::from(line(text, &words, Some(&old), Some(&new), Worse::Up));
        }
    }
    for other in others.into_iter().flatten() {
        let _ = writeln!(text, "{}: only after", show(Some(&other["what"])));
    }
    worse
}

/// A time of a fault, or the word "never" if some nodes should have noticed it and did not.
fn reached(fault: &Value, key: &str, of: &str) -> Value {
    // A node that may stay has not failed to leave.
    let is_asked = key != "failover_p99_s" || fault["must_leave"] != false;
    let concerned = is_asked && fault[of].as_u64().unwrap_or(0) > 0;
    if fault[key].is_null() && concerned { NEVER.into() } else { fault[key].clone() }
}

/// Compares one value; true if it got worse.
fn line(
    text: &mut String,
    name: &str,
    old: Option<&Value>,
    new: Option<&Value>,
    way: Worse,
) -> bool {
    let (show_old, show_new) = (show(old), show(new));
    let numbers = old.and_then(Value::as_f64).zip(new.and_then(Value::as_f64));
    let Some((old, new)) = numbers else {
        let never = |it: Option<&Value>| it.and_then(Value::as_str) == Some(NEVER);
        let is_worse = never(new) && !never(old);
        let mark = if is_worse { format!(" {:>9} !", "") } else { String::new() };
        let _ = writeln!(text, "{name:<34} {show_old:>14} {show_new:>14}{mark}");
        return is_worse;
    };
    let change = if old == 0.0 { f64::from(u8::from(new > 0.0)) } else { (new - old) / old.abs() };
    let is_worse = match way {
        Worse::Up => change > NOTABLE,
        Worse::Down => change < -NOTABLE,
        Worse::Never => false,
    };
    let mark = if is_worse { " !" } else { "" };
    // There is no relative change from zero.
    let change = match old == 0.0 && new != 0.0 {
        true => "from 0".into(),
        false => format!("{:+.1}%", change * 100.0),
    };
    let _ = writeln!(text, "{name:<34} {show_old:>14} {show_new:>14} {change:>9}{mark}");
    is_worse
}

fn show(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "-".into(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => match value.as_f64() {
            Some(number) if value.is_f64() => format!("{number:.3}"),
            _ => value.to_string(),
        },
    }
}

fn load(path: &Path) -> Result<Value, Error> {
    let wrong = |reason: String| Error::Result { path: path.display().to_string(), reason };
    let value = serde_json::from_str::<Value>(&read(path)?);
    let value = value.map_err(|error| {
        wrong(format!("it is not a result of meshport-sim run --json: invalid JSON ({error})"))
    })?;
    if value["requests"].is_object() && value["violations"].is_array() {
        return Ok(value);
    }
    Err(wrong("it is not a result of meshport-sim run --json".into()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn fault(what: &str, time: &Value, of: u64) -> Value {
        json!({ "what": what, "detected_p99_s": time, "concerned": of })
    }

    #[test]
    fn nodes_that_no_longer_notice_are_worse_and_no_fault_is_left_out() {
        let old = json!({ "faults": [
            fault("kill: a", &json!(1.2), 9),
            fault("cut: b", &json!(2.0), 9),
            fault("hang: c", &json!(1.0), 9),
            fault("kill: a", &json!(1.0), 9),
        ] });
        let new = json!({ "faults": [
            fault("crash: d", &json!(4.0), 9),
            fault("kill: a", &Value::Null, 9),
            fault("hang: c", &Value::Null, 0),
            fault("kill: a", &json!(1.0), 9),
        ] });
        let mut text = String::new();
        assert_eq!(faults(&mut text, &old, &new), 1, "{text}");
        let marked: Vec<&str> = text.lines().filter(|line| line.ends_with('!')).collect();
        assert!(marked.len() == 1 && marked[0].contains("never"), "{text}");
        assert!(text.contains("cut: b: only before") && text.contains("crash: d: only after"));
        assert_eq!(faults(&mut text, &new, &old), 0, "{text}");
    }

    #[test]
    fn a_smaller_share_that_goes_to_the_nearest_is_worse() {
        let (before, after) = (json!(0.99), json!(0.5));
        let worse =
            |old, new| line(&mut String::new(), "nearest_share", Some(old), Some(new), Worse::Down);
        assert!(worse(&before, &after) && !worse(&after, &before));
        assert!(COMPARED.contains(&("/nearest_share", Worse::Down)));
    }
}
