//! What the daemon gives up as soon as it knows its settings, so that whoever takes it over gets
//! little: capabilities, all files but a few, and all system calls but those of a network server.
//!
//! It works for any user and takes no privilege. What the kernel does not support is said in the
//! log and is no reason not to start: a node without its daemon has no apiserver. Threads that
//! start later inherit all of it, so it comes before the first of them.

mod calls;
mod capabilities;
mod files;

use std::path::{Path, PathBuf};

use meshport_config::Settings;
use tracing::{info, warn};

use super::roster;
use crate::Error;

/// What stays readable.
#[derive(Debug, Clone)]
pub(super) struct Sandbox {
    /// The files that the settings name can be read in these folders; `None`: in all.
    readable: Option<Vec<PathBuf>>,
}

impl Sandbox {
    /// Enters it, for the rest of the process, unless `sandbox` in the settings says no.
    pub(super) fn enter(settings: &Settings, config: Option<&Path>) -> Self {
        if !settings.sandbox {
            warn!("without a sandbox, as the configuration wants it (sandbox = false)");
            return Self { readable: None };
        }
        let mut named = named(settings);
        named.extend(config.map(Path::to_owned));
        let readable: Vec<PathBuf> = named.iter().flat_map(|file| folders(file)).collect();
        let mut writable = vec![settings.state_dir.clone()];
        writable.extend(settings.admin.socket.parent().map(Path::to_owned));

        let kept = capabilities::give_up(&[&named[..], &writable[..]].concat());
        let kept = kept.map_or_else(|error| format!("all: {error}"), |kept| kept.to_string());
        let restricted = files::restrict(&readable, &writable);
        let filtered = calls::filter();
        if let Err(error) = &filtered {
            warn!(%error, "the system does not filter the system calls of this process");
        }
        let enforced = match restricted {
            Ok(enforced) => enforced,
            Err(error) => {
                warn!(%error, "the system does not keep files from this process");
                false
            }
        };
        let calls = filtered.is_ok();
        info!(files = enforced, calls, capabilities = kept, "in a sandbox");
        Self { readable: enforced.then_some(readable) }
    }

    /// Whether the files that `settings` name can be read.
    ///
    /// # Errors
    /// [`Error::Usage`] with the first one that cannot.
    pub(super) fn admits(&self, settings: &Settings) -> Result<(), Error> {
        let Some(readable) = &self.readable else { return Ok(()) };
        let inside = |folder: &PathBuf| readable.iter().any(|known| folder.starts_with(known));
        let outside = named(settings).into_iter().find(|file| !folders(file).all(|it| inside(&it)));
        match outside {
            None => Ok(()),
            Some(file) => Err(Error::Usage(format!(
                "{} is in a folder that this daemon cannot read: at its start no file there was \
                 named. Restart it to use the file",
                file.display()
            ))),
        }
    }
}

/// The files that are read again while the daemon runs.
fn named(settings: &Settings) -> Vec<PathBuf> {
    let mut named = Vec::new();
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
            named.extend(roster::files_of(kubeconfig));
            named.push(kubeconfig.clone());
        }
    }
    named
}

/// The folder a file is in, and the one it leads to as a link: files are replaced, and a new file
/// is another one to the kernel.
fn folders(file: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let folder = |file: &Path| match file.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let target = file.canonicalize().ok();
    [Some(folder(file)), target.as_deref().map(folder)].into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(more: &str) -> Settings {
        let text = format!("site = \"fra\"\n[service.kube-apiserver]\n{more}");
        meshport_config::parse(&text).expect("it is good")
    }

    #[test]
    fn a_file_in_a_new_folder_takes_a_restart() {
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
    fn a_link_is_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (data, link) = (folder.path().join("data"), folder.path().join("ca.crt"));
        std::fs::create_dir(&data).expect("a folder");
        std::fs::write(data.join("ca.crt"), "").expect("a file");
        std::os::unix::fs::symlink("data/ca.crt", &link).expect("a link");
        let data = data.canonicalize().expect("it is there");
        assert_eq!(folders(&link).collect::<Vec<_>>(), [folder.path().to_owned(), data]);
    }
}
