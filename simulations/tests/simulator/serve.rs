//! `meshport-sim serve` from the view of a browser and others: a world that runs, is viewed and is
//! changed.

#![expect(clippy::disallowed_methods, reason = "how long a test waits")]

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

const STORY: &str = "
description = \"Two origins, and a site between them\"
duration-s = 60
load = { sessions-per-s = 2, hold-s = 5 }
site = [
  { name = \"fra\", nodes = 2, origins = 1 },
  { name = \"ams\", nodes = 2, origins = 1 },
  { name = \"vie\", nodes = 2 },
]
path = [
  { between = [\"fra\", \"ams\"], rtt-ms = 8 },
  { between = [\"fra\", \"vie\"], rtt-ms = 12 },
  { between = [\"ams\", \"vie\"], rtt-ms = 40 },
]
";
/// Limit in real time for anything that must happen.
const LIMIT: Duration = Duration::from_secs(60);

/// A served world; its end is that of the test.
struct Served {
    child: Child,
    at: SocketAddr,
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The status of an answer, and its body.
type Answer = (u16, Value);

impl Served {
    fn start(name: &str, more: &[&str]) -> Self {
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.toml"));
        fs::write(&file, STORY).expect("a file");
        let mut command = Command::new(crate::program());
        command.arg("serve").arg(&file).args(["--listen", "127.0.0.1:0"]).args(more);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the simulator starts");
        let mut line = String::new();
        let out = child.stdout.take().expect("it is piped");
        BufReader::new(out).read_line(&mut line).expect("it says where it is");
        let (_, rest) = line.split_once("http://").expect("it says where it is");
        let at = rest.trim_end().trim_end_matches('/').parse().expect("an address");
        Self { child, at }
    }

    /// Sends these bytes, and reads the answer to its end.
    fn send(&self, bytes: &[u8]) -> Answer {
        let mut stream = TcpStream::connect(self.at).expect("it listens");
        stream.set_read_timeout(Some(LIMIT)).expect("a time");
        // It may have answered and closed before reading everything.
        let _ = stream.write_all(bytes);
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text);
        let text = String::from_utf8_lossy(&text);
        let status = text.split(' ').nth(1).and_then(|it| it.parse().ok()).unwrap_or(0);
        let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        (status, serde_json::from_str(body).unwrap_or(Value::Null))
    }

    fn request(&self, line: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut text = format!("{line} HTTP/1.1\r\nConnection: close\r\n");
        if !headers.iter().any(|(name, _)| *name == "Host") {
            text += &format!("Host: {}\r\n", self.at);
        }
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        self.send(format!("{text}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes())
    }

    fn get(&self, path: &str) -> Value {
        let (status, answer) = self.request(&format!("GET {path}"), &[], "");
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    }

    fn post(&self, path: &str, body: &Value) -> Answer {
        let headers = [("Content-Type", "application/json")];
        self.request(&format!("POST {path}"), &headers, &body.to_string())
    }

    /// Waits until a node uses this origin, and returns its view.
    fn until_it_goes_to(&self, node: &str, origin: &str) -> Value {
        let end = Instant::now() + LIMIT;
        loop {
            let (status, view) = self.request(&format!("GET /view?node={node}"), &[], "");
            if status == 200 && view["services"][0]["chosen"]["name"] == origin {
                return view;
            }
            assert!(Instant::now() < end, "{node} does not go to {origin}: {status} {view}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_link_that_is_cut_moves_the_route_and_one_that_heals_brings_it_home() {
    let served = Served::start("serve-cut", &["--speed", "20"]);
    let before = served.until_it_goes_to("vie-2", "fra-1");
    assert_eq!(before["node"]["name"], "vie-2");
    let (status, world) = served.post("/happen", &json!([{ "cut": ["vie", "fra"] }]));
    assert_eq!(status, 200, "{world}");
    let cut_at = world["now_s"].as_f64().expect("a time");
    let link = |world: &Value| {
        let all = world["links"].as_array().expect("a list").clone();
        let it = all.into_iter().find(|it| it["from"] == "fra" && it["to"] == "vie");
        it.expect("the link")["is_cut"].clone()
    };
    assert_eq!(link(&world), true);
    assert_eq!(
        world["done"][0].as_str().map(|it| it.contains("cut = [\"vie\", \"fra\"]")),
        Some(true)
    );

    // The direct path is down: another origin, or the same one through a relay.
    let after = served.until_it_goes_to("vie-2", "ams-1");
    let took = served.get("/world")["now_s"].as_f64().expect("a time") - cut_at;
    assert!(took < 30.0, "it took {took} virtual seconds");
    let events = after["events"].as_array().expect("a list");
    let change = events.iter().find(|it| it["kind"] == "route").expect("it tells why");
    assert!(
        change["detail"].as_str().is_some_and(|it| it.starts_with("fra-1 to ams-1: ")),
        "{change}"
    );
    assert!(after["services"][0]["summary"].as_str().is_some_and(|it| it.contains("ams-1")));

    let (status, world) = served.post("/happen", &json!([{ "heal": ["vie", "fra"] }]));
    assert_eq!((status, link(&world)), (200, Value::Bool(false)));
    served.until_it_goes_to("vie-2", "fra-1");

    // An instance that stops is left, and a node that crashed has no view.
    let (status, _) = served.post("/happen", &json!([{ "kill": "fra-1" }, { "crash": "vie-1" }]));
    assert_eq!(status, 200);
    served.until_it_goes_to("vie-2", "ams-1");
    assert_eq!(served.request("GET /view?node=vie-1", &[], "").0, 503);
}

#[test]
fn time_stands_still_while_it_is_paused() {
    let served = Served::start("serve-pause", &["--paused"]);
    let now = || served.get("/world")["now_s"].as_f64().expect("a time");
    assert_eq!((now(), now()), (0.0, 0.0));
    let (status, world) = served.post("/pace", &json!({ "paused": false, "speed": 50 }));
    assert_eq!((status, &world["speed"]), (200, &json!(50.0)));
    let end = Instant::now() + LIMIT;
    while now() < 2.0 {
        assert!(Instant::now() < end, "time does not pass");
    }
    served.post("/pace", &json!({ "paused": true }));
    let (first, second) = (now(), now());
    assert_eq!(first, second);
    for wrong in [json!({ "speed": 0 }), json!({ "speed": 1e9 }), json!({ "speed": -1 })] {
        assert_eq!(served.post("/pace", &wrong).0, 422, "{wrong}");
    }
}

#[test]
fn only_this_machine_and_its_own_page_are_answered() {
    let served = Served::start("serve-hostile", &["--paused"]);
    let json = ("Content-Type", "application/json");
    let own = format!("http://{}", served.at);
    let change = r#"[{"crash":"fra-1"}]"#;
    let host = served.at.to_string();
    for (line, headers, body, status) in [
        ("GET /view", vec![("Host", "evil.example")], "", 421),
        ("GET /", vec![("Host", "rebound.example:7450")], "", 421),
        ("GET /", vec![("Host", &*host), ("Host", &*host)], "", 421),
        ("GET /view", vec![("Sec-Fetch-Site", "cross-site")], "", 403),
        ("POST /happen", vec![json, ("Origin", "http://evil.example")], change, 403),
        ("POST /happen", vec![json, ("Origin", "null")], change, 403),
        ("POST /happen", vec![json, ("Origin", "http://127.0.0.1:1")], change, 403),
        ("POST /happen", vec![json, ("Sec-Fetch-Site", "same-site")], change, 403),
        ("POST /pace", vec![json, ("Host", "evil.example")], "{}", 421),
        ("POST /happen", vec![("Content-Type", "text/plain")], change, 415),
        ("POST /happen", vec![], change, 415),
        ("GET /happen", vec![], "", 405),
        ("DELETE /view", vec![], "", 405),
        ("GET /etc/passwd", vec![], "", 404),
        ("POST /happen", vec![json], "[{\"crash\":", 400),
        ("POST /happen", vec![json], "[{\"no-such-thing\":\"fra-1\"}]", 400),
        ("POST /happen", vec![json], "[{\"crash\":\"nobody\"}]", 422),
        ("POST /happen", vec![json], "[{\"configure\":\"fra-1\"}]", 422),
        ("POST /happen", vec![json], "[{}]", 422),
        ("POST /happen", vec![json], &format!("[{}{{}}]", "{},".repeat(300)), 400),
        ("POST /happen", vec![json], &format!("[{}]", " ".repeat(40 * 1024)), 413),
    ] {
        let (seen, answer) = served.request(line, &headers, body);
        assert_eq!(seen, status, "{line} {headers:?}: {answer}");
        assert!(answer["error"].is_string(), "{line} {headers:?}: {answer}");
    }
    // Long heads, and bytes that are not HTTP.
    let head = format!("GET / HTTP/1.1\r\nHost: {host}\r\nX: {}\r\n\r\n", "x".repeat(64 * 1024));
    assert_eq!(served.send(head.as_bytes()).0, 431);
    assert_eq!(served.send(b"\x16\x03\x01 hello\r\n\r\n").0, 400);
    // The event did not happen, and the program's own page may change the world.
    let world = served.get("/world");
    assert_eq!(world["done"], json!([]));
    assert_eq!(served.request("POST /happen", &[json, ("Origin", &own)], change).0, 200);
    assert_eq!(served.get("/world")["done"].as_array().map(Vec::len), Some(1));
}

#[test]
fn an_address_that_others_reach_is_refused() {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("serve-open.toml");
    fs::write(&file, STORY).expect("a file");
    let mut command = Command::new(crate::program());
    let output = command.arg("serve").arg(&file).args(["--listen", "0.0.0.0:0"]).output();
    let output = output.expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("only a loopback address"), "{said}");
}
