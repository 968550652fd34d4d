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
use meshport_core::findings::{Finding, OPEN_TO_OTHERS};
use meshport_daemon::admin::credentials::Validity;
use meshport_daemon::{Error, findings};
use meshport_state::StateDir;

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

/// The results.
#[derive(Debug, Default, Serialize)]
pub(crate) struct CheckReport {
    /// Whether a daemon would start.
    pub(crate) ok: bool,
    /// Absent if the settings come from the credential alone.
    pub(crate) file: Option<PathBuf>,
    /// Problems of the file itself.
    pub(crate) problems: Vec<Problem>,
    /// Problems of files it refers to: a daemon would not start, or not work as configured.
    pub(crate) obstacles: Vec<String>,
    /// Probable mistakes.
    pub(crate) warnings: Vec<String>,
    /// Warnings with an id.
    #[serde(skip)]
    pub(crate) found: Vec<Finding>,
    /// The settings with every default, without secrets; absent if the file has problems.
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
        if report.problems.is_empty() && report.file.is_none() {
            let file = paths.config().display();
            output::advice(&format!("{file} does not exist; defaults:"));
        }
        for obstacle in &report.obstacles {
            output::advice(&format!("problem: {obstacle}"));
        }
        for warning in &report.warnings {
            output::advice(&format!("warning: {warning}"));
        }
    }
    let CheckReport { file, problems, obstacles, warnings, .. } = report;
    if !problems.is_empty() {
        return Err(Error::Config { path: file.unwrap_or_default(), problems });
    }
    match obstacles.len() {
        0 if args.json || !warnings.is_empty() => Ok(()),
        0 => {
            output::advice("no problems found");
            Ok(())
        }
        1 => Err(Error::Unfit("a daemon cannot run with this configuration: 1 problem".into())),
        count => Err(Error::Unfit(format!(
            "a daemon cannot run with this configuration: {count} \
             problems"
        ))),
    }
}

impl CheckReport {
    fn find(&mut self, found: Finding) {
        self.warnings.push(found.to_string());
        self.found.push(found);
    }
}

/// Checks the file and everything it names; starts nothing.
pub(crate) fn check(
    file: Option<&Path>,
    state_dir: Option<&Path>,
    paths: &Paths,
    now: UnixSeconds,
) -> Result<CheckReport, Error> {
    let (mut report, settings) = match load::settings_once(file, state_dir, paths) {
        Ok(load::Loaded { settings, config_path: file }) => {
            (CheckReport { file, ..CheckReport::default() }, settings)
        }
        Err(Error::Config { path, problems }) => {
            let file = Some(path);
            return Ok(CheckReport { file, problems, ..CheckReport::default() });
        }
        Err(Error::Unfit(why)) => {
            let file = Some(file.unwrap_or(paths.config()).to_owned());
            return Ok(CheckReport { file, obstacles: vec![why], ..CheckReport::default() });
        }
        Err(Error::State { path, what, remedy }) => {
            let roots = roots(&path, paths).map(|it| as_root(&it));
            return Err(Error::State { path, what, remedy: roots.unwrap_or(remedy) });
        }
        Err(error) => return Err(error),
    };
    if settings.state_dir.exists() {
        check_state(&settings, now, &mut report);
    } else {
        let own = &settings.state_dir;
        report.warnings.push(no_folder(own, roots(own, paths).as_deref()));
    }
    check_services(&settings, &mut report);
    report.ok = report.obstacles.is_empty();
    report.effective = Some(settings.redacted());
    Ok(report)
}

/// Checks the files named in the settings of services.
pub(crate) fn files(settings: &Settings) -> CheckReport {
    let mut report = CheckReport::default();
    check_services(settings, &mut report);
    report
}

fn check_services(settings: &Settings, report: &mut CheckReport) {
    for (name, service) in &settings.services {
        if let Some(meant) = name.misspelt() {
            report.warnings.push(format!("service.{name}: did you mean \"{meant}\"?"));
        }
        check_files(name.as_str(), service, report);
        if let Some(doubt) = Allow::doubt(&service.allow) {
            report.warnings.push(format!("service.{name}.allow: {doubt}"));
        }
    }
    for (name, listener) in &settings.expose {
        if let Some(doubt) = listener.doubt() {
            report.warnings.push(format!("expose.{name}.allow: {doubt}"));
        }
    }
}

/// Root's state folder, if `own` is this user's and only root's exists.
fn roots(own: &Path, paths: &Paths) -> Option<PathBuf> {
    let default = load::default_state_dir(paths);
    (own == paths.state_dir() && default != *own).then_some(default)
}

fn as_root(roots: &Path) -> String {
    format!("Root's is {}; run this as root to check that", roots.display())
}

/// The warning that there is no state folder.
fn no_folder(own: &Path, roots: Option<&Path>) -> String {
    let own = own.display();
    match roots {
        Some(roots) => format!("{own}: this user has no state folder. {}", as_root(roots)),
        None => format!("{own}: this state folder does not exist yet; `meshport join` creates it"),
    }
}

