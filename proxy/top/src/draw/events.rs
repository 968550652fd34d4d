//! Events, newest first.

use meshport_core::units::age;
use meshport_daemon::admin::view::{EventRow, View};
use ratatui::text::Line;

use super::Canvas;
use crate::grid::{Cell, Grid, long, right};
use crate::look::{Tone, of_event};

pub(super) fn panel(canvas: &mut Canvas<'_>, view: &View) {
    page(canvas, view, 0);
}

pub(super) fn page(canvas: &mut Canvas<'_>, view: &View, scrolled: usize) -> usize {
    let look = canvas.look;
    canvas.title("Events", "as this node saw them, newest first");
    if view.events.is_empty() {
        canvas.line(1, &Line::from(look.text("No events yet", Tone::Soft)));
        return 0;
    }
    let mut grid = Grid::new(vec![right("AGO", 0), long("EVENT", 0, 5), long("", 0, 20)]);
    for event in &view.events {
        grid.row(vec![
            Cell::new(age(view.now_s.saturating_sub(event.at_s)), Tone::Soft),
            Cell::new(&event.kind, of_event(&event.kind)),
            Cell::plain(words(event, view.services.len() > 1)),
        ]);
    }
    // Titles would add nothing to the rows.
    let lines = grid.lines(canvas.width(), look, 0..usize::MAX, None).split_off(1);
    canvas.lines(1, &lines, scrolled)
}

/// The nodes concerned and what happened.
fn words(event: &EventRow, has_services: bool) -> String {
    let mut who = event.names.join(", ");
    if event.others > 0 {
        who = format!("{who} and {} more", event.others);
    }
    if let Some(service) = event.service.as_ref().filter(|_| has_services) {
        who = if who.is_empty() { service.to_string() } else { format!("{service}, {who}") };
    }
    match event.detail.as_str() {
        "" => who,
        detail if who.is_empty() => detail.to_owned(),
        detail => format!("{who}: {detail}"),
    }
}
