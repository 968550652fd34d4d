//! `/view` and the page of a real daemon: their contents compared with `status`, and which requests
//! are refused.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use meshport_tests::http::{exchange, get, try_exchange};
use meshport_tests::process::raise_descriptors;
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};
use serde_json::Value;

const SETTLE: Duration = Duration::from_secs(40);
/// Connections of one user, none of them closed by it.
const FLOOD: usize = 10_000;
/// Descriptors that the test keeps for anything else.
const SPARE: usize = 500;
/// Connections that a user has at once, as the daemon allows.
const MAX_OF_ONE: usize = 16;
/// Limit on the growth of the daemon's memory in such a flood, in KiB.
const GROWTH_KIB: u64 = 16 * 1024;

fn view(at: SocketAddr) -> Value {
    let reply = get(at, "/view", "");
    assert_eq!(reply.status, 200, "{}", reply.head);
    serde_json::from_str(reply.body.trim()).expect("the view is JSON")
}

/// Two sites, a worker that uses an origin elsewhere, and its loopback port.
fn world() -> (World, SocketAddr) {
    let mut world = World::new();
    world.distance("a", "b", Duration::from_millis(20));
    world.origin("cp-b", "b");
    world.node(&NodePlan::new("worker", "a").http());
    world.meet();
    world.chooses("worker", "cp-b", SETTLE);
    let at = world.at("worker").http().expect("the port is on");
    (world, at)
}

#[test]
fn the_view_says_what_status_says_and_shows_a_failure() {
    let (mut world, at) = world();
    for _ in 0..3 {
        assert_eq!(world.get("worker", "/version").status, 200);
    }
    let status = world.at("worker").status().expect("the daemon answers");
    let shown = view(at);
    assert_eq!(shown["format"], 1);
    for key in ["name", "site", "node"] {
        assert_eq!(shown["node"][key], status["me"][key], "{key}");
    }
    assert_eq!(shown["node"]["members"], status["members"]);
    let (service, known) = (&shown["services"][0], &status["services"][0]);
    assert_eq!(service["name"], known["name"]);
    assert_eq!(service["chosen"]["name"], known["chosen"]["name"]);
    assert_eq!(service["chosen"]["why"], known["chosen"]["why"]);
    assert_eq!(service["sessions"]["total"], known["sessions_total"]);
    assert_eq!(service["origins"][0]["state"], "ready");
    assert_eq!(service["origins"][0]["path"]["kind"], "direct");
    let names = |rows: &Value, key: &str| -> Vec<String> {
        let rows = rows.as_array().expect("rows");
        rows.iter().filter_map(|row| Some(row[key].as_str()?.to_owned())).collect()
    };
    assert_eq!(names(&shown["nodes"], "name"), ["worker", "cp-b"]);
    assert_eq!(names(&shown["sites"], "name"), ["a", "b"]);
    assert!(names(&shown["events"], "kind").contains(&"came".to_owned()), "{}", shown["events"]);

    world.kill_apiserver("cp-b");
    let found = wait::until("the view shows that the origin refuses", SETTLE, || {
        let shown = view(at);
        let lost = shown["services"][0]["chosen"].is_null();
        (lost && !shown["findings"].as_array()?.is_empty()).then_some(shown)
    });
    let service = &found["services"][0];
    assert_eq!(service["origins"][0]["state"], "refusing");
    let summary = service["summary"].as_str().expect("a sentence");
    assert!(summary.contains("does not answer"), "{summary}");
    assert!(names(&found["findings"], "id").iter().all(|id| id.starts_with("MP")));

    world.node_mut("cp-b").process().signal("TERM");
    wait::until("the view names the origin that has left", SETTLE, || {
        let said = view(at)["findings"].to_string();
        said.contains("no origin is known; cp-b, which may be one, is not running").then_some(())
    });
}

#[test]
fn an_unchanged_view_is_not_sent_again() {
    let (_world, at) = world();
    let unchanged = wait::within(SETTLE, || {
        let reply = get(at, "/view", "");
        let tag = reply.head.lines().find_map(|line| line.strip_prefix("etag: "))?;
        let again = get(at, "/view", &format!("If-None-Match: {}\r\n", tag.replace("w/", "W/")));
        (again.status == 304 && again.body.is_empty()).then_some(())
    });
    assert!(unchanged.is_some(), "an idle node has news in every view");
}

#[test]
fn names_of_others_pages_of_others_and_other_methods_get_nothing() {
    let (_world, at) = world();
    let port = at.port();
    for path in ["/", "/view", "/metrics", "/status"] {
        for host in ["meshport.example", "127.0.0.1.meshport.example", "169.254.169.254", ""] {
            let reply = get(at, path, &format!("Host: {host}:{port}\r\n"));
            assert!([400, 421].contains(&reply.status), "{path} for {host}: {}", reply.head);
            assert!(!reply.body.contains("worker"), "{path} for {host}: {}", reply.body);
        }
        for site in ["cross-site", "same-site", "something-new"] {
            let reply = get(at, path, &format!("Sec-Fetch-Site: {site}\r\n"));
            assert_eq!(reply.status, 403, "{path} from {site}");
            assert!(!reply.body.contains("worker"), "{path} from {site}: {}", reply.body);
        }
        for site in ["same-origin", "none"] {
            assert_eq!(get(at, path, &format!("Sec-Fetch-Site: {site}\r\n")).status, 200, "{path}");
        }
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"] {
            let head = format!("{method} {path} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n");
            let reply = exchange(at, &format!("{head}Content-Length: 0\r\n\r\n"));
            assert_eq!(reply.status, 405, "{method} {path}");
        }
    }
    let page = get(at, "/", "");
    assert!(page.head.contains("content-security-policy: default-src 'none'"), "{}", page.head);
    assert!(page.head.contains("x-content-type-options: nosniff"), "{}", page.head);
    assert!(!page.head.contains("access-control-allow-origin"), "{}", page.head);
}

#[test]
fn thousands_of_connections_and_slow_readers_take_nothing_from_others() {
    let (mut world, at) = world();
    let before = world.node_mut("worker").process().resident_kib();
    // All of them, or as many as this process may open. The daemons have already started.
    let most = FLOOD.min(raise_descriptors().saturating_sub(SPARE).max(SPARE));
    let mut held = Vec::new();
    for place in 0..FLOOD {
        let Ok(mut stream) = TcpStream::connect(at) else { continue };
        // Some send nothing, some keep requesting the page and never read it.
        if place % 10 == 0 {
            let request = format!("GET / HTTP/1.1\r\nHost: {at}\r\n\r\n");
            let _ = stream.write_all(request.repeat(4).as_bytes());
        }
        match held.len() == most {
            true => held[place % most] = stream,
            false => held.push(stream),
        }
    }
    assert_eq!(held.len(), most, "connections are refused by the system");
    assert_eq!(world.get("worker", "/version").status, 200, "clients are served");
    // Further connections of this user were reset.
    let request = format!("GET /livez HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n");
    wait::until("another request is answered", SETTLE, || {
        try_exchange(at, &request).ok().filter(|it| it.status == 200)
    });
    let process = world.node_mut("worker").process();
    let open = std::fs::read_dir(format!("/proc/{}/fd", process.id())).expect("its files").count();
    assert!(open < MAX_OF_ONE + 64, "{open} descriptors are open");
    let grown = process.resident_kib().saturating_sub(before);
    println!("{} connections held: {open} descriptors open, {grown} KiB more", held.len());
    assert!(grown < GROWTH_KIB, "memory has grown by {grown} KiB");
}