fn check_state(settings: &Settings, now: UnixSeconds, report: &mut CheckReport) {
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
        // Reported below with the identity.
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
    // The identity check below refuses an expired or future credential.
    let validity = Validity::of_node(credential, now);
    let ends = findings::of_credential(credential, now).filter(|_| validity == Validity::EndsSoon);
    ends.into_iter().for_each(|it| report.find(it));
    for (name, service) in &settings.services {
        if service.origin.is_some() && !credential.roles.contains(&Role::Origin(name.clone())) {
            report.find(findings::of_role(name));
        }
    }
    for role in &credential.roles {
        let Role::Origin(service) = role else { continue };
        let settings = settings.services.get(service);
        if settings.is_none_or(|settings| settings.origin.is_none()) {
            report.warnings.push(format!(
                "the role origin:{service} has no effect: set `origin` under [service.{service}]"
            ));
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
        let opened = |it: fs::Metadata| {
            // Opening a pipe would wait for its writer.
            if it.is_file() { File::open(path).map(|_| it) } else { Ok(it) }
        };
        match fs::metadata(path).and_then(opened) {
            Err(error) => report.obstacles.push(format!("{at} cannot be read: {error}")),
            Ok(metadata) if !metadata.is_file() => {
                report.obstacles.push(format!("{at} is not a file"));
            }
            Ok(metadata) if metadata.len() == 0 => {
                report.obstacles.push(format!("{at} is empty"));
            }
            Ok(metadata) if is_secret && metadata.mode() & 0o077 != 0 => {
                let mode = metadata.mode() & 0o7777;
                let text = format!("{at} is open to other users (mode {mode:04o})");
                report.find(OPEN_TO_OTHERS.found(text));
            }
            Ok(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use meshport_config::ServiceName;
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn a_file_that_cannot_be_read_is_reported_as_others_are() {
        let folder = tempfile::tempdir().expect("a folder");
        let paths = Paths::in_home(folder.path()).expect("paths");
        let none = folder.path().join("none.toml");
        let report = check(Some(&none), None, &paths, UnixSeconds(0)).expect("a report");
        let json = serde_json::to_value(&report).expect("it has JSON");
        assert_eq!((&json["ok"], &json["file"]), (&false.into(), &none.to_str().into()));
        let obstacle = json["obstacles"][0].as_str().unwrap_or_default();
        assert!(obstacle.starts_with("cannot read the configuration"), "{json}");
    }

    #[test]
    fn a_configuration_in_a_pipe_is_checked_and_nothing_else_takes_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let paths = Paths::in_home(folder.path()).expect("paths");
        let pipe = folder.path().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("made");
        let checked = |text: String| {
            let writer = pipe.clone();
            // It fails once a reader that has enough closes the pipe.
            std::thread::spawn(move || fs::write(writer, text));
            check(Some(&pipe), None, &paths, UnixSeconds(0)).expect("a report")
        };
        let report = checked("site = \"fra\"\n".into());
        assert!(report.ok && report.file.as_ref() == Some(&pipe), "{report:?}");
        assert_eq!(report.effective.expect("settings").site.as_str(), "fra");
        let broken = checked("site = \"fra\"\nnonsense = 1\n".into());
        assert_eq!(broken.problems.len(), 1, "{broken:?}");
        let long = checked("#".repeat(meshport_config::MAX_SETTINGS_BYTES + 1));
        assert!(long.obstacles[0].contains("it is larger than"), "{long:?}");
        let refused = load::settings(Some(&pipe), None, &paths).expect_err("it is read again");
        let refused = refused.to_string();
        assert!(refused.contains("not a regular file. Save it in a file, since"), "{refused}");
    }

    #[test]
    fn a_pipe_in_place_of_a_file_is_reported_at_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("pipe");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR, 0).expect("made");
        let mut settings = ServiceSettings::defaults(&ServiceName::kube_apiserver());
        settings.health.ca_file = Some(pipe);
        let (say, said) = std::sync::mpsc::sync_channel(1);
        std::thread::spawn(move || {
            let mut report = CheckReport::default();
            check_files("kube-apiserver", &settings, &mut report);
            say.send(report.obstacles)
        });
        let said = said.recv_timeout(Duration::from_secs(20)).expect("it waits for nobody");
        assert!(said.len() == 1 && said[0].ends_with("pipe is not a file"), "{said:?}");
    }

    #[test]
    fn a_user_without_a_state_folder_is_shown_roots() {
        let (own, roots) = (Path::new("/home/u/.local/state/meshport"), Path::new("/var/lib/m"));
        let said = no_folder(own, Some(roots));
        assert!(said.contains("/var/lib/m; run this as root") && !said.contains("join"), "{said}");
        assert!(no_folder(own, None).contains("`meshport join` creates it"));
    }
}
