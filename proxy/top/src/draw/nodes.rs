//! Nodes: a list that is searched, filtered and sorted, and all facts about one of them.

use meshport_core::units::age;
use meshport_daemon::admin::credentials::Validity;
use meshport_daemon::admin::view::{NodeRow, View};
use ratatui::text::Line;

use super::origins::way;
use super::{Canvas, Words};
use crate::grid::{Cell, Grid, left, long, right};
use crate::look::{Look, Tone, of_liveness, of_state};
use crate::nodes::{Filter, Listing, tone};

/// Remaining validity below which a credential needs attention where the view does not say so.
const UNRENEWED_S: u64 = 7 * 24 * 60 * 60;

/// The most important nodes, as many as fit.
pub(super) fn panel(canvas: &mut Canvas<'_>, view: &View) {
    let look = canvas.look;
    let room = canvas.height().saturating_sub(2);
    if room == 0 {
        return;
    }
    let all = view.nodes.len() + view.nodes_left_out;
    canvas.title("Nodes", &format!("{} of {all}, all of them: 7", room.min(view.nodes.len())));
    let rows: Vec<&NodeRow> = view.nodes.iter().collect();
    let lines = table(&rows, view).lines(canvas.width(), look, 0..room, None);
    canvas.lines(1, &lines, 0);
}

pub(super) fn page(canvas: &mut Canvas<'_>, view: &View, listing: &Listing) -> usize {
    let look = canvas.look;
    let rows = listing.rows(view);
    let all = view.nodes.len() + view.nodes_left_out;
    canvas.title("Nodes", &format!("{} of {all}", rows.len()));
    canvas.line(1, &choices(listing, look));
    if listing.is_open
        && let Some(node) = rows.get(listing.position(&rows))
    {
        let lines = details(node, view, look);
        return canvas.lines(3, &lines, 0);
    }
    if rows.is_empty() {
        canvas.line(3, &Line::from(look.text("No matching nodes; Esc clears", Tone::Soft)));
        return 0;
    }
    let room = canvas.height().saturating_sub(3);
    let selected = listing.position(&rows);
    // The selected one stays in the middle, as far as the ends of the list allow.
    let last = rows.len().saturating_sub(room);
    let first = selected.saturating_sub(room / 2).min(last);
    let shown = first..first + room;
    let lines = table(&rows, view).lines(canvas.width(), look, shown, Some(selected));
    canvas.lines(2, &lines, 0);
    0
}

fn choices(listing: &Listing, look: Look) -> Line<'static> {
    let mut words = Words::new(look);
    if listing.is_typing || !listing.search.is_empty() {
        let cursor = if listing.is_typing { "_" } else { "" };
        words = words.add("/", Tone::Strong);
        words = words.add(&format!("{}{cursor}", listing.search), Tone::Strong);
    }
    let filter = if listing.filter == Filter::All { Tone::Soft } else { Tone::Strong };
    let order = if listing.is_reversed { ", reversed" } else { "" };
    words
        .then(&format!("filter: {}", listing.filter.word()), filter)
        .then(&format!("sorted by {}{order}", listing.sort.word()), Tone::Soft)
        .line()
}

fn table(rows: &[&NodeRow], view: &View) -> Grid {
    let mut grid = Grid::new(vec![
        left("NODE", 0),
        left("SITE", 0),
        left("STATE", 0),
        right("FOR", 3),
        left("PATH", 1),
        right("RTT", 1),
        right("LOSS", 5),
        long("ROLES", 2, 10),
        left("VERSION", 4),
        right("CREDENTIAL", 2),
    ]);
    for node in rows {
        let (path, rtt, loss) = way(&node.path);
        let own = if node.who.node == view.node.who.node { Tone::Strong } else { Tone::Plain };
        let (left_s, ends) = credential(node, view);
        let soon = match node.credential_validity {
            Some(Validity::Valid) => Tone::Soft,
            None if left_s >= UNRENEWED_S => Tone::Soft,
            _ => Tone::Warn,
        };
        grid.row(vec![
            Cell::new(node.who.name.to_string(), own),
            Cell::plain(node.who.site.to_string()),
            Cell::new(&node.liveness, of_liveness(&node.liveness)),
            Cell::new(age(view.now_s.saturating_sub(node.since_at_s)), Tone::Soft),
            path,
            rtt,
            loss,
            Cell::plain(node.roles.to_string()),
            Cell::plain(node.version.as_deref().unwrap_or("")),
            Cell::new(ends, soon),
        ]);
    }
    grid
}

/// Seconds until the credential ends, by the clock of the answering node, and in words.
fn credential(node: &NodeRow, view: &View) -> (u64, String) {
    let now = view.node.started_at.0.saturating_add(view.now_s);
    match node.credential_expires_at.0.saturating_sub(now) {
        0 => (0, "expired".into()),
        left => (left, age(left)),
    }
}

fn details(node: &NodeRow, view: &View, look: Look) -> Vec<Line<'static>> {
    let ago = |at_s: u64| age(view.now_s.saturating_sub(at_s));
    let (path, rtt, loss) = way(&node.path);
    let issued = view.node.started_at.0 + view.now_s;
    let issued = age(issued.saturating_sub(node.credential_issued_at.0));
    let offers: Vec<String> =
        node.offers.iter().map(|it| format!("{} ({})", it.service, it.state)).collect();
    let worst = node.offers.iter().map(|it| of_state(&it.state)).find(|it| *it != Tone::Good);
    let fact = |name: &str, cells: &[(&str, Tone)]| {
        let words = Words::new(look).add(&format!("  {name:<12}"), Tone::Soft);
        cells.iter().fold(words, |words, (text, tone)| words.add(text, *tone)).line()
    };
    let [path, rtt, loss] = [path, rtt, loss].map(Cell::into_text);
    let heard =
        node.path.heard_at_s.map_or_else(String::new, |at| format!(", heard {} ago", ago(at)));
    let told = node.told_at_s.map_or_else(|| "never".to_owned(), |at| format!("{} ago", ago(at)));
    let name = format!("{} in {}", node.who.name, node.who.site);
    vec![
        Words::new(look).mark(tone(node)).add(&name, Tone::Strong).line(),
        Line::default(),
        fact("key", &[(&node.who.node.to_string(), Tone::Plain)]),
        fact(
            "membership",
            &[
                (&node.liveness, of_liveness(&node.liveness)),
                (&format!(" for {}", ago(node.since_at_s)), Tone::Plain),
            ],
        ),
        fact("path", &[(&format!("{path}, round trip {rtt}, loss {loss}{heard}"), Tone::Plain)]),
        fact("roles", &[(&node.roles.to_string(), Tone::Plain)]),
        fact(
            "offers",
            &[(
                &if offers.is_empty() { "nothing".to_owned() } else { offers.join(", ") },
                worst.unwrap_or(Tone::Plain),
            )],
        ),
        fact("version", &[(node.version.as_deref().unwrap_or("not known here"), Tone::Plain)]),
        fact(
            "credential",
            &[(
                &format!("issued {issued} ago, expires in {}", credential(node, view).1),
                Tone::Plain,
            )],
        ),
        fact("record", &[(&format!("last received {told}"), Tone::Plain)]),
        fact("NAT", &[(if node.behind_nat { "behind NAT" } else { "not seen" }, Tone::Plain)]),
    ]
}
