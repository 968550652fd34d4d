//! The benchmark: meshport next to the alternatives that people use today, in two network
//! namespaces joined by a cable, with the same clients and the same server, in rotation.
//!
//! Every round starts each contender on a fresh testbed ([`testbed`], [`contenders`]), gives it all
//! the work ([`load`], [`wire`]) and stops it; the next round begins with the next contender, so
//! that disturbances of the machine affect all of them. Processor time is that of the contender's
//! own processes, user and system. Medians over rounds become a table with ratios ([`table`]), a
//! chart ([`chart`]) and rows of JSON. See README.md in this folder.
//!
//! Needs root and `ip`.

use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use meshport_tests::process::Process;
use meshport_tests::wait;

mod back;
mod chart;
mod contenders;
mod crowd;
mod distance;
mod load;
mod pages;
mod quiet;
mod rivals;
mod row;
mod shards;
mod table;
mod testbed;
mod wire;

use contenders::{Contender, Running};
use load::{Job, Seen, Work};
use row::{Row, Subject};
use testbed::Testbed;

/// How long clients may take beyond the time they were given.
const GRACE: Duration = Duration::from_secs(60);
/// Limit until all idle sessions are answered. Contenders that can hold them need some seconds;
/// stunnel and ssh take longer for each further one and never finish.
const IDLE_LIMIT: Duration = Duration::from_secs(60);

/// Measures meshport and its rivals, side by side.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    inner: Option<Inner>,
    /// Contenders, all that can run without it
    #[arg(long, value_delimiter = ',')]
    contenders: Vec<Contender>,
    /// Workloads, all without it
    #[arg(long, value_delimiter = ',')]
    work: Vec<Work>,
    /// MTUs of the cable
    #[arg(long, value_delimiter = ',', default_values_t = [1500, 8950])]
    mtu: Vec<u32>,
    /// Connections of the bulk workloads and of small requests
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 64])]
    connections: Vec<usize>,
    /// How often each contender is measured
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Milliseconds of each measurement
    #[arg(long, default_value_t = 3000)]
    #[arg(value_parser = clap::value_parser!(u64).range(100..=600_000))]
    millis: u64,
    /// Sessions that idle
    #[arg(long, default_value_t = 10_000)]
    idle: usize,
    /// File for the rows, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Folder for the chart and the logs of every process
    #[arg(long, value_name = "DIR", default_value = "target/bench")]
    out: PathBuf,
    /// Print the contenders that can run
    #[arg(long)]
    list: bool,
}

/// Further measurements, and the helper processes it starts.
#[derive(Debug, clap::Subcommand)]
enum Inner {
    /// The server of the benchmark
    #[command(hide = true)]
    Serve { address: SocketAddr },
    /// Its clients
    #[command(hide = true)]
    Load(Job),
    /// The cost of thousands of peers to one origin, and their return after its restart
    Crowd(crowd::Crowd),
    /// The cost of idle nodes, in meshes of several sizes
    Quiet(quiet::Quiet),
    /// The cost of open pages to the daemon that serves them
    Pages(pages::Pages),
    /// Descriptors and memory of daemons that carry streams of the way back, minute by minute
    Back(back::Back),
    /// The speed of bulk transfers over long paths, with and without loss
    Distance(distance::Distance),
    /// The gain from several shards at an origin with busy peers
    Shards(shards::Shards),
    /// Some of these peers
    #[command(hide = true)]
    Endpoints(crowd::endpoints::Endpoints),
}

/// Prints a line of this program's output.
#[expect(clippy::print_stdout, reason = "a command-line tool")]
pub(crate) fn print_line(line: &str) {
    println!("{line}");
    // A reader that is gone has seen enough.
    let _ = std::io::stdout().flush();
}

