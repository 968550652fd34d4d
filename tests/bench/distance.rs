//! Bulk over distance: how long a list takes that comes from an origin far away, through meshport
//! and without anything in between. Both cross the same emulated line (no netem: a file of this
//! process is the other end of each host's interface), with its delay, its loss, its rate and a
//! queue before it.
//!
//! The first list is the first transfer of a new mesh; later ones reuse its connection. Without
//! meshport each list has its own TCP connection, with the buffers that the system grants.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use meshport_demo::wan::{LinkConfig, Loss, Rate};
use meshport_tests::netns::remove_stale;
use serde::Serialize;

use crate::contenders::Contender;
use crate::load::{Job, Work};
use crate::row::{median_of, ratio};
use crate::testbed::Testbed;
use crate::{complain, fresh, play, print_line};

/// How long all lists of one measurement may take.
const LIMIT: Duration = Duration::from_secs(60);
/// Bytes of a list on a lossy line: with 1 % loss TCP carries half a megabyte a second.
const LOSSY_BYTES: u64 = 8_000_000;

/// The congestion control that the system has.
const CONGESTION: &str = "/proc/sys/net/ipv4/tcp_congestion_control";

/// Long paths.
#[derive(Debug, clap::Args)]
pub(crate) struct Distance {
    /// Contenders
    #[arg(long, value_delimiter = ',', default_values = ["meshport", "direct"])]
    contenders: Vec<Contender>,
    /// Round trips, in milliseconds
    #[arg(long, value_delimiter = ',', default_values_t = [10, 40, 100])]
    rtt: Vec<u64>,
    /// Shares of packets that get lost each way
    #[arg(long, value_delimiter = ',', default_values_t = [0.0, 0.001, 0.01])]
    loss: Vec<f64>,
    /// Megabits per second of the line
    #[arg(long, default_value_t = 1000)]
    rate: u64,
    /// Milliseconds that a packet may wait before the line
    #[arg(long, default_value_t = 20)]
    queue: u64,
    /// Bytes of a list; on a line with loss at most 8 MB
    #[arg(long, default_value_t = 81_000_000)]
    bytes: u64,
    /// Lists, one after another
    #[arg(long, default_value_t = 3)]
    lists: usize,
    /// Largest buffer of a TCP connection in MiB; what the system has without it
    #[arg(long)]
    tcp_buffer: Option<u64>,
    /// Congestion controls of TCP connections, such as bbr,cubic: all contenders but meshport are
    /// measured with each; what the system has without it
    #[arg(long, value_delimiter = ',')]
    tcp_congestion: Vec<String>,
    /// How often each is measured
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// File for the rows, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Folder for the logs of every process
    #[arg(long, value_name = "DIR", default_value = "target/bench-distance")]
    out: PathBuf,
}

/// A measurement.
#[derive(Debug, Clone, Serialize)]
struct Row {
    contender: &'static str,
    /// That of TCP connections; none for meshport, which crosses the line over UDP.
    tcp_congestion: Option<String>,
    rtt_ms: u64,
    loss: f64,
    round: u32,
    bytes: u64,
    /// The first list; none when it did not end in time.
    first_s: Option<f64>,
    /// The median of those after it.
    later_s: Option<f64>,
    /// The rate of all lists together, as far as they came.
    mb_per_s: f64,
    cpu_s_per_gib: f64,
}

/// A contender, and the congestion control of its TCP connections.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Way {
    contender: Contender,
    tcp_congestion: Option<String>,
}

impl Way {
    fn all(asked: &Distance) -> io::Result<Vec<Self>> {
        let mut controls = asked.tcp_congestion.clone();
        if controls.is_empty() {
            controls.push(fs::read_to_string(CONGESTION)?.trim().to_owned());
        }
        let of = |contender: &Contender| {
            let with = |tcp_congestion| Self { contender: *contender, tcp_congestion };
            if *contender == Contender::Meshport {
                return vec![with(None)];
            }
            controls.iter().map(|name| with(Some(name.clone()))).collect()
        };
        Ok(asked.contenders.iter().flat_map(of).collect())
    }

    fn name(&self) -> String {
        let name = self.contender.name();
        self.tcp_congestion.as_ref().map_or_else(|| name.to_owned(), |it| format!("{name}, {it}"))
    }
}

/// Measures them.
///
/// # Errors
/// If meshport's lists do not arrive, or a file cannot be written.
pub(crate) fn run(asked: &Distance) -> io::Result<()> {
    remove_stale();
    let ways = Way::all(asked)?;
    let mut those = ways.clone();
    let mut rows = Vec::new();
    for round in 1..=asked.rounds {
        for rtt_ms in &asked.rtt {
            for loss in &asked.loss {
                for way in &those {
                    let row = measure(asked, way, *rtt_ms, *loss, round)?;
                    print_line(&line(way, &row));
                    rows.push(row);
                }
                those.rotate_left(1);
            }
        }
        if let Some(file) = &asked.json {
            fs::write(file, serde_json::to_string_pretty(&rows)?)?;
        }
    }
    print_line(&table(asked, &ways, &rows));
    Ok(())
}

