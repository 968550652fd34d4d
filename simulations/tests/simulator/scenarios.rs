//! The ready-made scenarios, run as a user runs them, and their required results.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use meshport_simulations::report::{Effort, Run, text};
use meshport_simulations::scenario::{Scenario, reference};
use meshport_simulations::world::{Options, World};

const THREE_SITES: &str = include_str!("../../scenarios/three-sites.toml");
const SITE_LOSS: &str = include_str!("../../scenarios/site-loss.toml");
const README: &str = include_str!("../../README.md");
const REFERENCE: &str = include_str!("../../REFERENCE.md");
/// A run without resource figures, which do not belong to the scenario.
const NO_EFFORT: Effort = Effort { wall: Duration::ZERO, processor: Duration::ZERO, memory: 0 };
/// Lines of comment that make a story.
const STORY_LINES: usize = 15;

fn run(text: &str, seed: u64) -> Run {
    let scenario = Scenario::parse(text).expect("a good scenario");
    World::new(scenario, seed, Options::default()).expect("a possible world").run()
}

/// Three sites with ten nodes each for some seconds, with these events.
fn small(seconds: u32, events: &str) -> String {
    let head = THREE_SITES.split("[[event]]").next().expect("text before the first event");
    let head = head.replace("duration-s = 320", &format!("duration-s = {seconds}"));
    format!("{head}{events}")
}

fn assert_rules(run: &Run) {
    assert!(run.violations.is_empty(), "{:#?}", run.violations);
}

fn ready() -> Vec<(PathBuf, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios");
    let files = fs::read_dir(folder).expect("a folder of scenarios");
    let mut files: Vec<PathBuf> = files.map(|file| file.expect("a file").path()).collect();
    files.sort();
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("a scenario");
        (path, text)
    };
    files.into_iter().map(read).collect()
}

#[test]
fn there_are_sixteen_ready_scenarios_and_each_is_a_story() {
    let all = ready();
    assert_eq!(all.len(), 16);
    for (path, text) in all {
        let story = text.lines().take_while(|line| line.starts_with('#')).count();
        assert!(story >= STORY_LINES, "{}: {story} lines of story", path.display());
        Scenario::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        assert!(README.contains(&format!("scenarios/{name}.toml")), "{name} is not in the README");
    }
}

#[test]
fn the_first_scenario_in_the_readme_gives_what_it_says() {
    let (_, rest) = README.split_once("```toml\n").expect("a scenario");
    let (text, rest) = rest.split_once("```").expect("its end");
    let seen = Seen::default();
    let options = Options { trace: Some(Box::new(seen.clone())), ..Options::default() };
    let scenario = Scenario::parse(text).expect("a good scenario");
    let run = World::new(scenario, 7, options).expect("a possible world").run();
    assert_rules(&run);
    let said = text::summary(&run, NO_EFFORT);
    let (_, rest) = rest.split_once("```text\n").expect("what it prints");
    let (printed, rest) = rest.split_once("```").expect("its end");
    let lines: Vec<&str> = printed.lines().filter(|line| !line.is_empty()).collect();
    assert!(lines.len() > 10, "{printed}");
    for line in lines {
        let is_said = said.lines().any(|other| other == line);
        assert!(is_said, "simulations/README.md is outdated: {line}\nis not in\n{said}");
    }
    let (_, rest) = rest.split_once("```text\n").expect("what its trace has");
    let (kept, _) = rest.split_once("```").expect("its end");
    let trace = String::from_utf8(std::mem::take(&mut *seen.0.lock().expect("nobody panics")));
    let trace = trace.expect("words");
    let first: Vec<&str> = trace.lines().take(kept.lines().count()).collect();
    assert_eq!(first, kept.lines().collect::<Vec<_>>(), "simulations/README.md is outdated");
}

/// Collects a trace.
#[derive(Debug, Clone, Default)]
struct Seen(Arc<Mutex<Vec<u8>>>);

impl Write for Seen {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("nobody panics").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn worlds_that_found_mistakes_keep_the_rules() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/found");
    let mut worlds = 0;
    for file in fs::read_dir(folder).expect("a folder of worlds") {
        let path = file.expect("a file").path();
        let text = fs::read_to_string(&path).expect("a world");
        let seeds = text.lines().next().and_then(|line| line.strip_prefix("# seed "));
        let seeds = seeds.unwrap_or_else(|| panic!("{}: no seed in line 1", path.display()));
        for seed in seeds.split(' ') {
            assert_rules(&run(&text, seed.parse().expect("a number")));
        }
        worlds += 1;
    }
    assert!(worlds >= 1);
}

