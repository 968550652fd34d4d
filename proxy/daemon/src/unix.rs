//! Unix sockets that are found under a path: the admin socket, and that of the way back.
//!
//! The file gets its mode before its name, so no other user can ever open it; a stale one is
//! replaced only when nothing answers on it.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, fchmod};
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::{UnixListener, UnixStream};
use tokio::time::timeout;

use crate::Error;

/// `sun_path` less its final zero, in bytes.
const MAX_SOCKET_PATH_BYTES: usize = 107;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// How long the process that has the path may take to answer.
const MAX_PROBE_TIME: Duration = Duration::from_secs(5);

/// Where a socket is to be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) path: &'a Path,
    /// Bits of its mode.
    pub(crate) mode: u32,
    /// The setting that names it.
    pub(crate) setting: &'static str,
}

impl Place<'_> {
    fn error(&self, what: &str) -> Error {
        Error::State {
            path: self.path.to_owned(),
            what: what.into(),
            remedy: format!(
                "Set `{}` in the configuration to a short path of its own, or stop what uses this \
                 one",
                self.setting
            ),
        }
    }
}

/// Makes the folder of the socket, with those above it, if it is not there.
///
/// # Errors
/// [`Error::Io`] when it cannot be made.
pub(crate) fn make_folder(place: Place<'_>) -> Result<(), Error> {
    match place.path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        None => Ok(()),
        Some(parent) => fs::create_dir_all(parent).map_err(Error::io(format!(
            "create the folder {} for the socket ({})",
            parent.display(),
            place.setting
        ))),
    }
}

/// Listens there, in place of a socket on which nobody answers.
///
/// # Errors
/// [`Error::State`] when another process answers there or the path cannot be a socket's,
/// [`Error::Io`] for what the machine lacks.
pub(crate) async fn bind(place: Place<'_>) -> Result<(UnixListener, SocketFile), Error> {
    let path = place.path;
    let name = path.file_name().ok_or_else(|| place.error("is not a file name"))?;
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(std::process::id().to_string());
    let unnamed = path.with_file_name(hidden);
    if unnamed.as_os_str().len() > MAX_SOCKET_PATH_BYTES {
        return Err(place.error("is too long for the path of a socket"));
    }
    make_folder(place)?;
    check_unused(place).await?;
    let binding = || Error::io(format!("listen on {}", path.display()));
    // A crashed process with our number; it is ours alone to use.
    let _ = fs::remove_file(&unnamed);
    let listener = listen_at(&unnamed, place.mode).map_err(binding())?;
    let named = fs::symlink_metadata(&unnamed)
        .and_then(|metadata| fs::rename(&unnamed, path).map(|()| metadata));
    match named {
        Ok(metadata) => {
            let inode = (metadata.dev(), metadata.ino());
            Ok((listener, SocketFile { path: path.to_owned(), inode }))
        }
        Err(error) => {
            let _ = fs::remove_file(&unnamed);
            Err(binding()(error))
        }
    }
}

/// A socket at this path. It has its mode, less what the process's mask takes away, before there is
/// a file: the mode of a name would be set through a link that the owner of the folder has put
/// there meanwhile.
fn listen_at(path: &Path, mode: u32) -> io::Result<UnixListener> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    fchmod(&socket, Mode::from_raw_mode(mode))?;
    socket.bind(&SockAddr::unix(path)?)?;
    socket.listen(BACKLOG)?;
    UnixListener::from_std(OwnedFd::from(socket).into())
}

/// Refuses a path that holds something else than a socket nobody answers on.
async fn check_unused(place: Place<'_>) -> Result<(), Error> {
    let path = place.path;
    match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::io(format!("look at {}", path.display()))(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            Err(place.error("exists and is not a socket"))
        }
        Ok(_) => match timeout(MAX_PROBE_TIME, UnixStream::connect(path)).await {
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
            Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Ok(Ok(_)) | Err(_) => Err(place.error("another daemon listens here")),
            Ok(Err(error)) => Err(Error::io(format!("look at {}", path.display()))(error)),
        },
    }
}

/// Removes the socket on drop, unless another process has put its own in its place.
pub(crate) struct SocketFile {
    path: PathBuf,
    inode: (u64, u64),
}

impl fmt::Debug for SocketFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.fmt(formatter)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = self
            .path
            .symlink_metadata()
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.inode);
        if ours {
            // A socket left behind is replaced at the next start.
            let _ = fs::remove_file(&self.path);
        }
    }
}
