//! The parts of a bundle: each is collected within a limit, or reported as missing with the reason.

use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use meshport_config::Settings;
use serde::Serialize;
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tokio::time::timeout;

use super::censor::open;
use crate::cli::paths::Paths;
use crate::cli::query::DaemonArgs;
use crate::cli::render::Style;
use crate::cli::service::UNIT;
use crate::cli::{check, clock, doctor, load};
use meshport_daemon::Error;
use meshport_daemon::admin::api::Status;
use meshport_daemon::admin::client::AdminClient;
use meshport_daemon::admin::queries::{
    CredentialsRequest, ExplainRequest, PeersRequest, RoutesRequest, SeedsRequest, StatusRequest,
};
use meshport_daemon::admin::request::Request;

/// Limit for one answer of the daemon, and for the output of a command.
const LIMIT: Duration = Duration::from_secs(5);
/// Lines of the log: an hour of a node that logs one per second, and more of a quiet one.
const LOG_LINES: &str = "5000";
/// Maximum size of the log; lines are far below 500 bytes.
const MAX_LOG_BYTES: u64 = 4 * 1024 * 1024;
/// Maximum size of a system file: a table of ten thousand sockets.
const MAX_FILE_BYTES: u64 = 2 * 1024 * 1024;
/// Entries of the state folder that are listed; it has a dozen.
const MAX_ENTRIES: usize = 100;
/// Width of text files, in columns.
const COLUMNS: usize = 100;

/// A file of the bundle.
pub(super) struct Part {
    pub(super) name: &'static str,
    /// Its content, or the reason why there is none.
    pub(super) content: Content,
}

/// Why a part is missing.
#[derive(Debug, thiserror::Error)]
pub(super) enum PartError {
    #[error("timed out after {LIMIT:?}")]
    Late,
    /// An error of the daemon or of a check in this program.
    #[error(transparent)]
    Asked(#[from] Error),
    #[error("missing for the same reason as {0}")]
    As(&'static str),
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("journalctl: {0}")]
    Journalctl(io::Error),
    #[error("journald has no log of {unit}; add the log from where the daemon runs")]
    NoLog { unit: String },
    #[error("cannot encode it as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

type Content = Result<Vec<u8>, PartError>;

/// All parts.
pub(super) struct Gathered {
    /// The node's name, or the machine's.
    pub(super) name: String,
    pub(super) state_dir: Option<PathBuf>,
    pub(super) parts: Vec<Part>,
}

/// Kernel and network files below /proc; paths of process files are relative to the process's
/// folder.
const OF_SYSTEM: [(&str, &str); 15] = [
    ("system/kernel.txt", "/proc/sys/kernel/osrelease"),
    ("system/os-release.txt", "/usr/lib/os-release"),
    ("system/uptime.txt", "/proc/uptime"),
    ("system/load.txt", "/proc/loadavg"),
    ("system/memory.txt", "/proc/meminfo"),
    ("system/rmem_max.txt", "/proc/sys/net/core/rmem_max"),
    ("system/wmem_max.txt", "/proc/sys/net/core/wmem_max"),
    ("system/somaxconn.txt", "/proc/sys/net/core/somaxconn"),
    ("system/netdev_max_backlog.txt", "/proc/sys/net/core/netdev_max_backlog"),
    ("system/port-range.txt", "/proc/sys/net/ipv4/ip_local_port_range"),
    ("system/bindv6only.txt", "/proc/sys/net/ipv6/bindv6only"),
    ("system/conntrack-max.txt", "/proc/sys/net/netfilter/nf_conntrack_max"),
    ("system/conntrack-count.txt", "/proc/sys/net/netfilter/nf_conntrack_count"),
    ("system/resolv.conf.txt", "/etc/resolv.conf"),
    ("system/hosts.txt", "/etc/hosts"),
];
const OF_PROCESS: [(&str, &str); 14] = [
    ("process/limits.txt", "limits"),
    ("process/status.txt", "status"),
    ("process/cgroup.txt", "cgroup"),
    ("sockets/udp.txt", "net/udp"),
    ("sockets/udp6.txt", "net/udp6"),
    ("sockets/tcp.txt", "net/tcp"),
    ("sockets/tcp6.txt", "net/tcp6"),
    ("sockets/unix.txt", "net/unix"),
    ("sockets/sockstat.txt", "net/sockstat"),
    ("network/interfaces.txt", "net/dev"),
    ("network/routes.txt", "net/route"),
    ("network/routes6.txt", "net/ipv6_route"),
    ("network/addresses6.txt", "net/if_inet6"),
    ("network/counters.txt", "net/snmp"),
];

/// Collects all parts; those that time out are missing.
///
/// # Errors
/// [`Error::Usage`] when this user has no home folder, [`Error::Io`] for a configuration that was
/// named and cannot be read.
pub(super) async fn gather(args: &DaemonArgs) -> Result<Gathered, Error> {
    let client = args.client()?;
    let paths = Paths::of_this_user()?;
    let (config, state_dir) = (args.config.as_deref(), args.state_dir.as_deref());
    let loaded = load::settings(config, state_dir, &paths).map(|it| it.settings);
    let status = timeout(LIMIT, client.ask(&StatusRequest)).await;
    let status = status.map_or(Err(PartError::Late), |it| it.map_err(Into::into));
    let build = Build::new(status.as_ref().ok());
    let name = status.as_ref().ok().map(|it| it.me.name.to_string());
    let pid = client.pid().await;
    let (answers, examined, log) =
        tokio::join!(answers(&client, status), doctor::examine(args), log(pid));
    let mut parts = answers;
    parts.extend(of_doctor(examined));
    parts.push(Part { name: "log.txt", content: log });
    let checked = check::check(config, state_dir, &paths, clock::wall());
    let state_dir = match (&loaded, state_dir) {
        (Ok(settings), _) => Some(settings.state_dir.clone()),
        (Err(_), Some(named)) => Some(named.to_owned()),
        (Err(_), None) => Some(load::default_state_dir(&paths)),
    };
    parts.extend(of_settings(loaded, checked));
    let folder = state_dir.clone().unwrap_or_default();
    let of_files = tokio::task::spawn_blocking(move || files(&folder, pid));
    match timeout(LIMIT, of_files).await {
        Ok(Ok(of_files)) => parts.extend(of_files),
        Ok(Err(_)) | Err(_) => {
            parts.push(Part { name: "system", content: Err(PartError::Late) });
        }
    }
    parts.push(Part { name: "version.json", content: to_json(&build) });
    Ok(Gathered { name: name.unwrap_or_else(machine), state_dir, parts })
}

/// The program and the daemon.
#[derive(Serialize)]
struct Build {
    version: &'static str,
    debug: bool,
    architecture: &'static str,
    executable: Option<PathBuf>,
    daemon_version: Option<String>,
    daemon_uptime_s: Option<u64>,
}

impl Build {
    fn new(status: Option<&Status>) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            debug: cfg!(debug_assertions),
            architecture: std::env::consts::ARCH,
            executable: std::env::current_exe().ok(),
            daemon_version: status.map(|it| it.process.version.clone()),
            daemon_uptime_s: status.map(|it| it.process.uptime_s),
        }
    }
}

