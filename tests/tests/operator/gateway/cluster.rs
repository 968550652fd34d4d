//! The gateway with an apiserver that is new, or busy: a stand-in, since the newest one that can be
//! built here is Kubernetes 1.20. Endpoints are of 192.0.2.0/24, where nothing is connected to.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use meshport_tests::process::{Process, gateway};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};
use serde_json::{Value, json};

use super::stand_in::StandIn;

const PATIENCE: Duration = Duration::from_secs(60);
const ADDRESS: &str = "203.0.113.7";

/// Processes end before the folder does.
struct Gateway {
    process: Process,
    world: World,
    cluster: StandIn,
}

impl Gateway {
    /// With a cluster that first answers with these statuses.
    fn start(refusals: &[u16]) -> Self {
        let mut world = World::new();
        let roles = ["gateway", "origin:web-shop", "origin:adm"];
        let plan = NodePlan::new("gateway", "fra");
        world.node(&roles.iter().fold(plan, |plan, role| plan.role(role)));
        world.meet();
        let cluster = StandIn::start(refusals);
        let state = world.at("gateway").state();
        let config: PathBuf = state.join("gateway.conf");
        let file = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "contexts": [{ "name": "it", "context": { "cluster": "it", "user": "it" } }],
            "clusters": [{
                "name": "it", "cluster": { "server": format!("http://{}", cluster.address) },
            }],
            "users": [{ "name": "it", "user": { "token": "none" } }],
        });
        fs::write(&config, file.to_string()).expect("the folder can be written");
        let mut command = Command::new(gateway());
        command.arg("--kubeconfig").arg(&config).arg("--socket").arg(state.join("meshport.sock"));
        command.args(["--address", ADDRESS]).env_remove("NO_COLOR");
        let process = Process::start("gateway", &mut command, &state.join("gateway.log"));
        Self { process, world, cluster }
    }

    /// The ready instances of an offered service, as the daemon has them.
    fn instances(&self, name: &str) -> Option<Vec<String>> {
        let status = self.world.at("gateway").status()?;
        let offered = status["offered"].as_array()?.iter().find(|it| it["name"] == name)?;
        let instances = offered["instances"].as_array()?.iter();
        let mut instances: Vec<String> =
            instances.filter_map(|it| it.as_str().map(str::to_owned)).collect();
        instances.sort_unstable();
        Some(instances)
    }

    #[track_caller]
    fn until_instances(&self, name: &str, expected: &[&str]) {
        let looked = wait::within(PATIENCE, || (self.instances(name)? == expected).then_some(()));
        let found = self.instances(name);
        assert!(looked.is_some(), "{name}: {found:?}, not {expected:?}; {}", self.process.output());
    }

    #[track_caller]
    fn until_told(&self, service: &str, reason: &str) -> String {
        let event = || {
            let all = self.cluster.events(service);
            all.into_iter().find(|(of, _)| of == reason).map(|(_, note)| note)
        };
        let Some(note) = wait::within(PATIENCE, event) else {
            panic!("{service}: no {reason} in {:?}", self.cluster.events(service));
        };
        note
    }
}

fn service(name: &str, class: &str, annotations: &Value) -> Value {
    let port = json!({ "name": "http", "protocol": "TCP", "port": 80, "targetPort": 8080 });
    json!({
        "kind": "Service", "apiVersion": "v1",
        "metadata": { "name": name, "annotations": annotations },
        "spec": { "type": "LoadBalancer", "loadBalancerClass": class, "ports": [port] },
        "status": { "loadBalancer": {} },
    })
}

/// A slice of a Service: the last bytes of addresses, with the conditions of all.
fn slice(name: &str, service: &str, hosts: &[u8], conditions: &Value) -> Value {
    let endpoint = |host: &u8| {
        let address = format!("192.0.2.{host}");
        json!({ "addresses": [address], "conditions": conditions, "nodeName": "worker" })
    };
    let endpoints: Vec<Value> = hosts.iter().map(endpoint).collect();
    json!({
        "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "addressType": "IPv4",
        "metadata": { "name": name, "labels": { "kubernetes.io/service-name": service } },
        "endpoints": endpoints, "ports": [{ "name": "http", "protocol": "TCP", "port": 8080 }],
    })
}

