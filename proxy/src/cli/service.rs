//! The systemd unit of the daemon on this machine, if any.

use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Output};

use meshport_daemon::Error;

use super::paths::Paths;

/// Its name, in packages and as `meshport generate systemd` says.
pub(super) const UNIT: &str = "meshport.service";

/// Runs systemctl and waits for it.
pub(super) fn systemctl(arguments: &[&str]) -> std::io::Result<Output> {
    Command::new("systemctl").arg("--no-pager").args(arguments).output()
}

/// Stops and disables the unit, if it uses this state folder and this user may do that; returns its
/// name if so.
///
/// # Errors
/// [`Error::Negative`] with systemd's reason.
pub(super) fn disable(state_dir: &Path) -> Result<Option<&'static str>, Error> {
    let is_its = rustix::process::geteuid().is_root()
        && Paths::of_this_user().is_ok_and(|paths| paths.state_dir() == state_dir);
    if !is_its {
        return Ok(None);
    }
    match systemctl(&["cat", UNIT]) {
        Ok(output) if output.status.success() => {}
        Ok(_) => return Ok(None),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io("run systemctl")(error)),
    }
    let output = systemctl(&["disable", "--now", UNIT]).map_err(Error::io("run systemctl"))?;
    if output.status.success() {
        return Ok(Some(UNIT));
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Error::Negative(format!("systemctl disable --now {UNIT} failed: {}", said.trim())))
}
