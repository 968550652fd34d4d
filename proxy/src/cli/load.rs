//! Settings from flags and default paths.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use meshport_config::{
    Credential, Defaults, MAX_SETTINGS_BYTES, Settings, parse_leniently, parse_with,
};

use super::paths::Paths;
use meshport_daemon::{Error, files};
use meshport_state::StateDir;

const NOT_UTF_8: &str = "it is not UTF-8";
const NO_PIPE: &str = "Save it in a file, since a reload and other commands read it again. Only \
                       `meshport check` reads a pipe";

/// Settings and their file; `None` if they come from the credential.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) settings: Settings,
    pub(crate) config_path: Option<PathBuf>,
}

/// The daemon's settings: from the file, else from the credential in the state folder.
///
/// # Errors
/// [`Error::Config`] with all problems of the file, [`Error::Unfit`] when it cannot be read,
/// [`Error::State`] when there is neither file nor credential.
pub(crate) fn settings(
    config: Option<&Path>,
    state_dir: Option<&Path>,
    paths: &Paths,
) -> Result<Loaded, Error> {
    if let Some(path) = config_file(config, paths) {
        let settings = read(path, state_dir, paths)?;
        return Ok(Loaded { settings, config_path: Some(path.to_owned()) });
    }
    let defaults = defaults(state_dir, paths);
    let credential = StateDir::open(&defaults.state_dir)?.credential()?.ok_or_else(|| {
        let what = format!("no credential, and no configuration {}", paths.config().display());
        Error::State {
            path: defaults.state_dir.clone(),
            what,
            remedy: "Run `meshport join INVITE` first, or name a file with --config".into(),
        }
    })?;
    let settings = Settings::with_defaults(credential.site, &defaults);
    Ok(Loaded { settings, config_path: None })
}

