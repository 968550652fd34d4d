//! The metrics, the alerts and the dashboard, judged by the programs they are for: promtool, and a
//! Prometheus that scrapes a mesh.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use meshport_tests::process::{Process, meshport, run, run_ok};
use meshport_tests::repository::root;
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};
use serde_json::{Value, json};

/// How long a mesh, or Prometheus, may take for anything.
const PATIENCE: Duration = Duration::from_secs(30);
const NODES: [&str; 3] = ["cp-a", "cp-b", "worker"];

fn generated(format: &str) -> String {
    let arguments = ["generate", "monitoring", "--format", format];
    run_ok(&meshport().to_string_lossy(), &arguments)
}

/// Two origins, and a worker far from one of them, whose metrics are on loopback ports.
fn mesh() -> World {
    let mut world = World::new();
    world.distance("a", "b", Duration::from_millis(20));
    for (name, site) in [("cp-a", "a"), ("cp-b", "b")] {
        let address = world.apiserver(name);
        world.node(&NodePlan::new(name, site).origin(address).http());
    }
    world.node(&NodePlan::new("worker", "a").http());
    world.meet();
    world.chooses("worker", "cp-a", PATIENCE);
    world
}

fn http(world: &World, node: &str) -> SocketAddr {
    wait::until("it has a port", PATIENCE, || world.at(node).http())
}

#[test]
#[ignore = "needs promtool: suite monitoring"]
fn promtool_accepts_the_metrics_and_the_rules() {
    let world = mesh();
    world.get("worker", "/version");
    let address = format!("http://{}/metrics", http(&world, "worker"));
    // `run_ok` takes off the last line feed, without which promtool refuses the page.
    let page = run_ok("curl", &["-sSf", &address]) + "\n";
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut checked = promtool.stderr(Stdio::piped()).spawn().expect("promtool starts");
    checked.stdin.take().expect("a pipe").write_all(page.as_bytes()).expect("it reads");
    let checked = checked.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success() && said.is_empty(), "{said}");

    let folder = tempfile::tempdir().expect("a folder");
    let rules = folder.path().join("alerts.yaml");
    fs::write(&rules, generated("rules")).expect("written");
    run_ok("promtool", &["check", "rules", &rules.to_string_lossy()]);
    let tests = folder.path().join("alerts.test.yaml");
    fs::copy(root().join("tests/monitoring/alerts.test.yaml"), &tests).expect("copied");
    run_ok("promtool", &["test", "rules", &tests.to_string_lossy()]);
}

/// A Prometheus with the alerts, on its own port, that scrapes once a second.
struct Prometheus {
    address: SocketAddr,
    _process: Process,
}

impl Prometheus {
    fn start(folder: &Path, targets: &[SocketAddr]) -> Self {
        let free = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr());
        let address = free.expect("a free port");
        fs::write(folder.join("alerts.yaml"), generated("rules")).expect("written");
        let targets: Vec<String> = targets.iter().map(ToString::to_string).collect();
        // YAML takes JSON.
        let config = json!({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["alerts.yaml"],
            "scrape_configs": [
                {"job_name": "meshport", "static_configs": [{"targets": targets}]}
            ],
        });
        let file = folder.join("prometheus.yaml");
        fs::write(&file, config.to_string()).expect("written");
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", file.display()));
        command.arg(format!("--storage.tsdb.path={}", folder.join("data").display()));
        command.arg(format!("--web.listen-address={address}"));
        let process = Process::start("prometheus", &mut command, &folder.join("prometheus.log"));
        let started = Self { address, _process: process };
        wait::until("Prometheus answers", PATIENCE, || started.get("targets", &[]));
        started
    }

    fn get(&self, what: &str, fields: &[(&str, &str)]) -> Option<Value> {
        let url = format!("http://{}/api/v1/{what}", self.address);
        let mut arguments = vec!["-sS".to_owned(), "--get".to_owned(), url];
        for (key, value) in fields {
            arguments.extend(["--data-urlencode".to_owned(), format!("{key}={value}")]);
        }
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let output = run("curl", &arguments);
        serde_json::from_slice(&output.stdout).ok()
    }

    /// The current value of an expression.
    #[track_caller]
    fn query(&self, expr: &str) -> Vec<Value> {
        let answer = self.get("query", &[("query", expr)]).expect("an answer");
        assert_eq!(answer["status"], "success", "{expr}: {answer}");
        answer["data"]["result"].as_array().expect("a result").clone()
    }
}

#[test]
#[ignore = "needs prometheus: suite monitoring"]
fn prometheus_answers_every_expression_of_the_dashboard() {
    let world = mesh();
    let folder = tempfile::tempdir().expect("a folder");
    let targets = NODES.map(|node| http(&world, node));
    let prometheus = Prometheus::start(folder.path(), &targets);
    let scraped = || {
        world.get("worker", "/version");
        // Both ends of a rate, and counters that grow only after an event.
        let scraped = prometheus.query("count(count_over_time(meshport_build_info[1m]) > 3)");
        let count: usize = scraped.first()?["value"][1].as_str()?.parse().ok()?;
        (count == NODES.len()).then_some(())
    };
    wait::until("all are scraped", PATIENCE, scraped);
    // It requests OpenMetrics, whose parser refuses a page without the end or with bad units.
    let targets = prometheus.get("targets", &[]).expect("an answer");
    for target in targets["data"]["activeTargets"].as_array().expect("targets") {
        assert_eq!((&target["health"], &target["lastError"]), (&json!("up"), &json!("")));
    }

    let dashboard: Value = serde_json::from_str(&generated("dashboard")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let of_panel = |panel: &Value| panel["targets"].as_array().cloned().unwrap_or_default();
    let mut asked = 0;
    for target in panels.iter().flat_map(of_panel) {
        let expr = target["expr"].as_str().expect("an expression");
        let expr = expr.replace("$service", ".*").replace("$instance", ".*");
        let expr = expr.replace("$__rate_interval", "10s");
        let found = prometheus.query(&expr);
        // A healthy mesh has no findings, and drops nothing lately.
        let may_be_empty = expr.contains("meshport_findings") || expr.ends_with("> 0");
        assert!(may_be_empty || !found.is_empty(), "nothing: {expr}");
        asked += 1;
    }
    assert!(asked >= 20, "{asked}");

    let evaluated = || {
        let rules = prometheus.get("rules", &[])?;
        let rules = rules["data"]["groups"][0]["rules"].as_array()?.clone();
        rules.iter().all(|rule| rule["health"] == "ok").then_some(rules)
    };
    let rules = wait::until("all alerts are evaluated", PATIENCE, evaluated);
    assert!(rules.len() >= 8, "{rules:?}");
    for rule in rules {
        assert_eq!(rule["state"], "inactive", "a healthy mesh alerts: {rule}");
    }
}
