//! etcd: one for all apiservers on its own host, or stacked, one member on the host of each
//! apiserver.

use serde_json::Value;

use super::{Cluster, START_LIMIT, program};
use crate::wait;

/// Factor on the election timeout of the member that is not meant to become leader.
const UNLIKELY: u32 = 3;

/// The name of the etcd member on an apiserver's host, as a process of a cluster.
pub fn member(number: usize) -> String {
    format!("etcd-{number}")
}

impl Cluster {
    /// Starts etcd for the first time or restarts it.
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

    /// Makes the member on an apiserver's host the leader of a stacked etcd.
    pub fn lead(&self, number: usize) {
        let of = |at: usize| format!("http://{}:2379", self.host(at).address);
        let all: Vec<String> = (1..=self.origins()).map(of).collect();
        let etcdctl = |endpoints: &str, arguments: &[&str]| {
            let mut command = self.host(number).command(&program("etcdctl").to_string_lossy());
            command.env("ETCDCTL_API", "3").args(["--endpoints", endpoints]).args(arguments);
            let output = command.output().expect("etcdctl can be run");
            output.status.success().then_some(output.stdout)
        };
        wait::until(&format!("{} leads", member(number)), START_LIMIT, || {
            let status = etcdctl(&of(number), &["endpoint", "status", "--write-out=json"])?;
            let status: Value = serde_json::from_slice(&status).ok()?;
            let own = status[0]["Status"]["header"]["member_id"].as_u64()?;
            if status[0]["Status"]["leader"].as_u64()? == own {
                return Some(());
            }
            etcdctl(&all.join(","), &["move-leader", &format!("{own:x}")]);
            None
        });
    }

    fn start_member(&mut self, name: &str, at: usize, all: &str) {
        let own = format!("http://{}", self.host(at).address);
        let election = self.plan.election * if name == member(1) { UNLIKELY } else { 1 };
        let flags = [
            format!("--name={name}"),
            format!("--data-dir={}", self.path(name).display()),
            format!("--listen-client-urls={own}:2379"),
            format!("--advertise-client-urls={own}:2379"),
            format!("--listen-peer-urls={own}:2380"),
            format!("--initial-advertise-peer-urls={own}:2380"),
            format!("--initial-cluster={all}"),
            "--quota-backend-bytes=4294967296".to_owned(),
            // Tests stall the first member: it leads only on request, or all would stall until the
            // others have elected a leader.
            format!("--heartbeat-interval={}", (self.plan.election / 10).as_millis()),
            format!("--election-timeout={}", election.as_millis()),
        ];
        self.start(name, at, &program("etcd"), &flags);
    }
}