#[expect(clippy::print_stderr, reason = "a command-line tool")]
fn complain(problem: &str) {
    eprintln!("{problem}");
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    meshport_tests::process::end_children_on_panic();
    match &arguments.inner {
        Some(Inner::Serve { address }) => return ended(wire::serve(*address)),
        Some(Inner::Load(job)) => {
            let seen = load::run(*job);
            if let (Ok(seen), false) = (&seen, job.work == Work::Idle) {
                print_line(&serde_json::to_string(seen).expect("plain values"));
            }
            return ended(seen);
        }
        Some(Inner::Crowd(crowd)) => return ended(crowd::run(crowd)),
        Some(Inner::Pages(pages)) => return ended(pages::run(pages)),
        Some(Inner::Quiet(quiet)) => return ended(quiet::run(quiet)),
        Some(Inner::Back(back)) => return ended(back::run(back)),
        Some(Inner::Distance(distance)) => return ended(distance::run(distance)),
        Some(Inner::Shards(shards)) => return ended(shards::run_all(shards)),
        Some(Inner::Endpoints(some)) => return ended(crowd::endpoints::run(some)),
        None => {}
    }
    if arguments.list {
        for contender in contenders::ALL {
            let lacks = contender.lacks().unwrap_or_default();
            print_line(format!("{:<20} {lacks}", contender.name()).trim_end());
        }
        return ExitCode::SUCCESS;
    }
    meshport_tests::netns::remove_stale();
    let rows = measure(&arguments);
    for mtu in &arguments.mtu {
        print_line(&table::of(&rows, *mtu));
    }
    let file = arguments.out.join("bench.svg");
    fs::write(&file, chart::draw(&rows)).expect("the folder can be written");
    match shortfall(&arguments, &rows) {
        None => ExitCode::SUCCESS,
        Some(problem) => {
            complain(&problem);
            ExitCode::FAILURE
        }
    }
}

/// Failures of meshport, which must do all of the work without losing a connection. Failures of
/// rivals are printed when they happen.
fn shortfall(arguments: &Arguments, rows: &[Row]) -> Option<String> {
    let ours = contenders::ALL[0];
    let is_asked = arguments.contenders.is_empty() || arguments.contenders.contains(&ours);
    let measured = |name: &str| rows.iter().filter(|row| row.case.contender == name).count();
    let most = contenders::ALL.into_iter().map(|it| measured(it.name())).max()?;
    let lost: u64 =
        rows.iter().filter(|it| it.case.contender == ours.name()).map(|it| it.failed).sum();
    let is_short = measured(ours.name()) < most || lost > 0;
    (is_asked && is_short)
        .then(|| format!("meshport did not do all of the work; {lost} new connections failed"))
}

