//! `meshport reset`: erases this machine's state.

use std::io::{self, IsTerminal, Read};
use std::path::PathBuf;

use clap::Args;
use meshport_daemon::Error;
use meshport_state::{StateDir, StateLock};
use serde::Serialize;

use super::output;
use super::paths::Paths;

/// The authority's key, which is not erased by default.
const AUTHORITY: &str = "authority.key";
/// Maximum bytes read of an answer.
const MAX_ANSWER_BYTES: u64 = 16;

/// `meshport reset`
#[derive(Debug, Args)]
pub(crate) struct ResetArgs {
    /// State folder to erase [default: this user's]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Erase the authority's key too; without a copy no machine can join this mesh again
    #[arg(long)]
    pub(crate) with_authority: bool,
    /// Do not ask
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The files that were erased.
#[derive(Debug, Serialize)]
pub(super) struct Erased {
    /// The state folder.
    state_dir: PathBuf,
    /// The names of the files.
    erased: Vec<&'static str>,
}

pub(crate) fn run(args: &ResetArgs) -> Result<(), Error> {
    let folder = match &args.state_dir {
        Some(folder) => folder.clone(),
        None => Paths::of_this_user()?.state_dir().to_owned(),
    };
    let state = StateDir::open(folder)?;
    // The lock file may be the only one here.
    if state.erasable().is_empty() {
        let state_dir = state.path().to_owned();
        let nothing = format!("nothing to erase in {}\n", state_dir.display());
        let erased = Erased { state_dir, erased: Vec::new() };
        return output::either(args.json, &erased, |_| nothing);
    }
    let lock = state.lock()?;
    refuse_authority(&state, args.with_authority)?;
    let names = state.erasable().join(", ");
    let folder = state.path().display();
    confirm(args.yes, &format!("This erases in {folder}: {names}."))?;
    let erased = erase(&state, lock)?;
    let advice = "other nodes forget this one after a day. If its keys may be elsewhere, revoke \
                  it: meshport revoke NODE";
    output::with_advice(args.json, &erased, &erased.line(), advice)
}

/// Refuses to erase the authority's key unless `with_authority` is set.
pub(super) fn refuse_authority(state: &StateDir, with_authority: bool) -> Result<(), Error> {
    if with_authority || !state.erasable().contains(&AUTHORITY) {
        return Ok(());
    }
    Err(Error::State {
        path: state.path().to_owned(),
        what: "the authority's key is here, and without it no machine can join this mesh".into(),
        remedy: "Move authority.key offline first, or add --with-authority if there is a copy"
            .into(),
    })
}

/// Removes all of meshport's files from the folder.
pub(super) fn erase(state: &StateDir, lock: StateLock) -> Result<Erased, Error> {
    let erased = state.erasable();
    state.erase(lock)?;
    Ok(Erased { state_dir: state.path().to_owned(), erased })
}

impl Erased {
    pub(super) fn line(&self) -> String {
        format!("erased in {}: {}\n", self.state_dir.display(), self.erased.join(", "))
    }
}

/// Asks on a terminal; otherwise `--yes` is required.
///
/// # Errors
/// [`Error::Usage`] if there is no terminal to ask on, [`Error::Negative`] if the answer is no.
pub(super) fn confirm(yes: bool, what: &str) -> Result<(), Error> {
    if yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        return Err(Error::Usage(format!("{what} Add --yes to do it; nothing has changed")));
    }
    output::advice(&format!("{what} Type yes to do it:"));
    let mut said = String::new();
    let line = io::BufReader::with_capacity(1, io::stdin().lock());
    let mut line = line.take(MAX_ANSWER_BYTES);
    io::BufRead::read_line(&mut line, &mut said).map_err(Error::io("read the answer"))?;
    if said.trim() == "yes" {
        return Ok(());
    }
    Err(Error::Negative("nothing has changed".into()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn args(folder: &std::path::Path) -> ResetArgs {
        let state_dir = Some(folder.to_owned());
        ResetArgs { state_dir, with_authority: false, yes: true, json: false }
    }

    #[test]
    fn a_node_is_erased_and_what_is_not_meshports_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["credential", "node.key", "mesh.secret", "meshport.toml", "note"] {
            fs::write(folder.path().join(name), "x").expect("written");
        }
        run(&args(folder.path())).expect("nothing speaks against it");
        let left = fs::read_dir(folder.path()).expect("it is there");
        let mut left: Vec<_> =
            left.map(|it| it.expect("an entry").file_name().into_string().expect("text")).collect();
        left.sort();
        assert_eq!(left, ["meshport.toml", "note"]);
        run(&args(folder.path())).expect("a second time there is nothing to erase");
        let left = fs::read_dir(folder.path()).expect("it is there").count();
        assert_eq!(left, 2, "and no lock is left behind");
    }

    #[test]
    fn an_authority_is_not_erased_by_the_way() {
        let folder = tempfile::tempdir().expect("a folder");
        let key = folder.path().join(AUTHORITY);
        fs::write(&key, "x").expect("written");
        let refused = run(&args(folder.path())).expect_err("it is the only one").to_string();
        assert!(refused.contains("--with-authority") && key.exists(), "{refused}");
        run(&ResetArgs { with_authority: true, ..args(folder.path()) }).expect("as asked");
        assert!(!key.exists());
    }

    #[test]
    fn a_folder_in_use_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let credential = folder.path().join("credential");
        fs::write(&credential, "x").expect("written");
        let state = StateDir::open(folder.path()).expect("a folder");
        let _daemon = state.lock().expect("it is free");
        let refused = run(&args(folder.path())).expect_err("it is in use").to_string();
        assert!(refused.contains("Stop it first") && credential.exists(), "{refused}");
    }

    #[test]
    fn nobody_is_asked_where_nobody_is() {
        assert!(matches!(confirm(true, "x"), Ok(())));
        // The tests' standard input is not a terminal.
        if !io::stdin().is_terminal() {
            let refused = confirm(false, "This erases.").expect_err("nobody answers").to_string();
            assert!(refused.contains("--yes"), "{refused}");
        }
    }
}
