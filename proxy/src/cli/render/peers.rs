//! `meshport peers`: one row per node the mesh knows.

use super::style::{Style, Tone};
use super::table::{Cell, Column, Table, left, right, wrapped};
use meshport_core::units::{age, bytes, milliseconds};
use meshport_daemon::admin::api::PeerRow;

const PEERS: [Column; 11] = [
    left("NAME", 0),
    left("SITE", 0),
    left("LIVENESS", 0),
    left("ENDPOINT", 2),
    right("RTT", 0),
    right("HANDSHAKE", 3),
    right("RECEIVED", 4),
    right("SENT", 4),
    left("WAY BACK", 2),
    left("NODE", 1),
    left("ROLES", 5),
];

/// Empty if this node has no way back, which hides the column.
fn way_back(row: &PeerRow) -> Cell {
    let way = row.way_back.as_deref().unwrap_or_default();
    Cell::new(way, if way == "down" { Tone::Bad } else { Tone::Plain })
}

/// The table, or a sentence if there are no peers.
pub(crate) fn peers(rows: &[PeerRow], style: impl Into<Style>) -> String {
    let style = style.into();
    if rows.is_empty() {
        return "no other node is known yet\n".into();
    }
    let mut table = Table::new(&PEERS);
    for row in rows {
        let known = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        let tone = if row.liveness == "down" { Tone::Bad } else { Tone::Plain };
        table.row([
            known(row.name.as_ref().map(ToString::to_string)).into(),
            known(row.site.as_ref().map(ToString::to_string)).into(),
            Cell::new(row.liveness.as_str(), tone),
            known(row.endpoint.map(|endpoint| endpoint.to_string())).into(),
            known(row.rtt_ms.map(milliseconds)).into(),
            known(row.handshake_age_s.map(age)).into(),
            bytes(row.rx_bytes).into(),
            bytes(row.tx_bytes).into(),
            way_back(row),
            row.node.short().into(),
            known(row.roles.as_ref().map(ToString::to_string)).into(),
        ]);
    }
    let mut text = table.render(0, style);
    let lacking = rows.iter().filter_map(|row| Some((row, row.lacks.as_ref()?)));
    for (row, lacks) in lacking {
        let name = row.name.as_ref().map_or_else(|| row.node.short(), ToString::to_string);
        text.push_str(&wrapped(&format!("{name}: {lacks}"), 0, style));
    }
    text
}