fn measure(asked: &Distance, way: &Way, rtt_ms: u64, loss: f64, round: u32) -> io::Result<Row> {
    let link = LinkConfig {
        latency: Duration::from_millis(rtt_ms) / 2,
        loss: Loss::independent(loss),
        rate: Some(Rate::new(asked.rate * 1_000_000, Duration::from_millis(asked.queue))),
        mtu: 1500,
        ..LinkConfig::default()
    };
    let name = format!("{}-{rtt_ms}-{loss}-{round}", way.name().replace([' ', ','], ""));
    let mut testbed = Testbed::apart(&link, u64::from(round), &fresh(&asked.out.join(name)));
    if let Some(mib) = asked.tcp_buffer {
        testbed.set_tcp_buffers(mib << 20);
    }
    if let Some(name) = &way.tcp_congestion {
        testbed.set_tcp_congestion(name);
    }
    let running = way.contender.start(&testbed);
    let bytes = if loss > 0.0 { asked.bytes.min(LOSSY_BYTES) } else { asked.bytes };
    let millis = LIMIT.as_millis().try_into().unwrap_or(u64::MAX);
    let job = Job { at: running.at, work: Work::List, connections: asked.lists, millis, bytes };
    let before = running.processor_time();
    let seen = play(&testbed, job, "load");
    let used = running.processor_time().saturating_sub(before);
    testbed.check();
    let Some(seen) = seen else {
        complain(&format!("{} fails at {rtt_ms} ms, loss {loss}", way.name()));
        return Err(io::ErrorKind::TimedOut.into());
    };
    let seconds = |micros: &u64| ratio(*micros, 1_000_000);
    Ok(Row {
        contender: way.contender.name(),
        tcp_congestion: way.tcp_congestion.clone(),
        rtt_ms,
        loss,
        round,
        bytes,
        first_s: seen.micros.first().map(seconds),
        later_s: median_of(seen.micros.iter().skip(1).map(seconds).collect()),
        mb_per_s: ratio(seen.bytes, 1_000_000) / seen.seconds.max(1e-9),
        cpu_s_per_gib: used.as_secs_f64() / ratio(seen.bytes, 1 << 30).max(1e-9),
    })
}

fn seconds(value: Option<f64>) -> String {
    value.map_or_else(|| format!("> {}", LIMIT.as_secs()), |value| format!("{value:.2}"))
}

fn line(way: &Way, row: &Row) -> String {
    let Row { rtt_ms, loss, round, mb_per_s, .. } = row;
    let (first, later) = (seconds(row.first_s), seconds(row.later_s));
    format!(
        "round {round}: {rtt_ms} ms, loss {loss}, {}: first {first} s, later {later} s, \
         {mb_per_s:.1} MB/s",
        way.name()
    )
}

/// Medians over the rounds; a list that did not end in time is slower than all that did.
fn table(asked: &Distance, ways: &[Way], rows: &[Row]) -> String {
    let mut text = format!(
        "\n{:<8}{:<8}{:<24}{:>10}{:>10}{:>10}{:>12}",
        "rtt ms", "loss", "contender", "first s", "later s", "MB/s", "CPU-s/GiB"
    );
    for rtt_ms in &asked.rtt {
        for loss in &asked.loss {
            for way in ways {
                let those = rows.iter().filter(|row| {
                    (row.contender, row.rtt_ms) == (way.contender.name(), *rtt_ms)
                        && row.tcp_congestion == way.tcp_congestion
                        && row.loss.total_cmp(loss).is_eq()
                });
                let of = |value: fn(&Row) -> f64| {
                    median_of(those.clone().map(value).collect()).unwrap_or(f64::INFINITY)
                };
                let ended = |value: f64| seconds(value.is_finite().then_some(value));
                let first = ended(of(|row| row.first_s.unwrap_or(f64::INFINITY)));
                let later = ended(of(|row| row.later_s.unwrap_or(f64::INFINITY)));
                let (rate, cost) = (of(|row| row.mb_per_s), of(|row| row.cpu_s_per_gib));
                let times = format!("{first:>10}{later:>10}");
                let _ = write!(
                    text,
                    "\n{rtt_ms:<8}{loss:<8}{:<24}{times}{rate:>10.1}{cost:>12.2}",
                    way.name()
                );
            }
        }
    }
    text
}
