//! Writes what packages of the gateway have from its command line, its manual page and completions,
//! where a system looks for them: `meshport-gateway-man USR`.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;
use meshport_gateway::cli::Cli;

#[path = "../written.rs"]
mod written;

const COMPLETIONS: [(Shell, &str); 3] = [
    (Shell::Bash, "share/bash-completion/completions/meshport-gateway"),
    (Shell::Zsh, "share/zsh/site-functions/_meshport-gateway"),
    (Shell::Fish, "share/fish/vendor_completions.d/meshport-gateway.fish"),
];

fn main() -> ExitCode {
    written::run("meshport-gateway-man", write)
}

fn write(folder: &Path) -> io::Result<()> {
    written::pages(Cli::command(), &folder.join("share/man/man1"))?;
    for (shell, path) in COMPLETIONS {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().unwrap_or(folder))?;
        let mut file = File::create(path)?;
        clap_complete::generate(shell, &mut Cli::command(), "meshport-gateway", &mut file);
    }
    Ok(())
}
