//! What the programs have in common that write files of packages from a command line's own texts.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs, io};

/// Runs `write` with the folder that the first argument names.
pub(crate) fn run(program: &str, write: impl FnOnce(&Path) -> io::Result<()>) -> ExitCode {
    let Some(folder) = env::args_os().nth(1).map(PathBuf::from) else {
        return failed(program, "name the folder for the files");
    };
    match write(&folder) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(program, &format!("{}: {error}", folder.display())),
    }
}

/// Writes the manual pages of a command line, one per command.
pub(crate) fn pages(command: clap::Command, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    clap_mangen::generate_to(command, folder)
}

#[expect(clippy::print_stderr, reason = "a program of the build, which says what went wrong")]
fn failed(program: &str, why: &str) -> ExitCode {
    eprintln!("{program}: {why}");
    ExitCode::FAILURE
}
