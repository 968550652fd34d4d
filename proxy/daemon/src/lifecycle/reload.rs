//! A reload (`meshport reload`, SIGHUP): rereads the configuration and the credential, applies what
//! can change in a running daemon, and reports for each changed key whether it has taken effect or
//! needs a restart.
//!
//! A file with errors changes nothing and ends no session; it is a finding until a reload succeeds.
//! A setting that needs a restart keeps its old value; `status` and every reload list it until the
//! file matches again.

use std::path::PathBuf;

use meshport_config::{LogLevel, Settings};
use meshport_state::StateDir;
use tokio::sync::oneshot;
use tracing::{error, info, warn};

use crate::Error;
use crate::admin::api::{ReloadReport, SettingChange};
use crate::clock;
use crate::driver::commands::Command;
use crate::lifecycle::sandbox::Sandbox;
use crate::node::assemble::warn_of_lists;
use crate::node::controls::Controls;
use crate::node::reload;

/// Where settings come from while the daemon runs.
pub struct Source {
    /// The file, which may be absent.
    pub config: PathBuf,
    /// Rereads the effective configuration.
    pub reread: Box<dyn Fn() -> Result<Settings, Error> + Send>,
    /// Changes the log level; `None` if a variable sets it.
    pub set_level: Option<Box<dyn Fn(LogLevel) + Send>>,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source").field("config", &self.config).finish_non_exhaustive()
    }
}

/// The settings in force.
pub(crate) struct Reload {
    pub(crate) settings: Settings,
    pub(crate) source: Source,
    /// Where the credential is reread from.
    pub(crate) state: StateDir,
    pub(crate) sandbox: Sandbox,
}

impl Reload {
    /// Rereads the credential and the file, applies them, and reports the result.
    pub(crate) async fn run(&mut self, controls: &Controls) -> Result<ReloadReport, Error> {
        let kept_credential = self.read_credential(controls).await;
        let report = match self.read() {
            Ok(new) => self.apply(&new, controls).await,
            Err(error) => Err(error),
        };
        match report {
            Ok(report) => {
                say(&report);
                Ok(ReloadReport { kept_credential, ..report })
            }
            Err(error) => {
                error!(%error, "configuration not reloaded; the current one stays in use");
                let _ = controls.commands.send(Command::Reloaded(Err(on_one_line(&error)))).await;
                let why =
                    format!("configuration not reloaded; the current one stays in use: {error}");
                Err(match error {
                    Error::Config { .. } | Error::Unfit(_) => Error::Unfit(why),
                    _ => Error::Refused(why),
                })
            }
        }
    }

    /// Presents the stored credential. Returns why the one in use stays, if it does.
    async fn read_credential(&self, controls: &Controls) -> Option<String> {
        let stored = self.state.identity(clock::wall());
        let stored = stored.map(|it| Box::new(it.credential)).map_err(|it| it.to_string());
        let (done, kept) = oneshot::channel();
        let _ = controls.commands.send(Command::Credential(stored, done)).await;
        let kept = kept.await.ok().flatten();
        if let Some(why) = &kept {
            warn!(why, "credential not reloaded; the current one stays in use");
        }
        kept
    }

    fn read(&self) -> Result<Settings, Error> {
        let Self { source, sandbox, .. } = self;
        if source.config.exists() {
            sandbox.admits_file(&source.config)?;
        }
        let settings = (source.reread)()?;
        sandbox.admits(&settings)?;
        Ok(settings)
    }

    async fn apply(&mut self, new: &Settings, controls: &Controls) -> Result<ReloadReport, Error> {
        let set_level = self.source.set_level.as_ref();
        let (next, report) =
            reload::apply(&self.settings, new, set_level.is_some(), controls).await?;
        if let Some(set_level) = set_level.filter(|_| next.log.level != self.settings.log.level) {
            set_level(next.log.level);
        }
        warn_of_lists(&next);
        self.settings = next;
        Ok(report)
    }
}

/// An error's text for a finding; a problem of the file has a line of its own.
fn on_one_line(error: &Error) -> String {
    let text = error.to_string();
    text.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

/// Logs one line per changed setting.
fn say(report: &ReloadReport) {
    info!(changed = report.applied.len(), "configuration reloaded");
    let none = || "not set".to_owned();
    for SettingChange { key, old, new } in &report.applied {
        let (old, new) = (old.clone().unwrap_or_else(none), new.clone().unwrap_or_else(none));
        info!(key, old, new, "setting changed");
    }
    for SettingChange { key, old, new } in &report.needs_restart {
        let (old, new) = (old.clone().unwrap_or_else(none), new.clone().unwrap_or_else(none));
        warn!(key, old, new, "setting changed in the file; it takes effect after a restart");
    }
    for SettingChange { key, old, new } in &report.overridden {
        let (old, new) = (old.clone().unwrap_or_else(none), new.clone().unwrap_or_else(none));
        warn!(key, old, new, "setting changed in the file without effect: MESHPORT_LOG sets it");
    }
}
