//! Many watches in one process of a client library, and when each event reached them.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use super::beat::NAME;
use super::watch::lock;
use super::{ADMIN_TOKEN, Arrivals, Cluster, START_LIMIT};
use crate::repository::root;
use crate::wait;

/// Watches of the [`Beat`](super::Beat): HTTP/1.1, a connection for each, no timeout; a watch that
/// ends is restarted.
#[derive(Debug)]
pub struct Watchers {
    child: Child,
    arrivals: Arc<Mutex<Vec<Arrivals>>>,
    problems: Arc<Mutex<Vec<String>>>,
}

impl Watchers {
    /// Starts `count` watches with the Python client `kubernetes` in one process on a host, and
    /// returns once each has seen the beat; `None` if the client is not available
    /// (`MESHPORT_KUBERNETES_PYTHON` is not set).
    pub fn start(cluster: &Cluster, at: usize, server: &str, count: usize) -> Option<Self> {
        let python = std::env::var_os("MESHPORT_KUBERNETES_PYTHON")?;
        let mut command = cluster.host(at).command(&python.to_string_lossy());
        command.arg(root().join("tests/kubernetes/watch.py"));
        Some(Self::follow(cluster, command, server, count))
    }

    /// The same with the JavaScript client `@kubernetes/client-node`; `None` if that is not
    /// available (`MESHPORT_KUBERNETES_NODE`, the folder of its `node_modules`, is not set).
    pub fn start_javascript(
        cluster: &Cluster,
        at: usize,
        server: &str,
        count: usize,
    ) -> Option<Self> {
        std::env::var_os("MESHPORT_KUBERNETES_NODE")?;
        let mut command = cluster.host(at).command("node");
        command.arg(root().join("tests/kubernetes/watch.mjs"));
        Some(Self::follow(cluster, command, server, count))
    }

    fn follow(cluster: &Cluster, mut command: Command, server: &str, count: usize) -> Self {
        command.args([server, &cluster.pki.text("ca.crt"), ADMIN_TOKEN, NAME]);
        command.arg(count.to_string()).env("no_proxy", "*");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the client can be run");
        let output = child.stdout.take().expect("it has an output");
        let errors = child.stderr.take().expect("it has an output for errors");
        let arrivals = Arc::new(Mutex::new(vec![Arrivals::default(); count]));
        let problems = Arc::new(Mutex::new(Vec::new()));
        let (noting, failing) = (Arc::clone(&arrivals), Arc::clone(&problems));
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let Some(which) = line.split(' ').next().and_then(|it| it.parse::<usize>().ok())
                else {
                    continue;
                };
                if let Some(own) = lock(&noting).get_mut(which) {
                    own.0.push(wait::now());
                }
            }
        });
        thread::spawn(move || {
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                lock(&failing).push(line);
            }
        });
        let watchers = Self { child, arrivals, problems };
        wait::until("every watch of a client library sees events", START_LIMIT, || {
            watchers.arrivals().iter().all(|own| own.count() > 1).then_some(())
        });
        watchers
    }

    /// The arrivals of each watch so far.
    pub fn arrivals(&self) -> Vec<Arrivals> {
        lock(&self.arrivals).clone()
    }

    /// The lines that the client wrote to standard error.
    pub fn problems(&self) -> Vec<String> {
        lock(&self.problems).clone()
    }
}

impl Drop for Watchers {
    fn drop(&mut self) {
        // Both fail only if it has already ended, which is the goal.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
