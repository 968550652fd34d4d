//! `meshport check`: reports all problems of a configuration and its files at once.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use clap::Args;
use meshport_config::{
    Allow, Credential, Problem, Role, ServiceSettings, Settings, UnixSeconds, reference,
};
use serde::Serialize;

use super::paths::Paths;
use super::{clock, load, output};
use meshport_daemon::Error;
use meshport_daemon::state::StateDir;

/// From here on, the end of a credential is worth a warning, in seconds.
const ENDS_SOON_S: u64 = 30 * 86_400;

/// `meshport check`
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Configuration file [default: this user's]
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Same as FILE
    #[arg(long, value_name = "FILE", conflicts_with = "file")]
    pub(crate) config: Option<PathBuf>,
    /// State folder; overrides the configuration
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Print every key with its meaning, unit, default and bounds; reads no file
    #[arg(long, conflicts_with_all = ["file", "config", "state_dir", "json"])]
    pub(crate) reference: bool,
}

/// What was found.
#[derive(Debug, Default, Serialize)]
pub(crate) struct CheckReport {
    /// Whether a daemon would start with it.
    pub(crate) ok: bool,
    /// Absent when the settings come from the credential alone, as for `meshport run`.
    pub(crate) file: Option<PathBuf>,
    /// In the file itself.
    pub(crate) problems: Vec<Problem>,
    /// In files around it: a daemon would not start, or not work as configured.
    pub(crate) obstacles: Vec<String>,
    /// Worth a look.
    pub(crate) warnings: Vec<String>,
    /// With every default; absent when the file has problems.
    pub(crate) effective: Option<Settings>,
}

pub(crate) fn run(args: &CheckArgs) -> Result<(), Error> {
    if args.reference {
        return output::answer(&reference());
    }
    let paths = Paths::of_this_user()?;
    let file = args.file.as_deref().or(args.config.as_deref());
    let report = check(file, args.state_dir.as_deref(), &paths, clock::wall())?;
    if args.json {
        output::json(&report)?;
    } else {
        if let Some(settings) = &report.effective {
            output::answer(&settings.to_toml())?;
        }
        for obstacle in &report.obstacles {
            output::advice(&format!("problem: {obstacle}"));
        }
        for warning in &report.warnings {
            output::advice(&format!("warning: {warning}"));
        }
    }
    let CheckReport { file, problems, obstacles, .. } = report;
    if !problems.is_empty() {
        return Err(Error::Config { path: file.unwrap_or_default(), problems });
    }
    match obstacles.len() {
        0 => Ok(()),
        1 => Err(Error::Unfit("a daemon cannot run with this configuration: 1 problem".into())),
        count => Err(Error::Unfit(format!(
            "a daemon cannot run with this configuration: {count} \
                                           problems"
        ))),
    }
}

/// Looks at the file and at everything it names; starts nothing.
pub(crate) fn check(
    file: Option<&Path>,
    state_dir: Option<&Path>,
    paths: &Paths,
    now: UnixSeconds,
) -> Result<CheckReport, Error> {
    let (mut report, settings) = match load::settings(file, state_dir, paths) {
        Ok(load::Loaded { settings, config_path: file }) => {
            (CheckReport { file, ..CheckReport::default() }, settings)
        }
        Err(Error::Config { path, problems }) => {
            let file = Some(path);
            return Ok(CheckReport { file, problems, ..CheckReport::default() });
        }
        Err(error) => return Err(error),
    };
    check_state(&settings, now, &mut report);
    for (name, service) in &settings.services {
        check_files(name.as_str(), service, &mut report);
        if let Some(doubt) = Allow::doubt(&service.allow) {
            report.warnings.push(format!("service.{name}.allow: {doubt}"));
        }
    }
    report.ok = report.obstacles.is_empty();
    report.effective = Some(settings);
    Ok(report)
}

fn check_state(settings: &Settings, now: UnixSeconds, report: &mut CheckReport) {
    if !settings.state_dir.exists() {
        let folder = settings.state_dir.display();
        let text =
            format!("{folder}: this state folder does not exist yet; `meshport join` creates it");
        report.warnings.push(text);
        return;
    }
    let state = match StateDir::open(&settings.state_dir) {
        Ok(state) => state,
        Err(error) => return report.obstacles.push(error.to_string()),
    };
    match state.credential() {
        Ok(None) => {
            let folder = settings.state_dir.display();
            report.warnings.push(format!("{folder}: this machine has not joined a mesh yet"));
            return;
        }
        Ok(Some(credential)) => check_credential(settings, &credential, now, report),
        // Said below, with whatever else the identity lacks.
        Err(_) => {}
    }
    if let Err(error) = state.identity(now) {
        report.obstacles.push(error.to_string());
    }
    match state.seeds() {
        Ok(_) => report.warnings.extend(state.doubts()),
        Err(error) => report.obstacles.push(error.to_string()),
    }
}

fn check_credential(
    settings: &Settings,
    credential: &Credential,
    now: UnixSeconds,
    report: &mut CheckReport,
) {
    if let Err(error) = load::check_credential(settings, credential) {
        report.obstacles.push(error.to_string());
    }
    let left = credential.expires_at.seconds_since(now);
    if (1..ENDS_SOON_S).contains(&left) {
        let text = format!(
            "the credential expires at {}; renew it with `meshport renew`",
            credential.expires_at
        );
        report.warnings.push(text);
    }
    for (name, service) in &settings.services {
        if service.origin.is_some() && !credential.roles.contains(&Role::Origin(name.clone())) {
            let text = format!(
                "the credential lacks the role origin:{name}, so other nodes ignore what this one \
                 offers; join again with an invite that has it"
            );
            report.warnings.push(text);
        }
    }
}

fn check_files(service: &str, settings: &ServiceSettings, report: &mut CheckReport) {
    let health = &settings.health;
    let files = [
        ("cluster-kubeconfig", &settings.cluster_kubeconfig, true),
        ("health.ca-file", &health.ca_file, false),
        ("health.client-cert-file", &health.client_cert_file, false),
        ("health.client-key-file", &health.client_key_file, true),
        ("health.bearer-token-file", &health.bearer_token_file, true),
    ];
    for (key, path, is_secret) in files {
        let Some(path) = path else { continue };
        let at = format!("service.{service}.{key}: {}", path.display());
        match File::open(path).and_then(|_| fs::metadata(path)) {
            Err(error) => report.obstacles.push(format!("{at} cannot be read: {error}")),
            Ok(metadata) if !metadata.is_file() => {
                report.obstacles.push(format!("{at} is not a file"));
            }
            Ok(metadata) if metadata.len() == 0 => {
                report.obstacles.push(format!("{at} is empty"));
            }
            Ok(metadata) if is_secret && metadata.mode() & 0o077 != 0 => {
                let mode = metadata.mode() & 0o7777;
                let text = format!(
                    "{at} is accessible to other users (mode {mode:04o}); run `chmod 600 {}`",
                    path.display()
                );
                report.warnings.push(text);
            }
            Ok(_) => {}
        }
    }
}
