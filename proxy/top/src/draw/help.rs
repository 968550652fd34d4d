//! The keys: in one line below every page, and all of them with their effects.

use ratatui::text::{Line, Span};

use super::Canvas;
use crate::look::{Look, Tone};
use crate::model::{Model, Page};

const ALL: [(&str, &str); 17] = [
    ("1 to 7, Tab, left, right", "another page"),
    ("up, down, j, k", "one row"),
    ("PgUp, PgDn, g, G", "several rows, the first, the last"),
    ("v", "the next service, where there are several"),
    ("space", "pause and resume"),
    ("? and q, Ctrl-C", "this help; quit"),
    ("", ""),
    ("on Nodes", ""),
    ("/", "search names, sites, states, paths, roles, keys"),
    ("f", "filter: needs attention, origins, relays, this site"),
    ("s, r", "sort by name, site, round trip, credential; reverse"),
    ("Enter", "all about the selected node; Esc closes it"),
    ("", ""),
    ("whose view", "states: reported by each origin's node"),
    ("", "paths, sessions, events: what this node sees"),
    ("", "round trips between sites: as the nodes there report"),
    ("", "the rest: what all members agree on"),
];

/// The line at the bottom.
pub(super) fn keys(canvas: &mut Canvas<'_>, model: &Model) {
    let look = canvas.look;
    let several = model.view.as_ref().is_some_and(|view| view.services.len() > 1);
    let mut keys: Vec<(&str, &str)> = Vec::new();
    if model.nodes.is_typing {
        keys.extend([("Enter", "keep"), ("Esc", "clear")]);
    } else if model.is_help {
        keys.push(("any key", "back"));
    } else {
        match model.page {
            Page::Nodes if model.nodes.is_open => keys.push(("Esc", "close")),
            Page::Nodes => keys.extend([
                ("/", "search"),
                ("f", "filter"),
                ("s", "sort"),
                ("r", "reverse"),
                ("Enter", "details"),
            ]),
            Page::Overview => keys.extend([("1-7", "pages"), ("/", "search nodes")]),
            _ => keys.extend([("1-7", "pages"), ("j k", "scroll")]),
        }
        if several {
            keys.push(("v", "service"));
        }
        if model.is_held {
            keys.push(("space", "resume"));
        } else if model.page != Page::Nodes {
            keys.push(("space", "pause"));
        }
        keys.extend([("?", "help"), ("q", "quit")]);
    }
    canvas.line(0, &line(&keys, look));
}

fn line(keys: &[(&str, &str)], look: Look) -> Line<'static> {
    let pairs = keys.iter().flat_map(|(key, does)| {
        [look.text(key, Tone::Strong), look.text(&format!(" {does}"), Tone::Soft), Span::raw("  ")]
    });
    pairs.collect()
}

pub(super) fn draw(canvas: &mut Canvas<'_>, model: &Model) -> usize {
    let look = canvas.look;
    canvas.title("Keys", "");
    let line = |(key, does): &(&str, &str)| {
        Line::from(vec![
            look.text(&format!("  {key:<26}"), Tone::Strong),
            look.text(does, Tone::Plain),
        ])
    };
    let lines: Vec<Line<'_>> = ALL.iter().map(line).collect();
    canvas.lines(2, &lines, model.scrolled)
}
