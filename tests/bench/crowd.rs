//! The scale of one origin: a real daemon with thousands of peers. Each peer is a mesh endpoint
//! with its own key, credential and socket ([`endpoints`]), at its own loopback address.
//!
//! Measures the cost of the daemon with all peers connected, and its restart after a kill while
//! clients on its host and newcomers use it. The peers ping the daemon as often as nodes probe an
//! idle path, and get no notice that it ended.

use std::io::{self, BufRead, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use meshport_tests::identity::Identity;
use meshport_tests::series::Load;
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};
use serde::Serialize;

use crate::print_line;

pub(crate) mod endpoints;

/// The daemon.
const ORIGIN: &str = "origin";
/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(600);
/// Interval between requests of the client on the origin's host.
const REQUEST_INTERVAL: Duration = Duration::from_millis(100);

/// Measures an origin with many peers.
#[derive(Debug, clap::Args)]
pub(crate) struct Crowd {
    /// Peers
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u16).range(1..=15_000))]
    peers: u16,
    /// Processes that they share
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    processes: u16,
    /// Seconds that the daemon idles
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(5..=3600))]
    idle: u64,
    /// Largest packets of the network, in bytes; buffers grow with them
    #[arg(long, default_value_t = 1500, value_parser = clap::value_parser!(u16).range(1280..=9200))]
    mtu: u16,
    /// File for the figures, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The results; flat in the JSON file.
#[derive(Debug, Default, Serialize)]
struct Figures {
    peers: u16,
    /// Time from the start of the peers until each had an answer.
    joined_s: f64,
    join_cpu_s: f64,
    #[serde(flatten)]
    present: Present,
    #[serde(flatten)]
    back: Back,
    #[serde(flatten)]
    answered: Answered,
}

/// The cost of all peers while the mesh is idle.
#[derive(Debug, Default, Serialize)]
struct Present {
    tunnels_rss_mib: f64,
    /// Percent of one core, with tunnels alone.
    tunnels_idle_percent: f64,
    /// The same with a QUIC connection to each.
    connected_rss_mib: f64,
    connected_idle_percent: f64,
}

/// The daemon after it was killed.
#[derive(Debug, Default, Serialize)]
struct Back {
    /// Time from the start of the new daemon until each peer had an answer again.
    back_s: f64,
    back_half_s: f64,
    /// Nine of ten.
    back_most_s: f64,
    back_cpu_s: f64,
    back_peak_mib: f64,
    /// A node that joined in the midst of it: from its first packet to the answer.
    newcomer_s: f64,
}

/// A client on the origin's host, from the first request that was answered until all were back.
#[derive(Debug, Default, Serialize)]
struct Answered {
    requests: usize,
    requests_failed: usize,
    request_p50_ms: f64,
    request_p99_ms: f64,
}

/// Measures it.
pub(crate) fn run(crowd: &Crowd) -> io::Result<()> {
    let mut figures = Figures { peers: crowd.peers, ..Figures::default() };
    let mut world = World::new();
    let address = world.apiserver(ORIGIN);
    world.node(&NodePlan::new(ORIGIN, "a").origin(address).mtu(crowd.mtu));
    world.chooses(ORIGIN, ORIGIN, LIMIT);
    let invite = world.path("invite");
    std::fs::write(&invite, world.invite(ORIGIN, &NodePlan::new("peer", "a")))?;

    let used = |world: &mut World| world.node_mut(ORIGIN).process().processor_time();
    let resident = |world: &mut World| mib(world.node_mut(ORIGIN).process().resident_kib());
    let before = used(&mut world);
    let begun = wait::now();
    let each = crowd.peers.div_ceil(crowd.processes);
    let shares = (0..crowd.processes)
        .map(|index| (index * each, each.min(crowd.peers.saturating_sub(index * each))));
    let mut groups: Vec<Group> = shares
        .filter(|(_, count)| *count > 0)
        .map(|(first, count)| Group::start(&world, &invite, first, count, crowd.mtu))
        .collect::<io::Result<_>>()?;
    let all = usize::from(crowd.peers);
    wait::until("each peer is answered", LIMIT, || (answered(&groups) == all).then_some(()));
    figures.joined_s = begun.elapsed().as_secs_f64();
    figures.join_cpu_s = (used(&mut world) - before).as_secs_f64();
    figures.present.tunnels_idle_percent = idle(&mut world, crowd.idle);
    figures.present.tunnels_rss_mib = resident(&mut world);

    groups.iter_mut().try_for_each(|group| group.tell("connect"))?;
    let connected = |groups: &[Group]| sum(groups, |group| &group.connected);
    wait::until("each peer has a connection", LIMIT, || (connected(&groups) == all).then_some(()));
    figures.present.connected_idle_percent = idle(&mut world, crowd.idle);
    figures.present.connected_rss_mib = resident(&mut world);

    storm(&mut world, &mut groups, &invite, crowd.mtu, &mut figures)?;
    print_line(&table(&figures));
    if let Some(file) = &crowd.json {
        std::fs::write(file, serde_json::to_string_pretty(&figures)?)?;
    }
    figures.check()
}

