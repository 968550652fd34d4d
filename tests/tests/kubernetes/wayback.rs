//! The way back with a real apiserver, kubelet and containerd: the kubelet listens on 127.0.0.1 of
//! the worker, so that nothing but meshport leads from an apiserver to it.

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
use serde_json::json;

/// The control-plane host whose apiserver is asked.
const ORIGIN: usize = 1;
/// Bytes of a copied file.
const FILE_BYTES: usize = 256 << 20;
/// The address of the service of the webhook and the aggregated API, and its port on the worker.
const SERVICE: &str = "10.96.0.50";
const HOOKS_PORT: u16 = 9443;

/// The input of a container, and its checksum.
const SENT: &[u8] = b"through the mesh\n";
const SENT_SUM: &str = "97cc4fdc0e7b63c4e5725969fc107864616bad79cb330795568a4d3be9a0abfd";

/// A cluster whose first apiserver has the way back; the second one's daemon is a relay.
fn cluster() -> Cluster {
    let plan = Plan {
        distances: [4, 10].map(Duration::from_millis).to_vec(),
        worker_roles: "node,egress",
        origin_roles: "node,origin:kube-apiserver,relay",
        ..Plan::default()
    };
    let mut cluster = Cluster::hosts(plan);
    let client = "apiserver-to-kubelet";
    cluster.pki.client(client, client, Some("system:masters"));
    let certificate = cluster.pki.text(&format!("{client}.crt"));
    let key = cluster.pki.text(&format!("{client}.key"));
    let socket = cluster.path("egress").join("egress.sock");
    let egress = selection(&cluster, &socket);
    let flags = [
        format!("--egress-selector-config-file={}", egress.display()),
        format!("--kubelet-client-certificate={certificate}"),
        format!("--kubelet-client-key={key}"),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    cluster.spawn_apiserver(ORIGIN, &flags);
    cluster.spawn_apiserver(2, &[]);
    (1..=2).for_each(|number| cluster.apiserver_is_ready(number));
    let services = "service-cidrs = [\"10.96.0.0/16\"]\n";
    cluster.make_node(ORIGIN);
    cluster.add_settings(ORIGIN, &format!("\n[egress]\nsocket = {socket:?}\n{services}"));
    cluster.start_node(ORIGIN);
    cluster.start_node(2);
    cluster.make_node(WORKER);
    cluster.add_settings(WORKER, &format!("\n[egress]\n{services}"));
    cluster.start_node(WORKER);
    cluster.settles();
    cluster.start_real_kubelet(WORKER);
    cluster
}

/// The first document of `meshport generate egress`, with this socket.
fn selection(cluster: &Cluster, socket: &std::path::Path) -> PathBuf {
    let all = run_ok(&meshport().to_string_lossy(), &["generate", "egress"]);
    let (first, _) = all.split_once("\n---\n").expect("several documents");
    let usual = "/run/meshport/egress/egress.sock";
    assert!(first.contains(usual), "{first}");
    let file = cluster.path("egress.yaml");
    let text = first.replace(usual, &socket.to_string_lossy());
    fs::write(&file, text).expect("the cluster's folder can be written");
    file
}

/// A pod on the worker, in its network, once it runs.
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

/// A kubectl that goes on, with its output to be read; ends with its owner.
struct Ongoing(Child);

impl Ongoing {
    fn start(kubectl: &Kubectl, arguments: &[&str]) -> Self {
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

    // Standard input goes in, and its end too.
    let mut exec = Ongoing::start(kubectl, &["exec", "-i", "main", "--", "sha256sum"]);
    let mut input = exec.0.stdin.take().expect("it has an input");
    input.write_all(SENT).expect("kubectl reads");
    drop(input);
    let sum = exec.lines().next().expect("an answer");
    assert_eq!(sum, format!("{SENT_SUM}  -"));
    // An exit code comes back.
    let call = kubectl.call(&["exec", "main", "--", "sh", "-c", "exit 7"]);
    assert!(!call.succeeded && call.said.contains("exit code 7"), "{}", call.said);
}

/// A terminal that is resized, as `kubectl exec -it` tells the container.
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

/// Waits for the size that the terminal is told after its start.
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

/// Copies a large file in both directions, next to a reader of a log that has stopped reading.
fn copy(cluster: &Cluster, kubectl: &Kubectl) {
    let mut stalled = kubectl.command(&["logs", "-f", "loud"]);
    let stalled = stalled.stdout(Stdio::piped()).spawn().expect("kubectl can be run");
    let _stalled = Ongoing(stalled);
    let file = cluster.path("large");
    let mut bytes = vec![0_u8; FILE_BYTES];
    fs::File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut bytes))
        .expect("the system has random bytes");
    fs::write(&file, &bytes).expect("the cluster's folder can be written");
    let sum = |of: &str| of.split(' ').next().unwrap_or_default().to_owned();
    let here = sum(&run_ok("sha256sum", &[&file.to_string_lossy()]));
    let to = kubectl.call(&["cp", &file.to_string_lossy(), "main:/tmp/large"]);
    assert!(to.succeeded, "{}", to.said);
    let there = kubectl.ok(&["exec", "main", "--", "sha256sum", "/tmp/large"]);
    assert_eq!(sum(&there), here, "what arrived at the pod");
    let again = cluster.path("again");
    let back = kubectl.call(&["cp", "main:/tmp/large", &again.to_string_lossy()]);
    assert!(back.succeeded, "{}", back.said);
    assert_eq!(sum(&run_ok("sha256sum", &[&again.to_string_lossy()])), here, "what came back");
    println!(
        "cp of {} MiB beside a stalled reader: {:.1} s there, {:.1} s back",
        FILE_BYTES >> 20,
        to.took.as_secs_f64(),
        back.took.as_secs_f64()
    );
}

