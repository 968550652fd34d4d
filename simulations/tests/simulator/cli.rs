//! The tool as a user runs it: its verbs, what they print and write, and their exit status.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// Two sites with an instance each; one is killed.
const STORY: &str = "
description = \"Two sites, one apiserver dies\"
duration-s = 40
warmup-s = 10

[load]
sessions-per-s = 0.5
hold-s = 10

[[site]]
name = \"fra\"
nodes = 4
origins = 1

[[site]]
name = \"ams\"
nodes = 3
origins = 1

[[path]]
between = [\"fra\", \"ams\"]
rtt-ms = 8

[[event]]
at-s = 20
kill = \"fra-1\"
for-s = 10
";

/// The test's own folder.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cli-{name}"));
        fs::create_dir_all(&folder).expect("a folder");
        Self(folder)
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).expect("a file");
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    fn json(&self, name: &str) -> Value {
        serde_json::from_str(&self.read(name)).expect("JSON")
    }

    fn sim(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(crate::program());
        command.args(arguments).current_dir(&self.0).output().expect("the tool runs")
    }
}

fn status(output: &Output) -> i32 {
    output.status.code().expect("it ends by itself")
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_run_says_what_there_was_to_see() {
    let folder = Folder::new("run");
    folder.write("story.toml", STORY);
    let run = folder.sim(&[
        "run",
        "story.toml",
        "--seed",
        "7",
        "--json",
        "run.json",
        "--report",
        "page",
        "--trace",
        "trace.txt",
        "--twice",
    ]);
    assert_eq!(status(&run), 0, "{run:?}");
    assert!(printed(&run).contains("kill: fra-1"), "{run:?}");
    let json = folder.json("run.json");
    assert_eq!((json["nodes"].as_u64(), json["requests"]["failed"].as_u64()), (Some(7), Some(0)));
    assert!(json["requests"]["total"].as_u64() > Some(50), "{json}");
    assert_eq!(json["faults"][0]["noticed"], json["faults"][0]["concerned"]);
    for key in [
        "suspicions",
        "false_suspicions",
        "evictions",
        "false_evictions",
        "packets_per_node_per_s",
        "cpu_us_per_node_s",
        "memory_bytes_per_node",
        "nearest_share",
    ] {
        assert!(json[key].is_number(), "{key}: {}", json[key]);
    }
    for (table, key) in [
        ("requests", "retried"),
        ("sessions", "hedged"),
        ("connect_ms", "p99"),
        ("stretch", "p999"),
    ] {
        assert!(json[table][key].is_number(), "{table}.{key}: {}", json[table]);
    }
    for key in ["nodes", "left", "users", "failed", "slow", "over_s"] {
        assert!(json["faults"][0][key].is_number(), "{key}: {}", json["faults"]);
    }
    for word in ["sent again", "raced", "connect ", "stretch ", "suspicions ", "us a node-second"] {
        assert!(printed(&run).contains(word), "the summary does not say: {word}");
    }
    let trace = folder.read("trace.txt");
    for word in [" probe ", " swim ", " initiation fra-", "world kill: fra-1", " node ams-3 starts"]
    {
        assert!(trace.contains(word), "no{word}in the trace");
    }
    // The run is the same with and without a file.
    let plain = folder.sim(&["run", "story.toml", "--seed", "7", "--json", "plain.json"]);
    assert_eq!(status(&plain), 0, "{plain:?}");
    assert_eq!(folder.json("plain.json")["trace_hash"], json["trace_hash"]);
    let page = folder.read("page/index.html");
    assert!(page.contains("<svg") && page.contains("kill: fra-1"));
    for word in
        ["users who left", "raced", "suspicions", "of sessions, ", "KiB a node", "datagrams/s"]
    {
        assert!(page.contains(word), "the page does not say: {word}");
    }
    // Its map is drawn by a script that is in it, and that its policy names.
    for word in ["id=\"film\"", "function drawMap(", "script-src 'sha256-"] {
        assert!(page.contains(word), "the page has no {word}");
    }
    assert_eq!(page.matches("<script").count(), 2, "its frames, and what draws them");
    let page = page.replacen("http://www.w3.org/2000/svg", "", 1);
    for outside in ["src=", "://", "@import", "url(http"] {
        assert!(!page.contains(outside), "the page needs {outside}");
    }
}

#[test]
fn a_sweep_has_a_line_for_each_value_and_a_page() {
    let folder = Folder::new("sweep");
    folder.write("story.toml", STORY);
    let set = "discovery.path-probe-active=500ms,5s";
    let sweep = folder.sim(&[
        "sweep",
        "story.toml",
        "--seeds",
        "2",
        "--set",
        set,
        "--set",
        "scenario.loss-percent=0,2",
        "--json",
        "all.json",
        "--plot",
        "all.svg",
        "--report",
        "page",
    ]);
    assert_eq!(status(&sweep), 0, "{sweep:?}");
    assert!(folder.read("all.svg").contains("path-probe-active=500ms loss-percent=2"));
    let text = printed(&sweep);
    let rows = text.lines().filter(|line| line.starts_with("path-probe-active="));
    assert_eq!(rows.filter(|line| line.ends_with("hold")).count(), 4, "{text}");
    let all = folder.json("all.json");
    assert_eq!(all.as_array().map(Vec::len), Some(8));
    let bytes = |words: &str| {
        let all = all.as_array().into_iter().flatten();
        let those = all.filter(|run| run["scenario"].as_str().is_some_and(|it| it.contains(words)));
        those.filter_map(|run| run["bytes_per_node_per_s"].as_f64()).sum::<f64>()
    };
    assert!(bytes("active=500ms") > bytes("active=5s"), "{all}");
    let page = folder.read("page/index.html");
    assert!(page.contains("gossipB/s") && page.contains("<svg"));
    assert_eq!(page.matches("<svg").count(), 1, "one drawing compares them");
    assert!(!text.contains("had no effect") && !page.contains("had no effect"), "{text}");
    let wrong = folder.sim(&["sweep", "story.toml", "--set", "discovery.no-such-key=1,2"]);
    assert_eq!(status(&wrong), 3, "{wrong:?}");
}

#[test]
fn a_sweep_says_which_key_had_no_effect() {
    let folder = Folder::new("idle");
    folder.write("story.toml", STORY);
    // There is no drain in this run.
    let sets = ["service.kube-apiserver.drain-window=30s,60s", "scenario.loss-percent=0,5"];
    let sets = sets.iter().flat_map(|set| ["--set", *set]);
    let ends = ["--seeds", "1", "--report", "page"];
    let arguments: Vec<&str> =
        ["sweep", "story.toml"].into_iter().chain(sets).chain(ends).collect();
    let sweep = folder.sim(&arguments);
    let text = printed(&sweep);
    assert_eq!(status(&sweep), 0, "{sweep:?}");
    let key = "service.kube-apiserver.drain-window";
    let said = format!("{key} had no effect: all its values give the same runs");
    assert_eq!(text.matches("had no effect").count(), 1, "{text}");
    assert!(text.contains(&said) && folder.read("page/index.html").contains(&said), "{text}");
}

#[test]
fn a_site_that_is_isolated_with_an_origin_is_said_to_serve_itself() {
    let folder = Folder::new("isolated");
    for (site, origins, is_said) in [("fra", "with its origin", true), ("vie", "", false)] {
        let vie = "[[site]]\nname = \"vie\"\nnodes = 2\n\n[[event]]";
        let story = STORY.replace("[[event]]", vie);
        folder.write(
            "story.toml",
            &story.replace("kill = \"fra-1\"", &format!("isolate = \"{site}\"")),
        );
        let text = printed(&folder.sim(&["run", "story.toml"]));
        assert!(text.contains(format!("isolate: {site} {origins}").trim_end()), "{text}");
        assert_eq!(text.contains("crash = \"fra\""), is_said, "{text}");
    }
}

/// A node that is back after a second is never considered down, which is not a quick detection.
#[test]
fn a_sweep_says_what_was_never_noticed() {
    let folder = Folder::new("never");
    folder.write("story.toml", &STORY.replace("kill = \"fra-1\"", "crash = \"fra-2\""));
    let values = "scenario.event.0.for-s=1,15";
    let output = ["--plot", "all.svg", "--report", "page"];
    let sweep = folder.sim(&[&["sweep", "story.toml", "--set", values], &output[..]].concat());
    let text = printed(&sweep);
    assert_eq!(status(&sweep), 0, "{text}");
    let row = |start: &str| {
        let blocks = text.lines().filter(|line| line.starts_with(start));
        blocks.collect::<Vec<_>>().join("\n")
    };
    assert!(row("for-s=1 ").contains(" never "), "{text}");
    assert!(!row("for-s=15 ").contains(" never "), "{text}");
    let plotted = text.lines().filter(|line| line.ends_with("! never")).count();
    assert_eq!(plotted, 1, "{text}");
    assert!(folder.read("all.svg").contains(">never<"));
    assert!(folder.read("page/index.html").contains("<td>never</td>"));
}

#[test]
fn two_results_are_compared() {
    let folder = Folder::new("compare");
    folder.write("story.toml", STORY);
    let run = |file: &str, more: &[&str]| {
        let base = ["run", "story.toml", "--seed", "3", "--json", file];
        assert_eq!(status(&folder.sim(&[&base, more].concat())), 0);
    };
    run("one.json", &[]);
    run("two.json", &[]);
    run("other.json", &["--set", "discovery.path-probe-active=5s"]);
    let same = folder.sim(&["compare", "one.json", "two.json"]);
    assert_eq!(status(&same), 0);
    assert!(printed(&same).contains("the two runs are identical"), "{same:?}");
    let other = folder.sim(&["compare", "other.json", "one.json"]);
    let text = printed(&other);
    let line = text.lines().find(|line| line.starts_with("bytes_per_node_per_s")).expect("a line");
    assert!(line.ends_with('!'), "more bytes are worse: {line}");
    assert!(!text.contains("not the same"), "{text}");
    // A growth from 0 has no ratio, and runs of different length cannot be compared in totals.
    let hasty = ["duration-s=60", "load.requests-per-s=1", "load.timeout-s=0.001"];
    let hasty = hasty.map(|set| format!("--set=scenario.{set}"));
    run("longer.json", &hasty.each_ref().map(String::as_str));
    let longer = printed(&folder.sim(&["compare", "one.json", "longer.json"]));
    assert!(longer.contains("not the same virtual_s: 40.000 and 60.000"), "{longer}");
    assert!(longer.contains("the different virtual_s may be the cause"), "{longer}");
    let failed = longer.lines().find(|line| line.starts_with("requests/failed")).expect("a line");
    assert!(failed.ends_with("from 0 !"), "{failed}");
    // More violations than before are a regression, which shows in the exit status.
    let mut worse = folder.json("other.json");
    worse["violations"] = serde_json::json!([{ "rule": "made up" }]);
    folder.write("worse.json", &worse.to_string());
    assert_eq!(status(&folder.sim(&["compare", "one.json", "worse.json"])), 1);
    folder.write("story.json", "{}");
    assert_eq!(status(&folder.sim(&["compare", "one.json", "story.json"])), 3);
}

#[test]
fn a_hunt_ends_with_its_budget() {
    let folder = Folder::new("hunt");
    let hunt = folder.sim(&["hunt", "--seeds", "2", "--first-seed", "5", "--for", "600"]);
    assert_eq!(status(&hunt), 0, "{hunt:?}");
    assert!(printed(&hunt).contains("2 runs, all rules hold"), "{hunt:?}");
}

/// Nodes behind a NAT that forgets faster than an answer can come are never known by the others,
/// which the rules find after a quiet minute; the rest of the scenario does not matter.
const DEAF: &str = "
description = \"A NAT that forgets at once\"
duration-s = 100

[load]
sessions-per-s = 0.1

[[site]]
name = \"fra\"
nodes = 4
origins = 1

[[site]]
name = \"edge\"
nodes = 4
nat = true
nat-timeout-s = 0.02

[[path]]
between = [\"fra\", \"edge\"]
rtt-ms = 40

[[event]]
at-s = 5
unready = \"fra-1\"
for-s = 3
";

#[test]
fn a_failing_story_becomes_a_smaller_one_that_fails_alike() {
    let folder = Folder::new("shrink");
    folder.write("deaf.toml", DEAF);
    let run = folder.sim(&["run", "deaf.toml", "--seed", "4"]);
    assert_eq!(status(&run), 1, "{run:?}");
    let told = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(told.contains("after a quiet time all agree") && told.contains("--seed 4"), "{told}");
    let shrunk = folder.sim(&["shrink", "deaf.toml", "--seed", "4", "--out", "small.toml"]);
    assert_eq!(status(&shrunk), 1, "{shrunk:?}");
    assert!(printed(&shrunk).contains("still fails with 0 events"), "{shrunk:?}");
    let small: toml::Table = folder.read("small.toml").parse().expect("TOML");
    assert!(!small.contains_key("load"), "clients have nothing to do with it: {small}");
    let nodes = small["site"].as_array().into_iter().flatten();
    let nodes: i64 = nodes.filter_map(|site| site["nodes"].as_integer()).sum();
    assert!(nodes < 8, "{small}");
    let again = folder.sim(&["run", "small.toml", "--seed", "4"]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("after a quiet time all agree"));
    let shown = printed(&shrunk);
    assert_eq!(repeated(&folder, &shown), ["after a quiet time all agree"], "{shown}");
    folder.write("story.toml", STORY);
    let sound = folder.sim(&["shrink", "story.toml", "--seed", "4", "--out", "none.toml"]);
    assert_eq!(status(&sound), 0, "{sound:?}");
    assert!(printed(&sound).contains("nothing to shrink") && !folder.0.join("none.toml").exists());
}

/// The rules that are broken again by the commands that are printed with violations.
fn repeated(folder: &Folder, told: &str) -> Vec<String> {
    let mut rules = Vec::new();
    let mut commands: Vec<&str> =
        told.lines().filter_map(|line| line.trim().strip_prefix("again: ")).collect();
    commands.dedup();
    for command in commands {
        let arguments = command.strip_prefix("cargo run --release -p meshport-simulations --");
        let arguments = arguments.unwrap_or_else(|| panic!("not the usual command: {command}"));
        let typed = format!("{}{arguments}", crate::program().display());
        let mut shell = Command::new("sh");
        let again = shell.args(["-c", &typed]).current_dir(&folder.0).output().expect("a shell");
        let again = String::from_utf8_lossy(&again.stderr).into_owned();
        // The headline has the time, to the millisecond, and the node.
        let is_same = |line: &&str| line.starts_with("VIOLATION") && told.contains(line);
        let headline = again.lines().find(is_same);
        let headline = headline.unwrap_or_else(|| panic!("{command} shows\n{again}not\n{told}"));
        rules.push(headline.rsplit(": ").next().unwrap_or_default().to_owned());
    }
    rules
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Two sites without traffic between them, though no link is down: they consider each other down,
/// which is a violation in the middle of the run.
const SILENT: &str = "
description = \"Two sites that do not hear each other\"
duration-s = 200
site = [{ name = \"fra\", nodes = 2, origins = 1 }, { name = \"ams\", nodes = 2 }]
event = [{ at-s = 40, degrade = { between = [\"fra\", \"ams\"], loss-percent = 100 } }]
";

#[test]
fn the_command_of_a_violation_shows_it_again() {
    let folder = Folder::new("again");
    folder.write("a deaf one.toml", DEAF);
    let deaf = |more: &[&str]| {
        let run = folder.sim(&[&["run", "a deaf one.toml", "--seed", "4"], more].concat());
        assert_eq!(status(&run), 1, "{more:?}: {run:?}");
        let told = told(&run);
        let rules = repeated(&folder, &told);
        let is_it = |rule: &String| rule == "after a quiet time all agree";
        assert!(!rules.is_empty() && rules.iter().all(is_it), "{more:?}: {rules:?}");
        told
    };
    // A violation found at the end is found again only with exactly the same end.
    deaf(&[]);
    assert!(deaf(&["--until", "95.25", "--json", "until.json"]).contains("--until 95.25"));
    let command = folder.json("until.json")["command"].as_str().map(str::to_owned);
    assert!(command.as_ref().is_some_and(|it| it.ends_with(" --until 95.25")), "{command:?}");
    let set = "scenario.description=\"it\'s deaf\"";
    assert!(deaf(&["--set", set, "--json", "deaf.json"]).contains("deaf"));
    let json = folder.json("deaf.json");
    let again = json["violations"][0]["again"].as_str().expect("a command");
    assert!(again.contains("--seed 4") && again.contains("--set"), "{json}");
    folder.write("silent.toml", SILENT);
    let run = folder.sim(&["run", "silent.toml", "--seed", "3"]);
    let told = told(&run);
    assert_eq!(status(&run), 1, "{told}");
    assert!(told.contains("--until ") && told.contains("no living node stays evicted"), "{told}");
    let rules = repeated(&folder, &told);
    assert!(rules.contains(&"no living node stays evicted".to_owned()), "{rules:?}");
}

#[test]
fn violations_of_a_sweep_and_of_a_hunt_have_their_command_too() {
    let folder = Folder::new("again-many");
    folder.write("silent.toml", SILENT);
    let values = ["--set", "scenario.event.0.at-s=40,60", "--set", "discovery.suspicion=4s"];
    let base = ["sweep", "silent.toml", "--seeds", "1", "--first-seed", "3", "--json", "all.json"];
    let sweep = folder.sim(&[&base[..], &values[..]].concat());
    let told = told(&sweep);
    assert_eq!(status(&sweep), 1, "{told}");
    for value in ["40", "60"] {
        let sets = format!("--set 'scenario.event.0.at-s={value}' --set 'discovery.suspicion=4s'");
        assert!(told.contains(&format!("--seed 3 {sets} --until")), "{told}");
    }
    assert!(repeated(&folder, &told).len() >= 2);
    let all = folder.json("all.json");
    assert!(all[1]["violations"][0]["again"].is_string(), "{all}");
    let hunt = folder.sim(&["hunt", "silent.toml", "--seeds", "1", "--first-seed", "3"]);
    let told = self::told(&hunt);
    assert_eq!((status(&hunt), repeated(&folder, &told).len()), (1, 1), "{told}");
}

/// As many numbers that follow one law as there are runs to fit, and one run to check.
#[test]
fn laws_are_found_at_small_sizes_and_carried_to_a_large_one() {
    let folder = Folder::new("scale");
    folder.write("story.toml", &STORY.replace("duration-s = 40", "duration-s = 22"));
    let sizes = ["--sizes", "20,40,60,80", "--origins", "2,4"];
    let carry = ["--carry", "100000", "--sites", "200", "--json", "laws.json"];
    let scale = folder.sim(&[&["scale", "story.toml"], &sizes[..], &carry].concat());
    assert_eq!(status(&scale), 0, "{scale:?}");
    let text = printed(&scale);
    let wall = "16384 nodes in a directory; 100000 wanted: too small";
    assert!(text.contains(wall) && text.contains("512 origins"), "{text}");
    let all = folder.json("laws.json");
    let runs = all["runs"].as_array().expect("runs");
    let sizes: Vec<_> = runs.iter().map(|run| run["size"]["nodes"].as_f64()).collect();
    assert_eq!(sizes, [20.0, 20.0, 40.0, 40.0, 60.0, 60.0, 80.0].map(Some));
    let law = |name: &str| {
        let laws = all["laws"].as_array().into_iter().flatten();
        let mut those = laws.filter(|law| law["measure"] == name);
        those.next().unwrap_or_else(|| panic!("no law of {name}: {text}")).clone()
    };
    for of in ["datagrams sent /s", "bytes received /s", "processor, us/s", "state, bytes"] {
        for role in ["origin", "other"] {
            let law = law(&format!("{role}: {of}"));
            assert_eq!(law["checks"][0]["size"]["nodes"], 80.0, "{law}");
            assert!(law["checks"][0]["measured"].as_f64() > Some(0.0), "{law}");
            assert!(law["carried"].as_f64().is_some(), "{law}");
        }
    }
    // A node that all the others query receives more than they do, and more with each of them.
    let heard = |at: usize, role: &str| {
        let place = format!("/result/roles/{role}/received_packets_per_s");
        runs[at].pointer(&place).and_then(Value::as_f64).expect("a number")
    };
    assert!(heard(4, "origin") > 1.5 * heard(4, "other"), "{text}");
    assert!(heard(4, "origin") > heard(0, "origin"), "{text}");
    // A separate directory grows with the number of nodes. In meshes as small as these, the law
    // depends on the allocator's steps.
    let state = |at: usize| {
        let bytes = runs[at].pointer("/result/roles/other/state_bytes").and_then(Value::as_f64);
        bytes.expect("a number")
    };
    let per_node = (state(6) - state(0)) / 60.0;
    assert!((500.0..5000.0).contains(&per_node), "{per_node} bytes a node: {text}");
    let few = folder.sim(&["scale", "story.toml", "--sizes", "20,40"]);
    assert_eq!(status(&few), 3, "{few:?}");
}

/// A measured node verifies signatures itself and shares nothing; its decisions are the same.
#[test]
fn to_measure_costs_changes_nothing() {
    let folder = Folder::new("costs");
    folder.write("story.toml", STORY);
    let run = |file: &str, more: &[&str]| {
        let base = ["run", "story.toml", "--seed", "3", "--json", file];
        assert_eq!(status(&folder.sim(&[&base, more].concat())), 0);
        folder.json(file)
    };
    let (plain, measured) = (run("plain.json", &[]), run("measured.json", &["--costs"]));
    assert_eq!(plain["trace_hash"], measured["trace_hash"]);
    let sent = |run: &Value| run["roles"]["other"]["sent_bytes_per_s"].as_f64();
    assert_eq!(sent(&plain), sent(&measured));
    for key in ["cpu_us_per_s", "state_bytes"] {
        for role in ["origin", "other"] {
            assert!(plain["roles"][role][key].is_null(), "{plain}");
            assert!(measured["roles"][role][key].as_f64() > Some(0.0), "{role} {key}: {measured}");
        }
    }
}

/// A mistake is reported with its file, key or option and the expected value, before anything runs.
#[test]
fn what_is_wrong_is_said_with_its_place_before_anything_runs() {
    let folder = Folder::new("wrong");
    folder.write("story.toml", STORY);
    folder.write("typo.toml", &STORY.replace("kill =", "kil ="));
    folder.write("full.toml", &format!("level = \"full\"\n{STORY}"));
    for (arguments, code, words) in [
        ("run typo.toml", 3, &["typo.toml: line 26", "did you mean \"kill\""][..]),
        ("run none.toml", 3, &["none.toml: No such file"]),
        ("run story.toml --seed minus", 2, &["--seed", "a whole number from 0 to"]),
        ("run story.toml --seed -1", 2, &["--seed", "a whole number from 0 to"]),
        ("run story.toml --until -1", 2, &["--until", "seconds from 0 to"]),
        ("run story.toml --until inf", 2, &["--until", "seconds from 0 to"]),
        ("run story.toml --nodes-per-site 0", 2, &["--nodes-per-site"]),
        (
            "run story.toml --set discovery.no=1",
            3,
            &["story.toml: with the changed settings", "an unknown key"],
        ),
        ("run story.toml --set scenario.site.7.nodes=1", 3, &["\"7\" in a list of 2", "from 0"]),
        ("sweep story.toml --seeds 0", 2, &["--seeds"]),
        ("sweep story.toml --set discovery.suspicion=4s,never", 3, &["\"never\"", "a duration"]),
        ("sweep full.toml", 3, &["at the wide level"]),
        ("shrink full.toml --seed 1", 3, &["at the wide level"]),
        ("shrink typo.toml --seed 1", 3, &["typo.toml: line 26"]),
        ("hunt typo.toml", 3, &["typo.toml: line 26"]),
        (
            "hunt --rule agreement",
            3,
            &["unknown rule \"agreement\"", "after a quiet time all agree"],
        ),
        ("compare story.toml story.toml", 3, &["story.toml: it is not a result", "invalid JSON"]),
    ] {
        let output = folder.sim(&arguments.split(' ').collect::<Vec<_>>());
        let (said, told) = (printed(&output), told(&output));
        assert_eq!((status(&output), said.as_str()), (code, ""), "{arguments}: {told}");
        for word in words {
            assert!(told.contains(word), "{arguments}: {word} is not in {told}");
        }
        // Line numbers are given only for text that the user wrote.
        assert!(arguments.contains("typo") || !told.contains(": line "), "{arguments}: {told}");
    }
}
