//! `meshport-sim`: many datacenters in virtual time.

#[cfg(target_os = "linux")]
mod interpose;

fn main() -> std::process::ExitCode {
    meshport_simulations::cli::main()
}
