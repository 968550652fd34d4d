//! `meshport support-bundle`: one archive with everything that support needs, without secrets.
//!
//! Everything is collected at once, with or without a daemon: its answers, the findings of
//! `doctor`, the effective configuration, the log if it is in the journal, limits and sockets.
//! No part contains a secret of the state folder; a [`Censor`] reads these secrets to remove them
//! should one appear anyway. The archive lists what could not be collected, with the reason. Node
//! names and addresses stay: without them no path can be traced, and removing most of them only
//! looks anonymous.

mod archive;
mod censor;
mod collect;

use std::fs::OpenOptions;
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::Args;
use meshport_config::UnixSeconds;
use meshport_core::units::counted;
use serde::Serialize;

use self::archive::Archive;
use self::censor::Censor;
use self::collect::{Gathered, Part};
use super::query::DaemonArgs;
use super::{clock, output, runtime};
use meshport_daemon::Error;

/// Maximum size of a part: the peers of ten thousand nodes take 4 MiB.
const MAX_PART_BYTES: usize = 16 * 1024 * 1024;
/// Maximum size of all parts before compression, which leaves about a tenth.
const MAX_ALL_BYTES: usize = 64 * 1024 * 1024;
/// Maximum characters of the node's name in the archive's name.
const MAX_NAME_CHARACTERS: usize = 63;
/// Only its owner may read an archive.
const MODE: u32 = 0o600;
/// Names standard output.
const STANDARD_OUTPUT: &str = "-";
const CAUTION: &str = "It contains names and addresses of nodes, but no keys or tokens; review it \
                       before you pass it on";

/// `meshport support-bundle`
#[derive(Debug, Args)]
pub(crate) struct SupportBundleArgs {
    /// File to write, - for standard output [default: meshport-support-NAME-TIME.tar.gz]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Print what was written as JSON
    #[arg(long)]
    pub(crate) json: bool,
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
}

/// The file that was written.
#[derive(Debug, Serialize)]
struct BundleReport {
    /// The archive.
    file: PathBuf,
    /// Its size.
    bytes: usize,
    /// Names of the files in it.
    parts: Vec<String>,
    /// Parts that could not be collected, with the reason.
    missing: Vec<Missing>,
}

/// A part that could not be collected.
#[derive(Debug, Serialize)]
struct Missing {
    /// The name it would have.
    part: String,
    /// The reason.
    why: String,
}

/// An archive in memory.
struct Packed {
    bytes: Vec<u8>,
    parts: Vec<String>,
    missing: Vec<Missing>,
}

pub(crate) fn run(args: &SupportBundleArgs) -> Result<(), Error> {
    let is_piped = args.output.as_deref() == Some(Path::new(STANDARD_OUTPUT));
    if is_piped && args.json {
        return Err(Error::Usage("--json and --output - both use standard output".into()));
    }
    if is_piped && io::stdout().is_terminal() {
        return Err(Error::Usage("an archive is not for a terminal; redirect it to a file".into()));
    }
    let runtime = runtime()?;
    let gathered = runtime.block_on(collect::gather(&args.daemon));
    // Do not wait for the thread of a file or a lookup that hangs.
    runtime.shutdown_background();
    let gathered = gathered?;
    let now = clock::wall();
    let folder = folder_name(&gathered.name, now);
    let packed = pack(&folder, gathered, now).map_err(Error::io("make the archive"))?;
    if is_piped {
        let mut out = io::stdout().lock();
        out.write_all(&packed.bytes)
            .and_then(|()| out.flush())
            .map_err(Error::io("write to standard output"))?;
        output::advice(&advice(&packed.missing));
        return Ok(());
    }
    let file = args.output.clone().unwrap_or_else(|| format!("{folder}.tar.gz").into());
    write(&file, &packed.bytes)?;
    let Packed { bytes, parts, missing } = packed;
    let report = BundleReport { file, bytes: bytes.len(), parts, missing };
    let kib = report.bytes.div_ceil(1024);
    let (file, count) = (report.file.display(), report.parts.len());
    let text = format!("wrote {file} ({count} files, {kib} KiB, mode 0600)\n");
    output::with_advice(args.json, &report, &text, &advice(&report.missing))
}

/// A caution and the missing parts. Parts that not every kernel has are only listed in the archive.
fn advice(missing: &[Missing]) -> String {
    let missing = missing.iter().filter(|it| !it.part.contains('/'));
    let lines = missing.map(|Missing { part, why }| format!("without {part}: {why}\n"));
    format!("{CAUTION}.\n{}", lines.collect::<String>())
}

