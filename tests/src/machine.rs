//! An emulated machine: a network namespace with its own host name, processes, and files below
//! `/etc`, `/var/lib` and `/run`. Commands that are meant for a whole machine run on it without
//! touching the real one.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::netns::Namespace;
use crate::process::{Process, meshport};
use crate::wait;

const PATIENCE: Duration = Duration::from_secs(20);
/// Folders whose changes stay on the machine.
const OWN: [&str; 3] = ["/etc", "/var/lib", "/run"];
/// Replaces systemd: a script named after the unit starts it.
const SYSTEMCTL: &str = "[ \"$1\" != daemon-reload ] || exit 0
eval \"exec start-\\${$#}\"
";
/// The steps of the unit until the daemon answers.
const START_MESHPORT: &str = "setsid meshport run >>$LAB/daemon.log 2>&1 &
while ! meshport status >/dev/null 2>&1; do sleep 0.1; done
";

/// See the module's description. Dropping it ends everything on it.
#[derive(Debug)]
pub struct Machine {
    name: String,
    process: Process,
    folder: PathBuf,
}

impl Machine {
    /// Boots a machine with that host name; its files are below `folder`, where its commands also
    /// run. It has meshport; `systemctl` starts a unit with the script `start-UNIT`.
    pub fn boot(name: &str, host: &Namespace, folder: &Path) -> Self {
        fs::create_dir_all(folder.join("bin")).expect("a folder for programs");
        let mut script = format!("set -eu\nhostname {name}\n");
        for place in OWN {
            let own = folder.join(place.replace('/', "_"));
            for part in ["upper", "work"] {
                fs::create_dir_all(own.join(part)).expect("a folder");
            }
            let own = own.display();
            script += &format!(
                "mount -t overlay overlay -o \
                 lowerdir={place},upperdir={own}/upper,workdir={own}/work {place}\n"
            );
        }
        script += "echo it is up\nexec sleep infinity\n";
        let mut command = host.command("unshare");
        command.args(["--mount", "--uts", "--pid", "--fork", "--kill-child", "sh", "-c", &script]);
        let process = Process::start(name, &mut command, &folder.join("machine.log"));
        let machine = Self { name: name.to_owned(), process, folder: folder.to_owned() };
        wait::until("the machine is up", PATIENCE, || {
            machine.process.output().contains("it is up").then_some(())
        });
        machine.link(meshport());
        machine.put("systemctl", SYSTEMCTL);
        machine.put("start-meshport", START_MESHPORT);
        machine
    }

    /// Installs a script on the path of its commands.
    pub fn put(&self, name: &str, script: &str) {
        let path = self.folder.join("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}")).expect("the folder is there");
        fs::set_permissions(path, Permissions::from_mode(0o755)).expect("it is ours");
    }

    /// Makes a program of the real machine available to its commands.
    pub fn link(&self, program: &Path) {
        let name = program.file_name().expect("a program has a name");
        let link = self.folder.join("bin").join(name);
        std::os::unix::fs::symlink(program, link).expect("there is none of that name");
    }

    /// A command on it. `LAB` in its environment is the folder of the machine.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        let id = self.process.id();
        command.args(["--target", &id.to_string(), "--mount", "--uts", "--net"]);
        command.arg(format!("--pid=/proc/{id}/ns/pid_for_children"));
        command.arg(format!("--wd={}", self.folder.display())).arg(program);
        let path = std::env::var("PATH").expect("a path");
        command.env("PATH", format!("{}:{path}", self.folder.join("bin").display()));
        command.env("LAB", &self.folder);
        command
    }

    /// Runs commands and waits until they end; returns their output.
    #[track_caller]
    pub fn run(&self, script: &str, limit: Duration) -> String {
        let mut command = self.command("sh");
        command.args(["-euc", script]);
        let log = self.folder.join("commands.log");
        let mut process = Process::start(&self.name, &mut command, &log);
        let status = process.ended(limit);
        assert!(status.success(), "{}: {status}: {script}", self.name);
        process.output()
    }

    /// A file that its commands wrote in their working folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}
