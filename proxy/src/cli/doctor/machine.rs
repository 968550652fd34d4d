//! Checks of this machine: addresses, permissions, limits, configuration, the daemon itself.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use meshport_config::{Settings, UnixSeconds};
use meshport_core::findings::{
    ADDRESS_TAKEN, FEW_DESCRIPTORS, Finding, Kind, NO_DAEMON, NO_IDENTITY, OPEN_TO_OTHERS,
    UNFIT_CONFIGURATION, VERSIONS_DIFFER,
};

use super::checks::{Check, Looked};
use super::facts::{CLOSED, Daemon, Facts, NO_STATE};
use super::holder::{self, Protocol};
use crate::cli::query::is_closed;
use crate::cli::{check, load};
use meshport_daemon::{Error, findings};
use meshport_state::{Error as StateError, StateDir};

/// The maximum number of state folder entries to examine; it has about a dozen.
const MAX_ENTRIES: usize = 100;
/// Group and others, any right.
const NOT_THE_OWNER: u32 = 0o077;
/// Group and others, the right to write.
const OTHERS_WRITE: u32 = 0o022;

pub(super) fn checks(facts: &Arc<Facts>) -> Vec<Check> {
    vec![
        Check::of_files(&[&ADDRESS_TAKEN], facts, addresses),
        Check::of_files(&[&OPEN_TO_OTHERS], facts, rights),
        Check::of_files(&[&FEW_DESCRIPTORS], facts, descriptors),
        Check::of_files(&[&NO_IDENTITY], facts, own_identity),
        Check::of_files(&[&UNFIT_CONFIGURATION], facts, configuration),
        Check::of_files(&[&NO_DAEMON], facts, |facts| {
            // The socket may be that of another state folder.
            let state = facts.state().ok().filter(|_| !facts.has_only_socket);
            let holder = state.and_then(|it| it.holder());
            silence(&facts.daemon, holder)
        }),
    ]
}

/// A running daemon holds its addresses or reports lost ones; without a daemon, all must be free.
fn addresses(facts: &Facts) -> Looked {
    match &facts.daemon {
        Ok(daemon) => Ok(daemon.found(&ADDRESS_TAKEN).into_iter().map(with_holder).collect()),
        // A daemon that this user may not query has the addresses, as it should.
        Err(error) if is_closed(error) => Err(CLOSED.into()),
        Err(_) if facts.state().is_ok_and(|it| it.holder().is_some()) => {
            Err("a daemon uses the state folder".into())
        }
        Err(_) => Ok(not_free(facts.settings()?)),
    }
}

fn not_free(settings: &Settings) -> Vec<Finding> {
    let services = settings.services.values().flat_map(|it| &it.listen);
    let exposed = settings.expose.values().flat_map(|it| &it.listen);
    let tcp = services.chain(exposed).copied().chain(settings.admin.http);
    let mut all: Vec<(SocketAddr, Protocol)> = tcp.map(|it| (it, Protocol::Tcp)).collect();
    all.push((settings.mesh.listen, Protocol::Udp));
    // The daemon may be allowed to bind a low port even if this user is not.
    let in_use = |(address, protocol): &(SocketAddr, Protocol)| {
        let bound = match protocol {
            Protocol::Tcp => TcpListener::bind(address).map(drop),
            Protocol::Udp => UdpSocket::bind(address).map(drop),
        };
        bound.is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
    };
    all.into_iter().filter(in_use).map(|(address, protocol)| taken(address, protocol)).collect()
}

fn taken(address: SocketAddr, protocol: Protocol) -> Finding {
    let word = if protocol == Protocol::Tcp { "TCP" } else { "UDP" };
    let who = holder::of(address, protocol).unwrap_or("another process".into());
    ADDRESS_TAKEN.found(format!("{who} uses {word} {address}"))
}

