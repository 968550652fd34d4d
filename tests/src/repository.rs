//! The repository as the policy tests see it: its root, its tracked files, cargo's view of its
//! packages.
//!
//! Reads only. Files are those that git tracks, so build output and editor leftovers do not count.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// A tracked text file.
#[derive(Clone, Debug)]
pub struct TrackedFile {
    /// Path relative to the repository, with forward slashes.
    pub path: String,
    /// The whole text.
    pub text: String,
}

/// The folder that holds the workspace manifest.
pub fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().expect("the tests package lies inside the workspace").to_path_buf()
}

/// Every tracked text file; binary files (with a NUL byte or not UTF-8) are skipped.
///
/// # Panics
/// If git cannot list the files: the policy tests need a checkout.
pub fn tracked_files() -> Vec<TrackedFile> {
    let listed = stdout_of("git", &["ls-files", "-z"]);
    let mut files = Vec::new();
    for path in listed.split('\0').filter(|path| !path.is_empty()) {
        // The policy ignores a file deleted in the work tree but not yet in the index.
        let Ok(bytes) = fs::read(root().join(path)) else { continue };
        if bytes.contains(&0) {
            continue;
        }
        let Ok(text) = String::from_utf8(bytes) else { continue };
        files.push(TrackedFile { path: path.to_owned(), text });
    }
    assert!(!files.is_empty(), "git lists no tracked file in {}", root().display());
    files
}

/// The tracked files whose path ends with `suffix`.
pub fn tracked_with_suffix(suffix: &str) -> Vec<TrackedFile> {
    tracked_files().into_iter().filter(|file| file.path.ends_with(suffix)).collect()
}

/// The output of `cargo metadata` for the locked dependencies on this platform, without network.
///
/// # Panics
/// If cargo fails, for example because the locked packages were never fetched.
pub fn metadata() -> Value {
    let triple = host_triple();
    let arguments =
        ["metadata", "--format-version=1", "--offline", "--locked", "--filter-platform"];
    let arguments: Vec<&str> = arguments.into_iter().chain([triple.as_str()]).collect();
    let text = stdout_of(env!("CARGO"), &arguments);
    serde_json::from_str(&text).expect("cargo metadata prints JSON")
}

/// The output of `cargo tree` for `package`, built alone on this platform: a line for each package,
/// which begins with its depth and ends with `|` and its licence. Unlike in [`metadata`], features
/// that only other packages of the workspace enable are off.
///
/// `edges` selects the dependencies, like the option of that name.
///
/// # Panics
/// The same as in [`metadata`].
pub fn tree(package: &str, edges: &str) -> String {
    let triple = host_triple();
    let format = ["--prefix=depth", "--format= {p}|{l}", "--offline", "--locked"];
    let what = ["--package", package, "--edges", edges, "--target", &triple];
    let arguments: Vec<&str> = ["tree"].into_iter().chain(what).chain(format).collect();
    stdout_of(env!("CARGO"), &arguments)
}

/// The platform that everything is built for here, as a target triple.
pub fn host_triple() -> String {
    let version = stdout_of("rustc", &["-vV"]);
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.expect("rustc -vV names its host").to_owned()
}

fn stdout_of(program: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(root());
    let output = command.output().unwrap_or_else(|error| panic!("cannot run {program}: {error}"));
    let problem = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {} failed: {problem}", arguments.join(" "));
    String::from_utf8(output.stdout).expect("the tool prints UTF-8")
}