async fn answers(client: &AdminClient, status: Result<Status, PartError>) -> Vec<Part> {
    let is_answered = status.is_ok();
    let content = status.and_then(|it| to_json(&it));
    let mut parts = vec![Part { name: "status.json", content }];
    if !is_answered {
        // If the daemon does not answer the first query, the other five are skipped.
        let content = Err(PartError::As("status.json"));
        parts.push(Part { name: "the daemon's other answers", content });
        return parts;
    }
    let metrics = async {
        let page = timeout(LIMIT, client.metrics()).await.or(Err(PartError::Late))?;
        page.map_err(PartError::Asked)
    };
    let (explain, routes, peers, seeds, credentials, metrics) = tokio::join!(
        ask(client, &ExplainRequest),
        ask(client, &RoutesRequest),
        ask(client, &PeersRequest),
        ask(client, &SeedsRequest),
        ask(client, &CredentialsRequest),
        metrics,
    );
    let named = [
        ("explain.json", explain),
        ("routes.json", routes),
        ("peers.json", peers),
        ("seeds.json", seeds),
        ("credentials.json", credentials),
        ("metrics.txt", metrics),
    ];
    parts.extend(named.map(|(name, content)| Part { name, content }));
    parts
}

async fn ask<R: Request<Reply: Serialize>>(client: &AdminClient, request: &R) -> Content {
    let reply = timeout(LIMIT, client.ask(request)).await.or(Err(PartError::Late))?;
    to_json(&reply?)
}

fn of_doctor(examined: Result<doctor::report::DoctorReport, Error>) -> [Part; 2] {
    let style = Style { width: Some(COLUMNS), colour: false };
    let text = examined.as_ref().map(|it| doctor::text::full(it, style).into_bytes());
    let text = text.map_err(|_| PartError::As("doctor.json"));
    let json = examined.map_err(Into::into).and_then(|it| to_json(&it));
    [Part { name: "doctor.json", content: json }, Part { name: "doctor.txt", content: text }]
}

/// The effective settings with every default, without secrets. Not the file: its comments are
/// private.
fn of_settings(
    loaded: Result<Settings, Error>,
    checked: Result<check::CheckReport, Error>,
) -> [Part; 2] {
    let settings = loaded.map(|it| it.redacted().to_toml().into_bytes()).map_err(Into::into);
    let checked = checked.map_err(Into::into).and_then(|it| to_json(&it));
    [
        Part { name: "configuration.toml", content: settings },
        Part { name: "check.json", content: checked },
    ]
}

