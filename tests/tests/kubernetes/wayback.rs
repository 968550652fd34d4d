//! The way back with a real apiserver, kubelet and containerd: the kubelet listens on 127.0.0.1 of
//! the worker, so that an apiserver reaches it only through meshport. Once with a worker that the
//! control plane can reach, once with a worker behind a NAT.

#![expect(clippy::print_stdout, reason = "figures for the reader of a test run")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use meshport_tests::kubernetes::{
    Cluster, IMAGE, Kubectl, Plan, SETTLE_LIMIT, START_LIMIT, WORKER, WORKER_NAME,
};
use meshport_tests::process::{meshport, run_ok};
use meshport_tests::{repository, wait};
use serde_json::{Value, json};

/// The control-plane host whose apiserver gets the requests.
const ORIGIN: usize = 1;
/// MiB of a file that is copied again over a different path.
const SMALL_MIB: u64 = 16;
/// The address of the service of the webhook and the aggregated API, and its port on the worker.
const SERVICE: &str = "10.96.0.50";
const HOOKS_PORT: u16 = 9443;
/// The webhook on the control-plane host, which the settings name.
const OUTSIDE: &str = "127.0.0.1:9444";

/// MiB of the large file: `MESHPORT_WAYBACK_MIB`, else 256.
fn large_mib() -> u64 {
    let said = std::env::var("MESHPORT_WAYBACK_MIB").ok();
    said.and_then(|it| it.parse().ok()).unwrap_or(256)
}

/// The input of a container, and its checksum.
const SENT: &[u8] = b"through the mesh\n";
const SENT_SUM: &str = "97cc4fdc0e7b63c4e5725969fc107864616bad79cb330795568a4d3be9a0abfd";

/// Where the worker is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Worker {
    InReach,
    BehindNat,
}

/// A cluster whose first apiserver uses the way back; the second one's daemon is a relay.
fn cluster(worker: Worker) -> Cluster {
    let plan = Plan {
        distances: [4, 10].map(Duration::from_millis).to_vec(),
        worker_roles: "node,egress",
        origin_roles: "node,origin:kube-apiserver,relay",
        ..Plan::default()
    };
    let mut cluster = Cluster::hosts(plan);
    if worker == Worker::BehindNat {
        cluster.network.put_behind_nat(WORKER);
    }
    let services = "service-cidrs = [\"10.96.0.0/16\"]\n";
    start_origin(&mut cluster, &format!("outside = [\"{OUTSIDE}\"]\n{services}"));
    cluster.start_apiserver(2, &[]);
    cluster.start_node(2);
    cluster.make_node(WORKER);
    cluster.add_settings(WORKER, &format!("\n[egress]\n{services}"));
    cluster.start_node(WORKER);
    cluster.settles();
    cluster.start_real_kubelet(WORKER);
    cluster
}

/// The first control-plane host: an apiserver that reaches nodes through its daemon's socket, with
/// further settings in the table `egress`.
pub(crate) fn start_origin(cluster: &mut Cluster, settings: &str) {
    let socket = cluster.path("egress").join("egress.sock");
    let egress = selection(cluster, &socket);
    let mut flags = kubelet_client(cluster);
    flags.push(format!("--egress-selector-config-file={}", egress.display()));
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    cluster.start_apiserver(ORIGIN, &flags);
    cluster.make_node(ORIGIN);
    cluster.add_settings(ORIGIN, &format!("\n[egress]\nsocket = {socket:?}\n{settings}"));
    cluster.start_node(ORIGIN);
}

/// The flags that make an apiserver the kubelets' client.
pub(crate) fn kubelet_client(cluster: &Cluster) -> Vec<String> {
    let client = "apiserver-to-kubelet";
    cluster.pki.client(client, client, Some("system:masters"));
    let file = |ending: &str| cluster.pki.text(&format!("{client}.{ending}"));
    let (certificate, key) = (file("crt"), file("key"));
    vec![
        format!("--kubelet-client-certificate={certificate}"),
        format!("--kubelet-client-key={key}"),
    ]
}