fn ready() -> Value {
    json!({ "ready": true, "serving": true, "terminating": false })
}

#[test]
#[ignore = "needs the program: ./tests/run operator"]
fn services_of_the_class_follow_their_slices_and_get_the_address() {
    let gateway = Gateway::start(&[]);
    let cluster = &gateway.cluster;
    cluster.put(service("web", "meshport.io/mesh", &json!({})));
    cluster.put(service("other", "example.com/cloud", &json!({})));
    cluster.put(slice("web-1", "web", &[1, 2], &ready()));
    gateway.until_told("web", "MeshOffered");
    gateway.until_instances("web-shop", &["192.0.2.1:8080", "192.0.2.2:8080"]);
    let status = wait::until("the status has the address", PATIENCE, || {
        let ingress = cluster.object("web")["status"]["loadBalancer"]["ingress"].clone();
        ingress.is_array().then_some(ingress)
    });
    assert_eq!(status, json!([{ "ip": ADDRESS, "ipMode": "Proxy" }]));
    // The class of another load balancer is none of its business.
    assert_eq!(cluster.events("other"), []);
    assert_eq!(cluster.object("other")["status"]["loadBalancer"], json!({}));

    // Several slices, of which some endpoints come and go; those that terminate serve in need.
    cluster.put(slice("web-2", "web", &[3], &ready()));
    gateway.until_instances("web-shop", &["192.0.2.1:8080", "192.0.2.2:8080", "192.0.2.3:8080"]);
    let ending = json!({ "ready": false, "serving": true, "terminating": true });
    cluster.put(slice("web-1", "web", &[1, 2], &ending));
    gateway.until_instances("web-shop", &["192.0.2.3:8080"]);
    let unready = json!({ "ready": false, "serving": false, "terminating": false });
    cluster.put(slice("web-2", "web", &[3], &unready));
    gateway.until_instances("web-shop", &["192.0.2.1:8080", "192.0.2.2:8080"]);

    // Versions are gone, as after a compaction: it lists again.
    cluster.forget();
    cluster.put(slice("web-2", "web", &[4], &ready()));
    gateway.until_instances("web-shop", &["192.0.2.4:8080"]);
    assert!(cluster.told_gone() > 0);
}

#[test]
#[ignore = "needs the program: ./tests/run operator"]
fn endpoints_beyond_the_limit_are_told_by_an_event() {
    let gateway = Gateway::start(&[]);
    let hosts = |from: u8| (from..from + 60).collect::<Vec<u8>>();
    gateway.cluster.put(service("web", "meshport.io/mesh", &json!({})));
    gateway.cluster.put(slice("web-1", "web", &hosts(1), &ready()));
    gateway.until_told("web", "MeshOffered");
    gateway.cluster.put(slice("web-2", "web", &hosts(101), &ready()));
    let note = gateway.until_told("web", "MeshEndpointsLeftOut");
    for part in ["offered in the mesh as web-shop (port 80)", "endpoints of web-shop", "100"] {
        assert!(note.contains(part), "{part} is not in {note}");
    }
    assert_eq!(gateway.instances("web-shop").map(|it| it.len()), Some(100));
}

#[test]
#[ignore = "needs the program: ./tests/run operator"]
fn a_busy_apiserver_at_the_start_is_waited_for() {
    // The client itself asks again after the first two statuses, a few times, and not after 500.
    let refusals = [503, 429, 500, 500, 500, 500, 500, 500];
    let mut gateway = Gateway::start(&refusals);
    gateway.cluster.put(service("web", "", &json!({ "meshport.io/expose": "adm" })));
    gateway.cluster.put(slice("web-1", "web", &[1], &ready()));
    gateway.until_told("web", "MeshOffered");
    gateway.until_instances("adm", &["192.0.2.1:8080"]);
    assert_eq!(gateway.cluster.refused(), refusals.len());
    assert!(gateway.process.is_running());
    // In a file: plain text, whose values a program can read.
    let log = gateway.process.output();
    let line = log.lines().find(|line| line.contains("the apiserver does not answer"));
    let line = line.unwrap_or_else(|| panic!("it does not say that it waits: {log}"));
    assert!(line.contains(" error=\"") && !line.contains('\x1b'), "{line}");
}
