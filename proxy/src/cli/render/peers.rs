//! `meshport peers`: one row per node the mesh knows.

use super::table::{Column, Table, left, right};
use super::units::{age, bytes, milliseconds};
use crate::admin::api::PeerRow;

const PEERS: [Column; 10] = [
    left("NAME", 0),
    left("SITE", 0),
    left("LIVENESS", 0),
    left("ENDPOINT", 2),
    right("RTT", 0),
    right("HANDSHAKE", 3),
    right("RECEIVED", 4),
    right("SENT", 4),
    left("NODE", 1),
    left("ROLES", 5),
];

/// The table, or a sentence when there is nobody.
pub(crate) fn peers(rows: &[PeerRow], width: Option<usize>) -> String {
    if rows.is_empty() {
        return "no other node is known yet\n".into();
    }
    let mut table = Table::new(&PEERS);
    for row in rows {
        let known = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        table.row([
            known(row.name.as_ref().map(ToString::to_string)),
            known(row.site.as_ref().map(ToString::to_string)),
            row.liveness.clone(),
            known(row.endpoint.map(|endpoint| endpoint.to_string())),
            known(row.rtt_ms.map(milliseconds)),
            known(row.handshake_age_s.map(age)),
            bytes(row.rx_bytes),
            bytes(row.tx_bytes),
            row.node.short(),
            known(row.roles.as_ref().map(ToString::to_string)),
        ]);
    }
    table.render(0, width)
}
