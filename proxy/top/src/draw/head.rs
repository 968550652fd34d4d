//! The head of every page: the node of the view, the routes, findings, and the list of pages.

use std::time::Instant;

use meshport_core::units::{age, counted};
use meshport_daemon::admin::view::{FindingView, ServiceView, View};
use ratatui::style::Modifier;
use ratatui::text::{Line, Span};

use super::{Canvas, TALL, Words, to_rows};
use crate::grid::{cut, wrapped};
use crate::look::{Look, Tone, of_path};
use crate::model::{Model, Page};

/// Seconds after which an answer is marked as old.
const OLD_S: u64 = 4;

/// Columns that the titles of all pages take, and the count of findings.
const FULL_TABS: usize = 79;

/// Rows of the head.
pub(super) fn height(model: &Model, screen: u16) -> u16 {
    let services = model.view.as_ref().map_or(0, |view| shown(view, screen));
    2 + to_rows(services) + u16::from(model.silence.is_some())
}

/// Services that have a line.
fn shown(view: &View, screen: u16) -> usize {
    view.services.len().min(if screen < TALL { 2 } else { 6 })
}

pub(super) fn draw(canvas: &mut Canvas<'_>, model: &Model, now: Instant) {
    let look = canvas.look;
    let mut title = Words::new(look).add("meshport top", Tone::Strong);
    if let Some(view) = &model.view {
        let who = &view.node.who;
        title = title.add(&format!("  {}", who.name), Tone::Strong);
        title = title.add(&format!(" in {}", who.site), Tone::Plain);
        title = title.add(&format!("  {}", view.node.version), Tone::Soft);
    }
    canvas.line(0, &title.line());
    canvas.right(0, &state(model, look, now));
    let mut row = 1;
    if let Some(silence) = &model.silence {
        let passed = age(now.saturating_duration_since(silence.since).as_secs());
        let shown = if model.view.is_some() { ", this is the last known state" } else { "" };
        let text = format!("No answer for {passed}{shown}: {}", silence.why);
        let line = Words::new(look).mark(Tone::Bad).add(&text, Tone::Bad).line();
        canvas.line(row, &line);
        row += 1;
    }
    if let Some(view) = &model.view {
        let room = canvas.height().saturating_sub(row + 1);
        for (at, service) in view.services.iter().take(room).enumerate() {
            let is_selected = view.services.len() > 1 && at == model.service;
            let line = summary(service, view.now_s, is_selected, canvas.width(), look);
            canvas.line(row, &line);
            row += 1;
        }
    }
    let tabs = tabs(model, look, canvas.width());
    canvas.line(row, &tabs);
}

/// The number of members, and the age of the view.
fn state(model: &Model, look: Look, now: Instant) -> Line<'static> {
    let mut words = Words::new(look);
    let Some(view) = &model.view else {
        let text = if model.silence.is_some() { "asking again" } else { "asking" };
        return words.add(text, Tone::Soft).line();
    };
    let members = &view.node.members;
    words = words.add(&format!("{} alive", members.alive), Tone::Plain);
    if members.down > 0 {
        words = words.then(&format!("{} down", members.down), Tone::Bad);
    }
    if members.left > 0 {
        words = words.then(&format!("{} left", members.left), Tone::Soft);
    }
    words = words.then(&format!("up {}", age(view.now_s)), Tone::Soft);
    let old = now.saturating_duration_since(model.came).as_secs();
    words = match (model.is_held, old) {
        (true, _) => words.then(&format!("held, {} old", age(old)), Tone::Warn),
        (false, 0..OLD_S) => words.then("live", Tone::Good),
        (false, _) => words.then(&format!("{} old", age(old)), Tone::Bad),
    };
    if view.node.is_leaving {
        words = words.then("stopping", Tone::Warn);
    }
    words.line()
}

