//! The gain from several shards at an origin with busy peers. Real daemons: the origin on one host,
//! its peers with their clients on the other, the same identities with one shard and with more, in
//! rotation. Peers are chosen so that each of up to four shards has equally many (with three it may
//! differ), which is the best case for shards.
//!
//! All share the machine's cores. With few cores the peers, which do as much work per byte as the
//! origin, leave it nothing to gain; `--slow` then makes the origin's threads the bottleneck.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use meshport_tests::identity::Identity;
use meshport_tests::netns::{Namespace, remove_stale};
use meshport_tests::process::{Process, meshport, run, run_ok};
use meshport_tests::wait;
use serde::Serialize;

use crate::load::{Job, Seen, Work};
use crate::row::ratio;
use crate::testbed::{FAR, LOCAL, NEAR, SERVER, START_LIMIT, Testbed};
use crate::{GRACE, fresh, parse, print_line, start};

/// Shards among which peers are spread evenly.
const EVEN: u16 = 4;
/// Identities made for one peer at most; one in four fits.
const TRIES: u16 = 200;
/// Period in which a slowed thread gets its share once.
const PERIOD: Duration = Duration::from_millis(5);
const ORIGIN_PORT: u16 = 51820;
const GIB: u64 = 1 << 30;

/// Compares one shard with several.
#[derive(Debug, clap::Args)]
pub(crate) struct Shards {
    /// Numbers of shards that are compared
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    #[arg(value_parser = clap::value_parser!(u8).range(1..=4))]
    shards: Vec<u8>,
    /// Busy peers, a daemon each
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    peers: u16,
    /// Bulk streams of each peer
    #[arg(long, default_value_t = 1)]
    connections: usize,
    /// MTU of the cable
    #[arg(long, default_value_t = 1500)]
    mtu: u32,
    /// How often each number is measured
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Milliseconds of each measurement
    #[arg(long, default_value_t = 3000)]
    #[arg(value_parser = clap::value_parser!(u64).range(100..=600_000))]
    millis: u64,
    /// Per cent of a core that each thread of the origin gets at most: emulates slow cores, so that
    /// the origin is the bottleneck also where its peers share the machine
    #[arg(long, value_parser = clap::value_parser!(u8).range(2..=90))]
    slow: Option<u8>,
    /// File for the rows, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Folder for the logs of every process
    #[arg(long, value_name = "DIR", default_value = "target/bench-shards")]
    out: PathBuf,
}

/// A measurement.
#[derive(Debug, Clone, Serialize)]
struct Row {
    shards: u8,
    peers: u16,
    mtu: u32,
    work: Work,
    round: u32,
    slow_percent: Option<u8>,
    /// The rate of all peers together.
    mb_per_s: f64,
    /// The rate of the peer with the least divided by that of the peer with the most.
    fairness: f64,
    origin_cpu_s_per_gib: f64,
    /// Origin and peers.
    cpu_s_per_gib: f64,
    /// Use of a core by each thread of the origin, in per cent, the busiest first.
    threads_percent: Vec<f64>,
    /// Unused share of all cores of this machine, in per cent.
    idle_percent: f64,
}

/// An origin and its peers.
struct Star {
    origin: Process,
    peers: Vec<Process>,
}

/// Measures them.
///
/// # Errors
/// If a client fails, a thread cannot be slowed, or a file cannot be written.
pub(crate) fn run_all(asked: &Shards) -> io::Result<()> {
    remove_stale();
    let folder = fresh(&asked.out);
    let testbed = Testbed::new(asked.mtu, &folder);
    make_identities(&testbed, asked.peers);
    let (mut rows, mut counts) = (Vec::new(), asked.shards.clone());
    for round in 1..=asked.rounds {
        for shards in &counts {
            let star = Star::start(&testbed, asked.peers, *shards);
            if let Some(percent) = asked.slow {
                star.slow(percent)?;
            }
            for work in [Work::Upload, Work::Download] {
                rows.push(measure(asked, &testbed, &star, *shards, work, round)?);
            }
            print_line(&format!("round {round}: {shards} shards"));
            if let Some(file) = &asked.json {
                fs::write(file, serde_json::to_string_pretty(&rows)?)?;
            }
        }
        // Another one is first in the next round.
        counts.rotate_left(1);
    }
    print_line(&table(asked, &rows));
    Ok(())
}

fn state(testbed: &Testbed, name: &str) -> String {
    testbed.file(name).to_string_lossy().into_owned()
}

fn peer_name(index: u16) -> String {
    format!("peer-{index}")
}

