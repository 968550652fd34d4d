//! `meshport run`: runs the daemon until a signal stops it.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use meshport_config::{LogFormat, LogLevel, NodeName, Settings, UnixSeconds};

use super::join::{self, JoinArgs, Joined};
use super::paths::Paths;
use super::{clock, line, load, logging};
use meshport_daemon::Error;
use meshport_daemon::lifecycle::upgrade;
use meshport_daemon::{self, Inherited, Options, Source, Starter, starter};
use meshport_state::StateDir;

/// `meshport run`
#[derive(Debug, Clone, Args)]
pub(crate) struct RunArgs {
    /// Configuration file [default: this user's, if it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// State folder; overrides the configuration
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Log format; overrides the configuration
    #[arg(long, value_name = "FORM")]
    log_format: Option<Format>,
    /// Log level (error, warn, info, debug, trace); overrides the configuration
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<LogLevel>,
    /// File with an invite to join with first; not read if this machine has a credential
    #[arg(long, value_name = "FILE")]
    join_file: Option<PathBuf>,
    /// Name of this machine in the mesh, when it joins [default: the configuration's, the
    /// invite's, or its host name]
    #[arg(long, value_name = "NAME", requires = "join_file")]
    join_name: Option<NodeName>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    /// Lines for people
    Text,
    /// One JSON object per line
    Json,
}

pub(crate) fn run(args: &RunArgs) -> Result<(), Error> {
    let predecessor = starter::predecessor();
    let to = predecessor.as_ref().and_then(|link| link.try_clone().ok());
    let ended = serve(args, predecessor);
    if let (Err(error), Some(link)) = (&ended, to) {
        upgrade::say_failure(&link, error);
    }
    ended
}

fn serve(args: &RunArgs, predecessor: Option<UnixStream>) -> Result<(), Error> {
    // Dropping them if the start fails refuses clients, which would wait for a daemon that cannot
    // run.
    let inherited = Inherited::take();
    let joined = match &args.join_file {
        Some(file) => join_once(file, args, &Paths::of_this_user()?, clock::wall())?,
        None => None,
    };
    let (settings, config) = effective(args)?;
    let state = StateDir::open(&settings.state_dir)?;
    load::check_stored(&settings)?;
    let set_level =
        logging::start(settings.log.format == LogFormat::Json, settings.log.level.as_str())?;
    if let Some(Joined { mesh, name, site, .. }) = joined {
        tracing::info!(%mesh, %name, %site, "joined with the invite of --join-file");
    }
    if args.config.is_none() {
        Paths::of_this_user()?.make_config_folder();
    }
    // Before any thread starts and any key is in memory; after the inherited sockets are marked
    // close-on-exec; only for a start that gets this far.
    let launched = Starter::launch();
    if let Err(error) = &launched {
        tracing::warn!(%error, "cannot start the helper; `meshport upgrade` will not work");
    }
    let args = args.clone();
    let reread = Box::new(move || {
        let (settings, _) = effective(&args)?;
        load::check_stored(&settings).map(|()| settings)
    });
    let source = Source { config, reread, set_level };
    let starter = launched.ok();
    let options = Options { settings, source, state, inherited, starter, predecessor };
    meshport_daemon::run(options)
}

/// Joins with the invite in the file unless this machine has a credential; returns its identity.
fn join_once(
    file: &Path,
    args: &RunArgs,
    paths: &Paths,
    now: UnixSeconds,
) -> Result<Option<Joined>, Error> {
    let settings = load::of_file(args.config.as_deref(), args.state_dir.as_deref(), paths)?;
    let of_file = settings.as_ref().map(|settings| settings.state_dir.clone());
    let state_dir = args.state_dir.clone().or(of_file);
    let state_dir = state_dir.unwrap_or_else(|| paths.state_dir().to_owned());
    if state_dir.exists() && StateDir::open(&state_dir)?.credential()?.is_some() {
        return Ok(None);
    }
    let (name, site) = settings.map_or((None, None), |it| (it.name, Some(it.site)));
    let join_args = JoinArgs {
        invite: file.display().to_string(),
        name: args.join_name.clone().or(name),
        site,
        state_dir: None,
        force: false,
        now: false,
        json: false,
    };
    let report = join::join(&line::of_file(file)?, &join_args, &state_dir, now)?;
    Ok(Some(report.joined))
}

/// The settings of the file, overridden by flags, and the file's path, which need not exist.
fn effective(args: &RunArgs) -> Result<(Settings, PathBuf), Error> {
    let paths = Paths::of_this_user()?;
    let loaded = load::settings(args.config.as_deref(), args.state_dir.as_deref(), &paths)?;
    let load::Loaded { mut settings, config_path } = loaded;
    match args.log_format {
        Some(Format::Text) => settings.log.format = LogFormat::Text,
        Some(Format::Json) => settings.log.format = LogFormat::Json,
        None => {}
    }
    settings.log.level = args.log_level.unwrap_or(settings.log.level);
    Ok((settings, config_path.unwrap_or_else(|| paths.config().to_owned())))
}
