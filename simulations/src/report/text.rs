//! A run's result for a terminal.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

use super::{Effort, Run, Violation};
use crate::measure::WayBack;

/// Faults that are listed one by one.
const MAX_LISTED: usize = 24;

/// Numbers as text, each with its name.
pub(super) type Numbers = Vec<(&'static str, String)>;

/// The summary.
pub fn summary(run: &Run, effort: Effort) -> String {
    let mut text = format!("{}\n\n", run.outcome.description);
    sites(&mut text, run);
    faults(&mut text, run);
    text.push('\n');
    for (name, value) in numbers(run, effort) {
        let _ = writeln!(text, "{name:<12} {value}");
    }
    text
}

/// A violation, with the complete command that reproduces it.
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

/// The measurements with their names.
pub(super) fn numbers(run: &Run, effort: Effort) -> Numbers {
    let mut all = clients(run);
    let nearest = run.nearest_sessions();
    let nearest = nearest.map(|share| format!("{:.2} % of sessions, ", share * 100.0));
    let at_end = run.nearest_share() * 100.0;
    let nearest = nearest.unwrap_or_default();
    all.push(("nearest", format!("{nearest}{at_end:.1} % of the running nodes at the end")));
    all.extend(mesh(run));
    let (cost, memory) = (run.cost(effort), run.weight(effort) / 1024);
    let (datagrams, waiting) = (run.outcome.datagrams, run.outcome.longest_queue);
    // Only the wide level has a measurable queue.
    let waiting =
        if waiting > 0 { format!(", at most {waiting} events waiting") } else { String::new() };
    let (wall, processor) = (effort.wall.as_secs_f64(), effort.processor.as_secs_f64());
    let took = format!("{wall:.2} s of wall time, {processor:.2} s of one core");
    all.extend([
        ("work", format!("{datagrams} datagrams{waiting}")),
        ("cost", format!("{cost:.0} us a node-second, {memory} KiB a node")),
        ("rules", rules(run)),
        ("seed", format!("{}, {took}", run.outcome.seed)),
        ("trace", run.outcome.trace_hash.to_string()),
    ]);
    all
}

/// Streams from apiservers to kubelets.
fn way_back(it: &WayBack) -> String {
    let WayBack { requests, sessions, latency, refused } = it;
    let refused = match refused.values().sum::<u64>() {
        0 => String::new(),
        all => format!(", {all} refused"),
    };
    let connect = latency.connect.quantiles(1e3);
    let connect =
        connect.map(|it| format!("; connect half {:.1} ms, 99 % {:.1} ms", it.p50, it.p99));
    let connect = connect.unwrap_or_default();
    format!(
        "{} streams opened, {} broken{refused}; {} requests in all, {} failed, {} slow{connect}",
        sessions.opened, sessions.broken, requests.total, requests.failed, requests.slow
    )
}

/// Measurements of clients.
fn clients(run: &Run) -> Numbers {
    let (measures, requests, sessions) =
        (&run.measures, run.measures.requests, run.measures.sessions);
    let mut all = Numbers::new();
    if requests.total > 0 {
        let (total, failed, slow, again) =
            (requests.total, requests.failed, requests.slow, requests.retried);
        let words =
            format!("{total} in all, {failed} failed, {slow} slow (over 1 s), {again} sent again");
        all.push(("requests", words));
        for (name, of) in
            [("connect", &measures.latency.connect), ("answers", &measures.latency.request)]
        {
            let Some(it) = of.quantiles(1e3) else { continue };
            let most =
                format!("half {:.1} ms, 90 % {:.1} ms, 99 % {:.1} ms", it.p50, it.p90, it.p99);
            all.push((name, format!("{most}, 99.9 % {:.1} ms, all {:.0} ms", it.p999, it.max)));
        }
        if let Some(it) = measures.choices.stretch.quantiles(1e3) {
            let quiet = measures.choices.stretch_quiet.quantiles(1e3);
            let quiet = quiet.map_or("-".into(), |quiet| format!("{:.2}", quiet.p99));
            let most = format!("half {:.2}, 99 % {:.2}, all {:.2}", it.p50, it.p99, it.max);
            all.push(("stretch", format!("{most}; in quiet times 99 % {quiet}")));
        }
    }
    if sessions.begun > 0 {
        let (opened, broken, moved) = (sessions.opened, sessions.broken, sessions.moved);
        let (again, raced) = (sessions.attempts, sessions.hedged);
        let mut words = format!("{opened} opened, {broken} broken");
        if run.outcome.level.knows("sessions.moved") {
            let attempts = if again == 1 { "attempt" } else { "attempts" };
            let tried = format!("{again} {attempts} after a failure, {raced} raced");
            words = format!("{words}, {moved} sent home; {tried}");
        }
        all.push(("sessions", words));
    }
    all.extend(measures.way_back.as_ref().map(|it| ("way back", way_back(it))));
    if sessions.relayed + sessions.outside > 0 {
        let (relayed, outside) = (sessions.relayed, sessions.outside);
        let words = format!("{relayed} sessions through a relay, {outside} outside the mesh");
        all.push(("detours", words));
    }
    all
}

/// Measurements of the mesh: what it detected and the traffic for that. Values unknown at this
/// level are left out.
fn mesh(run: &Run) -> Numbers {
    let (level, measures) = (run.outcome.level, &run.measures);
    let mut all = Numbers::new();
    if level.knows("news_p99_s") {
        all.push(("news", format!("99 % of nodes know after {}", time(run.news_p99()))));
    }
    let ((gossip, tunnel), (packets, _)) = (run.rates(), run.packets());
    if level.knows("bytes_per_node_per_s") {
        let gossip = format!("{gossip:.0} bytes/s a node in {packets:.2} datagrams/s");
        all.push(("gossip", format!("{gossip}, tunnels {tunnel:.0} bytes/s")));
        let [swim, sync, news, paths] = run.families();
        let parts = format!("membership {swim:.0}, comparison {sync:.0}");
        all.push(("", format!("{parts}, news {news:.0}, paths {paths:.0}")));
    } else {
        let words = format!("{tunnel:.0} bytes/s a node, with all that is in them");
        all.push(("tunnels", words));
    }
    let mut evictions = format!("{} by mistake", measures.false_evictions);
    if let Some(seen) = measures.suspicions {
        all.push(("suspicions", seen.words()));
        evictions = format!("{}, {evictions}", seen.evictions);
    }
    all.push(("evictions", evictions));
    all.push(("changes", format!("{} of first choices", measures.choices.changed)));
    all
}

/// A share such as `3/7`; `-` if the whole is zero.
pub(super) fn parts(some: usize, of: usize) -> String {
    if of == 0 { "-".into() } else { format!("{some}/{of}") }
}

fn rules(run: &Run) -> String {
    match run.violations.len() {
        0 => "all hold".into(),
        count => format!("{count} VIOLATED"),
    }
}

pub(super) fn time(time: Option<Duration>) -> String {
    time.map_or("-".into(), |time| format!("{:.2} s", time.as_secs_f64()))
}
