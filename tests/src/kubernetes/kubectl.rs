//! kubectl on a host, isolated from the caller's home.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::{newer, program};
use crate::net::Host;
use crate::wait;

/// kubectl on one host with one kubeconfig.
#[derive(Clone, Debug)]
pub struct Kubectl {
    namespace: PathBuf,
    home: PathBuf,
    kubeconfig: PathBuf,
    program: PathBuf,
}

/// A call of kubectl that has ended.
#[derive(Clone, Debug)]
pub struct Call {
    /// Start time.
    pub at: Instant,
    /// Duration, regardless of the result.
    pub took: Duration,
    /// Whether it succeeded.
    pub succeeded: bool,
    /// Its output.
    pub said: String,
}

impl Kubectl {
    /// kubectl on `host`; its caches are below `home`.
    pub fn new(host: &Host, home: PathBuf, kubeconfig: PathBuf) -> Self {
        let program = program("kubectl");
        Self { namespace: host.namespace_file(), home, kubeconfig, program }
    }

    /// The same with the newest available kubectl, which may be this one.
    #[must_use]
    pub fn newest(&self) -> Self {
        let program = newer("kubectl").unwrap_or_else(|| self.program.clone());
        // One version cannot use another's cache.
        Self { program, home: self.home.join("newest"), ..self.clone() }
    }

    /// A command, not yet started.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        let mut namespace = std::ffi::OsString::from("--net=");
        namespace.push(&self.namespace);
        command.arg(namespace).args(["setpriv", "--pdeathsig", "KILL"]).arg(&self.program);
        // Each call queries the server again, since each has its own cache.
        command.arg("--cache-dir").arg(self.home.join("cache")).args(arguments);
        command.env("KUBECONFIG", &self.kubeconfig).env("HOME", &self.home).stdin(Stdio::null());
        command
    }

    /// Runs it until it ends.
    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("kubectl can be run")
    }

    /// Runs it and measures its duration.
    pub fn call(&self, arguments: &[&str]) -> Call {
        let at = wait::now();
        let output = self.run(arguments);
        let took = at.elapsed();
        let error = String::from_utf8_lossy(&output.stderr);
        let said = format!("{}{error}", String::from_utf8_lossy(&output.stdout));
        Call { at, took, succeeded: output.status.success(), said }
    }

    /// The trimmed output of a call that must succeed.
    #[track_caller]
    pub fn ok(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let problem = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "kubectl {}: {problem}", arguments.join(" "));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// The holder of a lease of the control plane, and how often it has changed.
    pub fn lease(&self, name: &str) -> String {
        let path = "jsonpath={.spec.holderIdentity} {.spec.leaseTransitions}";
        self.ok(&["-n", "kube-system", "get", "lease", name, "-o", path])
    }

    /// Applies an object as given.
    #[track_caller]
    pub fn apply(&self, object: &str) {
        use std::io::Write as _;
        let mut command = self.command(&["apply", "-f", "-"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("kubectl can be run");
        let mut input = child.stdin.take().expect("it has an input");
        input.write_all(object.as_bytes()).expect("kubectl reads its input");
        drop(input);
        let output = child.wait_with_output().expect("kubectl ends");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