/// The first document of `meshport generate egress`, with this socket, and with the same for
/// webhooks by URL.
fn selection(cluster: &Cluster, socket: &std::path::Path) -> PathBuf {
    let all = run_ok(&meshport().to_string_lossy(), &["generate", "egress"]);
    let (first, _) = all.split_once("\n---\n").expect("several documents");
    let usual = "/run/meshport/egress/egress.sock";
    assert!(first.contains(usual), "{first}");
    let file = cluster.path("egress.yaml");
    let cluster_kind = first.split_once("- name: cluster").expect("the kind of nodes").1;
    let text = format!("{first}\n- name: controlplane{cluster_kind}\n");
    let text = text.replace(usual, &socket.to_string_lossy());
    fs::write(&file, text).expect("the cluster's folder can be written");
    file
}

/// Creates a pod in the worker's network and waits until it runs.
fn pod(kubectl: &Kubectl, name: &str, script: &str) {
    let container = json!({
        "name": "main", "image": IMAGE, "imagePullPolicy": "Never",
        "command": ["sh", "-c", script],
    });
    let object = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": {
            "nodeName": WORKER_NAME, "hostNetwork": true, "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 0, "enableServiceLinks": false,
            "tolerations": [{ "operator": "Exists" }], "containers": [container],
        },
    });
    kubectl.apply(&object.to_string());
    wait::until(&format!("the pod {name} runs"), START_LIMIT, || {
        let phase = kubectl.ok(&["get", "pod", name, "-o", "jsonpath={.status.phase}"]);
        (phase == "Running").then_some(())
    });
}

/// A running kubectl whose output can be read; ends with its owner.
pub(crate) struct Ongoing(Child);

impl Ongoing {
    pub(crate) fn start(kubectl: &Kubectl, arguments: &[&str]) -> Self {
        let mut command = kubectl.command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Self(command.spawn().expect("kubectl can be run"))
    }

    fn lines(&mut self) -> impl Iterator<Item = String> {
        let output = self.0.stdout.take().expect("its output is read once");
        BufReader::new(output).lines().map_while(Result::ok)
    }
}

impl Drop for Ongoing {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn logs_and_exec(kubectl: &Kubectl) {
    let mut logs = Ongoing::start(kubectl, &["logs", "-f", "main", "--tail=1"]);
    let first: Vec<String> = logs.lines().take(3).collect();
    let number = |line: &String| line.parse::<u64>().expect("the pod counts");
    assert!(first.windows(2).all(|pair| number(&pair[1]) == number(&pair[0]) + 1), "{first:?}");

    // Standard input arrives, including its end.
    let mut exec = Ongoing::start(kubectl, &["exec", "-i", "main", "--", "sha256sum"]);
    let mut input = exec.0.stdin.take().expect("it has an input");
    input.write_all(SENT).expect("kubectl reads");
    drop(input);
    let sum = exec.lines().next().expect("an answer");
    assert_eq!(sum, format!("{SENT_SUM}  -"));
    // An exit code is returned.
    let call = kubectl.call(&["exec", "main", "--", "sh", "-c", "exit 7"]);
    assert!(!call.succeeded && call.said.contains("exit code 7"), "{}", call.said);
}

/// A terminal that is resized, which `kubectl exec -it` passes to the container.
fn resize(kubectl: &Kubectl) {
    let exec = kubectl.command(&["exec", "-it", "main", "--", "sh", "-c", RESIZED]);
    let words: Vec<String> = std::iter::once(exec.get_program())
        .chain(exec.get_args())
        .map(|word| format!("'{}'", word.to_string_lossy().replace('\'', "'\\''")))
        .collect();
    let line = format!("stty rows 20 cols 70; {}", words.join(" "));
    let mut script = std::process::Command::new("script");
    script.args(["-qec", &line, "/dev/null"]).stdin(Stdio::piped());
    for (key, value) in exec.get_envs() {
        script.env(key, value.expect("set"));
    }
    let output = script.output().expect("script can be run");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("20 70"), "{said}");
}

/// Waits for the size that the terminal gets after it starts.
const RESIZED: &str = "until busybox stty size | busybox grep -q '20 70'; do sleep 1; done; \
                       busybox stty size";