fn summary(
    service: &ServiceView,
    now_s: u64,
    is_selected: bool,
    width: usize,
    look: Look,
) -> Line<'static> {
    let chosen = service.origins.iter().find(|origin| origin.chosen);
    let tone = match chosen {
        None => Tone::Bad,
        Some(origin) if !origin.lacks.is_empty() => Tone::Warn,
        Some(origin) => of_path(&origin.path.kind),
    };
    let name = if is_selected { Tone::Strong } else { Tone::Soft };
    let mut words = Words::new(look).mark(tone).add(service.name.as_ref(), name).add("  ", name);
    words = words.add(&service.summary, Tone::Plain);
    let line = words.clone().line();
    let Some(choice) = &service.chosen else { return line };
    let since = format!(", for {}", age(now_s.saturating_sub(choice.since_at_s)));
    if line.width() + since.len() > width { line } else { words.add(&since, Tone::Soft).line() }
}

fn tabs(model: &Model, look: Look, width: usize) -> Line<'static> {
    let mut spans = Vec::new();
    for (at, page) in Page::ALL.into_iter().enumerate() {
        let found = model.view.as_ref().map_or(0, |view| view.findings.len());
        let count = match page {
            Page::Attention if found > 0 => format!(" {found}"),
            _ => String::new(),
        };
        let text = format!(" {} {page}{count} ", at + 1);
        let style = if page == model.page && !model.is_help {
            look.style(Tone::Strong).add_modifier(Modifier::REVERSED)
        } else if !count.is_empty() {
            look.style(worst(model.view.as_ref()))
        } else {
            look.style(Tone::Plain)
        };
        let is_short = width < FULL_TABS && page != model.page;
        let text = if is_short { format!(" {}{count} ", at + 1) } else { text };
        spans.push(Span::styled(text, style));
    }
    Line::from(spans)
}

fn worst(view: Option<&View>) -> Tone {
    let is_error = view.is_some_and(|view| view.findings.iter().any(|it| it.row.is_error));
    if is_error { Tone::Bad } else { Tone::Warn }
}

fn tone(finding: &FindingView) -> Tone {
    if finding.row.is_error { Tone::Bad } else { Tone::Warn }
}

/// The first findings, one line each.
pub(super) fn findings(canvas: &mut Canvas<'_>, view: &View, room: usize) {
    let look = canvas.look;
    for (row, finding) in view.findings.iter().take(room).enumerate() {
        let words = Words::new(look).mark(tone(finding)).add(&finding.row.id, Tone::Soft);
        let line = words.add(&format!(" {}", finding.row.detail), tone(finding)).line();
        canvas.line(row, &line);
    }
    let more = view.findings.len().saturating_sub(room);
    if more > 0 {
        let text = format!(" and {more} more: 2");
        canvas.right(room - 1, &Words::new(look).add(&text, Tone::Strong).line());
    }
}

/// All findings with their meaning and remedy.
pub(super) fn attention(canvas: &mut Canvas<'_>, view: &View, scrolled: usize) -> usize {
    let look = canvas.look;
    let note = match view.findings.len() {
        0 => String::new(),
        count => format!("{}, as in status and doctor", counted(count as u64, "finding")),
    };
    canvas.title("Needs attention", &note);
    if view.findings.is_empty() {
        let words = Words::new(look).mark(Tone::Good);
        canvas.line(2, &words.add("Nothing needs attention", Tone::Plain).line());
        return 0;
    }
    let width = canvas.width().saturating_sub(4).min(100);
    let mut lines = Vec::new();
    for finding in &view.findings {
        let words = Words::new(look).mark(tone(finding)).add(&finding.row.id, Tone::Soft);
        let title = words.add(&format!(" {}", finding.title), Tone::Strong).line();
        lines.push(title);
        let remedy = format!("{}.", finding.row.remedy.trim_end_matches('.'));
        for (text, tone) in [
            (finding.row.detail.as_str(), tone(finding)),
            (finding.meaning.as_str(), Tone::Soft),
            (remedy.as_str(), Tone::Plain),
        ] {
            lines.extend(wrapped(text, tone, width, look).into_iter().map(indented));
        }
        let explain = format!("meshport doctor --explain {}", finding.row.id);
        let explain = cut(look.text(&explain, Tone::Soft), width, look);
        lines.push(indented(Line::from(explain)));
        lines.push(Line::default());
    }
    canvas.lines(1, &lines, scrolled)
}

fn indented(mut line: Line<'static>) -> Line<'static> {
    line.spans.insert(0, Span::raw("  "));
    line
}
