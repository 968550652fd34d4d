//! A run for a terminal: calm, and nothing that is not so.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use super::{Effort, Run, Violation};

/// Faults that are listed one by one.
const MAX_LISTED: usize = 24;

/// The summary.
pub fn summary(run: &Run, effort: Effort) -> String {
    let mut text = format!("{}\n\n", run.outcome.description);
    sites(&mut text, run);
    faults(&mut text, run);
    numbers(&mut text, run, effort);
    text
}

/// A violation, with the whole command that shows it again.
pub fn violation(violation: &Violation, command: &str) -> String {
    let at = violation.at.as_secs_f64();
    let node = violation.node.as_ref().map(|node| format!(" at {node}")).unwrap_or_default();
    let mut text = format!("VIOLATION {at:.3} s{node}: {}\n  {}\n", violation.rule, violation.what);
    if !violation.last.is_empty() {
        text.push_str("  last events of that node:\n");
        for line in &violation.last {
            let _ = writeln!(text, "    {line}");
        }
    }
    let _ = writeln!(text, "  again: {command}");
    text
}

fn sites(text: &mut String, run: &Run) {
    let _ = writeln!(text, "{:<14} {:>6}   goes to", "site", "nodes");
    for (site, name) in run.outcome.sites.iter().enumerate() {
        let mut to: BTreeMap<&str, usize> = BTreeMap::new();
        let nodes = &run.outcome.nodes;
        let here = run.outcome.routes.iter().filter(|(node, _)| nodes[*node].1 == site);
        for (_, chosen) in here.clone() {
            let origin = chosen.map_or("nowhere", |origin| nodes[origin].0.as_str());
            *to.entry(origin).or_default() += 1;
        }
        let to: Vec<String> =
            to.into_iter().map(|(origin, count)| format!("{origin} ({count})")).collect();
        let _ = writeln!(text, "{name:<14} {:>6}   {}", here.count(), to.join(", "));
    }
}

fn faults(text: &mut String, run: &Run) {
    let faults = &run.measures.faults;
    if faults.is_empty() {
        return;
    }
    let _ = writeln!(
        text,
        "\n{:>9}  {:<36} {:>9} {:>7} {:>7} {:>7} {:>8} {:>6} {:>5}",
        "at", "what", "noticed", "half", "99 %", "left", "failover", "failed", "slow"
    );
    for fault in faults.iter().take(MAX_LISTED) {
        let followed = run.followed(fault);
        let _ = writeln!(
            text,
            "{:>7.1} s  {:<36} {:>9} {:>7} {:>7} {:>7} {:>8} {:>6} {:>5}",
            fault.at.as_secs_f64(),
            fault.what,
            parts(followed.noticed, followed.concerned),
            time(followed.detected_p50),
            time(followed.detected_p99),
            parts(followed.left, followed.users),
            time(followed.failover_p99),
            followed.failed,
            followed.slow,
        );
    }
    if faults.len() > MAX_LISTED {
        let _ = writeln!(text, "{:>9}  and {} more", "", faults.len() - MAX_LISTED);
    }
}

