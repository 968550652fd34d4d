//! The sandbox: once the daemon knows its settings, it gives up capabilities, access to other
//! files, and system calls that a network server does not need, so that an attacker who takes it
//! over gains little.
//!
//! It needs no privileges. If the kernel lacks a feature, the daemon logs that and starts anyway:
//! without its daemon, a node has no apiserver. Threads inherit the sandbox, so the daemon enters
//! it before it starts any.

mod calls;
mod capabilities;
mod files;

use std::path::{Path, PathBuf};

use meshport_config::Settings;
use tracing::{info, warn};

use self::capabilities::KeptCapabilities;
use self::files::Enforced;
use crate::Error;
use crate::kubernetes::access;

/// The sandbox of this process: what remains readable.
#[derive(Debug, Clone)]
pub(crate) struct Sandbox {
    /// The readable folders of files named in the settings; `None` if all folders are readable.
    readable: Option<Vec<PathBuf>>,
}

impl Sandbox {
    /// Enters the sandbox for the rest of the process, unless the setting `sandbox` disables it.
    /// The file `config` may be created later.
    pub(crate) fn enter(settings: &Settings, config: &Path) -> Self {
        if !settings.sandbox {
            warn!("running without a sandbox (sandbox = false)");
            return Self { readable: None };
        }
        let named = named_with(settings, config);
        let readable: Vec<PathBuf> = named.iter().flat_map(|file| folders(file)).collect();
        let mut writable = vec![settings.state_dir.clone()];
        let sockets = [Some(&settings.admin.socket), settings.egress.socket.as_ref()];
        let sockets = sockets.into_iter().flatten();
        writable.extend(sockets.filter_map(|socket| socket.parent()).map(Path::to_owned));

        let kept = capabilities::give_up(&[&named[..], &writable[..]].concat());
        let files = files::restrict(&readable, &writable);
        let calls = calls::filter();
        say(&kept, &files, &calls);
        let enforced = files.is_ok_and(Enforced::keeps_files);
        if enforced {
            warn_of_missing(&writable);
        }
        Self { readable: enforced.then_some(readable) }
    }

    /// Checks that the sandbox lets this process read all files named in `settings`.
    ///
    /// # Errors
    /// [`Error::Usage`] with the first file that it cannot read.
    pub(crate) fn admits(&self, settings: &Settings) -> Result<(), Error> {
        named(settings).iter().try_for_each(|file| self.admits_file(file))
    }

    /// Checks that the sandbox lets this process read a file.
    pub(crate) fn admits_file(&self, file: &Path) -> Result<(), Error> {
        let Some(readable) = &self.readable else { return Ok(()) };
        let inside = |folder: &PathBuf| {
            readable.iter().any(|known| folder.starts_with(known))
                || files::system().any(|known| folder.starts_with(known))
        };
        if folders(file).all(|folder| inside(&folder)) {
            return Ok(());
        }
        Err(Error::Usage(format!(
            "{} is in a folder that this daemon cannot read, because no file there was configured \
             at its start. Restart it to use the file",
            file.display()
        )))
    }
}

/// A rule is for an existing folder. The nearest existing one may be `/run` or `/`, which is too
/// much to allow.
fn warn_of_missing(writable: &[PathBuf]) {
    for folder in writable.iter().filter(|folder| !folder.exists()) {
        warn!(
            folder = %folder.display(),
            "the folder of a socket does not exist, and the sandbox allows writing only in folders \
             that exist at the start. Create it and restart the daemon"
        );
    }
}

