//! The lines of the JSON log that programs rely on: those of the page, with its fields.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::Duration;

use meshport_demo::wan::Cut;
use meshport_tests::process::{meshport, run_ok};
use meshport_tests::repository;
use meshport_tests::wait;
use meshport_tests::world::{NodePlan, World};
use serde_json::Value;

const SETTLE: Duration = Duration::from_secs(40);
/// Fields of the table that a line has only where they apply.
const SOMETIMES: &str = ", and ";

/// The rows of the table of log lines: a message and its fields.
fn documented() -> Vec<(String, Vec<String>)> {
    let page = fs::read_to_string(repository::root().join("docs/operate.md")).expect("the page");
    let section = page.split("## Logs").nth(1).expect("it has the section");
    let section = section.split("\n## ").next().expect("it ends");
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let row = |line: &str| {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        let messages = cells.next().expect("messages").replace('`', "");
        let fields = cells.next().expect("fields").replace('\\', "");
        let fields = fields.split(SOMETIMES).next().expect("some").split(", ").map(str::to_owned);
        let fields: Vec<String> = fields.collect();
        messages.split(", ").map(|it| (it.to_owned(), fields.clone())).collect::<Vec<_>>()
    };
    rows.flat_map(row).collect()
}

#[test]
fn the_lines_that_the_page_names_have_their_fields() {
    let documented = documented();
    let rows: BTreeSet<&str> = documented.iter().map(|(message, _)| message.as_str()).collect();
    let json = "\n[log]\nformat = \"json\"\n";
    let mut world = World::new();
    for (one, other, ms) in [("a", "b", 10), ("a", "c", 60), ("b", "c", 60)] {
        world.distance(one, other, Duration::from_millis(ms));
    }
    for (name, site) in [("cp-b", "b"), ("cp-c", "c")] {
        let address = world.apiserver(name);
        world.node(&NodePlan::new(name, site).origin(address).settings(json));
    }
    world.node(&NodePlan::new("worker", "a").settings(json));
    world.meet();
    world.chooses("worker", "cp-b", SETTLE);
    world.kill_apiserver("cp-b");
    world.chooses("worker", "cp-c", SETTLE);
    world.shaper().set_down(Cut::Site("a".into()), true);
    let shown = |world: &mut World| {
        let nodes = ["worker", "cp-b"].map(|node| world.node_mut(node).process().output());
        let lines = nodes.iter().flat_map(|log| log.lines());
        lines.filter_map(|line| serde_json::from_str(line).ok()).collect::<Vec<Value>>()
    };
    // The messages that this world causes; the rest of the table needs an operator or more time.
    let wanted = [
        "started",
        "clients connect here",
        "peer admitted",
        "member up",
        "member down",
        "route changed",
        "no origin can be used",
        "the local apiserver changed state",
    ];
    for message in wanted {
        assert!(rows.contains(message), "docs/operate.md does not name {message:?}");
        let (_, fields) = documented.iter().find(|it| it.0 == message).expect("it is there");
        let line = wait::until(&format!("{message:?} is logged"), SETTLE, || {
            shown(&mut world).into_iter().find(|line| line["fields"]["message"] == message)
        });
        for key in ["timestamp", "level", "target"] {
            assert!(line[key].is_string(), "{key} in {line}");
        }
        for field in fields {
            assert!(!line["fields"][field].is_null(), "{field} in {line}");
        }
    }
}

/// On a terminal, which `script` provides. The daemon logs, then ends: it has no such address.
#[test]
fn a_variable_turns_the_colours_of_the_log_off() {
    let folder = tempfile::tempdir().expect("a folder");
    let [state, config] = ["state", "settings.toml"].map(|name| folder.path().join(name));
    let text = "site = \"a\"\nsandbox = false\n[mesh]\nlisten = \"192.0.2.1:0\"\n\
                [admin]\nhttp = \"off\"\n[service.kube-apiserver]\nlisten = [\"127.0.0.1:0\"]\n";
    fs::write(&config, text).expect("the folder can be written");
    let (binary, state) = (meshport().to_string_lossy(), state.to_string_lossy());
    run_ok(&binary, &["init", "--state-dir", &state, "--site", "a", "--name", "a"]);
    let shown = |no_color: &str| {
        let verb = format!("{binary} run --config {} --state-dir {state}", config.display());
        let mut command = Command::new("script");
        command.args(["--quiet", "--command", &verb, "/dev/null"]);
        command.env("TERM", "xterm").env("NO_COLOR", no_color).env_remove("MESHPORT_LOG");
        let output = command.output().expect("bsdutils is installed");
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(shown.contains("without a sandbox") && shown.contains("192.0.2.1"), "{shown}");
        shown
    };
    assert!(shown("").contains("\x1b["), "a terminal has colours");
    let plain = shown("1");
    assert!(!plain.contains("\x1b["), "{plain:?}");
}
