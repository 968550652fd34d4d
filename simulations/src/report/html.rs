//! Runs and sweeps as a self-contained page or drawing, which loads nothing from elsewhere.
//!
//! The page of a run has one script, which draws its [film](super::film) with the drawing code of
//! the daemon's own page.

use std::collections::BTreeMap;
use std::f64::consts::TAU;
use std::time::Duration;

use maud::{DOCTYPE, Markup, PreEscaped, html};
use meshport_charts::{self as charts, Axis, Bars, Chart, Drawing, Panels, Series, short};

use meshport_daemon::admin::page::{self, drawing};

use super::film::Film;
use super::text::{self, parts, time};
use super::{Effort, NEVER, Run, Violation};
use crate::measure::{Fault, Histogram, Second};

const STYLE: &str = include_str!("page.css");
/// The style and the script of a film.
const FILM_STYLE: &str = include_str!("film.css");
const FILM_SCRIPT: &str = include_str!("film.js");
/// Faults and violations in a table.
const MAX_ROWS: usize = 100;
/// Panels of a sweep in one row.
const COLUMNS: usize = 3;
/// Height of a drawing without its labels.
const HEIGHT: f64 = 165.0;

/// A sweep: the label of each combination of values, and its measures.
pub type Rows = [(String, Vec<Option<f64>>)];

/// A sweep as a page: a table, and one drawing that compares the combinations of values. `notes`
/// are sentences without their full stop.
pub fn sweep(scenario: &str, measures: &[&str], rows: &Rows, notes: &[String]) -> String {
    let word = |value: &Option<f64>| match value {
        None => "-".to_owned(),
        Some(NEVER) => "never".to_owned(),
        Some(value) => short(*value),
    };
    let body = html! {
        h1 { "Sweep of " (scenario) }
        div.wide tabindex="0" { table {
            tr { th {} @for measure in measures { th { (measure) } } }
            @for (index, (words, values)) in rows.iter().enumerate() {
                tr {
                    td.words { (index + 1) ". " (words) }
                    @for value in values { td { (word(value)) } }
                }
            }
        } }
        @for note in notes { p { (note) "." } }
        h2 { "The measures that differ, the worst seed of each row" }
        figure tabindex="0" { (drawing(measures, rows)) }
    };
    document(scenario, &body, false)
}

/// A sweep as a drawing: a panel for each measure that differs, a bar for each combination.
pub fn drawing(measures: &[&str], rows: &Rows) -> Drawing {
    let values =
        |measure: usize| rows.iter().map(move |(_, values)| values.get(measure).copied()?);
    let differs = |measure: &usize| {
        let known = || values(*measure).flatten();
        let never = known().filter(|value| *value == NEVER).count();
        let top = known().filter(|value| value.is_finite()).fold(0.0, f64::max);
        (never > 0 && never < rows.len()) || known().any(|value| top - value > top * 0.02)
    };
    let shown: Vec<usize> = (0..measures.len()).filter(differs).collect();
    let line = |shown: &[usize]| Panels {
        title: String::new(),
        rows: rows.iter().map(|(words, _)| (words.as_str(), "s2")).collect(),
        panels: shown.iter().map(|at| (measures[*at], values(*at).collect())).collect(),
    };
    Bars { title: "measures that differ", lines: shown.chunks(COLUMNS).map(line).collect() }.draw()
}

/// A run as a page. `again` returns the command that reproduces a violation.
pub fn page(
    run: &Run,
    scenario: &str,
    effort: Effort,
    command: &str,
    again: &dyn Fn(&Violation) -> String,
) -> String {
    let body = html! {
        h1 { (scenario) }
        p.about { (run.outcome.description) }
        (tiles(run))
        @for it in run.violations.iter().take(MAX_ROWS) { (violation(it, &again(it))) }
        @match &run.film {
            Some(film) => (moments(run, film)),
            None => { h2 { "Final routes" } figure tabindex="0" { (map(run)) } },
        }
        h2 { "Events, and their effect on clients" }
        (timelines(run))
        (faults(run))
        h2 { "Distributions" }
        (distributions(run))
        h2 { "Numbers" }
        div.wide tabindex="0" { table {
            @for (name, words) in text::numbers(run, effort) {
                tr { td.name { (name) } td.words { (words) } }
            }
        } }
        h2 { "Reproduce" }
        p { "The same file and seed give an identical run." }
        pre tabindex="0" { (command) }
    };
    document(scenario, &body, run.film.is_some())
}

