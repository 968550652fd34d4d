//! kubectl on a laptop that is not a member of the mesh, through `meshport forward` to a real
//! control plane, whose apiservers and members die.

#![expect(clippy::print_stdout, reason = "figures for the reader of a test run")]

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use meshport_tests::kubernetes::{
    Beat, Calls, Cluster, Kubectl, Plan, START_LIMIT, WORKER, Watch, origin, program,
};
use meshport_tests::process::{meshport, run_ok};
use meshport_tests::wait;

/// The address of the forward.
const FORWARDED: &str = "127.0.0.1:7555";
/// The cluster in the laptop's kubeconfig; this address does not exist.
const NAMED: &str = "https://10.96.0.1:6443";
/// How long the forward is stopped, and how soon afterwards events must arrive again.
const SLEEP: Duration = Duration::from_secs(15);
const AGAIN: Duration = Duration::from_secs(2);

/// The laptop: a host with an operator's invite and a kubeconfig, and without a daemon.
struct Laptop {
    invite: PathBuf,
    credential: PathBuf,
    kubeconfig: PathBuf,
}

impl Laptop {
    fn new(cluster: &Cluster) -> Self {
        let by = cluster.path("state-cp-1");
        let seed = format!("{}:51820", cluster.host(1).address);
        let line = run_ok(
            &meshport().to_string_lossy(),
            &[
                &["invite", "--state-dir", &by.to_string_lossy(), "--site", "fra"][..],
                &["--role", "operator", "--ttl", "1h", "--endpoint", &seed],
            ]
            .concat(),
        );
        let invite = cluster.path("laptop.invite");
        fs::write(&invite, line).expect("the cluster's folder can be written");
        let kubeconfig = cluster.pki.kubeconfig("laptop", NAMED, None);
        Self { invite, credential: cluster.path("laptop"), kubeconfig }
    }

    fn forward(&self, cluster: &Cluster, arguments: &[&str]) -> Command {
        let mut command = cluster.host(WORKER).command(&meshport().to_string_lossy());
        command.arg("forward").arg("--invite").arg(&self.invite);
        command.arg("--credential").arg(&self.credential).args(["--name", "laptop"]);
        command.args(arguments).env("KUBECONFIG", &self.kubeconfig).env("HOME", cluster.path(""));
        command
    }
}

#[test]
#[ignore = "needs root and tests/kubernetes/build; ./tests/run kubernetes-smoke"]
fn kubectl_works_from_a_laptop_whatever_dies() {
    let mut cluster = Cluster::hosts(Plan::default());
    for number in 1..=cluster.origins() {
        cluster.start_apiserver(number, &[]);
        cluster.start_node(number);
    }
    let _beat = Beat::start(&cluster, 3);
    let laptop = Laptop::new(&cluster);

    // One command, with an invite and a kubeconfig whose address does not exist.
    let kubectl = program("kubectl").to_string_lossy().into_owned();
    let ask = ["--no-save", "--exec", "--", &kubectl, "get", "ns", "-o", "name"];
    let begun = wait::now();
    let output = laptop.forward(&cluster, &ask).output().expect("meshport can be run");
    let said = String::from_utf8_lossy(&output.stdout);
    let problem = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("namespace/kube-system"), "{said}{problem}");
    println!("from an invite to the answer of kubectl get ns: {:?}", begun.elapsed());
    let unknown = ["--no-save", "--exec", "--", &kubectl, "get", "ns", "no-such"];
    let status = laptop.forward(&cluster, &unknown).output().expect("meshport can be run").status;
    assert_eq!(status.code(), Some(1), "kubectl's own exit code");

    // For a working day, with its own context in a file.
    let merged = cluster.path("merged.conf").to_string_lossy().into_owned();
    let lasting = ["--listen", FORWARDED, "--kubeconfig", &merged];
    cluster.adopt("forward", &mut laptop.forward(&cluster, &lasting));
    wait::until("the context is written", START_LIMIT, || {
        fs::read_to_string(&merged).ok().filter(|text| text.contains(FORWARDED)).map(drop)
    });
    run_ok("kubectl", &["config", "use-context", "meshport", "--kubeconfig", &merged]);
    let text = fs::read_to_string(&laptop.kubeconfig).expect("the laptop's own kubeconfig");
    // Merged as kubectl does: the context of one file, the user of the other.
    let both = format!("{merged}:{}", laptop.kubeconfig.display());
    assert!(text.contains(NAMED), "the source stays as it is");
    let home = cluster.path("home-laptop");
    let kubectl = Kubectl::new(cluster.host(WORKER), home, PathBuf::from(both));
    let watch = Watch::start(&kubectl);
    let calls = Calls::begin(&kubectl, "laptop");
    calls.pass(wait::now(), START_LIMIT);

    let paused = calls.pause();
    cluster.kill_apiserver(1);
    drop(paused);
    goes_on(&watch, "the nearest apiserver is killed");
    calls.pass(wait::now(), START_LIMIT);
    // The member that it connects to, whose apiserver is dead too.
    let paused = calls.pause();
    cluster.kill(&origin(1));
    drop(paused);
    goes_on(&watch, "the member it came in by is killed");
    calls.pass(wait::now(), START_LIMIT);
    let calls = calls.finish();
    let failed: Vec<_> = calls.iter().filter(|call| !call.succeeded).collect();
    assert!(failed.is_empty(), "of {} failed: {failed:?}", calls.len());
    println!("{} calls, none failed", calls.len());

    let forward = cluster.process("forward");
    forward.signal("STOP");
    wait::moment(wait::now() + SLEEP);
    forward.signal("CONT");
    let silent = goes_on(&watch, "the forward has slept for a quarter of a minute");
    assert!(silent <= AGAIN, "{silent:?}");
}

/// The longest time without an event from now until the watch continues.
fn goes_on(watch: &Watch, what: &str) -> Duration {
    let begun = wait::now();
    let silent = wait::until(what, START_LIMIT, || {
        let arrivals = watch.arrivals();
        (arrivals.after(begun) > 20).then(|| arrivals.longest_gap(begun, wait::now()))
    });
    println!("{what}: the watch was silent for {silent:?} at most");
    silent
}
