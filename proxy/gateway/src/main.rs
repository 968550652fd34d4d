//! The `meshport-gateway` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    meshport_gateway::cli::main()
}
