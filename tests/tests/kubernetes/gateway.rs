//! Services of a real cluster in the mesh: `meshport-gateway` runs next to the daemon of a
//! control-plane host, a client uses another node's local address.

#![expect(clippy::print_stdout, reason = "figures for the reader of a test run")]

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use meshport_tests::instances::{Instance, Load, connect};
use meshport_tests::kubernetes::{
    Cluster, IMAGE, Kubectl, LOCAL, Plan, SETTLE_LIMIT, START_LIMIT, WORKER, WORKER_NAME, origin,
};
use meshport_tests::process::{gateway, run_ok};
use meshport_tests::wait;
use serde_json::{Value, json};

/// The host whose node uses the services.
const CLIENT: usize = 1;
/// The host whose node offers them.
const GATEWAY: usize = 2;
/// The local address of the service there.
const WEB: &str = "127.0.0.1:7480";
/// The user that gets the rights from `meshport-gateway --rbac`.
const USER: &str = "system:serviceaccount:kube-system:meshport-gateway";
/// Interval between the starts of two connections: 50 a second.
const PACE: Duration = Duration::from_millis(20);
/// Concurrent instances, and how many are replaced.
const INSTANCES: u16 = 3;
const REPLACED: u16 = 12;
/// Connections between two replacements.
const BETWEEN: usize = 25;
/// The first port of instances.
const FIRST_PORT: u16 = 8100;
/// The address for the status of Services of type LoadBalancer.
const VIRTUAL: &str = "10.77.0.100";

/// Two control-plane hosts and a worker; the first one's node listens for the service `web`.
fn cluster() -> Cluster {
    let plan = Plan {
        distances: [2, 10].map(Duration::from_millis).to_vec(),
        origin_roles: "node,origin:kube-apiserver,gateway,origin:web",
        ..Plan::default()
    };
    let mut cluster = Cluster::hosts(plan);
    cluster.start_apiserver(CLIENT, &[]);
    cluster.make_node(CLIENT);
    cluster.add_settings(CLIENT, &format!("\n[service.web]\nlisten = [\"{WEB}\"]\n"));
    cluster.start_node(CLIENT);
    cluster.start_apiserver(GATEWAY, &[]);
    cluster.start_node(GATEWAY);
    cluster.start_node(WORKER);
    cluster.settles();
    let program = gateway().to_string_lossy();
    cluster.kubectl_direct(CLIENT).apply(&run_ok(&program, &["--rbac"]));
    cluster.pki.client("gateway", USER, None);
    cluster
}

/// The arguments of the gateway, which queries its cluster through the mesh.
fn arguments(cluster: &Cluster) -> Vec<String> {
    let config = cluster.pki.kubeconfig("gateway", LOCAL, Some("gateway"));
    let socket = cluster.socket(GATEWAY);
    let words = ["--kubeconfig", &config.to_string_lossy(), "--socket", &socket.to_string_lossy()]
        .map(str::to_owned);
    words.into_iter().chain(["--address".to_owned(), VIRTUAL.to_owned()]).collect()
}

fn start_gateway(cluster: &mut Cluster) {
    let arguments = arguments(cluster);
    cluster.start("gateway", GATEWAY, gateway(), &arguments);
}

/// A Service that is offered as `web`.
fn service(name: &str, spec: &Value) -> String {
    let metadata = json!({ "name": name, "annotations": { "meshport.io/expose": "web" } });
    let object = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec,
    });
    object.to_string()
}

/// Names these instances as the endpoints of a Service.
fn set_endpoints(kubectl: &Kubectl, name: &str, instances: &[Instance]) {
    let subset = |it: &Instance| {
        let (ip, port) = (it.address.ip(), it.address.port());
        json!({ "addresses": [{ "ip": ip }], "ports": [{ "name": "http", "port": port }] })
    };
    let subsets: Vec<Value> = instances.iter().map(subset).collect();
    let object = json!({
        "apiVersion": "v1", "kind": "Endpoints", "metadata": { "name": name }, "subsets": subsets,
    });
    kubectl.apply(&object.to_string());
}

/// An instance on a host that is not a node of the mesh.
fn start_instance(cluster: &Cluster, number: u16) -> Instance {
    let host = cluster.host(cluster.etcd_host());
    let address = SocketAddr::from((host.address, FIRST_PORT + number));
    host.namespace().inside(|| Instance::start(address))
}

