//! A run as one page that needs nothing else: no script, no address outside.

use std::collections::BTreeMap;
use std::f64::consts::TAU;
use std::fmt::Write;
use std::time::Duration;

use super::keys::Level;
use super::svg::{Chart, Series, escape, short};
use super::{Effort, NEVER, Run, Violation, plot};
use crate::measure::{Fault, Histogram, Quantiles, Second};

const STYLE: &str = include_str!("page.css");
/// Faults and violations in a table.
const MAX_ROWS: usize = 100;

/// A sweep as a page: a table, and one drawing that compares the combinations of values. `notes`
/// are sentences without their full stop.
pub fn sweep(
    scenario: &str,
    measures: &[&str],
    rows: &[(String, Vec<Option<f64>>)],
    notes: &[String],
) -> String {
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{0}</title>\
         <style>{STYLE}</style></head><body><main><h1>Sweep of {0}</h1>\
         <div class=\"wide\"><table><tr><th></th>",
        escape(scenario)
    );
    for measure in measures {
        let _ = write!(page, "<th>{measure}</th>");
    }
    page.push_str("</tr>");
    for (place, (words, values)) in rows.iter().enumerate() {
        let _ = write!(page, "<tr><td class=\"words\">{}. {}</td>", place + 1, escape(words));
        for value in values {
            let word = match value {
                None => "-".to_owned(),
                Some(NEVER) => "never".to_owned(),
                Some(value) => short(*value),
            };
            let _ = write!(page, "<td>{word}</td>");
        }
        page.push_str("</tr>");
    }
    page.push_str("</table></div>");
    for note in notes {
        let _ = write!(page, "<p>{}.</p>", escape(note));
    }
    let drawing = plot::sweep(measures, rows);
    let _ = write!(
        page,
        "<figure><figcaption>The measures that differ, the worst seed of each row</figcaption>\
         {drawing}</figure>"
    );
    page.push_str("</main></body></html>");
    page
}

/// The page. `again` says what to type to see a violation again.
pub fn page(
    run: &Run,
    scenario: &str,
    effort: Effort,
    (command, again): (&str, &dyn Fn(&Violation) -> String),
) -> String {
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{0}</title>\
         <style>{STYLE}</style></head><body><main><h1>{0}</h1><p class=\"about\">{1}</p>",
        escape(scenario),
        escape(&run.outcome.description)
    );
    tiles(&mut page, run);
    violations(&mut page, run, again);
    page.push_str("<h2>Where nodes go at the end</h2>");
    map(&mut page, run);
    page.push_str("<h2>What happened, and what clients saw</h2>");
    timelines(&mut page, run);
    faults(&mut page, run);
    page.push_str("<h2>Distributions</h2>");
    distributions(&mut page, run);
    numbers(&mut page, run, effort);
    let _ = write!(
        page,
        "<h2>Again</h2><p>The same file and seed give the same run, to the last byte.</p>\
         <pre>{}</pre><p>Trace <code>{}</code></p></main></body></html>",
        escape(command),
        run.outcome.trace_hash
    );
    page
}

fn tiles(page: &mut String, run: &Run) {
    let requests = run.measures.requests;
    let stretch = run.measures.stretch_quiet.quantiles(1e3).map(|it| format!("{:.2}", it.p99));
    let known = run.outcome.level.knows("bytes_per_node_per_s");
    let gossip = if known { short(run.rates().0) } else { "-".into() };
    let held = if run.violations.is_empty() { "hold" } else { "violated" };
    page.push_str("<div class=\"tiles\">");
    for (value, words) in [
        (run.outcome.nodes.len().to_string(), "nodes"),
        (short(run.outcome.virtual_time.as_secs_f64()), "virtual seconds"),
        (short(requests.total as f64), "requests"),
        (requests.failed.to_string(), "failed"),
        (requests.slow.to_string(), "slower than 1 s"),
        (stretch.unwrap_or("-".into()), "stretch, 99 %, quiet"),
        (time(run.news_p99()), "news to 99 %"),
        (gossip, "bytes/s of gossip a node"),
        (false_suspicions(run), "suspected by mistake"),
        (run.measures.false_evictions.to_string(), "evicted by mistake"),
        (held.into(), "rules"),
    ] {
        let _ = write!(page, "<div class=\"tile\"><b>{value}</b><span>{words}</span></div>");
    }
    page.push_str("</div>");
}