fn folder_name(node: &str, now: UnixSeconds) -> String {
    let plain = |it: char| if it.is_ascii_alphanumeric() || it == '-' { it } else { '_' };
    let node: String = node.chars().map(plain).take(MAX_NAME_CHARACTERS).collect();
    let time: String = now.to_string().chars().filter(|it| !matches!(it, '-' | ':')).collect();
    let name = format!("meshport-support-{node}-{time}");
    debug_assert!(name.len() <= archive::MAX_FOLDER);
    name
}

/// The archive of all parts, without secrets.
fn pack(folder: &str, gathered: Gathered, now: UnixSeconds) -> io::Result<Packed> {
    let Gathered { parts, state_dir, .. } = gathered;
    let censor = state_dir.as_deref().map(Censor::of_state).unwrap_or_default();
    let mut archive = Archive::new(folder, now);
    let (mut names, mut missing, mut total) = (Vec::new(), Vec::new(), 0);
    for Part { name, content } in parts {
        let part = name.to_owned();
        let content = match content {
            Ok(content) => content,
            Err(error) => {
                missing.push(Missing { part, why: error.to_string() });
                continue;
            }
        };
        if content.len() > MAX_PART_BYTES || total + content.len() > MAX_ALL_BYTES {
            let why = format!("its {} bytes exceed the archive's size limit", content.len());
            missing.push(Missing { part, why });
            continue;
        }
        let (content, removed) = censor.clean(content);
        if removed > 0 {
            let lines = counted(removed as u64, "line");
            let why = format!("left out {lines} that contained a secret");
            missing.push(Missing { part: part.clone(), why });
        }
        total += content.len();
        archive.add(name, &content)?;
        names.push(part);
    }
    let said = readme(folder, &missing);
    archive.add("README.txt", said.as_bytes())?;
    names.push("README.txt".into());
    Ok(Packed { bytes: archive.finish()?, parts: names, missing })
}

fn readme(folder: &str, missing: &[Missing]) -> String {
    let mut text = format!(
        "{folder}\n\nMade by `meshport support-bundle` of version {}. {CAUTION}.\n\nNot in it:\n",
        env!("CARGO_PKG_VERSION")
    );
    for Missing { part, why } in missing {
        text.push_str(&format!("  {part}: {why}\n"));
    }
    if missing.is_empty() {
        text.push_str("  nothing is missing\n");
    }
    text
}

/// Writes a new file; removes it if it cannot be written completely.
fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    // Create a new file: replace nothing, follow no link.
    let opened = OpenOptions::new().write(true).create_new(true).mode(MODE).open(path);
    let mut file = opened.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            Error::Usage(format!("{} exists; name another file with --output", path.display()))
        }
        _ => Error::io(format!("create {}", path.display()))(error),
    })?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(|error| {
        // Half an archive is useless; it may be gone already.
        let _ = std::fs::remove_file(path);
        Error::io(format!("write {}", path.display()))(error)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::collect::PartError;
    use super::*;

    fn gathered(parts: Vec<Part>) -> Gathered {
        Gathered { name: "cp-1".into(), state_dir: None, parts }
    }

    #[test]
    fn an_archive_is_new_and_its_owners() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("bundle.tar.gz");
        write(&path, b"bytes").expect("written");
        assert_eq!(std::fs::metadata(&path).expect("there").mode() & 0o7777, MODE);
        assert_eq!(write(&path, b"other").expect_err("it exists").exit_code(), 2);
        let link = folder.path().join("link");
        symlink(folder.path().join("elsewhere"), &link).expect("linked");
        assert!(write(&link, b"bytes").is_err(), "a link is not followed");
        assert!(!folder.path().join("elsewhere").exists());
    }

    #[test]
    fn its_name_is_the_nodes_and_the_times() {
        let at = UnixSeconds(1_800_000_000);
        assert_eq!(folder_name("cp-1", at), "meshport-support-cp-1-20270115T080000Z");
        assert_eq!(folder_name("../x", at), "meshport-support-___x-20270115T080000Z");
        let long = folder_name(&"x".repeat(500), at);
        assert!(long.len() <= archive::MAX_FOLDER, "{long}");
    }

    #[test]
    fn what_is_missing_too_large_or_secret_is_named() {
        let part = |name, content: Result<Vec<u8>, PartError>| Part { name, content };
        let all = vec![
            part("status.json", Err(PartError::Late)),
            part("large.txt", Ok(vec![b'x'; MAX_PART_BYTES + 1])),
            part("log.txt", Ok(b"one\nmeshport-invite-2.AAAA\n".to_vec())),
        ];
        let packed = pack("bundle", gathered(all), UnixSeconds(1)).expect("packed");
        assert_eq!(packed.parts, ["log.txt", "README.txt"]);
        let missing: Vec<&str> = packed.missing.iter().map(|it| it.part.as_str()).collect();
        assert_eq!(missing, ["status.json", "large.txt", "log.txt"]);
        assert_eq!(packed.missing[2].why, "left out 1 line that contained a secret");
    }
}