fn forward(cluster: &Cluster, kubectl: &Kubectl) {
    let arguments = ["port-forward", "--address", "127.0.0.1", "pod/main", ":8099"];
    let mut forward = Ongoing::start(kubectl, &arguments);
    // kubectl writes a line for each connection, and ends when its output is closed.
    let mut lines = forward.lines();
    let line = lines.next().expect("it says where it listens");
    let at = line.split(' ').nth(2).expect("Forwarding from ADDRESS -> PORT");
    let at: SocketAddr = at.parse().expect("an address");
    let said = cluster.host(ORIGIN).namespace().inside(|| {
        let mut stream = TcpStream::connect(at).expect("kubectl listens");
        let mut said = String::new();
        let asked = stream.write_all(b"GET /it HTTP/1.0\r\n\r\n");
        asked.and_then(|()| stream.read_to_string(&mut said)).map(|_| said)
    });
    let said = said.expect("the pod's answer");
    assert!(said.ends_with("\r\n\r\nthe pod's port\n"), "{said}");
}

/// Copies a file of this many MiB in both directions; returns the seconds there and back.
pub(crate) fn copy(cluster: &Cluster, kubectl: &Kubectl, mib: u64) -> [f64; 2] {
    let (file, again) = (cluster.path("file"), cluster.path("again"));
    let random = fs::File::open("/dev/urandom").expect("the system has random bytes");
    let mut whole = fs::File::create(&file).expect("the cluster's folder can be written");
    std::io::copy(&mut random.take(mib << 20), &mut whole).expect("the disk has room");
    let sum = |of: &str| of.split(' ').next().unwrap_or_default().to_owned();
    let here = sum(&run_ok("sha256sum", &[&file.to_string_lossy()]));
    let to = kubectl.call(&["cp", &file.to_string_lossy(), "main:/tmp/file"]);
    assert!(to.succeeded, "{}", to.said);
    let there = kubectl.ok(&["exec", "main", "--", "sha256sum", "/tmp/file"]);
    assert_eq!(sum(&there), here, "what arrived at the pod");
    let back = kubectl.call(&["cp", "main:/tmp/file", &again.to_string_lossy()]);
    assert!(back.succeeded, "{}", back.said);
    assert_eq!(sum(&run_ok("sha256sum", &[&again.to_string_lossy()])), here, "what came back");
    [to, back].map(|call| call.took.as_secs_f64())
}

fn say_copied(mib: u64, how: &str, [there, back]: [f64; 2]) {
    println!("cp of {mib} MiB {how}: {there:.1} s there, {back:.1} s back");
}

/// Copies the large file next to a reader of a log that has stopped reading.
fn copy_beside_a_stalled_reader(cluster: &Cluster, kubectl: &Kubectl) {
    let _stalled = Ongoing::start(kubectl, &["logs", "-f", "loud"]);
    say_copied(large_mib(), "beside a stalled reader", copy(cluster, kubectl, large_mib()));
}

/// A webhook and an aggregated API behind a service address that only the worker reaches.
fn services(cluster: &mut Cluster, kubectl: &Kubectl) {
    let names = ["hooks.default.svc", SERVICE, "127.0.0.1"].map(str::to_owned);
    cluster.pki.server("hooks", &names);
    start_hooks(cluster, WORKER, HOOKS_PORT);
    // The rules of kube-proxy for a service.
    let rules = format!(
        "table ip services {{\n chain out {{\n type nat hook output priority -100;\n\
         ip daddr {SERVICE} tcp dport 443 dnat to 127.0.0.1:{HOOKS_PORT}\n }}\n}}\n"
    );
    let file = cluster.path("services.nft");
    fs::write(&file, rules).expect("the cluster's folder can be written");
    let worker = cluster.host(WORKER).namespace();
    worker.run("nft", &["-f", &file.to_string_lossy()]);
    worker.ip(&["route", "replace", &format!("{SERVICE}/32"), "dev", "lo"]);
    let authority = fs::read(cluster.pki.path("ca.crt")).expect("the authority's certificate");
    let bundle = data_encoding::BASE64.encode(&authority);
    let objects = [
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": "hooks" },
            "spec": { "clusterIP": SERVICE, "ports": [{ "port": 443 }] },
        }),
        json!({
            "apiVersion": "v1", "kind": "Endpoints", "metadata": { "name": "hooks" },
            "subsets": [{
                "addresses": [{ "ip": cluster.host(WORKER).address }],
                "ports": [{ "port": HOOKS_PORT }],
            }],
        }),
        json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": { "name": "v1.test.meshport" },
            "spec": {
                "group": "test.meshport", "version": "v1", "groupPriorityMinimum": 1000,
                "versionPriority": 10, "caBundle": bundle,
                "service": { "name": "hooks", "namespace": "default" },
            },
        }),
    ];
    objects.iter().for_each(|object| kubectl.apply(&object.to_string()));
    wait::until("the aggregated API answers", SETTLE_LIMIT, || {
        let output = kubectl.run(&["get", "--raw", "/apis/test.meshport/v1/things"]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        said.contains("behind-the-mesh").then_some(())
    });
    let service = json!({ "name": "hooks", "namespace": "default", "path": "/admit" });
    let service = json!({ "caBundle": bundle, "service": service });
    forbids_through(cluster, kubectl, "service", &service);
    kubectl.ok(&["create", "configmap", "allowed"]);
    by_url(cluster, kubectl, &bundle);
    webhook(kubectl, &service);
}

