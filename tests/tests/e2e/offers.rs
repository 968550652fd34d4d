//! A program on a gateway offers services through its daemon: other nodes reach them, instances
//! come and go under load, and an offer that nobody renews ends.

use std::net::SocketAddr;
use std::time::Duration;

use meshport_tests::instances::{Instance, Load, ask, connect};
use meshport_tests::process::run_ok;
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};
use serde_json::{Value, json};

const SERVICE: &str = "web";
const SETTLE: Duration = Duration::from_secs(60);
/// Between the beginnings of two connections: 50 a second.
const PACE: Duration = Duration::from_millis(20);
/// Instances at one time, and how often one of them is replaced.
const INSTANCES: usize = 3;
const REPLACED: usize = 12;
/// Answered connections between two replacements.
const BETWEEN: usize = 25;

/// An instance on loopback.
fn instance() -> Instance {
    Instance::start(SocketAddr::from(([127, 0, 0, 1], 0)))
}

/// A gateway with these roles and a worker that uses the service.
fn world(roles: &[&str]) -> World {
    let mut world = World::new();
    let gateway = NodePlan::new("gateway", "fra");
    world.node(&roles.iter().fold(gateway, |plan, role| plan.role(role)));
    let listen = format!("\n[service.{SERVICE}]\nlisten = [\"127.0.0.1:0\"]\n");
    world.node(&NodePlan::new("worker", "fra").settings(&listen));
    world.meet();
    world
}

fn local(world: &World) -> SocketAddr {
    wait::until("the worker listens", SETTLE, || world.at("worker").service(SERVICE))
}

fn offer(instances: &[(SocketAddr, bool)], ttl_s: u64) -> Value {
    let instances: Vec<Value> = instances
        .iter()
        .map(|(address, ready)| json!({ "address": address, "ready": ready }))
        .collect();
    json!({ "services": { SERVICE: { "instances": instances } }, "ttl_s": ttl_s })
}

/// The arguments of a request to a node's daemon.
fn request(world: &World, node: &str, body: &Value) -> Vec<String> {
    let socket = world.at(node).state().join("meshport.sock").to_string_lossy().into_owned();
    let body = body.to_string();
    let words = ["-sS", "--unix-socket", &socket, "-d", &body, "http://meshport/offers"];
    words.map(str::to_owned).into()
}

/// What a node's daemon says to an offer.
#[track_caller]
fn post(world: &World, node: &str, body: &Value) -> Value {
    let words = request(world, node, body);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    serde_json::from_str(&run_ok("curl", &words)).expect("JSON")
}

#[track_caller]
fn is_taken(answer: &Value) {
    assert_eq!(*answer, json!({ "offered": [SERVICE], "refused": {} }));
}

#[test]
fn instances_are_replaced_one_by_one_under_load() {
    let world = world(&["gateway", "origin:web"]);
    let local = local(&world);
    let mut instances: Vec<Instance> = (0..INSTANCES).map(|_| instance()).collect();
    let present = |instances: &[Instance]| -> Vec<(SocketAddr, bool)> {
        instances.iter().map(|it| (it.address, true)).collect()
    };
    is_taken(&post(&world, "gateway", &offer(&present(&instances), 60)));
    wait::until("the worker reaches it", SETTLE, || connect(local).ok().map(drop));
    let shown = wait::until("the gateway answers", SETTLE, || world.at("gateway").status());
    let shown = &shown["offered"][0];
    assert_eq!(
        (&shown["name"], &shown["instances"].as_array().map(Vec::len)),
        (&json!(SERVICE), &Some(INSTANCES))
    );
    wait::until("each instance has its share", SETTLE, || {
        connect(local).expect("it is reached");
        instances.iter().all(|it| it.served() > 0).then_some(())
    });

    // An open one stays with its instance, which is no longer in any offer.
    let kept = instance();
    is_taken(&post(&world, "gateway", &offer(&[(kept.address, true)], 60)));
    let mut open = connect(local).expect("it is reached");
    assert_eq!(kept.served(), 1);
    is_taken(&post(&world, "gateway", &offer(&present(&instances), 60)));

    let load = Load::start(PACE, move || connect(local).map(drop));
    for round in 0..REPLACED {
        load.goes_on("the load goes on", BETWEEN);
        instances.push(instance());
        let gone = instances.remove(0);
        if round % 2 == 0 {
            // In order: out of the offer first.
            is_taken(&post(&world, "gateway", &offer(&present(&instances), 60)));
            load.goes_on("the load goes on without an instance that still runs", BETWEEN);
            gone.end();
        } else {
            // A crash: the port is closed for a while before the offer reflects it.
            gone.end();
            load.goes_on("the load goes on with an instance that is gone", BETWEEN);
            is_taken(&post(&world, "gateway", &offer(&present(&instances), 60)));
        }
    }
    load.goes_on("the load goes on at the end", BETWEEN);
    let (tried, failed) = load.finish();
    println!("{tried} connections, {REPLACED} instances replaced, {failed} failed");
    assert_eq!(failed, 0);
    ask(&mut open).expect("the open session is still there");
}

#[test]
fn an_offer_that_is_not_renewed_ends() {
    let world = world(&["gateway", "origin:web"]);
    let (local, instance) = (local(&world), instance());
    let offer = |ready| offer(&[(instance.address, ready)], 5);
    is_taken(&post(&world, "gateway", &offer(true)));
    wait::until("it is reached, renewed as often as it takes", SETTLE, || {
        is_taken(&post(&world, "gateway", &offer(true)));
        connect(local).ok().map(drop)
    });
    wait::until("it has ended", SETTLE, || connect(local).err().map(drop));
    is_taken(&post(&world, "gateway", &offer(true)));
    wait::until("it is offered again", SETTLE, || {
        is_taken(&post(&world, "gateway", &offer(true)));
        connect(local).ok().map(drop)
    });
    // Nothing is dialled that is not ready.
    is_taken(&post(&world, "gateway", &offer(false)));
    let served = instance.served();
    assert!(connect(local).is_err());
    assert_eq!(instance.served(), served);
}

#[test]
fn an_offer_takes_the_role_and_yields_to_the_configuration() {
    let mut world = world(&["gateway", "origin:web", "origin:kube-apiserver"]);
    world.node(&NodePlan::new("plain", "fra").role("origin:web"));
    let instance = instance();
    let offer = offer(&[(instance.address, true)], 60);
    for node in ["plain", "worker"] {
        let refused = post(&world, node, &offer);
        let error = refused["error"].as_str().expect("a refusal");
        assert!(error.contains("lacks the role gateway"), "{error}");
    }
    let instances = &offer["services"][SERVICE];
    let services = json!({ SERVICE: instances, "db": instances, "kube-apiserver": instances });
    let report = post(&world, "gateway", &json!({ "services": services }));
    assert_eq!(report["offered"], json!([SERVICE]));
    let why = |name: &str| report["refused"][name].as_str().expect("it is refused").to_owned();
    assert!(why("db").contains("lacks the role origin:db"), "{}", why("db"));
    assert!(why("kube-apiserver").contains("configuration"), "{}", why("kube-apiserver"));
    // The service of a configuration that comes later wins too.
    world.reconfigure("gateway", |text| {
        format!("{text}\n[service.{SERVICE}]\nlisten = [\"127.0.0.1:0\"]\n")
    });
    wait::until("the configuration is reloaded", SETTLE, || {
        let report = post(&world, "gateway", &offer);
        let why = report["refused"][SERVICE].as_str()?.to_owned();
        assert!(why.contains("configuration"), "{why}");
        assert_eq!(report["offered"], json!([]));
        Some(())
    });
}
