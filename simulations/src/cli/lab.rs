//! `meshport-sim lab`: a scenario in real time, with real daemons.

use std::fmt::Write as _;
use std::fs::DirBuilder;
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::run::{self, Once};
use crate::report::{Effort, Run};
use crate::{Error, lab};

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    once: Once,
    /// The meshport binary [default: the one in the folder of this program].
    #[arg(long, value_name = "PATH")]
    meshport: Option<PathBuf>,
    /// Keep logs, configurations and state folders in this new folder.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

pub(super) fn main(arguments: &Arguments) -> Result<ExitCode, Error> {
    let once = &arguments.once;
    let (document, mut command) = once.document("lab")?;
    let scenario = run::parse(&document, &once.choice)?;
    let program = match &arguments.meshport {
        Some(path) => path.clone(),
        None => lab::program()?,
    };
    if let Some(path) = &arguments.meshport {
        let _ = write!(command, " --meshport {}", run::quoted(&path.display().to_string()));
    }
    let until = once.until();
    let end = scenario.duration().min(until.unwrap_or(Duration::MAX));
    let (nodes, s) = (scenario.nodes().count(), end.as_secs());
    let _ = writeln!(
        io::stderr(),
        "{nodes} daemons, {s} s of real time after they know each \
                                    other"
    );
    let folder = Folder::new(arguments.keep.as_deref())?;
    let options = lab::Options { program, folder: folder.path.clone(), until };
    #[expect(clippy::disallowed_methods, reason = "how long the run took, for people")]
    let start = Instant::now();
    let run = lab::run(scenario, once.seed, options)?;
    let effort = Effort { wall: start.elapsed(), processor: Duration::ZERO, memory: 0 };
    once.tell(&run, effort, &command, end, || summary(&run))?;
    Ok(ExitCode::from(u8::from(!run.violations.is_empty())))
}

/// The summary for a terminal.
fn summary(run: &Run) -> String {
    let mut text = format!("{}\n\n", run.outcome.description);
    // Writing to a string does not fail.
    let _ = writeln!(text, "{:>9}  {:<32} {:>6} {:>9}", "at", "what", "users", "failover");
    for fault in &run.measures.faults {
        let followed = run.followed(fault);
        let failover = followed.failover_p99;
        let failover = failover.map_or("-".into(), |it| format!("{:.2} s", it.as_secs_f64()));
        let (at, what, users) = (fault.at.as_secs_f64(), &fault.what, followed.users);
        let _ = writeln!(text, "{at:>7.1} s  {what:<32} {users:>6} {failover:>9}");
    }
    let requests = run.measures.requests;
    let _ = writeln!(
        text,
        "\nrequests     {} in all, {} failed, {} slow (over 1 s), {} sent again",
        requests.total, requests.failed, requests.slow, requests.retried
    );
    if let Some(latency) = run.measures.latency.request.quantiles(1e3) {
        let (p50, p99, max) = (latency.p50, latency.p99, latency.max);
        let _ = writeln!(text, "answers      half {p50:.1} ms, 99 % {p99:.1} ms, all {max:.0} ms");
    }
    let sent = run.measures.traffic;
    let _ = writeln!(
        text,
        "mesh         {} datagrams, {} bytes between {} daemons",
        sent.tunnel_packets, sent.tunnel_bytes, run.outcome.running
    );
    text
}

/// The lab's folder: named and kept, or temporary and removed on drop.
struct Folder {
    path: PathBuf,
    kept: bool,
}

impl Folder {
    fn new(keep: Option<&Path>) -> Result<Self, Error> {
        let own = || std::env::temp_dir().join(format!("meshport-lab-{}", std::process::id()));
        let (path, kept) = keep.map_or_else(|| (own(), false), |path| (path.to_owned(), true));
        // It contains keys.
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|source| Error::File { path: path.display().to_string(), source })?;
        let path = path.canonicalize().unwrap_or(path);
        Ok(Self { path, kept })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.kept {
            // Files that cannot be removed are left to the system's cleanup of temporary files.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}
