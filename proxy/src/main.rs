//! The `meshport` binary.

use std::process::ExitCode;

#[cfg(feature = "planted-bugs")]
compile_error!("planted-bugs is for the simulator's tests: build the daemon without it");

fn main() -> ExitCode {
    meshport::cli::main()
}
