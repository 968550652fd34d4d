//! `meshport join --now`: from an invite to a running service, with systemd.

use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use meshport_config::{Role, ServiceName};
use meshport_daemon::Error;
use meshport_daemon::admin::api::OriginStatus;
use meshport_daemon::admin::client::AdminClient;
use meshport_daemon::admin::queries::RoutesRequest;
use serde::Serialize;

use super::Joined;
use crate::cli::paths::Paths;
use crate::cli::service::{UNIT, systemctl};
use crate::cli::{load, runtime, wait};

/// Limit from the start of the service until an origin answers: a second or two, and more on a
/// booting machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// Default address of an apiserver.
const APISERVER: &str = "127.0.0.1:6443";

/// The service that was started.
#[derive(Debug, Serialize)]
pub(crate) struct Started {
    /// Local addresses for clients of the apiserver.
    pub(crate) listen: Vec<SocketAddr>,
    /// The apiserver that answers there.
    pub(crate) origin: OriginStatus,
    /// The configuration file, if it was written.
    pub(crate) wrote: Option<String>,
}

/// Checks that the service can be started here, before anything is written.
///
/// # Errors
/// [`Error::Usage`] with what is missing.
pub(super) fn check(state_dir: &Path, paths: &Paths) -> Result<(), Error> {
    let usage = |text: String| Err(Error::Usage(text));
    if !rustix::process::geteuid().is_root() {
        return usage("--now starts a system service; run it as root".into());
    }
    if state_dir != paths.state_dir() {
        let used = paths.state_dir().display();
        return usage(format!(
            "--now starts {UNIT}, whose state folder is {used}; leave out --state-dir"
        ));
    }
    match systemctl(&["cat", UNIT]) {
        Ok(output) if output.status.success() => Ok(()),
        Ok(_) => usage(format!(
            "this machine has no {UNIT}: install the package, or write the unit with `meshport \
             generate systemd`"
        )),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            usage("this machine has no systemd; join without --now and start `meshport run`".into())
        }
        Err(source) => Err(Error::Io { what: "run systemctl".into(), source }),
    }
}

/// Writes a minimal configuration, enables and starts the service, and waits for an apiserver.
///
/// # Errors
/// [`Error::Io`] if a file or systemd refuses, [`Error::Negative`] if no apiserver answers in time;
/// the machine has joined and the service stays enabled in any case.
pub(super) fn start(joined: &Joined, paths: &Paths) -> Result<Started, Error> {
    let wrote = write_configuration(joined, paths.config())?;
    // A running service uses the previous credential.
    for step in [&["enable", UNIT][..], &["restart", UNIT][..]] {
        let what = format!("systemctl {}", step.join(" "));
        let output = systemctl(step).map_err(Error::io(format!("run {what}")))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(Error::Negative(format!("{what} failed: {}", said.trim())));
        }
    }
    let socket = load::settings(None, None, paths)?.settings.admin.socket;
    let service = ServiceName::kube_apiserver();
    let client = AdminClient::new(socket);
    runtime()?.block_on(async {
        let waited = wait::wait(&client, &service, PATIENCE, wait::tell).await;
        let origin = waited.map_err(|error| match error {
            Error::Negative(why) => Error::Negative(format!(
                "{UNIT} is started and enabled, but {why}. See `meshport doctor` and `journalctl \
                 -u meshport`"
            )),
            error => error,
        })?;
        let services = client.ask(&RoutesRequest).await?;
        let listen = services.into_iter().find(|it| it.name == service);
        let listen = listen.map_or_else(Vec::new, |it| it.listen);
        Ok(Started { listen, origin, wrote: wrote.then(|| paths.config().display().to_string()) })
    })
}

/// Writes a configuration with the apiserver's address on a control-plane node; other nodes need
/// none. Returns whether it was written.
fn write_configuration(joined: &Joined, path: &Path) -> Result<bool, Error> {
    let service = ServiceName::kube_apiserver();
    if path.exists() || !joined.roles.contains(&Role::Origin(service.clone())) {
        return Ok(false);
    }
    let text = format!(
        "site = \"{}\"\n\n[service.{service}]\n# The apiserver of this node.\n\
         origin = \"{APISERVER}\"\n",
        joined.site
    );
    let failed = |what: &str| Error::io(format!("{what} {}", path.display()));
    if let Some(folder) = path.parent() {
        let made = DirBuilder::new().recursive(true).mode(0o755).create(folder);
        made.map_err(failed("create the folder of"))?;
    }
    // The service's user reads it.
    let file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(path);
    let written = file.and_then(|mut file| {
        file.set_permissions(Permissions::from_mode(0o644))?;
        file.write_all(text.as_bytes())
    });
    written.map_err(failed("write"))?;
    Ok(true)
}

impl Started {
    /// Aligned lines for people, below those of the credential.
    pub(crate) fn lines(&self) -> String {
        let listen: Vec<String> = self.listen.iter().map(ToString::to_string).collect();
        let who = &self.origin.who;
        let rtt = self.origin.rtt_ms.map_or("this node".into(), |rtt| format!("{rtt:.2} ms"));
        format!(
            "address  {}\nreaches  {} in {}, {rtt}\n",
            listen.join(", "),
            who.name,
            who.site_or_dash()
        )
    }

    /// The next step for the user.
    pub(crate) fn next_step(&self) -> String {
        let wrote = self.wrote.as_ref();
        let wrote = wrote.map_or(String::new(), |path| {
            format!(
                "{path} sets this node's apiserver to {APISERVER}; correct it if that is \
                     wrong.\n"
            )
        });
        let address = self.listen.first().map(ToString::to_string).unwrap_or_default();
        format!(
            "{wrote}{UNIT} runs, and starts at boot. In kubeconfigs on this machine:\n  server: \
             https://{address}\nor let `meshport kubeconfig --from FILE` write one."
        )
    }
}
