//! Events for watches: a config map that is written repeatedly.

use std::process::{Child, Stdio};
use std::time::Duration;

use super::{ADMIN_TOKEN, Cluster};

/// Interval between writes.
pub(super) const INTERVAL: Duration = Duration::from_millis(250);
/// The config map's name, in the namespace `default`.
pub(super) const NAME: &str = "beat";

/// A shell that writes increasing numbers to the config map until it is dropped.
#[derive(Debug)]
pub struct Beat(Child);

impl Beat {
    /// Writes from the host of that number, through its apiserver.
    pub fn start(cluster: &Cluster, number: usize) -> Self {
        let direct = cluster.kubectl_direct(number);
        let exists = direct.run(&["get", "configmap", NAME]).status.success();
        if !exists {
            direct.ok(&["create", "configmap", NAME, "--from-literal=n=0"]);
        }
        let script = format!(
            "while :; do n=$(date +%s%3N); curl -sk -o /dev/null --noproxy '*' --max-time 2 \
             -X PATCH -H 'Authorization: Bearer {ADMIN_TOKEN}' \
             -H 'Content-Type: application/merge-patch+json' \
             -d '{{\"data\":{{\"n\":\"'$n'\"}}}}' \
             https://127.0.0.1:6443/api/v1/namespaces/default/configmaps/{NAME}; \
             sleep {}; done",
            INTERVAL.as_secs_f64()
        );
        let mut command = cluster.host(number).command("sh");
        command.args(["-c", &script]).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Self(command.spawn().expect("a shell can be run"))
    }
}

impl Drop for Beat {
    fn drop(&mut self) {
        // Both fail only if it has already ended, which is the goal.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
