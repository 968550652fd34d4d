//! The kubeconfig that provides the source context: one file, or the list in `KUBECONFIG`.
//!
//! As in kubectl, the first file of the list that has an entry wins, and relative paths in a file
//! count from its folder.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::document::Document;
use crate::cli::textfile;
use meshport_daemon::Error;

/// The key of a cluster whose value is a path.
const PATH: &str = "certificate-authority";
/// Maximum files in a list; real ones have far fewer.
const MAX_FILES: usize = 64;

/// Parsed files, in order of precedence.
#[derive(Debug)]
pub(super) struct Source {
    files: Vec<(PathBuf, Document)>,
}

/// A context and its cluster.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Found {
    pub(super) name: String,
    /// `cluster`, `user` and the context's other keys.
    pub(super) context: Map<String, Value>,
    /// `server` and the cluster's other keys; paths are absolute.
    pub(super) cluster: Map<String, Value>,
    /// The file that has the context.
    pub(super) file: PathBuf,
}

/// The files kubectl would read: `KUBECONFIG`, else `~/.kube/config`. Between these comes the file
/// that a context is merged into if it has users: for `sudo`, `~` may be root's.
pub(super) fn default_files(
    variable: impl Fn(&str) -> Option<OsString>,
    merge: Option<&Path>,
) -> Vec<PathBuf> {
    let listed = variable("KUBECONFIG").filter(|list| !list.is_empty());
    if let Some(list) = listed {
        let files = std::env::split_paths(&list).filter(|path| !path.as_os_str().is_empty());
        return files.take(MAX_FILES).collect();
    }
    let home = variable("HOME").map(|home| Path::new(&home).join(".kube/config"));
    let mut files: Vec<PathBuf> =
        merge.filter(|it| has_users(it)).map(Path::to_owned).into_iter().chain(home).collect();
    files.dedup();
    files
}

/// Whether this is a kubeconfig that works alone, not one that only has contexts of meshport.
fn has_users(path: &Path) -> bool {
    let text = textfile::read(path).ok().flatten();
    let document = text.and_then(|text| Document::parse(&text).ok());
    document.is_some_and(|it| !it.names("users").is_empty())
}

impl Source {
    /// Reads those of the files that exist.
    ///
    /// # Errors
    /// [`Error::Usage`] when none exists or one is not a kubeconfig, [`Error::Io`].
    pub(super) fn read(paths: &[PathBuf]) -> Result<Self, Error> {
        let mut files = Vec::new();
        for path in paths {
            if let Some(text) = textfile::read(path)? {
                files.push((path.clone(), parse(path, &text)?));
            }
        }
        if files.is_empty() {
            let tried: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
            return Err(Error::Usage(format!(
                "no kubeconfig with a context was found (tried: {}); name one with --from",
                tried.join(", ")
            )));
        }
        Ok(Self { files })
    }

    /// A context by name, else the current one.
    ///
    /// # Errors
    /// [`Error::Usage`] that lists the existing contexts.
    pub(super) fn context(&self, name: Option<&str>) -> Result<Found, Error> {
        let current = || self.files.iter().find_map(|(_, file)| file.word("current-context"));
        let name = name.or_else(current).ok_or_else(|| {
            let all = self.context_names().join(", ");
            Error::Usage(format!("no current context; choose one with --context: {all}"))
        })?;
        let (file, context) = self.entry("contexts", name, "context").ok_or_else(|| {
            let all = self.context_names().join(", ");
            Error::Usage(format!("no context {name}; available: {all}"))
        })?;
        let of = context.get("cluster").and_then(Value::as_str).unwrap_or_default();
        let (home, mut cluster) = self.entry("clusters", of, "cluster").ok_or_else(|| {
            Error::Usage(format!("the context {name} is for the cluster {of:?}, which is missing"))
        })?;
        make_absolute(&mut cluster, textfile::parent(home));
        Ok(Found { name: name.to_owned(), context, cluster, file: file.to_owned() })
    }

    fn entry(&self, list: &str, name: &str, key: &str) -> Option<(&Path, Map<String, Value>)> {
        self.files.iter().find_map(|(path, file)| {
            let inner = file.entry(list, name)?.get(key)?.as_object()?;
            Some((path.as_path(), inner.clone()))
        })
    }

