//! etcd: one for all apiservers on a host of its own, or stacked, a member beside each apiserver.

use super::{Cluster, START_LIMIT, program};
use crate::wait;

/// The name of the etcd member beside an apiserver, as a process of a cluster.
pub fn member(number: usize) -> String {
    format!("etcd-{number}")
}

impl Cluster {
    /// Starts etcd, anew or where it was.
    ///
    /// # Panics
    /// When it does not answer.
    pub fn start_etcd(&mut self) {
        let members: Vec<(String, usize)> = match self.plan.stacked {
            true => (1..=self.origins()).map(|number| (member(number), number)).collect(),
            false => vec![("etcd".to_owned(), self.etcd_host())],
        };
        let peer =
            |(name, at): &(String, usize)| format!("{name}=http://{}:2380", self.host(*at).address);
        let all: Vec<String> = members.iter().map(peer).collect();
        let all = all.join(",");
        for (name, at) in &members {
            self.start_member(name, *at, &all);
        }
        for (name, at) in members {
            let ask = [format!("http://{}:2379/health", self.host(at).address)];
            wait::until(&format!("{name} is well"), START_LIMIT, || {
                self.curl(at, &ask).filter(|said| said.contains("true"))
            });
        }
    }

    fn start_member(&mut self, name: &str, at: usize, all: &str) {
        let own = format!("http://{}", self.host(at).address);
        let flags = [
            format!("--name={name}"),
            format!("--data-dir={}", self.path(name).display()),
            format!("--listen-client-urls={own}:2379"),
            format!("--advertise-client-urls={own}:2379"),
            format!("--listen-peer-urls={own}:2380"),
            format!("--initial-advertise-peer-urls={own}:2380"),
            format!("--initial-cluster={all}"),
            "--quota-backend-bytes=4294967296".to_owned(),
            // Beside builds that write a lot, a sync of the disk may take longer than the defaults
            // of 100 ms and 1 s allow. The first member is the one that tests stall: it never
            // leads, or all would stall until the others have elected a leader.
            "--heartbeat-interval=200".to_owned(),
            format!("--election-timeout={}", if name == member(1) { 6000 } else { 2000 }),
        ];
        self.start(name, at, &program("etcd"), &flags);
    }
}
