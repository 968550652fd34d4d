//! The kubeconfig of a forward: merged into a user's file, or a temporary one for a command.
//!
//! Neither has the user's credentials: KUBECONFIG lists the temporary one before the user's own
//! files.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use clap::Args;
use meshport_config::ServiceName;
use rand_core::{OsRng, RngCore};

use super::ForwardArgs;
use crate::cli::kubeconfig::{self, Chosen, DEFAULT_NAME, Evidence};
use meshport_daemon::Error;

/// The kubeconfig context for the local address.
#[derive(Debug, Args)]
pub(crate) struct ContextArgs {
    /// Write a context for the local address into this kubeconfig
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The kubeconfig with the cluster [default: KUBECONFIG, else ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    pub(crate) from: Option<PathBuf>,
    /// The context in it to use [default: its current context]
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// Name of the new context and its cluster
    #[arg(long, value_name = "NAME", default_value = DEFAULT_NAME)]
    pub(crate) context_name: String,
}

/// A kubeconfig for one command; removed when dropped.
#[derive(Debug)]
pub(super) struct TemporaryKubeconfig {
    path: PathBuf,
    /// The value of `KUBECONFIG`.
    pub(super) list: OsString,
    /// Warnings for the user.
    pub(super) warnings: Vec<String>,
}

/// The source context; `None` if no kubeconfig is requested, or if a command may do without one
/// because this machine has none.
///
/// # Errors
/// [`Error::Usage`] if one was requested and none is found, or it cannot work.
pub(super) fn find(forward: &ForwardArgs) -> Result<Option<Chosen>, Error> {
    let args = &forward.context;
    let is_kubernetes = forward.service.as_str() == ServiceName::KUBE_APISERVER;
    let named = args.from.is_some() || args.context.is_some() || args.kubeconfig.is_some();
    let lends = forward.exec && (is_kubernetes || named);
    if !lends && args.kubeconfig.is_none() {
        return Ok(None);
    }
    let files = kubeconfig::source_files(args.from.as_deref())?;
    if !named && !files.iter().any(|file| file.exists()) {
        return Ok(None);
    }
    Chosen::read(files, args.context.as_deref(), &args.context_name).map(Some)
}

impl TemporaryKubeconfig {
    /// Writes one with the new context.
    pub(super) fn write(
        chosen: &Chosen,
        local: SocketAddr,
        evidence: &Evidence,
    ) -> Result<Self, Error> {
        let (text, warnings) = chosen.text(local, evidence)?;
        let folder = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let folder = folder.filter(|folder| folder.is_dir()).unwrap_or_else(std::env::temp_dir);
        let path = folder.join(format!("meshport-{:016x}.kubeconfig", OsRng.next_u64()));
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(Error::io(format!("create {}", path.display())))?;
        let mut kubeconfig = Self { path: path.clone(), list: OsString::new(), warnings };
        file.write_all(text.as_bytes()).map_err(Error::io(format!("write {}", path.display())))?;
        let all = std::iter::once(&path).chain(chosen.files());
        kubeconfig.list = std::env::join_paths(all).map_err(|_| {
            Error::Usage("KUBECONFIG cannot list a file whose name has a colon in it".into())
        })?;
        Ok(kubeconfig)
    }
}

impl Drop for TemporaryKubeconfig {
    fn drop(&mut self) {
        // It contains no secret; a leftover does no harm.
        let _ = fs::remove_file(&self.path);
    }
}