#[test]
fn the_reference_is_that_of_the_code() {
    let (_, rest) = REFERENCE.split_once("<!-- reference: begin -->\n").expect("a begin");
    let (kept, _) = rest.split_once("\n<!-- reference: end -->").expect("an end");
    assert!(
        kept.trim() == reference::markdown().trim(),
        "simulations/REFERENCE.md is outdated: put the output of `meshport-sim reference` \
         between the markers"
    );
    assert!(reference::schema().contains("\"rolling-restart\""));
}

#[test]
fn same_seed_same_trace_and_other_seed_other_trace() {
    let text = small(60, "[[event]]\nat-s = [30, 40]\nkill = \"all origins any\"");
    let hash = |seed| run(&text, seed).outcome.trace_hash;
    assert_eq!(hash(7), hash(7));
    assert_ne!(hash(7), hash(8));
}

/// Flights of several datagrams, and copies of single ones, wait before a bottleneck, and
/// then before the access link of the receiver.
#[test]
fn what_waits_twice_on_its_way_arrives_and_is_the_same_for_one_seed() {
    let text = small(60, "").replace(
        "between = [\"fra\", \"ams\"]",
        "between = [\"fra\", \"ams\"]\nrate-mbit = 5\nduplicate-percent = 20",
    );
    // The second site goes to the origin of the first one.
    let site = |name: &str, more: &str| format!("\"{name}\"\nnodes = 10\n{more}");
    let text = text
        .replace(&site("fra", ""), &site("fra", "access = \"metro\"\n"))
        .replace(&site("ams", "origins = 1"), &site("ams", "access = \"lossy-lte\""));
    let first = run(&text, 7);
    assert_rules(&first);
    let requests = &first.measures.requests;
    assert!(requests.total > 500 && requests.failed == 0, "{requests:?}");
    assert_eq!(first.outcome.trace_hash, run(&text, 7).outcome.trace_hash);
}

#[test]
fn everybody_uses_its_own_site_when_all_is_well() {
    let run = run(&small(70, ""), 3);
    assert_rules(&run);
    for name in ["fra-5", "ams-10", "iad-2"] {
        let origin = run.route_of(name).expect("a route");
        assert_eq!(origin[..3], name[..3], "{name} goes to {origin}");
    }
    assert_eq!(run.measures.requests.failed, 0);
    let stretch = run.measures.choices.stretch_quiet.quantiles(1e3).expect("there were sessions");
    assert!(stretch.p99 <= 1.1, "{stretch:?}");
}

#[test]
fn a_dead_instance_is_left_at_once_and_found_again() {
    let kill = "[[event]]\nat-s = 40\nkill = \"fra-1\"\n";
    let left = run(&small(70, kill), 3);
    assert_rules(&left);
    assert_eq!(left.route_of("fra-5"), Some("ams-1"));
    let followed = left.followed(&left.measures.faults[0]);
    assert_eq!((followed.concerned, followed.noticed, followed.users), (29, 29, 9));
    assert!(followed.detected_p99.expect("all noticed").as_secs_f64() < 1.5, "{followed:?}");
    assert_eq!(left.measures.requests.failed, 0);
    let back = run(&small(130, &format!("{kill}for-s = 30\n")), 3);
    assert_rules(&back);
    assert_eq!(back.route_of("fra-5"), Some("fra-1"));
}

/// However sessions are balanced, a dead apiserver is left, and no rule is broken.
#[test]
fn every_balance_keeps_the_rules_when_an_apiserver_dies_and_comes_back() {
    let kill = "[[event]]\nat-s = 45\nkill = \"fra-1\"\nfor-s = 20\n";
    for balance in [
        "policy = \"least-sessions\"",
        "policy = \"source\"",
        "policy = \"source\", weights = [\"ams-1=3\"]",
        "policy = \"spread\", weights = [\"ams-1=3\", \"iad-1=2\"]",
    ] {
        let settings = format!("{{ service = {{ kube-apiserver = {{ {balance} }} }} }}");
        let change = format!("[[event]]\nat-s = 32\nconfigure = \"all\"\nsettings = {settings}\n");
        let run = run(&small(100, &format!("{change}{kill}")), 3);
        assert_rules(&run);
        let requests = &run.measures.requests;
        assert!(requests.total > 500 && requests.failed == 0, "{balance}: {requests:?}");
    }
}

/// Nothing changes but the balance of some nodes, before anything is measured.
fn balanced(nodes: &str, balance: &str) -> Run {
    let settings = format!("{{ service = {{ kube-apiserver = {{ {balance} }} }} }}");
    let change = format!("[[event]]\nat-s = 20\nconfigure = \"{nodes}\"\n");
    let run = run(&small(90, &format!("{change}settings = {settings}\n")), 3);
    assert_rules(&run);
    assert_eq!(run.measures.requests.failed, 0, "{balance}");
    run
}