/// A webhook and an aggregated API behind the address of a service, which only the worker reaches.
fn services(cluster: &mut Cluster, kubectl: &Kubectl) {
    let names = ["hooks.default.svc".to_owned()];
    cluster.pki.server("hooks", &names);
    let script = repository::root().join("tests/kubernetes/hooks.py");
    let mut command = cluster.host(WORKER).command("python3");
    command.arg(script).arg(HOOKS_PORT.to_string());
    command.arg(cluster.pki.path("hooks.crt")).arg(cluster.pki.path("hooks.key"));
    cluster.adopt("hooks", &mut command);
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
    let webhook = json!({
        "name": "hooks.test.meshport", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "failurePolicy": "Fail", "timeoutSeconds": 5,
        "clientConfig": { "caBundle": bundle, "service": service },
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
    wait::until("the webhook forbids what it shall", SETTLE_LIMIT, || {
        let call = kubectl.call(&["create", "configmap", "forbidden"]);
        if call.succeeded {
            kubectl.ok(&["delete", "configmap", "forbidden"]);
        }
        call.said.contains("forbidden by the webhook behind the mesh").then_some(())
    });
    kubectl.ok(&["create", "configmap", "allowed"]);
}

#[test]
#[ignore = "needs root, cgroups of version 1 and tests/kubernetes/build; ./tests/run kubernetes"]
fn kubectl_reaches_pods_of_a_real_kubelet_that_apiservers_have_no_route_to() {
    let mut cluster = cluster();
    let kubectl = cluster.kubectl_direct(ORIGIN);
    let worker = cluster.host(WORKER).address;
    let direct = cluster.host(ORIGIN).namespace().inside(|| {
        TcpStream::connect_timeout(&SocketAddr::from((worker, 10_250)), Duration::from_secs(2))
    });
    assert!(direct.is_err(), "the kubelet is reached without the mesh");
    let counts = "n=0; echo the pod\\'s port >/etc/it; busybox httpd -p 127.0.0.1:8099 -h /etc; \
                  while true; do n=$((n+1)); echo $n; sleep 0.1; done";
    // There is no controller manager, which would make it, with a token that pods wait for.
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "default" },
        "automountServiceAccountToken": false,
    });
    kubectl.apply(&account.to_string());
    pod(&kubectl, "main", counts);
    pod(&kubectl, "loud", "while true; do seq 100000; done");

    let nodes = kubectl.ok(&["get", "--raw", "/api/v1/nodes/worker/proxy/pods"]);
    assert!(nodes.contains("\"PodList\""), "{nodes}");
    logs_and_exec(&kubectl);
    resize(&kubectl);
    forward(&cluster, &kubectl);
    copy(&cluster, &kubectl);
    services(&mut cluster, &kubectl);

    cluster.network.cut(WORKER, ORIGIN, true);
    let begun = wait::now();
    wait::until("a relay leads to the kubelet", SETTLE_LIMIT, || {
        kubectl.run(&["logs", "main", "--tail=1"]).status.success().then_some(())
    });
    println!("logs through a relay {:.1} s after a cut", begun.elapsed().as_secs_f64());
    logs_and_exec(&kubectl);
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