/// The origin, and peers that belong to each of the shards by turns.
fn make_identities(testbed: &Testbed, peers: u16) {
    let binary = meshport().to_string_lossy().into_owned();
    let origin = state(testbed, "origin");
    let roles = ["--role", "node", "--role", "origin:bench"];
    let init = ["init", "--state-dir", &origin, "--site", "near", "--name", "origin"];
    run_ok(&binary, &[&init[..], &roles].concat());
    let endpoint = format!("{FAR}:{ORIGIN_PORT}");
    let invite = ["invite", "--state-dir", &origin, "--site", "near", "--ttl", "24h"];
    let more = ["--role", "node", "--endpoint", &endpoint];
    let invite = run_ok(&binary, &[&invite[..], &more].concat());
    for index in 0..peers {
        let name = peer_name(index);
        let folder = state(testbed, &name);
        let fits = (0..TRIES).any(|_| {
            // An earlier run may have left a folder that did not meet the conditions.
            let _ = fs::remove_dir_all(&folder);
            run_ok(&binary, &["join", &invite, "--state-dir", &folder, "--name", &name]);
            let node = Identity::read(testbed.file(&name).as_path()).node();
            // The same as in `meshport_mesh::is_same_shard`.
            u16::from_le_bytes([node.as_bytes()[0], node.as_bytes()[1]]) % EVEN == index % EVEN
        });
        assert!(fits, "no identity of shard {} among {TRIES}", index % EVEN);
    }
}

fn local(index: u16) -> SocketAddr {
    SocketAddr::new(LOCAL.ip(), LOCAL.port() + index)
}

fn node(testbed: &Testbed, host: &Namespace, name: &str, at: SocketAddr, rest: &str) -> Process {
    let config = testbed.file(&format!("{name}.toml"));
    let text = format!(
        "site = \"near\"\nstate-dir = \"{}\"\n[admin]\nhttp = \"off\"\n\
         [service.kube-apiserver]\nlisten = []\n[service.bench.health]\nmode = \"tcp\"\n\
         [mesh]\nlisten = \"{at}\"\nadvertise = [\"{at}\"]\n\
         {rest}\n",
        state(testbed, name)
    );
    fs::write(&config, text).expect("the folder can be written");
    let mut command = host.command(&meshport().to_string_lossy());
    command.arg("run").arg("--config").arg(&config);
    Process::start(name, &mut command, &testbed.file(&format!("{name}.log")))
}

impl Star {
    /// Starts it and waits until the server answers through every peer.
    fn start(testbed: &Testbed, peers: u16, shards: u8) -> Self {
        let service = format!("listen = []\norigin = \"127.0.0.1:{SERVER}\"");
        let rest = format!("shards = {shards}\n[service.bench]\n{service}");
        let at = SocketAddr::from((FAR, ORIGIN_PORT));
        let origin = node(testbed, &testbed.far, "origin", at, &rest);
        let peer = |index: u16| {
            let at = SocketAddr::from((NEAR, ORIGIN_PORT + 1 + index));
            let rest = format!("[service.bench]\nlisten = [\"{}\"]", local(index));
            node(testbed, &testbed.near, &peer_name(index), at, &rest)
        };
        let star = Self { origin, peers: (0..peers).map(peer).collect() };
        for index in 0..peers {
            let what = format!("the server answers through peer {index}");
            wait::until(&what, START_LIMIT, || testbed.answers(local(index)).then_some(()));
        }
        star
    }

    fn peers_time(&self) -> Duration {
        self.peers.iter().map(Process::processor_time).sum()
    }

    /// Lets each thread of the origin run for a part of each period only.
    fn slow(&self, percent: u8) -> io::Result<()> {
        let share = (PERIOD * u32::from(percent) / 100).as_nanos().to_string();
        let period = PERIOD.as_nanos().to_string();
        for (thread, _) in self.origin.threads() {
            let thread = thread.to_string();
            let deadline = ["--reset-on-fork", "--deadline", "--sched-runtime", &share];
            let periods = ["--sched-deadline", &period, "--sched-period", &period];
            let output = run("chrt", &[&deadline[..], &periods, &["--pid", "0", &thread]].concat());
            if !output.status.success() {
                let problem = String::from_utf8_lossy(&output.stderr);
                return Err(io::Error::other(format!("chrt cannot slow a thread: {problem}")));
            }
        }
        Ok(())
    }
}