/// The daemon's finding, which names the process that has its address.
fn with_holder(found: Finding) -> Finding {
    let mut words = found.detail.split([' ', ',']);
    let address = words.find_map(|word| word.parse().ok());
    match address.and_then(|it| holder::of(it, Protocol::Tcp)) {
        Some(who) => Finding { detail: found.detail.replace("another process", &who), ..found },
        None => found,
    }
}

fn rights(facts: &Facts) -> Looked {
    let mut found = rights_of_state(facts.state_dir()?).map_err(|_| NO_STATE)?;
    if let Ok(settings) = facts.settings() {
        found.extend(
            check::files(settings).found.into_iter().filter(|it| *it.kind == OPEN_TO_OTHERS),
        );
    }
    Ok(found)
}

fn rights_of_state(path: &Path) -> io::Result<Vec<Finding>> {
    let folder = fs::metadata(path)?;
    let mut found = Vec::new();
    let mode = folder.mode() & 0o7777;
    if mode & NOT_THE_OWNER != 0 {
        let text = format!("{} is open to other users (mode {mode:04o})", path.display());
        found.push(match mode & OTHERS_WRITE {
            0 => OPEN_TO_OTHERS.found(text),
            // The daemon refuses to start.
            _ => OPEN_TO_OTHERS.broken(text),
        });
    }
    for entry in fs::read_dir(path)?.flatten().take(MAX_ENTRIES) {
        let (file, name) = (entry.path(), entry.file_name());
        let Ok(metadata) = fs::symlink_metadata(&file) else { continue };
        let name = name.to_string_lossy();
        let is_secret = name.ends_with(".key") || meshport_state::is_secret(&name);
        let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
        if owner != folder.uid() {
            let (of_folder, file) = (folder.uid(), file.display());
            found.push(OPEN_TO_OTHERS.broken(format!(
                "{file} belongs to user {owner} and the state folder to user {of_folder}"
            )));
        }
        if is_secret && mode & NOT_THE_OWNER != 0 {
            let text = format!("{} is open to other users (mode {mode:04o})", file.display());
            found.push(OPEN_TO_OTHERS.broken(text));
        }
    }
    Ok(found)
}

/// The limit of the running daemon, else that of this shell.
fn descriptors(facts: &Facts) -> Looked {
    let services = facts.settings()?.services.values();
    let sessions = services.map(|it| u64::from(it.max_sessions)).sum();
    let limit = match &facts.daemon {
        Ok(Daemon { pid: Some(pid), .. }) => {
            let text = fs::read_to_string(format!("/proc/{pid}/limits"));
            limit_in(&text.map_err(|error| format!("the daemon's limits: {error}"))?)
        }
        Ok(_) => return Err("the kernel does not report the daemon's process id".into()),
        Err(_) => findings::most_allowed(),
    };
    Ok(findings::of_descriptors(sessions, limit).into_iter().collect())
}

