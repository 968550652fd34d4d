//! What streams of the way back leave behind: one control plane and many workers, real daemons on
//! loopback, each worker with a stand-in for a kubelet. Streams are opened, used and closed at a
//! steady pace; shown are memory and descriptors of the origin's and of one worker's daemon.

use std::fmt;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use meshport_tests::kubelet::{self, connect, of, whoami};
use meshport_tests::process::raise_descriptors;
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};
use serde::Serialize;

use crate::{complain, print_line};

/// Between the two sites, and back.
const DISTANCE: Duration = Duration::from_millis(4);
/// Clients of the socket at once: each has a share of the pace and uses one stream at a time.
const CLIENTS: u32 = 8;
/// Between two looks.
const LOOK: Duration = Duration::from_secs(60);
/// Descriptors that a daemon may have more at the end than after the first look: some of its
/// connections to apiservers and its admin clients come and go.
const DESCRIPTORS: usize = 16;
/// Allowed growth of memory, in KiB: an allocator keeps what one busy moment needed.
const MEMORY_KIB: u64 = 8 * 1024;

/// Streams to many kubelets.
#[derive(Debug, clap::Args)]
pub(crate) struct Back {
    /// Workers with a kubelet each
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u8).range(1..=200))]
    nodes: u8,
    /// Streams that are open at once, before that
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(0..=3900))]
    open: u32,
    /// Streams that are opened and closed each second
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(8..=1000))]
    per_second: u32,
    /// Seconds that this goes on
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(5..=86_400))]
    seconds: u64,
    /// File for the figures, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What two daemons hold at one moment.
#[derive(Debug, Clone, Copy, Serialize)]
struct Row {
    /// Since the first stream.
    seconds: u64,
    /// Streams so far that reached the kubelet they named, and those that did not.
    served: u64,
    failed: u64,
    origin: Held,
    worker: Held,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Held {
    resident_kib: u64,
    descriptors: usize,
}

impl fmt::Display for Held {
    #[expect(clippy::cast_precision_loss, reason = "shown with one place")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = self.resident_kib as f64 / 1024.0;
        write!(f, "{mib:>6.1} MiB {:>5} descriptors", self.descriptors)
    }
}

#[derive(Debug, Default)]
struct Counts {
    served: AtomicU64,
    failed: AtomicU64,
}

/// Measures it.
///
/// # Errors
/// When a stream failed, when a daemon has grown, or when the file cannot be written.
pub(crate) fn run(back: &Back) -> io::Result<()> {
    raise_descriptors();
    let (mut world, socket) = world(back.nodes);
    hold(&mut world, &socket, back)?;
    let (counts, begun) = (Counts::default(), wait::now());
    let until = begun + Duration::from_secs(back.seconds);
    let rows = thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (socket, counts) = (&socket, &counts);
            scope.spawn(move || ask(back, socket, client, counts, until));
        }
        watch(&mut world, &counts, begun, until)
    });
    if let Some(file) = &back.json {
        std::fs::write(file, serde_json::to_string_pretty(&rows)?)?;
    }
    judge(&rows)
}

/// A control plane, and so many workers, which all know each other.
fn world(nodes: u8) -> (World, PathBuf) {
    let mut world = World::new();
    world.distance("a", "b", DISTANCE);
    let socket = world.path("egress").join("egress.sock");
    let origin = world.apiserver("cp-a");
    let egress = format!("\n[egress]\nsocket = {socket:?}\n");
    world.node(&NodePlan::new("cp-a", "a").origin(origin).settings(&egress));
    for number in 0..nodes {
        let name = name(number.into());
        let settings = kubelet::settings(kubelet::start(&name));
        world.node(&NodePlan::new(&name, "b").settings(&settings));
    }
    world.meet();
    (world, socket)
}

fn name(number: u32) -> String {
    format!("worker-{number}")
}

