//! Commands that run when an address is gained or lost (`on-gain`, `on-loss`).
//!
//! The daemon's sandbox forbids running programs, and a killed daemon cannot report a loss. So a
//! separate process, started before the sandbox, runs the commands in the settings at that time,
//! and nothing else. With each claim the daemon writes two bytes per address: its index and whether
//! it is held. An address without a report for [`SILENCE`] counts as lost; when the daemon ends,
//! all do.
//!
//! Bounds: a command may take `COMMAND_LIMIT`. Commands of one address run one at a time, and only
//! the latest requested state is kept meanwhile.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Write as _};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use meshport_config::{Settings, VirtualName};
use meshport_core::vip::contest::SILENCE;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt as _;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};
use tracing::{info, warn};

use crate::{Error, clock};

/// The hidden command that runs them.
pub const VERB: &str = "vip-hooks";
/// Timeout of a command. Those of routing daemons take milliseconds.
const COMMAND_LIMIT: Duration = Duration::from_secs(10);
/// How often to start a command that a signal kills: a service manager's can hit the shell at its
/// very start. Commands must be idempotent.
const MAX_ATTEMPTS: u32 = 3;
/// Interval between checks for overdue reports.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// Size of the read buffer in bytes: several seconds of reports for all addresses.
const READ_BYTES: usize = 256;
/// Prefix of every command: it ignores the signals that a service manager sends to all processes of
/// a stopping unit, which is just when `on-loss` runs.
///
/// A signal can still kill the shell before this line; see [`MAX_ATTEMPTS`].
const IGNORING: &str = "trap '' HUP INT TERM\n";

/// The commands of one address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hook {
    name: VirtualName,
    address: IpAddr,
    interface: String,
    on_gain: Option<String>,
    on_loss: Option<String>,
}

/// Reports one address to the process. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Teller {
    stream: Arc<StdStream>,
    number: u8,
}

impl Teller {
    /// Reports whether this node holds the address. Reports are repeated, so a full socket loses
    /// nothing.
    ///
    /// # Errors
    /// The process is gone.
    pub(super) fn tell(&self, is_held: bool) -> io::Result<()> {
        match (&*self.stream).write(&[self.number, u8::from(is_held)]) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }
}

/// Starts the process if any address has commands.
///
/// # Errors
/// The system cannot start a process.
pub(super) fn start(settings: &Settings) -> Result<BTreeMap<VirtualName, Teller>, Error> {
    let hook = |(name, it): (&VirtualName, &meshport_config::VirtualAddressSettings)| {
        let has_any = it.on_gain.is_some() || it.on_loss.is_some();
        has_any.then(|| Hook {
            name: name.clone(),
            address: it.address,
            interface: it.interface.clone(),
            on_gain: it.on_gain.clone(),
            on_loss: it.on_loss.clone(),
        })
    };
    let hooks: Vec<Hook> = settings.virtual_addresses.iter().filter_map(hook).collect();
    if hooks.is_empty() {
        return Ok(BTreeMap::new());
    }
    let cannot = || Error::io("start the process for on-gain and on-loss");
    let (own, other) = StdStream::pair().map_err(cannot())?;
    own.set_nonblocking(true).map_err(cannot())?;
    let table = serde_json::to_string(&hooks).map_err(|error| Error::Bug(error.to_string()))?;
    let mut command = Command::new(std::env::current_exe().map_err(cannot())?);
    // Drop the service manager's environment, which is for the daemon.
    command.arg(VERB).arg(table).env_clear().envs(std::env::var_os("PATH").map(|it| ("PATH", it)));
    command.stdin(Stdio::from(OwnedFd::from(other)));
    command.spawn().map_err(cannot())?;
    let stream = Arc::new(own);
    let tellers = (0..).zip(hooks).map(|(number, hook)| {
        let stream = stream.clone();
        (hook.name, Teller { stream, number })
    });
    Ok(tellers.collect())
}

