//! The chart: processor seconds per GiB and throughput of bulk streams, a bar per contender,
//! written as SVG by hand.

use std::fmt::Write as _;

use crate::contenders::ALL;
use crate::load::Work;
use crate::row::{Row, median};

/// The picture, in its own units.
const WIDTH: f64 = 1100.0;
const LEFT: f64 = 190.0;
const PANEL: f64 = 400.0;
const GAP: f64 = 100.0;
const BAR: f64 = 16.0;
const HEAD: f64 = 34.0;
const TOP: f64 = 74.0;
/// meshport's own bars, and those of the others.
const COLOURS: [&str; 2] = ["#d55e00", "#7a9cb8"];

/// The medians of one contender in one workload.
struct Medians {
    name: &'static str,
    cost: Option<f64>,
    rate: Option<f64>,
}

/// One workload.
struct Group {
    title: String,
    values: Vec<Medians>,
}

fn groups(rows: &[Row]) -> Vec<Group> {
    let mut kinds: Vec<(Work, usize, u32)> = Vec::new();
    for row in rows.iter().filter(|row| row.mb_per_s.is_some()) {
        if !kinds.contains(&row.kind()) {
            kinds.push(row.kind());
        }
    }
    kinds.sort_by_key(|(work, connections, mtu)| (*mtu, *work == Work::Download, *connections));
    let group = |kind: (Work, usize, u32)| {
        let (work, connections, mtu) = kind;
        let way = if work == Work::Upload { "upload" } else { "download" };
        let title = format!("{way}, {connections} connections, MTU {mtu}");
        let of = |name: &'static str| {
            let those = || rows.iter().filter(|row| row.kind() == kind && row.contender == name);
            let cost = median(those(), |row| row.cpu_s_per_gib);
            Medians { name, cost, rate: median(those(), |row| row.mb_per_s) }
        };
        let values = ALL.map(crate::Contender::name).map(of);
        let values = values.into_iter().filter(|it| it.rate.is_some()).collect();
        Group { title, values }
    };
    kinds.into_iter().map(group).collect()
}

/// The picture.
pub(crate) fn draw(rows: &[Row]) -> String {
    let groups = groups(rows);
    let most = |value: fn(&Medians) -> Option<f64>| {
        let all = groups.iter().flat_map(|group| group.values.iter().filter_map(value));
        all.fold(f64::MIN_POSITIVE, f64::max)
    };
    let (cost, rate) = (most(|it| it.cost), most(|it| it.rate));
    let lines = groups.iter().map(|group| HEAD + BAR * length(group.values.len()));
    let height = TOP + lines.sum::<f64>() + 30.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    text(&mut svg, (20.0, 28.0), "font-size=\"17\"", "Bulk streams, medians of all rounds");
    let right = LEFT + PANEL + GAP;
    text(&mut svg, (LEFT, 54.0), "fill=\"#555\"", "processor seconds per GiB: less is better");
    text(&mut svg, (right, 54.0), "fill=\"#555\"", "MB/s: more is better");
    let mut y = TOP;
    for group in &groups {
        text(&mut svg, (20.0, y + 16.0), "font-weight=\"bold\"", &group.title);
        y += HEAD - 10.0;
        for Medians { name, cost: used, rate: moved } in &group.values {
            text(&mut svg, (LEFT - 8.0, y + 12.0), "text-anchor=\"end\"", name);
            let colour = COLOURS[usize::from(*name != ALL[0].name())];
            bar(&mut svg, (LEFT, y), used.map(|it| (it / cost, format!("{it:.2}"))), colour);
            bar(&mut svg, (right, y), moved.map(|it| (it / rate, format!("{it:.0}"))), colour);
            y += BAR;
        }
        y += 10.0;
    }
    svg.push_str("</svg>\n");
    svg
}

fn length(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

fn bar(svg: &mut String, (x, y): (f64, f64), value: Option<(f64, String)>, colour: &str) {
    let Some((share, label)) = value else {
        return text(svg, (x + 4.0, y + 12.0), "fill=\"#999\"", "none of its own");
    };
    let width = share * (PANEL - 50.0);
    let height = BAR - 4.0;
    let _ = writeln!(
        svg,
        "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{height}\" \
         fill=\"{colour}\"/>",
        y + 2.0
    );
    text(svg, (x + width + 5.0, y + 12.0), "fill=\"#333\"", &label);
}

fn text(svg: &mut String, (x, y): (f64, f64), style: &str, words: &str) {
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" {style}>{words}</text>");
}
