//! A program on a gateway offers services through its daemon: other nodes reach them, instances
//! come and go under load, and an offer that nobody renews ends.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use meshport_tests::process::run_ok;
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};
use serde_json::{Value, json};

const SERVICE: &str = "web";
const SETTLE: Duration = Duration::from_secs(60);
/// How long a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between the beginnings of two connections: 50 a second.
const PACE: Duration = Duration::from_millis(20);
/// Instances at one time, and how often one of them is replaced.
const INSTANCES: usize = 3;
const REPLACED: usize = 12;
/// Answered connections between two replacements.
const BETWEEN: usize = 25;

/// An instance, which answers a connection's first byte with the connection's end. Its port is
/// closed with it.
struct Instance {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    served: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Instance {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = listener.local_addr().expect("bound");
        let (stop, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (stopped, count) = (stop.clone(), served.clone());
        let task = thread::spawn(move || {
            let serve = |client| {
                let count = count.clone();
                thread::spawn(move || echo(client, &count));
            };
            for client in listener.incoming().flatten() {
                serve(client);
                if stopped.load(Ordering::SeqCst) {
                    break;
                }
            }
            // Those who wait to be accepted would be reset, which no one in between can mend.
            listener.set_nonblocking(true).expect("a socket");
            while let Ok((client, _)) = listener.accept() {
                client.set_nonblocking(false).expect("a socket");
                serve(client);
            }
        });
        Self { address, stop, served, task }
    }

    fn served(&self) -> usize {
        self.served.load(Ordering::SeqCst)
    }

    /// Closes its port.
    fn end(self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        self.task.join().expect("it ends");
    }
}

fn echo(mut client: TcpStream, served: &AtomicUsize) {
    let mut byte = [0; 1];
    served.fetch_add(1, Ordering::SeqCst);
    while matches!(client.read(&mut byte), Ok(1)) && client.write_all(&byte).is_ok() {}
}

fn ask(client: &mut TcpStream) -> std::io::Result<()> {
    client.write_all(b"?")?;
    client.read_exact(&mut [0; 1])
}

fn connect(local: SocketAddr) -> std::io::Result<TcpStream> {
    let mut client = TcpStream::connect_timeout(&local, PATIENCE)?;
    client.set_read_timeout(Some(PATIENCE))?;
    ask(&mut client)?;
    Ok(client)
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
    let mut instances: Vec<Instance> = (0..INSTANCES).map(|_| Instance::start()).collect();
    let present = |instances: &[Instance]| -> Vec<(SocketAddr, bool)> {
        instances.iter().map(|it| (it.address, true)).collect()
    };
    is_taken(&post(&world, "gateway", &offer(&present(&instances), 60)));
    wait::until("the worker reaches it", SETTLE, || connect(local).ok().map(drop));
    wait::until("each instance has its share", SETTLE, || {
        connect(local).expect("it is reached");
        instances.iter().all(|it| it.served() > 0).then_some(())
    });

    // One that is open stays with its instance, which is in no offer any more.
    let kept = Instance::start();
    is_taken(&post(&world, "gateway", &offer(&[(kept.address, true)], 60)));
    let mut open = connect(local).expect("it is reached");
    assert_eq!(kept.served(), 1);
    is_taken(&post(&world, "gateway", &offer(&present(&instances), 60)));

    let (stop, tried, failed) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicUsize::new(0)),
    );
    let load = {
        let (stop, tried, failed) = (stop.clone(), tried.clone(), failed.clone());
        thread::spawn(move || {
            let (mut clients, mut next) = (Vec::new(), wait::now());
            while !stop.load(Ordering::SeqCst) {
                let (tried, failed) = (tried.clone(), failed.clone());
                clients.push(thread::spawn(move || {
                    if let Err(error) = connect(local) {
                        println!("a connection failed: {error}");
                        failed.fetch_add(1, Ordering::SeqCst);
                    }
                    tried.fetch_add(1, Ordering::SeqCst);
                }));
                wait::pace(&mut next, PACE);
            }
            clients.into_iter().for_each(|client| client.join().expect("it ends"));
        })
    };
    let goes_on = |what: &str| {
        let from = tried.load(Ordering::SeqCst);
        wait::until(what, SETTLE, || {
            (tried.load(Ordering::SeqCst) >= from + BETWEEN).then_some(())
        });
    };
    for round in 0..REPLACED {
        goes_on("the load goes on");
        instances.push(Instance::start());
        let gone = instances.remove(0);
        if round % 2 == 0 {
            // In order: out of the offer first.
            is_taken(&post(&world, "gateway", &offer(&present(&instances), 60)));
            goes_on("the load goes on without an instance that still runs");
            gone.end();
        } else {
            // A crash: the port is closed for a while before the offer says so.
            gone.end();
            goes_on("the load goes on with an instance that is gone");
            is_taken(&post(&world, "gateway", &offer(&present(&instances), 60)));
        }
    }
    goes_on("the load goes on at the end");
    stop.store(true, Ordering::SeqCst);
    load.join().expect("it ends");
    let (tried, failed) = (tried.load(Ordering::SeqCst), failed.load(Ordering::SeqCst));
    println!("{tried} connections, {REPLACED} instances replaced, {failed} failed");
    assert_eq!(failed, 0);
    ask(&mut open).expect("the open session is still there");
}

#[test]
fn an_offer_that_is_not_renewed_ends() {
    let world = world(&["gateway", "origin:web"]);
    let (local, instance) = (local(&world), Instance::start());
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
    let instance = Instance::start();
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
    assert!(why("kube-apiserver").contains("the configuration"), "{}", why("kube-apiserver"));
    // The service of a configuration that comes later wins too.
    world.reconfigure("gateway", |text| {
        format!("{text}\n[service.{SERVICE}]\nlisten = [\"127.0.0.1:0\"]\n")
    });
    wait::until("the configuration is reloaded", SETTLE, || {
        let report = post(&world, "gateway", &offer);
        let why = report["refused"][SERVICE].as_str()?.to_owned();
        assert!(why.contains("the configuration"), "{why}");
        assert_eq!(report["offered"], json!([]));
        Some(())
    });
}