fn false_suspicions(run: &Run) -> String {
    run.measures.suspicions.map_or("-".into(), |seen| seen.wrong.to_string())
}

fn violations(page: &mut String, run: &Run, again: &dyn Fn(&Violation) -> String) {
    for violation in run.violations.iter().take(MAX_ROWS) {
        let node = violation.node.as_deref().unwrap_or("the world");
        let _ = write!(
            page,
            "<section class=\"violation\"><h3>{} at {:.3} s, {}</h3><p>{}</p><pre>{}</pre>\
             <p>To see it again:</p><pre>{}</pre></section>",
            escape(violation.rule),
            violation.at.as_secs_f64(),
            escape(node),
            escape(&violation.what),
            escape(&violation.last.join("\n")),
            escape(&again(violation))
        );
    }
}

/// Sites on a circle, with arrows as thick as the nodes that go there.
fn map(page: &mut String, run: &Run) {
    let outcome = &run.outcome;
    let sites = outcome.sites.len();
    let mut flows: BTreeMap<(usize, usize), usize> = BTreeMap::new();
    let mut nowhere = vec![0_usize; sites];
    let mut count = vec![0_usize; sites];
    for (node, to) in &outcome.routes {
        let site = outcome.nodes[*node].1;
        count[site] += 1;
        match to {
            Some(origin) => *flows.entry((site, outcome.nodes[*origin].1)).or_default() += 1,
            None => nowhere[site] += 1,
        }
    }
    let at = |site: usize| {
        // Two are side by side, so that no arrow crosses the words below them.
        let first = if sites == 2 { TAU / 2.0 } else { -TAU / 4.0 };
        let turn = site as f64 / sites as f64 * TAU + first;
        (450.0 + 330.0 * turn.cos(), 190.0 + 140.0 * turn.sin())
    };
    page.push_str(
        "<figure><svg viewBox=\"0 0 900 390\" role=\"img\" aria-label=\"routes between sites\">\
         <defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"9\" \
         markerHeight=\"9\" markerUnits=\"userSpaceOnUse\" orient=\"auto\">\
         <path d=\"M0 0L8 4L0 8z\"/></marker></defs>",
    );
    for ((from, to), nodes) in &flows {
        if from == to {
            continue;
        }
        let ((x1, y1), (x2, y2)) = (at(*from), at(*to));
        // Arrows leave and arrive on the side of the middle, through which they bend.
        let inwards = |x: f64, y: f64, by: f64| {
            let length = (450.0 - x).hypot(190.0 - y).max(1.0);
            (x + (450.0 - x) / length * by, y + (190.0 - y) / length * by)
        };
        let ((x1, y1), (x2, y2)) = (inwards(x1, y1, 34.0), inwards(x2, y2, 36.0));
        let width = 1.0 + 5.0 * *nodes as f64 / count[*from].max(1) as f64;
        let _ = write!(
            page,
            "<path class=\"flow\" stroke-width=\"{width:.1}\" marker-end=\"url(#tip)\" \
             d=\"M{x1:.0} {y1:.0}Q450 190 {x2:.0} {y2:.0}\">\
             <title>{nodes} nodes of {} go to {}</title></path>",
            escape(&outcome.sites[*from]),
            escape(&outcome.sites[*to]),
        );
    }
    for (site, name) in outcome.sites.iter().enumerate() {
        let (x, y) = at(site);
        let home = flows.get(&(site, site)).copied().unwrap_or(0);
        let class = if nowhere[site] > 0 { "site lost" } else { "site" };
        let _ = write!(
            page,
            "<circle class=\"{class}\" cx=\"{x:.0}\" cy=\"{y:.0}\" r=\"30\"/>\
             <text class=\"name\" x=\"{x:.0}\" y=\"{:.0}\" text-anchor=\"middle\">{}</text>\
             <text class=\"tick\" x=\"{x:.0}\" y=\"{:.0}\" text-anchor=\"middle\">{home} of {} at \
             home</text>",
            y + 4.0,
            escape(name),
            if y < 180.0 { y - 38.0 } else { y + 45.0 },
            count[site],
        );
    }
    page.push_str("</svg></figure>");
}

