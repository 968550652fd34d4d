//! The kernel's part in selecting a datagram's shard: a filter on the group of sockets that share
//! one UDP port. One of the few files with unsafe code: none of our dependencies offers this
//! option.

use std::io;

use socket2::Socket;

use meshport_proto::shard::{MAX_SHARDS, SHARD_BITS};

/// Makes the kernel deliver each datagram to the shard in its WireGuard header, among `shards`
/// sockets bound in the order of their shards. A handshake initiation has no shard: a byte of its
/// ephemeral key, practically random, spreads the load over all.
///
/// Without the filter the kernel spreads senders over the sockets, and shards pass datagrams to
/// each other: slower, but correct.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "a socket option that takes a pointer to a program")]
pub(super) fn steer(group: &Socket, shards: usize) -> io::Result<()> {
    use std::os::fd::AsRawFd;

    let mut program = program(shards);
    let filter = libc::sock_fprog {
        len: u16::try_from(program.len()).map_err(io::Error::other)?,
        filter: program.as_mut_ptr(),
    };
    let size = libc::socklen_t::try_from(size_of_val(&filter)).map_err(io::Error::other)?;
    // SAFETY: the descriptor is open for as long as `group` is borrowed, and `filter` is a
    // sock_fprog of the given size, whose pointer and length are those of `program`. Both live
    // until the call returns, and the kernel copies the program.
    let result = unsafe {
        libc::setsockopt(
            group.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const filter).cast(),
            size,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Other systems have no such filter.
#[cfg(not(target_os = "linux"))]
pub(super) fn steer(_group: &Socket, _shards: usize) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// The filter, which sees a datagram from its first byte on and returns the number of a socket. A
/// load beyond the datagram's end makes it return 0. See the message formats in section 5.4 of the
/// WireGuard paper; indices are little-endian, and their lowest byte counts sessions.
#[cfg(target_os = "linux")]
fn program(shards: usize) -> [libc::sock_filter; 12] {
    const LOAD_BYTE: u16 = 0x30;
    const JUMP: u16 = 0x05;
    const JUMP_EQUAL: u16 = 0x15;
    const AND: u16 = 0x54;
    const MOD: u16 = 0x94;
    const RETURN: u16 = 0x16;
    let jump_if = |k, jt| libc::sock_filter { code: JUMP_EQUAL, jt, jf: 0, k };
    let plain = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
    let shards = u32::try_from(shards.clamp(1, MAX_SHARDS)).unwrap_or(1);
    [
        plain(LOAD_BYTE, 0),
        // Data and cookies name the receiver in bytes 4 to 8, responses in bytes 8 to 12.
        jump_if(4, 4),
        jump_if(3, 3),
        jump_if(2, 4),
        // An initiation: its ephemeral key begins at byte 8.
        plain(LOAD_BYTE, 8),
        plain(JUMP, 4),
        plain(LOAD_BYTE, 5),
        plain(JUMP, 1),
        plain(LOAD_BYTE, 9),
        plain(AND, (1 << SHARD_BITS) - 1),
        plain(MOD, shards),
        plain(RETURN, 0),
    ]
}
