//! Default paths.
//!
//! | | root | any other user | else |
//! | --- | --- | --- | --- |
//! | file | `/etc/meshport/meshport.toml` | in `$XDG_CONFIG_HOME/meshport` | `~/.config/meshport` |
//! | state | `/var/lib/meshport` | `$XDG_STATE_HOME/meshport` | `~/.local/state/meshport` |
//! | socket | in `/run/meshport` | in `$XDG_RUNTIME_DIR/meshport` | in the state folder |
//!
//! A state folder that the user sets contains the socket, so that several daemons on one machine
//! differ in one flag only.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use meshport_daemon::Error;

const APPLICATION: &str = "meshport";
const CONFIG_FILE: &str = "meshport.toml";
const SOCKET: &str = "meshport.sock";

/// The default paths of one user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Paths {
    config: PathBuf,
    state_dir: PathBuf,
    socket: PathBuf,
}

impl Paths {
    /// The paths of the user who runs this process.
    ///
    /// # Errors
    /// [`Error::Usage`] when the user has no home folder.
    pub(crate) fn of_this_user() -> Result<Self, Error> {
        // The owner of /proc/self is the effective user.
        let is_root = std::fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0);
        Self::new(is_root, |name| std::env::var_os(name))
    }

    /// The paths of a user with this home folder and no other variables.
    #[cfg(test)]
    pub(crate) fn in_home(home: &Path) -> Result<Self, Error> {
        Self::new(false, |name| (name == "HOME").then(|| home.as_os_str().to_owned()))
    }

    fn new(is_root: bool, variable: impl Fn(&str) -> Option<OsString>) -> Result<Self, Error> {
        if is_root {
            return Ok(Self {
                config: Path::new("/etc").join(APPLICATION).join(CONFIG_FILE),
                state_dir: root_state_dir(),
                socket: root_socket(),
            });
        }
        // Relative paths are ignored, as the XDG specification says.
        let folder =
            |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let home = folder("HOME");
        let base = |name: &str, fallback: &str| {
            folder(name).or_else(|| home.as_ref().map(|home| home.join(fallback))).ok_or_else(
                || {
                    let text = format!(
                        "HOME is not set; set it or {name}, or pass --config and --state-dir"
                    );
                    Error::Usage(text)
                },
            )
        };
        let state_dir = base("XDG_STATE_HOME", ".local/state")?.join(APPLICATION);
        let socket = match folder("XDG_RUNTIME_DIR") {
            Some(runtime) => runtime.join(APPLICATION).join(SOCKET),
            None => socket_in(&state_dir),
        };
        let config = base("XDG_CONFIG_HOME", ".config")?.join(APPLICATION).join(CONFIG_FILE);
        Ok(Self { config, state_dir, socket })
    }

    pub(crate) fn config(&self) -> &Path {
        &self.config
    }

    /// Creates the configuration's folder, so that the sandbox of a daemon that starts without a
    /// file can allow reading one later. Root's is below /etc, which every daemon may read. If the
    /// folder cannot be created, a file added later needs a restart.
    pub(crate) fn make_config_folder(&self) {
        let folder = self.config.parent().filter(|folder| !folder.starts_with("/etc"));
        let made = folder.map(|it| DirBuilder::new().recursive(true).mode(0o700).create(it));
        if let Some(Err(error)) = made {
            tracing::debug!(%error, "cannot create the configuration folder");
        }
    }

    pub(crate) fn state_dir(&self) -> &Path {
        &self.state_dir
    }

    /// The socket of the daemon on this machine: this user's, or root's if this user has none.
    pub(crate) fn default_socket(&self, is_there: impl Fn(&Path) -> bool) -> PathBuf {
        own_or_roots(&self.socket, root_socket(), is_there)
    }

    /// The state folder of the daemon on this machine, by the same rule.
    pub(crate) fn default_state_dir(&self, is_there: impl Fn(&Path) -> bool) -> PathBuf {
        own_or_roots(&self.state_dir, root_state_dir(), is_there)
    }

    /// The socket of a daemon with this state folder.
    pub(crate) fn socket_for(&self, state_dir: &Path) -> PathBuf {
        if state_dir == self.state_dir { self.socket.clone() } else { socket_in(state_dir) }
    }
}

