//! The `meshport` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    meshport::cli::main()
}