/// The hard limit on open files; `None` if unlimited.
fn limit_in(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// The problems of the identity, else why the daemon refused to reload it.
fn own_identity(facts: &Facts) -> Looked {
    let stored = facts.state_dir().and_then(|folder| identity(folder, facts.now));
    or_refused(facts, &NO_IDENTITY, stored)
}

fn identity(folder: &Path, now: UnixSeconds) -> Looked {
    let opened = StateDir::open(folder);
    let state = match opened {
        Ok(state) => state,
        Err(StateError::Io { source, what })
            if source.kind() == io::ErrorKind::PermissionDenied =>
        {
            return Err(format!("this user may not {what}").into());
        }
        Err(error) => return Ok(vec![refused(error)]),
    };
    let ended = |it: &meshport_config::Credential| it.expires_at <= now;
    if state.credential().is_ok_and(|it| it.as_ref().is_some_and(ended)) {
        return Err("its credential has expired".into());
    }
    Ok(state.identity(now).err().into_iter().map(refused).collect())
}

fn refused(error: StateError) -> Finding {
    match error {
        StateError::State { path, what, remedy } => {
            let found = NO_IDENTITY.found(format!("{}: {what}", path.display()));
            Finding { remedy: remedy.into(), ..found }
        }
        error => NO_IDENTITY.found(Error::from(error).to_string()),
    }
}

/// The problems of the configuration, else why the daemon refused to reload it.
fn configuration(facts: &Facts) -> Looked {
    or_refused(facts, &UNFIT_CONFIGURATION, problems(facts))
}

/// What was found in files, else what the daemon reports since the last reload.
fn or_refused(facts: &Facts, kind: &Kind, found: Looked) -> Looked {
    if found.as_ref().is_ok_and(|all| !all.is_empty()) {
        return found;
    }
    let refused = facts.daemon.as_ref().map(|daemon| daemon.found(kind));
    refused.ok().filter(|it| !it.is_empty()).map_or(found, Ok)
}

fn problems(facts: &Facts) -> Looked {
    match facts.loaded()? {
        Ok(loaded) => {
            let mut obstacles = check::files(&loaded.settings).obstacles;
            obstacles.extend(load::check_stored(&loaded.settings).err().map(|it| it.to_string()));
            Ok(obstacles.into_iter().map(|it| UNFIT_CONFIGURATION.found(it)).collect())
        }
        Err(Error::Config { path, problems }) => {
            let said = |it: &meshport_config::Problem| format!("{}: {it}", path.display());
            Ok(problems.iter().map(|it| UNFIT_CONFIGURATION.found(said(it))).collect())
        }
        Err(Error::Unfit(why)) => match facts.config.as_deref() {
            Some(path) if load::is_closed(path) => {
                Err(format!("this user may not read {}", path.display()).into())
            }
            _ => Ok(vec![UNFIT_CONFIGURATION.found(why.clone())]),
        },
        // No configuration, and no credential to take defaults from.
        Err(_) => Err("there is no configuration".into()),
    }
}

/// The finding if the daemon does not answer. `holder` is the process that uses the state folder.
fn silence(daemon: &Result<Daemon, Error>, holder: Option<u32>) -> Looked {
    let Err(error) = daemon else { return Ok(Vec::new()) };
    let said = match error {
        // It may well run.
        error if is_closed(error) => return Err(CLOSED.into()),
        Error::NoDaemon { path, source } => {
            let why = match source.kind() {
                io::ErrorKind::NotFound => "the socket does not exist".into(),
                io::ErrorKind::ConnectionRefused => "the socket exists but nothing listens".into(),
                _ => source.to_string(),
            };
            format!("no daemon answers on {}: {why}", path.display())
        }
        error => error.to_string(),
    };
    Ok(vec![match holder {
        Some(pid) => NO_DAEMON.broken(format!("{said}; process {pid} uses the state folder")),
        None => NO_DAEMON.found(said),
    }])
}

/// The finding if the daemon's version differs from this program's.
pub(super) fn version(daemon: &str) -> Vec<Finding> {
    let program = env!("CARGO_PKG_VERSION");
    let differs = (daemon != program).then(|| {
        VERSIONS_DIFFER.found(format!("the daemon is {daemon} and this program {program}"))
    });
    differs.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use meshport_core::findings::Severity;

    fn settings(text: &str) -> Settings {
        meshport_config::parse(text).expect("settings")
    }

    #[test]
    fn an_address_is_taken_or_free() {
        let (tcp, udp) = (TcpListener::bind("127.0.0.1:0"), UdpSocket::bind("127.0.0.1:0"));
        let (tcp, udp) = (tcp.expect("a port"), udp.expect("a port"));
        let [clients, mesh] = [tcp.local_addr(), udp.local_addr()].map(|it| it.expect("bound"));
        let settings = settings(&format!(
            "site = \"a\"\n[mesh]\nlisten = \"{mesh}\"\n[admin]\nhttp = \"off\"\n\
             [service.kube-apiserver]\nlisten = [\"{clients}\"]\n"
        ));
        let found: Vec<String> = not_free(&settings).into_iter().map(|it| it.detail).collect();
        let pid = format!("(pid {})", std::process::id());
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains(&pid) && found[0].ends_with(&format!("TCP {clients}")));
        assert!(found[1].ends_with(&format!("UDP {mesh}")), "{found:?}");
        drop((tcp, udp));
        assert_eq!(not_free(&settings), []);
    }

    #[test]
    fn a_daemon_that_only_others_may_ask_differs_from_none() {
        let silent = |kind: io::ErrorKind| Error::NoDaemon {
            path: "/run/x.sock".into(),
            source: kind.into(),
        };
        let skipped = silence(&Err(silent(io::ErrorKind::PermissionDenied)), Some(7));
        assert_eq!(skipped, Err(CLOSED.into()));
        let found = silence(&Err(silent(io::ErrorKind::NotFound)), None).expect("none runs");
        let said = "no daemon answers on /run/x.sock: the socket does not exist";
        assert_eq!((found[0].severity, &*found[0].detail), (Severity::Warning, said));
        let hangs = silence(&Err(silent(io::ErrorKind::TimedOut)), Some(7)).expect("it hangs");
        assert_eq!(hangs[0].severity, Severity::Error);
        assert!(hangs[0].detail.ends_with("timed out; process 7 uses the state folder"));
    }

    #[test]
    fn a_folder_is_its_owners_or_open() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path();
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
        };
        let look = || rights_of_state(path).expect("it is there");
        mode(path, 0o700);
        fs::write(path.join("node.key"), "x").expect("written");
        mode(&path.join("node.key"), 0o600);
        assert_eq!(look(), []);
        mode(path, 0o755);
        let [Finding { severity: Severity::Warning, detail, .. }] = &look()[..] else {
            panic!("{:?}", look())
        };
        assert!(detail.ends_with("(mode 0755)"), "{detail}");
        mode(path, 0o777);
        assert_eq!(look()[0].severity, Severity::Error);
        mode(path, 0o700);
        for name in ["node.key", "mesh.secret", "node.next", "mandate", "other.key"] {
            let file = path.join(name);
            fs::write(&file, "x").expect("written");
            mode(&file, 0o640);
            let [Finding { severity: Severity::Error, detail, .. }] = &look()[..] else {
                panic!("{:?}", look())
            };
            assert!(detail.contains(&format!("{name} is open")), "{detail}");
            fs::remove_file(&file).expect("removed");
        }
        fs::write(path.join("credential"), "x").expect("written");
        mode(&path.join("credential"), 0o644);
        assert_eq!(look(), []);
        assert!(rights_of_state(&path.join("none")).is_err());
    }

    #[test]
    fn the_limit_of_a_process_is_read() {
        let text = "Limit  Soft Limit  Hard Limit  Units\n\
                    Max processes             7827      7827      processes\n\
                    Max open files            1024      4096      files\n";
        assert_eq!(limit_in(text), Some(4096));
        assert_eq!(limit_in(&text.replace("4096", "unlimited")), None);
        assert_eq!(limit_in(""), None);
    }

    #[test]
    fn a_folder_without_an_identity_is_reported() {
        let folder = tempfile::tempdir().expect("a folder");
        let look = |path: &Path| identity(path, UnixSeconds(1)).expect("it can be looked at");
        let found = look(folder.path());
        assert!(found[0].remedy.contains("meshport join"), "{found:?}");
        assert_eq!(look(&folder.path().join("none"))[0].kind.id, "MP109");
    }

    #[test]
    fn a_daemon_of_another_version_is_reported() {
        assert_eq!(version(env!("CARGO_PKG_VERSION")), []);
        assert_eq!(version("0.0.9")[0].kind.id, "MP206");
    }
}