/// The webhook and the aggregated API on a host.
fn start_hooks(cluster: &mut Cluster, at: usize, port: u16) {
    let script = repository::root().join("tests/kubernetes/hooks.py");
    let mut command = cluster.host(at).command("python3");
    command.arg(script).arg(port.to_string());
    command.arg(cluster.pki.path("hooks.crt")).arg(cluster.pki.path("hooks.key"));
    cluster.adopt(&format!("hooks-{port}"), &mut command);
}

/// Creates a webhook for new config maps, or changes its target.
fn webhook(kubectl: &Kubectl, client: &Value) {
    let webhook = json!({
        "name": "hooks.test.meshport", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "failurePolicy": "Fail", "timeoutSeconds": 5, "clientConfig": client,
        "rules": [{
            "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"],
            "operations": ["CREATE"],
        }],
    });
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration", "metadata": { "name": "hooks" },
        "webhooks": [webhook],
    });
    kubectl.apply(&configuration.to_string());
}

/// The apiserver's message about a new config map that the webhook forbids, once it contains the
/// expected text.
fn forbidden(kubectl: &Kubectl, said: &str) {
    wait::until(&format!("the apiserver says {said}"), SETTLE_LIMIT, || {
        let call = kubectl.call(&["create", "configmap", "forbidden"]);
        if call.succeeded {
            kubectl.ok(&["delete", "configmap", "forbidden"]);
        }
        call.said.contains(said).then_some(())
    });
}

/// A webhook denies what it should, and is reached as a target of this kind.
fn forbids_through(cluster: &Cluster, kubectl: &Kubectl, target: &str, client: &Value) {
    let at = if target == "outside" { ORIGIN } else { WORKER };
    let connected = || {
        let labels = format!("target=\"{target}\"");
        cluster.metrics(at).sum("meshport_wayback_connected_total", &labels)
    };
    let before = connected();
    webhook(kubectl, client);
    forbidden(kubectl, "forbidden by the webhook behind the mesh");
    assert!(connected() > before, "it was reached in another way");
}

/// Webhooks by URL are of the kind `controlplane`: to the address of a service, which goes to the
/// worker, to targets that the settings name, and to nothing else.
fn by_url(cluster: &mut Cluster, kubectl: &Kubectl, bundle: &str) {
    let at = |host: &str| json!({ "caBundle": bundle, "url": format!("https://{host}/admit") });
    start_hooks(cluster, ORIGIN, 9444);
    forbids_through(cluster, kubectl, "outside", &at(OUTSIDE));
    webhook(kubectl, &at("192.0.2.7:443"));
    forbidden(kubectl, "while dialing 192.0.2.7:443, code 502");
    let refused = |cluster: &Cluster| {
        let labels = "at=\"socket\",reason=\"unknown\"";
        cluster.metrics(ORIGIN).sum("meshport_wayback_refused_total", labels)
    };
    assert!(refused(cluster) >= 1.0, "what the settings do not name was dialled");
    forbids_through(cluster, kubectl, "service", &at(SERVICE));
}

fn no_route_leads_to_the_kubelet(cluster: &Cluster) {
    let worker = cluster.host(WORKER).address;
    let direct = cluster.host(ORIGIN).namespace().inside(|| {
        TcpStream::connect_timeout(&SocketAddr::from((worker, 10_250)), Duration::from_secs(2))
    });
    assert!(direct.is_err(), "the kubelet is reached without the mesh");
}

