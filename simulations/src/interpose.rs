//! Replaces three functions of the C library in this program. This gives a simulated machine its
//! own clock, idle time and random numbers.
//!
//! The linker prefers a program's own symbols to those of a dynamic library, so `std`, mio and
//! every crate call these. On real threads they make the same system call as the C library.
//! Invariants: they do not allocate, do not panic on a real machine, and keep the contract of the
//! functions they replace.
#![expect(unsafe_code, reason = "the C library's interface")]

use std::time::Duration;

use libc::{c_int, c_long, c_uint, c_void, clockid_t, epoll_event, size_t, ssize_t, timespec};
use meshport_simulations::full::machine::{self, Clock};

/// See clock_gettime(2).
// SAFETY: the symbol has the C library's own signature and contract; nothing else defines it here.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: clockid_t, out: *mut timespec) -> c_int {
    let simulated = match clock {
        libc::CLOCK_MONOTONIC
        | libc::CLOCK_MONOTONIC_RAW
        | libc::CLOCK_MONOTONIC_COARSE
        | libc::CLOCK_BOOTTIME => machine::read(Clock::Monotonic),
        libc::CLOCK_REALTIME | libc::CLOCK_REALTIME_COARSE => machine::read(Clock::Wall),
        _ => None,
    };
    let Some(time) = simulated else {
        // SAFETY: the caller's own arguments, to the system call of the same contract.
        return unsafe { libc::syscall(libc::SYS_clock_gettime, c_long::from(clock), out) }
            as c_int;
    };
    // SAFETY: the caller passes a valid pointer for the answer, by the function's contract.
    unsafe {
        (*out).tv_sec = time.as_secs() as libc::time_t;
        (*out).tv_nsec = c_long::from(time.subsec_nanos());
    }
    0
}

/// See epoll_wait(2).
// SAFETY: the symbol has the C library's own signature and contract; nothing else defines it here.
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_wait(
    queue: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout_ms: c_int,
) -> c_int {
    let real = |timeout_ms: c_int| {
        let mask: *const c_void = std::ptr::null();
        // SAFETY: the caller's own arguments; without a signal mask it equals the older call.
        unsafe {
            libc::syscall(libc::SYS_epoll_pwait, queue, events, most, timeout_ms, mask, 8) as c_int
        }
    };
    if !machine::is_simulated() {
        return real(timeout_ms);
    }
    // Pending wake-ups of the runtime itself come before time advances.
    let ready = real(0);
    if ready != 0 || timeout_ms == 0 {
        return ready;
    }
    machine::pass(u64::try_from(timeout_ms).ok().map(Duration::from_millis));
    0
}

/// See getrandom(2).
// SAFETY: the symbol has the C library's own signature and contract; nothing else defines it here.
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(out: *mut c_void, length: size_t, flags: c_uint) -> ssize_t {
    if machine::is_simulated() {
        // SAFETY: the caller passes a buffer of this length, by the function's contract; zeroing it
        // initialises bytes that may be uninitialised.
        let bytes = unsafe {
            std::ptr::write_bytes(out.cast::<u8>(), 0, length);
            std::slice::from_raw_parts_mut(out.cast::<u8>(), length)
        };
        if machine::fill(bytes) {
            return length.try_into().unwrap_or(ssize_t::MAX);
        }
    }
    // SAFETY: the caller's own arguments, to the system call of the same contract.
    unsafe { libc::syscall(libc::SYS_getrandom, out, length, flags) as ssize_t }
}