/// Each of the three sites has the nearest origin of its nodes, so the share of sessions that go to
/// the nearest shows the balance.
#[test]
fn each_balance_sends_sessions_where_it_says() {
    for (nodes, balance, shares) in [
        ("all", "policy = \"nearest\"", 0.97..=1.0),
        ("all", "policy = \"spread\"", 0.23..=0.43),
        ("all", "policy = \"least-sessions\"", 0.2..=0.5),
        ("all", "policy = \"source\"", 0.1..=0.6),
        ("all", "policy = \"pinned\", pinned = [\"ams-1\"]", 0.23..=0.43),
        // A third of the nodes, which have most of the weight or nearly none of it beside them.
        ("ams", "policy = \"spread\", weights = [\"ams-1=100\"]", 0.97..=1.0),
        ("ams", "policy = \"spread\", weights = [\"fra-1=100\"]", 0.6..=0.72),
        ("ams", "policy = \"source\", weights = [\"ams-1=100\"]", 0.97..=1.0),
        ("ams", "policy = \"least-sessions\", weights = [\"ams-1=100\"]", 0.95..=1.0),
    ] {
        let run = balanced(nodes, balance);
        let share = run.nearest_sessions().expect("there were sessions");
        println!("{nodes}: {balance}: {share:.2}");
        assert!(shares.contains(&share), "{nodes}: {balance}: {share}");
    }
    let pinned = balanced("all", "policy = \"pinned\", pinned = [\"iad-1\", \"ams-1\"]");
    for name in ["fra-5", "ams-5", "iad-5"] {
        assert_eq!(pinned.route_of(name), Some("iad-1"), "{name}");
    }
}

/// Its etcd member stalls: a request in progress is repeated elsewhere.
#[test]
fn a_stalled_instance_is_left_while_another_is_ready() {
    let stalled = run(&small(70, "[[event]]\nat-s = 40\nstall = \"ams-1\"\nfor-s = 20\n"), 3);
    assert_rules(&stalled);
    let fault = &stalled.measures.faults[0];
    let followed = stalled.followed(fault);
    assert_eq!((followed.noticed, fault.staying.len()), (29, 0), "{followed:?}");
    assert!(followed.detected_p99.expect("all noticed").as_secs_f64() < 2.5, "{followed:?}");
    assert!(stalled.measures.sessions.broken > 0, "no session was cut");
    assert_eq!(stalled.measures.requests.failed, 0);
}

/// All depend on one etcd: no origin is better, so no session is moved or cut.
#[test]
fn a_stall_of_all_instances_cuts_nothing() {
    let all = "[[event]]\nat-s = 40\nstall = \"all origins\"\nfor-s = 10\n";
    let stalled = run(&small(70, all), 3);
    assert_rules(&stalled);
    assert_eq!(stalled.measures.sessions.broken, 0);
    assert_eq!(stalled.route_of("ams-5"), Some("ams-1"));
    assert_eq!(stalled.measures.faults[0].moved.len(), 0, "a route changed");
}

/// No origin is ready, and one of them stalls: new sessions go to those that still answer.
#[test]
fn a_stalled_instance_is_left_for_one_that_is_live_and_not_ready() {
    let events = "[[event]]\nat-s = 35\nunready = \"fra-1\"\n\
                  [[event]]\nat-s = 35\nunready = \"iad-1\"\n\
                  [[event]]\nat-s = 40\nstall = \"ams-1\"\n";
    let stalled = run(&small(120, events), 3);
    assert_rules(&stalled);
    let (total, failed) = (stalled.measures.requests.total, stalled.measures.requests.failed);
    // 198 of 3,694 if new sessions stay there.
    assert!(failed <= 100, "{failed} of {total} requests failed");
    for name in ["ams-1", "ams-5", "fra-5"] {
        assert_eq!(stalled.route_of(name), Some("fra-1"), "{name}");
    }
    assert_eq!(stalled.measures.sessions.broken, 0, "an unready origin is no reason to cut any");
}

#[test]
fn a_crashed_node_is_noticed_and_taken_up_again() {
    let crash = "[[event]]\nat-s = 40\ncrash = \"ams-1\"\n";
    let gone = run(&small(75, crash), 3);
    assert_rules(&gone);
    assert_eq!(gone.route_of("ams-5"), Some("fra-1"));
    let followed = gone.followed(&gone.measures.faults[0]);
    assert!(followed.detected_p99.expect("all noticed").as_secs_f64() <= 8.0, "{followed:?}");
    let back = run(&small(140, &format!("{crash}for-s = 30\n")), 3);
    assert_rules(&back);
    assert_eq!(back.route_of("ams-5"), Some("ams-1"));
    assert_eq!(back.measures.false_evictions, 0);
}