/// The lines of the daemon's unit in journald.
async fn log(pid: Option<i32>) -> Content {
    let cgroup = pid.and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok());
    let unit = cgroup.as_deref().and_then(unit_in).unwrap_or(UNIT).to_owned();
    let mut command = Command::new("journalctl");
    command.arg(format!("--unit={unit}")).args(["--lines", LOG_LINES]);
    command.args(["--no-pager", "--quiet", "--output=short-iso-precise"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    let work = async {
        let mut journal = command.spawn()?;
        let out = journal.stdout.take().expect("it is piped");
        let mut text = Vec::new();
        out.take(MAX_LOG_BYTES).read_to_end(&mut text).await?;
        Ok::<_, io::Error>(text)
    };
    let text = timeout(LIMIT, work).await.or(Err(PartError::Late))?;
    let text = text.map_err(PartError::Journalctl)?;
    if text.is_empty() { Err(PartError::NoLog { unit }) } else { Ok(text) }
}

/// The systemd unit in the text of /proc/PID/cgroup.
fn unit_in(cgroup: &str) -> Option<&str> {
    let path = cgroup.lines().find_map(|line| line.strip_prefix("0::"))?;
    path.rsplit('/').find(|part| part.ends_with(".service"))
}

fn files(state_dir: &Path, pid: Option<i32>) -> Vec<Part> {
    let process = pid.map_or_else(|| std::process::id().to_string(), |pid| pid.to_string());
    let process = Path::new("/proc").join(process);
    let of_system = OF_SYSTEM.map(|(name, path)| (name, PathBuf::from(path)));
    let of_process = OF_PROCESS.map(|(name, path)| (name, process.join(path)));
    let all = of_system.into_iter().chain(of_process);
    let mut parts: Vec<Part> =
        all.map(|(name, path)| Part { name, content: read(&path) }).collect();
    parts.push(Part { name: "state-folder.txt", content: listing(state_dir) });
    parts
}

/// The beginning of a file; symbolic links are not followed.
fn read(path: &Path) -> Content {
    let mut bytes = Vec::new();
    let taken = open(path).and_then(|file| file.take(MAX_FILE_BYTES).read_to_end(&mut bytes));
    taken.map(|_| bytes).map_err(|source| PartError::File { path: path.to_owned(), source })
}

/// Names, sizes and modes of a folder's files, without content.
fn listing(folder: &Path) -> Content {
    let failed = |source| PartError::File { path: folder.to_owned(), source };
    let entries = std::fs::read_dir(folder).map_err(failed)?;
    let mut lines: Vec<String> = Vec::new();
    for entry in entries.flatten().take(MAX_ENTRIES) {
        let Ok(metadata) = entry.path().symlink_metadata() else { continue };
        let (mode, user, bytes) = (metadata.mode(), metadata.uid(), metadata.len());
        let name = entry.file_name();
        let changed = u64::try_from(metadata.mtime()).unwrap_or_default();
        let changed = meshport_config::UnixSeconds(changed);
        let name = name.to_string_lossy().escape_debug().to_string();
        lines.push(format!("{mode:06o} user {user} {bytes:>8} bytes {changed} {name}\n"));
    }
    lines.sort_unstable();
    Ok(format!("{}\n{}", folder.display(), lines.concat()).into_bytes())
}

/// The host name, if the node's name is unknown.
fn machine() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "node".into(),
        name => name.to_owned(),
    }
}

fn to_json<T: Serialize>(value: &T) -> Content {
    Ok(serde_json::to_vec_pretty(value)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_is_read_from_the_cgroup() {
        assert_eq!(unit_in("0::/system.slice/meshport-b.service\n"), Some("meshport-b.service"));
        let with_below = "1:name=x:/\n0::/system.slice/meshport.service/sub\n";
        assert_eq!(unit_in(with_below), Some("meshport.service"));
        assert_eq!(unit_in("0::/user.slice\n"), None);
        assert_eq!(unit_in(""), None);
    }

    #[test]
    fn the_configuration_has_no_token() {
        let text = "site = \"fra\"\n[events]\nurl = \"https://a.example/x?token=secret\"\n";
        let settings = meshport_config::parse(text).expect("settings");
        let [written, _] = of_settings(Ok(settings), Err(Error::Usage(String::new())));
        let written = String::from_utf8(written.content.expect("it is there")).expect("text");
        assert!(written.contains("a.example") && !written.contains("secret"), "{written}");
    }

    #[test]
    fn a_listing_has_names_and_no_content() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("node.key"), "c2VjcmV0").expect("written");
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("link")).expect("linked");
        let text = String::from_utf8(listing(folder.path()).expect("listed")).expect("text");
        assert!(text.contains("8 bytes") && text.contains(" node.key\n"), "{text}");
        assert!(!text.contains("c2Vj") && text.contains(" 11 bytes ") && text.contains(" link\n"));
        assert!(listing(&folder.path().join("none")).is_err());
        assert!(read(&folder.path().join("link")).is_err(), "a link is not followed");
    }
}