    fn context_names(&self) -> Vec<&str> {
        self.files.iter().flat_map(|(_, file)| file.names("contexts")).collect()
    }
}

/// Reads a text as a kubeconfig.
pub(super) fn parse(path: &Path, text: &str) -> Result<Document, Error> {
    Document::parse(text)
        .map_err(|why| Error::Usage(format!("{} is not a kubeconfig: {why}", path.display())))
}

fn make_absolute(cluster: &mut Map<String, Value>, folder: &Path) {
    let Some(Value::String(path)) = cluster.get_mut(PATH) else { return };
    if path.is_empty() {
        return;
    }
    if let Ok(whole) = std::path::absolute(folder.join(&*path)) {
        *path = whole.to_string_lossy().into_owned();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const FIRST: &str = "\
contexts:
- name: one
  context: {cluster: c1, user: u1, namespace: n}
";
    const SECOND: &str = "\
current-context: two
clusters:
- name: c1
  cluster: {server: 'https://a:6443', certificate-authority: pki/ca.crt}
contexts:
- name: two
  context: {cluster: gone, user: u}
";

    fn two_files() -> (tempfile::TempDir, Vec<PathBuf>) {
        let folder = tempfile::tempdir().expect("a folder");
        let paths = ["first", "none", "second"].map(|name| folder.path().join(name));
        fs::write(&paths[0], FIRST).expect("written");
        fs::write(&paths[2], SECOND).expect("written");
        (folder, paths.into())
    }

    #[test]
    fn files_are_looked_through_in_order() {
        let (folder, paths) = two_files();
        let source = Source::read(&paths).expect("two exist");
        let found = source.context(Some("one")).expect("it is there");
        assert_eq!(found.context["user"], "u1");
        assert_eq!(found.file, paths[0]);
        let ca = folder.path().join("pki/ca.crt");
        assert_eq!(found.cluster["certificate-authority"], ca.to_str().expect("text"));
        let error = source.context(None).expect_err("its cluster is gone").to_string();
        assert!(error.contains("two") && error.contains("gone"), "{error}");
        let error = source.context(Some("x")).expect_err("unknown").to_string();
        assert!(error.contains("one, two"), "{error}");
    }

    #[test]
    fn no_file_and_no_kubeconfig_are_said() {
        let (folder, paths) = two_files();
        let error = Source::read(&paths[1..2]).expect_err("none").to_string();
        assert!(error.contains("--from"), "{error}");
        let bad = folder.path().join("bad");
        fs::write(&bad, "[").expect("written");
        let error = Source::read(&[bad]).expect_err("bad").to_string();
        assert!(error.contains("is not a kubeconfig"), "{error}");
    }

    #[test]
    fn the_default_is_what_kubectl_reads() {
        let home = |name: &str| (name == "HOME").then(|| "/home/u".into());
        assert_eq!(default_files(home, None), [PathBuf::from("/home/u/.kube/config")]);
        let listed = |name: &str| (name == "KUBECONFIG").then(|| "/a::b".into());
        assert_eq!(default_files(listed, None), [PathBuf::from("/a"), PathBuf::from("b")]);
    }

    #[test]
    fn a_context_is_merged_from_the_same_file_unless_it_has_none_of_its_own() {
        let (folder, paths) = two_files();
        let of_root = |name: &str| (name == "HOME").then(|| "/home/r".into());
        let default = PathBuf::from("/home/r/.kube/config");
        for without_users in &paths {
            assert_eq!(default_files(of_root, Some(without_users)), std::slice::from_ref(&default));
        }
        let own = folder.path().join(".kube/config");
        fs::create_dir(folder.path().join(".kube")).expect("made");
        fs::write(&own, format!("{FIRST}users:\n- name: u1\n  user: {{}}\n")).expect("written");
        assert_eq!(default_files(of_root, Some(&own)), [own.clone(), default]);
        let of_user = |name: &str| (name == "HOME").then(|| folder.path().into());
        assert_eq!(default_files(of_user, Some(&own)), std::slice::from_ref(&own));
        let listed = |name: &str| (name == "KUBECONFIG").then(|| "/a".into());
        assert_eq!(default_files(listed, Some(&own)), [PathBuf::from("/a")]);
    }
}