/// Load on the local address of the client's node.
fn load(cluster: &Cluster, connect: fn() -> io::Result<()>) -> Load {
    let namespace = cluster.host(CLIENT).namespace();
    wait::until("the client reaches the service", SETTLE_LIMIT, || namespace.inside(connect).ok());
    namespace.inside(|| Load::start(PACE, connect))
}

fn web() -> SocketAddr {
    WEB.parse().expect("an address")
}

fn echoed() -> io::Result<()> {
    connect(web()).map(drop)
}

/// The reasons of Events about a Service.
fn reasons(kubectl: &Kubectl, service: &str) -> Vec<String> {
    let events = kubectl.ok(&["get", "events", "-o", "json"]);
    let events: Value = serde_json::from_str(&events).expect("JSON");
    let events = events["items"].as_array().expect("a list").iter();
    let about = events.filter(|it| {
        it["involvedObject"]["kind"] == "Service" && it["involvedObject"]["name"] == service
    });
    about.map(|it| it["reason"].as_str().unwrap_or_default().to_owned()).collect()
}

fn is_told(kubectl: &Kubectl, service: &str, reason: &str) {
    wait::until(&format!("an Event {reason} about {service}"), SETTLE_LIMIT, || {
        reasons(kubectl, service).contains(&reason.to_owned()).then_some(())
    });
}

/// The addresses in the status of a Service.
fn addresses(kubectl: &Kubectl, service: &str) -> String {
    let path = "jsonpath={.status.loadBalancer.ingress[*].ip}";
    kubectl.ok(&["get", "service", service, "-o", path])
}

