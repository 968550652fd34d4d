//! `meshport kubeconfig`: a context whose server is the local address of this node.
//!
//! The certificate authority and everything else come from a source context; the user is
//! referenced, and its credentials are neither printed nor changed. The certificate is verified for
//! a name that all origins' certificates have (`tls-server-name`), if possible the one that was
//! verified before. A merge changes only the lines of its own two entries.

mod certificates;
mod document;
mod name;
mod server;
mod source;
#[cfg(test)]
mod tests;
pub(super) mod yaml;

use std::ffi::OsString;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use meshport_config::{ServiceName, UnixSeconds};
use rustix::fs::{AtFlags, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;
use serde_json::{Map, Value, json};

use self::document::{Document, DocumentError};
pub(super) use self::name::Evidence;
use self::server::ServerUrl;
use self::source::{Found, Source};
use super::query::DaemonArgs;
use super::textfile::{self, TextFile};
use super::{clock, local, output, runtime};
use meshport_daemon::Error;
use meshport_daemon::health::certificate::Authorities;

pub(super) const DEFAULT_NAME: &str = "meshport";

/// `meshport kubeconfig`
#[derive(Debug, Args)]
pub(crate) struct KubeconfigArgs {
    /// The kubeconfig that reaches the cluster [default: KUBECONFIG, else the --merge file if it
    /// has users, else ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    pub(crate) from: Option<PathBuf>,
    /// The context in it to use [default: its current context]
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// Name of the new context and its cluster
    #[arg(long, value_name = "NAME", default_value = DEFAULT_NAME)]
    pub(crate) name: String,
    /// Write the context into this file instead of printing it
    #[arg(long, value_name = "FILE")]
    pub(crate) merge: Option<PathBuf>,
    /// Make the new context the file's current one
    #[arg(long = "use", requires = "merge")]
    pub(crate) make_current: bool,
    /// The name to verify the server's certificate for [default: the source context's if every
    /// origin's certificate has it, else one that all have]
    #[arg(long, value_name = "NAME")]
    pub(crate) tls_server_name: Option<String>,
    /// The service whose local address to use
    #[arg(long, value_name = "NAME", default_value = ServiceName::KUBE_APISERVER)]
    pub(crate) service: ServiceName,
    #[command(flatten)]
    pub(crate) daemon: DaemonArgs,
}

/// The two entries, and warnings about them.
#[derive(Debug, Clone, PartialEq)]
struct NewContext {
    /// The name of both.
    name: String,
    cluster: Map<String, Value>,
    context: Map<String, Value>,
    notes: Vec<String>,
    warnings: Vec<String>,
}

/// The source files of a context: the one that was named, otherwise those that kubectl reads.
///
/// # Errors
/// [`Error::Usage`] if the named one does not exist.
pub(super) fn source_files(from: Option<&Path>) -> Result<Vec<PathBuf>, Error> {
    match from {
        Some(path) if matches!(path.try_exists(), Ok(false)) => {
            Err(Error::Usage(format!("the kubeconfig {} does not exist", path.display())))
        }
        Some(path) => Ok(vec![path.to_owned()]),
        None => Ok(default_files()),
    }
}

/// Those that kubectl reads.
pub(super) fn default_files() -> Vec<PathBuf> {
    source::default_files(|name| std::env::var_os(name), None)
}

/// A chosen context, for other verbs.
#[derive(Debug)]
pub(super) struct Chosen {
    files: Vec<PathBuf>,
    found: Found,
    /// The name of the new context.
    name: String,
}

impl Chosen {
    /// A context by name, else the current one, for a new context called `name`.
    ///
    /// # Errors
    /// [`Error::Usage`] if there is no file or no such context, or if its server is not an
    /// apiserver's address; [`Error::Io`].
    pub(super) fn read(
        files: Vec<PathBuf>,
        context: Option<&str>,
        name: &str,
    ) -> Result<Self, Error> {
        let found = Source::read(&files)?.context(context)?;
        // Refuse one that cannot work before connecting.
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        make(&found, local, name, &Naming::by(&Evidence::default()))?;
        Ok(Self { files, found, name: name.to_owned() })
    }

    /// The files that were searched.
    pub(super) fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Marks the certificates that the context's CA did not sign.
    pub(super) fn judge(&self, evidence: Evidence, now: UnixSeconds) -> Evidence {
        evidence.judged_by(server::authorities(&self.found.cluster).as_ref(), now)
    }

    /// A kubeconfig with only the new context, to be listed before [`Chosen::files`], and warnings
    /// about it.
    pub(super) fn text(
        &self,
        local: SocketAddr,
        evidence: &Evidence,
    ) -> Result<(String, Vec<String>), Error> {
        let made = make(&self.found, local, &self.name, &Naming::by(evidence))?;
        Ok((print(&self.found, &made)?, made.warnings))
    }

    /// Puts the new context into a file; returns warnings.
    ///
    /// # Errors
    /// [`Error::Usage`] when the file cannot take it, [`Error::Io`].
    pub(super) fn merge_into(
        &self,
        path: &Path,
        local: SocketAddr,
        evidence: &Evidence,
    ) -> Result<Vec<String>, Error> {
        let made = make(&self.found, local, &self.name, &Naming::by(evidence))?;
        let missing = write_into(path, &made, Current::Stays, &self.found.file)?;
        Ok(made.notes.into_iter().chain(made.warnings).chain(missing).collect())
    }
}

/// The addresses that clients of some kubeconfigs dial, and the names they verify.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Dialled {
    pub(super) file: PathBuf,
    pub(super) context: String,
    /// `host:port`.
    pub(super) address: String,
    /// A DNS name or an IP address, without brackets.
    pub(super) host: String,
    /// Absent if nothing is verified.
    pub(super) verified: Option<String>,
    /// The CA that it trusts; absent if it has none, or an unreadable one.
    pub(super) authorities: Option<Authorities>,
}