/// The pods in use: one that counts and serves, one that writes continuously.
pub(crate) fn pods(kubectl: &Kubectl) {
    let counts = "n=0; echo the pod\\'s port >/etc/it; busybox httpd -p 127.0.0.1:8099 -h /etc; \
                  while true; do n=$((n+1)); echo $n; sleep 0.1; done";
    // There is no controller manager that would create it, with a token that pods wait for.
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "default" },
        "automountServiceAccountToken": false,
    });
    kubectl.apply(&account.to_string());
    pod(kubectl, "main", counts);
    pod(kubectl, "loud", "while true; do seq 100000; done");
}

/// The kubelet's own pages, through the apiserver.
fn through_the_node(kubectl: &Kubectl) {
    let pods = kubectl.ok(&["get", "--raw", "/api/v1/nodes/worker/proxy/pods"]);
    assert!(pods.contains("\"PodList\""), "{pods}");
}

/// All operations on a pod while the direct path is cut; leaves it cut.
fn through_a_relay(cluster: &Cluster, kubectl: &Kubectl) {
    cluster.network.cut(WORKER, ORIGIN, true);
    let begun = wait::now();
    wait::until("a relay leads to the kubelet", SETTLE_LIMIT, || {
        kubectl.run(&["logs", "main", "--tail=1"]).status.success().then_some(())
    });
    println!("logs through a relay {:.1} s after a cut", begun.elapsed().as_secs_f64());
    through_the_node(kubectl);
    logs_and_exec(kubectl);
    forward(cluster, kubectl);
    say_copied(SMALL_MIB, "through a relay", copy(cluster, kubectl, SMALL_MIB));
}

#[test]
#[ignore = "needs root, cgroups of version 1 and tests/kubernetes/build; ./tests/run kubernetes"]
fn kubectl_reaches_pods_of_a_real_kubelet_that_apiservers_have_no_route_to() {
    let mut cluster = cluster(Worker::InReach);
    let kubectl = cluster.kubectl_direct(ORIGIN);
    no_route_leads_to_the_kubelet(&cluster);
    pods(&kubectl);
    through_the_node(&kubectl);
    logs_and_exec(&kubectl);
    resize(&kubectl);
    forward(&cluster, &kubectl);
    copy_beside_a_stalled_reader(&cluster, &kubectl);
    services(&mut cluster, &kubectl);

    through_a_relay(&cluster, &kubectl);
    kubectl.ok(&["create", "configmap", "allowed-by-relay"]);
    cluster.network.cut(WORKER, ORIGIN, false);

    cluster.kill(WORKER_NAME);
    let call = kubectl.call(&["logs", "main", "--tail=1"]);
    println!(
        "logs while the worker's daemon is down, after {:.1} s: {}",
        call.took.as_secs_f64(),
        call.said.trim()
    );
    assert!(!call.succeeded && call.took < Duration::from_secs(8), "{call:?}");
    let begun = wait::now();
    cluster.start_node(WORKER);
    wait::until("the kubelet is reached again", SETTLE_LIMIT, || {
        kubectl.run(&["logs", "main", "--tail=1"]).status.success().then_some(())
    });
    println!("logs {:.1} s after its start", begun.elapsed().as_secs_f64());
    kubectl.ok(&["delete", "pod", "--all", "--wait=true"]);
}

#[test]
#[ignore = "needs root, cgroups of version 1 and tests/kubernetes/build; ./tests/run kubernetes"]
fn kubectl_reaches_pods_behind_a_nat() {
    let mut cluster = cluster(Worker::BehindNat);
    let kubectl = cluster.kubectl_direct(ORIGIN);
    no_route_leads_to_the_kubelet(&cluster);
    pods(&kubectl);
    through_the_node(&kubectl);
    logs_and_exec(&kubectl);
    resize(&kubectl);
    forward(&cluster, &kubectl);
    say_copied(SMALL_MIB, "behind a NAT", copy(&cluster, &kubectl, SMALL_MIB));
    services(&mut cluster, &kubectl);
    through_a_relay(&cluster, &kubectl);
    kubectl.ok(&["create", "configmap", "allowed-by-relay"]);
    kubectl.ok(&["delete", "pod", "--all", "--wait=true"]);
}