fn timelines(page: &mut String, run: &Run) {
    // The last second is not a whole one.
    let whole = usize::try_from(run.outcome.virtual_time.as_secs()).unwrap_or(usize::MAX);
    let line = &run.measures.timeline[..whole.min(run.measures.timeline.len())];
    let warmup = usize::try_from(run.outcome.warmup.as_secs()).unwrap_or(usize::MAX);
    let begins = |it: &Fault| (it.at.as_secs_f64(), it.what.clone());
    let ends = |it: &Fault| Some((it.over?.as_secs_f64(), format!("{} ends", it.what)));
    let faults = &run.measures.faults;
    let mut marks: Vec<(f64, String)> =
        faults.iter().map(begins).chain(faults.iter().filter_map(ends)).collect();
    marks.retain(|(at, _)| *at <= line.len() as f64);
    marks.sort_by(|a, b| a.0.total_cmp(&b.0));
    let over_time = |of: &dyn Fn(&Second) -> f64| -> Vec<(f64, f64)> {
        line.iter().enumerate().map(|(at, second)| (at as f64, of(second))).collect()
    };
    let per_node = |of: u64, second: &Second| of as f64 / f64::from(second.running.max(1));
    let series = |name, class, of: &dyn Fn(&Second) -> f64, bars| Series {
        name,
        class,
        points: over_time(of),
        bars,
    };
    // Finding each other costs a hundred times what the rest does, and would hide it.
    let after = |name, class, of: &dyn Fn(&Second) -> f64| {
        let mut series = series(name, class, of, false);
        series.points.drain(..warmup.min(series.points.len()));
        series
    };
    let chart = |title, y, series: Vec<Series<'_>>| {
        Chart { title, x: "virtual seconds", y, series, marks: marks.clone(), log_x: false }.draw()
    };
    page.push_str(&chart(
        "Requests",
        "a second",
        vec![
            series("answered", "good", &|it| f64::from(it.answered), false),
            series("slower than 1 s", "slow", &|it| f64::from(it.slow), true),
            series("failed", "bad", &|it| f64::from(it.failed), true),
        ],
    ));
    page.push_str(&chart(
        "Routes and sessions",
        "a second",
        vec![
            series("nodes that changed their first choice", "one", &|it| f64::from(it.moved), true),
            series("sessions that broke", "bad", &|it| f64::from(it.broken), true),
        ],
    ));
    let mut traffic = vec![
        after("discovery", "one", &|it| per_node(it.gossip_bytes, it)),
        after("tunnels", "two", &|it| per_node(it.tunnel_bytes, it)),
    ];
    if !run.outcome.level.knows("bytes_per_node_per_s") {
        traffic.remove(0);
    }
    page.push_str(&chart("Traffic of a node, after the start-up", "bytes/s, all headers", traffic));
}

