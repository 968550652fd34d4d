//! Events that a daemon posts to an address, while it is up and after it was down.

use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use meshport_tests::http::Request;
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};
use serde_json::Value;

/// How long an event may take: some are gathered for 5 s, and a post that fails is tried again
/// after 5 s.
const SETTLE: Duration = Duration::from_secs(40);

/// Takes posts on its own address.
struct Receiver {
    bodies: Arc<Mutex<Vec<Value>>>,
}

impl Receiver {
    fn on(listener: TcpListener) -> Self {
        let bodies = Arc::new(Mutex::new(Vec::new()));
        let taken = bodies.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                if let Some(body) = take(stream) {
                    taken.lock().expect("nobody panics with it").push(body);
                }
            }
        });
        Self { bodies }
    }

    /// The first event of a kind whose text has this in it, with the post that brought it.
    fn event(&self, kind: &str, text: &str) -> (Value, Value) {
        wait::until(&format!("{kind} with {text} is posted"), SETTLE, || {
            let bodies = self.bodies.lock().expect("nobody panics with it");
            bodies.iter().find_map(|body| {
                let events = body["events"].as_array()?;
                let is_it = |it: &&Value| it["kind"] == kind && it.to_string().contains(text);
                Some((body.clone(), events.iter().find(is_it)?.clone()))
            })
        })
    }
}

fn take(mut stream: TcpStream) -> Option<Value> {
    let Request { method, path, query, body } =
        Request::read(&mut BufReader::new(stream.try_clone().ok()?)).ok()??;
    stream.write_all(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n").ok()?;
    assert_eq!([&*method, &path, &query], ["POST", "/hook", "secret=x"]);
    Some(body).filter(|body| !body.is_null())
}

#[test]
fn events_are_posted_and_a_receiver_that_comes_later_misses_none() {
    let free = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let at: SocketAddr = free.local_addr().expect("bound");
    drop(free);
    let mut world = World::new();
    for (one, other, ms) in [("a", "b", 10), ("a", "c", 80), ("b", "c", 80)] {
        world.distance(one, other, Duration::from_millis(ms));
    }
    for (name, site) in [("cp-b", "b"), ("cp-c", "c")] {
        world.origin(name, site);
    }
    let events = format!("\n[events]\nurl = \"http://{at}/hook?secret=x\"\nper-minute = 600\n");
    world.node(&NodePlan::new("worker", "a").settings(&events));
    world.meet();
    world.chooses("worker", "cp-b", SETTLE);
    wait::until("posts fail", SETTLE, || {
        let failed = world.at("worker").metrics().sum("meshport_event_posts_failed_total", "");
        (failed >= 1.0).then_some(())
    });

    let receiver = Receiver::on(TcpListener::bind(at).expect("the address is still free"));
    let (post, came) = receiver.event("came", "cp-b");
    assert_eq!(
        (&post["format"], &post["name"], &post["site"]),
        (&Value::from(1), &Value::from("worker"), &Value::from("a"))
    );
    assert_eq!(came["names"][0], "cp-b");
    let at_s = came["at"].as_u64().expect("a time of day");
    assert!(at_s.abs_diff(wait::unix_now()) < 120, "{came}");
    receiver.event("route", "first known");

    world.kill_apiserver("cp-b");
    let (_, lost) = receiver.event("route", "cp-b to cp-c");
    assert_eq!(lost["service"], "kube-apiserver");
    world.kill("cp-b");
    receiver.event("went", "cp-b");

    wait::until("the daemon has counted them", SETTLE, || {
        let metrics = world.at("worker").metrics();
        (metrics.sum("meshport_events_total", "outcome=\"posted\"") >= 4.0).then_some(())
    });
    let log = world.node_mut("worker").process().output();
    assert!(log.contains("cannot post events") && log.contains("events are posted again"), "{log}");
    assert!(!log.contains("secret=x"), "the path of the address is in the log");
}