/// The clients of all peers at once.
fn measure(
    asked: &Shards,
    testbed: &Testbed,
    star: &Star,
    shards: u8,
    work: Work,
    round: u32,
) -> io::Result<Row> {
    let log = |index: u16| testbed.file(&format!("load-{shards}-{work:?}-{round}-{index}.json"));
    let (threads, peers) = (star.origin.threads(), star.peers_time());
    let (begun, machine) = (wait::now(), machine_ticks());
    let mut clients: Vec<Process> = (0..asked.peers)
        .map(|index| {
            let (connections, millis) = (asked.connections, asked.millis);
            start(
                testbed,
                Job { at: local(index), work, connections, millis, bytes: 0 },
                &log(index),
            )
        })
        .collect();
    for client in &mut clients {
        client.ended(Duration::from_millis(asked.millis) + GRACE);
    }
    let seconds = begun.elapsed().as_secs_f64();
    let idle_percent = idle_since(&machine);
    let used = used_since(&star.origin, &threads);
    let peers = star.peers_time().saturating_sub(peers);
    let seen: Option<Vec<Seen>> = (0..asked.peers).map(|index| parse(&log(index))).collect();
    let seen = seen.ok_or_else(|| io::Error::other("a client could not do its work"))?;
    let bytes: u64 = seen.iter().map(|seen| seen.bytes).sum();
    let rate = |seen: &Seen| ratio(seen.bytes, 1_000_000) / seen.seconds.max(1e-9);
    let each = || seen.iter().map(|seen| seen.bytes);
    let (least, most) = (each().min().unwrap_or(0), each().max().unwrap_or(0));
    let origin: Duration = used.iter().sum();
    if least == 0 || origin.is_zero() {
        return Err(io::Error::other("a client's peer carried nothing"));
    }
    let per_gib = |used: Duration| used.as_secs_f64() / ratio(bytes, GIB).max(1e-9);
    Ok(Row {
        shards,
        peers: asked.peers,
        mtu: asked.mtu,
        work,
        round,
        slow_percent: asked.slow,
        mb_per_s: seen.iter().map(rate).sum(),
        fairness: ratio(least, most),
        origin_cpu_s_per_gib: per_gib(origin),
        cpu_s_per_gib: per_gib(origin + peers),
        threads_percent: used.iter().map(|used| used.as_secs_f64() / seconds * 100.0).collect(),
        idle_percent,
    })
}

/// Processor time of each thread since then, the busiest first.
fn used_since(process: &Process, before: &[(u32, Duration)]) -> Vec<Duration> {
    let earlier = |thread: u32| before.iter().find(|(id, _)| *id == thread).map(|(_, used)| *used);
    let mut used: Vec<Duration> = process
        .threads()
        .into_iter()
        .map(|(thread, used)| used.saturating_sub(earlier(thread).unwrap_or_default()))
        .collect();
    used.sort_unstable();
    used.reverse();
    used
}

/// Ticks of all cores together since the machine started.
struct Ticks {
    /// Unused ticks.
    idle: u64,
    all: u64,
}

fn machine_ticks() -> Ticks {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let first = stat.lines().next().unwrap_or_default();
    // Behind the eighth the kernel repeats what guests used.
    let ticks: Vec<u64> =
        first.split_whitespace().skip(1).take(8).filter_map(|word| word.parse().ok()).collect();
    Ticks { idle: ticks.iter().skip(3).take(2).sum(), all: ticks.iter().sum() }
}

fn idle_since(before: &Ticks) -> f64 {
    let now = machine_ticks();
    ratio(now.idle.saturating_sub(before.idle), now.all.saturating_sub(before.all)) * 100.0
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn table(asked: &Shards, rows: &[Row]) -> String {
    let mut text = format!(
        "\none origin, {} busy peers, MTU {}{}; medians of {} rounds\n{:<9} {:>6} {:>7} {:>9} \
         {:>18} {:>14} {:>7}  {}",
        asked.peers,
        asked.mtu,
        asked.slow.map(|it| format!(", its threads at {it} % of a core")).unwrap_or_default(),
        asked.rounds,
        "",
        "shards",
        "MB/s",
        "fairness",
        "origin CPU-s/GiB",
        "all CPU-s/GiB",
        "idle %",
        "threads of the origin, % of a core"
    );
    for work in [Work::Upload, Work::Download] {
        for shards in &asked.shards {
            let those = || rows.iter().filter(|row| row.work == work && row.shards == *shards);
            let of = |value: fn(&Row) -> f64| median(those().map(value).collect());
            let most = those().map(|row| row.threads_percent.len()).max().unwrap_or(0);
            let thread = |at: usize| {
                let share = |row: &Row| row.threads_percent.get(at).copied().unwrap_or_default();
                median(those().map(share).collect())
            };
            let threads: Vec<f64> = (0..most).map(thread).filter(|share| *share >= 0.5).collect();
            let threads: Vec<String> = threads.iter().map(|share| format!("{share:.0}")).collect();
            text += &format!(
                "\n{:<9} {shards:>6} {:>7.0} {:>9.2} {:>18.2} {:>14.2} {:>7.0}  {}",
                format!("{work:?}").to_lowercase(),
                of(|row| row.mb_per_s),
                of(|row| row.fairness),
                of(|row| row.origin_cpu_s_per_gib),
                of(|row| row.cpu_s_per_gib),
                of(|row| row.idle_percent),
                threads.join(" ")
            );
        }
    }
    text
}
