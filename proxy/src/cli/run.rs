//! `meshport run`: the daemon, until a signal ends it.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use meshport_config::{LogFormat, LogLevel, Settings};

use super::paths::Paths;
use super::{load, logging, runtime};
use meshport_daemon::Error;
use meshport_daemon::state::StateDir;
use meshport_daemon::{self, Options, Source};

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
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Format {
    /// Lines for people
    Text,
    /// One JSON object per line
    Json,
}

pub(crate) fn run(args: &RunArgs) -> Result<(), Error> {
    let (settings, config) = effective(args)?;
    let state = StateDir::open(&settings.state_dir)?;
    if let Some(credential) = state.credential()? {
        load::check_credential(&settings, &credential)?;
    }
    let set_level =
        logging::start(settings.log.format == LogFormat::Json, settings.log.level.as_str())?;
    let args = args.clone();
    let reread = Box::new(move || effective(&args).map(|(settings, _)| settings));
    let source = Source { config, reread, set_level };
    runtime()?.block_on(meshport_daemon::run(Options { settings, source, state }))
}

/// The settings of the file with the flags over them, and the file, which need not be there.
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