/// Runs the commands of `hooks` as the peer of `daemon` reports, until it closes the socket.
///
/// # Errors
/// The runtime cannot watch the stream.
pub async fn serve(hooks: Vec<Hook>, daemon: StdStream) -> io::Result<()> {
    daemon.set_nonblocking(true)?;
    let mut daemon = UnixStream::from_std(daemon)?;
    let mut workers = JoinSet::new();
    let mut held: Vec<Held> = Vec::new();
    for hook in hooks {
        let (wanted, wants) = watch::channel(false);
        workers.spawn(work(hook, wants));
        held.push(Held { last: None, wanted });
    }
    let (mut looks, mut buffer) = (interval(LOOK_INTERVAL), Vec::with_capacity(READ_BYTES));
    loop {
        tokio::select! {
            read = daemon.read_buf(&mut buffer) => match read {
                Ok(1..) => take(&mut buffer, &mut held),
                // The daemon closed the socket or was killed.
                Ok(0) | Err(_) => break,
            },
            _ = looks.tick() => {
                let now = clock::now();
                held.iter_mut().for_each(|it| it.look(now));
            }
        }
    }
    // Without a sender, a worker runs `on-loss` for a held address and ends.
    drop(held);
    while workers.join_next().await.is_some() {}
    Ok(())
}

/// The last report of one address.
#[derive(Debug)]
struct Held {
    /// Time of the last report that it is held; `None` if it is not.
    last: Option<Instant>,
    wanted: watch::Sender<bool>,
}

impl Held {
    fn look(&mut self, now: Instant) {
        self.last = self.last.filter(|last| now.saturating_duration_since(*last) < SILENCE);
        let is_held = self.last.is_some();
        self.wanted.send_if_modified(|wanted| std::mem::replace(wanted, is_held) != is_held);
    }
}

/// Handles all complete reports.
fn take(buffer: &mut Vec<u8>, held: &mut [Held]) {
    let (words, rest) = buffer.as_chunks::<2>();
    let now = clock::now();
    for [number, is_held] in words {
        if let Some(it) = held.get_mut(usize::from(*number)) {
            it.last = (*is_held == 1).then_some(now);
            it.look(now);
        }
    }
    *buffer = rest.to_vec();
    buffer.reserve(READ_BYTES);
}

/// Runs the commands of one address, one at a time. `on-loss` runs first, to clean up after an
/// earlier process.
async fn work(hook: Hook, mut wants: watch::Receiver<bool>) {
    let mut has = false;
    hook.run(has).await;
    loop {
        let is_over = wants.changed().await.is_err();
        let wanted = !is_over && *wants.borrow_and_update();
        if wanted != has {
            has = wanted;
            hook.run(has).await;
        }
        if is_over {
            return;
        }
    }
}

impl Hook {
    async fn run(&self, is_gain: bool) {
        self.run_within(COMMAND_LIMIT, is_gain).await;
    }

    async fn run_within(&self, limit: Duration, is_gain: bool) {
        let Some(text) = (if is_gain { &self.on_gain } else { &self.on_loss }) else { return };
        let (name, what) = (&self.name, if is_gain { "on-gain" } else { "on-loss" });
        for attempt in 1..=MAX_ATTEMPTS {
            match self.attempt(text, limit).await {
                Ok(Some(status)) if status.success() => info!(%name, what, "command has run"),
                Ok(Some(status)) if status.signal().is_some() && attempt < MAX_ATTEMPTS => {
                    warn!(%name, what, %status, "command was killed; running it again");
                    continue;
                }
                Ok(Some(status)) => warn!(%name, what, %status, "command failed"),
                Ok(None) => {
                    let limit_s = limit.as_secs();
                    warn!(%name, what, limit_s, "command timed out and was killed");
                }
                Err(error) => warn!(%name, what, %error, "cannot run the command"),
            }
            return;
        }
    }

