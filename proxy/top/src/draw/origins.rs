//! Origins: what each one's own node announces, the path to it, and what others see.

use meshport_core::units::{age, counted};
use meshport_daemon::admin::view::{EventRow, OriginRow, PathRow, ServiceView, View};
use ratatui::text::Line;

use super::{Canvas, Words, to_rows};
use crate::grid::{Cell, Grid, left, long, right};
use crate::look::{Look, Tone, ms, of_loss, of_path, of_state};
use crate::model::Model;

/// Rows that all origins take.
pub(super) fn rows(view: &View, model: &Model) -> u16 {
    to_rows(view.services.get(model.service).map_or(1, |it| it.origins.len().max(1)))
}

pub(super) fn panel(canvas: &mut Canvas<'_>, view: &View, model: &Model) {
    let look = canvas.look;
    let Some(service) = view.services.get(model.service) else {
        canvas.title("Origins", "");
        canvas.line(1, &Line::from(look.text("This node uses no service", Tone::Soft)));
        return;
    };
    canvas.title("Origins", &title(service, view));
    if service.origins.is_empty() {
        let words = Words::new(look).mark(Tone::Bad);
        canvas.line(1, &words.add("No origin is known", Tone::Bad).line());
        return;
    }
    let grid = table(service, view.now_s, look);
    let room = canvas.height().saturating_sub(2);
    let fits = grid.len() <= room;
    let shown = if fits { room } else { room.saturating_sub(1) };
    let lines = grid.lines(canvas.width(), look, 0..shown, None);
    canvas.lines(1, &lines, 0);
    if !fits && room > 0 {
        let more = format!("  and {} more: 4", grid.len() - shown);
        canvas.line(canvas.height() - 1, &Line::from(look.text(&more, Tone::Soft)));
    }
}

fn title(service: &ServiceView, view: &View) -> String {
    let name = match view.services.len() {
        0 | 1 => String::new(),
        _ => format!("of {}, ", service.name),
    };
    format!("{name}state reported by its node, path from here")
}

fn table(service: &ServiceView, now_s: u64, look: Look) -> Grid {
    let mut grid = Grid::new(vec![
        left("", 0),
        left("ORIGIN", 0),
        left("SITE", 2),
        left("STATE", 0),
        right("FOR", 5),
        left("PATH", 1),
        right("RTT", 0),
        right("LOSS", 4),
        right("SESSIONS", 3),
        long("PROBLEM", 0, 12),
        long("OTHERS SEE", 6, 16),
    ]);
    for origin in &service.origins {
        let (path, rtt, loss) = way(&origin.path);
        let seen = origin.seen.as_ref().map_or("", |seen| seen.words.as_str());
        grid.row(vec![
            Cell::new(mark(origin, look), Tone::Good),
            Cell::new(&origin.who.name, if origin.chosen { Tone::Strong } else { Tone::Plain }),
            Cell::plain(origin.who.site_or_dash()),
            Cell::new(&origin.state, of_state(&origin.state)),
            Cell::new(age(now_s.saturating_sub(origin.state_at_s)), Tone::Soft),
            path,
            rtt,
            loss,
            Cell::plain(origin.sessions.to_string()),
            Cell::new(&origin.lacks, lacks(origin)),
            Cell::new(seen, Tone::Soft),
        ]);
    }
    grid
}

/// Whether new sessions go to an origin.
fn mark(origin: &OriginRow, look: Look) -> &'static str {
    match (origin.chosen, origin.shares) {
        (true, _) => look.pointer(),
        (false, true) => "+",
        (false, false) => "",
    }
}

fn lacks(origin: &OriginRow) -> Tone {
    if origin.usable { Tone::Warn } else { Tone::Bad }
}

