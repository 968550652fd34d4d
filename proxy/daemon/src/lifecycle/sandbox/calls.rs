//! A seccomp filter: allows the system calls of a network server that keeps a few files.
//!
//! All others return `ENOSYS`, as on a kernel without them. The C library and the runtime have
//! fallbacks for that, also for calls newer than this list.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{
    BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule,
};

/// System calls allowed with any arguments.
const ALLOWED: &[c_long] = &[
    // Sockets and pipes.
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_eventfd2,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_listen,
    libc::SYS_pipe2,
    libc::SYS_recvfrom,
    libc::SYS_recvmmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    libc::SYS_socketpair,
    libc::SYS_splice,
    // Waiting and clocks.
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_gettimeofday,
    libc::SYS_nanosleep,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    // Descriptors and files.
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_faccessat,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_fcntl,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_ioctl,
    libc::SYS_lseek,
    libc::SYS_mkdirat,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_read,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_statfs,
    libc::SYS_statx,
    libc::SYS_umask,
    libc::SYS_unlinkat,
    libc::SYS_write,
    libc::SYS_writev,
    // Memory.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    // Threads and signals of this process.
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_prctl,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    // Identity of this process and machine.
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_getuid,
    libc::SYS_prlimit64,
    libc::SYS_sysinfo,
    libc::SYS_uname,
];

/// Older variants of these calls, which only this architecture has.
#[cfg(target_arch = "x86_64")]
const OLDER: &[c_long] = &[
    libc::SYS_access,
    libc::SYS_arch_prctl,
    libc::SYS_chmod,
    libc::SYS_dup2,
    libc::SYS_epoll_wait,
    libc::SYS_getdents,
    libc::SYS_getrlimit,
    libc::SYS_lstat,
    libc::SYS_mkdir,
    libc::SYS_open,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_rename,
    libc::SYS_select,
    libc::SYS_setrlimit,
    libc::SYS_stat,
    libc::SYS_time,
    libc::SYS_unlink,
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[c_long] = &[];

/// Address families allowed with any socket type: Unix sockets, for the admin socket, and netlink,
/// with which the C library lists the machine's addresses. Netlink sockets are of type raw but
/// reach only the kernel.
const LOCAL: &[i32] = &[libc::AF_UNIX, libc::AF_NETLINK];
/// Address families of the mesh and its clients, allowed with the socket types [`TYPES`].
const NETWORK: &[i32] = &[libc::AF_INET, libc::AF_INET6];
const TYPES: &[i32] = &[libc::SOCK_STREAM, libc::SOCK_DGRAM];
/// The type bits in the second argument of `socket`; the flags are above them (the kernel's
/// `SOCK_TYPE_MASK`).
const TYPE_BITS: u64 = 0xf;

/// Installs the filter for all threads of this process and those started later.
pub(super) fn filter() -> Result<(), Error> {
    seccompiler::apply_filter_all_threads(&program()?)
}

fn program() -> Result<BpfProgram, Error> {
    let mut rules: BTreeMap<c_long, Vec<SeccompRule>> =
        ALLOWED.iter().chain(OLDER).map(|call| (*call, Vec::new())).collect();
    rules.insert(libc::SYS_socket, sockets()?);
    // `clone` may start threads but no processes. `clone3` has its flags in memory, which a filter
    // cannot read, so it returns ENOSYS and the C library falls back to `clone`.
    let thread = u64::from(libc::CLONE_THREAD.unsigned_abs());
    let flags = argument(0, SeccompCmpOp::MaskedEq(thread), thread)?;
    rules.insert(libc::SYS_clone, vec![SeccompRule::new(vec![flags])?]);
    let other = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    let here = std::env::consts::ARCH.try_into()?;
    let filter = SeccompFilter::new(rules, other, SeccompAction::Allow, here)?;
    Ok(filter.try_into()?)
}

/// The rules for `socket`, of which one must match.
fn sockets() -> Result<Vec<SeccompRule>, Error> {
    let is = |family: i32| argument(0, SeccompCmpOp::Eq, u64::from(family.unsigned_abs()));
    let mut rules = Vec::new();
    for family in LOCAL {
        rules.push(SeccompRule::new(vec![is(*family)?])?);
    }
    for family in NETWORK {
        for kind in TYPES {
            let kind = u64::from(kind.unsigned_abs());
            let kind = argument(1, SeccompCmpOp::MaskedEq(TYPE_BITS), kind)?;
            rules.push(SeccompRule::new(vec![is(*family)?, kind])?);
        }
    }
    Ok(rules)
}

/// A condition on a 32-bit argument.
fn argument(at: u8, is: SeccompCmpOp, value: u64) -> Result<SeccompCondition, Error> {
    Ok(SeccompCondition::new(at, SeccompCmpArgLen::Dword, is, value)?)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::{TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
    use std::process::Command;
    use std::thread;

    use super::*;

    /// Runs a check in a separate thread, since a filter cannot be removed.
    fn filtered(check: impl FnOnce() + Send + 'static) {
        let inside = thread::spawn(move || {
            seccompiler::apply_filter(&program().expect("it compiles")).expect("it is taken");
            check();
        });
        inside.join().expect("the checks hold");
    }

    #[test]
    fn a_server_works_under_the_filter() {
        filtered(|| {
            let listener = TcpListener::bind("127.0.0.1:0").expect("listens");
            let address = listener.local_addr().expect("has an address");
            let client = thread::spawn(move || TcpStream::connect(address).map(drop));
            listener.accept().expect("accepts");
            client.join().expect("a thread ends").expect("connects");
            UdpSocket::bind("[::1]:0").or_else(|_| UdpSocket::bind("127.0.0.1:0")).expect("binds");
            ("localhost", 1).to_socket_addrs().expect("looks a name up");
            let folder = tempfile::tempdir().expect("a folder");
            std::fs::write(folder.path().join("a"), "a").expect("a file");
            std::fs::rename(folder.path().join("a"), folder.path().join("b")).expect("renamed");
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let written = runtime.expect("a runtime").block_on(async {
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                tokio::fs::write(folder.path().join("c"), "c").await
            });
            written.expect("a file");
        });
    }

    #[test]
    fn processes_raw_sockets_and_another_root_are_refused() {
        filtered(|| {
            let refused = Command::new("/bin/true").status().expect_err("no processes");
            assert_eq!(refused.raw_os_error(), Some(libc::ENOSYS));
            for family in [libc::AF_PACKET, libc::AF_INET, libc::AF_INET6, libc::AF_VSOCK] {
                let family = socket2::Domain::from(family);
                for protocol in [None, Some(socket2::Protocol::ICMPV4)] {
                    // The type is combined with a flag.
                    let refused = socket2::Socket::new(family, socket2::Type::RAW, protocol);
                    let refused = refused.expect_err("raw");
                    assert_eq!(refused.raw_os_error(), Some(libc::ENOSYS));
                }
            }
            let refused = rustix::process::chroot("/").expect_err("no other root");
            assert_eq!(io::Error::from(refused).raw_os_error(), Some(libc::ENOSYS));
        });
    }
}
