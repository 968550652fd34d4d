//! Tries operations that the daemon does not need and prints which of them work, for the test of
//! the systemd unit, which runs this instead of the daemon.

use std::fs::{self, File, Permissions};
use std::io;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

type Attempt = (&'static str, fn() -> io::Result<()>);

/// The attempts and the names under which they are printed; the test has created all files.
const TRIED: [Attempt; 12] = [
    ("keep-state", || File::create("/var/lib/meshport/kept").map(drop)),
    ("listen", || TcpListener::bind("127.0.0.1:0").map(drop)),
    ("listen-below-1024", || TcpListener::bind("127.0.0.1:80").map(drop)),
    ("read-shadow", || File::open("/etc/shadow").map(drop)),
    ("read-home", || File::open("/home/somebody/open").map(drop)),
    ("read-run-user", || File::open("/run/user/open").map(drop)),
    ("read-temporary", || File::open("/tmp/open").map(drop)),
    ("write-etc", || File::create("/etc/open/written").map(drop)),
    ("write-srv", || File::create("/srv/open/written").map(drop)),
    ("run-shell", || Command::new("/bin/sh").args(["-c", "exit"]).status().map(drop)),
    ("see-others", || fs::metadata("/proc/1").map(drop)),
    ("make-setuid", || {
        File::create("/var/tmp/own")?;
        fs::set_permissions("/var/tmp/own", Permissions::from_mode(0o4755))
    }),
];

#[expect(clippy::print_stdout, reason = "a command-line tool")]
fn main() {
    for (what, attempt) in TRIED {
        match attempt() {
            Ok(()) => println!("tried {what}: yes"),
            Err(error) => println!("tried {what}: no ({error})"),
        }
    }
}
