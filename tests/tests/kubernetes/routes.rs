//! The alternatives to compare with: haproxy in front of all apiservers, and the address of a
//! single apiserver.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use meshport_tests::kubernetes::{Cluster, Kubectl, LOCAL, START_LIMIT, WORKER, Watch};
use meshport_tests::repository::root;
use meshport_tests::wait;

/// The address of haproxy on the worker.
const HAPROXY: &str = "127.0.0.1:8443";
/// The first apiserver's address for direct access from the worker.
pub(crate) const DIRECT: &str = "https://10.77.0.11:6443";

/// haproxy in front of all apiservers.
pub(crate) fn haproxy() -> String {
    format!("https://{HAPROXY}")
}

/// haproxy on the worker in front of these servers, configured as in the kubeadm guide.
pub(crate) fn start_haproxy(cluster: &mut Cluster, name: &str, listen: &str, servers: [&str; 3]) {
    let template = root().join("tests/arena/balancers/kubeadm-haproxy.cfg");
    let text = fs::read_to_string(template).expect("the arena has it");
    let listens = text.replace("@LISTEN@", listen);
    let text = (1..).zip(servers).fold(listens, |text, (number, server)| {
        text.replace(&format!("@UP{number}@"), &format!("{server}:6443"))
    });
    let file = cluster.path(&format!("{name}.cfg"));
    fs::write(&file, text).expect("the cluster's folder can be written");
    let file = file.to_string_lossy().into_owned();
    let flags = ["-db", "-f", &file].map(str::to_owned);
    cluster.start(name, WORKER, Path::new("haproxy"), &flags);
    let ask = [format!("https://{listen}/version")];
    wait::until("haproxy answers", START_LIMIT, || cluster.curl(WORKER, &ask));
}

/// Restarts haproxy in front of all apiservers, so that it considers all of them healthy. A running
/// haproxy needs two successful checks before it uses the last failed server again.
pub(crate) fn restart_haproxy(cluster: &mut Cluster) {
    cluster.kill("haproxy");
    let servers = [1, 2, 3].map(|number| cluster.host(number).address.to_string());
    start_haproxy(cluster, "haproxy", HAPROXY, servers.each_ref().map(String::as_str));
}

/// The clients that reach the apiservers by one path.
pub(crate) struct Route {
    pub(crate) name: &'static str,
    pub(crate) kubectl: Kubectl,
    pub(crate) watches: Vec<Watch>,
}

impl Route {
    /// All three. haproxy uses round robin: one of three watches is on the first server.
    pub(crate) fn all(cluster: &Cluster) -> [Self; 3] {
        let route = |name, server: &str, count: usize| {
            let kubectl = cluster.kubectl_to(WORKER, name, server);
            let watches = (0..count).map(|_| Watch::start(&kubectl)).collect();
            Self { name, kubectl, watches }
        };
        [route("meshport", LOCAL, 1), route("haproxy", &haproxy(), 3), route("straight", DIRECT, 1)]
    }

    /// The longest silence of any of its watches.
    pub(crate) fn silence(&self, from: Instant, until: Instant) -> Duration {
        let each = self.watches.iter().map(|watch| watch.arrivals().longest_gap(from, until));
        each.max().unwrap_or_default()
    }
}