/// A page, with the script of a film or without any.
fn document(title: &str, body: &Markup, has_film: bool) -> String {
    let script = format!("{}{FILM_SCRIPT}", drawing::SCRIPT);
    let runs = if has_film { format!("'{}'", page::hash(&script)) } else { "'none'".into() };
    let policy = format!(
        "default-src 'none'; style-src 'unsafe-inline'; script-src {runs}; base-uri 'none'; \
         form-action 'none'"
    );
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy);
                meta name="viewport" content="width=device-width";
                title { (title) }
                style {
                    (PreEscaped(charts::STYLE)) (PreEscaped(STYLE))
                    @if has_film {
                        (PreEscaped(drawing::THEME)) (PreEscaped(drawing::STYLE))
                        (PreEscaped(FILM_STYLE))
                    }
                }
            }
            body {
                main { (body) }
                @if has_film { script { (PreEscaped(script)) } }
            }
        }
    };
    page.into_string()
}

/// The map with its slider; without a script, the map at the end.
fn moments(run: &Run, film: &Film) -> Markup {
    let end = run.outcome.virtual_time;
    html! {
        h2 { "Routes over time" }
        section.film aria-label="Film of the run" {
            div.map #map {}
            div.strip #strip {}
            input.moment #moment type="range" min="0" max=(end.as_secs()) step="1" value="0"
                aria-label="Moment, in virtual seconds";
            div.slider {
                button #play type="button" { "Play" }
                button #before type="button" aria-label="Previous change" { "‹" }
                button #after type="button" aria-label="Next change" { "›" }
                output #when for="moment" {}
            }
            p.now #now role="status" {}
            ol.marks #marks {}
            div.key aria-hidden="true" {
                span { svg { path.path.used.ok d="M0 4H22" {} } "used by most nodes of a site" }
                span { svg { path.path.mine.ok d="M0 4H22" {} } "used by some" }
                span { svg { path.path.mine.warn d="M0 4H22" {} } "some of them cannot connect" }
                span { svg { path.path.mine.bad d="M0 4H22" {} } "none of them can connect" }
                span { svg { path.path.mine.relayed d="M0 4H22" {} } "through a relay" }
                span { svg { path.path d="M0 4H22" {} } "other paths" }
            }
        }
        noscript { figure tabindex="0" { (map(run)) } }
        script type="application/json" #film { (PreEscaped(film.json(&marks(run, end), end))) }
    }
}

/// Start and end times of faults up to that time, in order.
fn marks(run: &Run, until: Duration) -> Vec<(f64, String)> {
    let begins = |it: &Fault| (it.at.as_secs_f64(), it.what.clone());
    let ends = |it: &Fault| Some((it.over?.as_secs_f64(), format!("{} ends", it.what)));
    let faults = &run.measures.faults;
    let mut marks: Vec<(f64, String)> =
        faults.iter().map(begins).chain(faults.iter().filter_map(ends)).collect();
    marks.retain(|(at, _)| *at <= until.as_secs_f64());
    marks.sort_by(|a, b| a.0.total_cmp(&b.0));
    marks
}

fn tiles(run: &Run) -> Markup {
    let requests = run.measures.requests;
    let stretch =
        run.measures.choices.stretch_quiet.quantiles(1e3).map(|it| format!("{:.2}", it.p99));
    let known = run.outcome.level.knows("bytes_per_node_per_s");
    let gossip = if known { short(run.rates().0) } else { "-".into() };
    let suspected = run.measures.suspicions.map(|seen| seen.wrong.to_string());
    let held = if run.violations.is_empty() { "hold" } else { "violated" };
    let tiles = [
        (run.outcome.nodes.len().to_string(), "nodes"),
        (short(run.outcome.virtual_time.as_secs_f64()), "virtual seconds"),
        (short(requests.total as f64), "requests"),
        (requests.failed.to_string(), "failed"),
        (requests.slow.to_string(), "slower than 1 s"),
        (stretch.unwrap_or("-".into()), "stretch, 99 %, quiet"),
        (time(run.news_p99()), "news to 99 %"),
        (gossip, "bytes/s of gossip a node"),
        (suspected.unwrap_or("-".into()), "suspected by mistake"),
        (run.measures.false_evictions.to_string(), "evicted by mistake"),
        (held.into(), "rules"),
    ];
    html! {
        div.tiles { @for (value, words) in tiles { div.tile { b { (value) } span { (words) } } } }
    }
}

