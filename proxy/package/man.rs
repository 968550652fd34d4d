//! Writes the manual pages of packages: `meshport-man FOLDER`.

use std::process::ExitCode;

mod written;

fn main() -> ExitCode {
    written::run("meshport-man", |folder| written::pages(meshport::cli::command(), folder))
}
