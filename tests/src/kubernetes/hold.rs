//! Thousands of idle open watches, and how they end.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::{ADMIN_TOKEN, Cluster, START_LIMIT};
use crate::repository::root;
use crate::wait;

/// The watched config map, in the namespace `default`.
const NAME: &str = "held";

/// The state of the watches.
#[derive(Clone, Debug, Default)]
pub struct Held {
    /// Accepted by an apiserver.
    pub open: usize,
    /// Events that reached any of them.
    pub events: usize,
    /// How each ended watch ended.
    pub ended: Vec<String>,
}

/// The process that holds them (`tests/kubernetes/hold.py`).
#[derive(Debug)]
pub struct Holds {
    child: Child,
    held: Arc<Mutex<Held>>,
}

impl Holds {
    /// Opens `count` watches on a host and returns once all are open.
    pub fn start(cluster: &Cluster, at: usize, server: &str, count: usize) -> Self {
        let direct = cluster.kubectl_direct(cluster.origins());
        direct.ok(&["create", "configmap", NAME]);
        let mut command = cluster.host(at).command("python3");
        command.arg(root().join("tests/kubernetes/hold.py"));
        command.args([server, ADMIN_TOKEN, NAME, &count.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("python3 can be run");
        let output = child.stdout.take().expect("it has an output");
        let held = Arc::new(Mutex::new(Held::default()));
        let noting = Arc::clone(&held);
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let mut held = noting.lock().unwrap_or_else(PoisonError::into_inner);
                match line.as_str() {
                    "open" => held.open += 1,
                    "event" => held.events += 1,
                    _ => held.ended.push(line),
                }
            }
        });
        let holds = Self { child, held };
        wait::until("all watches are open", START_LIMIT, || {
            let held = holds.held();
            assert!(held.ended.is_empty(), "{:?}", held.ended.first());
            (held.open == count && held.events >= count).then_some(())
        });
        holds
    }

    /// Their state now.
    pub fn held(&self) -> Held {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Writes the config map and waits until every open watch has seen the change.
    #[track_caller]
    pub fn all_hear(&self, cluster: &Cluster) {
        let before = self.held();
        let direct = cluster.kubectl_direct(cluster.origins());
        let events = before.events.to_string();
        direct.ok(&["annotate", "--overwrite", "configmap", NAME, &format!("heard={events}")]);
        let open = before.open - before.ended.len();
        wait::until("every watch hears of a write", START_LIMIT, || {
            (self.held().events >= before.events + open).then_some(())
        });
    }
}

impl Drop for Holds {
    fn drop(&mut self) {
        // Both fail only if it has already ended, which is the goal.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