/// A path, its round trip and its loss.
pub(super) fn way(path: &PathRow) -> (Cell, Cell, Cell) {
    let words = match (path.kind.as_str(), &path.relay) {
        ("relay", Some(relay)) => format!("via {relay}"),
        ("none", _) => "-".into(),
        (kind, _) => kind.into(),
    };
    let rtt = path.rtt_ms.map_or_else(|| "-".into(), ms);
    let loss = path.loss_percent.filter(|_| path.kind != "dead");
    let loss =
        loss.map_or_else(|| Cell::plain("-"), |it| Cell::new(format!("{it} %"), of_loss(it)));
    (Cell::new(words, of_path(&path.kind)), Cell::plain(rtt), loss)
}

pub(super) fn page(canvas: &mut Canvas<'_>, view: &View, model: &Model) -> usize {
    let look = canvas.look;
    let Some(service) = view.services.get(model.service) else {
        panel(canvas, view, model);
        return 0;
    };
    canvas.title("Origins", &title(service, view));
    let width = canvas.width();
    let mut lines = table(service, view.now_s, look).lines(width, look, 0..usize::MAX, None);
    lines.push(Line::default());
    let listen: Vec<String> = service.listen.iter().map(ToString::to_string).collect();
    let facts = match listen.is_empty() {
        true => "offered only, clients of this node do not use it".to_owned(),
        false => format!("clients connect to {}, policy {}", listen.join(" and "), service.policy),
    };
    lines.push(
        Words::new(look).add(service.name.as_ref(), Tone::Strong).then(&facts, Tone::Plain).line(),
    );
    if let Some(offering) = &service.offering {
        let since = age(view.now_s.saturating_sub(offering.since_at_s));
        let words = Words::new(look).add("this node offers ", Tone::Plain);
        let words = words.add(&offering.address, Tone::Strong).add(": ", Tone::Plain);
        let words = words.add(&offering.state, of_state(&offering.state));
        let words = words.add(&format!(" for {since}, {}", offering.detail), Tone::Plain);
        let sessions = format!("{} of other nodes", counted(offering.sessions, "session"));
        lines.push(words.then(&sessions, Tone::Soft).line());
    }
    lines.push(Line::default());
    for origin in &service.origins {
        lines.extend(details(origin, look));
    }
    lines.push(Line::default());
    lines.push(look.rule("Route changes", "newest first", width));
    let is_about = |it: &&EventRow| {
        it.kind == "route" && it.service.as_ref().is_none_or(|of| *of == service.name)
    };
    let changes: Vec<&EventRow> = view.events.iter().filter(is_about).collect();
    if changes.is_empty() {
        lines.push(Line::from(look.text("none since the start of the daemon", Tone::Soft)));
    }
    for event in changes {
        let ago = age(view.now_s.saturating_sub(event.at_s));
        let words = Words::new(look).add(&format!("{ago:>8} ago  "), Tone::Soft);
        lines.push(words.add(&event.detail, Tone::Plain).line());
    }
    canvas.lines(1, &lines, model.scrolled)
}

/// Details that are not in the table.
fn details(origin: &OriginRow, look: Look) -> Vec<Line<'static>> {
    let tone = if origin.usable { of_state(&origin.state) } else { Tone::Bad };
    let words = Words::new(look).mark(tone).add(&origin.who.name, Tone::Strong);
    let cost = format!("{}, cost {}", origin.standing, ms(origin.cost_ms));
    let mut words = words.then(&cost, Tone::Plain);
    if origin.shares && !origin.chosen {
        words = words.then("shares new sessions", Tone::Plain);
    }
    let mut lines = vec![words.line()];
    if let Some(seen) = &origin.seen {
        lines.push(Line::from(look.text(&format!("  {}", seen.words), Tone::Soft)));
    }
    let relays: Vec<String> = origin
        .relays
        .iter()
        .take(3)
        .map(|it| format!("{} in {} ({})", it.name, it.site, ms(it.rtt_ms)))
        .collect();
    if !relays.is_empty() {
        let text = format!("  could be relayed by {}", relays.join(", "));
        lines.push(Line::from(look.text(&text, Tone::Soft)));
    }
    lines
}
