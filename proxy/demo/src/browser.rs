//! Opens a page in the user's browser, with the program that the desktop has for that.

use std::io;
use std::process::{Command, Stdio};

#[cfg(target_os = "macos")]
const OPENER: &str = "open";
#[cfg(not(target_os = "macos"))]
const OPENER: &str = "xdg-open";

/// Why a page was not opened, with the alternative.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The desktop has no such program, or there is no desktop.
    #[error("no {opener} here to open a browser with: open {address} yourself")]
    NoOpener {
        /// The program.
        opener: String,
        /// The page.
        address: String,
    },
    /// The system cannot start the program or wait for it.
    #[error("cannot start {opener} ({source}): open {address} yourself")]
    System {
        /// The program.
        opener: String,
        /// The page.
        address: String,
        /// The operating system's answer.
        source: io::Error,
    },
}

/// Passes an address to the desktop and does not wait for the result.
///
/// # Errors
/// [`OpenError::NoOpener`] without a desktop; [`OpenError::System`].
pub fn open(address: &str) -> Result<(), OpenError> {
    open_with(OPENER, address)
}

fn open_with(opener: &str, address: &str) -> Result<(), OpenError> {
    let failed = |source: io::Error| {
        let (opener, address) = (opener.to_owned(), address.to_owned());
        match source.kind() {
            io::ErrorKind::NotFound => OpenError::NoOpener { opener, address },
            _ => OpenError::System { opener, address, source },
        }
    };
    let quiet = Stdio::null;
    let mut command = Command::new(opener);
    command.arg(address).stdin(quiet()).stdout(quiet()).stderr(quiet());
    let child = command.spawn().map_err(failed)?;
    // Some desktops keep it running as long as the browser.
    let wait = move || {
        let mut child = child;
        let _ = child.wait();
    };
    std::thread::Builder::new().name("browser".to_owned()).spawn(wait).map(drop).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_desktop_the_address_is_printed() {
        let told = open_with("no-such-program", "http://127.0.0.1:1/").unwrap_err().to_string();
        assert!(told.contains("no-such-program") && told.ends_with("/ yourself"), "{told}");
        assert!(open_with("true", "http://127.0.0.1:1/").is_ok());
    }
}