fn violation(violation: &Violation, again: &str) -> Markup {
    let node = violation.node.as_deref().unwrap_or("the world");
    let at = format!("{:.3} s", violation.at.as_secs_f64());
    html! {
        section.violation {
            h3 { (violation.rule) " at " (at) ", " (node) }
            p { (violation.what) }
            pre tabindex="0" { (violation.last.join("\n")) }
            p { "To reproduce it:" }
            pre tabindex="0" { (again) }
        }
    }
}

/// Sites on a circle, with arrows whose width is the number of nodes.
fn map(run: &Run) -> Markup {
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
        // Two sites are side by side, so that no arrow crosses the labels below them.
        let first = if sites == 2 { TAU / 2.0 } else { -TAU / 4.0 };
        let turn = site as f64 / sites as f64 * TAU + first;
        ((450.0 + 330.0 * turn.cos()).round(), (190.0 + 140.0 * turn.sin()).round())
    };
    // Arrows leave and arrive on the side of the middle, through which they bend.
    let inwards = |(x, y): (f64, f64), by: f64| {
        let length = (450.0 - x).hypot(190.0 - y).max(1.0);
        format!("{:.0} {:.0}", x + (450.0 - x) / length * by, y + (190.0 - y) / length * by)
    };
    html! {
        svg viewBox="0 0 900 390" role="img" aria-label="routes between sites" {
            defs {
                marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9"
                    markerHeight="9" markerUnits="userSpaceOnUse" orient="auto" {
                    path d="M0 0L8 4L0 8z" {}
                }
            }
            @for ((from, to), nodes) in flows.iter().filter(|((from, to), _)| from != to) {
                path.flow.s2 stroke-width=(1.0 + 5.0 * *nodes as f64 / count[*from].max(1) as f64)
                    marker-end="url(#tip)"
                    d={ "M" (inwards(at(*from), 34.0)) "Q450 190 " (inwards(at(*to), 36.0)) } {
                    title { (nodes) " nodes of " (outcome.sites[*from]) " go to "
                        (outcome.sites[*to]) }
                }
            }
            @for (site, name) in outcome.sites.iter().enumerate() {
                @let (x, y) = at(site);
                @let home = flows.get(&(site, site)).copied().unwrap_or(0);
                @let class = if nowhere[site] > 0 { "site bad" } else { "site good" };
                circle class=(class) cx=(x) cy=(y) r="30" {}
                text.title x=(x) y=(y + 4.0) text-anchor="middle" { (name) }
                text.soft x=(x) y=(if y < 180.0 { y - 38.0 } else { y + 45.0 })
                    text-anchor="middle" { (home) " of " (count[site]) " at home" }
            }
        }
    }
}

fn timelines(run: &Run) -> Markup {
    // The last second is incomplete.
    let whole = usize::try_from(run.outcome.virtual_time.as_secs()).unwrap_or(usize::MAX);
    let line = &run.measures.timeline[..whole.min(run.measures.timeline.len())];
    let warmup = usize::try_from(run.outcome.warmup.as_secs()).unwrap_or(usize::MAX);
    let marks = marks(run, Duration::from_secs(line.len() as u64));
    let per_node = |of: u64, second: &Second| of as f64 / f64::from(second.running.max(1));
    let series = |name, class: &str, of: &dyn Fn(&Second) -> f64| {
        let points = line.iter().enumerate().map(|(at, second)| (at as f64, of(second))).collect();
        Series { name, class: class.to_owned(), points, ..Series::default() }
    };
    let bars = |name, class, of| Series { bars: true, ..series(name, class, of) };
    // Start-up costs a hundred times as much as the rest, and would hide it.
    let after = |name, class, of| {
        let mut series = series(name, class, of);
        series.points.drain(..warmup.min(series.points.len()));
        series
    };
    let chart = |title, y, series| {
        let (x, y) = (Axis { words: "virtual seconds", log: false }, Axis { words: y, log: false });
        let marks = marks.clone();
        Chart { title, x, y, series, marks, height: HEIGHT, ..Chart::default() }.draw()
    };
    let mut traffic = vec![
        after("discovery", "s2", &|it| per_node(it.gossip_bytes, it)),
        after("tunnels", "s4", &|it| per_node(it.tunnel_bytes, it)),
    ];
    if !run.outcome.level.knows("bytes_per_node_per_s") {
        traffic.remove(0);
    }
    let requests = vec![
        bars("failed", "bad", &|it| f64::from(it.failed)),
        bars("slower than 1 s", "slow", &|it| f64::from(it.slow)),
        series("answered", "good", &|it| f64::from(it.answered)),
    ];
    let routes = vec![
        bars("sessions that broke", "bad", &|it| f64::from(it.broken)),
        bars("nodes that changed their first choice", "s2", &|it| f64::from(it.moved)),
    ];
    html! {
        figure tabindex="0" { (chart("Requests", "a second", requests)) }
        figure tabindex="0" { (chart("Routes and sessions", "a second", routes)) }
        figure tabindex="0" {
            (chart("Traffic of a node, after the start-up", "bytes/s, all headers", traffic))
        }
    }
}