fn faults(page: &mut String, run: &Run) {
    if run.measures.faults.is_empty() {
        return;
    }
    page.push_str(
        "<h2>Faults and changes</h2><div class=\"wide\"><table><tr><th>at</th>\
         <th class=\"words\">what</th><th>nodes</th><th>noticed by</th><th>half</th><th>99 %</th>\
         <th>same site 99&nbsp;%</th><th>users who left</th><th>failover 99&nbsp;%</th>\
         <th>failed</th><th>slow</th></tr>",
    );
    for fault in run.measures.faults.iter().take(MAX_ROWS) {
        let followed = run.followed(fault);
        let _ = write!(
            page,
            "<tr><td>{:.1} s</td><td class=\"words\">{}</td><td>{}</td><td>{}</td><td>{}</td>\
             <td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            fault.at.as_secs_f64(),
            escape(&fault.what),
            if followed.nodes == 0 { "-".into() } else { followed.nodes.to_string() },
            parts(followed.noticed, followed.concerned),
            time(followed.detected_p50),
            time(followed.detected_p99),
            time(followed.same_site_p99),
            parts(followed.left, followed.users),
            time(followed.failover_p99),
            followed.failed,
            followed.slow,
        );
    }
    page.push_str("</table></div>");
    let more = run.measures.faults.len().saturating_sub(MAX_ROWS);
    if more > 0 {
        let _ = write!(page, "<p class=\"about\">And {more} more.</p>");
    }
    page.push_str(
        "<p class=\"about\">Failed and slow are the requests of all clients, from the beginning of \
         the fault until ten seconds after its end; of one without an end, after a minute.</p>",
    );
}

fn distributions(page: &mut String, run: &Run) {
    let measures = &run.measures;
    let curve = |of: &Histogram, unit: f64| -> Vec<(f64, f64)> {
        of.shares().into_iter().map(|(value, share)| (value as f64 / unit, share * 100.0)).collect()
    };
    let series = |name, class, points| Series { name, class, points, bars: false };
    let times = vec![
        series("connect", "one", curve(&measures.connect, 1e3)),
        series("request", "two", curve(&measures.latency, 1e3)),
    ];
    let stretch = vec![
        series("all sessions", "one", curve(&measures.stretch, 1e3)),
        series("quiet times", "two", curve(&measures.stretch_quiet, 1e3)),
    ];
    for (title, x, series) in [
        ("Time to connect, and of a request", "milliseconds", times),
        ("Stretch: chosen round trip over the best possible", "times", stretch),
    ] {
        let y = "% not above";
        page.push_str(&Chart { title, x, y, series, marks: Vec::new(), log_x: true }.draw());
    }
}

fn numbers(page: &mut String, run: &Run, effort: Effort) {
    page.push_str(
        "<h2>Numbers</h2><div class=\"wide\"><table><tr><th class=\"words\">what</th>\
         <th>value</th></tr>",
    );
    let rows = [client_rows(run), mesh_rows(run), effort_rows(run, effort)];
    for (what, value) in rows.into_iter().flatten() {
        let _ = write!(page, "<tr><td class=\"words\">{what}</td><td>{value}</td></tr>");
    }
    page.push_str("</table></div>");
}