impl Figures {
    /// Whether all was measured. What is idle may use less than the kernel counts.
    fn check(&self) -> io::Result<()> {
        let measured = [
            ("seconds to join", self.joined_s),
            ("processor time of the joining", self.join_cpu_s),
            ("memory with tunnels", self.present.tunnels_rss_mib),
            ("memory with connections", self.present.connected_rss_mib),
            ("seconds to come back", self.back.back_s),
            ("processor time of coming back", self.back.back_cpu_s),
            ("memory of coming back", self.back.back_peak_mib),
            ("seconds of a newcomer", self.back.newcomer_s),
            (
                "answered requests",
                f64::from(u8::from(self.answered.requests > self.answered.requests_failed)),
            ),
        ];
        match measured.iter().find(|(_, figure)| *figure <= 0.0) {
            Some((what, _)) => Err(io::Error::other(format!("not measured: {what}"))),
            None => Ok(()),
        }
    }
}

/// Kills the daemon, starts it again, and waits until all peers are back.
fn storm(
    world: &mut World,
    groups: &mut [Group],
    invite: &std::path::Path,
    mtu: u16,
    figures: &mut Figures,
) -> io::Result<()> {
    let all = usize::from(figures.peers);
    world.kill(ORIGIN);
    groups.iter_mut().try_for_each(|group| group.tell("again"))?;
    wait::until("nobody is answered", LIMIT, || (answered(groups) == 0).then_some(()));
    let begun = wait::now();
    world.spawn(ORIGIN);
    wait::until("the first is back", LIMIT, || (answered(groups) > 0).then_some(()));
    let (curl, local) = (world.curl(), world.at(ORIGIN).local);
    let requests = Load::of(REQUEST_INTERVAL, move || curl.ask(local, "/version"));
    let newcomer_begun = wait::now();
    let newcomer = Group::start(world, invite, figures.peers, 1, mtu)?;
    let (mut half, mut most, mut new) = (None, None, None);
    wait::until("all are back, and the newcomer is there", LIMIT, || {
        let back = answered(groups);
        if back * 2 >= all {
            half.get_or_insert(begun.elapsed());
        }
        if back * 10 >= all * 9 {
            most.get_or_insert(begun.elapsed());
        }
        if newcomer.answered.load(Ordering::Relaxed) > 0 {
            new.get_or_insert(newcomer_begun.elapsed());
        }
        if back == all && figures.back.back_s == 0.0 {
            figures.back.back_s = begun.elapsed().as_secs_f64();
        }
        (back == all && new.is_some()).then_some(())
    });
    figures.back.back_half_s = half.unwrap_or_default().as_secs_f64();
    figures.back.back_most_s = most.unwrap_or_default().as_secs_f64();
    figures.back.newcomer_s = new.unwrap_or_default().as_secs_f64();
    let process = world.node_mut(ORIGIN).process();
    figures.back.back_cpu_s = process.processor_time().as_secs_f64();
    figures.back.back_peak_mib = mib(process.peak_kib());
    let requests = requests.finish();
    let answered = requests.iter().filter(|request| request.result.is_ok());
    let mut millis: Vec<f64> = answered.map(|it| it.took.as_secs_f64() * 1000.0).collect();
    millis.sort_by(f64::total_cmp);
    figures.answered.requests = requests.len();
    figures.answered.requests_failed = requests.len() - millis.len();
    figures.answered.request_p50_ms = quantile(&millis, 50);
    figures.answered.request_p99_ms = quantile(&millis, 99);
    Ok(())
}