    /// Runs a command once; `None` if it timed out.
    async fn attempt(&self, text: &str, limit: Duration) -> io::Result<Option<ExitStatus>> {
        let mut command = tokio::process::Command::new("/bin/sh");
        command.args(["-c", &format!("{IGNORING}{text}")]).stdin(Stdio::null()).kill_on_drop(true);
        command.env("NAME", self.name.as_str()).env("ADDRESS", self.address.to_string());
        command.env("INTERFACE", &self.interface);
        let mut child = command.process_group(0).spawn()?;
        let group = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let Ok(ended) = timeout(limit, child.wait()).await else {
            // Kill its children too, which also ignore the service manager's signals. It may just
            // have ended.
            let _ = group.map(|group| kill_process_group(group, Signal::KILL));
            return Ok(None);
        };
        ended.map(Some)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn hook(folder: &Path) -> Hook {
        let command = |word: &str| {
            let file = folder.join("said");
            Some(format!("echo {word} $NAME $ADDRESS $INTERFACE >>'{}'", file.display()))
        };
        Hook {
            name: "api".parse().expect("a name"),
            address: "192.0.2.10".parse().expect("an address"),
            interface: "eth0".to_owned(),
            on_gain: command("gain"),
            on_loss: command("loss"),
        }
    }

    async fn until_said(folder: &Path, words: &[&str]) {
        let expected: String =
            words.iter().map(|word| format!("{word} api 192.0.2.10 eth0\n")).collect();
        let mut looks = interval(Duration::from_millis(5));
        let said = async {
            while fs::read_to_string(folder.join("said")).unwrap_or_default() != expected {
                looks.tick().await;
            }
        };
        timeout(Duration::from_secs(20), said).await.expect("it is said in time");
    }

    #[tokio::test]
    async fn an_address_is_lost_with_the_word_the_silence_and_the_end_of_the_daemon() {
        let folder = tempfile::tempdir().expect("a folder");
        let (own, other) = StdStream::pair().expect("a pair");
        let teller = Teller { stream: Arc::new(own), number: 0 };
        let serving = tokio::spawn(serve(vec![hook(folder.path())], other));
        until_said(folder.path(), &["loss"]).await;
        teller.tell(true).expect("it listens");
        teller.tell(true).expect("it listens");
        until_said(folder.path(), &["loss", "gain"]).await;
        teller.tell(false).expect("it listens");
        until_said(folder.path(), &["loss", "gain", "loss"]).await;
        teller.tell(true).expect("it listens");
        until_said(folder.path(), &["loss", "gain", "loss", "gain"]).await;
        // Silence: the daemon hangs.
        until_said(folder.path(), &["loss", "gain", "loss", "gain", "loss"]).await;
        teller.tell(true).expect("it listens");
        let six = ["loss", "gain", "loss", "gain", "loss", "gain"];
        until_said(folder.path(), &six).await;
        drop(teller);
        serving.await.expect("it ends").expect("it watched");
        until_said(folder.path(), &[&six[..], &["loss"]].concat()).await;
    }

    #[tokio::test]
    async fn a_command_outlives_the_end_of_its_unit() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut hook = hook(folder.path());
        let signals = "for it in HUP INT TERM; do kill -s $it $$; done; ";
        hook.on_loss = hook.on_loss.map(|text| format!("{signals}{text}"));
        hook.run(false).await;
        until_said(folder.path(), &["loss"]).await;
    }

    #[tokio::test]
    async fn a_command_that_is_ended_all_the_same_is_run_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut hook = hook(folder.path());
        let file = folder.path().join("tried");
        let once = format!("[ -e '{0}' ] || {{ >'{0}'; kill -s KILL $$; }}; ", file.display());
        hook.on_loss = hook.on_loss.map(|text| format!("{once}{text}"));
        hook.run(false).await;
        until_said(folder.path(), &["loss"]).await;
        // Not for ever.
        hook.on_loss = Some("kill -s KILL $$".to_owned());
        hook.run(false).await;
    }

    #[tokio::test]
    async fn a_command_that_takes_too_long_ends_with_what_it_started() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut hook = hook(folder.path());
        let file = folder.path().join("started");
        hook.on_loss = Some(format!("sleep 3600 & echo $! >'{}'; wait", file.display()));
        hook.run_within(Duration::from_secs(1), false).await;
        let started = fs::read_to_string(&file).expect("it has begun");
        let process = Path::new("/proc").join(started.trim()).join("stat");
        // A zombie until process 1 has looked.
        let runs = || fs::read_to_string(&process).is_ok_and(|stat| !stat.contains(") Z "));
        let mut looks = interval(Duration::from_millis(5));
        let ended = async {
            while runs() {
                looks.tick().await;
            }
        };
        timeout(Duration::from_secs(20), ended).await.expect("it ends");
    }

    #[tokio::test]
    async fn what_is_not_a_word_changes_nothing() {
        let folder = tempfile::tempdir().expect("a folder");
        let (own, other) = StdStream::pair().expect("a pair");
        let serving = tokio::spawn(serve(vec![hook(folder.path())], other));
        until_said(folder.path(), &["loss"]).await;
        (&own).write_all(&[9, 1, 0, 7, 0]).expect("it listens");
        (&own).write_all(&[1]).expect("it listens");
        until_said(folder.path(), &["loss", "gain"]).await;
        drop(own);
        serving.await.expect("it ends").expect("it watched");
        until_said(folder.path(), &["loss", "gain", "loss"]).await;
    }
}