/// Logs which parts are in force and, for the others, the reason and the remedy. A call that an
/// outer filter refuses looks like a missing kernel feature, so the messages name both.
fn say(
    kept: &rustix::io::Result<KeptCapabilities>,
    files: &Result<Enforced, landlock::RulesetError>,
    calls: &Result<(), seccompiler::Error>,
) {
    if let Err(error) = kept {
        warn!(
            %error,
            "cannot drop capabilities: an outer system call filter (a systemd unit, a container \
             profile) refuses it. Start it without capabilities, or allow capset there; the \
             daemon continues"
        );
    }
    match files {
        Ok(Enforced::Whole | Enforced::InPart) => {}
        Ok(Enforced::SwitchedOff) => warn!(
            "access to files is not restricted: Landlock is disabled in this kernel. Add landlock \
             to its lsm= parameter; the daemon continues"
        ),
        Ok(Enforced::Missing) => warn!(
            "access to files is not restricted: the kernel has no Landlock (Linux 5.13 and \
             later), or an outer system call filter (a systemd unit, a container profile) refuses \
             it. Allow landlock_create_ruleset, landlock_add_rule and landlock_restrict_self \
             there; the daemon continues"
        ),
        Err(error) => warn!(
            %error,
            "access to files is not restricted: the kernel refuses the rules. Allow \
             landlock_create_ruleset, landlock_add_rule and landlock_restrict_self in the outer \
             system call filter, if there is one (a systemd unit, a container profile); the \
             daemon continues"
        ),
    }
    if let Err(error) = calls {
        warn!(
            %error,
            "system calls are not filtered: the kernel cannot, or an outer filter (a systemd \
             unit, a container profile) refuses it. Allow seccomp there; the daemon continues"
        );
    }
    let files = files.as_ref().map_or("no", |enforced| enforced.word());
    let calls = if calls.is_ok() { "yes" } else { "no" };
    let capabilities = kept.as_ref().map_or_else(|_| "all".to_owned(), ToString::to_string);
    info!(files, calls, capabilities, "sandbox enabled");
}

/// The files named in the settings, which the daemon rereads while it runs.
fn named(settings: &Settings) -> Vec<PathBuf> {
    let mut named: Vec<PathBuf> = settings.events.ca_file.iter().cloned().collect();
    for service in settings.services.values() {
        let health = &service.health;
        let files = [
            &health.ca_file,
            &health.client_cert_file,
            &health.client_key_file,
            &health.bearer_token_file,
        ];
        named.extend(files.into_iter().flatten().cloned());
        if let Some(kubeconfig) = &service.cluster_kubeconfig {
            named.extend(access::files_of(kubeconfig));
            named.push(kubeconfig.clone());
        }
    }
    named
}

/// Those files, and the settings file if its folder exists: the file may be created later.
fn named_with(settings: &Settings, config: &Path) -> Vec<PathBuf> {
    let mut named = named(settings);
    if folder(config).exists() {
        named.push(config.to_owned());
    }
    named
}

