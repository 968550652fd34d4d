//! Unix sockets in the file system: the admin socket, and that of the way back.
//!
//! The socket gets its mode before its final name, so no other user can ever open it. A stale
//! socket is replaced only if nothing answers on it.

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
use tokio::time::{sleep, timeout};

use crate::Error;

/// The size of `sun_path` without its terminating zero, in bytes.
const MAX_SOCKET_PATH_BYTES: usize = 107;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// Interval between looks whether a socket's file is still there.
const LOOK: Duration = Duration::from_secs(2);
/// How long the process that owns the path may take to answer.
const MAX_PROBE_TIME: Duration = Duration::from_secs(5);

/// The path of a Unix socket and its mode.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SocketPath<'a> {
    pub(crate) path: &'a Path,
    /// Mode bits.
    pub(crate) mode: u32,
    /// The setting that names it.
    pub(crate) setting: &'static str,
}

impl SocketPath<'_> {
    fn error(&self, what: &str) -> Error {
        Error::State {
            path: self.path.to_owned(),
            what: what.into(),
            remedy: format!(
                "Set `{}` in the configuration to another short path, or stop the process that \
                 uses this one",
                self.setting
            ),
        }
    }
}

/// Creates the folder of the socket and its parents, if missing.
pub(crate) fn make_folder(at: SocketPath<'_>) -> Result<(), Error> {
    match at.path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        None => Ok(()),
        Some(parent) => fs::create_dir_all(parent).map_err(Error::io(format!(
            "create the folder {} for the socket ({})",
            parent.display(),
            at.setting
        ))),
    }
}

/// Listens at the path, replacing a socket on which nothing answers.
///
/// # Errors
/// [`Error::State`] if another process answers there or the path cannot be a socket's;
/// [`Error::Io`] if the system refuses.
pub(crate) async fn bind(at: SocketPath<'_>) -> Result<(UnixListener, SocketFile), Error> {
    let path = at.path;
    let name = path.file_name().ok_or_else(|| at.error("is not a file name"))?;
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(std::process::id().to_string());
    let unnamed = path.with_file_name(hidden);
    if unnamed.as_os_str().len() > MAX_SOCKET_PATH_BYTES {
        return Err(at.error("is too long for the path of a socket"));
    }
    make_folder(at)?;
    check_unused(at).await?;
    let binding = || Error::io(format!("listen on {}", path.display()));
    // Left by a crashed process with our process id; only we use that name.
    let _ = fs::remove_file(&unnamed);
    let listener = listen_at(&unnamed, at.mode).map_err(binding())?;
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

/// Creates a socket at this path. It gets its mode, less the umask, before the file exists. With
/// chmod by name, the owner of the folder could have put a symlink there in between.
fn listen_at(path: &Path, mode: u32) -> io::Result<UnixListener> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    fchmod(&socket, Mode::from_raw_mode(mode))?;
    socket.bind(&SockAddr::unix(path)?)?;
    socket.listen(BACKLOG)?;
    UnixListener::from_std(OwnedFd::from(socket).into())
}

/// Refuses a path unless it is free or a socket on which nothing answers.
async fn check_unused(at: SocketPath<'_>) -> Result<(), Error> {
    let path = at.path;
    match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::io(format!("look at {}", path.display()))(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            Err(at.error("exists and is not a socket"))
        }
        Ok(_) => match timeout(MAX_PROBE_TIME, UnixStream::connect(path)).await {
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
            Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Ok(Ok(_)) | Err(_) => Err(at.error("another daemon listens here")),
            Ok(Err(error)) => Err(Error::io(format!("look at {}", path.display()))(error)),
        },
    }
}

/// Removes the socket on drop, unless another process has replaced it.
pub(crate) struct SocketFile {
    path: PathBuf,
    inode: (u64, u64),
}

impl SocketFile {
    /// Resolves once nothing is left at its path: programs that clean up remove sockets as well.
    pub(crate) async fn removed(&self) {
        // With its folder, in whose place there may be a file.
        let gone = [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory];
        let is_gone = || {
            let found = self.path.symlink_metadata();
            found.is_err_and(|error| gone.contains(&error.kind()))
        };
        while !is_gone() {
            sleep(LOOK).await;
        }
    }
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
            // The next start replaces a leftover socket.
            let _ = fs::remove_file(&self.path);
        }
    }
}
