//! `meshport dashboard` on a laptop: the page of any node, read through one member.

use std::fs;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use meshport_demo::wan::Cut;
use meshport_tests::http::{exchange, get};
use meshport_tests::process::{Process, meshport};
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};
use serde_json::Value;

const SETTLE: Duration = Duration::from_secs(40);

/// Two sites with an origin in one of them, and a laptop whose invite knows the origin alone.
fn world() -> (World, Command) {
    let mut world = World::new();
    world.distance("a", "b", Duration::from_millis(20));
    world.distance("office", "a", Duration::from_millis(10));
    world.distance("office", "b", Duration::from_millis(30));
    world.origin("cp-a", "a");
    world.node(&NodePlan::new("worker", "b"));
    world.meet();
    world.chooses("worker", "cp-a", SETTLE);
    // As behind a NAT: the laptop and the worker have no direct path.
    world.shaper().set_down(Cut::Between("office".into(), "b".into()), true);
    let line = world.invite("cp-a", &NodePlan::operator("laptop", "office"));
    let invite = world.path("laptop.invite");
    fs::write(&invite, line).expect("the world's folder can be written");
    let udp = world.place("laptop", "office");
    let mut command = Command::new(meshport());
    command.args(["dashboard", "--name", "laptop", "--mesh-listen", &udp.to_string()]);
    command.arg("--credential").arg(world.path("laptop")).arg("--invite").arg(invite);
    (world, command)
}

/// A running dashboard and the address of its page.
fn ready(world: &World, command: &mut Command) -> (Process, String, SocketAddr) {
    let mut process = Process::start("dashboard", command, &world.path("dashboard.log"));
    let page = wait::until("the dashboard says where its page is", SETTLE, || {
        assert!(process.is_running(), "the dashboard ended: {}", process.output());
        let output = process.output();
        output.lines().find(|line| line.starts_with("http://")).map(str::to_owned)
    });
    let at = page["http://".len()..].split('/').next().and_then(|at| at.parse().ok());
    (process, page, at.expect("an address"))
}

fn view(at: SocketAddr, query: &str) -> Value {
    let reply = get(at, &format!("/view{query}"), "");
    assert_eq!(reply.status, 200, "{}\n{}", reply.head, reply.body);
    serde_json::from_str(reply.body.trim()).expect("the view is JSON")
}

#[test]
fn an_operator_reads_the_view_of_every_node_through_one_member() {
    let (mut world, mut command) = world();
    let (mut process, page, at) = ready(&world, command.arg("worker"));
    assert!(page.ends_with("/?node=worker"), "{page}");
    let document = get(at, "/", "");
    assert_eq!(document.status, 200);
    assert!(document.body.contains("id=\"viewer\""));
    for node in ["worker", "cp-a"] {
        let own = world.at(node).status().expect("the daemon answers");
        let shown = view(at, &format!("?node={node}"));
        assert_eq!(shown["node"]["node"], own["me"]["node"], "{node}");
    }
    assert_eq!(view(at, "")["node"]["name"], "cp-a", "the only member it has a tunnel with");

    // Unchanged data is not sent again.
    wait::until("a view holds from one request to the next", SETTLE, || {
        let tag = get(at, "/view?node=worker", "").header("etag")?.to_owned();
        let again = get(at, "/view?node=worker", &format!("If-None-Match: {}\r\n", upper(&tag)));
        (again.status == 304 && again.body.is_empty()).then_some(())
    });

    // The operator is named where its view was read, once, with the member that carried it.
    let log = world.node_mut("worker").process().output();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("operator-view")).collect();
    let carrier = world.at("cp-a").status().expect("the daemon answers");
    let carrier = carrier["me"]["node"].as_str().expect("an id").to_owned();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("laptop") && lines[0].contains(&carrier), "{lines:?}");

    let unknown = get(at, "/view?node=nobody", "");
    assert_eq!(unknown.status, 404);
    assert!(unknown.body.contains("knows a node named nobody"), "{}", unknown.body);
    world.kill("worker");
    let gone = get(at, "/view?node=worker", "");
    assert_eq!(gone.status, 502, "{}", gone.body);
    assert!(gone.body.contains("cannot reach the node"), "{}", gone.body);
    assert_eq!(view(at, "")["node"]["name"], "cp-a");

    process.signal("TERM");
    assert!(process.ended(SETTLE).success());
}

/// The header as it was sent: [`meshport_tests::http::Reply`] has it in lower case.
fn upper(tag: &str) -> String {
    tag.replacen('w', "W", 1)
}

#[test]
fn the_page_answers_this_machine_alone() {
    let (world, mut command) = world();
    let (_process, _, at) = ready(&world, &mut command);
    assert_eq!(get(at, "/view", "Host: evil.example\r\n").status, 421);
    assert_eq!(get(at, "/view", "Sec-Fetch-Site: cross-site\r\n").status, 403);
    assert_eq!(get(at, "/drain", "").status, 404);
    let posted = format!(
        "POST /view HTTP/1.1\r\nHost: {at}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    );
    assert_eq!(exchange(at, &posted).status, 405);
}