/// The output of `--dry-run`.
fn dry_run(cluster: &Cluster) -> String {
    let mut command = cluster.host(GATEWAY).command(&gateway().to_string_lossy());
    let output = command.args(arguments(cluster)).arg("--dry-run").output().expect("it runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Under load, replaces every instance once in an orderly way and once by a crash, and restarts the
/// gateway in between.
fn replace_under_load(cluster: &mut Cluster, kubectl: &Kubectl) {
    let mut instances: Vec<Instance> =
        (0..INSTANCES).map(|number| start_instance(cluster, number)).collect();
    set_endpoints(kubectl, "web", &instances);
    let load = load(cluster, echoed);
    let end = |cluster: &Cluster, gone: Instance| {
        cluster.host(cluster.etcd_host()).namespace().inside(|| gone.end());
    };
    for number in 0..REPLACED {
        load.goes_on("the load goes on", BETWEEN);
        instances.push(start_instance(cluster, INSTANCES + number));
        let gone = instances.remove(0);
        if number % 2 == 0 {
            set_endpoints(kubectl, "web", &instances);
            load.goes_on("the load goes on without an instance that still runs", BETWEEN);
            end(cluster, gone);
        } else {
            end(cluster, gone);
            load.goes_on("the load goes on with an instance that is gone", BETWEEN);
            set_endpoints(kubectl, "web", &instances);
        }
        if number == REPLACED / 2 {
            cluster.kill("gateway");
            load.goes_on("the load goes on without the gateway's process", BETWEEN);
            start_gateway(cluster);
        }
    }
    load.goes_on("the load goes on at the end", BETWEEN);
    let (tried, failed) = load.finish();
    println!("{tried} connections, {REPLACED} instances and the gateway replaced, {failed} failed");
    assert_eq!(failed, 0);
}

#[test]
#[ignore = "needs root and tests/kubernetes/build; ./tests/run kubernetes-smoke"]
fn services_of_a_cluster_are_services_of_the_mesh() {
    let mut cluster = cluster();
    let kubectl = cluster.kubectl_direct(CLIENT);
    let port = json!({ "name": "http", "port": 80 });
    kubectl.apply(&service("web", &json!({ "type": "LoadBalancer", "ports": [port] })));
    start_gateway(&mut cluster);
    replace_under_load(&mut cluster, &kubectl);
    is_told(&kubectl, "web", "MeshOffered");
    wait::until("the status has the address", SETTLE_LIMIT, || {
        (addresses(&kubectl, "web") == VIRTUAL).then_some(())
    });

    // The second Service of the same name is refused, and told so.
    kubectl.apply(&service("web-again", &json!({ "type": "LoadBalancer", "ports": [port] })));
    is_told(&kubectl, "web-again", "MeshNameTaken");
    assert_eq!(addresses(&kubectl, "web-again"), "");
    let said = dry_run(&cluster);
    println!("{said}");
    let offered = said.lines().find(|it| it.starts_with("web ")).expect("a row");
    assert!(offered.contains("default/web ") && offered.contains("3/3"), "{said}");
    assert!(said.contains("not offered: default/web-again: the name web"), "{said}");

    // It gets the name once the first is removed.
    kubectl.ok(&["delete", "service", "web"]);
    is_told(&kubectl, "web-again", "MeshOffered");
    let namespace = cluster.host(CLIENT).namespace();
    wait::until("nothing answers", SETTLE_LIMIT, || namespace.inside(echoed).err());
    set_endpoints(&kubectl, "web-again", &[start_instance(&cluster, 0)]);
    wait::until("the other Service answers", SETTLE_LIMIT, || namespace.inside(echoed).ok());
    for reason in ["MeshNameTaken", "MeshOffered"] {
        let count = reasons(&kubectl, "web-again").iter().filter(|it| *it == reason).count();
        assert_eq!(count, 1, "{reason} is reported once");
    }
}

/// The arguments of the gateway on a host for the cluster of this server.
fn direct(cluster: &Cluster, at: usize, name: &str, server: &str) -> Vec<String> {
    let config = cluster.pki.kubeconfig(name, server, Some("gateway"));
    let words = ["--kubeconfig".to_owned(), config.display().to_string(), "--socket".to_owned()];
    words.into_iter().chain([cluster.socket(at).display().to_string()]).collect()
}

/// The nodes that offer the service, as the client's node sees them.
fn origins(cluster: &Cluster, client: usize) -> Vec<String> {
    let services = cluster.status(client).map(|it| it["services"].clone()).unwrap_or_default();
    let all = services.as_array().into_iter().flatten();
    let web = all.filter(|it| it["name"] == "web").flat_map(|it| it["origins"].as_array());
    web.flatten().map(|it| it["name"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
#[ignore = "needs root and tests/kubernetes/build; ./tests/run kubernetes-smoke"]
fn a_second_cluster_has_a_name_only_with_the_role() {
    /// A node outside any cluster that uses the service; its host has the second cluster's
    /// apiserver.
    const USER_NODE: usize = 2;

    let plan = Plan {
        distances: [2, 10].map(Duration::from_millis).to_vec(),
        origin_roles: "node,origin:kube-apiserver,gateway,origin:web",
        worker_roles: "node,gateway",
        ..Plan::default()
    };
    let mut cluster = Cluster::hosts(plan);
    let program = gateway().to_string_lossy();
    cluster.pki.client("gateway", USER, None);
    cluster.start_apiserver(1, &[]);
    cluster.start_apiserver(USER_NODE, &["--etcd-prefix=/second"]);
    cluster.start_node(1);
    cluster.make_node(USER_NODE);
    cluster.add_settings(USER_NODE, &format!("\n[service.web]\nlisten = [\"{WEB}\"]\n"));
    cluster.start_node(USER_NODE);
    cluster.start_node(WORKER);
    let port = json!({ "name": "http", "port": 80 });
    let instances = [start_instance(&cluster, 0), start_instance(&cluster, 1)];
    let both = [cluster.kubectl_direct(1), cluster.kubectl_direct(USER_NODE)];
    for (kubectl, instance) in both.iter().zip(&instances) {
        kubectl.apply(&run_ok(&program, &["--rbac"]));
        kubectl.apply(&service("web", &json!({ "ports": [port] })));
        set_endpoints(kubectl, "web", std::slice::from_ref(instance));
    }
    let [here, there] = &both;
    let words = direct(&cluster, 1, "first", "https://127.0.0.1:6443");
    cluster.start("gateway-first", 1, gateway(), &words);
    is_told(here, "web", "MeshOffered");
    let server = format!("https://{}:6443", cluster.host(USER_NODE).address);
    let words = direct(&cluster, WORKER, "second", &server);
    cluster.start("gateway-second", WORKER, gateway(), &words);

    // The other cluster's operators see the reason, and none of their instances is in the service.
    is_told(there, "web", "MeshRefused");
    let events = there.ok(&["get", "events"]);
    assert!(events.contains("lacks the role origin:web"), "{events}");
    let names = || origins(&cluster, USER_NODE);
    wait::until("the first cluster's is known", SETTLE_LIMIT, || {
        (names() == [origin(1)]).then_some(())
    });
    let namespace = cluster.host(USER_NODE).namespace();
    wait::until("it answers", SETTLE_LIMIT, || namespace.inside(echoed).ok());

    // With the role, both clusters share one service.
    let roles = ["--role", "node,gateway,origin:web", "--site", "fra"];
    let invite = cluster.meshport(1, &[&["invite"][..], &roles].concat()).output();
    let file = cluster.path("second.invite");
    fs::write(&file, invite.expect("it runs").stdout).expect("written");
    let renew = ["renew", &file.to_string_lossy()];
    let renewed = cluster.meshport(WORKER, &renew).output().expect("it runs");
    assert!(renewed.status.success(), "{}", String::from_utf8_lossy(&renewed.stderr));
    is_told(there, "web", "MeshOffered");
    wait::until("both clusters' are known", SETTLE_LIMIT, || (names().len() == 2).then_some(()));
}

/// A pod of the Service `web` in the worker's network, which answers with one line.
fn pod(kubectl: &Kubectl, number: u16) {
    let port = FIRST_PORT + number;
    let script = format!(
        "mkdir /tmp/www; echo web-{number} >/tmp/www/it; \
         exec busybox httpd -f -p {port} -h /tmp/www"
    );
    let container = json!({
        "name": "main", "image": IMAGE, "imagePullPolicy": "Never",
        "command": ["sh", "-c", script],
        "ports": [{ "name": "http", "containerPort": port, "hostPort": port }],
        "readinessProbe": { "httpGet": { "path": "/it", "port": port }, "periodSeconds": 1 },
        // The usual order: it ends after it has left the endpoints.
        "lifecycle": { "preStop": { "exec": { "command": ["sleep", "3"] } } },
    });
    let object = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": format!("web-{number}"), "labels": { "app": "web" } },
        "spec": {
            "nodeName": WORKER_NAME, "hostNetwork": true, "automountServiceAccountToken": false,
            "terminationGracePeriodSeconds": 5, "enableServiceLinks": false,
            "tolerations": [{ "operator": "Exists" }], "containers": [container],
        },
    });
    kubectl.apply(&object.to_string());
    wait::until(&format!("the pod web-{number} is ready"), START_LIMIT, || {
        let path = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
        let ready = kubectl.ok(&["get", "pod", &format!("web-{number}"), "-o", path]);
        (ready == "True").then_some(())
    });
}

/// A request that a pod answers.
fn fetched() -> io::Result<()> {
    const PATIENCE: Duration = Duration::from_secs(10);
    let mut client = TcpStream::connect_timeout(&web(), PATIENCE)?;
    client.set_read_timeout(Some(PATIENCE))?;
    client.write_all(b"GET /it HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    client.read_to_string(&mut answer)?;
    let is_whole = answer.contains(" 200 OK\r\n") && answer.contains("\r\n\r\nweb-");
    is_whole.then_some(()).ok_or_else(|| io::Error::other(answer))
}

#[test]
#[ignore = "needs root, cgroups of version 1 and tests/kubernetes/build; ./tests/run kubernetes"]
fn pods_of_a_real_kubelet_are_replaced_one_by_one_under_load() {
    /// Each of the first pods, and one more.
    const PODS: u16 = 4;

    let mut cluster = cluster();
    let kubectl = cluster.kubectl_direct(CLIENT);
    cluster.start_controllers("controllers", CLIENT);
    cluster.start_real_kubelet(WORKER);
    wait::until("the controllers make the account of pods", SETTLE_LIMIT, || {
        let account = kubectl.run(&["get", "serviceaccount", "default"]);
        account.status.success().then_some(())
    });
    let port = json!({ "name": "http", "port": 80, "targetPort": "http" });
    kubectl.apply(&service("web", &json!({ "selector": { "app": "web" }, "ports": [port] })));
    start_gateway(&mut cluster);
    (0..INSTANCES).for_each(|number| pod(&kubectl, number));
    let load = load(&cluster, fetched);
    for number in 0..PODS {
        load.goes_on("the load goes on", BETWEEN);
        pod(&kubectl, INSTANCES + number);
        load.goes_on("the load goes on with one more pod", BETWEEN);
        kubectl.ok(&["delete", "pod", &format!("web-{number}"), "--wait=true"]);
    }
    load.goes_on("the load goes on at the end", BETWEEN);
    let (tried, failed) = load.finish();
    println!("{tried} requests, {PODS} pods replaced, {failed} failed");
    assert_eq!(failed, 0);
    kubectl.ok(&["delete", "pod", "--all", "--wait=true"]);
}