/// As [`settings`], also from a pipe, for a command that reads the file only once.
pub(crate) fn settings_once(
    config: Option<&Path>,
    state_dir: Option<&Path>,
    paths: &Paths,
) -> Result<Loaded, Error> {
    let is_pipe = |path: &&Path| std::fs::metadata(path).is_ok_and(|it| it.file_type().is_fifo());
    let Some(path) = config.filter(is_pipe) else { return settings(config, state_dir, paths) };
    let limit = MAX_SETTINGS_BYTES as u64;
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|pipe| pipe.take(limit + 1).read_to_end(&mut bytes));
    read.map_err(|error| unfit(path, &error.to_string()))?;
    if bytes.len() > MAX_SETTINGS_BYTES {
        return Err(unfit(path, &format!("it is larger than {limit} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|_| unfit(path, NOT_UTF_8))?;
    let settings = parse(path, &text, state_dir, paths)?;
    Ok(Loaded { settings, config_path: Some(path.to_owned()) })
}

/// Reads a settings file. Absent values come from the default paths; a `state_dir` from the command
/// line takes precedence over the file's.
///
/// # Errors
/// [`Error::Config`] with all problems, [`Error::Unfit`] when it cannot be read.
pub(crate) fn read(
    path: &Path,
    state_dir: Option<&Path>,
    paths: &Paths,
) -> Result<Settings, Error> {
    parse(path, &text(path)?, state_dir, paths)
}

/// The settings in the text of a file.
fn parse(
    path: &Path,
    text: &str,
    state_dir: Option<&Path>,
    paths: &Paths,
) -> Result<Settings, Error> {
    let parse = |defaults: &Defaults| {
        parse_with(text, defaults)
            .map_err(|problems| Error::Config { path: path.to_owned(), problems })
    };
    let mut defaults = defaults(state_dir, paths);
    let mut settings = parse(&defaults)?;
    if let Some(state_dir) = state_dir {
        settings.state_dir = state_dir.to_owned();
    } else if settings.state_dir != defaults.state_dir {
        // A state folder set in the file contains the socket, unless the file sets that too.
        defaults.socket = None;
        settings = parse(&defaults)?;
    }
    Ok(settings)
}

/// The settings of the file, if there is one.
pub(crate) fn of_file(
    config: Option<&Path>,
    state_dir: Option<&Path>,
    paths: &Paths,
) -> Result<Option<Settings>, Error> {
    config_file(config, paths).map(|path| read(path, state_dir, paths)).transpose()
}

/// The daemon's socket. The daemon may be running although the file has become invalid since, so
/// the valid parts count.
///
/// # Errors
/// [`Error::Unfit`] for a named file that cannot be read. If this user may not read the default
/// file, the default socket is used.
pub(crate) fn socket(config: Option<&Path>, state_dir: Option<&Path>) -> Result<PathBuf, Error> {
    let paths = Paths::of_this_user()?;
    let (file, fallback) = match state_dir {
        // The default file may be another daemon's.
        Some(state_dir) => (config, paths.socket_for(state_dir)),
        None => (config_file(config, &paths), paths.default_socket(is_there)),
    };
    match file {
        None => Ok(fallback),
        Some(path) => match text(path) {
            Ok(text) => Ok(socket_in(&text, state_dir, &paths)),
            Err(_) if config.is_none() => Ok(fallback),
            Err(error) => Err(error),
        },
    }
}

/// Whether a path exists or, in a folder that this user may not search, may exist.
fn is_there(path: &Path) -> bool {
    let found = std::fs::symlink_metadata(path);
    found.map_or_else(|error| error.kind() == io::ErrorKind::PermissionDenied, |_| true)
}

/// The daemon's state folder, by the same rules.
pub(crate) fn state_dir(config: Option<&Path>, state_dir: Option<&Path>) -> Result<PathBuf, Error> {
    if let Some(state_dir) = state_dir {
        return Ok(state_dir.to_owned());
    }
    let paths = Paths::of_this_user()?;
    let of_file = of_file(config, None, &paths)?.map(|settings| settings.state_dir);
    Ok(of_file.unwrap_or_else(|| default_state_dir(&paths)))
}

/// The state folder if nothing names one.
pub(crate) fn default_state_dir(paths: &Paths) -> PathBuf {
    paths.default_state_dir(is_there)
}

fn socket_in(text: &str, state_dir: Option<&Path>, paths: &Paths) -> PathBuf {
    let mut defaults = defaults(state_dir, paths);
    let parse = |defaults: &Defaults| parse_leniently(text, defaults).0;
    let first = parse(&defaults);
    let differs = first.as_ref().is_some_and(|it| it.state_dir != defaults.state_dir);
    let chosen = state_dir.is_none() && differs;
    // As in `read`: a state folder set in the file contains the socket.
    defaults.socket = defaults.socket.filter(|_| !chosen);
    let settings = if chosen { parse(&defaults) } else { first };
    settings.map_or_else(|| paths.socket_for(&defaults.state_dir), |it| it.admin.socket)
}

/// Refuses settings that contradict the stored credential. One that cannot be read is reported
/// elsewhere.
///
/// # Errors
/// [`Error::Unfit`] that names both values.
pub(crate) fn check_stored(settings: &Settings) -> Result<(), Error> {
    let stored = StateDir::open(&settings.state_dir).and_then(|state| state.credential());
    stored.ok().flatten().map_or(Ok(()), |credential| check_credential(settings, &credential))
}

/// Refuses settings that contradict the credential.
///
/// # Errors
/// [`Error::Unfit`] that names both values.
pub(crate) fn check_credential(settings: &Settings, credential: &Credential) -> Result<(), Error> {
    let contradiction = |key: &str, configured: &str, credential: &str| {
        Error::Unfit(format!(
            "the credential in {} is for {key} \"{credential}\", but the configuration has \
             \"{configured}\". Correct `{key}`, or join again with an invite for it",
            settings.state_dir.display()
        ))
    };
    if settings.site != credential.site {
        return Err(contradiction("site", settings.site.as_str(), credential.site.as_str()));
    }
    match &settings.name {
        Some(name) if *name != credential.name => {
            Err(contradiction("name", name.as_str(), credential.name.as_str()))
        }
        _ => Ok(()),
    }
}

/// Whether this user may not read the file.
pub(crate) fn is_closed(path: &Path) -> bool {
    let read = files::read(path, MAX_SETTINGS_BYTES as u64);
    read.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

/// The named file, else the default one if it exists.
pub(crate) fn config_file<'a>(config: Option<&'a Path>, paths: &'a Paths) -> Option<&'a Path> {
    config.or_else(|| Some(paths.config()).filter(|path| path.exists()))
}

fn defaults(state_dir: Option<&Path>, paths: &Paths) -> Defaults {
    let state_dir = state_dir.unwrap_or(paths.state_dir()).to_owned();
    let socket = Some(paths.socket_for(&state_dir));
    Defaults { state_dir, socket }
}

fn text(path: &Path) -> Result<String, Error> {
    let bytes = files::read(path, MAX_SETTINGS_BYTES as u64);
    let bytes = bytes.map_err(|error| match std::fs::metadata(path) {
        Ok(it) if !it.is_file() => unfit(path, &format!("{error}. {NO_PIPE}")),
        _ => unfit(path, &error.to_string()),
    })?;
    String::from_utf8(bytes.to_vec()).map_err(|_| unfit(path, NOT_UTF_8))
}

fn unfit(path: &Path, why: &str) -> Error {
    Error::Unfit(format!("cannot read the configuration {}: {why}", path.display()))
}