fn faults(run: &Run) -> Markup {
    let faults = &run.measures.faults;
    let row = |fault: &Fault| {
        let followed = run.followed(fault);
        let nodes = if followed.nodes == 0 { "-".into() } else { followed.nodes.to_string() };
        html! {
            tr {
                td { (format!("{:.1} s", fault.at.as_secs_f64())) }
                td.words { (fault.what) }
                td { (nodes) }
                td { (parts(followed.noticed, followed.concerned)) }
                td { (time(followed.detected_p50)) }
                td { (time(followed.detected_p99)) }
                td { (time(followed.same_site_p99)) }
                td { (parts(followed.left, followed.users)) }
                td { (time(followed.failover_p99)) }
                td { (followed.failed) }
                td { (followed.slow) }
            }
        }
    };
    let more = faults.len().saturating_sub(MAX_ROWS);
    html! {
        @if !faults.is_empty() {
            h2 { "Faults and changes" }
            div.wide tabindex="0" { table {
                tr {
                    th { "at" } th.words { "what" } th { "nodes" } th { "noticed by" } th { "half" }
                    th { "99 %" } th { "same site 99\u{a0}%" } th { "users who left" }
                    th { "failover 99\u{a0}%" } th { "failed" } th { "slow" }
                }
                @for fault in faults.iter().take(MAX_ROWS) { (row(fault)) }
            } }
            @if more > 0 { p.about { "And " (more) " more." } }
            p.about {
                "Failed and slow are the requests of all clients, from the beginning of the fault \
                 until ten seconds after its end; of one without an end, after a minute."
            }
        }
    }
}

fn distributions(run: &Run) -> Markup {
    let measures = &run.measures;
    let curve = |name, class: &str, of: &Histogram| {
        let points =
            of.shares().map(|(value, share)| (value as f64 / 1e3, share * 100.0)).collect();
        Series { name, class: class.to_owned(), points, ..Series::default() }
    };
    let chart = |title, x, series| {
        let (x, y) = (Axis { words: x, log: true }, Axis { words: "% not above", log: false });
        Chart { title, x, y, series, height: HEIGHT, ..Chart::default() }.draw()
    };
    let times = vec![
        curve("connect", "s2", &measures.latency.connect),
        curve("request", "s4", &measures.latency.request),
    ];
    let stretch = vec![
        curve("all sessions", "s2", &measures.choices.stretch),
        curve("quiet times", "s4", &measures.choices.stretch_quiet),
    ];
    html! {
        figure tabindex="0" { (chart("Time to connect, and of a request", "milliseconds", times)) }
        figure tabindex="0" {
            (chart("Stretch: chosen round trip over the best possible", "times", stretch))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_drawn_and_what_is_missing_is_said() {
        let rows = [
            ("a<1".to_owned(), vec![Some(3.0), Some(1.0), Some(NEVER)]),
            ("a=2".to_owned(), vec![Some(3.0), Some(4.0), Some(2.0)]),
            ("a=3".to_owned(), vec![Some(3.0), Some(4.0), None]),
        ];
        let drawing = drawing(&["same", "differs", "partly"], &rows).to_string();
        assert!(drawing.contains(">none<"), "{drawing}");
        assert!(drawing.contains(">differs<") && !drawing.contains(">same<"), "{drawing}");
        assert!(drawing.contains(">never<") && drawing.contains(">partly<"), "{drawing}");
        assert!(drawing.contains("a&lt;1"), "{drawing}");
    }
}
