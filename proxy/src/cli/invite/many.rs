//! Invites for many machines, each bound to a machine's name.
//!
//! A single invite for all would work too, but if leaked it would admit any machine. Each of these
//! admits one name, and revoking it removes one machine.

use std::collections::BTreeSet;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use clap::Args;
use meshport_config::NodeName;
use meshport_daemon::Error;

use super::{InviteArgs, InviteReport};

/// Maximum invites per call: a mesh of several thousand nodes takes a few calls.
const MAX_COUNT: u16 = 1000;
/// The longest list, in bytes: names of 63 bytes, and twice as much of comments.
const MAX_LIST_BYTES: u64 = 192 * 1024;

/// Invites for many machines at once
#[derive(Debug, Clone, Args)]
pub(crate) struct ManyArgs {
    /// Create this many invites, one for each machine: NAME-1, NAME-2 and so on, at most 1000.
    /// Prints name and line of each
    #[arg(long, value_name = "N", conflicts_with = "names",
        value_parser = clap::value_parser!(u16).range(1..=i64::from(MAX_COUNT)))]
    pub(crate) count: Option<u16>,
    /// Create an invite for each name in this file, one per line; - reads standard input
    #[arg(long, value_name = "FILE", conflicts_with = "name")]
    pub(crate) names: Option<PathBuf>,
    /// Write the invites of --count or --names to DIR/NAME.invite, for this user only
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

/// The requested names; none for a single invite.
///
/// # Errors
/// [`Error::Usage`] for a list that is empty, too long, or has an invalid or repeated name.
pub(super) fn names(args: &InviteArgs) -> Result<Option<Vec<NodeName>>, Error> {
    if let Some(count) = args.many.count {
        let prefix = args.name.as_ref().ok_or_else(|| {
            Error::Usage("--count numbers a name: add --name worker for worker-1, worker-2".into())
        })?;
        let numbered = (1..=count).map(|number| {
            let name = format!("{prefix}-{number}");
            name.parse().map_err(|error| Error::Usage(format!("--name is too long: {error}")))
        });
        return numbered.collect::<Result<_, Error>>().map(Some);
    }
    args.many.names.as_deref().map(|file| read(file).and_then(|text| listed(&text))).transpose()
}

fn read(file: &Path) -> Result<String, Error> {
    let failed = || Error::io(format!("read {}", file.display()));
    let mut text = String::new();
    let read = match file.to_str() {
        Some("-") => io::stdin().lock().take(MAX_LIST_BYTES + 1).read_to_string(&mut text),
        _ => {
            let file = std::fs::File::open(file).map_err(failed())?;
            file.take(MAX_LIST_BYTES + 1).read_to_string(&mut text)
        }
    };
    read.map_err(failed())?;
    if text.len() as u64 > MAX_LIST_BYTES {
        return Err(too_many());
    }
    Ok(text)
}

/// One name per line; empty lines and those that begin with `#` are ignored.
fn listed(text: &str) -> Result<Vec<NodeName>, Error> {
    let mut names = Vec::new();
    let mut known = BTreeSet::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = |what: String| Error::Usage(format!("line {}: {what}", index + 1));
        let name: NodeName = line.parse().map_err(|error| wrong(format!("{error}")))?;
        if !known.insert(name.clone()) {
            return Err(wrong(format!("{name} is listed twice; each machine needs its own name")));
        }
        names.push(name);
        if names.len() > usize::from(MAX_COUNT) {
            return Err(too_many());
        }
    }
    if names.is_empty() {
        return Err(Error::Usage("the list has no names: write one per line".into()));
    }
    Ok(names)
}

fn too_many() -> Error {
    Error::Usage(format!("at most {MAX_COUNT} invites are made at once; split the list"))
}

/// Writes each line to a file named after its node, readable by this user only.
///
/// # Errors
/// [`Error::Io`] with the first file that cannot be written or already exists.
pub(super) fn write(folder: &Path, reports: &[InviteReport]) -> Result<(), Error> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(Error::io(format!("create {}", folder.display())))?;
    for InviteReport { invite, name, .. } in reports {
        let name = name.as_ref().map_or("node", NodeName::as_str);
        let path = folder.join(format!("{name}.invite"));
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        file.and_then(|mut file| writeln!(file, "{invite}"))
            .map_err(Error::io(format!("write {}", path.display())))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_names_one_a_line() {
        let names = listed("# racks\nworker-1\n\n  worker-2.fra \n").expect("two names");
        assert_eq!(
            names.iter().map(NodeName::as_str).collect::<Vec<_>>(),
            ["worker-1", "worker-2.fra"]
        );
        for (text, why) in [
            ("", "no names"),
            ("# only this", "no names"),
            ("a\nB\n", "line 2"),
            ("a\nb\na\n", "a is listed twice"),
        ] {
            let refused = listed(text).expect_err(text).to_string();
            assert!(refused.contains(why), "{refused}");
        }
        let many: Vec<String> = (0..=MAX_COUNT).map(|number| format!("n{number}")).collect();
        assert!(
            listed(&many.join("\n")).expect_err("too many").to_string().contains("at most 1000")
        );
        assert_eq!(
            listed(&many[1..].join("\n")).expect("as many as may be").len(),
            usize::from(MAX_COUNT)
        );
    }
}
