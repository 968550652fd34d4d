//! Opens a page in the user's browser, with the program that the desktop has for that.

use std::io;
use std::process::{Command, Stdio};

#[cfg(target_os = "macos")]
const OPENER: &str = "open";
#[cfg(not(target_os = "macos"))]
const OPENER: &str = "xdg-open";

/// Passes an address to the desktop and does not wait for the result.
///
/// # Errors
/// Why that is not possible, with an alternative.
pub fn open(address: &str) -> Result<(), String> {
    open_with(OPENER, address)
}

fn open_with(opener: &str, address: &str) -> Result<(), String> {
    let quiet = Stdio::null;
    let mut command = Command::new(opener);
    command.arg(address).stdin(quiet()).stdout(quiet()).stderr(quiet());
    let child = command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            format!("no {opener} here to open a browser with: open {address} yourself")
        }
        _ => format!("{opener} does not start ({error}): open {address} yourself"),
    })?;
    // Some desktops keep it running as long as the browser.
    let wait = move || {
        let mut child = child;
        let _ = child.wait();
    };
    std::thread::Builder::new()
        .name("browser".to_owned())
        .spawn(wait)
        .map(drop)
        .map_err(|error| format!("cannot start a thread ({error}): open {address} yourself"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_desktop_the_address_is_printed() {
        let told = open_with("no-such-program", "http://127.0.0.1:1/").unwrap_err();
        assert!(told.contains("no-such-program") && told.ends_with("/ yourself"), "{told}");
        assert_eq!(open_with("true", "http://127.0.0.1:1/"), Ok(()));
    }
}