/// The daemon's use of one core over this many seconds, in per cent.
fn idle(world: &mut World, seconds: u64) -> f64 {
    let process = world.node_mut(ORIGIN).process();
    let (begun, before) = (wait::now(), process.processor_time());
    wait::moment(begun + Duration::from_secs(seconds));
    let used = process.processor_time() - before;
    used.as_secs_f64() / begun.elapsed().as_secs_f64() * 100.0
}

#[expect(clippy::cast_precision_loss, reason = "shown with one place")]
fn mib(kib: u64) -> f64 {
    kib as f64 / 1024.0
}

fn quantile(sorted: &[f64], percent: usize) -> f64 {
    sorted
        .get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or_default()
}

fn sum(groups: &[Group], count: impl Fn(&Group) -> &AtomicUsize) -> usize {
    groups.iter().map(|group| count(group).load(Ordering::Relaxed)).sum()
}

fn answered(groups: &[Group]) -> usize {
    sum(groups, |group| &group.answered)
}

/// A process with peers.
struct Group {
    child: Child,
    input: ChildStdin,
    /// Peers that had an answer since the command "again".
    answered: Arc<AtomicUsize>,
    /// Peers with a QUIC connection.
    connected: Arc<AtomicUsize>,
}

impl Group {
    /// `share`: the number of its first peer, and how many there are.
    fn start(
        world: &World,
        invite: &std::path::Path,
        first: u16,
        count: u16,
        mtu: u16,
    ) -> io::Result<Self> {
        let origin = world.at(ORIGIN);
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("endpoints").arg("--invite").arg(invite);
        command.args(["--origin", &Identity::read(origin.state()).node().to_string()]);
        command.args(["--at", &origin.udp.to_string()]);
        command.args(["--first", &first.to_string(), "--count", &count.to_string()]);
        command.args(["--mtu", &mtu.to_string()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (input, output) = input.zip(output).ok_or(io::ErrorKind::BrokenPipe)?;
        let counts: [Arc<AtomicUsize>; 2] = Default::default();
        let [answered, connected] = counts.clone();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                for (count, word) in counts.iter().zip(line.split(' ')) {
                    count.store(word.parse().unwrap_or_default(), Ordering::Relaxed);
                }
            }
        });
        Ok(Self { child, input, answered, connected })
    }

    fn tell(&mut self, word: &str) -> io::Result<()> {
        writeln!(self.input, "{word}")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn table(figures: &Figures) -> String {
    let Figures { peers, joined_s, join_cpu_s, .. } = figures;
    let rows = [
        ("all joined".to_owned(), format!("{joined_s:.1} s, {join_cpu_s:.1} CPU-s")),
        (
            "with tunnels".to_owned(),
            format!(
                "{:.1} MiB, {:.2} % of a core",
                figures.present.tunnels_rss_mib, figures.present.tunnels_idle_percent
            ),
        ),
        (
            "with QUIC connections".to_owned(),
            format!(
                "{:.1} MiB, {:.2} % of a core",
                figures.present.connected_rss_mib, figures.present.connected_idle_percent
            ),
        ),
        (
            "back after a restart".to_owned(),
            format!(
                "half {:.1} s, 90 % {:.1} s, all {:.1} s, {:.1} CPU-s, at most {:.1} MiB",
                figures.back.back_half_s,
                figures.back.back_most_s,
                figures.back.back_s,
                figures.back.back_cpu_s,
                figures.back.back_peak_mib
            ),
        ),
        ("a newcomer meanwhile".to_owned(), format!("{:.2} s", figures.back.newcomer_s)),
        (
            "requests meanwhile".to_owned(),
            format!(
                "{}, {} failed; 50 % {:.1} ms, 99 % {:.1} ms",
                figures.answered.requests,
                figures.answered.requests_failed,
                figures.answered.request_p50_ms,
                figures.answered.request_p99_ms
            ),
        ),
    ];
    let lines = rows.map(|(what, figure)| format!("  {what:<24}{figure}"));
    format!("\none origin, {peers} peers\n{}", lines.join("\n"))
}