/// The scenario of the lost site until shortly after its fault, with other events than its own.
fn lost_site(events: &str) -> Run {
    let head = SITE_LOSS.split("[[event]]").next().expect("text before the first event");
    let head = head.replace("duration-s = 260", "duration-s = 90");
    let run = run(&format!("{head}{events}"), 3);
    assert_rules(&run);
    run
}

/// Vienna's nodes learn of Paris at once, which changes the end of their routes, while they still
/// use Frankfurt. Only the moment when they no longer do counts.
#[test]
fn a_node_that_only_learns_of_another_origin_has_not_left_the_cut_one() {
    let run = lost_site(
        "[[event]]\nat-s = 80\nisolate = \"fra\"\n\
         [[event]]\nat-s = 80.01\nunready = \"par-1\"\n",
    );
    let fault = &run.measures.faults[0];
    assert_eq!((fault.kind, fault.moved.len(), fault.staying.len()), ("isolate", 6, 0));
    let first = fault.moved.values().chain(fault.detected.values()).min().expect("six did");
    assert!(*first > Duration::from_millis(500), "before the path can be dead: {first:?}");
}

#[test]
fn a_cut_between_two_nodes_has_its_user() {
    let cut = |origin: u32| format!("[[event]]\nat-s = 80\ncut = [\"vie-1\", \"fra-{origin}\"]\n");
    let run = lost_site(&(cut(1) + &cut(2)));
    let users: usize = run.measures.faults.iter().map(|it| run.followed(it).users).sum();
    assert_eq!((run.measures.faults.len(), users), (2, 1));
}

#[test]
fn all_nodes_know_of_a_revocation_at_once() {
    let run = run(include_str!("../../scenarios/stolen-node.toml"), 3);
    assert_rules(&run);
    assert_eq!(run.measures.requests.failed, 0);
    for (fault, others) in run.measures.faults.iter().zip([31, 30]) {
        let followed = run.followed(fault);
        assert_eq!((followed.noticed, followed.concerned), (others, others), "{}", fault.what);
        assert!(followed.detected_p99.expect("all noticed").as_secs_f64() < 3.0);
    }
    let joined = run.route_of("lys-13").expect("it has joined");
    assert!(joined.starts_with("trn"), "it goes to {joined}");
}

#[test]
fn without_any_origin_sessions_go_to_the_fallback_and_come_back() {
    let events = "[[event]]\nat-s = 30\nkill = \"all origins\"\nfor-s = 30\n\
                  [settings.service.kube-apiserver]\nfallback = [\"k8s.example.com:6443\"]\n";
    let run = run(&small(130, events), 3);
    assert_rules(&run);
    assert_eq!(run.measures.requests.failed, 0);
    assert!(run.measures.sessions.outside > 20, "{:?}", run.measures.sessions);
    assert_eq!(run.route_of("fra-5"), Some("fra-1"));
}

/// No traffic passes between the two sites, though no link is down. Each considers the other down
/// within half a minute of the change, which is excused, and the second change excuses it again,
/// but not forever.
#[test]
fn an_eviction_that_begins_in_unsettled_times_is_judged_when_they_are_over() {
    let site = |name: &str| format!("[[site]]\nname = \"{name}\"\nnodes = 3\norigins = 1\n");
    let deaf = |at: u32| {
        format!(
            "[[event]]\nat-s = {at}\n\
             degrade = {{ between = [\"fra\", \"ams\"], loss-percent = 100 }}\n"
        )
    };
    let head = "description = \"Two sites that do not hear each other\"\nduration-s = 110\n";
    let run = run(&[head, &site("fra"), &site("ams"), &deaf(40), &deaf(60)].concat(), 3);
    let first = run.violations.first().expect("a violation");
    assert_eq!(first.rule, "no living node stays evicted");
    assert!(first.at > Duration::from_secs(60 + 30 + 15), "{:?}", first.at);
    assert_eq!(run.measures.false_evictions, 0, "they began in an excused time");
}

#[test]
fn the_whole_story_ends_with_everybody_at_home() {
    for seed in 1..=2 {
        let run = run(THREE_SITES, seed);
        assert_rules(&run);
        assert!((run.nearest_share() - 1.0).abs() < f64::EPSILON, "seed {seed}");
        assert_eq!(run.measures.requests.failed, 0, "seed {seed}");
    }
}