fn ended<T>(outcome: std::io::Result<T>) -> ExitCode {
    match outcome {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

/// All rounds. The rows are written after each contender, so that a later failure loses none.
fn measure(arguments: &Arguments) -> Vec<Row> {
    let asked =
        |it: &Contender| arguments.contenders.is_empty() || arguments.contenders.contains(it);
    let mut those = Vec::new();
    for contender in contenders::ALL.into_iter().filter(asked) {
        match contender.lacks() {
            None => those.push(contender),
            Some(lacks) => complain(&format!("NOT RUN: {}: {lacks}", contender.name())),
        }
    }
    if those.contains(&Contender::WireguardGo) {
        let version = Contender::WireguardGo.version();
        print_line(version.unwrap_or("wireguard-go of an unknown version"));
    }
    let mut rows = Vec::new();
    for round in 1..=arguments.rounds {
        for mtu in &arguments.mtu {
            for contender in &those {
                let folder = format!("{}-{mtu}-{round}", contender.name().replace(' ', ""));
                let folder = fresh(&arguments.out.join(folder));
                let mut testbed = Testbed::new(*mtu, &folder);
                let running = contender.start(&testbed);
                let subject = Subject { contender: *contender, mtu: *mtu, round };
                rows.extend(all_work(arguments, &testbed, subject, &running));
                testbed.check();
                print_line(&format!("round {round}: {} at MTU {mtu}", contender.name()));
                if let Some(file) = &arguments.json {
                    let text = serde_json::to_string_pretty(&rows).expect("plain values");
                    fs::write(file, text + "\n").expect("the file of the rows can be written");
                }
            }
            // Another one is first in the next round.
            those.rotate_left(1);
        }
    }
    rows
}

fn fresh(folder: &Path) -> PathBuf {
    // Results of an earlier run would mix with these; there may be none.
    let _ = fs::remove_dir_all(folder);
    fs::create_dir_all(folder).expect("the folder for logs can be made");
    fs::canonicalize(folder).expect("the folder is there")
}

/// Every workload of one contender in one round.
fn all_work(
    arguments: &Arguments,
    testbed: &Testbed,
    subject: Subject,
    running: &Running,
) -> Vec<Row> {
    let asked = |work: Work| arguments.work.is_empty() || arguments.work.contains(&work);
    let mut jobs: Vec<(Work, usize)> = Vec::new();
    for work in [Work::Upload, Work::Download, Work::Request] {
        jobs.extend(arguments.connections.iter().map(|connections| (work, *connections)));
    }
    jobs.extend([(Work::RequestBesideBulk, 8), (Work::FirstByte, 1), (Work::FirstBytePlain, 1)]);
    jobs.push((Work::Connect, 8));
    jobs.retain(|(work, _)| asked(*work));
    let mut rows = Vec::new();
    // First, since later its memory includes the leftovers of earlier work.
    if asked(Work::Idle) && subject.contender != Contender::Direct {
        rows.extend(idle(arguments, testbed, subject, running));
    }
    for (work, connections) in jobs {
        let job = Job { at: running.at, work, connections, millis: arguments.millis, bytes: 0 };
        let before = running.processor_time();
        let Some(seen) = play(testbed, job, "load") else {
            complain(&format!("{} fails at {work:?} x {connections}", subject.contender.name()));
            continue;
        };
        let used = running.processor_time().saturating_sub(before);
        let peak_kib = running.peak_kib();
        rows.push(Row::of(subject, job, &seen, used, peak_kib));
    }
    rows
}

/// Runs the clients to their end; none when they could not do their work.
fn play(testbed: &Testbed, job: Job, name: &str) -> Option<Seen> {
    let log = testbed.file(&format!("{name}-{:?}-{}.json", job.work, job.connections));
    let mut clients = start(testbed, job, &log);
    let limit = Duration::from_millis(job.millis) + GRACE;
    // A contender that stalls has failed; the others continue.
    let ended = wait::within(limit, || (!clients.is_running()).then_some(())).is_some();
    (ended && clients.ended(GRACE).success()).then(|| parse(&log))?
}

fn start(testbed: &Testbed, job: Job, log: &Path) -> Process {
    let mut command = testbed.client();
    let work = serde_json::to_value(job.work).expect("a word");
    command.args(["load", "--at", &job.at.to_string(), "--work", work.as_str().expect("a word")]);
    command.args(["--connections", &job.connections.to_string()]);
    command.args(["--millis", &job.millis.to_string()]);
    command.args(["--bytes", &job.bytes.to_string()]);
    Process::start("clients", &mut command, log)
}

fn parse(log: &Path) -> Option<Seen> {
    let text = fs::read_to_string(log).ok()?;
    text.lines().find_map(|line| serde_json::from_str(line).ok())
}

/// The cost of idle sessions: memory before and with them.
fn idle(
    arguments: &Arguments,
    testbed: &Testbed,
    subject: Subject,
    running: &Running,
) -> Option<Row> {
    let before = running.resident_kib();
    let millis = IDLE_LIMIT.as_millis().try_into().expect("minutes");
    let connections = arguments.idle.min(contenders::most_sessions());
    let job = Job { at: running.at, work: Work::Idle, connections, millis, bytes: 0 };
    let log = testbed.file("load-idle.json");
    let mut clients = start(testbed, job, &log);
    let seen = wait::within(IDLE_LIMIT, || {
        parse(&log).map(Some).or_else(|| (!clients.is_running()).then_some(None))
    });
    let Some(Some(seen)) = seen else {
        complain(&format!("{} does not hold {connections} sessions", subject.contender.name()));
        return None;
    };
    let after = running.resident_kib();
    clients.kill();
    let grown = before.iter().zip(&after).map(|(before, after)| after.saturating_sub(*before));
    let most_kib = grown.max().unwrap_or(0);
    let mut row = Row::of(subject, job, &seen, Duration::ZERO, after.iter().sum());
    row.kib_per_session = Some(row::ratio(most_kib, connections as u64));
    Some(row)
}
