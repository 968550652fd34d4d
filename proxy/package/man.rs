//! Writes the manual pages of packages, one per command, from the command line's own texts:
//! `meshport-man FOLDER`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::{env, fs, io};

fn main() -> ExitCode {
    let Some(folder) = env::args_os().nth(1).map(PathBuf::from) else {
        return failed("name the folder for the pages");
    };
    match write(&folder) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&format!("{}: {error}", folder.display())),
    }
}

fn write(folder: &PathBuf) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    clap_mangen::generate_to(meshport::cli::command(), folder)
}

#[expect(clippy::print_stderr, reason = "a program of the build, which says what went wrong")]
fn failed(why: &str) -> ExitCode {
    eprintln!("meshport-man: {why}");
    ExitCode::FAILURE
}