impl Dialled {
    /// Reads them from the current context of these files.
    ///
    /// # Errors
    /// See [`Chosen::read`]; [`Error::Usage`] if its server is not an apiserver's address.
    pub(super) fn read(files: &[PathBuf]) -> Result<Self, Error> {
        let found = Source::read(files)?.context(None)?;
        let server = server(&found)
            .map_err(|error| Error::Usage(format!("{}: {error}", found.file.display())))?;
        Ok(Self {
            address: server.address(),
            verified: server.verified_as(&found.cluster),
            authorities: server::authorities(&found.cluster),
            file: found.file,
            context: found.name,
            host: server.host,
        })
    }
}

pub(crate) fn run(args: &KubeconfigArgs) -> Result<(), Error> {
    let files = match (&args.from, &args.merge) {
        (None, Some(merge)) => source::default_files(|name| std::env::var_os(name), Some(merge)),
        (from, _) => source_files(from.as_deref())?,
    };
    let found = Source::read(&files)?.context(args.context.as_deref())?;
    let server = server(&found)?;
    let (local, evidence) = runtime()?.block_on(async {
        let local = local::addresses(&args.daemon, &args.service).await?;
        let evidence = match server.verified_as(&found.cluster) {
            Some(_) => certificates::evidence(&args.daemon.client()?, &args.service, &server).await,
            None => Evidence::default(),
        };
        Ok::<_, Error>((local, evidence))
    })?;
    let evidence = evidence.judged_by(server::authorities(&found.cluster).as_ref(), clock::wall());
    let naming = Naming { evidence: &evidence, chosen: args.tls_server_name.as_deref() };
    let made = make(&found, local.first(), &args.name, &naming)?;
    made.notes.iter().chain(&made.warnings).for_each(|remark| output::advice(remark));
    output::advice(&format!("{} is the address according to {}", local.first(), local.source));
    let Some(path) = &args.merge else {
        return output::answer(&print(&found, &made)?);
    };
    let current = if args.make_current { Current::Becomes } else { Current::Stays };
    if let Some(remark) = write_into(path, &made, current, &found.file)? {
        output::advice(&remark);
    }
    output::answer(&format!("{} has the context {}\n", path.display(), args.name))
}

/// What happens to a file's current context; a new file gets the new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Current {
    /// It does not change.
    Stays,
    /// It becomes the new one.
    Becomes,
}

/// Puts the two entries into a file under its lock; returns warnings.
fn write_into(
    path: &Path,
    made: &NewContext,
    current: Current,
    source: &Path,
) -> Result<Option<String>, Error> {
    let _lock = Lock::take(path)?;
    let file = TextFile::open(path)?;
    let former = file.read()?;
    let merged = merge(former.as_deref(), path, made, current)?;
    if former.as_deref() != Some(merged.text()) {
        file.replace(merged.text())?;
    }
    Ok(missing_user(&merged, made, path, source))
}

/// The input for choosing the name.
#[derive(Debug)]
struct Naming<'a> {
    evidence: &'a Evidence,
    /// The name given with `--tls-server-name`.
    chosen: Option<&'a str>,
}

impl<'a> Naming<'a> {
    fn by(evidence: &'a Evidence) -> Self {
        Self { evidence, chosen: None }
    }
}

/// The server of a context.
///
/// # Errors
/// [`Error::Usage`] if it is not an apiserver's address.
fn server(found: &Found) -> Result<ServerUrl, Error> {
    let text = found.cluster.get("server").and_then(Value::as_str).unwrap_or_default();
    ServerUrl::parse(text)
        .map_err(|error| Error::Usage(format!("the context {} has {error}", found.name)))
}

