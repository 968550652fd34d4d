//! The cost of open pages to the daemon that serves them, in a mesh of real daemons. A page is
//! represented by its requests: `/view` every two seconds with the last `ETag`, and in full every
//! fifteenth time.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use meshport_tests::{http, wait};
use serde::Serialize;

use crate::print_line;
use crate::quiet::world;

/// Interval between a page's requests, as in page/run.js.
const POLL: Duration = Duration::from_secs(2);
/// One request in this many fetches the whole document.
const WHOLE: u32 = 15;

/// Open pages.
#[derive(Debug, clap::Args)]
pub(crate) struct Pages {
    /// Nodes of the mesh
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u8).range(3..=250))]
    nodes: u8,
    /// Pages that are open at once, one measurement each
    #[arg(long, value_delimiter = ',', default_values_t = [0, 1, 20])]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=100))]
    pages: Vec<u32>,
    /// Seconds that pass before the first: a young mesh has more to say
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(0..=3600))]
    settle: u64,
    /// Seconds of each
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(5..=3600))]
    seconds: u64,
    /// File for the figures, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The daemon with this many pages open.
#[derive(Debug, Clone, Copy, Serialize)]
struct Row {
    pages: u32,
    /// Share of one core.
    cpu_percent: f64,
    requests: u64,
    /// Requests answered without a document, since nothing had changed.
    unchanged: u64,
    bytes_per_s: f64,
    rss_mib: f64,
}

/// Requests of the pages and the answers they received.
#[derive(Debug, Clone, Copy, Default)]
struct Received {
    requests: u64,
    unchanged: u64,
    bytes: u64,
}

/// Measures them.
///
/// # Errors
/// If the file cannot be written, or a figure was not measured.
pub(crate) fn run(pages: &Pages) -> io::Result<()> {
    let mut world = world(pages.nodes);
    let name = format!("node-{}", pages.nodes - 1);
    wait::moment(wait::now() + Duration::from_secs(pages.settle));
    let at = world.at(&name).http().expect("its page is served");
    print_line(&format!("a view of {} nodes: {} bytes", pages.nodes, whole(at)));
    let length = Duration::from_secs(pages.seconds);
    let mut rows = Vec::new();
    for &open in &pages.pages {
        let (begun, used) = (wait::now(), world.node_mut(&name).process().processor_time());
        let received = browse(at, open, begun + length);
        wait::moment(begun + length);
        let process = world.node_mut(&name).process();
        rows.push(row(open, begun.elapsed(), process.processor_time() - used, received));
        let row = rows.last_mut().expect("one was pushed");
        row.rss_mib = f64::from(u32::try_from(process.resident_kib()).unwrap_or(u32::MAX)) / 1024.0;
    }
    print_line(&table(&rows));
    if let Some(file) = &pages.json {
        std::fs::write(file, serde_json::to_string_pretty(&rows)?)?;
    }
    match rows.iter().all(|row| row.pages == 0 || row.bytes_per_s > 0.0) {
        true => Ok(()),
        false => Err(io::Error::other("a figure was not measured")),
    }
}

fn whole(at: SocketAddr) -> usize {
    http::get(at, "/view", "").body.len()
}

/// So many pages, opened one after another within a poll, until then.
fn browse(at: SocketAddr, open: u32, until: Instant) -> Received {
    let begun = wait::now();
    let begins = (0..open).map(|page| begun + POLL * page / open);
    let all: Vec<_> = begins.map(|begin| thread::spawn(move || page(at, begin, until))).collect();
    all.into_iter().fold(Received::default(), |sum, page| {
        let one = page.join().expect("a page ends by itself");
        Received {
            requests: sum.requests + one.requests,
            unchanged: sum.unchanged + one.unchanged,
            bytes: sum.bytes + one.bytes,
        }
    })
}

fn page(at: SocketAddr, begin: Instant, until: Instant) -> Received {
    let (mut received, mut next, mut tag) = (Received::default(), begin, String::new());
    for asked in 1.. {
        wait::moment(next);
        if next >= until {
            break;
        }
        let reply = http::get(at, "/view", &tag);
        received.requests += 1;
        received.unchanged += u64::from(reply.status == 304);
        received.bytes += (reply.head.len() + reply.body.len()) as u64;
        if let Some(etag) = reply.header("etag").filter(|_| asked % WHOLE != 0) {
            tag = format!("If-None-Match: {etag}\r\n");
        } else {
            tag.clear();
        }
        next = wait::now() + POLL;
    }
    received
}

#[expect(clippy::cast_precision_loss, reason = "shown with two places")]
fn row(pages: u32, lasted: Duration, used: Duration, received: Received) -> Row {
    let seconds = lasted.as_secs_f64();
    Row {
        pages,
        cpu_percent: used.as_secs_f64() / seconds * 100.0,
        requests: received.requests,
        unchanged: received.unchanged,
        bytes_per_s: received.bytes as f64 / seconds,
        rss_mib: 0.0,
    }
}

fn table(rows: &[Row]) -> String {
    let head = format!(
        "\n{:>5} {:>12} {:>9} {:>10} {:>9} {:>7}\n",
        "pages", "% of a core", "requests", "unchanged", "bytes/s", "MiB"
    );
    let lines = rows.iter().map(|row| {
        let Row { pages, cpu_percent, requests, unchanged, bytes_per_s, rss_mib } = row;
        format!(
            "{pages:>5} {cpu_percent:>12.2} {requests:>9} {unchanged:>10} {bytes_per_s:>9.0} \
             {rss_mib:>7.1}"
        )
    });
    head + &lines.collect::<Vec<_>>().join("\n")
}
