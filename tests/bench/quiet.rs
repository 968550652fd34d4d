//! The cost of an idle node: real daemons on loopback, in meshes of several sizes over three sites.
//! Each kind of node is represented by its median.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};
use serde::Serialize;

use crate::print_line;

const SITES: [&str; 3] = ["a", "b", "c"];
/// Nodes from which on each site has an origin; below there is one.
const MANY: u8 = 6;
/// Between two sites, and back.
const DISTANCE: Duration = Duration::from_millis(10);

/// Idle meshes.
#[derive(Debug, clap::Args)]
pub(crate) struct Quiet {
    /// Nodes of each mesh
    #[arg(long, value_delimiter = ',', default_values_t = [3, 200])]
    #[arg(value_parser = clap::value_parser!(u8).range(3..=250))]
    nodes: Vec<u8>,
    /// Seconds that pass before they are measured: a young mesh has more to say
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(0..=3600))]
    settle: u64,
    /// Seconds that they are measured
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(5..=3600))]
    seconds: u64,
    /// File for the figures, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The node in the middle of those of its kind, each figure for itself.
#[derive(Debug, Clone, Copy, Serialize)]
struct Row {
    nodes: u8,
    /// `origin` or `worker`.
    kind: &'static str,
    /// Percent of one core.
    cpu_percent: f64,
    /// Times that a thread went to sleep, in a second.
    wakeups_per_s: f64,
    /// Outer datagrams in both directions, without IP and UDP headers.
    bytes_per_s: f64,
    rss_mib: f64,
    /// Processor seconds from its start until it was measured.
    cpu_s_before: f64,
}

/// Resources that a node has used.
#[derive(Debug, Clone, Copy)]
struct Used {
    at: Instant,
    processor: Duration,
    wakeups: u64,
    bytes: f64,
}

/// Measures them.
pub(crate) fn run(quiet: &Quiet) -> io::Result<()> {
    let mut rows = Vec::new();
    for nodes in &quiet.nodes {
        rows.extend(mesh(*nodes, quiet));
    }
    print_line(&table(&rows));
    if let Some(file) = &quiet.json {
        std::fs::write(file, serde_json::to_string_pretty(&rows)?)?;
    }
    // A node may have used less CPU time than the kernel counts, even since its start.
    let is_measured = |row: &Row| {
        let figures = [row.wakeups_per_s, row.bytes_per_s, row.rss_mib];
        figures.iter().all(|figure| *figure > 0.0)
    };
    match rows.len() == 2 * quiet.nodes.len() && rows.iter().all(is_measured) {
        true => Ok(()),
        false => Err(io::Error::other("a figure was not measured")),
    }
}

/// A mesh of this many nodes over three sites, which have found each other. The last node serves
/// its page.
pub(crate) fn world(nodes: u8) -> World {
    let mut world = World::new();
    for (index, a) in SITES.iter().enumerate() {
        SITES[index + 1..].iter().for_each(|b| world.distance(a, b, DISTANCE));
    }
    for number in 0..nodes {
        let site = SITES[usize::from(number) % SITES.len()];
        let mut plan = NodePlan::new(&format!("node-{number}"), site);
        if usize::from(number) < origins(nodes) {
            let address = world.apiserver(&format!("apiserver-{number}"));
            plan = plan.origin(address);
        }
        if number + 1 == nodes {
            plan = plan.http();
        }
        world.node(&plan);
    }
    world.meet();
    world
}

/// How many nodes are origins, the first ones.
fn origins(nodes: u8) -> usize {
    if nodes < MANY { 1 } else { SITES.len() }
}

fn mesh(nodes: u8, quiet: &Quiet) -> Vec<Row> {
    let mut world = world(nodes);
    wait::moment(wait::now() + Duration::from_secs(quiet.settle));
    let all: Vec<String> = (0..nodes).map(|number| format!("node-{number}")).collect();
    let before: Vec<Used> = all.iter().map(|name| used(&mut world, name)).collect();
    wait::moment(wait::now() + Duration::from_secs(quiet.seconds));
    let mut figures: Vec<(bool, [f64; 5])> = Vec::new();
    for (number, (name, before)) in all.iter().zip(before).enumerate() {
        let after = used(&mut world, name);
        let resident = world.node_mut(name).process().resident_kib();
        figures.push((number < origins(nodes), rates(before, after, resident)));
    }
    let of = |kind, is_origin| {
        let own = figures.iter().filter(|(origin, _)| *origin == is_origin).map(|(_, own)| *own);
        middle(nodes, kind, &own.collect::<Vec<_>>())
    };
    [of("origin", true), of("worker", false)].into_iter().flatten().collect()
}

fn used(world: &mut World, name: &str) -> Used {
    let bytes = world.at(name).metrics().sum("meshport_mesh_bytes_total", "");
    let process = world.node_mut(name).process();
    let (processor, wakeups) = (process.processor_time(), process.wakeups());
    Used { at: wait::now(), processor, wakeups, bytes }
}

#[expect(clippy::cast_precision_loss, reason = "shown with three places")]
fn rates(before: Used, after: Used, resident_kib: u64) -> [f64; 5] {
    let seconds = (after.at - before.at).as_secs_f64();
    [
        (after.processor - before.processor).as_secs_f64() / seconds * 100.0,
        (after.wakeups - before.wakeups) as f64 / seconds,
        (after.bytes - before.bytes) / seconds,
        resident_kib as f64 / 1024.0,
        before.processor.as_secs_f64(),
    ]
}

fn middle(nodes: u8, kind: &'static str, figures: &[[f64; 5]]) -> Option<Row> {
    let median = |at: usize| {
        let mut column: Vec<f64> = figures.iter().map(|row| row[at]).collect();
        column.sort_by(f64::total_cmp);
        column.get(column.len() / 2).copied()
    };
    Some(Row {
        nodes,
        kind,
        cpu_percent: median(0)?,
        wakeups_per_s: median(1)?,
        bytes_per_s: median(2)?,
        rss_mib: median(3)?,
        cpu_s_before: median(4)?,
    })
}

fn table(rows: &[Row]) -> String {
    let head = format!(
        "\n{:>6}  {:<7} {:>12} {:>10} {:>9} {:>8}\n",
        "nodes", "kind", "% of a core", "wakeups/s", "bytes/s", "MiB"
    );
    let lines = rows.iter().map(|row| {
        let Row { nodes, kind, cpu_percent, wakeups_per_s, bytes_per_s, rss_mib, .. } = row;
        format!(
            "{nodes:>6}  {kind:<7} {cpu_percent:>12.2} {wakeups_per_s:>10.1} {bytes_per_s:>9.0} \
             {rss_mib:>8.1}"
        )
    });
    head + &lines.collect::<Vec<_>>().join("\n")
}