fn root_socket() -> PathBuf {
    Path::new("/run").join(APPLICATION).join(SOCKET)
}

fn root_state_dir() -> PathBuf {
    Path::new("/var/lib").join(APPLICATION)
}

fn own_or_roots(own: &Path, root: PathBuf, is_there: impl Fn(&Path) -> bool) -> PathBuf {
    if !is_there(own) && is_there(&root) { root } else { own.to_owned() }
}

fn socket_in(state_dir: &Path) -> PathBuf {
    state_dir.join(SOCKET)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(variables: &[(&str, &str)]) -> Result<Paths, Error> {
        let find = |name: &str| variables.iter().find(|(key, _)| *key == name);
        Paths::new(false, |name| find(name).map(|(_, value)| OsString::from(value)))
    }

    #[test]
    fn root_uses_the_system_folders() {
        let paths = Paths::new(true, |_| None).expect("root needs no variable");
        assert_eq!(paths.config(), Path::new("/etc/meshport/meshport.toml"));
        assert_eq!(paths.state_dir(), Path::new("/var/lib/meshport"));
        let socket = paths.socket_for(Path::new("/var/lib/meshport"));
        assert_eq!(socket, Path::new("/run/meshport/meshport.sock"));
    }

    #[test]
    fn others_use_their_home_folder_and_what_xdg_says() {
        let home = user(&[("HOME", "/home/u")]).expect("a home suffices");
        assert_eq!(home.config(), Path::new("/home/u/.config/meshport/meshport.toml"));
        assert_eq!(home.state_dir(), Path::new("/home/u/.local/state/meshport"));
        assert_eq!(home.socket, Path::new("/home/u/.local/state/meshport/meshport.sock"));

        let xdg = user(&[
            ("XDG_CONFIG_HOME", "/c"),
            ("XDG_STATE_HOME", "/s"),
            ("XDG_RUNTIME_DIR", "/run/user/7"),
        ])
        .expect("no home is needed then");
        assert_eq!(xdg.config(), Path::new("/c/meshport/meshport.toml"));
        assert_eq!(
            xdg.socket_for(Path::new("/s/meshport")),
            Path::new("/run/user/7/meshport/meshport.sock")
        );

        let relative =
            user(&[("HOME", "/home/u"), ("XDG_STATE_HOME", "s")]).expect("it is ignored");
        assert_eq!(relative.state_dir(), home.state_dir());
    }

    #[test]
    fn the_folder_of_a_users_file_is_made_and_private() {
        let home = tempfile::tempdir().expect("a folder");
        let paths = Paths::in_home(home.path()).expect("it has a home");
        for _ in 0..2 {
            paths.make_config_folder();
            let made = std::fs::metadata(home.path().join(".config/meshport")).expect("it is made");
            assert!(made.is_dir() && made.mode() & 0o777 == 0o700, "{:o}", made.mode());
        }
    }

    #[test]
    fn a_chosen_state_folder_has_its_own_socket() {
        let paths = Paths::new(true, |_| None).expect("root needs no variable");
        assert_eq!(paths.socket_for(Path::new("/tmp/a")), Path::new("/tmp/a/meshport.sock"));
    }

    #[test]
    fn a_user_without_a_daemon_means_roots() {
        let paths = user(&[("HOME", "/home/u")]).expect("a home suffices");
        let (own, root) = (paths.socket.clone(), PathBuf::from("/run/meshport/meshport.sock"));
        assert_eq!(paths.default_socket(|path| path == root), root);
        assert_eq!(paths.default_socket(|_| true), own);
        assert_eq!(paths.default_socket(|_| false), own);
        let (own, root) = (paths.state_dir().to_owned(), PathBuf::from("/var/lib/meshport"));
        assert_eq!(paths.default_state_dir(|path| path == root), root);
        assert_eq!(paths.default_state_dir(|_| true), own);
        assert_eq!(paths.default_state_dir(|_| false), own);
    }

    #[test]
    fn no_home_is_said() {
        let error = user(&[]).expect_err("there is nowhere to write").to_string();
        assert!(error.contains("HOME is not set"), "{error}");
    }
}
