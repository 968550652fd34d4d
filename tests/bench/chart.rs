//! The chart: processor seconds per GiB and throughput of bulk streams, a bar per contender.

use meshport_charts::{Bars, Panels};

use crate::Contender;
use crate::contenders::ALL;
use crate::load::Work;
use crate::row::{Row, median};

/// The medians of all rounds as SVG.
pub(crate) fn draw(rows: &[Row]) -> String {
    let mut kinds: Vec<(Work, usize, u32)> = Vec::new();
    for row in rows.iter().filter(|row| row.mb_per_s.is_some()) {
        if !kinds.contains(&row.kind()) {
            kinds.push(row.kind());
        }
    }
    kinds.sort_by_key(|(work, connections, mtu)| (*mtu, *work == Work::Download, *connections));
    let lines = kinds.into_iter().map(|kind| workload(rows, kind)).collect();
    Bars { title: "bulk streams, medians of all rounds", lines }.draw().to_string()
}

fn workload(rows: &[Row], kind: (Work, usize, u32)) -> Panels<'static> {
    let (work, connections, mtu) = kind;
    let way = if work == Work::Upload { "upload" } else { "download" };
    let of = |name: &'static str, value: fn(&Row) -> Option<f64>| {
        let those = rows.iter().filter(|row| row.kind() == kind && row.case.contender == name);
        median(those, value)
    };
    let names = ALL.map(Contender::name);
    let names = || names.into_iter().filter(|name| of(name, |row| row.mb_per_s).is_some());
    let class = |name| if name == ALL[0].name() { "s0" } else { "s2" };
    Panels {
        title: format!("{way}, {connections} connections, MTU {mtu}"),
        rows: names().map(|name| (name, class(name))).collect(),
        panels: vec![
            (
                "CPU s per GiB: less is better",
                names().map(|name| of(name, |row| row.cpu_s_per_gib)).collect(),
            ),
            ("MB/s: more is better", names().map(|name| of(name, |row| row.mb_per_s)).collect()),
        ],
    }
}