/// Builds the two entries for a local address.
///
/// # Errors
/// [`Error::Usage`] if the source's server is not an apiserver's address.
fn make(
    found: &Found,
    local: SocketAddr,
    name: &str,
    naming: &Naming<'_>,
) -> Result<NewContext, Error> {
    let server = server(found)?;
    let mut notes = Vec::new();
    let mut cluster = found.cluster.clone();
    cluster.insert("server".into(), format!("https://{local}").into());
    if cluster.remove("proxy-url").is_some() {
        notes.push("proxy-url is dropped: the local address needs no proxy".to_owned());
    }
    let evidence = naming.evidence;
    let verified = match (naming.chosen, server.verified_as(&cluster)) {
        (Some(chosen), _) => Some(name::chosen(chosen, evidence)),
        (None, Some(wanted)) => Some(name::choose(&wanted, local.ip(), evidence)),
        (None, None) => None,
    };
    let mut warnings = Vec::new();
    if let Some(verified) = verified {
        notes.extend(verified.note);
        warnings = verified.warnings;
        // Clients verify the address they dial unless `tls-server-name` is set.
        match verified.name.parse() == Ok(local.ip()) {
            true => cluster.remove("tls-server-name"),
            false => cluster.insert("tls-server-name".into(), verified.name.into()),
        };
    }
    let mut context = found.context.clone();
    context.insert("cluster".into(), name.into());
    Ok(NewContext { name: name.to_owned(), cluster, context, notes, warnings })
}

/// A kubeconfig with only the two entries, to be listed before the one that has the user.
fn print(found: &Found, made: &NewContext) -> Result<String, Error> {
    let mut document = Document::empty();
    put(&mut document, made)
        .and_then(|()| document.set("current-context", &made.name))
        .map_err(|why| Error::Bug(format!("the generated kubeconfig cannot be parsed: {why}")))?;
    let file = std::path::absolute(&found.file).unwrap_or_else(|_| found.file.clone());
    let file = file.display();
    Ok(format!(
        "# Context {:?} of {file}, through the local address of meshport. Its user stays there;\n\
         # list both files: KUBECONFIG=THIS-FILE:{file}\n{}",
        found.name,
        document.text()
    ))
}

/// The file's content with the two entries in it.
///
/// # Errors
/// [`Error::Usage`] if the file cannot be parsed, or an entry of this name was not written by
/// meshport.
fn merge(
    former: Option<&str>,
    path: &Path,
    made: &NewContext,
    current: Current,
) -> Result<Document, Error> {
    let mut document = match former {
        Some(text) => source::parse(path, text)?,
        None => Document::empty(),
    };
    refuse_foreign(&document, path, &made.name)?;
    let becomes_current = current == Current::Becomes || former.is_none();
    let result = put(&mut document, made).and_then(|()| match becomes_current {
        true => document.set("current-context", &made.name),
        false => Ok(()),
    });
    result.map_err(|why| {
        Error::Usage(format!(
            "{} is not changed: {why}. Run it without --merge, store its output in a separate \
             file, and list both files in KUBECONFIG",
            path.display()
        ))
    })?;
    Ok(document)
}

fn put(document: &mut Document, made: &NewContext) -> Result<(), DocumentError> {
    let name = &made.name;
    document.put("clusters", name, &json!({"cluster": made.cluster, "name": name}))?;
    document.put("contexts", name, &json!({"context": made.context, "name": name}))
}

/// Replaces only what an earlier call wrote: entries whose server is this machine.
fn refuse_foreign(document: &Document, path: &Path, name: &str) -> Result<(), Error> {
    let foreign = |what: String| {
        let path = path.display();
        Err(Error::Usage(format!(
            "{path} already has {what}; choose another name with --name, or with --context-name of \
             `meshport forward`"
        )))
    };
    if let Some(entry) = document.entry("clusters", name) {
        let server = entry["cluster"]["server"].as_str().unwrap_or_default();
        if !ServerUrl::parse(server).is_ok_and(|server| server.is_this_machine()) {
            return foreign(format!("a cluster {name}, at {server:?}"));
        }
    }
    match document.entry("contexts", name).map(|entry| &entry["context"]["cluster"]) {
        Some(cluster) if cluster != name => {
            foreign(format!("a context {name}, for the cluster {cluster}"))
        }
        _ => Ok(()),
    }
}

/// The warning when the user's credentials are in another file.
fn missing_user(
    document: &Document,
    made: &NewContext,
    path: &Path,
    source: &Path,
) -> Option<String> {
    let user = made.context.get("user").and_then(Value::as_str)?;
    let is_there = document.entry("users", user).is_some();
    (!is_there).then(|| {
        let (path, source) = (path.display(), source.display());
        format!("the user {user} is in {source} only; list both: KUBECONFIG={path}:{source}")
    })
}

/// The lock file that kubectl and other clients of the cluster take while they write.
struct Lock {
    folder: File,
    name: OsString,
}

impl Lock {
    fn take(path: &Path) -> Result<Self, Error> {
        let found = textfile::open_parent(path);
        let (folder, mut name) = found.map_err(Error::io(format!("find {}", path.display())))?;
        name.push(".lock");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let lock = path.with_file_name(&name);
        match openat(&folder, &name, flags, Mode::RUSR | Mode::WUSR) {
            Ok(_) => Ok(Self { folder, name }),
            Err(Errno::EXIST) => {
                let lock = lock.display();
                Err(Error::Usage(format!(
                    "{lock} exists: another program is writing {}. If none is, remove that file",
                    path.display()
                )))
            }
            Err(error) => Err(Error::io(format!("create {}", lock.display()))(error.into())),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // The next writer reports the file that blocks it.
        let _ = unlinkat(&self.folder, &self.name, AtFlags::empty());
    }
}
