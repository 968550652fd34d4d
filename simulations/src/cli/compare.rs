//! `meshport-sim compare`: what differs between two results.

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use serde_json::Value;

use super::{read, say};
use crate::Error;

/// Values that are compared, and whether more of it is worse.
const COMPARED: [(&str, bool); 17] = [
    ("/requests/total", false),
    ("/requests/failed", true),
    ("/requests/slow", true),
    ("/requests/retried", true),
    ("/sessions/broken", true),
    ("/sessions/hedged", false),
    ("/connect_ms/p50", true),
    ("/connect_ms/p99", true),
    ("/latency_ms/p99", true),
    ("/stretch/p99", true),
    ("/stretch_quiet/p99", true),
    ("/news_p99_s", true),
    ("/false_evictions", true),
    ("/route_changes", true),
    ("/bytes_per_node_per_s", true),
    ("/tunnel_bytes_per_node_per_s", true),
    ("/cpu_us_per_node_s", false),
];
/// A change below this share is noise of another seed, not of the same.
const NOTABLE: f64 = 0.02;

pub(super) fn main(before: &Path, after: &Path) -> Result<ExitCode, Error> {
    let (old, new) = (load(before)?, load(after)?);
    let mut text = String::new();
    for key in ["/scenario", "/seed", "/nodes", "/virtual_s"] {
        if old.pointer(key) != new.pointer(key) {
            let both = (show(old.pointer(key)), show(new.pointer(key)));
            let _ = writeln!(text, "not the same {}: {} and {}", &key[1..], both.0, both.1);
        }
    }
    if old["trace_hash"] == new["trace_hash"] {
        return say("the two runs are the same, to the last byte");
    }
    let _ = writeln!(text, "{:<34} {:>14} {:>14} {:>9}", "", "before", "after", "change");
    let mut worse = 0;
    for (key, more_is_worse) in COMPARED {
        let (old, new) = (old.pointer(key), new.pointer(key));
        worse += usize::from(line(&mut text, &key[1..], (old, new), more_is_worse));
    }
    for (place, fault) in old["faults"].as_array().into_iter().flatten().enumerate() {
        let other = &new["faults"][place];
        if other["what"] == fault["what"] {
            for key in ["detected_p99_s", "failover_p99_s"] {
                let name = format!("{}: {key}", show(Some(&fault["what"])));
                let both = (Some(&fault[key]), Some(&other[key]));
                worse += usize::from(line(&mut text, &name, both, true));
            }
        }
    }
    let violations = |of: &Value| of["violations"].as_array().map_or(0, Vec::len);
    let (old, new) = (violations(&old), violations(&new));
    let _ = writeln!(text, "{:<34} {old:>14} {new:>14}", "violations");
    let _ = write!(text, "{worse} values are worse, marked with !");
    say(&text)?;
    Ok(ExitCode::from(u8::from(new > old)))
}

/// One value; true if it got worse.
fn line(
    text: &mut String,
    name: &str,
    (old, new): (Option<&Value>, Option<&Value>),
    more: bool,
) -> bool {
    let (show_old, show_new) = (show(old), show(new));
    let numbers = old.and_then(Value::as_f64).zip(new.and_then(Value::as_f64));
    let Some((old, new)) = numbers else {
        let _ = writeln!(text, "{name:<34} {show_old:>14} {show_new:>14}");
        return false;
    };
    let change = if old == 0.0 { f64::from(u8::from(new > 0.0)) } else { (new - old) / old.abs() };
    let is_worse = more && change > NOTABLE;
    let mark = if is_worse { " !" } else { "" };
    let percent = change * 100.0;
    let _ = writeln!(text, "{name:<34} {show_old:>14} {show_new:>14} {percent:>+8.1}%{mark}");
    is_worse
}

fn show(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "-".into(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => match value.as_f64() {
            Some(number) if number.fract() != 0.0 => format!("{number:.3}"),
            _ => value.to_string(),
        },
    }
}

fn load(path: &Path) -> Result<Value, Error> {
    let wrong = |reason: String| Error::Result { path: path.display().to_string(), reason };
    let value: Value = serde_json::from_str(&read(path)?).map_err(|it| wrong(it.to_string()))?;
    if value["trace_hash"].is_string() {
        return Ok(value);
    }
    Err(wrong("it is not a result of meshport-sim run --json".into()))
}