/// The folder of a file; the working folder for a bare name.
fn folder(file: &Path) -> PathBuf {
    match file.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// The folder of a file and, for a symlink, the folder of its target. Rules are for folders because
/// a replaced file is a new inode.
fn folders(file: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let target = file.canonicalize().ok();
    [Some(folder(file)), target.as_deref().map(folder)].into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use std::thread;

    use seccompiler::{SeccompAction, SeccompFilter};

    use super::*;
    use crate::testing::logged;

    /// Calls that older versions of systemd have in no group that units allow.
    const IN_NO_GROUP: [libc::c_long; 5] = [
        libc::SYS_capset,
        libc::SYS_landlock_create_ruleset,
        libc::SYS_landlock_add_rule,
        libc::SYS_landlock_restrict_self,
        libc::SYS_seccomp,
    ];

    fn settings(more: &str) -> Settings {
        let text = format!("site = \"fra\"\n[service.kube-apiserver]\n{more}");
        meshport_config::parse(&text).expect("it is good")
    }

    #[test]
    fn a_file_in_a_new_folder_needs_a_restart() {
        let health = |file: &str| {
            settings(&format!(
                "origin = \"127.0.0.1:6443\"\n[service.kube-apiserver.health]\nca-file = \"{file}\""
            ))
        };
        let before = health("/srv/pki/ca.crt");
        let readable = named(&before).iter().flat_map(|file| folders(file)).collect();
        let sandbox = Sandbox { readable: Some(readable) };
        sandbox.admits(&health("/srv/pki/other.crt")).expect("the same folder");
        let error = sandbox.admits(&health("/srv/elsewhere/ca.crt")).expect_err("another folder");
        assert!(error.to_string().contains("/srv/elsewhere/ca.crt"), "{error}");
        assert!(error.to_string().contains("Restart"), "{error}");
        Sandbox { readable: None }.admits(&health("/srv/elsewhere/ca.crt")).expect("no sandbox");
    }

    #[test]
    fn a_file_in_a_folder_of_the_system_needs_no_restart() {
        let sandbox = Sandbox { readable: Some(Vec::new()) };
        sandbox.admits_file(Path::new("/etc/meshport/meshport.toml")).expect("it is readable");
        sandbox.admits_file(Path::new("/srv/meshport.toml")).expect_err("it is not");
    }

    #[test]
    fn a_missing_folder_of_a_socket_needs_a_restart() {
        let folder = tempfile::tempdir().expect("a folder");
        let missing = folder.path().join("missing");
        let said = logged(|| warn_of_missing(&[folder.path().to_owned(), missing.clone()]));
        assert_eq!(said.matches("restart the daemon").count(), 1, "{said}");
        assert!(said.contains(&*missing.to_string_lossy()), "{said}");
    }

    /// `meshport run --config meshport.toml`, when the file is created later.
    #[test]
    fn a_bare_file_name_is_in_the_working_folder() {
        let config = Path::new("meshport-later.toml");
        let named = named_with(&settings(""), config);
        let readable = named.iter().flat_map(|file| folders(file)).collect();
        let sandbox = Sandbox { readable: Some(readable) };
        sandbox.admits_file(config).expect("it is readable");
        sandbox.admits_file(Path::new("/srv/meshport.toml")).expect_err("it is not");
    }

    #[test]
    fn a_symlink_is_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (data, link) = (folder.path().join("data"), folder.path().join("ca.crt"));
        std::fs::create_dir(&data).expect("a folder");
        std::fs::write(data.join("ca.crt"), "").expect("a file");
        std::os::unix::fs::symlink("data/ca.crt", &link).expect("a link");
        let data = data.canonicalize().expect("it is there");
        assert_eq!(folders(&link).collect::<Vec<_>>(), [folder.path().to_owned(), data]);
    }

    #[test]
    fn a_part_that_an_outer_filter_refuses_is_logged_with_the_remedy() {
        // In a separate thread, since a filter cannot be removed.
        let inside = thread::spawn(|| {
            let refused = IN_NO_GROUP.into_iter().map(|call| (call, Vec::new())).collect();
            let error = SeccompAction::Errno(libc::EPERM.unsigned_abs());
            let here = std::env::consts::ARCH.try_into().expect("it is known");
            let filter = SeccompFilter::new(refused, SeccompAction::Allow, error, here);
            let filter: seccompiler::BpfProgram = filter.expect("good").try_into().expect("good");
            seccompiler::apply_filter(&filter).expect("it is taken");
            let folder = tempfile::tempdir().expect("a folder");
            let mut settings = settings("");
            settings.state_dir = folder.path().to_owned();
            logged(|| drop(Sandbox::enter(&settings, Path::new("/nowhere/meshport.toml"))))
        });
        let said = inside.join().expect("it goes on");
        let warned = |what: &str, remedy: &str| {
            let line = said.lines().find(|line| line.contains(what));
            let line = line.unwrap_or_else(|| panic!("no line {what:?}:\n{said}"));
            assert!(line.contains("WARN") && line.contains(remedy), "{line}");
        };
        warned("access to files is not restricted", "Allow landlock_create_ruleset");
        warned("system calls are not filtered", "Allow seccomp");
        if !said.contains("capabilities=\"none\"") && !said.contains("capabilities=none") {
            warned("cannot drop capabilities", "allow capset");
        }
        assert!(said.contains("files=\"no\" calls=\"no\""), "{said}");
    }
}