fn numbers(text: &mut String, run: &Run, effort: Effort) {
    let (outcome, measures) = (&run.outcome, &run.measures);
    let requests = measures.requests;
    text.push('\n');
    if requests.total > 0 {
        line(
            text,
            "requests",
            &format!(
                "{} in all, {} failed, {} slow (over 1 s), {} sent again",
                requests.total, requests.failed, requests.slow, requests.retried
            ),
        );
        for (name, of) in [("connect", &measures.connect), ("answers", &measures.latency)] {
            let Some(it) = of.quantiles(1e3) else { continue };
            let (p50, p99, max) = (it.p50, it.p99, it.max);
            line(text, name, &format!("half {p50:.1} ms, 99 % {p99:.1} ms, all {max:.0} ms"));
        }
        if let Some(it) = measures.stretch.quantiles(1e3) {
            let quiet = measures.stretch_quiet.quantiles(1e3);
            let quiet = quiet.map_or("-".into(), |quiet| format!("{:.2}", quiet.p99));
            let all = format!("half {:.2}, 99 % {:.2}, all {:.2}", it.p50, it.p99, it.max);
            line(text, "stretch", &format!("{all}; in quiet times 99 % {quiet}"));
        }
    }
    sessions(text, run);
    let nearest = run.nearest_sessions();
    let nearest = nearest.map(|share| format!("{:.2} % of sessions, ", share * 100.0));
    let at_end = run.nearest_share() * 100.0;
    let nearest = nearest.unwrap_or_default();
    line(text, "nearest", &format!("{nearest}{at_end:.1} % of the running nodes at the end"));
    mesh(text, run);
    let (cost, memory) = (run.cost(effort), run.weight(effort) / 1024);
    line(text, "cost", &format!("{cost:.0} us a node-second, {memory} KiB a node"));
    line(text, "rules", &rules(run));
    let (wall, processor) = (effort.wall.as_secs_f64(), effort.processor.as_secs_f64());
    let took = format!("{}, {wall:.2} s of wall time, {processor:.2} s of one core", outcome.seed);
    line(text, "seed", &took);
    line(text, "trace", &outcome.trace_hash.to_string());
}

/// What the mesh found out, and what it sent for that; nothing that the level cannot know.
fn mesh(text: &mut String, run: &Run) {
    let (level, measures) = (run.outcome.level, &run.measures);
    if level.knows("news_p99_s") {
        line(text, "news", &format!("99 % of nodes know after {}", time(run.news_p99())));
    }
    let ((gossip, tunnel), (packets, _)) = (run.rates(), run.packets());
    if level.knows("bytes_per_node_per_s") {
        let gossip = format!("{gossip:.0} bytes/s a node in {packets:.2} datagrams/s");
        line(text, "gossip", &format!("{gossip}, tunnels {tunnel:.0} bytes/s"));
        let [swim, sync, news, paths] = run.families();
        let parts = format!("membership {swim:.0}, comparison {sync:.0}");
        line(text, "", &format!("{parts}, news {news:.0}, paths {paths:.0}"));
    } else {
        line(text, "tunnels", &format!("{tunnel:.0} bytes/s a node, with all that is in them"));
    }
    if let Some(seen) = measures.suspicions {
        line(text, "suspicions", &seen.words());
    }
    let all = measures.suspicions.map(|seen| format!("{}, ", seen.evictions)).unwrap_or_default();
    line(text, "evictions", &format!("{all}{} by mistake", measures.false_evictions));
}

fn sessions(text: &mut String, run: &Run) {
    let sessions = run.measures.sessions;
    if sessions.begun > 0 {
        let (opened, broken, moved) = (sessions.opened, sessions.broken, sessions.moved);
        let (again, raced) = (sessions.attempts, sessions.hedged);
        let mut words = format!("{opened} opened, {broken} broken");
        if run.outcome.level.knows("sessions.moved") {
            let tried = format!("{again} attempts after a failure, {raced} raced");
            words = format!("{words}, {moved} sent home; {tried}");
        }
        line(text, "sessions", &words);
    }
    if sessions.relayed + sessions.outside > 0 {
        let (relayed, outside) = (sessions.relayed, sessions.outside);
        let words = format!("{relayed} sessions through a relay, {outside} outside the mesh");
        line(text, "detours", &words);
    }
}

/// How many of how many; nothing of nobody.
fn parts(some: usize, of: usize) -> String {
    if of == 0 { "-".into() } else { format!("{some}/{of}") }
}

fn rules(run: &Run) -> String {
    match run.violations.len() {
        0 => "all hold".into(),
        count => format!("{count} VIOLATED"),
    }
}

fn line(text: &mut String, name: &str, value: &str) {
    let _ = writeln!(text, "{name:<12} {value}");
}

fn time(time: Option<Duration>) -> String {
    time.map_or("-".into(), |time| format!("{:.2} s", time.as_secs_f64()))
}