/// The workers take turns.
fn target(back: &Back, turn: u32) -> String {
    name(turn % u32::from(back.nodes))
}

/// So many streams at once, each of which carries something.
fn hold(world: &mut World, socket: &Path, back: &Back) -> io::Result<()> {
    let begun = wait::now();
    let open = |number| {
        let mut stream = connect(socket, &of(&target(back, number))).map_err(io::Error::other)?;
        stream.write_all(b"echo\n")?;
        Ok(stream)
    };
    let mut streams = (0..back.open).map(open).collect::<io::Result<Vec<_>>>()?;
    let opened = begun.elapsed();
    for stream in &mut streams {
        let mut back = [0; 4];
        stream.write_all(b"ping")?;
        stream.read_exact(&mut back)?;
        (back == *b"ping").then_some(()).ok_or_else(|| io::Error::other("not what was sent"))?;
    }
    let row = [held(world, "cp-a"), held(world, &name(0))].map(|held| held.to_string());
    let (count, seconds) = (back.open, opened.as_secs_f64());
    print_line(&format!(
        "{count} streams open at once, opened in {seconds:.1} s: origin {}, worker {}",
        row[0], row[1]
    ));
    Ok(())
}

/// One client of the socket: a stream after the other, each to the next worker.
fn ask(back: &Back, socket: &Path, client: u32, counts: &Counts, until: Instant) {
    let interval = Duration::from_secs(1) * CLIENTS / back.per_second;
    let mut next = wait::now() + interval * client / CLIENTS;
    let turns = (client..).step_by(CLIENTS as usize);
    for turn in turns {
        wait::pace(&mut next, interval);
        if wait::now() >= until {
            return;
        }
        let worker = target(back, turn);
        match whoami(socket, &of(&worker)) {
            Ok(said) if said == worker => counts.served.fetch_add(1, Ordering::Relaxed),
            other => {
                complain(&format!("{worker}: {other:?}"));
                counts.failed.fetch_add(1, Ordering::Relaxed)
            }
        };
    }
}

/// Looks at both daemons once before each minute and at the end, when all streams are over.
fn watch(world: &mut World, counts: &Counts, begun: Instant, until: Instant) -> Vec<Row> {
    let mut rows = Vec::new();
    for look in 1.. {
        let at = (begun + LOOK * look).min(until);
        wait::moment(at);
        let row = Row {
            seconds: begun.elapsed().as_secs(),
            served: counts.served.load(Ordering::Relaxed),
            failed: counts.failed.load(Ordering::Relaxed),
            origin: held(world, "cp-a"),
            worker: held(world, &name(0)),
        };
        let Row { seconds, served, failed, origin, worker } = &row;
        print_line(&format!(
            "{seconds:>5} s {served:>6} streams {failed} failed: origin {origin}, worker {worker}"
        ));
        rows.push(row);
        if at == until {
            break;
        }
    }
    rows
}

fn held(world: &mut World, node: &str) -> Held {
    let process = world.node_mut(node).process();
    Held { resident_kib: process.resident_kib(), descriptors: process.descriptors() }
}

/// Compares the last reading with the first, by which a daemon has what it needs for this work.
fn judge(rows: &[Row]) -> io::Result<()> {
    let (Some(first), Some(last)) = (rows.first(), rows.last()) else {
        return Err(io::Error::other("nothing was measured"));
    };
    let grown = [("origin", first.origin, last.origin), ("worker", first.worker, last.worker)]
        .into_iter()
        .filter(|(_, first, last)| {
            last.descriptors > first.descriptors + DESCRIPTORS
                || last.resident_kib > first.resident_kib + MEMORY_KIB
        })
        .map(|(which, ..)| which)
        .collect::<Vec<_>>();
    match last.failed == 0 && last.served > 0 && grown.is_empty() {
        true => Ok(()),
        false => Err(io::Error::other(format!("{} failed; grown: {grown:?}", last.failed))),
    }
}
