//! Sites and the paths to them, and the distances between all of them.

use meshport_core::units::age;
use meshport_daemon::admin::view::{SiteDistance, View};
use ratatui::text::Line;

use super::Canvas;
use super::origins::way;
use crate::grid::{Cell, Grid, left, right};
use crate::look::{Look, Tone, ms, of_loss};
use crate::model::Model;
use crate::sites::{Matrix, Site, sites};

pub(super) fn panel(canvas: &mut Canvas<'_>, view: &View, model: &Model) {
    let look = canvas.look;
    canvas.title("Sites", "the best path from here");
    let grid = table(view, model, look);
    let room = canvas.height().saturating_sub(2);
    let fits = grid.len() <= room;
    let shown = 0..if fits { room } else { room.saturating_sub(1) };
    let more = grid.len() - shown.end.min(grid.len());
    let lines = grid.lines(canvas.width(), look, shown, None);
    canvas.lines(1, &lines, 0);
    if !fits && room > 0 {
        let text = format!("  and {more} more: 3");
        canvas.line(canvas.height() - 1, &Line::from(look.text(&text, Tone::Soft)));
    }
}

fn table(view: &View, model: &Model, look: Look) -> Grid {
    let mut grid = Grid::new(vec![
        left("", 0),
        left("SITE", 0),
        right("NODES", 2),
        right("ORIGINS", 1),
        left("PATH", 0),
        right("RTT", 0),
        right("LOSS", 3),
        right("RELAYS", 4),
    ]);
    for site in sites(view, model.service) {
        grid.row(row(&site, look));
    }
    grid
}

fn row(site: &Site<'_>, look: Look) -> Vec<Cell> {
    let of = |some: usize, all: usize, none: &str| match all {
        0 => Cell::new(none, Tone::Soft),
        all if some == 0 => Cell::new(format!("{some}/{all}"), Tone::Bad),
        all if some < all => Cell::new(format!("{some}/{all}"), Tone::Warn),
        all => Cell::plain(format!("{some}/{all}")),
    };
    let (path, rtt, loss) = match site.path {
        Some(path) if path.kind == "own" => {
            (Cell::new("here", Tone::Good), Cell::plain("-"), Cell::plain("-"))
        }
        Some(path) => way(path),
        None => (Cell::new("not measured", Tone::Soft), Cell::plain("-"), Cell::plain("-")),
    };
    let name = if site.row.own { Tone::Strong } else { Tone::Plain };
    vec![
        Cell::new(if site.chosen { look.pointer() } else { "" }, Tone::Good),
        Cell::new(site.row.name.to_string(), name),
        of(site.row.alive, site.row.nodes, "0"),
        of(site.row.ready, site.row.origins, "-"),
        path,
        rtt,
        loss,
        if site.row.relays > 0 {
            Cell::plain(site.row.relays.to_string())
        } else {
            Cell::plain("")
        },
    ]
}

pub(super) fn page(canvas: &mut Canvas<'_>, view: &View, model: &Model) -> usize {
    let look = canvas.look;
    let width = canvas.width();
    canvas.title("Sites", "nodes that answer, origins that are ready, the best path from here");
    let mut lines = table(view, model, look).lines(width, look, 0..usize::MAX, None);
    lines.push(Line::default());
    lines.extend(distances(view, width, look));
    canvas.lines(1, &lines, model.scrolled)
}

/// Rows of the table of distances, without its titles.
pub(super) fn matrix_rows(view: &View) -> u16 {
    super::to_rows(Matrix::of(view).from.len())
}

pub(super) fn matrix(canvas: &mut Canvas<'_>, view: &View) {
    let lines = distances(view, canvas.width(), canvas.look);
    canvas.lines(0, &lines, 0);
}

fn distances(view: &View, width: usize, look: Look) -> Vec<Line<'static>> {
    let told = view.distances.iter().map(|row| row.told_at_s).max();
    let note = told.map_or_else(
        || "no distances reported yet".to_owned(),
        |at_s| {
            let ago = age(view.now_s.saturating_sub(at_s));
            format!("medians reported by the nodes of each site, {ago} ago")
        },
    );
    let mut lines = vec![look.rule("Round trips", &note, width)];
    let matrix = Matrix::of(view);
    let mut columns = vec![left("FROM", 0)];
    columns.extend(matrix.to.iter().map(|to| right(format!("to {to}"), 1)));
    let mut grid = Grid::new(columns);
    for from in &matrix.from {
        let own = if **from == view.node.who.site { Tone::Strong } else { Tone::Plain };
        let mut cells = vec![Cell::new(from.to_string(), own)];
        cells.extend(matrix.to.iter().map(|to| cell(matrix.cell(from, to))));
        grid.row(cells);
    }
    if !matrix.from.is_empty() {
        lines.extend(grid.lines(width, look, 0..usize::MAX, None));
    }
    lines
}

fn cell(distance: Option<&SiteDistance>) -> Cell {
    let Some(distance) = distance else { return Cell::new("-", Tone::Soft) };
    let Some(rtt) = distance.rtt_ms else { return Cell::new("cut off", Tone::Bad) };
    let mut text = ms(rtt);
    let mut tone = of_loss(distance.loss_percent);
    if distance.loss_percent > 1 {
        text = format!("{text}, {} %", distance.loss_percent);
    }
    if distance.unreachable > 0 {
        text = format!("{text}, {}/{} cut", distance.unreachable, distance.pairs);
        tone = Tone::Warn;
    }
    Cell::new(text, tone)
}
