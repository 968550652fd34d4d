//! TUN and TAP devices: an interface of a host whose other end is a file of this process.
//!
//! This is the one file of the package with `unsafe`: naming the device is an `ioctl`.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

const DEVICE: &str = "/dev/net/tun";

/// Creates an interface of this name that carries bare IP packets, on the calling thread's host. It
/// exists as long as the file, even when moved to another host.
///
/// # Errors
/// There is no `/dev/net/tun`, the name is too long or taken, or the caller may not.
pub(crate) fn open(name: &str) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).open(DEVICE)?;
    named(file, name, libc::IFF_TUN)
}

/// The same for whole Ethernet frames, with non-blocking reads.
///
/// # Errors
/// There is no `/dev/net/tun`, the name is too long or taken, or the caller may not.
pub fn open_ethernet(name: &str) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).custom_flags(libc::O_NONBLOCK).open(DEVICE)?;
    named(file, name, libc::IFF_TAP)
}

fn named(file: File, name: &str, kind: libc::c_int) -> io::Result<File> {
    let mut ifr_name = [0; libc::IFNAMSIZ];
    // One byte stays zero, to terminate the name.
    if name.len() >= ifr_name.len() || !name.is_ascii() {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    for (to, from) in ifr_name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    let flags = libc::c_short::try_from(kind | libc::IFF_NO_PI).map_err(io::Error::other)?;
    let request =
        libc::ifreq { ifr_name, ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_flags: flags } };
    // SAFETY: the descriptor is open for the whole call, and TUNSETIFF reads and writes one
    // `ifreq`, which `request` is; both outlive the call.
    #[expect(unsafe_code, reason = "there is no other way to name a TUN device")]
    let done = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw const request) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(file) }
}
