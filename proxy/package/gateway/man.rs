//! Writes what packages of the gateway have from its command line, its manual page and completions,
//! where a system looks for them: `meshport-gateway-man USR`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, io};

use clap::CommandFactory;
use clap_complete::Shell;
use meshport_gateway::cli::Cli;

const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "share/bash-completion/completions/meshport-gateway"),
    (Shell::Zsh, "share/zsh/site-functions/_meshport-gateway"),
    (Shell::Fish, "share/fish/vendor_completions.d/meshport-gateway.fish"),
];

fn main() -> ExitCode {
    let Some(folder) = env::args_os().nth(1).map(PathBuf::from) else {
        return failed("name the folder for the files");
    };
    match write(&folder) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&format!("{}: {error}", folder.display())),
    }
}

fn write(folder: &Path) -> io::Result<()> {
    let pages = folder.join("share/man/man1");
    fs::create_dir_all(&pages)?;
    clap_mangen::generate_to(Cli::command(), pages)?;
    for (shell, path) in COMPLETIONS {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap_or(folder))?;
        let mut file = File::create(path)?;
        clap_complete::generate(shell, &mut Cli::command(), "meshport-gateway", &mut file);
    }
    Ok(())
}

#[expect(clippy::print_stderr, reason = "a program of the build, which says what went wrong")]
fn failed(why: &str) -> ExitCode {
    eprintln!("meshport-gateway-man: {why}");
    ExitCode::FAILURE
}