type Row = (&'static str, String);

/// A row of the wide level alone.
const EVENTS: &str = "most events waiting";

/// Rows that not every level can know.
const OF_SEARCHES: [&str; 4] = [
    "sessions sent home",
    "attempts after a failure",
    "attempts raced against a silent one",
    "sessions through a relay, outside the mesh",
];

/// What clients saw.
fn client_rows(run: &Run) -> Vec<Row> {
    let measures = &run.measures;
    let (requests, sessions) = (measures.requests, measures.sessions);
    let quantiles = |of: Option<Quantiles>, unit: &str| match of {
        Some(it) => format!(
            "half {}{unit}, 90 % {}{unit}, 99 % {}{unit}, 99.9 % {}{unit}, all {}{unit}",
            short(it.p50),
            short(it.p90),
            short(it.p99),
            short(it.p999),
            short(it.max)
        ),
        None => "-".into(),
    };
    let percent = |share: f64| format!("{:.2} %", share * 100.0);
    let (begun, opened, broken) = (sessions.begun, sessions.opened, sessions.broken);
    let mut rows = vec![
        (
            "requests",
            format!(
                "{} in all, {} failed, {} slow, {} sent again",
                requests.total, requests.failed, requests.slow, requests.retried
            ),
        ),
        ("sessions", format!("{begun} begun, {opened} opened, {broken} broken")),
        (OF_SEARCHES[0], sessions.moved.to_string()),
        (OF_SEARCHES[1], sessions.attempts.to_string()),
        (OF_SEARCHES[2], sessions.hedged.to_string()),
        (OF_SEARCHES[3], format!("{}, {}", sessions.relayed, sessions.outside)),
        ("connect", quantiles(measures.connect.quantiles(1e3), " ms")),
        ("request", quantiles(measures.latency.quantiles(1e3), " ms")),
        ("stretch", quantiles(measures.stretch.quantiles(1e3), "")),
        ("stretch in quiet times", quantiles(measures.stretch_quiet.quantiles(1e3), "")),
        ("sessions to the nearest", run.nearest_sessions().map_or("-".into(), percent)),
        ("nodes at the nearest, at the end", percent(run.nearest_share())),
    ];
    if !run.outcome.level.knows("sessions.moved") {
        rows.retain(|(what, _)| !OF_SEARCHES.contains(what));
    }
    rows
}

/// What the mesh found out, and what it sent for that.
fn mesh_rows(run: &Run) -> Vec<Row> {
    let ((gossip, tunnel), (packets, _)) = (run.rates(), run.packets());
    let level = run.outcome.level;
    let mut rows = Vec::new();
    if level.knows("news_p99_s") {
        rows.push(("news to 99 % of nodes", time(run.news_p99())));
    }
    if let Some(seen) = run.measures.suspicions {
        rows.push(("suspicions", seen.words()));
        rows.push(("evictions", seen.evictions.to_string()));
    }
    rows.push(("evictions by mistake", run.measures.false_evictions.to_string()));
    rows.push(("changes of first choices", run.measures.route_changes.to_string()));
    if !level.knows("bytes_per_node_per_s") {
        rows.push(("tunnels", format!("{tunnel:.0} bytes/s a node, with all that is in them")));
        return rows;
    }
    let [swim, sync, news, paths] = run.families();
    rows.extend([
        ("discovery", format!("{gossip:.0} bytes/s a node after the start-up, all headers")),
        ("its datagrams", format!("{packets:.2} a second of a node after the start-up")),
        ("of it membership, comparison", format!("{swim:.0}, {sync:.0} bytes/s")),
        ("of it news, path probes", format!("{news:.0}, {paths:.0} bytes/s")),
        ("tunnels", format!("{tunnel:.0} bytes/s a node: handshakes, keepalives")),
    ]);
    rows
}

/// What the run took.
fn effort_rows(run: &Run, effort: Effort) -> Vec<Row> {
    let (cost, memory) = (run.cost(effort), run.weight(effort) / 1024);
    let mut rows = vec![
        ("seed", run.outcome.seed.to_string()),
        ("datagrams", run.outcome.datagrams.to_string()),
        (EVENTS, run.outcome.longest_queue.to_string()),
        ("wall time", format!("{:.2} s", effort.wall.as_secs_f64())),
        ("processor time", format!("{:.2} s", effort.processor.as_secs_f64())),
        ("processor time of a node-second", format!("{cost:.0} us")),
        ("memory", format!("{} MiB, {memory} KiB a node", effort.memory / (1024 * 1024))),
    ];
    // The runtime of the full level has no queue that could be measured.
    rows.retain(|(what, _)| *what != EVENTS || run.outcome.level == Level::Wide);
    rows
}

/// How many of how many; nothing of nobody.
fn parts(some: usize, of: usize) -> String {
    if of == 0 { "-".into() } else { format!("{some} of {of}") }
}

fn time(time: Option<Duration>) -> String {
    time.map_or("-".into(), |time| format!("{:.2} s", time.as_secs_f64()))
}
