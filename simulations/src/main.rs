//! `meshport-sim`: many datacenters in virtual time.

fn main() -> std::process::ExitCode {
    meshport_simulations::cli::main()
}
